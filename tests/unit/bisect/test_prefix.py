# SPDX-License-Identifier: Apache-2.0
"""The search over prefixes, as a pure function of the answers."""

import math
import random
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stackctl.bisect.model import Finding
from stackctl.bisect.prefix import PrefixSearch
from stackctl.errors import ExitCode

Truth = Callable[[int], str]


def play(
    last: int, truth: Truth, workers: int = 1, seed: int | None = None
) -> tuple[Finding[int], list[int]]:
    """Run a search; with several workers answers come in any order."""
    search = PrefixSearch(last)
    rng = random.Random(seed)
    running: list[int] = []
    tried: list[int] = []
    while not search.done:
        wanted = search.wants(workers - len(running), running)
        assert len(wanted) <= workers - len(running)
        assert not set(wanted) & set(running), "nothing is tried twice at once"
        running += wanted
        assert running, "the search is stuck"
        place = running.pop(rng.randrange(len(running)) if seed is not None else 0)
        assert place not in tried, "nothing is tried twice"
        tried.append(place)
        search.tell(place, truth(place))  # type: ignore[arg-type]
        for useless in search.useless(running):
            running.remove(useless)
    return search.finding(), tried


def culprit_at(place: int) -> Truth:
    return lambda position: "bad" if position >= place else "good"


@given(data=st.data(), last=st.integers(1, 700))
@settings(max_examples=120, deadline=None)
def test_one_worker_needs_no_more_than_the_logarithm_and_both_ends(
    data: st.DataObject, last: int
) -> None:
    culprit = data.draw(st.integers(1, last))
    finding, tried = play(last, culprit_at(culprit))
    assert (finding.kind, finding.code, finding.culprit) == ("patch", 0, culprit)
    assert len(tried) <= math.ceil(math.log2(last)) + 2
    assert tried[:2] == [0, last]


@pytest.mark.parametrize("last", range(1, 34))
def test_the_bound_holds_for_every_culprit(last: int) -> None:
    for culprit in range(1, last + 1):
        finding, tried = play(last, culprit_at(culprit))
        assert finding.culprit == culprit
        assert len(tried) <= math.ceil(math.log2(last)) + 2


@given(
    data=st.data(), last=st.integers(1, 200), workers=st.integers(1, 6),
    seed=st.integers(0, 1000),
)  # fmt: skip
@settings(max_examples=120, deadline=None)
def test_workers_change_nothing_but_the_time(
    data: st.DataObject, last: int, workers: int, seed: int
) -> None:
    culprit = data.draw(st.integers(1, last))
    skipped = data.draw(st.sets(st.integers(1, last - 1))) if last > 1 else set()

    def truth(place: int) -> str:
        return "skip" if place in skipped else culprit_at(culprit)(place)

    finding, _ = play(last, truth, workers, seed)
    low = max(p for p in range(culprit) if p not in skipped)
    high = min(p for p in range(culprit, last + 1) if p not in skipped)
    if high - low == 1:
        assert (finding.kind, finding.culprit) == ("patch", culprit)
    else:
        assert (finding.kind, finding.code) == ("unresolved", ExitCode.INSUFFICIENT)
        assert finding.suspects == tuple(range(low + 1, high + 1))
    assert culprit in finding.suspects


def test_more_workers_cut_into_more_parts() -> None:
    search = PrefixSearch(64)
    assert search.wants(2, []) == [0, 64]
    search.tell(0, "good")
    search.tell(64, "bad")
    assert search.wants(2, []) == [21, 42]
    assert search.wants(3, []) == [16, 32, 48]
    assert search.wants(1, [21]) == [42]
    search.tell(21, "bad")
    assert search.useless([42]) == [42]


def test_while_the_ends_are_tried_spare_workers_look_between() -> None:
    search = PrefixSearch(64)
    assert search.wants(4, [])[:2] == [0, 64]
    assert len(search.wants(4, [])) == 4
    search.tell(0, "bad")
    assert search.done
    assert search.useless([64, 21]) == [64, 21]


def test_a_broken_stretch_is_jumped_over_and_not_walked_through() -> None:
    broken = range(20, 61)

    def truth(place: int) -> str:
        return "skip" if place in broken else culprit_at(70)(place)

    finding, tried = play(80, truth)
    assert finding.culprit == 70
    assert sum(place in broken for place in tried) <= 5
    assert len(tried) <= 15


@pytest.mark.parametrize(
    ("truth", "code", "reason"),
    [
        (lambda p: "bad", ExitCode.INVALID, "good-end-is-bad"),
        (lambda p: "good", ExitCode.NO, "nothing-is-bad"),
        (lambda p: "good" if p else "skip", ExitCode.NOT_TESTED, "good-end-skipped"),
        (lambda p: "skip" if p else "good", ExitCode.NOT_TESTED, "bad-end-skipped"),
    ],
)
def test_an_end_that_is_not_what_it_should_be_ends_the_search(
    truth: Truth, code: ExitCode, reason: str
) -> None:
    finding, tried = play(50, truth)
    assert (finding.code, finding.reason) == (code, reason)
    assert (finding.kind, finding.culprit) == ("unresolved", None)
    assert len(tried) <= 2


def test_good_after_bad_is_said() -> None:
    search = PrefixSearch(10)
    for place, verdict in {
        0: "good",
        10: "bad",
        8: "good",
        5: "bad",
        4: "good",
    }.items():
        search.tell(place, verdict)  # type: ignore[arg-type]
    assert search.done
    finding = search.finding()
    assert finding.culprit == 5
    assert "flaky" in finding.notes[0]
