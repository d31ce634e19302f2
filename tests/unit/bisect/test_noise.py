# SPDX-License-Identifier: Apache-2.0
"""The search with answers that may be wrong: what it costs and how often it errs."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stackctl.bisect.model import Finding
from stackctl.bisect.noise import NoisySearch, Repeated, fisher, looks
from stackctl.bisect.subsets import SubsetSearch
from stackctl.errors import ExitCode


def play(
    last: int,
    culprit: int,
    low: float,
    high: float,
    seed: object,
    workers: int = 1,
    skipped: frozenset[int] = frozenset(),
) -> tuple[Finding[int], NoisySearch]:
    rng = random.Random(str(seed))
    search = NoisySearch(last)
    running: list[int] = []
    while not search.done:
        running += search.wants(workers - len(running), running)
        assert running, "the search is stuck"
        place = running.pop(rng.randrange(len(running)))
        rate = high if place >= culprit else low
        answer = "bad" if rng.random() < rate else "good"
        search.tell(place, "skip" if place in skipped else answer)  # type: ignore[arg-type]
        for useless in search.useless(running):
            running.remove(useless)
    return search.finding(), search


def test_fishers_test_is_the_exact_one() -> None:
    # Counted by hand: of the 252 ways to choose 5 of 10, one has all on one side.
    assert fisher(0, 5, 5, 5) == pytest.approx(1 / 252)
    assert fisher(0, 10, 0, 10) == 1
    assert fisher(5, 5, 0, 5) == 1
    # The tea test of Fisher's book: 3 of 4 right is 17 of 70.
    assert fisher(1, 4, 3, 4) == pytest.approx(17 / 70)


def test_looks_are_declared() -> None:
    assert looks(20) == (5, 10, 20)
    assert looks(5) == (5,)
    assert looks(100) == (25, 50, 100)


@given(last=st.integers(1, 100), data=st.data(), workers=st.integers(1, 4))
@settings(max_examples=40, deadline=None)
def test_without_noise_the_culprit_is_found_with_few_runs(
    last: int, data: st.DataObject, workers: int
) -> None:
    culprit = data.draw(st.integers(1, last))
    finding, search = play(last, culprit, 0, 1, 0, workers)
    assert (finding.kind, finding.culprit) == ("patch", culprit)
    assert finding.confidence is not None and finding.confidence >= 0.95
    assert search.runs <= 10 + 3 * (last.bit_length() + 2) + workers
    # Both neighbours were run.
    assert search.tally(culprit - 1).runs
    assert search.tally(culprit).runs


@pytest.mark.parametrize(("low", "high"), [(0.05, 0.95), (0.1, 0.7), (0.0, 0.4)])
def test_false_accusations_stay_below_what_is_stated(low: float, high: float) -> None:
    """A bounded version of ci/bench/bisect_noise.py; the whole is in the document."""
    rng = random.Random(7)
    games = 60
    wrong = right = 0
    for seed in range(games):
        culprit = rng.randint(1, 24)
        finding, _ = play(24, culprit, low, high, seed)
        if finding.culprit is not None:
            right += finding.culprit == culprit
            wrong += finding.culprit != culprit
    # With a rate of 5 %, more than 8 of 60 has a probability below 0.5 %.
    assert wrong <= 8
    assert right >= games // 2


@pytest.mark.parametrize("rate", [0.05, 0.3, 0.7])
def test_where_both_ends_overlap_nobody_is_accused(rate: float) -> None:
    kinds = []
    for seed in range(40):
        finding, search = play(32, 20, rate, rate, seed)
        kinds.append(finding.kind)
        if finding.kind == "noise" and finding.reason == "ends-overlap":
            assert finding.code == ExitCode.INSUFFICIENT
            assert search.runs == 40, "said at once, before any patch is tried"
            assert "the ends do not differ" in finding.message
    # By chance the ends differ in at most 2.5 % of all searches.
    assert kinds.count("patch") <= 4


def test_an_end_that_is_never_or_always_bad_is_no_noise() -> None:
    finding, _ = play(10, 5, 0, 0, 0)
    assert (finding.code, finding.reason) == (ExitCode.NO, "nothing-is-bad")
    assert "14 % of the runs could have been missed" in finding.message
    finding, search = play(10, 5, 1, 1, 0)
    assert (finding.code, finding.reason) == (ExitCode.INVALID, "good-end-is-bad")
    assert search.runs == 10
    finding, _ = play(10, 5, 0, 1, 0, skipped=frozenset({0}))
    assert (finding.code, finding.reason) == (ExitCode.NOT_TESTED, "good-end-skipped")


def test_skipped_positions_leave_a_range() -> None:
    finding, _ = play(20, 12, 0.02, 0.98, 3, skipped=frozenset({10, 11, 12}))
    assert (finding.kind, finding.code) == ("unresolved", ExitCode.INSUFFICIENT)
    assert finding.suspects == (10, 11, 12, 13)
    finding, _ = play(20, 6, 0.02, 0.98, 3, skipped=frozenset({10, 11, 12}))
    assert finding.culprit == 6


@pytest.mark.parametrize("workers", [1, 3])
def test_subsets_are_run_until_they_are_told_apart(workers: int) -> None:
    wrong = 0
    for seed in range(20):
        rng = random.Random(seed)
        names = ["a", "b", "c", "d", "e"]
        planted = frozenset(rng.sample(names, 2))
        inner = SubsetSearch(names, {})
        search = Repeated(inner, frozenset(), inner.whole, 0.95, 20)
        running: list[frozenset[str]] = []
        while not search.done:
            running += search.wants(workers - len(running), running)
            assert running, "the search is stuck"
            key = running.pop(0)
            rate = 0.9 if planted <= key else 0.05
            search.tell(key, "bad" if rng.random() < rate else "good")
            for useless in search.useless(running):
                running.remove(useless)
        assert search.ends.problem() is None
        wrong += inner.finding().bad != planted
    assert wrong <= 3
