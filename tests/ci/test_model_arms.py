"""The gate that compares whole models (`ci/gpu/model_arms.py`), with a small stand-in
for the model: what it starts, and what it makes of the answers."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

CI = Path(__file__).parents[2] / "ci"
# Answers as tiny_glm.py does; what it answers is in the arm's vllm/answer.json.
STAND_IN = """
import argparse, json, os, sys, time
p = argparse.ArgumentParser()
p.add_argument("--out"); p.add_argument("--counter", action="append", default=[])
p.add_argument("--eager", action="store_true"); p.add_argument("--crash")
p.add_argument("--sleep", type=float, default=0); p.add_argument("--crash-once")
a = p.parse_args()
if a.crash_once and os.path.isdir(os.path.dirname(a.crash_once)):
    try:
        open(a.crash_once, "x").close(); sys.exit("no memory")
    except FileExistsError:
        pass
root = os.environ["PYTHONPATH"].split(":")[0]
spec = json.load(open(root + "/vllm/answer.json"))
if a.crash and a.crash in spec["name"]:
    sys.exit("no engine")
time.sleep(a.sleep)
answers = [{"tokens": [1, t], "logprobs": [[[1, "0x1p-1"]], [[t, "0x1p-2"]]]}
           for t in spec["tokens"]]
json.dump({"answers": answers, "repeats": spec.get("repeats", [True, True]),
           "counters": {c: spec.get("counted", {}).get(c) for c in a.counter},
           "digest": str(spec["tokens"]),
           "gpu": os.environ.get("CUDA_VISIBLE_DEVICES")}, open(a.out, "w"))
"""


@pytest.fixture
def gate(tmp_path):
    shutil.copytree(CI / "gpu", tmp_path / "ci" / "gpu")
    shutil.copytree(CI / "gates", tmp_path / "ci" / "gates")
    (tmp_path / "ci" / "gpu" / "tiny_glm.py").write_text(STAND_IN)

    def answers(folder: str, **spec):
        (tmp_path / folder / "vllm").mkdir(parents=True, exist_ok=True)
        spec.setdefault("name", folder)
        (tmp_path / folder / "vllm" / "answer.json").write_text(json.dumps(spec))

    def run(*arguments):
        command = [sys.executable, "ci/gpu/model_arms.py", "--site", "site", "--json"]
        done = subprocess.run(
            [*command, "--least-s", "0", *arguments],
            cwd=tmp_path,
            capture_output=True,
            text=True,
        )
        assert done.stdout, done.stderr
        return done.returncode, json.loads(done.stdout)

    answers("site", tokens=[3, 4])
    return answers, run


ARMS = ("--arm", "base", "--arm", "on=on,SWITCH=1")


def test_equal_answers_of_an_engaged_arm_qualify(gate):
    answers, run = gate
    answers("on", tokens=[3, 4], counted={"m:n": 2})
    code, document = run(*ARMS, "--expect", "on:m:n", "--config", "e:--eager")
    assert (code, document["verdict"]) == (0, "qualified")
    assert document["configs"]["e"]["prompts_compared"] == [0, 1]


def test_a_difference_rejects_and_says_where(gate):
    answers, run = gate
    answers("on", tokens=[3, 5], counted={"m:n": 2})
    code, document = run(*ARMS, "--expect", "on:m:n", "--config", "e:")
    assert code == 1
    arm = document["configs"]["e"]["arms"]["on"]
    assert arm["difference"] == "prompt 1, step 1, tokens"


def test_a_difference_where_the_base_does_not_repeat_itself_is_not_judged(gate):
    answers, run = gate
    answers("site", tokens=[3, 4], repeats=[True, False])
    answers("on", tokens=[3, 5])
    code, document = run(*ARMS, "--config", "e:")
    assert code == 0
    assert document["configs"]["e"]["prompts_not_repeated_by_the_reference"] == [1]


@pytest.mark.parametrize("counted", [0, None])
def test_an_arm_that_never_engaged_is_not_tested(gate, counted):
    answers, run = gate
    answers("on", tokens=[3, 4], counted={"m:n": counted})
    code, document = run(*ARMS, "--expect", "on:m:n", "--config", "e:")
    assert (code, document["verdict"]) == (8, "not-tested")


def test_an_arm_that_engaged_where_it_must_not_is_rejected(gate):
    answers, run = gate
    answers("on", tokens=[3, 4], counted={"m:n": 1})
    ask = ("--expect", "on@graphs:m:n", "--forbid", "on@eager:m:n")
    code, document = run(*ARMS, *ask, "--config", "graphs:", "--config", "eager:")
    assert code == 1
    assert document["configs"]["graphs"]["verdict"] == "qualified"
    assert document["configs"]["eager"]["verdict"] == "rejected"


def test_without_a_reference_the_other_arms_are_not_started(gate):
    answers, run = gate
    answers("on", tokens=[3, 4])
    code, document = run(*ARMS, "--config", "a:--crash site", "--config", "b:")
    assert code == 8
    assert document["configs"]["a"]["reason"] == "the reference did not run"
    assert document["configs"]["a"]["arms"]["on"]["failed"] == (
        "the reference did not run"
    )
    assert document["configs"]["b"]["verdict"] == "qualified"


def test_an_arm_that_crashes_is_invalid_and_its_log_is_kept(gate):
    answers, run = gate
    answers("on", tokens=[3, 4])
    code, document = run(*ARMS, "--config", "a:--crash on")
    assert (code, document["verdict"]) == (9, "invalid")
    assert "no engine" in document["configs"]["a"]["arms"]["on"]["failed"]


def test_what_there_was_no_time_for_is_not_tested(gate):
    answers, run = gate
    answers("on", tokens=[3, 4])
    limits = ("--timeout", "6", "--config", "a:--sleep 30", "--config", "b:")
    code, document = run(*ARMS, *limits)
    assert code == 8
    assert "its limit" in document["configs"]["a"]["arms"]["base"]["failed"]
    assert document["configs"]["b"]["verdict"] == "qualified"


def test_gpus_and_chosen_arms(gate):
    answers, run = gate
    answers("on", tokens=[3, 4])
    answers("off", tokens=[3, 4])
    more = ("--arm", "off=off", "--gpus", "4,7", "--parallel", "1")
    code, document = run(*ARMS, *more, "--config", "a=off:", "--config", "b:")
    assert code == 0
    assert set(document["configs"]["a"]["arms"]) == {"base", "off"}
    assert set(document["configs"]["b"]["arms"]) == {"base", "on", "off"}
    used = {
        arm["gpu"]
        for config in document["configs"].values()
        for arm in config["arms"].values()
    }
    assert used == {"4", "7"}


@pytest.fixture
def unit(gate, tmp_path):
    answers, _ = gate

    def run(arms, *arguments):
        told = {
            name: {"tree": "", "site": str(tmp_path / folder), "env": {}}
            for name, folder in arms.items()
        }
        env = {"PATH": "/usr/bin:/bin", "STACKCTL_GATE_ARMS": json.dumps(told)}
        command = [sys.executable, "ci/gpu/model_arms.py", "--unit", "--least-s", "0"]
        done = subprocess.run(
            [*command, *arguments],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            env=env,
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1])

    return answers, run


UNIT = {"on": "on", "base": "site"}


def test_a_unit_gives_a_case_for_each_prompt_and_what_was_counted(unit):
    answers, run = unit
    answers("on", tokens=[3, 5], counted={"m:n": 2})
    answer = run(UNIT, "--expect", "on:m:n", "--config", "e:--eager")
    cases = {case["id"]: case for case in answer["samples"]["cases"]}
    assert set(cases) == {f"e, {a}, prompt {n}" for a in ("base", "on") for n in (0, 1)}
    assert cases["e, on, prompt 0"]["equal"]
    assert cases["e, on, prompt 0"]["elements"] == 4
    # One token and one log-probability of four.
    assert not cases["e, on, prompt 1"]["equal"]
    assert cases["e, on, prompt 1"]["differing"] == 2
    assert answer["engagement"] == {"on": {"expected": 1, "counted": 1}}


def test_a_unit_refuses_what_shows_nothing(unit):
    answers, run = unit
    answers("on", tokens=[3, 4], counted={"m:n": 1})
    stop = run(UNIT, "--forbid", "on:m:n", "--config", "e:")["stop"]
    assert stop["verdict"] == "rejected"
    stop = run(UNIT, "--config", "e:--crash site")["stop"]
    assert stop["verdict"] == "not-tested" and "no engine" in stop["reason"]
    stop = run({"on": "on", "base": "nowhere"}, "--config", "e:")["stop"]
    assert stop["verdict"] == "not-tested"


def test_a_unit_names_what_it_left_out(unit, tmp_path):
    answers, run = unit
    answers("site", tokens=[3, 4], repeats=[True, False])
    answers("on", tokens=[3, 4])
    answer = run(UNIT, "--config", "e:")
    assert len(answer["samples"]["cases"]) == 2
    assert any("does not repeat itself" in note for note in answer["notes"])
    stop = run(UNIT, "--config", "e:", "--config", "f:--crash site")["stop"]
    assert stop["reason"].endswith("0 differ; left out: f (no engine)")


def test_a_unit_counts_an_arm_that_ends_twice_as_different(unit):
    answers, run = unit
    answers("on", tokens=[3, 4])
    answer = run(UNIT, "--config", "e:--crash on")
    cases = {case["id"]: case for case in answer["samples"]["cases"]}
    assert cases["e, base, prompt 0"]["equal"]
    for n in (0, 1):
        lost = cases[f"e, on, prompt {n}"]
        assert not lost["equal"]
        assert lost["differing"] == lost["elements"] == 4
    assert any("started twice: no engine" in note for note in answer["notes"])


def test_a_process_that_ends_is_started_again_alone(unit, tmp_path):
    answers, run = unit
    answers("on", tokens=[3, 4])
    answer = run(UNIT, "--config", f"e:--crash-once {tmp_path / 'once'}")
    assert all(case["equal"] for case in answer["samples"]["cases"])
    assert "extra" in answer and answer["notes"]


def test_a_unit_without_time_for_everything_decides_nothing(unit, tmp_path):
    answers, run = unit
    answers("on", tokens=[3, 4])
    late = ("--timeout", "4", "--config", "f:--sleep 60")
    stop = run(UNIT, "--config", "e:", *late)["stop"]
    assert stop["verdict"] == "not-tested"
    assert stop["reason"].startswith("4 prompts were compared, 0 differ; left out: f (")
    assert "its limit" in stop["reason"]
