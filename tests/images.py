# SPDX-License-Identifier: Apache-2.0
"""Images built byte by byte, so that a test can build what no tool would."""

import gzip
import hashlib
import io
import json
import tarfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import zstandard

OCI_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
OCI_INDEX = "application/vnd.oci.image.index.v1+json"
OCI_CONFIG = "application/vnd.oci.image.config.v1+json"
OCI_LAYER = "application/vnd.oci.image.layer.v1.tar"
REF_NAME = "org.opencontainers.image.ref.name"


def sha256(data: bytes) -> str:
    return "sha256:" + hashlib.sha256(data).hexdigest()


def header(
    name: bytes,
    kind: bytes = b"0",
    size: int = 0,
    *,
    mode: int = 0o644,
    mtime: int = 1_700_000_000,
    link: bytes = b"",
    device: tuple[int, int] = (0, 0),
    magic: bytes = b"ustar\x0000",
    prefix: bytes = b"",
) -> bytes:
    """Return one tar header; names that are too long are cut."""
    size_field = (
        b"%011o\0" % size if size < 8**11 else b"\x80" + size.to_bytes(11, "big")
    )
    block = b"".join(
        (
            name[:100].ljust(100, b"\0"),
            b"%07o\0" % mode,
            b"%07o\0" % 0,
            b"%07o\0" % 0,
            size_field,
            b"%011o\0" % mtime,
            b" " * 8,
            kind,
            link[:100].ljust(100, b"\0"),
            magic,
            b"\0" * 64,
            b"%07o\0" % device[0],
            b"%07o\0" % device[1],
            prefix.ljust(155, b"\0"),
            b"\0" * 12,
        )
    )
    return block[:148] + b"%06o\0 " % sum(block) + block[156:]


def padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % 512)


def pax_records(records: Iterable[tuple[bytes, bytes]]) -> bytes:
    out = b""
    for key, value in records:
        body = b" " + key + b"=" + value + b"\n"
        length = len(body)
        while length != len(body) + len(str(length)):
            length = len(body) + len(str(length))
        out += str(length).encode() + body
    return out


class Tar:
    """A tar archive under construction."""

    def __init__(self) -> None:
        self.data = b""

    def raw(self, data: bytes) -> "Tar":
        self.data += data
        return self

    def pax(self, *records: tuple[bytes, bytes], kind: bytes = b"x") -> "Tar":
        body = pax_records(records)
        return self.raw(header(b"pax", kind, len(body)) + padded(body))

    def gnu_long(self, kind: bytes, text: bytes) -> "Tar":
        body = text + b"\0"
        magic = b"ustar  \0"
        return self.raw(
            header(b"././@LongLink", kind, len(body), magic=magic) + padded(body)
        )

    def file(
        self,
        name: str | bytes,
        data: bytes | str = b"",
        *,
        mode: int = 0o644,
        mtime: int = 1_700_000_000,
    ) -> "Tar":
        raw = name.encode() if isinstance(name, str) else name
        body = data.encode() if isinstance(data, str) else data
        if len(raw) > 100:
            self.pax((b"path", raw))
        return self.raw(
            header(raw, b"0", len(body), mode=mode, mtime=mtime) + padded(body)
        )

    def folder(self, name: str, mode: int = 0o755) -> "Tar":
        raw = name.encode()
        if len(raw) > 99:
            self.pax((b"path", raw + b"/"))
        return self.raw(header(raw.rstrip(b"/") + b"/", b"5", mode=mode))

    def symlink(self, name: str, target: str) -> "Tar":
        raw, link = name.encode(), target.encode()
        if len(raw) > 100 or len(link) > 100:
            self.pax((b"path", raw), (b"linkpath", link))
        return self.raw(header(raw, b"2", mode=0o777, link=link))

    def hardlink(self, name: str, target: str, mode: int = 0o644) -> "Tar":
        raw, link = name.encode(), target.encode()
        if len(raw) > 100 or len(link) > 100:
            self.pax((b"path", raw), (b"linkpath", link))
        return self.raw(header(raw, b"1", mode=mode, link=link))

    def whiteout(self, name: str) -> "Tar":
        folder, slash, base = name.rpartition("/")
        return self.file(f"{folder}{slash}.wh.{base}")

    def opaque(self, folder: str) -> "Tar":
        return self.file(f"{folder}/.wh..wh..opq" if folder else ".wh..wh..opq")

    def device(self, name: str, major: int, minor: int) -> "Tar":
        return self.raw(header(name.encode(), b"3", device=(major, minor)))

    def done(self) -> bytes:
        return self.data + bytes(1024)


def tree_layer(files: dict[str, bytes | str], prefix: str = "") -> bytes:
    """Return a layer with some files and the folders they need."""
    tar = Tar()
    seen: set[str] = set()
    for name in sorted(files):
        path = f"{prefix}/{name}".lstrip("/")
        parts = path.split("/")
        for depth in range(1, len(parts)):
            folder = "/".join(parts[:depth])
            if folder not in seen:
                seen.add(folder)
                tar.folder(folder)
        tar.file(path, files[name])
    return tar.done()


COMPRESS: dict[str, Callable[[bytes], bytes]] = {
    "tar": lambda data: data,
    "gzip": lambda data: gzip.compress(data, 1, mtime=0),
    "zstd": lambda data: zstandard.ZstdCompressor(level=1).compress(data),
    "gzip-members": lambda data: b"".join(
        gzip.compress(part, 1, mtime=0)
        for part in (data[: len(data) // 2], data[len(data) // 2 :])
    ),
    "zstd-frames": lambda data: b"".join(
        zstandard.ZstdCompressor(level=1).compress(part)
        for part in (data[: len(data) // 2], data[len(data) // 2 :])
    ),
}
_SUFFIX = {
    "tar": "",
    "gzip": "+gzip",
    "zstd": "+zstd",
    "gzip-members": "+gzip",
    "zstd-frames": "+zstd",
}


@dataclass
class Built:
    """An image as blobs.

    Attributes:
        blobs: Bytes by digest.
        manifest: Digest of the manifest.
        config: Digest of the config.
        layers: Digests of the layers.
        tars: The layers uncompressed.
    """

    blobs: dict[str, bytes]
    manifest: str
    config: str
    layers: list[str]
    tars: list[bytes]

    def descriptor(self, **more: object) -> dict[str, object]:
        size = len(self.blobs[self.manifest])
        return {
            "mediaType": OCI_MANIFEST,
            "digest": self.manifest,
            "size": size,
            **more,
        }


def build_image(
    layers: Sequence[bytes],
    *,
    compression: str = "gzip",
    run: dict[str, object] | None = None,
    architecture: str = "amd64",
    diff_ids: Sequence[str] | None = None,
    layer_annotations: dict[str, str] | None = None,
    edit_manifest: Callable[[dict[str, object]], None] = lambda _: None,
    edit_config: Callable[[dict[str, object]], None] = lambda _: None,
) -> Built:
    """Return an image made of uncompressed layers."""
    blobs: dict[str, bytes] = {}
    descriptors = []
    names = []
    for tar in layers:
        blob = COMPRESS[compression](tar)
        name = sha256(blob)
        blobs[name] = blob
        names.append(name)
        item: dict[str, object] = {
            "mediaType": OCI_LAYER + _SUFFIX[compression],
            "digest": name,
            "size": len(blob),
        }
        if layer_annotations:
            item["annotations"] = layer_annotations
        descriptors.append(item)
    config: dict[str, object] = {
        "architecture": architecture,
        "os": "linux",
        "config": run or {},
        "rootfs": {
            "type": "layers",
            "diff_ids": list(diff_ids or [sha256(tar) for tar in layers]),
        },
        "history": [{"created_by": "test"} for _ in layers],
    }
    edit_config(config)
    config_bytes = json.dumps(config).encode()
    config_digest = sha256(config_bytes)
    blobs[config_digest] = config_bytes
    manifest: dict[str, object] = {
        "schemaVersion": 2,
        "mediaType": OCI_MANIFEST,
        "config": {
            "mediaType": OCI_CONFIG,
            "digest": config_digest,
            "size": len(config_bytes),
        },
        "layers": descriptors,
    }
    edit_manifest(manifest)
    manifest_bytes = json.dumps(manifest).encode()
    digest = sha256(manifest_bytes)
    blobs[digest] = manifest_bytes
    return Built(blobs, digest, config_digest, names, list(layers))


def layout_files(
    images: Sequence[Built],
    entries: Sequence[dict[str, object]] | None = None,
    extra: dict[str, bytes] | None = None,
) -> dict[str, bytes]:
    """Return the files of an OCI layout."""
    index = {
        "schemaVersion": 2,
        "manifests": list(
            entries
            if entries is not None
            else [
                image.descriptor(annotations={REF_NAME: "latest"}) for image in images
            ]
        ),
    }
    files = {
        "oci-layout": b'{"imageLayoutVersion":"1.0.0"}',
        "index.json": json.dumps(index).encode(),
    }
    for image in images:
        for digest, blob in image.blobs.items():
            files["blobs/" + digest.replace(":", "/")] = blob
    files.update(extra or {})
    return files


def write_files(folder: Path, files: dict[str, bytes]) -> Path:
    for name, data in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return folder


def write_layout(folder: Path, image: Built) -> Path:
    """Write an image as an OCI layout with the tag `latest`."""
    return write_files(folder, layout_files([image]))


def archive_of(files: dict[str, bytes], links: dict[str, str] | None = None) -> bytes:
    """Return some files as a tar archive."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
        for name, target in (links or {}).items():
            info = tarfile.TarInfo(name)
            info.type = tarfile.SYMTYPE
            info.linkname = target
            tar.addfile(info)
    return out.getvalue()


def docker_archive(image: Built, style: str, tag: str = "test/image:latest") -> bytes:
    """Return an image as `docker save` writes it.

    Args:
        image: The image; its layers are stored uncompressed.
        tag: Its tag.
        style: `docker24`, `skopeo` or `docker25`.
    """
    config = image.blobs[image.config]
    files: dict[str, bytes] = {}
    links: dict[str, str] = {}
    if style == "docker25":
        plain = build_image(image.tars, compression="tar")
        plain.blobs[image.config] = config
        manifest = json.loads(plain.blobs[plain.manifest])
        manifest["config"]["digest"] = image.config
        manifest["config"]["size"] = len(config)
        raw = json.dumps(manifest).encode()
        del plain.blobs[plain.manifest]
        plain.manifest = sha256(raw)
        plain.blobs[plain.manifest] = raw
        files.update(layout_files([plain]))
        name = "blobs/" + image.config.replace(":", "/")
        names = ["blobs/" + sha256(tar).replace(":", "/") for tar in image.tars]
    else:
        name = image.config[7:] + ".json"
        files[name] = config
        names = []
        seen: dict[str, str] = {}
        for number, tar in enumerate(image.tars):
            diff_id = sha256(tar)[7:]
            chain = hashlib.sha256(f"{number}{diff_id}".encode()).hexdigest()
            if style == "skopeo":
                files[f"{diff_id}.tar"] = tar
                links[f"{chain}/layer.tar"] = f"../{diff_id}.tar"
                names.append(f"{diff_id}.tar")
            else:
                path = f"{chain}/layer.tar"
                if diff_id in seen:
                    links[path] = f"../{seen[diff_id]}"
                else:
                    files[path] = tar
                    seen[diff_id] = path
                files[f"{chain}/VERSION"] = b"1.0"
                files[f"{chain}/json"] = b"{}"
                names.append(path)
    listed = [{"Config": name, "RepoTags": [tag], "Layers": names}]
    files["manifest.json"] = json.dumps(listed).encode()
    return archive_of(files, links)


@dataclass
class Demo:
    """A small tree and where images have it.

    Attributes:
        files: Tracked files by path in the tree.
    """

    files: dict[str, bytes] = field(
        default_factory=lambda: {
            "README.md": b"# demo\n",
            "demo/__init__.py": b'"""Demo."""\n',
            "demo/core.py": b"VALUE = 1\n",
            "demo/sub/__init__.py": b"",
            "demo/sub/deep.py": b"def f():\n    return 2\n",
        }
    )

    def write(self, folder: Path) -> Path:
        """Write the tree into a folder."""
        return write_files(folder, self.files)

    def package(self) -> dict[str, bytes | str]:
        """Return the files of the package."""
        return {n: d for n, d in self.files.items() if n.startswith("demo/")}


SITE = "usr/lib/python3.11/site-packages"
PACKAGE_ROOT = f"/{SITE}/demo"
