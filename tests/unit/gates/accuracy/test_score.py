# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: RUF001 - look-alikes are what is tested
"""Answers that only look right, one by one."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stackctl.gates.accuracy.items import Item
from stackctl.gates.accuracy.score import broken, score, visible
from stackctl.gates.serving.client import Answer, Problem

PACKET = Item("packet-000", "packet", "?", "48310", "41877")
LEDGER = Item("ledger-000", "ledger", "?", "17", near=1)


def reply(content="", reasoning="", finish="stop", problems=(), tokens=100) -> Answer:
    return Answer(
        0,
        content=content,
        reasoning=reasoning,
        finish=finish,
        usage={"completion_tokens": tokens},
        problems=[Problem(code, "seen") for code in problems],
    )


def result(item: Item, content: str, **more) -> str:
    return score(item, reply(content, **more), 8192).result


@pytest.mark.parametrize(
    "content",
    [
        "ANSWER: 48310",
        "answer: 48310",
        "ANSWER: 48,310",
        "**ANSWER: 48310**",
        "**ANSWER:** 48310.",
        "> ANSWER: `48310`",
        "The board adopted it in document 9.\n\nANSWER: 48310\n\n",
        "The draft said 41877, which was replaced.\nANSWER: 48310",
        "ANSWER: 48310\r\nANSWER: 48310",
        "<think>41877? No.</think>\nANSWER: 48310",
        "so it must be 41877, or not</think>ANSWER: 48310",
        "<think>ANSWER: 41877</think>ANSWER: 48310",
    ],
)
def test_right_answers(content: str) -> None:
    assert result(PACKET, content) == "exact"


@pytest.mark.parametrize(
    ("content", "wanted"),
    [
        # Not in the form that was asked for.
        ("48310", "fail"),
        ("The answer is 48310.", "fail"),
        ("The reserve is 48310 crowns. ANSWER: 48310", "fail"),
        ("", "fail"),
        ("ANSWER:", "fail"),
        ("ANSWER: about 48310", "fail"),
        ("ANSWER: 48310 crowns", "fail"),
        ("ANSWER: 048310", "fail"),
        ("ANSWER: -48310", "fail"),
        ("ANSWER: 48310.0", "ambiguous"),
        ("ANSWER: 48.310", "ambiguous"),
        ("ANSWER: 4831", "fail"),
        ("ANSWER: 483100", "fail"),
        ("ANSWER: 4,8310", "ambiguous"),
        ("ANSWER: not 48310", "fail"),
        ("ANSWER: <48310", "fail"),
        ("ANSWERS: 48310", "fail"),
        ("MY ANSWER: 48310", "fail"),
        # Other digits of Unicode are not the digits that were asked for.
        ("ANSWER: ４８３１０", "fail"),
        ("ANSWER: ٤٨٣١٠", "fail"),
        ("ANSWER: 4831⓪", "fail"),
        ("ANSWER: 48\u200b310", "ambiguous"),
        ("АNSWER: 48310", "fail"),  # the first letter is Cyrillic
        # The decoy, and no statement.
        ("ANSWER: 41877", "decoy"),
        ("ANSWER: 41,877", "decoy"),
        ("ANSWER: NOT STATED", "not-stated"),
        ("ANSWER: not stated.", "not-stated"),
        ("NOT STATED", "fail"),
        # Taken back, or several.
        ("ANSWER: 48310\nNo, wait, that was replaced.", "ambiguous"),
        ("ANSWER: 48310\n\n(I am not sure.)", "ambiguous"),
        ("ANSWER: 41877\nANSWER: 48310", "ambiguous"),
        ("ANSWER: 48310\nANSWER: NOT STATED", "ambiguous"),
        ("ANSWER: 48310 or 41877", "ambiguous"),
        ("ANSWER: 48310 (the draft says 41877)", "ambiguous"),
        ("ANSWER: 41877, no, 48310", "ambiguous"),
        # The form is quoted, the answer is another one.
        ('It says "ANSWER: 48310", but that is wrong.', "fail"),
        ("`ANSWER: 48310` would be wrong, so\nANSWER: 41877", "ambiguous"),
        # Only in the reasoning.
        ("<think>ANSWER: 48310</think>", "fail"),
        ("<think>\nANSWER: 48310", "fail"),
        ("<thinking>I have it.\nANSWER: 48310\n</thinking>I cannot say.", "fail"),
        ("ANSWER: 48310</think>", "fail"),
    ],
)
def test_answers_that_only_look_right(content: str, wanted: str) -> None:
    assert result(PACKET, content) == wanted


def test_reasoning_kept_apart_is_no_answer() -> None:
    found = score(PACKET, reply("", reasoning="ANSWER: 48310"), 8192)
    assert found == ("fail", "reasoning only")
    found = score(PACKET, reply(" \n", reasoning="ANSWER: 48310"), 8192)
    assert found == ("fail", "reasoning only")
    found = score(PACKET, reply("ANSWER: 41877", reasoning="ANSWER: 48310"), 8192)
    assert found.result == "decoy"


@pytest.mark.parametrize(
    "content",
    [
        "ANSWER: 48310",
        "ANSWER: 48",
        "The board adopted 48310 crowns beca",
        "",
        "<think>",
    ],
)
def test_what_ran_out_of_tokens_is_wrong(content: str) -> None:
    assert result(PACKET, content, finish="length") == "truncated"
    assert result(LEDGER, "ANSWER: 17", finish="length") == "truncated"
    # Whatever the server calls it.
    assert result(PACKET, content, tokens=8192) == "truncated"
    assert result(PACKET, "ANSWER: 48310", tokens=8191) == "exact"


@pytest.mark.parametrize(
    ("code", "wanted"),
    [
        ("stalled", "stalled"),
        ("no-first-token", "stalled"),
        ("timed-out", "timed-out"),
        ("loop", "truncated"),
        ("over-length", "truncated"),
    ],
)
@pytest.mark.parametrize("finish", [None, "stop"])
def test_what_did_not_end_by_itself_is_wrong(code, wanted, finish) -> None:
    assert result(PACKET, "ANSWER: 48310", problems=[code], finish=finish) == wanted


@pytest.mark.parametrize("finish", [None, "content_filter", "tool_calls", "abort"])
def test_other_ends_are_wrong(finish) -> None:
    assert result(PACKET, "ANSWER: 48310", finish=finish) == "fail"


@pytest.mark.parametrize(
    "code", ["connect", "cut", "malformed", "error-event", "too-large", "http-500"]
)
def test_nobody_answered(code: str) -> None:
    assert broken(reply(problems=[code]))
    assert not broken(reply("ANSWER: 1"))
    assert not broken(reply(problems=["stalled"]))


@pytest.mark.parametrize(
    ("content", "wanted"),
    [
        ("ANSWER: 17", "exact"),
        ("ANSWER: 16", "near"),
        ("ANSWER: 18", "near"),
        ("ANSWER: 15", "fail"),
        ("ANSWER: 19", "fail"),
        ("ANSWER: seventeen", "fail"),
        ("ANSWER: 16 or 17", "fail"),
        ("ANSWER: 17 lines", "fail"),
        ("ANSWER: NOT STATED", "fail"),
        ("ANSWER: １７", "fail"),
        ("ANSWER: 17\nANSWER: 16", "fail"),
        ("ANSWER: 17\nbut I may be off", "fail"),
    ],
)
def test_counts(content: str, wanted: str) -> None:
    assert result(LEDGER, content) == wanted


def test_near_is_only_what_the_set_says() -> None:
    strict = Item("ledger-000", "ledger", "?", "17", near=0)
    assert result(strict, "ANSWER: 16") == "fail"


@given(st.text(max_size=300), st.text(max_size=50))
def test_no_text_is_right_without_the_answer_line(text: str, tail: str) -> None:
    """Whatever is said: exact needs a last line that is the answer and nothing else."""
    found = score(PACKET, reply(f"{text}48310{tail}"), 8192)
    last = f"{text}48310{tail}".strip().splitlines()[-1]
    if found.result == "exact":
        assert "answer" in last.casefold()
        assert "48310" in last.replace(",", "")


@given(st.text(alphabet="ANSWERanswer: 0123456789,*`_>#.\n<think/>-48310", max_size=80))
def test_scoring_never_fails(text: str) -> None:
    for item in (PACKET, LEDGER):
        assert score(item, reply(text), 8192).result
    visible(text)


@pytest.mark.parametrize(
    "part", ["*", "* ", "answer:", "<think>", "</think>", "1,", "> "]
)
def test_long_odd_answers_take_no_long_time(part: str) -> None:
    started = time.process_time()
    score(PACKET, reply("ANSWER: " + part * 100_000 + "x"), 8192)
    # Quadratic work would take minutes.
    assert time.process_time() - started < 20
