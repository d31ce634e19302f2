"""Intervals of a mean against other implementations, and how many pairs decide."""

import math
import random

import pytest

from stackctl.gates.rule.intervals import (
    LEVEL_SPREAD,
    mean_interval,
    pairs_to_decide,
    power,
    smallest,
    t_quantile,
)

VALUES = [-0.101, -0.0944, -0.0978, -0.1033, -0.0967, -0.0991, -0.1002, -0.0958, -0.099]


@pytest.mark.parametrize(
    ("confidence", "df", "quantile"),
    [(0.95, 8, 2.306), (0.99, 8, 3.355), (0.95, 5, 2.571), (0.99, 5, 4.032)],
)
def test_quantiles_are_those_of_the_printed_tables(confidence, df, quantile):
    assert t_quantile(confidence, df) == pytest.approx(quantile, abs=5e-4)


def test_the_interval_is_that_of_statsmodels():
    from statsmodels.stats.weightstats import DescrStatsW

    found = mean_interval(VALUES, 0.95)
    low, high = DescrStatsW(VALUES).tconfint_mean(alpha=0.05)
    assert found.low == pytest.approx(low, abs=1e-9)
    assert found.high == pytest.approx(high, abs=1e-9)


def test_the_bootstrap_is_near_that_of_scipy_and_shorter_than_the_t_interval():
    from scipy.stats import bootstrap

    found = mean_interval(VALUES, 0.95, samples=10_000)
    other = bootstrap((VALUES,), lambda x: sum(x) / len(x), vectorized=False,
                      confidence_level=0.95, method="percentile", n_resamples=2000,
                      rng=1).confidence_interval  # fmt: skip
    assert found.boot_low == pytest.approx(other.low, abs=3e-4)
    assert found.boot_high == pytest.approx(other.high, abs=3e-4)
    assert found.low < found.boot_low < found.boot_high < found.high


def test_neither_order_nor_repetition_changes_a_digit():
    shuffled = list(VALUES)
    random.Random(3).shuffle(shuffled)
    assert mean_interval(shuffled, 0.95, samples=5000, seed=4) == mean_interval(
        VALUES, 0.95, samples=5000, seed=4
    )


def test_another_seed_moves_the_bootstrap_only():
    one, two = (mean_interval(VALUES, 0.95, samples=5000, seed=s) for s in (1, 2))
    assert one[:5] == two[:5]
    assert one[5:] != two[5:]


def test_a_figure_on_its_own_has_an_interval_wider_by_the_root_of_three():
    plain, wide = mean_interval(VALUES, 0.95), mean_interval(VALUES, 0.95, widen=3**0.5)
    assert pytest.approx(3**0.5) == LEVEL_SPREAD
    ratio = (wide.high - wide.low) / (plain.high - plain.low)
    assert ratio == pytest.approx(3**0.5, rel=1e-6)


def test_power_is_that_of_statsmodels():
    from statsmodels.stats.power import TTestPower

    other = TTestPower().power(0.8, 9, 0.05, alternative="two-sided")
    assert power(9, 0.8, 0.95) == pytest.approx(other, abs=2e-4)


def test_the_pairs_asked_for_decide_in_four_of_five_runs():
    needed = pairs_to_decide(-0.0815, 0.004, -0.08, 0.95)
    draw = random.Random(1)
    decided = 0
    for _ in range(600):
        values = [draw.gauss(-0.0815, 0.004) for _ in range(needed)]
        decided += mean_interval(values, 0.95).high <= -0.08
    assert 0.75 < decided / 600 < 0.86


def test_a_figure_on_the_bar_is_never_decided():
    assert pairs_to_decide(-0.08, 0.01, -0.08, 0.95) is None


def test_more_distance_needs_fewer_pairs():
    found = [pairs_to_decide(-0.08 - gap, 0.01, -0.08, 0.95) for gap in (1e-3, 1e-2)]
    assert found[0] > found[1] >= 2


def test_smallest_finds_the_first_that_holds():
    assert smallest(lambda n: n >= 37, 2) == 37
    assert smallest(lambda n: n >= 2, 2) == 2
    assert smallest(lambda n: False, 2) is None


def test_figures_of_any_size_keep_their_digits():
    tiny = mean_interval([v * -1e-12 for v in VALUES], 0.95, relative=True)
    assert tiny.mean == pytest.approx(math.fsum(VALUES) / 9 * -1e-12, rel=1e-9)
