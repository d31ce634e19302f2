"""Pocock's constants and the numbers of pairs at which a run is judged."""

import pytest

from stackctl.gates.rule.looks import (
    critical_value,
    looks_of,
    nominal_confidence,
    stays_inside,
)
from stackctl.gates.rule.model import Rule


@pytest.mark.parametrize(
    ("looks", "confidence", "constant"),
    [
        # Jennison and Turnbull 2000, table 2.1: Pocock tests, K equal looks.
        (2, 0.95, 2.178),
        (3, 0.95, 2.289),
        (4, 0.95, 2.361),
        (5, 0.95, 2.413),
        (10, 0.95, 2.555),
        (2, 0.99, 2.772),
        (5, 0.99, 2.986),
        (2, 0.90, 1.875),
        (5, 0.90, 2.122),
    ],
)
def test_constants_of_equally_spaced_looks_are_the_published_ones(
    looks, confidence, constant
):
    found = critical_value(tuple(range(1, looks + 1)), confidence)
    assert found == pytest.approx(constant, abs=0.0006)


def test_the_looks_together_have_the_declared_confidence():
    # Independent of the recursion: the bivariate normal distribution.
    from scipy.stats import multivariate_normal

    looks = (6, 9)
    bound = critical_value(looks, 0.95)
    correlation = (6 / 9) ** 0.5
    both = multivariate_normal(cov=[[1, correlation], [correlation, 1]])
    corners = both.cdf([bound, bound]) - 2 * both.cdf([bound, -bound])
    assert corners + both.cdf([-bound, -bound]) == pytest.approx(0.95, abs=1e-5)
    assert stays_inside(looks, bound) == pytest.approx(0.95, abs=1e-9)


def test_one_look_has_the_declared_confidence():
    assert nominal_confidence((9,), 0.95) == 0.95


def test_more_looks_need_more_confidence_each():
    found = [nominal_confidence(tuple(range(1, k + 1)), 0.95) for k in range(1, 6)]
    assert found == sorted(found)
    assert found[1] == pytest.approx(1 - 0.0294, abs=5e-5)  # the usual 2.94 %


@pytest.mark.parametrize(
    ("pairs", "least", "looks", "expected"),
    [
        (9, 6, 2, (6, 9)),
        (9, 6, 1, (9,)),
        (12, 6, 2, (6, 12)),
        (18, 6, 3, (6, 12, 18)),
        (9, 6, 3, (6, 8, 9)),
        (6, 6, 1, (6,)),
    ],
)
def test_no_look_is_before_the_fewest_pairs(pairs, least, looks, expected):
    rule = Rule(
        statistic="paired-log-ratio", pairs=pairs, minimum_pairs=least, looks=looks
    )
    assert looks_of(rule) == expected
