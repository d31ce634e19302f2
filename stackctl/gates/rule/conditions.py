# SPDX-License-Identifier: Apache-2.0
"""Whether evidence may be used at all, before any figure is looked at.

Every rule about the run itself is here, and none is in whoever runs a gate: a verdict
is derived again from a receipt, so what it rests on must be in the receipt.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from stackctl.gates.evidence import Evidence, Schedule, Slot, Unit
from stackctl.gates.rule.model import Claim, Rule, reference
from stackctl.gates.rule.schedule import schedule
from stackctl.gates.rule.words import counted, figure, listed, percent
from stackctl.gates.snapshot import throttled
from stackctl.model.fields import escape

_ANSWERS: Final[Mapping[str, tuple[int, ...]]] = {
    "tests": (0, 1, 5),
    "image": (0, 1, 3),
}
"""Exit codes with an answer: pytest's failed tests and empty selection,
`verify-image`'s mismatch and unverifiable image."""


SHORT_NS: Final = 3_000_000_000
"""Nanoseconds of a unit that must have been looked at while it ran. A look takes
0.2 seconds of the command, and starting that takes its time on a busy machine."""


class Conditions(NamedTuple):
    """What the state of a run allows.

    Attributes:
        invalid: Why the run may not be used.
        rejected: Why the units themselves refused the tree.
        not_tested: Why nothing was tested.
        limitations: What the run does not show.
        units: The finished units by number.
        complete: Units of each complete pair or block, in order.
        partial: Whether a block is half done.
    """

    invalid: tuple[str, ...]
    rejected: tuple[str, ...]
    not_tested: tuple[str, ...]
    limitations: tuple[str, ...]
    units: Mapping[int, Unit]
    complete: tuple[tuple[tuple[Slot, Unit], ...], ...]
    partial: bool


def examine(rule: Rule, claims: Sequence[Claim], evidence: Evidence) -> Conditions:
    """Judge the run itself: order, machines, units, inputs.

    Args:
        rule: The declared rule.
        claims: The declared claims.
        evidence: What was observed.
    """
    invalid = [escape(text, 400) for text in evidence.problems]
    invalid += _schedule(rule, claims, evidence)
    units, faults = _units(evidence.schedule, evidence.units)
    invalid += faults
    stops = {number: unit.stop for number, unit in units.items() if unit.stop}
    rejected, not_tested = [], [escape(text, 400) for text in evidence.missing]
    for number, (verdict, reason) in stops.items():
        text = f"unit {number}: {escape(reason, 400)}"
        if verdict == "rejected":
            rejected.append(text)
        elif verdict == "not-tested":
            not_tested.append(text)
        elif verdict == "invalid":
            invalid.append(text)
        else:
            invalid.append(
                f'unit {number} stopped with "{escape(verdict)}", which no unit can'
            )
    for number, unit in units.items():
        invalid += _unit(evidence.kind, number, unit)
        invalid += _load(rule, number, unit) + _busy(rule, number, unit)
    invalid += _gpus(units, evidence.scope) + _inputs(units)
    unknown_arms = sorted({*rule.engaged, *rule.captured} - set(evidence.arms))
    if unknown_arms and evidence.arms:
        not_tested.append(
            "no arm can prove what the rule asks of "
            + listed([f'"{name}"' for name in unknown_arms])
        )
    if not units and not not_tested and not invalid:
        not_tested.append("no unit ran")
    complete, partial = _complete(evidence.schedule, units)
    limitations = [escape(text, 400) for text in evidence.limitations]
    if rule.statistic == "paired-log-ratio":
        limitations += unknown_state(units.values(), evidence.scope)
    return Conditions(
        tuple(dict.fromkeys(invalid)),
        tuple(rejected),
        tuple(dict.fromkeys(not_tested)),
        tuple(dict.fromkeys(limitations)),
        units,
        complete,
        partial,
    )


def load(unit: Unit) -> float | None:
    """Return the mean load of other programs during a unit, as a share of the CPUs.

    Args:
        unit: A finished unit.

    Returns:
        The share, None where it is not known.
    """
    cpus = number(unit.host.get("cpus"))
    if cpus is None or cpus < 1:
        return None
    mean = number(unit.host.get("load_mean"))
    if mean is not None:
        return mean / cpus
    ends = [number(unit.host.get(name)) for name in ("load_before", "load_after")]
    known = [value for value in ends if value is not None]
    return math.fsum(known) / len(known) / cpus if len(known) == 2 else None


def unknown_load(units: Iterable[Unit]) -> str | None:
    """Say in which units what other programs did is not known, before, during or after.

    A load that was over the limit may not be taken out of a receipt without being
    missed.

    Args:
        units: Units of a gate that measures time.

    Returns:
        A sentence, None where it is known everywhere.
    """
    unknown = []
    for unit in units:
        # A unit may be over before the machine was looked at a second time.
        during = ("load_mean",) if unit.ns >= SHORT_NS else ()
        names = ("cpus", "load_before", "load_after", *during)
        if any(number(unit.host.get(name)) is None for name in names):
            unknown.append(str(unit.unit))
    return (
        f"the host's load is not known in units {listed(unknown)}" if unknown else None
    )


_BEFORE: Final = ("reasons", "utilization", "memory_used_mib")
"""Of a GPU's state before a unit: what shows that nobody else used it."""

_AFTER: Final = ("reasons",)
"""Of a GPU's state after a unit: what shows that it was not slowed down."""


def unknown_gpus(units: Iterable[Unit], scope: Mapping[str, Any]) -> str | None:
    """Say of which units the states of their GPUs are not known.

    A GPU that was busy, or slowed down, may not be taken out of a receipt without being
    missed.

    Args:
        units: Units of a gate that measures time.
        scope: Of the run, whose hardware names its GPUs.

    Returns:
        A sentence, None where all are known, or no GPU was used.
    """
    named = _named(scope)
    unknown = [
        str(unit.unit)
        for unit in units
        if not named <= {gpu.get("uuid") for gpu in unit.gpus}
        or not all(_known(gpu) for gpu in unit.gpus)
    ]
    if not unknown:
        return None
    return f"the states of the GPUs are not known in units {listed(unknown)}"


def unknown_state(units: Iterable[Unit], scope: Mapping[str, Any]) -> list[str]:
    """Say what of the machine is not known of units of a gate that measures time.

    Args:
        units: The units.
        scope: Of the run.
    """
    measured = list(units)
    found = (unknown_load(measured), unknown_gpus(measured, scope))
    return [why for why in found if why is not None]


def _named(scope: Mapping[str, Any]) -> set[object]:
    """Return the GPUs that the scope of a run names, by UUID."""
    hardware = scope.get("hardware")
    gpus = hardware.get("gpus") if isinstance(hardware, Mapping) else None
    listed_ = gpus if isinstance(gpus, list) else []
    found = (gpu.get("uuid") for gpu in listed_ if isinstance(gpu, Mapping))
    return {uuid for uuid in found if isinstance(uuid, str)}


def _known(gpu: Mapping[str, Any]) -> bool:
    """Whether a GPU's states before and after a unit are known."""
    for when, names in (("before", _BEFORE), ("after", _AFTER)):
        state = gpu.get(when)
        if not isinstance(state, Mapping) or any(
            number(state.get(name)) is None for name in names
        ):
            return False
    return True


def number(value: object) -> float | None:
    """Return a finite number as a float; None for anything else.

    Args:
        value: What a document holds.
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        found = float(value)
    except OverflowError:
        return None
    return found if math.isfinite(found) else None


def unengaged(
    rule: Rule, arms: Sequence[str], units: Sequence[tuple[Slot, Unit]]
) -> str | None:
    """Return why some arms do not prove that their feature was on or off.

    Args:
        rule: The declared rule.
        arms: The arms in question.
        units: The units that the answer rests on.

    Returns:
        The first reason, None where every proof is there.
    """
    for arm in arms:
        needed = arm in rule.engaged or arm in rule.captured
        for slot, unit in units:
            if arm not in slot.arms:
                continue
            found = unit.engagement.get(arm)
            if found is None and not needed:
                continue
            text = _proof(arm, found, needed, arm in rule.captured)
            if text:
                return f"unit {slot.unit}: {text}"
    return None


def engaged_too(arm: str, units: Sequence[tuple[Slot, Unit]]) -> str | None:
    """Return why a reference arm is none: the feature was on in it as well.

    Args:
        arm: The reference arm.
        units: The units that the answer rests on.
    """
    for slot, unit in units:
        found = unit.engagement.get(arm) if arm in slot.arms else None
        seen = number(found.get("counted")) if isinstance(found, Mapping) else None
        if seen:
            return (
                f"unit {slot.unit}: the feature engaged in the reference arm "
                f'"{escape(arm)}" as well'
            )
    return None


def _proof(arm: str, found: object, needed: bool, captured: bool) -> str | None:
    name = f'the arm "{escape(arm)}"'
    if not isinstance(found, Mapping):
        return f"{name} does not prove that its feature was on (no counter)"
    expected, seen = number(found.get("expected")), number(found.get("counted"))
    if expected is None or seen is None or seen % 1:
        return f"{name} has a counter without figures"
    if needed and expected <= 0:
        return f"{name} expects nothing of its counter, which proves nothing"
    if seen != expected:
        did = "never engaged" if seen == 0 else f"engaged {seen:g} times"
        return f"{name} {did}; {expected:g} were expected"
    nodes = number(found.get("captured_nodes"))
    if captured and (nodes is None or nodes <= 0):
        return f"{name}: no captured graph node proves that replays have it"
    return None


def _schedule(rule: Rule, claims: Sequence[Claim], evidence: Evidence) -> list[str]:
    """Check that the recorded schedule is the one that the rule gives."""
    found = evidence.schedule
    head = reference(claims)
    if not found.slots:
        # A gate that cannot run here has no schedule, nor has it units.
        return [] if evidence.missing and not evidence.units else ["no schedule"]
    if rule.blocks or head is None:
        head = found.slots[0].arms[0] if found.slots[0].arms else ""
        named = reference(claims)
        if rule.blocks and named is not None and head != named:
            return ["the blocks do not start with the reference arm"]
    if head not in evidence.arms:
        return [f'the schedule names an arm "{escape(head)}" that is not there']
    names = [head, *(name for name in sorted(evidence.arms) if name != head)]
    expected = schedule(rule, names, found.seed, len(found.slots))
    if not rule.blocks:
        # Within a process the script alone has the order, and records it.
        same = [(slot.unit, slot.block) for slot in found.slots] == [
            (slot.unit, slot.block) for slot in expected.slots
        ] and all(sorted(slot.arms) == sorted(names) for slot in found.slots)
    else:
        same = found.slots == expected.slots
    if not same:
        return ["the recorded schedule is not the one that the rule gives"]
    if found.looks != expected.looks:
        looks = listed([str(look) for look in expected.looks] or ["none"])
        return [f"the recorded looks are not those of the rule ({looks})"]
    return []


def _units(plan: Schedule, units: Sequence[Unit]) -> tuple[dict[int, Unit], list[str]]:
    """Return the units by number, and what is wrong with their numbers."""
    found: dict[int, Unit] = {}
    faults = []
    for unit in units:
        if unit.unit in found:
            faults.append(f"unit {unit.unit} is there twice")
        found.setdefault(unit.unit, unit)
    known = {slot.unit for slot in plan.slots}
    extra = sorted(number for number in found if number not in known)
    if extra and plan.slots:
        faults.append(
            f"{counted(len(extra), 'unit')} beyond the schedule "
            f"({listed([str(number) for number in extra])}): more pairs are a new run"
        )
    order = [slot.unit for slot in plan.slots]
    ran = [number in found for number in order]
    if False in ran and True in ran[ran.index(False) :]:
        faults.append(
            f"unit {order[ran.index(False)]} did not run but later ones did: the arms "
            "are not interleaved as scheduled"
        )
    return dict(sorted(found.items())), faults


def _unit(kind: str, number_: int, unit: Unit) -> list[str]:
    """Check one unit."""
    found = [f"unit {number_}: {escape(text, 400)}" for text in unit.problems]
    if any(_slowed(gpu) for gpu in unit.gpus):
        found.append(f"unit {number_}: the GPU was slowed down by heat or power")
    if unit.answer is None:
        found.append(f"unit {number_} gave no answer (exit code {unit.exit})")
    elif unit.stop is None:
        if unit.exit not in _ANSWERS.get(kind, (0,)):
            found.append(f"unit {number_} ended with exit code {unit.exit}")
        elif not unit.samples:
            found.append(f"unit {number_} has no samples")
    return found


def _slowed(gpu: Mapping[str, Any]) -> bool:
    """Whether a GPU was slowed down, as it is said or as its states show."""
    states = (gpu.get("before"), gpu.get("after"))
    return gpu.get("throttled", False) is not False or any(
        isinstance(state, Mapping) and throttled(state) for state in states
    )


def _load(rule: Rule, number_: int, unit: Unit) -> list[str]:
    """Check what else the host did."""
    if rule.statistic != "paired-log-ratio":
        return []
    cpus = number(unit.host.get("cpus"))
    if cpus is None or cpus < 1:
        return []
    found = []
    for name in ("load_before", "load_mean", "load_after"):
        value = number(unit.host.get(name))
        if value is not None and value / cpus > rule.host_load_limit:
            found.append(value)
    if not found:
        return []
    return [
        f"unit {number_}: other programs kept {figure(max(found))} of "
        f"{cpus:g} CPUs busy; at most {percent(rule.host_load_limit)} is allowed"
    ]


def _busy(rule: Rule, number_: int, unit: Unit) -> list[str]:
    """Check that nobody else was on the GPUs when the unit began."""
    if rule.statistic != "paired-log-ratio":
        return []
    for gpu in unit.gpus:
        before = gpu.get("before")
        state = before if isinstance(before, Mapping) else {}
        used = number(state.get("utilization"))
        memory = number(state.get("memory_used_mib"))
        if used is not None and used > rule.gpu_busy_limit:
            return [
                f"unit {number_}: the GPU was busy before it began ({used:g} %); at "
                f"most {rule.gpu_busy_limit} % is allowed"
            ]
        if memory is not None and memory > rule.gpu_memory_limit:
            return [
                f"unit {number_}: {memory:g} MiB of the GPU were in use before it "
                f"began; at most {rule.gpu_memory_limit} are allowed"
            ]
    return []


def _gpus(units: Mapping[int, Unit], scope: Mapping[str, Any]) -> list[str]:
    """Check that every unit ran on the same GPUs, and on those that are named."""
    first: tuple[str, ...] | None = None
    for number_, unit in units.items():
        names = [gpu.get("uuid") for gpu in unit.gpus]
        found = tuple(sorted(name for name in names if isinstance(name, str) and name))
        if len(found) < len(names):
            return [f"unit {number_} does not say which GPU it ran on"]
        if first is None:
            first = found
        elif found != first:
            return [f"unit {number_} ran on other GPUs than the units before it"]
    known = _named(scope)
    if first and known and not known >= set(first):
        return ["the units ran on other GPUs than the run names"]
    return []


def _inputs(units: Mapping[int, Unit]) -> list[str]:
    """Check that the units had the same inputs, where they name them."""
    measured = [(n, unit.answer or {}) for n, unit in units.items() if unit.samples]
    for number_, answer in measured[1:]:
        if answer.get("inputs") != measured[0][1].get("inputs"):
            return [f"unit {number_} had other inputs than the units before it"]
    return []


def _complete(
    plan: Schedule, units: Mapping[int, Unit]
) -> tuple[tuple[tuple[tuple[Slot, Unit], ...], ...], bool]:
    """Put the units of each block together; half a block does not count."""
    blocks: dict[int, list[Slot]] = {}
    for slot in plan.slots:
        blocks.setdefault(slot.block, []).append(slot)
    complete = []
    partial = False
    for _, slots in sorted(blocks.items()):
        ran = [(slot, units[slot.unit]) for slot in slots if slot.unit in units]
        if len(ran) == len(slots):
            complete.append(tuple(ran))
        elif ran:
            partial = True
    return tuple(complete), partial
