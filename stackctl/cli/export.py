# SPDX-License-Identifier: Apache-2.0
"""`stackctl export`: commits back into the canonical patches of a set."""

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from stackctl.cli.command import Session, command
from stackctl.cli.output import Outcome
from stackctl.cli.selection import complete_sets

if TYPE_CHECKING:
    from stackctl.compose.author import Written

EXAMPLE = "Example: stackctl export kda-overlap --from ../vllm base..kda-overlap"


def written_outcome(name: str, written: "Written") -> Outcome:
    """Return the outcome of a command that rewrote a set's patches."""

    def text() -> Iterable[str]:
        for patch in written.patches:
            mark = "written" if patch.name in written.changed else "unchanged"
            yield f"{patch.name}  {mark}"
        for gone in written.removed:
            yield f"{gone}  removed"
        yield from written.notes

    document = {
        "set": name,
        "patches": [
            {**patch.document(), "changed": patch.name in written.changed}
            for patch in written.patches
        ],
        "removed": list(written.removed),
        "notes": list(written.notes),
    }
    return Outcome(document, text)


def register(app: typer.Typer) -> None:
    """Add the command to the application."""

    @command(app, "export", epilog=EXAMPLE)
    def export(
        session: Session,
        name: Annotated[
            str,
            typer.Argument(
                metavar="SET", help="Name of the set.", autocompletion=complete_sets
            ),
        ],
        commit_range: Annotated[
            str, typer.Argument(metavar="RANGE", help="Commits, like main..topic.")
        ],
        repository: Annotated[
            Path,
            typer.Option("--from", metavar="REPO", help="Repository of the commits."),
        ],
        check: Annotated[
            bool,
            typer.Option(
                "--check/--no-check", help="Refuse what does not apply in the series."
            ),
        ] = True,
    ) -> Outcome:
        """Write the commits of a range as the set's patches, in canonical form."""
        from stackctl.compose.author import export_commits

        written = export_commits(
            session.series,
            session.cache,
            name,
            repository,
            commit_range,
            offline=session.offline,
            check=check,
            progress=session.progress,
        )
        return written_outcome(name, written)
