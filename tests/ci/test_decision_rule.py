"""docs/decision-rule.md, its figures and its drawing (`ci/decision_rule.py`)."""

import importlib.util
import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def script():
    path = ROOT / "ci" / "decision_rule.py"
    spec = importlib.util.spec_from_file_location("decision_rule", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def figures(script):
    return json.loads(script.FIGURES.read_text(encoding="utf-8"))


def test_what_docs_show_follows_from_the_figures_byte_for_byte(script, figures):
    text = script.PAGE.read_text(encoding="utf-8")
    assert script.page(text, figures) == text
    assert script.drawing(figures) == script.DRAWING.read_text(encoding="utf-8")
    assert json.dumps(figures, indent=1) + "\n" == script.FIGURES.read_text("utf-8")


def test_the_figures_are_of_the_models_and_gates_in_the_code(script, figures):
    assert [c["bar"] for c in figures["cases"]] == [c.bar for c in script.CASES]
    for case, known in zip(figures["cases"], script.CASES, strict=True):
        assert (case["sigma"], case["shift"]) == (known.sigma, known.shift)
        names = [row["noise"] for row in case["noises"]]
        assert names == [noise.name for noise in script.NOISES]


def test_the_published_rates_hold_what_the_page_promises(figures):
    for case in figures["cases"]:
        for row in case["noises"]:
            assert row["at_margin"]["runs"] >= 20_000
            assert row["at_margin"]["upper"] <= 0.05
            assert row["at_shift"]["lower"] >= 0.8


def test_some_published_figures_are_measured_again(script, figures):
    case, noise = script.CASES[0], script.NOISES[0]
    again = script.rates(script.simulate(case, noise, 0.0, script.RUNS, seed=1))
    published = figures["cases"][0]["noises"][0]["at_margin"]
    for verdict, count in again["counts"].items():
        # Another numpy may draw other numbers; then the rates agree, not the runs.
        assert abs(count - published["counts"][verdict]) < 120


def test_the_drawing_is_well_formed(script):
    root = ElementTree.parse(script.DRAWING).getroot()
    assert root.tag.endswith("svg")
    assert len(root.findall("{*}polyline")) == 16
