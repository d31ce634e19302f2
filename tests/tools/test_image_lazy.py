# SPDX-License-Identifier: Apache-2.0
"""Indexes for lazy runtimes as real tools write them: skopeo, podman, ctr-remote."""

import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from images import PACKAGE_ROOT, SITE, Demo, Tar, build_image, tree_layer, write_layout
from lazyimages import OLD, Entries, chunked, named
from runtimes import Containerd, Tree, read_tree, run, running_registry

from stackctl.image.expectation import ExpectedTree, folder_tree
from stackctl.image.roots import PACKAGE, Root
from stackctl.image.verify import Request, verify

pytestmark = pytest.mark.tools
#: Long enough for several chunks, with a hole that is one.
BIG = bytes(range(256)) * 2000 + bytes(70_000) + b"the end"


def need(*programs: str) -> None:
    for program in programs:
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed")


@pytest.fixture
def expected(tmp_path: Path) -> ExpectedTree:
    tree = Demo().write(tmp_path / "expected")
    (tree / "demo/big.bin").write_bytes(BIG)
    return folder_tree(tree)


def plain_layers() -> list[bytes]:
    """Return layers of odd entries below and the package on top."""
    odd = Tar().folder("opt").file("opt/ü é", b"x", mode=0o4755).file("opt/old", b"")
    odd.hardlink("opt/hard", "opt/ü é", 0o4755).symlink("opt/soft", "old")
    odd.device("opt/null", 1, 3).file(f"opt/{'long/' * 30}name", b"long")
    odd.folder("opt/gone").file("opt/gone/x", b"x")
    return [
        odd.done(),
        Tar().whiteout("opt/old").opaque("opt/gone").done(),
        tree_layer({**Demo().package(), "demo/big.bin": BIG}, SITE),
    ]


@pytest.fixture
def layout(tmp_path: Path) -> Path:
    """Return a plain image of these layers."""
    image = build_image(plain_layers(), compression="tar")
    return write_layout(tmp_path / "layout", image)


def check(
    reference: str,
    expected: ExpectedTree,
    kind: str,
    count: int = 3,
    verdict: str = "match",
) -> None:
    request = Request(
        reference, [expected], (Root("demo", PACKAGE_ROOT, PACKAGE),), strict=True
    )
    report = verify(request)
    assert report.verdict == verdict, [w.message for w in report.warnings]
    layers = report.image["layers"]
    assert isinstance(layers, list)
    assert len(layers) == count
    for layer in layers:
        assert layer["index"]["kinds"] == [kind], layer
        assert layer["index"]["agrees"] is True, layer


@pytest.mark.parametrize("target", ["oci", "dir"])
def test_skopeo_writes_zstd_chunked(
    tmp_path: Path, layout: Path, expected: ExpectedTree, target: str
) -> None:
    need("skopeo")
    tag = "" if target == "dir" else ":1"
    reference = f"{target}:{tmp_path}/copy{tag}"
    run(
        "skopeo", "copy", "-q", "--dest-compress-format", "zstd:chunked",
        "--dest-compress", f"oci:{layout}:latest", reference,
    )  # fmt: skip
    check(reference, expected, "zstd:chunked")


def test_podman_writes_zstd_chunked(
    tmp_path: Path, layout: Path, expected: ExpectedTree
) -> None:
    need("podman")
    if os.geteuid():
        pytest.skip("podman needs root here")
    # Podman takes no longer path for its run folder than 50 characters.
    runroot = tempfile.mkdtemp(prefix="pod")
    base = ["podman", "--root", str(tmp_path / "s"), "--runroot", runroot,
            "--storage-driver", "vfs"]  # fmt: skip
    image = run(*base, "pull", "-q", f"oci:{layout}:latest").split()[-1]
    run(*base, "push", "-q", "--compress", "--compression-format", "zstd:chunked",
        image, f"dir:{tmp_path}/pushed")  # fmt: skip
    check(f"dir:{tmp_path}/pushed", expected, "zstd:chunked")


@pytest.fixture
def containerd(tmp_path: Path) -> Iterator[Containerd]:
    need("containerd", "ctr", "ctr-remote")
    if os.geteuid():
        pytest.skip("containerd needs root here")
    daemon = Containerd(tmp_path)
    yield daemon
    daemon.close()


@pytest.mark.parametrize(
    ("options", "kind"),
    [
        (("--estargz",), "eStargz"),
        (("--estargz", "--estargz-chunk-size", "100000"), "eStargz"),
        (("--zstdchunked",), "zstd:chunked"),
    ],
)
def test_stargz_converts(
    tmp_path: Path,
    expected: ExpectedTree,
    containerd: Containerd,
    options: tuple[str, ...],
    kind: str,
) -> None:
    socket = str(tmp_path / "c.sock")
    # One image a layer: of several that it converts at a time, this version of the tool
    # now and then writes the annotations to another one.
    for number, layer in enumerate(plain_layers()):
        image = build_image([layer], compression="tar")
        layout = write_layout(tmp_path / f"layout{number}", image)
        archive = tmp_path / f"layout{number}.tar"
        run("tar", "-cf", str(archive), "-C", str(layout), ".")
        name = f"t.invalid/i{number}"
        containerd.run("images", "import", "--no-unpack", "--index-name", f"{name}:1",
                       str(archive))  # fmt: skip
        run("ctr-remote", "-a", socket, "images", "convert", *options, "--oci",
            f"{name}:1", f"{name}:2")  # fmt: skip
        out = tmp_path / f"lazy{number}.tar"
        containerd.run("images", "export", str(out), f"{name}:2")
        verdict = "match" if number == 2 else "mismatch"
        check(f"oci-archive:{out}", expected, kind, count=1, verdict=verdict)


class PartialPodman:
    """Podman that pulls layers in parts, by their index, from a registry.

    Args:
        work: A folder for its storage.
        host: The registry.
    """

    def __init__(self, work: Path, host: str) -> None:
        self._host = host
        config = work / "storage.conf"
        config.write_text(
            f'[storage]\ndriver = "overlay"\ngraphroot = "{work}/partial"\n'
            f'runroot = "{tempfile.mkdtemp(prefix="pod")}"\n[storage.options]\n'
            'pull_options = {enable_partial_images = "true", use_hard_links = "false", '
            'ostree_repos = ""}\n'
        )
        self._settings = {"env": {**os.environ, "CONTAINERS_STORAGE_CONF": str(config)}}

    def __call__(self, layout: Path) -> Tree:
        name = f"{self._host}/t:1"
        run("skopeo", "copy", "-q", "--preserve-digests", "--dest-tls-verify=false",
            f"oci:{layout}:latest", f"docker://{name}")  # fmt: skip
        log = self._podman("--log-level", "debug", "pull", "--tls-verify=false", name)
        assert "Retrieved partial blob" in log
        try:
            where = self._podman("image", "mount", name).strip().splitlines()[-1]
            return read_tree(Path(where))
        finally:
            self._podman("rmi", "-af")

    def _podman(self, *command: str) -> str:
        out = subprocess.run(
            ["podman", *command], capture_output=True, check=True, **self._settings
        )  # type: ignore[call-overload]
        wanted = out.stderr if "pull" in command else out.stdout
        return str(wanted.decode("utf-8", "replace"))


def exchange(entries: Entries) -> None:
    one = named(entries, "opt/demo/core.py")
    other = named(entries, "opt/demo/__init__.py")
    for key in ("offset", "endOffset", "digest", "size"):
        one[key], other[key] = other[key], one[key]


def lose(entries: Entries) -> None:
    entries.remove(named(entries, "opt/demo/sub/deep.py"))


def add(entries: Entries) -> None:
    entries.append({**named(entries, "opt/demo/core.py"), "name": "opt/demo/evil.py"})


def link(entries: Entries) -> None:
    entry = named(entries, "opt/demo/sub/__init__.py")
    entry.update(type="symlink", linkName="deep.py")


@pytest.mark.parametrize("edit", [None, exchange, lose, add, link])
def test_podman_sees_what_the_index_says(
    tmp_path: Path, edit: Callable[[Entries], None] | None
) -> None:
    """What podman sees otherwise is refused, and nothing else is."""
    need("podman", "skopeo", "docker-registry")
    if os.geteuid():
        pytest.skip("podman needs root here")
    tar = tree_layer(Demo().package(), "opt")

    def change(entries: Entries) -> None:
        for entry in entries:
            # This podman takes no entry without.
            entry["accesstime"] = entry["changetime"] = "0001-01-01T00:00:00Z"
        if edit is not None:
            edit(entries)

    layout = write_layout(
        tmp_path / "layout", chunked(tar, prefix=OLD, edit=change).image()
    )
    with running_registry(tmp_path) as host:
        seen = PartialPodman(tmp_path, host)(layout)
    expected = folder_tree(Demo().write(tmp_path / "expected"))
    request = Request(
        f"oci:{layout}", [expected], (Root("demo", "/opt/demo", PACKAGE),), strict=True
    )
    report = verify(request)
    there = {
        path: hashlib.sha256(data).hexdigest().encode()
        for path, data in Demo().files.items()
        if path.startswith("demo/")
    }
    found = {
        os.fsdecode(path).removeprefix("opt/"): content
        for path, (kind, _, content) in seen.items()
        if kind != "d"
    }
    assert (found == there) == (edit is None)
    if edit is None:
        assert report.verdict == "match", report.reason
    else:
        assert report.reason["code"] == "ambiguous-lazy-index"
