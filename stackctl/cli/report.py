# SPDX-License-Identifier: Apache-2.0
"""`stackctl report`: one page about the stack, its gates and their receipts."""

from pathlib import Path
from typing import Annotated

import typer

from stackctl.cli.command import Session, command
from stackctl.cli.output import Outcome
from stackctl.errors import UsageError

EXAMPLE = "Example: stackctl report --out build/report"


def register(app: typer.Typer) -> None:
    """Add the command to the application."""

    @command(app, "report", epilog=EXAMPLE)
    def report(
        session: Session,
        out: Annotated[
            Path,
            typer.Option(
                metavar="DIR", help="Folder to write into; made where it is missing."
            ),
        ],
    ) -> Outcome:
        """Write one self-contained HTML page: the stack, a matrix of verdicts, plots.

        Every receipt is verified and compared with the project as it is now. The
        folder holds the page and the receipts that it links to; nothing in it needs a
        network. Judging needs `stackctl[gates]`.
        """
        from stackctl.gates.receipt.model import FOLDER
        from stackctl.gates.report.collect import collect
        from stackctl.gates.report.write import write_report

        shelf = session.project / FOLDER
        if out.resolve().is_relative_to(shelf.resolve()):
            raise UsageError(
                f"{out} is inside {shelf}: the report's copies would be receipts too",
                hint="name another folder with --out",
            )
        found = collect(
            session.series,
            session.cache,
            offline=session.offline,
            progress=session.progress,
        )
        page = write_report(found, out)
        receipts = sum(len(gate.judged) for gate in found.gates)
        document = {
            "page": str(page),
            "composition": found.composition or None,
            "problem": found.problem or None,
            "receipts": receipts,
            "gates": [gate.document() for gate in found.gates],
            "bad": [{"file": file, "reason": why} for file, why in found.bad],
        }
        return Outcome(
            document,
            lambda: [
                f"{page}: {len(found.gates)} gates, {receipts} receipts",
                *(f"{file}: {why}" for file, why in found.bad),
            ],
        )
