# SPDX-License-Identifier: Apache-2.0
"""A gate is packed, carried to a machine with nothing on it, and run there."""

import errno
import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from gating import add_gate, arms, gate_project, read_json
from support import Project, run

ALONE = """
import sys
class Block:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {blocked!r}:
            raise ModuleNotFoundError("No module named " + repr(name), name=name)
sys.meta_path.insert(0, Block())
from stackctl import cli
sys.exit(cli.run(sys.argv[1:]))
"""
BLOCKED = ("git", "gitdb", "github", "requests", "urllib3", "tomlkit", "platformdirs")


@pytest.fixture
def project(tmp_path: Path) -> Project:
    project = gate_project(tmp_path / "project")
    project.add(
        "delta", ("d", {"tests/test_d.py": "def test_d(): pass", "run.sh": "x"})
    ).save()
    add_gate(
        project,
        "texts",
        "import helper\n"
        "texts = {n: (Path(a['tree']) / 'pkg/core.py').read_text() "
        "for n, a in arms.items()}\n"
        "say(cases(helper.GOOD, texts['base'] != texts['on']))",
        arms(base="base", on="composed"),
    )
    (project.folder / "ci/gates/helper.py").write_text("GOOD = True\n")
    add_gate(project, "of-delta", toml='[tests]\nof = "delta"\n', kind="tests")
    return project


def pack(project: Project, out: Path, *options: str):
    return run(
        "gate", "pack", "texts", "of-delta", "--out", out, *options, "--json",
        cwd=project.folder,
    )  # fmt: skip


def alone(folder: Path, *args: str, blocked: tuple[str, ...] = BLOCKED):
    """Run the pack's own stackctl, without git and without what git needs."""
    done = subprocess.run(
        [sys.executable, "-c", ALONE.format(blocked=blocked), "gate", "run", *args,
         "--from", str(folder), "--json"],
        env={"PYTHONPATH": str(folder / "lib"), "PATH": "/nonexistent"},
        cwd="/",
        capture_output=True,
        text=True,
        timeout=120,
    )  # fmt: skip
    return done.returncode, json.loads(done.stdout or "null"), done.stderr


def test_a_pack_runs_where_there_is_no_git(project, tmp_path):
    out = tmp_path / "pack"
    made = pack(project, out, "--tree", "only:gamma")
    assert made.code == 0, made.out
    shutil.rmtree(project.folder)  # the other machine has no project
    code, answers, errors = alone(out, "texts", "of-delta")
    assert code == 0, (answers, errors)
    assert [each["verdict"] for each in answers] == ["qualified", "qualified"]
    receipt = read_json(out / "project" / answers[0]["receipt"])
    assert read_json(out / "manifest.json")["definitions"]["composed"]["tree"] in (
        json.dumps(receipt)
    )
    code, answer, _ = alone(out, "texts", "--arm", "on=only:gamma")
    assert (code, answer["verdict"]) == (1, "rejected")
    code, answer, _ = alone(out, "texts", "--arm", "on=only:alpha")
    assert code == 2
    assert "the pack has no tree `only:alpha`" in answer["error"]["message"]


def test_packing_twice_gives_the_same_bytes(project, tmp_path):
    packs = [tmp_path / "one", tmp_path / "two"]
    for out in packs:
        assert pack(project, out).code == 0
    for name in ("manifest.json", "trees.zip"):
        assert (packs[0] / name).read_bytes() == (packs[1] / name).read_bytes()
    assert pack(project, packs[0]).code == 2


def test_a_pack_that_fails_leaves_nothing(project, tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("stackctl.gates.pack._copy_libraries", full)
    out = tmp_path / "out" / "pack"
    done = pack(project, out)
    assert (done.code, done.json["error"]["kind"]) == (3, "disk-full")
    assert list(out.parent.iterdir()) == []
    monkeypatch.undo()
    assert pack(project, out).code == 0


def test_the_libraries_of_a_pack_are_enough(project, tmp_path):
    out = tmp_path / "pack"
    assert pack(project, out, "--lib").code == 0
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c",
         "import sys; sys.path.insert(0, sys.argv.pop(1))\n"
         "from stackctl import cli; sys.exit(cli.run(sys.argv[1:]))",
         str(out / "lib"), "gate", "run", "texts", "--from", str(out)],
        env={"PATH": os.defpath},
        capture_output=True,
        text=True,
        timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "texts: qualified" in done.stdout


def spoil_script(out: Path) -> None:
    path = out / "project/ci/gates/helper.py"
    path.write_text("GOOD = False\n")


def say_twice(out):
    manifest = out / "manifest.json"
    manifest.write_text(manifest.read_text().replace("{", '{"schema": 1, ', 1))


def spoil_manifest(out: Path) -> None:
    (out / "manifest.json").write_text("{}")


def rezip(out: Path, change) -> None:
    path = out / "trees.zip"
    with zipfile.ZipFile(path) as archive:
        entries = {name: archive.read(name) for name in archive.namelist()}
    change(entries)
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in entries.items():
            archive.writestr(name, data)


def spoil_blob(out: Path) -> None:
    def change(entries):
        name = next(name for name in entries if name.startswith("blobs/"))
        entries[name] += b"x"

    rezip(out, change)


def drop_blob(out: Path) -> None:
    rezip(out, lambda e: e.pop(next(name for name in e if name.startswith("blobs/"))))


def other_path(out: Path, old: bytes, new: bytes) -> None:
    def change(entries):
        for name in list(entries):
            if name.startswith("trees/"):
                assert old in entries[name]
                entries[name] = entries[name].replace(old, new)

    rezip(out, change)


def escape(out: Path) -> None:
    other_path(out, b" README.md\0", b" ../escaped\0")


def rename(out: Path) -> None:
    other_path(out, b" README.md\0", b" README.mx\0")


def through_link(out: Path) -> None:
    other_path(out, b" README.md\0", b" link/README.md\0")


@pytest.mark.parametrize(
    ("spoil", "code"),
    [
        (spoil_script, 4),
        (spoil_manifest, 3),
        (spoil_blob, 4),
        (drop_blob, 4),
        (escape, 3),
        (rename, 4),
        (through_link, 3),
        (lambda out: (out / "trees.zip").write_bytes(b"no zip"), 3),
        (lambda out: (out / "trees.zip").unlink(), 3),
        (lambda out: (out / "manifest.json").unlink(), 3),
        (say_twice, 3),
    ],
)
def test_a_spoiled_pack_is_refused(project, tmp_path, spoil, code):
    out = tmp_path / "pack"
    assert pack(project, out).code == 0
    spoil(out)
    done = run("gate", "run", "texts", "--from", out, "--json", cwd=tmp_path)
    assert (done.code, "error" in done.json) == (code, True), done.json
    assert done.json["error"]["message"].count("trees.zip") <= 1
    assert not (out / "escaped").exists() and not (tmp_path / "escaped").exists()
    assert not (out / "project/receipts").exists()


KERNEL = """
unit = int(os.environ["STACKCTL_GATE_UNIT"])
values = {"base": [10.0, 10.1], "on": [5.0 + unit / 999, 5.1 + unit / 999]}
if unit % 2:
    values = {arm: numbers[::-1] for arm, numbers in values.items()}
say({"schema": 1, "samples": {"cells": {
    "c": {"order": ["base", "on", "on", "base"], "values": values}}}})
"""
TIMED = """
[rule]
statistic = "paired-log-ratio"
pairs = 6
looks = 1
host_load_limit = 100
load_imbalance_limit = 100

[[claim]]
name = "faster"
cell = "c"
arm = "on"
against = "base"
margin = 0.1
"""


def test_a_run_without_statistics_is_decided_at_home(project, tmp_path, monkeypatch):
    add_gate(
        project, "timed", KERNEL, arms(base="base", on="composed") + TIMED, "kernel"
    )
    out = tmp_path / "pack"
    done = run("gate", "pack", "timed", "--out", out, "--json", cwd=project.folder)
    assert done.code == 0, done.out
    code, answer, errors = alone(out, "timed", blocked=(*BLOCKED, "scipy", "numpy"))
    assert (code, answer["verdict"]) == (8, None), (answer, errors)
    assert "gate decide" in " ".join(answer["reasons"])
    evidence = out / "project" / answer["output"] / "evidence.json"
    decided = run("gate", "decide", evidence, "--json", cwd=project.folder)
    assert decided.code == 0, decided.out
    assert decided.json["verdict"] == "qualified"
    assert (project.folder / decided.json["receipt"]).is_file()
    # Another gate of that name is not what ran.
    path = project.folder / "ci/gates/timed.toml"
    path.write_text(path.read_text().replace("margin = 0.1", "margin = 0.9"))
    refused = run("gate", "decide", evidence, "--json", cwd=project.folder)
    assert refused.code == 4
    text = evidence.read_text()
    for bad in ("{}", "[]", text[:200], text.replace("{", '{"evidence": 1, ', 1)):
        evidence.write_text(bad)
        refused = run("gate", "decide", evidence, "--json", cwd=project.folder)
        assert refused.code == 3, bad[:40]
        assert refused.json["error"]["hint"] == "name the evidence.json of a run"
