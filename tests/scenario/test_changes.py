# SPDX-License-Identifier: Apache-2.0
"""Change fragments of a project: complete, told with their authors."""

from pathlib import Path

import pytest
from pulls import Upstream, lines
from support import Project, run, three_sets


def fragment(project: Path, name: str, *sets: str, **keys: str) -> Path:
    """Write a change fragment."""
    values = {
        "category": "changed",
        "summary": f"The change {name} is there.",
        "compatibility": "compatible",
        "unproved": "A test.",
        **keys,
    }
    listed = ", ".join(f'"{each}"' for each in sets)
    text = "schema = 1\n" + "".join(f'{k} = "{v}"\n' for k, v in values.items())
    text += f'models = ["all"]\nsets = [{listed}]\n'
    folder = project / "changes"
    folder.mkdir(exist_ok=True)
    path = folder / f"{name}.toml"
    path.write_text(text.replace("sets = []\n", ""))
    return path


def check(project: Path, *options: str | Path, code: int = 0) -> dict:
    result = run("changes", "check", "-C", project, "--json", *options)
    assert result.code == code, result.out + result.err
    return result.json


def kinds(found: dict) -> list[tuple[str, str]]:
    return [(each["kind"], each["about"]) for each in found["problems"]]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    project = three_sets(tmp_path / "project")
    assert run("lock", "-C", project.folder).code == 0
    return project.folder


def test_a_missing_fragment_is_an_error_and_renders_nothing(folder: Path) -> None:
    fragment(folder, "one", "alpha", "beta")
    found = check(folder, code=1)
    assert kinds(found) == [("missing", "gamma")]
    out = folder / "notes.md"
    assert run("changes", "render", "-C", folder, "--out", out).code == 1
    assert not out.exists()
    fragment(folder, "two", "gamma")
    assert check(folder)["ok"]
    assert run("changes", "render", "-C", folder, "--out", out).code == 0
    text = out.read_text()
    assert "The change one is there." in text and "`gamma`" in text
    first = out.read_bytes()
    run("changes", "render", "-C", folder, "--out", out)
    assert out.read_bytes() == first


def test_a_fragment_is_held_to_the_sets_of_the_composition(folder: Path) -> None:
    for name in ("alpha", "beta", "gamma"):
        fragment(folder, name, name)
    fragment(folder, "wrong", "alhpa")
    fragment(folder, "evidence", "alpha")
    path = folder / "changes/evidence.toml"
    path.write_text(
        path.read_text().replace(
            'unproved = "A test."', 'evidence = ["not/there.json"]'
        )
    )
    found = check(folder, code=1)
    assert kinds(found) == [("no-evidence", "evidence"), ("unknown-set", "wrong")]
    assert "did you mean `alpha`" in found["problems"][1]["message"]
    (folder / "changes/wrong.toml").unlink()
    (folder / "elsewhere").symlink_to("/etc/passwd")
    path.write_text(path.read_text().replace("not/there.json", "elsewhere"))
    (problem,) = check(folder, code=1)["problems"]
    assert "leads out of the project" in problem["message"]
    path.unlink()
    # A set that is left out waits, and what names both is not told in part.
    series = folder / "series.toml"
    text = series.read_text().replace('name = "gamma"', 'name = "gamma"\ndraft = true')
    series.write_text(text)
    run("lock", "-C", folder)
    fragment(folder, "both", "alpha", "gamma")
    found = check(folder, code=1)
    assert kinds(found) == [("mixed-sets", "both")]
    states = {each["id"]: each["state"] for each in found["fragments"]}
    assert states["gamma"] == "waiting" and states["alpha"] == "new"
    (folder / "changes/both.toml").unlink()
    notes = run("changes", "render", "-C", folder, "--json").json["notes"]
    assert "The change alpha is there." in notes
    assert "gamma" not in notes


def test_notes_name_authors_and_co_authors(tmp_path: Path) -> None:
    project = (
        Project(tmp_path / "project")
        .base()
        .add(
            "alpha",
            (
                "alpha: x\n\nCo-authored-by: Grace *Hopper* <grace@example.org>\n",
                {"new": "x\n"},
            ),
        )
        .save()
    )
    run("lock", "-C", project.folder)
    fragment(project.folder, "alpha", "alpha")
    found = run("changes", "render", "-C", project.folder, "--json").json
    assert [each["name"] for each in found["authors"]["alpha"]] == [
        "Ada Lövelace",
        "Grace *Hopper*",
    ]
    assert "By Ada Lövelace, Grace \\*Hopper\\*." in found["notes"]


def test_authors_of_a_merged_pull_request_are_those_of_its_commits(
    tmp_path: Path,
) -> None:
    upstream = Upstream.make(tmp_path / "upstream")
    upstream.pull(1, {"new": "x\n"}, {"a.py": lines(_3="three")})
    upstream.repo.git(
        *("commit", "-q", "--amend", "--no-edit", "--author=Mary <mary@example.org>")
    )
    upstream.point(1)
    upstream.pull(2, {"other": "x\n"})
    project = upstream.series(tmp_path / "p", upstream.set(1), upstream.set(2))
    assert run("lock", "-C", project).code == 0
    for number in (1, 2):
        fragment(project, f"pull-{number}", f"pull-{number}")
    found = run("changes", "render", "-C", project, "--json").json
    names = {
        name: [each["name"] for each in people]
        for name, people in found["authors"].items()
    }
    assert names == {"pull-1": ["Ada Lövelace", "Mary"], "pull-2": ["Ada Lövelace"]}


def test_without_a_lock_there_is_nothing_to_check(tmp_path: Path) -> None:
    project = three_sets(tmp_path / "project")
    result = run("changes", "check", "-C", project.folder, "--json")
    assert (result.code, result.json["error"]["kind"]) == (3, "no-lock")
