"""Does the L2 weight prefetch save time where two ranks really reduce?

Windows B and C open before the all-reduce of the attention and of the MLP output, so
they exist only with tensor parallelism. Two processes on two GPUs of one host run the
chain of l2_prefetch_speed.py at the TP2 widths, with a router and an MLP behind each
attention and NCCL all-reduces, recorded in one CUDA graph a rank. One pair of
processes is one pair of the rule; the arms alternate A B A' A' B A.

Example: python ci/gates/l2_prefetch_tp2.py --tree TREE --base BASE --json
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import statistics
import sys
import tempfile
import time
import traceback
from typing import Any

import _gate
import l2_common
import l2_prefetch_speed as speed

GATE = "l2_prefetch_tp2"
RANKS = 2
ARMS: dict[str, dict[str, Any]] = {
    "thread": speed.arm(24, b=24, c=40),
    "default": {"mb": {}, "switch": None},
    "A 8": speed.arm(8),
    "B 8": speed.arm(0, b=8),
    "C 8": speed.arm(0, c=8),
    "B 24": speed.arm(0, b=24),
    "C 24": speed.arm(0, c=24),
    "A 8 B 8 C 8": speed.arm(8, b=8, c=8),
    "A 8 B 24 C 24": speed.arm(8, b=24, c=24),
}


def rank_main(pipe: Any, rank: int, *args: Any) -> None:
    """One rank of one pair."""
    try:
        pipe.send(one_rank(rank, *args))
    except BaseException:
        pipe.send({"failed": f"rank {rank}: {traceback.format_exc()}"})
    # No clean-up: after a failure the other rank waits in a collective.
    os._exit(0)


def one_rank(
    rank: int,
    store: str,
    tree: str,
    names: list[str],
    rows: int,
    rounds: int,
    swap: bool,
) -> dict[str, Any]:
    """Build the arms, time them in a fixed order, say what happened."""
    import torch
    import torch.distributed as dist

    torch.cuda.set_device(rank)
    l2, cuda = speed.setup(tree)
    dist.init_process_group(
        "nccl", init_method=f"file://{store}", rank=rank, world_size=RANKS
    )

    def all_reduce(x: Any) -> Any:
        dist.all_reduce(x)
        return x

    torch.manual_seed(rank)
    layers = speed.build_layers(RANKS, rows, all_reduce)
    x = torch.randn(rows, speed.HIDDEN, device="cuda", dtype=torch.bfloat16)
    dist.broadcast(x, 0)
    base = speed.Chain(l2, layers, x, None, cuda)
    chains = {"A": base}
    engaged = {}
    for name in names:
        chain = speed.Chain(l2, layers, x, ARMS[name], cuda)
        counters = chain.chain._prefetcher.counters
        chains[name] = chain
        engaged[name] = {
            "fired_each": [counters.fired[0], counters.fired[1], counters.fired[2]],
            "expected": speed.LAYERS * counters.steps,
            "hooked": [w.hooked for w in chain.chain.windows],
            "captured": chain.captured,
            "nodes": [base.nodes, chain.nodes],
            "equal": bool(
                torch.equal(base.first, chain.first)
                and torch.equal(base.eager, chain.eager)
            ),
        }
    chains["A'"] = speed.Chain(l2, layers, x, None, cuda)
    if swap:  # see l2_prefetch_speed.one_pair
        chains["A"], chains["A'"] = chains["A'"], chains["A"]
    samples: dict[str, list[float]] = {name: [] for name in chains}
    order = list(chains)
    for index in range(rounds):
        for name in order if index % 2 == 0 else reversed(order):
            samples[name].append(chains[name].time(sync=dist.barrier))
    dist.barrier()
    return {
        "samples_us": samples,
        "median_us": {n: statistics.median(v) for n, v in samples.items()},
        "engaged": engaged,
        "machine": l2_common.machine(),
    }


def one_pair(
    tree: str, names: list[str], rows: int, rounds: int, swap: bool
) -> dict[str, Any]:
    """Start the two ranks of a pair and return rank 0's samples.

    Raises:
        RuntimeError: A rank failed.
    """
    import torch

    method = "spawn" if torch.cuda.is_initialized() else "fork"
    context = multiprocessing.get_context(method)
    with tempfile.TemporaryDirectory() as folder:
        pipes, processes = [], []
        for rank in range(RANKS):
            ours, theirs = context.Pipe(duplex=False)
            arguments = (theirs, rank, f"{folder}/s", tree, names, rows, rounds, swap)
            process = context.Process(target=rank_main, args=arguments)
            process.start()
            theirs.close()
            pipes.append(ours)
            processes.append(process)
        results = []
        try:
            for pipe in pipes:
                if not pipe.poll(100):
                    raise RuntimeError("a rank gave no result in 100 s")
                results.append(pipe.recv())
                if "failed" in results[-1]:
                    raise RuntimeError(results[-1]["failed"])
        except EOFError:
            raise RuntimeError("a rank died") from None
        finally:
            for process in processes:
                process.join(timeout=10)
                if process.is_alive():
                    process.kill()
    pair: dict[str, Any] = results[0]
    pair["other_rank"] = {k: results[1][k] for k in ("median_us", "engaged")}
    return pair


def not_engaged(name: str, engaged: dict[str, Any]) -> str | None:
    """Why an arm does not count, or None."""
    opened, expected = engaged["fired_each"], engaged["expected"]
    if opened != [expected] * 3 or not engaged["captured"]:
        return f"{name} did not engage: {engaged}"
    if not all(all(hooked) for hooked in engaged["hooked"]):
        return f"{name}: a window has no hook: {engaged}"
    if engaged["nodes"][1] - engaged["nodes"][0] != engaged["captured"]:
        return f"{name}: nodes are missing: {engaged}"
    return None


def unit_body(args: argparse.Namespace) -> dict[str, Any]:
    """Be one process start of the engine; see `_gate.unit`.

    The engine's arms other than the base are the arms here, by their variables.
    """
    l2_common.check_trees(args.tree, args.base)
    sys.path.insert(0, str(args.tree.resolve()))
    import torch

    if torch.cuda.device_count() < RANKS:
        raise _gate.Stop("not-tested", f"windows B and C need {RANKS} GPUs")
    told = json.loads(os.environ["STACKCTL_GATE_ARMS"])
    names = [name for name in told if name != "base"]
    for name in names:
        ARMS[name] = {"switch": None, "env": told[name]["env"]}
    swap = _gate.unit_number() % 2 == 1
    try:
        pair = one_pair(str(args.tree.resolve()), names, args.rows, args.rounds, swap)
    except RuntimeError as error:
        raise _gate.Stop("invalid", f"a pair failed: {str(error)[-1500:]}") from None
    engagement = {}
    for rank, part in enumerate((pair, pair["other_rank"])):
        for name, engaged in part["engaged"].items():
            if why := not_engaged(name, engaged):
                raise _gate.Stop("not-tested", f"rank {rank}: {why}")
            if not engaged["equal"]:
                raise _gate.Stop("rejected", f"rank {rank}: {name}: outputs differ")
            count = engaged["captured"]
            engagement[name] = {
                "expected": count,
                "counted": count,
                "captured_nodes": engaged["nodes"][1] - engaged["nodes"][0],
            }
    order = []
    for index in range(args.rounds):
        once = ["base", *names]
        order += once if index % 2 == 0 else once[::-1]
    taken = pair["samples_us"]
    values = {"base": taken["A"], **{name: taken[name] for name in names}}
    return {
        "samples": {"cells": {f"tp2/{args.rows}": {"order": order, "values": values}}},
        "engagement": engagement,
        "extra": {"base recorded again, us": taken["A'"]},
    }


def main(args: argparse.Namespace) -> dict[str, Any]:
    """Run the pairs and judge the first arm."""
    receipt: dict[str, Any] = {
        "arms": {**l2_common.check_trees(args.tree, args.base), "B": args.arms},
        "rule": {
            "statistic": "t interval of the paired log-ratio",
            "margin": speed.MARGIN,
            "confidence": speed.CONFIDENCE,
            "pairs": speed.PAIRS,
            "looks": 1,
            "arm": args.arms[0],
        },
        "argv": ["{python}", f"ci/gates/{GATE}.py", "--tree", "{tree}"],
        "shape": {"tp": RANKS, "tokens": args.rows},
    }

    def answer(verdict: str, *reasons: str) -> dict[str, Any]:
        return l2_common.document(GATE, "kernel", verdict, list(reasons), receipt)

    capability = l2_common.smi("compute_cap")
    if not capability or float(capability[0]) < 9.0:
        return answer("not-tested", "no CUDA device of compute capability 9.0 or above")
    sys.path.insert(0, str(args.tree.resolve()))
    import torch

    if torch.cuda.device_count() < RANKS:
        return answer("not-tested", f"windows B and C need {RANKS} GPUs")
    try:
        import vllm.model_executor.custom_op
        import vllm.model_executor.layers.mamba.ops.causal_conv1d  # noqa: F401
    except ImportError as error:
        return answer("not-tested", f"the tree cannot be imported here: {error}")
    pairs: list[dict[str, Any]] = []
    receipt["pairs"] = pairs
    tree = str(args.tree.resolve())
    began = time.monotonic()
    for _ in range(args.pairs):
        if args.deadline and time.monotonic() - began > args.deadline:
            break
        try:
            pairs.append(
                one_pair(tree, args.arms, args.rows, args.rounds, len(pairs) % 2 == 1)
            )
        except RuntimeError as error:
            return answer("invalid", f"a pair failed: {str(error)[-1500:]}")
    if len(pairs) < 2:
        return answer("insufficient-evidence", f"{len(pairs)} pairs: no time for more")
    reasons = []
    for pair in pairs:
        for name, engaged in pair["engaged"].items():
            if why := not_engaged(name, engaged):
                return answer("not-tested", why)
    verdict = "insufficient-evidence"
    for name in reversed(args.arms):
        judged = [
            {
                "median_us": {**p["median_us"], "B": p["median_us"][name]},
                "equal": p["engaged"][name]["equal"],
            }
            for p in pairs
        ]
        verdict, why = speed.judge(judged)
        reasons.append(f"{name}: {verdict}: " + "; ".join(why))
    if len(pairs) < speed.MIN_PAIRS and verdict in ("qualified", "rejected"):
        verdict = "insufficient-evidence"
        reasons.append(f"the rule wants {speed.MIN_PAIRS} pairs at least")
    return answer(verdict, *reversed(reasons))


if __name__ == "__main__":
    argument_parser = l2_common.parser(str(__doc__).splitlines()[0])
    argument_parser.add_argument("--arms", nargs="*", default=["A 8 B 8 C 8"])
    argument_parser.add_argument("--rows", type=int, default=8, help="tokens")
    argument_parser.add_argument("--pairs", type=int, default=speed.PAIRS)
    argument_parser.add_argument("--rounds", type=int, default=20)
    argument_parser.add_argument(
        "--deadline", type=float, help="start no pair after these seconds"
    )
    argument_parser.add_argument("--unit", action="store_true", help="of the engine")
    arguments = argument_parser.parse_args()
    if arguments.unit:
        sys.exit(_gate.unit(lambda: unit_body(arguments)))
    if arguments.pairs < 2:
        argument_parser.error("--pairs: at least 2")
    if unknown := set(arguments.arms) - set(ARMS):
        argument_parser.error(f"--arms: unknown {sorted(unknown)}, known {list(ARMS)}")
    sys.exit(
        l2_common.run(GATE, "kernel", lambda: main(arguments), bool(arguments.json))
    )
