"""Parity gate of `kda-overlap`: the same bits as the base's layer.

Fresh random weights and inputs (the seed is in the document), KDA layers of
GLM-5.3-Flash at the shapes of TP 1, 2 and 4, decode steps of 1, 8, 32 and 128
tokens. The reference is the unpacked base's layer, run eagerly. Compared with it,
bit for bit, outputs and all states: the base under a FULL graph, and the tree with
the switch off and on, eagerly and under a FULL graph whose static input changes
before every replay. An "on" graph that recorded no fork is `not-tested`.
"""

from __future__ import annotations

import argparse
import secrets
import sys
from typing import Any

import _gate
import kda_common as common

GATE = "kda-parity"
TP, TOKENS, DEPTH, STEPS = (1, 2, 4), (1, 8, 32, 128), 3, 3


def judge(answer: dict[str, Any], depth: int, steps: int) -> tuple[str, list[str]]:
    """Turn the arms' comparison into a verdict.

    Args:
        answer: What the measuring process printed.
        depth: Layers in the chain.
        steps: Decode steps per arm.

    Returns:
        Verdict and reasons.
    """
    wrong, silent = [], []
    for cell in answer["cells"]:
        where = f"TP {cell['tp']}, {cell['tokens']} tokens"
        if cell["distinct"] != steps:
            return "invalid", [f"{where}: the inputs do not change the outputs"]
        for arm, found in cell["arms"].items():
            if not found["finite"]:
                return "invalid", [f"{where}, {arm}: outputs are not finite"]
            if not found["equal"]:
                wrong.append(f"{where}, {arm}: bits differ from the base")
        engaged = {arm: found["engaged"] for arm, found in cell["arms"].items()}
        graph = {
            arm: cell["arms"][f"{arm}/graph"]["graph"] for arm in ("base", "off", "on")
        }
        if engaged["on/graph"]["captured_forks"] != depth:
            silent.append(f"{where}: the captured graph has no fork in every layer")
        if graph["on"]["edges"] >= 0 and (
            graph["on"]["nodes"] != graph["off"]["nodes"]
            or graph["on"]["edges"] < graph["off"]["edges"] + 2 * depth
        ):
            silent.append(f"{where}: graph {graph['on']} against {graph['off']}")
        for arm in ("off/eager", "off/graph"):
            if engaged[arm]["forks"]:
                wrong.append(f"{where}, {arm}: forked although it is off")
    if wrong:
        return "rejected", wrong
    if silent:
        return "not-tested", silent
    return "qualified", [
        f"{len(answer['cells'])} cells, 6 runs each: outputs and states are the base's"
    ]


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Run the gate.

    Args:
        options: Parsed arguments.

    Returns:
        The document.
    """
    installed = common.installed_vllm()
    base = common.base_kda(options.base, installed)
    seed = options.seed if options.seed is not None else secrets.randbelow(2**31)
    with common.site(options.tree, installed) as folder:
        child = common.start_child(
            [
                "parity",
                f"--base-kda={base}",
                *("--tp", *map(str, options.tp)),
                *("--tokens", *map(str, options.tokens)),
                f"--depth={DEPTH}",
                f"--steps={STEPS}",
                f"--seed={seed}",
            ],
            folder,
        )
        answer = common.finish_child(child, options.timeout)
    if "cannot" in answer:
        raise common.CannotRun(answer["cannot"])
    verdict, reasons = judge(answer, DEPTH, STEPS)
    return {
        "gate": GATE,
        "verdict": verdict,
        "reasons": reasons,
        "seed": seed,
        "shape": {"tp": options.tp, "tokens": options.tokens, "depth": DEPTH},
        "cells": answer["cells"],
        "digests": common.digests(options.tree, options.base, installed),
        "hardware": common.gpu_state(),
        "host": common.host(),
        "versions": answer["versions"],
        "argv": ["{python}", "ci/gates/kda_parity.py", "--tree", "{tree}"],
        "limitations": [
            "one GPU: a rank's local shapes, no all-reduce",
            "plain decode only; speculative verify steps and prefill are not in it",
            "modules below the layer are the tree's in both arms",
        ]
        + ([] if options.base else ["the base is the installed wheel's kda.py"]),
    }


def unit_body(options: argparse.Namespace) -> dict[str, Any]:
    """Be one unit of the gate engine; see `_gate.unit`.

    Args:
        options: Parsed arguments.

    Returns:
        The answer without its schema.

    Raises:
        _gate.Stop: It cannot run here, or the run shows nothing.
    """
    options.seed = _gate.unit_seed() % 2**31
    try:
        document = run(options)
    except common.CannotRun as problem:
        raise _gate.Stop("not-tested", str(problem)) from None
    if document["verdict"] in ("invalid", "not-tested"):
        raise _gate.Stop(document["verdict"], "; ".join(document["reasons"][:5]))
    cells = document["cells"]
    for cell in cells:
        for arm in ("off/eager", "off/graph"):
            if cell["arms"][arm]["engaged"]["forks"]:
                raise _gate.Stop("rejected", f"{arm} forked although it is off")
    on = [cell["arms"]["on/graph"] for cell in cells]
    return {
        "samples": {
            "cases": [
                {
                    "id": f"TP {cell['tp']}, {cell['tokens']} tokens, {arm}",
                    **{k: found[k] for k in ("equal", "elements", "differing")},
                }
                for cell in cells
                for arm, found in cell["arms"].items()
            ]
        },
        "engagement": {
            "on": {
                "expected": DEPTH * len(on),
                "counted": sum(found["engaged"]["captured_forks"] for found in on),
                # A fork adds edges, not nodes.
                "captured_nodes": sum(found["graph"]["nodes"] for found in on),
            }
        },
        "notes": document["limitations"],
        "extra": {
            "graph edges": {
                f"TP {cell['tp']}, {cell['tokens']} tokens": {
                    arm: cell["arms"][f"{arm}/graph"]["graph"]["edges"]
                    for arm in ("base", "off", "on")
                }
                for cell in cells
            }
        },
    }


def main() -> int:
    """Parse, run, print.

    Returns:
        The exit code.
    """
    parser = common.parser(
        __doc__.splitlines()[0] if __doc__ else GATE,
        "python ci/gates/kda_parity.py --tree build/tree --base build/base --json",
    )
    parser.add_argument("--seed", type=int, help="default: a fresh random one")
    parser.add_argument("--tp", type=int, nargs="+", default=list(TP))
    parser.add_argument("--tokens", type=int, nargs="+", default=list(TOKENS))
    parser.add_argument("--timeout", type=float, default=300.0)
    parser.add_argument("--unit", action="store_true", help="one unit of the engine")
    options = parser.parse_args()
    if options.unit:
        return _gate.unit(lambda: unit_body(options))
    return common.guarded(GATE, run, options)


if __name__ == "__main__":
    sys.exit(main())
