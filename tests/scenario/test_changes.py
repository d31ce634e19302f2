# SPDX-License-Identifier: Apache-2.0
"""Change fragments of a project: complete, told with their authors."""

from pathlib import Path

import pytest
from pulls import Upstream, lines
from releases import bare, cut, fragment
from support import Project, run, three_sets


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


def test_notes_hold_no_html_and_no_link_but_https(folder: Path) -> None:
    summary = (
        "See [a](javascript:x) and [b](https://b.example/) <script>y</script> "
        "and `a < b` of *c*."
    )
    fragment(folder, "one", "alpha", "beta", "gamma", summary=summary)
    notes = run("changes", "render", "-C", folder).out
    told = (
        r"- See [a\](javascript:x) and [b](https://b.example/) \<script>y\</script> "
        "and `a < b` of *c*."
    )
    assert told in notes.splitlines()


def test_without_a_lock_there_is_nothing_to_check(tmp_path: Path) -> None:
    project = three_sets(tmp_path / "project")
    result = run("changes", "check", "-C", project.folder, "--json")
    assert (result.code, result.json["error"]["kind"]) == (3, "no-lock")


def test_what_a_release_carried_is_never_edited(folder: Path, tmp_path: Path) -> None:
    into = bare(tmp_path / "fork.git")
    for name in ("alpha", "beta", "gamma"):
        fragment(folder, name, name)
    cut(folder, into, tag="v1")
    found = check(folder, "--repo", into)
    assert found["since"] == "v1"
    assert {each["state"] for each in found["fragments"]} == {"released"}
    assert {each["release"] for each in found["fragments"]} == {"v1"}
    # Without the repository nothing is known of the release.
    assert check(folder)["since"] is None
    fragment(folder, "alpha", "alpha", summary="It never happened.")
    (folder / "changes/gamma.toml").unlink()
    found = check(folder, "--repo", into, code=1)
    assert kinds(found) == [
        ("edited", "alpha"), ("removed", "gamma"), ("missing", "gamma"),
    ]  # fmt: skip
    assert "git show refs/stackctl/v1:changes/alpha.toml" in str(found["problems"])
    assert run("tag", "cut", "v2", "-C", folder, "--into", into).code == 1
    fragment(folder, "alpha", "alpha")
    fragment(folder, "gamma", "gamma")
    fragment(folder, "alpha-again", "alpha", corrects="alpha", summary="It did not.")
    assert check(folder, "--repo", into)["ok"]
    cut(folder, into, tag="v2")
    notes = run(
        "changes", "render", "-C", folder, "--repo", into, "--all", "--json"
    ).json["notes"]
    assert "Corrects `alpha` of v1." in notes
    found = check(folder, "--repo", into)
    assert found["since"] == "v2"
    fragment(folder, "fix", "alpha", corrects="alhpa")
    assert kinds(check(folder, "--repo", into, code=1)) == [
        ("nothing-to-correct", "fix")
    ]


def test_what_changed_since_a_release_is_told_anew(tmp_path: Path) -> None:
    into = bare(tmp_path / "fork.git")
    project = three_sets(tmp_path / "project")
    folder = project.folder
    for name in ("alpha", "beta", "gamma"):
        fragment(folder, name, name)
    run("lock", "-C", folder)
    cut(folder, into, tag="v1")
    # gamma changes, beta goes.
    patch = project.patch("gamma")
    patch.write_bytes(patch.read_bytes().replace(b"Other.", b"Another."))
    series = folder / "series.toml"
    head, *sets = series.read_text().split("[[set]]")
    sets = [each for each in sets if 'name = "beta"' not in each]
    series.write_text("[[set]]".join([head, *sets]))
    run("lock", "-C", folder)
    found = check(folder, "--repo", into, code=1)
    assert kinds(found) == [("missing", "gamma"), ("missing", "beta")]
    assert "changed since v1" in found["problems"][0]["message"]
    fragment(folder, "gamma-2", "gamma")
    fragment(folder, "beta-gone", "beta", category="removed")
    assert check(folder, "--repo", into)["ok"]
    notes = run("changes", "render", "-C", folder, "--repo", into, "--json").json
    assert "Changes since v1" in notes["notes"]
    assert "The change beta-gone is there." in notes["notes"]
    assert "The change alpha is there." not in notes["notes"]
    cut(folder, into, tag="v2")
    # Moved onto another base, a set is what it was; the base is not.
    project.repo.git("checkout", "-q", "--detach", project.base_commit)
    base = project.repo.commit("newer base\n", {"unrelated": "x\n"})
    tree = project.repo.tree
    old = series.read_text()
    new = old.replace(project.base_commit, base).replace(project.base_tree, tree)
    series.write_text(new)
    assert run("lock", "-C", folder).code == 0
    found = check(folder, "--repo", into, code=1)
    assert kinds(found) == [("missing", "base")]
    fragment(folder, "base-2", category="base")
    assert check(folder, "--repo", into)["ok"]
