# SPDX-License-Identifier: Apache-2.0
"""One unit: its environment, its process, its answer, the machine around it."""

import json
import os
import shutil
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from stackctl.gates import process, snapshot
from stackctl.gates.evidence import Unit, unit_from_document
from stackctl.gates.kinds import BadAnswer, Place, kind_of, parse_json
from stackctl.gates.snapshot import Gpu

PASSED_ON: Final = ("PATH", "LD_LIBRARY_PATH", "CUDA_HOME", "CUDA_PATH")
"""The only variables of the user that a unit sees: where programs and libraries are."""

FIXED: Final[Mapping[str, str]] = {
    "LC_ALL": "C.UTF-8",
    "TZ": "UTC",
    "PYTHONNOUSERSITE": "1",
    "PYTHONHASHSEED": "0",
    "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
}
"""What every unit sees, the same everywhere."""

CACHES: Final[Mapping[str, str]] = {
    "PYTHONPYCACHEPREFIX": "bytecode",
    "TRITON_CACHE_DIR": "triton",
    "TORCHINDUCTOR_CACHE_DIR": "inductor",
    "CUDA_CACHE_PATH": "cuda",
    "VLLM_CACHE_ROOT": "vllm",
    "XDG_CACHE_HOME": "xdg",
}
"""Caches of a run, by the variable that names them: empty at its start."""

SETTLE: Final = 0.5
"""Seconds over which the foreign load is measured before and after a timed unit."""

SAMPLE: Final = 1.0
"""Seconds between two looks at the GPUs while a unit runs; only through NVML."""


def environment(
    place: Place, caches: Path, gpus: Sequence[Gpu]
) -> tuple[dict[str, str], dict[str, str]]:
    """Return a unit's whole environment, and the part that the receipt shows.

    Args:
        place: Where it runs.
        caches: Folder of the run's caches.
        gpus: The GPUs that it may use.

    Returns:
        All variables; and those that the gate and its arm set, without any path.
    """
    gate = place.gate
    env = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
    env |= FIXED
    for variable, name in CACHES.items():
        env[variable] = str(caches / name)
    env["HOME"] = str(place.scratch / "home")
    env["TMPDIR"] = str(place.scratch / "tmp")
    env["CUDA_VISIBLE_DEVICES"] = ",".join(gpu.uuid for gpu in gpus)
    # An absolute path stays what it is.
    paths = [str(place.project / place.fill(path)) for path in gate.pythonpath]
    if paths:
        env["PYTHONPATH"] = os.pathsep.join(paths)
    env |= kind_of(gate).environment(place)
    shown = dict(gate.env)
    if len(place.arms) == 1:
        (arm,) = place.arms.values()
        shown |= arm.env
    env |= shown
    env |= {
        "STACKCTL_GATE_UNIT": str(place.slot.unit),
        "STACKCTL_GATE_UNITS": str(place.units),
        "STACKCTL_GATE_BLOCK": str(place.slot.block),
        "STACKCTL_GATE_SEED": str(place.seed),
        "STACKCTL_GATE_OUT": str(place.answer_file),
        "STACKCTL_GATE_DIR": str(place.scratch),
        "STACKCTL_GATE_ARMS": json.dumps(
            {
                name: {
                    "tree": str(arm.files or ""),
                    "site": str(arm.site or ""),
                    "env": dict(arm.env),
                }
                for name, arm in place.arms.items()
            }
        ),
    }
    return env, shown


class _Watch:
    """Looks at the GPUs while a unit runs, where that costs it nothing."""

    def __init__(self, gpus: Sequence[Gpu]) -> None:
        self._gpus = gpus
        self._end = threading.Event()
        self.throttled: set[str] = set()
        cheap = snapshot._nvml() is not None and bool(gpus)
        self._thread = threading.Thread(target=self._look, daemon=True)
        if cheap:
            self._thread.start()

    def _look(self) -> None:
        while not self._end.wait(SAMPLE):
            for gpu in self._gpus:
                if snapshot.throttled(snapshot.gpu_state(gpu)):
                    self.throttled.add(gpu.uuid)

    def end(self) -> None:
        self._end.set()
        if self._thread.is_alive():
            self._thread.join()


def _foreign_load() -> float | None:
    """Return how many CPUs are busy, now, while nothing of ours runs."""
    first = snapshot.cpu_busy()
    begun = time.monotonic()
    time.sleep(SETTLE)
    last = snapshot.cpu_busy()
    if first is None or last is None:
        return None
    return round((last[0] - first[0]) / (time.monotonic() - begun), 3)


def run_unit(
    place: Place,
    caches: Path,
    gpus: Sequence[Gpu],
    stop: threading.Event | None = None,
) -> Unit:
    """Run one unit and return what became of it.

    Args:
        place: Where it runs; its scratch folder is made anew.
        caches: Folder of the run's caches.
        gpus: The GPUs that it may use.
        stop: Set by another thread to end it.

    Raises:
        Stopped: It was stopped; it has left no process.
        KeyboardInterrupt: The same, in the main thread.
    """
    gate = place.gate
    shutil.rmtree(place.scratch, ignore_errors=True)
    for folder in ("home", "tmp"):
        (place.scratch / folder).mkdir(parents=True)
    for name in CACHES.values():
        (caches / name).mkdir(parents=True, exist_ok=True)
    kind = kind_of(gate)
    env, _ = environment(place, caches, gpus)
    work = process.Work(
        command=kind.command(place),
        env=env,
        cwd=_working_folder(place),
        stdout=place.scratch / "stdout",
        stderr=place.scratch / "stderr",
        seconds=gate.limits.seconds,
        memory=gate.limits.memory_mib << 20,
        # GPU drivers reserve memory that they never touch.
        data=0 if gpus else gate.limits.memory_mib << 20,
        output=gate.limits.output_mib << 20,
    )
    before = [snapshot.gpu_state(gpu) for gpu in gpus]
    host: dict[str, Any] = {"cpus": os.cpu_count(), "loadavg": snapshot.load_average()}
    if gate.timed:
        host["load_before"] = _foreign_load()
    watch = _Watch(gpus)
    try:
        done = process.run(work, stop)
    finally:
        watch.end()
    if gate.timed:
        host["load_after"] = _foreign_load()
    for name, load in (("load_peak", done.load_peak), ("load_mean", done.load_mean)):
        host[name] = None if load is None else round(load, 3)
    host["memory_mib"] = done.memory >> 20
    host["cpu_ns"] = done.cpu_ns
    states = []
    for gpu, first in zip(gpus, before, strict=True):
        last = snapshot.gpu_state(gpu)
        slow = gpu.uuid in watch.throttled or any(
            map(snapshot.throttled, (first, last))
        )
        states.append(
            {"uuid": gpu.uuid, "before": first, "after": last, "throttled": slow}
        )
    problems = done.problems(work)
    answer: dict[str, Any] | None = None
    if not problems:
        try:
            answer = kind.answer(place, done.exit, _read(work.stdout))
        except BadAnswer as bad:
            problems.append(str(bad))
    notes = []
    if done.left:
        many = "processes" if done.left > 1 else "process"
        notes.append(f"it left {done.left} {many} behind, which were ended")
    if answer is not None and notes:
        answer["notes"] = [*answer.get("notes", []), *notes]
    for folder in ("home", "tmp"):
        shutil.rmtree(place.scratch / folder, ignore_errors=True)
    return Unit(
        place.slot.unit,
        done.exit,
        done.ns,
        answer,
        host,
        tuple(states),
        tuple(problems),
    )


def _working_folder(place: Place) -> Path:
    """Return where a unit starts: its tree, the project, else its own folder."""
    if place.gate.kind == "image":
        return place.project  # where the series' images are
    if place.gate.kind == "tests":
        return next(a.files for a in place.arms.values() if a.files is not None)
    return place.scratch


def _read(path: Path) -> bytes:
    with suppress(OSError), path.open("rb") as file:
        return file.read()
    return b""


@dataclass(slots=True)
class UnitFiles:
    """The finished units of one run, as files that appear whole or not at all.

    Attributes:
        folder: Where they are.
    """

    folder: Path
    _units: dict[int, Unit] = field(default_factory=dict)

    def load(self, note: Callable[[str], None]) -> dict[int, Unit]:
        """Return the units that finished before, by number.

        Args:
            note: Told of a file that cannot be used; its unit runs again.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        for path in sorted(self.folder.glob("*.json")):
            try:
                document = parse_json(path.read_bytes(), path.name)
                unit = unit_from_document(document, path.name)
            except Exception as error:
                note(f"{path}: {error}; the unit runs again")
                continue
            if path.name == self._path(unit.unit).name:
                self._units[unit.unit] = unit
        return dict(self._units)

    def save(self, unit: Unit) -> None:
        """Keep a finished unit, on the disk before this returns."""
        from stackctl.fsutil import write_atomic

        text = json.dumps(unit.document(), ensure_ascii=False, allow_nan=False)
        write_atomic(
            self._path(unit.unit), text.encode("utf-8", "backslashreplace") + b"\n"
        )
        self._units[unit.unit] = unit

    def _path(self, number: int) -> Path:
        return self.folder / f"{number:04d}.json"
