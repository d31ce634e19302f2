# SPDX-License-Identifier: Apache-2.0
"""The search over subsets, as a pure function of the answers."""

import random
from collections.abc import Callable

from hypothesis import given, settings
from hypothesis import strategies as st

from stackctl.bisect.subsets import Requirements, Subset, SubsetFinding, SubsetSearch
from stackctl.errors import ExitCode

Truth = Callable[[Subset], str]


def play(
    sets: str | list[str],
    requires: dict[str, list[str]],
    truth: Truth,
    workers: int = 1,
    seed: int | None = None,
) -> tuple[SubsetFinding, list[Subset]]:
    """Run a search; with several workers answers come in any order."""
    names = sets.split() if isinstance(sets, str) else sets
    search = SubsetSearch(names, requires)
    rules = Requirements(names, requires)
    rng = random.Random(seed)
    running: list[Subset] = []
    tried: list[Subset] = []
    while not search.done:
        running += search.wants(workers - len(running), running)
        assert running, "the search is stuck"
        key = running.pop(rng.randrange(len(running)) if seed is not None else 0)
        assert key not in tried, "nothing is tried twice"
        assert rules.closed(key) == key, "what is required is there"
        tried.append(key)
        search.tell(key, truth(key))  # type: ignore[arg-type]
        for useless in search.useless(running):
            running.remove(useless)
    return search.finding(), tried


def bad_with(*names: str) -> Truth:
    return lambda key: "bad" if set(names) <= key else "good"


def test_one_bad_set() -> None:
    finding, tried = play("a b c d", {}, bad_with("c"))
    assert (finding.kind, finding.code) == ("set", ExitCode.OK)
    assert finding.faults[0].culprits == ("c",)
    assert finding.bad == {"c"}
    assert finding.good == frozenset()
    assert len(tried) <= 8


def test_an_interaction_of_two() -> None:
    finding, _ = play("a b c d e", {}, bad_with("b", "e"))
    assert finding.kind == "interaction"
    assert finding.faults[0].culprits == ("b", "e")
    assert finding.bad == {"b", "e"}
    assert finding.good in ({"b"}, {"e"})
    assert "b and e" in finding.message


def test_a_set_that_requires_another_is_named_alone() -> None:
    finding, _ = play("a b c", {"b": ["a"]}, bad_with("b"))
    assert (finding.kind, finding.faults[0].culprits) == ("set", ("b",))
    assert finding.bad == {"a", "b"}
    assert finding.good == {"a"}


def test_an_interaction_with_what_is_required_of_another() -> None:
    finding, _ = play("a b c d", {"b": ["a"], "d": ["c"]}, bad_with("b", "c"))
    assert (finding.kind, finding.faults[0].culprits) == ("interaction", ("b", "c"))
    assert finding.bad == {"a", "b", "c"}


def test_what_does_not_compose_is_neither_good_nor_bad() -> None:
    """`c` lies on top of `a` without saying so."""

    def truth(key: Subset) -> str:
        if "c" in key and "a" not in key:
            return "conflict"
        return bad_with("c")(key)

    finding, _ = play("a b c", {}, truth)
    assert (finding.kind, finding.faults[0].culprits) == ("set", ("c",))
    assert finding.faults[0].carriers == ("a",)
    assert "does not compose without a" in finding.notes[0]


def test_two_faults_are_both_named() -> None:
    def truth(key: Subset) -> str:
        return "bad" if "a" in key or {"c", "d"} <= key else "good"

    finding, _ = play("a b c d e", {}, truth)
    found = {fault.culprits for fault in finding.faults}
    assert found == {("a",), ("c", "d")}
    assert any("another fault" in note for note in finding.notes)


def test_a_set_that_needs_another_without_saying_so() -> None:
    """The whole is good; `b` without `d` is bad."""

    def truth(key: Subset) -> str:
        return "bad" if "b" in key and "d" not in key else "good"

    finding, _ = play("a b c d", {}, truth)
    assert (finding.kind, finding.reason) == ("interaction", "needs-without")
    assert finding.code == ExitCode.OK
    assert finding.without == ("d",)
    assert (finding.bad, finding.good) == ({"b"}, {"b", "d"})


def test_nothing_bad_and_bad_ends() -> None:
    finding, tried = play("a b c", {}, lambda key: "good")
    assert (finding.code, finding.reason) == (ExitCode.NO, "nothing-is-bad")
    assert len(tried) == 5
    finding, tried = play("a b c", {}, lambda key: "bad")
    assert (finding.code, finding.reason) == (ExitCode.INVALID, "good-end-is-bad")
    assert tried == [frozenset()]
    finding, _ = play("a b", {}, lambda key: "skip" if not key else "good")
    assert finding.code == ExitCode.NOT_TESTED
    finding, _ = play("a b", {}, lambda key: "skip" if len(key) == 2 else "good")
    assert finding.code == ExitCode.NOT_TESTED


def test_skipped_subsets_leave_it_open() -> None:
    def truth(key: Subset) -> str:
        return "skip" if key in ({"a"}, {"b"}) else bad_with("a", "b")(key)

    finding, _ = play("a b c", {}, truth)
    assert (finding.kind, finding.code) == ("unresolved", ExitCode.INSUFFICIENT)
    assert set(finding.faults[0].open) == {"a", "b"}


def test_a_set_that_could_not_be_left_out_is_not_accused() -> None:
    """`b` alone is the fault; without `d` nothing with `b` can be tried."""

    def truth(key: Subset) -> str:
        if "b" not in key:
            return "good"
        return "bad" if "d" in key else "skip"

    finding, _ = play("a b c d", {}, truth)
    assert (finding.kind, finding.code) == ("unresolved", ExitCode.INSUFFICIENT)
    assert finding.reason == "not-told-apart"
    assert (finding.faults[0].culprits, finding.faults[0].open) == (("b",), ("d",))
    assert "b" in finding.message and "d" in finding.message


@given(
    data=st.data(), count=st.integers(1, 12), workers=st.integers(1, 4),
    seed=st.integers(0, 999),
)  # fmt: skip
@settings(max_examples=150, deadline=None)
def test_the_planted_subset_is_found(
    data: st.DataObject, count: int, workers: int, seed: int
) -> None:
    names = [f"s{n}" for n in range(count)]
    requires = {
        name: data.draw(st.lists(st.sampled_from(names[:n]), max_size=2, unique=True))
        for n, name in enumerate(names)
        if n
    }
    planted = data.draw(st.sets(st.sampled_from(names), min_size=1, max_size=3))
    rules = Requirements(names, requires)
    finding, tried = play(names, requires, bad_with(*planted), workers, seed)
    assert finding.bad == rules.closed(planted)
    tops = rules.tops(rules.closed(planted))
    assert finding.faults[0].culprits == tops
    assert finding.kind == ("set" if len(tops) == 1 else "interaction")
    assert len(finding.faults) == 1
    assert len(tried) <= 2 + count + 4 * count * max(len(finding.bad or ()), 1)
