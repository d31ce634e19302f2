# SPDX-License-Identifier: Apache-2.0
"""A real server with a real (tiny, random) model: llama.cpp's."""

import os
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from support import ROOT

from stackctl.gates.accuracy.plan import AccuracyPlan, PromptSet
from stackctl.gates.accuracy.unit import measure as measure_answers
from stackctl.gates.serving.plan import Cell, ServingPlan, Sign
from stackctl.gates.serving.unit import Target, measure

pytestmark = pytest.mark.tools
FOLDER = ROOT / "ci/serving/proof/llama"
COMMON = {
    "server": ("{python}", "{tree}/launch.py", "{model}", "{port}"),
    "ready_path": "/health",
    "ready_seconds": 120,
    "characters_per_token": 1.0,
    "temperature": 1.0,
}


@pytest.fixture(scope="module")
def python() -> str:
    found = os.environ.get("STACKCTL_TEST_SERVER_PYTHON")
    if not found:
        pytest.skip("STACKCTL_TEST_SERVER_PYTHON names no Python with xllamacpp")
    return found


@pytest.fixture(scope="module")
def model(python: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    file = tmp_path_factory.mktemp("model") / "tiny.gguf"
    # Large enough that a cell takes seconds.
    size = ["--layers", "2", "--hidden", "512"]
    subprocess.run([python, ROOT / "ci/serving/tiny_gguf.py", file, *size], check=True)
    return str(file)


@pytest.fixture
def target(python: str, model: str, tmp_path: Path) -> Target:
    values = {"python": python, "model": model, "tree": str(FOLDER)}
    return Target(served_model="tiny", values=values, folder=tmp_path / "unit")


@pytest.fixture
def log(target: Target) -> Callable[[], str]:
    file = target.folder / "server.log"
    return lambda: file.read_text(errors="replace")[-3000:]


def test_one_start_is_measured(target: Target, log: Callable[[], str]) -> None:
    cells = (
        Cell(concurrency=1, context=128, output=150, requests=6),
        Cell(concurrency=4, context=256, output=300, requests=12),
    )
    plan = ServingPlan(
        **COMMON,
        cells=cells,
        metrics="llama.cpp",
        # Other work on the machine must not decide a test.
        probe_factor=1000,
        lag_milliseconds=60_000,
        fill_percent=30,
        sample_milliseconds=20,
    )
    answer = measure(plan, target)
    assert "stop" not in answer, (answer, log())
    for cell in cells:
        found = answer["samples"]["cells"][cell.name]
        assert found["problems"] == [], (found, log())
        assert found["requests"] == cell.requests
        # It is told not to end by itself, and each of its tokens is one character.
        assert found["completion_tokens"] == cell.requests * cell.output
        assert found["tokens_per_s"] > 0 and found["steps_per_s"] > 0
        assert len(found["ttft_ns"]) == len(found["itl_ns"]) == cell.requests
    # Four requests share a step of the engine.
    four = answer["samples"]["cells"][cells[1].name]
    assert four["tokens_per_s"] > 2 * four["steps_per_s"]


def test_features_of_a_real_server_are_shown(
    target: Target, log: Callable[[], str], tmp_path: Path
) -> None:
    """A tree with a note and pauses, by its output and by the server's own counter."""
    tree = tmp_path / "tree"
    shutil.copytree(FOLDER, tree)
    (tree / "NOTE.txt").write_text("Nothing that runs has changed.\n")
    (tree / "options.txt").write_text("--pause-ms 1\n")
    signs = (
        Sign(arm="on", feature="note", log="Nothing that runs has changed."),
        Sign(arm="on", feature="slow", log="Stopped for * of every * ms."),
        Sign(arm="on", feature="steps", metric="llamacpp:n_decode_total"),
        Sign(arm="on", feature="none", metric="llamacpp:no_such_total"),
    )
    plan = ServingPlan(
        **COMMON,
        cells=(Cell(concurrency=1, context=64, output=40, requests=1),),
        metrics="none",
        warmup=0,
        probe_factor=1000,
        lag_milliseconds=60_000,
        engagement=signs,
    )

    def seen(arm: str, tree: Path) -> dict[str, float]:
        values = {**target.values, "tree": str(tree)}
        folder = tmp_path / arm
        where = replace(target, arm=arm, reference="base", values=values, folder=folder)
        answer = measure(plan, where)
        assert "stop" not in answer, (answer, (folder / "server.log").read_text())
        found = answer["engagement"][arm]["features"]
        return {item["feature"]: item["seen"] for item in found}

    on, base = seen("on", tree), seen("base", FOLDER)
    assert (on["note"], on["slow"], on["none"]) == (1, 1, 0)
    # Every token is a step; the probes of an idle server are among them.
    assert on["steps"] >= 40 and base["steps"] >= 40
    assert (base["note"], base["slow"], base["none"]) == (0, 0, 0)


def test_random_letters_are_no_answers(target: Target, log: Callable[[], str]) -> None:
    sets = (
        PromptSet(kind="packet", items=3, tokens=1200),
        PromptSet(kind="ledger", items=3, tokens=1200),
    )
    plan = AccuracyPlan(**COMMON, sets=sets, max_tokens=20)
    answer = measure_answers(plan, target)
    assert "stop" not in answer, (answer, log())
    results = [item["result"] for item in answer["samples"]["items"]]
    assert len(results) == 6 and "exact" not in results
    assert "truncated" in results
