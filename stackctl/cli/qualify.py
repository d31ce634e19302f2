# SPDX-License-Identifier: Apache-2.0
"""`stackctl qualify`: all gates that the series names, one table, one exit code."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from stackctl.cli.command import Session, command
from stackctl.cli.gate import (
    VERDICT_CODES,
    BaseUrlOption,
    FreshOption,
    GpuOption,
    ModelOption,
    PythonOption,
    ServedModelOption,
    SiteOption,
    here_of,
)
from stackctl.cli.output import Outcome, table
from stackctl.cli.selection import split_names

if TYPE_CHECKING:
    from stackctl.gates.qualify import Qualification, Row

EXAMPLE = (
    "Examples: stackctl qualify --dry-run; "
    "stackctl qualify --python /opt/venv/bin/python; "
    "stackctl qualify --set parallel-prefill --json"
)


def register(app: typer.Typer) -> None:
    """Add the command to the application."""

    @command(app, "qualify", epilog=EXAMPLE)
    def qualify(
        session: Session,
        sets: Annotated[
            list[str] | None,
            typer.Option("--set", metavar="SET", help="Only what SET asks for."),
        ] = None,
        dry_run: Annotated[
            bool,
            typer.Option("--dry-run", help="Say what would run, and for how long."),
        ] = False,
        jobs: Annotated[
            int,
            typer.Option(
                min=0,
                metavar="N",
                help="Most gates at once, of those that measure no time and need no "
                "GPU; by default half the CPUs.",
            ),
        ] = 0,
        python: PythonOption = None,
        site: SiteOption = None,
        model: ModelOption = None,
        base_url: BaseUrlOption = None,
        served_model: ServedModelOption = None,
        gpu: GpuOption = None,
        fresh: FreshOption = False,
    ) -> Outcome:
        """Run every gate that the series names and give one verdict.

        Exits with the worst verdict of the required gates: 9 invalid, 1 rejected, 7
        insufficient evidence, 8 not tested, 0 qualified; advisory gates do not count.
        After an interruption it goes on where it stood.
        """
        from stackctl.compose.plan import find_set
        from stackctl.gates.arms import ComposedTrees
        from stackctl.gates.model import load_gates
        from stackctl.gates.qualify import asked_gates, forecast
        from stackctl.gates.qualify import qualify as run_all
        from stackctl.gates.run import Engine

        series = session.series
        wanted = [find_set(series, name).name for name in split_names(sets)]
        asked = asked_gates(series, load_gates(session.project), wanted)
        here = here_of(python, site, model, base_url, gpu, served_model)
        trees = ComposedTrees(series, session.cache, session.offline, session.progress)
        with Engine(session.project, trees, here, progress=session.progress) as engine:
            if dry_run:
                rows = forecast(engine, asked)
                return Outcome({"gates": rows}, lambda: _forecast(rows))
            note = session.progress.note

            def told(row: "Row") -> None:
                note(f"{row.asked.gate.name}: {row.document['verdict']}")

            found = run_all(engine, asked, jobs=jobs, fresh=fresh, told=told)
        return Outcome(
            found.document(), lambda: _result(found), VERDICT_CODES[found.verdict]
        )


def _seconds(value: float | None) -> str:
    if value is None:
        return "?"
    return f"{value:.0f} s" if value < 120 else f"{value / 60:.0f} min"


def _forecast(rows: list[dict[str, Any]]) -> list[str]:
    lines = table(
        ["gate", "kind", "for", "units", "expected", "at most", "runs"],
        [
            [
                row["gate"],
                row["kind"],
                _who(row["required"], row["advisory"]),
                str(row["units"]),
                _seconds(row["expected_s"]),
                _seconds(row["limit_s"]),
                "no: " + "; ".join(row["missing"])
                if row["missing"]
                else ("alone" if row["alone"] else "yes"),
            ]
            for row in rows
        ],
    )
    able = [row for row in rows if not row["missing"]]
    known = [row["expected_s"] for row in able if row["expected_s"] is not None]
    most = sum(row["limit_s"] for row in able)
    unknown = len(able) - len(known)
    rest = f" and {unknown} not known" if unknown else ""
    return [
        *lines,
        f"{len(able)} of {len(rows)} gates can run here: {_seconds(sum(known))}{rest} "
        f"one after the other, {_seconds(most)} at most",
    ]


def _who(required: list[str], advisory: list[str]) -> str:
    return ", ".join([*required, *(f"({name})" for name in advisory)])


def _result(found: "Qualification") -> list[str]:
    if not found.rows:
        return ["the series names no gate: not tested"]
    lines = table(
        ["gate", "for (advisory)", "verdict", "time", "why"],
        [
            [
                row.document["gate"],
                _who(list(row.asked.required), list(row.asked.advisory)),
                str(row.document["verdict"] or "not decided"),
                "before" if row.again else _seconds(row.document["ns"] / 1e9),
                "; ".join(row.document["reasons"])[:100],
            ]
            for row in found.rows
        ],
    )
    return [*lines, f"verdict: {found.verdict}"]
