"""The gate that times whole models (`ci/gpu/model_speed.py`): with a stand-in for the
model its processes, and with made-up blocks its verdicts."""

import json
import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from stackctl.gates.rule.timed import halves

CI = Path(__file__).parents[2] / "ci"
STAND_IN = """
import os, time
from contextlib import contextmanager
slow = False
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
        time.sleep(0.02 if slow else 0.001)
@contextmanager
def engine(args):
    print("noise on stdout")
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
def gate(tmp_path):
    shutil.copytree(CI / "gpu", tmp_path / "ci" / "gpu")
    shutil.copytree(CI / "gates", tmp_path / "ci" / "gates")
    (tmp_path / "ci" / "gpu" / "tiny_glm.py").write_text(STAND_IN)
    (tmp_path / "ci" / "gpu" / "device_clock.py").write_text(CLOCK)
    for folder in ("site", "on"):
        (tmp_path / folder / "vllm").mkdir(parents=True)
        (tmp_path / folder / "vllm" / "__init__.py").write_text(
            "class SamplingParams:\n    def __init__(self, **k): pass\n"
        )

    def run(*arguments):
        command = [sys.executable, "ci/gpu/model_speed.py", "--site", "site", "--json"]
        done = subprocess.run(
            [*command, "--arm", "base", "--rounds", "2", *arguments],
            cwd=tmp_path,
            capture_output=True,
            text=True,
        )
        assert done.stdout, done.stderr
        return done.returncode, json.loads(done.stdout)

    return run


def test_every_block_has_the_base_at_both_ends(gate):
    arms = ("--arm", "on=on,SWITCH=1,COUNTED=3", "--expect", "on:m:n")
    code, document = gate(*arms, "--blocks", "2", "--gpus", "0,1")
    assert code == 7  # two blocks decide nothing
    assert len(document["blocks"]) == 2
    assert sorted(block["gpu"] for block in document["blocks"]) == ["0", "1"]
    for block in document["blocks"]:
        assert [s["arm"] for s in block["starts"]] == ["base", "on", "base"]
        for start in block["starts"]:
            assert len(start["samples_ms"]["prefill"]) == 8
            assert len(start["samples_ms"]["decode"]) == 2
    assert document["blocks"][0]["starts"][1]["counters"]["after"] == {"m:n": 3}


def test_an_arm_that_never_engaged_is_not_tested(gate):
    arms = ("--arm", "on=on,SWITCH=1", "--expect", "on:m:n")
    code, document = gate(*arms, "--blocks", "2", "--wave", "2")
    assert code == 8
    assert "on: m:n never counted" in document["reasons"]


def test_a_process_that_does_not_start_is_invalid_with_its_words(gate):
    arms = ("--arm", "on=on,SWITCH=1", "--model", "--crash 1")
    code, document = gate(*arms, "--blocks", "2")
    assert code == 9
    assert "on ended" in document["reasons"][0]
    assert "no engine" in document["reasons"][0]


@pytest.fixture
def judge(monkeypatch):
    monkeypatch.syspath_prepend(str(CI / "gpu"))
    monkeypatch.syspath_prepend(str(CI / "gates"))
    import model_speed

    yield model_speed.judge
    for name in ("model_speed", "model_arms", "tiny_glm", "device_clock", "_gate"):
        sys.modules.pop(name, None)


def _blocks(ratio, control=1.0, count=9, noise=0.001):
    rng = random.Random(1)

    def start(arm, level):
        return {
            "arm": arm,
            "samples_ms": {
                what: [level * (1 + rng.gauss(0, noise))]
                for what in ("prefill", "decode")
            },
        }

    return [
        {
            "starts": [
                start("base", 10.0),
                start("on", 10 * ratio),
                start("base", 10 * control),
            ]
        }
        for _ in range(count)
    ]


@pytest.mark.parametrize(
    ("ratio", "margin", "verdict"),
    [
        (0.9, 0.05, "qualified"),
        (0.9, 0.15, "rejected"),
        (1.0, -0.01, "qualified"),
        (1.02, -0.01, "rejected"),
        (0.95, 0.05, "insufficient-evidence"),
    ],
)
def test_verdicts(judge, ratio, margin, verdict):
    found = judge(_blocks(ratio), [("on", "prefill", margin)])
    assert found["verdict"] == verdict


def test_a_base_that_differs_from_itself_is_invalid(judge):
    found = judge(_blocks(0.9, control=1.03), [("on", "decode", 0.05)])
    assert found["verdict"] == "invalid"


def test_few_blocks_or_a_wide_control_decide_nothing(judge):
    claim = [("on", "decode", 0.05)]
    assert judge(_blocks(0.8, count=5), claim)["verdict"] == "insufficient-evidence"
    assert judge(_blocks(0.8, noise=0.2), claim)["verdict"] == "insufficient-evidence"


def test_a_unit_is_one_block_with_the_visits_in_order(gate, tmp_path):
    done = run_unit(tmp_path, "--rounds", "4", on={"COUNTED": "3"})
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout.splitlines()[-1])
    for what in ("prefill", "decode", "prefill-wall", "decode-wall"):
        cell = answer["samples"]["cells"][what]
        assert cell["order"] == ["base", "on", "on", "base"] * 2
        assert {name: len(v) for name, v in cell["values"].items()} == {
            "base": 4,
            "on": 4,
        }
    assert answer["engagement"] == {"on": {"expected": 1, "counted": 1}}


def test_a_units_control_is_one_process_of_the_base_against_the_other(gate, tmp_path):
    # One of the base's processes is slower: it has every visit of one side.
    done = run_unit(tmp_path, "--rounds", "8", base={"SLOW_SECOND": str(tmp_path)})
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout.splitlines()[-1])
    cells = answer["samples"]["cells"]
    for what in ("decode", "decode-wall"):
        fast, slow = sorted(halves(cells[what]["values"]["base"]))
        assert max(fast) < min(slow)
    assert cells["decode"]["values"]["on"] == [1.0] * 8


def test_a_units_rounds_are_shared_by_two_processes_of_the_base(gate, tmp_path):
    done = run_unit(tmp_path, "--rounds", "6")
    assert done.returncode == 2
    assert "a multiple of 4" in done.stderr


def run_unit(tmp_path, *arguments, **switches):
    told = {
        name: {
            "tree": "",
            "site": str(tmp_path / folder),
            "env": switches.get(name, {}),
        }
        for name, folder in (("on", "on"), ("base", "site"))
    }
    env = {"PATH": "/usr/bin:/bin", "STACKCTL_GATE_ARMS": json.dumps(told)}
    command = [sys.executable, "ci/gpu/model_speed.py", "--unit", "--expect=on:m:n"]
    return subprocess.run(
        [*command, *arguments], cwd=tmp_path, capture_output=True, text=True, env=env
    )
