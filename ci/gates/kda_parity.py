"""Parity gate of `kda-overlap`: the same bits as the base's layer.

Fresh random weights and inputs from the run's seed, KDA layers of GLM-5.3-Flash at the
shapes of TP 1, 2 and 4, decode steps of 1, 8, 32 and 128 tokens. The reference is the
unpacked base's layer, run eagerly. Compared with it, bit for bit, outputs and all
states: the base under a FULL graph, and the tree with the switch off and on, eagerly
and under a FULL graph whose static input changes before every replay. An "on" graph
in which a layer recorded no fork proves nothing.
"""

from __future__ import annotations

from typing import Any

import _unit
import kda_process

TP, TOKENS, DEPTH, STEPS = (1, 2, 4), (1, 8, 32, 128), 3, 3


def check(cell: dict[str, Any], depth: int, steps: int) -> None:
    """Refuse a cell whose runs show nothing.

    Args:
        cell: What the measuring process said of one shape.
        depth: Layers in the chain.
        steps: Decode steps per arm.

    Raises:
        _unit.Stop: Inputs that change nothing, outputs that are no numbers, a fork
            with the switch off, a graph without the forks.
    """
    where = f"TP {cell['tp']}, {cell['tokens']} tokens"
    if cell["distinct"] != steps:
        raise _unit.Stop("invalid", f"{where}: the inputs do not change the outputs")
    for arm, found in cell["arms"].items():
        if not found["finite"]:
            raise _unit.Stop("invalid", f"{where}, {arm}: outputs are not finite")
    for arm in ("off/eager", "off/graph"):
        if cell["arms"][arm]["engaged"]["forks"]:
            raise _unit.Stop("rejected", f"{where}, {arm}: forked although it is off")
    graph = {arm: cell["arms"][f"{arm}/graph"]["graph"] for arm in ("off", "on")}
    # A fork adds edges, not nodes: two for each layer at least.
    if graph["on"]["edges"] >= 0 and (
        graph["on"]["nodes"] != graph["off"]["nodes"]
        or graph["on"]["edges"] < graph["off"]["edges"] + 2 * depth
    ):
        text = f"{where}: graph {graph['on']} against {graph['off']}"
        raise _unit.Stop("not-tested", text)


def answer(cells: list[dict[str, Any]]) -> _unit.Answer:
    """Make the unit's answer of what the measuring process said.

    Args:
        cells: One entry a shape.

    Returns:
        A case for each arm and shape.

    Raises:
        _unit.Stop: See `check`.
    """
    cases = []
    edges = {}
    for cell in cells:
        check(cell, DEPTH, STEPS)
        where = f"TP {cell['tp']}, {cell['tokens']} tokens"
        cases += [
            {
                "id": f"{where}, {arm}",
                **{k: found[k] for k in ("equal", "elements", "differing")},
            }
            for arm, found in cell["arms"].items()
        ]
        edges[where] = {
            arm: cell["arms"][f"{arm}/graph"]["graph"]["edges"]
            for arm in ("base", "off", "on")
        }
    on = [cell["arms"]["on/graph"] for cell in cells]
    engaged = {
        "expected": DEPTH * len(on),
        "counted": sum(found["engaged"]["captured_forks"] for found in on),
        "captured_nodes": sum(found["graph"]["nodes"] for found in on),
    }
    return _unit.Answer(
        {"cases": cases},
        {"on": engaged},
        [
            "one GPU: a rank's local shapes, no all-reduce",
            "plain decode only; speculative verify steps and prefill are not in it",
            "modules below the layer are the tree's in both arms",
        ],
        {"graph edges": edges},
    )


def measure(task: _unit.Task) -> _unit.Answer:
    """Compare all arms at all shapes."""
    found = kda_process.run(
        task,
        "parity",
        *("--tp", *map(str, TP), "--tokens", *map(str, TOKENS)),
        f"--depth={DEPTH}",
        f"--steps={STEPS}",
        f"--seed={task.seed % 2**31}",
    )
    return answer(found["cells"])


if __name__ == "__main__":
    _unit.run(measure)
