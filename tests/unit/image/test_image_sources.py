# SPDX-License-Identifier: Apache-2.0
"""Layouts and archives of images that state one thing and hold another."""

import gzip
import hashlib
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from images import (
    COMPRESS,
    OCI_MANIFEST,
    PACKAGE_ROOT,
    SITE,
    Built,
    Demo,
    archive_of,
    build_image,
    layout_files,
    tree_layer,
    write_files,
)

from stackctl.image.expectation import folder_tree
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
            environ={},
            **more,  # type: ignore[arg-type]
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
