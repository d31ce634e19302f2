"""What the gate scripts share: one unit's task, and its answer (docs/gates.md).

A script measures and judges nothing: it returns samples, or stops with the reason why
it cannot or may not measure. Schedule, statistics and verdict are stackctl's.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


class Stop(Exception):
    """The unit ends with ``not-tested``, ``invalid`` or ``rejected``, and a reason."""

    def __init__(self, verdict: str, reason: str) -> None:
        super().__init__(reason)
        self.verdict = verdict
        self.reason = reason


@dataclass(frozen=True)
class Task:
    """What the unit was asked to do.

    Args:
        unit: Its number, from 0.
        units: How many there are.
        seed: Of random inputs, the same for all units of a run.
        trees: The arms' trees, in the order in which they are to be taken.
        sites: The same to import from: installations where one was named.
        env: The arms' switches.
        scratch: A folder of the unit's own; it is kept.
    """

    unit: int
    units: int
    seed: int
    trees: dict[str, Path]
    sites: dict[str, Path]
    env: dict[str, dict[str, str]]
    scratch: Path


@dataclass
class Answer:
    """What the unit saw.

    Args:
        samples: By the gate's kind, see docs/gates.md.
        engagement: By arm: what was ``expected`` of a counter, what it ``counted``,
            and under graphs the number of ``captured_nodes``.
        notes: Sentences for the receipt's reader.
        extra: Figures that do not decide.
    """

    samples: dict[str, Any]
    engagement: dict[str, dict[str, int]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    extra: dict[str, Any] = field(default_factory=dict)

    def document(self) -> dict[str, Any]:
        """The answer as JSON."""
        return {
            "schema": 1,
            "samples": self.samples,
            "engagement": self.engagement,
            "notes": self.notes,
            "extra": self.extra,
        }


def task() -> Task:
    """The task, from the environment."""
    try:
        arms = json.loads(os.environ["STACKCTL_GATE_ARMS"])
    except KeyError:
        sys.exit("this is a unit of a gate: run it with `stackctl gate run`")
    return Task(
        int(os.environ["STACKCTL_GATE_UNIT"]),
        int(os.environ["STACKCTL_GATE_UNITS"]),
        int(os.environ["STACKCTL_GATE_SEED"]),
        {name: Path(arm["tree"]) for name, arm in arms.items()},
        {name: Path(arm["site"]) for name, arm in arms.items()},
        {name: dict(arm["env"]) for name, arm in arms.items()},
        Path(os.environ["STACKCTL_GATE_DIR"]),
    )


def run(measure: Callable[[Task], Answer]) -> None:
    """Measure, and write the answer.

    Args:
        measure: Gets the task; raises :class:`Stop` where it cannot measure. Any other
            exception ends the unit without an answer.
    """
    asked = task()
    try:
        document = measure(asked).document()
    except Stop as stop:
        reason = {"verdict": stop.verdict, "reason": stop.reason}
        document = {"schema": 1, "stop": reason}
    text = json.dumps(document, allow_nan=False, sort_keys=True)
    Path(os.environ["STACKCTL_GATE_OUT"]).write_text(text + "\n")
