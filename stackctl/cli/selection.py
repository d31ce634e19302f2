# SPDX-License-Identifier: Apache-2.0
"""The options that choose a subset of the series, shared by several commands."""

import tomllib
from pathlib import Path
from typing import Annotated

import typer

from stackctl.errors import StackctlError, UsageError


def complete_sets(context: typer.Context, incomplete: str) -> list[str]:
    """Return the names of the series' sets that begin as a user typed.

    A shell asks this at every tab, of half-edited files too: nothing is checked, and
    where there is no answer, none is given.

    Args:
        context: The command line so far.
        incomplete: What was typed of the name.
    """
    from stackctl.project import SERIES_FILE, find_project

    given = context.params.get("directory") or context.find_root().params.get(
        "directory"
    )
    try:
        project = find_project(Path(given) if given else None)
        table = tomllib.loads((project / SERIES_FILE).read_text(encoding="utf-8"))
        names = [str(each["name"]) for each in table["set"]]
    except (StackctlError, OSError, ValueError, LookupError, TypeError):
        return []
    return [name for name in names if name.startswith(incomplete)]


BaseOnlyOption = Annotated[bool, typer.Option("--base-only", help="Compose no set.")]
UptoOption = Annotated[
    str | None,
    typer.Option(
        metavar="SET",
        help="Compose the sets up to and including SET.",
        autocompletion=complete_sets,
    ),
]
OnlyOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="SET",
        help="Compose SET and what it requires (several times).",
        autocompletion=complete_sets,
    ),
]
WithoutOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="SET",
        help="Compose everything but SET (several times).",
        autocompletion=complete_sets,
    ),
]
ForceOption = Annotated[
    bool,
    typer.Option("--force", help="Leave SET out although a kept set requires it."),
]


def split_names(names: list[str] | None) -> tuple[str, ...]:
    """Return set names from repeated and comma-separated options."""
    parts = [part.strip() for name in names or () for part in name.split(",")]
    if not all(parts):
        # Taken for nothing, an empty variable of a script would select everything.
        raise UsageError("the name of a set is empty")
    return tuple(parts)
