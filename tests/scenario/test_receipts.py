# SPDX-License-Identifier: Apache-2.0
"""A receipt's life: written by a real run, verified, outdated by what changes."""

import json
import shutil
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from gating import add_gate, arms, gate_project
from support import Project, run

from stackctl.model.canonical import canonical_json

SCRIPT = """
import helper
helper.twice(1)
texts = {n: (Path(a["tree"]) / "pkg/core.py").read_text() for n, a in arms.items()}
say(cases("line ten" not in texts["base"], "line ten" in texts["on"]))
"""


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A project with a gate that was run once."""
    project = gate_project(tmp_path_factory.mktemp("receipts") / "project")
    add_gate(project, "texts", SCRIPT, arms(base="base", on="composed"))
    helper = project.folder / "ci" / "gates" / "helper.py"
    helper.write_text("def twice(x):\n    return 2 * x\n")
    done = run("gate", "run", "texts", "--json", cwd=project.folder)
    assert done.code == 0, done.json
    return project


@pytest.fixture
def project(told: Project, tmp_path: Path) -> Path:
    """A copy of it, to change."""
    return Path(shutil.copytree(told.folder, tmp_path / "project", symlinks=True))


def receipt(project: Path, *args: str) -> Any:
    return run("receipt", *args, "--json", cwd=project)


def changed(project: Path) -> list[str]:
    result = receipt(project, "stale")
    (found,) = result.json["receipts"]
    assert result.code == (0 if found["ok"] else 1)
    assert found["ok"] == (not found["reasons"])
    return list(found["reasons"])


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def test_what_was_just_run_is_verified_and_fresh(project: Path) -> None:
    assert receipt(project, "verify").json["receipts"][0]["ok"]
    assert changed(project) == []
    statement = receipt(project, "show", "texts").json["receipts"][0]["statement"]
    composed = run("compose", "--json", cwd=project).json
    assert {s["name"]: s["digest"] for s in statement["subject"]} == {
        "arm:base": {"gitTree": composed["base"]["tree"]},
        "arm:on": {"gitTree": composed["tree"]},
        "composition:on": {"sha256": composed["composition"]},
    }
    assert str(project) not in json.dumps(statement)


def test_a_changed_patch_makes_it_stale(project: Path) -> None:
    patch = next((project / "patches" / "alpha").glob("0001-*"))
    edit(patch, "+line ten", "+line TEN")
    shutil.rmtree(project / "patches" / "beta")
    edit(project / "series.toml", 'patches = "patches/beta"', "draft = true")
    (reason,) = changed(project)
    assert reason.startswith("arm on (composed): the tree was ")


def test_another_commit_message_does_not(project: Path) -> None:
    patch = next((project / "patches" / "alpha").glob("0001-*"))
    edit(patch, "Why, in words.", "Why, in other words.")
    assert changed(project) == []


def test_a_changed_script_or_import_makes_it_stale(project: Path) -> None:
    gates = project / "ci" / "gates"
    edit(gates / "helper.py", "2 * x", "x + x")
    assert changed(project) == ["ci/gates/helper.py (code): changed"]
    script = next(path for path in gates.glob("*.py") if path.name != "helper.py")
    script.unlink()
    assert f"ci/gates/{script.name} (script): is gone" in changed(project)


def test_a_changed_rule_is_told_by_its_key(project: Path) -> None:
    gate = project / "ci" / "gates" / "texts.toml"
    rule = '[rule]\nstatistic = "all-equal"\nconfidence = 0.9\n'
    gate.write_text(gate.read_text() + rule)
    assert changed(project) == [
        "ci/gates/texts.toml (gate): changed",
        "rule: `confidence` was 0.95, is 0.9 now",
    ]


def test_a_gate_that_is_gone_is_told(project: Path) -> None:
    (project / "ci" / "gates" / "texts.toml").unlink()
    assert "the project has none of that name any more" in changed(project)[-1]


def test_an_answer_about_other_arms_is_not_the_gates(project: Path) -> None:
    other = run("gate", "run", "texts", "--arm", "on=upto:alpha", "--json", cwd=project)
    assert other.json["verdict"] == "qualified"
    result = receipt(project, "stale", other.json["receipt"])
    assert result.code == 1
    (found,) = result.json["receipts"]
    assert found["reasons"] == ["arm on: was upto:alpha, the gate has composed"]


def test_a_changed_switch_is_told(project: Path) -> None:
    gate = project / "ci" / "gates" / "texts.toml"
    edit(gate, 'tree = "composed"', 'tree = "composed"\nenv = { SWITCH = "1" }')
    assert changed(project)[1:] == [
        'switches of arm on: `SWITCH` was null, is "1" now',
    ]


def test_a_set_that_is_gone_is_told(told: Project, tmp_path: Path) -> None:
    project = Path(shutil.copytree(told.folder, tmp_path / "project", symlinks=True))
    add = ["--arm", "on=only:gamma"]
    done = run("gate", "run", "texts", *add, "--json", cwd=project)
    assert done.json["verdict"] == "rejected"
    text = (project / "series.toml").read_text()
    head, _, _ = text.partition('[[set]]\nname = "gamma"')
    (project / "series.toml").write_text(head)
    result = receipt(project, "stale", done.json["receipt"])
    assert result.code == 1
    assert (
        "arm on (only:gamma): the series has no such set any more"
        in result.json["receipts"][0]["reasons"]
    )


def test_a_series_that_does_not_compose_is_an_error_not_an_answer(
    project: Path,
) -> None:
    patch = next((project / "patches" / "alpha").glob("0001-*"))
    edit(patch, "-line 10", "-line 11")
    result = receipt(project, "stale")
    assert result.code == 5
    assert result.json["error"]["where"]["set"] == "alpha"


def test_a_damaged_receipt_is_3_and_says_where(project: Path) -> None:
    (path,) = (project / "receipts" / "texts").glob("*.json")
    data = path.read_bytes().replace(b'"equal":true', b'"equal":false', 1)
    path.write_bytes(data)
    for command in ("verify", "stale", "show"):
        result = receipt(project, command)
        assert result.code == 3, command
        (found,) = result.json["receipts"]
        assert found["kind"] == "receipt-digest"
        assert str(path) in found["reasons"][0]


def forged(project: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Put a receipt in the place of the one that is there, as its forger would."""
    (path,) = (project / "receipts" / "texts").glob("*.json")
    statement = json.loads(path.read_bytes())
    change(statement["predicate"])
    arms = statement["predicate"]["bound"]["arms"]
    statement["subject"] = [
        subject
        for subject in statement["subject"]
        if not subject["name"].startswith("arm:") or arms[subject["name"][4:]]["tree"]
    ]
    for subject in statement["subject"]:
        if subject["name"].startswith("arm:"):
            subject["digest"]["gitTree"] = arms[subject["name"][4:]]["tree"]
    path.unlink()
    data = canonical_json(statement) + b"\n"
    path.with_name(f"{sha256(data).hexdigest()}.json").write_bytes(data)


def rebind(gate: Path) -> Callable[[dict[str, Any]], object]:
    """Name the gate's file as it is now."""

    def change(predicate: dict[str, Any]) -> None:
        for file in predicate["bound"]["files"]:
            if file["role"] == "gate":
                file["sha256"] = sha256(gate.read_bytes()).hexdigest()

    return change


def test_a_receipt_without_an_arms_tree_is_about_no_tree(project: Path) -> None:
    def unbind(predicate: Any) -> None:
        for arm in predicate["bound"]["arms"].values():
            arm["tree"] = None

    forged(project, unbind)
    assert changed(project) == [
        "arm base (base): the receipt names no tree",
        "arm on (composed): the receipt names no tree",
    ]


def test_a_receipt_with_fewer_units_than_the_gate_is_stale(project: Path) -> None:
    gate = project / "ci" / "gates" / "texts.toml"
    gate.write_text(gate.read_text().replace("schema = 1", "schema = 1\nunits = 3"))
    forged(project, rebind(gate))
    assert changed(project) == ["schedule: had 1 unit, the gate has 3"]


def test_a_receipt_that_hides_a_limitation_or_a_gpu_is_stale(project: Path) -> None:
    gate = project / "ci" / "gates" / "texts.toml"
    head = 'schema = 1\nlimitations = ["small shapes"]'
    text = gate.read_text().replace("schema = 1", head)
    gate.write_text(f"{text}\n[needs]\ngpus = 1\n")
    forged(project, rebind(gate))
    assert changed(project) == [
        "GPUs: the gate needs 1 GPU, and a unit had fewer",
        'limitation: the gate says "small shapes", the receipt does not',
    ]


def test_a_module_that_stands_before_another_makes_it_stale(project: Path) -> None:
    (project / "ci/gates/json.py").write_text("def dumps(x): return '{}'\n")
    assert changed(project) == ["ci/gates/json.py (code): the receipt does not bind it"]


def test_files_that_a_receipt_does_not_bind_are_told(project: Path) -> None:
    files = sorted(path.name for path in (project / "ci/gates").glob("t*"))
    forged(project, lambda p: p["bound"]["files"].clear())
    assert (
        changed(project)[0] == "ci/gates/helper.py (code): the receipt does not bind it"
    )
    assert len(changed(project)) == 1 + len(files)


def test_files_under_names_that_are_not_compared_are_told(project: Path) -> None:
    def change(predicate: dict[str, Any]) -> None:
        for file in predicate["bound"]["files"]:
            file["path"] = "generated:" + file["path"]

    forged(project, change)
    assert len(changed(project)) == 3


@pytest.mark.parametrize(
    ("base", "reason"),
    [(None, "base: the receipt names none"), ("0" * 40, "base: the tree was 0000")],
)
def test_another_base_is_told(project: Path, base: str | None, reason: str) -> None:
    def change(predicate: dict[str, Any]) -> None:
        bound = predicate["bound"]
        bound["base"] = base and {**bound["base"], "tree": base}

    forged(project, change)
    (found,) = changed(project)
    assert found.startswith(reason)


@pytest.mark.parametrize("definition", ["lol", "com\u202eposed", "only:", "upto:a,b"])
def test_an_arm_that_is_none_is_an_answer_about_its_receipt(
    project: Path, definition: str
) -> None:
    forged(project, lambda p: p["bound"]["arms"]["on"].update(definition=definition))
    assert len(changed(project)) == 2  # and the others are still answered for


def test_a_tree_that_its_arm_cannot_have_is_told(project: Path) -> None:
    (path,) = (project / "receipts" / "texts").glob("*.json")
    bound = json.loads(path.read_bytes())["predicate"]["bound"]
    on, base = bound["arms"]["on"], bound["base"]["tree"]
    gate = project / "ci" / "gates" / "texts.toml"
    edit(gate, f'"{on["definition"]}"', f'"tree:{on["tree"]}"')

    def change(definition: str, **arm: Any) -> Callable[[dict[str, Any]], object]:
        def apply(predicate: dict[str, Any]) -> None:
            arms = predicate["bound"]["arms"]
            arms["on"].update(definition=definition, **arm)
            rebind(gate)(predicate)

        return apply

    forged(project, change(f"tree:{on['tree']}"))
    assert changed(project) == []
    forged(project, change(f"tree:{on['tree']}", tree=base))
    (found,) = changed(project)
    assert found.endswith(f"the tree was {base[:12]}, is {on['tree'][:12]} now")
    edit(gate, f'"tree:{on["tree"]}"', '"external"')
    forged(project, change("external"))
    (found,) = changed(project)
    assert found == "arm on (external): the receipt names a tree, and it has none"


def test_a_switch_whose_value_was_removed_is_told_where_the_gate_has_none(
    project: Path,
) -> None:
    env = {"SWITCH": "[removed]"}
    forged(project, lambda p: p["bound"]["arms"]["on"].update(env=env))
    assert changed(project) == [
        'switches of arm on: `SWITCH` was "[removed]", is null now'
    ]


def test_another_kind_is_told(project: Path) -> None:
    forged(project, lambda p: p["gate"].update(kind="image"))
    assert changed(project) == ["kind: was image, is parity now"]


def test_lists_are_told_with_their_content(project: Path) -> None:
    rule = '[rule]\nstatistic = "all-equal"\nengaged = ["on"]\n'
    gate = project / "ci" / "gates" / "texts.toml"
    gate.write_text(gate.read_text() + rule)
    assert changed(project)[1:] == ['rule: `engaged` was [], is ["on"] now']


def test_a_receipt_is_found_by_its_gate_and_not_by_its_folder(project: Path) -> None:
    folder = project / "receipts" / "texts"
    folder.rename(folder.with_name("other"))
    assert receipt(project, "show", "other").code == 2
    assert receipt(project, "show", "texts").code == 0


@pytest.mark.parametrize(
    "odd",
    [
        {"target": "x", "estimate": [1], "low": True, "high": {}},
        {"values": True, "unit": 3, "pairs": None, "verdict": []},
        {"values": [None, "x", 1], "control": [1]},
        {"values": [1e308, -1e308], "unit": "value"},
        {"values": [5e-324, 1e-308], "unit": "value"},
    ],
)
def test_odd_figures_are_shown_as_none(project: Path, odd: dict[str, Any]) -> None:
    forged(project, lambda p: p["decision"]["claims"][0].update(odd))
    shown = run("receipt", "show", "texts", cwd=project)
    assert shown.code == 0 and "claims" in shown.out
    assert receipt(project, "verify").code == 1
    assert run("report", "--out", project / "page", cwd=project).code == 0
    forged(project, lambda p: p["decision"].update(claims=True))
    forged(project, lambda p: p["scope"]["hardware"].update(gpus=True))
    assert run("receipt", "show", "texts", cwd=project).code == 0
    assert run("report", "--out", project / "page", cwd=project).code == 0
