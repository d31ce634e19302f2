# SPDX-License-Identifier: Apache-2.0
"""A reviewer with a stack that is bad only as a combination of its sets."""

import subprocess
from pathlib import Path

import pytest
from support import Project, program, program_environment, run

LINES = [f"line {n}\n" for n in range(40)]


def text(**changes: str) -> str:
    out = list(LINES)
    for key, value in changes.items():
        out[int(key[1:])] = value
    return "".join(out)


def six(folder: Path) -> Project:
    """Sets `a` to `f`; `b` requires `a`; `e` lies on `d` without saying so."""
    project = Project(folder).base({"f.txt": text(), "marks/base": ""})
    project.add("a", ("a\n", {"marks/a": ""}))
    project.add("b", ("b one\n", {"marks/b1": ""}), ("b two\n", {"marks/b2": ""}),
                ("b three\n", {"marks/b3": ""}), requires=["a"])  # fmt: skip
    project.add("c", ("c\n", {"marks/c": ""}))
    project.add("d", ("d\n", {"f.txt": text(_9="dd\n"), "marks/d": ""}))
    project.add("e", ("e\n", {"f.txt": text(_9="dd\n", _10="ee\n"), "marks/e": ""}))
    project.add("f", ("f\n", {"marks/f": ""}))
    return project.save()


def bisect(project: Project, command: str, *options: str) -> dict:
    done = run(
        "bisect", "--run", command, "--subsets", "--json", *options, cwd=project.folder
    )
    return {"code": done.code, **done.json}


def names(answer: dict) -> list[str]:
    return [each["set"] for each in answer["culprits"]]


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return six(tmp_path / "p")


@pytest.mark.parametrize("workers", ["1", "3"])
def test_a_bad_set_is_named_and_the_patch_within_it(
    project: Project, tmp_path: Path, workers: str
) -> None:
    command = f'echo "$STACKCTL_TREE" >> {tmp_path}/tried; test ! -e marks/b2'
    answer = bisect(project, command, "-j", workers)
    assert (answer["code"], answer["kind"], names(answer)) == (0, "set", ["b"])
    assert answer["culprit"]["set"] == "b"
    assert answer["culprit"]["patch"] is None
    assert answer["culprit"]["author"] == "Ada Lövelace <ada@example.org>"
    assert "b/marks/b3" in answer["culprit"]["diff"]
    assert "marks/a" not in answer["culprit"]["diff"]
    assert answer["within"]["patch"] == "0002-b-two.patch"
    assert (answer["good"]["name"], answer["bad"]["name"]) == ("a", "a+b")
    tried = (tmp_path / "tried").read_text().split()
    assert len(tried) == len(set(tried)), "no tree is run twice"
    assert answer["left_out"]["b"] == "good"
    assert answer["left_out"]["c"] == "bad"
    # `d` cannot be left out alone: that is no answer about good and bad.
    assert answer["left_out"]["d"] == "conflict"
    (conflict,) = [
        each for each in answer["not_composing"] if each["sets"] == list("abcef")
    ]
    assert "set `e`" in conflict["why"]


def test_an_interaction_is_named_with_both_sets_and_reproduced(
    project: Project, tmp_path: Path
) -> None:
    command = "! { test -e marks/b1 && test -e marks/f; }"
    answer = bisect(project, command, "--keep", "--keep-in", str(tmp_path / "kept"))
    assert (answer["code"], answer["kind"]) == (0, "interaction")
    assert names(answer) == ["b", "f"]
    assert answer["bad"]["name"] == "a+b+f"
    assert answer["bad"]["verdict"] == "bad"
    assert answer["good"]["verdict"] == "good"
    assert answer["message"].startswith("the interaction of b and f")
    without, with_it = (Path(each["path"]) for each in answer["kept"])
    assert (with_it / "marks/f").exists() and (with_it / "marks/b1").exists()
    assert not ((without / "marks/f").exists() and (without / "marks/b1").exists())
    (line,) = answer["reproduce"]
    shell = line.replace("stackctl", " ".join(program()), 1)
    again = subprocess.run(
        ["/bin/sh", "-c", shell], cwd=project.folder, env=program_environment()
    )
    assert again.returncode == 1


def test_a_set_that_only_carries_the_culprit_is_told_apart(project: Project) -> None:
    answer = bisect(project, "test ! -e marks/e")
    assert (answer["kind"], names(answer)) == ("set", ["e"])
    assert answer["faults"][0]["carriers"] == ["d"]
    assert any("does not compose without d" in note for note in answer["notes"])


def test_a_set_that_needs_another_is_found_where_the_whole_is_good(
    project: Project,
) -> None:
    answer = bisect(project, "test ! -e marks/c || test -e marks/f")
    assert (answer["code"], answer["kind"]) == (0, "interaction")
    assert (names(answer), answer["needs_without"]) == (["c"], ["f"])
    assert answer["message"] == "the whole is good, but c without f is bad: it needs f"
    assert (answer["bad"]["name"], answer["good"]["name"]) == ("c", "c+f")


def test_two_faults_are_two(project: Project) -> None:
    answer = bisect(project, "test ! -e marks/c && test ! -e marks/f")
    assert {each["culprits"][0] for each in answer["faults"]} == {"c", "f"}
    assert any("another fault stays" in note for note in answer["notes"])


def test_ends_that_are_wrong(project: Project) -> None:
    assert bisect(project, "true")["code"] == 1
    answer = bisect(project, "false")
    assert (answer["code"], answer["evaluations"]) == (9, 1)
    assert bisect(project, "exit 127")["code"] == 2
    half = bisect(project, "true", "--good", "b:2")
    assert (half["code"], half["error"]["kind"]) == (2, "half-a-set")
    assert bisect(project, "true", "--good", "f")["code"] == 2


def test_the_good_end_is_always_in(project: Project) -> None:
    command = "! { test -e marks/b1 && test -e marks/f; }"
    answer = bisect(project, command, "--good", "b")
    assert (answer["kind"], names(answer)) == ("set", ["f"])
    assert answer["bad"]["name"] == "the good end+f"
    assert "--only a,b,f" in answer["reproduce"][0]


def test_a_person_reads_it(project: Project) -> None:
    done = run(
        "bisect", "--subsets", "--run", "test ! -e marks/b1 || test ! -e marks/f",
        cwd=project.folder,
    )  # fmt: skip
    assert done.code == 0
    lines = done.out.splitlines()
    assert lines[0].startswith("the interaction of b and f")
    assert "set          b: Set b" in lines
    assert any(line.startswith("no tree      a+b+c+e+f: set `e`") for line in lines)
    assert "bisect: leaving out each set alone, 0 of 6 known" in done.err
