# SPDX-License-Identifier: Apache-2.0
"""Running a gate: arms, schedule, units, evidence, decision, receipt.

A run has a folder, written before its first unit: what it is bound to, and the
schedule. A finished unit is a file there. A run that was stopped, also by `kill -9`, is
taken up again where it stood as long as nothing that it is bound to has changed.
"""

import contextlib
import fcntl
import hashlib
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

from stackctl import __version__
from stackctl.errors import InputError, PinError, UsageError
from stackctl.fsutil import read_regular, sha256_of_file, write_atomic
from stackctl.gates import arms as arms_
from stackctl.gates import snapshot
from stackctl.gates.arms import ArmFolder, Found, Trees, folder_tree, lay_over
from stackctl.gates.asked import sets_asking
from stackctl.gates.bound import bound_files
from stackctl.gates.evidence import Arm, Evidence, Schedule, Slot, Unit, from_document
from stackctl.gates.here import Here
from stackctl.gates.kinds import Place
from stackctl.gates.model import FOLDER, Gate
from stackctl.gates.rule.decide import decide
from stackctl.gates.rule.model import Decision
from stackctl.gates.rule.schedule import schedule
from stackctl.gates.snapshot import Gpu, gpu_lock
from stackctl.gates.units import UnitFiles, run_unit
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

VERSIONS: Final = ("torch", "triton", "vllm", "pytest", "numpy", "transformers")
"""Packages whose versions every run records, beside those that its gate needs."""


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
        resumed: Units that an earlier, interrupted run had finished.
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
    resumed: int = 0
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
            "receipt": shown(self.receipt),
            "output": shown(self.folder),
            "resumed_units": self.resumed,
            "units": 0 if self.evidence is None else len(self.evidence.units),
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
    started: str = ""
    limitations: tuple[str, ...] = ()


class Engine:
    """Runs the gates of one project on this machine.

    Args:
        project: Project folder (or that of a pack).
        trees: Where the trees of arms come from.
        here: What the user named and what this machine has.
        runs: Where runs are kept; by default inside the project.
        progress: Told what is being done.
    """

    def __init__(
        self,
        project: Path,
        trees: Trees,
        here: Here,
        runs: Path | None = None,
        progress: Progress = SILENT,
    ) -> None:
        self.project = project
        self.trees = trees
        self.here = here
        self.runs = project / RUNS if runs is None else runs
        self.progress = progress
        self.stop = threading.Event()
        self._lock = threading.RLock()
        self._sites: dict[str, Path] = {}
        self._site_digest = ""
        self._top = self.runs
        self._exit = contextlib.ExitStack()

    def __enter__(self) -> "Engine":
        return self

    def __exit__(self, *_: object) -> None:
        self._exit.close()

    # -- before the first unit ---------------------------------------------------------

    def resolve(self, gate: Gate, specs: Mapping[str, "ArmSpec"]) -> dict[str, Arm]:
        """Return a gate's arms with their trees.

        Args:
            gate: The gate.
            specs: Its arms, or others in their place.
        """
        arms = {}
        with self._lock:
            for name, spec in specs.items():
                found: Found = self.trees.find(spec.tree)
                arms[name] = Arm(
                    found.tree, found.composition, spec.tree, dict(spec.env)
                )
        return arms

    def plan(
        self,
        gate: Gate,
        specs: Mapping[str, "ArmSpec"] | None = None,
        seed: int | None = None,
    ) -> _Plan:
        """Fix everything about a run before it starts.

        Args:
            gate: The gate.
            specs: Other arms in place of the gate's.
            seed: Seed of schedule and inputs; drawn where it is not given.
        """
        arms = self.resolve(gate, gate.arms if specs is None else specs)
        files = self.files(gate)
        python = self.here.interpreter
        needed = [_name(item) for item in gate.needs.packages]
        wanted = dict.fromkeys([*VERSIONS, *needed])
        versions = {
            name: python.packages[name] for name in wanted if name in python.packages
        }
        found = python.version or "unknown"
        versions = {"python": found, "stackctl": __version__, **versions}
        gpus = self.here.gpus[: gate.needs.gpus]
        site = self.site_digest() if self.here.site is not None else None
        model = model_identity(self.here.parameters.get("model"))
        base = dict(self.trees.base)
        inputs = {
            "base": base,
            "files": files,
            "image": None,
            "model": model,
        }
        scope = {
            "host": snapshot.host(),
            "hardware": {"gpus": [dict(gpu.facts) for gpu in gpus]},
            "versions": versions if site is None else {**versions, "site": site},
        }
        bound: dict[str, Any] = {
            "gate": gate.sha256,
            "arms": {name: arm.document() for name, arm in arms.items()},
            "files": {item["path"]: item["sha256"] for item in files},
            "model": model,
            "versions": versions,
            "gpus": [gpu.uuid for gpu in gpus],
            "site": site,
            "base-url": self.here.parameters.get("base-url"),
        }
        if seed is not None:
            bound["seed"] = seed
        drawn = secrets.randbits(32) if seed is None else seed
        return _Plan(
            gate,
            arms,
            json.loads(json.dumps(bound)),
            inputs,
            scope,
            gpus,
            self.schedule(gate, list(arms), drawn),
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

    def site_digest(self) -> str:
        """Return the digest of what the site adds to every arm."""
        with self._lock:
            if not self._site_digest:
                assert self.here.site is not None
                tracked = self.trees.base_package()
                self._site_digest = arms_.site_digest(self.here.site, tracked)
            return self._site_digest

    # -- folders -----------------------------------------------------------------------

    def folders(self, plan: _Plan) -> dict[str, ArmFolder]:
        """Return the arms' folders, written and verified."""
        made = {}
        with self._lock:
            for name, arm in plan.arms.items():
                if arm.tree is None:
                    made[name] = ArmFolder(None, None, None, arm.env)
                    continue
                files = self.trees.folder(arm.tree)
                made[name] = ArmFolder(arm.tree, files, self._site(arm.tree), arm.env)
        return made

    def _site(self, tree: str) -> Path:
        files = self.trees.folder(tree)
        if self.here.site is None:
            return files
        if tree not in self._sites:
            if not self._sites:
                from stackctl.scratch import scratch_folder

                self.runs.mkdir(parents=True, exist_ok=True)
                self._top = self._exit.enter_context(
                    scratch_folder(self.runs, ".sites-")
                )
            target = self._top / tree
            lay_over(self.here.site, files, self.trees.base_package(), target)
            self._sites[tree] = target
        return self._sites[tree]

    def prepare(self, gate: Gate) -> dict[str, Any]:
        """Do in this thread what no two threads may do at once.

        Args:
            gate: A gate that can run here.

        Returns:
            What its run is bound to.
        """
        plan = self.plan(gate)
        self.folders(plan)
        if gate.tests is not None and gate.tests.of is not None:
            self.trees.tests_of(gate.tests.of)
        return plan.bound

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
        missing = self.here.missing(gate)
        if missing:
            evidence = Evidence(
                gate.name,
                gate.kind,
                {},
                Schedule(0, (), ()),
                (),
                missing=tuple(missing),
            )
            return Outcome(gate.name, "not-tested", tuple(missing), evidence=evidence)
        plan = self.plan(gate, specs, seed)
        with contextlib.ExitStack() as stack:
            for gpu in sorted(plan.gpus, key=lambda gpu: gpu.uuid):
                stack.enter_context(
                    gpu_lock(gpu.uuid, lambda: self.progress.note(_WAITING))
                )
            folder, resumed = self._open(plan, fresh, stack)
            files = UnitFiles(folder / "units")
            known = files.load(self.progress.note) if resumed else {}
            if resumed:
                self.progress.note(
                    f"{gate.name}: takes up its interrupted run, "
                    f"{len(known)} of {len(plan.schedule.slots)} units are there"
                )
            problems = self._run_units(plan, files, known, folder)
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
            resumed=len(known),
            ns=time.monotonic_ns() - begun,
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
            if not changed:
                # Its figures may have been looked at: readers of the receipt may know.
                lost = len(list((last / "units").glob("*.json")))
                plan.limitations = (
                    f"an interrupted run with {lost} finished units was thrown away "
                    "before this one",
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
        self, plan: _Plan, files: UnitFiles, known: Mapping[int, Unit], folder: Path
    ) -> list[str]:
        """Run the units that are not there yet; return problems of the whole run."""
        gate = plan.gate
        arms = self.folders(plan)
        tests: tuple[str, ...] = ()
        if gate.tests is not None and gate.tests.of is not None:
            with self._lock:
                named = self.trees.tests_of(gate.tests.of)
            (arm,) = arms.values()
            lost = [t for t in named if not arm.files or not (arm.files / t).exists()]
            if lost or not named:
                name = gate.tests.of
                if not named:
                    return [f"the set {name} brings no test file"]
                return [
                    f"{len(lost)} of the {len(named)} test files of the set {name} are "
                    "not in the tree"
                ]
            tests = named
        caches = folder / "cache"
        slots = [slot for slot in plan.schedule.slots if slot.unit not in known]
        total = len(plan.schedule.slots)
        if any(unit.problems or unit.stop for unit in known.values()):
            slots = []  # what is there decides already

        def one(slot: Slot) -> Unit:
            scratch = folder / "units" / f"{slot.unit:04d}"
            place = Place(
                gate,
                slot,
                total,
                plan.schedule.seed,
                {name: arms[name] for name in slot.arms},
                self.project,
                scratch,
                self.here,
                tests,
            )
            unit = run_unit(place, caches, plan.gpus, self.stop)
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
        return self._verify(plan)

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
        if pairs not in plan.schedule.looks[:-1] or len(started) != pairs:
            return False
        evidence = self._evidence(plan, units, [])
        try:
            decision = decide(plan.gate.rule, plan.gate.claims, evidence)
        except UsageError:  # no statistics here: runs to the end
            return False
        return decision.final

    def _verify(self, plan: _Plan) -> list[str]:
        """Check that what was measured is what the run is bound to."""
        problems = []
        with self._lock:
            for name, arm in plan.arms.items():
                if arm.tree is None:
                    continue
                if folder_tree(self.trees.folder(arm.tree)) != arm.tree:
                    problems.append(f"the tree of arm {name} was changed while it ran")
                    self.trees.forget(arm.tree)
        if self.files(plan.gate) != plan.inputs["files"]:
            problems.append("files that the gate is bound to were changed while it ran")
        return problems

    # -- after the last unit -----------------------------------------------------------

    def _evidence(
        self, plan: _Plan, units: Mapping[int, Unit], problems: Sequence[str]
    ) -> Evidence:
        evidence = Evidence(
            gate=plan.gate.name,
            kind=plan.gate.kind,
            arms=plan.arms,
            schedule=plan.schedule,
            units=tuple(units[number] for number in sorted(units)),
            scope=plan.scope,
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


_WAITING: Final = "waits for the GPU, which another gate run holds"


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
    from stackctl.gates.model import find_gate, load_gates
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
    gate = find_gate(load_gates(project), evidence.gate)
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


def model_identity(path: str | None) -> dict[str, Any] | None:
    """Return what a model is, without saying where.

    Args:
        path: Folder or name, as the user gave it.

    Returns:
        `name`, `revision` (None where it is not known) and `sha256` over names, sizes
        and, of files up to 1 MiB, contents; None where it is no folder.
    """
    if path is None:
        return None
    folder = Path(path)
    if not folder.is_dir():
        return {"name": path.rpartition("/")[2], "revision": None, "sha256": None}
    total = hashlib.sha256()
    for file in sorted(p for p in folder.rglob("*") if p.is_file()):
        size = file.stat().st_size
        name = file.relative_to(folder).as_posix()
        digest = sha256_of_file(file) if size <= 1 << 20 else "-"
        total.update(f"{name}\0{size}\0{digest}\0".encode("utf-8", "surrogateescape"))
    return {"name": folder.name, "revision": None, "sha256": total.hexdigest()}


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


def _name(requirement: str) -> str:
    from packaging.requirements import Requirement
    from packaging.utils import canonicalize_name

    return canonicalize_name(Requirement(requirement).name)


def _must_be_there(path: Path, gate: Gate) -> None:
    if not path.is_file():
        raise _missing(path, gate, "file")


def _missing(path: Path, gate: Gate, what: str) -> InputError:
    return InputError(
        f"{gate.path}: names {path}, but there is no such {what}",
        kind="file-missing",
        where={"file": str(gate.path)},
    )


def _inside(path: Path, project: Path) -> str:
    if path.is_relative_to(project):
        return path.relative_to(project).as_posix()
    return f"{FOLDER}/{path.name}"


def _write_json(path: Path, document: object) -> None:
    text = json.dumps(document, ensure_ascii=False, indent=1, allow_nan=False)
    write_atomic(path, text.encode("utf-8", "backslashreplace") + b"\n")


def _ignore(runs: Path) -> None:
    """Keep runs out of the project's history."""
    path = runs / ".gitignore"
    if not path.exists():
        write_atomic(path, b"*\n")
