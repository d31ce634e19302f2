# SPDX-License-Identifier: Apache-2.0
"""Gates without a spread: tests, parity, compiled variants, images."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from math import isfinite
from typing import TypeGuard

from stackctl.gates.evidence import Unit
from stackctl.gates.rule.conditions import number
from stackctl.gates.rule.model import Claim, ClaimResult, Rule, Verdict
from stackctl.gates.rule.timed import UnusableError
from stackctl.gates.rule.words import counted, figure, listed
from stackctl.model.canonical import MAX_INTEGER
from stackctl.model.fields import escape

OUTCOMES = ("passed", "failed", "error", "skipped", "xfailed")
"""Outcomes of a test."""


def judge(rule: Rule, claim: Claim, kind: str, units: Sequence[Unit]) -> ClaimResult:
    """Judge one claim of a gate of kind tests, parity, compile or image.

    Args:
        rule: The declared rule.
        claim: The claim.
        kind: Kind of the gate.
        units: The finished units; at least one.
    """
    base = ClaimResult(
        name=claim.name,
        verdict="invalid",
        reasons=(),
        required=claim.required,
        cell=claim.cell,
        arm=claim.arm,
        against=claim.against,
    )
    try:
        if kind == "tests":
            return _tests(rule, claim, units, base)
        if kind == "parity":
            return _parity(claim, units, base)
        if kind == "compile":
            return _compile(claim, units, base)
        return _image(units, base)
    except UnusableError as fault:
        return replace(base, verdict=fault.verdict, reasons=(fault.text,))


def _tests(
    rule: Rule, claim: Claim, units: Sequence[Unit], base: ClaimResult
) -> ClaimResult:
    """Every selected test passes; a skip is not a pass, an empty selection no run."""
    by_id: dict[str, str] = {}
    for unit in units:
        tests = unit.samples.get("tests")
        if not isinstance(tests, list):
            raise UnusableError(f"unit {unit.unit} has no list of tests")
        for test in tests:
            name = test.get("id") if isinstance(test, Mapping) else None
            outcome = test.get("outcome") if isinstance(test, Mapping) else None
            if not isinstance(name, str) or outcome not in OUTCOMES:
                raise UnusableError(f"unit {unit.unit}: a test has no id or no outcome")
            if name in by_id:
                raise UnusableError(f'test "{escape(name)}" is there twice')
            by_id[name] = str(outcome)
    if claim.cell:
        by_id = {k: v for k, v in by_id.items() if fnmatchcase(k, claim.cell)}
    if not by_id:
        raise UnusableError("the selection of tests is empty")
    counts = Counter(by_id.values())
    failed = sorted(k for k, v in by_id.items() if v in ("failed", "error"))
    skipped = sorted(k for k, v in by_id.items() if v == "skipped")
    surprising = [
        name
        for name in skipped
        if not any(fnmatchcase(name, pattern) for pattern in rule.expected_skips)
    ]
    told = ", ".join(f"{counts[name]} {name}" for name in OUTCOMES if counts[name])
    reasons = [f"{counted(len(by_id), 'test')}: {told}"]
    verdict: Verdict = "qualified"
    ended = [unit.exit for unit in units]
    if failed:
        verdict = "rejected"
        reasons.append(f"failed: {listed(failed)}")
    elif any(code not in (0, None) for code in ended):
        raise UnusableError(
            "no test failed, but the test run ended with exit code "
            + listed([str(code) for code in ended])
        )
    elif surprising:
        verdict = "not-tested"
        reasons.append(f"skipped, which is not passed: {listed(surprising)}")
    elif not counts["passed"]:
        verdict = "not-tested"
        reasons.append("no test passed, so nothing was shown")
    elif skipped:
        reasons.append(
            f"{counted(len(skipped), 'skip')} as declared: {listed(skipped)}"
        )
    if (
        verdict == "qualified"
        and claim.bar is not None
        and counts["passed"] < claim.bar
    ):
        verdict = "not-tested"
        reasons.append(f"at least {figure(claim.bar)} passed tests are asked for")
    return replace(
        base,
        verdict=verdict,
        reasons=tuple(reasons),
        unit="count",
        estimate=float(counts["passed"]),
        target=claim.bar,
        pairs=len(by_id),
        extra={"counts": {name: counts[name] for name in OUTCOMES}},
    )


def _parity(claim: Claim, units: Sequence[Unit], base: ClaimResult) -> ClaimResult:
    """Every case is equal, bit for bit or to the declared tolerance."""
    differing: list[str] = []
    largest = 0.0
    elements = cases = 0
    seen: set[str] = set()
    for unit in units:
        found = unit.samples.get("cases")
        if not isinstance(found, list):
            raise UnusableError(f"unit {unit.unit} has no list of cases")
        if not found:
            raise UnusableError(f"unit {unit.unit} compared no case")
        for case in found:
            name = case.get("id") if isinstance(case, Mapping) else None
            if not isinstance(name, str):
                raise UnusableError(f"unit {unit.unit}: a case has no id")
            if name in seen:
                raise UnusableError(f'case "{escape(name)}" is there twice')
            seen.add(name)
            if claim.cell and not fnmatchcase(name, claim.cell):
                continue
            size, apart, equal, most = _case(case, name)
            cases += 1
            elements += size
            largest = max(largest, most)
            if not equal and (claim.bar is None or most > claim.bar):
                differing.append(f"{name} ({apart:,} of {size:,} elements)")
    if not cases:
        raise UnusableError("no case was compared")
    if elements > MAX_INTEGER:
        raise UnusableError(f"more than {MAX_INTEGER:,} elements cannot be compared")
    tolerance = "" if claim.bar is None else f" to within {figure(claim.bar)}"
    reasons = [
        f"{counted(cases, 'case')} with {counted(elements, 'element')} compared, "
        f"{cases - len(differing)} equal{tolerance}"
    ]
    if differing:
        reasons.append(f"different: {listed(differing)}")
    return replace(
        base,
        verdict="rejected" if differing else "qualified",
        reasons=tuple(reasons),
        unit="value" if claim.bar is not None else "count",
        estimate=_largest(largest) if claim.bar is not None else len(differing),
        target=claim.bar if claim.bar is not None else 0.0,
        pairs=cases,
        extra={"elements": elements, "different": len(differing)},
    )


def _case(case: Mapping[str, object], name: str) -> tuple[int, int, bool, float]:
    """Return elements, differing ones, whether equal, largest difference."""
    place = f'case "{escape(name)}"'
    size, apart = case.get("elements"), case.get("differing", 0)
    equal, most = case.get("equal"), case.get("max_abs")
    if not _whole(size) or not 1 <= size <= MAX_INTEGER:
        raise UnusableError(f"{place} compared no element")
    if not _whole(apart) or not 0 <= apart <= size or not isinstance(equal, bool):
        raise UnusableError(f"{place} does not say whether it is equal")
    largest = number(most)
    if equal and (apart or largest):
        raise UnusableError(f"{place} is equal and different at once")
    if equal:
        return size, 0, True, 0.0
    # nan and infinity differ by more than any tolerance.
    return size, apart, False, float("inf") if largest is None else abs(largest)


def _largest(value: float) -> float | None:
    return value if isfinite(value) else None


def _whole(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)


def _compile(claim: Claim, units: Sequence[Unit], base: ClaimResult) -> ClaimResult:
    """A kernel never has more compiled variants than declared, over all shapes."""
    limit = 1.0 if claim.bar is None else claim.bar
    seen: dict[str, list[float]] = {}
    for unit in units:
        variants = unit.samples.get("variants")
        if not isinstance(variants, Mapping):
            raise UnusableError(f"unit {unit.unit} has no counts of variants")
        if not variants:
            raise UnusableError(f"unit {unit.unit} counted no kernel")
        for name, counts in variants.items():
            if claim.cell and not fnmatchcase(str(name), claim.cell):
                continue
            found = (
                [number(count) for count in counts] if isinstance(counts, list) else []
            )
            if not found or any(count is None or count < 0 for count in found):
                raise UnusableError(f'kernel "{escape(str(name))}" has no counts')
            seen.setdefault(str(name), []).extend(c for c in found if c is not None)
    if not seen:
        raise UnusableError("no kernel was counted")
    most = {name: max(counts) for name, counts in sorted(seen.items())}
    over = [f"{name} ({count:g})" for name, count in most.items() if count > limit]
    never = [name for name, count in most.items() if count == 0]
    shapes = max(len(counts) for counts in seen.values())
    reasons = [
        f"{counted(len(seen), 'kernel')} over {counted(shapes, 'shape')}: at most "
        f"{counted(int(max(most.values())), 'compiled variant')}; "
        f"{limit:g} are allowed"
    ]
    verdict: Verdict = "qualified"
    if over:
        verdict = "rejected"
        reasons.append(f"too many: {listed(over)}")
    elif never:
        verdict = "not-tested"
        reasons.append(f"never compiled, so never run: {listed(never)}")
    return replace(
        base,
        verdict=verdict,
        reasons=tuple(reasons),
        unit="count",
        estimate=max(most.values()),
        target=limit,
        pairs=shapes,
    )


def _image(units: Sequence[Unit], base: ClaimResult) -> ClaimResult:
    """What `verify-image` said of every image."""
    verdicts: dict[str, Verdict] = {
        "match": "qualified",
        "mismatch": "rejected",
        "unverifiable": "invalid",
    }
    worst: Verdict = "qualified"
    reasons = []
    order: tuple[Verdict, ...] = ("invalid", "rejected", "qualified")
    for unit in units:
        said = unit.samples.get("verdict")
        if not isinstance(said, str) or said not in verdicts:
            raise UnusableError(f"unit {unit.unit} has no verdict of an image")
        worst = min(worst, verdicts[said], key=order.index)
        why = unit.samples.get("reason")
        code = why.get("code") if isinstance(why, Mapping) else None
        text = f" ({escape(str(code))})" if code else ""
        reasons.append(f"the image and the tree: {said}{text}")
    return replace(base, verdict=worst, reasons=tuple(reasons), pairs=len(units))
