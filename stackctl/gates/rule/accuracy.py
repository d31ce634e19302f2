# SPDX-License-Identifier: Apache-2.0
"""Right answers of two arms on the same items: a score interval of the difference.

The interval is T. Tango's (Statistics in Medicine 17, 1998, 891-908): all differences
that a score test of paired proportions does not reject. Unlike the plain interval it
does not shrink to nothing where no answer differs. R. G. Newcombe's (Statistics in
Medicine 17, 1998, 2635-2650, method 10), Wilson's for each arm, and McNemar's exact
test are reported beside it.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

from stackctl.gates.evidence import Slot, Unit
from stackctl.gates.rule.intervals import POWER, rounded
from stackctl.gates.rule.libraries import library
from stackctl.gates.rule.model import RESULTS, Claim, ClaimResult, Rule, Verdict
from stackctl.gates.rule.timed import UnusableError, side
from stackctl.gates.rule.words import counted, percent, points
from stackctl.model.fields import escape

MAX_ITEMS: Final = 1_000_000
"""More items are not worth asking for."""


_OFF: Final = 1e-12
"""Distance from the difference at which the search for an end begins."""


class Table(NamedTuple):
    """Answers of two arms to the same items.

    Attributes:
        both: Right in both arms.
        arm: Right in the arm only.
        against: Right in the reference only.
        neither: Right in none.
    """

    both: int
    arm: int
    against: int
    neither: int

    @property
    def items(self) -> int:
        """Number of items."""
        return sum(self)

    @property
    def difference(self) -> float:
        """Share of right answers of the arm less that of the reference."""
        return (self.arm - self.against) / self.items


def judge(
    rule: Rule,
    claim: Claim,
    blocks: Sequence[Sequence[tuple[Slot, Unit]]],
    partial: bool,
    caps: Sequence[str],
) -> ClaimResult:
    """Judge one claim about right answers.

    Args:
        rule: The declared rule.
        claim: The claim.
        blocks: The complete blocks: reference, arm, reference.
        partial: Whether the block is half done.
        caps: Why nothing better than insufficient evidence can come out.
    """
    margin = claim.margin or 0.0
    bar = margin if claim.better == "higher" else -margin
    base = ClaimResult(
        name=claim.name,
        verdict="insufficient-evidence",
        reasons=("the block of reference, arm and reference is not finished",),
        required=claim.required,
        cell=claim.cell,
        arm=claim.arm,
        against=claim.against,
        unit="difference",
        target=rounded(bar),
    )
    if not blocks:
        return base
    try:
        own, first, second = _answers(claim, blocks[0])
    except UnusableError as fault:
        return _with(base, verdict=fault.verdict, reasons=(fault.text,))
    table = cross(own, first)
    low, high = (rounded(x) for x in tango(table, rule.confidence))
    again = cross(second, first)
    control = tuple(rounded(x) for x in tango(again, rule.control_confidence))
    verdict: Verdict = side(low, high, bar, claim.better)
    reasons = [_sentence(claim, table, low, high, bar, rule.confidence)]
    limits = list(caps)
    if partial:
        limits.append("a block is half done")
    more = None
    if not control[0] <= 0 <= control[1]:
        verdict = "invalid"
        reasons.append(
            f"the reference arm differs from itself: {points(control[0])} to "
            f"{points(control[1])} ({percent(rule.control_confidence)} interval)"
        )
    elif limits or (verdict == "qualified" and too_few(table.items, rule, margin)):
        verdict = "insufficient-evidence"
        reasons += limits
    if verdict == "insufficient-evidence":
        more, text = _more(table, margin, bar, rule.confidence)
        reasons.append(text)
    return _with(
        base,
        verdict=verdict,
        reasons=tuple(reasons),
        estimate=rounded(table.difference),
        low=low,
        high=high,
        confidence=rule.confidence,
        pairs=table.items,
        more_pairs=more,
        extra=_extra(rule, table, again, control, margin, bar),
    )


def cross(own: Sequence[bool], other: Sequence[bool]) -> Table:
    """Count the four combinations of right and wrong.

    Args:
        own: Whether the arm was right, by item.
        other: Whether the reference was right, for the same items.
    """
    pairs = list(zip(own, other, strict=True))
    return Table(
        pairs.count((True, True)),
        pairs.count((True, False)),
        pairs.count((False, True)),
        pairs.count((False, False)),
    )


def tango(table: Table, confidence: float) -> tuple[float, float]:
    """Return Tango's score interval of the paired difference of proportions.

    Args:
        table: At least one item.
        confidence: Two-sided.
    """
    z = float(library("scipy.stats").norm.isf((1 - confidence) / 2))
    brentq = library("scipy.optimize").brentq
    n, d = table.items, table.difference

    def beyond(delta: float, sign: int) -> float:
        """How far the difference is beyond the score test's bound at `delta`."""
        return sign * n * (d - delta) - z * math.sqrt(
            n * max(variance(table.arm, table.against, n, delta), 0.0)
        )

    # Where no answer differs the difference itself is a false root: stay off it.
    low, high = -1.0, 1.0
    if d > -1:
        low = float(brentq(beyond, -1.0, d - _OFF, args=(1,), xtol=1e-13))
    if d < 1:
        high = float(brentq(beyond, d + _OFF, 1.0, args=(-1,), xtol=1e-13))
    return low, high


def variance(arm: float, against: float, n: float, delta: float) -> float:
    """Return the variance of one item's difference, if the true difference is `delta`.

    The discordant probabilities are those that are likeliest under that difference
    (Tango, equations 7 and 8).

    Args:
        arm: Items right in the arm only.
        against: Items right in the reference only.
        n: Items.
        delta: The difference that is tried.
    """
    b = -arm - against + (2 * n - arm + against) * delta
    c = -against * delta * (1 - delta)
    root = math.sqrt(max(b * b - 8 * n * c, 0.0))
    # The form without cancellation of the two solutions of a quadratic equation.
    q = (root - b) / (4 * n) if b <= 0 else -2 * c / (root + b) if root + b else 0.0
    return 2 * max(q, 0.0) + delta * (1 - delta)


def newcombe(table: Table, confidence: float) -> tuple[float, float]:
    """Return Newcombe's interval (method 10) of the paired difference.

    Args:
        table: At least one item.
        confidence: Two-sided.
    """
    n = table.items
    own, other = table.both + table.arm, table.both + table.against
    p, q = own / n, other / n
    covariance: float
    low_p, high_p = wilson(own, n, confidence)
    low_q, high_q = wilson(other, n, confidence)
    product = own * (n - own) * other * (n - other)
    phi = 0.0
    if product:
        covariance = table.both * table.neither - table.arm * table.against
        if covariance > n / 2:
            covariance -= n / 2
        elif covariance >= 0:
            covariance = 0
        phi = covariance / math.sqrt(product)
    down, up = p - low_p, high_q - q
    over, under = high_p - p, q - low_q
    low = math.sqrt(max(down**2 - 2 * phi * down * up + up**2, 0.0))
    high = math.sqrt(max(over**2 - 2 * phi * over * under + under**2, 0.0))
    return p - q - low, p - q + high


def wilson(right: int, n: int, confidence: float) -> tuple[float, float]:
    """Return Wilson's interval of one proportion.

    Args:
        right: Right answers.
        n: Items.
        confidence: Two-sided.
    """
    confint = library("statsmodels.stats.proportion").proportion_confint
    low, high = confint(right, n, alpha=1 - confidence, method="wilson")
    return float(low), float(high)


def mcnemar(table: Table) -> float:
    """Return the two-sided p value of McNemar's exact test.

    Args:
        table: The answers.
    """
    test = library("statsmodels.stats.contingency_tables").mcnemar
    cells = [[table.both, table.arm], [table.against, table.neither]]
    return float(test(cells, exact=True).pvalue)


def fewest_items(margin: float, confidence: float) -> int:
    """Return the items below which no result at all can meet a margin.

    If not one answer differs, Tango's interval ends at z^2 / (n + z^2).

    Args:
        margin: Size of the margin, above zero.
        confidence: Two-sided.
    """
    z = float(library("scipy.stats").norm.isf((1 - confidence) / 2))
    return math.ceil(round(z * z * (1 - margin) / margin, 9))


def too_few(items: int, rule: Rule, margin: float) -> bool:
    """Return whether no margin of this size is met by that many items.

    A few lucky items could put a short run's interval beyond the margin; a run that
    could not meet it with not one answer differing does not meet it by luck either.

    Args:
        items: Items of the run.
        rule: The rule.
        margin: The declared margin.
    """
    return bool(margin) and items < fewest_items(abs(margin), rule.confidence)


def items_needed(
    discordant: float, difference: float, bar: float, confidence: float
) -> int | None:
    """Return how many items decide with 80 % probability.

    The usual sample size of a score test: the interval's half at the bar plus the
    spread of the estimate at the true difference.

    Args:
        discordant: Share of items on which the arms differ.
        difference: True difference of the shares of right answers.
        bar: Difference that has to be excluded.
        confidence: Two-sided.

    Returns:
        The number, None where the difference lies on the bar.
    """
    norm = library("scipy.stats").norm
    gap = abs(difference - bar)
    if gap < 1e-6:
        return None
    discordant = max(discordant, abs(difference))
    arm, against = (discordant + difference) / 2, (discordant - difference) / 2
    at_bar = variance(arm, against, 1.0, bar)
    spread = float(norm.isf((1 - confidence) / 2)) * math.sqrt(max(at_bar, 0.0))
    spread += float(norm.ppf(POWER)) * math.sqrt(
        max(discordant - difference * difference, 0.0)
    )
    needed = math.ceil(round((spread / gap) ** 2, 6))
    if bar:
        needed = max(needed, fewest_items(abs(bar), confidence))
    return needed if needed <= MAX_ITEMS else None


def _answers(
    claim: Claim, block: Sequence[tuple[Slot, Unit]]
) -> tuple[list[bool], list[bool], list[bool]]:
    """Return the right answers of the arm, the reference, and the reference again."""
    own: list[dict[str, bool]] = []
    other: list[dict[str, bool]] = []
    for slot, unit in block:
        if slot.arms == (claim.arm,):
            own.append(_items(claim, slot, unit))
        elif slot.arms == (claim.against,):
            other.append(_items(claim, slot, unit))
    if len(own) != 1 or len(other) != 2:
        raise UnusableError("a block is not reference, arm, reference")
    names = sorted(own[0])
    for found in other:
        if sorted(found) != names:
            raise UnusableError("the arms did not answer the same items")
    one, first, second = own[0], other[0], other[1]
    return (
        [one[name] for name in names],
        [first[name] for name in names],
        [second[name] for name in names],
    )


def _items(claim: Claim, slot: Slot, unit: Unit) -> dict[str, bool]:
    items = unit.samples.get("items")
    place = f"unit {slot.unit}"
    if not isinstance(items, list):
        raise UnusableError(f"{place} has no items")
    found: dict[str, bool] = {}
    for item in items:
        if not isinstance(item, Mapping) or not isinstance(item.get("id"), str):
            raise UnusableError(f"{place}: an item has no id")
        name, result = item["id"], item.get("result")
        if name in found:
            raise UnusableError(f'{place}: item "{escape(name)}" is there twice')
        if result not in RESULTS:
            raise UnusableError(f'{place}: item "{escape(name)}" has no known result')
        if not claim.cell or item.get("set") == claim.cell:
            found[name] = result in claim.right
    if not found:
        which = f' of the set "{escape(claim.cell)}"' if claim.cell else ""
        raise UnusableError(f"{place} has no item{which}")
    return found


def _sentence(
    claim: Claim, table: Table, low: float, high: float, bar: float, confidence: float
) -> str:
    own, other = table.both + table.arm, table.both + table.against
    if bar == 0:
        wanted = "no loss is allowed"
    elif (bar < 0) == (claim.better == "higher"):
        wanted = f"a loss of up to {points(bar)} is allowed"
    else:
        wanted = f"at least {points(bar)} is asked for"
    what = f"{claim.cell}, " if claim.cell else ""
    return (
        f"{claim.name} ({escape(what)}{escape(claim.arm)} against "
        f"{escape(claim.against)}): {own} against {other} of "
        f"{counted(table.items, 'item')} right, {points(table.difference)}, "
        f"{percent(confidence)} interval {points(low)} to {points(high)}; {wanted}"
    )


def _more(
    table: Table, margin: float, bar: float, confidence: float
) -> tuple[int | None, str]:
    """Say how many items would decide, if the answers differ as here."""
    discordant = (table.arm + table.against) / table.items
    needed = items_needed(discordant, table.difference, bar, confidence)
    least = fewest_items(abs(margin), confidence) if margin else 0
    if least > table.items:
        more = max(needed or least, least)
        return more, (
            f"{counted(table.items, 'item')} never meet a margin of "
            f"{points(abs(margin)).lstrip('+')}: even if no answer differs, {least} "
            f"are the fewest, and if answers differ as here, {more} decide"
        )
    if needed is None:
        return None, "the difference is so near the margin that no run would decide"
    return needed, (
        f"a new run of {counted(needed, 'item')} would decide with 80 % probability, "
        "if the answers differ as here"
    )


def _needed(
    table: Table, bar: float, loss_allowed: bool, confidence: float
) -> int | None:
    """Items that the margin needs, for equal arms where those are good enough."""
    discordant = (table.arm + table.against) / table.items
    truth = 0.0 if loss_allowed else table.difference
    return items_needed(discordant, truth, bar, confidence)


def _extra(
    rule: Rule,
    table: Table,
    again: Table,
    control: Sequence[float],
    margin: float,
    bar: float,
) -> dict[str, Any]:
    n = table.items
    shares = {
        "arm": table.both + table.arm,
        "against": table.both + table.against,
    }
    return {
        "table": dict(table._asdict()),
        "shares": {
            name: {
                "right": right,
                "wilson": [rounded(x) for x in wilson(right, n, rule.confidence)],
            }
            for name, right in shares.items()
        },
        "newcombe": [rounded(x) for x in newcombe(table, rule.confidence)],
        "mcnemar_p": rounded(mcnemar(table), relative=True),
        "self_flip": {
            "items": again.arm + again.against,
            "rate": rounded((again.arm + again.against) / n),
            "interval": list(control),
        },
        "items_needed": _needed(table, bar, margin < 0, rule.confidence),
        "items_fewest": (
            fewest_items(abs(margin), rule.confidence) if margin else None
        ),
    }


def _with(result: ClaimResult, **changed: Any) -> ClaimResult:
    return replace(result, **changed)
