# SPDX-License-Identifier: Apache-2.0
"""How often the rule errs: runs with a known truth, judged as real ones are.

A run is made as a series of visits (or process starts) in the order of its schedule,
each with the noise of a named model; the verdicts come from the same statistics, looks,
control and bars as in `timed`. That they are the same is a test: single runs are also
judged by `decide`. docs/decision-rule.md has the tables.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from stackctl.gates.rule.accuracy import fewest_items, variance
from stackctl.gates.rule.intervals import t_quantile
from stackctl.gates.rule.libraries import library
from stackctl.gates.rule.looks import looks_of, nominal_confidence
from stackctl.gates.rule.model import Claim, Rule
from stackctl.gates.rule.timed import control_limit, spread, threshold

RUNS: Final = 20_000
"""Runs of a rate, for error rates of 5 % known to within 0.4 points (99 %)."""

LIMIT: Final = 0.05
"""Largest rate of false qualification that the rule may have."""

Array = Any
"""A numpy array; numpy is loaded when it is used."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Noise:
    """A model of what disturbs a series of visits.

    Attributes:
        name: Its name in the tables.
        words: What it stands for, with its parameters.
        shape: `gaussian` or `t3`: distribution of the independent part; both have the
            standard deviation sigma.
        ar1: Correlation of one visit with the next; 0 for none.
        state: Correlation of the machine's state in one process with that in the
            next, where a figure is compared with a bar and not with another arm.
        effect: Correlation of the difference between the arms in one process with
            that in the next.
        drift: Slow-down from the first to the last visit of the run, in sigmas.
        warm_up: Slow-down of a process's (or block's) first visit, in sigmas.
        decay: Visits after which the warm-up is down to 37 %.
        burst_every: Visits from one burst of host load to the next, on average.
        burst_visits: Visits that a burst lasts, on average.
        burst: Mean slow-down in a burst, in sigmas (exponential).
    """

    name: str
    words: str
    shape: Literal["gaussian", "t3"] = "gaussian"
    ar1: float = 0.0
    state: float = 0.0
    effect: float = 0.0
    drift: float = 0.0
    warm_up: float = 0.0
    decay: float = 2.0
    burst_every: float = 30.0
    burst_visits: float = 3.0
    burst: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A gate's rule and bar, with the noise level that its machine has.

    Attributes:
        name: Name of the gate in the tables.
        bar: Its bar, in words.
        rule: Its rule.
        claim: Its claim.
        sigma: Standard deviation of one visit or start, as a log-ratio.
        between: Standard deviation between processes, on top.
        shift: True change beyond the bar at which power is stated, as a log-ratio.
        source: Where the noise level is from.
        visits: Visits of one arm in a process; 1 in blocks.
    """

    name: str
    bar: str
    rule: Rule
    claim: Claim
    sigma: float
    between: float
    shift: float
    source: str
    visits: int = 4


@dataclass(frozen=True, slots=True)
class Rates:
    """Verdicts of simulated runs.

    Attributes:
        runs: Number of runs.
        counts: Runs by verdict.
        early: Runs that were decided before the last look.
    """

    runs: int
    counts: Mapping[str, int] = field(default_factory=dict)
    early: int = 0

    def rate(self, verdict: str) -> float:
        """Return the share of runs with a verdict."""
        return self.counts.get(verdict, 0) / self.runs

    def upper(self, verdict: str, confidence: float = 0.99) -> float:
        """Return the upper bound of a rate by C. J. Clopper and E. S. Pearson (1934).

        Args:
            verdict: Whose rate.
            confidence: One-sided.
        """
        count = self.counts.get(verdict, 0)
        if count >= self.runs:
            return 1.0
        beta = library("scipy.stats").beta
        return float(beta.ppf(confidence, count + 1, self.runs - count))

    def lower(self, verdict: str, confidence: float = 0.99) -> float:
        """Return the lower bound of a rate (Clopper and Pearson).

        Args:
            verdict: Whose rate.
            confidence: One-sided.
        """
        count = self.counts.get(verdict, 0)
        if not count:
            return 0.0
        beta = library("scipy.stats").beta
        return float(beta.ppf(1 - confidence, count, self.runs - count + 1))


NOISES: Final[tuple[Noise, ...]] = (
    Noise(name="gaussian", words="independent and normal"),
    Noise(
        name="heavy tails",
        words="independent, Student's t with 3 degrees of freedom: single visits are "
        "far off",
        shape="t3",
    ),
    Noise(
        name="autocorrelated",
        words="each visit is correlated by 0.7 with the one before, across processes "
        "too (AR(1)); the machine's state in a process by 0.5 with that before",
        ar1=0.7,
        state=0.5,
    ),
    Noise(
        name="drift",
        words="normal, and the whole run grows slower in a straight line, by 10 "
        "sigmas in all",
        drift=10.0,
    ),
    Noise(
        name="speeding up",
        words="normal, and the whole run grows faster in a straight line, by 10 "
        "sigmas in all",
        drift=-10.0,
    ),
    Noise(
        name="warm-up",
        words="normal, and the first visit of each process (start of each block) is "
        "slower by 1.5 sigmas, which dies away over 2 visits",
        warm_up=1.5,
    ),
    Noise(
        name="bursts",
        words="normal, and about every 30 visits the host is busy for about 3 visits, "
        "which are slower by 3 sigmas on average (exponential)",
        burst=3.0,
    ),
)
"""The noise models under which the rule holds what it promises."""

STRESS: Final[tuple[Noise, ...]] = (
    Noise(
        name="wandering effect 0.3",
        words="the difference between the arms is correlated by 0.3 with that of the "
        "process before",
        effect=0.3,
        state=0.6,
    ),
    Noise(
        name="wandering effect 0.5",
        words="the same, by 0.5; the machine's state by 0.7",
        effect=0.5,
        state=0.7,
    ),
    Noise(
        name="wandering effect 0.7",
        words="the same, by 0.7; the machine's state by 0.9",
        effect=0.7,
        state=0.9,
    ),
    Noise(
        name="steep drift",
        words="slower in a straight line, by 50 sigmas in all",
        drift=50.0,
    ),
    Noise(
        name="long warm-up",
        words="the first visit is slower by 6 sigmas, which dies away over 5 visits",
        warm_up=6.0,
        decay=5.0,
    ),
)
"""Noise beyond what the rule is made for: what happens then."""


CHANGED: Final[tuple[tuple[int, Noise], ...]] = (
    (
        4,
        Noise(
            name="warm-up of 2 sigmas",
            words="the first start of a block is slower by 2 sigmas",
            warm_up=2.0,
        ),
    ),
    (
        4,
        Noise(
            name="speeding up by 20 sigmas",
            words="faster in a straight line, by 20 sigmas in all",
            drift=-20.0,
        ),
    ),
    (
        3,
        Noise(
            name="machine's state 0.5",
            words="the state of the machine in a process is correlated by 0.5 with "
            "that before",
            state=0.5,
        ),
    ),
    (
        3,
        Noise(
            name="drift of 10 sigmas",
            words="slower in a straight line, by 10 sigmas in all",
            drift=10.0,
        ),
    ),
)
"""Where the plain rule does not hold the limit: number of the case, noise."""


def _kernel(**claim: Any) -> tuple[Rule, Claim]:
    return (
        Rule(statistic="paired-log-ratio"),
        Claim(name="c", cell="c", arm="on", against="base", **claim),
    )


_KDA: Final = _kernel(margin=0.08)
_L2: Final = _kernel(margin=0.01)
_KPOOL: Final = _kernel(ratio=10.0)
_BAR: Final = (
    Rule(statistic="paired-log-ratio"),
    Claim(name="c", cell="c", arm="on", bar=5.0),
)
_SERVING: Final = (
    Rule(statistic="paired-log-ratio", blocks=True),
    Claim(
        name="c", cell="c:m", arm="on", against="base", better="higher", margin=-0.02
    ),
)

CASES: Final[tuple[Case, ...]] = (
    Case(
        name="kda-overlap-speed",
        bar="a gain of 8 %",
        rule=_KDA[0],
        claim=_KDA[1],
        sigma=0.003,
        between=0.003,
        shift=-0.005,
        source="0.02 to 0.29 % between the pairs of this gate on an H200",
    ),
    Case(
        name="l2-prefetch-speed",
        bar="a gain of 1 %",
        rule=_L2[0],
        claim=_L2[1],
        sigma=0.0015,
        between=0.001,
        shift=-0.004,
        source="0.04 to 0.15 % between the pairs of this gate's layers on an H200",
    ),
    Case(
        name="kpool-speed",
        bar="10 times as fast",
        rule=_KPOOL[0],
        claim=_KPOOL[1],
        sigma=0.01,
        between=0.02,
        shift=-0.04,
        source="0.6 to 3.4 % between the pairs of this gate on an H200",
    ),
    Case(
        name="kpool-speed",
        bar="at most 5 us",
        rule=_BAR[0],
        claim=_BAR[1],
        sigma=0.01,
        between=0.02,
        shift=-0.08,
        source="0.7 to 3.6 % between the processes of this gate on an H200",
    ),
    Case(
        name="serving",
        bar="a loss of at most 2 %",
        rule=_SERVING[0],
        claim=_SERVING[1],
        sigma=0.0025,
        between=0.0015,
        shift=0.02,
        source="what the control asks of a machine: with 0.6 % from start to start it "
        "is too wide as often as not",
        visits=1,
    ),
)
"""Bars of the gates that ship, each with the noise of its machine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Items:
    """A size and a truth of an accuracy gate.

    Attributes:
        margin: Declared margin, a difference of shares.
        discordant: Share of items on which one arm alone is right.
        items: Items of a run.
    """

    margin: float
    discordant: float
    items: int


ITEMS: Final[tuple[Items, ...]] = (
    Items(margin=-0.05, discordant=0.05, items=30),
    Items(margin=-0.05, discordant=0.05, items=215),
    Items(margin=-0.05, discordant=0.10, items=350),
    Items(margin=-0.05, discordant=0.20, items=644),
    Items(margin=-0.03, discordant=0.06, items=589),
    Items(margin=-0.10, discordant=0.20, items=171),
)
"""Accuracy gates; but for the first, the items that `items_needed` asks for."""


def simulate(
    case: Case,
    noise: Noise,
    shift: float,
    runs: int = RUNS,
    seed: int = 0,
    *,
    plain: bool = False,
) -> Rates:
    """Judge many runs whose truth lies at a given distance from the bar.

    Args:
        case: Rule, claim and noise level.
        noise: What disturbs the runs.
        shift: True figure less the bar, as a log-ratio; 0 is at the margin.
        runs: Number of runs.
        seed: Seed of everything random.
        plain: Judge as the rule would without what was changed to hold the limit: B
            against A alone, and no wider interval of a figure on its own.
    """
    np = library("numpy")
    own, other = series(case, noise, shift, runs, seed)
    bar = threshold(case.claim)
    absolute = case.claim.bar is not None
    control: Array = None
    if absolute:
        values = np.exp(np.median(own, axis=2))
    elif case.rule.blocks:
        values, control = _block_pairs(own, other, plain)
    else:
        values, control = _process_pairs(own, other)
    looks = looks_of(case.rule)
    confidence = nominal_confidence(looks, case.rule.confidence)
    verdicts = np.full(runs, "insufficient-evidence", dtype="U21")
    open_ = np.ones(runs, dtype=bool)
    early = 0
    for count in looks:
        widen = 1.0 if plain else spread(case.claim)
        found = _side(case, values[:, :count], confidence, bar, widen)
        if not absolute:
            found = _controlled(case, found, control[:, :count], bar)
        verdicts[open_] = found[open_]
        open_ &= found == "insufficient-evidence"
        if count != looks[-1]:
            early += int(runs - np.count_nonzero(open_))
    names, counts = np.unique(verdicts, return_counts=True)
    return Rates(
        runs, {str(n): int(c) for n, c in zip(names, counts, strict=True)}, early
    )


def series(
    case: Case, noise: Noise, shift: float, runs: int, seed: int
) -> tuple[Array, Array]:
    """Return the logarithms of the figures of simulated runs.

    Args:
        case: Rule, claim and noise level.
        noise: What disturbs the runs.
        shift: True figure less the bar, as a log-ratio.
        runs: Number of runs.
        seed: Seed of everything random.

    Returns:
        Two arrays of [runs, pairs, visits]: the arm, the reference. In blocks the
        arm has one visit and the reference two, around it.
    """
    np = library("numpy")
    draw = np.random.Generator(np.random.PCG64(seed))
    pairs = case.rule.pairs
    blocks = case.rule.blocks
    length = 3 if blocks else 2 * case.visits
    places = _places(case)
    if case.claim.against == "":
        length, places = case.visits, (list(range(case.visits)), [])
    disturbed = _disturb(noise, draw, runs, pairs, length) * case.sigma
    if case.claim.better == "higher":
        disturbed = -disturbed  # what makes times longer makes rates lower
    claim = case.claim
    between = case.between * _chain(
        draw.standard_normal((runs, pairs)),
        noise.effect if claim.bar is None else noise.state,
    ).reshape(runs, pairs, 1)
    level = math.log(claim.bar) if claim.bar is not None else threshold(claim)
    own = disturbed[:, :, places[0]] + level + shift + between
    return own, disturbed[:, :, places[1]]


def _places(case: Case) -> tuple[list[int], list[int]]:
    """Return which visits of a pair are the arm's and which the reference's."""
    if case.rule.blocks:
        return [1], [0, 2]
    order = [n % 4 in (1, 2) for n in range(2 * case.visits)]
    return (
        [n for n, arm in enumerate(order) if arm],
        [n for n, arm in enumerate(order) if not arm],
    )


def _disturb(noise: Noise, draw: Any, runs: int, pairs: int, length: int) -> Array:
    """Return the noise of a whole run, in sigmas: [runs, pairs, length]."""
    np = library("numpy")
    total = pairs * length
    if noise.shape == "t3":
        values = draw.standard_t(3, (runs, total)) / math.sqrt(3)  # its variance is 3
    else:
        values = draw.standard_normal((runs, total))
    if noise.ar1:
        _chain(values, noise.ar1)
    if noise.drift:
        values += noise.drift * (np.arange(total) / (total - 1) - 0.5)
    if noise.warm_up:
        fade = noise.warm_up * np.exp(-np.arange(length) / noise.decay)
        values += np.tile(fade, pairs)
    if noise.burst:
        begin = draw.random((runs, total)) < 1 / noise.burst_every
        stay = draw.random((runs, total)) < 1 - 1 / noise.burst_visits
        size = noise.burst * draw.exponential(1.0, (runs, total))
        now = np.zeros(runs)
        for n in range(total):
            now = np.where(begin[:, n], size[:, n], np.where(stay[:, n], now, 0.0))
            values[:, n] += now
    return values.reshape(runs, pairs, length)


def _chain(values: Array, correlation: float) -> Array:
    """Make each of a run's values depend on the one before (AR(1)), in place."""
    step = math.sqrt(1 - correlation**2)
    for n in range(1, values.shape[1] if correlation else 0):
        values[:, n] = correlation * values[:, n - 1] + step * values[:, n]
    return values


def _process_pairs(own: Array, other: Array) -> tuple[Array, Array]:
    """Return log-ratio and control of processes that hold both arms."""
    np = library("numpy")
    values = np.median(own, axis=2) - np.median(other, axis=2)
    places = np.arange(other.shape[2])
    second = np.isin(places % 4, (1, 2))
    one, two = other[:, :, ~second], other[:, :, second]
    return values, np.median(one, axis=2) - np.median(two, axis=2)


def _block_pairs(own: Array, other: Array, plain: bool) -> tuple[Array, Array]:
    """Return log-ratio and control of blocks of three starts."""
    first, last = other[:, :, 0], other[:, :, 1]
    if plain:
        return own[:, :, 0] - first, last - first
    return own[:, :, 0] - (first + last) / 2, last - first


def _interval(values: Array, confidence: float, widen: float) -> tuple[Array, Array]:
    np = library("numpy")
    n = values.shape[1]
    mean = values.mean(axis=1)
    half = widen * t_quantile(confidence, n - 1) * values.std(axis=1, ddof=1)
    half /= math.sqrt(n)
    return np.asarray(mean - half), np.asarray(mean + half)


def _side(
    case: Case, values: Array, confidence: float, bar: float, widen: float
) -> Array:
    np = library("numpy")
    low, high = _interval(values, confidence, widen)
    if case.claim.better == "higher":
        low, high, bar = -high, -low, -bar
    return np.where(
        high <= bar,
        "qualified",
        np.where(low > bar, "rejected", "insufficient-evidence"),
    )


def _controlled(case: Case, found: Array, control: Array, bar: float) -> Array:
    np = library("numpy")
    low, high = _interval(control, case.rule.control_confidence, 1.0)
    limit = control_limit(case.rule, bar)
    found = np.where(high - low > limit, "insufficient-evidence", found)
    return np.where((low > 0) | (high < 0), "invalid", found)


def simulate_accuracy(
    items: int,
    discordant: float,
    difference: float,
    margin: float,
    confidence: float = 0.95,
    runs: int = RUNS,
    seed: int = 0,
) -> Rates:
    """Judge many runs of an accuracy gate by Tango's interval.

    Args:
        items: Items of a run.
        discordant: Share of items on which one arm alone is right.
        difference: True difference of the shares of right answers.
        margin: Declared margin, negative for an allowed loss.
        confidence: Two-sided.
        runs: Number of runs.
        seed: Seed.
    """
    np = library("numpy")
    draw = np.random.Generator(np.random.PCG64(seed))
    arm, against = (discordant + difference) / 2, (discordant - difference) / 2
    counts = draw.multinomial(items, [arm, against, 1 - arm - against], size=runs)
    tables, number = np.unique(counts[:, :2], axis=0, return_counts=True)
    z = float(library("scipy.stats").norm.isf((1 - confidence) / 2))
    few = bool(margin) and items < fewest_items(abs(margin), confidence)
    found: dict[str, int] = {}
    for (b, c), times in zip(tables.tolist(), number.tolist(), strict=True):
        spread = math.sqrt(items * max(variance(b, c, items, margin), 0.0))
        # The bar is outside the interval where the score test at the bar rejects.
        beyond = (b - c) - items * margin
        verdict = "insufficient-evidence"
        if abs(beyond) > z * spread:
            verdict = "qualified" if beyond > 0 else "rejected"
        if verdict == "qualified" and few:
            verdict = "insufficient-evidence"
        found[verdict] = found.get(verdict, 0) + times
    return Rates(runs, found)
