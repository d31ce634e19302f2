# SPDX-License-Identifier: Apache-2.0
"""Servers whose features were not shown to be on, or were on in the base as well."""

from dataclasses import replace

import pytest
from rules import (
    ACCURACY,
    BASE,
    LOSS,
    ON,
    RIGHT,
    SERVING,
    accuracy,
    engagement,
    serving,
)

from stackctl.gates.evidence import CANDIDATE, Arm
from stackctl.gates.rule.decide import decide
from stackctl.gates.rule.model import Claim

KINDS = {
    "serving": (SERVING, LOSS, serving(1.05)),
    "accuracy": (ACCURACY, RIGHT, accuracy(200)),
}
"""Rule, claim and a run that qualifies."""


def judged(kind, seen=None, rule=None, claims=None):
    own_rule, claim, good = KINDS[kind]
    return decide(rule or own_rule, claims or [claim], seen or good)


def told(kind, number, found):
    """The good run with other engagement in one unit; None for none at all."""
    seen = KINDS[kind][2]
    units = list(seen.units)
    answer = {k: v for k, v in units[number].answer.items() if k != "engagement"}
    if found is not None:
        answer["engagement"] = found
    units[number] = replace(units[number], answer=answer)
    return replace(seen, units=tuple(units))


def feature(arm="on", **changed):
    """One feature of one unit, with other content."""
    found = engagement(arm)
    item = found[arm]["features"][0]
    found[arm]["features"] = [
        {k: v for k, v in {**item, **changed}.items() if v is not ...}
    ]
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_the_good_run_is_good(kind):
    assert judged(kind).verdict == "qualified"


ON_FAULTS = [
    (None, 'the arm "on" does not prove that its features were on'),
    ({}, "does not prove"),
    ({"on": {"expected": 1, "counted": 1}}, "does not prove"),
    ({"on": {"expected": 0, "counted": 0, "features": []}}, "does not prove"),
    ({"on": {"expected": 1, "counted": 1, "features": ["fork"]}}, "does not prove"),
    ({"on": "yes"}, "does not prove"),
    (engagement("base"), "does not prove"),
    (
        engagement("on", fork=0),
        'fork never engaged in the arm "on": no line of its server says so',
    ),
    (engagement("on", fork=1, pool=0), "pool never engaged"),
    (feature(seen=0, by="metric"), "the metric of its server did not grow"),
    (
        feature(seen=None, why="the metrics could not be read"),
        "whether fork was on is not known: the metrics could not be read",
    ),
    (feature(seen=...), "whether fork was on is not known"),
    (feature(seen=True), "whether fork was on is not known"),
    (feature(seen="1"), "whether fork was on is not known"),
    (feature(seen=-1), "whether fork was on is not known"),
    (
        {"on": engagement("on")["on"] | {"counted": 0}},
        "sums that are not those of its features",
    ),
    (
        {"on": engagement("on")["on"] | {"expected": 2}},
        "sums that are not those of its features",
    ),
]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("found", "why"), ON_FAULTS)
def test_an_arm_that_does_not_show_its_features_is_not_tested(kind, found, why):
    # Units 0, 1, 2 are base, on, base.
    result = judged(kind, told(kind, 1, found))
    assert result.verdict == "not-tested"
    assert why in result.reasons[0] and result.reasons[0].startswith("unit 1: ")
    assert result.claims[0].verdict == "not-tested"


BASE_FAULTS = [
    (None, 'the reference arm "base" does not prove that the features were off'),
    (engagement("on"), "does not prove that the features were off"),
    (
        engagement("base", fork=2),
        'fork engaged in the reference arm "base" as well',
    ),
    (engagement("base", fork=0, pool=0.5), "pool engaged in the reference arm"),
    (
        feature("base", seen=None, why="the metric fell"),
        'whether fork was off in the reference arm "base" is not known: the metric',
    ),
    (feature("base", seen=-1), 'whether fork was off in the reference arm "base"'),
    (
        engagement("base", pool=0),
        'the reference arm "base" did not look for fork',
    ),
    (
        {"base": engagement("base")["base"] | {"expected": 1}},
        "sums that are not those of its features",
    ),
]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("number", [0, 2])
@pytest.mark.parametrize(("found", "why"), BASE_FAULTS)
def test_a_reference_that_may_have_the_features_is_none(kind, number, found, why):
    result = judged(kind, told(kind, number, found))
    assert result.verdict == "not-tested"
    assert why in result.reasons[0]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("arm", "what"),
    [
        (ON, "(composed)"),
        (replace(ON, definition="only:fork", env={}), "(only:fork)"),
        (Arm("c" * 40, None, f"tree:{'c' * 40}"), "(tree:"),
        (replace(BASE, env={"FEATURE": "1"}), "switches"),
    ],
)
def test_an_arm_that_changes_something_must_declare_what_shows_it(kind, arm, what):
    rule, _, seen = KINDS[kind]
    seen = replace(seen, arms={**seen.arms, "on": arm})
    result = judged(kind, seen, replace(rule, engaged=()))
    assert result.verdict == "not-tested"
    assert f'nothing shows that the arm "on" {what}' in result.reasons[0]
    assert f"declare in [[{kind}.engagement]] a line or a metric" in result.reasons[0]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("arm", "why"),
    [
        (BASE, "both arms are the base"),
        (Arm(None, None, "external"), 'nothing binds the arm "on" to a tree'),
    ],
)
def test_an_arm_without_anything_of_its_own_decides_nothing_either(kind, arm, why):
    rule, _, seen = KINDS[kind]
    seen = replace(seen, arms={**seen.arms, "on": arm})
    result = judged(kind, seen, replace(rule, engaged=()))
    assert result.verdict == "insufficient-evidence"
    assert why in " ".join(result.reasons)
    # Where it is asked to prove something, it must.
    units = tuple(replace(u, answer={"samples": u.samples}) for u in seen.units)
    assert judged(kind, replace(seen, units=units)).verdict == "not-tested"


@pytest.mark.parametrize("kind", KINDS)
def test_a_server_of_others_has_no_tree_whatever_a_receipt_says(kind):
    _, _, seen = KINDS[kind]
    assert judged(kind, seen).verdict == "qualified"
    on = replace(seen.arms["on"], definition="external")
    result = judged(kind, replace(seen, arms={**seen.arms, "on": on}))
    assert result.verdict == "insufficient-evidence"
    assert 'nothing binds the arm "on" to a tree' in result.reasons


@pytest.mark.parametrize("kind", KINDS)
def test_a_bisection_asks_whether_it_is_worse_and_nothing_else(kind):
    seen = told(kind, 1, engagement("on", fork=0))
    arms = {**seen.arms, "on": Arm("c" * 40, None, CANDIDATE)}
    assert judged(kind, replace(seen, arms=arms)).verdict == "qualified"


@pytest.mark.parametrize("kind", KINDS)
def test_no_server_tells_of_captured_nodes(kind):
    rule = replace(KINDS[kind][0], captured=("on",))
    result = judged(kind, rule=rule)
    assert result.verdict == "not-tested" and "captured" in result.reasons[0]


def test_a_claim_without_a_reference_asks_the_arm_alone():
    level = Claim(name="level", cell="c8:steps_per_s", arm="on", better="higher", bar=9)
    off = told("serving", 0, engagement("base", fork=1))
    assert judged("serving", off, claims=[level]).verdict == "qualified"
    silent = told("serving", 1, engagement("on", fork=0))
    assert judged("serving", silent, claims=[level]).verdict == "not-tested"


TWICE = engagement("on")["on"]["features"] * 2


@pytest.mark.parametrize(
    ("found", "why"),
    [
        (engagement("on", pool=1), 'the arm "on" looked for pool, its first unit for'),
        (engagement("on", fork=1, pool=1), 'the arm "on" looked for fork, pool, its'),
        (
            {"on": {"expected": 2, "counted": 2, "features": TWICE}},
            'the arm "on" names a feature twice',
        ),
    ],
)
def test_units_of_an_arm_are_about_the_same_features(found, why):
    # Unit 4 is the second start of the arm.
    result = judged("serving", told("serving", 4, found))
    assert result.verdict == "not-tested"
    assert result.reasons[0].startswith(f"unit 4: {why}")


@pytest.mark.parametrize("kind", KINDS)
def test_an_arm_that_is_called_base_and_has_another_tree_is_none(kind):
    rule, _, seen = KINDS[kind]
    seen = replace(seen, arms={**seen.arms, "on": replace(BASE, tree="c" * 40)})
    result = judged(kind, seen, replace(rule, engaged=()))
    assert result.verdict == "not-tested"
    assert 'nothing shows that the arm "on"' in result.reasons[0]
