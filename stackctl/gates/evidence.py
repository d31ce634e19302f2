# SPDX-License-Identifier: Apache-2.0
"""What was observed: the arms, the schedule, and every unit's answer, as plain data.

Whoever runs a gate writes evidence and judges nothing; the decision rule reads it and
runs nothing. A receipt holds it whole, so that a verdict can be derived again.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from stackctl.errors import InputError

UnitKind = Literal[
    "tests", "parity", "kernel", "compile", "serving", "accuracy", "image"
]
"""Kinds of gate; `docs/gates.md` says what the samples of each look like."""

KINDS: tuple[UnitKind, ...] = (
    "tests",
    "parity",
    "kernel",
    "compile",
    "serving",
    "accuracy",
    "image",
)

SERVED_KINDS: Final = ("serving", "accuracy")
"""Kinds whose units ask a server."""

EXTERNAL: Final = "external"
"""Definition of an arm that is no tree of ours: a server at a URL."""

CANDIDATE: Final = "candidate"
"""Definition of an arm that a bisection tries: a tree, whatever features it has."""


@dataclass(frozen=True, slots=True)
class Arm:
    """One side of a comparison.

    Attributes:
        tree: Hex id of the git tree it ran in; None for an arm that is no tree of ours
            (a server at a URL).
        composition: Composition id, None for the bare base.
        definition: How the gate names it: `base`, `composed`, `only:SET`, ...
        env: Switches by environment.
    """

    tree: str | None
    composition: str | None
    definition: str
    env: Mapping[str, str] = field(default_factory=dict)

    def document(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {
            "tree": self.tree,
            "composition": self.composition,
            "definition": self.definition,
            "env": dict(sorted(self.env.items())),
        }


@dataclass(frozen=True, slots=True)
class Slot:
    """One process start of the schedule.

    Attributes:
        unit: Number of the unit, from 0.
        block: Block that it belongs to.
        arms: Arms that run in it, in the order they are taken.
    """

    unit: int
    block: int
    arms: tuple[str, ...]

    def document(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {"unit": self.unit, "block": self.block, "arms": list(self.arms)}


@dataclass(frozen=True, slots=True)
class Schedule:
    """The order of all process starts, fixed before the first one.

    Attributes:
        seed: What the order was drawn with.
        looks: Numbers of pairs after which the rule may decide; empty where the rule
            looks once, at the end.
        slots: The starts, in order.
    """

    seed: int
    looks: tuple[int, ...]
    slots: tuple[Slot, ...]

    def document(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {
            "seed": self.seed,
            "looks": list(self.looks),
            "slots": [slot.document() for slot in self.slots],
        }


@dataclass(frozen=True, slots=True)
class Unit:
    """What became of one process start.

    Attributes:
        unit: Its number in the schedule.
        exit: Exit code; negative for a signal; None where it was ended from outside.
        ns: How long it ran, nanoseconds.
        answer: The unit's answer (docs/gates.md), None where it gave none.
        host: Foreign load (busy CPUs that were not the unit's) before, at its peak, on
            average and after, number of CPUs, load average; None where not known.
        gpus: Each visible GPU's UUID, its state before and after, whether it was
            throttled.
        problems: What makes the unit unusable, in words; empty for a good one.
    """

    unit: int
    exit: int | None
    ns: int
    answer: Mapping[str, Any] | None
    host: Mapping[str, Any] = field(default_factory=dict)
    gpus: tuple[Mapping[str, Any], ...] = ()
    problems: tuple[str, ...] = ()

    @property
    def samples(self) -> Mapping[str, Any]:
        """The samples of the answer; empty where there are none."""
        found = (self.answer or {}).get("samples")
        return found if isinstance(found, Mapping) else {}

    @property
    def stop(self) -> tuple[str, str] | None:
        """Verdict and reason with which the unit refused to measure, if it did."""
        found = (self.answer or {}).get("stop")
        if not isinstance(found, Mapping):
            return None
        return str(found.get("verdict")), str(found.get("reason"))

    @property
    def engagement(self) -> Mapping[str, Mapping[str, Any]]:
        """What proves, by arm, that a feature was on; empty where none is claimed."""
        found = (self.answer or {}).get("engagement")
        return found if isinstance(found, Mapping) else {}

    def document(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {
            "unit": self.unit,
            "exit": self.exit,
            "ns": self.ns,
            "answer": self.answer,
            "host": dict(self.host),
            "gpus": [dict(gpu) for gpu in self.gpus],
            "problems": list(self.problems),
        }


@dataclass(frozen=True, slots=True)
class Evidence:
    """Everything that one run of a gate observed.

    Attributes:
        gate: Name of the gate.
        kind: Its kind.
        arms: The arms by name.
        schedule: The schedule; units that did not run are missing in `units`.
        units: The finished units, by number.
        scope: Hardware, host and versions: shown and matched by policy, not bound.
        inputs: Digests of what the run is bound to (gate, scripts, rule, model, ...).
        problems: What makes the whole run unusable, in words.
        limitations: What the run does not show, in words.
        missing: Why the gate cannot run here; then there are no units.
    """

    gate: str
    kind: UnitKind
    arms: Mapping[str, Arm]
    schedule: Schedule
    units: tuple[Unit, ...]
    scope: Mapping[str, Any] = field(default_factory=dict)
    inputs: Mapping[str, Any] = field(default_factory=dict)
    problems: tuple[str, ...] = ()
    limitations: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()

    def document(self) -> dict[str, Any]:
        """Return the JSON form; `from_document` reads it back."""
        return {
            "gate": self.gate,
            "kind": self.kind,
            "arms": {name: arm.document() for name, arm in self.arms.items()},
            "schedule": self.schedule.document(),
            "units": [unit.document() for unit in self.units],
            "scope": dict(self.scope),
            "inputs": dict(self.inputs),
            "problems": list(self.problems),
            "limitations": list(self.limitations),
            "missing": list(self.missing),
        }


def from_document(document: object, file: str = "evidence") -> Evidence:
    """Read evidence from its JSON form, strictly.

    Args:
        document: The parsed JSON.
        file: Name for messages.

    Returns:
        The evidence.

    Raises:
        InputError: It has another shape; the message names the place.
    """
    reader = _Reader(file)
    top = reader.table(document, "the document")
    kind = reader.text(top, "kind", "")
    if kind not in KINDS:
        raise reader.wrong("kind", "one of " + ", ".join(KINDS))
    plan = reader.table(top.get("schedule"), "schedule")
    slots = tuple(
        Slot(
            reader.number(slot, "unit", f"schedule.slots[{n}]"),
            reader.number(slot, "block", f"schedule.slots[{n}]"),
            reader.texts(slot, "arms", f"schedule.slots[{n}]"),
        )
        for n, slot in enumerate(reader.tables(plan, "slots", "schedule"))
    )
    looks = plan.get("looks", [])
    if not isinstance(looks, list) or not all(_whole(look) for look in looks):
        raise reader.wrong("schedule.looks", "a list of integers")
    arms = {
        str(name): _arm(reader, value, f"arms.{name}")
        for name, value in reader.table(top.get("arms"), "arms").items()
    }
    inputs = reader.table(top.get("inputs", {}), "inputs")
    reader.tables(inputs, "files", "inputs")
    return Evidence(
        gate=reader.text(top, "gate", ""),
        kind=kind,
        arms=arms,
        schedule=Schedule(reader.number(plan, "seed", "schedule"), tuple(looks), slots),
        units=tuple(
            unit_from_document(unit, file, f"units[{n}]")
            for n, unit in enumerate(reader.tables(top, "units", ""))
        ),
        scope=reader.table(top.get("scope", {}), "scope"),
        inputs=inputs,
        problems=reader.texts(top, "problems", ""),
        limitations=reader.texts(top, "limitations", ""),
        missing=reader.texts(top, "missing", ""),
    )


def unit_from_document(document: object, file: str, place: str = "unit") -> Unit:
    """Read one unit from its JSON form, strictly.

    Args:
        document: The parsed JSON.
        file: Name for messages.
        place: Where it stands in the file.

    Raises:
        InputError: It has another shape.
    """
    reader = _Reader(file)
    top = reader.table(document, place)
    answer = top.get("answer")
    if answer is not None:
        answer = reader.table(answer, f"{place}.answer")
    code = top.get("exit")
    if code is not None and not _whole(code):
        raise reader.wrong(f"{place}.exit", "an integer or null")
    return Unit(
        unit=reader.number(top, "unit", place),
        exit=code,
        ns=reader.number(top, "ns", place),
        answer=answer,
        host=reader.table(top.get("host", {}), f"{place}.host"),
        gpus=tuple(reader.tables(top, "gpus", place)),
        problems=reader.texts(top, "problems", place),
    )


def _arm(reader: "_Reader", value: object, place: str) -> Arm:
    table = reader.table(value, place)
    for key in ("tree", "composition"):
        if not isinstance(table.get(key), str | None):
            raise reader.wrong(f"{place}.{key}", "a text or null")
    env = reader.table(table.get("env", {}), f"{place}.env")
    if not all(isinstance(content, str) for content in env.values()):
        raise reader.wrong(f"{place}.env", "a table of texts")
    return Arm(
        table.get("tree"),
        table.get("composition"),
        reader.text(table, "definition", place),
        env,
    )


def _whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


class _Reader:
    """Takes values out of parsed JSON, or says what is wrong where."""

    def __init__(self, file: str) -> None:
        self.file = file

    def wrong(self, place: str, expected: str) -> InputError:
        return InputError(
            f"{self.file}: `{place}` must be {expected}",
            kind="bad-evidence",
            where={"file": self.file, "key": place},
        )

    def table(self, value: object, place: str) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise self.wrong(place, "an object")
        return value

    def tables(
        self, table: Mapping[str, Any], key: str, place: str
    ) -> Sequence[dict[str, Any]]:
        found = table.get(key, [])
        where = f"{place}.{key}".lstrip(".")
        if not isinstance(found, list):
            raise self.wrong(where, "a list of objects")
        return [self.table(item, f"{where}[{n}]") for n, item in enumerate(found)]

    def text(self, table: Mapping[str, Any], key: str, place: str) -> str:
        found = table.get(key)
        if not isinstance(found, str):
            raise self.wrong(f"{place}.{key}".lstrip("."), "a text")
        return found

    def texts(self, table: Mapping[str, Any], key: str, place: str) -> tuple[str, ...]:
        found = table.get(key, [])
        if not isinstance(found, list) or not all(isinstance(t, str) for t in found):
            raise self.wrong(f"{place}.{key}".lstrip("."), "a list of texts")
        return tuple(found)

    def number(self, table: Mapping[str, Any], key: str, place: str) -> int:
        found = table.get(key)
        if not isinstance(found, int) or isinstance(found, bool):
            raise self.wrong(f"{place}.{key}".lstrip("."), "an integer")
        return found
