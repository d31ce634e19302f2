"""Right answers: score intervals against published figures, and verdicts."""

import pytest
from rules import ACCURACY, RIGHT, accuracy, answers, asked

from stackctl.gates.rule.accuracy import (
    Table,
    fewest_items,
    items_needed,
    mcnemar,
    newcombe,
    tango,
    variance,
    wilson,
)
from stackctl.gates.rule.decide import decide


def judged(*args, **kwargs):
    return decide(ACCURACY, [RIGHT], accuracy(*args, **kwargs))


def test_tango_is_that_of_an_independent_implementation():
    # R package PropCIs 0.3-0, scoreci.mp(48, 41, 549, conf.level = 0.9), as published.
    low, high = tango(Table(460, 48, 41, 0), 0.90)
    assert (round(low, 4), round(high, 4)) == (-0.0157, 0.0414)


def test_tango_ends_where_the_score_test_rejects():
    table = Table(36, 12, 2, 0)
    for end in tango(table, 0.95):
        score = (12 - 2 - 50 * end) / (50 * variance(12, 2, 50, end)) ** 0.5
        assert abs(score) == pytest.approx(1.959964, abs=1e-5)


@pytest.mark.parametrize("n", [1, 30, 73, 1000])
def test_tango_without_a_differing_answer(n):
    z2 = 1.959964**2
    low, high = tango(Table(n, 0, 0, 0), 0.95)
    assert high == pytest.approx(z2 / (n + z2), rel=1e-5)
    assert low == -high


def test_tango_where_every_answer_differs():
    assert tango(Table(0, 20, 0, 0), 0.95) == (pytest.approx(0.67775, abs=1e-5), 1.0)
    assert tango(Table(0, 0, 20, 0), 0.95) == (-1.0, pytest.approx(-0.67775, abs=1e-5))


def test_tango_mirrors():
    low, high = tango(Table(40, 9, 4, 7), 0.95)
    assert tango(Table(40, 4, 9, 7), 0.95) == (
        pytest.approx(-high, abs=1e-12),
        pytest.approx(-low, abs=1e-12),
    )


def test_newcombe_is_the_worked_example():
    # Altman, Machin, Bryant and Gardner, Statistics with Confidence, 2000, table 6.2.
    low, high = newcombe(Table(14, 5, 0, 22), 0.95)
    assert (round(low, 3), round(high, 3)) == (0.011, 0.226)


def test_wilson_is_the_worked_example():
    # Newcombe, Statistics in Medicine 17, 1998, 857: 81 of 263.
    low, high = wilson(81, 263, 0.95)
    assert (round(low, 4), round(high, 4)) == (0.2553, 0.3662)


def test_mcnemar_is_the_sign_test():
    assert mcnemar(Table(14, 5, 0, 22)) == pytest.approx(2 * 0.5**5)


def test_the_fewest_items_are_those_whose_interval_just_fits():
    least = fewest_items(0.05, 0.95)
    assert least == 73
    assert tango(Table(least, 0, 0, 0), 0.95)[0] >= -0.05
    assert tango(Table(least - 1, 0, 0, 0), 0.95)[0] < -0.05


def test_items_needed_grow_with_what_differs():
    found = [items_needed(share, 0.0, -0.05, 0.95) for share in (0.0, 0.05, 0.1, 0.2)]
    assert found == sorted(found)
    assert found[0] == 73
    assert items_needed(0.1, -0.05, -0.05, 0.95) is None


@pytest.mark.parametrize("on", [(), range(3)])
def test_thirty_items_never_meet_five_points(on):
    # Not even where the arm is right on three items that the reference has wrong.
    found = judged(30, on=(), base=on)
    assert found.verdict == "insufficient-evidence"
    assert "30 items never meet a margin of 5 points" in " ".join(found.reasons)
    assert found.claims[0].more_pairs >= 73


def test_equal_answers_on_enough_items_qualify():
    found = judged(400, range(20), range(10, 30))
    assert found.verdict == "qualified"
    claim = found.claims[0]
    assert claim.extra["table"] == {
        "both": 370,
        "arm": 10,
        "against": 10,
        "neither": 10,
    }
    assert claim.extra["self_flip"]["items"] == 0
    assert claim.unit == "difference"


def test_a_clear_loss_is_rejected():
    assert judged(400, range(60)).verdict == "rejected"


def test_a_loss_near_the_margin_says_how_many_items_decide():
    found = judged(200, range(9), range(5, 9))
    assert found.verdict == "insufficient-evidence"
    assert found.claims[0].more_pairs > 200
    assert "a new run of" in found.reasons[-1]


@pytest.mark.parametrize("result", ["truncated", "stalled", "timed-out", "ambiguous"])
def test_answers_that_are_cut_or_late_are_wrong(result):
    assert judged(400, range(60), result=result).verdict == "rejected"


def test_a_reference_that_contradicts_itself_to_one_side_is_invalid():
    found = judged(400, again=range(30))
    assert found.verdict == "invalid"
    assert "differs from itself" in found.reasons[-1]


def test_flips_both_ways_are_reported():
    found = judged(400, range(10), range(10), again=range(5, 15))
    assert found.verdict == "qualified"
    assert found.claims[0].extra["self_flip"]["rate"] == 0.025


@pytest.mark.parametrize(
    ("samples", "why"),
    [
        (answers(399), "the arms did not answer the same items"),
        ({"items": answers(400)["items"] * 2}, "is there twice"),
        ({"items": [{"id": "i0", "result": "great"}]}, "has no known result"),
        ({"items": [{"result": "exact"}]}, "an item has no id"),
        ({"items": []}, "has no item"),
        ({"other": 1}, "has no items"),
    ],
)
def test_answers_that_cannot_be_compared_are_invalid(samples, why):
    runs = [answers(400), samples, answers(400)]
    found = decide(ACCURACY, [RIGHT], asked(runs))
    assert found.verdict == "invalid"
    assert why in found.reasons[0]


def test_without_the_repeat_of_the_reference_nothing_is_decided():
    found = decide(ACCURACY, [RIGHT], asked([answers(400), answers(400)]))
    assert found.verdict == "insufficient-evidence"


def test_a_claim_about_one_set_of_items():
    from dataclasses import replace

    def mixed(wrong):
        return {
            "items": answers(200, wrong, set="packet")["items"]
            + [i | {"id": "l" + i["id"]} for i in answers(200, set="ledger")["items"]]
        }

    seen = asked([mixed(w) for w in [(), range(60), ()]])
    claims = [replace(RIGHT, name=name, cell=name) for name in ("packet", "ledger")]
    found = decide(ACCURACY, claims, seen)
    assert [claim.verdict for claim in found.claims] == ["rejected", "qualified"]
    assert found.verdict == "rejected"
