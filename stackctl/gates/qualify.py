# SPDX-License-Identifier: Apache-2.0
"""All gates that a series names, in its order, to one verdict.

A gate that several sets name runs once. Gates that measure no time run side by side,
each on GPUs of its own where it needs any; the others run alone, one after the other,
when those are done. On a cluster all run side by side, for each has its node. A run
that was interrupted goes on: gates that it had answered, and units that it had
finished, are not repeated unless something they depend on has changed.
What a fresh, believed receipt answers is not run again, and need not run here at all.
"""

import json
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from stackctl.errors import InputError
from stackctl.fsutil import write_atomic
from stackctl.gates.answers import Answers
from stackctl.gates.asked import askers
from stackctl.gates.bound import lacking
from stackctl.gates.model import FOLDER, Gate, GateFiles
from stackctl.gates.receipt.verify import follows
from stackctl.gates.rule.model import ORDER
from stackctl.gates.run import Engine, Outcome, past_seconds
from stackctl.model.series import Series

JOURNAL: Final = "qualify.json"
"""What an interrupted run had answered; gone when a run ends."""

Source = Literal["ran", "interrupted-run", "receipt"]
"""What a verdict is from: a run of now, one that was interrupted, a receipt."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A gate that sets of the series ask for.

    Attributes:
        gate: The gate.
        required: Sets that require it.
        advisory: Sets that only want to know.
    """

    gate: Gate
    required: tuple[str, ...]
    advisory: tuple[str, ...]

    @property
    def counts(self) -> bool:
        """Whether its verdict counts."""
        return bool(self.required)

    @property
    def alone(self) -> bool:
        """Whether nothing else may run beside it."""
        return self.gate.timed


@dataclass(frozen=True, slots=True)
class Unread:
    """A gate that sets of the series ask for, and whose file is bad.

    Attributes:
        name: Its name.
        required: Sets that require it.
        advisory: Sets that only want to know.
        error: What is wrong with its file.
    """

    name: str
    required: tuple[str, ...]
    advisory: tuple[str, ...]
    error: InputError

    def entry(self) -> dict[str, Any]:
        """Return the JSON form: that of a gate that nothing answers, and the error."""
        return {
            **Outcome(self.name, None, (self.error.message,)).document(),
            "kind": None,
            "required": list(self.required),
            "advisory": list(self.advisory),
            "source": None,
            "answered_by": None,
            "answered_before": False,
            **self.error.document(),
        }


@dataclass(slots=True)
class Row:
    """What became of one gate.

    Attributes:
        asked: The gate and who asks.
        document: The document of `gate run`.
        source: What the verdict is from; None where nothing answers the gate.
        receipt: Which receipt it is, of when and where, where one answers the gate.
    """

    asked: Asked
    document: dict[str, Any]
    source: Source | None = "ran"
    receipt: dict[str, Any] | None = None

    def entry(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {
            **self.document,
            "kind": self.asked.gate.kind,
            "required": list(self.asked.required),
            "advisory": list(self.asked.advisory),
            "source": self.source,
            "answered_by": self.receipt,
            "answered_before": self.source == "interrupted-run",
        }


def _place(verdict: str) -> int:
    return [str(known) for known in ORDER].index(verdict)


@dataclass(slots=True)
class Qualification:
    """The answer of `qualify`.

    Attributes:
        rows: One row per gate, in the order of the series.
        ns: Wall-clock nanoseconds.
        unread: Gates whose files are bad: nothing is qualified then, whoever asks.
    """

    rows: list[Row] = field(default_factory=list)
    ns: int = 0
    unread: Sequence[Unread] = ()

    @property
    def verdict(self) -> str:
        """The worst verdict of the gates that count; not tested where none does."""
        found = [
            row.document["verdict"] or "not-tested"
            for row in self.rows
            if row.asked.counts
        ]
        if self.unread:
            found.append("not-tested")
        return min(found, key=_place) if found else "not-tested"

    def document(self) -> dict[str, Any]:
        """Return the JSON document."""
        return {
            "verdict": self.verdict,
            "gates": [
                *(row.entry() for row in self.rows),
                *(gate.entry() for gate in self.unread),
            ],
            "ns": self.ns,
        }


def asked_gates(
    series: Series, files: GateFiles, sets: Sequence[str] = ()
) -> tuple[list[Asked], list[Unread]]:
    """Return the gates that a series asks for, in the order of its sets.

    Args:
        series: The series.
        files: The project's gates.
        sets: Only what these sets ask for; all where there are none.

    Returns:
        The gates, and those whose files are bad.

    Raises:
        InputError: The series names a gate that is not defined.
    """
    composed = {item.name for item in series.sets if item.composed}
    wanted = askers(series, composed.intersection(sets) if sets else composed)
    for name, who in wanted.items():
        if name not in files.good and name not in files.bad:
            raise InputError(
                f"{series.file}: the set {who.sets[0]} names the gate {name}, but "
                f"there is no {FOLDER}/{name}.toml",
                kind="unknown-gate",
                hint="write the gate's file, or take its name out of the set",
                where={"file": series.file, "set": who.sets[0]},
            )
    asked, unread = [], []
    for name, who in wanted.items():
        if name in files.bad:
            error = files.bad[name]
            unread.append(Unread(name, who.required, who.advisory, error))
        else:
            asked.append(Asked(files.good[name], who.required, who.advisory))
    return asked, unread


def forecast(
    engine: Engine,
    asked: Sequence[Asked],
    answers: Answers,
    *,
    run_all: bool = False,
    series: Series | None = None,
) -> list[dict[str, Any]]:
    """Return what would run and for how long, without running anything.

    Args:
        engine: The engine.
        asked: The gates.
        answers: What receipts answer.
        run_all: Run also what they answer.
        series: The series, whose sets the gates name.

    Returns:
        A row per gate: `runs`, or `answered_by` a receipt, or what is `missing`;
        `units`, `limit_s` (all units at their limit), `expected_s` (`expected_from`
        its last run here or a receipt of another machine; None where there is none).
    """
    rows = []
    for item in asked:
        gate = item.gate
        slots = len(engine.schedule(gate, list(gate.arms), 0).slots)
        rounds = -(-slots // gate.parallel)
        past, source = past_seconds(engine.runs, gate), "run"
        if past is None:
            past, source = answers.unit_seconds(gate.name), "receipt"
        missing = engine.executor.missing(gate)
        missing = [*lacking(engine.project, gate, series), *missing]
        answer = answers.answer(gate.name)
        if run_all and not missing:
            answer = None
        rows.append(
            {
                "gate": gate.name,
                "kind": gate.kind,
                "required": list(item.required),
                "advisory": list(item.advisory),
                "missing": missing,
                "runs": not missing and answer is None,
                "answered_by": None if answer is None else answers.facts(answer),
                "receipts": [] if answer else answers.against(gate.name),
                "units": slots,
                "limit_s": rounds * gate.limits.seconds,
                "expected_s": None if past is None else round(rounds * past, 1),
                "expected_from": None if past is None else source,
                "alone": engine.executor.alone and item.alone,
            }
        )
    return rows


class _Journal:
    """What this run has answered so far, for the next one if it is interrupted."""

    def __init__(self, engine: Engine) -> None:
        self._path = engine.runs / JOURNAL
        self._project = engine.project
        self._lock = threading.Lock()
        self._answers: dict[str, Any] = {}
        with suppress(OSError, ValueError):
            found = json.loads(self._path.read_bytes())
            if isinstance(found, dict):
                self._answers = found

    def has(self, gate: str) -> bool:
        """Whether the interrupted run had answered a gate, then."""
        return gate in self._answers

    def find(self, gate: str, bound: object) -> dict[str, Any] | None:
        """Return the answer of a gate, if nothing it depends on has changed."""
        found = self._answers.get(gate)
        if not isinstance(found, dict) or found.get("bound") != bound:
            return None
        document = found.get("document")
        if not isinstance(document, dict):
            return None
        receipt = document.get("receipt")
        if receipt is not None and not (self._project / receipt).is_file():
            return None
        return document

    def add(self, gate: str, bound: object, document: dict[str, Any]) -> None:
        """Keep an answer, on the disk before this returns."""
        with self._lock:
            self._answers[gate] = {"bound": bound, "document": document}
            self._path.parent.mkdir(parents=True, exist_ok=True)
            text = json.dumps(self._answers, ensure_ascii=False)
            write_atomic(self._path, text.encode("utf-8", "backslashreplace"))

    def end(self) -> None:
        """Forget all: the run is over."""
        self._path.unlink(missing_ok=True)


def qualify(
    engine: Engine,
    asked: Sequence[Asked],
    answers: Answers,
    *,
    jobs: int = 0,
    fresh: bool = False,
    run_all: bool = False,
    told: Callable[[Row], None] = lambda _: None,
) -> Qualification:
    """Run gates to one verdict.

    Args:
        engine: The engine.
        asked: The gates, in their order.
        answers: What receipts answer.
        jobs: Most gates at once, of those that may run side by side; by default half
            the CPUs, and on a cluster all.
        fresh: Repeat what an interrupted run had answered.
        run_all: Run also what a receipt answers, where that can run here.
        told: Told of every gate as it is answered.

    Returns:
        The qualification.

    Raises:
        KeyboardInterrupt: It was interrupted; the next one goes on.
    """
    begun = time.monotonic_ns()
    journal = _Journal(engine)
    found: dict[str, Row] = {}
    bounds: dict[str, Any] = {}

    def answer(item: Asked) -> Row:
        gate = item.gate
        outcome = engine.run(gate, fresh=fresh)
        row = _ran(item, outcome.document(engine.project), answers)
        if outcome.folder is None:
            row.source = None  # it cannot run here
            row.document["reasons"] += answers.against(gate.name)
            return row
        journal.add(gate.name, bounds.get(gate.name), row.document)
        return row

    def known(item: Asked) -> Row | None:
        """Return what need not be run, and prepare what has to be."""
        name = item.gate.name
        runs = not engine.executor.missing(item.gate)
        if runs and not fresh and journal.has(name):
            bounds[name] = engine.prepare(item.gate)
            before = journal.find(name, bounds[name])
            if before is not None and _holds(name, before, answers):
                row = _ran(item, before, answers)
                row.source = "interrupted-run"
                return row
        held = answers.answer(name)
        if held is not None and not (runs and run_all):
            return Row(item, answers.document(held), "receipt", answers.facts(held))
        if runs and name not in bounds:
            bounds[name] = engine.prepare(item.gate)
        return None

    open_: list[Asked] = []
    for item in asked:
        if (row := known(item)) is None:
            open_.append(item)
            continue
        found[item.gate.name] = row
        told(row)
    if engine.executor.alone:
        side = [item for item in open_ if not item.alone]
        workers = max(1, jobs or (os.cpu_count() or 2) // 2)
    else:
        side = open_
        workers = max(1, jobs or len(side))
    pool = ThreadPoolExecutor(workers)
    futures: dict[str, Future[Row]] = {}
    try:
        futures = {item.gate.name: pool.submit(answer, item) for item in side}
        for name, future in futures.items():
            found[name] = future.result()
            told(found[name])
    except BaseException:
        engine.stop.set()
        raise
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
    for item in open_:
        if item.gate.name not in found:
            found[item.gate.name] = answer(item)
            told(found[item.gate.name])
    journal.end()
    rows = [found[item.gate.name] for item in asked]
    return Qualification(rows, time.monotonic_ns() - begun)


def _holds(gate: str, document: Mapping[str, Any], answers: Answers) -> bool:
    """Whether the receipt of an answer that was kept still says the same."""
    if gate in answers.unjudged or document.get("receipt") is None:
        return document.get("verdict") != "qualified"
    for each in answers.judged.get(gate, ()):
        if answers.place(each) == document["receipt"]:
            # A receipt that rejects outvotes the run's own word, see `_ran`.
            said = {each.verdict, "rejected", "invalid"}
            kept = document.get("verdict") in said and each.fresh
            return kept and not follows(each.receipt)
    return False


def _ran(item: Asked, document: dict[str, Any], answers: Answers) -> Row:
    """Return the row of a run of now; it does not outvote a receipt that rejects."""
    old = answers.answer(item.gate.name)
    if old is None or old.verdict != "rejected" or document["verdict"] == "rejected":
        return Row(item, document)
    said = document["verdict"] or "nothing"
    why = (
        f"a fresh receipt rejects it: {answers.place(old)}; the run of now says "
        f"{said}. If that run was faulty, take its receipt out in a commit that says "
        "why"
    )
    verdict = "invalid" if said == "invalid" else "rejected"
    reasons = [why, *document["reasons"]]
    return Row(item, {**document, "verdict": verdict, "reasons": reasons})
