# SPDX-License-Identifier: Apache-2.0
"""Intervals of a mean of independent pairs, and how many pairs an answer needs.

Sums are exact (`math.fsum`) and results are rounded before anything is decided, so
neither the order of the pairs nor the platform has a say.
"""

import math
from collections.abc import Sequence
from functools import cache
from typing import Any, Final, NamedTuple

from stackctl.gates.rule.libraries import library

DECIMALS: Final = 9
"""Decimals that log-ratios keep; a clock resolves less."""

DIGITS: Final = 10
"""Digits that figures of any size keep."""

LEVEL_SPREAD: Final = math.sqrt(3)
"""How much wider the interval of a figure is that is compared with no other arm.

A pair cancels the state of the machine; a figure alone does not, and processes that
follow each other share it. The mean of values that are correlated by r with their
neighbours (AR(1)) spreads sqrt((1 + r) / (1 - r)) times as much as they seem to: for
r = 0.5, the square root of 3. docs/decision-rule.md shows what it is needed for.
"""

POWER: Final = 0.8
"""Probability with which `pairs_to_decide` means to decide."""

MAX_PAIRS: Final = 10_000
"""No run is that long; beyond it, the figure lies on the bar."""


class Interval(NamedTuple):
    """A mean with its intervals.

    Attributes:
        n: Number of values.
        mean: Their mean.
        sd: Their standard deviation (n - 1 in the denominator).
        low: Lower end of the t interval.
        high: Upper end of the t interval.
        boot_low: Lower end of the percentile bootstrap.
        boot_high: Upper end of the percentile bootstrap.
    """

    n: int
    mean: float
    sd: float
    low: float
    high: float
    boot_low: float
    boot_high: float


def mean_interval(
    values: Sequence[float],
    confidence: float,
    *,
    samples: int = 0,
    seed: int = 0,
    relative: bool = False,
    widen: float = 1.0,
) -> Interval:
    """Return the t interval of a mean, and a bootstrap interval beside it.

    Args:
        values: At least two independent values.
        confidence: Two-sided.
        samples: Resamples of the bootstrap; 0 for none (then its ends are the mean).
        seed: Seed of the resampling.
        relative: Round to `DIGITS` digits (figures of any size) in place of
            `DECIMALS` decimals (log-ratios).
        widen: Factor of the t interval's width.
    """
    n = len(values)
    mean, sd = moments(values)
    half = widen * t_quantile(confidence, n - 1) * sd / math.sqrt(n)
    low, high = mean - half, mean + half
    boot_low, boot_high = bootstrap(values, confidence, samples, seed)
    return Interval(
        n,
        *(rounded(x, relative) for x in (mean, sd, low, high, boot_low, boot_high)),
    )


def moments(values: Sequence[float]) -> tuple[float, float]:
    """Return the mean and the standard deviation, whatever the order of the values.

    Args:
        values: At least two values.
    """
    mean = math.fsum(values) / len(values)
    square = math.fsum((value - mean) ** 2 for value in values)
    return mean, math.sqrt(square / (len(values) - 1))


@cache
def t_quantile(confidence: float, df: int) -> float:
    """Return Student's t of a two-sided confidence.

    Args:
        confidence: Two-sided.
        df: Degrees of freedom.
    """
    return float(library("scipy.stats").t.isf((1 - confidence) / 2, df))


def bootstrap(
    values: Sequence[float], confidence: float, samples: int, seed: int
) -> tuple[float, float]:
    """Return the percentile bootstrap interval of a mean.

    It is shown, not decided by: of nine pairs it is too short (B. Efron and R. J.
    Tibshirani, *An Introduction to the Bootstrap*, 1993, chapter 13).

    Args:
        values: The values; their order does not matter.
        confidence: Two-sided.
        samples: Resamples; 0 for none.
        seed: Seed.
    """
    if not samples:
        mean = math.fsum(values) / len(values)
        return mean, mean
    np: Any = library("numpy")
    # The one generator of numpy whose stream is promised never to change (NEP 19).
    draw = np.random.RandomState(seed)
    n = len(values)
    chosen = (draw.random_sample((samples, n)) * n).astype(np.intp)
    means = np.sort(np.asarray(sorted(values))[chosen].sum(axis=1)) / n
    cut = max(0, math.ceil(samples * (1 - confidence) / 2) - 1)
    return float(means[cut]), float(means[samples - 1 - cut])


def pairs_to_decide(
    mean: float, sd: float, bar: float, confidence: float
) -> int | None:
    """Return how many pairs a new run needs to decide, most likely.

    The smallest n for which an interval of n pairs lies wholly on one side of the bar
    with probability `POWER`, if mean and standard deviation are as found. The
    probability is that of the noncentral t distribution.

    Args:
        mean: Mean found.
        sd: Standard deviation found.
        bar: Where the two sides meet.
        confidence: Two-sided confidence of one look.

    Returns:
        The number, or None where more than `MAX_PAIRS` are needed.
    """
    gap = abs(mean - bar)
    if sd <= 0:
        return 2 if gap > 0 else None
    if gap / sd < 1e-4:
        return None
    return smallest(lambda n: power(n, gap / sd, confidence) >= POWER, 2)


def power(n: int, shift: float, confidence: float) -> float:
    """Return the probability that an interval of n pairs lies beyond a bar.

    Args:
        n: Pairs.
        shift: Distance of the true mean from the bar, in standard deviations.
        confidence: Two-sided confidence of one look.
    """
    quantile = t_quantile(confidence, n - 1)
    nct = library("scipy.stats").nct
    return float(nct.sf(quantile, n - 1, shift * math.sqrt(n)))


def smallest(holds: Any, least: int) -> int | None:
    """Return the smallest number for which a growing condition holds.

    Args:
        holds: The condition: once true, true for all that is larger.
        least: Where to begin.

    Returns:
        The number, or None where it does not hold up to `MAX_PAIRS`.
    """
    low, high = least - 1, least
    while not holds(high):
        if high >= MAX_PAIRS:
            return None
        low, high = high, min(2 * high, MAX_PAIRS)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high


def rounded(value: float, relative: bool = False) -> float:
    """Return a value as it is decided by and shown.

    Args:
        value: Any finite value.
        relative: Keep `DIGITS` digits in place of `DECIMALS` decimals.
    """
    found = float(f"{value:.{DIGITS}g}") if relative else round(value, DECIMALS)
    return found + 0.0  # no negative zero
