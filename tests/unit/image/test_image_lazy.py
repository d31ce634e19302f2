# SPDX-License-Identifier: Apache-2.0
"""Layers with an index for lazy runtimes that agrees with the tar, or does not.

The images of `AGREEING` may not be refused, none of `DIFFERENT` may match.
"""

import gzip
import importlib.util
import json
import marshal
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import zstandard
from images import (
    PACKAGE_ROOT,
    SITE,
    Demo,
    Tar,
    archive_of,
    build_image,
    layout_files,
    sha256,
    tree_layer,
    write_layout,
)
from lazyimages import (
    FORMATS,
    NEW,
    OLD,
    TOC_DIGEST,
    Entries,
    Lazy,
    chunked,
    estargz,
    named,
    stored_block,
)
from registry_server import FakeRegistry

from stackctl.image.expectation import folder_tree
from stackctl.image.lazystream import Record
from stackctl.image.report import Report
from stackctl.image.roots import CHECKOUT, PACKAGE, Root
from stackctl.image.transport import Transport
from stackctl.image.verify import Request, verify

DEMO = Demo()
CORE = f"{SITE}/demo/core.py"
DEEP = f"{SITE}/demo/sub/deep.py"
STORE = "opt/store/core.py"
BIG = "opt/store/big.bin"
HOSTS = "etc/hosts"
GONE = f"{SITE}/demo/gone.py"
PARTS = f"{SITE}/demo/data.bin"
DATA = b"a" * 3000 + bytes(2000) + b"b" * 3000


def demo_layer() -> bytes:
    """Return the package, one file of it linked to a folder outside of it."""
    tar = Tar().folder("etc").file(HOSTS, "127.0.0.1\n")
    tar.folder("opt").folder("opt/store")
    tar.file(STORE, DEMO.files["demo/core.py"]).file(BIG, DATA)
    tar.symlink("opt/current", "store")
    for depth in range(1, 5):
        tar.folder("/".join(f"{SITE}/demo/sub".split("/")[: depth + 2]))
    for name in ("__init__.py", "sub/__init__.py", "sub/deep.py"):
        tar.file(f"{SITE}/demo/{name}", DEMO.files[f"demo/{name}"])
    tar.hardlink(CORE, STORE)
    return tar.whiteout(GONE).done()


LAYER = demo_layer()
BELOW = tree_layer({"demo/gone.py": b"old"}, SITE)


def ask(
    tmp_path: Path,
    layer: Lazy,
    *below: bytes,
    strict: bool = False,
    root: Root | None = None,
) -> Report:
    layout = write_layout(tmp_path / "image", layer.image(*below))
    expected = folder_tree(DEMO.write(tmp_path / "expected"))
    root = root or Root("demo", PACKAGE_ROOT, PACKAGE)
    return verify(Request(f"oci:{layout}", [expected], (root,), strict=strict))


def codes(report: Report) -> set[str]:
    return {warning.code for warning in report.warnings}


def index_of(report: Report) -> dict[str, object]:
    layers = report.image["layers"]
    assert isinstance(layers, list)
    found = layers[-1]["index"]
    assert isinstance(found, dict)
    return found


def reorder(entries: Entries) -> None:
    entries.reverse()


AGREEING: dict[str, Lazy] = {
    "estargz": estargz(LAYER),
    "estargz in chunks": estargz(LAYER, chunk=1000),
    "estargz in another order": estargz(LAYER, edit=reorder),
    "chunked": chunked(LAYER),
    "chunked in chunks": chunked(LAYER, chunk=1000),
    "chunked by an older tool": chunked(LAYER, prefix=OLD),
    "chunked by a newer tool": chunked(LAYER, record=b"of the tar's headers"),
    "chunked in another order": chunked(LAYER, edit=reorder),
}


@pytest.mark.parametrize("name", AGREEING)
def test_an_index_that_agrees_leaves_no_doubt(tmp_path: Path, name: str) -> None:
    layer = AGREEING[name]
    report = ask(tmp_path, layer, BELOW, strict=True)
    assert (report.verdict, codes(report)) == ("match", set()), report.reason
    index = index_of(report)
    assert index["agrees"] is True
    assert index["kinds"] == ["eStargz" if layer.suffix == "gzip" else "zstd:chunked"]


def change(name: str, **values: object) -> Callable[[Entries], None]:
    def edit(entries: Entries) -> None:
        named(entries, name).update(values)

    return edit


def without(name: str) -> Callable[[Entries], None]:
    def edit(entries: Entries) -> None:
        entries.remove(named(entries, name))

    return edit


def added(**entry: object) -> Callable[[Entries], None]:
    return lambda entries: entries.append({"mode": 0o644, **entry})


def swap_contents(entries: Entries) -> None:
    one, other = named(entries, DEEP), named(entries, STORE)
    for key in ("offset", "endOffset", "digest", "chunkDigest", "size"):
        if key in one:
            one[key], other[key] = other[key], one[key]


def swap_offsets(entries: Entries) -> None:
    one, other = named(entries, DEEP), named(entries, STORE)
    for key in ("offset", "endOffset"):
        if key in one:
            one[key], other[key] = other[key], one[key]


OTHER = sha256(b"another content")
# What the index says, and the path that the answer names.
DIFFERENT: dict[str, tuple[Callable[[Entries], object], str]] = {
    "another digest": (change(DEEP, digest=OTHER), DEEP),
    "another chunk digest": (change(DEEP, chunkDigest=OTHER), DEEP),
    "a digest of another kind": (change(DEEP, digest="sha512:00"), DEEP),
    "another size": (change(DEEP, size=5), DEEP),
    "no size": (change(DEEP, size=0), DEEP),
    "the contents of two files exchanged": (swap_contents, STORE),
    "the places of two files exchanged": (swap_offsets, STORE),
    "another place": (change(DEEP, offset=7), DEEP),
    "a part of it": (change(DEEP, innerOffset=1), DEEP),
    "a chunk that ends early": (change(DEEP, chunkSize=3), DEEP),
    "a chunk that begins late": (change(DEEP, chunkOffset=3), DEEP),
    "a chunk of zeros": (change(DEEP, chunkType="zeros"), DEEP),
    "a symlink": (change(DEEP, type="symlink", linkName="/tmp/x"), DEEP),
    "a folder": (change(DEEP, type="dir"), DEEP),
    "a folder that is a link": (
        change(f"{SITE}/demo/", type="symlink", linkName="/tmp"),
        f"{SITE}/demo",
    ),
    "a hard link to another file": (change(CORE, linkName=HOSTS), CORE),
    "another source of a hard link": (change(STORE, digest=OTHER), STORE),
    "nothing": (without(DEEP), DEEP),
    "one file more": (
        added(type="reg", name=f"{SITE}/demo/evil.py", size=0),
        f"{SITE}/demo/evil.py",
    ),
    "one file more in a folder": (
        added(type="symlink", name=f"./{SITE}//demo/new/../evil.py", linkName="x"),
        f"{SITE}/demo/evil.py",
    ),
    "a file twice": (lambda entries: entries.append(dict(named(entries, DEEP))), DEEP),
    "no whiteout": (without(f"{SITE}/demo/.wh.gone.py"), f"{SITE}/demo/.wh.gone.py"),
    "a whiteout more": (
        added(type="reg", name=f"{SITE}/.wh.demo", size=0),
        f"{SITE}/.wh.demo",
    ),
    "an opaque folder": (
        added(type="reg", name="usr/lib/.wh..wh..opq", size=0),
        "usr/lib",
    ),
    "a whiteout of a folder above": (
        added(type="reg", name=".wh.usr", size=0),
        "usr",
    ),
    "a mark of an overlay": (
        change(f"{SITE}/demo/", xattrs={"trusted.overlay.opaque": "eQ=="}),
        f"{SITE}/demo",
    ),
    "a device that is a whiteout": (
        change(f"{SITE}/demo/", type="char"),
        f"{SITE}/demo",
    ),
    "a start-up file": (
        added(type="reg", name=f"{SITE}/evil.pth", size=0),
        f"{SITE}/evil.pth",
    ),
}


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("name", DIFFERENT)
def test_an_index_that_differs_where_it_matters(
    tmp_path: Path, kind: str, name: str
) -> None:
    edit, path = DIFFERENT[name]
    report = ask(tmp_path, FORMATS[kind](LAYER, edit=edit), BELOW)
    assert (report.verdict, report.exit_code) == ("unverifiable", 3), report.warnings
    assert report.reason["code"] == "ambiguous-lazy-index"
    where = report.reason["where"]
    assert isinstance(where, dict)
    assert where["path"] == f"/{path}"
    assert set(where["sees"]) == {"lazy", "tar"}
    assert "stargz snapshotter" in str(report.reason["message"])


def chunks(entries: Entries) -> Entries:
    return [e for e in entries if e["type"] == "chunk" and e["name"] == PARTS]


def drop_chunk(entries: Entries) -> None:
    entries.remove(chunks(entries)[1])


def lengthen_chunk(entries: Entries) -> None:
    chunks(entries)[1]["chunkSize"] = 1001


def forge_chunk(entries: Entries) -> None:
    chunks(entries)[-1]["chunkDigest"] = OTHER


def empty_chunk(entries: Entries) -> None:
    # A runtime that is told of zeros does not read the bytes that are there.
    chunks(entries)[0]["chunkType"] = "zeros"


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("edit", [drop_chunk, lengthen_chunk, forge_chunk, empty_chunk])
def test_chunks_have_to_be_the_file(
    tmp_path: Path, kind: str, edit: Callable[[Entries], None]
) -> None:
    data = b"".join(bytes([65 + number]) * 1000 for number in range(5))
    layer = Tar().file(PARTS, data).done()
    layer = LAYER[:-1024] + layer
    DEMO.files["demo/data.bin"] = data
    try:
        right = ask(tmp_path, FORMATS[kind](layer, chunk=1000), BELOW)
        wrong = ask(tmp_path, FORMATS[kind](layer, chunk=1000, edit=edit), BELOW)
    finally:
        del DEMO.files["demo/data.bin"]
    assert right.verdict == "match", right.reason
    assert wrong.reason["code"] == "ambiguous-lazy-index"


def test_a_frame_that_ends_elsewhere(tmp_path: Path) -> None:
    layer = chunked(LAYER, edit=change(DEEP, endOffset=9))
    assert ask(tmp_path, layer).reason["code"] == "ambiguous-lazy-index"


@pytest.mark.parametrize("kind", FORMATS)
def test_an_index_that_differs_elsewhere(tmp_path: Path, kind: str) -> None:
    layer = FORMATS[kind](LAYER, edit=change(HOSTS, digest=OTHER))
    report = ask(tmp_path, layer, BELOW)
    assert (report.verdict, codes(report)) == ("match", {"ambiguous-outside-root"})
    (warning,) = report.warnings
    assert warning.paths == (f"/{HOSTS}",)
    assert warning.extra is not None
    assert warning.extra["causes"] == ["lazy-index"]
    assert set(warning.extra["sees"]["lazy-index"]) == {"lazy", "tar"}  # type: ignore[index]
    assert index_of(report)["agrees"] is False


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("values", [{"mode": 0o755}, {"uid": 7}, {"gid": 7}])
def test_modes_matter_in_a_checkout_only(
    tmp_path: Path, kind: str, values: dict[str, object]
) -> None:
    layer = FORMATS[kind](LAYER, edit=change(DEEP, **values))
    assert ask(tmp_path, layer, BELOW).verdict == "match"
    checkout = tree_layer(DEMO.files, "opt/demo")
    layer = FORMATS[kind](checkout, edit=change("opt/demo/README.md", **values))
    report = ask(tmp_path, layer, root=Root(".", "/opt/demo", CHECKOUT))
    assert report.reason["code"] == "ambiguous-lazy-index"


@pytest.mark.parametrize("above", [True, False])
def test_modes_of_a_file_that_is_gone(tmp_path: Path, above: bool) -> None:
    checkout = tree_layer(DEMO.files, "opt/demo")
    layer = estargz(checkout, edit=change("opt/demo/README.md", mode=0o755))
    again = Tar().file("opt/demo/README.md", DEMO.files["README.md"]).done()
    image = layer.image(above=(again,) if above else ())
    layout = write_layout(tmp_path / "image", image)
    expected = folder_tree(DEMO.write(tmp_path / "expected"))
    root = Root(".", "/opt/demo", CHECKOUT)
    report = verify(Request(f"oci:{layout}", [expected], (root,)))
    assert report.verdict == ("match" if above else "unverifiable"), report.reason


@pytest.mark.parametrize("kind", FORMATS)
def test_bytecode_of_the_time_that_only_the_index_gives(
    tmp_path: Path, kind: str
) -> None:
    source = DEMO.files["demo/sub/deep.py"]
    code = compile(b"def f():\n    return 666\n", "deep.py", "exec")
    head = struct.pack("<III", 0, 1_600_000_000, len(source))
    pyc = importlib.util.MAGIC_NUMBER + head + marshal.dumps(code)
    tag = f"cpython-{sys.version_info[0]}{sys.version_info[1]}"
    layer = tree_layer(
        {**DEMO.package(), f"demo/sub/__pycache__/deep.{tag}.pyc": pyc}, SITE
    )
    assert "bytecode-stale" in codes(ask(tmp_path, FORMATS[kind](layer)))
    edit = change(DEEP, modtime="2020-09-13T14:26:40.5+02:00")
    report = ask(tmp_path, FORMATS[kind](layer, edit=edit))
    assert "bytecode-foreign" in codes(report)


def strip_footer(layer: Lazy) -> Lazy:
    size = 51 if layer.suffix == "gzip" else 0
    assert size
    return Lazy(layer.blob[:-size], layer.tar, layer.annotations, layer.suffix)


def annotated(layer: Lazy, **annotations: str) -> Lazy:
    return Lazy(layer.blob, layer.tar, annotations, layer.suffix)


def position(text: str) -> Lazy:
    """Return an ordinary layer whose annotations say that it has an index."""
    blob = zstandard.ZstdCompressor().compress(LAYER)
    annotations = {f"{NEW}manifest-checksum": OTHER, f"{NEW}manifest-position": text}
    return Lazy(blob, LAYER, annotations, "zstd")


UNREADABLE: dict[str, tuple[Lazy, str]] = {
    "estargz without a footer": (strip_footer(estargz(LAYER)), "no footer"),
    "an ordinary layer that says to be estargz": (
        Lazy(stored_block(LAYER), LAYER, {TOC_DIGEST: OTHER}, "gzip"),
        "no footer",
    ),
    "estargz with another digest": (
        annotated(estargz(LAYER), **{TOC_DIGEST: OTHER}),
        "does not hash",
    ),
    "chunked with another digest": (
        annotated(
            chunked(LAYER),
            **{**chunked(LAYER).annotations, f"{NEW}manifest-checksum": OTHER},
        ),
        "does not hash",
    ),
    "chunked without a position": (
        annotated(chunked(LAYER), **{f"{NEW}manifest-checksum": OTHER}),
        "where its index is",
    ),
    "zstd with a position beyond its end": (
        position(f"{1 << 62}:5:5:1"),
        "it ends before",
    ),
    "zstd with a position of other bytes": (position("9:99:999:1"), "does not hash"),
    "zstd with a position that is none": (position("here"), "where its index is"),
    "an index that is too large": (
        position(f"9:{1 << 30}:{1 << 30}:1"),
        "more than are read",
    ),
    "an index of another kind": (chunked(LAYER, kind=2), "unknown type 2"),
    "another version": (
        chunked(LAYER, raw=lambda text: text.replace(b'version": 1', b'version": 2')),
        "unknown version 2",
    ),
    "no version": (
        estargz(LAYER, raw=lambda text: text.replace(b"version", b"edition")),
        "no version",
    ),
    "another format": (
        annotated(estargz(LAYER), **{"containerd.io/snapshot/overlaybd/version": "1"}),
        "of no format that is known",
    ),
}


@pytest.mark.parametrize("name", UNREADABLE)
def test_an_index_that_is_not_compared_is_never_passed_over(
    tmp_path: Path, name: str
) -> None:
    layer, words = UNREADABLE[name]
    report = ask(tmp_path, layer, BELOW)
    assert (report.verdict, codes(report)) == ("match", {"lazy-index"}), report.reason
    assert words in report.warnings[0].message
    assert index_of(report)["agrees"] is None
    report = ask(tmp_path, layer, BELOW, strict=True)
    assert report.reason["code"] == "strict-warnings"


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize(
    ("bounds", "most", "words"),
    [
        (("lazystream._MAX_RESTARTS",), 5, "not all of it is compared"),
        (("lazystream.MAX_PLAIN", "lazy.MAX_PLAIN"), 2000, "larger than is read"),
        (("lazystream.MAX_STORED", "lazy.MAX_STORED"), 200, "read"),
        (("lazytable._MAX_ITEMS",), 9, "larger than is read"),
    ],
)
def test_an_index_beyond_a_bound(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    bounds: tuple[str, ...],
    most: int,
    words: str,
) -> None:
    for bound in bounds:
        monkeypatch.setattr(f"stackctl.image.{bound}", most)
    report = ask(tmp_path, FORMATS[kind](LAYER, chunk=500), BELOW)
    assert (report.verdict, codes(report)) == ("match", {"lazy-index"}), report.reason
    assert words in report.warnings[0].message


def test_an_index_that_no_annotation_names(tmp_path: Path) -> None:
    report = ask(tmp_path, estargz(LAYER, annotate=False), BELOW, strict=True)
    assert (report.verdict, codes(report)) == ("match", {"lazy-index"})


def test_an_archive_that_is_read_once(tmp_path: Path) -> None:
    image = chunked(LAYER).image(BELOW)
    path = tmp_path / "image.tar.gz"
    path.write_bytes(gzip.compress(archive_of(layout_files([image]))))
    expected = folder_tree(DEMO.write(tmp_path / "expected"))
    root = Root("demo", PACKAGE_ROOT, PACKAGE)
    report = verify(Request(f"oci-archive:{path}", [expected], (root,)))
    assert (report.verdict, codes(report)) == ("match", {"lazy-index"})


MALFORMED: dict[str, Callable[[bytes], bytes]] = {
    "nothing": lambda _: b"",
    "a list": lambda text: b"[" + text + b"]",
    "cut": lambda text: text[:-3],
    "followed": lambda text: text + b"{}",
    "not UTF-8": lambda text: text.replace(b"hosts", b"h\xffsts"),
    "a size that is text": lambda text: text.replace(b'"size": 8000', b'"size": "8"'),
    "a size that is a fraction": lambda text: text.replace(b"8000", b"8000.0", 1),
    "a size without end": lambda text: text.replace(b"8000", b"8" * 9999, 1),
    "a size below zero": lambda text: text.replace(b"8000", b"-8000", 1),
    "a type that is none": lambda text: text.replace(b'"reg"', b'"regular"', 1),
    "entries that are an object": lambda _: b'{"version": 1, "entries": {}}',
    "an entry that is a number": lambda _: b'{"version": 1, "entries": [7]}',
    "a chunk of nothing": lambda _: (
        b'{"version": 1, "entries": [{"type": "chunk", "name": "x"}]}'
    ),
    "nested": lambda _: b'{"version": ' + b"[" * 100_000,
    "a time that is none": lambda text: text.replace(b"2023-11", b"2023-99"),
}


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("name", MALFORMED)
def test_an_index_that_readers_may_differ_about(
    tmp_path: Path, kind: str, name: str
) -> None:
    report = ask(tmp_path, FORMATS[kind](LAYER, raw=MALFORMED[name]), BELOW)
    assert report.reason["code"] == "ambiguous-lazy-index"
    assert report.reason["where"]["path"] == "/"  # type: ignore[index]


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize(
    ("before", "after"),
    [
        (b'"size": 8000', b'"size": 8000, "size": 8000'),
        (b'"size": 8000', b'"size": 8000, "Size": 8000'),
        (b'"size": 8000', b'"SIZE": 8000'),
        (b'"size": 8000', b'"\xc5\xbfize": 8000'),
        (b'"entries"', b'"entries": [], "entries"'),
        (b'"entries"', b'"Entries": [], "entries"'),
    ],
)
def test_keys_with_two_meanings(
    tmp_path: Path, kind: str, before: bytes, after: bytes
) -> None:
    layer = FORMATS[kind](LAYER, raw=lambda text: text.replace(before, after, 1))
    assert ask(tmp_path, layer, BELOW).reason["code"] == "ambiguous-json"


@pytest.mark.parametrize("record", [b"", b"of the tar's headers"])
def test_a_footer_that_names_another_index(tmp_path: Path, record: bytes) -> None:
    report = ask(tmp_path, chunked(LAYER, footer=1, record=record), BELOW)
    assert report.reason["code"] == "ambiguous-lazy-index"
    assert "its footer names an index at byte" in str(report.reason["message"])


def test_an_index_that_only_lazy_runtimes_see(tmp_path: Path) -> None:
    """The footer of eStargz may lead into what others read as a file's bytes."""
    hidden = estargz(LAYER, edit=change(DEEP, digest=OTHER))
    inner = hidden.blob[int(hidden.blob[-35:-19], 16) : -51]
    content = tree_layer({"hidden.bin": inner}, "opt")
    found: list[int] = []

    def note(entries: Entries) -> None:
        found.append(int(str(named(entries, "opt/hidden.bin")["offset"])))

    good = estargz(content[:-1024] + LAYER, edit=note)
    (at,) = found
    # The bytes of that file as they are, so that the other index is in the blob.
    block = stored_block(inner)
    blob = good.blob[:at] + block
    place = at + block.index(inner)
    rest = gzip.decompress(good.blob[at:])[len(inner) :]
    blob += gzip.compress(rest, mtime=0)
    blob += good.blob[-51:-35] + b"%016x" % place + good.blob[-19:]
    layer = Lazy(blob, good.tar, hidden.annotations, "gzip")
    assert gzip.decompress(blob) == good.tar
    report = ask(tmp_path, layer, BELOW)
    assert report.reason["code"] == "ambiguous-lazy-index"
    assert "its footer names an index that is not" in str(report.reason["message"])


def test_two_annotations_that_name_two_indexes(tmp_path: Path) -> None:
    layer = chunked(LAYER)
    other = {key.replace(NEW, OLD): OTHER for key in layer.annotations}
    layer = annotated(layer, **layer.annotations, **other)
    assert ask(tmp_path, layer, BELOW).reason["code"] == "ambiguous-lazy-index"


def test_the_same_layer_with_and_without_an_index(tmp_path: Path) -> None:
    """What is stated of one of two equal layers holds for that one."""
    layer = estargz(LAYER, edit=change(DEEP, digest=OTHER))
    image = layer.image(layer.tar)
    manifest = json.loads(image.blobs.pop(image.manifest))
    manifest["layers"][0] = {**manifest["layers"][1], "annotations": {}}
    raw = json.dumps(manifest).encode()
    image.manifest = sha256(raw)
    image.blobs[image.manifest] = raw
    layout = write_layout(tmp_path / "image", image)
    expected = folder_tree(DEMO.write(tmp_path / "expected"))
    root = Root("demo", PACKAGE_ROOT, PACKAGE)
    report = verify(Request(f"oci:{layout}", [expected], (root,)))
    assert report.reason["code"] == "ambiguous-lazy-index"


def test_a_folder_that_the_index_puts_over_a_lower_link(tmp_path: Path) -> None:
    below = Tar().symlink("lib", "usr/lib").done()
    layer = estargz(LAYER, edit=added(type="reg", name="lib/x", size=0))
    root = Root("demo", "/lib/" + PACKAGE_ROOT.removeprefix("/usr/lib/"), PACKAGE)
    right = ask(tmp_path, estargz(LAYER), below, root=root)
    assert right.verdict == "match", right.reason
    report = ask(tmp_path, layer, below, root=root)
    assert report.reason["code"] == "ambiguous-lazy-index"


@pytest.mark.parametrize("kind", FORMATS)
def test_an_entry_behind_a_link_of_its_own_layer(tmp_path: Path, kind: str) -> None:
    """A tool that unpacks follows the link, one that goes by names does not."""
    files = {name: data for name, data in DEMO.package().items() if "deep" not in name}
    rest = (
        Tar()
        .symlink("opt", "usr")
        .file("opt/" + DEEP.removeprefix("usr/"), DEMO.files["demo/sub/deep.py"])
    )
    tar = tree_layer(files, SITE)[:-1024] + rest.done()
    plain = Lazy(stored_block(tar), tar, {}, "gzip")
    assert ask(tmp_path, plain).verdict == "match"
    report = ask(tmp_path, FORMATS[kind](tar))
    assert report.reason["code"] == "ambiguous-lazy-index"


@pytest.mark.parametrize("kind", FORMATS)
def test_the_order_of_a_whiteout_and_its_file(tmp_path: Path, kind: str) -> None:
    tar = Tar().whiteout(DEEP).done()[:-1024] + tree_layer(DEMO.package(), SITE)
    right = ask(tmp_path, FORMATS[kind](tar))
    assert right.verdict == "match", right.reason
    report = ask(tmp_path, FORMATS[kind](tar, edit=reorder))
    assert report.reason["code"] == "ambiguous-lazy-index"


@pytest.mark.parametrize("kind", FORMATS)
def test_a_registry_sends_every_blob_once(tmp_path: Path, kind: str) -> None:
    """The index is read as it passes, not asked for by itself."""
    layer = FORMATS[kind](LAYER, chunk=1000)
    expected = folder_tree(DEMO.write(tmp_path / "expected"))
    root = Root("demo", PACKAGE_ROOT, PACKAGE)
    with FakeRegistry([layer.image(BELOW)]) as registry:
        transport = Transport(plain_http=True)
        request = Request(
            registry.reference, [expected], (root,), transport=transport, environ={}
        )
        report = verify(request)
        asked = [seen.path for seen in registry.seen if "/blobs/" in seen.path]
    assert report.verdict == "match", report.reason
    assert index_of(report)["agrees"] is True
    assert len(asked) == len(set(asked)) == 3


@pytest.mark.parametrize("piece", range(1, 60))
def test_a_member_whose_header_comes_in_pieces(piece: int) -> None:
    """The beginnings of members are noted right wherever a piece ends."""
    one = gzip.compress(b"one", mtime=0)
    header = one[:3] + b"\x1c" + one[4:10] + b"\x04\0extrname\0a comment\0"
    blob = header + one[10:] + header + one[10:] + one
    record = Record(None)
    chunks = [blob[at : at + piece] for at in range(0, len(blob), piece)]
    assert b"".join(record.unpack("gzip", iter(chunks), 0)) == b"oneoneone"
    size = len(header) + len(one) - 10
    starts = [record.starts(at) for at in (0, size, 2 * size, 1)]
    assert starts == [0, 3, 6, None]


def test_layers_without_an_index_cost_nothing(tmp_path: Path) -> None:
    layout = write_layout(tmp_path / "image", build_image([LAYER], compression="zstd"))
    DEMO.write(tmp_path / "expected")
    script = (
        "import sys\nfrom pathlib import Path\n"
        "from stackctl.image.expectation import folder_tree\n"
        "from stackctl.image.roots import PACKAGE, Root\n"
        "from stackctl.image.verify import Request, verify\n"
        f"tree = folder_tree(Path({str(tmp_path / 'expected')!r}))\n"
        f"root = Root('demo', {PACKAGE_ROOT!r}, PACKAGE)\n"
        f"report = verify(Request('oci:{layout}', [tree], (root,)))\n"
        "print(report.verdict, [m for m in sys.modules if 'image.lazy' in m])\n"
    )
    out = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert out.stdout == "match []\n"
