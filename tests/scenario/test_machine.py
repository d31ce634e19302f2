# SPDX-License-Identifier: Apache-2.0
"""The machine misbehaves: full disks, interruptions, and everything at once."""

import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support import (
    ROOT,
    Project,
    files_below,
    git,
    program,
    program_environment,
    three_sets,
    until,
)

LARGE = 3 << 20


def leftovers(*places: Path) -> list[str]:
    return [
        str(path)
        for place in places
        for path in place.rglob("*")
        if path.name.startswith(("tmp_", "scratch-", ".out."))
        or "stackctl-tmp" in path.name
    ]


def start(
    project: Project, *args: str | Path, limit: int | None = None, **env: str
) -> "subprocess.Popen[str]":
    def restrict() -> None:
        # Ctrl-C is ignored in what a shell starts in the background, and stays so.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        if limit is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

    return subprocess.Popen(
        program(*args, "--json"),
        cwd=project.folder,
        env=program_environment(**env),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=restrict,
    )


def finish(process: "subprocess.Popen[str]") -> tuple[int, dict, str]:
    out, err = process.communicate(timeout=300)
    return process.returncode, json.loads(out), err


@pytest.fixture
def large(tmp_path: Path) -> Project:
    """A series whose patch adds a file that needs some room."""
    project = Project(tmp_path / "project").base()
    data = os.urandom(LARGE)
    return project.add("a", ("large\n", {"large.bin": data})).save()


def test_a_file_size_limit_while_composing(large: Project, hermetic: Path) -> None:
    code, document, err = finish(start(large, "compose", limit=1 << 20))
    assert code == 3
    assert document["error"]["hint"]
    assert "Traceback" not in err
    assert leftovers(hermetic, large.folder) == []
    code, document, _ = finish(start(large, "compose"))
    assert (code, document["tree"]) == (0, large.trees[-1])


def test_a_file_size_limit_while_git_applies(large: Project, hermetic: Path) -> None:
    """A full disk is not a conflict, also where git is the one that meets it."""
    patch = large.patch("a")
    text = patch.read_bytes()
    patch.write_bytes(
        text.replace(
            b"diff --git a/large.bin",
            b"diff --git a/README.md b/moved\n"
            b"similarity index 100%\nrename from README.md\n"
            b"rename to moved\ndiff --git a/large.bin",
        )
    )
    code, document, _ = finish(start(large, "compose", limit=1 << 20))
    assert code == 3, document
    assert leftovers(hermetic) == []
    code, document, _ = finish(start(large, "compose"))
    assert code == 0
    assert document["steps"][0]["how"] == "git"


def test_a_file_size_limit_while_writing_the_tree(
    large: Project, tmp_path: Path
) -> None:
    assert finish(start(large, "compose"))[0] == 0
    out = tmp_path / "out"
    code, document, _ = finish(start(large, "compose", "--out", out, limit=1 << 20))
    assert code == 3, document
    assert not out.exists()
    assert leftovers(tmp_path) == []


def test_a_file_size_limit_while_locking_keeps_the_old_lock(large: Project) -> None:
    assert finish(start(large, "lock"))[0] == 0
    lock = large.folder / "series.lock"
    good = lock.read_bytes()
    old = good.replace(b'"schema"', b'"schemb"')
    lock.write_bytes(old)
    code, document, _ = finish(start(large, "lock", limit=len(good) - 50))
    assert code == 3, document
    assert lock.read_bytes() == old
    assert leftovers(large.folder) == []
    assert finish(start(large, "lock"))[0] == 0
    assert lock.read_bytes() == good


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    place = tmp_path / "disk"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(place)]
    try:
        done = subprocess.run(mount, capture_output=True)
    except OSError:
        pytest.skip("there is no mount program")
    if done.returncode:
        pytest.skip("file systems cannot be mounted here")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


def test_a_disk_that_is_really_full(large: Project, tiny_disk: Path) -> None:
    environment = {"STACKCTL_CACHE_DIR": str(tiny_disk / "cache")}
    code, document, err = finish(start(large, "compose", **environment))
    assert code == 3, document
    assert "No space left" in document["error"]["message"]
    assert "STACKCTL_CACHE_DIR" in document["error"]["hint"]
    assert "Traceback" not in err
    assert leftovers(tiny_disk) == []
    out = tiny_disk / "out"
    code, document, _ = finish(start(large, "compose", "--out", out))
    assert code == 3, document
    assert not out.exists()
    assert leftovers(tiny_disk) == []


def test_a_read_only_home_needs_no_cache_folder(
    project: Project, tmp_path: Path
) -> None:
    home = tmp_path / "home"
    home.write_text("not a folder, so nothing can be written below it")
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    environment = {
        "HOME": str(home),
        "STACKCTL_CACHE_DIR": "",
        "XDG_CACHE_HOME": "",
        "TMPDIR": str(temporary),
    }
    code, document, err = finish(start(project, "compose", **environment))
    assert code == 0, document
    assert document["tree"] == project.trees[-1]
    assert err == ""


def test_many_at_once_over_one_cache_and_one_project(
    project: Project, tmp_path: Path, hermetic: Path
) -> None:
    other = three_sets(tmp_path / "other", "path")
    commands = [
        (project, "compose", "--out", tmp_path / "out1"),
        (project, "lock"),
        (project, "lock"),
        (other, "compose", "--out", tmp_path / "out2"),
        (other, "lock"),
        (project, "compose", "--upto", "alpha"),
    ]
    running = [start(*command) for command in commands]
    results = [finish(process) for process in running]
    assert [code for code, _, _ in results] == [0] * len(commands), results
    trees = [document["tree"] for _, document, _ in results]
    assert set(trees[:3]) == {project.trees[-1]}
    assert set(trees[3:5]) == {other.trees[-1]}
    assert trees[5] == project.trees[1]
    # Both projects have the same files, so the folders are the same, too.
    assert files_below(tmp_path / "out1") == files_below(tmp_path / "out2")
    for each in (project, other):
        code, _, _ = finish(start(each, "compose", "--locked"))
        assert code == 0
    assert leftovers(hermetic, project.folder, other.folder, tmp_path) == []
    git("--git-dir", str(hermetic / "store.git"), "fsck", "--strict", "--no-dangling")


def test_a_cache_that_is_cleaned_meanwhile_is_no_wrong_answer(
    project: Project, hermetic: Path
) -> None:
    for _ in range(2):
        composing = [start(project, "compose") for _ in range(2)]
        cleaning = start(project, "cache", "clean")
        assert finish(cleaning)[0] == 0
        for process in composing:
            # Cleaning waits for those who use the store, and they for cleaning.
            code, document, err = finish(process)
            assert (code, document.get("tree")) == (0, project.trees[-1]), err
        code, document, _ = finish(start(project, "compose"))
        assert (code, document["tree"]) == (0, project.trees[-1])


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interruption_unwinds(
    tmp_path: Path, hermetic: Path, number: signal.Signals
) -> None:
    project = Project(tmp_path / "project").base()
    commits = [(f"{n}\n", {"README.md": f"{n}\n"}) for n in range(12)]
    project.add("a", *commits).save()
    # Without ids every patch is git's work: there is time to interrupt.
    for path in (project.folder / "patches/a").iterdir():
        text = path.read_bytes()
        at = text.index(b"index ")
        path.write_bytes(text[:at] + text[text.index(b"\n", at) + 1 :])
    codes = set()
    for delay in (0, 0.1, 0.25, 0.5, 0.8):
        shutil.rmtree(hermetic, ignore_errors=True)
        process = start(project, "compose", "--out", tmp_path / "out")
        # Before it has a cache, Python itself may not have started.
        until((hermetic / "store.git").exists, process)
        time.sleep(delay)
        process.send_signal(number)
        out, err = process.communicate(timeout=300)
        codes.add(process.returncode)
        assert "Traceback" not in err
        if process.returncode == 130:
            document = json.loads(out)
            # It may come when the answer is out and nothing is left to be done.
            if "tree" not in document:
                assert document["error"]["kind"] == "interrupted"
        assert leftovers(hermetic, tmp_path) == []
        if (tmp_path / "out").exists():
            shutil.rmtree(tmp_path / "out")
    assert 130 in codes
    code, document, _ = finish(start(project, "compose"))
    assert (code, document["tree"]) == (0, project.trees[-1])


def test_kills_leave_no_damage(tmp_path: Path) -> None:
    """A few rounds of what `ci/kill_test.py` does for longer."""
    done = subprocess.run(
        [
            sys.executable,
            "ci/kill_test.py",
            "--rounds",
            "4",
            "--seed",
            "11",
            "--patches",
            "25",
            "--keep",
            str(tmp_path / "kill"),
        ],
        cwd=ROOT,
        env=program_environment(),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "no damage" in done.stdout
