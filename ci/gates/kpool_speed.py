"""What the prefill write takes on the device (gates kpool-speed and kpool-limit).

Three writers in one process, interleaved in a palindromic order: the base's ordered
writer, the base's prefill path (gathering write and tail seeding) and the tree's
pool-parallel writer, tail included. Each visit times one replay of a CUDA graph that
holds several calls; a shape is timed only where the tree's bytes are the ordered
writer's. What has to come out of it, and at which confidence, is declared in
kpool-speed.toml.

With ``--counters`` Nsight Compute looks at the pool kernel at 32,768 tokens instead,
and a limit is named where the counters say one: one of issue slots, an arithmetic pipe,
L1, L2 and device memory at 60 % of its peak or more; or, where the programs do not fill
the device once or registers let less than a quarter of the warps be resident, latency,
with what the warps wait for.
"""

from __future__ import annotations

import argparse
import csv
import re
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

import _unit

SHAPES: dict[str, dict[str, Any]] = {
    "512": {"requests": [(0, 512, 1)]},
    "4080": {"requests": [(0, 4080, 1)]},
    "8192": {"requests": [(0, 8192, 1)]},
    "32768": {"requests": [(0, 32768, 1)]},
    # Aligned starts, for the base path is wrong elsewhere.
    "mix16": {"requests": [(16 * i, 16 + 93 * i, i + 1) for i in range(16)]},
}
ORDER = ("ordered", "plain", "parallel", "parallel", "plain", "ordered")
METRICS = (
    "gpu__time_duration.sum",
    "sm__inst_executed.sum",
    "smsp__issue_active.avg.pct_of_peak_sustained_active",
    "sm__warps_active.avg.pct_of_peak_sustained_active",
    "dram__bytes_read.sum",
    "dram__bytes_write.sum",
    "lts__t_bytes.sum",
    "lts__throughput.avg.pct_of_peak_sustained_elapsed",
    "dram__throughput.avg.pct_of_peak_sustained_elapsed",
)
# Nsight Compute's own sections, whose metrics fit the device at hand.
SECTIONS = (
    "SpeedOfLight",
    "LaunchStats",
    "Occupancy",
    "WarpStateStats",
    "SchedulerStats",
    "ComputeWorkloadAnalysis",
    "MemoryWorkloadAnalysis",
)
KEPT = re.compile(
    r"gpu__|launch__(waves|occupancy|registers|block_size|grid_size)|dram__|lts__"
    r"|l1tex__(throughput|t_sector_hit_rate|data_bank|lsu)|sm__(inst_exec|through|warps)"
    r"|sm__(maximum_warps|cycles)|smsp__(issue|inst_issued|warps|average_warps|cycles)"
)
LIMITS = {
    "issue slots": "smsp__issue_active.avg.pct_of_peak_sustained_active",
    "the ALU pipe": "sm__inst_executed_pipe_alu.avg.pct_of_peak_sustained_active",
    "the FMA pipe": "sm__inst_executed_pipe_fma.avg.pct_of_peak_sustained_active",
    "the XU pipe": "sm__inst_executed_pipe_xu.avg.pct_of_peak_sustained_active",
    "L1": "l1tex__throughput.avg.pct_of_peak_sustained_active",
    "L2": "lts__throughput.avg.pct_of_peak_sustained_elapsed",
    "device memory": "dram__throughput.avg.pct_of_peak_sustained_elapsed",
}
WAVES = "launch__waves_per_multiprocessor"
RESIDENT = "sm__maximum_warps_per_active_cycle_pct"
STALL = re.compile(r"smsp__average_warps_issue_stalled_(\w+)_per_issue_active\.ratio")


def timed(call: Callable[[], Any]) -> float:
    """Device time of a call, in microseconds."""
    import torch

    start = torch.cuda.Event(enable_timing=True)
    end = torch.cuda.Event(enable_timing=True)
    start.record()
    call()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) * 1e3


def captured(call: Callable[[], Any], calls: int) -> Callable[[], None]:
    """A replay of a CUDA graph of ``calls`` calls."""
    import torch

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(2):
            call()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(calls):
            call()
    return graph.replay


def extra_bytes(call: Callable[[], Any]) -> int:
    """Peak memory that a call allocates on top of what is there."""
    import torch

    call()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    call()
    torch.cuda.synchronize()
    return int(torch.cuda.max_memory_allocated() - before)


def host_time(call: Callable[[], Any], calls: int = 200) -> float:
    """Median host time of an eager call, in microseconds; the queue is kept short."""
    import torch

    samples = []
    for i in range(calls):
        start = time.perf_counter_ns()
        call()
        samples.append((time.perf_counter_ns() - start) / 1e3)
        if i % 20 == 19:
            torch.cuda.synchronize()
    return statistics.median(samples)


def copy_bandwidth(size: int) -> float:
    """Bytes read plus written per second of a device copy of ``size`` bytes."""
    import torch

    source = torch.empty(size, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    for _ in range(3):
        target.copy_(source)
    best = statistics.median(timed(lambda: target.copy_(source)) for _ in range(15))
    return 2 * size / best * 1e6


def moved_bytes(batch: Any) -> int:
    """Bytes the write has to move: keys and gates, slots, pools, tails, bias."""
    pool_row, token_row = 128 + 4, 2 * 128 * 2
    tail = min(batch.num_tokens, batch.pool * batch.rings * len(batch.requests))
    return (
        batch.num_tokens * (token_row + 16)
        + batch.pools * pool_row
        + 2 * tail * token_row
        + batch.pool * 128 * 4
    )


def measure(tree: Path, base: Path, pools: list[int], rounds: int) -> dict[str, Any]:
    """One process: every arm on every shape, interleaved."""
    import torch
    from _kpool import Batch, Writers, differing_bytes

    torch.cuda.init()
    reference, candidate = Writers(base, "base"), Writers(tree, "tree")
    if not candidate.has_parallel:
        raise _unit.Stop("not-tested", "the tree has no kpool_prefill_write")
    result: dict[str, Any] = {"shapes": {}}
    result["copy_bytes_per_s"] = copy_bandwidth(1 << 30)
    for pool in pools:
        for name, shape in SHAPES.items():
            batch = Batch(pool=pool, **shape)
            batch.padded()
            places = {arm: batch.caches() for arm in set(ORDER)}
            arms = {
                "ordered": partial(reference.ordered, batch, *places["ordered"]),
                "plain": partial(reference.plain, batch, *places["plain"]),
                "parallel": partial(candidate.parallel, batch, *places["parallel"]),
            }
            before = candidate.launches()
            for call in arms.values():
                call()
            torch.cuda.synchronize()
            launches = sum(candidate.launches()) - sum(before)
            differ = sum(
                differing_bytes(a, b)
                for a, b in zip(places["parallel"], places["ordered"], strict=True)
            )
            if differ:  # no speed is reported on a wrong result
                raise _unit.Stop("rejected", f"kpool {pool}, {name}: {differ} bytes")
            calls = {"ordered": 1, "plain": 10, "parallel": 20}
            replays = {arm: captured(call, calls[arm]) for arm, call in arms.items()}
            for replay in replays.values():
                for _ in range(3):
                    replay()
            samples: dict[str, list[float]] = {arm: [] for arm in arms}
            for _ in range(rounds):
                for arm in ORDER:
                    samples[arm].append(timed(replays[arm]) / calls[arm])
            entry: dict[str, Any] = {
                "samples_us": samples,
                "moved_bytes": moved_bytes(batch),
                "pools": batch.pools,
                "launches": launches,
                "same_size_copy": copy_bandwidth(moved_bytes(batch) // 2),
            }
            if name == "4080":
                # Visits as above: base path, tree, tree, base path.
                entry["host_samples_us"] = hosts = {"plain": [], "parallel": []}
                for arm in ("plain", "parallel", "parallel", "plain") * 2:
                    hosts[arm].append(host_time(arms[arm], 60))
                entry["host_us"] = {a: statistics.median(v) for a, v in hosts.items()}
            entry["extra_bytes"] = {arm: extra_bytes(arms[arm]) for arm in arms}
            result["shapes"][f"kpool{pool}/{name}"] = entry
            del replays
            torch.cuda.empty_cache()
    return result


def speeds(task: _unit.Task, args: argparse.Namespace) -> _unit.Answer:
    """Time every writer on every shape.

    The base has two writers, hence two cells a shape: against its prefill path under
    the shape's name, against its ordered writer under ``.../ordered``.
    """
    import torch

    if not torch.cuda.is_available():
        raise _unit.Stop("not-tested", "no GPU")
    found = measure(task.trees["on"], task.trees["base"], args.pools, args.rounds)
    cells: dict[str, Any] = {}
    order = list(ORDER) * args.rounds
    for key, shape in found["shapes"].items():
        taken = shape["samples_us"]
        for cell, arm in ((key, "plain"), (f"{key}/ordered", "ordered")):
            names = {arm: "base", "parallel": "on"}
            cells[cell] = {
                "order": [names[a] for a in order if a in names],
                "values": {name: taken[a] for a, name in names.items()},
            }
        if "host_samples_us" in shape:
            hosts = shape["host_samples_us"]
            cells[f"{key}/host"] = {
                "order": ["base", "on", "on", "base"] * 2,
                "values": {"base": hosts["plain"], "on": hosts["parallel"]},
            }
        own = statistics.median(taken["parallel"])
        share = shape["moved_bytes"] / own * 1e6 / found["copy_bytes_per_s"]
        cells[f"{key}/copy"] = {"order": ["on"], "values": {"on": [share]}}
    extra = [shape["extra_bytes"]["parallel"] for shape in found["shapes"].values()]
    cells["extra bytes"] = {"order": ["on"], "values": {"on": [max(extra)]}}
    shapes = found["shapes"].values()
    # Each shape is one launch of the pool kernel and one of the tail kernel.
    engaged = {
        "expected": 2 * len(shapes),
        "counted": sum(shape["launches"] for shape in shapes),
    }
    return _unit.Answer(
        {"cells": cells},
        {"on": engaged},
        extra={
            "copy, GB per s": found["copy_bytes_per_s"] / 1e9,
            "extra bytes": {
                key: shape["extra_bytes"] for key, shape in found["shapes"].items()
            },
        },
    )


def limits(task: _unit.Task, args: argparse.Namespace) -> _unit.Answer:
    """Whether counters name what limits the pool kernel; a parity unit."""
    command = [sys.executable, str(Path(__file__).resolve())]
    command += ["--profile", str(task.trees["on"])]
    command += ["--pools", *map(str, args.pools)]
    rows = counters(command, args.pools)
    if isinstance(rows, str):
        raise _unit.Stop("not-tested", rows)
    named = named_limits(rows)
    shapes = [f"kpool{pool}/32768" for pool in args.pools]
    cases = [
        {
            "id": shape,
            "equal": shape in named,
            "elements": 1,
            "differing": int(shape not in named),
        }
        for shape in shapes
    ]
    figures = {
        row["shape"]: {
            re.sub("[._]+", " ", name): value
            for name, value in row.items()
            if name != "shape"
        }
        for row in rows
    }
    notes = [f"{shape}: {limit}" for shape, limit in named.items()]
    return _unit.Answer({"cases": cases}, notes=notes, extra=figures)


def number(text: str) -> float:
    """The number of a counter, whose unit follows it."""
    return float(text.split()[0])


def named_limits(rows: Any) -> dict[str, str]:
    """What counters say limits the pool kernel, by shape, where they say it.

    A resource at 60 % of its peak or more; or latency, where there are few warps to
    hide it: fewer programs than the device holds at once, so that a launch takes as
    long as one program, or registers for less than a quarter of an SM's warps.
    """
    found: dict[str, str] = {}
    for row in rows if isinstance(rows, list) else []:
        shares = {n: number(row[m]) for n, m in LIMITS.items() if m in row}
        if shares:
            name = max(shares, key=lambda n: shares[n])
            if shares[name] >= 60:
                found[row["shape"]] = f"{name} at {shares[name]:.0f} % of peak"
                continue
        stalls = {
            match[1]: number(value)
            for metric, value in row.items()
            if (match := STALL.fullmatch(metric))
        }
        waves = number(row.get(WAVES, "1"))
        resident = number(row.get(RESIDENT, "100"))
        few = ""
        if waves < 1:
            few = f"programs fill {waves:.2f} of the device"
        elif resident < 25:
            few = f"registers let {resident:.0f} % of the warps be resident"
        if few and sum(stalls.values()) > 0:
            total = sum(stalls.values())
            most = sorted(stalls.items(), key=lambda item: -item[1])[:3]
            why = ", ".join(f"{n} {100 * v / total:.0f} %" for n, v in most)
            found[row["shape"]] = f"latency: {few}, warps are in {why}"
    return found


def profile(tree: Path, pools: list[int]) -> None:
    """Run the writer at 32,768 tokens a few times, for a profiler to look at."""
    import torch
    from _kpool import Batch, Writers

    writers = Writers(tree, "tree")
    for pool in pools:
        batch = Batch(pool=pool, **SHAPES["32768"])
        caches = batch.caches()
        for _ in range(3):
            writers.parallel(batch, *caches)
        torch.cuda.synchronize()


def raw_rows(text: str) -> list[dict[str, str]]:
    """Read Nsight Compute's raw page as CSV: names, units, then a row a launch."""
    lines = [line for line in text.splitlines() if line.startswith('"')]
    if len(lines) < 3:
        return []
    names, units, *launches = csv.reader(lines)
    rows = []
    for launch in launches:
        row = {}
        for name, unit, value in zip(names, units, launch, strict=True):
            value = value.replace(",", "")
            if KEPT.match(name) and re.fullmatch(r"[-+.0-9eE]+", value):
                row[name] = f"{value} {unit}".strip()
        rows.append(row)
    return rows


def counters(command: list[str], pools: list[int]) -> list[dict[str, str]] | str:
    """What limits the pool kernel at 32,768 tokens: hardware counters, warm cache.

    Returns:
        One row per pool size; or why there is none.
    """
    tool = shutil.which("ncu") or "/usr/local/cuda/bin/ncu"
    ncu = [tool, "--csv", "--page", "raw", "--print-units", "base"]
    ncu += ["--clock-control", "none", "--cache-control", "none"]
    ncu += ["--kernel-name", "regex:_kpool_prefill_pool_kernel"]
    ncu += ["--metrics", ",".join(METRICS)]
    why = ""
    sections = [argument for name in SECTIONS for argument in ("--section", name)]
    for more in (sections, []):  # without the sections, should one be unknown there
        try:
            done = subprocess.run(
                [*ncu, *more, *command],
                capture_output=True,
                text=True,
                timeout=90,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            return f"no counters: {type(error).__name__}"
        # Three launches a pool size; the last of each has the caches warm.
        last = raw_rows(done.stdout)[2::3]
        if len(last) == len(pools):
            return [
                {"shape": f"kpool{pool}/32768", **row}
                for pool, row in zip(pools, last, strict=True)
            ]
        why = f"no counters: {(done.stdout + done.stderr)[-300:]}"
    return why


def main() -> None:
    """Be a unit of the gate kpool-speed or kpool-limit, or what ncu looks at."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--rounds", type=int, default=8, help="visits forth and back")
    parser.add_argument("--pools", type=int, nargs="+", default=[4, 16])
    parser.add_argument("--counters", action="store_true", help="be of kpool-limit")
    parser.add_argument("--profile", type=Path, metavar="TREE", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.profile:
        profile(args.profile, args.pools)
        return
    measured = limits if args.counters else speeds
    _unit.run(lambda task: measured(task, args))


if __name__ == "__main__":
    main()
