# SPDX-License-Identifier: Apache-2.0
"""`stackctl import-manifest`: a published manifest or lock as a series."""

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer

from stackctl.cli.command import Session, command
from stackctl.cli.output import Outcome
from stackctl.errors import UsageError

EXAMPLE = (
    "Examples: stackctl import-manifest integration.lock.json; "
    "stackctl import-manifest manifest.json --base-commit ID --out my-fork"
)


def register(app: typer.Typer) -> None:
    """Add the command to the application."""

    @command(app, "import-manifest", epilog=EXAMPLE)
    def import_manifest(
        session: Session,
        file: Annotated[
            Path, typer.Argument(metavar="FILE", help="A manifest or lock.")
        ],
        out: Annotated[
            Path | None,
            typer.Option(
                metavar="DIR", help="Write a new project; otherwise print the text."
            ),
        ] = None,
        base_commit: Annotated[
            str | None,
            typer.Option(metavar="COMMIT", help="The base, for a manifest."),
        ] = None,
    ) -> Outcome:
        """Turn a published manifest or integration lock into a series.toml."""
        from stackctl.model.ids import GIT_ID, CommitId
        from stackctl.published.formats import read_published
        from stackctl.published.manifest import import_published, write_project

        if base_commit is not None and not GIT_ID.match(base_commit):
            raise UsageError(f"--base-commit {base_commit}: expected 40 hex digits")
        imported = import_published(
            read_published(file),
            project=(out or Path.cwd()).absolute(),
            base_commit=CommitId(base_commit) if base_commit else None,
            offline=session.offline,
        )
        written = write_project(imported, out) if out is not None else []
        document = {
            "name": imported.series.name,
            "series": imported.text,
            "sets": [each.name for each in imported.series.sets],
            "excludes": len(imported.series.excludes),
            "patches": list(imported.patches),
            "written": [str(path) for path in written],
            "notes": list(imported.notes),
        }

        def text() -> Iterable[str]:
            if written:
                yield from (f"written  {path}" for path in written)
                yield from imported.notes
                return
            yield from (f"# {note}" for note in imported.notes)
            if imported.patches:
                yield "# The source patches are copied by --out."
            yield from imported.text.splitlines()

        return Outcome(document, text)
