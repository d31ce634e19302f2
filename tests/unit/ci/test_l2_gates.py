"""The L2 gates: what they conclude from samples, and how they refuse bad input."""

from __future__ import annotations

import gc
import json
import math
import random
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

GATES = Path(__file__).parents[3] / "ci" / "gates"
MODULE = "vllm/models/glm5next/nvidia/l2_prefetch.py"


@pytest.fixture(autouse=True)
def gates_on_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(GATES))


def gate(name: str) -> ModuleType:
    return __import__(name)


def make_tree(root: Path, *, module: bool) -> Path:
    (root / "vllm").mkdir(parents=True)
    (root / "vllm" / "envs.py").write_text("")
    if module:
        (root / MODULE).parent.mkdir(parents=True)
        (root / MODULE).write_text("raise RuntimeError('executed')\n")
    return root


def pair(ratio: float, aa: float = 1.0, equal: bool = True) -> dict[str, Any]:
    return {
        "median_us": {"A": 40.0, "B": 40.0 * ratio, "A'": 40.0 * aa},
        "equal": equal,
    }


def pairs(mean: float, spread: float = 0.001, n: int = 9) -> list[dict[str, Any]]:
    rng = random.Random(7)
    noise = [rng.gauss(0, spread) for _ in range(n)]
    control = [rng.gauss(0, spread) for _ in range(n)]
    shift = sum(control) / n
    return [
        pair(mean * math.exp(a), math.exp(b - shift))
        for a, b in zip(noise, control, strict=True)
    ]


@pytest.mark.parametrize(
    ("mean", "verdict"),
    [
        (0.95, "qualified"),
        (1.05, "rejected"),
        (1.0, "rejected"),
        (0.99, "insufficient-evidence"),
    ],
)
def test_verdict_follows_the_interval(mean: float, verdict: str) -> None:
    samples = pairs(mean, spread=0.003)
    if mean == 0.99:  # centred on the bar
        samples = [pair(0.99 * math.exp(d), 1 + d / 9) for d in (-2e-3, 2e-3) * 4]
    assert gate("l2_prefetch_speed").judge(samples)[0] == verdict


def test_unequal_outputs_are_rejected_whatever_the_time() -> None:
    samples = pairs(0.9)
    samples[3]["equal"] = False
    assert gate("l2_prefetch_speed").judge(samples)[0] == "rejected"


def test_a_drifting_control_is_invalid() -> None:
    samples = [pair(0.9, 1.01 + i / 1e5) for i in range(9)]
    assert gate("l2_prefetch_speed").judge(samples)[0] == "invalid"


def test_a_wide_control_decides_nothing() -> None:
    samples = [pair(0.9, 1.05 if i % 2 else 0.95) for i in range(10)]
    verdict = gate("l2_prefetch_speed").judge(samples)[0]
    assert verdict == "insufficient-evidence"


def test_interval_is_students() -> None:
    low, high = gate("l2_common").interval([1.0, 2.0, 3.0, 4.0, 5.0], 0.95)
    assert (low, high) == pytest.approx((1.0368, 4.9632), abs=1e-3)


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
    lines.append("ENGAGED|5|5|80")
    return "\n".join([*lines, header, *(rows[:-1] if drop_last else rows)])


@pytest.mark.parametrize(
    ("kept", "lost", "verdict"),
    [
        (0.05, 0.80, "qualified"),
        (0.07, 0.80, "rejected"),
        (0.05, 0.70, "rejected"),
    ],
)
def test_survival_applies_both_bars(kept: float, lost: float, verdict: str) -> None:
    module = gate("l2_survival")
    samples, engaged = module.parse(survival_output(kept, lost))
    assert engaged == [5, 5, 80]
    assert {s["kernels"] for s in samples} == {1, 2}
    assert module.judge(samples)[0] == verdict


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


def run(name: str, *args: str) -> tuple[int, dict[str, Any]]:
    command = [sys.executable, str(GATES / f"{name}.py"), *args, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert "Traceback" not in done.stderr
    return done.returncode, json.loads(done.stdout)


NAMES = ["l2_survival", "l2_prefetch_speed", "l2_prefetch_parity", "l2_prefetch_tp2"]


@pytest.mark.parametrize("name", NAMES)
def test_a_tree_without_the_set_is_a_bad_input(name: str, tmp_path: Path) -> None:
    tree = make_tree(tmp_path / "tree", module=False)
    code, answer = run(name, "--tree", str(tree))
    assert code == 3 and "compose the set prefetch" in answer["error"]["message"]


@pytest.mark.parametrize("name", NAMES)
def test_a_base_with_the_set_is_not_a_base(name: str, tmp_path: Path) -> None:
    tree = make_tree(tmp_path / "tree", module=True)
    code, answer = run(name, "--tree", str(tree), "--base", str(tree))
    assert code == 3 and "not the unpacked base" in answer["error"]["message"]


@pytest.mark.parametrize("name", NAMES)
def test_a_folder_that_is_no_tree_is_named(name: str, tmp_path: Path) -> None:
    code, answer = run(name, "--tree", str(tmp_path))
    assert code == 3 and str(tmp_path) in answer["error"]["message"]


@pytest.mark.parametrize("name", NAMES)
def test_without_a_gpu_nothing_is_tested_and_no_code_runs(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setenv("PATH", str(tmp_path))
    tree = make_tree(tmp_path / "tree", module=True)
    base = make_tree(tmp_path / "base", module=False)
    code, answer = run(name, "--tree", str(tree), "--base", str(base))
    assert (code, answer["verdict"]) == (8, "not-tested")
    assert answer["reasons"]


def engaged_result(**changes: Any) -> dict[str, Any]:
    result = {
        "layers": 4,
        "launches_a_step": 8,
        "profiled_steps": 64,
        "prefetch_kernels": 512,
        "steps_in_profile": 0,
        "counters": {"fired": [40] * 3, "steps": 10, "launched": 80, "captured": 16},
    }
    return result | changes


def test_an_on_arm_that_did_nothing_is_noticed() -> None:
    engaged = gate("l2_prefetch_parity").engaged
    assert engaged(engaged_result(), "graphs") is None
    assert "no prefetcher" in engaged({}, "eager")
    assert "kernels" in engaged(engaged_result(prefetch_kernels=0), "graphs")
    fired = {"fired": [40, 40, 39], "steps": 10, "launched": 80, "captured": 16}
    assert "windows" in engaged(engaged_result(counters=fired), "eager")
    bare = {"fired": [40] * 3, "steps": 10, "launched": 80, "captured": 0}
    assert "recorded" in engaged(engaged_result(counters=bare), "graphs")
    assert "replayed" in engaged(engaged_result(steps_in_profile=64), "graphs")


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
