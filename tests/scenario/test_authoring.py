# SPDX-License-Identifier: Apache-2.0
"""Authors turn commits and edited trees into patches, and look at what they have."""

from pathlib import Path

import pytest
from support import (
    LINES60,
    Project,
    Repo,
    files_below,
    hostile_home,
    run,
    three_sets,
)


def patches_of(project: Project, name: str) -> dict[str, bytes]:
    folder = project.folder / "patches" / name
    return {path.name: path.read_bytes() for path in sorted(folder.glob("*.patch"))}


def export(project: Project, name: str, repo: Path, range_: str, **more: object):
    return run(
        "export", name, "--from", repo, range_, "--json", cwd=project.folder, **more
    )  # type: ignore[arg-type]


def test_export_import_export_gives_the_same_bytes(
    project: Project, tmp_path: Path
) -> None:
    before = {name: patches_of(project, name) for name in ("alpha", "beta", "gamma")}
    target = Repo(tmp_path / "fork")
    done = run(
        "compose", "--into", target.path, "--ref", "refs/heads/fork", cwd=project.folder
    )
    assert done.code == 0, done.err
    ranges = {
        "alpha": ("fork~4", "fork~2"),
        "beta": ("fork~2", "fork~1"),
        "gamma": ("fork~1", "fork"),
    }
    for name, (first, last) in ranges.items():
        for path in (project.folder / "patches" / name).iterdir():
            path.unlink() if name == "beta" else None
        done = export(project, name, target.path, f"{first}..{last}")
        assert done.code == 0, done.out
        assert patches_of(project, name) == before[name]
        changed = [each["changed"] for each in done.json["patches"]]
        assert changed == [name == "beta"] * len(changed)
    home = hostile_home(tmp_path)
    again = export(
        project,
        "alpha",
        target.path,
        "fork~4..fork~2",
        env={"HOME": str(home), "GIT_DIFF_OPTS": "-u7"},
        umask=0o077,
    )
    assert again.code == 0, again.out
    assert patches_of(project, "alpha") == before["alpha"]


def test_settings_of_the_authors_repository_do_not_change_the_text(
    project: Project, tmp_path: Path
) -> None:
    before = patches_of(project, "gamma")
    repo = project.repo
    for key, value in {
        "diff.noprefix": "true",
        "diff.algorithm": "patience",
        "core.abbrev": "4",
        "diff.context": "8",
        "format.signature": "x",
        "core.quotePath": "false",
        "diff.external": "false",
        "format.attach": "x",
        "diff.orderFile": "/dev/null",
    }.items():
        repo.git("config", key, value)
    (repo.path / ".git/info").mkdir(exist_ok=True)
    (repo.path / ".git/info/attributes").write_text("* -diff\n")
    done = export(project, "gamma", repo.path, f"{project.tips['beta']}..HEAD")
    assert done.code == 0, done.out
    assert patches_of(project, "gamma") == before


def test_export_replaces_what_was_there(project: Project) -> None:
    base = project.tips["beta"]
    project.repo.commit("gamma: one more\n", {"extra": "x\n"})
    done = export(project, "gamma", project.repo.path, f"{base}..HEAD")
    assert done.code == 0
    assert len(patches_of(project, "gamma")) == 2
    project.repo.git("reset", "-q", "--hard", base)
    project.repo.commit("gamma: another way\n", {"README.md": "rewritten\n"})
    done = export(project, "gamma", project.repo.path, f"{base}..HEAD")
    assert [each["patch"] for each in done.json["patches"]] == [
        "0001-gamma-another-way.patch"
    ]
    assert len(done.json["removed"]) == 2
    assert list(patches_of(project, "gamma")) == ["0001-gamma-another-way.patch"]
    composed = run("compose", "--json", cwd=project.folder)
    assert composed.json["tree"] == project.repo.tree


@pytest.mark.parametrize("case", ["merge", "empty commit", "no base", "lossy message"])
def test_what_cannot_be_a_patch_is_refused_and_nothing_changes(
    project: Project, case: str
) -> None:
    before = patches_of(project, "gamma")
    repo = project.repo
    base = project.tips["beta"]
    code = 3
    if case == "merge":
        repo.git("checkout", "-q", "-b", "side", base)
        repo.commit("side\n", {"s": "s"})
        repo.git("checkout", "-q", "main")
        repo.git("merge", "-q", "--no-edit", "side")
    elif case == "empty commit":
        repo.commit("nothing\n")
    elif case == "no base":
        base = "1" * 40
        code = 4
    else:
        repo.commit("subject\n\ntext\n---\nmore text\n", {"z": "z"})
    done = export(project, "gamma", repo.path, f"{base}..HEAD")
    assert done.code == code, done.out
    assert done.json["error"]["message"]
    assert patches_of(project, "gamma") == before


@pytest.mark.parametrize("range_", ["HEAD", "a...b", "--all..HEAD", "HEAD..HEAD"])
def test_a_range_is_a_range(project: Project, range_: str) -> None:
    assert export(project, "gamma", project.repo.path, range_).code == 2


def test_commits_that_do_not_fit_below_the_set_are_refused(project: Project) -> None:
    before = patches_of(project, "gamma")
    repo = project.repo
    repo.git("checkout", "-q", "-b", "other", "base")
    repo.commit("first\n", {"pkg/core.py": "totally\ndifferent\n"})
    repo.commit("second\n", {"pkg/core.py": "totally\nother\n"})
    done = export(project, "gamma", repo.path, "HEAD~1..HEAD")
    assert done.code == 5
    assert done.json["error"]["where"]["set"] == "gamma"
    assert patches_of(project, "gamma") == before
    forced = run(
        "export",
        "gamma",
        "--from",
        repo.path,
        "HEAD~1..HEAD",
        "--no-check",
        cwd=project.folder,
    )
    assert forced.code == 0
    assert run("compose", cwd=project.folder).code == 5


def materialised(project: Project, out: Path, *options: str) -> Path:
    done = run("compose", *options, "--out", out, cwd=project.folder)
    assert done.code == 0, done.err
    return out


def test_refresh_folds_edits_into_the_last_patch(
    project: Project, tmp_path: Path
) -> None:
    tree = materialised(project, tmp_path / "tree", "--upto", "alpha")
    (tree / "pkg/new.py").write_text("edited\n")
    (tree / "pkg/added.bin").write_bytes(b"\0\1\2")
    (tree / "README.md").chmod(0o755)
    before = patches_of(project, "alpha")
    done = run("refresh", "alpha", "--from", tree, "--json", cwd=project.folder)
    assert done.code == 0, done.out
    after = patches_of(project, "alpha")
    assert list(after) == list(before)
    first, second = after
    assert after[first] == before[first]
    assert b"+edited" in after[second]
    again = materialised(project, tmp_path / "again", "--upto", "alpha")
    assert files_below(again) == files_below(tree)
    # The rest of the series still composes, and a second refresh has nothing to do.
    assert run("compose", cwd=project.folder).code == 0
    repeat = run("refresh", "alpha", "--from", tree, "--json", cwd=project.folder)
    assert (repeat.code, repeat.json["error"]["kind"]) == (2, "nothing-to-do")


def test_refresh_folds_edits_into_an_earlier_patch(
    project: Project, tmp_path: Path
) -> None:
    tree = materialised(project, tmp_path / "tree", "--upto", "alpha")
    core = (tree / "pkg/core.py").read_text()
    (tree / "pkg/core.py").write_text(core.replace("line ten", "line 10 (ten)"))
    before = patches_of(project, "alpha")
    done = run(
        "refresh", "alpha", "--from", tree, "--patch", "0001", cwd=project.folder
    )
    assert done.code == 0, done.err
    after = patches_of(project, "alpha")
    assert b"line 10 (ten)" in after["0001-alpha-change-line-10.patch"]
    assert after["0002-alpha-add-a-file.patch"] == before["0002-alpha-add-a-file.patch"]
    assert b"Signed-off-by: Ada" in after["0001-alpha-change-line-10.patch"]


def test_refresh_leaves_out_what_running_the_tree_left_behind(
    project: Project, tmp_path: Path
) -> None:
    """New files that .gitignore names stay out; tracked ones count all the same."""
    tree = materialised(project, tmp_path / "tree", "--upto", "alpha")
    (tree / ".gitignore").write_text("__pycache__/\n*.log\nREADME.md\n")
    (tree / "pkg/__pycache__").mkdir()
    (tree / "pkg/__pycache__/core.pyc").write_bytes(b"\0")
    (tree / "run.log").write_text("noise\n")
    (tree / "README.md").write_text("tracked and ignored\n")
    done = run("refresh", "alpha", "--from", tree, "--json", cwd=project.folder)
    assert done.code == 0, done.err
    assert done.json["notes"] == [
        "left out as ignored: pkg/__pycache__/core.pyc and 1 more"
    ]
    again = files_below(materialised(project, tmp_path / "again", "--upto", "alpha"))
    assert again.keys() == files_below(tree).keys() - {
        "pkg/__pycache__/core.pyc",
        "run.log",
    }
    assert again["README.md"][1] == b"tracked and ignored\n"


def test_refresh_makes_a_new_patch(project: Project, tmp_path: Path) -> None:
    tree = materialised(project, tmp_path / "tree", "--upto", "gamma")
    (tree / "fresh.txt").write_text("fresh\n")
    arguments = ("refresh", "gamma", "--from", tree, "-m", "gamma: fresh\n\nWhy.")
    assert run(*arguments, cwd=project.folder).code == 2
    done = run(*arguments, "--author", "Ünal <u@example.org>", cwd=project.folder)
    assert done.code == 0, done.err
    names = list(patches_of(project, "gamma"))
    assert names[-1] == "0002-gamma-fresh.patch"
    shown = run("show", "gamma", "--json", cwd=project.folder).json
    assert shown["files"][-1]["author"] == "Ünal <u@example.org>"


def test_refresh_from_the_whole_series(project: Project, tmp_path: Path) -> None:
    tree = materialised(project, tmp_path / "tree")
    core = (tree / "pkg/core.py").read_text()
    (tree / "pkg/core.py").write_text(core.replace("line 55", "line fifty-five"))
    done = run("refresh", "alpha", "--from", tree, "--whole", cwd=project.folder)
    assert done.code == 0, done.err
    again = materialised(project, tmp_path / "again")
    assert files_below(again) == files_below(tree)


def test_edits_that_later_patches_of_the_set_do_not_bear_are_a_conflict(
    tmp_path: Path,
) -> None:
    project = Project(tmp_path / "p").base()
    project.add(
        "a",
        ("one\n", {"f": LINES60}),
        ("two\n", {"f": LINES60.replace("line 30\n", "thirty\n")}),
    ).save()
    tree = materialised(project, tmp_path / "tree")
    (tree / "f").write_text(LINES60.replace("line 30\n", "XXX\n"))
    before = patches_of(project, "a")
    done = run(
        "refresh", "a", "--from", tree, "--patch", "0001", "--json", cwd=project.folder
    )
    assert done.code == 5, done.out
    assert patches_of(project, "a") == before


def test_status_tells_how_far_a_broken_series_goes(project: Project) -> None:
    assert run("status", "--json", cwd=project.folder).code == 1
    run("lock", cwd=project.folder)
    good = run("status", "--json", cwd=project.folder)
    assert good.code == 0
    assert good.json["locked"] is True
    patch = project.patch("beta")
    patch.write_text(patch.read_text().replace(" line 39\n", " line 3x\n"))
    bad = run("status", "--json", cwd=project.folder)
    assert bad.code == 5
    states = {each["name"]: each["state"] for each in bad.json["sets"]}
    assert states == {
        "alpha": "composes",
        "beta": "not reached",
        "gamma": "not reached",
    }
    assert "pkg/core.py: hunk 1" in bad.json["problem"]


def test_diff_shows_a_set_on_its_own_base(project: Project) -> None:
    done = run("diff", "beta", "--json", cwd=project.folder)
    assert done.json["before"] == project.trees[1]
    assert done.json["after"] == project.trees[2]
    assert "+line forty" in done.json["diff"]
    assert "line ten" not in done.json["diff"].replace(" line ten", "")
    whole = run("diff", cwd=project.folder).out
    assert "+line ten" in whole
    assert "+Other." in whole
    stat = run("diff", "--stat", "gamma", cwd=project.folder).out
    assert "README.md" in stat
    assert "1 file changed" in stat


def test_range_diff_of_two_clones_a_set_and_commits(
    project: Project, tmp_path: Path
) -> None:
    import shutil

    shutil.copytree(project.folder, tmp_path / "old")
    patch = project.patch("beta")
    patch.write_bytes(patch.read_bytes().replace(b"and more", b"and much more"))
    text = patch.read_text()
    start = text.index("index ")
    patch.write_text(text[:start] + text[text.index("\n", start) + 1 :])
    same = run("range-diff", "../old:alpha", "alpha", "--json", cwd=project.folder)
    assert same.code == 0, same.out
    assert same.json["equal"] is True
    other = run("range-diff", "../old:beta", "beta", "--json", cwd=project.folder)
    assert other.json["equal"] is False
    assert "and much more" in other.json["range_diff"]
    whole = run("range-diff", tmp_path / "old", ".", "--json", cwd=project.folder)
    assert whole.json["equal"] is False
    old, new = ("..".join(pair) for pair in (whole.json["old"], whole.json["new"]))
    commits = run("range-diff", old, new, "--json", cwd=project.folder)
    assert commits.json["range_diff"] == whole.json["range_diff"]


def test_range_diff_is_not_misled_by_subjects(tmp_path: Path) -> None:
    project = Project(tmp_path / "p").base()
    project.add("a", ("see 2: x > y and 3: a < b\n", {"README.md": "1\n"})).save()
    done = run("range-diff", "a", "a", "--json", cwd=project.folder)
    assert done.json["equal"] is True


def test_show_tells_reason_state_and_patches(project: Project) -> None:
    shown = run("show", "alpha", "--json", cwd=project.folder).json
    assert shown["reason"] == "because of alpha"
    assert shown["patches"] == 2
    assert shown["files"][0] == {
        "patch": "0001-alpha-change-line-10.patch",
        "subject": "alpha: change line 10",
        "author": "Ada Lövelace <ada@example.org>",
        "paths": ["pkg/core.py"],
        "added": 1,
        "removed": 1,
    }
    text = run("show", cwd=project.folder).out
    assert "alpha" in text
    assert "gamma" in text


@pytest.mark.parametrize("link", ["patches/gamma", "patches"])
def test_nothing_is_written_through_a_link_out(tmp_path: Path, link: str) -> None:
    project = three_sets(tmp_path / "project")
    outside = tmp_path / "outside"
    (project.folder / link).rename(outside)
    (project.folder / link).symlink_to(outside)
    before = files_below(outside)
    commits = ("--from", project.repo.path, "HEAD~2..HEAD")
    found = run("export", "gamma", *commits, "-C", project.folder, "--json")
    assert found.code == 3
    assert found.json["error"]["kind"] == "outside-project"
    assert files_below(outside) == before
