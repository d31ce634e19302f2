"""What `ci/gpu/watch.py` counts, around stand-ins for the base's modules."""

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

GPU = Path(__file__).parents[2] / "ci" / "gpu"


class State:
    """What the model is doing right now."""

    capturing = breakable = False
    mode = "NONE"


@pytest.fixture
def world(monkeypatch):
    """A vllm and a torch of the few names that are wrapped or asked."""

    def module(name: str, **names: object) -> ModuleType:
        made = ModuleType(name)
        vars(made).update(names)
        monkeypatch.setitem(sys.modules, name, made)
        return made

    class Graph:
        def capture_end(self):
            return "ended"

    class Layer:
        def forward(self, positions, hidden_states, residual=None):
            return hidden_states

    class Kda:
        def forward(self, hidden_states):
            return hidden_states

    now = State()
    cuda = SimpleNamespace(
        CUDAGraph=Graph, is_current_stream_capturing=lambda: now.capturing
    )
    module("torch", cuda=cuda)
    context = lambda: SimpleNamespace(  # noqa: E731
        cudagraph_runtime_mode=SimpleNamespace(name=now.mode)
    )
    module("vllm")
    module(
        "vllm.forward_context",
        get_forward_context=context,
        is_forward_context_available=lambda: True,
    )
    module("vllm.compilation")
    active = SimpleNamespace(is_active=lambda: now.breakable)
    module("vllm.compilation.breakable_cudagraph", BreakableCUDAGraphCapture=active)
    for name in ("", ".glm5next", ".glm5next.common", ".glm5next.nvidia"):
        module("vllm.models" + name)
    common = sys.modules["vllm.models.glm5next.common"]
    common.kda = module(common.__name__ + ".kda", Glm5NextLinearAttention=Kda)
    common.model = module(common.__name__ + ".model", Glm5NextDecoderLayer=Layer)
    nvidia = sys.modules["vllm.models.glm5next.nvidia"]
    writes = module(
        nvidia.__name__ + ".sparse_indexer", _kpool_compress_insert=lambda x: x + 1
    )
    nvidia.sparse_indexer = writes
    monkeypatch.syspath_prepend(str(GPU))
    import watch

    monkeypatch.setattr(watch, "nodes_being_recorded", lambda: 5)
    watch.install()
    yield SimpleNamespace(
        now=now, layer=Layer(), kda=Kda(), writes=writes, graph=Graph(), watch=watch
    )
    sys.modules.pop("watch")


def positions(tokens):
    return SimpleNamespace(shape=(tokens,))


def test_what_is_wrapped_answers_as_before(world):
    assert world.layer.forward(positions(8), "x") == "x"
    assert world.kda.forward(hidden_states="y") == "y"
    assert world.writes._kpool_compress_insert(1) == 2
    assert world.graph.capture_end() == "ended"
    assert world.watch.counts == {
        "prefill-writes": 1,
        "full-kda-calls": 0,
        "decode-layer-calls": 1,
        "graph-nodes": 5,
    }


@pytest.mark.parametrize(
    ("capturing", "breakable", "mode", "counted"),
    [
        (False, False, "FULL", 0),
        (True, False, "FULL", 1),
        (True, False, "NONE", 1),
        (True, False, "PIECEWISE", 0),
        (True, True, "FULL", 0),
    ],
)
def test_kda_layers_count_while_a_full_graph_records(
    world, capturing, breakable, mode, counted
):
    world.now.capturing, world.now.breakable = capturing, breakable
    world.now.mode = mode
    world.kda.forward("x")
    assert world.watch.counts["full-kda-calls"] == counted


@pytest.mark.parametrize(
    ("tokens", "breakable", "mode", "counted"),
    [
        (256, False, "NONE", 1),
        (257, False, "NONE", 0),
        (8, True, "PIECEWISE", 0),
        (8, True, "FULL", 1),
    ],
)
def test_decoder_layers_count_where_the_prefetch_may_open_windows(
    world, tokens, breakable, mode, counted
):
    world.now.breakable, world.now.mode = breakable, mode
    world.layer.forward(positions=positions(tokens), hidden_states="x")
    assert world.watch.counts["decode-layer-calls"] == counted


def test_a_driver_that_says_nothing_counts_no_nodes(world, monkeypatch):
    monkeypatch.undo()
    monkeypatch.setattr(
        world.watch.ctypes, "CDLL", lambda name: SimpleNamespace(__name__=name)
    )
    stream = SimpleNamespace(cuda_stream=0)
    torch = ModuleType("torch")
    torch.cuda = SimpleNamespace(current_stream=lambda: stream)
    monkeypatch.setitem(sys.modules, "torch", torch)
    assert world.watch.nodes_being_recorded() == 0
