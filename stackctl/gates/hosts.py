# SPDX-License-Identifier: Apache-2.0
"""Where units run: an executor finds a host, and a host runs the units of one run.

This machine is the host by default; `cluster` has the nodes of a Ray cluster. All
units of a run that measures time run on one host, so that what is compared was taken on
one machine.
"""

import contextlib
import os
import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

from stackctl.errors import StackctlError
from stackctl.gates import arms as arms_
from stackctl.gates import snapshot
from stackctl.gates.arms import ArmFolder, Trees, holds, lay_over
from stackctl.gates.evidence import Arm, Slot, Unit
from stackctl.gates.here import Here, fitting
from stackctl.gates.kinds import Place
from stackctl.gates.model import Gate
from stackctl.gates.process import Stopped
from stackctl.gates.snapshot import Gpu, gpu_lock
from stackctl.gates.units import run_unit
from stackctl.progress import SILENT, Progress

TICK: Final = 0.2
"""Seconds between two looks at whether a waiting run was stopped."""


class HostLostError(Exception):
    """The host went away while it had work; what it had not answered is lost.

    Args:
        node: Its anonymous name.
        why: What was seen of it, in words.
    """

    def __init__(self, node: str, why: str) -> None:
        super().__init__(why)
        self.node = node
        self.why = why


@dataclass(frozen=True, slots=True)
class Task:
    """What all units of a run share.

    Attributes:
        gate: The gate.
        arms: Its arms with their trees.
        units: How many units the schedule has.
        seed: Seed of the schedule.
        tests: Test files of a set, where the gate names one.
    """

    gate: Gate
    arms: Mapping[str, Arm]
    units: int
    seed: int
    tests: tuple[str, ...] = ()


class Host(Protocol):
    """A machine that runs the units of one run."""

    node: str | None
    """Its anonymous name in receipts; None for this machine."""

    here: Here
    """What was named and what the machine has."""

    gpus: Sequence[Gpu]
    """The GPUs that are this run's."""

    def describe(self) -> dict[str, Any]:
        """Return what kind of machine it is."""

    def site_digest(self) -> str | None:
        """Return the digest of what the site adds to every arm; None without one."""

    def model(self) -> dict[str, Any] | None:
        """Return what the model is, without saying where."""

    def open(self, task: Task, folder: Path) -> None:
        """Make everything that the units need: the arms' folders, verified.

        Args:
            task: What the units share.
            folder: The run's folder.
        """

    def unit(self, slot: Slot, stop: threading.Event) -> Unit:
        """Run one unit; its output lands in the run's folder.

        Args:
            slot: Its slot.
            stop: Set by another thread to end it.

        Raises:
            Stopped: `stop` was set; nothing of the unit is left.
            HostLostError: The machine went away; the unit has no answer.
        """

    def changed(self) -> list[str]:
        """Return the arms whose tree is not what it was; those are thrown away."""


class Executor(Protocol):
    """What finds hosts for gates."""

    alone: bool
    """Whether all hosts are one machine, on which what measures time runs alone."""

    @property
    def shipped(self) -> Sequence[Mapping[str, Any]]:
        """What was sent to which node, once each."""

    def missing(self, gate: Gate, avoid: Collection[str] = ()) -> list[str]:
        """Return why a gate can run nowhere; empty where it can.

        Args:
            gate: The gate.
            avoid: Nodes that are out of the question.
        """

    def host(
        self,
        gate: Gate,
        stop: threading.Event,
        avoid: Collection[str] = (),
        prefer: Mapping[str, Any] | None = None,
    ) -> contextlib.AbstractContextManager[Host]:
        """Hold a host for one run, waiting for one that is free.

        Args:
            gate: The gate.
            stop: Set by another thread to give up.
            avoid: Nodes that are out of the question.
            prefer: Where an interrupted run was: `node` and `gpus`.
        """

    def prepare(self, arms: Mapping[str, Arm]) -> None:
        """Do in this thread what no two threads may do at once."""

    def identity(self, gate: Gate) -> dict[str, Any]:
        """Return what an answer depends on beside trees and files."""

    def close(self) -> None:
        """Give everything back."""


class Sites:
    """The arms' folders on this machine, and the installations laid under them.

    Args:
        trees: Where trees come from.
        site: Folder with an installed vLLM, if one was named.
        top: Folder for what is only needed while this object lives.
    """

    def __init__(self, trees: Trees, site: Path | None, top: Path) -> None:
        self.trees = trees
        self.site = site
        self.lock = threading.RLock()
        self._top = top
        self._made: dict[str, Path] = {}
        self._scratch = top
        self._digest = ""
        self._exit = contextlib.ExitStack()

    def close(self) -> None:
        """Remove what was laid over."""
        self._exit.close()
        self._made.clear()

    def folders(self, arms: Mapping[str, Arm]) -> dict[str, ArmFolder]:
        """Return the arms' folders, written and verified."""
        made = {}
        with self.lock:
            for name, arm in arms.items():
                if arm.tree is None:
                    made[name] = ArmFolder(None, None, None, arm.env)
                    continue
                files = self.trees.folder(arm.tree)
                made[name] = ArmFolder(arm.tree, files, self._site(arm.tree), arm.env)
        return made

    def _site(self, tree: str) -> Path:
        files = self.trees.folder(tree)
        if self.site is None:
            return files
        if tree not in self._made:
            if not self._made:
                from stackctl.scratch import scratch_folder

                self._top.mkdir(parents=True, exist_ok=True)
                self._scratch = self._exit.enter_context(
                    scratch_folder(self._top, ".sites-")
                )
            target = self._scratch / tree
            lay_over(self.site, files, self.trees.base_package(), target)
            self._made[tree] = target
        return self._made[tree]

    def digest(self) -> str | None:
        """Return the digest of what the site adds to every arm."""
        if self.site is None:
            return None
        with self.lock:
            if not self._digest:
                tracked = self.trees.base_package()
                self._digest = arms_.site_digest(self.site, tracked)
            return self._digest

    def changed(self, arms: Mapping[str, Arm]) -> list[str]:
        """Return the arms whose folder is not their tree any more; it goes away."""
        found = []
        with self.lock:
            for name, arm in arms.items():
                if arm.tree is None:
                    continue
                if not holds(self.trees.folder(arm.tree), arm.tree):
                    found.append(name)
                    self.trees.forget(arm.tree)
        return found


class Room:
    """How many units that need no GPU may run at once on this machine.

    Args:
        places: The number.
    """

    def __init__(self, places: int) -> None:
        self._places = threading.Semaphore(max(1, places))

    @contextlib.contextmanager
    def place(self, stop: threading.Event) -> Iterator[None]:
        """Hold a place.

        Args:
            stop: Set by another thread to give up.

        Raises:
            Stopped: `stop` was set.
        """
        while not self._places.acquire(timeout=TICK):
            if stop.is_set():
                raise Stopped
        try:
            yield
        finally:
            self._places.release()


def usable_cpus() -> int:
    """Return how many CPUs this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class LocalHost:
    """This machine.

    Args:
        project: Project folder.
        here: What was named and what the machine has.
        sites: The arms' folders.
        room: Bounds how many units run at once.
        gpus: The GPUs that are this run's.
    """

    node: str | None = None

    def __init__(
        self,
        project: Path,
        here: Here,
        sites: Sites,
        room: Room,
        gpus: Sequence[Gpu] = (),
    ) -> None:
        self.here = here
        self.gpus = gpus
        self._project = project
        self._sites = sites
        self._room = room
        self._task: Task | None = None
        self._folder = project
        self._arms: Mapping[str, ArmFolder] = {}

    def describe(self) -> dict[str, Any]:
        """Return what kind of machine it is."""
        return snapshot.host()

    def site_digest(self) -> str | None:
        """Return the digest of what the site adds to every arm; None without one."""
        return self._sites.digest()

    def model(self) -> dict[str, Any] | None:
        """Return what the model is, without saying where."""
        from stackctl.gates.bound import model_identity

        return model_identity(self.here.parameters.get("model"))

    def open(self, task: Task, folder: Path) -> None:
        """Make the arms' folders."""
        self._arms = self._sites.folders(task.arms)
        self._task = task
        self._folder = folder

    def unit(self, slot: Slot, stop: threading.Event) -> Unit:
        """Run one unit."""
        task = self._task
        assert task is not None
        place = Place(
            task.gate,
            slot,
            task.units,
            task.seed,
            {name: self._arms[name] for name in slot.arms},
            self._project,
            unit_folder(self._folder, slot.unit),
            self.here,
            task.tests,
        )
        bounded = not self.gpus and not task.gate.timed
        with self._room.place(stop) if bounded else contextlib.nullcontext():
            return run_unit(place, self._folder / "cache", self.gpus, stop)

    def changed(self) -> list[str]:
        """Return the arms whose tree is not what it was; those are thrown away."""
        return self._sites.changed(self._task.arms) if self._task is not None else []


def unit_folder(run: Path, number: int) -> Path:
    """Return the folder of a unit's output, inside that of its run."""
    return run / "units" / f"{number:04d}"


_WAITING: Final = "waits for the GPU, which another gate run holds"


@contextlib.contextmanager
def hold_gpus(
    gate: Gate,
    gpus: Sequence[Gpu],
    first: Collection[str] = (),
    progress: Progress = SILENT,
) -> Iterator[Sequence[Gpu]]:
    """Hold as many GPUs as a gate needs against all other gate runs.

    Free ones are taken before held ones. Where there are not enough, none is kept while
    others are waited for in the order of all, so that no two runs wait for each other.

    Args:
        gate: The gate.
        gpus: GPUs to take from, the preferred ones first.
        first: UUIDs to take if they are there: those of an interrupted run.
        progress: Told when another run is waited for.
    """
    count = gate.needs.gpus
    able = fitting(gate, gpus)
    wanted = [gpu for gpu in able if gpu.uuid in first]
    if len(wanted) != count:
        wanted = []
    with contextlib.ExitStack() as stack:
        held: list[Gpu] = []
        for gpu in able if not wanted else ():
            if len(held) < count:
                with contextlib.ExitStack() as lock:
                    if lock.enter_context(gpu_lock(gpu.uuid)):
                        stack.push(lock.pop_all())
                        held.append(gpu)
        if len(held) < count:
            stack.close()
            held = wanted or able[:count]
            for gpu in sorted(held, key=lambda gpu: gpu.uuid):
                stack.enter_context(gpu_lock(gpu.uuid, lambda: progress.note(_WAITING)))
        yield held


class LocalExecutor:
    """Runs everything on this machine.

    Args:
        project: Project folder.
        trees: Where the trees of arms come from.
        here: What the user named and what this machine has.
        runs: Where runs are kept.
        progress: Told what is being done.
    """

    alone = True
    shipped: Sequence[Mapping[str, Any]] = ()

    def __init__(
        self,
        project: Path,
        trees: Trees,
        here: Here,
        runs: Path,
        progress: Progress = SILENT,
    ) -> None:
        self._project = project
        self._here = here
        self._progress = progress
        self._sites = Sites(trees, here.site if here is not None else None, runs)
        self._room = Room(usable_cpus())

    def missing(self, gate: Gate, avoid: Collection[str] = ()) -> list[str]:
        """Return why a gate cannot run here."""
        return self._here.missing(gate)

    @contextlib.contextmanager
    def host(
        self,
        gate: Gate,
        stop: threading.Event,
        avoid: Collection[str] = (),
        prefer: Mapping[str, Any] | None = None,
    ) -> Iterator[LocalHost]:
        """Hold this machine, and the GPUs that the gate needs."""
        first = () if self._here.gpu or not prefer else prefer.get("gpus", ())
        gpus = self._here.gpus if gate.needs.gpus else ()
        if self._here.gpu:
            gpus = fitting(gate, gpus)[: gate.needs.gpus]
        with hold_gpus(gate, gpus, first, self._progress) as held:
            yield LocalHost(self._project, self._here, self._sites, self._room, held)

    def prepare(self, arms: Mapping[str, Arm]) -> None:
        """Write the arms' folders."""
        self._sites.folders(arms)

    def identity(self, gate: Gate) -> dict[str, Any]:
        """Return versions, GPUs, site and model."""
        host = LocalHost(self._project, self._here, self._sites, self._room)
        able = fitting(gate, self._here.gpus) if gate.needs.gpus else []
        return {
            "versions": versions(gate, self._here),
            "gpus": [gpu.uuid for gpu in able],
            "site": host.site_digest(),
            "model": host.model(),
            "base-url": self._here.parameters.get("base-url"),
        }

    def close(self) -> None:
        """Remove what was only needed here."""
        self._sites.close()


VERSIONS: Final = ("torch", "triton", "vllm", "pytest", "numpy", "transformers")
"""Packages whose versions every run records, beside those that its gate needs."""


def versions(gate: Gate, here: Here) -> dict[str, str]:
    """Return the versions that a run records.

    Args:
        gate: The gate; it may name further packages.
        here: Where it runs.
    """
    from packaging.requirements import Requirement
    from packaging.utils import canonicalize_name

    from stackctl import __version__

    python = here.interpreter
    needed = [canonicalize_name(Requirement(n).name) for n in gate.needs.packages]
    wanted = dict.fromkeys([*VERSIONS, *needed])
    found = {name: python.packages[name] for name in wanted if name in python.packages}
    own = {"python": python.version or "unknown", "stackctl": __version__}
    return {**own, **_git(), **found}


def _git() -> dict[str, str]:
    """Return the version of git, which a pack's machine need not have."""
    try:
        from stackctl.git.command import git_version

        return {"git": ".".join(map(str, git_version()))}
    except (ImportError, StackctlError):
        return {}
