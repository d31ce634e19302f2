# SPDX-License-Identifier: Apache-2.0
"""What an answer is worth: exact about everything that only looks like an answer.

Only the visible text counts, never reasoning. The answer is the last line with text in
it, of the form `ANSWER: 123`; whatever ended the answer early makes it wrong, however
good it looked until then.
"""

import re
from typing import Final, NamedTuple

from stackctl.gates.accuracy.items import Item
from stackctl.gates.serving.client import Answer

BROKEN: Final = frozenset(
    ("connect", "cut", "malformed", "error-event", "too-large")
)  # fmt: skip
"""Problems (and every HTTP status) after which nobody has answered."""

_LINE: Final = re.compile(r"(?i)[*_`>#\s]*answer[*_`\s]*:")
_DRESS: Final = "*_`> \t"
"""Markup around a line or a value that says nothing."""

_NUMBER: Final = re.compile(r"(?a)\d{1,18}|\d{1,3}(?:,\d{3}){1,5}")
_DIGITS: Final = re.compile(r"(?a)\d+(?:,\d{3})*")
_THINK: Final = re.compile(r"(?is)<(think|thinking|reasoning)>.*?(?:</\1>|\Z)")
_CLOSE: Final = re.compile(r"(?is)\A.*</(?:think|thinking|reasoning)>")


class Score(NamedTuple):
    """The result of one item.

    Attributes:
        result: `exact` and, of a ledger, `near`; `decoy`, `not-stated`, `ambiguous` of
            a packet; `truncated`, `stalled`, `timed-out`; `fail` for all else.
        detail: Why, in a word or two; empty for an exact answer.
    """

    result: str
    detail: str = ""


def broken(answer: Answer) -> str | None:
    """Return why nobody has answered, None for an answer (good or bad)."""
    for problem in answer.problems:
        if problem.code in BROKEN or problem.code.startswith("http-"):
            return f"{problem.code}: {problem.text}"
    return None


def visible(text: str) -> str:
    """Return an answer's text without reasoning that stands in the text itself.

    A block that is opened and never closed hides all that follows; one that is closed
    and was never opened (some chat templates open it for the model) all that is before.
    """
    text = _THINK.sub("", text)
    return _CLOSE.sub("", text)


def score(item: Item, answer: Answer, max_tokens: int) -> Score:
    """Score an answer.

    Args:
        item: What was asked.
        answer: What came; `broken` must have been asked first.
        max_tokens: Most tokens it could have.
    """
    codes = [problem.code for problem in answer.problems]
    if "timed-out" in codes:
        return Score("timed-out")
    if "stalled" in codes or "no-first-token" in codes:
        return Score("stalled")
    if "loop" in codes or "over-length" in codes:
        return Score("truncated", "loop" if "loop" in codes else "over-length")
    # Some servers call it a regular end when the tokens ran out.
    if answer.finish == "length" or (answer.completion_tokens or 0) >= max_tokens:
        return Score("truncated", "length")
    if answer.finish != "stop":
        return Score("fail", f"ended with {answer.finish or 'nothing'}")
    text = visible(answer.content)
    if not text.strip():
        thought = answer.reasoning.strip() or answer.content.strip()
        return Score("fail", "reasoning only" if thought else "empty")
    return _judge(item, text)


def _judge(item: Item, text: str) -> Score:
    lines = [
        line for line in re.split(r"[\r\n\u2028\u2029\x85]+", text) if line.strip()
    ]
    found = [
        (n, _undressed(line[m.end() :]))
        for n, line in enumerate(lines)
        if (m := _LINE.match(line))
    ]
    if not found:
        return Score("fail", "no answer line")
    values = {_plain(value) for _, value in found}
    unclear = "ambiguous" if item.set == "packet" else "fail"
    if len(values) > 1:
        return Score(unclear, "several answer lines")
    if found[-1][0] != len(lines) - 1:
        # What follows may take it back, and often does.
        return Score(unclear, "text after the answer")
    value = values.pop()
    if value == item.answer:
        return Score("exact")
    if item.set == "packet" and value == item.decoy:
        return Score("decoy")
    if item.set == "packet" and value.casefold() == "not stated":
        return Score("not-stated")
    if _NUMBER.fullmatch(value) is None:
        several = len({_plain(number) for number in _DIGITS.findall(value)}) > 1
        if several:
            return Score(unclear, "several numbers")
        return Score("fail", "not a number in digits")
    if item.near and abs(int(value) - int(item.answer)) <= item.near:
        return Score("near")
    return Score("fail", "another number")


def _undressed(value: str) -> str:
    """Return a value without markup and without the full stop of a sentence."""
    return value.strip(_DRESS).removesuffix(".").strip(_DRESS).strip()


def _plain(value: str) -> str:
    """Return a value without the commas between groups of digits."""
    value = value.strip()
    return value.replace(",", "") if _NUMBER.fullmatch(value) else value
