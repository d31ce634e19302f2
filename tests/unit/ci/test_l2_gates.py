"""The L2 gates: what they make of what they measured, and what they refuse."""

from __future__ import annotations

import gc
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from stackctl.gates.rule.timed import halves

GATES = Path(__file__).parents[3] / "ci" / "gates"
MODULE = "vllm/models/glm5next/nvidia/l2_prefetch.py"


@pytest.fixture(autouse=True)
def gates_on_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(GATES))


def gate(name: str) -> ModuleType:
    return __import__(name)


def make_tree(root: Path, *, module: bool) -> Path:
    root.mkdir()
    if module:
        (root / MODULE).parent.mkdir(parents=True)
        (root / MODULE).write_text("raise RuntimeError('executed')\n")
    return root


def a_task(arms: dict[str, Path], scratch: Path) -> Any:
    env: dict[str, dict[str, str]] = {name: {} for name in arms}
    return gate("_unit").Task(0, 1, 0, arms, arms, env, scratch)


NAMES = ["l2_survival", "l2_prefetch_parity", "l2_prefetch_tp2"]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("base", "on", "why"),
    [
        (False, False, "the arm on has no .*; compose the set prefetch"),
        (True, True, "the base has .*: no base of this"),
    ],
)
def test_an_arm_that_is_not_what_it_is_called_is_not_measured(
    name: str, base: bool, on: bool, why: str, tmp_path: Path
) -> None:
    trees = {
        "base": make_tree(tmp_path / "base", module=base),
        "on": make_tree(tmp_path / "on", module=on),
    }
    with pytest.raises(gate("_unit").Stop, match=why) as caught:
        gate(name).measure(a_task(trees, tmp_path))
    assert caught.value.verdict == "not-tested"


@pytest.mark.parametrize("name", NAMES)
def test_without_a_gpu_nothing_is_tested_and_no_code_runs(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    trees = {
        "base": make_tree(tmp_path / "base", module=False),
        "on": make_tree(tmp_path / "on", module=True),
    }
    with pytest.raises(gate("_unit").Stop) as caught:
        gate(name).measure(a_task(trees, tmp_path))
    assert caught.value.verdict == "not-tested"


def survival_output(kept: float, lost: float, drop_last: bool = False) -> str:
    gate_module = gate("l2_survival")
    lines, rows = [], []
    header = '"ID","Kernel Name","Metric Name","Metric Unit","Metric Value"'
    number = 0
    for limit in ("0", "max"):
        for name in gate_module.conditions():
            for repetition in range(3):
                lines.append(f"COND|16 MiB|{limit}|1|{name}|{repetition}")
                share = 1.0
                if name == "prefetch + 2x":
                    share = kept if limit == "max" else lost
                kernels = ["gemm"] + ["splitKreduce_kernel"] * (repetition % 2)
                for kernel in kernels:
                    value = 16e6 * share if kernel == "gemm" else 0
                    rows.append(
                        f'"{number}","{kernel}","dram__bytes_read.sum","byte","{value:,.0f}"'
                    )
                    number += 1
    lines.append("ENGAGED|5|6|80")
    return "\n".join([*lines, header, *(rows[:-1] if drop_last else rows)])


def test_survival_says_which_share_was_read_and_which_was_kept() -> None:
    module = gate("l2_survival")
    samples, engaged = module.parse(survival_output(0.05, 0.8))
    assert {s["kernels"] for s in samples} == {1, 2}
    found = module.answer(samples, engaged)
    share = {case["id"]: case["max_abs"] for case in found.samples["cases"]}
    assert share["16 MiB, set-aside max, prefetch + 2x: read, 1"] == 0.05
    assert share["16 MiB, set-aside 0, prefetch + 2x: kept, 3"] == pytest.approx(0.2)
    assert share["16 MiB, set-aside 0, no prefetch + 2x: kept, 2"] == 0
    assert found.engagement == {"on": {"expected": 6, "counted": 5}}


def test_survival_refuses_rows_that_do_not_match() -> None:
    module = gate("l2_survival")
    text = survival_output(0.05, 0.8, drop_last=True)
    with pytest.raises(ValueError, match="no row for 16 MiB, max"):
        module.parse(text)
    extra = (
        survival_output(0.05, 0.8) + '\n"999","other","dram__bytes_read.sum","byte","1"'
    )
    with pytest.raises(ValueError, match="belong to no condition"):
        module.parse(extra)


@pytest.mark.parametrize("arms", [["on"], ["on", "a4", "max"]])
def test_arms_take_turns_and_so_do_the_base_s_recordings(arms: list[str]) -> None:
    visits = gate("l2_prefetch_speed").turns(arms, 8)
    for arm in arms:
        pair = [name for name, _ in visits if name in ("base", arm)]
        couples = list(zip(pair[::2], pair[1::2], strict=True))
        assert all(set(couple) == {"base", arm} for couple in couples)
        assert sum(couple[0] == "base" for couple in couples) == len(couples) / 2
    recordings = [number for name, number in visits if name == "base"]
    assert recordings == [0, 1, 2, 3] * 2
    assert {number for name, number in visits if name != "base"} == {0}


def rank(**changes: Any) -> dict[str, Any]:
    arm = {
        "fired": [16] * 3,
        "windows": 16,
        "hooked": [[True] * 3] * 8,
        "launches": 24,
        "nodes": 24,
        "equal": True,
    }
    cell = {"order": ["base", "abc"], "values": {"base": [2.0], "abc": [1.0]}}
    return {"cell": cell, "engaged": {"abc": arm | changes}}


def test_both_ranks_have_to_hold_what_the_plan_launches() -> None:
    module = gate("l2_prefetch_tp2")
    found = module.answer([rank(), rank(nodes=23)])
    assert found.engagement["abc"] == {
        "expected": 48,
        "counted": 47,
        "captured_nodes": 47,
    }
    assert set(found.samples["cells"]) == {"tp2/8"}
    for changes, verdict in (
        ({"fired": [16, 16, 15]}, "not-tested"),
        ({"hooked": [[True, False, True]]}, "not-tested"),
        ({"equal": False}, "rejected"),
    ):
        with pytest.raises(gate("_unit").Stop) as caught:
            module.answer([rank(), rank(**changes)])
        assert caught.value.verdict == verdict


def model_result(**changes: Any) -> dict[str, Any]:
    result = {
        "outputs": [[[[7, "0x1p0"], [8, "0x1p1"]]] * 4] * 2,
        "batch_ns": [65_000_000],
        "layers": 4,
        "launches_a_step": 8,
        "profiled_steps": 64,
        "prefetch_kernels": 512,
        "steps_in_profile": 0,
        "counters": {"fired": [40] * 3, "steps": 10, "launched": 80, "captured": 16},
    }
    return result | changes


ENV = {"base": {}, "on": {"VLLM_GLM53_L2_PREFETCH": "1"}}


def model_results() -> dict[str, dict[str, Any]]:
    off = {"prefetch_kernels": 0, "counters": None}
    return {
        f"{mode}, {arm}": model_result(**(off if arm == "base" else {}))
        for mode in ("eager", "graphs")
        for arm in ENV
    }


def test_a_model_s_answers_are_compared_with_the_base_s() -> None:
    module = gate("l2_prefetch_parity")
    results = model_results()
    found = module.answer(results, ENV)
    # Two modes and the replay against eager, two arms, four prompts.
    assert len(found.samples["cases"]) == 3 * 2 * 4
    assert all(case["equal"] for case in found.samples["cases"])
    once = 3 * 4 * 10 + 8 * (10 + 64)
    assert found.engagement == {
        "on": {"expected": 2 * once, "counted": 2 * once, "captured_nodes": 32}
    }
    other = [[[[7, "0x1p0"], [9, "0x1p1"]]] * 4] * 2
    results["graphs, on"]["outputs"] = other
    apart = [c for c in module.answer(results, ENV).samples["cases"] if not c["equal"]]
    assert len(apart) == 8 and {c["differing"] for c in apart} == {1}


def test_a_base_that_does_not_repeat_itself_and_a_stray_prefetch_are_refused() -> None:
    module, stop = gate("l2_prefetch_parity"), gate("_unit").Stop
    results = model_results()
    results["eager, base"]["prefetch_kernels"] = 1
    with pytest.raises(stop, match="although it is off") as caught:
        module.answer(results, ENV)
    assert caught.value.verdict == "rejected"
    results = model_results()
    one, two = results["eager, base"]["outputs"]
    results["eager, base"]["outputs"] = [one, [[[1, "0x1p0"]], *two[1:]]]
    with pytest.raises(stop, match="does not repeat itself on prompt 0"):
        module.answer(results, ENV)


def test_an_on_arm_that_did_nothing_is_noticed() -> None:
    engaged = gate("l2_prefetch_parity").engaged
    assert engaged(model_result(), "graphs") is None
    assert "no prefetcher" in engaged({}, "eager")
    assert "kernels" in engaged(model_result(prefetch_kernels=0), "graphs")
    fired = {"fired": [40, 40, 39], "steps": 10, "launched": 80, "captured": 16}
    assert "windows" in engaged(model_result(counters=fired), "eager")
    bare = {"fired": [40] * 3, "steps": 10, "launched": 80, "captured": 0}
    assert "recorded" in engaged(model_result(counters=bare), "graphs")
    assert "replayed" in engaged(model_result(steps_in_profile=64), "graphs")


def test_the_prefetcher_is_found_among_what_vllm_froze(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    state = gate("l2_prefetch_parity").prefetch_state
    name = "vllm.models.glm5next.nvidia.l2_prefetch"
    monkeypatch.delitem(sys.modules, name, raising=False)
    assert state() is None  # the base has no such module

    class PrefetchChain:
        def __init__(self, prefetcher: object) -> None:
            self._prefetcher = prefetcher

    prefetcher = object()
    instances: dict[str, object] = {"cuda:0": None}
    owner = SimpleNamespace(_instances=instances)
    monkeypatch.setitem(sys.modules, name, SimpleNamespace(L2Prefetcher=owner))
    chain, off = PrefetchChain(prefetcher), PrefetchChain(None)
    assert state() is None  # it could not be made
    instances["cuda:0"] = prefetcher
    gc.collect()
    gc.freeze()
    try:
        assert state() == (chain, prefetcher)
    finally:
        gc.unfreeze()
    off._prefetcher = prefetcher
    with pytest.raises(RuntimeError, match="1 prefetchers, 2 chains"):
        state()


class FakeChain:
    """A recorded chain: says its number as its time."""

    made = 0

    def __init__(self, l2: Any, layers: Any, x: Any, switches: Any, cuda: Any) -> None:
        type(self).made += 1
        self.number = type(self).made
        self.switches = switches
        self.first = self.eager = "different" if switches == {"WRONG": "1"} else "same"
        opened = 15 if switches == {"IDLE": "1"} else 16
        self.fired = [16, 16, opened]
        self.chain = SimpleNamespace(step=2)
        self.launches, self.nbytes, self.set_aside = 8, 64, 0
        self.nodes = 56 if switches is None else 64

    def time(self) -> float:
        return float(self.number)


@pytest.fixture
def speed(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    module = gate("l2_prefetch_speed")
    torch = ModuleType("torch")
    vars(torch).update(
        randn=lambda *shape, **options: None,
        bfloat16=None,
        equal=lambda one, two: one == two,
        manual_seed=lambda seed: None,
        cuda=SimpleNamespace(empty_cache=lambda: None),
    )
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setattr(FakeChain, "made", 0)
    monkeypatch.setattr(module, "Chain", FakeChain)
    monkeypatch.setattr(module, "build_layers", lambda tp, rows: [])
    monkeypatch.setattr(module, "setup", lambda site: (None, None))
    monkeypatch.setattr(module, "same_kernels", lambda task: None)
    monkeypatch.setattr(module, "gemm_times", lambda l2, cuda: ({"gemm/x": {}}, {}))
    monkeypatch.setattr(module.l2_common, "check_arms", lambda task: None)
    monkeypatch.setattr(module.l2_common, "no_gpu", lambda: None)
    return module


def speed_task(tmp_path: Path, unit: int, **arms: dict[str, str]) -> Any:
    places = dict.fromkeys(("base", *arms), tmp_path)
    return gate("_unit").Task(
        unit, 9, 3, places, places, {"base": {}, **arms}, tmp_path
    )


@pytest.mark.parametrize("unit", [0, 1])
def test_all_arms_are_timed_at_the_first_shape_only(
    unit: int, speed: ModuleType, tmp_path: Path
) -> None:
    task = speed_task(tmp_path, unit, on={}, a4={"A": "4"})
    found = speed.measure(task, [(4, 8), (2, 8)])
    cells = found.samples["cells"]
    assert set(cells) == {"tp4/8", "tp2/8", "gemm/x"}
    assert {
        arm: len(v) for arm, v in cells["tp4/8"]["values"].items()
    } == dict.fromkeys(("base", "on", "a4"), speed.ROUNDS)
    assert set(cells["tp2/8"]["values"]) == {"base", "on"}
    # Recordings: base twice, on, a4, base twice; the control's sides are the first and
    # the last against the others, and change places in odd processes.
    base = cells["tp4/8"]["values"]["base"]
    outer, inner = [set(side) for side in halves(base)]
    assert (outer, inner) == (({1, 6}, {2, 5}) if unit == 0 else ({2, 5}, {1, 6}))
    assert set(cells["tp4/8"]["values"]["a4"]) == {4.0}
    assert found.engagement == {
        "on": {"expected": 16, "counted": 16, "captured_nodes": 16},
        "a4": {"expected": 8, "counted": 8, "captured_nodes": 8},
    }


@pytest.mark.parametrize(
    ("switches", "verdict"),
    [({"WRONG": "1"}, "rejected"), ({"IDLE": "1"}, "not-tested")],
)
def test_no_time_of_other_outputs_or_of_windows_that_stay_shut(
    switches: dict[str, str], verdict: str, speed: ModuleType, tmp_path: Path
) -> None:
    with pytest.raises(gate("_unit").Stop) as caught:
        speed.measure(speed_task(tmp_path, 0, on=switches), [(4, 8)])
    assert caught.value.verdict == verdict
