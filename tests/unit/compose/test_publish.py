# SPDX-License-Identifier: Apache-2.0
"""Commits into somebody's repository: one ref moves, nothing else happens."""

from pathlib import Path

import pytest
from support import Repo, git, run, three_sets

from stackctl.compose.publish import publish_commit, repository_of
from stackctl.errors import InputError, UsageError
from stackctl.git.store import Store


@pytest.fixture
def source(tmp_path: Path) -> Repo:
    repo = Repo(tmp_path / "source")
    repo.commit("base\n", {"f": "1"})
    repo.commit("more\n", {"f": "2"})
    return repo


def publish(source: Repo, target: Path, ref: str) -> None:
    store = Store(source.path / ".git")
    publish_commit(store, source.head, target, ref)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["bare", "work tree", "git folder", "sub-folder"])
def test_every_way_to_name_a_repository(
    source: Repo, tmp_path: Path, kind: str
) -> None:
    target = tmp_path / "target"
    git("init", "-q", *(["--bare"] if kind == "bare" else []), str(target))
    place = target
    if kind == "git folder":
        place = target / ".git"
    elif kind == "sub-folder":
        place = target / "a"
        place.mkdir()
    publish(source, place, "refs/heads/fork")
    assert git("rev-parse", "fork", cwd=target).decode().strip() == source.head
    git("fsck", "--strict", cwd=target)
    publish(source, place, "refs/heads/fork")


def test_no_hook_runs_and_no_setting_matters(source: Repo, tmp_path: Path) -> None:
    target = tmp_path / "target"
    git("init", "-q", str(target))
    (target / ".git/hooks").mkdir(exist_ok=True)
    for name in ("reference-transaction", "post-update", "update", "post-merge"):
        hook = target / ".git/hooks" / name
        hook.write_text(f"#!/bin/sh\ntouch '{tmp_path}/ran'\nexit 1\n")
        hook.chmod(0o755)
    for key, value in {
        "core.fsmonitor": f"{target}/.git/hooks/update", "fetch.prune": "true",
        "gc.auto": "1", "fetch.writeCommitGraph": "true", "core.logAllRefUpdates":
        "always", "transfer.fsckObjects": "true", "core.sshCommand": "false",
    }.items():  # fmt: skip
        git("config", key, value, cwd=target)
    publish(source, target, "refs/heads/fork")
    assert not (tmp_path / "ran").exists()
    assert git("for-each-ref", "--format=%(refname)", cwd=target) == (
        b"refs/heads/fork\n"
    )
    assert not (target / ".git/FETCH_HEAD").exists()


@pytest.mark.parametrize(
    "ref", ["fork", "refs/heads/a..b", "refs/heads/", "-x", "refs/heads/x.lock", ""]
)
def test_a_ref_has_a_full_name(source: Repo, tmp_path: Path, ref: str) -> None:
    git("init", "-q", "--bare", str(tmp_path / "target"))
    with pytest.raises(UsageError, match="not the full name"):
        publish(source, tmp_path / "target", ref)


def test_a_checked_out_branch_is_refused_in_any_work_tree(
    source: Repo, tmp_path: Path
) -> None:
    target = Repo(tmp_path / "target")
    target.commit("x\n", {"f": "1"})
    target.git("worktree", "add", "-q", "-b", "other", str(tmp_path / "second"))
    target.git("branch", "free")
    for ref in ("refs/heads/main", "refs/heads/other"):
        before = target.git("rev-parse", ref)
        with pytest.raises(UsageError, match="checked out"):
            publish(source, target.path, ref)
        assert target.git("rev-parse", ref) == before
    publish(source, target.path, "refs/heads/free")
    assert target.git("rev-parse", "free") == source.head


def test_a_symbolic_ref_is_not_written_through(source: Repo, tmp_path: Path) -> None:
    """It would move what it stands for, which may be checked out."""
    target = Repo(tmp_path / "target")
    target.commit("x\n", {"f": "1"})
    target.git("symbolic-ref", "refs/heads/alias", "refs/heads/main")
    before = target.head
    with pytest.raises(UsageError, match="stands for refs/heads/main"):
        publish(source, target.path, "refs/heads/alias")
    assert target.head == before


def test_a_repository_with_a_bad_configuration_is_said_to_have_one(
    source: Repo, tmp_path: Path
) -> None:
    target = tmp_path / "target"
    git("init", "-q", "--bare", str(target))
    (target / "config").write_text("[core\n")
    with pytest.raises(InputError, match="bad config"):
        publish(source, target, "refs/heads/fork")


def test_what_is_no_repository_is_said_to_be_none(source: Repo, tmp_path: Path) -> None:
    for place in (tmp_path / "missing", tmp_path):
        with pytest.raises(InputError, match="not a git repository"):
            repository_of(place)


def test_a_ref_that_cannot_be_made_is_an_error(source: Repo, tmp_path: Path) -> None:
    target = tmp_path / "target"
    git("init", "-q", "--bare", str(target))
    publish(source, target, "refs/heads/a")
    with pytest.raises(InputError, match="cannot write refs/heads/a/b") as error:
        publish(source, target, "refs/heads/a/b")
    assert "another name" in (error.value.hint or "")


def test_a_shallow_store_reaches_a_repository_that_has_the_base(
    source: Repo, tmp_path: Path
) -> None:
    """A git base is fetched without its history; the fork's repository has it."""
    shallow = tmp_path / "shallow"
    git("clone", "-q", "--depth=1", f"file://{source.path}", str(shallow))
    repo = Repo(shallow)
    top = repo.commit("patch\n", {"g": "3"})
    store = Store(shallow / ".git")
    publish_commit(store, top, source.path, "refs/heads/fork")  # type: ignore[arg-type]
    assert source.git("rev-list", "--count", "fork") == "3"
    assert not (source.path / ".git/shallow").exists()
    empty = tmp_path / "empty"
    git("init", "-q", "--bare", str(empty))
    with pytest.raises(InputError) as error:
        publish_commit(store, top, empty, "refs/heads/fork")  # type: ignore[arg-type]
    assert error.value.kind == "no-history"
    assert git("for-each-ref", cwd=empty) == b""


def test_a_repository_of_sha256_is_a_clear_error(source: Repo, tmp_path: Path) -> None:
    target = tmp_path / "target"
    git("init", "-q", "--bare", "--object-format=sha256", str(target))
    with pytest.raises(InputError, match="sha256 object ids"):
        publish(source, target, "refs/heads/fork")


HOSTILE_SETTINGS = {
    "core.repositoryFormatVersion": "1",
    "core.sshCommand": "{trap}",
    "core.alternateRefsCommand": "{trap}",
    "extensions.partialClone": "evil",
    "remote.evil.url": "{source}",
    "remote.evil.promisor": "true",
    "remote.evil.uploadpack": "{trap}",
    "url.ssh://host/.insteadOf": "/",
}


def hostile_settings(source: Repo, target: Path, trap: Path) -> Path:
    """Name a program wherever a setting of a repository can; return what it leaves."""
    trap.write_text(f"#!/bin/sh\ntouch '{trap}-was-run'\nexit 1\n")
    trap.chmod(0o755)
    for key, value in HOSTILE_SETTINGS.items():
        text = value.format(trap=trap, source=source.path)
        git("config", key, text, cwd=target)
    return trap.with_name(f"{trap.name}-was-run")


def test_settings_of_the_target_run_nothing(source: Repo, tmp_path: Path) -> None:
    target = tmp_path / "target"
    git("clone", "-q", "--shared", str(source.path), str(target))
    ran = hostile_settings(source, target, tmp_path / "trap")
    source.commit("newer\n", {"f": "3"})
    publish(source, target, "refs/heads/fork")
    assert not ran.exists()
    fork = (target / ".git/refs/heads/fork").read_text().strip()
    assert fork == source.head
    assert not list((source.path / ".git/scratch").iterdir())


def test_export_asks_no_program_for_missing_commits(tmp_path: Path) -> None:
    project = three_sets(tmp_path / "project")
    target = tmp_path / "target"
    git("clone", "-q", "--no-hardlinks", str(project.repo.path), str(target))
    for pack in list((target / ".git/objects/pack").glob("*.pack")):
        data = pack.read_bytes()
        for file in pack.parent.iterdir():
            file.unlink()
        git("unpack-objects", "-q", cwd=target, stdin=data)
    gone = project.tips["beta"]
    (target / ".git/objects" / gone[:2] / gone[2:]).unlink()
    ran = hostile_settings(project.repo, target, tmp_path / "trap")
    found = run(
        *("export", "gamma", "--from", target, "HEAD~1..HEAD"),
        *("-C", project.folder, "--json"),
    )
    assert found.code == 4
    assert found.json["error"]["kind"] == "missing-object"
    assert not ran.exists()
