# SPDX-License-Identifier: Apache-2.0
"""Conflict resolutions: written once, reused wherever the conflict returns."""

import shutil
from pathlib import Path

import pytest
from pulls import Upstream, answer, lines
from support import git, run


@pytest.fixture
def upstream(tmp_path: Path) -> Upstream:
    return Upstream.make(tmp_path / "upstream")


def content(cache: Path, tree: str, path: str) -> bytes:
    return git(
        "--git-dir", str(cache / "store.git"), "cat-file", "-p", f"{tree}:{path}"
    )


def work(project: Path, name: str = "pull-2") -> Path:
    return project / ".stackctl" / "resolve" / name


def test_edit_and_resolve_then_reuse(
    upstream: Upstream, tmp_path: Path, hermetic: Path
) -> None:
    upstream.pull(1, {"a.py": lines(_10="one")})
    upstream.pull(2, {"a.py": lines(_10="two"), "b.py": lines(_1="b")})
    project = upstream.series(tmp_path / "p", upstream.set(1), upstream.set(2))
    first = answer("resolve", project, "pull-2", code=5)
    (conflict,) = first["conflicts"]
    assert conflict["path"] == "a.py"
    draft = work(project) / "a.py"
    assert b"<<<<<<<" in draft.read_bytes()
    # Unedited, it is no resolution.
    assert answer("resolve", project, "pull-2", code=5)["written"] == []
    draft.write_text(lines(_10="one and two"))
    done = answer("resolve", project, "pull-2")
    (name,) = done["written"]
    assert done["resolutions"] == [name]
    assert not work(project).exists()
    made = answer("lock", project)
    assert made["resolutions"] == [name] and made["unused_resolutions"] == []
    assert content(hermetic, made["tree"], "a.py") == lines(_10="one and two").encode()
    assert content(hermetic, made["tree"], "b.py") == lines(_1="b").encode()
    lock = (project / "series.lock").read_text()
    assert name in lock.partition('"made_by"')[2]
    assert answer("show", project)["resolutions"] == [name]
    assert answer("show", project, "pull-2")["resolutions"] == [name]
    assert answer("show", project, "pull-1")["resolutions"] == []
    # Known steps name it too, and another machine makes the same.
    assert answer("compose", project)["resolutions"] == [name]
    shutil.rmtree(hermetic)
    again = answer("compose", project, "--locked")
    assert again["composition"] == made["composition"]
    # In the other order the same two files meet: the same resolution serves.
    turned = upstream.series(tmp_path / "q", upstream.set(2), upstream.set(1))
    shutil.copytree(project / "patches", turned / "patches")
    other = answer("compose", turned)
    assert other["resolutions"] == [name] and other["tree"] == made["tree"]


def test_without_its_resolution_the_conflict_is_back(
    upstream: Upstream, tmp_path: Path
) -> None:
    upstream.pull(1, {"a.py": lines(_10="one")})
    upstream.pull(2, {"a.py": lines(_10="two")})
    upstream.pull(3, {"b.py": lines(_10="three")})
    project = upstream.series(
        tmp_path / "p", upstream.set(1), upstream.set(2), upstream.set(3)
    )
    answer("resolve", project, "pull-2", "--take", "theirs")
    theirs = answer("compose", project)
    (file,) = (project / "patches/resolutions").iterdir()
    kept = file.read_bytes()
    file.unlink()
    answer("compose", project, code=5)
    answer("resolve", project, "pull-2", "--take", "ours")
    ours = answer("compose", project)
    assert ours["tree"] != theirs["tree"]
    # Only a part is composed with the first one again: the rest must not be recalled
    # from the second.
    file.write_bytes(kept)
    answer("compose", project, "--upto", "pull-2")
    assert answer("compose", project)["tree"] == theirs["tree"]


def test_unused_resolutions_are_reported(upstream: Upstream, tmp_path: Path) -> None:
    upstream.pull(1, {"a.py": lines(_10="one")})
    upstream.pull(2, {"a.py": lines(_10="two")})
    project = upstream.series(tmp_path / "p", upstream.set(1), upstream.set(2))
    (name,) = answer("resolve", project, "pull-2", "--take", "ours")["written"]
    upstream.series(project, upstream.set(1))
    assert answer("compose", project)["unused_resolutions"] == [name]
    assert answer("show", project)["unused_resolutions"] == [name]
    assert "unused" in run("show", "-C", project).out


def test_binary_and_removed_files(
    upstream: Upstream, tmp_path: Path, hermetic: Path
) -> None:
    upstream.pull(1, {"data.bin": b"\0one\xff", "b.py": lines(_4="x")})
    upstream.pull(2, {"data.bin": b"\0two\xff", "b.py": None})
    project = upstream.series(tmp_path / "p", upstream.set(1), upstream.set(2))
    open_ = answer("resolve", project, "pull-2", code=5)
    assert {each["path"] for each in open_["conflicts"]} == {"data.bin", "b.py"}
    folder = work(project)
    assert (folder / "data.bin.ours").read_bytes() == b"\0one\xff"
    assert (folder / "data.bin.theirs").read_bytes() == b"\0two\xff"
    assert not (folder / "b.py").exists()
    (folder / "data.bin").write_bytes(b"\0both\xff\xfe")
    left = answer("resolve", project, "pull-2", code=5)
    assert [each["path"] for each in left["conflicts"]] == ["b.py"]
    answer("resolve", project, "pull-2", "--remove", "b.py")
    made = answer("lock", project)
    assert content(hermetic, made["tree"], "data.bin") == b"\0both\xff\xfe"
    listed = git(
        "--git-dir", str(hermetic / "store.git"), "ls-tree", "-r", "--name-only",
        made["tree"],
    ).decode()  # fmt: skip
    assert "b.py" not in listed.split()
    for file in (project / "patches/resolutions").iterdir():
        assert file.read_bytes().isascii()


def test_conflicts_of_picked_commits_come_one_after_the_other(
    upstream: Upstream, tmp_path: Path
) -> None:
    upstream.pull(1, {"a.py": lines(_10="one")})
    head = upstream.pull(2, {"a.py": lines(_10="two")}, {"a.py": lines(_10="three")})
    first = upstream.repo.git("rev-parse", f"{head}^")
    project = upstream.series(
        tmp_path / "p", upstream.set(1), upstream.set(2, commits=(first, head))
    )
    assert answer("resolve", project, "pull-2", code=5)["commit"] == first
    (work(project) / "a.py").write_text(lines(_10="two"))
    answer("resolve", project, "pull-2")
    assert answer("lock", project)["resolutions"]


def test_bad_resolution_files_are_named(upstream: Upstream, tmp_path: Path) -> None:
    upstream.pull(1, {"a.py": lines(_10="one")})
    upstream.pull(2, {"a.py": lines(_10="two")})
    project = upstream.series(tmp_path / "p", upstream.set(1), upstream.set(2))
    answer("resolve", project, "pull-2", "--take", "ours")
    (file,) = (project / "patches/resolutions").iterdir()
    good = file.read_bytes()
    for bad in (
        b"", b"x\n\ny", good + b"more", good.replace(b"ours ", b"our "),
        good.replace(b"encoding text", b"encoding base64"),
    ):  # fmt: skip
        file.write_bytes(bad)
        error = answer("compose", project, code=3)["error"]
        assert error["kind"] == "bad-resolution", bad
        assert error["where"]["file"] == str(file)
    file.write_bytes(good)
    shutil.copy(file, file.with_name("twice.resolution"))
    error = answer("compose", project, code=3)["error"]
    assert error["kind"] == "ambiguous-resolution"


def test_what_cannot_be_resolved_is_said(upstream: Upstream, tmp_path: Path) -> None:
    upstream.pull(1, {"a.py": None, "a.py/inner": "x\n"})
    upstream.pull(2, {"a.py": lines(_10="two")})
    project = upstream.series(tmp_path / "p", upstream.set(1), upstream.set(2))
    error = answer("resolve", project, "pull-2", code=5)["error"]
    assert "rebased" in error["hint"]
    folder = tmp_path / "q"
    (folder / "patches/own").mkdir(parents=True)
    own = '[[set]]\nname = "own"\npatches = "patches/own"\n'
    project = upstream.series(folder, own)
    assert answer("resolve", project, "own", code=2)["error"]["kind"] == "not-pinned"


def test_no_resolution_is_written_through_a_link_out(tmp_path: Path) -> None:
    from stackctl.compose.resolutions import Resolution, Resolutions
    from stackctl.errors import InputError
    from stackctl.git.merge import Conflict
    from stackctl.git.objects import Entry

    project, outside = tmp_path / "project", tmp_path / "outside"
    (project / "patches").mkdir(parents=True)
    outside.mkdir()
    (project / "patches/resolutions").symlink_to(outside)
    ours, theirs = Entry(0o100644, b"\1" * 20), Entry(0o100644, b"\2" * 20)
    conflict = Conflict(b"f", None, ours, theirs)
    with pytest.raises(InputError) as caught:
        Resolutions(project).save(Resolution(conflict, None, b""))
    assert caught.value.kind == "outside-project"
    assert not list(outside.iterdir())


@pytest.mark.parametrize("link", [".stackctl", ".stackctl/resolve/pull-2/d"])
def test_work_files_are_not_written_through_a_link_out(
    upstream: Upstream, tmp_path: Path, link: str
) -> None:
    upstream.on(upstream.base)
    upstream.base = upstream.repo.commit("folder\n", {"d/f": lines()})
    upstream.pull(1, {"d/f": lines(_10="one")})
    upstream.pull(2, {"d/f": lines(_10="two")})
    project = upstream.series(tmp_path / "p", upstream.set(1), upstream.set(2))
    outside = tmp_path / "outside"
    (outside / "resolve/pull-2").mkdir(parents=True)
    (project / link).parent.mkdir(parents=True, exist_ok=True)
    (project / link).symlink_to(outside)
    before = sorted(outside.rglob("*"))
    found = answer("resolve", project, "pull-2", code=3)
    assert found["error"]["kind"] == "outside-project"
    assert sorted(outside.rglob("*")) == before
