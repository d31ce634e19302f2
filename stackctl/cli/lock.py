# SPDX-License-Identifier: Apache-2.0
"""`stackctl lock`: compose by both routes and write series.lock."""

import time
from typing import Annotated, Any

import typer

from stackctl.cli.command import Session, command
from stackctl.cli.compose import (
    composition_text,
    new_pin_notes,
    resolution_notes,
)
from stackctl.cli.output import Outcome
from stackctl.errors import ExitCode

EXAMPLE = "Examples: stackctl lock; stackctl lock --check --json"


def register(app: typer.Typer) -> None:
    """Add the command to the application."""

    @command(app, "lock", epilog=EXAMPLE)
    def lock(
        session: Session,
        check: Annotated[
            bool,
            typer.Option(
                "--check", help="Write nothing; exit 1 if series.lock differs."
            ),
        ] = False,
    ) -> Outcome:
        """Compose here and with plain git; where both agree, write series.lock."""
        from stackctl.compose.compose import Options, compose_series
        from stackctl.compose.lock import (
            compare_with_lock,
            make_lock,
            save_lock,
            with_options,
        )

        started = time.perf_counter_ns()
        code = ExitCode.OK
        extra: dict[str, Any]
        checked: dict[str, Any] = {}
        notes: list[str] = []
        if check:
            composition = compose_series(
                session.series,
                session.cache,
                options=Options(offline=session.offline),
                progress=session.progress,
            )
            difference = compare_with_lock(session.project, composition)
            extra = {"equal": difference is None, "difference": difference}
            note = f"series.lock     {difference or 'equal'}"
            code = ExitCode.OK if difference is None else ExitCode.NO
        else:
            composition, made = make_lock(
                session.series,
                session.cache,
                offline=session.offline,
                progress=session.progress,
            )
            # After composing: what is missing or conflicts is said first.
            notes = new_pin_notes(session, session.series.sets, checked)
            if checked["unchecked_pins"]:
                made = with_options(made, unchecked_pins=checked["unchecked_pins"])
            changed = save_lock(session.project, made)
            extra = {"written": changed, "routes": "agree"}
            note = f"series.lock     {'written' if changed else 'unchanged'}"
        ns = time.perf_counter_ns() - started
        document = {**composition.document(), "locked": extra, **checked, "ns": ns}
        notes += [*resolution_notes(session.project, composition, document), note]
        name = session.series.name
        return Outcome(
            document, lambda: composition_text(composition, name, ns, notes), code
        )
