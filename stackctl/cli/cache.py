# SPDX-License-Identifier: Apache-2.0
"""`stackctl cache`: what the cache holds, and emptying it."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stackctl.cli.command import Session, command
from stackctl.cli.output import Outcome, table
from stackctl.gates.rule.words import counted

if TYPE_CHECKING:
    from stackctl.cache import Cache

EXAMPLE = "Examples: stackctl cache info; stackctl cache clean --downloads"


def _info_text(document: dict[str, Any]) -> Iterable[str]:
    from stackctl.gates.shelf import MOST

    yield document["path"]
    yield from table(
        ["part", "files", "MB"],
        [
            [part["name"], str(part["files"]), f"{part['bytes'] / 1e6:.1f}"]
            for part in document["parts"]
        ],
    )
    if document["trees"]:
        trees = counted(document["trees"], "tree")
        yield f"{trees} of gates; the {MOST} last used stay"


def _clean_text(document: dict[str, Any]) -> Iterable[str]:
    yield f"freed {document['freed'] / 1e6:.1f} MB"
    if document["kept"]:
        yield f"kept {counted(document['kept'], 'tree')} in use by running gates"


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
        from stackctl.gates.shelf import Shelf

        cache = session.cache
        document = {
            "path": str(cache.folder),
            "parts": [
                {"name": part.name, "files": part.files, "bytes": part.bytes}
                for part in cache.usage()
            ],
            "trees": len(Shelf(cache.folder).trees()),
        }
        return Outcome(document, lambda: _info_text(document))

    @command(group, "clean", epilog="Example: stackctl cache clean --downloads")
    def clean(
        session: Session,
        downloads: Annotated[
            bool, typer.Option("--downloads", help="The downloaded archives.")
        ] = False,
        store: Annotated[
            bool,
            typer.Option(
                "--store", help="The object store, the facts, and logs of searches."
            ),
        ] = False,
        trees: Annotated[
            bool,
            typer.Option("--trees", help="The trees of gates that no run uses now."),
        ] = False,
    ) -> Outcome:
        """Delete the cache, or the parts that are named; all of it can be made again.

        Downloads and store go where nobody uses them: exits 2 and names who does.
        """
        from stackctl.gates.shelf import Shelf

        cache = session.cache
        every = not (downloads or store or trees)
        before = _size(cache)
        if every or downloads or store:
            cache.clean(downloads=every or downloads, store=every or store)
        kept = 0
        if every or trees:
            shelf = Shelf(cache.folder, most=0)
            shelf.put_away()
            kept = len(shelf.trees())
        freed = before - _size(cache)
        document = {"path": str(cache.folder), "freed": freed, "kept": kept}
        return Outcome(document, lambda: _clean_text(document))

    app.add_typer(group)


def _size(cache: "Cache") -> int:
    return sum(part.bytes for part in cache.usage())
