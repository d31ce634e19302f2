# SPDX-License-Identifier: Apache-2.0
"""What machine this is, and what state its GPUs are in, without ever failing.

GPUs are read through NVML where `nvidia-ml-py` is installed, else through `nvidia-smi`.
No host name, user, path or serial number is looked at.
"""

import contextlib
import json
import os
import platform
import subprocess
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

THROTTLED: Final = 0x08 | 0x20 | 0x40 | 0x80
"""Reasons of the driver that make a time unusable: hardware slowdown, software and
hardware thermal slowdown, power brake (NVML `nvmlClocksEventReason*`)."""

_SMI_TIMEOUT: Final = 20.0

_FIXED: Final = {
    "uuid": "uuid",
    "name": "name",
    "driver": "driver_version",
    "memory_mib": "memory.total",
    "sm_max_mhz": "clocks.max.sm",
    "pci": "pci.bus_id",
}
_STATE: Final = {
    "sm_mhz": "clocks.sm",
    "memory_mhz": "clocks.mem",
    "temperature_c": "temperature.gpu",
    "power_w": "power.draw",
    "reasons": "clocks_event_reasons.active",
    "utilization": "utilization.gpu",
    "memory_used_mib": "memory.used",
}


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU.

    Attributes:
        index: Number that the driver gives it.
        uuid: Its UUID.
        name: Model.
        driver: Version of the driver.
        memory_mib: Memory, MiB.
        facts: The above and its highest clock, for the scope of a receipt.
    """

    index: int
    uuid: str
    name: str
    driver: str
    memory_mib: int
    facts: Mapping[str, Any] = field(default_factory=dict)


def _smi(fields: Sequence[str]) -> list[list[str]]:
    """Return nvidia-smi's fields of every GPU; empty where it does not answer."""
    command = ["nvidia-smi", f"--query-gpu={','.join(fields)}"]
    try:
        done = subprocess.run(
            [*command, "--format=csv,noheader,nounits"],
            capture_output=True,
            timeout=_SMI_TIMEOUT,
        )
    except (OSError, subprocess.TimeoutExpired):
        return []
    if done.returncode:
        return []
    lines = done.stdout.decode("utf-8", "replace").splitlines()
    rows = [[cell.strip() for cell in line.split(",")] for line in lines]
    return [row for row in rows if len(row) == len(fields)]


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _reasons(text: str) -> int | None:
    try:
        return int(text, 16)
    except ValueError:
        return None


@lru_cache(maxsize=1)
def _nvml() -> Any:
    """Return NVML, started; None where it is not there."""
    try:
        # pynvml is what nvidia-ml-py installs.
        import pynvml  # type: ignore[import-untyped,import-not-found,unused-ignore]

        pynvml.nvmlInit()
    except Exception:
        return None
    return pynvml


def gpus() -> list[Gpu]:
    """Return the GPUs of this machine that the driver shows, in its order."""
    nvml = _nvml()
    found = []
    if nvml is not None:
        for index in range(_count(nvml)):
            # One that fell off the bus is no GPU, and no reason to lose the others.
            with contextlib.suppress(nvml.NVMLError):
                found.append(_gpu(index, _facts(nvml, index)))
        return found
    for index, row in enumerate(_smi(list(_FIXED.values())[:-1])):
        facts: dict[str, Any] = dict(zip(_FIXED, row, strict=False))
        for name in ("memory_mib", "sm_max_mhz"):
            facts[name] = int(_number(facts[name]) or 0)
        found.append(_gpu(index, facts))
    return found


def _facts(nvml: Any, index: int) -> dict[str, Any]:
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    facts: dict[str, Any] = {
        "uuid": _text(nvml.nvmlDeviceGetUUID(handle)),
        "name": _text(nvml.nvmlDeviceGetName(handle)),
        "driver": _text(nvml.nvmlSystemGetDriverVersion()),
        "memory_mib": nvml.nvmlDeviceGetMemoryInfo(handle).total >> 20,
        "sm_max_mhz": 0,
    }
    with contextlib.suppress(nvml.NVMLError):
        facts["sm_max_mhz"] = nvml.nvmlDeviceGetMaxClockInfo(handle, nvml.NVML_CLOCK_SM)
    return facts


def _count(nvml: Any) -> int:
    try:
        return int(nvml.nvmlDeviceGetCount())
    except nvml.NVMLError:
        return 0


def _reasons_now(nvml: Any, handle: Any) -> int:
    """Return the driver's reasons, also of a driver before 535 with a newer binding."""
    for name in (
        "nvmlDeviceGetCurrentClocksEventReasons",
        "nvmlDeviceGetCurrentClocksThrottleReasons",
    ):
        with contextlib.suppress(AttributeError, nvml.NVMLError_FunctionNotFound):
            return int(getattr(nvml, name)(handle))
    raise nvml.NVMLError(nvml.NVML_ERROR_FUNCTION_NOT_FOUND)


def _text(value: object) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def _gpu(index: int, facts: Mapping[str, Any]) -> Gpu:
    return Gpu(
        index,
        facts["uuid"],
        facts["name"],
        facts["driver"],
        int(facts["memory_mib"]),
        facts,
    )


def gpu_state(gpu: Gpu) -> dict[str, Any]:
    """Return clocks, temperature, power, throttle reasons and load of a GPU, now.

    Args:
        gpu: The GPU.

    Returns:
        Numbers by name, None for what the driver does not tell; `reasons` is the
        driver's bit mask.
    """
    nvml = _nvml()
    if nvml is None:
        for row in _smi(["uuid", *_STATE.values()]):
            if row[0] == gpu.uuid:
                state: dict[str, Any] = {
                    name: _reasons(cell) if name == "reasons" else _number(cell)
                    for name, cell in zip(_STATE, row[1:], strict=True)
                }
                return state
        return dict.fromkeys(_STATE)
    try:
        handle = nvml.nvmlDeviceGetHandleByIndex(gpu.index)
    except nvml.NVMLError:
        return dict.fromkeys(_STATE)
    readers: dict[str, Callable[[], Any]] = {
        "sm_mhz": lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM),
        "memory_mhz": lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_MEM),
        "temperature_c": lambda: nvml.nvmlDeviceGetTemperature(
            handle, nvml.NVML_TEMPERATURE_GPU
        ),
        "power_w": lambda: nvml.nvmlDeviceGetPowerUsage(handle) / 1000,
        "reasons": lambda: _reasons_now(nvml, handle),
        "utilization": lambda: nvml.nvmlDeviceGetUtilizationRates(handle).gpu,
        "memory_used_mib": lambda: nvml.nvmlDeviceGetMemoryInfo(handle).used >> 20,
    }
    state = {}
    for name, read in readers.items():
        try:
            state[name] = read()
        except nvml.NVMLError:
            state[name] = None
    return state


def throttled(state: Mapping[str, Any]) -> bool:
    """Whether a state shows a slowdown that makes times unusable."""
    reasons = state.get("reasons")
    return isinstance(reasons, int) and bool(reasons & THROTTLED)


def cpu_busy() -> tuple[float, int] | None:
    """Return the CPU seconds that this machine has spent so far, and its CPUs.

    The count is of all processes of the machine, those of other containers included.
    None where the kernel does not tell.
    """
    try:
        lines = Path("/proc/stat").read_text().splitlines()
        cells = [int(cell) for cell in lines[0].split()[1:9]]
    except (OSError, ValueError, IndexError):
        return None
    # user, nice, system, idle, iowait, irq, softirq, steal: idle and iowait are idle.
    busy = sum(cells) - cells[3] - cells[4]
    cpus = sum(1 for line in lines if line.startswith("cpu")) - 1
    return busy / os.sysconf("SC_CLK_TCK"), cpus


def load_average() -> float | None:
    """Return the load average of one minute, None where there is none."""
    try:
        return round(os.getloadavg()[0], 2)
    except OSError:
        return None


def _cpu_model() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _numa_nodes() -> int | None:
    try:
        names = os.listdir("/sys/devices/system/node")
    except OSError:
        return None
    return sum(1 for name in names if name[:4] == "node" and name[4:].isdigit())


def host() -> dict[str, Any]:
    """Return what kind of machine this is: CPU, memory, kernel; nothing that names it.

    Returns:
        `machine`, `cpu`, `cpus`, `usable_cpus`, `numa_nodes`, `memory_mib`, `system`,
        `kernel`.
    """
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None
    try:
        memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") >> 20
    except (ValueError, OSError):
        memory = None
    return {
        "machine": platform.machine(),
        "cpu": _cpu_model(),
        "cpus": os.cpu_count(),
        "usable_cpus": usable,
        "numa_nodes": _numa_nodes(),
        "memory_mib": memory,
        "system": platform.system(),
        # The part after the version names who built it.
        "kernel": platform.release().partition("-")[0],
    }


_PROBE: Final = """
import importlib.metadata, json, platform, sys
found = {}
for item in importlib.metadata.distributions(path=sys.path):
    name = item.metadata["Name"]
    if name:
        found.setdefault(name.lower().replace("_", "-").replace(".", "-"), item.version)
print(json.dumps({"python": platform.python_version(), "packages": found}))
"""


@dataclass(frozen=True, slots=True)
class Python:
    """A Python interpreter that runs units.

    Attributes:
        path: Its program, as given: a virtual environment's is a link.
        version: Its version, None where it does not start.
        packages: Versions of its packages, by normal name.
        problem: Why it cannot be used, else empty.
    """

    path: str
    version: str | None
    packages: Mapping[str, str]
    problem: str = ""


def probe_python(path: str, site: Path | None = None) -> Python:
    """Ask an interpreter for its version and packages.

    Args:
        path: The program.
        site: A folder with further packages.
    """
    # No user's site folder, no PYTHON* of the caller: as the units will see it.
    env = {"PATH": os.environ.get("PATH", os.defpath), "PYTHONNOUSERSITE": "1"}
    if site is not None:
        env["PYTHONPATH"] = str(site)
    try:
        done = subprocess.run(
            [path, "-c", _PROBE], capture_output=True, timeout=60, env=env, cwd="/"
        )
        answer = json.loads(done.stdout or b"null")
        return Python(path, answer["python"], answer["packages"])
    except (OSError, subprocess.TimeoutExpired) as error:
        reason = error.strerror if isinstance(error, OSError) else "no answer in 60 s"
        return Python(path, None, {}, f"{path}: {reason}")
    except (ValueError, TypeError, KeyError):
        last = done.stderr.decode("utf-8", "replace").strip().splitlines()[-1:]
        return Python(path, None, {}, f"{path}: {''.join(last) or 'no answer'}")


def package_problems(
    requirements: Iterable[str], packages: Mapping[str, str]
) -> list[str]:
    """Return which requirements do not hold, in words.

    Args:
        requirements: Names with their versions.
        packages: What is there.
    """
    from packaging.requirements import Requirement
    from packaging.utils import canonicalize_name

    absent, others = [], []
    for requirement in requirements:
        wanted = Requirement(requirement)
        version = packages.get(canonicalize_name(wanted.name))
        if version is None:
            absent.append(requirement)
        elif not wanted.specifier.contains(version, prereleases=True):
            others.append(
                f"the package {wanted.name} is {version}; needed is {requirement}"
            )
    return [f"not installed: {', '.join(absent)}", *others] if absent else others


@contextlib.contextmanager
def gpu_lock(
    uuid: str,
    waiting: Callable[[], None] | None = None,
    folder: Path = Path("/tmp"),  # noqa: S108
) -> Iterator[bool]:
    """Hold a GPU against other gate runs of this machine, of whatever user.

    Args:
        uuid: The GPU.
        waiting: Called once where another run holds it; without it, nothing waits.
        folder: Where the lock file is: one that all users share.

    Yields:
        Whether it is held; always so once it was waited for.
    """
    import fcntl

    path = folder / f"stackctl-gpu-{uuid}.lock"
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    try:
        # First without O_CREAT: in a sticky folder the kernel refuses that for a file
        # of another user, and reading is enough to lock.
        descriptor = os.open(path, flags)
    except FileNotFoundError:
        descriptor = os.open(path, flags | os.O_CREAT, 0o644)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if waiting is None:
                yield False
                return
            waiting()
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield True
    finally:
        os.close(descriptor)
