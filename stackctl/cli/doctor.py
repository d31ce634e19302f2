# SPDX-License-Identifier: Apache-2.0
"""`stackctl doctor`: what is installed, what is missing, how to get it."""

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

        Exits 1 only where something is wrong that composing needs.
        """
        from stackctl.doctor import examine

        checks = examine(session.cache)
        bad = [
            check
            for check in checks
            if check.state != "ok" and check.needed_for == "compose"
        ]
        document = {
            "ok": not bad,
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
            return table(
                ["what", "state", "found", "needed for", "how to get it"],
                [
                    [
                        check.name,
                        check.state,
                        check.found,
                        check.needed_for,
                        "" if check.state == "ok" else check.how,
                    ]
                    for check in checks
                ],
            )

        return Outcome(document, text, ExitCode.NO if bad else ExitCode.OK)
