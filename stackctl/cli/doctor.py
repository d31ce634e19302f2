# SPDX-License-Identifier: Apache-2.0
"""`stackctl doctor`: what is installed, what is missing, how to get it."""

from typing import Any

import typer

from stackctl.cli.command import Session, command
from stackctl.cli.output import Outcome, table
from stackctl.errors import ExitCode

EXAMPLE = "Example: stackctl doctor --json"


def register(app: typer.Typer) -> None:
    """Add the command to the application."""

    @command(app, "doctor", epilog=EXAMPLE)
    def doctor(session: Session) -> Outcome:
        """Say what is installed, what can run here, and how to get what is missing.

        In a project also which of its gates can run here (`gate list` says more). Exits
        1 only where something is wrong that composing needs.
        """
        from stackctl.doctor import examine

        checks = examine(session.cache)
        bad = [
            check
            for check in checks
            if check.state != "ok" and check.needed_for == "compose"
        ]
        gates = _gates(session)
        document = {
            "ok": not bad,
            "gates": gates,
            "checks": [
                {
                    "name": check.name,
                    "state": check.state,
                    "found": check.found,
                    "needed_for": check.needed_for,
                    "how": "" if check.state == "ok" else check.how,
                }
                for check in checks
            ],
        }

        def text() -> list[str]:
            lines = table(
                ["what", "state", "needed for", "found, or how to get it"],
                [
                    [
                        check.name,
                        check.state,
                        check.needed_for,
                        check.found
                        if check.state == "ok"
                        else "; ".join(filter(None, [check.found, check.how])),
                    ]
                    for check in checks
                ],
            )
            rows = [
                [gate["name"], "yes" if gate["can_run"] else "; ".join(gate["missing"])]
                for gate in gates
            ]
            return (
                [*lines, "", *table(["gate", "can run here"], rows)] if rows else lines
            )

        return Outcome(document, text, ExitCode.NO if bad else ExitCode.OK)


def _gates(session: Session) -> list[dict[str, Any]]:
    """Return which gates of the project can run here; none outside a project."""
    from contextlib import suppress

    from stackctl.errors import InputError, UsageError
    from stackctl.gates.bound import lacking
    from stackctl.gates.here import Here
    from stackctl.gates.model import read_gates

    try:
        project = session.project
    except UsageError:
        return []
    series = None
    with suppress(InputError):  # a bad series is for other commands to tell
        series = session.series
    here = Here()
    files = read_gates(project)
    found = {name: [error.message] for name, error in files.bad.items()}
    for name, gate in files.good.items():
        found[name] = [*lacking(project, gate, series), *here.missing(gate)]
    return [
        {"name": name, "can_run": not missing, "missing": missing}
        for name, missing in sorted(found.items())
    ]
