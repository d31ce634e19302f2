# SPDX-License-Identifier: Apache-2.0
"""The serving and accuracy gates that ship."""

from pathlib import Path

import pytest

from stackctl.gates.accuracy.unit import prompts
from stackctl.gates.model import read_gates
from stackctl.gates.rule.accuracy import fewest_items
from stackctl.gates.serving.server import fill

ROOT = Path(__file__).resolve().parents[3]
GATES = [g for g in read_gates(ROOT).good.values() if g.kind in ("serving", "accuracy")]


def test_both_kinds_are_there() -> None:
    assert {gate.kind for gate in GATES} == {"serving", "accuracy"}


@pytest.mark.parametrize("gate", [g for g in GATES if g.accuracy], ids=lambda g: g.name)
def test_prompts_are_the_pinned_ones_and_can_decide(gate) -> None:
    made = prompts(gate.accuracy)
    assert all(wanted.sha256 for wanted in gate.accuracy.sets)
    for claim in gate.claims:
        sets = [claim.cell] if claim.cell else list(made)
        items = sum(len(made[name]) for name in sets)
        # With fewer, the gate could not even pass where no answer differs.
        assert items >= fewest_items(abs(claim.margin), gate.rule.confidence)


@pytest.mark.parametrize("gate", GATES, ids=lambda g: g.name)
def test_servers_can_be_started(gate) -> None:
    plan = gate.serving or gate.accuracy
    assert bool(plan.server) != ("base-url" in gate.needs.parameters)
    values = {"tree": "/t", "python": "/p", "model": "/m", "port": "1", "project": "/x"}
    command = fill(plan.server, values)
    if command:
        assert "PYTHONPATH=/t" in command
        assert command[command.index("--model") + 1] == "/m"
