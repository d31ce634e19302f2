"""What the KDA gates share on the parent's side: trees, facts, rule, document.

Nothing here imports torch or vLLM; the measuring is done by ``kda_arms.py`` in
processes of its own, so that every pair of the schedule is one process start.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import json
import math
import os
import platform
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
KDA = "vllm/models/glm5next/common/kda.py"
OVERLAP = "vllm/models/glm5next/common/kda_gate_overlap.py"
SWITCH = "VLLM_GLM53_KDA_GATE_SIDE_STREAM"

EXIT_CODES = {
    "qualified": 0,
    "rejected": 1,
    "insufficient-evidence": 7,
    "not-tested": 8,
    "invalid": 9,
}

# NVML clocks-event-reason bits under which a timing may not be used: hardware
# slowdown, software thermal, hardware thermal, hardware power brake.
BAD_THROTTLE = 0x08 | 0x20 | 0x40 | 0x80
POWER_CAP = 0x04


class CannotRun(Exception):
    """The gate cannot give an answer here; the message says why."""


class UsageError(Exception):
    """An argument names something that is not there."""


# --- trees ------------------------------------------------------------------


def parser(description: str, example: str) -> argparse.ArgumentParser:
    """Make the argument parser that both gates share.

    Args:
        description: First line of the help text.
        example: A command that works.

    Returns:
        A parser with ``--tree``, ``--base``, ``--json`` and ``--out``.
    """
    made = argparse.ArgumentParser(
        description=description,
        epilog=f"example: {example}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument(
        "--tree",
        type=Path,
        required=True,
        help="composed tree, or a folder that holds only its changed files; "
        "what it lacks comes from the installed vLLM",
    )
    made.add_argument(
        "--base",
        type=Path,
        help="unpacked base (or the part of it that has common/kda.py); "
        "default: the installed vLLM, taken as the base",
    )
    made.add_argument("--json", action="store_true", help="print one JSON document")
    made.add_argument("--out", type=Path, help="also write the document to this file")
    return made


def installed_vllm() -> Path:
    """Find the installed vLLM package without importing it.

    Returns:
        Folder of the package.

    Raises:
        CannotRun: No vLLM with compiled extensions is installed.
    """
    spec = importlib.util.find_spec("vllm")
    locations = list(spec.submodule_search_locations or []) if spec else []
    for location in locations:
        if list(Path(location).glob("*.so")):
            return Path(location)
    raise CannotRun(
        "no vLLM with compiled extensions is importable here; install the wheel of "
        "the base (ci/gpu/README.md) and call the gate with that Python"
    )


def check_tree(tree: Path) -> None:
    """Refuse a folder that is no tree, before anything is started.

    Args:
        tree: Composed tree or a part of it.

    Raises:
        UsageError: The tree has no KDA layer.
    """
    if not (tree / KDA).is_file():
        raise UsageError(f"--tree {tree}: no {KDA} in it")


@contextmanager
def site(tree: Path, installed: Path) -> Iterator[Path]:
    """Lay a tree's Python files over the installed vLLM, as symbolic links.

    Args:
        tree: Composed tree or a part of it.
        installed: Folder of the installed package.

    Yields:
        A folder for the front of ``PYTHONPATH``.

    """
    if (tree / "vllm").resolve() == installed.resolve():
        yield tree  # the caller has laid it over already
        return
    with tempfile.TemporaryDirectory(prefix="kda-gate-") as folder:
        target = Path(folder) / "vllm"
        for source in (installed, tree / "vllm"):
            for directory, folders, files in os.walk(source):
                folders[:] = [name for name in folders if name != "__pycache__"]
                into = target / Path(directory).relative_to(source)
                into.mkdir(parents=True, exist_ok=True)
                for name in files:
                    link = into / name
                    if link.is_symlink():
                        link.unlink()
                    link.symlink_to((Path(directory) / name).resolve())
        yield Path(folder)


def sha256(path: Path) -> str:
    """Digest a file.

    Args:
        path: File to read.

    Returns:
        SHA-256 in hex.
    """
    return hashlib.sha256(path.read_bytes()).hexdigest()


def digests(tree: Path, base: Path | None, installed: Path) -> dict[str, Any]:
    """Digest what the verdict is bound to.

    Args:
        tree: The tree under test.
        base: The base given by the caller, if any.
        installed: Folder of the installed package.

    Returns:
        Digests of the gate's own files, of both arms' layers and of every
        Python file of the tree that differs from the installed package.
    """
    changed = {}
    for path in sorted((tree / "vllm").rglob("*.py")):
        relative = path.relative_to(tree / "vllm")
        twin = installed / relative
        digest = sha256(path)
        if not twin.is_file() or sha256(twin) != digest:
            changed[f"vllm/{relative.as_posix()}"] = digest
    return {
        "gate": {p.name: sha256(p) for p in sorted(HERE.glob("kda_*.py"))},
        "base_kda": sha256(base_kda(base, installed)),
        "tree_kda": sha256(tree / KDA),
        "tree_changed": changed,
    }


def base_kda(base: Path | None, installed: Path) -> Path:
    """Find the reference arm's layer.

    Args:
        base: The base given by the caller, if any.
        installed: Folder of the installed package.

    Returns:
        The base's ``kda.py``.

    Raises:
        UsageError: The base has none.
    """
    path = (base / KDA) if base else installed.parent / KDA
    if not path.is_file():
        raise UsageError(f"--base {base}: no {KDA} in it")
    return path


# --- facts ------------------------------------------------------------------


def _run(command: Sequence[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def gpu_state() -> dict[str, str]:
    """Read name, clocks, load and throttle reasons of the first GPU.

    Returns:
        Field -> value as nvidia-smi prints it; empty without nvidia-smi.
    """
    fields = [
        "name",
        "uuid",
        "driver_version",
        "clocks.sm",
        "clocks.mem",
        "temperature.gpu",
        "power.draw",
        "utilization.gpu",
        "memory.used",
        "clocks_event_reasons.active",
    ]
    text = _run(
        ["nvidia-smi", "-i", "0", f"--query-gpu={','.join(fields)}"]
        + ["--format=csv,noheader,nounits"]
    )
    values = (
        [value.strip() for value in text.splitlines()[0].split(",")] if text else []
    )
    return dict(zip(fields, values, strict=False))


def idle_gpu_state(seconds: int = 8) -> dict[str, str]:
    """Read the GPU state once its load figure, an average, has gone down.

    Args:
        seconds: How long to wait for that at most.

    Returns:
        What `gpu_state` returns; still busy if the GPU is.
    """
    state = gpu_state()
    for _ in range(seconds):
        load = state.get("utilization.gpu", "0")
        if not load.isdigit() or int(load) == 0:
            break
        time.sleep(1)
        state = gpu_state()
    return state


def throttled(state: dict[str, str]) -> tuple[bool, bool]:
    """Judge a GPU state.

    Args:
        state: What `gpu_state` returned.

    Returns:
        Whether a timing is spoilt, and whether the power cap was active.
    """
    text = state.get("clocks_event_reasons.active", "0x0")
    try:
        bits = int(text, 16)
    except ValueError:
        return False, False
    return bool(bits & BAD_THROTTLE), bool(bits & POWER_CAP)


def host() -> dict[str, Any]:
    """Describe the host without naming it.

    Returns:
        Machine type, CPU count, load averages and the parent's Python.
    """
    return {
        "machine": platform.machine(),
        "cpus": os.cpu_count(),
        "load": list(os.getloadavg()),
        "python": platform.python_version(),
    }


# --- the rule ---------------------------------------------------------------


def _t_cdf(t: float, df: int) -> float:
    """Student's t distribution, by Simpson's rule on its density."""
    if t == 0:
        return 0.5
    constant = math.exp(math.lgamma((df + 1) / 2) - math.lgamma(df / 2)) / math.sqrt(
        df * math.pi
    )
    steps = 2000
    width = abs(t) / steps
    total = 0.0
    for index in range(steps + 1):
        x = index * width
        weight = 1 if index in (0, steps) else (4 if index % 2 else 2)
        total += weight * (1 + x * x / df) ** (-(df + 1) / 2)
    half = constant * total * width / 3
    return 0.5 + math.copysign(half, t)


def t_quantile(probability: float, df: int) -> float:
    """Quantile of Student's t distribution.

    Args:
        probability: Between 0.5 and 1.
        df: Degrees of freedom, at least 1.

    Returns:
        The quantile, good to 1e-6.
    """
    low, high = 0.0, 1000.0
    while high - low > 1e-7:
        middle = (low + high) / 2
        if _t_cdf(middle, df) < probability:
            low = middle
        else:
            high = middle
    return (low + high) / 2


@dataclass(frozen=True)
class Interval:
    """Mean of paired log-ratios with a two-sided t interval."""

    n: int
    mean: float
    sd: float
    low: float
    high: float
    confidence: float

    def document(self) -> dict[str, Any]:
        """Return the interval as gains.

        Returns:
            Log-ratios, and the same as percent of time saved.
        """
        return {
            "n": self.n,
            "confidence": self.confidence,
            "log_ratio": {
                "mean": self.mean,
                "sd": self.sd,
                "low": self.low,
                "high": self.high,
            },
            "gain_percent": {
                "mean": 100 * (1 - math.exp(self.mean)),
                "low": 100 * (1 - math.exp(self.high)),
                "high": 100 * (1 - math.exp(self.low)),
            },
        }


def interval(values: Sequence[float], confidence: float) -> Interval:
    """Compute the t interval on the mean.

    Args:
        values: One paired log-ratio per process; at least two.
        confidence: Two-sided, such as 0.95.

    Returns:
        The interval.
    """
    n = len(values)
    mean = statistics.fmean(values)
    sd = statistics.stdev(values)
    half = t_quantile((1 + confidence) / 2, n - 1) * sd / math.sqrt(n)
    return Interval(n, mean, sd, mean - half, mean + half, confidence)


def bootstrap(values: Sequence[float], confidence: float, seed: int) -> list[float]:
    """Bootstrap the mean; shown beside the t interval, decides nothing.

    Args:
        values: One paired log-ratio per process.
        confidence: Two-sided.
        seed: Seed of the resampling.

    Returns:
        Lower and upper percentile of 2,000 resampled means.
    """
    rng = random.Random(seed)
    means = sorted(
        statistics.fmean(rng.choices(values, k=len(values))) for _ in range(2000)
    )
    cut = (1 - confidence) / 2
    return [means[int(cut * 2000)], means[min(1999, int((1 - cut) * 2000))]]


def pairs_to_decide(found: Interval, threshold: float) -> int | None:
    """Estimate how many pairs would put the interval on one side.

    Args:
        found: The interval so far.
        threshold: Log-ratio of the margin.

    Returns:
        A number of pairs, or None if the mean sits on the threshold.
    """
    distance = abs(found.mean - threshold)
    if distance < 1e-9:
        return None
    for n in range(max(3, found.n), 10000):
        half = t_quantile((1 + found.confidence) / 2, n - 1) * found.sd / math.sqrt(n)
        if half < distance:
            return n
    return None


# --- children and the document ----------------------------------------------


def child_environment(folder: Path) -> dict[str, str]:
    """Make the environment of a measuring process.

    Args:
        folder: What `site` yielded.

    Returns:
        The caller's environment with the tree in front and the switch unset.
    """
    environment = {k: v for k, v in os.environ.items() if k != SWITCH}
    rest = environment.get("PYTHONPATH", "")
    environment["PYTHONPATH"] = os.pathsep.join(
        part for part in (str(folder), str(HERE), rest) if part
    )
    environment.update(
        HF_HUB_OFFLINE="1",
        VLLM_NO_USAGE_STATS="1",
        VLLM_LOGGING_LEVEL="ERROR",
    )
    # What a cache elsewhere is for: a unit's processes compile the sources once.
    if "PYTHONPYCACHEPREFIX" not in environment:
        environment["PYTHONDONTWRITEBYTECODE"] = "1"
    return environment


def start_child(arguments: Sequence[str], folder: Path) -> subprocess.Popen[str]:
    """Start a measuring process; it imports, then waits for a line on stdin.

    Args:
        arguments: Arguments of ``kda_arms.py``.
        folder: What `site` yielded.

    Returns:
        The process.
    """
    return subprocess.Popen(
        [sys.executable, str(HERE / "kda_arms.py"), *arguments],
        env=child_environment(folder),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish_child(child: subprocess.Popen[str], timeout: float) -> dict[str, Any]:
    """Let a started process measure, and read its answer.

    Args:
        child: What `start_child` returned.
        timeout: Seconds.

    Returns:
        The JSON object that it printed last.

    Raises:
        CannotRun: It failed or gave no answer.
    """
    try:
        out, err = child.communicate("go\n", timeout=timeout)
    except subprocess.TimeoutExpired:
        child.kill()
        child.communicate()
        raise CannotRun(f"a measuring process took more than {timeout:.0f} s") from None
    lines = [line for line in out.splitlines() if line.startswith("{")]
    if child.returncode != 0 or not lines:
        tail = "\n".join(err.splitlines()[-25:])
        raise CannotRun(f"a measuring process ended with {child.returncode}:\n{tail}")
    answer: dict[str, Any] = json.loads(lines[-1])
    return answer


def finish(document: dict[str, Any], options: argparse.Namespace) -> int:
    """Print the document and turn its verdict into an exit code.

    Args:
        document: With at least ``gate``, ``verdict`` and ``reasons``.
        options: Parsed arguments; reads ``json`` and ``out``.

    Returns:
        The exit code.
    """
    text = json.dumps(document, sort_keys=True, indent=1, allow_nan=False)
    if options.out:
        options.out.write_text(text + "\n", encoding="utf-8")
    if options.json:
        print(text)
    else:
        print(f"{document['gate']}: {document['verdict']}")
        for reason in document["reasons"]:
            print(f"  {reason}")
    return EXIT_CODES[document["verdict"]]


def guarded(gate: str, run: Any, options: argparse.Namespace) -> int:
    """Run a gate and give every way of not running its exit code.

    Args:
        gate: Name of the gate.
        run: Function of the options that returns the document.
        options: Parsed arguments.

    Returns:
        The exit code.
    """
    try:
        check_tree(options.tree)
        document = run(options)
    except CannotRun as problem:
        document = {"gate": gate, "verdict": "not-tested", "reasons": [str(problem)]}
    except UsageError as problem:
        if options.json:
            error = {
                "kind": "usage",
                "message": str(problem),
                "hint": "name the root of a composed tree, with vllm/ in it",
                "where": {"gate": gate},
            }
            print(json.dumps({"error": error}))
        else:
            print(f"{gate}: {problem}", file=sys.stderr)
        return 2
    return finish(document, options)
