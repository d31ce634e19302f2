# SPDX-License-Identifier: Apache-2.0
"""Files written whole or not at all."""

import errno
import os
import signal
import socket
import stat
import subprocess
import sys
import time
from multiprocessing import get_context
from pathlib import Path

import pytest
from support import interruptions

from stackctl import fsutil
from stackctl.errors import InputError
from stackctl.fsutil import read_regular, write_atomic


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077, 0o777])
@pytest.mark.parametrize("mode", [0o644, 0o755, 0o600])
def test_permissions_do_not_depend_on_the_umask(
    tmp_path: Path, umask: int, mode: int
) -> None:
    old = os.umask(umask)
    try:
        write_atomic(tmp_path / "f", b"new", mode)
    finally:
        os.umask(old)
    assert stat.S_IMODE((tmp_path / "f").stat().st_mode) == mode
    assert (tmp_path / "f").read_bytes() == b"new"
    assert names(tmp_path) == ["f"]


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
def test_full_disk_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"old")

    def full(fd: int, data: memoryview) -> int:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(InputError) as caught:
        write_atomic(path, b"new")
    assert caught.value.kind == "disk-full"
    assert caught.value.where == {"file": str(path)}
    assert path.read_bytes() == b"old"
    assert names(tmp_path) == ["f"]


def test_real_limit_of_the_file_size(tmp_path: Path) -> None:
    program = (
        "import resource, sys\n"
        "from pathlib import Path\n"
        "from stackctl.errors import InputError\n"
        "from stackctl.fsutil import write_atomic\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))\n"
        "try:\n"
        "    write_atomic(Path(sys.argv[1]), bytes(100_000))\n"
        "except InputError as error:\n"
        "    sys.exit(0 if error.kind == 'disk-full' else 1)\n"
        "sys.exit(2)\n"
    )
    (tmp_path / "f").write_bytes(b"old")
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "f")], check=False
    )
    assert done.returncode == 0
    assert (tmp_path / "f").read_bytes() == b"old"
    assert names(tmp_path) == ["f"]


@pytest.mark.parametrize("call", ["fsync", "rename", "fchmod"])
def test_an_interruption_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, call, interrupt)
    with pytest.raises(KeyboardInterrupt):
        write_atomic(tmp_path / "f", b"new")
    assert names(tmp_path) == []


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        write_atomic(tmp_path / "no" / "f", b"new")
    assert caught.value.kind == "not-writable"
    assert "No such file or directory" in caught.value.message


def test_a_folder_of_that_name_stays(tmp_path: Path) -> None:
    (tmp_path / "f").mkdir()
    with pytest.raises(InputError, match="cannot be written"):
        write_atomic(tmp_path / "f", b"new")
    assert names(tmp_path) == ["f"]


def test_a_link_is_replaced_and_its_target_kept(tmp_path: Path) -> None:
    (tmp_path / "target").write_bytes(b"old")
    (tmp_path / "f").symlink_to("target")
    write_atomic(tmp_path / "f", b"new")
    assert (tmp_path / "target").read_bytes() == b"old"
    assert not (tmp_path / "f").is_symlink()


@pytest.mark.parametrize("kind", ["stale", "hard link", "link", "fifo", "socket"])
def test_what_stands_at_the_temporary_name_is_taken_over(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    temporary = tmp_path / ".f.stackctl-tmp"
    other = tmp_path / "other"
    other.write_bytes(b"precious")
    if kind == "stale":
        temporary.write_bytes(b"longer than what is written now")
    elif kind == "hard link":
        temporary.hardlink_to(other)
    elif kind == "link":
        temporary.symlink_to(other)
    elif kind == "fifo":
        os.mkfifo(temporary)
    else:
        monkeypatch.chdir(tmp_path)  # the length of a socket's path is limited
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(temporary.name)
    write_atomic(tmp_path / "f", b"new")
    assert (tmp_path / "f").read_bytes() == b"new"
    assert other.read_bytes() == b"precious"
    assert names(tmp_path) == ["f", "other"]


def _write_often(path: Path, byte: int) -> None:
    for _ in range(60):
        write_atomic(path, bytes([byte]) * 50_000)


def test_writers_at_once_take_turns(tmp_path: Path) -> None:
    path = tmp_path / "f"
    context = get_context("spawn")
    writers = [context.Process(target=_write_often, args=(path, n)) for n in range(4)]
    for writer in writers:
        writer.start()
    while any(writer.is_alive() for writer in writers):
        if path.exists():
            found = path.read_bytes()
            assert len(found) == 50_000
            assert len(set(found)) == 1
        time.sleep(0.001)
    for writer in writers:
        writer.join()
        assert writer.exitcode == 0
    assert names(tmp_path) == ["f"]


def test_a_killed_writer_leaves_no_trace_after_the_next(tmp_path: Path) -> None:
    program = (
        "import sys\n"
        "from pathlib import Path\n"
        "from stackctl.fsutil import write_atomic\n"
        "print('ready', flush=True)\n"
        "while True:\n"
        "    write_atomic(Path(sys.argv[1]), bytes(1_000_000))\n"
    )
    path = tmp_path / "f"
    for n in range(8):
        with subprocess.Popen(
            [sys.executable, "-c", program, str(path)], stdout=subprocess.PIPE
        ) as writer:
            assert writer.stdout is not None
            writer.stdout.readline()
            time.sleep(0.003 * n)
            writer.send_signal(signal.SIGKILL)
        assert not path.exists() or path.stat().st_size == 1_000_000
    write_atomic(path, b"new")
    assert path.read_bytes() == b"new"
    assert names(tmp_path) == ["f"]


def test_an_interruption_at_any_point_leaves_nothing(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"old")
    contents = set()
    for interrupted in interruptions(
        fsutil.__file__, lambda: write_atomic(path, b"new")
    ):
        assert names(tmp_path) == ["f"]
        contents.add((interrupted, path.read_bytes()))
        path.write_bytes(b"old")
    assert contents == {(True, b"old"), (True, b"new"), (False, b"new")}


def test_read_up_to_the_limit(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"12345")
    assert read_regular(path, 5) == b"12345"
    with pytest.raises(InputError, match="5 bytes; at most 4") as caught:
        read_regular(path, 4)
    assert caught.value.kind == "file-too-large"
    path.write_bytes(b"")
    assert read_regular(path, 0) == b""


def test_only_files_are_read(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    with pytest.raises(InputError, match="expected a regular file, found a FIFO"):
        read_regular(fifo, 10)
    with pytest.raises(InputError, match="found a folder"):
        read_regular(tmp_path, 10)
    with pytest.raises(InputError, match="found a character device"):
        read_regular(Path("/dev/zero"), 10)
    with pytest.raises(InputError, match="no such file"):
        read_regular(tmp_path / "no", 10)
    with pytest.raises(InputError, match="cannot be read"):
        read_regular(tmp_path / ("x" * 300), 10)
    with pytest.raises(InputError, match="cannot be read"):
        read_regular(Path("nul\0byte"), 10)


def test_where_locks_are_unknown_files_are_still_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unsupported(fd: int, operation: int) -> None:
        raise OSError(errno.EOPNOTSUPP, "not supported")

    monkeypatch.setattr(fsutil.fcntl, "flock", unsupported)
    write_atomic(tmp_path / "f", b"new")
    assert (tmp_path / "f").read_bytes() == b"new"
