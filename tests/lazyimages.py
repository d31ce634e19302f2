# SPDX-License-Identifier: Apache-2.0
"""Layers with an index for lazy runtimes, built from the formats' documentation.

eStargz is written after `docs/estargz.md` of the stargz snapshotter, zstd:chunked after
the comments of containers/storage. Every test may change the index before it is
written, so that it says what the tar does not. Whether real tools write the same is
asked in `tests/tools/test_image_lazy.py`.
"""

import gzip
import io
import json
import tarfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass

import zstandard
from images import OCI_LAYER, Built, Tar, build_image, sha256

Entries = list[dict[str, object]]
Edit = Callable[[Entries], object]

NEW = "io.github.containers.zstd-chunked."
OLD = "io.containers.zstd-chunked."
TOC_DIGEST = "containerd.io/snapshot/stargz/toc.digest"
_TYPES = {
    tarfile.REGTYPE: "reg",
    tarfile.LNKTYPE: "hardlink",
    tarfile.SYMTYPE: "symlink",
    tarfile.CHRTYPE: "char",
    tarfile.BLKTYPE: "block",
    tarfile.DIRTYPE: "dir",
    tarfile.FIFOTYPE: "fifo",
}


@dataclass
class Lazy:
    """A stored layer with an index.

    Attributes:
        blob: As it is stored.
        tar: Unpacked.
        annotations: Of its descriptor.
        suffix: Of its media type.
    """

    blob: bytes
    tar: bytes
    annotations: dict[str, str]
    suffix: str

    def image(self, *below: bytes, above: tuple[bytes, ...] = ()) -> Built:
        """Return an image of this layer between plain ones."""
        image = build_image([*below, self.tar, *above])
        manifest = json.loads(image.blobs.pop(image.manifest))
        manifest["layers"][len(below)].update(
            digest=sha256(self.blob),
            size=len(self.blob),
            mediaType=f"{OCI_LAYER}+{self.suffix}",
            annotations=self.annotations,
        )
        raw = json.dumps(manifest).encode()
        image.manifest = sha256(raw)
        image.blobs |= {sha256(self.blob): self.blob, image.manifest: raw}
        return image


def _members(tar: bytes) -> list[tuple[tarfile.TarInfo, int]]:
    """Return the entries of a tar and where the content of each begins."""
    with tarfile.open(fileobj=io.BytesIO(tar)) as archive:
        return [(member, member.offset_data) for member in archive]


def _entry(member: tarfile.TarInfo) -> dict[str, object]:
    entry: dict[str, object] = {
        "type": _TYPES[member.type],
        "name": member.name + ("/" if member.isdir() else ""),
        "mode": member.mode,
        "modtime": "2023-11-14T22:13:20Z" if member.mtime == 1_700_000_000 else "",
    }
    if member.islnk() or member.issym():
        entry["linkName"] = member.linkname
    if member.isreg() and member.size:
        entry["size"] = member.size
    return entry


def estargz(
    tar: bytes,
    *,
    chunk: int = 1 << 30,
    edit: Edit = lambda _: None,
    raw: Callable[[bytes], bytes] = lambda text: text,
    annotate: bool = True,
) -> Lazy:
    """Return a tar as eStargz.

    Args:
        tar: The layer, with two zero blocks at its end.
        chunk: Bytes after which a file goes on in another gzip member.
        edit: Changes the entries of the index.
        raw: Changes the index as text.
        annotate: Whether the descriptor has the index's digest.
    """
    out = io.BytesIO()
    plain = b""
    pending = b""
    entries: Entries = []

    def flush() -> None:
        nonlocal pending, plain
        if pending:
            out.write(gzip.compress(pending, 6, mtime=0))
        plain += pending
        pending = b""

    at = 0
    for member, begin in _members(tar):
        pending += tar[at:begin]
        at = begin
        entry = _entry(member)
        entries.append(entry)
        if not member.isreg() or not member.size:
            continue
        content = tar[begin : begin + member.size]
        entry["digest"] = sha256(content)
        for offset in range(0, member.size, chunk):
            flush()
            part = content[offset : offset + chunk]
            where: dict[str, object] = {
                "offset": out.tell(),
                "chunkDigest": sha256(part),
            }
            if offset + chunk < member.size:
                where["chunkSize"] = chunk
            if offset:
                where |= {"type": "chunk", "name": member.name, "chunkOffset": offset}
                entries.append(where)
            else:
                entry |= where
            pending += part
        at = begin + member.size
    end = len(tar) - 1024
    pending += tar[at:end]
    flush()
    edit(entries)
    index = raw(json.dumps({"version": 1, "entries": entries}, indent=1).encode())
    place = out.tell()
    pending = Tar().file("stargz.index.json", index, mode=0o444, mtime=0).done()
    flush()
    extra = b"SG" + (22).to_bytes(2, "little") + b"%016xSTARGZ" % place
    out.write(
        b"\x1f\x8b\x08\x04\0\0\0\0\0\xff"
        + len(extra).to_bytes(2, "little")
        + extra
        + b"\x01\0\0\xff\xff"
        + bytes(8)
    )
    annotations = {TOC_DIGEST: sha256(index)} if annotate else {}
    return Lazy(out.getvalue(), plain, annotations, "gzip")


def _skippable(data: bytes) -> bytes:
    return b"\x50\x2a\x4d\x18" + len(data).to_bytes(4, "little") + data


def chunked(
    tar: bytes,
    *,
    chunk: int = 1 << 30,
    edit: Edit = lambda _: None,
    raw: Callable[[bytes], bytes] = lambda text: text,
    prefix: str = NEW,
    kind: int = 1,
    footer: int = 0,
    record: bytes = b"",
) -> Lazy:
    """Return a tar as zstd:chunked.

    Args:
        tar: The layer.
        chunk: Bytes after which a file goes on in another frame.
        edit: Changes the entries of the index.
        raw: Changes the index as text.
        prefix: Of the annotations.
        kind: Number of the index's format.
        footer: What the footer says too much for the index's place.
        record: The record of the tar's headers that newer tools put behind the index.
    """
    out = io.BytesIO()
    compress = zstandard.ZstdCompressor(level=3).compress
    entries: Entries = []
    at = 0
    for member, begin in _members(tar):
        entry = _entry(member)
        entries.append(entry)
        if not member.isreg() or not member.size:
            continue
        out.write(compress(tar[at:begin]))
        content = tar[begin : begin + member.size]
        entry |= {"digest": sha256(content), "offset": out.tell()}
        parts: Entries = []
        for offset in range(0, member.size, chunk):
            part = content[offset : offset + chunk]
            parts.append(
                {
                    "type": "chunk",
                    "name": member.name,
                    "offset": out.tell(),
                    "chunkSize": len(part),
                    "chunkOffset": offset,
                    "chunkDigest": sha256(part),
                    "chunkType": "" if any(part) else "zeros",
                }
            )
            out.write(compress(part))
        entry["endOffset"] = out.tell()
        if len(parts) > 1:
            first = parts[0]
            entry |= {k: first[k] for k in ("chunkSize", "chunkDigest", "chunkType")}
            entries += parts[1:]
        at = begin + member.size
    out.write(compress(tar[at:]))
    edit(entries)
    index = raw(json.dumps({"version": 1, "entries": entries}).encode())
    packed = compress(index)
    place = out.tell() + 8
    out.write(_skippable(packed))
    numbers = [place + footer, len(packed), len(index), kind]
    annotations = {
        f"{prefix}manifest-checksum": sha256(packed),
        f"{prefix}manifest-position": f"{place}:{len(packed)}:{len(index)}:{kind}",
    }
    if record:
        numbers += [out.tell() + 8, len(record), 99]
        annotations[f"{prefix}tarsplit-position"] = f"{out.tell() + 8}:{len(record)}:99"
        out.write(_skippable(record))
    tail = b"".join(number.to_bytes(8, "little") for number in numbers)
    out.write(_skippable(tail + b"GNUlInUx"))
    return Lazy(out.getvalue(), tar, annotations, "zstd")


FORMATS: dict[str, Callable[..., Lazy]] = {"estargz": estargz, "chunked": chunked}


def named(entries: Entries, name: str) -> dict[str, object]:
    """Return the entry of a name, which must be there once."""
    (found,) = [e for e in entries if e.get("name") == name and e["type"] != "chunk"]
    return found


def stored_block(data: bytes) -> bytes:
    """Return a gzip member that holds bytes as they are."""
    packer = zlib.compressobj(0, zlib.DEFLATED, 31)
    return packer.compress(data) + packer.flush()
