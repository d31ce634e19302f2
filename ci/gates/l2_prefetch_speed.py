"""Does the L2 weight prefetch save time in a captured chain of KDA layers?

Region: eight KDA decode layers at the widths of GLM-5.3-Flash (hidden 4096, 64 heads
of 128, the shard of one rank), projections as plain GEMMs, convolution, recurrent
core and gated norm by the tree's own kernels, recorded in one CUDA graph. One
process is one pair; inside it the arms alternate A B A' A' B A, where A and A' are
two recordings of the base's layer (without the module) and B prefetches through the
tree's `PrefetchChain`. A KDA layer of one rank has no all-reduce, so this decides
about window A and the fallbacks; windows B and C need several GPUs
(l2_prefetch_tp2.py).

Beside the verdict: GEMM time cold, hot and prefetched, behind clean and dirty lines,
and what issuing costs. ``--explore`` prints every arm and shape from one process and
gives no verdict.

Example: python ci/gates/l2_prefetch_speed.py --tree TREE --base BASE --json
"""

from __future__ import annotations

import argparse
import hashlib
import math
import multiprocessing
import os
import statistics
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

# CUDA is counted by NVML, so that the parent can import everything once and fork.
os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")

import _gate
import l2_common

GATE = "l2_prefetch_speed"
HIDDEN, HEADS, HEAD_DIM, LAYERS = 4096, 64, 128, 8
EXPERTS, INTERMEDIATE = 256, 12288
PREFIX = "VLLM_GLM53_L2_PREFETCH"
KERNELS = (  # the region's kernels: the same file in both trees
    "vllm/model_executor/layers/mamba/ops/causal_conv1d.py",
    "vllm/models/glm5next/nvidia/ops/third_party/kda/kernels.py",
    "vllm/third_party/flash_linear_attention/ops/kda.py",
)
MARGIN, CONFIDENCE, AA_CONFIDENCE, PAIRS, MIN_PAIRS = 0.01, 0.95, 0.99, 9, 6
MAX_LOAD = 0.5  # runnable processes a core before the run


def arm(a: float, b: float = 0, c: float = 0, a_next: float = 0, **more: Any) -> dict:
    """An arm: budgets in megabytes, and what is not an environment variable."""
    budgets = {"BUDGET_A": a, "BUDGET_B": b, "BUDGET_C": c, "A_NEXT": a_next}
    return {"mb": budgets, **more}


ARMS: dict[str, dict[str, Any]] = {
    "default": {"mb": {}},  # the switch on, and no other variable set
    "thread": arm(24, b=24, c=40),
    "A": arm(1000),
    "A 2": arm(2),
    "A 4": arm(4),
    "A 8": arm(8),
    "A 12": arm(12),
    "A+next 8": arm(1000, a_next=8),
    "A+next 24": arm(1000, a_next=24),
    "B": arm(0, b=1000),
    "B 8": arm(0, b=8),
    "A 8, B 8": arm(8, b=8),
    "A 8, 1 program": arm(8, programs=1),
    "A 8, 2 programs": arm(8, programs=2),
    "A 8, 4 programs": arm(8, programs=4),
    "A 8, 16 programs": arm(8, programs=16),
    "A 8, 32 programs": arm(8, programs=32),
    "A 8, 128 programs": arm(8, programs=128),
    "A, 2 programs": arm(1000, programs=2),
    "A, 4 programs": arm(1000, programs=4),
    "A, 16 programs": arm(1000, programs=16),
    "A, 128 programs": arm(1000, programs=128),
    "A 8, set-aside 0": arm(8, set_aside=0.0),
    "A 8, set-aside 3.75": arm(8, set_aside=3.75),
    "A, set-aside 18.75": arm(1000, set_aside=18.75),
    "A 8, set-aside max": arm(8, set_aside=1e6),
    "A, set-aside max": arm(1000, set_aside=1e6),
}
SHAPES = ((4, 8), (4, 1), (4, 32), (2, 8), (1, 8))  # (tensor parallel size, tokens)


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


def l2_programs(l2: Any) -> int:
    """The module's own number of programs, whatever an arm set it to."""
    if not hasattr(l2, "_gate_programs"):
        l2._gate_programs = l2._MAX_PROGRAMS
    return int(l2._gate_programs)


class Chain:
    """One arm: the layers, recorded in a CUDA graph.

    Args:
        l2: The module under test, None for the base.
        layers: Shared with the other arms.
        x: Static input.
        spec: An entry of `ARMS`, None for the base.
        cuda: Driver calls.
    """

    def __init__(
        self, l2: Any, layers: list[Any], x: Any, spec: dict | None, cuda: Any
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
        if spec is not None:
            for name in list(os.environ):
                if name.startswith(PREFIX):
                    del os.environ[name]
            if spec.get("switch", "1") is not None:
                os.environ[PREFIX] = "1"
            for name, megabytes in spec.get("mb", {}).items():
                os.environ[f"{PREFIX}_{name}_MB"] = repr(float(megabytes))
            os.environ.update(spec.get("env", {}))
            if "set_aside" in spec:
                wanted = int(spec["set_aside"] * 2**20)
                self.set_aside = min(wanted, cuda.max_persisting)
            self.chain = l2.PrefetchChain(layers)
            l2._MAX_PROGRAMS = spec.get("programs", l2_programs(l2))
        self.reset()
        cuda.set_persisting(self.set_aside)
        self.eager = self.forward().clone()
        torch.cuda.synchronize()
        prefetcher = self.chain and self.chain._prefetcher
        before = prefetcher.counters.captured if prefetcher else 0
        opened = list(prefetcher.counters.fired) if prefetcher else [0, 0, 0]
        opened = [n - LAYERS for n in opened]  # the eager forward above
        self.graph = torch.cuda.CUDAGraph(keep_graph=True)
        with torch.cuda.graph(self.graph):
            self.out = self.forward()
        self.nodes = cuda.graph_nodes(self.graph.raw_cuda_graph())
        self.graph.instantiate()
        self.captured = prefetcher.counters.captured - before if prefetcher else 0
        after = prefetcher.counters.fired if prefetcher else [0, 0, 0]
        self.fired = [b - a for a, b in zip(opened, after, strict=True)]
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


def setup(tree: str) -> tuple[Any, Any]:
    """Import the module under test and touch the GPU."""
    import torch

    if tree not in sys.path:
        sys.path.insert(0, tree)
    torch.set_grad_enabled(False)
    torch.zeros(1, device="cuda")
    import vllm  # noqa: F401

    l2 = l2_common.load_prefetch(Path(tree))
    return l2, l2_common.Cuda()


def gemm_times(l2: Any, cuda: Any, blocks: int = 8) -> list[dict[str, Any]]:
    """Time the M=8 GEMM cold, hot and prefetched, and the issue of the prefetch."""
    import torch

    device = torch.device("cuda", 0)
    prefetcher = l2.L2Prefetcher.get(device)
    flush = torch.zeros(512 << 18, device=device)
    dirt = torch.zeros(2 * cuda.l2_bytes // 4, device=device)
    sink = torch.zeros(1, device=device)
    cuda.set_persisting(cuda.default_persisting)

    def timed(prepare: Callable[[], object], work: Callable[[], object]) -> float:
        torch.sum(flush, dim=0, keepdim=True, out=sink)
        torch.cuda._sleep(300_000)
        prepare()
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        work()
        end.record()
        torch.cuda.synchronize()
        return begin.elapsed_time(end) * 1e3

    rows = []
    for name, n, k in (("o_proj 16.8 MB", 4096, 2048), ("in_proj 52.6 MB", 6416, 4096)):
        linear = torch.nn.Linear(k, n, bias=False, device=device, dtype=torch.bfloat16)
        x = torch.randn(8, k, device=device, dtype=torch.bfloat16)
        y = torch.empty(8, n, device=device, dtype=torch.bfloat16)
        plans = []
        for passes in (1, 2):
            plan = l2.plan_layer(
                l2.Targets((linear,), (), ()), (1 << 30, 0, 0), 0, device
            )
            l2.upload_tables([plan], device)
            if passes == 2:
                base, size = linear.weight.data_ptr(), linear.weight.nbytes
                half = size // 2 // 4096 * 4096
                rows_ = [[base, size], [base + half, size - half], [base, half]]
                plan.tables[0] = torch.tensor(rows_, device=device)
            plans.append(plan)

        def gemm(x: Any = x, linear: Any = linear, y: Any = y) -> None:
            torch.mm(x, linear.weight.t(), out=y)

        def prefetch(plan: Any) -> None:
            prefetcher.issue(plan, 0)
            prefetcher.join()
            torch.cuda._sleep(100_000)

        def dirty() -> None:
            dirt.add_(1.0)

        def launch(plan: Any) -> None:
            l2.launch_prefetch(plan.tables[0], plan.n_chunks(0, l2.CHUNK_BYTES))

        nothing: Callable[[], None] = lambda: None  # noqa: E731
        cases: dict[str, tuple[Callable[[], object], Callable[[], object]]] = {
            "empty": (nothing, nothing),
            "cold": (nothing, gemm),
            "hot": (lambda: [gemm() for _ in range(3)], gemm),
            "prefetched": (lambda: prefetch(plans[0]), gemm),  # noqa: B023
            "prefetched twice": (lambda: prefetch(plans[1]), gemm),  # noqa: B023
            "dirty, cold": (dirty, gemm),
            "dirty, prefetched": (
                lambda: (dirty(), prefetch(plans[0])),  # noqa: B023
                gemm,
            ),
            "issue": (nothing, lambda: launch(plans[0])),  # noqa: B023
        }
        samples: dict[str, list[float]] = {case: [] for case in cases}
        order = list(cases)
        for block in range(blocks):
            for case in order if block % 2 == 0 else reversed(order):
                samples[case].append(timed(*cases[case]))
        empty = statistics.median(samples["empty"])
        medians = {c: statistics.median(v) - empty for c, v in samples.items()}
        medians["issue GB/s"] = linear.weight.nbytes / medians["issue"] / 1e3
        rows.append({"weight": name, "median_us": medians, "samples_us": samples})
    return rows


def one_shape(
    l2: Any, cuda: Any, arm_name: str, shape: tuple[int, int], swap: bool
) -> dict[str, Any]:
    """The base twice and one arm, alternating, at one shape."""
    import torch

    layers = build_layers(*shape)
    x = torch.randn(shape[1], HIDDEN, device="cuda", dtype=torch.bfloat16)
    base = Chain(l2, layers, x, None, cuda)
    with_prefetch = Chain(l2, layers, x, ARMS[arm_name], cuda)
    again = Chain(l2, layers, x, None, cuda)
    if swap:
        base, again = again, base
    arms = {"A": base, "B": with_prefetch, "A'": again}
    samples: dict[str, list[float]] = {name: [] for name in arms}
    for _ in range(20):
        for name in ("A", "B", "A'", "A'", "B", "A"):
            samples[name].append(arms[name].time())
    chain = with_prefetch.chain
    return {
        "samples_us": samples,
        "median_us": {n: statistics.median(v) for n, v in samples.items()},
        "equal": bool(
            torch.equal(base.first, with_prefetch.first)
            and torch.equal(base.eager, with_prefetch.eager)
        ),
        "engaged": {
            "fired": with_prefetch.fired,
            "expected": [LAYERS * chain.step] * 3,
            "captured": with_prefetch.captured,
            "nodes": [base.nodes, with_prefetch.nodes],
            "bytes_a_step": sum(
                w.plan.nbytes(i) for w in chain.windows for i in range(3)
            )
            if chain.windows
            else 0,
        },
        "set_aside": with_prefetch.set_aside,
    }


def one_pair(
    tree: str,
    arm_name: str,
    shapes: list[tuple[int, int]],
    with_gemm: bool = True,
    swap: bool = False,
) -> dict[str, Any]:
    """One process: every shape in turn.

    Args:
        tree: The composed tree.
        arm_name: An arm of `ARMS`.
        shapes: Tensor-parallel sizes and tokens.
        with_gemm: Time the GEMM and the issue too.
        swap: Record A' before A: where a graph's memory lies shows by about 0.1 %.
    """
    import torch

    torch.manual_seed(int.from_bytes(os.urandom(4), "little"))
    l2, cuda = setup(tree)
    results = {}
    for tp, rows in shapes:
        results[f"{tp}:{rows}"] = one_shape(l2, cuda, arm_name, (tp, rows), swap)
        torch.cuda.empty_cache()
    return {
        "shapes": results,
        "swapped": swap,
        "gemm": gemm_times(l2, cuda) if with_gemm else None,
        "machine": l2_common.machine(),
    }


def explore(tree: str, shape: tuple[int, int], names: list[str]) -> dict[str, Any]:
    """Every arm of one shape in one process, for orientation only."""
    import torch

    torch.manual_seed(0)
    l2, cuda = setup(tree)
    layers = build_layers(*shape)
    x = torch.randn(shape[1], HIDDEN, device="cuda", dtype=torch.bfloat16)
    chains = {"base": Chain(l2, layers, x, None, cuda)}
    for name in names:
        chains[name] = Chain(l2, layers, x, ARMS[name], cuda)
    chains["base again"] = Chain(l2, layers, x, None, cuda)
    samples: dict[str, list[float]] = {name: [] for name in chains}
    for block in range(12):
        for name in list(chains) if block % 2 == 0 else reversed(list(chains)):
            samples[name].append(chains[name].time())
    reference = chains["base"]
    rows = {}
    for name, chain in chains.items():
        rows[name] = {
            "median_us": round(statistics.median(samples[name]), 3),
            "ratio": round(
                statistics.median(
                    b / a for a, b in zip(samples["base"], samples[name], strict=True)
                ),
                4,
            ),
            "equal": bool(torch.equal(chain.first, reference.first)),
            "captured": chain.captured,
            "nodes": chain.nodes,
        }
    return {"shape": shape, "arms": rows, "samples_us": samples}


def _work(pipe: Any, function: Callable[..., dict], args: tuple[Any, ...]) -> None:
    try:
        pipe.send(function(*args))
    except BaseException:
        pipe.send({"failed": traceback.format_exc()})


def in_process(function: Callable[..., dict], *args: Any) -> dict[str, Any]:
    """Run a function in a process of its own and return what it returns.

    The process is forked, so that vLLM is imported once; if an import has touched
    the GPU, a fork could not use it and a new interpreter is started instead.

    Raises:
        RuntimeError: It failed; the message is its traceback.
    """
    import torch

    method = "spawn" if torch.cuda.is_initialized() else "fork"
    context = multiprocessing.get_context(method)
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_work, args=(theirs, function, args))
    process.start()
    theirs.close()
    try:
        result: dict[str, Any] = ours.recv()
    except EOFError:
        result = {"failed": "the process died"}
    process.join()
    if "failed" in result:
        raise RuntimeError(result["failed"])
    return result


def judge(pairs: list[dict[str, Any]]) -> tuple[str, list[str]]:
    """Apply the decision rule to the pairs of one shape."""
    gain = [math.log(p["median_us"]["B"] / p["median_us"]["A"]) for p in pairs]
    same = [math.log(p["median_us"]["A'"] / p["median_us"]["A"]) for p in pairs]
    low, high = l2_common.interval(gain, CONFIDENCE)
    aa_low, aa_high = l2_common.interval(same, AA_CONFIDENCE)
    reasons = [
        f"time of the arm over the base: {math.exp(low):.4f} to {math.exp(high):.4f} "
        f"({CONFIDENCE:.0%}), bar {1 - MARGIN:.2f}, {len(pairs)} pairs",
        f"A/A control {math.exp(aa_low):.4f} to {math.exp(aa_high):.4f} "
        f"({AA_CONFIDENCE:.0%})",
    ]
    if not all(p["equal"] for p in pairs):
        return "rejected", [*reasons, "the outputs differ"]
    if not aa_low <= 0 <= aa_high:
        return "invalid", [*reasons, "the A/A control does not contain 1"]
    if aa_high - aa_low > 2 * MARGIN:
        return "insufficient-evidence", [*reasons, "the A/A control is too wide"]
    bar = math.log(1 - MARGIN)
    if high < bar:
        return "qualified", reasons
    if low > bar:
        return "rejected", reasons
    spread = statistics.stdev(gain)
    gap = max(abs(statistics.fmean(gain) - bar), 1e-6)
    more = math.ceil((2.3 * spread / gap) ** 2)
    return "insufficient-evidence", [*reasons, f"about {more} pairs would decide"]


def same_kernels(tree: Path, base: Path | None) -> dict[str, str]:
    """Digest the region's kernels, which must be the base's.

    Raises:
        _gate.Stop: One of them is not.
    """
    found = {}
    for path in KERNELS:
        content = (tree / path).read_bytes()
        found[path] = hashlib.sha256(content).hexdigest()
        if base and (base / path).read_bytes() != content:
            text = f"{path} differs between the base and the tree"
            raise _gate.Stop("not-tested", text)
    return found


def unit_body(args: argparse.Namespace) -> dict[str, Any]:
    """Be one process start of the engine; see `_gate.unit`."""
    import torch

    l2_common.check_trees(args.tree, args.base)
    if reason := l2_common.no_gpu():
        raise _gate.Stop("not-tested", reason)
    same_kernels(args.tree, args.base)
    torch.manual_seed((_gate.unit_seed() + _gate.unit_number()) % 2**63)
    l2, cuda = setup(str(args.tree.resolve()))
    cells: dict[str, Any] = {}
    figures: dict[str, Any] = {}
    expected = counted = nodes = 0
    for tp, rows in args.shapes or SHAPES:
        swap = _gate.unit_number() % 2 == 1
        found = one_shape(l2, cuda, args.arm, (tp, rows), swap)
        torch.cuda.empty_cache()
        name = f"tp{tp}/{rows}"
        if not found["equal"]:
            raise _gate.Stop("rejected", f"{name}: the outputs differ")
        taken = found["samples_us"]
        cells[name] = {
            "order": ["base", "on", "on", "base"] * (len(taken["B"]) // 2),
            "values": {"base": taken["A"], "on": taken["B"]},
        }
        engaged = found["engaged"]
        if engaged["fired"] != engaged["expected"]:
            raise _gate.Stop("not-tested", f"{name}: windows opened {engaged}")
        grown = engaged["nodes"][1] - engaged["nodes"][0]
        expected += engaged["captured"]
        counted += grown
        nodes += grown
        figures[name] = {
            "base recorded again, us": taken["A'"],
            "bytes a step": engaged["bytes_a_step"],
            "windows opened": engaged["fired"],
        }
    if not args.no_gemm:
        figures["one GEMM"] = [
            {"weight": row["weight"], "median us": row["median_us"]}
            for row in gemm_times(l2, cuda)
        ]
    return {
        "samples": {"cells": cells},
        "engagement": {
            "on": {"expected": expected, "counted": counted, "captured_nodes": nodes}
        },
        "extra": figures,
    }


def main(args: argparse.Namespace) -> dict[str, Any]:
    """Run the pairs and judge them."""
    arms = l2_common.check_trees(args.tree, args.base)
    receipt: dict[str, Any] = {
        "arms": {**arms, "B": args.arm},
        "rule": {
            "statistic": "t interval of the paired log-ratio",
            "margin": MARGIN,
            "confidence": CONFIDENCE,
            "aa_confidence": AA_CONFIDENCE,
            "pairs": PAIRS,
            "looks": 1,
            "schedule": "A B A' A' B A, 20 times, A' recorded first in odd processes",
        },
        "argv": ["{python}", f"ci/gates/{GATE}.py", "--tree", "{tree}"],
    }

    def answer(verdict: str, *reasons: str) -> dict[str, Any]:
        return l2_common.document(GATE, "kernel", verdict, list(reasons), receipt)

    capability = l2_common.smi("compute_cap")
    if not capability or float(capability[0]) < 9.0:
        return answer("not-tested", "no CUDA device of compute capability 9.0 or above")
    try:
        receipt["arms"] |= same_kernels(args.tree, args.base)
    except _gate.Stop as stop:
        return answer(stop.verdict, stop.reason)
    sys.path.insert(0, str(args.tree.resolve()))
    try:  # not the kernels of the core: importing them touches the GPU
        import vllm.model_executor.custom_op
        import vllm.model_executor.layers.mamba.ops.causal_conv1d  # noqa: F401
    except ImportError as error:
        return answer("not-tested", f"the tree cannot be imported here: {error}")
    receipt["load_before"] = list(os.getloadavg())
    tree = str(args.tree.resolve())
    shapes = args.shapes or (list(SHAPES) if args.explore else [SHAPES[0]])
    if args.explore:
        names = args.arms or list(ARMS)
        receipt["explored"] = []
        for shape in shapes:
            try:
                receipt["explored"].append(in_process(explore, tree, shape, names))
            except RuntimeError as error:
                receipt["explored"].append({"shape": shape, "failed": str(error)})
        return answer("insufficient-evidence", "exploration: one process, no verdict")
    pairs: list[dict[str, Any]] = []
    receipt["pairs"] = pairs
    began = time.monotonic()
    for index in range(args.pairs):
        if args.deadline and time.monotonic() - began > args.deadline:
            break
        swap, gemm = index % 2 == 1, not args.no_gemm
        try:
            pairs.append(in_process(one_pair, tree, args.arm, shapes, gemm, swap))
        except RuntimeError as error:
            return answer("invalid", f"a pair failed: {str(error)[-1500:]}")
    if len(pairs) < 2:
        return answer("insufficient-evidence", f"{len(pairs)} pairs: no time for more")
    load = max(pair["machine"]["load"][0] for pair in pairs)
    claims: dict[str, str] = {}
    reasons = []
    for tp, rows in shapes:
        shape = f"{tp}:{rows}"
        results = [pair["shapes"][shape] for pair in pairs]
        if why := not_engaged(results):
            verdict, said = "not-tested", [why]
        else:
            verdict, said = judge(results)
        if load > MAX_LOAD * (os.cpu_count() or 1):
            verdict, said = "invalid", [*said, f"host load {load}"]
        if len(pairs) < MIN_PAIRS and verdict in ("qualified", "rejected"):
            verdict = "insufficient-evidence"
            said.append(f"the rule wants {MIN_PAIRS} pairs at least")
        claims[shape] = verdict
        reasons.append(f"TP{tp}, {rows} tokens: {verdict}: " + "; ".join(said))
    receipt["claims"] = claims
    return answer(next(iter(claims.values())), *reasons)


def not_engaged(results: list[dict[str, Any]]) -> str | None:
    """Why the arm does not count, or None."""
    for result in results:
        engaged = result["engaged"]
        grown = engaged["nodes"][1] - engaged["nodes"][0]
        if engaged["fired"] != engaged["expected"] or not engaged["captured"]:
            return f"the prefetch did not engage: {engaged}"
        if grown != engaged["captured"]:
            return f"the graph lacks prefetch nodes: {engaged}"
    return None


if __name__ == "__main__":
    argument_parser = l2_common.parser(str(__doc__).splitlines()[0])
    argument_parser.add_argument("--arm", choices=list(ARMS), default="default")
    argument_parser.add_argument("--pairs", type=int, default=PAIRS)
    argument_parser.add_argument(
        "--deadline", type=float, help="start no pair after these seconds"
    )
    argument_parser.add_argument("--explore", action="store_true")
    argument_parser.add_argument("--no-gemm", action="store_true", help="chain only")
    argument_parser.add_argument("--arms", nargs="*", help="arms to explore")
    argument_parser.add_argument(
        "--shapes",
        nargs="*",
        type=parse_shape,
        metavar="TP:TOKENS",
        help="the first one gives the verdict, each one a claim (default 4:8)",
    )
    argument_parser.add_argument("--unit", action="store_true", help="of the engine")
    arguments = argument_parser.parse_args()
    if arguments.unit:
        sys.exit(_gate.unit(lambda: unit_body(arguments)))
    if arguments.pairs < 2:
        argument_parser.error("--pairs: at least 2")
    sys.exit(
        l2_common.run(GATE, "kernel", lambda: main(arguments), bool(arguments.json))
    )
