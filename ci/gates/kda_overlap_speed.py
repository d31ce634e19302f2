"""Speed gate of `kda-overlap`: time per KDA layer in a captured chain.

Question: with the overlap on, does a KDA layer of GLM-5.3-Flash at TP 4 shapes and
8 decode tokens take at least 8 % less time than the unpacked base's layer?

The process that decides has no other stream in use, which is the harder case: once
any other stream has run a kernel, as in an engine, graphs get slower and more of it
can be hidden. That case is measured last in each process and reported beside.

One process is one pair. Inside each, FULL graphs of eight layers (own weights and
states per layer) are timed with CUDA events in the order base, off, on, on, off,
base, four times over; "off" is the tree with its switch off. All of TP 1, 2, 4 and
1, 8, 32, 128 tokens are measured and reported; only the declared cell decides.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import sys
from typing import Any

import _gate
import kda_common as common

GATE = "kda-overlap-speed"
TP, TOKENS = (1, 2, 4), (1, 32, 128, 8)

# Declared before any run, and part of the document.
RULE: dict[str, Any] = {
    "statistic": "mean over processes of log(on / base)",
    "cell": {"tp": 4, "tokens": 8},
    "margin_gain_percent": 8.0,
    "confidence": 0.95,
    "control_confidence": 0.99,
    "pairs": 9,
    "minimum_pairs": 6,
    "looks": 1,
    "order": ["base", "off", "on", "on", "off", "base"],
    "blocks": 4,
    "replays": 20,
    "depth": 8,
    "bootstrap_seed": 20261129,
}


def ratios(samples: list[Any]) -> dict[str, float]:
    """Reduce one process's samples of a cell.

    Args:
        samples: (arm, microseconds per layer), in the order they were taken.

    Returns:
        Log-ratios of "on" and "off" against the base and of the base against
        itself, and the medians in microseconds per layer.
    """
    by_arm: dict[str, list[float]] = {"base": [], "off": [], "on": []}
    for arm, value in samples:
        by_arm[arm].append(math.log(value))
    mean = {arm: statistics.fmean(values) for arm, values in by_arm.items()}
    # First and last slot of odd blocks against those of even blocks would leave a
    # linear drift in; slots 1, 4, 5, 8, ... against 2, 3, 6, 7, ... do not.
    base = by_arm["base"]
    one = [v for i, v in enumerate(base) if i % 4 in (0, 3)]
    two = [v for i, v in enumerate(base) if i % 4 in (1, 2)]
    return {
        "on": mean["on"] - mean["base"],
        "off": mean["off"] - mean["base"],
        "control": statistics.fmean(one) - statistics.fmean(two),
        **{
            f"{arm}_us": statistics.median(math.exp(v) for v in values)
            for arm, values in by_arm.items()
        },
    }


def summarise(processes: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Put the processes of each cell together.

    Args:
        processes: Answers of the measuring processes.

    Returns:
        One entry a cell, in the order measured.
    """
    cells = []
    for index, first in enumerate(processes[0]["cells"]):
        found = [
            ratios(process["cells"][index]["samples_us_per_layer"])
            for process in processes
        ]
        entry: dict[str, Any] = {
            "tp": first["tp"],
            "tokens": first["tokens"],
            "graph": first["graph"],
            "pool_bytes": first["pool_bytes"],
            "base_alone_us_per_layer": statistics.median(
                value
                for process in processes
                for value in process["cells"][index]["base_alone_us_per_layer"]
            ),
            "single_us_per_layer": {
                arm: statistics.median(
                    process["cells"][index]["single_us_per_layer"][arm]
                    for process in processes
                )
                for arm in ("base", "off", "on")
            },
            "median_us_per_layer": {
                arm: statistics.median(f[f"{arm}_us"] for f in found)
                for arm in ("base", "off", "on")
            },
            "log_ratios": {
                name: [f[name] for f in found] for name in ("on", "off", "control")
            },
            "engaged": all(
                process["cells"][index]["engaged"]["on"]["captured_forks"]
                == RULE["depth"]
                and process["cells"][index]["engaged"]["off"]["forks"] == 0
                for process in processes
            ),
        }
        if first["beside_other_stream_us_per_layer"]:
            beside = [
                ratios(process["cells"][index]["beside_other_stream_us_per_layer"])
                for process in processes
            ]
            entry["beside_other_stream"] = {
                "median_us_per_layer": {
                    arm: statistics.median(f[f"{arm}_us"] for f in beside)
                    for arm in ("base", "off", "on")
                },
                "log_ratios": [f["on"] for f in beside],
            }
            if len(beside) >= 2:
                entry["beside_other_stream"]["on"] = common.interval(
                    [f["on"] for f in beside], RULE["confidence"]
                ).document()
        if len(found) >= 2:
            for name in ("on", "off"):
                values = entry["log_ratios"][name]
                confidence = RULE["confidence"]
                entry[name] = common.interval(values, confidence).document()
                entry[name]["bootstrap_log_ratio"] = common.bootstrap(
                    values, confidence, RULE["bootstrap_seed"]
                )
            entry["control"] = common.interval(
                entry["log_ratios"]["control"], RULE["control_confidence"]
            ).document()
        cells.append(entry)
    return cells


def judge(
    cells: list[dict[str, Any]],
    states: list[dict[str, str]],
    loads: list[float],
    cpus: int,
) -> tuple[str, list[str], list[str]]:
    """Apply the declared rule.

    Args:
        cells: From `summarise`.
        states: GPU states before, between and after the processes.
        loads: One-minute load averages taken with them.
        cpus: CPUs of the host.

    Returns:
        Verdict, reasons and limitations.
    """
    limitations = []
    declared = [c for c in cells if {k: c[k] for k in ("tp", "tokens")} == RULE["cell"]]
    if not declared:
        return "not-tested", ["the declared cell was not measured"], []
    (cell,) = declared
    if not cell["engaged"]:
        return "not-tested", ["the overlap did not engage in every layer"], []
    spoilt = [common.throttled(state)[0] for state in states]
    if any(spoilt):
        return "invalid", ["the GPU was slowed down by heat or hardware"], []
    busy = states[0].get("utilization.gpu", "0") if states else "0"
    if busy.isdigit() and int(busy) > 10:
        return "invalid", ["the GPU was busy before the first process"], []
    if any(common.throttled(state)[1] for state in states):
        limitations.append("the software power cap was active at times")
    pairs = len(cell["log_ratios"]["on"])
    if pairs < 2:
        return "insufficient-evidence", ["one pair has no interval"], limitations
    found = common.interval(cell["log_ratios"]["on"], RULE["confidence"])
    gain = found.document()["gain_percent"]
    threshold = math.log(1 - RULE["margin_gain_percent"] / 100)
    text = (
        f"TP {cell['tp']}, {cell['tokens']} tokens: {gain['mean']:.2f} % less time per "
        f"layer, {100 * RULE['confidence']:.0f} % interval {gain['low']:.2f} to "
        f"{gain['high']:.2f} % over {pairs} processes; bar "
        f"{RULE['margin_gain_percent']:g} %"
    )
    control = common.interval(cell["log_ratios"]["control"], RULE["control_confidence"])
    if pairs >= RULE["minimum_pairs"] and not control.low <= 0 <= control.high:
        return (
            "invalid",
            [text, "the base differs from itself (99 % interval without zero)"],
            limitations,
        )
    if pairs < RULE["minimum_pairs"]:
        return (
            "insufficient-evidence",
            [text, f"{RULE['minimum_pairs']} processes are the least, {pairs} ran"],
            limitations,
        )
    if control.high - control.low > -threshold:
        return (
            "insufficient-evidence",
            [text, "the control interval is wider than the margin"],
            limitations,
        )
    if max(loads) > cpus:
        return (
            "insufficient-evidence",
            [text, f"host load {max(loads):.1f} on {cpus} CPUs"],
            limitations,
        )
    if found.high < threshold:
        return "qualified", [text], limitations
    if found.low > threshold:
        return "rejected", [text], limitations
    more = common.pairs_to_decide(found, threshold)
    return (
        "insufficient-evidence",
        [text, f"about {more} pairs would decide" if more else "on the margin"],
        limitations,
    )


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Run the gate.

    Args:
        options: Parsed arguments.

    Returns:
        The document.
    """
    installed = common.installed_vllm()
    base = common.base_kda(options.base, installed)
    states, loads = [common.idle_gpu_state()], [os.getloadavg()[0]]
    processes: list[dict[str, Any]] = []
    with common.site(options.tree, installed) as folder:

        def start(pair: int) -> Any:
            return common.start_child(
                [
                    "speed",
                    f"--base-kda={base}",
                    *("--tp", *map(str, options.tp)),
                    *("--tokens", *map(str, options.tokens)),
                    f"--depth={RULE['depth']}",
                    f"--blocks={RULE['blocks']}",
                    f"--replays={RULE['replays']}",
                    f"--seed={pair}",
                ],
                folder,
            )

        # The next process imports (no CUDA yet) while the current one measures.
        waiting = [start(pair) for pair in range(min(2, options.pairs))]
        try:
            for pair in range(options.pairs):
                child = waiting.pop(0)
                if pair + 2 < options.pairs:
                    waiting.append(start(pair + 2))
                answer = common.finish_child(child, options.timeout)
                if "cannot" in answer:
                    raise common.CannotRun(answer["cannot"])
                processes.append(answer)
                states.append(common.gpu_state())
                loads.append(os.getloadavg()[0])
                print(f"pair {pair + 1} of {options.pairs} done", file=sys.stderr)
        finally:
            for child in waiting:
                child.kill()
                child.communicate()
    cells = summarise(processes)
    verdict, reasons, limitations = judge(cells, states, loads, os.cpu_count() or 1)
    return {
        "gate": GATE,
        "verdict": verdict,
        "reasons": reasons,
        "rule": RULE,
        "schedule": {
            "pairs": options.pairs,
            "tp": options.tp,
            "tokens": options.tokens,
            "seeds": list(range(options.pairs)),
        },
        "cells": cells,
        "samples": [
            [
                {
                    "tp": cell["tp"],
                    "tokens": cell["tokens"],
                    "us_per_layer": [
                        [arm, round(value, 4)]
                        for arm, value in cell["samples_us_per_layer"]
                    ],
                    "beside_other_stream": cell["beside_other_stream_us_per_layer"],
                    "base_alone": cell["base_alone_us_per_layer"],
                    "single": cell["single_us_per_layer"],
                    "clock_mhz": cell["clock_mhz"],
                    "engaged": cell["engaged"],
                }
                for cell in process["cells"]
            ]
            for process in processes
        ],
        "digests": common.digests(options.tree, options.base, installed),
        "hardware": {"states": states},
        "host": {**common.host(), "loads": loads},
        "versions": processes[0]["versions"],
        "argv": [
            *("{python}", "ci/gates/kda_overlap_speed.py"),
            *("--tree", "{tree}", "--pairs", str(options.pairs)),
        ],
        "limitations": [
            "one GPU: a rank's local shapes, no all-reduce",
            "plain decode in a chain of KDA layers, not a whole model",
            "modules below the layer are the tree's in both arms",
            *limitations,
        ]
        + ([] if options.base else ["the base is the installed wheel's kda.py"]),
    }


def unit_body(options: argparse.Namespace) -> dict[str, Any]:
    """Be one process start of the gate engine; see `_gate.unit`.

    Args:
        options: Parsed arguments.

    Returns:
        The answer without its schema.

    Raises:
        _gate.Stop: It cannot run here.
    """
    told = json.loads(os.environ.get("STACKCTL_GATE_ARMS", "{}"))
    both = "both" in told
    try:
        installed = common.installed_vllm()
        base = common.base_kda(options.base, installed)
        with common.site(options.tree, installed) as folder:
            child = common.start_child(
                [
                    "speed",
                    f"--base-kda={base}",
                    *("--tp", *map(str, options.tp)),
                    *("--tokens", *map(str, options.tokens)),
                    *(("--cells", *options.cells) if options.cells else ()),
                    *(("--both",) if both else ()),
                    f"--depth={RULE['depth']}",
                    f"--blocks={RULE['blocks']}",
                    f"--replays={RULE['replays']}",
                    f"--seed={(_gate.unit_seed() + _gate.unit_number()) % 2**31}",
                ],
                folder,
            )
            answer = common.finish_child(child, options.timeout)
    except common.CannotRun as problem:
        raise _gate.Stop("not-tested", str(problem)) from None
    if "cannot" in answer:
        raise _gate.Stop("not-tested", answer["cannot"])
    cells, figures = {}, {}
    engagement: dict[str, dict[str, int]] = {}
    for cell in answer["cells"]:
        name = f"tp{cell['tp']}/{cell['tokens']}"
        kinds = {name: cell["samples_us_per_layer"]}
        if cell["beside_other_stream_us_per_layer"]:
            kinds[f"{name}/other-stream"] = cell["beside_other_stream_us_per_layer"]
        if cell["both_us_per_layer"]:
            kinds[f"{name}/prefetch"] = cell["both_us_per_layer"]
        for key, samples in kinds.items():
            values: dict[str, list[float]] = {}
            for arm, value in samples:
                values.setdefault(arm, []).append(value)
            cells[key] = {"order": [arm for arm, _ in samples], "values": values}
        for arm in ("on", "both") if cell["both_us_per_layer"] else ("on",):
            engaged = cell["engaged"][arm]
            grown = cell["graph"][arm]["nodes"] - cell["graph"]["off"]["nodes"]
            if grown != engaged["prefetches"]:
                raise _gate.Stop("not-tested", f"{name}, {arm}: nodes are missing")
            entry = engagement.setdefault(
                arm, {"expected": 0, "counted": 0, "captured_nodes": 0}
            )
            entry["expected"] += RULE["depth"] * (2 if arm == "both" else 1)
            entry["counted"] += engaged["captured_forks"] + grown
            entry["captured_nodes"] += cell["graph"][arm]["nodes"]
        if cell["engaged"]["off"]["forks"]:
            raise _gate.Stop("rejected", f"{name}: forked although it is off")
        if apart := [arm for arm, same in cell["equal"].items() if not same]:
            raise _gate.Stop("rejected", f"{name}: other bits from {', '.join(apart)}")
        figures[name] = {
            what: cell[key]
            for what, key in (
                ("single us", "single_us_per_layer"),
                ("base alone us", "base_alone_us_per_layer"),
                ("pool bytes", "pool_bytes"),
                ("graph", "graph"),
                ("clock MHz", "clock_mhz"),
            )
        }
    return {
        "samples": {"cells": cells},
        "engagement": engagement,
        "extra": figures,
    }


def main() -> int:
    """Parse, run, print.

    Returns:
        The exit code.
    """
    parser = common.parser(
        __doc__.splitlines()[0] if __doc__ else GATE,
        "python ci/gates/kda_overlap_speed.py --tree build/tree --base build/base",
    )
    parser.add_argument("--pairs", type=int, default=RULE["pairs"])
    parser.add_argument("--tp", type=int, nargs="+", default=list(TP))
    parser.add_argument("--tokens", type=int, nargs="+", default=list(TOKENS))
    parser.add_argument("--timeout", type=float, default=300.0)
    parser.add_argument("--cells", nargs="+", metavar="TP:TOKENS", help="with --unit")
    parser.add_argument("--unit", action="store_true", help="one unit of the engine")
    options = parser.parse_args()
    if options.unit:
        return _gate.unit(lambda: unit_body(options))
    return common.guarded(GATE, run, options)


if __name__ == "__main__":
    sys.exit(main())
