# SPDX-License-Identifier: Apache-2.0
"""`stackctl qualify`: all gates that the series names, one table, one exit code."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from stackctl.cli.command import Session, command
from stackctl.cli.gate import VERDICT_CODES, all_askers, who_asks, words_of
from stackctl.cli.gate_options import (
    FreshOption,
    Where,
)
from stackctl.cli.output import Outcome, table
from stackctl.cli.selection import split_names
from stackctl.errors import ExitCode

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from stackctl.gates.answers import Answers
    from stackctl.gates.qualify import Qualification, Row, Unread

EXAMPLE = (
    "Examples: stackctl qualify --dry-run; "
    "stackctl qualify --python /opt/venv/bin/python; "
    "stackctl qualify --set parallel-prefill --json; "
    "stackctl qualify --run-all; "
    "stackctl qualify --executor ray"
)

MOST_WORDS = 4
"""Most lines of what a failed unit said last; `gate run` shows more."""

MAX_WHY = 120
"""Most characters of a reason in the table; `--json` has it whole."""


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
                help="Most gates at once, of those that measure no time; by default "
                "half the CPUs. On a Ray cluster of all gates, and by default all.",
            ),
        ] = 0,
        *,
        where: Where,
        fresh: FreshOption = False,
        run_all: Annotated[
            bool,
            typer.Option(
                "--run-all",
                help="Run also what a fresh receipt answers, where it can run here.",
            ),
        ] = False,
    ) -> Outcome:
        """Answer every gate that the series names and give one verdict.

        A gate that a receipt below receipts/ answers is not run again: one that is
        believed, about the project as it is, and signed as the policy asks. The others
        run, where they can run here. Exits with the worst verdict of the required
        gates: 9 invalid, 1 rejected, 7 insufficient evidence, 8 not tested, 0
        qualified; advisory gates do not count. A gate whose file cannot be read makes
        that 3, whoever names it; the others are answered all the same. After an
        interruption it goes on where it stood.
        """
        from stackctl.compose.plan import find_set
        from stackctl.gates.answers import look
        from stackctl.gates.arms import ComposedTrees
        from stackctl.gates.bound import model_identity
        from stackctl.gates.model import read_gates
        from stackctl.gates.qualify import asked_gates, forecast
        from stackctl.gates.qualify import qualify as run_all_of
        from stackctl.gates.run import Engine

        series = session.series
        wanted = [find_set(series, name).name for name in split_names(sets)]
        files = read_gates(session.project)
        asked, unread = asked_gates(series, files, wanted)
        here = where.here()
        answers = look(
            series,
            session.cache,
            {item.gate.name for item in asked},
            model=model_identity(where.model),
            offline=session.offline,
            progress=session.progress,
        )
        for name in sorted(set(files.bad) - {gate.name for gate in unread}):
            session.progress.note(
                f"{name}: bad file, which no set asks for: {files.bad[name].message}"
            )
        for name, why in answers.unjudged.items():
            session.progress.note(f"receipts of {name} are not judged: {why}")
        trees = ComposedTrees(series, session.cache, session.offline, session.progress)
        with Engine(session.project, trees, here, progress=session.progress) as engine:
            where.use_executor(engine, trees, session.progress)
            if dry_run:
                rows = forecast(engine, asked, answers, run_all=run_all, series=series)
                told_of = [*rows, *map(_not_forecast, unread)]
                return Outcome(
                    {"gates": told_of},
                    lambda: [
                        *_forecast(rows),
                        *_unjudged(answers),
                        *_unread(unread),
                    ],
                    ExitCode.BAD_INPUT if unread else ExitCode.OK,
                )
            note = session.progress.note

            def told(row: "Row") -> None:
                note(f"{row.asked.gate.name}: {row.document['verdict']} ({_by(row)})")

            found = run_all_of(
                engine,
                asked,
                answers,
                jobs=jobs,
                fresh=fresh,
                run_all=run_all,
                told=told,
            )
            found.unread = unread
            document = found.document()
            if where.executor == "ray":
                document["shipped"] = list(engine.executor.shipped)
        return Outcome(
            document,
            lambda: [*_unjudged(answers), *_result(found)],
            ExitCode.BAD_INPUT if unread else VERDICT_CODES[found.verdict],
        )


def _not_forecast(gate: "Unread") -> dict[str, Any]:
    """Return the row of a gate that cannot be read: it would not run."""
    return {
        "gate": gate.name,
        "kind": None,
        "required": list(gate.required),
        "advisory": list(gate.advisory),
        "missing": [gate.error.message],
        "runs": False,
        "answered_by": None,
        "receipts": [],
        "units": 0,
        "limit_s": 0,
        "expected_s": None,
        "expected_from": None,
        "alone": False,
        **gate.error.document(),
    }


def _unread(gates: "Iterable[Unread]") -> list[str]:
    """Say which gates cannot be read, and why."""
    return [f"{gate.name}: bad file: {gate.error.message}" for gate in gates]


def _unjudged(answers: "Answers") -> list[str]:
    """Say what to install where receipts are there and nothing can judge them."""
    count = len(answers.unjudged)
    if not count:
        return []
    return [
        f"the receipts of {_gates(count)} are not judged here: pip install "
        "'stackctl[gates]' brings what judges them"
    ]


def _seconds(value: float | None) -> str:
    if value is None:
        return "?"
    if value < 120:
        return f"{value:.0f} s"
    return f"{value / 60:.0f} min" if value < 7200 else f"{value / 3600:.0f} h"


def _receipt(facts: "Mapping[str, Any]") -> str:
    """Say of when and where a receipt is, and who vouches for it."""
    from stackctl.gates.receipt.words import when
    from stackctl.gates.rule.words import counted

    told = f"{when(facts['started'])}, {facts['hardware']}, {facts['signature']}"
    if facts["of"] > 1:
        told += f", one of {facts['of']} that count"
    if facts["unread"]:
        told += f", beside {counted(facts['unread'], 'damaged file')}"
    return told


def _forecast(rows: list[dict[str, Any]]) -> list[str]:
    sets = all_askers((*row["required"], *row["advisory"]) for row in rows)
    lines = table(
        ["gate", "kind", "for (advisory)", "units", "expected", "at most", "runs"],
        [
            [
                row["gate"],
                row["kind"],
                who_asks(row["required"], row["advisory"], sets),
                str(row["units"]),
                ("~" if row["expected_from"] == "receipt" else "")
                + _seconds(row["expected_s"]),
                _seconds(row["limit_s"]),
                _will(row),
            ]
            for row in rows
        ],
    )
    able = [row for row in rows if row["runs"]]
    held = [row for row in rows if row["answered_by"]]
    known = [row["expected_s"] for row in able if row["expected_s"] is not None]
    most = sum(row["limit_s"] for row in able)
    summary = [f"{_gates(len(able))} would run"]
    if able:
        least = f"about {_seconds(sum(known))}" if known else "no estimate"
        unknown = len(able) - len(known)
        rest = f" and {unknown} that never ran" if known and unknown else ""
        summary[0] += f": {least}{rest} one after the other, at most {_seconds(most)}"
    if held:
        again = sum(not row["missing"] for row in held)
        more = f"; {again} of them can run here, with --run-all" if again else ""
        word = "is" if len(held) == 1 else "are"
        summary.append(f"{_gates(len(held))} {word} answered by receipts{more}")
    if lost := len(rows) - len(able) - len(held):
        word = "is" if lost == 1 else "are"
        summary.append(
            f"{_gates(lost)} {word} not tested: cannot run here, and no receipt answers"
        )
    if any(row["expected_from"] == "receipt" for row in rows):
        summary.append("~ as long as it took where its receipt is from")
    return [*lines, *summary]


def _gates(count: int) -> str:
    return f"{count} gate" if count == 1 else f"{count} gates"


def _will(row: dict[str, Any]) -> str:
    """Say what becomes of a gate."""
    if row["answered_by"]:
        facts = row["answered_by"]
        digest = facts["digest"][:12]
        return f"receipt {digest}: {facts['verdict']} ({_receipt(facts)})"
    if row["missing"]:
        return "no: " + "; ".join([*row["missing"], *row["receipts"]])
    return "alone" if row["alone"] else "yes"


def _by(row: "Row") -> str:
    """Say what a verdict is from."""
    if row.receipt is not None:
        return f"receipt {row.receipt['digest'][:12]}"
    return {"ran": "ran now", "interrupted-run": "ran before", None: "-"}[row.source]


def _why(row: "Row") -> str:
    reasons = "; ".join(row.document["reasons"])
    if row.receipt is not None:
        reasons = f"{_receipt(row.receipt)}: {reasons}"
    return reasons if len(reasons) <= MAX_WHY else f"{reasons[: MAX_WHY - 3]}..."


def _result(found: "Qualification") -> list[str]:
    if not found.rows and not found.unread:
        return ["the series names no gate: not tested"]
    sets = all_askers(
        [
            *((*row.asked.required, *row.asked.advisory) for row in found.rows),
            *((*gate.required, *gate.advisory) for gate in found.unread),
        ]
    )
    lines = table(
        ["gate", "verdict", "by", "time", "for (advisory)", "why"],
        [
            [
                row.document["gate"],
                str(row.document["verdict"] or "not decided"),
                _by(row),
                _seconds(row.document["ns"] / 1e9) if row.source == "ran" else "-",
                who_asks(list(row.asked.required), list(row.asked.advisory), sets),
                _why(row),
            ]
            for row in found.rows
        ]
        + [
            [
                gate.name,
                "bad file",
                "-",
                "-",
                who_asks(gate.required, gate.advisory, sets),
                gate.error.message,
            ]
            for gate in found.unread
        ],
    )
    for row in found.rows:
        if words := words_of(row.document, MOST_WORDS):
            lines += [f"{row.document['gate']}:", *words]
    held = sum(row.source == "receipt" for row in found.rows)
    if held:
        word = "was" if held == 1 else "were"
        lines.append(
            f"{_gates(held)} {word} answered by receipts, not run (--run-all runs what "
            "can run here)"
        )
    needed = [row for row in found.rows if row.asked.counts]
    for verdict in dict.fromkeys(row.document["verdict"] for row in needed):
        names = [
            row.document["gate"]
            for row in needed
            if row.document["verdict"] == verdict != "qualified"
        ]
        if names:
            lines.append(f"required and {verdict or 'not decided'}: {', '.join(names)}")
    if found.unread:
        bad = ", ".join(gate.name for gate in found.unread)
        lines.append(f"bad files, so nothing is qualified: {bad}")
    lost = sum(bool(gate.required) for gate in found.unread)
    good = sum(row.document["verdict"] == "qualified" for row in needed)
    return [
        *lines,
        f"verdict: {found.verdict} ({good} of {len(needed) + lost} required gates "
        "qualified)",
    ]
