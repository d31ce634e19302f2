"""The gate that times whole models (`ci/gpu/model_speed.py`), with a stand-in for the
model: its processes, their turns, and what their counters have to be."""

import json
import shutil
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import ClassVar

import pytest
from gating import unit_environment

from stackctl.gates.rule.timed import halves

CI = Path(__file__).parents[2] / "ci"
STAND_IN = """
import os, time
import watch
from contextlib import contextmanager
slow = False
clock = 0.0
time.perf_counter = lambda: clock  # a busy machine's own would be late at times
if place := os.environ.get("SLOW_SECOND"):
    try:
        open(place + "/first", "x")
    except FileExistsError:
        slow = True
def add_model_options(p):
    p.add_argument("--crash")
class Engine:
    def generate(self, prompts, sampling, use_tqdm):
        assert len(prompts) in (1, 8)
        global clock
        watch.counts["prefill-writes"] += 1
        clock += 0.02 if slow else 0.001
@contextmanager
def engine(args):
    print("noise on stdout")
    watch.counts["graph-nodes"] += 7
    if args.crash == os.environ.get("SWITCH", "none"):
        raise SystemExit("no engine")
    yield Engine(), 0.1
def prompts(lengths, seed):
    return [{"prompt_token_ids": [seed] * n} for n in lengths]
def counters(names):
    return {n: int(os.environ.get("COUNTED", "0")) for n in names}
"""


CLOCK = """
import tiny_glm
class DeviceClock:
    def take(self):
        ms = 20.0 if tiny_glm.slow else 1.0
        return {"eager": [ms], "replayed": [ms] * 63}
"""


@pytest.fixture
def run(tmp_path):
    """Be a unit over two arms; what it answered, or its complaint."""
    shutil.copytree(CI / "gpu", tmp_path / "ci" / "gpu")
    shutil.copytree(CI / "gates", tmp_path / "ci" / "gates")
    (tmp_path / "ci" / "gpu" / "tiny_glm.py").write_text(STAND_IN)
    (tmp_path / "ci" / "gpu" / "device_clock.py").write_text(CLOCK)
    for folder in ("site", "on"):
        (tmp_path / folder / "vllm").mkdir(parents=True)
        (tmp_path / folder / "vllm" / "__init__.py").write_text(
            "class SamplingParams:\n    def __init__(self, **k): pass\n"
        )

    def run(*arguments, **switches):
        told = {
            name: {
                "tree": "",
                "site": str(tmp_path / folder),
                "env": switches.get(name, {}),
            }
            for name, folder in (("on", "on"), ("base", "site"))
        }
        out = tmp_path / "answer.json"
        done = subprocess.run(
            [sys.executable, "ci/gpu/model_speed.py", *arguments],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            env=unit_environment(tmp_path, told, out),
        )
        if done.returncode:
            return done.returncode, done.stderr
        return 0, json.loads(out.read_text())

    return run


# Two visits that warm up, then four: five answers a visit.
CALLS = 5 * (2 + 4)


@pytest.mark.parametrize("counted", [CALLS, CALLS - 1])
def test_a_unit_is_one_block_with_the_visits_in_order(run, counted):
    switches = {"COUNTED": str(counted)}
    code, answer = run("--expect=on:m:n=prefill-writes", on=switches)
    assert code == 0
    for what in ("prefill", "decode", "prefill-wall", "decode-wall"):
        cell = answer["samples"]["cells"][what]
        assert cell["order"] == ["base", "on", "on", "base"] * 2
        assert {name: len(v) for name, v in cell["values"].items()} == {
            "base": 4,
            "on": 4,
        }
    seen = answer["extra"]["replays ms"]
    assert seen["on"] == [[63, 1.0, 1.0, 1.0]] * 4
    assert len(seen["base"]) == len(seen["base, the other process"]) == 2
    # The base was visited half as often, and says what four visits take.
    assert answer["engagement"] == {
        "on": {"expected": CALLS, "counted": counted, "captured_nodes": 7}
    }


def test_a_unit_s_control_is_one_process_of_the_base_against_the_other(run, tmp_path):
    # One of the base's processes is slower: it has every visit of one side.
    slow = {"SLOW_SECOND": str(tmp_path)}
    code, answer = run("--rounds", "8", base=slow)
    assert code == 0
    cells = answer["samples"]["cells"]
    for what in ("decode", "decode-wall"):
        fast, slow = sorted(halves(cells[what]["values"]["base"]))
        assert max(fast) < min(slow)
    assert cells["decode"]["values"]["on"] == [1.0] * 8
    assert answer["engagement"] == {}


def test_a_unit_s_rounds_are_shared_by_two_processes_of_the_base(run):
    code, complaint = run("--rounds", "6")
    assert code == 2 and "a multiple of 4" in complaint


def test_a_process_that_does_not_start_is_invalid_with_its_words(run):
    _, answer = run("--model", "--crash 1", on={"SWITCH": "1"})
    assert answer["stop"]["verdict"] == "invalid"
    assert "on ended" in answer["stop"]["reason"]
    assert "no engine" in answer["stop"]["reason"]


class Driver:
    """The tree's driver calls, written down."""

    said: ClassVar[list] = []

    @contextmanager
    def primary_context(self, ordinal):
        self.said.append("push")
        yield
        self.said.append("pop")

    def set_persisting_l2(self, nbytes):
        self.said.append(nbytes)

    def _call(self, name):
        self.said.append(name)


def test_a_set_aside_is_there_only_during_a_visit(monkeypatch):
    monkeypatch.syspath_prepend(str(CI / "gpu"))
    monkeypatch.syspath_prepend(str(CI / "gates"))
    import model_speed

    monkeypatch.setattr(Driver, "said", [])
    with model_speed.set_aside():  # no prefetcher in this process
        assert Driver.said == []
    made = SimpleNamespace(set_aside=SimpleNamespace(before=3, applied=10))
    owner = SimpleNamespace(_instances={"cuda:0": made})
    module = SimpleNamespace(L2Prefetcher=owner, CudaDriver=Driver)
    name = "vllm.models.glm5next.nvidia.l2_prefetch"
    monkeypatch.setitem(sys.modules, name, module)
    reset = "cuCtxResetPersistingL2Cache"
    with model_speed.set_aside():
        assert Driver.said == ["push", 10, reset, "pop"]
    assert Driver.said[4:] == ["push", 3, reset, "pop"]
    made.set_aside = None
    with model_speed.set_aside():
        assert len(Driver.said) == 8
    for name in ("model_speed", "model_arms", "tiny_glm", "device_clock", "watch"):
        sys.modules.pop(name, None)
