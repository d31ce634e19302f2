# SPDX-License-Identifier: Apache-2.0
"""The order of all process starts, fixed before the first one."""

import random
from collections.abc import Sequence

from stackctl.gates.evidence import Schedule, Slot
from stackctl.gates.rule.looks import looks_of
from stackctl.gates.rule.model import Rule


def schedule(rule: Rule, arms: Sequence[str], seed: int, units: int = 1) -> Schedule:
    """Return the process starts of a run.

    Without blocks, every process holds all arms. With blocks, every process holds one:
    a block starts and ends with the reference arm, so that what drifts steadily hits
    both sides alike and the reference is seen twice. The other arms stand between in a
    drawn order, which the next block takes backwards.

    Args:
        rule: The rule of the gate.
        arms: The arms, the reference first; the order of the others does not matter.
        seed: What the order is drawn with.
        units: Processes that share the work of a gate that is not timed.

    Returns:
        The schedule; the same for the same arguments, whatever the platform.
    """
    head, others = tuple(arms[:1]), sorted(arms[1:])
    looks = looks_of(rule)
    if not rule.blocks:
        timed = rule.statistic == "paired-log-ratio"
        every = (*head, *others)
        count = rule.pairs if timed else units
        slots = tuple(Slot(unit, unit, every) for unit in range(count))
        return Schedule(seed, looks if timed else (), slots)
    draw = random.Random(seed)  # noqa: S311 - an order that anyone may know
    starts: list[Slot] = []
    order = others
    for block in range(rule.pairs):
        order = order[::-1] if block % 2 else _shuffled(others, draw)
        starts += [
            Slot(len(starts) + place, block, (arm,))
            for place, arm in enumerate((*head, *order, *head))
        ]
    return Schedule(seed, looks if rule.pairs > 1 else (), tuple(starts))


def _shuffled(items: list[str], draw: random.Random) -> list[str]:
    """Return the items in a drawn order; `random()` alone is the same everywhere."""
    left, found = list(items), []
    while left:
        found.append(left.pop(int(draw.random() * len(left))))
    return found
