# SPDX-License-Identifier: Apache-2.0
"""A release asks for receipts: fresh, qualified, and from who may give them."""

import hashlib
import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from gating import add_gate, arms, gate_project
from releases import (
    TAG,
    bare,
    cut,
    forge,
    fragment,
    proof_file,
    refs,
    set_tag,
    tag_body,
    verify,
    wrong,
)  # fmt: skip
from support import git, run

SCRIPT = """
import helper
texts = {n: (Path(a["tree"]) / "pkg/core.py").read_text() for n, a in arms.items()}
bad_day = Path(__file__).with_name("bad-day").exists()
say(cases(helper.wanted in texts["on"] and not bad_day))
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project whose set `alpha` requires a gate that was run."""
    folder = tmp_path_factory.mktemp("made")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("STACKCTL_CACHE_DIR", str(folder / "cache"))
        project = gate_project(folder / "project").folder
        series = project / "series.toml"
        text = series.read_text()
        series.write_text(
            text.replace('name = "alpha"', 'name = "alpha"\ngates.required = ["texts"]')
        )
        made = type("P", (), {"folder": project})
        add_gate(made, "texts", SCRIPT, arms(base="base", on="composed"))
        (project / "ci/gates/helper.py").write_text('wanted = "line ten"\n')
        for name in ("alpha", "beta", "gamma"):
            fragment(project, name, name)
        assert run("lock", "-C", project).code == 0
        done = run("gate", "run", "texts", "--json", "-C", project)
        assert done.code == 0, done.out
    return folder


@pytest.fixture
def project(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("STACKCTL_CACHE_DIR", str(made / "cache"))
    return Path(shutil.copytree(made / "project", tmp_path / "project"))


@pytest.fixture
def into(tmp_path: Path) -> Path:
    return bare(tmp_path / "fork.git")


def receipt(project: Path) -> Path:
    (path,) = (project / "receipts/texts").glob("*.json")
    return path


def test_a_qualified_receipt_is_named_carried_and_judged_again(
    project: Path, into: Path, tmp_path: Path
) -> None:
    done = cut(project, into)
    (why,) = (e["why"] for e in done["checks"] if e["name"] == "gate:texts")
    assert why.startswith("qualified, unsigned: receipts/texts/")
    path = receipt(project)
    assert f"\nReceipt: texts qualified {path.stem} unsigned\n" in (
        tag_body(into).decode()
    )
    for name in (f"receipts/texts/{path.name}", "ci/gates/helper.py",
                 "ci/gates/texts.toml", "ci/gates/texts.py"):  # fmt: skip
        assert proof_file(into, name) == (project / name).read_bytes()
    summary = json.loads(proof_file(into, "statements/summary.json"))
    inputs = summary["predicate"]["inputAttestations"]
    assert inputs[1]["digest"]["sha256"] == path.stem
    shutil.rmtree(project)
    assert verify(into, "--offline")["ok"]


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def test_what_is_no_fresh_qualified_receipt_does_not_count(
    project: Path, into: Path
) -> None:
    path = receipt(project)
    data = path.read_bytes()
    helper = project / "ci/gates/helper.py"
    edit(helper, "line ten", "no such line")
    found = wrong(cut(project, into, code=1))
    assert "stale: ci/gates/helper.py (code): changed" in found["gate:texts"]
    # Another answer beside it: rejected, for what the gate asks now.
    assert run("gate", "run", "texts", "-C", project).code == 1
    found = wrong(cut(project, into, code=1))
    assert "rejected" in found["gate:texts"]
    assert "1 more receipt does not help" in found["gate:texts"]
    edit(helper, "no such line", "line ten")
    assert "gate:texts" not in wrong(cut(project, into, "--dry-run"))
    path.write_bytes(data.replace(b'"equal":true', b'"equal":false'))
    assert "gate:texts" in wrong(cut(project, into, "--dry-run", code=1))
    path.unlink()
    shutil.rmtree(project / "receipts")
    found = wrong(cut(project, into, code=1))
    assert "stackctl gate run texts" in found["gate:texts"]
    assert refs(into) == {}


def test_a_gate_is_not_run_until_it_qualifies(project: Path, into: Path) -> None:
    first = receipt(project)
    (project / "ci/gates/bad-day").touch()
    assert run("gate", "run", "texts", "--fresh", "-C", project).code == 1
    found = wrong(cut(project, into, code=1))
    assert "a fresh receipt rejects it" in found["gate:texts"]
    assert refs(into) == {}
    (rejected,) = set((project / "receipts/texts").glob("*.json")) - {first}
    rejected.unlink()
    assert "gate:texts" not in wrong(cut(project, into, "--dry-run"))


def test_a_rejection_that_nobody_believes_does_not_block(
    project: Path, into: Path
) -> None:
    first = receipt(project)
    data = first.read_bytes()
    forged = data.replace(b'"verdict":"qualified"', b'"verdict":"rejected"')
    assert forged != data
    name = hashlib.sha256(forged).hexdigest()
    first.with_name(f"{name}.json").write_bytes(forged)
    checked = run("receipt", "verify", name, "--json", "-C", project).json["receipts"]
    assert [each["ok"] for each in checked] == [False]
    done = cut(project, into)
    (why,) = (e["why"] for e in done["checks"] if e["name"] == "gate:texts")
    assert why == f"qualified, unsigned: receipts/texts/{first.name}"


def test_how_many_answers_there_are_is_said(project: Path, into: Path) -> None:
    assert run("gate", "run", "texts", "-C", project).code == 0
    done = cut(project, into)
    (why,) = (e["why"] for e in done["checks"] if e["name"] == "gate:texts")
    assert why.endswith("(the newest of 2 fresh receipts)")


def test_a_run_over_other_trees_answers_another_question(
    project: Path, into: Path
) -> None:
    shutil.rmtree(project / "receipts")
    options = ("--arm", "on=only:alpha", "-C", project)
    assert run("gate", "run", "texts", *options).code == 0
    found = wrong(cut(project, into, code=1))
    assert "arm on: was only:alpha, the gate has composed" in found["gate:texts"]


@pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="no ssh-keygen")
def test_only_accepted_signers_count(project: Path, into: Path, tmp_path: Path) -> None:
    keys = []
    for name in ("key", "other"):
        subprocess.run(
            ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", name, "-f",
             tmp_path / name],
            check=True,
        )  # fmt: skip
        keys.append((tmp_path / f"{name}.pub").read_text().strip())
    series = project / "series.toml"
    series.write_text(
        series.read_text() + f'\n[policy]\nreceipt_signers = ["{keys[0]}"]\n'
    )
    assert "unsigned" in wrong(cut(project, into, code=1))["gate:texts"]
    sign = ("receipt", "sign", "texts", "-C", project, "--ssh-key")
    assert run(*sign, tmp_path / "other").code == 0
    assert "gate:texts" in wrong(cut(project, into, code=1))
    for path in project.glob("receipts/texts/*.sig"):
        path.unlink()
    done = run(*sign, tmp_path / "key")
    assert done.code == 0, done.err
    cut(project, into)
    assert re.search(r"\nReceipt: texts .* signed by key\n", tag_body(into).decode())
    assert verify(into)["ok"]
    # The signature is part of the proof; without it the receipt does not count.
    (name,) = (p.relative_to(project) for p in project.glob("receipts/texts/*.sig"))
    forge(into, {str(name): None})
    assert "receipts" in wrong(verify(into, code=1))


@pytest.mark.parametrize(
    ("old", "new"),
    [(b'"equal":true', b'"equal":false'), (b'"qualified"', b'"rejected"')],
)
def test_a_changed_receipt_is_named(
    project: Path, into: Path, old: bytes, new: bytes
) -> None:
    cut(project, into)
    name = f"receipts/texts/{receipt(project).name}"
    data = proof_file(into, name)
    assert old in data
    forge(into, {name: data.replace(old, new)})
    assert wrong(verify(into, code=1)).keys() >= {"receipts", "statement", "summary"}


def test_a_missing_receipt_or_script_is_named(project: Path, into: Path) -> None:
    cut(project, into)
    body, at = tag_body(into), git("rev-parse", f"refs/stackctl/{TAG}", cwd=into)
    for name in (f"receipts/texts/{receipt(project).name}", "ci/gates/helper.py"):
        forge(into, {name: None})
        assert "receipts" in wrong(verify(into, code=1))
        git("update-ref", f"refs/stackctl/{TAG}", at.decode().strip(), cwd=into)
        set_tag(into, body)
    forge(into, {"ci/gates/helper.py": b"wanted = ''\n"})
    found = wrong(verify(into, code=1))
    assert "stale" in found["receipts"]


def test_a_forced_tag_says_which_gate_was_missing(project: Path, into: Path) -> None:
    shutil.rmtree(project / "receipts")
    cut(project, into, "--force-missing", "the GPU is away")
    found = verify(into)
    assert found["missing"][0].startswith("gate:texts: ")
    assert wrong(verify(into, "--complete", code=1)).keys() == {"complete"}


def test_who_verifies_may_have_a_policy_of_their_own(
    project: Path, into: Path, tmp_path: Path
) -> None:
    series = project / "series.toml"
    text = series.read_text()
    series.write_text(text + '\n[policy]\nrelease_requires = ["pins"]\n')
    shutil.rmtree(project / "receipts")
    cut(project, into)
    assert verify(into)["ok"]
    (tmp_path / "own.toml").write_text(text)
    found = wrong(verify(into, "--policy", tmp_path / "own.toml", code=1))
    assert found.keys() == {"receipts"} and "texts" in found["receipts"]
