# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: PTH113, PTH114, PTH115, PTH118, PTH123
# Names are bytes here, which pathlib does not take.
"""Any set of files, in any wrapping, becomes the tree that git itself makes of it."""

import bz2
import gzip
import io
import lzma
import os
import random
import shutil
import subprocess
import tarfile
import tempfile
import zipfile
from collections.abc import Callable
from contextlib import suppress
from hashlib import sha256
from pathlib import Path

import pytest
import zstandard
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from support import git

from stackctl.base.archive import import_archive
from stackctl.base.git import fetch_commit
from stackctl.base.names import component_problem
from stackctl.base.path import import_path
from stackctl.cache import Cache
from stackctl.errors import InputError, PinError

EXAMPLES = int(os.environ.get("STACKCTL_PROPERTY_EXAMPLES", "0"))


def examples(default: int) -> settings:
    return settings(
        max_examples=EXAMPLES or default,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
    )


# Names that mean something to git, to tar or to a shell come up often.
PLAIN = st.sampled_from(
    [b"a", b"b", b"a.b", b"a-b", b"a0", b".gitignore", b".gitattributes", b"-x", b"..."]
)
ODD = st.lists(
    st.sampled_from([bytes([n]) for n in range(1, 256) if n != ord("/")]),
    min_size=1,
    max_size=6,
).map(b"".join)
LONG = st.integers(90, 255).map(lambda size: b"n" * size)
COMPONENT = st.one_of(PLAIN, PLAIN, ODD, LONG).filter(
    lambda name: component_problem(name) is None
)
PATH = st.lists(COMPONENT, min_size=1, max_size=4).map(tuple)
DATA = st.one_of(
    st.sampled_from([b"", b"*\n", b"* text eol=crlf ident\n", b"$Id$\r\n", b"\0\xff"]),
    st.binary(max_size=60),
    st.integers(500, 9000).map(lambda size: random.Random(size).randbytes(size)),
)
FILE = st.tuples(st.sampled_from(["file", "exec"]), DATA)
LINK = st.tuples(st.just("link"), PATH.map(b"/".join))
HARD = st.tuples(st.just("hard"), st.just(b""))


@st.composite
def trees(draw: st.DrawFn) -> dict[tuple[bytes, ...], tuple[str, bytes]]:
    """Draw files by path, none of which lies below another."""
    found: dict[tuple[bytes, ...], tuple[str, bytes]] = {}
    for path, value in draw(
        st.lists(st.tuples(PATH, st.one_of(FILE, FILE, LINK, HARD)), max_size=12)
    ):
        taken = any(
            path[: len(other)] == other or other[: len(path)] == path for other in found
        )
        if not taken:
            found[path] = value
    found.setdefault((b"zz-always",), ("file", b"x"))
    return found


def write_files(top: bytes, files: dict[tuple[bytes, ...], tuple[str, bytes]]) -> None:
    first = None
    for path, (kind, data) in files.items():
        name = os.path.join(top, *path)
        os.makedirs(os.path.dirname(name), exist_ok=True)
        if kind == "link":
            os.symlink(data, name)
        elif kind == "hard" and first is not None:
            os.link(first, name)
        else:
            with open(name, "wb") as file:
                file.write(data)
            os.chmod(name, 0o755 if kind == "exec" else 0o644)
            first = name


class Oracle:
    """Real git, in a repository beside the files."""

    def __init__(self, folder: Path) -> None:
        self.git_dir = folder / "oracle.git"
        self.work_tree = folder / "files"
        self("init", "-q", "--bare", str(self.git_dir))
        # Attributes of the files themselves must have no say.
        (self.git_dir / "info").mkdir(exist_ok=True)
        (self.git_dir / "info" / "attributes").write_text("* -text -filter -ident\n")

    def __call__(self, *args: str) -> str:
        return git(*args, cwd=self.git_dir.parent).decode().strip()

    def tree(self) -> str:
        options = (f"--git-dir={self.git_dir}", f"--work-tree={self.work_tree}")
        self(*options, "-c", "core.bare=false", "-C", "files", "add", "-Af", ".")
        return self(*options, "write-tree")


def with_tarfile(top: Path, form: int) -> bytes | None:
    buffer = io.BytesIO()
    try:
        with tarfile.TarFile(fileobj=buffer, mode="w", format=form) as tar:
            tar.add(top, arcname="top")
    except ValueError:
        return None  # too long a name for this form
    return buffer.getvalue()


def with_gnu_tar(top: Path, form: str) -> bytes | None:
    done = subprocess.run(
        ["tar", "-c", f"--format={form}", top.name],
        cwd=top.parent,
        capture_output=True,
        env={"PATH": os.environ["PATH"], "LC_ALL": "C"},
    )
    return done.stdout if done.returncode == 0 else None


def with_zip(top: Path) -> bytes | None:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for folder, _, _ in os.walk(os.fsencode(top)):
            below = [os.path.join(folder, name) for name in os.listdir(folder)]
            for path in below:
                name = b"top/" + os.path.relpath(path, os.fsencode(top))
                if b"\\" in name:
                    return None
                try:
                    info = zipfile.ZipInfo(name.decode())
                except UnicodeDecodeError:
                    return None
                info.create_system = 3
                info.external_attr = os.lstat(path).st_mode << 16
                info.compress_type = zipfile.ZIP_DEFLATED
                if os.path.islink(path):
                    archive.writestr(info, os.readlink(path))
                elif os.path.isfile(path):
                    with open(path, "rb") as file:
                        archive.writestr(info, file.read())
    return buffer.getvalue()


PACK: list[Callable[[bytes], bytes]] = [
    bytes,
    gzip.compress,
    bz2.compress,
    lzma.compress,
    zstandard.ZstdCompressor().compress,
]


@examples(60)
@example(
    {
        (b"\xff\n",): ("file", b"1"),
        (b"n" * 200, b"m" * 200): ("exec", b"2"),
        (b"h",): ("hard", b""),
        (b"l",): ("link", b"n" * 200),
        (b"a",): ("file", b""),
        (b"a.b", b"c"): ("file", b""),
        (b"a-b",): ("file", b""),
    }
)
@given(files=trees())
def test_every_wrapping_gives_gits_tree(files):
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        top = folder / "files"
        top.mkdir()
        write_files(os.fsencode(top), files)
        expected = Oracle(folder).tree()
        cache = Cache.open(folder / "cache")
        assert import_path(top, cache=cache)[0] == expected
        wrapped = [
            with_tarfile(top, form)
            for form in (tarfile.PAX_FORMAT, tarfile.GNU_FORMAT, tarfile.USTAR_FORMAT)
        ]
        wrapped += [with_gnu_tar(top, form) for form in ("gnu", "oldgnu", "posix")]
        wrapped.append(with_zip(top))
        for number, data in enumerate(wrapped):
            if data is None:
                continue
            if number < len(wrapped) - 1:
                data = PACK[(number + len(files)) % len(PACK)](data)
            archive = folder / "archive"
            archive.write_bytes(data)
            found, _ = import_archive(
                archive, sha256(data).hexdigest(), strip=1, cache=cache
            )
            assert found == expected


@examples(12)
@given(files=trees())
def test_a_git_base_has_its_commits_tree(files):
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "files").mkdir()
        write_files(os.fsencode(folder / "files"), files)
        oracle = Oracle(folder)
        tree = oracle.tree()
        commit = oracle(
            f"--git-dir={oracle.git_dir}", "commit-tree", tree, "-m", "commit"
        )
        cache = Cache.open(folder / "cache")
        fetch_commit("oracle.git", commit, cache=cache, project=folder)
        assert cache.store.commit_tree(commit) == tree
        for _, _, oid in cache.store.walk(tree):
            cache.store.blob(oid)


GOOD = io.BytesIO()
with tarfile.TarFile(fileobj=GOOD, mode="w", format=tarfile.GNU_FORMAT) as _tar:
    for _name in ("d/a", "d/" + "n" * 120, "d/c"):
        _info = tarfile.TarInfo(_name)
        _info.size = 5
        _tar.addfile(_info, io.BytesIO(b"12345"))
_ZIP = io.BytesIO()
with zipfile.ZipFile(_ZIP, "w") as _archive:
    for _name in ("d/a", "d/b"):
        _archive.writestr(_name, b"12345" * 20, zipfile.ZIP_DEFLATED)
SEEDS = [GOOD.getvalue()[:5120], gzip.compress(GOOD.getvalue()), _ZIP.getvalue()]


@pytest.mark.parametrize("seed", range(len(SEEDS)))
@examples(150)
@given(
    edits=st.lists(
        st.tuples(st.integers(0, 1 << 16), st.integers(0, 255)), min_size=1, max_size=4
    ),
    cut=st.one_of(st.none(), st.integers(0, 1 << 16)),
)
def test_damaged_archives_are_refused_or_harmless(seed, edits, cut):
    data = bytearray(SEEDS[seed])
    for place, value in edits:
        data[place % len(data)] = value
    if cut is not None:
        del data[cut % len(data) :]
    folder = Path(tempfile.mkdtemp())
    try:
        (folder / "archive").write_bytes(data)
        cache = Cache.open(folder / "cache")
        with suppress(InputError, PinError):
            tree, _ = import_archive(
                folder / "archive", sha256(data).hexdigest(), strip=0, cache=cache
            )
            # What was taken is sound, whatever it says.
            for path, _, oid in cache.store.walk(tree):
                assert b".." not in path.split(b"/")
                cache.store.blob(oid)
            return
        assert not list((cache.folder / "store.git" / "objects").rglob("*.*"))
    finally:
        shutil.rmtree(folder)
