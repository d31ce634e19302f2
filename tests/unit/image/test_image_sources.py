# SPDX-License-Identifier: Apache-2.0
"""Layouts and archives of images that state one thing and hold another."""

import gzip
import hashlib
import json
import socket
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from images import (
    COMPRESS,
    OCI_INDEX,
    OCI_MANIFEST,
    PACKAGE_ROOT,
    REF_NAME,
    SITE,
    Built,
    Demo,
    archive_of,
    build_image,
    docker_archive,
    layout_files,
    sha256,
    tree_layer,
    write_files,
)

from stackctl.errors import UsageError
from stackctl.image.expectation import folder_tree
from stackctl.image.limits import Limits
from stackctl.image.platform import Platform
from stackctl.image.report import Report
from stackctl.image.roots import PACKAGE, Root
from stackctl.image.verify import Request, verify

GOOD = build_image([tree_layer(Demo().package(), SITE)])
EVIL = build_image(
    [tree_layer({**Demo().package(), "demo/core.py": b"VALUE = 666\n"}, SITE)]
)
PACKED: dict[str, Callable[[bytes], bytes]] = {
    "tar": lambda data: data,
    "gzip": lambda data: gzip.compress(data, 1),
    "zstd": COMPRESS["zstd"],
}


def ask(tmp_path: Path, reference: str, **more: object) -> Report:
    """Verify the demo package in an image."""
    return verify(
        Request(
            reference=reference,
            expected=[folder_tree(Demo().write(tmp_path / "expected"))],
            roots=(Root("demo", PACKAGE_ROOT, PACKAGE),),
            **{"environ": {}, **more},  # type: ignore[arg-type]
        )
    )


def in_layout(tmp_path: Path, files: dict[str, bytes], **more: object) -> Report:
    folder = write_files(tmp_path / "layout", files)
    return ask(tmp_path, f"oci:{folder}", **more)


def in_archive(
    tmp_path: Path, files: dict[str, bytes], packed: str = "tar", tag: str = ""
) -> Report:
    path = tmp_path / "archive"
    path.write_bytes(PACKED[packed](archive_of(files)))
    return ask(tmp_path, f"oci-archive:{path}{tag and ':'}{tag}")


def answer(report: Report) -> tuple[str, int, object]:
    return report.verdict, report.exit_code, report.reason["code"]


def with_size(change: int) -> Built:
    def edit(manifest: dict[str, object]) -> None:
        layers = manifest["layers"]
        assert isinstance(layers, list)
        layers[0]["size"] += change

    return build_image(GOOD.tars, edit_manifest=edit)


@pytest.mark.parametrize("packed", PACKED)
@pytest.mark.parametrize("change", [-1, 0, 1])
def test_size_of_a_layer_in_an_archive(
    tmp_path: Path, packed: str, change: int
) -> None:
    report = in_archive(tmp_path, layout_files([with_size(change)]), packed)
    wrong = ("unverifiable", 4, "size-mismatch")
    assert answer(report) == (wrong if change else ("match", 0, "equal"))


def with_sha512(wrong: str) -> dict[str, bytes]:
    """Return a layout whose digests are SHA-512, one of them wrong."""

    def name(data: bytes, what: str) -> str:
        return "sha512:" + hashlib.sha512(data + b"x" * (what == wrong)).hexdigest()

    layer, config = GOOD.blobs[GOOD.layers[0]], GOOD.blobs[GOOD.config]
    manifest = json.loads(GOOD.blobs[GOOD.manifest])
    manifest["layers"][0]["digest"] = name(layer, "layer")
    manifest["config"]["digest"] = name(config, "config")
    raw = json.dumps(manifest).encode()
    entry = {"mediaType": OCI_MANIFEST, "digest": name(raw, "manifest")}
    blobs = {
        name(data, what): data
        for data, what in ((layer, "layer"), (config, "config"), (raw, "manifest"))
    }
    return layout_files([Built(blobs, "", "", [], [])], [{**entry, "size": len(raw)}])


@pytest.mark.parametrize("packed", PACKED)
@pytest.mark.parametrize("wrong", ["", "layer", "config", "manifest"])
def test_sha512(tmp_path: Path, packed: str, wrong: str) -> None:
    report = in_archive(tmp_path, with_sha512(wrong), packed)
    expected = ("unverifiable", 4, "digest-mismatch")
    assert answer(report) == (expected if wrong else ("match", 0, "equal"))


@pytest.mark.parametrize("kind", ["xz", "bzip2"])
def test_archive_of_an_unknown_compression(tmp_path: Path, kind: str) -> None:
    import bz2
    import lzma

    pack = {"xz": lzma.compress, "bzip2": bz2.compress}[kind]
    path = tmp_path / "archive"
    path.write_bytes(pack(archive_of(layout_files([GOOD]))))
    report = ask(tmp_path, f"oci-archive:{path}")
    assert answer(report) == ("unverifiable", 3, "archive-compression")
    assert kind in str(report.reason["message"])


AMD64 = {"os": "linux", "architecture": "amd64"}
OLD_ARTIFACT = "application/vnd.oci.artifact.manifest.v1+json"


def described(data: bytes, kind: str) -> dict[str, object]:
    return {"mediaType": kind, "digest": sha256(data), "size": len(data)}


def with_entries(
    entries: list[dict[str, object]], *more: bytes, nested: bool = True
) -> dict[str, bytes]:
    """Return a layout with the demo's images, and an index of these entries."""
    extra = {"blobs/" + sha256(data).replace(":", "/"): data for data in more}
    if nested:
        index = json.dumps({"schemaVersion": 2, "manifests": entries}).encode()
        extra["blobs/" + sha256(index).replace(":", "/")] = index
        entries = [described(index, OCI_INDEX)]
    return layout_files([GOOD, EVIL], entries, extra)


@pytest.mark.parametrize("nested", [True, False])
@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize(
    ("kind", "data"),
    [
        (OLD_ARTIFACT, b'{"mediaType":"%s","blobs":[]}' % OLD_ARTIFACT.encode()),
        ("application/xml", b"<xml/>"),
        ("application/json", b"[]"),
    ],
)
def test_what_is_no_image_beside_one(
    tmp_path: Path, kind: str, data: bytes, first: bool, nested: bool
) -> None:
    good = GOOD.descriptor(platform=AMD64) if nested else GOOD.descriptor()
    entries = [good, described(data, kind)]
    if first:
        entries.reverse()
    files = with_entries(entries, data, nested=nested)
    assert answer(in_layout(tmp_path, files)) == ("match", 0, "equal")


def test_artifact_that_is_not_there_beside_an_image(tmp_path: Path) -> None:
    entries = [GOOD.descriptor(platform=AMD64), described(b"x", OLD_ARTIFACT)]
    assert in_layout(tmp_path, with_entries(entries)).verdict == "match"


def test_image_that_is_stated_to_be_something_else(tmp_path: Path) -> None:
    hidden = {**EVIL.descriptor(), "mediaType": "application/json"}
    files = with_entries([GOOD.descriptor(), hidden])
    expected = ("unverifiable", 3, "ambiguous-platform")
    assert answer(in_layout(tmp_path, files)) == expected


def test_artifact_named_directly(tmp_path: Path) -> None:
    data = b'{"mediaType":"%s","blobs":[]}' % OLD_ARTIFACT.encode()
    files = with_entries([described(data, OLD_ARTIFACT)], data, nested=False)
    expected = ("unverifiable", 3, "not-an-image")
    assert answer(in_layout(tmp_path, files)) == expected


@pytest.mark.parametrize("tag", ["", ":latest", ":none"])
def test_path_with_a_colon(tmp_path: Path, tag: str) -> None:
    folder = write_files(tmp_path / "a:b" / "c:d", layout_files([GOOD]))
    report = ask(tmp_path, f"oci:{folder}{tag}")
    assert report.verdict == ("unverifiable" if tag == ":none" else "match")


def test_path_of_any_length(tmp_path: Path) -> None:
    report = ask(tmp_path, "oci-archive:" + "x" * 5000 + ":y")
    assert (report.verdict, report.exit_code) == ("unverifiable", 3)


@pytest.mark.parametrize("packed", PACKED)
@pytest.mark.parametrize("other", [True, False])
def test_oci_archive_that_docker_reads_by_another_table(
    tmp_path: Path, packed: str, other: bool
) -> None:
    listed = EVIL if other else GOOD
    files = layout_files([GOOD], extra={
        "blobs/" + digest.replace(":", "/"): data
        for digest, data in EVIL.blobs.items()
    })  # fmt: skip
    files["manifest.json"] = json.dumps(
        [
            {
                "Config": "blobs/" + listed.config.replace(":", "/"),
                "RepoTags": None,
                "Layers": ["blobs/" + listed.layers[0].replace(":", "/")],
            }
        ]
    ).encode()
    expected = ("unverifiable", 3, "ambiguous-archive")
    found = answer(in_archive(tmp_path, files, packed))
    assert found == (expected if other else ("match", 0, "equal"))


@pytest.mark.parametrize("position", ["1", "\u00b2", "9" * 30, "-1", ""])
def test_position_that_is_none(tmp_path: Path, position: str) -> None:
    path = tmp_path / "archive"
    path.write_bytes(docker_archive(GOOD, "skopeo"))
    with pytest.raises(UsageError):
        ask(tmp_path, f"docker-archive:{path}:@{position}")


@pytest.mark.parametrize("asked", [True, False])
def test_index_and_why_which_of_its_images(tmp_path: Path, asked: bool) -> None:
    files = with_entries([GOOD.descriptor(platform=AMD64)])
    image = in_layout(
        tmp_path, files, platform=Platform("linux", "amd64") if asked else None
    ).image
    entry = json.loads(files["index.json"])["manifests"][0]
    assert (image["index"], image["digest"]) == (entry["digest"], GOOD.manifest)
    assert image["platform_by"] == ("request" if asked else "machine")


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        ("application/vnd.docker.image.rootfs.diff.tar.gzip", "equal"),
        ("application/vnd.docker.image.rootfs.foreign.diff.tar.gzip", "equal"),
        ("application/vnd.oci.image.layer.nondistributable.v1.tar+zstd", "equal"),
        ("application/vnd.acme.target+json", "layer-media-type"),
        ("application/vnd.acme.start", "layer-media-type"),
        ("application/vnd.oci.image.layer.v1.tar+encrypted", "layer-media-type"),
        ("", "layer-media-type"),
    ],
)
def test_media_types_of_layers(tmp_path: Path, kind: str, code: str) -> None:
    def edit(manifest: dict[str, object]) -> None:
        layers = manifest["layers"]
        assert isinstance(layers, list)
        layers[0]["mediaType"] = kind

    image = build_image(GOOD.tars, edit_manifest=edit)
    report = in_layout(tmp_path, layout_files([image]))
    assert report.reason["code"] == code


def test_diff_id_that_no_runtime_computes(tmp_path: Path) -> None:
    name = "sha512:" + hashlib.sha512(GOOD.tars[0]).hexdigest()
    image = build_image(GOOD.tars, diff_ids=[name])
    report = in_layout(tmp_path, layout_files([image]))
    assert answer(report) == ("unverifiable", 3, "bad-digest")


@pytest.mark.parametrize("host", ["tcp://127.0.0.1:1", "ssh://ann@ex.org"])
@pytest.mark.parametrize("name", ["DOCKER_HOST", "CONTAINER_HOST"])
def test_daemon_elsewhere_is_no_reason_to_ask_another(
    tmp_path: Path, name: str, host: str
) -> None:
    report = ask(tmp_path, "docker-daemon:demo", environ={name: host})
    assert answer(report) == ("unverifiable", 6, "no-daemon")
    assert name in str(report.reason["message"])


@pytest.mark.parametrize("name", ["DOCKER_HOST", "CONTAINER_HOST"])
def test_a_daemon_is_asked_for_the_image(tmp_path: Path, name: str) -> None:
    asked: list[bytes] = []

    def answer_once() -> None:
        with listener.accept()[0] as connected:
            asked.append(connected.recv(1 << 16).partition(b"\r\n")[0])
            connected.sendall(b"HTTP/1.1 404 N\r\nContent-Length: 2\r\n\r\n{}")

    with (
        # The path of a socket is short.
        tempfile.TemporaryDirectory() as folder,
        socket.socket(socket.AF_UNIX) as listener,
    ):
        listener.settimeout(60)
        listener.bind(f"{folder}/d")
        listener.listen()
        thread = threading.Thread(target=answer_once)
        thread.start()
        host = {name: f"unix://{folder}/d"}
        report = ask(tmp_path, "docker-daemon:team/demo:1", environ=host)
        thread.join()
    assert asked == [b"GET /images/team/demo:1/get HTTP/1.1"]
    assert answer(report) == ("unverifiable", 6, "daemon")
    assert "'team/demo:1'" in str(report.reason["message"])


@pytest.mark.parametrize("packed", PACKED)
def test_archive_that_changes_between_two_passes(tmp_path: Path, packed: str) -> None:
    """A large file is hashed by a second pass, which has to see the same layer."""
    path = tmp_path / "archive"
    first, second = bytes(9 << 20), b"\1" * (9 << 20)
    saved = [
        PACKED[packed](
            docker_archive(
                build_image([tree_layer({"demo/large.bin": data}, SITE)]), "docker24"
            )
        )
        for data in (first, second)
    ]
    expected = write_files(tmp_path / "large", {"demo/large.bin": second})

    class Swap:
        def update(self, phase: str, done: int, total: int | None) -> None:
            if phase == "layers" and done == total:
                path.write_bytes(saved[1])

        def note(self, message: str) -> None:
            pass

    path.write_bytes(saved[0])
    report = verify(
        Request(
            reference=f"docker-archive:{path}",
            expected=[folder_tree(expected)],
            roots=(Root("demo", PACKAGE_ROOT, PACKAGE),),
            limits=Limits(ratio=100_000),
            environ={},
        ),
        progress=Swap(),
    )
    assert (report.verdict, report.exit_code) == ("unverifiable", 4)


@pytest.mark.parametrize("packed", PACKED)
@pytest.mark.parametrize("right", [True, False])
def test_config_as_crane_names_it(tmp_path: Path, packed: str, right: bool) -> None:
    layer = f"{GOOD.layers[0][7:]}.tar.gz"
    listed = [{"Config": GOOD.config, "RepoTags": ["a:1"], "Layers": [layer]}]
    files = {
        GOOD.config: GOOD.blobs[GOOD.config] + b" " * (not right),
        layer: GOOD.blobs[GOOD.layers[0]],
        "manifest.json": json.dumps(listed).encode(),
    }
    path = tmp_path / "archive"
    path.write_bytes(PACKED[packed](archive_of(files)))
    report = ask(tmp_path, f"docker-archive:{path}")
    wrong = ("unverifiable", 4, "digest-mismatch")
    assert answer(report) == (("match", 0, "equal") if right else wrong)


@pytest.mark.parametrize("swapped", [True, False])
@pytest.mark.parametrize("key", [REF_NAME, "io.containerd.image.name"])
def test_tags_of_two_images_in_two_tables(
    tmp_path: Path, key: str, swapped: bool
) -> None:
    tags = {"a:1": GOOD, "b:1": EVIL}
    listed = dict(zip(tags, (EVIL, GOOD), strict=True)) if swapped else tags
    files = layout_files(
        [GOOD, EVIL],
        [
            image.descriptor(annotations={REF_NAME: tag, key: tag})
            for tag, image in tags.items()
        ],
    )
    files["manifest.json"] = json.dumps(
        [
            {
                "Config": "blobs/" + image.config.replace(":", "/"),
                "RepoTags": [tag],
                "Layers": ["blobs/" + image.layers[0].replace(":", "/")],
            }
            for tag, image in listed.items()
        ]
    ).encode()
    report = in_archive(tmp_path, files, tag="a:1")
    assert report.verdict == ("unverifiable" if swapped else "match")
