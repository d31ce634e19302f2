# SPDX-License-Identifier: Apache-2.0
"""Writing, reading and finding receipts."""

import json
import sys
from hashlib import sha256
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from gates import CLAIM, RULE, TREES, document, kernel_evidence

from stackctl.errors import InputError, InternalError
from stackctl.gates.receipt import find, make, parse, read, write
from stackctl.gates.receipt.schema import receipt_schema, schema_text
from stackctl.model.canonical import canonical_json

PROJECT = Path(__file__).parents[4]


@pytest.fixture
def written(tmp_path: Path) -> Path:
    return write(document(kernel_evidence()), tmp_path)


def edited(path: Path, change: Any, named: bool = True) -> Path:
    """Change a receipt's document as a careful forger would: canonical, well named."""
    value = json.loads(path.read_bytes())
    change(value)
    data = canonical_json(value) + b"\n"
    name = f"{sha256(data).hexdigest()}.json" if named else path.name
    other = path.with_name(name)
    other.write_bytes(data)
    return other


def test_the_name_is_the_digest_of_the_bytes(written: Path, tmp_path: Path) -> None:
    assert written.parent == tmp_path / "receipts" / "kpool-speed"
    assert written.name == f"{sha256(written.read_bytes()).hexdigest()}.json"


def test_it_is_an_in_toto_statement_about_the_trees(written: Path) -> None:
    value = json.loads(written.read_bytes())
    assert value["_type"] == "https://in-toto.io/Statement/v1"
    assert value["predicateType"].endswith("/gate-receipt/v1")
    assert value["subject"] == [
        {"name": "arm:base", "digest": {"gitTree": TREES["base"]}},
        {"name": "arm:on", "digest": {"gitTree": TREES["on"]}},
        {"name": "composition:on", "digest": {"sha256": "c" * 64}},
    ]


def test_everything_comes_back(written: Path) -> None:
    receipt = read(written)
    evidence = receipt.evidence()
    given = document(kernel_evidence())
    assert evidence.document() == given["evidence"]
    bound = receipt.document()["predicate"]["bound"]
    assert bound["rule"] == given["rule"]
    assert bound["claims"] == given["claims"]
    assert receipt.predicate.decision == given["decision"]
    assert receipt.gate == "kpool-speed"
    assert receipt.compositions == ("c" * 64,)


def test_the_same_run_is_the_same_file(written: Path, tmp_path: Path) -> None:
    before = written.stat()
    assert write(document(kernel_evidence()), tmp_path) == written
    after = written.stat()
    assert (before.st_ino, before.st_mtime_ns) == (after.st_ino, after.st_mtime_ns)
    assert len(list(written.parent.iterdir())) == 1


def test_a_damaged_file_in_its_place_is_replaced(written: Path, tmp_path: Path) -> None:
    whole = written.read_bytes()
    written.write_bytes(whole[:-9])
    assert write(document(kernel_evidence()), tmp_path).read_bytes() == whole


def test_a_link_out_of_the_project_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "project").mkdir()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "project" / "receipts").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(InputError, match="out of the project"):
        write(document(kernel_evidence()), tmp_path / "project")
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_a_figure_without_a_json_form_is_an_error(tmp_path: Path) -> None:
    evidence = kernel_evidence()
    evidence["units"][0]["answer"]["extra"] = {"us": float("nan")}
    given = document(evidence)
    with pytest.raises(InputError, match="nan is not a JSON number"):
        write(given, tmp_path)
    assert not list(tmp_path.glob("receipts/*/*"))


def test_what_could_not_be_read_again_is_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules[write.__module__], "MAX_BYTES", 2_000)
    with pytest.raises(InputError, match="at most 2,000 are read again"):
        write(document(kernel_evidence()), tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_decision_that_does_not_follow_is_not_written(tmp_path: Path) -> None:
    given = document(kernel_evidence())
    given["decision"] = document(kernel_evidence(1.0))["decision"]
    with pytest.raises(InternalError, match="does not follow"):
        write(given, tmp_path)
    assert not list(tmp_path.glob("receipts/*/*"))


def test_a_changed_file_is_told_by_its_name(written: Path) -> None:
    def change(value: Any) -> None:
        value["predicate"]["decision"]["verdict"] = "rejected"

    edited(written, change, named=False)
    with pytest.raises(InputError, match="changed after it was written") as caught:
        read(written)
    assert caught.value.kind == "receipt-digest"
    assert caught.value.where == {"file": str(written)}


def test_a_file_that_was_cut_off_says_what_to_do(written: Path) -> None:
    written.write_bytes(written.read_bytes()[:200])
    with pytest.raises(InputError) as caught:
        read(written)
    assert caught.value.kind == "bad-json" and written.name in caught.value.message
    assert "take it from the history again" in (caught.value.hint or "")


def test_a_renamed_file_is_told_its_name(written: Path) -> None:
    other = written.with_name("mine.json")
    written.rename(other)
    with pytest.raises(InputError, match=f"its name must be {written.name}"):
        read(other)


@pytest.mark.parametrize(
    ("change", "key", "message"),
    [
        (lambda v: v.pop("_type"), "_type", "needs the key `_type`"),
        (lambda v: v.update(x=1), "x", "unknown key `x`"),
        (
            lambda v: v["predicate"]["decision"].update(verdict="qualifed"),
            "predicate.decision.verdict",
            "did you mean `qualified`?",
        ),
        (
            lambda v: v["predicate"]["bound"]["arms"]["on"].update(tree="2" * 39),
            "predicate.bound.arms.on.tree",
            "a full git id",
        ),
        (
            lambda v: v["predicate"]["bound"]["arms"]["on"].update(tree="4" * 40),
            "subject",
            "does not follow from",
        ),
        (
            lambda v: v["predicate"]["units"][0].update(unit=77),
            "predicate.units[0].unit",
            "which the schedule does not have",
        ),
        (
            lambda v: v["predicate"]["units"][1].update(unit=0),
            "predicate.units[1].unit",
            "unit 0 is there twice",
        ),
        (
            lambda v: v["predicate"]["run"]["schedule"]["slots"][0].update(
                arms=["base", "of"]
            ),
            "predicate.run.schedule.slots[0].arms",
            'the arm "of"',
        ),
        (
            lambda v: v["predicate"]["run"].pop("argv"),
            "predicate.run.argv",
            "needs the key `argv`",
        ),
        (lambda v: v["predicate"]["run"].pop("started"), None, "is not spelled"),
        (
            lambda v: v["predicate"]["run"].update(started="2026-19-39T00:00:00Z"),
            "predicate.run.started",
            "a time like",
        ),
        (lambda v: v["predicate"].update(schema=2), "predicate.schema", "schema = 2"),
        (lambda v: v.update(predicateType="x"), "predicateType", "a receipt has"),
    ],
)
def test_a_wrong_key_is_named_with_what_was_expected(
    written: Path, change: Any, key: str | None, message: str
) -> None:
    other = edited(written, change)
    with pytest.raises(InputError) as caught:
        read(other)
    assert message in caught.value.message
    assert caught.value.where.get("key") == key
    assert caught.value.where["file"] == str(other)
    assert caught.value.exit_code == 3


@pytest.mark.parametrize(
    "text", ['{"gate": "x", "argv": []}', "[1]", "{}", '{"verdict": "qualified"}']
)
def test_raw_figures_are_told_apart(tmp_path: Path, text: str) -> None:
    path = tmp_path / "receipts" / "prefetch" / "l2.json"
    path.parent.mkdir(parents=True)
    path.write_text(text)
    with pytest.raises(InputError, match="is not a receipt but") as caught:
        read(path)
    assert caught.value.kind == "not-a-receipt"
    assert find(tmp_path).others == (path,)


def test_another_spelling_is_refused(written: Path) -> None:
    data = json.dumps(json.loads(written.read_bytes()), indent=1).encode()
    with pytest.raises(InputError, match="is not spelled as receipts are"):
        parse(data, file="x.json")


def test_find_tells_good_bad_and_others(written: Path, tmp_path: Path) -> None:
    other = edited(written, lambda v: v["predicate"].update(limitations=["x"]))
    broken = edited(written, lambda v: v["predicate"].pop("run"))
    renamed = written.with_name("copy.json")
    renamed.write_bytes(written.read_bytes())
    raw = tmp_path / "receipts" / "raw.json"
    raw.write_text("{}")
    (tmp_path / "receipts" / "notes.txt").write_text("x")
    shelf = find(tmp_path)
    good = {found.path for found in shelf.found if found.receipt}
    bad = {found.path: found.error for found in shelf.found if found.error}
    assert good == {written, other}
    assert bad.keys() == {broken, renamed}
    assert shelf.others == (raw,)


def test_a_project_without_receipts_has_none(tmp_path: Path) -> None:
    assert find(tmp_path).found == ()


def test_the_committed_schema_is_current_and_accepts(written: Path) -> None:
    committed = (PROJECT / "docs" / "receipt.schema.json").read_text("utf-8")
    assert committed == schema_text(), (
        "run: python -m stackctl.gates.receipt.schema > docs/receipt.schema.json"
    )
    validator = jsonschema.Draft202012Validator(receipt_schema())
    validator.check_schema(receipt_schema())
    validator.validate(json.loads(written.read_bytes()))


def test_a_cell_that_a_claim_names_keeps_its_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("USER", "kpool4")  # an odd name, and the cell stays what it is
    receipt = make(document(kernel_evidence()))
    assert receipt.verdict == "qualified"
    cells = receipt.evidence().units[0].samples["cells"]
    assert list(cells) == [CLAIM["cell"]]


def test_a_run_without_trees_is_about_its_gate(tmp_path: Path) -> None:
    evidence = kernel_evidence()
    for arm in evidence["arms"].values():
        arm.update(tree=None, composition=None, definition="external")
    receipt = make(document(evidence, RULE, [CLAIM]))
    assert [subject.name for subject in receipt.statement.subject] == [
        "gate:ci/gates/kpool-speed.toml"
    ]
