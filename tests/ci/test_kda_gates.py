"""The KDA gates' rule and verdicts, on made-up samples; no GPU, no vLLM."""

from __future__ import annotations

import json
import math
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

GATES = Path(__file__).resolve().parents[2] / "ci" / "gates"
sys.path.insert(0, str(GATES))

import kda_common as common  # noqa: E402
import kda_overlap_speed as speed  # noqa: E402
import kda_parity as parity  # noqa: E402


@pytest.mark.parametrize(
    ("probability", "df", "expected"),
    # Any printed table of Student's t.
    [(0.975, 8, 2.306), (0.995, 8, 3.355), (0.975, 1, 12.706), (0.95, 30, 1.697)],
)
def test_t_quantile(probability: float, df: int, expected: float) -> None:
    assert common.t_quantile(probability, df) == pytest.approx(expected, abs=6e-4)


def test_interval_and_gain_point_the_same_way() -> None:
    found = common.interval([math.log(0.9)] * 4 + [math.log(0.91)] * 4, 0.95)
    gain = found.document()["gain_percent"]
    assert gain["low"] < gain["mean"] < gain["high"]
    assert gain["low"] > 9 and gain["high"] < 10


def process(gain: float, noise: float, seed: int, forks: int = 8) -> dict[str, Any]:
    rng = random.Random(seed)
    samples = []
    drift = rng.uniform(0.98, 1.02)
    for _ in range(speed.RULE["blocks"]):
        for arm in speed.RULE["order"]:
            value = 40.0 * drift * (1 + rng.gauss(0, 0.001))
            if arm == "on":
                value *= 1 - gain
            samples.append([arm, value])
    process_effect = 1 + rng.gauss(0, noise)
    samples = [[a, v * (process_effect if a == "on" else 1)] for a, v in samples]
    engaged = {
        arm: {
            "forks": forks if arm == "on" else 0,
            "captured_forks": forks if arm == "on" else 0,
            "sequential": 0,
        }
        for arm in ("base", "off", "on")
    }
    size = {"nodes": 56, "edges": 55}
    return {
        "cells": [
            {
                "tp": 4,
                "tokens": 8,
                "samples_us_per_layer": samples,
                "base_alone_us_per_layer": [40.0],
                "beside_other_stream_us_per_layer": samples,
                "single_us_per_layer": dict.fromkeys(("base", "off", "on"), 40.0),
                "clock_mhz": [1980.0],
                "engaged": engaged,
                "graph": dict.fromkeys(("base", "off", "on"), size),
                "pool_bytes": dict.fromkeys(("base", "off", "on"), 0),
            }
        ]
    }


def verdict(
    gain: float,
    *,
    noise: float = 0.002,
    pairs: int = 9,
    forks: int = 8,
    state: dict[str, str] | None = None,
    load: float = 1.0,
) -> str:
    cells = speed.summarise([process(gain, noise, n, forks) for n in range(pairs)])
    return speed.judge(cells, [state or {}], [load], 16)[0]


def test_verdicts_follow_the_margin() -> None:
    assert verdict(0.095) == "qualified"
    assert verdict(0.05) == "rejected"
    assert verdict(0.08, noise=0.01) == "insufficient-evidence"


def test_no_verdict_from_too_few_processes() -> None:
    assert verdict(0.2, pairs=5) == "insufficient-evidence"


def test_silent_feature_is_not_tested() -> None:
    assert verdict(0.2, forks=7) == "not-tested"


@pytest.mark.parametrize(
    "state",
    [
        {"clocks_event_reasons.active": "0x0000000000000020"},
        {"clocks_event_reasons.active": "0x0000000000000008"},
        {"utilization.gpu": "55"},
    ],
)
def test_spoilt_runs_are_invalid(state: dict[str, str]) -> None:
    assert verdict(0.2, state=state) == "invalid"


def test_host_load_keeps_a_gain_from_qualifying() -> None:
    assert verdict(0.2, load=17.0) == "insufficient-evidence"


def test_power_cap_is_a_limitation_not_an_error() -> None:
    cells = speed.summarise([process(0.2, 0.002, n) for n in range(9)])
    state = {"clocks_event_reasons.active": "0x0000000000000004"}
    found, _, limitations = speed.judge(cells, [state], [1.0], 16)
    assert found == "qualified"
    assert any("power cap" in text for text in limitations)


def test_a_base_that_differs_from_itself_is_invalid() -> None:
    processes = [process(0.2, 0.002, n) for n in range(9)]
    for one in processes:
        samples = one["cells"][0]["samples_us_per_layer"]
        slots = [i for i, (arm, _) in enumerate(samples) if arm == "base"]
        for position, index in enumerate(slots):
            if position % 4 in (0, 3):
                samples[index][1] *= 1.02
    cells = speed.summarise(processes)
    assert speed.judge(cells, [{}], [1.0], 16)[0] == "invalid"


def test_linear_drift_does_not_reach_the_control() -> None:
    one = process(0.1, 0.0, 0)
    samples = one["cells"][0]["samples_us_per_layer"]
    for index, sample in enumerate(samples):
        sample[1] = 40.0 * math.exp(0.001 * index)
    assert speed.ratios(samples)["control"] == pytest.approx(0, abs=1e-12)
    assert speed.ratios(samples)["on"] == pytest.approx(0, abs=1e-12)


def parity_answer() -> dict[str, Any]:
    def arm(forks: int, edges: int | None) -> dict[str, Any]:
        return {
            "equal": True,
            "finite": True,
            "engaged": {"forks": forks, "captured_forks": forks, "sequential": 0},
            "graph": None if edges is None else {"nodes": 21, "edges": edges},
        }

    arms = {
        f"{name}/{way}": arm(
            parity.DEPTH if name == "on" else 0,
            None if way == "eager" else 30 if name == "on" else 20,
        )
        for name in ("base", "off", "on")
        for way in ("eager", "graph")
    }
    return {"cells": [{"tp": 4, "tokens": 8, "distinct": 3, "arms": arms}]}


def test_parity_verdicts() -> None:
    def judged(**change: Any) -> str:
        answer = parity_answer()
        cell = answer["cells"][0]
        for key, value in change.items():
            if key == "distinct":
                cell["distinct"] = value
            else:
                cell["arms"]["on/graph"][key] = value
        return parity.judge(answer, parity.DEPTH, parity.STEPS)[0]

    assert judged() == "qualified"
    assert judged(equal=False) == "rejected"
    assert judged(finite=False) == "invalid"
    assert judged(distinct=1) == "invalid"
    assert judged(graph={"nodes": 21, "edges": 20}) == "not-tested"
    assert judged(graph={"nodes": 22, "edges": 30}) == "not-tested"
    none = {"forks": 0, "captured_forks": 0, "sequential": 3}
    assert judged(engaged=none) == "not-tested"


def test_a_fork_with_the_switch_off_is_rejected() -> None:
    answer = parity_answer()
    answer["cells"][0]["arms"]["off/eager"]["engaged"]["forks"] = 1
    assert parity.judge(answer, parity.DEPTH, parity.STEPS)[0] == "rejected"


@pytest.mark.parametrize("script", ["kda_parity.py", "kda_overlap_speed.py"])
def test_a_folder_that_is_no_tree_is_a_usage_error(script: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(GATES / script), f"--tree={tmp_path}", "--json"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    error = json.loads(done.stdout)["error"]
    assert error["kind"] == "usage"
    assert str(tmp_path) in error["message"]


def test_site_prefers_the_tree_and_keeps_the_rest(tmp_path: Path) -> None:
    installed, tree = tmp_path / "site" / "vllm", tmp_path / "tree"
    for path, text in {
        installed / "a.py": "old",
        installed / "deep" / "b.py": "kept",
        installed / "_C.abi3.so": "binary",
        tree / "vllm" / "a.py": "new",
        tree / "vllm" / "deep" / "c.py": "added",
    }.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    with common.site(tree, installed) as folder:
        found = {
            str(path.relative_to(folder)): path.read_text()
            for path in folder.rglob("*")
            if path.is_file()
        }
    assert found == {
        "vllm/a.py": "new",
        "vllm/deep/b.py": "kept",
        "vllm/deep/c.py": "added",
        "vllm/_C.abi3.so": "binary",
    }
    assert (installed / "a.py").read_text() == "old", "the installed one is untouched"
