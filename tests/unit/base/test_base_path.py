# SPDX-License-Identifier: Apache-2.0
"""A folder as a base: all of it, as it is, and only if it holds still."""

import os
import socket
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from stackctl.base import path as module
from stackctl.base.limits import LIMITS
from stackctl.base.path import import_path
from stackctl.errors import InputError


@pytest.fixture
def folder(tmp_path):
    top = tmp_path / "top"
    (top / "sub").mkdir(parents=True)
    (top / "empty").mkdir()
    (top / "a").write_bytes(b"a\r\n")
    (top / "sub" / "run").write_bytes(b"run")
    (top / "sub" / "run").chmod(0o750)
    (top / "sub" / "out").symlink_to("/etc/passwd")
    (top / ".gitignore").write_bytes(b"*\n")
    (top / ".gitattributes").write_bytes(b"* text=auto ident\n")
    return top


def names(cache, tree):
    return {name: mode for name, mode, _ in cache.store.walk(tree)}


def test_it_is_the_tree_git_would_make(cache, folder, git_tree, tmp_path):
    (folder / "big").write_bytes(os.urandom(1 << 20) * 17)
    odd = os.fsencode(folder) + b"/caf\xe9\n"
    with Path(os.fsdecode(odd)).open("wb") as file:
        file.write(b"odd")
    expected = git_tree(folder)
    tree, _ = import_path(folder, cache=cache)
    assert tree == expected
    assert names(cache, tree)[b"sub/out"] == 0o120000
    assert names(cache, tree)[b"sub/run"] == 0o100755
    # A link to the folder is the folder.
    (tmp_path / "link").symlink_to(folder)
    assert import_path(tmp_path / "link", cache=cache)[0] == expected


@pytest.mark.parametrize("form", ["folder", "file"])
def test_only_the_git_at_the_top_is_left_out(cache, folder, git_tree, form):
    expected = git_tree(folder)
    if form == "folder":
        (folder / ".git").mkdir()
        (folder / ".git" / "HEAD").write_bytes(b"")
    else:
        (folder / ".git").write_bytes(b"gitdir: elsewhere")
    assert import_path(folder, cache=cache)[0] == expected
    (folder / "sub" / ".git").mkdir()
    with pytest.raises(InputError, match=r"sub/\.git"):
        import_path(folder, cache=cache)


def test_what_a_tree_cannot_hold_is_refused(cache, folder, nothing_written):
    os.mkfifo(folder / "fifo")
    with pytest.raises(InputError, match="'fifo' is a FIFO"):
        import_path(folder, cache=cache)
    (folder / "fifo").unlink()
    here = os.getcwd()
    os.chdir(folder)
    try:
        with socket.socket(socket.AF_UNIX) as server:
            server.bind("socket")
    finally:
        os.chdir(here)
    with pytest.raises(InputError, match="'socket' is a socket") as caught:
        import_path(folder, cache=cache)
    assert caught.value.where["file"] == str(folder)
    nothing_written()


def test_missing_not_a_folder_empty(cache, tmp_path, nothing_written):
    (tmp_path / "file").write_bytes(b"")
    (tmp_path / "nothing" / "below").mkdir(parents=True)
    for name in ("missing", "file", "nothing"):
        with pytest.raises(InputError, match=name):
            import_path(tmp_path / name, cache=cache)
    nothing_written()


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_unreadable(cache, folder):
    (folder / "a").chmod(0)
    with pytest.raises(InputError, match="'a' cannot be read"):
        import_path(folder, cache=cache)


def changes():
    def write(folder):
        (folder / "a").write_bytes(b"b\r\n")

    def same_size_and_time(folder):
        before = (folder / "a").stat()
        (folder / "a").write_bytes(b"b\r\n")
        os.utime(folder / "a", ns=(before.st_atime_ns, before.st_mtime_ns))

    def add(folder):
        (folder / "sub" / "new").write_bytes(b"")

    def remove(folder):
        (folder / "a").unlink()

    def mode(folder):
        (folder / "a").chmod(0o755)

    def retarget(folder):
        (folder / "sub" / "out").unlink()
        (folder / "sub" / "out").symlink_to("elsewhere")

    return [write, same_size_and_time, add, remove, mode, retarget]


@pytest.mark.parametrize("change", changes(), ids=lambda change: change.__name__)
def test_a_change_after_reading_is_noticed(
    cache, folder, nothing_written, monkeypatch, change
):
    honest = module._Reader.look_again

    def meddle(self, top):
        change(folder)
        honest(self, top)

    monkeypatch.setattr(module._Reader, "look_again", meddle)
    with pytest.raises(InputError) as caught:
        import_path(folder, cache=cache)
    assert caught.value.kind == "base-changed"
    nothing_written()


def test_a_file_that_shrinks_or_becomes_a_link_while_read(
    cache, folder, nothing_written, monkeypatch
):
    honest = module._Reader._add

    def shrink(self, descriptor, path, status):
        if path == (b"a",):
            (folder / "a").write_bytes(b"")
        honest(self, descriptor, path, status)

    with monkeypatch.context() as patch:
        patch.setattr(module._Reader, "_add", shrink)
        with pytest.raises(InputError, match="changed while"):
            import_path(folder, cache=cache)
    real = os.open

    def swap(name, flags, *args, **options):
        if name == b"sub":
            (folder / "sub").rename(folder.parent / "moved")
            (folder / "sub").symlink_to("/")
        return real(name, flags, *args, **options)

    monkeypatch.setattr(module.os, "open", swap)
    with pytest.raises(InputError, match="'sub'"):
        import_path(folder, cache=cache)
    nothing_written()


def test_limits(cache, folder, nothing_written):
    for limits in (
        replace(LIMITS, file_bytes=2),
        replace(LIMITS, total_bytes=8),
        replace(LIMITS, entries=3),
    ):
        with pytest.raises(InputError, match="more than"):
            import_path(folder, cache=cache, limits=limits)
    nothing_written()


def test_two_at_once(cache, folder):
    from stackctl.cache import Cache

    found = []

    def work():
        mine = Cache.open(cache.folder)
        found.append(import_path(folder, cache=mine))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4
    assert len(set(found)) == 1
