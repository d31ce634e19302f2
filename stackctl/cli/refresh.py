# SPDX-License-Identifier: Apache-2.0
"""`stackctl refresh`: an edited tree back into the canonical patches of a set."""

import re
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from stackctl.cli.command import Session, command, exclusive
from stackctl.cli.export import written_outcome
from stackctl.cli.output import Outcome
from stackctl.cli.selection import complete_sets
from stackctl.errors import UsageError

if TYPE_CHECKING:
    from stackctl.git.patchtext.model import Identity

EXAMPLE = (
    "Example: stackctl compose --upto prefetch --out tree; edit tree; "
    "stackctl refresh prefetch --from tree"
)


def _author(text: str | None) -> "Identity | None":
    from stackctl.git.patchtext.model import Identity

    if text is None:
        return None
    match = re.fullmatch(r"\s*([^<>\n]+?)\s*<([^<>\s]+)>\s*", text)
    if match is None:
        raise UsageError(
            f"{text!r} is no author",
            hint="write it like 'A U Thor <author@example.org>'",
        )
    return Identity(match[1].encode(), match[2].encode(), int(time.time()), b"+0000")


def register(app: typer.Typer) -> None:
    """Add the command to the application."""

    @command(app, "refresh", epilog=EXAMPLE)
    def refresh(
        session: Session,
        name: Annotated[
            str,
            typer.Argument(
                metavar="SET", help="Name of the set.", autocompletion=complete_sets
            ),
        ],
        folder: Annotated[
            Path, typer.Option("--from", metavar="DIR", help="The edited tree.")
        ],
        patch: Annotated[
            str | None,
            typer.Option(
                metavar="PATCH",
                help="Patch that takes the edits, by the start of its name; the last "
                "by default.",
            ),
        ] = None,
        message: Annotated[
            str | None,
            typer.Option("-m", "--message", help="Make a new last patch instead."),
        ] = None,
        author: Annotated[
            str | None, typer.Option(help="Author of the new patch: 'Name <mail>'.")
        ] = None,
        whole: Annotated[
            bool,
            typer.Option(
                "--whole", help="The tree is of the whole series, not up to SET."
            ),
        ] = False,
    ) -> Outcome:
        """Fold the edits of a materialised tree into the set's patches."""
        from stackctl.compose.author import refresh_from_folder

        exclusive(patch=patch, message=message)
        written = refresh_from_folder(
            session.series,
            session.cache,
            name,
            folder,
            patch=patch,
            message=message,
            author=_author(author),
            whole=whole,
            offline=session.offline,
            progress=session.progress,
        )
        return written_outcome(name, written)
