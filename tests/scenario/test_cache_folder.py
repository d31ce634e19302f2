# SPDX-License-Identifier: Apache-2.0
"""Caches at odd places and with damaged content change no answer."""

import os
import random
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from support import Project, git, run, three_sets

from stackctl.cache import Cache
from stackctl.gates.arms import ComposedTrees
from stackctl.model.series import load_series


def trees_of(project: Project, folder: Path) -> ComposedTrees:
    return ComposedTrees(load_series(project.folder / "series.toml"), Cache(folder))


@pytest.mark.parametrize("name", [b"c c", b"c\xc3\xbc:;'\"$(x)", b"c\xff"])
def test_a_cache_at_an_odd_path(tmp_path: Path, name: bytes) -> None:
    project = three_sets(tmp_path / "project")
    expected = run("compose", "--json", "-C", project.folder).json["composition"]
    folder = tmp_path / os.fsdecode(name)
    env = {
        "STACKCTL_CACHE_DIR": str(folder),
        "LC_ALL": "C",
        "PYTHONUTF8": "0",
        "PYTHONCOERCECLOCALE": "0",
    }
    done = run("lock", "--json", "-C", project.folder, env=env)
    assert done.code == 0, done.err
    assert done.json["composition"] == expected
    assert (folder / "store.git").is_dir()


def test_who_holds_the_cache_is_named_at_once(tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    env = {"STACKCTL_CACHE_DIR": str(folder)}
    program = tmp_path / "stackctl"  # what a run of gates is, as far as the cache knows
    program.write_text(
        "import sys; from pathlib import Path; from stackctl.cache import Cache\n"
        "cache = Cache(Path(sys.argv[-1])); cache.store; print(flush=True); input()\n"
    )
    words = [sys.executable, program, "gate", "run", "kpool", "--base-url", "secret"]
    holder = subprocess.Popen(
        [*words, folder], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        holder.stdout.readline()
        done = run("cache", "clean", "--json", env=env)
        error = done.json["error"]
        assert (done.code, error["kind"]) == (2, "cache-in-use")
        assert f"stackctl gate run kpool (process {holder.pid}); " in error["message"]
        assert "secret" not in done.out
        assert error["where"]["processes"] == [holder.pid]
        assert "cache clean --trees" in error["hint"]
        assert (folder / "store.git").exists()
    finally:
        holder.communicate(b"\n")
    assert run("cache", "clean", env=env).code == 0
    assert not (folder / "store.git").exists()


def test_damaged_facts_of_steps_are_derived_again(tmp_path: Path) -> None:
    project = three_sets(tmp_path / "project")
    folder = tmp_path / "cache"
    env = {"STACKCTL_CACHE_DIR": str(folder)}
    first = run("compose", "--json", "-C", project.folder, env=env)
    with sqlite3.connect(folder / "facts.sqlite3") as facts:
        rows = facts.execute(
            "UPDATE sealed_facts SET value = x'7b00' WHERE kind = 'step'"
        )
        assert rows.rowcount
    facts.close()
    second = run("compose", "--json", "-C", project.folder, env=env)
    assert second.code == 0, second.err
    assert second.json["composition"] == first.json["composition"]


def damage(rng: random.Random, path: Path) -> None:
    """Do to a file what bad disks and half copies do."""
    data = bytearray(path.read_bytes())
    path.chmod(0o600)
    kind = rng.choice(("bit", "bit", "zeros", "cut", "empty", "gone"))
    if kind == "bit":
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    elif kind == "zeros":
        at = rng.randrange(len(data))
        data[at : at + 16] = bytes(len(data[at : at + 16]))
    elif kind in ("cut", "empty"):
        del data[rng.randrange(len(data)) if kind == "cut" else 0 :]
    path.write_bytes(data)
    if kind == "gone":
        path.unlink()


@pytest.mark.parametrize(
    "command",
    ["compose", "compose --out out", "compose --into into --ref refs/heads/x", "lock",
     "diff alpha", "show alpha"],
)  # fmt: skip
def test_a_damaged_cache_gives_the_right_answer_or_says_so(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    project = three_sets(tmp_path / "project")
    good, bad, into = (tmp_path / name for name in ("good", "bad", "into"))
    monkeypatch.setenv("STACKCTL_CACHE_DIR", str(good))
    where = ("--json", "-C", project.folder)
    assert run("lock", *where).code == 0
    lock = (project.folder / "series.lock").read_bytes()
    git("init", "-q", "--bare", str(into))
    expected = run(*command.split(), *where).json
    rng = random.Random(command)
    files = [path for path in sorted(good.rglob("*")) if path.is_file()]
    files = [
        path for path in files if path.stat().st_size and "locks" not in path.parts
    ]
    monkeypatch.setenv("STACKCTL_CACHE_DIR", str(bad))
    codes = set()
    for path in files:
        for folder in (bad, into, tmp_path / "out"):
            shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(good, bad)
        git("init", "-q", "--bare", str(into))
        damage(rng, bad / path.relative_to(good))
        done = run(*command.split(), *where)
        codes.add(done.code)
        assert (project.folder / "series.lock").read_bytes() == lock
        if done.code:
            assert done.code == 4, (path, done)
            assert "cache clean" in done.json["error"]["hint"]
            assert not (tmp_path / "out").exists()
        else:
            answer = done.json
            for document in (answer, expected):
                document.pop("ns", None)
                for step in document.get("steps", ()):
                    step.pop("how", None)
            assert answer == expected, path
    assert 0 in codes


def test_trees_of_gates_are_told_and_cleaned_unless_a_run_uses_them(
    tmp_path: Path,
) -> None:
    project = three_sets(tmp_path / "project")
    folder = tmp_path / "cache"
    env = {"STACKCTL_CACHE_DIR": str(folder)}
    running = trees_of(project, folder)
    used = running.folder(running.find("composed").tree)
    earlier = trees_of(project, folder)
    unused = earlier.folder(earlier.find("base").tree)
    del earlier
    sizes = {
        place: sum(path.lstat().st_size for path in place.rglob("*") if path.is_file())
        for place in (used, unused)
    }

    info = run("cache", "info", "--json", env=env).json
    (part,) = [part for part in info["parts"] if part["name"] == "trees"]
    assert (info["trees"], part["bytes"]) == (2, sum(sizes.values()))
    assert "2 trees of gates" in run("cache", "info", env=env).out

    # The run goes on all the while: only what takes the store from it has to wait.
    done = run("cache", "clean", "--trees", env=env)
    assert done.code == 0, done.err
    assert "kept 1 tree in use" in done.out
    assert used.is_dir() and not unused.exists()
    assert running.find("base").tree in running.store

    del running
    done = run("cache", "clean", "--json", env=env)
    assert (done.code, done.json["kept"]) == (0, 0), done.err
    assert not used.exists() and not (folder / "store.git").exists()
    assert done.json["freed"] > sizes[used]
