"""Which cut of the KDA gate projections pays: time and bits of each candidate.

Not a gate: it is how the cut of `kda-overlap` was chosen. One process, FULL graphs
of eight layers, candidates timed in alternating order; the figures are in the
README of the set. Needs what ``ci/gates/kda_overlap_speed.py`` needs, with the tree
under test importable as ``vllm``.

usage: python ci/gpu/kda_cuts.py BASE_KDA_PY [OUT.json] [--tp N...] [--tokens N...]
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "gates"))
import kda_arms as arms


class Fork:
    """Like the set's fork, with any number of events per join."""

    def __init__(
        self,
        decay: torch.Tensor,
        output: torch.Tensor,
        early: list[Any],
        late: list[Any],
    ) -> None:
        self.decay, self.output = decay, output
        self.early, self.late = early, late

    def join_decay(self) -> None:
        """Wait for what the core reads."""
        for event in self.early:
            torch.cuda.current_stream().wait_event(event)
        self.early = []

    def join(self) -> None:
        """Wait for the rest."""
        self.join_decay()
        for event in self.late:
            torch.cuda.current_stream().wait_event(event)


SIDE: dict[str, torch.cuda.Stream] = {}


def side(name: str, priority: int = 0) -> torch.cuda.Stream:
    """Return a side stream by name."""
    if name not in SIDE:
        SIDE[name] = torch.cuda.Stream(priority=priority)
    return SIDE[name]


def on(stream: torch.cuda.Stream, work: Callable[[], Any]) -> tuple[Any, Any]:
    """Fork `work` onto a stream; returns its result and its event."""
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        return work(), stream.record_event()


def output_gate_only(f_b, g_b, projected, f_a, g_a, heads):
    output, late = on(side("a"), lambda: g_b(g_a)[0])
    return Fork(f_b(f_a)[0], output, [], [late])


def two_streams(f_b, g_b, projected, f_a, g_a, heads):
    decay, early = on(side("a"), lambda: f_b(f_a)[0])
    output, late = on(side("b"), lambda: g_b(g_a)[0])
    return Fork(decay, output, [early], [late])


def two_streams_decay_high(f_b, g_b, projected, f_a, g_a, heads):
    decay, early = on(side("high", -1), lambda: f_b(f_a)[0])
    output, late = on(side("b"), lambda: g_b(g_a)[0])
    return Fork(decay, output, [early], [late])


def two_streams_high(f_b, g_b, projected, f_a, g_a, heads):
    decay, early = on(side("high", -1), lambda: f_b(f_a)[0])
    output, late = on(side("high b", -1), lambda: g_b(g_a)[0])
    return Fork(decay, output, [early], [late])


def one_stream_high(f_b, g_b, projected, f_a, g_a, heads):
    stream = side("high", -1)
    decay, early = on(stream, lambda: f_b(f_a)[0])
    with torch.cuda.stream(stream):
        output = g_b(g_a)[0]
        late = stream.record_event()
    return Fork(decay, output, [early], [late])


def one_stream_unrecorded(f_b, g_b, projected, f_a, g_a, heads):
    stream = side("a")
    decay, early = on(stream, lambda: f_b(f_a)[0])
    with torch.cuda.stream(stream):
        output = g_b(g_a)[0]
        late = stream.record_event()
    return Fork(decay, output, [early], [late])


def both_then_core(f_b, g_b, projected, f_a, g_a, heads):
    """Both projections joined before the core: no join is left for o_norm."""
    decay, early = on(side("a"), lambda: f_b(f_a)[0])
    output, late = on(side("b"), lambda: g_b(g_a)[0])
    return Fork(decay, output, [early, late], [])


def g_b_on_main(f_b, g_b, projected, f_a, g_a, heads):
    """f_b beside the convolution, g_b left on the main stream."""
    decay, early = on(side("a"), lambda: f_b(f_a)[0])
    return Fork(decay, g_b(g_a)[0], [early], [])


STACKED: dict[int, torch.Tensor] = {}


def batched(f_b, g_b, projected, f_a, g_a, heads):
    """One batched GEMM for both, beside the convolution."""
    weight = STACKED[id(f_b)]
    pair = projected[:, -256:].reshape(-1, 2, 128).transpose(0, 1)
    both, early = on(side("a"), lambda: torch.bmm(pair, weight.transpose(1, 2)))
    return Fork(both[0], both[1], [early], [])


def sequential(f_b, g_b, projected, f_a, g_a, heads):
    return None


CUTS: dict[str, Any] = {
    "tree": None,  # the set as it is
    "output-gate-only": output_gate_only,
    "two-streams": two_streams,
    "one-stream-high-priority": one_stream_high,
    "two-streams-decay-high-priority": two_streams_decay_high,
    "two-streams-high-priority": two_streams_high,
    "one-stream-unrecorded": one_stream_unrecorded,
    "two-streams-joined-before-core": both_then_core,
    "decay-only": g_b_on_main,
    "one-batched-gemm": batched,
}


def _core(layer: Any, tokens: torch.Tensor) -> torch.Tensor:
    return torch.empty(
        1,
        tokens.shape[0],
        layer.local_num_heads,
        128,
        dtype=tokens.dtype,
        device=tokens.device,
    )


@contextlib.contextmanager
def conv_on_side(layers: list[Any], kda: Any, together: bool):
    """The gates' decay half stays on the main stream, the convolution leaves it.

    With `together`, both gates are one batched GEMM on the main stream; without,
    g_b follows the convolution on the side stream.
    """
    plain = kda.causal_conv1d_update
    state: dict[str, Any] = {}

    def conv(*args: Any, **kwargs: Any) -> torch.Tensor:
        stream = side("a")
        stream.wait_event(state["from"])
        with torch.cuda.stream(stream):
            out = plain(*args, **kwargs)
            early = stream.record_event()
            if not together:
                state["output"] = state["g_b"](state["g_a"])[0]
                state["late"] = stream.record_event()
        torch.cuda.current_stream().wait_event(early)
        return out

    def forward(
        layer: Any, hidden_states: torch.Tensor, positions: Any
    ) -> torch.Tensor:
        width = layer.local_projection_size
        projected = layer.in_proj_qkvbfg_a(hidden_states)[0]
        qkv, beta, f_a, g_a = projected.split(
            [3 * width, layer.local_num_heads, 128, 128], dim=-1
        )
        state["from"] = torch.cuda.current_stream().record_event()
        state["g_b"], state["g_a"] = layer.g_b_proj, g_a
        if together:
            pair = projected[:, -256:].reshape(-1, 2, 128).transpose(0, 1)
            weight = STACKED[id(layer.f_b_proj)]
            decay, state["output"] = torch.bmm(pair, weight.transpose(1, 2))
        else:
            decay = layer.f_b_proj(f_a)[0]
        core = _core(layer, hidden_states)
        layer._forward(
            qkv_proj_states=qkv,
            g1=decay.reshape(1, -1, layer.local_num_heads, 128),
            beta=beta.unsqueeze(0),
            core_attn_out=core,
        )
        if not together:
            torch.cuda.current_stream().wait_event(state["late"])
        gate = state["output"].reshape(-1, layer.local_num_heads, 128)
        core = layer.o_norm(core, gate)
        return layer.o_proj(core.reshape(core.size(1), -1))[0]

    kda.causal_conv1d_update = conv
    for layer in layers:
        layer.forward = lambda hidden_states, positions, own=layer: forward(
            own, hidden_states, positions
        )
    try:
        yield
    finally:
        kda.causal_conv1d_update = plain
        for layer in layers:
            del layer.forward


@contextlib.contextmanager
def gate_split_out(layers: list[Any]):
    """g_a leaves the in-projection: g_a and g_b run beside the rest of it."""

    def forward(
        layer: Any, hidden_states: torch.Tensor, positions: Any
    ) -> torch.Tensor:
        weight = layer.in_proj_qkvbfg_a.weight
        width = layer.local_projection_size

        def gate() -> torch.Tensor:
            return layer.g_b_proj(F.linear(hidden_states, weight[-128:]))[0]

        output, late = on(side("a"), gate)
        projected = F.linear(hidden_states, weight[:-128])
        qkv, beta, f_a = projected.split(
            [3 * width, layer.local_num_heads, 128], dim=-1
        )
        decay, early = on(side("b"), lambda: layer.f_b_proj(f_a)[0])
        shape = (1, -1, layer.local_num_heads, 128)
        core = _core(layer, hidden_states)
        fork = Fork(decay, output, [early], [late])
        layer._forward(
            qkv_proj_states=qkv,
            g1=decay.reshape(shape),
            beta=beta.unsqueeze(0),
            core_attn_out=core,
            fork=fork,
        )
        fork.join()
        core = layer.o_norm(core, output.reshape(shape[1:]))
        return layer.o_proj(core.reshape(core.size(1), -1))[0]

    for layer in layers:
        layer.forward = lambda hidden_states, positions, own=layer: forward(
            own, hidden_states, positions
        )
    try:
        yield
    finally:
        for layer in layers:
            del layer.forward


NAMES = [
    "base",
    *CUTS,
    "convolution-on-side",
    "convolution-on-side-batched",
    "gate-split-out",
]


def measure(
    chain: Any, kda: Any, tokens: int, rounds: int, names: list[str]
) -> dict[str, Any]:
    """Time the named cuts of one cell."""
    chain.batch(tokens)
    tree = chain.layers["tree"]
    STACKED.update(
        {
            id(layer.f_b_proj): torch.stack(
                [layer.f_b_proj.weight.data, layer.g_b_proj.weight.data]
            )
            for layer in tree
        }
    )
    start = chain.x.clone()
    graphs: dict[str, Any] = {}
    result: dict[str, Any] = {"tp": chain.tp, "tokens": tokens, "cuts": {}}
    expected: list[torch.Tensor] = []
    saved = kda.maybe_fork_gates
    for name in names:
        context: Any = contextlib.nullcontext()
        arm = "base" if name == "base" else "on"
        if CUTS.get(name) is not None:
            kda.maybe_fork_gates = CUTS[name]
        elif name.startswith("convolution-on-side"):
            context = conv_on_side(tree, kda, name.endswith("batched"))
        elif name == "gate-split-out":
            context = gate_split_out(tree)
        try:
            with context:
                graph, output = chain.capture(arm, keep=True)
        except Exception as problem:
            result["cuts"][name] = {"failed": f"{type(problem).__name__}: {problem}"}
            continue
        finally:
            kda.maybe_fork_gates = saved
        chain.reset()
        chain.x.copy_(start)
        graph.replay()
        torch.cuda.synchronize()
        got = [output.clone(), *chain.states()]
        if name == "base":
            expected = got
        graphs[name] = graph
        result["cuts"][name] = {
            "equal": all(torch.equal(a, b) for a, b in zip(expected, got, strict=True)),
            "graph": arms.graph_size(graph),
            "pool_bytes": arms.pool_bytes(graph),
            "us_per_layer": [],
        }
        result["cuts"][name]["base_now"] = arms.measure_us(
            graphs["base"].replay, 20, chain.depth
        )
        result["cuts"][name]["now"] = arms.measure_us(graph.replay, 20, chain.depth)
        del got
    for turn in range(rounds):
        for name in list(graphs) if turn % 2 == 0 else reversed(list(graphs)):
            value = arms.measure_us(graphs[name].replay, 20, chain.depth)
            result["cuts"][name]["us_per_layer"].append(round(value, 3))
    for name, found in result["cuts"].items():
        if found.get("us_per_layer"):
            found["median"] = statistics.median(found["us_per_layer"])
            found["single"] = arms.single_us(graphs[name].replay, chain.depth)
    result["clock_mhz"] = arms.clock_mhz()
    return result


def surroundings(chain: Any) -> list[list[Any]]:
    """Time the base's graph while the process fills with streams and graphs."""
    chain.batch(8)
    graph, _ = chain.capture("base", keep=True)
    chain.reset()
    rows: list[list[Any]] = []
    kept: list[Any] = []

    def note(what: str) -> None:
        rows.append(
            [
                what,
                round(arms.measure_us(graph.replay, 40, chain.depth), 3),
                round(arms.single_us(graph.replay, chain.depth), 3),
                arms.clock_mhz(),
            ]
        )
        print("surroundings:", *rows[-1], flush=True)

    from vllm.models.glm5next.common import kda_gate_overlap as overlap

    priority, overlap._PRIORITY = overlap._PRIORITY, 0
    note("base alone")
    note("base alone, again")
    for count in (1, 1, 2, 4, 8):
        for _ in range(count):
            kept.append(torch.cuda.Stream())
            with torch.cuda.stream(kept[-1]):
                torch.zeros(1, device="cuda")
        torch.cuda.synchronize()
        note(f"{len(kept)} other streams used")
    for arm in ("base", "base", "on", "on"):
        kept.append(chain.capture(arm, keep=True))
        kept[-1][0].replay()
        torch.cuda.synchronize()
        note(f"one more graph: {arm}")
    kept.append(torch.cuda.Stream(priority=-1))
    with torch.cuda.stream(kept[-1]):
        torch.zeros(1, device="cuda")
    torch.cuda.synchronize()
    note("a high-priority stream used")
    for _ in range(6):
        kept.append(chain.capture("base", keep=True))
        kept[-1][0].replay()
    torch.cuda.synchronize()
    note("six more graphs: base")
    overlap._PRIORITY = priority
    overlap._side_streams.clear()
    return rows


def eager(chain: Any, tokens: int) -> dict[str, float]:
    """Time eager layers, launch cost included: why eager stays sequential."""
    chain.batch(tokens)
    values: dict[str, list[float]] = {"base": [], "on": []}
    for arm in ("base", "on", "on", "base") * 5:
        values[arm].append(
            arms.measure_us(lambda arm=arm: chain.run(arm, "NONE"), 5, chain.depth)
        )
    return {arm: round(statistics.median(found), 2) for arm, found in values.items()}


def main() -> None:
    """Parse, measure, print one line a cell."""
    parse = argparse.ArgumentParser(description=__doc__)
    parse.add_argument("base_kda")
    parse.add_argument("out", nargs="?")
    parse.add_argument("--tp", type=int, nargs="+", default=[4, 2, 1])
    parse.add_argument("--tokens", type=int, nargs="+", default=[8, 1, 32, 128])
    parse.add_argument("--rounds", type=int, default=6)
    parse.add_argument("--cuts", nargs="+", default=NAMES, choices=NAMES)
    parse.add_argument("--surroundings", action="store_true")
    options = parse.parse_args()
    base = arms.load_base(options.base_kda)
    from vllm.models.glm5next.common import kda

    results = []
    rows: list[list[Any]] = []
    names = ["base", *(name for name in options.cuts if name != "base")]
    with arms.engine() as config:
        if options.surroundings:
            rows = surroundings(arms.Chain(config, base, 4, 8, seed=4))
        for tp in options.tp:
            chain = arms.Chain(config, base, tp, 8, seed=tp)
            for tokens in options.tokens:
                found = measure(chain, kda, tokens, options.rounds, names)
                if tokens == 8:
                    found["eager_us_per_layer"] = eager(chain, tokens)
                results.append(found)
                print(
                    f"TP {tp} M {tokens}: "
                    + ", ".join(
                        f"{name} {cut.get('median', cut.get('failed'))}"
                        f" ({cut.get('base_now', 0):.2f}: {cut.get('now', 0):.2f},"
                        f" single {cut.get('single', 0):.2f})"
                        + ("" if cut.get("equal", True) else " BITS DIFFER")
                        for name, cut in found["cuts"].items()
                    )
                    + f" eager {found.get('eager_us_per_layer')}",
                    flush=True,
                )
            del chain
            torch.cuda.empty_cache()
    document = {
        "cells": results,
        "surroundings": rows,
        "versions": arms.versions(),
    }
    if options.out:
        Path(options.out).write_text(json.dumps(document, indent=1, sort_keys=True))
    sys.stdout.flush()


if __name__ == "__main__":
    main()
