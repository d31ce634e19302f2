# SPDX-License-Identifier: Apache-2.0
"""`stackctl status`: does the series compose, and does the lock say the same?"""

from collections.abc import Iterable
from os.path import lexists
from typing import Any

import typer

from stackctl.cli.command import Session, command
from stackctl.cli.output import Outcome, table
from stackctl.errors import ConflictError, ExitCode

EXAMPLE = "Example: stackctl status --json"

_MISSING = "missing: make it with `stackctl lock`"


def _text(document: dict[str, Any]) -> Iterable[str]:
    yield f"{document['name']}: {document['state']}"
    yield from table(
        ["set", "state", "patches", "tree"],
        [
            [
                each["name"],
                each["state"],
                str(each["patches"]),
                (each["tree"] or "")[:12],
            ]
            for each in document["sets"]
        ],
    )
    if document["problem"]:
        yield ""
        yield document["problem"]
    if document["difference"]:
        yield ""
        for part in document["difference"].split("; "):
            yield f"series.lock: {part}"
        if document["difference"] != _MISSING:
            yield "if that is meant, record it with `stackctl lock`"


def register(app: typer.Typer) -> None:
    """Add the command to the application."""

    @command(app, "status", epilog=EXAMPLE)
    def status(session: Session) -> Outcome:
        """Say whether every set composes and whether series.lock is up to date.

        Exits 0 where all is well, 1 where the lock is missing or differs, 5 where a
        patch does not apply.
        """
        from stackctl.compose.compose import Options, compose_series
        from stackctl.compose.lock import compare_with_lock
        from stackctl.compose.plan import Selection
        from stackctl.project import LOCK_FILE

        series = session.series
        options = Options(offline=session.offline)
        problem: str | None = None
        difference: str | None = None
        code = ExitCode.OK
        trees: dict[str, str] = {}
        counts: dict[str, int] = {}
        try:
            composition = compose_series(
                series, session.cache, options=options, progress=session.progress
            )
        except ConflictError as error:
            # The sets before the broken one still compose: show how far it goes.
            problem, code = error.message, ExitCode.CONFLICT
            names = [each.name for each in series.sets]
            broken = names.index(str(error.where["set"]))
            before = Selection(base_only=True)
            if broken:
                before = Selection(upto=names[broken - 1])
            composition = compose_series(
                series, session.cache, before, options, session.progress
            )
        for step in composition.steps:
            trees[step.set] = step.tree
            counts[step.set] = counts.get(step.set, 0) + (step.patch is not None)
        if problem is None:
            if lexists(session.project / LOCK_FILE):
                difference = compare_with_lock(session.project, composition)
            else:
                difference = _MISSING
            if difference is not None:
                code = ExitCode.NO
        sets = [
            {
                "name": each.name,
                "state": _state(each.draft, each.disposition, each.name in trees),
                "patches": counts.get(each.name, 0),
                "tree": trees.get(each.name),
            }
            for each in series.sets
        ]
        state = {
            ExitCode.OK: "composes, series.lock is up to date",
            ExitCode.NO: "composes, series.lock is not up to date",
            ExitCode.CONFLICT: "does not compose",
        }[code]
        document = {
            "name": series.name,
            "state": state,
            "composes": problem is None,
            "locked": problem is None and difference is None,
            "problem": problem,
            "difference": difference,
            "sets": sets,
        }
        return Outcome(document, lambda: _text(document), code)


def _state(draft: bool, disposition: str, reached: bool) -> str:
    if draft:
        return "draft"
    if disposition != "included":
        return disposition
    return "composes" if reached else "not reached"
