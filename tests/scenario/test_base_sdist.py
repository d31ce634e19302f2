# SPDX-License-Identifier: Apache-2.0
"""The base that this repository ships on: vLLM 0.33.0 from the configured index."""

import os
import resource
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from stackctl.base import resolve_base
from stackctl.base.pypi import fetch_distribution
from stackctl.cache import Cache, default_cache_folder
from stackctl.errors import PinError
from stackctl.model.series import ArchiveBase, PathBase, PypiBase

pytestmark = pytest.mark.network

PIN = "vllm==0.33.0"
SHA256 = "f4c33c2503d52bb411146afa9618a4f48bed68912f617e6803ac8d76e4c74112"
TREE = "f4b70840c85fa72f907d1b6a3d3a4eb958a1b3e3"
FILES = 8522

# Asked before the tests' own environment hides the user's cache.
_USERS_CACHE = default_cache_folder()


@pytest.fixture(scope="module")
def sdist(tmp_path_factory) -> Path:
    """The sdist: from the user's cache where it is there, else from the index."""
    cached = _USERS_CACHE / "downloads" / SHA256
    cache = Cache.open(tmp_path_factory.mktemp("download"))
    if cached.is_file():
        cache.downloads.mkdir()
        shutil.copyfile(cached, cache.downloads / SHA256)
    return fetch_distribution(PIN, SHA256, cache=cache)


@pytest.fixture
def filled(cache, sdist) -> Cache:
    cache.downloads.mkdir(exist_ok=True)
    os.link(sdist, cache.downloads / SHA256)
    return cache


def cpu(who: int) -> float:
    used = resource.getrusage(who)
    return used.ru_utime + used.ru_stime


def test_the_sdist_is_the_pinned_tree(filled, tmp_path):
    base = PypiBase(pypi=PIN, sha256=SHA256)
    found = resolve_base(base, project=tmp_path, cache=filled, expected_tree=TREE)
    assert found.identity == f"{PIN}@sha256:{SHA256}"
    files = list(filled.store.walk(found.tree))
    assert len(files) == FILES
    assert found.tree == TREE
    # content_sha256 needs each of them, and no file is read a second time for it.
    blobs = {oid for _, _, oid in files}
    assert set(filled.get("sha256", blobs)) == blobs
    # The same bytes by another way are the same tree and the same commit.
    archive = resolve_base(
        ArchiveBase(archive=str(filled.downloads / SHA256), sha256=SHA256, strip=1),
        project=tmp_path,
        cache=Cache.open(tmp_path / "second"),
        expected_tree=TREE,
    )
    assert (archive.tree, archive.commit) == (found.tree, found.commit)
    with pytest.raises(PinError, match=f"expected {'0' * 40}, got {TREE}"):
        resolve_base(base, project=tmp_path, cache=filled, expected_tree="0" * 40)


def test_it_costs_less_than_unpacking_and_adding(filled, sdist, tmp_path):
    """Compare CPU time, which other work on the machine does not change much."""
    before, start = cpu(resource.RUSAGE_CHILDREN), time.monotonic()
    subprocess.run(["tar", "xf", sdist, "-C", tmp_path, "--no-same-owner"], check=True)
    folder = tmp_path / "vllm-0.33.0"
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path),
        "GIT_CONFIG_NOSYSTEM": "1",
    }
    for command in (("init", "-q"), ("add", "-Af"), ("write-tree",)):
        done = subprocess.run(
            ["git", *command], cwd=folder, env=environment, capture_output=True
        )
        assert done.returncode == 0
    theirs, theirs_wall = (
        cpu(resource.RUSAGE_CHILDREN) - before,
        time.monotonic() - start,
    )
    assert done.stdout.decode().strip() == TREE
    base = PypiBase(pypi=PIN, sha256=SHA256)
    before, start = cpu(resource.RUSAGE_SELF), time.monotonic()
    resolve_base(base, project=tmp_path, cache=filled, expected_tree=TREE)
    ours, ours_wall = cpu(resource.RUSAGE_SELF) - before, time.monotonic() - start
    print(
        f"CPU {theirs:.2f} -> {ours:.2f} s, wall {theirs_wall:.2f} -> {ours_wall:.2f} s"
    )
    assert 2 * ours < theirs
    # The unpacked folder is the same base.
    found = resolve_base(
        PathBase(path=str(folder)),
        project=tmp_path,
        cache=filled,
        expected_tree=TREE,
    )
    assert found.identity == f"tree:{TREE}"


def test_peak_memory(filled, tmp_path):
    code = (
        "from pathlib import Path\n"
        "from stackctl.base import resolve_base\n"
        "from stackctl.cache import Cache\n"
        "from stackctl.model.series import PypiBase\n"
        f"cache = Cache.open(Path({str(filled.folder)!r}))\n"
        f"base = PypiBase(pypi={PIN!r}, sha256={SHA256!r})\n"
        "resolve_base(base, project=Path('/'), cache=cache, expected_tree=None)\n"
        # Not ru_maxrss, which a process inherits from the one that started it.
        "status = Path('/proc/self/status').read_text()\n"
        "print(status.partition('VmHWM:')[2].split()[0])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    kilobytes = int(done.stdout)
    assert kilobytes < 400_000
