# SPDX-License-Identifier: Apache-2.0
"""The cache: found where it should be, safe for many at once, never a liar."""

import multiprocessing
import os
import sqlite3
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from support import ROOT

from stackctl import cache as module
from stackctl.cache import Cache, default_cache_folder
from stackctl.errors import InputError, UsageError
from stackctl.git.objects import BLOB


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"STACKCTL_CACHE_DIR": "/x/y", "XDG_CACHE_HOME": "/z"}, "/x/y"),
        ({"STACKCTL_CACHE_DIR": "", "XDG_CACHE_HOME": "/z"}, "/z/stackctl"),
        ({"XDG_CACHE_HOME": "relative"}, None),
        ({}, None),
    ],
)
def test_where_the_cache_lies(variables: dict[str, str], expected: str | None) -> None:
    found = default_cache_folder(variables)
    wanted = Path(expected) if expected else Path.home() / ".cache/stackctl"
    assert found == wanted


def test_a_folder_that_was_asked_for_must_work(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(UsageError, match="cannot be used") as error:
        Cache.open(tmp_path / "file")
    assert error.value.kind == "no-cache"
    assert error.value.hint


def test_a_read_only_home_gets_a_private_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "home").write_text("no folder at all")
    monkeypatch.delenv("STACKCTL_CACHE_DIR")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(module.tempfile, "gettempdir", lambda: str(tmp_path / "tmp"))
    cache = Cache.open()
    assert cache.folder.parent == tmp_path / "tmp"
    assert stat.S_IMODE(cache.folder.stat().st_mode) == 0o700
    # What somebody else put there first is not used.
    cache.folder.rmdir()
    cache.folder.symlink_to(tmp_path)
    with pytest.raises(UsageError, match="not a private folder"):
        Cache.open()
    cache.folder.unlink()
    cache.folder.mkdir(mode=0o755)
    cache.folder.chmod(0o777)
    with pytest.raises(UsageError, match="not a private folder"):
        Cache.open()


def test_facts_are_kept_apart_by_kind(cache: Cache) -> None:
    keys = {b"%d" % n: b"v%d" % n for n in range(1500)}
    cache.put("a", keys)
    cache.put("b", {b"1": b"other"})
    again = Cache(cache.folder)
    assert again.get("a", keys) == keys
    assert again.get("b", [b"1", b"2"]) == {b"1": b"other"}
    assert again.get("a", []) == {}
    assert again.get("c", [b"1"]) == {}


def test_facts_of_another_version_are_forgotten(
    cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache.put("a", {b"1": b"x"})
    monkeypatch.setattr(module, "FACTS_VERSION", module.FACTS_VERSION + 1)
    again = Cache(cache.folder)
    assert again.get("a", [b"1"]) == {}
    again.put("a", {b"1": b"y"})
    assert again.get("a", [b"1"]) == {b"1": b"y"}


@pytest.mark.parametrize("damage", ["garbage", "empty", "middle"])
def test_damaged_facts_are_derived_again(cache: Cache, damage: str) -> None:
    cache.put("a", {b"%d" % n: b"x" * 200 for n in range(500)})
    cache._database.close()  # type: ignore[union-attr]
    path = cache.folder / "facts.sqlite3"
    data = bytearray(path.read_bytes())
    if damage == "garbage":
        data[:100] = b"garbage!" * 12 + b"xxxx"
    elif damage == "empty":
        data = bytearray()
    else:
        data[4096:] = os.urandom(len(data) - 4096)
    path.write_bytes(data)
    # A journal of the old file would be rolled back into the new one.
    again = Cache(cache.folder)
    again.get("a", [b"1"])
    again.put("a", {b"1": b"new"})
    assert Cache(cache.folder).get("a", [b"1"]) == {b"1": b"new"}


def test_a_flipped_bit_makes_a_fact_unknown_and_not_another(cache: Cache) -> None:
    value = b'{"tree":"4b825dc6"}'
    cache.put("a", {b"key": value})
    path = cache.folder / "facts.sqlite3"
    good = path.read_bytes()
    start = good.index(value)
    for at in range(start - 4, start + len(value) + 4):
        for bit in range(8):
            data = bytearray(good)
            data[at] ^= 1 << bit
            path.write_bytes(data)
            # Where a row looks damaged, the whole file may have been dropped.
            assert Cache(cache.folder).get("a", [b"key"]) in ({}, {b"key": value})
    path.write_bytes(good)
    assert Cache(cache.folder).get("a", [b"key"]) == {b"key": value}


def test_a_journal_does_not_survive_its_damaged_file(cache: Cache) -> None:
    cache.folder.mkdir(exist_ok=True)
    (cache.folder / "facts.sqlite3").write_bytes(b"no database at all" * 100)
    journal = cache.folder / "facts.sqlite3-journal"
    journal.write_bytes(b"")
    cache.put("a", {b"1": b"x"})
    assert cache.get("a", [b"1"]) == {b"1": b"x"}
    assert not journal.exists()


def _write_facts(folder: str, name: int) -> None:
    cache = Cache(Path(folder))
    for number in range(30):
        cache.put("k", {b"%d-%d" % (name, number): b"%d" % number})


def test_many_processes_write_facts_at_once(cache: Cache) -> None:
    context = multiprocessing.get_context("spawn")
    workers = [
        context.Process(target=_write_facts, args=(str(cache.folder), name))
        for name in range(4)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert [worker.exitcode for worker in workers] == [0, 0, 0, 0]
    keys = [b"%d-%d" % (name, number) for name in range(4) for number in range(30)]
    assert len(cache.get("k", keys)) == 120


def test_locks_exclude_and_die_with_their_process(cache: Cache) -> None:
    code = (
        "import sys, time\nfrom pathlib import Path\nfrom stackctl.cache import Cache\n"
        "with Cache(Path(sys.argv[1])).lock('work'):\n"
        "    print('held', flush=True)\n    time.sleep(600)\n"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", code, str(cache.folder)], stdout=subprocess.PIPE,
        cwd=ROOT,
    )  # fmt: skip
    assert holder.stdout is not None
    assert holder.stdout.readline() == b"held\n"
    got = threading.Event()

    def wait() -> None:
        with cache.lock("work"):
            got.set()

    thread = threading.Thread(target=wait)
    thread.start()
    with cache.lock("other work"):
        assert not got.wait(0.3)
    holder.kill()
    holder.wait()
    holder.stdout.close()
    assert got.wait(300)
    thread.join()


def test_usage_and_clean(cache: Cache) -> None:
    writer = cache.store.writer()
    oid = writer.add(BLOB, b"x" * 10_000)
    writer.finish()
    cache.put("a", {b"1": b"x"})
    cache.downloads.mkdir()
    (cache.downloads / "abc").write_bytes(b"y" * 5000)
    (cache.folder / "bisect").mkdir()
    (cache.folder / "bisect/log").write_bytes(b"z" * 300)
    (cache.folder / "trees/aa").mkdir(parents=True)
    (cache.folder / "trees/aa/a.py").write_bytes(b"t" * 70)
    (cache.folder / "trees/aa/gone").symlink_to("nowhere")
    sizes = {part.name: part.bytes for part in cache.usage()}
    assert sizes["downloads"] == 5000
    assert sizes["trees"] == 70 + len("nowhere")
    assert min(sizes.values()) > 0
    cache.clean(store=False)
    assert not cache.downloads.exists()
    assert cache.store.blob(oid) == b"x" * 10_000
    cache.clean()
    left = {part.name: part.bytes for part in cache.usage()}
    trees = left.pop("trees")  # they have users of their own
    assert trees == sizes["trees"] and set(left.values()) == {0}
    assert cache.get("a", [b"1"]) == {}
    assert cache.store.find(oid) is None


def test_a_folder_that_cannot_be_written_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "store.git").write_text("in the way")
    (tmp_path / "c" / "facts.sqlite3").mkdir()
    cache = Cache(tmp_path / "c")
    for use in (lambda: cache.store, lambda: cache.get("a", [b"1"])):
        with pytest.raises(InputError, match="cannot write to") as error:
            use()
        assert error.value.kind == "cannot-write"
        assert error.value.hint


def test_an_abandoned_lock_of_gits_does_not_stop_the_cache(
    cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    from stackctl.git import store as store_module

    monkeypatch.setattr(store_module.Store.tidy, "__defaults__", (2,))
    ids = []
    for number in range(4):
        writer = cache.store.writer()
        ids.append(writer.add(BLOB, b"%d" % number))
        writer.finish()
    lock = cache.folder / "store.git/objects/pack/multi-pack-index.lock"
    lock.write_bytes(b"")
    assert Cache(cache.folder).store.blob(ids[0]) == b"0"
    assert lock.exists()
    old = time.time() - 3600
    os.utime(lock, (old, old))
    assert Cache(cache.folder).store.blob(ids[3]) == b"3"
    assert not lock.exists()


def test_a_busy_database_waits(cache: Cache) -> None:
    cache.put("a", {b"1": b"x"})
    other = sqlite3.connect(cache.folder / "facts.sqlite3", isolation_level=None,
                            check_same_thread=False)  # fmt: skip
    other.execute("BEGIN IMMEDIATE")
    timer = threading.Timer(0.5, lambda: other.execute("COMMIT"))
    timer.start()
    cache.put("a", {b"2": b"y"})
    timer.join()
    other.close()
    assert cache.get("a", [b"2"]) == {b"2": b"y"}


def test_a_path_that_git_cannot_share_from_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="line feed"):
        Cache.open(tmp_path / "a\nb")
    assert not list(tmp_path.iterdir())


def test_facts_without_their_table_are_made_again(tmp_path: Path) -> None:
    cache = Cache(tmp_path / "cache")
    cache.folder.mkdir()
    cache.put("step", {b"k": b"v"})
    with sqlite3.connect(cache.folder / "facts.sqlite3") as connection:
        connection.execute("DROP TABLE sealed_facts")
    connection.close()
    again = Cache(cache.folder)
    assert again.get("step", [b"k"]) == {}
    again.put("step", {b"k": b"w"})
    assert again.get("step", [b"k"]) == {b"k": b"w"}
