# SPDX-License-Identifier: Apache-2.0
"""Whether the features of a server were on: what its unit saw, feature by feature.

A gate of servers has no script that counts. What its file declares in
`[[serving.engagement]]` or `[[accuracy.engagement]]` is looked for by every unit, and
in the reference arm too; here it is judged.
"""

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from stackctl.gates.evidence import CANDIDATE, Arm, Evidence, Slot, Unit
from stackctl.gates.rule.conditions import number
from stackctl.gates.rule.model import Claim, Rule
from stackctl.gates.rule.words import listed
from stackctl.model.fields import escape

_SILENT: Final = {
    "log": "no line of its server says so",
    "metric": "the metric of its server did not grow",
}


class _Feature(NamedTuple):
    """What one unit saw of one feature.

    Attributes:
        name: The feature.
        seen: Lines, or growth of the metric; None where that is not known.
        why: What keeps it from being known, or how it would have been seen.
    """

    name: str
    seen: float | None
    why: str


def unshown(
    rule: Rule,
    claim: Claim,
    evidence: Evidence,
    units: Sequence[tuple[Slot, Unit]],
) -> str | None:
    """Return why a claim about servers shows nothing of what it is about.

    Args:
        rule: The declared rule.
        claim: The claim.
        evidence: What was observed.
        units: The units that the answer rests on.

    Returns:
        The first reason, None where all features of the arm were seen, and none in
        the reference arm, or where the arm has none.
    """
    arm = evidence.arms[claim.arm]
    if arm.definition == CANDIDATE:
        return None  # a bisection asks whether it is worse, whatever it has
    if claim.arm not in rule.engaged:
        return _undeclared(claim, evidence)
    if claim.arm in rule.captured:
        return (
            f'the arm "{escape(claim.arm)}": no server tells how many nodes its graphs '
            "captured"
        )
    for slot, unit in units:
        text = None
        if slot.arms == (claim.arm,):
            text = _on(claim.arm, unit)
        elif slot.arms == (claim.against,):
            text = _off(claim.against, unit)
        if text is not None:
            return f"unit {slot.unit}: {text}"
    wanted: Sequence[str] | None = None
    for slot, unit in units:
        if slot.arms == (claim.arm,):
            names = _names(claim.arm, unit)
            wanted = names if wanted is None else wanted
            if text := _other(claim.arm, names, wanted):
                return f"unit {slot.unit}: {text}"
    for slot, unit in units:
        if slot.arms == (claim.against,):
            unasked = sorted({*(wanted or ())} - {*_names(claim.against, unit)})
            if unasked:
                return (
                    f'unit {slot.unit}: the reference arm "{escape(claim.against)}" '
                    f"did not look for {listed(unasked)}"
                )
    return None


def _undeclared(claim: Claim, evidence: Evidence) -> str | None:
    """Say what to declare for an arm that changes something; None for any other."""
    name, arm, kind = claim.arm, evidence.arms[claim.arm], evidence.kind
    if arm.tree is None or _bare(arm, claim, evidence):
        return None
    what = "switches" if arm.definition == "base" else f"({escape(arm.definition)})"
    return (
        f'nothing shows that the arm "{escape(name)}" {what} had anything on: declare '
        f"in [[{kind}.engagement]] a line or a metric of its server that does, and "
        "name the arm in `engaged` of [rule]"
    )


def _bare(arm: Arm, claim: Claim, evidence: Evidence) -> bool:
    """Whether an arm is the unpacked base and nothing else, by its tree too."""
    base = evidence.inputs.get("base")
    trees = {base.get("tree") if isinstance(base, Mapping) else None}
    if claim.against:
        trees.add(evidence.arms[claim.against].tree)
    return (
        arm.definition == "base"
        and arm.composition is None
        and not arm.env
        and (arm.tree in trees or trees == {None})
    )


def _names(arm: str, unit: Unit) -> list[str]:
    """Return the features that a unit looked for, in order."""
    return sorted(feature.name for feature in _features(unit.engagement.get(arm)))


def _other(arm: str, names: Sequence[str], wanted: Sequence[str]) -> str | None:
    """Return why a unit is not about the features of the arm's first unit."""
    if len(set(names)) < len(names):
        return f'the arm "{escape(arm)}" names a feature twice'
    if names == wanted:
        return None
    return (
        f'the arm "{escape(arm)}" looked for {listed(names)}, its first unit for '
        f"{listed(wanted)}"
    )


def _on(arm: str, unit: Unit) -> str | None:
    """Return why a unit does not show that all features of its arm were on."""
    found = unit.engagement.get(arm)
    features = _features(found)
    if not features or not isinstance(found, Mapping):
        return f'the arm "{escape(arm)}" does not prove that its features were on'
    for feature in features:
        if feature.seen is None:
            return f"whether {feature.name} was on is not known: {feature.why}"
        if feature.seen <= 0:
            return f'{feature.name} never engaged in the arm "{escape(arm)}": ' + (
                feature.why
            )
    return _sums(arm, found, len(features), len(features))


def _off(arm: str, unit: Unit) -> str | None:
    """Return why a unit does not show that the features were off in its arm."""
    found = unit.engagement.get(arm)
    features = _features(found)
    if not features or not isinstance(found, Mapping):
        return (
            f'the reference arm "{escape(arm)}" does not prove that the features were '
            "off"
        )
    for feature in features:
        if feature.seen is None:
            return (
                f'whether {feature.name} was off in the reference arm "{escape(arm)}" '
                f"is not known: {feature.why}"
            )
        if feature.seen > 0:
            return (
                f'{feature.name} engaged in the reference arm "{escape(arm)}" as well'
            )
    return _sums(arm, found, 0, 0)


def _sums(
    arm: str, found: Mapping[str, object], expected: int, seen: int
) -> str | None:
    """Check the sums of a unit against its features."""
    if (number(found.get("expected")), number(found.get("counted"))) == (
        expected,
        seen,
    ):
        return None
    return f'the arm "{escape(arm)}" has sums that are not those of its features'


def _features(found: object) -> list[_Feature]:
    """Return what a unit saw of each feature; nothing where one has no form."""
    listed = found.get("features") if isinstance(found, Mapping) else None
    features = []
    for item in listed if isinstance(listed, list) else ():
        if not isinstance(item, Mapping):
            return []
        seen, way = number(item.get("seen")), str(item.get("by"))
        if seen is not None and seen < 0:
            seen = None  # neither lines nor growth are less than none
        why = item.get("why") if seen is None else _SILENT.get(way)
        name = escape(str(item.get("feature")))
        features.append(_Feature(name, seen, escape(str(why or "no figure"), 200)))
    return features
