# SPDX-License-Identifier: Apache-2.0
"""`stackctl cache`: what the cache holds, and emptying it."""

from collections.abc import Iterable
from typing import Annotated, Any

import typer

from stackctl.cli.command import Session, command
from stackctl.cli.output import Outcome, table

EXAMPLE = "Examples: stackctl cache info; stackctl cache clean --downloads"


def _info_text(document: dict[str, Any]) -> Iterable[str]:
    yield document["path"]
    yield from table(
        ["part", "files", "MB"],
        [
            [part["name"], str(part["files"]), f"{part['bytes'] / 1e6:.1f}"]
            for part in document["parts"]
        ],
    )


def register(app: typer.Typer) -> None:
    """Add the commands to the application."""
    group = typer.Typer(
        name="cache",
        help="What the cache holds, and emptying it.",
        epilog=EXAMPLE,
        no_args_is_help=True,
        rich_markup_mode=None,
    )

    @command(group, "info", epilog="Example: stackctl cache info --json")
    def info(session: Session) -> Outcome:
        """Show where the cache lies and what it holds."""
        cache = session.cache
        document = {
            "path": str(cache.folder),
            "parts": [
                {"name": part.name, "files": part.files, "bytes": part.bytes}
                for part in cache.usage()
            ],
        }
        return Outcome(document, lambda: _info_text(document))

    @command(group, "clean", epilog="Example: stackctl cache clean --downloads")
    def clean(
        session: Session,
        downloads: Annotated[
            bool, typer.Option("--downloads", help="Only the downloaded archives.")
        ] = False,
        store: Annotated[
            bool, typer.Option("--store", help="Only the object store and the facts.")
        ] = False,
    ) -> Outcome:
        """Delete the cache, or a part of it; everything in it can be made again."""
        both = downloads == store
        freed = session.cache.clean(downloads=downloads or both, store=store or both)
        document = {"path": str(session.cache.folder), "freed": freed}
        return Outcome(document, lambda: [f"freed {freed / 1e6:.1f} MB"])

    app.add_typer(group)
