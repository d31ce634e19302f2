"""Device time of a model's forwards (`ci/gpu/device_clock.py`), on a device that only
counts what is put on it."""

import gc
import itertools
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

GPU = Path(__file__).parents[2] / "ci" / "gpu"


class Glm5NextForCausalLM:
    """A model with torch's hooks."""

    def __init__(self):
        self.before, self.after = [], []

    def register_forward_pre_hook(self, hook):
        self.before.append(hook)

    def register_forward_hook(self, hook):
        self.after.append(hook)

    def __call__(self, work):
        for hook in self.before:
            hook(self, ())
        work()
        for hook in self.after:
            hook(self, (), None)


@pytest.fixture
def device(monkeypatch):
    """The stand-in for torch, and what its device was given, in order."""
    order, ticks = [], itertools.count()

    class Event:
        def __init__(self, enable_timing):
            assert enable_timing

        def record(self):
            order.append("event")
            self.at = next(ticks)

        def elapsed_time(self, end):
            return float(end.at - self.at)

    class Graph:
        def replay(self):
            order.append("graph")
            next(ticks)

    cuda = SimpleNamespace(
        Event=Event,
        CUDAGraph=Graph,
        synchronize=lambda: None,
        _sleep=lambda cycles: order.append("spin"),
    )
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))
    monkeypatch.syspath_prepend(str(GPU))
    import device_clock

    yield SimpleNamespace(clock=device_clock.DeviceClock, graph=Graph, order=order)
    sys.modules.pop("device_clock", None)
    gc.unfreeze()


def test_forwards_are_timed_apart_and_once(device):
    model, graph = Glm5NextForCausalLM(), device.graph()
    gc.freeze()  # as vLLM does when it has started
    clock = device.clock()
    model(lambda: None)
    graph.replay()
    graph.replay()
    found = clock.take()
    assert found == {"eager": [1.0], "replayed": [2.0, 2.0]}
    assert clock.take() == {"eager": [], "replayed": []}


def test_the_device_spins_before_the_first_event(device):
    model, graph = Glm5NextForCausalLM(), device.graph()
    clock = device.clock()
    model(lambda: device.order.append("work"))
    graph.replay()
    eager = ["spin", "event", "work", "event"]
    assert device.order == [*eager, "spin", "event", "graph", "event"]
    assert clock.take()


def test_without_one_model_there_is_no_clock(device):
    with pytest.raises(RuntimeError, match="0 models"):
        device.clock()
    both = Glm5NextForCausalLM(), Glm5NextForCausalLM()
    with pytest.raises(RuntimeError, match="2 models"):
        device.clock()
    assert both
