# SPDX-License-Identifier: Apache-2.0
"""A receipt's verdict has to follow again from its samples."""

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from gates import document, kernel_evidence

from stackctl.gates.receipt import make, parse
from stackctl.gates.receipt.verify import check, follows
from stackctl.model.canonical import canonical_json

GATE = """\
schema = 1
kind = "kernel"
title = "Is it faster?"
script = "ci/gates/kpool.py"
[arms]
base = { tree = "base" }
on = { tree = "composed" }
[needs]
gpus = 1
[rule]
statistic = "paired-log-ratio"
[[claim]]
name = "gain"
cell = "kpool4/4080"
arm = "on"
against = "base"
margin = 0.08
"""


def forged(change: Any, **evidence: Any) -> tuple[str, ...]:
    """Reasons against a receipt that somebody rewrote by all rules of the format."""
    value = json.loads(make(document(kernel_evidence(**evidence))).data)
    change(value["predicate"])
    return follows(parse(canonical_json(value) + b"\n", file="x.json"))


@pytest.mark.parametrize("ratio", [0.8, 0.92, 1.0])
def test_a_written_receipt_follows(ratio: float) -> None:
    receipt = make(document(kernel_evidence(ratio, 0.02)))
    assert follows(receipt) == ()
    assert check(receipt).ok


def test_another_verdict_is_found() -> None:
    (reason,) = forged(lambda p: p["decision"].update(verdict="qualified"), ratio=1.0)
    assert "the verdict is qualified, but its samples give rejected" in reason


def test_nicer_samples_are_found() -> None:
    def change(predicate: Any) -> None:
        for unit in predicate["units"]:
            cell = unit["answer"]["samples"]["cells"]["kpool4/4080"]["values"]
            cell["on"] = [value * 0.7 for value in cell["on"]]

    assert "samples give qualified" in forged(change, ratio=1.0)[0]
    assert "decision.claims" in forged(change, ratio=0.8)[0]


def test_a_unit_left_out_is_found() -> None:
    assert forged(lambda p: p["units"].pop()) != ()


def without_states(predicate: Any) -> None:
    """Take what GPUs did before and after out of all units."""
    for unit in predicate["units"]:
        for gpu in unit["gpus"]:
            del gpu["before"], gpu["after"]


def without_gpus(predicate: Any) -> None:
    """Take the GPUs out of all units."""
    for unit in predicate["units"]:
        unit["gpus"] = []


@pytest.mark.parametrize("change", [without_states, without_gpus])
def test_states_of_gpus_left_out_are_found(change: Any) -> None:
    (reason,) = forged(change)
    assert "but its samples give insufficient-evidence" in reason
    assert "the states of the GPUs are not known in units 0, 1, 2" in reason


def test_a_gate_that_needs_gpus_tells_where_none_is_left(tmp_path: Path) -> None:
    """Also where the scope names none any more, so that the receipt looks whole."""
    text = GATE.encode()
    file = tmp_path / "ci/gates/kpool-speed.toml"
    file.parent.mkdir(parents=True)
    file.write_bytes(text)
    evidence = kernel_evidence()
    evidence["inputs"]["files"][0]["sha256"] = hashlib.sha256(text).hexdigest()
    assert check(make(document(evidence)), project=tmp_path).ok
    without_gpus(evidence)
    evidence["scope"]["hardware"]["gpus"] = []
    receipt = make(document(evidence))
    assert (receipt.verdict, follows(receipt)) == ("qualified", ())
    assert check(receipt, project=tmp_path).reasons == (
        "the gate needs 1 GPU, and units 0, 1, 2, 3, 4, and 4 more name fewer",
    )
    # Of another file than the one that it is bound to nothing is known.
    file.write_bytes(text + b"\n")
    assert check(receipt, project=tmp_path).ok
    file.unlink()
    assert check(receipt, project=tmp_path).ok


def test_a_softer_margin_is_found() -> None:
    def change(predicate: Any) -> None:
        predicate["bound"]["claims"][0]["margin"] = 0.01

    assert forged(change) != ()


def test_a_hidden_problem_is_found() -> None:
    reasons = forged(lambda p: p["units"][0].update(problems=["throttled"]))
    assert "samples give invalid" in reasons[0]


def test_a_dropped_reason_is_found() -> None:
    reasons = forged(lambda p: p["decision"].update(reasons=[]), ratio=1.0)
    assert reasons[0].startswith("`decision.reasons` is [], ")


def test_words_of_another_version_are_not_compared_but_figures_are() -> None:
    def reworded(predicate: Any) -> None:
        predicate["scope"]["versions"]["stackctl"] = "0.0.1"
        predicate["decision"]["reasons"] = ["all is well"]
        predicate["decision"]["claims"][0]["reasons"] = []

    def better(predicate: Any) -> None:
        reworded(predicate)
        predicate["decision"]["claims"][0]["estimate"] = -0.5

    def other(predicate: Any) -> None:
        reworded(predicate)
        predicate["decision"]["verdict"] = "rejected"

    assert forged(reworded) == ()
    assert "decision.claims[0].estimate" in forged(better)[0]
    assert "its samples give qualified: gain" in forged(other)[0]
    value = json.loads(make(document(kernel_evidence())).data)
    reworded(value["predicate"])
    result = check(parse(canonical_json(value) + b"\n", file="x.json"))
    assert result.ok
    assert "worded by stackctl 0.0.1" in result.notes[0]


def test_rounding_is_no_difference() -> None:
    def change(predicate: Any) -> None:
        claim = predicate["decision"]["claims"][0]
        claim["estimate"] *= 1 + 1e-9

    assert forged(change) == ()


@pytest.mark.parametrize(
    "change",
    [
        lambda p: p["bound"]["rule"].update(pears=9),
        lambda p: p["bound"]["rule"].pop("statistic"),
        lambda p: p["bound"]["claims"].append({"name": "x"}),
        lambda p: p["bound"].update(rule={"statistic": "all-equal"}),
    ],
)
def test_a_rule_without_meaning_is_a_reason_and_no_crash(change: Any) -> None:
    (reason,) = forged(change)
    assert reason.startswith("nothing can be decided from it")


def test_the_reasons_name_the_file(tmp_path: Path) -> None:
    value = json.loads(make(document(kernel_evidence())).data)
    value["predicate"]["bound"]["rule"]["pears"] = 1
    receipt = parse(
        canonical_json(value) + b"\n", file="some.json", path=tmp_path / "some.json"
    )
    assert "some.json" in follows(receipt)[0]
