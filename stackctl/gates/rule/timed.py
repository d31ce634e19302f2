# SPDX-License-Identifier: Apache-2.0
"""Times and rates: one figure per pair, an interval of their mean, a bar.

A pair gives one log-ratio of the arm to the reference arm. In one process that holds
both, it is that of their medians over alternating visits (base, on, on, base, ...). In
blocks of process starts (A, B, A'), it is that of B to the geometric mean of A and A':
both stand around B, so a steady drift cancels, which it does not for B to A alone.
"""

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from stackctl.gates.evidence import Slot, Unit
from stackctl.gates.rule.conditions import load, number, unknown_gpus, unknown_load
from stackctl.gates.rule.intervals import (
    LEVEL_SPREAD,
    MAX_PAIRS,
    Interval,
    mean_interval,
    pairs_to_decide,
    rounded,
    smallest,
    t_quantile,
)
from stackctl.gates.rule.model import Claim, ClaimResult, Control, Rule, Verdict
from stackctl.gates.rule.words import change, counted, figure, listed, percent
from stackctl.model.fields import escape

Block = Sequence[tuple[Slot, Unit]]
"""The units of one pair: one process, or the process starts of one block."""


_TINY: Final = 1e-100
"""No measurement is smaller, nor larger than its inverse; sums of squares are safe."""

_Reader = Callable[[Slot, Unit, Claim], float]
"""Reads the figure of a claim from one process start."""


class UnusableError(Exception):
    """Samples that the rule cannot judge; the text says why.

    Attributes:
        verdict: `invalid`, or `not-tested` where there was nothing to measure.
    """

    def __init__(self, text: str, verdict: Verdict = "invalid") -> None:
        super().__init__(text)
        self.text = text
        self.verdict: Verdict = verdict


class Look(NamedTuple):
    """Where in its schedule a run stands.

    Attributes:
        number: The look that was reached, from 1; 0 between looks.
        looks: Pairs at each look.
        confidence: Confidence of an interval at one look.
    """

    number: int
    looks: tuple[int, ...]
    confidence: float


class _Pairs(NamedTuple):
    """What the pairs of a claim give.

    Attributes:
        values: Log-ratio (or figure, for an absolute bar) of each pair.
        control: Log-ratio of the reference to itself of each pair; None where the
            reference was visited once.
        unbalanced: Why the arms do not have the same share, None where they have.
        repeated: Why the pairs are not independent, None where nothing shows it.
    """

    values: list[float]
    control: list[float] | None
    unbalanced: str | None
    repeated: str | None = None


def judge(
    rule: Rule,
    claim: Claim,
    kind: str,
    blocks: Sequence[Block],
    look: Look,
    caps: Sequence[str],
    scope: Mapping[str, Any],
) -> ClaimResult:
    """Judge one claim about times or rates.

    Args:
        rule: The declared rule.
        claim: The claim.
        kind: Kind of the gate: `kernel` or `serving`.
        blocks: The complete pairs, in order.
        look: Where the run stands.
        caps: Why nothing better than insufficient evidence can come out.
        scope: The machine of the run.
    """
    try:
        pairs = _collect(rule, claim, kind, blocks)
    except UnusableError as fault:
        return _without_figures(claim, fault.verdict, fault.text, len(blocks))
    limits = [*caps, *(why for why in (pairs.unbalanced, pairs.repeated) if why)]
    if rule.blocks and claim.against:
        limits += _loads(rule, claim, blocks)
    limits += _unknown(blocks, scope)
    if len(pairs.values) < 2:
        text = f"{counted(len(pairs.values), 'pair')} finished: no interval yet"
        return _without_figures(
            claim, "insufficient-evidence", text, len(blocks), limits, look
        )
    found = mean_interval(
        pairs.values,
        look.confidence,
        samples=rule.bootstrap_samples,
        seed=rule.bootstrap_seed,
        relative=claim.bar is not None,
        widen=spread(claim),
    )
    bar = threshold(claim)
    reasons = [_sentence(claim, found, look, bar)]
    control = None
    verdict: Verdict = side(found.low, found.high, bar, claim.better)
    if claim.bar is None:
        control, bad, wide = _control(rule, claim, pairs.control, bar)
        if bad:
            return _result(
                rule, claim, "invalid", [*reasons, bad], found, pairs, look, control
            )
        limits += [wide] if wide else []
    if found.sd == 0 and (claim.bar is None or not found.mean.is_integer()):
        what = "pair has the same ratio" if claim.bar is None else "figure is the same"
        limits.append(
            f"every {what} to the last digit, which no clock that resolves the arms "
            "gives"
        )
    if look.number == 0:
        limits.append(_between(look, len(pairs.values)))
    more = None
    if limits:  # such a run may not turn a tree down either
        verdict = "insufficient-evidence"
    reasons += limits
    if verdict == "insufficient-evidence":
        more, text = _more(rule, claim, found, pairs, bar, look)
        reasons.append(text)
    return _result(rule, claim, verdict, reasons, found, pairs, look, control, more)


def _unknown(blocks: Sequence[Block], scope: Mapping[str, Any]) -> list[str]:
    """Say what of the machine is not known, and what that may hide."""
    units = [unit for block in blocks for _, unit in block]
    found = (
        (unknown_load(units), "it may have been over the limit"),
        (unknown_gpus(units, scope), "they may have been busy, or slowed down"),
    )
    return [f"{why}, so {hidden}" for why, hidden in found if why is not None]


def threshold(claim: Claim) -> float:
    """Return the bar of a claim, as a log-ratio (or the figure, for `bar`).

    Args:
        claim: A claim with one of `margin`, `ratio`, `bar`.
    """
    if claim.bar is not None:
        return rounded(claim.bar, relative=True)
    if claim.ratio is not None:
        log = math.log(claim.ratio)
        found = -log if claim.better == "lower" else log
    else:
        margin = claim.margin or 0.0
        found = math.log1p(-margin if claim.better == "lower" else margin)
    return rounded(found)


def spread(claim: Claim) -> float:
    """Return by how much an interval is widened: only where no arm is compared with.

    Args:
        claim: The claim.
    """
    return 1.0 if claim.bar is None else LEVEL_SPREAD


def side(low: float, high: float, bar: float, better: str) -> Verdict:
    """Return the verdict of an interval: it must lie wholly on one side of a bar.

    Args:
        low: Lower end.
        high: Upper end.
        bar: The bar, which itself is good enough.
        better: `lower` or `higher`.
    """
    if better == "higher":
        low, high, bar = -high, -low, -bar
    if high <= bar:
        return "qualified"
    return "rejected" if low > bar else "insufficient-evidence"


def _collect(rule: Rule, claim: Claim, kind: str, blocks: Sequence[Block]) -> _Pairs:
    """Return the figures of a claim, one per pair."""
    if kind == "serving":
        return _from_blocks(claim, blocks, _serving)
    if rule.blocks:
        return _from_blocks(claim, blocks, _start)
    return _from_processes(claim, blocks)


def _from_processes(claim: Claim, blocks: Sequence[Block]) -> _Pairs:
    """Pairs of processes that hold both arms."""
    values, controls = [], []
    unbalanced: str | None = None
    seen: dict[tuple[float, ...], int] = {}
    repeated: str | None = None
    for ((slot, unit),) in blocks:
        place = f'unit {slot.unit}, cell "{escape(claim.cell)}"'
        cell = _cell(unit, claim.cell, place)
        own = _figures(cell, claim.arm, place, positive=claim.bar is None)
        if claim.bar is not None:
            values.append(rounded(statistics.median(own), relative=True))
            twin = seen.setdefault(tuple(own), slot.unit)
            # A count is alike in every process; visits that differ are not twice so.
            if twin != slot.unit and repeated is None and len(set(own)) > 1:
                repeated = _repeated(f"units {twin} and {slot.unit}")
            continue
        other = _figures(cell, claim.against, place, positive=True)
        order = _order(cell, place, {claim.arm: own, claim.against: other})
        unbalanced = unbalanced or _balance(order, claim, place)
        twin = seen.setdefault((*own, *other), slot.unit)
        if twin != slot.unit and repeated is None:
            repeated = _repeated(f"units {twin} and {slot.unit}")
        values.append(_log(statistics.median(own)) - _log(statistics.median(other)))
        if len(other) >= 2:
            one, two = halves(other)
            controls.append(_log(statistics.median(one)) - _log(statistics.median(two)))
    whole = len(controls) == len(values)
    return _Pairs(values, controls if whole else None, unbalanced, repeated)


def _repeated(which: str) -> str:
    return (
        f"{which} have the same figures to the last digit: copied, or from a clock too "
        "coarse to tell the pairs apart"
    )


def halves(visits: Sequence[float]) -> tuple[list[float], list[float]]:
    """Split the visits of one arm into two sides that a steady drift hits alike.

    Visits come as base, on, on, base, so those of the base stand at 0, 3, 4, 7, ...:
    the first and fourth of every four against the second and third. Visits left over
    are split one by one.

    Args:
        visits: Figures of at least two visits, in the order taken.
    """
    sides: tuple[list[float], list[float]] = ([], [])
    for place, value in enumerate(visits):
        sides[place % 4 in (1, 2)].append(value)
    if len(visits) % 4 == 3:  # the last of three would make the sides 1 and 2
        sides[1].pop()
    return sides


def _from_blocks(claim: Claim, blocks: Sequence[Block], read: _Reader) -> _Pairs:
    """Pairs of process starts that hold one arm each."""
    values, controls = [], []
    seen: dict[tuple[float, ...], int] = {}
    repeated: str | None = None
    for place, block in enumerate(blocks):
        own: list[float] = []
        other: list[float] = []
        for slot, unit in block:
            if slot.arms == (claim.arm,):
                own.append(read(slot, unit, claim))
            elif slot.arms == (claim.against,):
                other.append(read(slot, unit, claim))
        if claim.bar is not None:
            if not own:
                raise UnusableError(f'no unit of the arm "{escape(claim.arm)}"')
            values.append(rounded(math.fsum(own) / len(own), relative=True))
            continue
        if len(own) != 1 or len(other) != 2:
            raise UnusableError("a block is not reference, arm, reference")
        twin = seen.setdefault((*own, *other), place)
        if twin != place and repeated is None:
            repeated = _repeated(f"blocks {twin} and {place}")
        first, last = _log(other[0]), _log(other[1])
        values.append(_log(own[0]) - (first + last) / 2)
        controls.append(last - first)
    return _Pairs(values, controls if claim.bar is None else None, None, repeated)


def _serving(slot: Slot, unit: Unit, claim: Claim) -> float:
    """Return the figure of one cell of one server start."""
    name, _, metric = claim.cell.rpartition(":")
    place = f'unit {slot.unit}, cell "{escape(name)}"'
    cell = _cell(unit, name, place)
    for key, what in (("problems", "problem"), ("errors", "stream error")):
        found = cell.get(key)
        if found is None or found == []:
            continue
        texts = found if isinstance(found, list) else [found]
        raise UnusableError(
            f"{place}: {counted(len(texts), what)}: "
            + listed([_problem(text) for text in texts])
        )
    if cell.get("underfilled") not in (None, False):
        raise UnusableError(f"{place} was not kept full of requests")
    requests = number(cell.get("requests"))
    if requests is None or requests < 1:
        raise UnusableError(f"{place} has no finished request")
    if metric not in cell or cell[metric] is None:
        raise UnusableError(
            f'{place}: the server does not report "{escape(metric)}"', "not-tested"
        )
    value = cell[metric]
    figures = value if isinstance(value, list) else [value]
    return _median(figures, f"{place}: {escape(metric)}", positive=claim.bar is None)


def _start(slot: Slot, unit: Unit, claim: Claim) -> float:
    """Return the figure of one cell of one process start with one arm."""
    place = f'unit {slot.unit}, cell "{escape(claim.cell)}"'
    cell = _cell(unit, claim.cell, place)
    own = _figures(cell, slot.arms[0], place, positive=claim.bar is None)
    return statistics.median(own)


def _problem(problem: object) -> str:
    if isinstance(problem, Mapping):
        return str(problem.get("text") or problem.get("code") or "unnamed")
    return str(problem)


def _cell(unit: Unit, name: str, place: str) -> Mapping[str, object]:
    cells = unit.samples.get("cells")
    cell = cells.get(name) if isinstance(cells, Mapping) else None
    if not isinstance(cell, Mapping):
        raise UnusableError(f"{place} is not there")
    return cell


def _figures(
    cell: Mapping[str, object], arm: str, place: str, *, positive: bool
) -> list[float]:
    values = cell.get("values")
    found = values.get(arm) if isinstance(values, Mapping) else None
    if not isinstance(found, list) or not found:
        raise UnusableError(f'{place} has no values of the arm "{escape(arm)}"')
    return _numbers(found, place, positive=positive)


def _numbers(values: Sequence[object], place: str, *, positive: bool) -> list[float]:
    found = []
    for value in values:
        figure_ = number(value)
        if figure_ is None or (positive and figure_ <= 0):
            what = "a number above zero" if positive else "a number"
            raise UnusableError(f"{place}: a value is not {what}")
        if figure_ and not _TINY < abs(figure_) < 1 / _TINY:
            raise UnusableError(f"{place}: {figure(figure_)} cannot be a measurement")
        found.append(figure_)
    return found


def _median(values: Sequence[object], place: str, *, positive: bool) -> float:
    if not values:
        raise UnusableError(f"{place} has no values")
    return statistics.median(_numbers(values, place, positive=positive))


def _order(
    cell: Mapping[str, object], place: str, figures: Mapping[str, Sequence[float]]
) -> list[str]:
    """Return the order of visits of two arms, checked against their values."""
    order = cell.get("order")
    if not isinstance(order, list) or not all(isinstance(arm, str) for arm in order):
        raise UnusableError(
            f"{place} does not say in which order its values were taken"
        )
    kept = [arm for arm in order if arm in figures]
    for arm, values in figures.items():
        if kept.count(arm) != len(values):
            raise UnusableError(
                f'{place}: {counted(len(values), "value")} of "{escape(arm)}" but '
                f"{counted(kept.count(arm), 'visit')}"
            )
    return kept


def _balance(order: Sequence[str], claim: Claim, place: str) -> str | None:
    """Check that two arms alternate, and that neither always comes first."""
    couples = [tuple(order[n : n + 2]) for n in range(0, len(order) - 1, 2)]
    if any(len(set(couple)) != 2 for couple in couples):
        raise UnusableError(
            f"{place}: the arms do not take turns ({listed(order, 'more visits')})"
        )
    if len(order) % 2:
        return f"{place}: the arms are unbalanced, one has a visit more"
    first = sum(couple[0] == claim.arm for couple in couples)
    if 2 * first != len(couples):
        return (
            f"{place}: the arms are unbalanced, "
            f'"{escape(claim.arm)}" comes first in {first} of '
            f"{counted(len(couples), 'couple')} of visits"
        )
    return None


def _loads(rule: Rule, claim: Claim, blocks: Sequence[Block]) -> list[str]:
    """Check that the host was equally busy under both arms."""
    means = []
    for arm in (claim.arm, claim.against):
        found = [load(unit) for b in blocks for slot, unit in b if slot.arms == (arm,)]
        known = [value for value in found if value is not None]
        if len(known) < len(found) or not known:
            return ["the host's load is not known, so it may have differed by arm"]
        means.append(math.fsum(known) / len(known))
    if abs(means[0] - means[1]) <= rule.load_imbalance_limit:
        return []
    return [
        f'other programs kept {percent(means[0])} of the CPUs busy under "{claim.arm}" '
        f'and {percent(means[1])} under "{claim.against}"; a difference of '
        f"{percent(rule.load_imbalance_limit)} is allowed"
    ]


def control_limit(rule: Rule, bar: float) -> float:
    """Return the widest interval of the reference against itself that still decides.

    Args:
        rule: The rule; its `control_width` may ask for less than the margin, not more.
        bar: The margin as a log-ratio; zero has only the rule's width.
    """
    return min(width for width in (abs(bar), rule.control_width) if width)


def _control(
    rule: Rule, claim: Claim, values: list[float] | None, bar: float
) -> tuple[Control | None, str | None, str | None]:
    """Judge the reference arm against itself.

    Returns:
        Its figures, why the run is invalid, why it decides nothing.
    """
    if values is None:
        return None, None, "no control: the reference arm was visited once a process"
    found = mean_interval(values, rule.control_confidence)
    limit = control_limit(rule, bar)
    width = rounded(found.high - found.low)
    # Always as a change: "1.01 times as good as itself" says less.
    low, middle, high = (
        rounded(math.expm1(end)) for end in (found.low, found.mean, found.high)
    )
    control = Control(
        estimate=middle,
        low=low,
        high=high,
        width=width,
        limit=limit,
        confidence=rule.control_confidence,
    )
    text = (
        f"{percent(rule.control_confidence)} interval "
        f"{change(control.low)} to {change(control.high)}"
    )
    if not found.low <= 0 <= found.high:
        return control, f"the reference arm differs from itself ({text})", None
    if width > limit:
        allows = "margin" if limit == abs(bar) else "rule"
        return (
            control,
            None,
            f"the reference arm against itself spreads too much: its {text} is "
            f"{100 * width:.2f} % wide, the {allows} allows {100 * limit:.2f} %",
        )
    return control, None, None


def _more(
    rule: Rule, claim: Claim, found: Interval, pairs: _Pairs, bar: float, look: Look
) -> tuple[int | None, str]:
    """Say how many more pairs would decide."""
    left = [count for count in look.looks if count > found.n]
    sd = found.sd * spread(claim)
    needed = pairs_to_decide(found.mean, sd, bar, look.confidence)
    if pairs.control is not None and needed is not None:
        needed = _control_pairs(rule, pairs.control, bar, needed)
    if needed is not None:
        needed = max(needed, rule.minimum_pairs)
    if left:
        text = f"{left[0] - found.n} more pairs to the next look"
        return left[0] - found.n, text
    if needed is None:
        return None, (
            f"the figure is so near the bar that {MAX_PAIRS:,} pairs would not decide"
        )
    return needed, (
        f"a new run of {counted(needed, 'pair')} would decide with 80 % probability, "
        "if mean and spread are as found; these pairs do not count for it"
    )


def _control_pairs(
    rule: Rule, control: Sequence[float], bar: float, least: int
) -> int | None:
    """Return the pairs after which the control interval is narrow enough."""
    spread = mean_interval(control, rule.control_confidence).sd
    limit = control_limit(rule, bar)
    return smallest(
        lambda n: (
            2 * t_quantile(rule.control_confidence, n - 1) * spread / math.sqrt(n)
            <= limit
        ),
        max(least, 2),
    )


def _between(look: Look, pairs: int) -> str:
    looks = " and ".join(str(count) for count in look.looks)
    return f"{counted(pairs, 'pair')} finished; the rule looks at {looks} only"


def _sentence(claim: Claim, found: Interval, look: Look, bar: float) -> str:
    """Return what was found and what was asked for, in words."""
    ends = sorted((_shown(claim, found.low), _shown(claim, found.high)))
    middle, asked = _shown(claim, found.mean), _shown(claim, bar)
    at = f"{counted(found.n, 'pair')}, {percent(look.confidence)} interval"
    if len(look.looks) > 1:
        at += f" at each of {len(look.looks)} looks"
    which = f"{claim.name} ({_what(claim)})"
    if claim.bar is not None:
        least = "at most" if claim.better == "lower" else "at least"
        return (
            f"{which}: {figure(middle)}, {figure(ends[0])} to {figure(ends[1])} "
            f"({at}); {least} {figure(asked)} is asked for"
        )
    if claim.ratio is not None:
        return (
            f"{which}: {figure(middle)} times as good, {figure(ends[0])} to "
            f"{figure(ends[1])} times ({at}); at least {figure(asked)} times is "
            "asked for"
        )
    worse = "higher" if claim.better == "lower" else "lower"
    gain = (asked < 0) == (claim.better == "lower") and asked != 0
    if gain:
        wanted = f"at least {change(asked)} is asked for"
    elif asked == 0:
        wanted = f"no {worse} is asked for"
    else:
        wanted = f"at most {change(asked)} is allowed"
    return (
        f"{which}: {change(middle)}, {change(ends[0])} to {change(ends[1])} ({at}); "
        f"{wanted}"
    )


def _what(claim: Claim) -> str:
    arms = claim.arm + (f" against {claim.against}" if claim.against else "")
    return escape(f"{claim.cell}, {arms}" if claim.cell else arms, 160)


def _shown(claim: Claim, value: float) -> float:
    """Return a log-ratio as the claim's unit shows it."""
    if claim.bar is not None:
        return value
    if claim.ratio is not None:
        return _exp(-value if claim.better == "lower" else value)
    return rounded(math.expm1(min(value, 700.0)))


def _exp(value: float) -> float:
    return rounded(math.exp(max(-700.0, min(value, 700.0))), relative=True)


def _log(value: float) -> float:
    return round(math.log(value), 12)


def _unit_of(claim: Claim) -> str:
    if claim.bar is not None:
        return "value"
    return "times" if claim.ratio is not None else "change"


def _result(
    rule: Rule,
    claim: Claim,
    verdict: Verdict,
    reasons: Sequence[str],
    found: Interval,
    pairs: _Pairs,
    look: Look,
    control: Control | None,
    more: int | None = None,
) -> ClaimResult:
    low, high = sorted((_shown(claim, found.low), _shown(claim, found.high)))
    boot = sorted((_shown(claim, found.boot_low), _shown(claim, found.boot_high)))
    return ClaimResult(
        name=claim.name,
        verdict=verdict,
        reasons=tuple(reasons),
        required=claim.required,
        cell=claim.cell,
        arm=claim.arm,
        against=claim.against,
        unit=_unit_of(claim),
        target=_shown(claim, threshold(claim)),
        estimate=_shown(claim, found.mean),
        low=low,
        high=high,
        boot_low=boot[0],
        boot_high=boot[1],
        confidence=look.confidence,
        pairs=found.n,
        more_pairs=more,
        values=tuple(_shown(claim, value) for value in pairs.values),
        control=control,
    )


def _without_figures(
    claim: Claim,
    verdict: Verdict,
    text: str,
    pairs: int,
    limits: Sequence[str] = (),
    look: Look | None = None,
) -> ClaimResult:
    more = look.looks[0] - pairs if look and look.looks else None
    return ClaimResult(
        name=claim.name,
        verdict=verdict,
        reasons=(text, *limits),
        required=claim.required,
        cell=claim.cell,
        arm=claim.arm,
        against=claim.against,
        pairs=pairs,
        more_pairs=more if more and more > 0 else None,
    )
