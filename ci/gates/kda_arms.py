"""Measuring process of the KDA gates: the real layers of two trees in one process.

The ``vllm`` that is importable is the tree under test. The base's KDA layer is
loaded from its file beside it, so the reference arm runs the base's own code; all
modules below the layer are shared. The layers of both arms share their weights
and states, so that addresses and cache contents cannot favour one.

A rank of a tensor-parallel group is a model that has only that rank's heads:
every local shape is the same and no all-reduce is needed. Shapes are those of
GLM-5.3-Flash: hidden 4096, 64 KDA heads of 128 channels.
"""

from __future__ import annotations

import argparse
import ctypes
import functools
import importlib.util
import json
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from types import ModuleType, SimpleNamespace
from typing import Any

import kda_process
import torch

SWITCH = "VLLM_GLM53_KDA_GATE_SIDE_STREAM"
HIDDEN, HEADS, HEAD_DIM = 4096, 64, 128
ARMS = ("base", "off", "on")
# Of the set `prefetch`; with it and the overlap an arm has both, where the tree has.
PREFETCH = "VLLM_GLM53_L2_PREFETCH"
# From this many tokens on, visit after visit reaches the GPU's power limit.
HOT_TOKENS = 128


def load_base(path: str) -> ModuleType:
    """Load the base's ``kda.py`` beside the tree's.

    Args:
        path: The file.

    Returns:
        The module.
    """
    # The package part of the name makes relative imports resolve.
    name = "vllm.models.glm5next.common.kda_of_the_base"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


@contextmanager
def engine() -> Iterator[Any]:
    """Provide a config and one-rank process groups.

    Yields:
        The current ``VllmConfig``.
    """
    from vllm.config import (
        CompilationConfig,
        CompilationMode,
        VllmConfig,
        set_current_vllm_config,
    )
    from vllm.distributed import init_distributed_environment, initialize_model_parallel

    # Mode NONE is what the architecture's default, breakable CUDA graphs, implies.
    config = VllmConfig(
        additional_config={"kda_prefill_backend": "triton"},
        compilation_config=CompilationConfig(mode=CompilationMode.NONE),
    )
    with ExitStack() as stack:
        stack.enter_context(set_current_vllm_config(config))
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        init_distributed_environment(
            1, 0, f"file://{os.path.join(folder, 'init')}", 0, backend="gloo"
        )
        initialize_model_parallel(1, 1)
        # All that a KDA layer reads of a model's config.
        config.model_config = SimpleNamespace(dtype=torch.bfloat16)
        yield config


class Decoder(torch.nn.Module):
    """What the prefetch wants of a decoder layer, around an attention layer."""

    layer_kind = "kda"
    l2_windows: Any = None

    def __init__(self, attention: Any) -> None:
        super().__init__()
        self.self_attn = attention
        self.mlp = torch.nn.Module()


class Chain:
    """Layers of one tensor-parallel rank, twice: the base's and the tree's."""

    def __init__(
        self,
        config: Any,
        base_module: ModuleType,
        tp: int,
        depth: int,
        seed: int,
        hidden: int = HIDDEN,
        device: str = "cuda",
    ) -> None:
        from transformers import Glm5NextTextConfig
        from vllm.models.glm5next.common import kda as tree_module

        self.config, self.tp, self.depth, self.device = config, tp, depth, device
        self.heads = HEADS // tp
        text = Glm5NextTextConfig(
            hidden_size=hidden,
            linear_num_heads=self.heads,
            linear_head_dim=HEAD_DIM,
        )
        self.generator = torch.Generator(device=device).manual_seed(seed)
        self.layers: dict[str, list[Any]] = {"base": [], "tree": []}
        previous = torch.get_default_dtype()
        torch.set_default_dtype(torch.bfloat16)
        try:
            for index in range(depth):
                prefix = f"model.layers.{index}.self_attn"
                config.compilation_config.static_forward_context.clear()
                with torch.device(device):
                    base = base_module.Glm5NextLinearAttention(text, config, prefix)
                config.compilation_config.static_forward_context.clear()
                with torch.device("meta"):
                    tree = tree_module.Glm5NextLinearAttention(text, config, prefix)
                self._fill(base)
                own = dict(base.named_parameters())
                for name, _ in list(tree.named_parameters()):
                    owner, _, leaf = name.rpartition(".")
                    module = tree.get_submodule(owner) if owner else tree
                    module._parameters[leaf] = own[name]
                self.layers["base"].append(base)
                self.layers["tree"].append(tree)
        finally:
            torch.set_default_dtype(previous)
        self._prepare()
        self.prefetches: dict[str, tuple[Any, list[Decoder]]] = {}
        # One capture stream, used for the warm-up as well: the workspaces of its
        # GEMMs are then not counted as part of some graph's pool.
        self.stream = torch.cuda.Stream() if device == "cuda" else None

    def _fill(self, layer: Any) -> None:
        """Random weights scaled by fan-in, so that outputs stay of order one."""
        for name, parameter in layer.named_parameters():
            noise = torch.randn(
                parameter.shape, generator=self.generator, device=self.device
            )
            if name == "o_norm.weight":
                noise = 1 + 0.1 * noise
            elif name in ("A_log", "dt_bias"):
                noise = 0.1 * noise
            else:
                noise = noise * parameter.shape[-1] ** -0.5
            parameter.data.copy_(noise)
            parameter.requires_grad_(False)

    def _prepare(self) -> None:
        for layers in self.layers.values():
            for layer in layers:
                for module in layer.modules():
                    method = getattr(module, "quant_method", None)
                    if method is not None and module.weight.dim() == 2:
                        method.process_weights_after_loading(module)

    def batch(self, tokens: int) -> None:
        """Set up a decode step of `tokens` requests with fresh random input.

        Args:
            tokens: Number of requests, one new token each.
        """
        from vllm.v1.attention.backends.gdn_attn import GDNAttentionMetadata

        hidden = self.layers["base"][0].hidden_size
        self.x = torch.empty(tokens, hidden, device=self.device, dtype=torch.bfloat16)
        self.new_input()
        self.positions = torch.arange(tokens, device=self.device)
        numbers = torch.arange(tokens + 1, device=self.device, dtype=torch.int32)
        metadata = GDNAttentionMetadata(
            num_prefills=0,
            num_prefill_tokens=0,
            num_decodes=tokens,
            num_decode_tokens=tokens,
            num_spec_decodes=0,
            num_spec_decode_tokens=0,
            num_actual_tokens=tokens,
            non_spec_query_start_loc=numbers,
            # Slot 0 is the null block.
            non_spec_state_indices_tensor=numbers[1:].contiguous(),
        )
        self.metadata = {layer.prefix: metadata for layer in self.layers["base"]}
        for base, tree in zip(self.layers["base"], self.layers["tree"], strict=True):
            base.kv_cache = tree.kv_cache = tuple(
                torch.zeros(tokens + 1, *shape, dtype=dtype, device=self.device)
                for shape, dtype in zip(
                    base.get_state_shape(), base.get_state_dtype(), strict=True
                )
            )

    def new_input(self) -> None:
        """Overwrite the static input."""
        self.x.copy_(
            torch.randn(self.x.shape, generator=self.generator, device=self.device)
        )

    def reset(self) -> None:
        """Zero all states."""
        for layer in self.layers["base"]:
            for state in layer.kv_cache:
                state.zero_()

    def states(self) -> list[torch.Tensor]:
        """Copy all states.

        Returns:
            Clones, two a layer.
        """
        return [s.clone() for layer in self.layers["base"] for s in layer.kv_cache]

    def prefetch(self, arm: str, switches: dict[str, str]) -> None:
        """Give an arm the overlap and a weight prefetch of its own.

        Args:
            arm: Its name.
            switches: Of the prefetch, read at the arm's first run.
        """
        from vllm.models.glm5next.nvidia.l2_prefetch import PrefetchChain

        for name in [name for name in os.environ if name.startswith(PREFETCH)]:
            del os.environ[name]
        os.environ.update(switches)
        decoders = [Decoder(layer) for layer in self.layers["tree"]]
        self.prefetches[arm] = PrefetchChain(decoders), decoders

    def run(self, arm: str, mode: str, layers: list[Any] | None = None) -> torch.Tensor:
        """Run the chain once.

        Args:
            arm: ``base``, ``off``, ``on`` or one that was given a prefetch.
            mode: Name of the CUDA graph runtime mode to announce.
            layers: Other layers than the arm's own.

        Returns:
            Output of the last layer.
        """
        from vllm.config import CUDAGraphMode
        from vllm.forward_context import set_forward_context

        os.environ[SWITCH] = "0" if arm in ("base", "off") else "1"
        x = self.x
        context = set_forward_context(
            self.metadata,
            self.config,
            num_tokens=x.shape[0],
            cudagraph_runtime_mode=CUDAGraphMode[mode],
        )
        with torch.inference_mode(), context:
            if arm in self.prefetches:
                prefetch, decoders = self.prefetches[arm]
                prefetch.begin(x.shape[0], x.device)
                for decoder in decoders:
                    x = decoder.self_attn(hidden_states=x, positions=self.positions)
                    if decoder.l2_windows is not None:
                        decoder.l2_windows.after_attention()
                        decoder.l2_windows.after_mlp()
                prefetch.finish()
                return x
            for layer in layers or self.layers["base" if arm == "base" else "tree"]:
                x = layer(hidden_states=x, positions=self.positions)
        return x

    def recorded_prefetches(self) -> int:
        """Count the prefetches that graphs have recorded so far.

        Returns:
            Launches.
        """
        module = sys.modules.get("vllm.models.glm5next.nvidia.l2_prefetch")
        if module is None:
            return 0
        made = module.L2Prefetcher._instances.values()
        return sum(found.counters.captured for found in made if found is not None)

    def capture(
        self, arm: str, *, keep: bool = False, layers: list[Any] | None = None
    ) -> tuple[Any, torch.Tensor]:
        """Warm up, then capture the chain as a FULL graph.

        Args:
            arm: ``base``, ``off`` or ``on``.
            keep: Keep the graph's description, for `graph_size`.
            layers: Other layers than the arm's own.

        Returns:
            The graph and its static output.
        """
        from vllm.utils.side_stream_guard import graph_preparation

        torch.cuda.synchronize()
        with graph_preparation(), torch.cuda.stream(self.stream):
            self.run(arm, "NONE", layers)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph(keep_graph=keep)
        with torch.cuda.graph(graph, stream=self.stream):
            output = self.run(arm, "FULL", layers)
        if keep:
            graph.instantiate()
        return graph, output


def graph_size(graph: Any) -> dict[str, int]:
    """Count nodes and edges of a graph that was kept.

    Args:
        graph: Captured with ``keep=True``.

    Returns:
        ``nodes`` and ``edges``; -1 where the driver does not tell.
    """
    driver = ctypes.CDLL("libcuda.so.1")
    handle = ctypes.c_void_p(graph.raw_cuda_graph())
    nodes, edges = ctypes.c_size_t(), ctypes.c_size_t()
    ok = driver.cuGraphGetNodes(handle, None, ctypes.byref(nodes)) == 0
    query = getattr(driver, "cuGraphGetEdges_v2", None)
    ok_edges = query is not None and (
        query(handle, None, None, None, ctypes.byref(edges)) == 0
    )
    return {
        "nodes": nodes.value if ok else -1,
        "edges": edges.value if ok_edges else -1,
    }


def pool_bytes(graph: Any) -> int:
    """Measure the memory that a graph's private pool reserves.

    Args:
        graph: A captured graph.

    Returns:
        Bytes.
    """
    pool = tuple(graph.pool())
    return sum(
        segment["total_size"]
        for segment in torch.cuda.memory_snapshot()
        if tuple(segment["segment_pool_id"]) == pool
    )


def counters() -> dict[str, int]:
    """Read the tree's engagement counters and set them to zero.

    Returns:
        ``forks``, ``captured_forks`` and ``sequential``.
    """
    from vllm.models.glm5next.common import kda_gate_overlap as overlap

    stats = overlap.gate_overlap_stats()
    overlap.reset_gate_overlap_stats()
    return {
        "forks": stats.forks,
        "captured_forks": stats.captured_forks,
        "sequential": stats.sequential,
    }


def versions() -> dict[str, Any]:
    """Describe this process.

    Returns:
        Versions and the GPU as torch sees it.
    """
    import triton
    import vllm

    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "triton": triton.__version__,
        "vllm": getattr(vllm, "__version__", "?"),
        "device": torch.cuda.get_device_name(0),
        "capability": list(torch.cuda.get_device_capability(0)),
    }


def measure_us(replay: Callable[[], None], replays: int, depth: int) -> float:
    """Time graph replays with CUDA events.

    Args:
        replay: Replays the graph once.
        replays: Number of replays between the two events.
        depth: Layers in the graph.

    Returns:
        Microseconds per layer.
    """
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    for _ in range(3):
        replay()
    start.record()
    for _ in range(replays):
        replay()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) * 1e3 / replays / depth


def clock_mhz() -> float:
    """Measure the SM clock by timing a kernel that counts cycles.

    Returns:
        Megahertz while the GPU is under load.
    """
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda._sleep(1_000_000)
    start.record()
    torch.cuda._sleep(4_000_000)
    end.record()
    end.synchronize()
    return round(4_000_000 / start.elapsed_time(end) / 1e3, 1)


def single_us(replay: Callable[[], None], depth: int) -> float:
    """Time single replays, each after the GPU went idle; launch included.

    Args:
        replay: Replays the graph once.
        depth: Layers in the graph.

    Returns:
        Median of 30, microseconds per layer.
    """
    values = []
    for _ in range(33):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        replay()
        end.record()
        end.synchronize()
        values.append(start.elapsed_time(end) * 1e3 / depth)
    return statistics.median(values[3:])


def _time_cell(
    chain: Chain, tokens: int, options: argparse.Namespace, last: bool
) -> dict[str, Any]:
    """Capture and time all arms of one cell."""
    chain.batch(tokens)
    graphs, engaged, pool, size = {}, {}, {}, {}
    alone, expected, equal = [], None, {}

    def make(arm: str) -> None:
        nonlocal expected
        before = chain.recorded_prefetches()
        counters()
        graphs[arm], output = chain.capture(arm, keep=True)
        engaged[arm] = counters()
        engaged[arm]["prefetches"] = chain.recorded_prefetches() - before
        chain.reset()
        graphs[arm].replay()
        torch.cuda.synchronize()
        got = output.clone()
        expected = got if expected is None else expected
        equal[arm] = torch.equal(expected, got)
        pool[arm] = pool_bytes(graphs[arm])
        size[arm] = graph_size(graphs[arm])

    for arm in ARMS:
        make(arm)
        if arm == "base":
            # Before the tree's graphs exist (in the first cell: before its streams
            # do): shows whether they slow the base down.
            chain.reset()
            alone = [
                measure_us(graphs[arm].replay, options.replays, chain.depth)
                for _ in range(4)
            ]
    chain.reset()
    clock = [clock_mhz()]

    def visit(arm: str) -> float:
        began = time.monotonic()
        taken = measure_us(graphs[arm].replay, options.replays, chain.depth)
        if tokens >= HOT_TOKENS:
            time.sleep(time.monotonic() - began)
        return taken

    def blocks(arms: Sequence[str] = ARMS) -> list[list[Any]]:
        turns = kda_process.turns(arms, options.blocks)
        return [[arm, visit(arm)] for arm in turns]

    samples = blocks()
    beside, both = [], []
    if last:
        # One other stream that has run a kernel slows every graph of the process
        # down, as the streams of an engine do. There is no way back from it, so it
        # is the last thing measured.
        other = torch.cuda.Stream()
        with torch.cuda.stream(other):
            torch.zeros(1, device="cuda")
        torch.cuda.synchronize()
        beside = blocks()
        if options.both:  # its stream is one more, so it comes last
            for arm, switches in options.both.items():
                chain.prefetch(arm, switches)
                make(arm)
            both = blocks(("base", "on", *options.both))
    return {
        "tp": chain.tp,
        "tokens": tokens,
        "samples_us_per_layer": samples,
        "beside_other_stream_us_per_layer": beside,
        "both_us_per_layer": both,
        "base_alone_us_per_layer": alone,
        "single_us_per_layer": {
            arm: single_us(graphs[arm].replay, chain.depth) for arm in ARMS
        },
        "equal": equal,
        "clock_mhz": [*clock, clock_mhz()],
        "engaged": engaged,
        "graph": size,
        "pool_bytes": pool,
    }


def speed(config: Any, base: ModuleType, options: argparse.Namespace) -> dict[str, Any]:
    """Measure one pair: all arms of all cells, interleaved as C B A A B C.

    Args:
        config: From `engine`.
        base: The base's module.
        options: ``cells``, ``both``, ``depth``, ``blocks``, ``replays``, ``seed``.

    Returns:
        Raw samples in the order they were taken, with engagement.
    """
    cells = []
    chain = None
    for number, (tp, tokens) in enumerate(options.cells, 1):
        if chain is None or chain.tp != tp:
            chain = Chain(config, base, tp, options.depth, options.seed)
        last = number == len(options.cells)
        cells.append(_time_cell(chain, tokens, options, last))
    return {"cells": cells}


def _outputs(
    chain: Chain, inputs: list[torch.Tensor], once: Callable[[], torch.Tensor]
) -> list[torch.Tensor]:
    """Run decode steps from zero states; outputs of all steps, then the states."""
    chain.reset()
    outputs = []
    for value in inputs:
        chain.x.copy_(value)
        outputs.append(once().clone())
    return outputs + chain.states()


def _compare_cell(
    chain: Chain, tokens: int, options: argparse.Namespace
) -> dict[str, Any]:
    """Compare all arms of one cell with the base's eager run."""
    chain.batch(tokens)
    inputs = []
    for _ in range(options.steps):
        chain.new_input()
        inputs.append(chain.x.clone())
    expected = _outputs(chain, inputs, lambda: chain.run("base", "NONE"))
    distinct = len({float(v.double().sum()) for v in expected[: len(inputs)]})
    arms = {}
    for arm in ARMS:
        for way in ("eager", "graph"):
            counters()
            size = None
            if way == "eager":
                got = _outputs(chain, inputs, functools.partial(chain.run, arm, "NONE"))
            else:
                graph, output = chain.capture(arm, keep=True)
                size = graph_size(graph)
                got = _outputs(chain, inputs, functools.partial(_replay, graph, output))
            torch.cuda.synchronize()
            pairs = list(zip(expected, got, strict=True))
            arms[f"{arm}/{way}"] = {
                "equal": all(torch.equal(a, b) for a, b in pairs),
                "elements": sum(a.numel() for a, _ in pairs),
                "differing": sum(int((a != b).sum()) for a, b in pairs),
                "finite": all(bool(torch.isfinite(v).all()) for v in got),
                "engaged": counters(),
                "graph": size,
            }
    return {"tp": chain.tp, "tokens": tokens, "distinct": distinct, "arms": arms}


def _replay(graph: Any, output: torch.Tensor) -> torch.Tensor:
    graph.replay()
    return output


def parity(
    config: Any, base: ModuleType, options: argparse.Namespace
) -> dict[str, Any]:
    """Compare outputs and states of all arms with the base's eager run.

    Args:
        config: From `engine`.
        base: The base's module.
        options: ``tp``, ``tokens``, ``depth``, ``steps``, ``seed``.

    Returns:
        One entry a cell.
    """
    cells = []
    for tp in options.tp:
        chain = Chain(config, base, tp, options.depth, options.seed)
        cells += [_compare_cell(chain, tokens, options) for tokens in options.tokens]
    return {"cells": cells}


def cell(text: str) -> tuple[int, int]:
    """Read ``TP:TOKENS``.

    Args:
        text: The argument.

    Returns:
        Both numbers.
    """
    tp, tokens = map(int, text.split(":"))
    return tp, tokens


def main() -> None:
    """Measure, print one JSON object."""
    parse = argparse.ArgumentParser()
    parse.add_argument("task", choices=["speed", "parity"])
    parse.add_argument("--base-kda", required=True)
    parse.add_argument("--tp", type=int, nargs="+")
    parse.add_argument("--tokens", type=int, nargs="+")
    parse.add_argument("--cells", nargs="+", type=cell, metavar="TP:TOKENS")
    parse.add_argument(
        "--both", type=json.loads, help="arms with the prefetch, last: {ARM: SWITCHES}"
    )
    parse.add_argument("--depth", type=int, required=True)
    parse.add_argument("--seed", type=int, required=True)
    parse.add_argument("--blocks", type=int, default=4)
    parse.add_argument("--replays", type=int, default=20)
    parse.add_argument("--steps", type=int, default=3)
    options = parse.parse_args()
    base = load_base(options.base_kda)
    from vllm.models.glm5next.common import kda as tree

    assert base.Glm5NextLinearAttention is not tree.Glm5NextLinearAttention
    if not torch.cuda.is_available():
        print(json.dumps({"cannot": "no CUDA device"}))
        return
    torch.cuda.set_device(0)
    with engine() as config:
        task = speed if options.task == "speed" else parity
        answer = task(config, base, options)
        print(json.dumps({**answer, "versions": versions()}), flush=True)
    # Process groups and graphs go with the process; an orderly teardown of the
    # groups would only cost time.
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
