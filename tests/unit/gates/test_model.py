"""Gate files: what is read, and how bad ones are refused."""

from pathlib import Path

import pytest

from stackctl.errors import InputError, UsageError
from stackctl.gates.model import find_gate, load_gate, read_gates

GOOD = """\
schema = 1
kind = "compile"
title = "One variant?"
script = "ci/gates/a.py"
arguments = ["--tree", "{tree:on}", "--base={tree:base}"]

[arms.base]
tree = "base"
[arms.on]
tree = "only:a,b"
env = { SWITCH = "1", EMPTY = "" }

[needs]
gpus = 1
packages = ["torch>=2.11", "triton"]

[limits]
seconds = 30
"""


def load(tmp_path: Path, text: str, name: str = "a-gate.toml"):
    path = tmp_path / name
    path.write_text(text)
    return load_gate(path)


@pytest.mark.parametrize("kind", ["tests", "image"])
def test_what_asks_about_files_has_a_tree(tmp_path, kind):
    text = f'schema = 1\nkind = "{kind}"\ntitle = "t"\n[arms.on]\ntree = "external"\n'
    with pytest.raises(InputError, match=f'kind "{kind}" needs a tree'):
        load(tmp_path, text + '[tests]\npaths = ["t"]\n' * (kind == "tests"))


def test_a_gate_is_read_with_its_defaults(tmp_path):
    gate = load(tmp_path, GOOD)
    assert gate.name == "a-gate" and gate.kind == "compile" and not gate.timed
    assert list(gate.arms) == ["base", "on"]
    assert gate.arms["on"].tree == "only:a,b"
    assert gate.arms["on"].env == {"SWITCH": "1", "EMPTY": ""}
    assert gate.needs.packages == ("torch>=2.11", "triton")
    assert (gate.limits.seconds, gate.limits.memory_mib) == (30, 16384)
    assert len(gate.sha256) == 64


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('kind = "compile"', 'kind = "compiled"', "did you mean `compile`"),
        ("script =", "skript =", "did you mean `script`"),
        ('script = "ci/gates/a.py"\n', "", "needs the key `script`"),
        ("ci/gates/a.py", "../a.py", "without `..`"),
        ("{tree:on}", "{tree:onn}", "did you mean `on`"),
        ("{tree:on}", "{three}", "unknown placeholder `{three}`"),
        ('"only:a,b"', '"just:a"', "`only:SET`"),
        ("SWITCH =", "STACKCTL_X =", "environment variable"),
        ("seconds = 30", "seconds = 0", "from 1 to"),
        ("seconds = 30", "seconds = true", "found true"),
        ("torch>=2.11", "torch >= 2.11 ; x", "a package with its versions"),
        ("torch>=2.11", "torch>=", "a package with its versions"),
        ("torch>=2.11", "torch==1.*.2", "a package with its versions"),
        ('kind = "compile"', 'kind = "tests"', "needs the table [tests]"),
        ('kind = "compile"', 'kind = "kernel"\nunits = 2', "runs alone"),
        (
            "[limits]",
            '[rule]\nstatistic = "counts"\nengaged = ["onn"]\n[limits]',
            "did you mean `on`",
        ),
        (
            "[limits]",
            '[[claim]]\nname = "c"\narm = "of"\n[limits]',
            "nearest is `on`",
        ),
        ("[limits]", '[rule]\nstatistic = "all-equal"\n[limits]', "has the statistic"),
    ],
)
def test_a_bad_gate_is_refused_with_its_line(tmp_path, old, new, words):
    assert old in GOOD
    with pytest.raises(InputError) as error:
        load(tmp_path, GOOD.replace(old, new, 1))
    assert words in error.value.message
    assert error.value.exit_code == 3
    assert error.value.kind == "bad-gate"
    assert error.value.where["file"] == str(tmp_path / "a-gate.toml")


def test_a_gate_of_a_newer_stackctl_asks_for_that(tmp_path):
    with pytest.raises(InputError, match="schema = 2, but this stackctl") as error:
        load(tmp_path, GOOD.replace("schema = 1", "schema = 2", 1))
    assert error.value.kind == "schema-too-new"
    assert error.value.hint == "install a newer stackctl"


def test_a_bad_file_name_is_refused(tmp_path):
    with pytest.raises(InputError, match="lower-case letters"):
        load(tmp_path, GOOD, "A_gate.toml")


def test_a_bad_file_keeps_no_other_gate_away(tmp_path):
    folder = tmp_path / "ci/gates"
    folder.mkdir(parents=True)
    (folder / "a.toml").write_text("schema = 1\nnot toml")
    (folder / "b.toml").write_text('schema = 1\nkind = "speed"\ntitle = "t"')
    (folder / "c.toml").write_text(GOOD)
    files = read_gates(tmp_path)
    assert list(files.good) == ["c"] and list(files.bad) == ["a", "b"]
    assert all(f"{n}.toml:2" in error.message for n, error in files.bad.items())
    assert find_gate(files, "c").name == "c"
    with pytest.raises(InputError, match=r"a\.toml:2"):
        find_gate(files, "a")


def test_an_unknown_gate_names_the_nearest(tmp_path):
    folder = tmp_path / "ci/gates"
    folder.mkdir(parents=True)
    (folder / "kpool-speed.toml").write_text(GOOD)
    gates = read_gates(tmp_path)
    assert find_gate(gates, "kpool-speed").name == "kpool-speed"
    with pytest.raises(UsageError, match="did you mean `kpool-speed`"):
        find_gate(gates, "kpool-sped")


def test_one_bad_arm_makes_no_second_fault_of_the_others(tmp_path):
    text = GOOD.replace('"only:a,b"', '"just:a"')
    with pytest.raises(InputError) as caught:
        load(tmp_path, text + '[rule]\nstatistic = "counts"\nengaged = ["on"]\n')
    assert "`only:SET`" in caught.value.message
    assert "names no arm" not in caught.value.message
