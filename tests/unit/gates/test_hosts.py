"""Which GPUs a run on this machine takes, and how many units run at once."""

import threading
import uuid
from contextlib import ExitStack

import pytest

from stackctl.gates.hosts import Room, hold_gpus
from stackctl.gates.model import load_gate
from stackctl.gates.process import Stopped
from stackctl.gates.snapshot import Gpu, gpu_lock

GATE = """
schema = 1
kind = "parity"
title = "t"
script = "a.py"
[needs]
gpus = {gpus}
gpu_memory_mib = 1000
"""


@pytest.fixture
def machine():
    """Three GPUs that no other test knows; the first is too small."""
    name = uuid.uuid4().hex[:8]
    sizes = (500, 2000, 2000)
    return [Gpu(n, f"GPU-{name}-{n}", "x", "1", size) for n, size in enumerate(sizes)]


@pytest.fixture
def gate(tmp_path):
    def make(gpus: int):
        path = tmp_path / "gate.toml"
        path.write_text(GATE.format(gpus=gpus))
        return load_gate(path)

    return make


def taken(gate, gpus, first=()):
    with hold_gpus(gate, gpus, first) as held:
        return [gpu.index for gpu in held]


def test_a_gpu_that_fits_and_is_free(machine, gate):
    assert taken(gate(1), machine) == [1]
    assert taken(gate(2), machine) == [1, 2]
    assert taken(gate(0), machine) == []
    with gpu_lock(machine[1].uuid):
        assert taken(gate(1), machine) == [2]
    assert taken(gate(1), machine) == [1]


def test_two_runs_take_two_gpus(machine, gate):
    with hold_gpus(gate(1), machine) as one, hold_gpus(gate(1), machine) as other:
        assert [gpu.index for gpu in (*one, *other)] == [1, 2]


def test_an_interrupted_run_gets_its_gpu_again(machine, gate):
    assert taken(gate(1), machine, [machine[2].uuid]) == [2]
    # Not one that is gone, or too small by now.
    assert taken(gate(1), machine, ["GPU-gone"]) == [1]
    assert taken(gate(1), machine, [machine[0].uuid]) == [1]


def test_held_gpus_are_waited_for(machine, gate):
    found: list[list[int]] = []

    class Told:
        def __init__(self) -> None:
            self.waits = threading.Event()

        def update(self, phase: str, done: int, total: int | None) -> None: ...

        def note(self, message: str) -> None:
            self.waits.set()

    told = Told()

    def other() -> None:
        with hold_gpus(gate(2), machine, progress=told) as held:
            found.append([gpu.index for gpu in held])

    thread = threading.Thread(target=other)
    with gpu_lock(machine[2].uuid):
        thread.start()
        assert told.waits.wait(60)
        # Nothing is kept while it waits out of order: who needs the other one is last.
        assert found == []
    thread.join(60)
    assert found == [[1, 2]]


def test_units_are_bounded_and_a_waiting_one_can_be_stopped():
    room = Room(2)
    stop = threading.Event()
    with ExitStack() as stack:
        stack.enter_context(room.place(stop))
        stack.enter_context(room.place(stop))
        stop.set()
        with pytest.raises(Stopped), room.place(stop):
            raise AssertionError
    with room.place(threading.Event()), room.place(threading.Event()):
        pass
