# SPDX-License-Identifier: Apache-2.0
"""The options that choose a subset of the series, shared by several commands."""

from typing import Annotated

import typer

from stackctl.errors import UsageError

BaseOnlyOption = Annotated[bool, typer.Option("--base-only", help="Compose no set.")]
UptoOption = Annotated[
    str | None,
    typer.Option(metavar="SET", help="Compose the sets up to and including SET."),
]
OnlyOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="SET", help="Compose SET and what it requires (several times)."
    ),
]
WithoutOption = Annotated[
    list[str] | None,
    typer.Option(metavar="SET", help="Compose everything but SET (several times)."),
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
