# SPDX-License-Identifier: Apache-2.0
"""`stackctl range-diff`: what changed between two revisions of a set or a series."""

from typing import Annotated, Any

import typer

from stackctl.cli.command import Session, command
from stackctl.cli.output import Outcome

EXAMPLE = (
    "Example: git worktree add /tmp/old v1 && "
    "stackctl range-diff /tmp/old:kda-overlap kda-overlap"
)


def register(app: typer.Typer) -> None:
    """Add the command to the application."""

    @command(app, "range-diff", epilog=EXAMPLE)
    def range_diff(
        session: Session,
        old: Annotated[str, typer.Argument(metavar="OLD", help="The older revision.")],
        new: Annotated[str, typer.Argument(metavar="NEW", help="The newer revision.")],
    ) -> Outcome:
        """Compare two revisions of a set or a series, patch by patch.

        A revision is SET (of this project), DIR or DIR:SET (of another clone or work
        tree), or COMMIT..COMMIT (composed commits).
        """
        from stackctl.compose import compare

        ranges = [
            compare.revision_range(
                text,
                session.series,
                session.cache,
                offline=session.offline,
                progress=session.progress,
            )
            for text in (old, new)
        ]
        text, equal = compare.range_diff(session.cache.store, ranges[0], ranges[1])
        document: dict[str, Any] = {
            "old": list(ranges[0]),
            "new": list(ranges[1]),
            "equal": equal,
            "range_diff": text,
        }
        return Outcome(document, text.splitlines)
