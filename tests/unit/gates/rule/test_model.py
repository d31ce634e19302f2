"""Rules and claims as data, and the verdict of several claims."""

import json
from itertools import product

import pytest
from rules import GAIN, KERNEL, RIGHT, SERVING, kernel

from stackctl.errors import InputError
from stackctl.gates.rule.decide import decide
from stackctl.gates.rule.model import (
    ORDER,
    Claim,
    Rule,
    from_document,
    problems,
    reference,
    worst,
)
from stackctl.model.canonical import canonical_json


def test_rule_and_claims_are_read_back_as_they_were_written():
    claims = (GAIN, RIGHT, Claim(name="b", cell="c", arm="on", bar=5.0, required=False))
    documents = json.loads(json.dumps([claim.document() for claim in claims]))
    assert from_document(KERNEL.document(), documents) == (KERNEL, claims)
    assert "control_width" not in KERNEL.document()
    assert KERNEL.document()["confidence"] == 0.95  # defaults are written out


@pytest.mark.parametrize(
    ("rule", "claim", "message"),
    [
        ({"pear": 1}, {}, "unknown key `pear`"),
        ({"pears": 9}, {}, "did you mean `pairs`"),
        ({"pairs": 5}, {}, "below the 6 that may decide"),
        ({"minimum_pairs": 3}, {}, "from 6 to 1000"),
        ({"looks": 5}, {}, "there is room for 4"),
        ({"confidence": 0.5}, {}, "from 0.9 to 0.9999"),
        ({"control_confidence": 0.95}, {}, "from 0.99 to 0.9999"),
        ({"confidence": float("nan")}, {}, "from 0.9 to 0.9999"),
        ({}, {"margin": 0.1, "bar": 5}, "has `margin` and `bar`"),
        ({}, {"against": "on"}, "`arm` and `against` are the same"),
        ({}, {"right": ["truncated"]}, "must be one of"),
    ],
)
def test_what_has_no_meaning_is_refused(rule, claim, message):
    rule = KERNEL.document() | rule
    claim = {"name": "x", "arm": "on"} | claim
    with pytest.raises(InputError, match=message):
        from_document(rule, [claim])


@pytest.mark.parametrize(
    ("kind", "rule", "claim", "fault"),
    [
        ("tests", KERNEL, None, 'has the statistic "counts"'),
        ("kernel", KERNEL, None, "needs at least one"),
        ("serving", KERNEL, GAIN, "needs `blocks = true`"),
        ("accuracy", SERVING, RIGHT, 'the statistic "paired-difference"'),
        ("kernel", KERNEL, Claim(name="x"), "needs a `cell`"),
        ("kernel", KERNEL, Claim(name="x", cell="c", arm="on"), "needs `margin`"),
        (
            "kernel",
            KERNEL,
            Claim(name="x", cell="c", arm="on", margin=0.1),
            "needs an arm to compare with",
        ),
        (
            "kernel",
            KERNEL,
            Claim(name="x", cell="c", arm="on", bar=1.0, required=False),
            "no claim is required",
        ),
        ("parity", Rule(statistic="all-equal"), GAIN, "has no `margin`"),
    ],
)
def test_a_gate_that_cannot_decide_says_why(kind, rule, claim, fault):
    claims = [] if claim is None else [claim]
    found = problems(kind, rule, claims)
    assert any(fault in text for text in found)


def test_two_claims_of_one_name_are_refused():
    assert problems("kernel", KERNEL, [GAIN, GAIN]) == ['two claims are called "gain"']


def test_a_good_gate_has_no_problem():
    assert problems("kernel", KERNEL, [GAIN]) == []
    assert reference([Claim(name="x", arm="on", bar=1.0), GAIN]) == "base"
    assert reference([]) is None


def test_the_worst_verdict_counts_in_the_documented_order():
    assert ORDER == (
        "invalid",
        "rejected",
        "insufficient-evidence",
        "not-tested",
        "qualified",
    )
    for one, two in product(ORDER, ORDER):
        assert worst([one, two]) == ORDER[min(ORDER.index(one), ORDER.index(two))]


def test_advisory_claims_are_judged_and_do_not_count():
    hard = Claim(
        name="hard", cell="c", arm="on", against="base", margin=0.5, required=False
    )
    found = decide(KERNEL, [GAIN, hard], kernel(0.85))
    assert [claim.verdict for claim in found.claims] == ["qualified", "rejected"]
    assert found.verdict == "qualified"
    assert len(found.reasons) == 1


def test_a_decision_is_the_same_bytes_every_time():
    one, two = (decide(KERNEL, [GAIN], kernel(0.92)).document() for _ in range(2))
    assert canonical_json(one) == canonical_json(two)
    assert set(one) == {
        "verdict",
        "reasons",
        "limitations",
        "claims",
        "look",
        "looks",
        "pairs",
    }


def test_ratios_and_bars_are_said_in_their_own_words():
    ratio = Claim(name="r", cell="c", arm="on", against="base", ratio=10.0)
    bar = Claim(name="b", cell="c", arm="on", bar=11.0)
    found = decide(KERNEL, [ratio, bar], kernel(0.08))
    assert found.verdict == "qualified"
    times, value = found.claims
    assert times.unit == "times"
    assert times.low <= 12.5 <= times.high
    assert times.target == 10
    assert times.control.low <= times.control.estimate <= times.control.high
    assert abs(times.control.high) < 0.05  # a change, not a number of times
    assert "at least 10 times is asked for" in times.reasons[0]
    assert value.unit == "value"
    assert value.low < 8 < value.high
    assert "at most 11 is asked for" in value.reasons[0]


def test_without_the_library_the_error_says_what_to_install(monkeypatch):
    import sys

    from stackctl.errors import UsageError
    from stackctl.gates.rule.libraries import library

    monkeypatch.setitem(sys.modules, "scipy.stats", None)
    with pytest.raises(UsageError) as error:
        library("scipy.stats")
    assert error.value.hint == "pip install 'stackctl[gates]'"
    assert error.value.exit_code == 2
