"""Speed gate of `kda-overlap`: time per KDA layer in a captured chain.

One process is one pair. Inside each, FULL graphs of eight layers (own weights and
states per layer) are timed with CUDA events in the order on, off, base, base, off, on,
eight times over; "off" is the tree with its switch off.

The order is not free. At some shapes a graph that does not fork has two levels 0.6 to
1.7 % apart, and which one holds is drawn anew whenever a graph that forks has run: base
and off share it from there to the next fork. So both stand between the same two forks,
and so do the two visits of the base that the control sets against each other; an order
that begins with the base compares other draws there, and says that the base differs
from itself where only the draws do. With 128 tokens the GPU rests after each visit for
as long as the visit took: without, the power limit lowers the clock visit by visit.

Cells are TP and decode tokens, in the order of the arguments. What is asked of the
first TP is the harder case: once another stream of the process has run a kernel, as in
an engine, the base's graphs get slower and more of it can be hidden. Layers of each
further TP are warmed up on a stream of their own, so its cells are of that kind; a cell
that comes again is named "/later" there. At its last cell the process lets one more
stream run a kernel and times all arms again ("/other-stream"), and where the gate has
further arms, whose switches turn the weight prefetch on too, once more with these, for
the prefetch's stream is a further one ("/prefetch").
"""

from __future__ import annotations

import argparse
import json
from typing import Any

import _unit
import kda_process

DEPTH, BLOCKS, REPLAYS = 8, 8, 20
PAIR = ("base", "off", "on")


def answer(cells: list[dict[str, Any]]) -> _unit.Answer:
    """Make the unit's answer of what the measuring process said.

    Args:
        cells: One entry a shape.

    Returns:
        The times, and the forks that graphs recorded: one for each layer.

    Raises:
        _unit.Stop: Other bits, a fork with the switch off, or missing nodes.
    """
    samples: dict[str, Any] = {}
    figures: dict[str, Any] = {}
    engagement: dict[str, dict[str, int]] = {}
    for cell in cells:
        name = f"tp{cell['tp']}/{cell['tokens']}"
        kinds = {
            f"{name}/later" if name in samples else name: cell["samples_us_per_layer"],
            f"{name}/other-stream": cell["beside_other_stream_us_per_layer"],
            f"{name}/prefetch": cell["both_us_per_layer"],
        }
        for key, taken in kinds.items():
            values: dict[str, list[float]] = {}
            for arm, value in taken:
                values.setdefault(arm, []).append(value)
            if taken:
                order = [arm for arm, _ in taken]
                samples[key] = {"order": order, "values": values}
        if apart := [arm for arm, same in cell["equal"].items() if not same]:
            raise _unit.Stop("rejected", f"{name}: other bits from {', '.join(apart)}")
        if cell["engaged"]["off"]["forks"]:
            raise _unit.Stop("rejected", f"{name}: forked although it is off")
        for arm, engaged in cell["engaged"].items():
            if arm in ("base", "off"):
                continue
            # A fork adds edges; a prefetch is a node.
            grown = cell["graph"][arm]["nodes"] - cell["graph"]["off"]["nodes"]
            if grown != engaged["prefetches"]:
                raise _unit.Stop("not-tested", f"{name}, {arm}: nodes are missing")
            entry = engagement.setdefault(
                arm, {"expected": 0, "counted": 0, "captured_nodes": 0}
            )
            entry["expected"] += DEPTH * (1 if arm == "on" else 2)
            entry["counted"] += engaged["captured_forks"] + grown
            entry["captured_nodes"] += cell["graph"][arm]["nodes"]
        figures[f"{name}/later" if name in figures else name] = {
            what: cell[key]
            for what, key in (
                ("single us", "single_us_per_layer"),
                ("base alone us", "base_alone_us_per_layer"),
                ("pool bytes", "pool_bytes"),
                ("graph", "graph"),
                ("clock MHz", "clock_mhz"),
            )
        }
    return _unit.Answer({"cells": samples}, engagement, extra=figures)


def measure(task: _unit.Task, cells: list[str]) -> _unit.Answer:
    """Time all arms of all cells."""
    both = {
        arm: {k: v for k, v in switches.items() if k != kda_process.SWITCH}
        for arm, switches in task.env.items()
        if arm not in PAIR
    }
    found = kda_process.run(
        task,
        "speed",
        *("--cells", *cells),
        *((f"--both={json.dumps(both)}",) if both else ()),
        f"--depth={DEPTH}",
        f"--blocks={BLOCKS}",
        f"--replays={REPLAYS}",
        f"--seed={(task.seed + task.unit) % 2**31}",
    )
    return answer(found["cells"])


def main() -> None:
    """Be a unit of the engine."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("cells", nargs="+", metavar="TP:TOKENS")
    parser.add_argument("--last", required=True, metavar="TP:TOKENS")
    args = parser.parse_args()
    _unit.run(lambda task: measure(task, [*args.cells, args.last]))


if __name__ == "__main__":
    main()
