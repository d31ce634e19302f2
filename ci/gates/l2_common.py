"""What the L2 gates share: loading the module under test, statistics, the document.

The gates run on a machine that has torch and Triton but need not have vLLM: the
module under test is one file, and `load_prefetch` imports it from a tree without
running the package's ``__init__`` files. The tree's own ``envs.py`` and ``logger.py``
are used; only ``vllm.triton_utils``, which re-exports Triton, is replaced.
"""

from __future__ import annotations

import argparse
import ctypes
import hashlib
import importlib
import json
import math
import os
import platform
import statistics
import subprocess
import sys
import types
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

MODULE = "vllm/models/glm5next/nvidia/l2_prefetch.py"
EXIT = {
    "qualified": 0,
    "rejected": 1,
    "insufficient-evidence": 7,
    "not-tested": 8,
    "invalid": 9,
}
USAGE, BAD_FILE = 2, 3

# Two-sided quantiles of Student's t (NIST/SEMATECH e-Handbook, table 1.3.6.7.2),
# degrees of freedom 1 to 15.
_T = {
    0.95: [12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228,
           2.201, 2.179, 2.160, 2.145, 2.131],
    0.99: [63.657, 9.925, 5.841, 4.604, 4.032, 3.707, 3.499, 3.355, 3.250, 3.169,
           3.106, 3.055, 3.012, 2.977, 2.947],
}  # fmt: skip


class Unusable(Exception):
    """An input cannot be used.

    Args:
        message: What is wrong, where, and what to do.
        code: Exit code.
    """

    def __init__(self, message: str, code: int = BAD_FILE) -> None:
        super().__init__(message)
        self.code = code


def parser(description: str) -> argparse.ArgumentParser:
    """The arguments that every gate takes."""
    p = argparse.ArgumentParser(description=description)
    p.add_argument("--tree", required=True, type=Path, help="composed tree")
    p.add_argument("--base", type=Path, help="unpacked base: the reference arm")
    p.add_argument("--json", action="store_true", help="one document on stdout")
    return p


def check_trees(tree: Path, base: Path | None) -> dict[str, str]:
    """Check that a tree has the module and the base has not.

    Args:
        tree: The composed tree.
        base: The unpacked base, or None.

    Returns:
        Digests of what the arms are made of.

    Raises:
        Unusable: A folder is missing, or it is not what it is called.
    """
    for name, folder in (("--tree", tree), ("--base", base)):
        if folder is not None and not (folder / "vllm" / "envs.py").is_file():
            raise Unusable(f"{name} {folder}: no vllm/envs.py there, not a vLLM tree")
    if not (tree / MODULE).is_file():
        raise Unusable(f"--tree {tree}: no {MODULE}; compose the set prefetch")
    if base is not None and (base / MODULE).exists():
        raise Unusable(f"--base {base}: has {MODULE}, so it is not the unpacked base")
    digest = hashlib.sha256((tree / MODULE).read_bytes()).hexdigest()
    return {"tree:" + MODULE: digest}


def load_prefetch(tree: Path) -> Any:
    """Import the prefetch module of a tree.

    Args:
        tree: The composed tree.

    Returns:
        The module ``vllm.models.glm5next.nvidia.l2_prefetch``.
    """
    name = MODULE.removesuffix(".py").replace("/", ".")
    if "vllm" not in sys.modules:
        import triton
        import triton.language as tl

        parts = name.split(".")[:-1]
        for depth in range(1, len(parts) + 1):
            package = types.ModuleType(".".join(parts[:depth]))
            package.__path__ = [str(tree.joinpath(*parts[:depth]))]
            sys.modules[package.__name__] = package
        triton_utils: Any = types.ModuleType("vllm.triton_utils")
        triton_utils.triton, triton_utils.tl = triton, tl
        triton_utils.HAS_TRITON = True
        sys.modules[triton_utils.__name__] = triton_utils
    module = importlib.import_module(name)
    found = Path(str(module.__file__)).resolve()
    if found != (tree / MODULE).resolve():
        raise Unusable(f"imported {found}, not the module of --tree {tree}")
    return module


class Cuda:
    """Driver calls of the gates, beside the module under test.

    Attributes:
        l2_bytes: Size of the L2 cache.
        max_persisting: What can be set aside.
        default_persisting: The limit that the driver started with.
    """

    def __init__(self) -> None:
        self._cuda = ctypes.CDLL("libcuda.so.1")
        self.l2_bytes = self._attribute(38)
        self.max_persisting = self._attribute(108)
        self.default_persisting = self.persisting()

    def _attribute(self, number: int) -> int:
        value = ctypes.c_int()
        code = self._cuda.cuDeviceGetAttribute(ctypes.byref(value), number, 0)
        if code:
            raise RuntimeError(f"cuDeviceGetAttribute({number}) returned {code}")
        return value.value

    def persisting(self) -> int:
        """Bytes set aside in the current context."""
        value = ctypes.c_size_t()
        code = self._cuda.cuCtxGetLimit(ctypes.byref(value), 6)
        if code:
            raise RuntimeError(f"cuCtxGetLimit returned {code}")
        return value.value

    def set_persisting(self, nbytes: int) -> None:
        """Set bytes aside and let go of lines that persist."""
        code = self._cuda.cuCtxSetLimit(6, ctypes.c_size_t(nbytes))
        code = code or self._cuda.cuCtxResetPersistingL2Cache()
        if code:
            raise RuntimeError(f"cuCtxSetLimit({nbytes}) returned {code}")

    def graph_nodes(self, graph: int) -> int:
        """Nodes of a captured graph."""
        count = ctypes.c_size_t()
        code = self._cuda.cuGraphGetNodes(
            ctypes.c_void_p(graph), None, ctypes.byref(count)
        )
        if code:
            raise RuntimeError(f"cuGraphGetNodes returned {code}")
        return count.value


def smi(query: str) -> list[str]:
    """One row of ``nvidia-smi`` for the first GPU; empty where it does not run."""
    command = ["nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader", "-i", "0"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return []
    return [field.strip() for field in done.stdout.split(",")] if done.stdout else []


def machine() -> dict[str, Any]:
    """Hardware, clocks, host load and versions, as far as they can be had."""
    import torch
    import triton

    clocks = "clocks.sm,clocks.mem,clocks_event_reasons.active,temperature.gpu"
    return {
        "gpu": smi("name,uuid,driver_version"),
        "clocks": smi(clocks),
        "processes": smi("utilization.gpu,memory.used"),
        "load": list(os.getloadavg()),
        "cpus": os.cpu_count(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "triton": triton.__version__,
    }


def interval(values: Sequence[float], confidence: float) -> tuple[float, float]:
    """Student's t interval of the mean.

    Args:
        values: At least two values.
        confidence: 0.95 or 0.99.

    Returns:
        Lower and upper end.
    """
    mean, spread = statistics.fmean(values), statistics.stdev(values)
    half = _T[confidence][len(values) - 2] * spread / math.sqrt(len(values))
    return mean - half, mean + half


def document(
    gate: str, kind: str, verdict: str, reasons: list[str], receipt: dict[str, Any]
) -> dict[str, Any]:
    """The answer of a gate."""
    receipt["script_sha256"] = {
        p.name: hashlib.sha256(p.read_bytes()).hexdigest()
        for p in (Path(sys.argv[0]), Path(__file__))
    }
    return {
        "gate": gate,
        "kind": kind,
        "verdict": verdict,
        "reasons": reasons,
        "receipt": receipt,
    }


def run(gate: str, kind: str, main: Callable[[], dict[str, Any]], as_json: bool) -> int:
    """Run a gate, print its document and return its exit code.

    Args:
        gate: Name of the gate.
        kind: Kind of the gate.
        main: Makes the document.
        as_json: Print the document; else a summary.

    Returns:
        The exit code.
    """
    try:
        answer = main()
    except Unusable as error:
        where = {"gate": gate}
        answer = {
            "error": {
                "kind": "input",
                "message": str(error),
                "hint": f"python ci/gates/{gate}.py --help",
                "where": where,
            }
        }
        print(json.dumps(answer) if as_json else f"{gate}: {error}", flush=True)
        return error.code
    if as_json:
        print(json.dumps(answer, sort_keys=True), flush=True)
    else:
        print(f"{gate} ({kind}): {answer['verdict']}")
        for reason in answer["reasons"]:
            print("  " + reason)
    return EXIT[answer["verdict"]]


def no_gpu() -> str | None:
    """Why the gate cannot run here, or None."""
    try:
        import torch
        import triton  # noqa: F401
    except ImportError as error:
        return f"not tested: {error.name} is not installed"
    if not torch.cuda.is_available():
        return "not tested: no CUDA device"
    if torch.cuda.get_device_capability() < (9, 0):
        return "not tested: compute capability below 9.0"
    return None
