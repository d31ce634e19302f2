# SPDX-License-Identifier: Apache-2.0
import json
from collections import Counter
from pathlib import Path

import pytest
from faulty_server import Script, faulty_server

from stackctl.errors import InputError
from stackctl.gates.accuracy import unit as module
from stackctl.gates.accuracy.items import digest, make_items
from stackctl.gates.accuracy.plan import AccuracyPlan, PromptSet
from stackctl.gates.accuracy.unit import measure
from stackctl.gates.model import load_gate
from stackctl.gates.serving.unit import Target

from ..serving.conftest import server_command
from .test_items import read_ledger, read_packet

SETS = (
    PromptSet(kind="packet", items=6, tokens=800),
    PromptSet(kind="ledger", items=4, tokens=600),
)


def reader(prompt: str) -> str:
    """Answer every prompt rightly."""
    if "did the board adopt" in prompt:
        return f"I read it all.\nANSWER: {read_packet(prompt)[0]}"
    return f"I checked all lines.\nANSWER: {read_ledger(prompt)}"


def unit(folder: Path, script: Script | None = None, reply=reader, **plan):
    with faulty_server(script) as server:
        server.reply = reply
        return measure(
            AccuracyPlan(**{"sets": SETS, "retries": 0, **plan}),
            Target(base_url=f"http://127.0.0.1:{server.port}/v1", folder=folder),
        )


def results(answer) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for item in answer["samples"]["items"]:
        found.setdefault(item["set"], []).append(item["result"])
    return found


def test_a_reader_gets_everything_right(tmp_path: Path) -> None:
    answer = unit(tmp_path)
    assert results(answer) == {"packet": ["exact"] * 6, "ledger": ["exact"] * 4}
    ids = [item["id"] for item in answer["samples"]["items"]]
    assert len(set(ids)) == 10
    assert answer["extra"]["counts"]["packet"] == {"exact": 6}
    made = make_items("packet", seed=0, items=6, characters=3200)
    assert answer["extra"]["prompts"]["packet"] == {"sha256": digest(made)}
    lines = (tmp_path / "answers.jsonl").read_text().splitlines()
    kept = [json.loads(line) for line in lines]
    assert [entry["id"] for entry in kept] == ids
    assert kept[0]["content"].startswith("I read it all.")


def test_the_same_answers_have_the_same_digests(tmp_path: Path) -> None:
    one, two = (unit(tmp_path / name)["samples"] for name in ("a", "b"))
    assert one == two
    other = unit(tmp_path / "c", reply=lambda prompt: reader(prompt).lower())
    assert results(other)["packet"] == ["exact"] * 6
    assert other["samples"]["items"][0]["digest"] != one["items"][0]["digest"]


def test_one_who_takes_the_draft(tmp_path: Path) -> None:
    def careless(prompt: str) -> str:
        if "did the board adopt" in prompt:
            return f"ANSWER: {read_packet(prompt)[1]}"
        return f"ANSWER: {int(read_ledger(prompt)) + 1}"

    answer = unit(tmp_path, reply=careless)
    assert results(answer) == {"packet": ["decoy"] * 6, "ledger": ["near"] * 4}


def test_answers_that_need_too_many_tokens(tmp_path: Path) -> None:
    found = results(unit(tmp_path, max_tokens=4))
    assert set(found["packet"]) == {"truncated"}


def test_reasoning_only(tmp_path: Path) -> None:
    answer = unit(tmp_path, Script(reasoning=["ANSWER: 1"], tokens=[]))
    assert {item["detail"] for item in answer["samples"]["items"]} == {"reasoning only"}


def test_one_stalled_answer_is_wrong_and_no_more(tmp_path: Path) -> None:
    script = Script(only=2, stall_after=1)
    answer = unit(tmp_path, script, stall_seconds=3, concurrency=1)
    assert results(answer)["packet"] == ["exact", "exact", "stalled", *["exact"] * 3]


@pytest.mark.parametrize(
    "fault", [{"status": 500}, {"cut_after": 1}, {"error_after": 1}]
)
def test_an_unanswered_item_makes_the_run_invalid(tmp_path: Path, fault) -> None:
    answer = unit(tmp_path, Script(only=3, **fault), concurrency=1)
    assert answer["stop"]["verdict"] == "invalid"
    assert "packet-003" in answer["stop"]["reason"]
    assert "samples" not in answer


def test_a_refused_item_is_asked_again(tmp_path: Path) -> None:
    answer = unit(tmp_path, Script(only=3, status=429), concurrency=1, retries=1)
    assert results(answer)["packet"] == ["exact"] * 6
    assert answer["notes"] == ["1 items were asked again"]


def test_an_answer_is_never_asked_for_again(tmp_path: Path) -> None:
    with faulty_server(Script(cut_after=1, only=0)) as server:
        server.reply = reader
        url = f"http://127.0.0.1:{server.port}/v1"
        plan = AccuracyPlan(sets=SETS[:1], retries=5)
        measure(plan, Target(base_url=url, folder=tmp_path))
        assert len(server.seen) == 6


def test_a_server_that_has_ended_is_not_asked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    async def note(client, request, limits):
        asked.append(request.prompt)
        return await ask(client, request, limits)

    ask = module.ask
    monkeypatch.setattr(module, "ask", note)
    plan = AccuracyPlan(
        server=server_command(exit_after=2), sets=SETS[:1], retries=3, concurrency=1
    )
    answer = measure(plan, Target(folder=tmp_path))
    assert answer["stop"]["verdict"] == "invalid"
    assert "the server ended with exit code 3" in answer["stop"]["reason"]
    # Once more at most: a connection breaks before the end is noticed.
    assert max(Counter(asked).values()) <= 2


def test_other_prompts_than_the_gate_names(tmp_path: Path) -> None:
    sets = (PromptSet(kind="packet", items=6, tokens=800, sha256="0" * 64),)
    with pytest.raises(InputError, match="digest"):
        unit(tmp_path, sets=sets)


GATE = """\
schema = 1
kind = "accuracy"
title = "t"
[accuracy]
{keys}
[[accuracy.set]]
kind = "packet"
items = 3
tokens = 500
{more}
"""


@pytest.mark.parametrize(
    ("keys", "more", "words"),
    [
        ("max_token = 3", "", "max_tokens"),
        ('server = ["x"]', "", "does not use {port}"),
        ("", '[[accuracy.set]]\nkind = "packet"\nitems = 1\ntokens = 900', "already"),
        ("", "near = -1", "near"),
        ("body = { stream = false }", "", "may not set `stream`"),
    ],
)
def test_faults_are_named(tmp_path: Path, keys: str, more: str, words: str) -> None:
    path = tmp_path / "accuracy-x.toml"
    path.write_text(GATE.format(keys=keys, more=more))
    with pytest.raises(InputError) as caught:
        load_gate(path)
    assert words in caught.value.message
