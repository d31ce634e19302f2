# SPDX-License-Identifier: Apache-2.0
import hashlib
import json
from pathlib import Path

import pytest
from faulty_server import Script, faulty_server, nobody_at

from .conftest import cell


def codes(answer, name="c3/ctx64"):
    found = answer["samples"]["cells"][name]["problems"]
    return [problem["code"] for problem in found]


def test_a_good_start(run, tmp_path: Path) -> None:
    answer = run(warmup=1)
    assert answer["notes"] == []
    found = answer["samples"]["cells"]["c3/ctx64"]
    assert found["problems"] == found["errors"] == []
    assert found["requests"] == 9
    assert found["completion_tokens"] == 9 * 24
    assert found["prompt_tokens"] == 9 * 64
    assert len(found["ttft_ns"]) == len(found["itl_ns"]) == 9
    assert 0.3 < found["fill"] <= 1
    assert found["underfilled"] is False
    assert found["tokens_per_s"] > 0
    assert found["steps_per_s"] > 0
    assert min(found["itl_ns"]) > 0
    raw = (tmp_path / "unit/raw-c3-ctx64.jsonl").read_bytes()
    digest = hashlib.sha256(raw).hexdigest()
    assert answer["extra"]["raw"] == {"c3/ctx64": {"sha256": digest}}
    entries = [json.loads(line) for line in raw.splitlines()]
    assert [len(entry["chunk_ns"]) for entry in entries] == [24] * 9
    assert (tmp_path / "unit/server.log").exists()


def test_cells_follow_each_other_on_one_start(run) -> None:
    cells = (cell(concurrency=1, requests=2), cell(concurrency=4, requests=8))
    answer = run(cells=cells, warmup=1)
    assert answer["notes"] == []
    assert list(answer["samples"]["cells"]) == ["c1/ctx64", "c4/ctx64"]


def test_a_cell_by_time(run) -> None:
    answer = run(cells=(cell(requests=None, seconds=2),))
    assert answer["notes"] == []
    # More than those that are sent at once.
    assert answer["samples"]["cells"]["c3/ctx64"]["requests"] > 3


def test_the_chat_endpoint(run) -> None:
    answer = run({"reasoning": ["so "]}, api="chat", exact_length=True)
    assert answer["notes"] == []


def test_speculation_sends_several_tokens_in_a_chunk(run) -> None:
    answer = run({"per_chunk": 4})
    assert answer["notes"] == []
    found = answer["samples"]["cells"]["c3/ctx64"]
    assert found["completion_tokens"] == 9 * 24


@pytest.mark.parametrize(
    ("script", "code"),
    [
        ({"status": 500, "only": 4}, "http-500"),
        ({"status": 429, "only": 4}, "http-429"),
        ({"cut_after": 5, "only": 4}, "cut"),
        ({"malformed_after": 5, "only": 4}, "malformed"),
        ({"error_after": 5, "only": 4}, "error-event"),
        ({"stall_after": 5, "only": 4}, "stalled"),
        ({"tokens": ["over and over "] * 24, "only": 4}, "loop"),
        ({"tokens": ["a "] * 7, "only": 4}, "short"),
        (
            {"usage": {"prompt_tokens": 64, "completion_tokens": 23}, "only": 4},
            "usage-wrong",
        ),
        ({"usage": {"prompt_tokens": 60, "completion_tokens": 24}}, "usage-wrong"),
        ({"usage": {"prompt_tokens": 80, "completion_tokens": 24}}, "context-off"),
        ({"no_usage": True, "only": 4}, "usage-missing"),
        ({"together": 2}, "underfilled"),
        ({"together": 1}, "underfilled"),
        ({"alone_from": 3}, "underfilled"),
        (
            # Seen in passing: long enough to be met by a look.
            {"foreign_running": 2, "foreign_from": 4, "foreign_until": 8}
            | {"gap_s": 0.04},
            "foreign-requests",
        ),
        ({"foreign_finished": 1, "foreign_from": 4}, "foreign-requests"),
        ({"foreign_tokens": 5, "foreign_from": 4}, "usage-wrong"),
        ({"cached": 20}, "prefix-cached"),
        ({"stall_after": 5, "only": 4, "deaf": True}, "not-drained"),
    ],
)
def test_each_fault_makes_the_cell_unusable(run, script, code) -> None:
    changes = {"fill_percent": 90} if code == "underfilled" else {}
    if code == "not-drained":
        changes["drain_seconds"] = 1
    answer = run(script, stall_seconds=1, count="chunks", **changes)
    assert code in codes(answer)
    assert answer["notes"]


def test_a_server_that_is_never_at_rest_is_refused(run) -> None:
    answer = run({"foreign_running": 1}, drain_seconds=1)
    assert answer["stop"]["verdict"] == "invalid"
    assert "busy server" in answer["stop"]["reason"]
    assert "samples" not in answer


def test_prompts_are_the_same_in_a_block_and_fresh_in_the_next(run) -> None:
    with faulty_server(Script(gap_s=0.001)) as server:
        url = f"http://127.0.0.1:{server.port}/v1"
        run(block=1, unit=3, base_url=url)
        run(block=1, unit=4, base_url=url)
        run(block=1, unit=4, seed=1, base_url=url)  # another run of the gate
        attached = [body["prompt"] for body in server.seen]
    # A server that goes on running may have kept them: all differ from the start on.
    assert len({prompt[:24] for prompt in attached}) == 27
    assert {len(prompt) for prompt in attached} == {256}


def test_a_server_that_cannot_start(run) -> None:
    answer = run(server=("/nonexistent/server", "{port}"))
    assert answer["stop"]["verdict"] == "invalid"
    assert "exit code 127" in answer["stop"]["reason"]


def test_a_server_that_is_not_ready_in_time(run) -> None:
    answer = run({"ready_after": 10_000}, ready_seconds=1)
    assert "not ready within 1 s" in answer["stop"]["reason"]


def test_nobody_is_at_the_address(run, monkeypatch) -> None:
    monkeypatch.setattr("stackctl.gates.serving.server.RUNNING_S", 0.5)
    with nobody_at() as port:
        answer = run(base_url=f"http://127.0.0.1:{port}/v1", ready_seconds=900)
    assert answer["stop"] == {
        "verdict": "invalid",
        "reason": "the server was not ready within 0.5 s (ConnectError)",
    }


def test_a_server_that_is_ready_late(run) -> None:
    assert run({"ready_after": 3})["notes"] == []


def test_a_server_that_ends_in_between(run) -> None:
    answer = run({"exit_after": 5}, metrics="none")
    assert answer["stop"]["verdict"] == "invalid"


def test_missing_metrics_are_told_before_anything_is_measured(run) -> None:
    answer = run({"metrics": False})
    assert answer["stop"]["verdict"] == "invalid"
    assert "metrics" in answer["stop"]["reason"]


def test_a_server_without_metrics_is_probed(run) -> None:
    answer = run({"metrics": False}, metrics="none", probe_factor=1000)
    assert answer["notes"] == []
    found = answer["samples"]["cells"]["c3/ctx64"]
    assert found["steps_per_s"] is None
    assert found["tokens_per_s"] > 0
