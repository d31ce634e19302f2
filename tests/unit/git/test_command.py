# SPDX-License-Identifier: Apache-2.0
"""Git processes: nothing of the caller's environment gets through, and none is left."""

import errno
import os
import signal
import subprocess
from pathlib import Path

import pytest
from support import Repo, git

from stackctl.errors import ExitCode, UsageError
from stackctl.git import command
from stackctl.git.command import (
    DamagedObjectError,
    GitCommandError,
    HermeticGit,
    disk_problem,
    git_version,
)


def child_environment() -> dict[str, str]:
    """Return the variables that a git process sees, by git's own alias mechanism."""
    out = HermeticGit().run("-c", "alias.env=!env -0", "env")
    pairs = (item.split("=", 1) for item in out.decode().split("\0") if item)
    return dict(pairs)


@pytest.fixture(autouse=True)
def _fresh_programs() -> None:
    command._programs.cache_clear()


def test_the_environment_is_a_fixed_list(
    monkeypatch: pytest.MonkeyPatch, hostile: Path
) -> None:
    monkeypatch.setenv("GIT_TRACE", "1")
    monkeypatch.setenv("GIT_WORK_TREE", "/somewhere")
    monkeypatch.setenv("LD_PRELOAD_X", "x")
    monkeypatch.setenv("PYTHONPATH", "/x")
    seen = child_environment()
    known = set(command._ENVIRONMENT) | {"PATH", "PWD", "SHLVL", "_", "OLDPWD"}
    # Git itself tells an alias where it was called.
    known |= {"GIT_EXEC_PATH", "GIT_PREFIX", "GIT_CONFIG_PARAMETERS"}
    assert seen.keys() <= known
    assert seen["LC_ALL"] == "C"
    assert seen["TZ"] == "UTC"
    assert seen["HOME"] == os.devnull


def test_no_configuration_of_the_user_is_read(hostile: Path, tmp_path: Path) -> None:
    question = ["git", "config", "--get", "diff.noprefix"]
    spoilt = subprocess.run(question, cwd=tmp_path, capture_output=True, check=True)
    assert spoilt.stdout == b"true\n"
    names = HermeticGit().run("config", "--list", "--name-only").decode().split()
    allowed = {option.split("=")[0].lower() for option in command._OPTIONS}
    assert set(names) <= allowed


def test_hooks_of_a_repository_do_not_run(tmp_path: Path) -> None:
    repo = Repo(tmp_path / "r")
    commit = repo.commit("x", {"f": "1"})
    hook = repo.path / ".git/hooks/reference-transaction"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text(f"#!/bin/sh\ntouch '{tmp_path}/ran'\n")
    hook.chmod(0o755)
    git("update-ref", "refs/heads/a", commit, cwd=repo.path)
    assert (tmp_path / "ran").exists()
    (tmp_path / "ran").unlink()
    HermeticGit(repo.path / ".git").run("update-ref", "refs/heads/b", commit)
    assert not (tmp_path / "ran").exists()


def test_the_network_variant_has_the_users_proxies_and_credentials(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("https_proxy", "http://proxy.example:1")
    monkeypatch.setenv("GIT_DIR", "/nowhere")
    (tmp_path / ".gitconfig").write_text("[credential]\n\thelper = store\n")
    git = HermeticGit(network=True)
    assert git.text("config", "credential.helper") == "store"
    out = git.run("-c", "alias.env=!env", "env").decode()
    assert "https_proxy=http://proxy.example:1" in out
    assert "GIT_DIR=/nowhere" not in out


def test_a_failure_carries_what_git_said() -> None:
    with pytest.raises(GitCommandError, match="not-a-command") as error:
        HermeticGit().run("not-a-command")
    assert error.value.status
    assert error.value.exit_code == ExitCode.INTERNAL
    assert b"not-a-command" in error.value.stderr


def test_large_input_and_output_do_not_deadlock(tmp_path: Path) -> None:
    repo = Repo(tmp_path / "r")
    lines = b"".join(b"%040d\n" % n for n in range(100_000))
    out = HermeticGit(repo.path / ".git").run("cat-file", "--batch-check", stdin=lines)
    assert out.count(b" missing\n") == 100_000


def test_git_that_ends_without_reading_its_input_is_no_crash() -> None:
    status, _, _ = HermeticGit().call("not-a-command", stdin=b"x" * 5_000_000)
    assert status


def test_no_process_is_left_when_the_caller_is_interrupted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[subprocess.Popen[bytes]] = []
    start = HermeticGit.start

    def remember(self: HermeticGit, *args: str, **more: object) -> object:
        process = start(self, *args, **more)  # type: ignore[arg-type]
        started.append(process)
        return process

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    def communicate(self: subprocess.Popen[bytes], *args: bytes) -> object:
        # Only from here on: before, nobody has the process to end it.
        signal.setitimer(signal.ITIMER_REAL, 0.3)
        return talk(self, *args)

    talk = subprocess.Popen.communicate
    monkeypatch.setattr(HermeticGit, "start", remember)
    monkeypatch.setattr(subprocess.Popen, "communicate", communicate)
    old = signal.signal(signal.SIGALRM, interrupt)
    try:
        with pytest.raises(KeyboardInterrupt):
            HermeticGit().run("-c", "alias.wait=!sleep 60", "wait")
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, old)
    assert started[0].returncode is not None
    for pipe in (started[0].stdin, started[0].stdout, started[0].stderr):
        if pipe is not None:
            pipe.close()


def test_the_version_is_a_tuple() -> None:
    assert git_version() >= command.MINIMUM_GIT


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("git version 2.20.1", "old-git"),
        ("git version 1.9", "old-git"),
        ("git version unknown", "bad-git"),
        ("hello", "bad-git"),
        ("", "bad-git"),
    ],
)
def test_an_old_or_odd_git_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, kind: str
) -> None:
    _fake_git(tmp_path, f"echo '{text}'")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    # Whatever is asked of it: an old one gives wrong answers, or errors of its own.
    for ask in (git_version, lambda: HermeticGit().run("hash-object", "--stdin")):
        with pytest.raises(UsageError) as error:
            ask()
        assert error.value.kind == kind
    assert "2.39" in (error.value.hint or "")


def _fake_git(folder: Path, script: str) -> None:
    path = folder / "git"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def test_a_missing_git_is_a_clear_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UsageError, match="not found on PATH"):
        HermeticGit().run("version")
    command._programs.cache_clear()


def test_a_relative_path_entry_is_ours_and_not_the_childs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bin").mkdir()
    _fake_git(tmp_path / "bin", "echo git version 2.39.5.fake; pwd")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"bin:{os.environ['PATH']}")
    try:
        assert HermeticGit().text("version").splitlines()[0].endswith("fake")
    finally:
        command._programs.cache_clear()


@pytest.mark.parametrize(
    ("status", "stderr", "number"),
    [
        (128, b"fatal: write error: No space left on device\n", errno.ENOSPC),
        (1, b"error: unable to write: Disk quota exceeded\n", errno.EDQUOT),
        (-signal.SIGXFSZ, b"", errno.EFBIG),
        (1, b"error: patch failed: f:1\n", None),
    ],
)
def test_a_full_disk_is_told_from_other_failures(
    status: int, stderr: bytes, number: int | None
) -> None:
    problem = disk_problem(status, stderr)
    assert (problem.errno if problem else None) == number


def test_a_damaged_object_is_told_from_other_failures(tmp_path: Path) -> None:
    repo = Repo(tmp_path / "repo")
    repo.commit("x\n", {"f": "some text\n"})
    repo.git("repack", "-adq")
    (pack,) = (repo.path / ".git/objects/pack").glob("*.pack")
    data = bytearray(pack.read_bytes())
    data[20:-20] = bytes(byte ^ 0x55 for byte in data[20:-20])
    pack.chmod(0o600)
    pack.write_bytes(data)
    with pytest.raises(DamagedObjectError) as error:
        HermeticGit(repo.path / ".git").run("cat-file", "-p", repo.head)
    assert error.value.kind == "bad-object"
    assert error.value.exit_code == 4
    assert error.value.where == {"file": str(repo.path / ".git")}
    assert error.value.hint
    # Who takes a failure for git's answer must not take this one.
    assert not isinstance(error.value, GitCommandError)
    with pytest.raises(GitCommandError) as other:
        HermeticGit(repo.path / ".git").run("cat-file", "-p", "0" * 40)
    assert other.value.kind == "git-failed"
