# SPDX-License-Identifier: Apache-2.0
"""What each kind of gate runs in a unit, and how the unit's answer is read."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

from stackctl.errors import InputError
from stackctl.fsutil import open_regular
from stackctl.gates.arms import ArmFolder
from stackctl.gates.evidence import SERVED_KINDS, Slot
from stackctl.gates.here import Here
from stackctl.gates.last_words import exit_words
from stackctl.gates.model import Gate
from stackctl.model.canonical import loads_strict

MAX_ANSWER: Final = 64 << 20
"""Largest answer of a unit that is read, bytes."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where one unit runs.

    Attributes:
        gate: The gate.
        slot: Its slot of the schedule.
        units: How many units the schedule has.
        seed: Seed of the schedule.
        arms: The arms of the slot, in the slot's order.
        project: Project folder.
        scratch: The unit's own folder; what it writes there is kept.
        here: What the user named.
        tests: Test files of a set, where the gate names one.
    """

    gate: Gate
    slot: Slot
    units: int
    seed: int
    arms: Mapping[str, ArmFolder]
    project: Path
    scratch: Path
    here: Here
    tests: tuple[str, ...] = ()

    @property
    def answer_file(self) -> Path:
        """Where the unit may write its answer."""
        return self.scratch / "answer.json"

    def fill(self, text: str) -> str:
        """Return an argument with its placeholders filled in."""
        values = {
            "python": self.here.python,
            "project": str(self.project),
            "scratch": str(self.scratch),
            "site": "",
            "model": "",
            "base-url": "",
            **self.here.named,
        }
        for name, arm in self.arms.items():
            values[f"tree:{name}"] = str(arm.files or "")
            values[f"site:{name}"] = str(arm.site or "")
        for name, value in values.items():
            text = text.replace("{" + name + "}", value)
        return text


class BadAnswer(Exception):  # noqa: N818 - it becomes a unit's problem, in words
    """The unit's answer cannot be used; the message says why."""


class Kind(Protocol):
    """What a kind of gate knows of its units."""

    def lacks(self, gate: Gate, here: Here) -> list[str]:
        """Return what a unit of this kind lacks, beside what its gate says it needs.

        Args:
            gate: The gate.
            here: What was named, and what the machine has.
        """

    def command(self, place: Place) -> list[str]:
        """Return the program and arguments of a unit."""

    def environment(self, place: Place) -> dict[str, str]:
        """Return what a unit of this kind sees beside the common environment."""

    def answer(self, place: Place, code: int | None, stdout: bytes) -> dict[str, Any]:
        """Return the unit's answer.

        Args:
            place: Where it ran.
            code: Exit code.
            stdout: What it printed.

        Raises:
            BadAnswer: It gave none that can be used.
        """


def kind_of(gate: Gate) -> Kind:
    """Return what is known of a gate's kind."""
    if gate.kind == "tests":
        from stackctl.gates.kinds import tests

        return tests.TESTS
    if gate.kind == "image":
        from stackctl.gates.kinds import image

        return image.IMAGE
    if gate.kind in SERVED_KINDS:
        from stackctl.gates.kinds import served

        return served.SERVED
    from stackctl.gates.kinds import script

    return script.SCRIPT


def parse_json(data: bytes, what: str) -> Any:
    """Parse JSON as strictly as a receipt is read.

    Args:
        data: The text.
        what: What it is, for the message.

    Raises:
        BadAnswer: It is not JSON with one meaning.
    """
    try:
        return loads_strict(data, file=what)
    except InputError as error:
        problem = error.message.partition(": ")[2]
        raise BadAnswer(f"{what} cannot be read: {problem}") from None


def given_answer(place: Place, code: int | None, stdout: bytes) -> dict[str, Any]:
    """Return the answer that a unit wrote to its file, else to its last line.

    Args:
        place: Where the unit ran.
        code: Its exit code.
        stdout: What it printed.

    Raises:
        BadAnswer: It failed, or gave no answer, two, or one that is not of the
            protocol.
    """
    if code != 0:
        raise BadAnswer(exit_words(code, place.scratch / "stderr"))
    try:
        document = _written(place.answer_file)
    except FileNotFoundError:
        document = _printed(stdout)
    return check_answer(place.gate, document)


def _written(path: Path) -> Any:
    """Return the answer that a unit wrote; FileNotFoundError where it wrote none."""
    try:
        descriptor = open_regular(path)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise BadAnswer(f"its answer cannot be read: {error.strerror}") from None
    if descriptor is None:
        raise BadAnswer("its answer is no regular file")
    with os.fdopen(descriptor, "rb") as file:
        return _parsed(file.read(MAX_ANSWER + 1), "its answer")


def _printed(stdout: bytes) -> Any:
    """Return the answer in the last line that a unit printed."""
    lines = [line for line in stdout.splitlines() if line.strip()]
    if not lines:
        raise BadAnswer("it printed nothing")
    document = _parsed(lines[-1], "its last line")
    if any(_is_answer(line) for line in lines[:-1]):
        raise BadAnswer("it printed two answers")
    return document


def _parsed(data: bytes, what: str) -> Any:
    if len(data) > MAX_ANSWER:
        raise BadAnswer(f"{what} has more than {MAX_ANSWER >> 20} MiB")
    return parse_json(data, what)


def _is_answer(line: bytes) -> bool:
    if not line.lstrip().startswith(b"{"):
        return False
    try:
        found = loads_strict(line)
    except InputError:
        return False
    return isinstance(found, dict) and ("samples" in found or "stop" in found)


def check_answer(gate: Gate, document: object) -> dict[str, Any]:
    """Check a unit's answer against the protocol.

    Args:
        gate: The gate.
        document: The parsed answer.

    Returns:
        The same.

    Raises:
        BadAnswer: It breaks the protocol; the message names the place.
    """
    from stackctl.gates.kinds.shape import check

    return check(gate.kind, document)
