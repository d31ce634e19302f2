# SPDX-License-Identifier: Apache-2.0
"""What all commands share: options, the session, and how answers are printed.

A command is a function of a `Session` and its own options that returns an `Outcome`.
The decorator adds the options every command has, so that no command can forget one.
"""

import functools
import inspect
from collections.abc import Callable, Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from stackctl.cli.output import Outcome, TerminalProgress, print_json, print_text
from stackctl.errors import UsageError

if TYPE_CHECKING:
    from stackctl.cache import Cache
    from stackctl.compose.context import Context
    from stackctl.model.series import Series

DirectoryOption = Annotated[
    Path | None,
    typer.Option(
        "-C",
        "--directory",
        metavar="DIR",
        help="Project folder; by default the nearest parent with a series.toml.",
    ),
]
JsonOption = Annotated[
    bool, typer.Option("--json", help="Print one JSON document on standard output.")
]
OfflineOption = Annotated[
    bool, typer.Option("--offline", help="Never use the network.")
]
VerboseOption = Annotated[
    int,
    typer.Option(
        "-v",
        "--verbose",
        count=True,
        show_default=False,
        help="Say more (twice: debug).",
    ),
]
QuietOption = Annotated[
    bool, typer.Option("-q", "--quiet", help="Say nothing but the answer.")
]

_COMMON: dict[str, tuple[Any, object]] = {
    "directory": (DirectoryOption, None),
    "as_json": (JsonOption, False),
    "offline": (OfflineOption, False),
    "verbose": (VerboseOption, 0),
    "quiet": (QuietOption, False),
}


class Session:
    """One run of one command.

    Args:
        directory: Project folder as given, None to search for it.
        as_json: Whether the answer is a JSON document.
        offline: Whether the network is off limits.
        verbose: How much more to say.
        quiet: Whether to say nothing but the answer.
    """

    def __init__(
        self,
        directory: Path | None = None,
        as_json: bool = False,
        offline: bool = False,
        verbose: int = 0,
        quiet: bool = False,
    ) -> None:
        self.directory = directory
        self.as_json = as_json
        self.offline = offline
        self.verbose = verbose
        self.quiet = quiet
        self.progress = TerminalProgress(quiet, verbose)
        self._cache: Cache | None = None
        self._series: Series | None = None

    @property
    def project(self) -> Path:
        """The project folder.

        Raises:
            UsageError: There is none.
        """
        from stackctl.project import find_project

        return find_project(self.directory)

    @property
    def series(self) -> "Series":
        """The project's series."""
        if self._series is None:
            from stackctl.project import SERIES_FILE

            # First, since outside of a project there is nothing to read it with.
            path = self.project / SERIES_FILE
            from stackctl.model.series import load_series

            self._series = load_series(path)
        return self._series

    @property
    def context(self) -> "Context":
        """The project's series with the means to compose it."""
        from stackctl.compose.context import Context

        return Context(self.series, self.cache, self.offline, self.progress)

    @property
    def cache(self) -> "Cache":
        """The cache."""
        if self._cache is None:
            from stackctl.cache import Cache

            self._cache = Cache.open()
        return self._cache


def _examples(epilog: str) -> str:
    """Put every example on a line of its own, which help does not wrap: to copy it."""
    head, _, rest = epilog.partition(": ")
    return "\n  ".join([f"\b\n{head}:", *rest.split("; ")])


def _refuse_options_before(context: typer.Context) -> None:
    """Refuse options that stand before a command of a group and would be lost."""
    for parameter in context.command.params:
        name = parameter.name or ""
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            raise UsageError(
                f"{parameter.opts[-1]} stands before `{context.invoked_subcommand}`",
                hint=f"write it after `{context.invoked_subcommand}`",
            )


def _options_of(
    parameters: Sequence[inspect.Parameter],
) -> tuple[list[inspect.Parameter], dict[str, tuple[Any, list[str]]]]:
    """Put the options in the place of parameters that stand for several.

    Args:
        parameters: A command's own parameters. One whose type is a dataclass stands for
            its fields, each of which is an option.

    Returns:
        An option for each parameter or field, and, by parameter, the dataclass with
        the names of its fields.
    """
    options: list[inspect.Parameter] = []
    groups: dict[str, tuple[Any, list[str]]] = {}
    for parameter in parameters:
        group = parameter.annotation
        if not (isinstance(group, type) and is_dataclass(group)):
            options.append(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY))
            continue
        hints = get_type_hints(group, include_extras=True)
        names = [each.name for each in fields(group)]
        groups[parameter.name] = (group, names)
        options += [
            inspect.Parameter(
                each.name,
                inspect.Parameter.KEYWORD_ONLY,
                default=each.default,
                annotation=hints[each.name],
            )
            for each in fields(group)
        ]
    return options, groups


def command(
    app: typer.Typer, name: str | None, **settings: Any
) -> Callable[[Callable[..., Outcome]], Callable[..., Outcome]]:
    """Register a function as a command with the common options.

    Args:
        app: Where to register it.
        name: Name of the command; None for what a group of commands does where none
            of them follows.
        **settings: Further settings for Typer.

    Returns:
        A decorator; the function's first parameter is the session. A parameter whose
        type is a dataclass of options is made of them.
    """

    def decorate(function: Callable[..., Outcome]) -> Callable[..., Outcome]:
        signature = inspect.signature(function, eval_str=True)
        own, groups = _options_of(list(signature.parameters.values())[1:])

        @functools.wraps(function)
        def wrapper(context: typer.Context, **values: Any) -> int:
            if context.invoked_subcommand is not None:
                _refuse_options_before(context)
                return 0
            common = {key: values.pop(key) for key in _COMMON}
            # As with git, -C may stand before the command.
            before = context.find_root().params.get("directory")
            if common["directory"] is None and before is not None:
                common["directory"] = Path(before)
            session = Session(**common)
            for key, (group, names) in groups.items():
                values[key] = group(**{name: values.pop(name) for name in names})
            try:
                outcome = function(session, **values)
            finally:
                session.progress.clear()
            if session.as_json:
                print_json(outcome.document)
            else:
                print_text(outcome.text())
            return int(outcome.code)

        shared = [
            inspect.Parameter(
                key, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=hint
            )
            for key, (hint, default) in _COMMON.items()
        ]
        context_parameter = inspect.Parameter(
            "context", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context
        )
        everything = [context_parameter, *own, *shared]
        wrapper.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
            everything, return_annotation=int
        )
        wrapper.__annotations__ = {p.name: p.annotation for p in everything}
        if "epilog" in settings:
            settings["epilog"] = _examples(settings["epilog"])
        if name is None:
            app.callback(invoke_without_command=True, **settings)(wrapper)
        else:
            app.command(name, **settings)(wrapper)
        return function

    return decorate


def exclusive(**options: object) -> None:
    """Refuse options that exclude each other.

    Args:
        **options: Option names (underscores for hyphens) and their values.

    Raises:
        UsageError: More than one is set.
    """
    used = [f"--{name.replace('_', '-')}" for name, value in options.items() if value]
    if len(used) > 1:
        raise UsageError(f"{used[0]} and {used[1]} exclude each other")
