# SPDX-License-Identifier: Apache-2.0
"""When a run may be judged, and the confidence of each look.

Looking twice at growing data and stopping at the first good answer errs more often than
looking once. Pocock's rule (S. J. Pocock, Biometrika 64, 1977, 191-199) uses one
critical value at every look, so large that all looks together err as often as a single
one would. The value is computed here for the looks at hand, which need not be equally
spaced, by the recursive integration of P. Armitage, C. K. McPherson and B. C. Rowe
(J. Royal Statistical Society A 132, 1969, 235-244). For equal spacing it agrees with
table 2.1 of C. Jennison and B. W. Turnbull, *Group Sequential Methods with Applications
to Clinical Trials*, 2000.

The variance is not known here, so a look uses the t quantile of the same tail
probability, as Pocock proposed; docs/decision-rule.md shows what that costs.
"""

import math
from functools import cache
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

from stackctl.gates.rule.libraries import library

if TYPE_CHECKING:
    from stackctl.gates.rule.model import Rule

_NODES: Final = 120
"""Gauss-Legendre nodes of an integral; 60 already give ten digits."""


def looks_of(rule: "Rule") -> tuple[int, ...]:
    """Return the numbers of pairs at which a rule looks.

    The last look is at the end. The others are spaced evenly, but none is before the
    fewest pairs that may decide.

    Args:
        rule: The rule; of a gate that is not timed there is one look.
    """
    if rule.statistic != "paired-log-ratio":
        return (rule.pairs,)
    least, last, count = rule.minimum_pairs, rule.pairs, rule.looks
    found = {max(least, math.ceil(last * k / count)) for k in range(1, count)} | {last}
    # Where early looks fall together, the free places next to the last are taken.
    spare = last
    while len(found) < count and spare > least:
        spare -= 1
        found.add(spare)
    return tuple(sorted(found))


@cache
def nominal_confidence(looks: tuple[int, ...], confidence: float) -> float:
    """Return the confidence at each look that makes up `confidence` over all of them.

    Args:
        looks: Numbers of pairs, increasing.
        confidence: Two-sided, all looks together.

    Returns:
        The two-sided confidence of one look: 0.97057 for two equally spaced looks
        at 0.95 (critical value 2.178).
    """
    if len(looks) < 2:
        return confidence
    norm = library("scipy.stats").norm
    return round(float(1 - 2 * norm.sf(critical_value(looks, confidence))), 10)


@cache
def critical_value(looks: tuple[int, ...], confidence: float) -> float:
    """Return Pocock's critical value of the standardised mean.

    Args:
        looks: Numbers of pairs, increasing.
        confidence: Two-sided, all looks together.
    """
    optimize = library("scipy.optimize")
    norm = library("scipy.stats").norm
    tail = (1 - confidence) / 2
    low, high = float(norm.isf(tail)), float(norm.isf(tail / len(looks)))
    if len(looks) == 1:
        return low
    # One look errs too often at `low`, and the sum of all errors is enough at `high`.
    found = optimize.brentq(
        lambda c: stays_inside(looks, c) - confidence, low, high, xtol=1e-12
    )
    return float(found)


def stays_inside(looks: tuple[int, ...], critical: float) -> float:
    """Return the probability that no look of a standard random walk passes a bound.

    Args:
        looks: Numbers of pairs, increasing.
        critical: Bound of the standardised mean at every look.
    """
    np: Any = library("numpy")
    ndtr = library("scipy.special").ndtr
    nodes, weights = np.polynomial.legendre.leggauss(_NODES)
    # density of the sum at the look before, over those walks that are still inside
    bound = critical * math.sqrt(looks[0])
    x = bound * nodes
    density = np.exp(-(x**2) / (2 * looks[0])) / math.sqrt(2 * math.pi * looks[0])
    weight = bound * weights
    for before, now in pairwise(looks):
        spread = math.sqrt(now - before)
        bound = critical * math.sqrt(now)
        if now == looks[-1]:
            inside = ndtr((bound - x) / spread) - ndtr((-bound - x) / spread)
            return float(np.sum(weight * density * inside))
        y = bound * nodes
        step = np.exp(-((y[:, None] - x[None, :]) ** 2) / (2 * spread**2))
        step /= spread * math.sqrt(2 * math.pi)
        density = step @ (weight * density)
        x, weight = y, bound * weights
    return float(np.sum(weight * density))
