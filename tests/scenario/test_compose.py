# SPDX-License-Identifier: Apache-2.0
"""A team composes its series: whole, in parts, into folders and repositories."""

import os
from pathlib import Path

import pytest
from support import Project, Repo, files_below, git, hostile_home, run, three_sets

FILES_AFTER = {"gamma": "Other.", "beta": "line forty", "alpha": "line ten"}


def content(out: Path) -> str:
    return (out / "README.md").read_text() + (out / "pkg/core.py").read_text()


@pytest.mark.parametrize(
    ("options", "sets"),
    [
        ([], "alpha beta gamma"),
        (["--base-only"], ""),
        (["--upto", "alpha"], "alpha"),
        (["--upto", "beta"], "alpha beta"),
        (["--only", "gamma"], "gamma"),
        (["--only", "beta"], "alpha beta"),
        (["--only", "gamma", "--only", "alpha"], "alpha gamma"),
        (["--only", "gamma, alpha"], "alpha gamma"),
        (["--without", "gamma"], "alpha beta"),
        (["--without", "alpha,beta"], "gamma"),
    ],
)
def test_a_selection_holds_its_sets_and_no_others(
    project: Project, tmp_path: Path, options: list[str], sets: str
) -> None:
    out = tmp_path / "out"
    done = run("compose", *options, "--json", "--out", out, cwd=project.folder)
    assert done.code == 0, done.err
    steps = [step["set"] for step in done.json["steps"]]
    assert list(dict.fromkeys(steps)) == sets.split()
    for name, mark in FILES_AFTER.items():
        assert (mark in content(out)) is (name in sets.split())
    assert (out / "pkg/new.py").exists() is ("alpha" in sets)
    # A subset has its own id, and is the same however it is asked for.
    again = run("compose", *options, "--json", cwd=project.folder)
    assert again.json["composition"] == done.json["composition"]
    git("init", "-q", str(tmp_path / "check"))
    work = ("--git-dir", str(tmp_path / "check/.git"), "--work-tree", str(out))
    git(*work, "add", "-A", "-f", cwd=out)
    assert git(*work, "write-tree").decode().strip() == done.json["tree"]


def test_a_required_set_is_not_left_out_without_force(project: Project) -> None:
    refused = run("compose", "--without", "alpha", "--json", cwd=project.folder)
    assert refused.code == 2
    assert refused.json["error"]["kind"] == "required-set"
    assert refused.json["error"]["where"] == {"set": "beta"}
    forced = run(
        "compose", "--without", "alpha", "--force", "--json", cwd=project.folder
    )
    assert forced.code == 0
    assert [step["set"] for step in forced.json["steps"]] == ["beta", "gamma"]


def test_commits_are_the_authors_under_the_committer_rule(project: Project) -> None:
    target = Repo(project.folder.parent / "target")
    target.commit("unrelated\n", {"x": "y"})
    done = run(
        "compose",
        "--json",
        "--into",
        target.path,
        "--ref",
        "refs/heads/fork",
        cwd=project.folder,
    )
    assert done.code == 0, done.err
    assert target.git("rev-parse", "fork") == done.json["commit"]
    commits = target.git("rev-list", "--reverse", "fork", "^" + project.base_commit)
    assert commits.split() == [step["commit"] for step in done.json["steps"]]
    theirs = project.repo.git("rev-list", "--reverse", "base..HEAD").split()
    for ours, original in zip(commits.split(), theirs, strict=True):
        form = ("show", "--no-patch", "--date=raw", "--format=%T|%an|%ae|%ad|%B")
        assert target.git(*form, ours) == project.repo.git(*form, original)
        who = target.git(
            "show", "--no-patch", "--date=raw", "--format=%cn <%ce> %cd", ours
        )
        date = target.git("show", "--no-patch", "--date=raw", "--format=%ad", ours)
        assert who == f"stackctl <stackctl@localhost> {date}"
        assert target.git("show", "--no-patch", "--format=%G?", ours) == "N"
    assert target.git("rev-parse", "fork~4") == project.base_commit
    target.git("fsck", "--strict")
    assert target.git("status", "--porcelain") == ""


def test_patch_ids_are_gits(project: Project) -> None:
    done = run("compose", "--json", cwd=project.folder)
    commits = project.repo.git("rev-list", "--reverse", "base..HEAD").split()
    for step, commit in zip(done.json["steps"], commits, strict=True):
        diff = git(
            "diff-tree",
            "-p",
            "--full-index",
            "--no-renames",
            commit,
            cwd=project.repo.path,
        )
        expected = git("patch-id", "--stable", stdin=diff).split()[0].decode()
        assert step["patch_id"] == expected


def test_patch_ids_do_not_depend_on_ids_inside_of_files(
    make_series: object, tmp_path: Path
) -> None:
    """A file may hold the id of a commit of the series, even at the start of a line."""
    project = Project(tmp_path / "p").base()
    project.add("a", ("one\n", {"README.md": "1\n"})).save()
    first = run("compose", "--json", cwd=project.folder).json["steps"][0]
    project.add("b", ("two\n", {"README.md": f"1\r{first['commit']}\n"})).save()
    steps = run("compose", "--json", cwd=project.folder).json["steps"]
    assert steps[0]["patch_id"] == first["patch_id"]
    run("cache", "clean", cwd=project.folder)
    again = run("compose", "--json", cwd=project.folder).json["steps"]
    assert [s["patch_id"] for s in again] == [s["patch_id"] for s in steps]
    assert again[0]["patch_id"] == first["patch_id"]


def test_out_takes_a_new_or_empty_folder_only(project: Project, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert run("compose", "--out", out, cwd=project.folder).code == 0
    before = files_below(out)
    (out / "mine").write_text("keep")
    refused = run("compose", "--out", out, "--json", cwd=project.folder)
    assert (refused.code, refused.json["error"]["kind"]) == (2, "out-exists")
    assert files_below(out) == before | {"mine": (0o644, b"keep")}
    assert sorted(path.name for path in tmp_path.glob("*out*")) == ["out"]
    (tmp_path / "empty").mkdir()
    assert run("compose", "--out", "../empty", cwd=project.folder).code == 0
    assert files_below(tmp_path / "empty") == before


def test_a_path_that_is_no_text(project: Project, tmp_path: Path) -> None:
    name = os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9")
    done = run("compose", "--json", "--out", name, cwd=project.folder)
    assert done.code == 0
    assert done.json["out"]["path"] == name


@pytest.mark.parametrize("umask", [0o002, 0o077])
def test_modes_do_not_follow_the_umask(
    project: Project, tmp_path: Path, umask: int
) -> None:
    out = tmp_path / "out"
    done = run("compose", "--out", out, cwd=project.folder, umask=umask)
    assert done.code == 0
    modes = {mode for mode, _ in files_below(out).values()}
    assert modes == {0o644, 0o120000}
    assert out.stat().st_mode & 0o777 == 0o755


@pytest.mark.parametrize("kind", ["git", "path"])
def test_a_base_of_each_local_kind(tmp_path: Path, kind: str) -> None:
    project = three_sets(tmp_path / "p", kind)
    done = run("compose", "--json", cwd=project.folder)
    assert done.code == 0, done.out
    assert done.json["tree"] == project.trees[-1]
    assert done.json["base"]["tree"] == project.base_tree
    if kind == "path":
        # A base that is no commit becomes one by rule, the same everywhere.
        raw = (
            f"tree {project.base_tree}\nauthor stackctl <stackctl@localhost> 0 +0000\n"
            f"committer stackctl <stackctl@localhost> 0 +0000\n\n"
            f"base {project.base_tree}\n"
        )
        expected = git("hash-object", "-t", "commit", "--stdin", stdin=raw.encode())
        assert done.json["base"]["commit"] == expected.decode().strip()
    else:
        assert done.json["base"]["commit"] == project.base_commit


def test_a_changed_patch_recomposes_from_there_on(project: Project) -> None:
    first = run("compose", "--json", cwd=project.folder).json
    assert {step["how"] for step in first["steps"]} == {"native"}
    second = run("compose", "--json", cwd=project.folder).json
    assert {step["how"] for step in second["steps"]} == {"cached"}
    for volatile in ("ns", "steps"):
        first.pop(volatile), second.pop(volatile)
    assert first == second
    patch = project.patch("beta")
    patch.write_text(patch.read_text().replace("beta: more", "beta: reworded"))
    third = run("compose", "--json", cwd=project.folder).json
    how = [step["how"] for step in third["steps"]]
    assert how == ["cached", "cached", "native", "native"]
    assert third["tree"] == first["tree"]
    assert third["commit"] != first["commit"]


def test_a_patch_file_with_several_messages(tmp_path: Path) -> None:
    project = Project(tmp_path / "p").base()
    project.add("a", ("one\n", {"README.md": "1\n"}), ("two\n", {"README.md": "2\n"}))
    project.save()
    folder = project.folder / "patches/a"
    both = b"".join(path.read_bytes() for path in sorted(folder.iterdir()))
    for path in folder.iterdir():
        path.unlink()
    (folder / "0001-both.patch").write_bytes(both)
    done = run("lock", "--json", cwd=project.folder)
    assert done.code == 0, done.out
    assert [step["patch"] for step in done.json["steps"]] == [
        "0001-both.patch#1",
        "0001-both.patch#2",
    ]
    assert [step["tree"] for step in done.json["steps"]] == project.trees


def test_a_superseded_set_is_recorded_and_adds_nothing(project: Project) -> None:
    series = project.folder / "series.toml"
    series.write_text(
        series.read_text() + 'disposition = "superseded"\nwhy = "upstream has it"\n'
    )
    done = run("compose", "--json", cwd=project.folder)
    assert done.code == 0, done.out
    last = done.json["steps"][-1]
    assert (last["set"], last["disposition"]) == ("gamma", "superseded")
    assert done.json["tree"] == project.trees[2] == last["tree"]


def test_the_hostile_user_gets_the_same_bytes(project: Project, tmp_path: Path) -> None:
    plain = run("compose", "--json", "--out", tmp_path / "a", cwd=project.folder).json
    home = hostile_home(tmp_path)
    environment = {
        "HOME": str(home),
        "XDG_CONFIG_HOME": str(home / ".config"),
        "STACKCTL_CACHE_DIR": str(tmp_path / "cache 2"),
        "LC_ALL": "tr_TR.UTF-8",
        "TZ": "Pacific/Chatham",
        "GIT_DIR": "/nowhere",
        "GIT_CONFIG_COUNT": "1",
        "GIT_CONFIG_KEY_0": "diff.noprefix",
        "GIT_CONFIG_VALUE_0": "true",
        "GIT_AUTHOR_NAME": "Wrong",
        "GIT_COMMITTER_DATE": "1 +0000",
        "GIT_INDEX_FILE": "/nowhere/index",
        "GIT_OBJECT_DIRECTORY": "/nowhere/o",
        "GIT_EXTERNAL_DIFF": str(home / "hooks/trap"),
        "GIT_DIFF_OPTS": "-u9",
        "PYTHONUTF8": "0",
        "PYTHONHASHSEED": "7",
    }
    hostile = run(
        "compose",
        "--json",
        "--out",
        tmp_path / "b",
        cwd=project.folder,
        env=environment,
        umask=0o077,
    )
    assert hostile.code == 0, hostile.err + hostile.out
    for document in (plain, hostile.json):
        document.pop("ns"), document.pop("out")
    assert hostile.json | {"ns": 0, "out": 0} == plain | {"ns": 0, "out": 0}
    assert files_below(tmp_path / "a") == files_below(tmp_path / "b")
    locks = []
    for extra in ({}, environment):
        lock = project.folder / "series.lock"
        lock.unlink(missing_ok=True)
        assert run("lock", cwd=project.folder, env=extra, umask=0o077).code == 0
        locks.append((lock.read_bytes(), lock.stat().st_mode & 0o777))
    assert locks[0] == locks[1]
    assert locks[0][1] == 0o644
    assert not (tmp_path / "trap-was-run").exists()


def test_attributes_of_the_base_change_nothing(tmp_path: Path) -> None:
    """`.gitattributes` and `.gitignore` of the base are files like any other."""
    project = Project(tmp_path / "p")
    info = project.repo.path / ".git/info"
    info.mkdir(exist_ok=True)
    (info / "attributes").write_text("* -text !eol !ident !filter\n")
    project.base(
        {
            ".gitattributes": "* text eol=crlf ident filter=lfs export-ignore\n",
            ".gitignore": "*\n",
            "a.txt": "$Id$\none\ntwo\n",
            "b.txt": b"x\r\ny\r\n",
        }
    )
    project.add("a", ("edit\n", {"a.txt": "$Id$\none\n2 \n", "b.txt": b"x\r\nz\r\n"}))
    project.save()
    done = run("lock", "--json", cwd=project.folder)
    assert done.code == 0, done.out
    assert done.json["tree"] == project.trees[-1]
    run("compose", "--out", tmp_path / "out", cwd=project.folder)
    assert (tmp_path / "out/a.txt").read_bytes() == b"$Id$\none\n2 \n"
    assert (tmp_path / "out/b.txt").read_bytes() == b"x\r\nz\r\n"


def test_a_person_reads_it_on_eighty_columns(project: Project) -> None:
    for options in ([], ["--base-only"]):
        done = run("compose", *options, cwd=project.folder)
        assert done.code == 0 and max(map(len, done.out.splitlines())) <= 80
    steps = run("compose", "--json", cwd=project.folder).json["steps"]
    shown = run("compose", cwd=project.folder).out.splitlines()
    for step in steps:
        assert f"{step['tree'][:12]}    {step['patch']}" in shown
        assert f"{'':12}  {step['set']}" in shown
    narrow = run("compose", cwd=project.folder, env={"COLUMNS": "32"}).out.splitlines()
    lines = narrow[: narrow.index("")]
    assert max(map(len, lines[1:])) <= 32 and len(lines) == shown.index("")
    assert any(line.endswith("...") for line in lines)
