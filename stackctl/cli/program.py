# SPDX-License-Identifier: Apache-2.0
"""The program: which commands a command line needs, and running one.

A run needs one command. Where its module is called like the command, only that one is
imported and described to the parser; all of them together take longer than a small
composition.
"""

import importlib
import importlib.util
from typing import Annotated, Any

import typer

from stackctl import __version__
from stackctl.cli.command import DirectoryOption
from stackctl.cli.output import usage_error
from stackctl.errors import ExitCode


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"stackctl {__version__}")
        raise typer.Exit


def new_app() -> typer.Typer:
    """Return the application without any command."""
    app = typer.Typer(
        name="stackctl",
        help="Compose, verify and qualify a vLLM fork kept as an ordered series of "
        "patch sets.",
        epilog="Example: stackctl compose --json",
        no_args_is_help=True,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={
            "help_option_names": ["-h", "--help"],
            "max_content_width": 100,
        },
    )

    @app.callback()
    def _program(
        directory: DirectoryOption = None,
        version: Annotated[
            bool,
            typer.Option(
                "--version",
                is_eager=True,
                callback=_print_version,
                help="Show the version and exit.",
            ),
        ] = False,
    ) -> None:
        pass

    return app


def app_for(arguments: list[str]) -> typer.Typer:
    """Return an application that knows at least the command that is asked for.

    Args:
        arguments: The arguments after the program's name.
    """
    name = arguments[0] if arguments else ""
    module = f"stackctl.cli.{name.replace('-', '_')}"
    if (
        name.replace("-", "").isalpha()
        and name.isascii()
        and importlib.util.find_spec(module) is not None
    ):
        register = getattr(importlib.import_module(module), "register", None)
        if register is not None:
            app = new_app()
            register(app)
            known = [*app.registered_commands, *app.registered_groups]
            if name in [_name_of(each) for each in known]:
                return app
    from stackctl.cli.app import app as everything

    return everything


def _name_of(info: Any) -> str | None:
    inner = getattr(info, "typer_instance", None)
    given = info.name if isinstance(info.name, str) else None
    if given is None and inner is not None and isinstance(inner.info.name, str):
        given = inner.info.name
    return given


def invoke(arguments: list[str]) -> int:
    """Parse arguments and run the command.

    Args:
        arguments: The arguments after the program's name.

    Returns:
        The exit code.
    """
    program = typer.main.get_command(app_for(arguments))
    # Typer brings click or its own copy of it, by version; its public names lead to it.
    parse_error: Any = typer.BadParameter.__base__
    try:
        result = program.main(arguments, prog_name="stackctl", standalone_mode=False)
    except parse_error as error:
        if type(error).__name__ == "NoArgsIsHelpError":  # its message is the help
            typer.echo(error.format_message(), err=True)
            return ExitCode.USAGE
        context = error.ctx
        hint = f"see `{context.command_path} --help`" if context else None
        raise usage_error(error.format_message(), hint) from None
    except typer.Abort:
        raise KeyboardInterrupt from None
    except typer.Exit as error:
        result = error.exit_code
    # Newer versions of Typer turn Ctrl-C into this exit code, without a word.
    if result == ExitCode.INTERRUPTED:
        raise KeyboardInterrupt
    return result if isinstance(result, int) else 0
