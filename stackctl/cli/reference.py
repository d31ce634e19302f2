# SPDX-License-Identifier: Apache-2.0
"""The reference of all commands as Markdown: `python -m stackctl.cli.reference`.

docs/commands.md is its output; a test holds the two together.
"""

from collections.abc import Iterator
from typing import Any

import typer

INTRODUCTION = """\
# Commands

Made from the program's own help by `python -m stackctl.cli.reference`.

Every command takes `-C/--directory DIR` (the project folder; by default the nearest
parent with a `series.toml`), `--json` (one JSON document on standard output, nothing
else there), `--offline`, `-v/--verbose` and `-q/--quiet`. Progress and messages go to
standard error. `NO_COLOR` and pipes are respected. A command that fails before it has
an answer prints `{"error": {"kind", "message", "hint", "where"}}`; one that has an
answer, also a "no", prints its answer.

| exit code | meaning |
|---|---|
| 0 | done, the answer is yes |
| 1 | the answer is no: mismatch, not equal, rejected, stale, audit finding |
| 2 | usage |
| 3 | a file is bad or ambiguous: series, lock, patch, receipt, archive, limit |
| 4 | a pin or digest does not hold: moved head, wrong digest, missing object |
| 5 | conflict: a patch does not apply |
| 6 | remote or network |
| 7 | insufficient evidence |
| 8 | not tested |
| 9 | invalid run |
| 70 | internal error, a fault of stackctl |
| 130 | interrupted |

The cache lies in `$STACKCTL_CACHE_DIR`, else in `$XDG_CACHE_HOME/stackctl`, else in
`~/.cache/stackctl`. A home that cannot be written is no obstacle: a private folder
below the temporary folder takes its place.

Durations in JSON (`ns`) are integer nanoseconds.
"""

_COMMON = {"directory", "as_json", "offline", "verbose", "quiet", "help"}


def _option(parameter: Any) -> str:
    names = ", ".join(f"`{name}`" for name in parameter.opts)
    if parameter.secondary_opts:
        names += " / " + ", ".join(f"`{name}`" for name in parameter.secondary_opts)
    if parameter.param_type_name == "argument":
        metavar = parameter.metavar or parameter.name.upper()
        brackets = not parameter.required and metavar[:1] != "["
        names = f"`[{metavar}]`" if brackets else f"`{metavar}`"
    elif not parameter.is_flag:
        choices = "|".join(getattr(parameter.type, "choices", ()))
        metavar = parameter.metavar or choices or parameter.type.name.upper()
        names += f" `{metavar.removesuffix(' RANGE')}`"
    # A bar ends a cell, in code too.
    text = (parameter.help or "").strip()
    if parameter.param_type_name == "option":
        if parameter.required:
            text += " Required."
        elif parameter.default and not parameter.is_flag:
            text += f" Default: `{parameter.default}`."
    cells = [names, text]
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def _commands(command: Any, path: str) -> Iterator[tuple[str, Any]]:
    inner = getattr(command, "commands", None)
    if inner is None:
        yield path, command
        return
    if command.invoke_without_command and len(command.params) > 2:
        yield path, command
    for name, child in inner.items():
        yield from _commands(child, f"{path} {name}")


def reference() -> str:
    """Return the reference as Markdown."""
    from stackctl.cli.app import app

    lines = [INTRODUCTION]
    for path, command in _commands(typer.main.get_command(app), "stackctl"):
        lines += [f"## `{path}`", "", (command.help or "").strip(), ""]
        own = [p for p in command.params if p.name not in _COMMON]
        if own:
            lines += ["| option | meaning |", "|---|---|", *map(_option, own), ""]
        # The first line, \b, tells help not to wrap what follows.
        example = (command.epilog or "").splitlines()[1:]
        if example:
            head, *rest = [line.strip() for line in example]
            lines += [head, "", "```sh", *rest, "```", ""]
    return "\n".join(lines).rstrip() + "\n"


if __name__ == "__main__":
    print(reference(), end="")  # noqa: T201
