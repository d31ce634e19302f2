"""Properties of the decision rule that hold whatever was observed."""

import json
from dataclasses import replace

from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from rules import (
    ACCURACY,
    ARMS,
    BASE,
    KERNEL,
    ON,
    RIGHT,
    answers,
    asked,
    evidence,
    unit,
)

from stackctl.errors import InputError
from stackctl.gates.evidence import from_document
from stackctl.gates.rule.accuracy import Table, tango
from stackctl.gates.rule.decide import decide
from stackctl.gates.rule.model import ORDER, Claim, Rule, worst
from stackctl.gates.rule.timed import halves
from stackctl.model.canonical import canonical_json

SHORT = replace(KERNEL, bootstrap_samples=1000)
FIGURES = st.floats(50, 200, allow_nan=False)
PAIR = st.tuples(st.lists(FIGURES, min_size=4, max_size=4), FIGURES)
RATIO = Claim(name="r", cell="c", arm="on", against="base", ratio=1.1)
MIRROR = {"qualified": "rejected", "rejected": "qualified"}
SLOW = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)


def run(pairs, order=("base", "on", "on", "base") * 2, arms=None):
    """Evidence of processes given as (four figures of the base, level of the arm)."""
    units = []
    for n, (base, level) in enumerate(pairs):
        on = [level * value / base[0] for value in base]
        cell = {"order": list(order), "values": {"base": base, "on": on}}
        units.append(unit(n, {"cells": {"c": cell}}))
    return evidence("kernel", SHORT, units, arms)


def calm(pairs):
    """The same processes, each with visits that hardly differ."""
    return [
        ([100 * (1 + 1e-5 * ((n * 7 + i * 3) % 5)) for i in range(4)], level)
        for n, (_, level) in enumerate(pairs)
    ]


@SLOW
@given(st.lists(PAIR, min_size=9, max_size=9))
def test_swapping_the_arms_mirrors_the_verdict(pairs):
    seen = run(calm(pairs))

    # The arms change names: the base now measures what the arm did, and back.
    def swapped(u):
        cell = u.samples["cells"]["c"]
        names = {"base": "on", "on": "base"}
        return replace(
            u,
            answer={
                "samples": {
                    "cells": {
                        "c": {
                            "order": [names[arm] for arm in cell["order"]],
                            "values": {names[a]: v for a, v in cell["values"].items()},
                        }
                    }
                }
            },
        )

    back = replace(seen, units=tuple(map(swapped, seen.units)))
    rule = replace(SHORT, control_width=10.0)
    one = decide(rule, [RATIO], seen).claims[0]
    two = decide(rule, [replace(RATIO, ratio=1 / 1.1)], back).claims[0]
    assume("invalid" not in (one.verdict, two.verdict))
    assume(abs(one.low - 1.1) > 1e-6 and abs(one.high - 1.1) > 1e-6)
    assert two.verdict == MIRROR.get(one.verdict, one.verdict)
    assert abs(two.low * one.high - 1) < 1e-6


@SLOW
@given(st.lists(PAIR, min_size=6, max_size=9), st.randoms())
def test_the_order_in_which_units_are_listed_has_no_say(pairs, random):
    seen = run(pairs)
    units = list(seen.units)
    random.shuffle(units)
    shuffled = replace(seen, units=tuple(units))
    assert canonical_json(decide(SHORT, [RATIO], shuffled).document()) == (
        canonical_json(decide(SHORT, [RATIO], seen).document())
    )


ORDERS = st.permutations(["base"] * 4 + ["on"] * 4)


@SLOW
@given(
    st.lists(PAIR, min_size=9, max_size=9),
    ORDERS,
    st.floats(0.01, 0.9),
)
def test_noise_never_makes_a_run_out_of_turn_qualify(pairs, order, level):
    takes_turns = all(len(set(order[n : n + 2])) == 2 for n in range(0, 8, 2))
    first = sum(order[n] == "on" for n in range(0, 8, 2))
    pairs = [(base, level * base[0]) for base, _ in pairs]
    found = decide(SHORT, [RATIO], run(pairs, order))
    if not takes_turns:
        assert found.verdict == "invalid"
    elif first != 2:
        assert found.verdict in ("invalid", "insufficient-evidence")


@SLOW
@given(st.lists(PAIR, min_size=1, max_size=9), st.integers(0, 8), st.text(max_size=9))
def test_a_problem_of_one_unit_makes_every_run_invalid(pairs, place, text):
    seen = run(pairs)
    units = list(seen.units)
    place %= len(units)
    units[place] = replace(units[place], problems=(text,))
    found = decide(SHORT, [RATIO], replace(seen, units=tuple(units)))
    assert found.verdict == "invalid"


@SLOW
@given(st.lists(PAIR, min_size=1, max_size=9))
def test_only_a_look_decides(pairs):
    found = decide(SHORT, [RATIO], run(pairs))
    if len(pairs) not in (6, 9):
        assert found.verdict in ("invalid", "insufficient-evidence")


@SLOW
@given(st.lists(PAIR, min_size=9, max_size=9), st.sampled_from(["base", "on"]))
def test_no_reference_but_the_unpacked_base_decides(pairs, which):
    arms = dict(ARMS)
    arms["base" if which == "base" else "on"] = (
        replace(ON, tree="e" * 40) if which == "base" else BASE
    )
    found = decide(SHORT, [RATIO], run(pairs, arms=arms))
    assert found.verdict in ("invalid", "insufficient-evidence")


# No control is narrower than a margin of next to nothing, so that decides nothing.
MARGIN = st.floats(-0.5, -0.001) | st.just(0.0) | st.floats(0.001, 0.5)


@SLOW
@given(
    st.lists(st.floats(0.2, 5), min_size=9, max_size=9),
    MARGIN,
    MARGIN,
)
def test_an_easier_margin_is_met_by_whatever_meets_a_harder_one(levels, one, two):
    easy, hard = sorted((one, two))
    seen = run(calm([(None, 100 * level) for level in levels]))
    rule = replace(SHORT, control_width=10.0)
    claims = [
        Claim(name=name, cell="c", arm="on", against="base", margin=margin)
        for name, margin in (("easy", easy), ("hard", hard))
    ]
    first, second = decide(rule, claims, seen).claims
    if second.verdict == "qualified":
        assert first.verdict == "qualified"
    if first.verdict == "rejected":
        assert second.verdict == "rejected"


@SLOW
@given(st.lists(st.sampled_from(ORDER), min_size=1))
def test_the_worst_is_one_of_them_and_none_is_worse(verdicts):
    found = worst(verdicts)
    assert found in verdicts
    assert all(ORDER.index(found) <= ORDER.index(verdict) for verdict in verdicts)


@given(st.integers(1, 8), st.floats(-0.1, 0.1))
def test_a_steady_drift_hits_both_halves_of_the_control_alike(rounds, drift):
    places = [n for n in range(4 * rounds) if n % 4 in (0, 3)]
    one, two = halves([drift * place for place in places])
    if rounds % 2 == 0:
        assert abs(sum(one) / len(one) - sum(two) / len(two)) < 1e-9
    assert abs(len(one) - len(two)) <= 1


TABLES = st.tuples(*[st.integers(0, 40)] * 4).filter(lambda t: sum(t) > 0)


@settings(max_examples=200, deadline=None)
@given(TABLES, st.sampled_from([0.9, 0.95, 0.99]))
def test_tango_contains_the_difference_and_grows_with_confidence(cells, confidence):
    table = Table(*cells)
    low, high = tango(table, confidence)
    assert -1 <= low <= table.difference <= high <= 1
    wider = tango(table, 0.999)
    assert wider[0] <= low
    assert high <= wider[1]
    mirrored = tango(Table(table.both, table.against, table.arm, table.neither), 0.95)
    plain = tango(table, 0.95)
    assert abs(mirrored[0] + plain[1]) < 1e-9
    assert abs(mirrored[1] + plain[0]) < 1e-9


@SLOW
@given(
    st.integers(1, 72),
    st.sets(st.integers(0, 71)),
    st.sets(st.integers(0, 71)),
)
def test_too_few_items_never_qualify(items, wrong, other):
    runs = [answers(items, other), answers(items, wrong), answers(items, other)]
    seen = asked(runs)
    assert decide(ACCURACY, [RIGHT], seen).verdict != "qualified"


# Hostile receipts ----------------------------------------------------------------

KEYS = [
    "cells",
    "c",
    "order",
    "values",
    "base",
    "on",
    "tests",
    "id",
    "outcome",
    "cases",
    "equal",
    "elements",
    "variants",
    "items",
    "result",
    "verdict",
    "engagement",
    "stop",
    "reason",
    "expected",
    "counted",
    "samples",
]
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=5)
    | st.sampled_from(["c", "base", "on", "passed", "exact"]),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(KEYS),
            inner,
            max_size=5,
        )
    ),
    max_leaves=12,
)
GATES = {
    "kernel": (SHORT, [RATIO]),
    "tests": (Rule(statistic="counts"), []),
    "compile": (Rule(statistic="counts"), []),
    "parity": (Rule(statistic="all-equal"), []),
    "image": (Rule(statistic="all-equal"), []),
    "accuracy": (ACCURACY, [RIGHT]),
    "serving": (
        Rule(statistic="paired-log-ratio", blocks=True),
        [replace(RATIO, cell="c:m")],
    ),
}


@settings(max_examples=300, deadline=None)
@given(
    st.sampled_from(sorted(GATES)),
    st.dictionaries(
        st.sampled_from(["samples", "engagement", "stop", "inputs"]), JSON, max_size=4
    ),
    st.dictionaries(
        st.sampled_from(["cpus", "load_before", "load_mean", "load_after"]), JSON
    ),
)
def test_no_answer_whatsoever_breaks_the_rule_or_qualifies_by_chance(
    kind, answer, host
):
    rule, claims = GATES[kind]
    units = [
        replace(unit(n, {}), answer=answer, host=host, exit=0)
        for n in range(1 if kind not in ("kernel", "serving") else 9)
    ]
    seen = evidence(kind, rule, units)
    found = decide(rule, claims, seen)
    assert found.verdict in ORDER
    if kind in ("kernel", "serving", "accuracy"):
        assert found.verdict != "qualified"


@settings(max_examples=100, deadline=None)
@given(st.lists(PAIR, min_size=1, max_size=9))
def test_a_run_read_back_from_json_has_the_same_verdict(pairs):
    seen = run(pairs)
    again = from_document(json.loads(canonical_json(seen.document())))
    assert canonical_json(decide(SHORT, [RATIO], again).document()) == canonical_json(
        decide(SHORT, [RATIO], seen).document()
    )


@given(st.sampled_from(sorted(GATES)), st.sampled_from(sorted(GATES)))
def test_a_rule_of_another_kind_is_refused(kind, other):
    rule, claims = GATES[other]
    seen = evidence("tests", Rule(statistic="counts"), [])
    seen = replace(seen, kind=kind)
    try:
        found = decide(rule, claims, seen)
    except InputError as error:
        assert error.kind == "bad-rule"
    else:
        assert found.verdict != "qualified"
