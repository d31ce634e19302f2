# SPDX-License-Identifier: Apache-2.0
"""`stackctl diff`: what the series, or one set, changes."""

from typing import Annotated, Any

import typer

from stackctl.cli.command import Session, command
from stackctl.cli.output import Outcome
from stackctl.cli.selection import complete_sets

EXAMPLE = "Examples: stackctl diff kda-overlap; stackctl diff --stat"


def register(app: typer.Typer) -> None:
    """Add the command to the application."""

    @command(app, "diff", epilog=EXAMPLE)
    def diff(
        session: Session,
        name: Annotated[
            str | None,
            typer.Argument(
                metavar="SET",
                help="Name of a set; all by default.",
                autocompletion=complete_sets,
            ),
        ] = None,
        stat: Annotated[
            bool, typer.Option("--stat", help="Only how many lines change per file.")
        ] = False,
    ) -> Outcome:
        """Show what a set changes on its own base (what it stands on in the series)."""
        from stackctl.compose.compare import set_trees, tree_diff

        before, after = set_trees(
            session.series,
            session.cache,
            name,
            offline=session.offline,
            progress=session.progress,
        )
        text = tree_diff(session.cache.store, before, after, stat=stat)
        document: dict[str, Any] = {
            "set": name,
            "before": before,
            "after": after,
            "diff": text,
        }
        return Outcome(document, text.splitlines)
