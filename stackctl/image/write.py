# SPDX-License-Identifier: Apache-2.0
"""Writing layers and OCI layouts, the same bytes on every machine.

A layer is stored uncompressed: what a compressor makes of it differs between versions
and builds of the compressor, and its digest would differ with it. Nothing that is
written depends on the time, the user, the file system or the Python version.
"""

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from stackctl.errors import InputError
from stackctl.image.platform import Platform
from stackctl.image.source import OCI_CONFIG, OCI_INDEX, OCI_MANIFEST, REF_NAME
from stackctl.model.canonical import canonical_json

_BLOCK = 512
_MOST_OCTAL = 8**7
_LAYER = "application/vnd.oci.image.layer.v1.tar"


@dataclass(frozen=True, slots=True)
class Item:
    """An entry of a layer that is written.

    Attributes:
        name: Path without a leading slash.
        type: `0` file, `2` symlink, `5` folder.
        mode: Permission bits.
        owner: User and group number.
        mtime: Seconds since 1970.
        data: Content of a file, or target of a symlink.
    """

    name: bytes
    type: str
    mode: int
    owner: tuple[int, int] = (0, 0)
    mtime: int = 0
    data: bytes = b""


def tar_bytes(items: Iterable[Item]) -> bytes:
    """Return a tar archive of some entries, in the order given."""
    parts: list[bytes] = []
    for item in items:
        name = item.name + b"/" if item.type == "5" else item.name
        link = item.data if item.type == "2" else b""
        data = item.data if item.type == "0" else b""
        records = [
            (key, value)
            for key, value in ((b"path", name), (b"linkpath", link))
            if len(value) > 100
        ]
        for key, number in zip((b"uid", b"gid"), item.owner, strict=True):
            if number >= _MOST_OCTAL:
                records.append((key, b"%d" % number))
        if records:
            body = b"".join(_record(key, value) for key, value in records)
            parts += [_header(b"pax", "x", 0o644, len(body)), body, _padding(body)]
        parts += [
            _header(
                name, item.type, item.mode, len(data), link, item.owner, item.mtime
            ),
            data,
            _padding(data),
        ]
    parts.append(bytes(2 * _BLOCK))
    return b"".join(parts)


def _padding(data: bytes) -> bytes:
    return bytes(-len(data) % _BLOCK)


def _record(key: bytes, value: bytes) -> bytes:
    body = b" " + key + b"=" + value + b"\n"
    length = len(body)
    while length != len(body) + len(b"%d" % length):
        length = len(body) + len(b"%d" % length)
    return b"%d" % length + body


def _header(
    name: bytes,
    kind: str,
    mode: int,
    size: int,
    link: bytes = b"",
    owner: tuple[int, int] = (0, 0),
    mtime: int = 0,
) -> bytes:
    uid, gid = (n if n < _MOST_OCTAL else 0 for n in owner)
    block = b"".join(
        (
            name[:100].ljust(100, b"\0"),
            b"%07o\0%07o\0%07o\0" % (mode, uid, gid),
            b"%011o\0%011o\0" % (size, mtime),
            b" " * 8,
            kind.encode(),
            link[:100].ljust(100, b"\0"),
            b"ustar\0" + b"00",
            bytes(64),
            b"%07o\0%07o\0" % (0, 0),
            bytes(167),
        )
    )
    return block[:148] + b"%06o\0 " % sum(block) + block[156:]


def sha256(data: bytes) -> str:
    """Return the digest of some bytes, as OCI writes it."""
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


class LayoutWriter:
    """Writes an OCI image layout into a folder.

    Args:
        folder: An empty folder.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._blobs = folder / "blobs" / "sha256"
        self._blobs.mkdir(parents=True)
        self._layers: list[dict[str, object]] = []

    def copy_layer(self, chunks: Iterator[bytes], compression: str) -> None:
        """Copy a layer as it is stored.

        Args:
            chunks: Its bytes, whose digest whoever yields them checks.
            compression: `gzip`, `zstd` or `tar`.
        """
        digest = hashlib.sha256()
        size = 0
        part = self._folder / "layer.part"
        with part.open("wb") as out:
            for chunk in chunks:
                digest.update(chunk)
                size += len(chunk)
                out.write(chunk)
        part.rename(self._blobs / digest.hexdigest())
        suffix = "" if compression == "tar" else f"+{compression}"
        self._layers.append(
            {
                "mediaType": _LAYER + suffix,
                "digest": f"sha256:{digest.hexdigest()}",
                "size": size,
            }
        )

    def add_layer(self, tar: bytes) -> str:
        """Add an uncompressed layer and return its digest, which is its diff_id too."""
        digest = self._blob(tar)
        self._layers.append({"mediaType": _LAYER, "digest": digest, "size": len(tar)})
        return digest

    def _blob(self, data: bytes) -> str:
        digest = sha256(data)
        (self._blobs / digest[7:]).write_bytes(data)
        return digest

    def finish(
        self,
        config: Mapping[str, object],
        annotations: Mapping[str, str],
        platform: Platform,
        tag: str,
    ) -> str:
        """Write config, manifest and index, and return the manifest's digest.

        Raises:
            InputError: The config holds what canonical JSON cannot.
        """
        raw = _canonical(config)
        manifest = _canonical(
            {
                "schemaVersion": 2,
                "mediaType": OCI_MANIFEST,
                "config": {
                    "mediaType": OCI_CONFIG,
                    "digest": self._blob(raw),
                    "size": len(raw),
                },
                "layers": self._layers,
                "annotations": dict(annotations),
            }
        )
        where = {"os": platform.os, "architecture": platform.architecture}
        if platform.variant:
            where["variant"] = platform.variant
        descriptor = {
            "mediaType": OCI_MANIFEST,
            "digest": self._blob(manifest),
            "size": len(manifest),
            "platform": where,
            "annotations": {REF_NAME: tag},
        }
        index = {
            "schemaVersion": 2,
            "mediaType": OCI_INDEX,
            "manifests": [descriptor],
        }
        (self._folder / "index.json").write_bytes(_canonical(index))
        (self._folder / "oci-layout").write_bytes(b'{"imageLayoutVersion":"1.0.0"}')
        return str(descriptor["digest"])


def _canonical(document: Mapping[str, object]) -> bytes:
    try:
        return canonical_json(document)
    except (TypeError, ValueError) as error:
        raise InputError(
            f"the image's config cannot be written again: {error}",
            kind="bad-config",
            hint="build the base image again with an unmodified tool",
        ) from None
