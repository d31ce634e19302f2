"""What the gate scripts share: the answer document, hardware facts, the decision rule.

A script that is called with ``--unit`` is one process start of the gate engine: it
measures, judges nothing, and gives its samples to :func:`unit` (docs/gates.md).
Exit codes: 0 qualified, 1 rejected, 2 usage, 7 insufficient evidence, 8 not tested,
9 invalid. A script stops with :class:`Stop` where it cannot or may not judge.
"""

from __future__ import annotations

import json
import math
import os
import platform
import random
import statistics
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from _unit import Stop, digest

EXIT = {
    "qualified": 0,
    "rejected": 1,
    "insufficient-evidence": 7,
    "not-tested": 8,
    "invalid": 9,
}
# nvidia-smi clocks_event_reasons: hardware slowdown, software and hardware thermal
# slowdown, power brake.
THROTTLED = 0x08 | 0x20 | 0x40 | 0x80
CONFIDENCE = 0.99
# Student's t, two-sided 99 %, by degrees of freedom; between rows the row before
# (wider) is used.
_T99 = {
    1: 63.657, 2: 9.925, 3: 5.841, 4: 4.604, 5: 4.032, 6: 3.707, 7: 3.499, 8: 3.355,
    9: 3.250, 10: 3.169, 12: 3.055, 15: 2.947, 17: 2.898, 20: 2.845, 26: 2.779,
    30: 2.750, 40: 2.704, 60: 2.660,
}  # fmt: skip


def interval(values: Sequence[float]) -> dict[str, float]:
    """Mean of paired values with its 99 % t interval and a seeded bootstrap.

    Args:
        values: One value (a log-ratio or a measurement) per process.

    Returns:
        ``n``, ``mean``, ``low``, ``high`` and ``boot_low``, ``boot_high`` (10,000
        resamples, seed 0).
    """
    n = len(values)
    mean = statistics.fmean(values)
    if n < 2:
        nan = math.nan
        return {
            "n": n,
            "mean": mean,
            "low": nan,
            "high": nan,
            "boot_low": nan,
            "boot_high": nan,
        }
    t = _T99[max(df for df in _T99 if df <= n - 1)]
    half = t * statistics.stdev(values) / math.sqrt(n)
    rng = random.Random(0)
    means = sorted(statistics.fmean(rng.choices(values, k=n)) for _ in range(10_000))
    return {
        "n": n,
        "mean": mean,
        "low": mean - half,
        "high": mean + half,
        "boot_low": means[49],
        "boot_high": means[9949],
    }


def judge(low: float, high: float, bar: float, at_least: bool) -> str:
    """Verdict of an interval against a bar: the whole interval has to be on a side."""
    if math.isnan(low):
        return "insufficient-evidence"
    if at_least:
        low, high, bar = -high, -low, -bar
    if high <= bar:
        return "qualified"
    return "rejected" if low > bar else "insufficient-evidence"


def worst(verdicts: Sequence[str]) -> str:
    """The verdict of a gate with several bars."""
    order = ("invalid", "rejected", "insufficient-evidence", "not-tested", "qualified")
    return min(verdicts, key=order.index)


def _smi(*fields: str) -> list[str]:
    """First GPU's nvidia-smi fields, empty where there is no nvidia-smi."""
    command = ["nvidia-smi", f"--query-gpu={','.join(fields)}", "--format=csv,noheader"]
    try:
        out = subprocess.run(command, capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return []
    return (
        [f.strip() for f in out.stdout.splitlines()[0].split(",")] if out.stdout else []
    )


def gpu_state() -> dict[str, Any]:
    """Clocks, temperature, power, throttle reasons and load of the GPU, now."""
    fields = (
        "clocks.sm",
        "clocks.mem",
        "temperature.gpu",
        "power.draw",
        "clocks_event_reasons.active",
        "utilization.gpu",
        "memory.used",
    )
    state: dict[str, Any] = dict(zip(fields, _smi(*fields), strict=False))
    if hasattr(os, "getloadavg"):
        state["host_load"] = os.getloadavg()[0]
    return state


def throttled(state: dict[str, Any]) -> bool:
    """Whether a state shows a slowdown that makes times unusable."""
    try:
        return bool(int(state["clocks_event_reasons.active"], 16) & THROTTLED)
    except (KeyError, ValueError):
        return False


def environment() -> dict[str, Any]:
    """Hardware and versions: the scope of a receipt. No host name, no path."""
    found: dict[str, Any] = {
        "python": platform.python_version(),
        "machine": platform.machine(),
        "cpus": os.cpu_count(),
    }
    fields = ("name", "uuid", "driver_version", "memory.total", "clocks.max.sm")
    found["gpu"] = dict(zip(fields, _smi(*fields), strict=False))
    for name in ("torch", "triton"):
        module = sys.modules.get(name)
        if module is not None:
            found[name] = module.__version__
    return found


def unit(body: Callable[[], dict[str, Any]]) -> int:
    """Be one unit of the gate engine: measure, and hand over the answer.

    Args:
        body: Returns the answer without its ``schema``: ``samples``, and where there
            are some ``engagement``, ``notes`` and ``extra``.

    Returns:
        The exit code: 0 where there is an answer, a refusal to measure included.
    """
    try:
        answer = body()
    except Stop as stop:
        answer = {"stop": {"verdict": stop.verdict, "reason": stop.reason}}
    text = json.dumps({"schema": 1, **answer}, sort_keys=True)
    place = os.environ.get("STACKCTL_GATE_OUT")
    if place:
        Path(place).write_text(text)
    else:
        print(text)
    return 0


def unit_number() -> int:
    """Number of this unit in the schedule; 0 outside of one."""
    return int(os.environ.get("STACKCTL_GATE_UNIT", "0"))


def unit_seed() -> int:
    """Seed that the schedule gives for fresh inputs; 0 outside of one."""
    return int(os.environ.get("STACKCTL_GATE_SEED", "0"))


def run(
    gate: str, script: str, as_json: bool, body: Callable[[dict[str, Any]], str]
) -> int:
    """Run a gate's body and print its answer.

    Args:
        gate: Name of the gate.
        script: Path of the gate's script; it and this module are digested.
        as_json: Print the whole document; else one line per reason.
        body: Fills the document it is given and returns the verdict.

    Returns:
        The exit code of the verdict.
    """
    here = Path(script).resolve().parent
    document: dict[str, Any] = {
        "schema": 1,
        "gate": gate,
        "argv": [a if not a.startswith("/") else "{path}" for a in sys.argv[1:]],
        "scripts": {p.name: digest(p) for p in sorted(here.glob("_*.py"))}
        | {Path(script).name: digest(Path(script))},
        "reasons": [],
        "limitations": [],
    }
    try:
        document["verdict"] = body(document)
    except Stop as stop:
        document["verdict"] = stop.verdict
        document["reasons"].append(stop.reason)
    document["environment"] = environment()
    if as_json:
        print(json.dumps(document, sort_keys=True, indent=1))
    else:
        print(f"{gate}: {document['verdict']}")
        for reason in document["reasons"]:
            print(f"  {reason}")
    return EXIT[document["verdict"]]
