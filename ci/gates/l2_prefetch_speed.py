"""Does the L2 weight prefetch save time in a captured chain of KDA layers?

Region: eight KDA decode layers at the widths of GLM-5.3-Flash (hidden 4096, 64 heads
of 128, the shard of one rank), projections as plain GEMMs, convolution, recurrent
core and gated norm by the tree's own kernels, recorded in one CUDA graph. One process
is one pair; inside it the arms take turns, forth and back. Every other arm than the
base prefetches through the tree's `PrefetchChain` with the arm's switches. The base has
four recordings that take turns, two before the other arms' and two behind: its control
compares the first and the last with the two between, for where a graph's memory lies
shows by 0.1 %, and at TP 4 and one token by 0.6. A KDA layer of one rank has no
all-reduce, so this is about window A and the fallbacks; windows B and C need several
GPUs (l2_prefetch_tp2.py).

Arguments are TP:TOKENS; at the first one all arms are timed, at the others the base and
`on`. Cells "gemm/..." are one M=8 GEMM, the base's with a cold weight and `on`'s with a
prefetched one, behind clean and behind dirty lines, less an empty interval's time. What
a hot weight takes, and issuing a prefetch, is beside them. Every interval comes after a
GEMM and a flush, whatever was measured before, and all have the same two events: with
two new ones each, an arm's figures went up and down by 1 us, every four blocks anew.
"""

from __future__ import annotations

import argparse
import math
import os
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import _unit
import l2_common

HIDDEN, HEADS, HEAD_DIM, LAYERS = 4096, 64, 128, 8
EXPERTS, INTERMEDIATE = 256, 12288
PREFIX = "VLLM_GLM53_L2_PREFETCH"
KERNELS = (  # the region's kernels: the same file in both trees
    "vllm/model_executor/layers/mamba/ops/causal_conv1d.py",
    "vllm/models/glm5next/nvidia/ops/third_party/kda/kernels.py",
    "vllm/third_party/flash_linear_attention/ops/kda.py",
)
ROUNDS = 40  # visits of an arm at a shape
GEMM_BLOCKS = 24


def build_layers(
    tp: int, rows: int, all_reduce: Callable[[Any], Any] | None = None
) -> list[Any]:
    """KDA layers of one rank with random weights of unit gain.

    Args:
        tp: Tensor-parallel size; the rank holds ``HEADS / tp`` heads.
        rows: Tokens, one a request.
        all_reduce: Sums a tensor over the ranks in place. With it, a layer has a
            router and an MLP behind its attention, and both outputs are reduced.

    Returns:
        Decoder layers as the prefetch chain wants them.
    """
    import torch
    from torch import nn
    from vllm.model_executor.layers.mamba.ops.causal_conv1d import (
        causal_conv1d_update,
    )
    from vllm.models.glm5next.nvidia.ops.third_party.kda import fused_recurrent_kda
    from vllm.third_party.flash_linear_attention.ops.kda import rms_norm_gated

    heads = HEADS // tp
    inner = heads * HEAD_DIM
    options = {"device": "cuda", "dtype": torch.bfloat16}
    slots = torch.arange(1, rows + 1, device="cuda", dtype=torch.int32)
    starts = torch.arange(rows + 1, device="cuda", dtype=torch.int32)

    def projection(features_in: int, features_out: int) -> nn.Linear:
        linear = nn.Linear(features_in, features_out, bias=False, **options)
        nn.init.normal_(linear.weight, std=features_in**-0.5)
        return linear.requires_grad_(False)

    class RowParallel(nn.Module):
        """A projection whose output is reduced, with the base's attributes."""

        reduce_results, tp_size = True, tp
        pre_reduce_hook: Callable[[], None] | None = None

        def __init__(self, features_in: int, features_out: int) -> None:
            super().__init__()
            self.weight = projection(features_in, features_out).weight

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = nn.functional.linear(x, self.weight)
            if self.pre_reduce_hook is not None:
                self.pre_reduce_hook()
            return all_reduce(x)

    class Mlp(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gate = projection(HIDDEN, EXPERTS)
            self.up_proj = projection(HIDDEN, INTERMEDIATE // tp)
            self.down_proj = RowParallel(INTERMEDIATE // tp, HIDDEN)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            routed = self.gate(x).float().amax(-1, keepdim=True).sigmoid()
            return self.down_proj(torch.relu(self.up_proj(x)) * routed.to(x.dtype))

    class Attention(nn.Module):
        post_in_proj_hook: Callable[[], None] | None = None

        def __init__(self) -> None:
            super().__init__()
            self.in_proj_qkvbfg_a = projection(HIDDEN, 3 * inner + heads + 2 * HEAD_DIM)
            self.f_b, self.g_b = (projection(HEAD_DIM, inner) for _ in range(2))
            row_parallel = RowParallel if all_reduce else projection
            self.o_proj = row_parallel(inner, HIDDEN)
            self.conv_weight = torch.randn(3 * inner, 4, device="cuda") / 2
            conv = torch.zeros(rows + 1, 3, 3 * inner, **options)
            self.conv_state = conv.transpose(-1, -2)
            shape = (rows + 1, heads, HEAD_DIM, HEAD_DIM)
            self.state = torch.zeros(shape, device="cuda")
            self.a_log = torch.randn(1, 1, heads, 1, device="cuda") / 2
            self.dt_bias = torch.randn(inner, device="cuda") / 10
            self.norm = torch.ones(HEAD_DIM, **options)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            projected = self.in_proj_qkvbfg_a(x)
            if self.post_in_proj_hook is not None:
                self.post_in_proj_hook()
            qkv, beta, f_a, g_a = projected.split(
                [3 * inner, heads, HEAD_DIM, HEAD_DIM], dim=-1
            )
            g1 = self.f_b(f_a).reshape(1, -1, heads, HEAD_DIM)
            g2 = self.g_b(g_a).reshape(-1, heads, HEAD_DIM)
            qkv = causal_conv1d_update(
                qkv,
                self.conv_state,
                self.conv_weight,
                None,
                activation="silu",
                conv_state_indices=slots,
            )
            q, k, v = (
                t.reshape(1, -1, heads, HEAD_DIM) for t in qkv.split(inner, dim=-1)
            )
            out = torch.empty(1, rows, heads, HEAD_DIM, **options)
            fused_recurrent_kda(
                q=q,
                k=k,
                v=v,
                g=g1,
                beta=beta.unsqueeze(0),
                initial_state=self.state,
                use_qk_l2norm_in_kernel=True,
                cu_seqlens=starts,
                ssm_state_indices=slots,
                out=out,
                sigmoid_beta=True,
                a_log=self.a_log,
                g_bias=self.dt_bias,
                compute_gate=True,
                lower_bound=-5.0,
            )
            normed = rms_norm_gated(out, g2, self.norm, None, "sigmoid", eps=1e-5)
            return self.o_proj(normed.reshape(rows, -1))

    class Layer(nn.Module):
        layer_kind = "kda"
        l2_windows = None

        def __init__(self) -> None:
            super().__init__()
            self.self_attn = Attention()
            self.mlp = Mlp() if all_reduce else nn.Module()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.self_attn(x)
            if self.l2_windows is not None:
                self.l2_windows.after_attention()
            if all_reduce:
                x = nn.functional.layer_norm(x, (HIDDEN,))
                x = self.mlp(x)
                x = nn.functional.layer_norm(x, (HIDDEN,))
            if self.l2_windows is not None:
                self.l2_windows.after_mlp()
            return x

    return [Layer() for _ in range(LAYERS)]


class Chain:
    """One arm: the layers, recorded in a CUDA graph.

    Args:
        l2: The module under test, None for the base.
        layers: Shared with the other arms.
        x: Static input.
        switches: The arm's variables, None for the base.
        cuda: Driver calls.
    """

    def __init__(
        self,
        l2: Any,
        layers: list[Any],
        x: Any,
        switches: dict[str, str] | None,
        cuda: Any,
    ) -> None:
        import torch

        self.layers, self.x, self.cuda = layers, x, cuda
        self.chain = None
        self.set_aside = cuda.default_persisting
        for layer in layers:
            layer.l2_windows = layer.self_attn.post_in_proj_hook = None
            for module in layer.modules():
                if hasattr(module, "pre_reduce_hook"):
                    module.pre_reduce_hook = None
        if switches is not None:
            for name in list(os.environ):
                if name.startswith(PREFIX):
                    del os.environ[name]
            # The limit is the process's: the gate sets it at every visit of the arm,
            # as the prefetcher of a process with one arm would once.
            own = dict(switches)
            if request := own.pop(f"{PREFIX}_PERSIST_MB", None):
                wanted = math.inf if request == "max" else float(request) * 1e6
                self.set_aside = int(min(wanted, cuda.max_persisting))
            os.environ.update(own)
            self.chain = l2.PrefetchChain(layers)
        self.reset()
        cuda.set_persisting(self.set_aside)
        self.eager = self.forward().clone()
        torch.cuda.synchronize()
        prefetcher = self.chain and self.chain._prefetcher
        opened = list(prefetcher.counters.fired) if prefetcher else [0, 0, 0]
        opened = [n - LAYERS for n in opened]  # the eager forward above
        self.graph = torch.cuda.CUDAGraph(keep_graph=True)
        with torch.cuda.graph(self.graph):
            self.out = self.forward()
        self.nodes = cuda.graph_nodes(self.graph.raw_cuda_graph())
        self.graph.instantiate()
        after = prefetcher.counters.fired if prefetcher else [0, 0, 0]
        self.fired = [b - a for a, b in zip(opened, after, strict=True)]
        # What a step has to launch, as the plan says.
        windows = self.chain.windows if self.chain is not None else []
        self.launches = sum(t is not None for w in windows for t in w.plan.tables)
        self.nbytes = sum(w.plan.nbytes(i) for w in windows for i in range(3))
        self.reset()
        self.graph.replay()
        torch.cuda.synchronize()
        self.first = self.out.clone()

    def reset(self) -> None:
        """Zero the recurrent states."""
        for layer in self.layers:
            layer.self_attn.conv_state.zero_()
            layer.self_attn.state.zero_()

    def forward(self) -> Any:
        """Run the layers."""
        x = self.x
        if self.chain is not None:
            self.chain.begin(x.shape[0], x.device)
        for layer in self.layers:
            x = layer(x)
        if self.chain is not None:
            self.chain.finish()
        return x

    def time(self, replays: int = 5, sync: Callable[[], object] | None = None) -> float:
        """Microseconds a layer, over some replays begun together with ``sync``."""
        import torch

        self.cuda.set_persisting(self.set_aside)
        if sync is not None:
            sync()
        self.graph.replay()
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(replays):
            self.graph.replay()
        end.record()
        torch.cuda.synchronize()
        return begin.elapsed_time(end) * 1e3 / replays / LAYERS


def parse_shape(text: str) -> tuple[int, int]:
    """Read ``TP:TOKENS``."""
    tp, rows = map(int, text.split(":"))
    if tp not in (1, 2, 4) or rows < 1:
        raise ValueError(text)
    return tp, rows


def setup(tree: Path) -> tuple[Any, Any]:
    """Import the module under test and touch the GPU."""
    import torch

    if str(tree) not in sys.path:
        sys.path.insert(0, str(tree))
    torch.set_grad_enabled(False)
    torch.zeros(1, device="cuda")
    import vllm  # noqa: F401

    l2 = l2_common.load_prefetch(tree)
    return l2, l2_common.Cuda()


def gemm_times(l2: Any, cuda: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Time the M=8 GEMM cold, hot and prefetched, and the issue of the prefetch.

    Returns:
        Cells of the engine; and medians of all cases in microseconds.
    """
    import torch

    device = torch.device("cuda", 0)
    prefetcher = l2.L2Prefetcher.get(device)
    flush = torch.zeros(512 << 18, device=device)
    dirt = torch.zeros(2 * cuda.l2_bytes // 4, device=device)
    sink = torch.zeros(1, device=device)
    cuda.set_persisting(cuda.default_persisting)

    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))

    def timed(
        first: Callable[[], object],
        prepare: Callable[[], object],
        work: Callable[[], object],
    ) -> float:
        first()
        torch.sum(flush, dim=0, keepdim=True, out=sink)
        torch.cuda._sleep(600_000)
        prepare()
        begin.record()
        work()
        end.record()
        torch.cuda.synchronize()
        return begin.elapsed_time(end) * 1e3

    cells: dict[str, Any] = {}
    figures: dict[str, Any] = {}
    for name, n, k in (("o_proj", 4096, 2048), ("in_proj", 6416, 4096)):
        linear = torch.nn.Linear(k, n, bias=False, device=device, dtype=torch.bfloat16)
        x = torch.randn(8, k, device=device, dtype=torch.bfloat16)
        y = torch.empty(8, n, device=device, dtype=torch.bfloat16)
        targets = l2.Targets((linear,), (), ())
        plan = l2.plan_layer(targets, (1 << 30, 0, 0), 0, device)
        l2.upload_tables([plan], device)

        def gemm(x: Any = x, linear: Any = linear, y: Any = y) -> None:
            torch.mm(x, linear.weight.t(), out=y)

        def prefetch(plan: Any = plan) -> None:
            prefetcher.issue(plan, 0)
            prefetcher.join()
            torch.cuda._sleep(100_000)

        def dirty() -> None:
            dirt.add_(1.0)

        def launch(plan: Any = plan) -> None:
            l2.launch_prefetch(plan.tables[0], plan.n_chunks(0, l2.CHUNK_BYTES))

        nothing: Callable[[], None] = lambda: None  # noqa: E731
        cases: dict[str, tuple[Callable[[], object], Callable[[], object]]] = {
            "empty": (nothing, nothing),
            "cold": (nothing, gemm),
            "hot": (lambda: [gemm() for _ in range(3)], gemm),
            "prefetched": (prefetch, gemm),
            "dirty, cold": (dirty, gemm),
            "dirty, prefetched": (lambda: (dirty(), prefetch()), gemm),
            "issue": (nothing, launch),
        }
        samples: dict[str, list[float]] = {case: [] for case in cases}
        order = list(cases)
        for case in order:  # compiles, loads
            timed(gemm, *cases[case])
        for block in range(GEMM_BLOCKS):
            for case in order if block % 2 == 0 else reversed(order):
                samples[case].append(timed(gemm, *cases[case]))
        empty = statistics.median(samples["empty"])
        for cell, cold, warm in (
            (f"gemm/{name}", "cold", "prefetched"),
            (f"gemm/{name}/dirty", "dirty, cold", "dirty, prefetched"),
        ):
            cells[cell] = {
                "order": ["base", "on", "on", "base"] * (GEMM_BLOCKS // 2),
                "values": {
                    arm: [value - empty for value in samples[case]]
                    for arm, case in (("base", cold), ("on", warm))
                },
            }
        medians = {c: statistics.median(v) - empty for c, v in samples.items()}
        medians["issue GB/s"] = linear.weight.nbytes / medians["issue"] / 1e3
        medians["MB"] = linear.weight.nbytes / 1e6
        figures[f"gemm/{name}"] = medians
    return cells, figures


def turns(arms: list[str], rounds: int) -> list[tuple[str, int]]:
    """The visits of a cell: an arm each, and which of its recordings, from 0.

    Args:
        arms: Without the base, of which four recordings take turns.
        rounds: A multiple of four.
    """
    visits: list[tuple[str, int]] = []
    for index in range(rounds):
        once = [("base", index % 4), *((arm, 0) for arm in arms)]
        visits += once if index % 2 == 0 else once[::-1]
    return visits


def record(
    l2: Any,
    layers: list[Any],
    x: Any,
    arms: dict[str, dict[str, str]],
    cuda: Any,
    swap: bool,
) -> dict[str, list[Chain]]:
    """Record every arm once, and the base twice before them and twice behind.

    Args:
        l2: The module under test.
        layers: Shared by all arms.
        x: Static input.
        arms: Switches by arm, without the base.
        cuda: Driver calls.
        swap: Let the base's second and third recording be visited first and last.

    Returns:
        The recordings by arm, the base's in the order of their visits.
    """
    base = [Chain(l2, layers, x, None, cuda) for _ in range(2)]
    made = {
        arm: [Chain(l2, layers, x, switches, cuda)] for arm, switches in arms.items()
    }
    base += [Chain(l2, layers, x, None, cuda) for _ in range(2)]
    order = (1, 0, 3, 2) if swap else (0, 1, 2, 3)
    return {"base": [base[place] for place in order], **made}


def one_shape(
    l2: Any,
    cuda: Any,
    arms: dict[str, dict[str, str]],
    shape: tuple[int, int],
    swap: bool,
) -> tuple[dict[str, Any], dict[str, list[Chain]]]:
    """The base, recorded four times, and some arms, taking turns at one shape.

    Args:
        l2: The module under test.
        cuda: Driver calls.
        arms: Switches by arm.
        shape: Tensor-parallel size and tokens.
        swap: See `record`.

    Returns:
        The engine's cell; and the arms' recordings, the base's among them.

    Raises:
        _unit.Stop: An arm's outputs are not the base's.
    """
    import torch

    layers = build_layers(*shape)
    x = torch.randn(shape[1], HIDDEN, device="cuda", dtype=torch.bfloat16)
    chains = record(l2, layers, x, arms, cuda, swap)
    base = chains["base"][0]
    for arm in arms:
        (chain,) = chains[arm]
        if not (
            torch.equal(base.first, chain.first)
            and torch.equal(base.eager, chain.eager)
        ):
            place = f"tp{shape[0]}/{shape[1]}"
            raise _unit.Stop("rejected", f"{place}: the outputs of {arm} differ")
    values: dict[str, list[float]] = {arm: [] for arm in chains}
    visits = turns(list(arms), ROUNDS)
    for arm, number in visits:
        values[arm].append(chains[arm][number].time())
    return {"order": [arm for arm, _ in visits], "values": values}, chains


def engaged(name: str, base: Chain, chain: Chain) -> dict[str, int]:
    """What an arm's graph holds, beside what it has to hold.

    Raises:
        _unit.Stop: A window did not open once a layer and step.
    """
    assert chain.chain is not None
    steps = LAYERS * chain.chain.step
    if chain.fired != [steps] * 3:
        text = f"{name}: windows opened {chain.fired}, not {steps} each"
        raise _unit.Stop("not-tested", text)
    grown = chain.nodes - base.nodes
    return {"expected": chain.launches, "counted": grown, "captured_nodes": grown}


def measure(task: _unit.Task, shapes: list[tuple[int, int]]) -> _unit.Answer:
    """Time all arms at the first shape, the base and `on` at the others."""
    import torch

    l2_common.check_arms(task)
    if reason := l2_common.no_gpu():
        raise _unit.Stop("not-tested", reason)
    same_kernels(task)
    torch.manual_seed((task.seed + task.unit) % 2**63)
    l2, cuda = setup(task.sites["on"])
    arms = {name: env for name, env in task.env.items() if name != "base"}
    cells: dict[str, Any] = {}
    figures: dict[str, Any] = {}
    engagement: dict[str, dict[str, int]] = {}
    for number, shape in enumerate(shapes):
        name = f"tp{shape[0]}/{shape[1]}"
        chosen = arms if number == 0 else {"on": arms["on"]}
        cells[name], chains = one_shape(l2, cuda, chosen, shape, task.unit % 2 == 1)
        base = chains.pop("base")[0]
        for arm, (chain,) in chains.items():
            found = engaged(f"{name}, {arm}", base, chain)
            total = engagement.setdefault(arm, dict.fromkeys(found, 0))
            for what, count in found.items():
                total[what] += count
            figures.setdefault(name, {})[arm] = {
                "bytes a step": chain.nbytes,
                "set-aside bytes": chain.set_aside,
                "windows opened": chain.fired,
            }
        del chains, base, chain
        torch.cuda.empty_cache()
    gemm, times = gemm_times(l2, cuda)
    return _unit.Answer(
        {"cells": cells | gemm}, engagement, extra=figures | {"us": times}
    )


def same_kernels(task: _unit.Task) -> None:
    """Check that the region's kernels are the base's.

    Raises:
        _unit.Stop: One of them is not.
    """
    for path in KERNELS:
        content = (task.trees["base"] / path).read_bytes()
        for name, tree in task.trees.items():
            if (tree / path).read_bytes() != content:
                text = f"{path} differs between the base and the arm {name}"
                raise _unit.Stop("not-tested", text)


def main() -> None:
    """Be a unit of the engine."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("shapes", nargs="+", type=parse_shape, metavar="TP:TOKENS")
    shapes = parser.parse_args().shapes
    _unit.run(lambda task: measure(task, shapes))


if __name__ == "__main__":
    main()
