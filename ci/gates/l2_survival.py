"""Do prefetched weights survive in the L2 until they are read?

The question of the review thread's survival test, asked in bytes: how much device
memory does the M=8 GEMM still read, as Nsight Compute counts it, when its weight is
cold, hot, prefetched, or prefetched and then followed by a normal-priority read
stream of 0.5, 1 or 2 times the L2, with the persisting-L2 set-aside at 0, at the
driver's default, at half and at the maximum. (On a card with fast memory the GEMM's
time hardly shows it.) The base prefetches nothing: its GEMM after a stream is the "no
prefetch" row.

``--child TREE`` is what ncu looks at.
"""

from __future__ import annotations

import csv
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import _unit
import l2_common

ROWS = 8  # tokens of the GEMM: a decode batch
WEIGHTS = {  # name: (output, input) features, bf16
    "16 MiB": (2048, 4096),
    "24 MiB": (3072, 4096),
    "32 MiB": (4096, 4096),
    "51.5 MB": (6288, 4096),
}
# The weight that the bars are about is measured so many times.
BAR_WEIGHT, REPETITIONS = "16 MiB", 3
TIMEOUT_S = 280
METRICS = ("dram__bytes_read.sum", "dram__bytes_write.sum", "gpu__time_duration.sum")
STREAMS = (0.5, 1.0, 2.0)


def conditions() -> list[str]:
    """The conditions of one weight and set-aside, in the order of the run."""
    names = ["cold", "hot", "prefetch"]
    for factor in STREAMS:
        names += [f"prefetch + {factor:g}x", f"no prefetch + {factor:g}x"]
    return [*names, "default policy + 2x"]


def child(tree: Path) -> None:
    """Run every condition once or more, one profiled GEMM each (under ncu)."""
    import torch

    torch.set_grad_enabled(False)
    torch.zeros(1, device="cuda")
    l2 = l2_common.load_prefetch(tree)
    cuda = l2_common.Cuda()
    device = torch.device("cuda", 0)
    prefetcher = l2.L2Prefetcher(device)
    runtime = torch.cuda.cudart()
    flush = torch.empty(512 << 18, device=device).normal_()
    stream = torch.empty(2 * cuda.l2_bytes // 4, device=device).normal_()
    sink = torch.zeros(1, device=device)
    limits = {
        "0": 0,
        "default": cuda.default_persisting,
        "half": cuda.max_persisting // 2,
        "max": cuda.max_persisting,
    }

    def read(tensor: torch.Tensor, nbytes: int) -> None:
        torch.sum(tensor[: nbytes // 4], dim=0, keepdim=True, out=sink)

    expected = 0
    for weight, (out_features, in_features) in WEIGHTS.items():
        with torch.device(device):
            projection = torch.nn.Linear(in_features, out_features, bias=False)
        projection.to(torch.bfloat16)
        x = torch.randn(ROWS, in_features, device=device, dtype=torch.bfloat16)
        y = torch.empty(ROWS, out_features, device=device, dtype=torch.bfloat16)
        nbytes = projection.weight.nbytes
        plan = l2.plan_layer(
            l2.Targets((projection,), (), ()), (nbytes, 0, 0), 0, device
        )
        l2.upload_tables([plan], device)
        assert plan.nbytes(0) == nbytes, "the plan does not hold the weight"

        def gemm(x: Any = x, projection: Any = projection, y: Any = y) -> None:
            torch.mm(x, projection.weight.t(), out=y)

        for _ in range(3):
            gemm()
        for limit_name, limit in limits.items():
            for name in conditions():
                repeat = REPETITIONS if weight == BAR_WEIGHT else 1
                for repetition in range(repeat):
                    torch.cuda.synchronize()
                    cuda.set_persisting(0)
                    read(flush, flush.nbytes)
                    read(flush, flush.nbytes)
                    torch.cuda.synchronize()
                    cuda.set_persisting(limit)
                    if name.startswith("hot"):
                        for _ in range(3):
                            gemm()
                    elif name.startswith("prefetch"):
                        prefetcher.issue(plan, 0)
                        prefetcher.join()
                        expected += 1
                    elif name.startswith("default policy"):
                        l2.launch_prefetch(
                            plan.tables[0],
                            plan.n_chunks(0, l2.CHUNK_BYTES),
                            evict_last=False,
                        )
                    torch.cuda._sleep(200_000)  # about 0.1 ms: the data arrives
                    if "+" in name:
                        factor = float(name.rpartition("+")[2].strip(" x"))
                        read(stream, int(factor * cuda.l2_bytes))
                    torch.cuda.synchronize()
                    row = [weight, limit_name, str(limit), name, str(repetition)]
                    print("COND|" + "|".join(row), flush=True)
                    runtime.cudaProfilerStart()
                    gemm()
                    torch.cuda.synchronize()
                    runtime.cudaProfilerStop()
    cuda.set_persisting(cuda.default_persisting)
    counters = prefetcher.counters
    print(f"ENGAGED|{counters.launched}|{expected}|{counters.nbytes}", flush=True)


def parse(text: str) -> tuple[list[dict[str, Any]], list[int]]:
    """Match ncu's rows with the conditions that the child printed.

    Args:
        text: The child's and ncu's output, mixed.

    Returns:
        A sample per condition, and the engagement (launched, expected, bytes).

    Raises:
        ValueError: The rows do not match the conditions.
    """
    kernels: dict[int, dict[str, Any]] = {}
    header: list[str] = []
    wanted: list[list[str]] = []
    engaged: list[int] = []
    for line in text.splitlines():
        if line.startswith("COND|"):
            wanted.append(line.split("|")[1:])
        elif line.startswith("ENGAGED|"):
            engaged = [int(field) for field in line.split("|")[1:]]
        elif line.startswith('"ID"'):
            header = next(csv.reader([line]))
        elif line.startswith('"') and header:
            row = dict(zip(header, next(csv.reader([line])), strict=False))
            kernel = kernels.setdefault(int(row["ID"]), {"name": row["Kernel Name"]})
            value = float(row["Metric Value"].replace(",", ""))
            scale = {"Kbyte": 1e3, "Mbyte": 1e6, "Gbyte": 1e9, "us": 1e3, "ms": 1e6}
            kernel[row["Metric Name"]] = value * scale.get(row["Metric Unit"], 1)
    samples, ids = [], sorted(kernels)
    at = 0
    for weight, limit_name, limit, name, repetition in wanted:
        if at == len(ids):
            raise ValueError(f"ncu has no row for {weight}, {limit_name}, {name}")
        group = [kernels[ids[at]]]
        at += 1
        while at < len(ids) and "splitKreduce" in kernels[ids[at]]["name"]:
            group.append(kernels[ids[at]])
            at += 1
        sample: dict[str, Any] = {
            "weight": weight,
            "set_aside": limit_name,
            "set_aside_bytes": int(limit),
            "condition": name,
            "repetition": int(repetition),
            "kernels": len(group),
        }
        for metric in {key for kernel in group for key in kernel} - {"name"}:
            sample[metric] = sum(kernel.get(metric, 0.0) for kernel in group)
        samples.append(sample)
    if at != len(ids):
        raise ValueError(f"ncu has {len(ids) - at} rows that belong to no condition")
    return samples, engaged


def profile(tree: Path) -> tuple[list[dict[str, Any]], list[int]]:
    """Profile the child.

    Returns:
        A sample per condition; launches, expected launches and bytes prefetched.

    Raises:
        _unit.Stop: It cannot be done here, or failed.
    """
    if reason := l2_common.no_gpu():
        raise _unit.Stop("not-tested", reason)
    ncu = shutil.which("ncu") or "/usr/local/cuda/bin/ncu"
    if not Path(ncu).exists():
        raise _unit.Stop("not-tested", "Nsight Compute (ncu) is not installed")
    command = [
        ncu,
        *("--clock-control", "none", "--cache-control", "none"),
        *("--profile-from-start", "off", "--csv", "--print-units", "base"),
        *("--metrics", ",".join(METRICS)),
        *(sys.executable, os.path.abspath(__file__), "--child", str(tree)),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S)
    text = done.stdout + done.stderr
    if done.returncode != 0:
        if re.search("ERR_NVGPUCTRPERM|permission", text):
            raise _unit.Stop("not-tested", "performance counters are not permitted")
        raise _unit.Stop("invalid", f"the profiled run failed: {text[-2000:]}")
    try:
        samples, engaged = parse(done.stdout)
    except ValueError as error:
        raise _unit.Stop("invalid", str(error)) from None
    if not engaged:
        raise _unit.Stop("invalid", "the profiled run did not say what it launched")
    return samples, engaged


def answer(samples: list[dict[str, Any]], engaged: list[int]) -> _unit.Answer:
    """Make cases of samples.

    A case is the share of the cold bytes that a repetition still read, where the
    weight is to survive, and the share that it did not read where it is to be gone.
    """
    cold = {
        weight: min(
            s["dram__bytes_read.sum"]
            for s in samples
            if (s["weight"], s["condition"]) == (weight, "cold")
        )
        for weight in {s["weight"] for s in samples}
    }
    cases: list[dict[str, Any]] = []
    table: dict[str, list[float]] = {}
    for s in samples:
        whole = int(cold[s["weight"]])
        read = int(s["dram__bytes_read.sum"])
        place = f"{s['weight']}, set-aside {s['set_aside']}, {s['condition']}"
        table.setdefault(place, []).append(round(read / 2**20, 2))
        for what, part in (("read", read), ("kept", max(0, whole - read))):
            cases.append(
                {
                    "id": f"{place}: {what}, {s['repetition'] + 1}",
                    "equal": part == 0,
                    "elements": whole,
                    "differing": part,
                    "max_abs": part / whole,
                }
            )
    counted = {"expected": engaged[1], "counted": engaged[0]}
    return _unit.Answer({"cases": cases}, {"on": counted}, extra={"MiB read": table})


def measure(task: _unit.Task) -> _unit.Answer:
    """Profile the tree's prefetch."""
    l2_common.check_arms(task)
    return answer(*profile(task.trees["on"]))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        child(Path(sys.argv[2]))
    else:
        _unit.run(measure)
