"""The gate that compares whole models (`ci/gpu/model_arms.py`), with a small stand-in
for the model: what it starts, and what it makes of the answers."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from gating import unit_environment

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
           "watched": {"calls": 4, "graph-nodes": 0 if a.eager else spec["nodes"]},
           "digest": str(spec["tokens"])}, open(a.out, "w"))
"""


@pytest.fixture
def unit(tmp_path):
    shutil.copytree(CI / "gpu", tmp_path / "ci" / "gpu")
    shutil.copytree(CI / "gates", tmp_path / "ci" / "gates")
    (tmp_path / "ci" / "gpu" / "tiny_glm.py").write_text(STAND_IN)

    def answers(folder: str, **spec):
        (tmp_path / folder / "vllm").mkdir(parents=True, exist_ok=True)
        spec = {"name": folder, "nodes": 50} | spec
        (tmp_path / folder / "vllm" / "answer.json").write_text(json.dumps(spec))

    def run(arms, *arguments):
        told = {
            name: {"tree": "", "site": str(tmp_path / folder), "env": {}}
            for name, folder in arms.items()
        }
        out = tmp_path / "answer.json"
        command = [sys.executable, "ci/gpu/model_arms.py", "--least-s", "0"]
        done = subprocess.run(
            [*command, *arguments],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            env=unit_environment(tmp_path, told, out),
        )
        assert done.returncode == 0, done.stderr
        return json.loads(out.read_text())

    answers("site", tokens=[3, 4])
    return answers, run


ARMS = {"on": "on", "base": "site"}


def test_a_unit_gives_a_case_for_each_prompt_and_what_was_counted(unit):
    answers, run = unit
    answers("on", tokens=[3, 5], counted={"m:n": 2}, nodes=60)
    asked = ("--expect", "on:m:n", "--config", "e:--eager", "--config", "g:")
    answer = run(ARMS, *asked)
    cases = {case["id"]: case for case in answer["samples"]["cases"]}
    assert set(cases) == {
        f"{c}, {a}, prompt {n}" for c in "eg" for a in ("base", "on") for n in (0, 1)
    }
    assert cases["e, on, prompt 0"]["equal"]
    assert cases["e, on, prompt 0"]["elements"] == 4
    # One token and one log-probability of four.
    assert not cases["e, on, prompt 1"]["equal"]
    assert cases["e, on, prompt 1"]["differing"] == 2
    engaged = {"expected": 2, "counted": 2, "captured_nodes": 60}
    assert answer["engagement"] == {"on": engaged}
    figures = answer["extra"]["arms"]["g"]
    assert (figures["base"]["graph nodes"], figures["on"]["graph nodes"]) == (50, 60)
    assert figures["on"]["digest"] == "[3, 5]"


@pytest.mark.parametrize("counted", [0, None])
def test_an_arm_that_never_engaged_shows(unit, counted):
    answers, run = unit
    answers("on", tokens=[3, 4], counted={"m:n": counted})
    answer = run(ARMS, "--expect", "on:m:n", "--config", "e:")
    assert answer["engagement"]["on"]["expected"] == 1
    assert answer["engagement"]["on"]["counted"] == 0


@pytest.mark.parametrize(("counted", "exact"), [(12, True), (11, False), (13, False)])
def test_a_counter_has_to_be_what_the_base_did_so_many_times(unit, counted, exact):
    answers, run = unit
    answers("on", tokens=[3, 4], counted={"m:n.o": counted, "m:p": 4})
    answer = run(
        ARMS,
        *("--expect", "on:m:n.o=3*calls", "--expect", "on@g*:m:p=calls"),
        *("--config", "e:--eager"),
    )
    engaged = answer["engagement"]["on"]
    assert (engaged["expected"], engaged["counted"]) == (12, counted)
    assert any("n.o: " in note for note in answer["notes"]) is not exact


def test_where_it_must_not_engage_it_is_rejected(unit):
    answers, run = unit
    answers("on", tokens=[3, 4], counted={"m:n": 1})
    asked = ("--expect", "on@graphs:m:n", "--forbid", "on@eager:m:n")
    assert "samples" in run(ARMS, *asked, "--config", "graphs:")
    stop = run(ARMS, *asked, "--config", "graphs:", "--config", "eager:")["stop"]
    assert stop == {
        "verdict": "rejected",
        "reason": "eager, on: counted although it is off: m:n",
    }


def test_a_unit_refuses_what_shows_nothing(unit):
    answers, run = unit
    answers("on", tokens=[3, 4], counted={"m:n": 1})
    stop = run(ARMS, "--config", "e:--crash site")["stop"]
    assert stop["verdict"] == "not-tested" and "no engine" in stop["reason"]
    stop = run({"on": "on", "base": "nowhere"}, "--config", "e:")["stop"]
    assert stop["verdict"] == "not-tested"
    stop = run(ARMS, "--expect", "of:m:n", "--config", "e:")["stop"]
    assert stop["verdict"] == "invalid"
    answers("site", tokens=[3, 4], repeats=[False, False])
    stop = run(ARMS, "--config", "e:")["stop"]
    assert "repeats none of its answers" in stop["reason"]


def test_chosen_arms_run_beside_the_base(unit):
    answers, run = unit
    answers("on", tokens=[3, 4])
    answers("off", tokens=[3, 4])
    found = run(ARMS | {"off": "off"}, "--config", "a=off:", "--config", "b:")
    assert set(found["extra"]["arms"]["a"]) == {"base", "off"}
    assert set(found["extra"]["arms"]["b"]) == {"base", "on", "off"}
    assert found["engagement"] == {}


def test_a_unit_names_what_it_left_out(unit, tmp_path):
    answers, run = unit
    answers("site", tokens=[3, 4], repeats=[True, False])
    answers("on", tokens=[3, 4])
    answer = run(ARMS, "--config", "e:")
    assert len(answer["samples"]["cases"]) == 2
    assert any("does not repeat it" in note for note in answer["notes"])
    stop = run(ARMS, "--config", "e:", "--config", "f:--crash site")["stop"]
    assert stop["reason"].endswith("0 differ; left out: f (no engine)")
    kept = json.loads((tmp_path / "partial.json").read_text())
    assert len(kept["samples"]["cases"]) == 2


def test_a_unit_counts_an_arm_that_ends_twice_as_different(unit):
    answers, run = unit
    answers("on", tokens=[3, 4])
    answer = run(ARMS, "--config", "e:--crash on")
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
    answer = run(ARMS, "--config", f"e:--crash-once {tmp_path / 'once'}")
    assert all(case["equal"] for case in answer["samples"]["cases"])
    assert "extra" in answer and answer["notes"]


def test_a_unit_without_time_for_everything_decides_nothing(unit):
    answers, run = unit
    answers("on", tokens=[3, 4])
    late = ("--timeout", "8", "--config", "f:--sleep 600")
    stop = run(ARMS, "--config", "e:", *late)["stop"]
    assert stop["verdict"] == "not-tested"
    assert stop["reason"].startswith("4 prompts were compared, 0 differ; left out: f (")
    assert "its limit" in stop["reason"]
