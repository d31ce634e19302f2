"""Gate kpool-speed: device time of the prefill write, one process one pair.

Three arms in one process, interleaved in a palindromic order: the base's ordered
writer, the base's prefill path (gathering write and tail seeding) and the tree's
pool-parallel writer, tail included. Each visit times one replay of a CUDA graph that
holds several calls. A process yields one median per arm; nine processes decide.

The bars, declared before the run and judged by 99 % t intervals:

* at 4,080 tokens and kpool 4: at least 300 times faster than the ordered writer, at
  least 10 times than the base path, at most 5 us;
* at 32,768 tokens: at least 60 % of the copy bandwidth of the same process (reads plus
  writes of a copy of 1 GiB), or hardware counters (Nsight Compute) that name another
  limit: one of issue slots, an arithmetic pipe, L1, L2 and device memory at 60 % of its
  peak or more; or, where the programs do not fill the device once or registers let less
  than a quarter of the warps be resident, latency, with what the warps wait for;
* extra memory 0; eager launch cost (host time of a call) not above the base path.

    python ci/gates/kpool_speed.py --tree TREE --base BASE --json
"""

from __future__ import annotations

import argparse
import csv
import json
import math
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

import _gate

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
BARS = {
    "ordered_ratio": (300.0, True),
    "plain_ratio": (10.0, True),
    "parallel_us": (5.0, False),
    "copy_fraction": (0.6, True),
    "eager_ratio": (1.0, False),
    "extra_bytes": (0.0, False),
}


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
    state = _gate.gpu_state()
    reference, candidate = Writers(base, "base"), Writers(tree, "tree")
    if not candidate.has_parallel:
        raise _gate.Stop("not-tested", "the tree has no kpool_prefill_write")
    result: dict[str, Any] = {"before": state, "shapes": {}}
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
            if candidate.launches() != (before[0] + 1, before[1] + 1):
                raise _gate.Stop("not-tested", "the pool-parallel writer did not run")
            differ = sum(
                differing_bytes(a, b)
                for a, b in zip(places["parallel"], places["ordered"], strict=True)
            )
            if differ:  # no speed is reported on a wrong result
                raise _gate.Stop("rejected", f"kpool {pool}, {name}: {differ} bytes")
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
    result["after"] = _gate.gpu_state()
    return result


def unit_body(args: argparse.Namespace) -> dict[str, Any]:
    """One process start of the engine; see :func:`_gate.unit`.

    The base has two writers, hence two cells a shape: against its prefill path under
    the shape's name, against its ordered writer under ``.../ordered``.
    """
    import torch

    if not torch.cuda.is_available():
        raise _gate.Stop("not-tested", "no GPU")
    found = measure(args.tree, args.base, args.pools, args.rounds)
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
    shapes = len(found["shapes"])
    return {
        "samples": {"cells": cells},
        # measure() stops where a shape did not launch both kernels once.
        "engagement": {"on": {"expected": 2 * shapes, "counted": 2 * shapes}},
        "extra": {
            "copy, GB per s": found["copy_bytes_per_s"] / 1e9,
            "extra bytes": {
                key: shape["extra_bytes"] for key, shape in found["shapes"].items()
            },
        },
    }


def limit_body(args: argparse.Namespace) -> dict[str, Any]:
    """Whether counters name what limits the pool kernel; a parity unit."""
    command = [sys.executable, str(Path(__file__).resolve())]
    command += ["--tree", str(args.tree), "--base", str(args.base)]
    command += ["--pools", *map(str, args.pools)]
    rows = counters(command, args.pools)
    if isinstance(rows, str):
        raise _gate.Stop("not-tested", rows)
    limits = named_limits(rows)
    shapes = [f"kpool{pool}/32768" for pool in args.pools]
    return {
        "samples": {
            "cases": [
                {
                    "id": shape,
                    "equal": shape in limits,
                    "elements": 1,
                    "differing": int(shape not in limits),
                }
                for shape in shapes
            ]
        },
        "notes": [f"{shape}: {limit}" for shape, limit in limits.items()],
        "extra": {
            row["shape"]: {
                re.sub("[._]+", " ", name): value
                for name, value in row.items()
                if name != "shape"
            }
            for row in rows
        },
    }


def paired(processes: list[dict[str, Any]], key: str) -> dict[str, Any]:
    """Medians, ratios and the A/A control of one shape over all processes."""
    medians: dict[str, list[float]] = {}
    control = []
    for process in processes:
        for arm, values in process["shapes"][key]["samples_us"].items():
            medians.setdefault(arm, []).append(statistics.median(values))
        own = process["shapes"][key]["samples_us"]["parallel"]
        # Visits come in adjacent pairs; alternating which one is A cancels order.
        first = [own[i + (i // 2) % 2] for i in range(0, len(own), 2)]
        second = [own[i + 1 - (i // 2) % 2] for i in range(0, len(own), 2)]
        control.append(math.log(statistics.median(first) / statistics.median(second)))

    def ratio(arm: str) -> dict[str, float]:
        pairs = zip(medians[arm], medians["parallel"], strict=True)
        return _gate.interval([math.log(a / b) for a, b in pairs])

    return {
        "median_us": {arm: statistics.median(v) for arm, v in medians.items()},
        "range_us": {arm: [min(v), max(v)] for arm, v in medians.items()},
        "parallel_us": _gate.interval(medians["parallel"]),
        "log_ordered_ratio": ratio("ordered"),
        "log_plain_ratio": ratio("plain"),
        "log_control": _gate.interval(control),
    }


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


def decide(document: dict[str, Any], processes: list[dict[str, Any]]) -> str:
    """Judge the bars; see the module's docstring."""
    table = {key: paired(processes, key) for key in processes[0]["shapes"]}
    document["shapes"] = table
    verdicts = []

    limits = named_limits(document.get("counters"))

    def bar(name: str, label: str, values: dict[str, float], log: bool = False) -> None:
        limit, at_least = BARS[name]
        target = math.log(limit) if log else limit
        verdict = _gate.judge(values["low"], values["high"], target, at_least)
        show = math.exp if log else float
        found = limits.get(label.split()[0]) if name == "copy_fraction" else None
        verdicts.append("qualified" if found else verdict)
        document["reasons"].append(
            f"{label}: {show(values['mean']):.4g} "
            f"[{show(values['low']):.4g}, {show(values['high']):.4g}], "
            f"{'at least' if at_least else 'at most'} {limit:g}: {verdict}"
            + (f", but the limit is named: {found}" if found else "")
        )

    for key, entry in table.items():
        if key == "kpool4/4080":
            bar("ordered_ratio", f"{key} vs ordered", entry["log_ordered_ratio"], True)
        if key.endswith("/4080"):
            bar("plain_ratio", f"{key} vs base path", entry["log_plain_ratio"], True)
            bar("parallel_us", f"{key} us", entry["parallel_us"])
            hosts = [p["shapes"][key]["host_us"] for p in processes]
            ratio = _gate.interval(
                [math.log(h["parallel"] / h["plain"]) for h in hosts]
            )
            bar("eager_ratio", f"{key} eager host time vs base path", ratio, True)
        if key.endswith("/32768"):
            fractions = []
            for process in processes:
                shape = process["shapes"][key]
                own = statistics.median(shape["samples_us"]["parallel"])
                rate = shape["moved_bytes"] / own * 1e6
                fractions.append(rate / process["copy_bytes_per_s"])
            bar("copy_fraction", f"{key} of copy bandwidth", _gate.interval(fractions))
        extra = [p["shapes"][key]["extra_bytes"]["parallel"] for p in processes]
        verdicts.append("qualified" if max(extra) == 0 else "rejected")
        if max(extra):
            document["reasons"].append(f"{key}: {max(extra)} bytes of extra memory")
    document["bars"] = {name: list(value) for name, value in BARS.items()}
    # Ten control intervals are looked at: one may miss zero by chance far more often
    # than 1 %, so what counts is a shift that matters against the bars.
    shifted = [
        key
        for key, entry in table.items()
        if not entry["log_control"]["low"] <= 0 <= entry["log_control"]["high"]
        and abs(entry["log_control"]["mean"]) > math.log(1.02)
    ]
    if shifted:
        document["reasons"].append(f"A/A control off zero: {', '.join(shifted)}")
        return "invalid"
    states = [p[when] for p in processes for when in ("before", "after")]
    if any(_gate.throttled(state) for state in states):
        document["reasons"].append("the GPU was throttled")
        return "invalid"
    return _gate.worst(verdicts)


def start(command: list[str]) -> subprocess.Popen[str]:
    """Start a process that waits for a line before it measures."""
    return subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


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
                [*ncu, *more, *command, "--profile"],
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


def body(args: argparse.Namespace, document: dict[str, Any]) -> str:
    """Start the processes, then decide."""
    try:
        import torch
    except ImportError as error:
        raise _gate.Stop("not-tested", f"no torch: {error}") from error
    if not torch.cuda.is_available():
        raise _gate.Stop("not-tested", "no GPU")
    if args.processes < 6:
        document["limitations"].append("fewer than six processes: exploration only")
    document["schedule"] = {
        "processes": args.processes,
        "rounds": args.rounds,
        "order": ORDER,
    }
    command = [sys.executable, str(Path(__file__).resolve()), "--worker"]
    command += ["--tree", str(args.tree), "--base", str(args.base)]
    command += ["--rounds", str(args.rounds)]
    command += ["--pools", *map(str, args.pools)]
    processes: list[dict[str, Any]] = []
    document["processes"] = processes
    if args.counters_only:
        document["counters"] = rows = counters(command, args.pools)
        document["limits"] = named_limits(rows)
        document["limitations"].append("counters only: nothing was timed")
        return "insufficient-evidence"
    begun = time.monotonic()
    waiting = start(command)
    for number in range(args.processes):
        spent = time.monotonic() - begun
        if number and spent * (number + 1) / number > args.budget_s:
            break
        # The next process imports while this one measures; it touches the GPU only
        # when it is told to.
        process, waiting = waiting, start(command)
        out, errors = process.communicate("go\n", timeout=300)
        if process.returncode:
            waiting.kill()
            raise _gate.Stop("invalid", f"a process failed: {errors[-1500:]}")
        answer = json.loads(out.splitlines()[-1])
        if "stop" in answer:
            waiting.kill()
            raise _gate.Stop(*answer["stop"])
        processes.append(answer)
    waiting.kill()
    waiting.communicate()
    if not args.no_counters:
        document["counters"] = counters(command, args.pools)
    if len(processes) < args.processes:
        document["reasons"].append(
            f"time for {len(processes)} of {args.processes} declared processes"
        )
    if len(processes) < 2:
        document["shapes"] = {k: paired(processes, k) for k in processes[0]["shapes"]}
        return "insufficient-evidence"
    verdict = decide(document, processes)
    if len(processes) < args.processes and verdict == "qualified":
        return "insufficient-evidence"
    return verdict


def main() -> int:
    """Parse the command line and run the gate, or one of its processes."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--tree", type=Path, required=True)
    parser.add_argument("--base", type=Path, required=True)
    parser.add_argument("--processes", type=int, default=9)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--budget-s", type=float, default=3600, help="s in all")
    parser.add_argument("--pools", type=int, nargs="+", default=[4, 16])
    parser.add_argument("--no-counters", action="store_true", help="do not run ncu")
    parser.add_argument("--counters-only", action="store_true", help="run only ncu")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--profile", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--unit", action="store_true", help="one unit of the engine")
    args = parser.parse_args()
    if args.unit:
        return _gate.unit(
            lambda: limit_body(args) if args.counters_only else unit_body(args)
        )
    if args.profile:
        profile(args.tree, args.pools)
        return 0
    if args.worker:
        import torch  # noqa: F401 (imported before the wait)
        import triton  # noqa: F401

        sys.stdin.readline()
        try:
            answer = measure(args.tree, args.base, args.pools, args.rounds)
        except _gate.Stop as stop:
            answer = {"stop": [stop.verdict, stop.reason]}
        print(json.dumps(answer))
        return 0
    return _gate.run(
        "kpool-speed", __file__, args.json, lambda document: body(args, document)
    )


if __name__ == "__main__":
    raise SystemExit(main())
