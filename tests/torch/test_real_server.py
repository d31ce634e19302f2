# SPDX-License-Identifier: Apache-2.0
"""A real server with a real (tiny, random) model: `transformers serve`."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from stackctl.gates.accuracy.plan import AccuracyPlan, PromptSet
from stackctl.gates.accuracy.unit import measure as measure_answers
from stackctl.gates.serving.plan import Cell, ServingPlan
from stackctl.gates.serving.unit import Target, measure

pytestmark = pytest.mark.torch
ROOT = Path(__file__).resolve().parents[2]

COMMAND = (
    "env", "HF_HUB_OFFLINE=1", "OMP_NUM_THREADS=1", "CUDA_VISIBLE_DEVICES=",
    "{python}", "-c", "from transformers.cli.transformers import main; main()",
    "serve", "{model}",
    "--host", "127.0.0.1", "--port", "{port}", "--device", "cpu",
)  # fmt: skip


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("model") / "tiny"
    script = ROOT / "ci/serving/tiny_model.py"
    subprocess.run([sys.executable, script, folder], check=True)
    return str(folder)


def target(model: str, folder: Path) -> Target:
    values = {"python": sys.executable, "model": model}
    return Target(served_model=model, values=values, folder=folder)


def common(**more):
    return {
        "server": COMMAND,
        "ready_path": "/health",
        "ready_seconds": 600,
        "characters_per_token": 1.0,
        "temperature": 1.0,
        **more,
    }


def test_one_start_is_measured(model: str, tmp_path: Path) -> None:
    cells = (
        # Without continuous batching, it answers one request at a time.
        Cell(concurrency=1, context=128, output=24, requests=6),
        Cell(concurrency=1, context=256, output=24, requests=6),
    )
    plan = ServingPlan(
        **common(
            cells=cells,
            # It has no metrics of its own, and knows no `ignore_eos`.
            metrics="none",
            exact_length=False,
            # Other work on the machine must not decide a test.
            probe_factor=1000,
            lag_milliseconds=60_000,
            fill_percent=30,
        )
    )
    answer = measure(plan, target(model, tmp_path))
    log = (tmp_path / "server.log").read_text(errors="replace")[-3000:]
    assert "stop" not in answer, (answer, log)
    for cell in cells:
        found = answer["samples"]["cells"][cell.name]
        assert found["problems"] == [], (found, log)
        assert found["requests"] == cell.requests
        # The model never ends by itself, and each of its tokens is one character.
        assert found["completion_tokens"] == cell.requests * 24
        assert found["tokens_per_s"] > 0
        assert len(found["ttft_ns"]) == len(found["itl_ns"]) == cell.requests
    assert os.listdir(tmp_path)


def test_random_letters_are_no_answers(model: str, tmp_path: Path) -> None:
    sets = (
        PromptSet(kind="packet", items=3, tokens=1200),
        PromptSet(kind="ledger", items=3, tokens=1200),
    )
    plan = AccuracyPlan(**common(sets=sets, max_tokens=20))
    answer = measure_answers(plan, target(model, tmp_path))
    log = (tmp_path / "server.log").read_text(errors="replace")[-3000:]
    assert "stop" not in answer, (answer, log)
    results = [item["result"] for item in answer["samples"]["items"]]
    assert results == ["truncated"] * 6
