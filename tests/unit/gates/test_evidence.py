"""Evidence goes to JSON and back, and bad evidence is refused with its place."""

import json

import pytest

from stackctl.errors import InputError
from stackctl.gates.evidence import (
    Arm,
    Evidence,
    Schedule,
    Slot,
    Unit,
    from_document,
)

EVIDENCE = Evidence(
    gate="a-gate",
    kind="kernel",
    arms={
        "base": Arm("1" * 40, None, "base"),
        "on": Arm("2" * 40, "3" * 64, "composed", {"SWITCH": "1"}),
    },
    schedule=Schedule(7, (5, 9), (Slot(0, 0, ("base", "on")),)),
    units=(
        Unit(
            0,
            0,
            12,
            {"schema": 1, "samples": {"cells": {}}, "engagement": {"on": {}}},
            {"load_before": 0.1, "cpus": 2},
            ({"uuid": "GPU-1", "throttled": False},),
            ("a problem",),
        ),
        Unit(1, None, 5, {"stop": {"verdict": "not-tested", "reason": "why"}}),
        Unit(2, -9, 5, None),
    ),
    scope={"host": {"cpus": 2}},
    inputs={"gate": "4" * 64},
    problems=("all",),
    limitations=("little",),
    missing=(),
)


def test_to_json_and_back():
    text = json.dumps(EVIDENCE.document())
    assert from_document(json.loads(text)) == EVIDENCE
    assert json.dumps(from_document(json.loads(text)).document()) == text


def test_units_tell_what_the_rule_asks():
    good, stopped, dead = EVIDENCE.units
    assert good.samples == {"cells": {}} and good.engagement == {"on": {}}
    assert stopped.stop == ("not-tested", "why") and good.stop is None
    assert dead.samples == {} and dead.stop is None


@pytest.mark.parametrize(
    ("path", "value", "place"),
    [
        (("kind",), "speed", "kind"),
        (("gate",), 1, "gate"),
        (("arms", "on", "tree"), 1, "arms.on.tree"),
        (("arms", "on", "env"), {"A": 1}, "arms.on.env"),
        (("schedule", "slots", 0, "arms"), "base", "schedule.slots[0].arms"),
        (("schedule", "looks"), [True], "schedule.looks"),
        (("units", 1, "exit"), "0", "units[1].exit"),
        (("units", 0, "answer"), [], "units[0].answer"),
        (("units",), {}, "units"),
        (("problems",), [1], "problems"),
        (("inputs", "files"), [1], "inputs.files[0]"),
    ],
)
def test_bad_evidence_names_its_place(path, value, place):
    document = json.loads(json.dumps(EVIDENCE.document()))
    inner = document
    for step in path[:-1]:
        inner = inner[step]
    inner[path[-1]] = value
    with pytest.raises(InputError, match="must be") as error:
        from_document(document, "some.json")
    assert error.value.where == {"file": "some.json", "key": place}
