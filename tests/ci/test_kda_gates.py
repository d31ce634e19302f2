"""What the KDA gates make of what their process measured; no GPU, no vLLM."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

GATES = Path(__file__).resolve().parents[2] / "ci" / "gates"
sys.path.insert(0, str(GATES))

import _unit  # noqa: E402
import kda_overlap_speed as speed  # noqa: E402
import kda_parity as parity  # noqa: E402
import kda_process  # noqa: E402

from stackctl.gates.rule.timed import halves  # noqa: E402

ARMS = ("base", "off", "on")


def speed_cell(tp: int = 4, tokens: int = 8, *, last: bool = False) -> dict[str, Any]:
    def taken(arms: tuple[str, ...]) -> list[list[Any]]:
        return [[arm, 40.0] for arm in kda_process.turns(arms, 1)]

    both = ("both", "both-all") if last else ()
    arms = (*ARMS, *both)
    forks = dict.fromkeys(arms, speed.DEPTH) | {"base": 0, "off": 0}
    prefetches = dict.fromkeys(ARMS, 0) | dict.fromkeys(both, speed.DEPTH)
    return {
        "tp": tp,
        "tokens": tokens,
        "samples_us_per_layer": taken(ARMS),
        "beside_other_stream_us_per_layer": taken(ARMS) if last else [],
        "both_us_per_layer": taken(("base", "on", *both)) if last else [],
        "base_alone_us_per_layer": [40.0],
        "single_us_per_layer": dict.fromkeys(ARMS, 50.0),
        "equal": dict.fromkeys(arms, True),
        "clock_mhz": [1980.0, 1980.0],
        "engaged": {
            arm: {
                "forks": forks[arm],
                "captured_forks": forks[arm],
                "sequential": 0,
                "prefetches": prefetches[arm],
            }
            for arm in arms
        },
        "graph": {arm: {"nodes": 56 + prefetches[arm], "edges": 55} for arm in arms},
        "pool_bytes": dict.fromkeys(arms, 0),
    }


def refused(cells: list[dict[str, Any]], module: Any) -> tuple[str, str]:
    with pytest.raises(_unit.Stop) as caught:
        module.answer(cells)
    return caught.value.verdict, caught.value.reason


def test_each_cell_keeps_its_samples_in_their_order() -> None:
    found = speed.answer([speed_cell(), speed_cell(2), speed_cell(last=True)])
    cells = found.samples["cells"]
    assert set(cells) == {
        *("tp4/8", "tp2/8", "tp4/8/later", "tp4/8/other-stream", "tp4/8/prefetch"),
    }
    assert cells["tp4/8"]["order"] == ["on", "off", "base", "base", "off", "on"]
    assert cells["tp4/8"]["values"] == {arm: [40.0, 40.0] for arm in ARMS}
    arms = {"base", "on", "both", "both-all"}
    assert set(cells["tp4/8/prefetch"]["values"]) == arms
    assert set(found.extra) == {"tp4/8", "tp2/8", "tp4/8/later"}
    depth = speed.DEPTH
    both = {"expected": 2 * depth, "counted": 2 * depth, "captured_nodes": 56 + depth}
    assert found.engagement == {
        "on": {"expected": 3 * depth, "counted": 3 * depth, "captured_nodes": 3 * 56},
        "both": both,
        "both-all": both,
    }


def test_levels_that_a_fork_draws_anew_do_not_show_in_the_control() -> None:
    arms, levels = list(ARMS), [41.66, 40.95, 41.66, 41.66, 40.95, 40.95, 40.95, 41.66]
    order = kda_process.turns(arms, len(levels))
    draws, level = iter(levels), 0.0
    base: list[float] = []
    for before, arm in zip(["on", *order], order, strict=False):
        if before == "on" != arm:
            level = next(draws)
        if arm == "base":
            base.append(level)
    assert next(draws, None) is None
    one, two = halves(base)
    assert one == two == levels


def test_arms_beside_the_pair_bring_the_switches_of_their_prefetch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []

    def run(task: _unit.Task, what: str, *arguments: str) -> dict[str, Any]:
        told.extend(arguments)
        return {"cells": [speed_cell()]}

    monkeypatch.setattr(kda_process, "run", run)
    task = a_task(tmp_path, site=True, layer=True)
    speed.measure(task, ["4:8"])
    assert not [word for word in told if word.startswith("--both")]
    switch = {kda_process.SWITCH: "1"}
    task.env.update({"base": {}, "off": {}, "on": switch, "both": switch | {"A": "24"}})
    speed.measure(task, ["4:8"])
    (both,) = (word for word in told if word.startswith("--both="))
    assert json.loads(both.removeprefix("--both=")) == {"both": {"A": "24"}}


def test_missing_forks_show_in_the_counts() -> None:
    cell = speed_cell()
    cell["engaged"]["on"]["captured_forks"] -= 1
    found = speed.answer([cell]).engagement["on"]
    assert found["expected"] == speed.DEPTH == found["counted"] + 1


def test_no_time_of_other_bits_or_of_a_switch_that_does_nothing() -> None:
    cell = speed_cell()
    cell["equal"]["on"] = False
    assert refused([cell], speed) == ("rejected", "tp4/8: other bits from on")
    cell = speed_cell()
    cell["engaged"]["off"]["forks"] = 1
    assert refused([cell], speed)[0] == "rejected"
    cell = speed_cell(last=True)
    cell["graph"]["both"]["nodes"] -= 1
    assert refused([cell], speed) == ("not-tested", "tp4/8, both: nodes are missing")


def parity_cell() -> dict[str, Any]:
    def arm(forks: int, edges: int | None) -> dict[str, Any]:
        return {
            "equal": True,
            "elements": 10,
            "differing": 0,
            "finite": True,
            "engaged": {"forks": forks, "captured_forks": forks, "sequential": 0},
            "graph": None if edges is None else {"nodes": 21, "edges": edges},
        }

    arms = {
        f"{name}/{way}": arm(
            parity.DEPTH if (name, way) == ("on", "graph") else 0,
            None if way == "eager" else 30 if name == "on" else 20,
        )
        for name in ARMS
        for way in ("eager", "graph")
    }
    return {"tp": 4, "tokens": 8, "distinct": 3, "arms": arms}


def test_parity_has_a_case_for_each_arm_and_counts_its_forks() -> None:
    found = parity.answer([parity_cell(), parity_cell() | {"tokens": 1}])
    assert len(found.samples["cases"]) == 12
    assert all(case["equal"] for case in found.samples["cases"])
    assert found.engagement["on"] == {
        "expected": 2 * parity.DEPTH,
        "counted": 2 * parity.DEPTH,
        "captured_nodes": 42,
    }
    cell = parity_cell()
    cell["arms"]["on/eager"] |= {"equal": False, "differing": 3}
    cases = parity.answer([cell]).samples["cases"]
    assert [c["id"] for c in cases if not c["equal"]] == ["TP 4, 8 tokens, on/eager"]


@pytest.mark.parametrize(
    ("arm", "change", "verdict"),
    [
        (None, {"distinct": 1}, "invalid"),
        ("on/graph", {"finite": False}, "invalid"),
        ("on/graph", {"graph": {"nodes": 21, "edges": 20}}, "not-tested"),
        ("on/graph", {"graph": {"nodes": 22, "edges": 30}}, "not-tested"),
        ("off/eager", {"engaged": {"forks": 1}}, "rejected"),
    ],
)
def test_a_run_that_shows_nothing_is_refused(
    arm: str | None, change: dict[str, Any], verdict: str
) -> None:
    cell = parity_cell()
    (cell if arm is None else cell["arms"][arm]).update(change)
    assert refused([cell], parity)[0] == verdict


def a_task(tmp_path: Path, *, site: bool, layer: bool) -> _unit.Task:
    folder = tmp_path / "vllm"
    folder.mkdir()
    if site:
        (folder / "_C.abi3.so").write_text("")
    if layer:
        path = tmp_path / kda_process.KDA
        path.parent.mkdir(parents=True)
        path.write_text("")
    places = dict.fromkeys(("base", "on"), tmp_path)
    return _unit.Task(0, 1, 0, places, places, {}, tmp_path)


def test_where_the_layers_cannot_run_nothing_is_started(tmp_path: Path) -> None:
    with pytest.raises(_unit.Stop, match="no vLLM with compiled") as caught:
        kda_process.run(a_task(tmp_path, site=False, layer=True), "parity")
    assert caught.value.verdict == "not-tested"


def test_a_tree_without_the_layer_is_named(tmp_path: Path) -> None:
    with pytest.raises(_unit.Stop, match="the arm on has no vllm/models"):
        kda_process.run(a_task(tmp_path, site=True, layer=False), "parity")


def test_the_process_s_last_object_is_its_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = a_task(tmp_path, site=True, layer=True)
    script = tmp_path / "kda_arms.py"
    monkeypatch.setattr(kda_process, "HERE", tmp_path)
    monkeypatch.setenv(kda_process.SWITCH, "1")
    script.write_text(
        "import json, os, sys\nprint('{not this}')\n"
        "print(json.dumps({'argv': sys.argv[1:], 'switch': os.environ.get("
        f"{kda_process.SWITCH!r}), 'first': os.environ['PYTHONPATH'].split(':')[0]}}))"
    )
    found = kda_process.run(task, "speed", "--cells", "4:8")
    base = str(tmp_path / kda_process.KDA)
    assert found == {
        "argv": ["speed", "--base-kda", base, "--cells", "4:8"],
        "switch": None,
        "first": str(tmp_path),
    }
    script.write_text(f"print({json.dumps({'cannot': 'no CUDA device'})!r})")
    with pytest.raises(_unit.Stop, match="no CUDA device") as caught:
        kda_process.run(task, "speed")
    assert caught.value.verdict == "not-tested"
    script.write_text("raise SystemExit('broken')")
    with pytest.raises(_unit.Stop, match=r"ended with 1:\nbroken") as caught:
        kda_process.run(task, "speed")
    assert caught.value.verdict == "invalid"
