# SPDX-License-Identifier: Apache-2.0
"""The official vLLM 0.33.0 wheel against the base, and a composition laid over it.

The wheel (250 MB) and the sdist come from the package index that pip is configured for,
by digest, and stay in build/ci/cache.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from images import header, padded, pax_records
from support import ROOT, run

from stackctl.base import resolve_base
from stackctl.base.pypi import fetch_distribution
from stackctl.cache import Cache
from stackctl.compose.compose import compose_series
from stackctl.compose.materialise import materialise
from stackctl.image.expectation import ExpectedTree, from_store
from stackctl.image.platform import Platform
from stackctl.image.report import Report
from stackctl.image.verify import PinnedWheel, Request, verify
from stackctl.image.write import LayoutWriter
from stackctl.model.ids import Sha256
from stackctl.model.series import Series, load_series

pytestmark = [pytest.mark.tools, pytest.mark.network]
SHA256 = "4b6bdec4ab269990bf70d45a3c1e94c3760a27064513760193b26d6f0da883aa"


@pytest.fixture(scope="module")
def kept() -> Cache:
    return Cache.open(
        Path(os.environ.get("STACKCTL_TEST_CACHE", ROOT / "build/ci/cache"))
    )


@pytest.fixture(scope="module")
def wheel(kept: Cache, tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = fetch_distribution("vllm==0.33.0", Sha256(SHA256), cache=kept, wheel=True)
    # Installers want a wheel's own name.
    named = tmp_path_factory.mktemp("wheel") / (
        "vllm-0.33.0-cp38-abi3-manylinux_2_28_x86_64.whl"
    )
    named.symlink_to(found)
    return named


@pytest.fixture(scope="module")
def series() -> Series:
    return load_series(ROOT / "series.toml")


@pytest.fixture(scope="module")
def expected(kept: Cache, series: Series) -> ExpectedTree:
    base = resolve_base(series.base, project=ROOT, cache=kept, expected_tree=None)
    return from_store(kept.store, base.tree, "the base")


def check(report: Report) -> None:
    assert report.verdict == "match", report.reason
    (root,) = report.comparisons
    assert root.counts["matched"] == 3649
    assert sum(1 for f in root.findings if f.kind != "bytecode") == 2147


def test_wheel(wheel: Path, expected: ExpectedTree) -> None:
    alone = verify(Request(f"wheel:{wheel}", [expected]))
    check(alone)
    assert {w.code for w in alone.warnings} == {"untracked-unverified"}
    classes = alone.document()["roots"][0]["untracked"]  # type: ignore[index]
    assert classes == {
        "compiled": {"unverified": 14},
        "vendored": {"unverified": 2133},
    }
    pinned = verify(
        Request(f"wheel:{wheel}", [expected], wheel=PinnedWheel(wheel, SHA256))
    )
    check(pinned)
    assert pinned.warnings == []


def environment(folder: Path, wheel: Path, installer: str, compiled: bool) -> Path:
    """Install the wheel into a new environment and return its interpreter."""
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    python = folder / "bin" / "python"
    if installer == "pip":
        command = [str(python), "-m", "pip", "install", "-q", "--no-deps"]
        command.append("--compile" if compiled else "--no-compile")
    else:
        command = ["uv", "pip", "install", "-q", "--no-deps", "--python", str(python)]
        command += ["--compile-bytecode"] if compiled else []
    subprocess.run([*command, str(wheel)], check=True)
    return python


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("installer", ["pip", "uv"])
def test_environment(
    wheel: Path,
    expected: ExpectedTree,
    tmp_path: Path,
    installer: str,
    compiled: bool,
) -> None:
    if installer == "uv" and shutil.which("uv") is None:
        pytest.skip("uv is not installed")
    python = environment(tmp_path / "venv", wheel, installer, compiled)
    report = verify(
        Request(f"env:{python}", [expected], wheel=PinnedWheel(wheel, SHA256))
    )
    check(report)
    assert {w.code for w in report.warnings} <= {"pth-file"}
    (root,) = report.comparisons
    assert len(root.bytecode) == (3231 if compiled else 0)


def test_a_composition_laid_over_the_wheel(
    wheel: Path, expected: ExpectedTree, kept: Cache, series: Series, tmp_path: Path
) -> None:
    composition = compose_series(series, kept)
    composed = from_store(kept.store, composition.tree, "the composition")
    python = environment(tmp_path / "venv", wheel, "pip", compiled=False)
    materialise(kept.store, composition.tree, tmp_path / "tree")
    (packages,) = (tmp_path / "venv").glob("lib/python3.*/site-packages")
    shutil.copytree(tmp_path / "tree" / "vllm", packages / "vllm", dirs_exist_ok=True)

    def ask(*trees: ExpectedTree) -> Report:
        request = Request(f"env:{python}", trees, wheel=PinnedWheel(wheel, SHA256))
        return verify(request)

    report = ask(composed)
    assert report.verdict == "match", report.reason
    assert ask(expected).verdict == "mismatch"
    assert ask(expected, composed).expected == "the composition"


def wheel_layer(wheel: Path, packages: str) -> Iterator[bytes]:
    """Yield a tar with the wheel installed."""
    with zipfile.ZipFile(wheel) as archive:
        for info in archive.infolist():
            name = f"{packages}/{info.filename}".encode()
            if len(name) > 100:
                body = pax_records([(b"path", name)])
                yield header(b"pax", b"x", len(body)) + padded(body)
            yield header(name, b"0", info.file_size)
            with archive.open(info) as stream:
                while data := stream.read(1 << 20):
                    yield data
            yield bytes(-info.file_size % 512)
    yield bytes(1024)


def test_a_release_image_of_the_shipped_series(
    wheel: Path, kept: Cache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The circle: base image, overlay, verification, on the real files."""
    packages = "usr/local/lib/python3.12/dist-packages"
    digest = hashlib.sha256()

    def hashed() -> Iterator[bytes]:
        for data in wheel_layer(wheel, packages):
            digest.update(data)
            yield data

    base = tmp_path / "base"
    base.mkdir()
    writer = LayoutWriter(base)
    writer.copy_layer(hashed(), "tar")
    diff_ids = [f"sha256:{digest.hexdigest()}"]
    config = {
        "architecture": "amd64",
        "os": "linux",
        "config": {},
        "rootfs": {"type": "layers", "diff_ids": diff_ids},
    }
    writer.finish(config, {}, Platform("linux", "amd64"), "latest")
    monkeypatch.setenv("STACKCTL_CACHE_DIR", str(kept.folder))
    place = ("--root", f"vllm=/{packages}/vllm", "--wheel", wheel, "--json")
    place = (*place, "--platform", "linux/amd64")
    made = run(
        "image", "overlay", f"oci:{base}", "--out", f"oci:{tmp_path}/out", *place,
        cwd=ROOT,
    )  # fmt: skip
    assert made.code == 0, made.out
    assert made.json["layer"]["size"] < 4 << 20
    assert f"/{packages}/vllm/envs.py" in made.json["changed"]
    verified = run("verify-image", f"oci:{tmp_path}/out", *place, "--strict", cwd=ROOT)
    assert verified.code == 0, verified.out
    document = verified.json
    assert document["image"]["digest"] == made.json["digest"]
    before = run("verify-image", f"oci:{base}", *place, cwd=ROOT)
    assert before.code == 1
    assert before.json["explains"][0]["text"] == "equals the base"
