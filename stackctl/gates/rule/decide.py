# SPDX-License-Identifier: Apache-2.0
"""The verdict of a run: a pure function of the declared rule and the evidence.

The same arguments give the same decision, byte for byte as JSON, on every run; who has
a receipt can therefore ask whether its verdict follows from its samples.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from stackctl.errors import InputError
from stackctl.gates.evidence import EXTERNAL, SERVED_KINDS, Arm, Evidence
from stackctl.gates.rule import accuracy, counts, timed
from stackctl.gates.rule.conditions import Conditions, engaged_too, examine, unengaged
from stackctl.gates.rule.looks import looks_of, nominal_confidence
from stackctl.gates.rule.model import (
    Claim,
    ClaimResult,
    Decision,
    Rule,
    Verdict,
    problems,
    worst,
)
from stackctl.gates.rule.served import unshown
from stackctl.gates.rule.words import counted
from stackctl.model.fields import escape


def decide(rule: Rule, claims: Sequence[Claim], evidence: Evidence) -> Decision:
    """Judge a run.

    Args:
        rule: The rule, as declared before the run.
        claims: The claims, as declared before the run; a gate of kind tests, parity,
            compile or image may have none, which claims everything at once.
        evidence: What was observed, complete or not.

    Returns:
        The decision.

    Raises:
        InputError: Rule, claims and kind do not go together (`bad-rule`).
        UsageError: A statistics library is missing (`package-missing`).
    """
    faults = problems(evidence.kind, rule, claims)
    if faults:
        raise InputError(
            f'gate "{escape(evidence.gate)}": ' + "; ".join(faults),
            kind="bad-rule",
            hint="correct [rule] and [[claim]] in the gate's file",
            where={"gate": evidence.gate},
        )
    told = tuple(claims) or (Claim(name=evidence.kind),)
    state = examine(rule, told, evidence)
    looks = evidence.schedule.looks
    pairs = len(state.complete)
    blocked: list[tuple[Verdict, tuple[str, ...]]] = [
        ("invalid", state.invalid),
        ("rejected", state.rejected),
        ("not-tested", state.not_tested),
    ]
    for verdict, why in blocked:
        if why:
            return Decision(
                verdict=verdict,
                reasons=why,
                limitations=state.limitations,
                claims=tuple(_blocked(claim, verdict, why[0]) for claim in told),
                looks=looks,
                pairs=pairs,
            )
    look = _look(rule, state)
    results = tuple(_judge(rule, claim, evidence, state, look) for claim in told)
    verdict = worst([result.verdict for result in results if result.required])
    return Decision(
        verdict=verdict,
        reasons=_reasons(results, verdict),
        limitations=state.limitations,
        claims=results,
        look=look.number,
        looks=looks,
        pairs=pairs,
    )


def _look(rule: Rule, state: Conditions) -> timed.Look:
    """Return which look a run has reached: none, while a pair is missing to it."""
    looks = looks_of(rule)
    pairs = len(state.complete)
    reached = pairs in looks and not state.partial
    timed_rule = rule.statistic == "paired-log-ratio"
    return timed.Look(
        looks.index(pairs) + 1 if reached else 0,
        looks,
        nominal_confidence(looks, rule.confidence) if timed_rule else rule.confidence,
    )


def _judge(
    rule: Rule,
    claim: Claim,
    evidence: Evidence,
    state: Conditions,
    look: timed.Look,
) -> ClaimResult:
    """Judge one claim of a run that may be used."""
    pairs = [(slot, unit) for block in state.complete for slot, unit in block]
    arms = [claim.arm] if claim.arm else sorted(evidence.arms)
    for name in (claim.arm, claim.against):
        if name and name not in evidence.arms:
            return _blocked(claim, "invalid", f'there is no arm "{escape(name)}"')
    if evidence.kind in SERVED_KINDS:
        missing = unshown(rule, claim, evidence, pairs)
    else:
        missing = unengaged(rule, arms, pairs)
        if missing is None and claim.against:
            missing = engaged_too(claim.against, pairs) or unengaged(
                rule, [claim.against], pairs
            )
    if missing is not None:
        return _blocked(claim, "not-tested", missing)
    if evidence.kind in ("tests", "parity", "compile", "image"):
        result = counts.judge(rule, claim, evidence.kind, list(state.units.values()))
        missed = len(evidence.schedule.slots) - len(state.units)
        limits = [_unbound(name) for name in arms if not _bound(evidence.arms[name])]
        if missed:
            limits.append(f"{counted(missed, 'unit')} of the schedule did not run")
        if limits and result.verdict == "qualified":
            return replace(
                result,
                verdict="insufficient-evidence",
                reasons=(*result.reasons, *limits),
                more_pairs=missed or None,
            )
        return result
    caps = _arms(claim, evidence)
    if evidence.kind == "accuracy":
        return accuracy.judge(rule, claim, state.complete, state.partial, caps)
    scope = evidence.scope
    return timed.judge(rule, claim, evidence.kind, state.complete, look, caps, scope)


def _arms(claim: Claim, evidence: Evidence) -> list[str]:
    """Return what about the arms keeps a claim from being decided."""
    caps = []
    arm = evidence.arms[claim.arm]
    if not _bound(arm):
        caps.append(_unbound(claim.arm))
    if not claim.against:
        return caps
    other = evidence.arms[claim.against]
    if not _bound(other):
        caps.append(_unbound(claim.against))
    elif other.definition != "base" or other.composition is not None:
        caps.append(
            f'the reference arm "{escape(claim.against)}" is '
            f"{escape(other.definition)}, not the unpacked base"
        )
    elif _base_tree(evidence) not in (None, other.tree):
        caps.append(
            f'the reference arm "{escape(claim.against)}" has another tree than the '
            "base that the run is bound to"
        )
    elif arm.tree == other.tree:
        caps.append("both arms are the base, so the tree in question was not measured")
    return caps


def _bound(arm: Arm) -> bool:
    """Whether it is known what an arm was: a server of others has no tree."""
    return arm.tree is not None and arm.definition != EXTERNAL


def _unbound(arm: str) -> str:
    return f'nothing binds the arm "{escape(arm)}" to a tree'


def _base_tree(evidence: Evidence) -> object:
    """Return the tree of the base that the run is bound to, where it names one."""
    base = evidence.inputs.get("base")
    return base.get("tree") if isinstance(base, Mapping) else None


def _blocked(claim: Claim, verdict: Verdict, why: str) -> ClaimResult:
    return ClaimResult(
        name=claim.name,
        verdict=verdict,
        reasons=(why,),
        required=claim.required,
        cell=claim.cell,
        arm=claim.arm,
        against=claim.against,
    )


def _reasons(results: Sequence[ClaimResult], verdict: Verdict) -> tuple[str, ...]:
    """Return the reasons of the claims that made the verdict, without repeats."""
    made = [r for r in results if r.required and r.verdict == verdict]
    return tuple(dict.fromkeys(text for result in made for text in result.reasons))
