"""The committed schema and reference of gate files, and the gates of this project."""

import tomllib
from pathlib import Path

import jsonschema
import pytest

from stackctl.gates.model import load_gate, read_gates
from stackctl.gates.qualify import asked_gates
from stackctl.gates.run import Engine
from stackctl.gates.schema import gate_schema, reference
from stackctl.model.fields import json_text
from stackctl.model.series import load_series

PROJECT = Path(__file__).parents[3]
GATES = sorted((PROJECT / "ci/gates").glob("*.toml"))
BEGIN, END = "<!-- reference: begin -->\n", "<!-- reference: end -->\n"


def test_the_committed_schema_is_current():
    committed = (PROJECT / "docs/gate.schema.json").read_text("utf-8")
    assert committed == json_text(gate_schema()), (
        "run: python -m stackctl.gates.schema > docs/gate.schema.json"
    )


def test_the_reference_is_current():
    text = (PROJECT / "docs/gates.md").read_text("utf-8")
    shown = text.partition(BEGIN)[2].partition(END)[0]
    assert shown.strip() == reference().strip(), (
        "put the output of `python -m stackctl.gates.schema --reference` between the "
        "marks of docs/gates.md"
    )


@pytest.mark.parametrize("path", GATES, ids=lambda path: path.stem)
def test_a_gate_of_this_project(path):
    """It is read, its files are there, and the schema accepts it."""
    gate = load_gate(path)
    engine = Engine(PROJECT, None, None)  # type: ignore[arg-type]
    assert {item["path"] for item in engine.files(gate)} >= {f"ci/gates/{path.name}"}
    assert engine.schedule(gate, list(gate.arms), 0).slots
    jsonschema.validate(tomllib.loads(path.read_text()), gate_schema())


def test_every_gate_that_the_series_names_is_defined():
    series = load_series(PROJECT / "series.toml")
    asked, unread = asked_gates(series, read_gates(PROJECT))
    assert not unread
    every = {patch_set.name for patch_set in series.sets}
    assert {name for item in asked for name in item.required} == every
