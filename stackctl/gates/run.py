# SPDX-License-Identifier: Apache-2.0
"""Running a gate: arms, schedule, units, evidence, decision, receipt.

A run has a folder, written before its first unit: what it is bound to, and the
schedule. A finished unit is a file there. A run that was stopped, also by `kill -9`, is
taken up again where it stood as long as nothing that it is bound to has changed.
"""

import contextlib
import fcntl
import json
import os
import secrets
import shutil
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

from stackctl.errors import InputError, PinError, RemoteError, UsageError
from stackctl.fsutil import read_regular, write_atomic
from stackctl.gates.arms import Found, Trees
from stackctl.gates.asked import sets_asking
from stackctl.gates.bound import bound_files
from stackctl.gates.evidence import (
    EXTERNAL,
    Arm,
    Evidence,
    Schedule,
    Slot,
    Unit,
    from_document,
)
from stackctl.gates.here import Here
from stackctl.gates.hosts import (
    Executor,
    Host,
    HostLostError,
    LocalExecutor,
    Task,
    unit_folder,
    versions,
)
from stackctl.gates.kinds.served import at_addresses
from stackctl.gates.last_words import LastWords, last_words
from stackctl.gates.model import IN_A_TREE, Gate
from stackctl.gates.rule.decide import decide
from stackctl.gates.rule.model import Decision
from stackctl.gates.rule.schedule import schedule
from stackctl.gates.snapshot import Gpu
from stackctl.gates.units import UnitFiles
from stackctl.model.canonical import loads_strict
from stackctl.progress import SILENT, Progress

if TYPE_CHECKING:
    from stackctl.gates.model import ArmSpec

RUNS: Final = ".stackctl/gates"
"""Where runs are, relative to the project: not for the history."""

KEPT: Final = 3
"""Finished runs of a gate that keep their output; older ones are removed."""

MAX_EVIDENCE: Final = 256 << 20
"""Largest evidence that is read, bytes."""

_QUESTION: Final = frozenset(("gate", "arms", "files", "model"))
"""Parts of what a run is bound to that are its question; the others are how and where
it was asked."""

LOSSES: Final = 2
"""How often a run is taken to another node because its node was lost."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a gate.

    Attributes:
        gate: Its name.
        verdict: The verdict; None where it ran but could not be decided here.
        reasons: Why, in words.
        limitations: What the verdict does not say.
        receipt: The receipt's file; None where nothing ran or nothing was decided.
        decision: The decision behind it.
        evidence: What was observed.
        folder: The run's folder, with its output; None where nothing ran.
        problems: What was wrong with units, in full: a receipt holds only what is
            known not to tell anything of the machine.
        last_words: What units that failed said last, and their servers; for the
            terminal, and in no receipt.
        resumed: Units that an earlier, interrupted run had finished.
        nodes: Nodes of a cluster that it ran on, by their anonymous names.
        lost: Nodes that were lost while they had work of it.
        ns: Wall-clock nanoseconds of this call.
    """

    gate: str
    verdict: str | None
    reasons: tuple[str, ...]
    limitations: tuple[str, ...] = ()
    receipt: Path | None = None
    decision: Decision | None = None
    evidence: Evidence | None = None
    folder: Path | None = None
    problems: tuple[str, ...] = ()
    last_words: tuple[LastWords, ...] = ()
    resumed: int = 0
    nodes: tuple[str, ...] = ()
    lost: tuple[str, ...] = ()
    ns: int = 0

    @classmethod
    def decided(
        cls,
        gate: Gate,
        decision: Decision,
        receipt: Path | None,
        evidence: Evidence,
        folder: Path | None = None,
    ) -> Self:
        """Return the outcome of a run that was decided."""
        return cls(
            gate.name,
            decision.verdict,
            decision.reasons,
            decision.limitations,
            receipt,
            decision,
            evidence,
            folder,
        )

    def document(self, project: Path | None = None) -> dict[str, Any]:
        """Return the JSON document of `gate run`.

        Args:
            project: Folder that paths are relative to.
        """

        def shown(path: Path | None) -> str | None:
            if path is None:
                return None
            if project is not None and path.is_relative_to(project):
                return str(path.relative_to(project))
            return str(path)

        decision = None if self.decision is None else self.decision.document()
        return {
            "gate": self.gate,
            "verdict": self.verdict,
            "reasons": list(self.reasons),
            "limitations": list(self.limitations),
            "problems": list(self.problems),
            "last_words": [words.document(project) for words in self.last_words],
            "receipt": shown(self.receipt),
            "output": shown(self.folder),
            "resumed_units": self.resumed,
            "units": 0 if self.evidence is None else len(self.evidence.units),
            "nodes": list(self.nodes),
            "lost_nodes": list(self.lost),
            "claims": [] if decision is None else decision["claims"],
            "ns": self.ns,
        }


@dataclass(slots=True)
class _Plan:
    """A gate's run before its first unit."""

    gate: Gate
    arms: dict[str, Arm]
    bound: dict[str, Any]
    inputs: dict[str, Any]
    scope: dict[str, Any]
    gpus: Sequence[Gpu]
    schedule: Schedule
    node: str | None = None
    started: str = ""
    limitations: tuple[str, ...] = ()


class Engine:
    """Runs the gates of one project.

    Args:
        project: Project folder (or that of a pack).
        trees: Where the trees of arms come from.
        here: What the user named and what this machine has.
        runs: Where runs are kept; by default inside the project.
        progress: Told what is being done.
        executor: What finds the machines; by default it is this one.
    """

    def __init__(
        self,
        project: Path,
        trees: Trees,
        here: Here,
        runs: Path | None = None,
        progress: Progress = SILENT,
        executor: Executor | None = None,
    ) -> None:
        self.project = project
        self.trees = trees
        self.here = here
        self.runs = project / RUNS if runs is None else runs
        self.progress = progress
        self.stop = threading.Event()
        self.lock = threading.RLock()
        self.executor: Executor = executor or LocalExecutor(
            project, trees, here, self.runs, progress
        )

    def __enter__(self) -> "Engine":
        return self

    def __exit__(self, *_: object) -> None:
        self.executor.close()

    # -- before the first unit ---------------------------------------------------------

    def resolve(self, gate: Gate, specs: Mapping[str, "ArmSpec"]) -> dict[str, Arm]:
        """Return a gate's arms with their trees.

        Args:
            gate: The gate.
            specs: Its arms, or others in their place.
        """
        arms = {}
        elsewhere = at_addresses(gate, self.here)
        with self.lock:
            for name, spec in specs.items():
                if name in elsewhere:  # nobody vouches for what is asked there
                    arms[name] = Arm(None, None, EXTERNAL)
                    continue
                found: Found = self.trees.find(spec.tree)
                if found.tree is None and gate.kind in IN_A_TREE:
                    raise UsageError(
                        f"the gate {gate.name} asks about the files of a tree; its arm "
                        f"`{name}` is {spec.tree}",
                        kind="bad-arm",
                        hint="name `base`, `composed`, `only:SET` or another tree",
                        where={"gate": gate.name, "arm": name},
                    )
                arms[name] = Arm(
                    found.tree, found.composition, spec.tree, dict(spec.env)
                )
        return arms

    def plan(
        self,
        gate: Gate,
        host: Host,
        specs: Mapping[str, "ArmSpec"] | None = None,
        seed: int | None = None,
    ) -> _Plan:
        """Fix everything about a run before it starts.

        Args:
            gate: The gate.
            host: Where it is to run.
            specs: Other arms in place of the gate's.
            seed: Seed of schedule and inputs; drawn where it is not given.
        """
        arms = self.resolve(gate, gate.arms if specs is None else specs)
        files = self.files(gate)
        found = versions(gate, host.here)
        site = host.site_digest()
        model = host.model()
        inputs = {
            "base": dict(self.trees.base),
            "files": files,
            "image": None,
            "model": model,
        }
        scope = {
            "host": host.describe(),
            "hardware": {"gpus": [dict(gpu.facts) for gpu in host.gpus]},
            "versions": found if site is None else {**found, "site": site},
        }
        bound: dict[str, Any] = {
            "gate": gate.sha256,
            "arms": {name: arm.document() for name, arm in arms.items()},
            "files": {item["path"]: item["sha256"] for item in files},
            "model": model,
            "versions": found,
            "gpus": [gpu.uuid for gpu in host.gpus],
            "site": site,
            "base-url": host.here.parameters.get("base-url"),
        }
        if gate.timed and host.node is not None:
            bound["node"] = host.node  # what is compared is taken on one machine
        if seed is not None:
            bound["seed"] = seed
        drawn = secrets.randbits(32) if seed is None else seed
        return _Plan(
            gate,
            arms,
            json.loads(json.dumps(bound)),
            inputs,
            scope,
            host.gpus,
            self.schedule(gate, list(arms), drawn),
            host.node,
        )

    def schedule(self, gate: Gate, names: Sequence[str], seed: int) -> Schedule:
        """Return the schedule of a gate's units; the reference arm comes first."""
        reference = next((c.against for c in gate.claims if c.against in names), "")
        head = reference or names[0]
        ordered = [head, *(name for name in names if name != head)]
        return schedule(gate.rule, ordered, seed, gate.units)

    def files(self, gate: Gate) -> list[dict[str, str]]:
        """Return path and digest of every file that a gate's answer depends on.

        Raises:
            InputError: One is missing.
        """
        found = bound_files(self.project, gate)
        return [
            {"role": role, "path": name, "sha256": digest}
            for name, (role, digest) in sorted(found.items())
        ]

    def prepare(self, gate: Gate) -> dict[str, Any]:
        """Do in this thread what no two threads may do at once.

        Args:
            gate: A gate that can run.

        Returns:
            What its answer depends on.
        """
        arms = self.resolve(gate, gate.arms)
        with self.lock:
            self.executor.prepare(arms)
            base = self.trees.base["tree"]  # made here, though no arm may stand on it
            if gate.tests is not None and gate.tests.of is not None:
                self.trees.tests_of(gate.tests.of)
        bound = {
            "gate": gate.sha256,
            "base": base,
            "arms": {name: arm.document() for name, arm in arms.items()},
            "files": {item["path"]: item["sha256"] for item in self.files(gate)},
            **self.executor.identity(gate),
        }
        found: dict[str, Any] = json.loads(json.dumps(bound))
        return found

    # -- the run -----------------------------------------------------------------------

    def run(
        self,
        gate: Gate,
        specs: Mapping[str, "ArmSpec"] | None = None,
        *,
        seed: int | None = None,
        fresh: bool = False,
        keep: bool = True,
    ) -> Outcome:
        """Run a gate to its verdict, or take its interrupted run up again.

        Args:
            gate: The gate.
            specs: Other arms in place of the gate's.
            seed: Seed of schedule and inputs; drawn where it is not given.
            fresh: Start anew although an interrupted run could be taken up.
            keep: Write a receipt.

        Returns:
            The outcome; one without a run where the gate cannot run here.

        Raises:
            Stopped: `stop` was set; finished units are kept.
            KeyboardInterrupt: The same, in the main thread.
        """
        begun = time.monotonic_ns()
        avoid: dict[str, list[str]] = {}
        lost: list[str] = []
        while True:
            missing = self.executor.missing(gate, avoid)
            if missing:
                if lost:
                    raise _lost(gate, lost)
                # What the nodes lack that were asked says more than that none is left.
                missing = next(iter(avoid.values()), missing)
                return _not_tested(gate, missing)
            prefer = _interrupted(self.runs / gate.name)
            try:
                with self.executor.host(gate, self.stop, avoid, prefer) as host:
                    lacks = host.here.missing(gate)
                    if lacks and host.node is not None:
                        avoid[host.node] = lacks
                        continue
                    outcome = self._on(host, gate, specs, seed, fresh, keep)
            except HostLostError as error:
                lost.append(error.node)
                avoid[error.node] = [error.why]
                if len(lost) > LOSSES:
                    raise _lost(gate, lost) from None
                self.progress.note(
                    f"{gate.name}: {error.node} was lost ({error.why}); what it had "
                    "not answered does not count and runs again on another node"
                )
                fresh = False
                continue
            ns = time.monotonic_ns() - begun
            return replace(outcome, lost=tuple(lost), ns=ns)

    def _on(
        self,
        host: Host,
        gate: Gate,
        specs: Mapping[str, "ArmSpec"] | None,
        seed: int | None,
        fresh: bool,
        keep: bool,
    ) -> Outcome:
        """Run a gate on a host to its verdict."""
        plan = self.plan(gate, host, specs, seed)
        with contextlib.ExitStack() as stack:
            folder, resumed = self._open(plan, fresh, stack)
            files = UnitFiles(folder / "units")
            known = files.load(self.progress.note) if resumed else {}
            if resumed:
                self.progress.note(
                    f"{gate.name}: takes up its interrupted run, "
                    f"{len(known)} of {len(plan.schedule.slots)} units are there"
                )
            problems = self._run_units(plan, host, files, known, folder)
            units = files.load(self.progress.note)
        evidence = self._evidence(plan, units, problems)
        outcome = self._conclude(plan, evidence, folder, keep)
        told = [
            f"unit {number}: {text}"
            for number, unit in sorted(units.items())
            for text in (*unit.problems, *(unit.stop or ())[1:])
        ]
        return replace(
            outcome,
            problems=(*problems, *told),
            last_words=tuple(
                last_words(
                    (unit, unit_folder(folder, number))
                    for number, unit in sorted(units.items())
                )
            ),
            resumed=len(known),
            nodes=tuple(_nodes(units)),
        )

    def _open(
        self, plan: _Plan, fresh: bool, stack: contextlib.ExitStack
    ) -> tuple[Path, bool]:
        """Return the run's folder, held under a lock, and whether it is taken up."""
        top = self.runs / plan.gate.name
        top.mkdir(parents=True, exist_ok=True)
        _ignore(self.runs)
        lock = os.open(top / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        stack.callback(os.close, lock)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UsageError(
                f"the gate {plan.gate.name} is running already",
                kind="gate-running",
                hint="wait until that run has ended",
                where={"gate": plan.gate.name},
            ) from None
        runs = sorted(path for path in top.iterdir() if path.name.isdigit())
        last = runs[-1] if runs else None
        if last is not None and not (last / "finished.json").exists():
            changed = self._changed(plan, last)
            if not changed and not fresh:
                return last, True
            why = "as asked" if not changed else f"changed: {', '.join(changed)}"
            self.progress.note(
                f"{plan.gate.name}: starts anew and does not take up its interrupted "
                f"run ({why})"
            )
            if not _QUESTION.intersection(changed):
                # Its figures may have been looked at: readers of the receipt may know.
                plan.limitations = _limitations(last)
                if lost := len(list((last / "units").glob("*.json"))):
                    plan.limitations += (
                        f"an interrupted run with {lost} finished units was thrown "
                        "away before this one",
                    )
            shutil.rmtree(last)
            runs.pop()
        for old in runs[:-KEPT]:
            shutil.rmtree(old, ignore_errors=True)
        number = int(runs[-1].name) + 1 if runs else 1
        folder = top / f"{number:06d}"
        (folder / "units").mkdir(parents=True)
        plan.started = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        document = {
            "schema": 1,
            "gate": plan.gate.name,
            "bound": plan.bound,
            "schedule": plan.schedule.document(),
            "started": plan.started,
            "node": plan.node,
            "limitations": list(plan.limitations),
        }
        _write_json(folder / "plan.json", document)
        return folder, False

    def _changed(self, plan: _Plan, folder: Path) -> list[str]:
        """Return what an interrupted run was bound to and is different now.

        Takes over its schedule where nothing is.
        """
        try:
            document = json.loads((folder / "plan.json").read_bytes())
            bound = document["bound"]
            slots = tuple(
                Slot(slot["unit"], slot["block"], tuple(slot["arms"]))
                for slot in document["schedule"]["slots"]
            )
            looks = tuple(document["schedule"]["looks"])
            recorded = Schedule(document["schedule"]["seed"], looks, slots)
            started = document["started"]
            limitations = tuple(map(str, document["limitations"]))
        except (OSError, ValueError, KeyError, TypeError):
            return ["its plan, which cannot be read"]
        changed = [
            name
            for name in sorted({*bound, *plan.bound})
            if bound.get(name) != plan.bound.get(name)
        ]
        if changed:
            return changed
        expected = self.schedule(plan.gate, list(plan.arms), recorded.seed)
        if expected != recorded:
            return ["the schedule"]
        plan.schedule = recorded
        plan.started = started
        plan.limitations = limitations
        return []

    def _run_units(
        self,
        plan: _Plan,
        host: Host,
        files: UnitFiles,
        known: Mapping[int, Unit],
        folder: Path,
    ) -> list[str]:
        """Run the units that are not there yet; return problems of the whole run."""
        gate = plan.gate
        tests: tuple[str, ...] = ()
        if gate.tests is not None and gate.tests.of is not None:
            with self.lock:
                named = self.trees.tests_of(gate.tests.of)
                (arm,) = plan.arms.values()
                there = self.trees.paths(arm.tree) if arm.tree is not None else ()
            lost = [test for test in named if os.fsencode(test) not in there]
            if lost or not named:
                name = gate.tests.of
                if not named:
                    return [f"the set {name} brings no test file"]
                return [
                    f"{len(lost)} of the {len(named)} test files of the set {name} are "
                    "not in the tree"
                ]
            tests = named
        slots = [slot for slot in plan.schedule.slots if slot.unit not in known]
        total = len(plan.schedule.slots)
        host.open(Task(gate, plan.arms, total, plan.schedule.seed, tests), folder)
        decided = any(unit.problems or unit.stop for unit in known.values())
        if decided or self._decided(plan, known):
            slots = []  # it was interrupted before it could say so

        def one(slot: Slot) -> Unit:
            unit = host.unit(slot, self.stop)
            files.save(unit)
            return unit

        if gate.parallel > 1 and not gate.timed:
            self._side_by_side(one, slots, gate, total)
        else:
            done = dict(known)
            for slot in slots:
                self.progress.update(gate.name, len(done), total)
                unit = one(slot)
                done[unit.unit] = unit
                if unit.problems or unit.stop or self._decided(plan, done):
                    break
        self.progress.update(gate.name, total, total)
        return self._verify(plan, host)

    def _side_by_side(
        self,
        one: Callable[[Slot], Unit],
        slots: Sequence[Slot],
        gate: Gate,
        total: int,
    ) -> None:
        pool = ThreadPoolExecutor(gate.parallel)
        try:
            futures = [pool.submit(one, slot) for slot in slots]
            for number, future in enumerate(futures):
                self.progress.update(gate.name, total - len(slots) + number, total)
                future.result()
        except BaseException:
            self.stop.set()
            raise
        finally:
            pool.shutdown(wait=True, cancel_futures=True)

    def _decided(self, plan: _Plan, units: Mapping[int, Unit]) -> bool:
        """Whether the run may end at a declared look, for the rule has decided."""
        if not plan.gate.timed or not plan.schedule.looks:
            return False
        blocks: dict[int, bool] = {}
        for slot in plan.schedule.slots:
            there = slot.unit in units
            blocks[slot.block] = blocks.get(slot.block, True) and there
        pairs = sum(blocks.values())
        started = {s.block for s in plan.schedule.slots if s.unit in units}
        # Where the features are off in the first pair, all others are no use.
        early = pairs == 1 and bool(plan.gate.rule.engaged)
        looks = plan.schedule.looks[:-1]
        if (pairs not in looks and not early) or len(started) != pairs:
            return False
        evidence = self._evidence(plan, units, [])
        try:
            decision = decide(plan.gate.rule, plan.gate.claims, evidence)
        except UsageError:  # no statistics here: runs to the end
            return False
        return decision.final if pairs in looks else decision.verdict == "not-tested"

    def _verify(self, plan: _Plan, host: Host) -> list[str]:
        """Check that what was measured is what the run is bound to."""
        problems = [
            f"the tree of arm {name} was changed while it ran"
            for name in host.changed()
        ]
        if self.files(plan.gate) != plan.inputs["files"]:
            problems.append("files that the gate is bound to were changed while it ran")
        return problems

    # -- after the last unit -----------------------------------------------------------

    def _evidence(
        self, plan: _Plan, units: Mapping[int, Unit], problems: Sequence[str]
    ) -> Evidence:
        scope = plan.scope
        if nodes := _nodes(units):
            scope = {**scope, "host": {**scope["host"], "nodes": nodes}}
        evidence = Evidence(
            gate=plan.gate.name,
            kind=plan.gate.kind,
            arms=plan.arms,
            schedule=plan.schedule,
            units=tuple(units[number] for number in sorted(units)),
            scope=scope,
            inputs={**plan.inputs, "image": _image_digest(plan.gate, units)},
            problems=tuple(problems),
            limitations=(*plan.gate.limitations, *plan.limitations),
        )
        from stackctl.gates.receipt import safe_evidence

        claims = [claim.document() for claim in plan.gate.claims]
        return safe_evidence(evidence, claims)

    def _conclude(
        self,
        plan: _Plan,
        evidence: Evidence,
        folder: Path,
        keep: bool,
    ) -> Outcome:
        """Decide, write the receipt, and close the run."""
        shown = self.shown(plan)
        saved = {"started": plan.started, **shown, "evidence": evidence.document()}
        _write_json(folder / "evidence.json", saved)
        shutil.rmtree(folder / "cache", ignore_errors=True)
        gate = plan.gate
        try:
            decision = decide(gate.rule, gate.claims, evidence)
        except UsageError as error:
            _write_json(folder / "finished.json", {"verdict": None})
            return Outcome(
                gate.name,
                None,
                (
                    f"it ran and was not decided: {error.message}",
                    "`stackctl gate decide` decides it where that is installed",
                ),
                evidence=evidence,
                folder=folder,
            )
        receipt = None
        if keep:
            receipt = write_receipt(gate, evidence, decision, saved, self.project)
        _write_json(
            folder / "finished.json",
            {"verdict": decision.verdict, "receipt": receipt and str(receipt.name)},
        )
        return Outcome.decided(gate, decision, receipt, evidence, folder)

    def shown(self, plan: _Plan) -> dict[str, Any]:
        """Return command and environment of a unit, without any path."""
        gate = plan.gate
        argv = ["{python}"]
        if gate.script is not None:
            argv += [f"{{project}}/{gate.script}", *gate.arguments]
        elif gate.tests is not None:
            argv += ["-m", "pytest", *gate.tests.options, *gate.tests.paths]
        else:
            argv = ["stackctl", gate.kind]
        return {"argv": argv, "env": dict(gate.env)}


def _not_tested(gate: Gate, missing: Sequence[str]) -> Outcome:
    evidence = Evidence(
        gate.name, gate.kind, {}, Schedule(0, (), ()), (), missing=tuple(missing)
    )
    return Outcome(gate.name, "not-tested", tuple(missing), evidence=evidence)


def _lost(gate: Gate, nodes: Sequence[str]) -> RemoteError:
    named = ", ".join(nodes)
    return RemoteError(
        f"{gate.name}: {named} went away while it ran there, and no other node can "
        "take it over",
        kind="node-lost",
        hint="look at the cluster, then run it again: what was finished is kept",
        where={"gate": gate.name, "nodes": list(nodes)},
    )


def _nodes(units: Mapping[int, Unit]) -> list[str]:
    """Return the nodes that units ran on, in the order of the units."""
    found = [units[number].host.get("node") for number in sorted(units)]
    return list(dict.fromkeys(node for node in found if isinstance(node, str)))


def _interrupted(top: Path) -> dict[str, Any]:
    """Return where the last run of a gate was, if it was interrupted."""
    runs = sorted(top.glob("[0-9]*")) if top.is_dir() else []
    if not runs or (runs[-1] / "finished.json").exists():
        return {}
    try:
        plan = json.loads((runs[-1] / "plan.json").read_bytes())
        return {"node": plan.get("node"), "gpus": list(plan["bound"]["gpus"])}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}


def _limitations(folder: Path) -> tuple[str, ...]:
    """Return what an interrupted run's plan says that its run does not show."""
    try:
        found = json.loads((folder / "plan.json").read_bytes())["limitations"]
        return tuple(map(str, found))
    except (OSError, ValueError, KeyError, TypeError):
        return ()


def write_receipt(
    gate: Gate,
    evidence: Evidence,
    decision: Decision,
    run: Mapping[str, Any],
    project: Path,
) -> Path:
    """Write the receipt of a decided run.

    Args:
        gate: The gate.
        evidence: What was observed, as the decision saw it.
        decision: The decision.
        run: `argv`, `env` and `started` of the run.
        project: Project folder.

    Returns:
        The receipt's file.
    """
    from stackctl.gates.receipt import write

    document = {
        "evidence": evidence.document(),
        "rule": gate.rule.document(),
        "claims": [claim.document() for claim in gate.claims],
        "decision": decision.document(),
        "argv": run["argv"],
        "own": list(gate.arguments),
        "env": run["env"],
        "set": list(sets_asking(project, gate.name)),
        "started": run["started"],
    }
    return write(document, project)


def decide_evidence(file: Path, project: Path) -> Outcome:
    """Decide a run from its evidence, where it could not be decided itself.

    Args:
        file: `evidence.json` of the run.
        project: Project folder; it holds the gate that ran.

    Returns:
        The outcome, with its receipt.

    Raises:
        InputError: The file is no evidence.
        PinError: The gate's file is not the one that the run was bound to.
        UsageError: There is no such gate, or a statistics package is missing.
    """
    from stackctl.gates.model import find_gate, read_gates
    from stackctl.gates.receipt import safe_evidence

    hint = "name the evidence.json of a run"
    saved = loads_strict(read_regular(file, MAX_EVIDENCE), file=str(file), hint=hint)
    try:
        document, started = saved["evidence"], saved["started"]
        run = {"argv": saved["argv"], "env": saved["env"], "started": started}
    except (KeyError, TypeError):
        raise InputError(
            f"{file}: is no evidence of a run",
            kind="bad-evidence",
            hint=hint,
            where={"file": str(file)},
        ) from None
    evidence = safe_evidence(from_document(document, str(file)))
    gate = find_gate(read_gates(project), evidence.gate)
    bound = [f for f in evidence.inputs.get("files", ()) if f.get("role") == "gate"]
    if [item.get("sha256") for item in bound] != [gate.sha256]:
        raise PinError(
            f"{file}: ran another {gate.path.name} than the one of this project",
            kind="digest",
            hint="take the project's state that was packed",
            where={"file": str(file)},
        )
    decision = decide(gate.rule, gate.claims, evidence)
    receipt = write_receipt(gate, evidence, decision, run, project)
    return Outcome.decided(gate, decision, receipt, evidence)


def past_seconds(runs: Path, gate: Gate) -> float | None:
    """Return how long a unit of the gate's last finished run took, seconds.

    Args:
        runs: Where runs are kept.
        gate: The gate.
    """
    top = runs / gate.name
    if not top.is_dir():
        return None
    for folder in sorted((p for p in top.iterdir() if p.name.isdigit()), reverse=True):
        if not (folder / "finished.json").exists():
            continue
        units = UnitFiles(folder / "units").load(lambda _: None)
        if units:
            return sum(unit.ns for unit in units.values()) / len(units) / 1e9
    return None


def _image_digest(gate: Gate, units: Mapping[int, Unit]) -> str | None:
    """Return the digest of the one image that a gate verified."""
    if gate.kind != "image":
        return None
    found = [
        document.get("image")
        for unit in units.values()
        for document in (unit.samples, *unit.samples.get("images", ()))
    ]
    digests = {item.get("digest") for item in found if isinstance(item, Mapping)}
    (digest,) = digests if len(digests) == 1 else (None,)
    return digest if isinstance(digest, str) else None


def _write_json(path: Path, document: object) -> None:
    text = json.dumps(document, ensure_ascii=False, indent=1, allow_nan=False)
    write_atomic(path, text.encode("utf-8", "backslashreplace") + b"\n")


def _ignore(runs: Path) -> None:
    """Keep runs out of the project's history."""
    path = runs / ".gitignore"
    if not path.exists():
        write_atomic(path, b"*\n")
