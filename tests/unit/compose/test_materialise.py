# SPDX-License-Identifier: Apache-2.0
"""Trees on disk: bytes, modes and links as they are, and nothing outside."""

import os
from pathlib import Path

import pytest
from support import Repo, files_below, git

from stackctl.compose.materialise import materialise
from stackctl.errors import InputError, UsageError
from stackctl.git.objects import BLOB, TREE
from stackctl.git.store import Store


@pytest.fixture
def repo(tmp_path: Path) -> Repo:
    repo = Repo(tmp_path / "repo")
    name = b"caf\xe9\n".decode("utf-8", "surrogateescape")
    repo.write({
        "a/b/c": b"\r\n\0", "run": "#!", "l": "-> a/b/c", "out": "-> /etc/passwd",
        name: "x", ".gitattributes": "* text eol=crlf\n", "t.txt": "one\ntwo\n",
    })  # fmt: skip
    (repo.path / "run").chmod(0o755)
    (repo.path / ".git/info").mkdir(exist_ok=True)
    (repo.path / ".git/info/attributes").write_text("* -text\n")
    repo.commit("x")
    return repo


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077, 0o777])
def test_bytes_modes_and_links_are_exact(
    repo: Repo, tmp_path: Path, umask: int
) -> None:
    store = Store(repo.path / ".git")
    old = os.umask(umask)
    try:
        count = materialise(store, repo.tree, tmp_path / "out")  # type: ignore[arg-type]
    finally:
        os.umask(old)
    found = files_below(tmp_path / "out")
    assert count == len(found) == 7
    assert found["run"] == (0o755, b"#!")
    assert found["a/b/c"] == (0o644, b"\r\n\0")
    assert found["l"] == (0o120000, b"a/b/c")
    assert found["t.txt"] == (0o644, b"one\ntwo\n")
    for folder in ("", "a", "a/b"):
        assert (tmp_path / "out" / folder).stat().st_mode & 0o777 == 0o755
    git("init", "-q", str(tmp_path / "check"))
    env = {"GIT_WORK_TREE": str(tmp_path / "out"),
           "GIT_DIR": str(tmp_path / "check/.git")}  # fmt: skip
    (tmp_path / "check/.git/info").mkdir(exist_ok=True)
    (tmp_path / "check/.git/info/attributes").write_text("* -text\n")
    git("add", "-A", "-f", cwd=tmp_path / "out", env=env)
    assert git("write-tree", env=env).decode().strip() == repo.tree


def test_only_an_empty_folder_is_taken(repo: Repo, tmp_path: Path) -> None:
    store = Store(repo.path / ".git")
    full = tmp_path / "full"
    full.mkdir()
    (full / "mine").write_text("keep")
    (tmp_path / "file").write_text("keep")
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    for target in (full, tmp_path / "file", tmp_path / "link"):
        with pytest.raises(UsageError) as error:
            materialise(store, repo.tree, target)  # type: ignore[arg-type]
        assert error.value.kind == "out-exists"
    assert (full / "mine").read_text() == "keep"
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        "file", "full", "link", "repo",
    ]  # fmt: skip
    (tmp_path / "empty").mkdir()
    materialise(store, repo.tree, tmp_path / "empty")  # type: ignore[arg-type]
    assert (tmp_path / "empty/run").exists()


def raw_tree(store: Store, entries: list[tuple[int, bytes, bytes]]) -> str:
    writer = store.writer()
    raw = b""
    for mode, name, data in entries:
        kind = TREE if mode == 0o40000 else BLOB
        raw += b"%o %s\0%s" % (mode, name, writer.add(kind, data))
    tree = writer.add(TREE, raw)
    writer.finish()
    store.refresh()
    return tree.hex()


@pytest.mark.parametrize(
    "names",
    [
        [(0o100644, b"../escaped")], [(0o100644, b"..")], [(0o100644, b"/abs")],
        [(0o100644, b".git")], [(0o100644, b".GIT")], [(0o100644, b"a/../../escaped")],
        [(0o120000, b"d"), (0o100644, b"d/escaped")], [(0o100644, b"")],
        [(0o100644, b"git~1")], [(0o120000, b".gitmodules")],
        [(0o100644, b"same"), (0o100644, b"same")],
        [(0o100644, b".git\xe2\x80\x8c/hooks/x")],
    ],
)  # fmt: skip
def test_hostile_trees_write_nothing(
    store: Store, tmp_path: Path, names: list[tuple[int, bytes]]
) -> None:
    data = os.fsencode(tmp_path)
    tree = raw_tree(store, [(mode, name, data) for mode, name in names])
    before = sorted(p for p in tmp_path.rglob("*") if store.git_dir not in p.parents)
    with pytest.raises(InputError):
        materialise(store, tree, tmp_path / "out")  # type: ignore[arg-type]
    after = sorted(p for p in tmp_path.rglob("*") if store.git_dir not in p.parents)
    assert after == before


@pytest.mark.parametrize(
    ("entry", "named"),
    [
        (b"100644 " + b"n" * 300, "n" * 300),
        (b"120000 empty", "empty .* target has 0 bytes"),
        (b"120000 long", "long .* target has 5000 bytes"),
        (b"40000 " + b"d" * 300, "d" * 300),
    ],
)
def test_a_path_that_the_file_system_does_not_take_is_named(
    repo: Repo, tmp_path: Path, entry: bytes, named: str
) -> None:
    store = Store(repo.path / ".git")
    writer = store.writer()
    data = b"t" * 5000 if b"long" in entry else b""
    below = writer.add(BLOB, data)
    if entry.startswith(b"4"):
        below = writer.add(TREE, b"100644 f\0" + below)
    tree = writer.add(TREE, entry + b"\0" + below).hex()
    writer.finish()
    store.refresh()
    with pytest.raises(InputError, match=named) as error:
        materialise(store, tree, tmp_path / "out")  # type: ignore[arg-type]
    assert error.value.kind == "unwritable-path"
    assert not (tmp_path / "out").exists()
