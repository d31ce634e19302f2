"""Gates without a spread: tests, parity, compiled variants, images."""

from dataclasses import replace

import pytest
from rules import evidence, unit

from stackctl.gates.rule.decide import decide
from stackctl.gates.rule.model import Claim, Rule
from stackctl.model.canonical import canonical_json

COUNTS = Rule(statistic="counts")
EQUAL = Rule(statistic="all-equal")


def judged(kind, *samples, rule=None, claims=(), **changed):
    rule = rule or (COUNTS if kind in ("tests", "compile") else EQUAL)
    units = [unit(n, found, **changed) for n, found in enumerate(samples)]
    return decide(rule, claims, evidence(kind, rule, units))


def ran(*outcomes, prefix="t"):
    return {
        "tests": [
            {"id": f"{prefix}{n}", "outcome": outcome, "ns": 1}
            for n, outcome in enumerate(outcomes)
        ]
    }


@pytest.mark.parametrize(
    ("outcomes", "code", "verdict"),
    [
        (("passed", "passed"), 0, "qualified"),
        (("passed", "xfailed"), 0, "qualified"),
        (("passed", "failed"), 1, "rejected"),
        (("passed", "error"), 1, "rejected"),
        (("passed", "skipped"), 0, "not-tested"),
        (("skipped", "skipped"), 0, "not-tested"),
        (("failed", "skipped"), 1, "rejected"),
        (("xfailed",), 0, "not-tested"),
        ((), 5, "invalid"),
        ((), 0, "invalid"),
        (("passed",), 1, "invalid"),
        (("passed",), 5, "invalid"),
        (("passed",), 2, "invalid"),
        (("passed",), -11, "invalid"),
    ],
)
def test_every_selected_test_has_to_pass(outcomes, code, verdict):
    assert judged("tests", ran(*outcomes), exit=code).verdict == verdict


def test_the_names_of_failed_tests_are_given():
    found = judged("tests", ran("passed", *["failed"] * 9), exit=1)
    assert "failed: t1, t2, t3, t4, t5, and 4 more" in found.reasons


def test_a_declared_skip_is_counted_and_not_as_passed():
    rule = Rule(statistic="counts", expected_skips=("t1*",))
    found = judged("tests", ran("passed", "skipped"), rule=rule)
    assert found.verdict == "qualified"
    assert "2 tests: 1 passed, 1 skipped" in found.reasons
    assert found.claims[0].estimate == 1
    all_skipped = judged("tests", ran("skipped", prefix="t1"), rule=rule)
    assert all_skipped.verdict == "not-tested"


def test_a_selection_that_shrank_is_not_tested():
    claim = Claim(name="tests", bar=3, better="higher")
    assert judged("tests", ran(*["passed"] * 3), claims=[claim]).verdict == "qualified"
    found = judged("tests", ran(*["passed"] * 2), claims=[claim])
    assert found.verdict == "not-tested"


@pytest.mark.parametrize(
    "samples",
    [
        {"tests": [{"id": "a", "outcome": "passed"}] * 2},
        {"tests": [{"id": "a", "outcome": "good"}]},
        {"tests": [{"outcome": "passed"}]},
        {"tests": "passed"},
        {"tests": ["passed"]},
        {"other": []},
    ],
)
def test_a_list_of_tests_that_cannot_be_read_is_invalid(samples):
    assert judged("tests", samples).verdict == "invalid"


def test_a_unit_that_did_not_run_keeps_the_gate_from_qualifying():
    units = [unit(n, ran("passed", prefix=f"u{n}")) for n in range(4)]
    seen = evidence("tests", COUNTS, units)
    assert decide(COUNTS, (), seen).verdict == "qualified"
    found = decide(COUNTS, (), replace(seen, units=seen.units[:3]))
    assert found.verdict == "insufficient-evidence"
    assert "1 unit of the schedule did not run" in found.reasons


def case(**changed):
    return {"id": "a", "equal": True, "elements": 8, "differing": 0} | changed


APART = {"equal": False, "differing": 3}


@pytest.mark.parametrize(
    ("found", "bar", "verdict"),
    [
        (case(), None, "qualified"),
        (case(**APART), None, "rejected"),
        (case(**APART, max_abs=0.01), None, "rejected"),
        (case(**APART, max_abs=0.01), 0.02, "qualified"),
        (case(**APART, max_abs=0.03), 0.02, "rejected"),
        (case(**APART), 0.02, "rejected"),
        (case(**APART, max_abs=float("nan")), 0.02, "rejected"),
        (case(**APART, max_abs=float("inf")), 1e15, "rejected"),
        (case(elements=0), None, "invalid"),
        (case(elements=10**300), None, "invalid"),
        (case(**APART | {"differing": 9}), None, "invalid"),
        (case(elements=None), None, "invalid"),
        (case(elements=True), None, "invalid"),
        (case(equal=None), None, "invalid"),
        (case(differing=2), None, "invalid"),
        (case(max_abs=0.5), None, "invalid"),
    ],
)
def test_every_case_has_to_be_equal(found, bar, verdict):
    claims = [] if bar is None else [Claim(name="near", bar=bar)]
    assert judged("parity", {"cases": [found]}, claims=claims).verdict == verdict


def test_what_differs_without_bound_has_no_figure():
    found = judged(
        "parity", {"cases": [case(**APART)]}, claims=[Claim(name="n", bar=1)]
    )
    assert found.claims[0].estimate is None
    assert canonical_json(found.document())


def test_nothing_compared_is_invalid():
    assert judged("parity", {"cases": []}).verdict == "invalid"
    claim = Claim(name="x", cell="other*")
    assert judged("parity", {"cases": [case()]}, claims=[claim]).verdict == "invalid"


def test_a_unit_that_shares_no_work_is_invalid():
    idle = judged("parity", {"cases": [case()]}, {"cases": []})
    assert (idle.verdict, idle.reasons) == ("invalid", ("unit 1 compared no case",))
    kernels = {"variants": {"k": [1]}}
    idle = judged("compile", kernels, {"variants": {}})
    assert (idle.verdict, idle.reasons) == ("invalid", ("unit 1 counted no kernel",))


def test_a_case_counts_once():
    copied = judged("parity", {"cases": [case()]}, {"cases": [case()]})
    assert (copied.verdict, copied.reasons) == ("invalid", ('case "a" is there twice',))


@pytest.mark.parametrize("kind", ["tests", "parity", "compile", "image"])
def test_what_no_tree_is_bound_to_never_qualifies(kind):
    samples = {
        "tests": ran("passed"),
        "parity": {"cases": [case()]},
        "compile": {"variants": {"k": [1]}},
        "image": {"verdict": "match"},
    }[kind]
    rule = COUNTS if kind in ("tests", "compile") else EQUAL
    seen = evidence(kind, rule, [unit(0, samples)])
    assert decide(rule, (), seen).verdict == "qualified"
    arms = {name: replace(arm, tree=None) for name, arm in seen.arms.items()}
    found = decide(rule, (), replace(seen, arms=arms))
    assert found.verdict == "insufficient-evidence"
    assert 'nothing binds the arm "on" to a tree' in found.reasons


def test_one_differing_case_of_any_unit_rejects():
    found = judged("parity", {"cases": [case()]}, {"cases": [case(id="b", **APART)]})
    assert found.verdict == "rejected"
    assert "different: b (3 of 8 elements)" in found.reasons


@pytest.mark.parametrize(
    ("variants", "bar", "verdict"),
    [
        ({"k": [1, 1, 1]}, None, "qualified"),
        ({"k": [0, 1, 1]}, None, "qualified"),
        ({"k": [1, 2, 2]}, None, "rejected"),
        ({"k": [1, 2, 2]}, 2, "qualified"),
        ({"k": [1], "l": [2]}, None, "rejected"),
        ({"k": [0, 0]}, None, "not-tested"),
        ({"k": []}, None, "invalid"),
        ({"k": [-1]}, None, "invalid"),
        ({"k": ["1"]}, None, "invalid"),
        ({"k": 1}, None, "invalid"),
        ({}, None, "invalid"),
    ],
)
def test_a_kernel_has_no_more_variants_than_declared(variants, bar, verdict):
    claims = [] if bar is None else [Claim(name="few", bar=bar)]
    found = judged("compile", {"variants": variants}, claims=claims)
    assert found.verdict == verdict


@pytest.mark.parametrize(
    ("said", "verdict"),
    [("match", "qualified"), ("mismatch", "rejected"), ("unverifiable", "invalid")],
)
def test_an_image_has_the_verdict_of_verify_image(said, verdict):
    samples = {"verdict": said, "reason": {"code": "modified"}}
    found = judged("image", samples)
    assert found.verdict == verdict
    assert "modified" in found.reasons[0]


@pytest.mark.parametrize(
    ("code", "said", "verdict"),
    [
        (1, "mismatch", "rejected"),
        (3, "unverifiable", "invalid"),
        (2, "match", "invalid"),
    ],
)
def test_an_image_that_does_not_match_has_an_exit_code_of_its_own(code, said, verdict):
    found = judged("image", {"verdict": said}, exit=code)
    assert found.verdict == verdict
    assert ("exit code" in found.reasons[0]) == (code == 2)


def test_the_worst_image_counts():
    found = judged("image", {"verdict": "match"}, {"verdict": "mismatch"})
    assert found.verdict == "rejected"
    assert judged("image", {"verdict": "fine"}).verdict == "invalid"
