# SPDX-License-Identifier: Apache-2.0
"""Images whose right answer is known from how they were made, one line each.

What a person would do to an image by hand, or an attacker: none of them may match that
should not, and none that is right may be refused.
"""

import base64
import gzip
import hashlib
import importlib.util
import json
import marshal
import struct
import sys
import zipfile
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import zstandard
from images import (
    OCI_LAYER,
    PACKAGE_ROOT,
    SITE,
    Built,
    Demo,
    Tar,
    archive_of,
    build_image,
    header,
    layout_files,
    padded,
    sha256,
    tree_layer,
    write_files,
    write_layout,
)

from stackctl.image.expectation import folder_tree
from stackctl.image.platform import Platform
from stackctl.image.report import Report
from stackctl.image.roots import CHECKOUT, PACKAGE, Root
from stackctl.image.verify import PinnedWheel, Request, verify

DEMO = Demo()
CORE = f"{SITE}/demo/core.py"
GOOD = DEMO.files["demo/core.py"]
EVIL = b"VALUE = 666\n"
TIME = 1_700_000_000
LIBRARY = b"\x7fELF" + b"good" * 100
OTHER_LIBRARY = b"\x7fELF" + b"evil" * 100
DEEP = "demo/" + "a/" * 60 + "x.py"
ACCENT = "demo/ü é.txt"
HOLE = "demo/hole.bin"
HOLE_DATA = bytes(4096) + b"Z" * 512
CACHE = (
    f"{SITE}/demo/__pycache__/core.cpython-"
    f"{sys.version_info[0]}{sys.version_info[1]}.pyc"
)
AMD64 = Platform("linux", "amd64", "")
BASE = tree_layer(DEMO.package(), SITE)
CHECKED_OUT = tree_layer(DEMO.files, "opt/demo")


@dataclass(frozen=True)
class Case:
    """An image and its answer.

    Attributes:
        verdict: The right one.
        layers: From the lowest.
        codes: Warnings that there must be, and no others.
        root: Path of the package in the image; `.` for the checkout in /opt/demo,
            `./` for one at the top.
        wheel: Whether the wheel is pinned.
        more: Tracked files beside the demo's.
    """

    verdict: str
    layers: tuple[bytes | Tar, ...]
    codes: frozenset[str] = frozenset()
    root: str = PACKAGE_ROOT
    wheel: bool = False
    more: dict[str, bytes] = field(default_factory=dict)


def over(verdict: str, *layers: bytes | Tar, **more: object) -> Case:
    return Case(verdict, (BASE, *layers), **more)  # type: ignore[arg-type]


def checkout(verdict: str, *layers: bytes | Tar, **more: object) -> Case:
    return Case(verdict, (CHECKED_OUT, *layers), root=".", **more)  # type: ignore[arg-type]


def record(files: dict[str, bytes | str]) -> bytes:
    """Return a RECORD that is right for what is there, as anybody can write it."""
    rows = []
    for name, data in files.items():
        body = data.encode() if isinstance(data, str) else data
        digest = base64.urlsafe_b64encode(hashlib.sha256(body).digest())
        rows.append(f"{name},sha256={digest.decode().rstrip('=')},{len(body)}\n")
    return "".join([*rows, "demo-1.dist-info/RECORD,,\n"]).encode()


def installed(library: bytes = LIBRARY, **more: bytes) -> bytes:
    files = {**DEMO.package(), "demo/_C.abi3.so": library}
    files |= {name.replace("__", "/") + ".py": data for name, data in more.items()}
    return tree_layer({**files, "demo-1.dist-info/RECORD": record(files)}, SITE)


def compiled(source: bytes, mtime: int, flags: int = 0) -> bytes:
    code = compile(source, "demo/core.py", "exec", dont_inherit=True)
    head = struct.pack("<III", flags, mtime, len(GOOD))
    return importlib.util.MAGIC_NUMBER + head + marshal.dumps(code)


def owned(name: str, data: bytes, user: int) -> bytes:
    block = bytearray(header(name.encode(), b"0", len(data)))
    block[108:116] = b"%07o\0" % user
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block) + padded(data)


def sparse(offset: int) -> Tar:
    name = f"{SITE}/{HOLE}"
    records = ((b"GNU.sparse.size", b"4608"), (b"GNU.sparse.numblocks", b"1"),
               (b"GNU.sparse.map", b"%d,512" % offset))  # fmt: skip
    return Tar().pax(*records).file(name, b"Z" * 512)


def sparse_with_map() -> Tar:
    body = b"1\n4096\n512\n".ljust(512, b"\0") + b"Z" * 512
    records = ((b"GNU.sparse.major", b"1"), (b"GNU.sparse.minor", b"0"),
               (b"GNU.sparse.name", f"{SITE}/{HOLE}".encode()),
               (b"GNU.sparse.realsize", b"4608"))  # fmt: skip
    return Tar().pax(*records).file("GNUSparseFile.0/s", body)


def gnu_named(name: str, data: bytes) -> Tar:
    magic = b"ustar  \0"
    body = header(b"cut", b"0", len(data), magic=magic) + padded(data)
    return Tar().gnu_long(b"L", f"{SITE}/{name}".encode()).raw(body)


FOREIGN = frozenset(("bytecode-foreign",))
HOLES = {HOLE: HOLE_DATA}
OUTSIDE = frozenset(("ambiguous-outside-root",))
CASES = {
    "a library of the wheel": Case("match", (installed(),), wheel=True),
    "a swapped library with a right RECORD": Case(
        "mismatch", (installed(OTHER_LIBRARY),), wheel=True
    ),
    "an added module with a right RECORD": Case(
        "mismatch", (installed(demo__evil=EVIL),), wheel=True
    ),
    "a library and no wheel": Case("mismatch", (installed(),)),
    "a library twice in a layer": Case(
        "mismatch",
        (
            installed(),
            Tar()
            .file(f"{SITE}/demo/_C.abi3.so", LIBRARY)
            .file(f"{SITE}/demo/_C.abi3.so", OTHER_LIBRARY),
        ),
        wheel=True,
        codes=frozenset(("duplicate-entry",)),
    ),
    "a library by a hard link": Case(
        "mismatch",
        (
            installed(),
            Tar()
            .file("opt/x", OTHER_LIBRARY)
            .hardlink(f"{SITE}/demo/_C.abi3.so", "opt/x"),
        ),
        wheel=True,
    ),
    "bytecode of the source": over("match", Tar().file(CACHE, compiled(GOOD, TIME))),
    "bytecode of other source": over(
        "match", Tar().file(CACHE, compiled(EVIL, TIME)), codes=FOREIGN
    ),
    "bytecode that is stale": over(
        "match",
        Tar().file(CACHE, compiled(EVIL, TIME - 9)),
        codes=frozenset(("bytecode-stale",)),
    ),
    "bytecode made to fit by touching the source": over(
        "match",
        Tar().file(CACHE, compiled(EVIL, TIME - 9)).file(CORE, GOOD, mtime=TIME - 9),
        codes=FOREIGN,
    ),
    "bytecode made to fit by a fraction of a second": over(
        "match",
        Tar()
        .pax((b"mtime", b"1650000000.75"))
        .file(CORE, GOOD)
        .file(CACHE, compiled(EVIL, 1_650_000_000)),
        codes=FOREIGN,
    ),
    "bytecode that is never checked": over(
        "match",
        Tar().file(CACHE, compiled(EVIL, 0, 1)),
        codes=FOREIGN | {"bytecode-unchecked"},
    ),
    "deleted and put back": over("match", Tar().whiteout(CORE), Tar().file(CORE, GOOD)),
    "deleted and replaced": over(
        "mismatch", Tar().whiteout(CORE), Tar().file(CORE, EVIL)
    ),
    "folder deleted and put back": over("match", Tar().whiteout(f"{SITE}/demo"), BASE),
    "folder deleted and half put back": over(
        "mismatch", Tar().whiteout(f"{SITE}/demo"), Tar().file(CORE, GOOD)
    ),
    "opaque and put back in one layer": over(
        "match", Tar().opaque(f"{SITE}/demo").raw(BASE)
    ),
    "an extra module below": Case(
        "mismatch", (tree_layer({"demo/evil.py": EVIL}, SITE), BASE)
    ),
    "an extra module below, hidden": Case(
        "match",
        (
            tree_layer({"demo/evil.py": EVIL}, SITE),
            Tar().opaque(f"{SITE}/demo").raw(BASE),
        ),
    ),
    "an extra module below, deleted above": Case(
        "match",
        (
            tree_layer({"demo/evil.py": EVIL}, SITE),
            BASE,
            Tar().whiteout(f"{SITE}/demo/evil.py"),
        ),
    ),
    "deleted and put back in one layer": over(
        "unverifiable", Tar().whiteout(f"{SITE}/demo").raw(BASE)
    ),
    "deleted and put back in one layer, and once more in two": over(
        "match",
        Tar().whiteout(f"{SITE}/demo").raw(BASE),
        Tar().whiteout(f"{SITE}/demo"),
        BASE,
    ),
    "deleted and put back in one layer, and a part of it again": over(
        "unverifiable",
        Tar().whiteout(f"{SITE}/demo").raw(BASE),
        Tar().whiteout(CORE),
        Tar().file(CORE, GOOD),
    ),
    "hidden by an overlay device and put back": over(
        "match", Tar().device(CORE, 0, 0), Tar().file(CORE, GOOD)
    ),
    "replaced through a symlink and put back": over(
        "match",
        Tar().symlink("opt", f"/{SITE}/demo"),
        Tar().file("opt/core.py", EVIL),
        Tar().file(CORE, GOOD),
        codes=OUTSIDE,
    ),
    "added through a symlink": over(
        "unverifiable",
        Tar().symlink("opt", f"/{SITE}/demo"),
        Tar().file("opt/evil.py", EVIL),
        Tar().file(CORE, GOOD),
    ),
    "a start-up file by a hard link to an overlay device": Case(
        "unverifiable",
        (
            tree_layer({**DEMO.package(), "x.pth": "import os\n"}, SITE),
            Tar().device("opt", 0, 0).hardlink(f"{SITE}/x.pth", "opt"),
        ),
    ),
    "an added module below, hidden behind a symlink": Case(
        "unverifiable",
        (
            tree_layer({**DEMO.package(), "demo/evil.py": EVIL}, SITE),
            Tar().raw(BASE[:-1024]).symlink("opt", f"/{SITE}/demo").opaque("opt"),
        ),
    ),
    "another package that is not the same for all": over(
        "unverifiable",
        Tar().file(f"{SITE}/other/a/b.py", "b").whiteout(f"{SITE}/other/a/b.py"),
    ),
    "a global path and files elsewhere": over(
        "match",
        Tar().pax((b"path", b"opt/a"), kind=b"g").file("opt/b", "b"),
        codes=OUTSIDE,
    ),
    "a global path and a tracked file": over(
        "unverifiable", Tar().pax((b"path", b"opt/a"), kind=b"g").file(CORE, GOOD)
    ),
    "a global path that is a tracked file's": over(
        "unverifiable",
        Tar().pax((b"path", CORE.encode()), kind=b"g").file("opt/b", "b"),
    ),
    "a folder that its layer names and then loses": over(
        "unverifiable",
        Tar()
        .folder(f"{SITE}/demo/a")
        .folder(f"{SITE}/demo/a/b")
        .file(f"{SITE}/demo/a", "a"),
    ),
    "a file that was a folder for a while": over(
        "match",
        Tar().whiteout(CORE),
        Tar().folder(CORE).file(f"{CORE}/x", "x"),
        Tar().whiteout(CORE),
        Tar().file(CORE, GOOD),
    ),
    "a root behind a symlink": over(
        "match",
        Tar().symlink("opt/venv", "/usr"),
        root="/opt/venv/lib/python3.11/site-packages/demo",
    ),
    "a root behind a symlink to another copy": over(
        "mismatch",
        tree_layer({**DEMO.package(), "demo/core.py": EVIL}, "opt/other"),
        Tar().symlink("current", "/opt/other"),
        root="/current/demo",
        codes=frozenset(("second-copy",)),
    ),
    "another case of a name": over(
        "mismatch", Tar().file(f"{SITE}/demo/Core.py", EVIL)
    ),
    "another case of the folder": over(
        "match", Tar().file(f"{SITE}/Demo/core.py", EVIL)
    ),
    "other line ends": over("mismatch", Tar().file(CORE, GOOD.replace(b"\n", b"\r\n"))),
    "another owner": over("match", owned(CORE, GOOD, 1000) + bytes(1024)),
    "executable in a package": over("match", Tar().file(CORE, GOOD, mode=0o755)),
    "a checkout": checkout("match"),
    "executable in a checkout": checkout(
        "mismatch", Tar().file("opt/demo/demo/core.py", GOOD, mode=0o755)
    ),
    "executable for the group": checkout(
        "match", Tar().file("opt/demo/demo/core.py", GOOD, mode=0o654)
    ),
    "set-user-id": checkout(
        "match", Tar().file("opt/demo/demo/core.py", GOOD, mode=0o4644)
    ),
    "other line ends in a checkout": checkout(
        "mismatch", Tar().file("opt/demo/README.md", b"# demo\r\n")
    ),
    "notes in a checkout": checkout("mismatch", Tar().file("opt/demo/notes.txt", "x")),
    "an empty folder in a checkout": checkout("match", Tar().folder("opt/demo/empty")),
    "a checkout at the top": Case("match", (tree_layer(DEMO.files, ""),), root="./"),
    "notes beside a checkout at the top": Case(
        "mismatch", (tree_layer({**DEMO.files, "etc/x": "x"}, ""),), root="./"
    ),
    "a library of the wheel in a checkout": checkout(
        "mismatch", Tar().file("opt/demo/demo/_C.abi3.so", LIBRARY), wheel=True
    ),
    "a pipe in a checkout": checkout(
        "mismatch", Tar().raw(header(b"opt/demo/f", b"6"))
    ),
    "a worktree's .git file": checkout(
        "match",
        Tar().file("opt/demo/.git", "gitdir: /x\n"),
        codes=frozenset(("git-data",)),
    ),
    "a .git further down": checkout(
        "mismatch", Tar().file("opt/demo/demo/.git/config", "x")
    ),
    "a long name by PAX": over(
        "match", Tar().file(f"{SITE}/{DEEP}", "L\n"), more={DEEP: b"L\n"}
    ),
    "a long name by GNU": over("match", gnu_named(DEEP, b"L\n"), more={DEEP: b"L\n"}),
    "a long name with other bytes": over(
        "mismatch", gnu_named(DEEP, b"M\n"), more={DEEP: b"L\n"}
    ),
    "a name that is not ASCII": over(
        "match", Tar().file(f"{SITE}/{ACCENT}", "u"), more={ACCENT: b"u"}
    ),
    "the same name, decomposed": over(
        "mismatch",
        Tar().file(f"{SITE}/{ACCENT}".replace("ü", "u\u0308"), "u"),
        more={ACCENT: b"u"},
        codes=frozenset(("untracked-unverified",)),
    ),
    "a sparse file": over("match", sparse(4096), more=HOLES),
    "a sparse file with its map inside": over("match", sparse_with_map(), more=HOLES),
    "a sparse file with another hole": over("mismatch", sparse(0), more=HOLES),
}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("wheel") / "demo-1-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in DEMO.package().items():
            archive.writestr(name, data)
        archive.writestr("demo/_C.abi3.so", LIBRARY)
    return path


def ask(folder: Path, reference: str, case: Case, wheel: Path | None = None) -> Report:
    tree = Demo({**DEMO.files, **case.more}).write(folder / "expected")
    checkouts = {".": "/opt/demo", "./": "/"}
    root = (
        Root(".", checkouts[case.root], CHECKOUT)
        if case.root in checkouts
        else Root("demo", case.root, PACKAGE)
    )
    return verify(
        Request(
            reference,
            [folder_tree(tree)],
            (root,),
            wheel=PinnedWheel(wheel) if wheel and case.wheel else None,
            platform=AMD64,
            environ={},
        )
    )


@pytest.mark.parametrize("name", CASES)
def test_known_answer(tmp_path: Path, wheel: Path, name: str) -> None:
    case = CASES[name]
    tars = [la.done() if isinstance(la, Tar) else la for la in case.layers]
    layout = write_layout(tmp_path / "image", build_image(tars))
    report = ask(tmp_path, f"oci:{layout}", case, wheel)
    found = {warning.code for warning in report.warnings}
    assert (report.verdict, found) == (case.verdict, set(case.codes)), report.reason


def with_blob(blob: bytes, suffix: str, **annotations: str) -> Built:
    """Return an image of the good layer, stored as these bytes."""
    image = build_image([BASE], layer_annotations=annotations or None)
    manifest = json.loads(image.blobs.pop(image.manifest))
    manifest["layers"][0].update(
        digest=sha256(blob), size=len(blob), mediaType=f"{OCI_LAYER}+{suffix}"
    )
    raw = json.dumps(manifest).encode()
    image.manifest = sha256(raw)
    image.blobs |= {sha256(blob): blob, image.manifest: raw}
    return image


GZIP = gzip.compress(BASE, mtime=0)
ZSTD = zstandard.ZstdCompressor().compress(BASE)
CHECKED = zstandard.ZstdCompressor(write_checksum=True).compress(BASE)
SKIPPED = struct.pack("<II", 0x184D2A50, 40) + bytes(40)
ENDS = {
    "gzip": (GZIP, "match"),
    "gzip and an empty member": (GZIP + gzip.compress(b"", mtime=0), "match"),
    "gzip and garbage": (GZIP + b"garbage", "unverifiable"),
    "gzip and zeros": (GZIP + bytes(512), "unverifiable"),
    "gzip and another archive": (
        GZIP + gzip.compress(Tar().file(CORE, EVIL).done(), mtime=0),
        "unverifiable",
    ),
    "gzip with a wrong checksum": (GZIP[:-8] + bytes(4) + GZIP[-4:], "unverifiable"),
    "gzip with a wrong length": (GZIP[:-4] + b"\1\0\0\0", "unverifiable"),
    "gzip cut": (GZIP[:-9], "unverifiable"),
    "zstd": (ZSTD, "match"),
    "zstd and a frame to skip": (ZSTD + SKIPPED, "match"),
    "zstd after a frame to skip": (SKIPPED + ZSTD, "match"),
    "zstd and garbage": (ZSTD + b"garbage", "unverifiable"),
    "zstd cut": (ZSTD[:-20], "unverifiable"),
    "zstd without its checksum": (CHECKED[:-4], "unverifiable"),
    "zstd with a part of its checksum": (CHECKED[:-1], "unverifiable"),
    "zstd and a part of a frame": (ZSTD + ZSTD[:9], "unverifiable"),
    "zstd and an empty frame": (ZSTD + zstandard.compress(b""), "match"),
    "zstd and a part of a frame to skip": (ZSTD + SKIPPED[:-1], "unverifiable"),
    "zstd and a part of a magic number": (ZSTD + ZSTD[:3], "unverifiable"),
}


@pytest.mark.parametrize("name", ENDS)
def test_end_of_a_layer(tmp_path: Path, name: str) -> None:
    blob, verdict = ENDS[name]
    layout = write_layout(tmp_path / "image", with_blob(blob, name[:4]))
    assert ask(tmp_path, f"oci:{layout}", Case("", ())).verdict == verdict


@pytest.mark.parametrize(
    ("tag", "verdict"),
    [
        (":t/i:good", "match"),
        (":t/i:also", "match"),
        (":t/i:evil", "mismatch"),
        (":t/i:both", "unverifiable"),
        (":t/i:none", "unverifiable"),
        ("", "unverifiable"),
    ],
)
def test_tags_of_a_docker_archive(tmp_path: Path, tag: str, verdict: str) -> None:
    files: dict[str, bytes] = {}
    listed = []
    for tars, tags in (
        ([BASE], ["t/i:good", "t/i:also", "t/i:both"]),
        ([BASE, Tar().file(CORE, EVIL).done()], ["t/i:evil", "t/i:both"]),
    ):
        image = build_image(tars)
        config = f"{image.config[7:]}.json"
        names = {f"{sha256(tar)[7:]}.tar": tar for tar in tars}
        files |= {config: image.blobs[image.config], **names}
        listed.append({"Config": config, "RepoTags": tags, "Layers": list(names)})
    files["manifest.json"] = json.dumps(listed).encode()
    path = tmp_path / "saved.tar"
    path.write_bytes(archive_of(files))
    report = ask(tmp_path, f"docker-archive:{path}{tag}", Case("", ()))
    assert report.verdict == verdict


@pytest.mark.parametrize("evil", [False, True])
def test_docker_schema_2(tmp_path: Path, evil: bool) -> None:
    docker = "application/vnd.docker"

    def edit(manifest: dict[str, object]) -> None:
        manifest["mediaType"] = f"{docker}.distribution.manifest.v2+json"
        manifest["config"]["mediaType"] = f"{docker}.container.image.v1+json"  # type: ignore[index]
        for layer in manifest["layers"]:  # type: ignore[attr-defined]
            layer["mediaType"] = f"{docker}.image.rootfs.diff.tar.gzip"

    layers = [BASE, *([Tar().file(CORE, EVIL).done()] if evil else [])]
    image = build_image(layers, edit_manifest=edit)
    kind = {"mediaType": f"{docker}.distribution.manifest.v2+json"}
    files = layout_files([image], [{**image.descriptor(), **kind}])
    layout = write_files(tmp_path / "image", files)
    verdict = ask(tmp_path, f"oci:{layout}", Case("", ())).verdict
    assert verdict == ("mismatch" if evil else "match")
