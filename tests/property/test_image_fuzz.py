# SPDX-License-Identifier: Apache-2.0
"""Readers of hostile bytes: whatever comes, an answer or a clear refusal."""

import contextlib
import gzip
import json
import shutil
import zipfile
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from images import (
    COMPRESS,
    PACKAGE_ROOT,
    SITE,
    Demo,
    Tar,
    archive_of,
    build_image,
    docker_archive,
    layout_files,
    sha256,
    tree_layer,
    write_files,
    write_layout,
)
from layered import CASES

from stackctl.errors import StackctlError
from stackctl.image import bytecode, documents
from stackctl.image.blobs import decompress
from stackctl.image.expectation import folder_tree
from stackctl.image.layers import Budget, Interest, scan_layer
from stackctl.image.limits import Limits
from stackctl.image.roots import PACKAGE, Root
from stackctl.image.tar import ByteStream, TarReader
from stackctl.image.verify import Request, verify
from stackctl.image.view import Applier, View

LIMITS = Limits(layer=1 << 24, image=1 << 26, entries=2000)
SEEDS = [tar for case in CASES.values() for tar in case.tars()[1:]]
quick = settings(
    deadline=None,
    max_examples=50,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)


@st.composite
def mutated(draw: st.DrawFn, seeds: list[bytes]) -> bytes:
    """Draw a seed with a few of its bytes changed, cut out or doubled."""
    data = bytearray(draw(st.sampled_from(seeds)))
    for _ in range(draw(st.integers(0, 6))):
        if not data:
            break
        at = draw(st.integers(0, len(data) - 1))
        kind = draw(st.sampled_from(["set", "cut", "double", "number", "checksum"]))
        if kind == "set":
            data[at] = draw(st.integers(0, 255))
        elif kind == "cut":
            del data[at : at + draw(st.integers(1, 600))]
        elif kind == "double":
            end = at + draw(st.integers(1, 1024))
            data[at:at] = data[at:end]
        elif kind == "number":
            data[at : at + 4] = draw(st.binary(min_size=4, max_size=4))
        else:
            start = at - at % 512
            block = data[start : start + 512]
            if len(block) == 512:
                block[148:156] = b" " * 8
                data[start + 148 : start + 156] = b"%06o\0 " % sum(block)
    return bytes(data)


@quick
@given(data=mutated(SEEDS), piece=st.sampled_from([1, 300, 512, 100_000]))
def test_tar_reader(data: bytes, piece: int) -> None:
    chunks = [data[at : at + piece] for at in range(0, len(data), piece)]
    try:
        for entry in TarReader(ByteStream(chunks), max_entries=5000):
            assert entry.size >= 0 and entry.stored >= 0
    except StackctlError as error:
        assert error.kind and error.message


@quick
@given(datas=st.lists(mutated(SEEDS), min_size=1, max_size=3))
def test_layers(datas: list[bytes]) -> None:
    view = View()
    applier = Applier(view)
    budget = Budget(LIMITS)
    interest = Interest(magic=bytecode.MAGIC, roots=(b"d/",))
    try:
        for data in datas:
            applier.apply(scan_layer([data], budget, interest, size_hint=0).entries)
    except StackctlError as error:
        assert error.kind and error.message
        return
    for path, node in view.walk(view.root):
        assert not path.startswith(b"/") and b".." not in path.split(b"/")
        found = view.lookup(path, follow=False)
        assert found.node is node


@quick
@given(data=mutated([c(bytes(1000) + b"x" * 500) for c in COMPRESS.values()]))
def test_decompression(data: bytes) -> None:
    try:
        total = sum(map(len, decompress([data], LIMITS)))
    except StackctlError as error:
        assert error.kind
    else:
        assert total <= LIMITS.layer


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["layers", "Layers", "config", "digest", "manifests", "x"]),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@quick
@given(value=_json, data=st.binary(max_size=200))
def test_documents(value: object, data: bytes) -> None:
    for raw in (json.dumps(value).encode(), data, b"[" * 100_000):
        try:
            documents.parse(raw, "a document", ("layers", "config"))
        except StackctlError as error:
            assert error.kind in ("bad-json", "ambiguous-json")


@quick
@given(
    parts=st.dictionaries(
        st.sampled_from(["config", "layers", "mediaType", "manifests", "annotations"]),
        _json,
    ),
    config=st.dictionaries(
        st.sampled_from(["rootfs", "config", "os", "architecture"]), _json
    ),
)
def test_manifests_and_configs(
    tmp_path: Path, parts: dict[str, object], config: dict[str, object]
) -> None:
    image = build_image(
        [tree_layer(Demo().package(), SITE)],
        edit_manifest=lambda m: m.update(parts),
        edit_config=lambda c: c.update(config),
    )
    layout = write_layout(tmp_path / sha256(image.blobs[image.manifest])[7:20], image)
    expected = folder_tree(Demo().write(tmp_path / "expected"))
    root = Root("demo", PACKAGE_ROOT, PACKAGE)
    report = verify(Request(f"oci:{layout}", [expected], (root,), environ={}))
    assert report.verdict in ("match", "mismatch", "unverifiable")
    assert report.reason["code"]


@quick
@given(data=st.data())
def test_archives(tmp_path: Path, data: st.DataObject) -> None:
    image = build_image([tree_layer(Demo().package(), SITE)])
    seeds = [docker_archive(image, s) for s in ("docker24", "skopeo", "docker25")]
    seeds.append(Tar().file("manifest.json", "[]").done())
    path = tmp_path / "archive.tar"
    path.write_bytes(data.draw(mutated(seeds)))
    expected = folder_tree(Demo().write(tmp_path / "expected"))
    root = Root("demo", PACKAGE_ROOT, PACKAGE)
    for transport in ("docker-archive", "oci-archive"):
        report = verify(Request(f"{transport}:{path}", [expected], (root,), environ={}))
        assert report.reason["code"]
        if report.verdict == "match":
            # Only bytes that no reader looks at may differ.
            assert report.comparisons[0].counts["matched"] == 4


@quick
@given(data=st.data())
def test_wheels(tmp_path: Path, data: st.DataObject) -> None:
    path = tmp_path / "demo.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as wheel:
        for name, content in Demo().package().items():
            wheel.writestr(name, content)
    path.write_bytes(data.draw(mutated([path.read_bytes()])))
    expected = folder_tree(Demo().write(tmp_path / "expected"))
    report = verify(Request(f"wheel:{path}", [expected], environ={}))
    assert report.reason["code"]


@quick
@given(data=mutated([bytecode.importlib.util.MAGIC_NUMBER + bytes(12) + b"c" * 99]))
def test_bytecode(data: bytes) -> None:
    bytecode.read_header(data[:16])
    assert bytecode.compare_code(data, b"x = 1\n", "x", 0)


@quick
@given(body=st.binary(max_size=300))
def test_marshalled_code(body: bytes) -> None:
    with contextlib.suppress(ValueError):
        assert len(bytecode.fingerprint(body)) <= 64


def test_layouts_are_not_left(tmp_path: Path) -> None:
    """A descriptor cannot lead the reader to another file."""
    secret = tmp_path / "secret"
    secret.write_bytes(b"{}")
    image = build_image([b""])
    entry = image.descriptor()
    entry["digest"] = "sha256:../../../secret"
    folder = write_files(tmp_path / "layout", layout_files([image], [entry]))
    expected = folder_tree(Demo().write(tmp_path / "expected"))
    root = Root("demo", PACKAGE_ROOT, PACKAGE)
    report = verify(Request(f"oci:{folder}", [expected], (root,), environ={}))
    assert (report.exit_code, report.reason["code"]) == (3, "bad-digest")


@st.composite
def edited_layouts(draw: st.DrawFn) -> dict[str, bytes]:
    """Draw a layout of which one statement is another, digests mended above it."""
    image = build_image([tree_layer(Demo().package(), SITE)])
    which = draw(st.sampled_from(["manifest", "index"]))
    text = image.blobs[image.manifest].decode()
    entry = image.descriptor()
    change = st.sampled_from([-1, 0, 1, 10**9])
    if which == "manifest":
        document = json.loads(text)
        part = draw(st.sampled_from([document["config"], document["layers"][0]]))
    else:
        document, part = None, entry
    key = draw(st.sampled_from(["size", "digest", "mediaType"]))
    if key == "size":
        part[key] += draw(change)
    elif key == "digest":
        part[key] = draw(st.sampled_from([*image.blobs, sha256(b""), "sha512:0", ""]))
    else:
        part[key] = draw(st.sampled_from(["", "text/plain", part[key]]))
    if document is not None:
        data = json.dumps(document).encode()
        del image.blobs[image.manifest]
        image.manifest = sha256(data)
        image.blobs[image.manifest] = data
        entry = image.descriptor()
    return layout_files([image], [entry])


@quick
@given(files=edited_layouts())
def test_archive_has_one_answer_however_it_is_packed(
    tmp_path: Path, files: dict[str, bytes]
) -> None:
    """Read in place, in one pass or from a folder: three readers, one answer."""
    expected = folder_tree(Demo().write(tmp_path / "expected"))
    data = archive_of(files)
    (tmp_path / "plain").write_bytes(data)
    (tmp_path / "packed").write_bytes(gzip.compress(data, 1))
    folder = tmp_path / "folder"
    shutil.rmtree(folder, ignore_errors=True)
    write_files(folder, files)
    answers = set()
    for reference in ("oci-archive:plain", "oci-archive:packed", "oci:folder"):
        report = verify(
            Request(
                reference=reference,
                expected=[expected],
                roots=(Root("demo", PACKAGE_ROOT, PACKAGE),),
                folder=tmp_path,
                environ={},
            )
        )
        answers.add((report.verdict, report.exit_code, report.reason["code"]))
    assert len(answers) == 1
