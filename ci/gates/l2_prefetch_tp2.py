"""Does the L2 weight prefetch save time where two ranks really reduce?

Windows B and C open before the all-reduce of the attention and of the MLP output, so
they exist only with tensor parallelism. Two processes on two GPUs of one host run the
chain of l2_prefetch_speed.py at the TP2 widths, with a router and an MLP behind each
attention and NCCL all-reduces, recorded in one CUDA graph a rank. One pair of
processes is one pair of the rule; the gate's arms, by their switches, take turns, forth
and back, and so do the base's four recordings (l2_prefetch_speed.py).
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import tempfile
import traceback
from pathlib import Path
from typing import Any

import _unit
import l2_common
import l2_prefetch_speed as speed

RANKS, ROWS = 2, 8
ROUNDS = 16  # visits of an arm
TIMEOUT_S = 100


def rank_main(pipe: Any, rank: int, *args: Any) -> None:
    """One rank of one pair."""
    try:
        pipe.send(one_rank(rank, *args))
    except BaseException:
        pipe.send({"failed": f"rank {rank}: {traceback.format_exc()}"})
    # No clean-up: after a failure the other rank waits in a collective.
    os._exit(0)


def one_rank(
    rank: int, store: str, site: Path, arms: dict[str, dict[str, str]], swap: bool
) -> dict[str, Any]:
    """Build the arms, time them in a fixed order, say what happened."""
    import torch
    import torch.distributed as dist

    torch.cuda.set_device(rank)
    l2, cuda = speed.setup(site)
    dist.init_process_group(
        "nccl", init_method=f"file://{store}", rank=rank, world_size=RANKS
    )

    def all_reduce(x: Any) -> Any:
        dist.all_reduce(x)
        return x

    torch.manual_seed(rank)
    layers = speed.build_layers(RANKS, ROWS, all_reduce)
    x = torch.randn(ROWS, speed.HIDDEN, device="cuda", dtype=torch.bfloat16)
    dist.broadcast(x, 0)
    chains = speed.record(l2, layers, x, arms, cuda, swap)
    base = chains["base"][0]
    engaged = {}
    for name in arms:
        (chain,) = chains[name]
        engaged[name] = {
            "fired": chain.fired,
            "windows": speed.LAYERS * chain.chain.step,
            "hooked": [w.hooked for w in chain.chain.windows],
            "launches": chain.launches,
            "nodes": chain.nodes - base.nodes,
            "equal": bool(
                torch.equal(base.first, chain.first)
                and torch.equal(base.eager, chain.eager)
            ),
        }
    values: dict[str, list[float]] = {name: [] for name in chains}
    visits = speed.turns(list(arms), ROUNDS)
    for name, number in visits:
        values[name].append(chains[name][number].time(sync=dist.barrier))
    dist.barrier()
    return {
        "cell": {"order": [name for name, _ in visits], "values": values},
        "engaged": engaged,
    }


def one_pair(
    site: Path, arms: dict[str, dict[str, str]], swap: bool
) -> list[dict[str, Any]]:
    """Start the two ranks of a pair and return what each says.

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
            arguments = (theirs, rank, f"{folder}/s", site, arms, swap)
            process = context.Process(target=rank_main, args=arguments)
            process.start()
            theirs.close()
            pipes.append(ours)
            processes.append(process)
        results: list[dict[str, Any]] = []
        try:
            for pipe in pipes:
                if not pipe.poll(TIMEOUT_S):
                    raise RuntimeError(f"a rank gave no result in {TIMEOUT_S} s")
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
    return results


def answer(ranks: list[dict[str, Any]]) -> _unit.Answer:
    """Make the unit's answer: rank 0's times, what both ranks' graphs hold.

    Raises:
        _unit.Stop: A window did not open at its hook, or outputs differ.
    """
    engagement: dict[str, dict[str, int]] = {}
    for rank, part in enumerate(ranks):
        for name, engaged in part["engaged"].items():
            where = f"rank {rank}: {name}"
            if engaged["fired"] != [engaged["windows"]] * 3:
                raise _unit.Stop("not-tested", f"{where} did not engage: {engaged}")
            if not all(all(hooked) for hooked in engaged["hooked"]):
                raise _unit.Stop("not-tested", f"{where}: a window has no hook")
            if not engaged["equal"]:
                raise _unit.Stop("rejected", f"{where}: outputs differ")
            entry = engagement.setdefault(
                name, {"expected": 0, "counted": 0, "captured_nodes": 0}
            )
            entry["expected"] += engaged["launches"]
            entry["counted"] += engaged["nodes"]
            entry["captured_nodes"] += engaged["nodes"]
    cells = {f"tp{RANKS}/{ROWS}": ranks[0]["cell"]}
    other = {"rank 1": {"us": ranks[1]["cell"]["values"]}}
    return _unit.Answer({"cells": cells}, engagement, extra=other)


def measure(task: _unit.Task) -> _unit.Answer:
    """Time all arms in one pair of processes."""
    l2_common.check_arms(task)
    arms = {name: env for name, env in task.env.items() if name != "base"}
    site = task.sites[next(iter(arms))]
    sys.path.insert(0, str(site))
    try:
        import torch
    except ImportError:
        raise _unit.Stop("not-tested", "torch is not installed") from None
    if torch.cuda.device_count() < RANKS:
        raise _unit.Stop("not-tested", f"windows B and C need {RANKS} GPUs")
    try:
        return answer(one_pair(site, arms, task.unit % 2 == 1))
    except RuntimeError as error:
        raise _unit.Stop("invalid", f"a pair failed: {str(error)[-1500:]}") from None


if __name__ == "__main__":
    # CUDA is counted by NVML, so that the parent can import everything once and fork.
    os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
    _unit.run(measure)
