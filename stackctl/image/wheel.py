# SPDX-License-Identifier: Apache-2.0
"""A wheel: what an installer makes of it, hashed from its members.

`RECORD` is not looked at: whoever changes a wheel or an installation writes it too.
What counts is the digest of the wheel file, and then the bytes of its members.
"""

import hashlib
import stat
import struct
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import BinaryIO

from stackctl.fsutil import reason
from stackctl.image import inflate as deflated
from stackctl.image.blobs import CHUNK
from stackctl.image.bytecode import UNKNOWN_TIME
from stackctl.image.errors import (
    AmbiguousImageError,
    DigestError,
    ImageFormatError,
    LimitError,
)
from stackctl.image.layers import clean_path
from stackctl.image.layout import read_file
from stackctl.image.limits import Limits
from stackctl.image.roots import Pinned
from stackctl.image.view import Node, View, show

#: What installers call the folder that packages go into.
_PACKAGES = (b"site-packages", b"dist-packages")
_LOCAL_HEADER = struct.Struct("<4s5H3L2H")
#: Stands for a size that is in the extra field, which is for large members.
_IN_EXTRA = 0xFFFFFFFF
#: Extra field with another name of a member, which uv follows and pip does not.
_UNICODE_PATH = 0x7075


class Wheel:
    """A wheel file.

    Args:
        path: The file.
        limits: Bounds of its members.
        sha256: What the file must hash to, if it is pinned.

    Raises:
        DigestError: It hashes to something else.
        ImageFormatError: It is no wheel.
        AmbiguousImageError: Installers would read different things in it.
    """

    def __init__(self, path: Path, limits: Limits, sha256: str = "") -> None:
        self._path = path
        self._limits = limits
        if sha256:
            digest = hashlib.sha256()
            for chunk in read_file(path):
                digest.update(chunk)
            if digest.hexdigest() != sha256:
                raise DigestError(
                    f"{path} hashes to {digest.hexdigest()}, not to {sha256}",
                    kind="wheel-digest",
                    hint="get the wheel that the series pins",
                    where={"file": str(path)},
                )
        try:
            with zipfile.ZipFile(path) as archive:
                infos = archive.infolist()
                self._check_gaps(infos, archive.start_dir)
        except FileNotFoundError:
            raise ImageFormatError(
                f"{path} does not exist", kind="not-a-wheel", where={"file": str(path)}
            ) from None
        except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError) as exc:
            raise ImageFormatError(
                f"{path} is no wheel: {reason(exc)}",
                kind="not-a-wheel",
                hint="expected a .whl file",
                where={"file": str(path)},
            ) from None
        if len(infos) > limits.entries:
            raise LimitError(
                f"{path} has more than {limits.entries} members", kind="limit-entries"
            )
        self._members: dict[bytes, zipfile.ZipInfo] = {}
        #: Files that an installer puts outside of site-packages, below the prefix.
        self.outside: list[bytes] = []
        tops = {info.orig_filename.partition("/")[0] for info in infos}
        self._described = {
            top.removesuffix(".dist-info").encode("utf-8", "surrogateescape")
            for top in tops
            if top.endswith(".dist-info")
        }
        for info in infos:
            name = self._installed(info)
            if name is None:
                continue
            if name in self._members:
                raise AmbiguousImageError(
                    f"{path} has {show(name)!r} twice: installers take either",
                    kind="ambiguous-member",
                    hint="build the wheel again",
                    where={"file": str(path), "member": show(name)},
                )
            self._members[name] = info

    def _check_gaps(self, infos: list[zipfile.ZipInfo], end: int) -> None:
        """Refuse members that only a reader of the stream would see.

        pip reads the directory at the end; a tool that unpacks while it downloads reads
        the members in place, and would also see one that the directory leaves out, or
        calls otherwise, or that stands in what the directory takes for another's data.
        """
        at = slack = 0
        with self._path.open("rb") as stream:
            for info in sorted(infos, key=lambda i: i.header_offset):
                descriptor = 24 if info.flag_bits & 8 else 0
                if not at <= info.header_offset <= at + slack:
                    raise self._hidden(at)
                stream.seek(info.header_offset)
                raw = stream.read(_LOCAL_HEADER.size)
                if len(raw) != _LOCAL_HEADER.size:
                    raise self._damaged(info)
                *_, name_size, extra_size = _LOCAL_HEADER.unpack(raw)
                name, extra = stream.read(name_size), stream.read(extra_size)
                self._check_local(info, raw, name, extra)
                at = info.header_offset + len(raw) + name_size + extra_size
                at += info.compress_size
                slack = descriptor
        if not at <= end <= at + slack:
            raise self._hidden(at)

    def _check_local(
        self, info: zipfile.ZipInfo, raw: bytes, name: bytes, extra: bytes
    ) -> None:
        """Refuse a member of which its own header says something else."""
        magic, _, flags, method, _, _, crc, packed, size, *_ = _LOCAL_HEADER.unpack(raw)
        if magic != b"PK\3\4":
            raise self._damaged(info)
        encoding = "utf-8" if info.flag_bits & 0x800 else "cp437"
        if name != info.orig_filename.encode(encoding, "replace"):
            raise self._two_sayings(info, f"{show(name)!r} in place")
        other = _other_name(info.extra, name) or _other_name(extra, name)
        if other:
            raise self._two_sayings(info, f"{show(other)!r} in a field beside")
        stated = (info.flag_bits & 9, info.compress_type)
        if (flags & 9, method) != stated:
            raise self._two_sayings(info, "packs it in another way in place")
        for here, there in (
            (crc, info.CRC),
            (packed, info.compress_size),
            (size, info.file_size),
        ):
            # With a descriptor the numbers come after the data; of large members they
            # are in an extra field.
            later = flags & 8 and not here
            if here not in (there, _IN_EXTRA) and not later:
                raise self._two_sayings(info, "another size or sum in place")

    def _two_sayings(self, info: zipfile.ZipInfo, other: str) -> AmbiguousImageError:
        return AmbiguousImageError(
            f"{self._path} has the member {info.orig_filename!r} in its directory, and "
            f"{other}: pip reads one, uv may read the other",
            kind="ambiguous-member",
            hint="build the wheel again",
            where={"file": str(self._path), "member": info.orig_filename},
        )

    def _hidden(self, offset: int) -> AmbiguousImageError:
        return AmbiguousImageError(
            f"{self._path} has data between its members that its directory does not "
            "name: pip passes over it, a tool that unpacks a stream may not",
            kind="ambiguous-member",
            hint="build the wheel again",
            where={"file": str(self._path), "offset": offset},
        )

    def _installed(self, info: zipfile.ZipInfo) -> bytes | None:
        """Return where a member goes below site-packages, or None if nowhere."""
        raw = info.orig_filename.encode("utf-8", "surrogateescape")
        name = clean_path(raw)
        if (
            b".." in raw.split(b"/")
            or raw.startswith(b"/")
            or b"\0" in raw
            or b"\\" in raw
        ):
            raise ImageFormatError(
                f"{self._path} has the member {show(raw)!r}, which leaves its folder",
                kind="bad-wheel",
                hint="this is no wheel that a build tool writes",
                where={"file": str(self._path)},
            )
        if info.is_dir():
            return None
        if info.flag_bits & 1 or info.compress_type not in (
            zipfile.ZIP_STORED,
            zipfile.ZIP_DEFLATED,
        ):
            raise ImageFormatError(
                f"{self._path} has the member {show(raw)!r} encrypted or compressed in "
                "an unknown way",
                kind="bad-wheel",
                where={"file": str(self._path)},
            )
        parts = name.split(b"/")
        if parts[0].endswith(b".data"):
            if len(parts) < 3:
                return None
            if self._described and parts[0][:-5] not in self._described:
                raise AmbiguousImageError(
                    f"{self._path} has the folder {show(parts[0])!r}, which is not "
                    "named like its .dist-info: pip installs what is in it, uv does "
                    "not",
                    kind="ambiguous-member",
                    hint="build the wheel again",
                    where={"file": str(self._path), "member": show(raw)},
                )
            if parts[1] in (b"purelib", b"platlib"):
                return b"/".join(parts[2:])
            if parts[1] == b"data":
                # Below the prefix, which is where site-packages is too.
                for name in _PACKAGES:
                    if name in parts[:-1]:
                        return b"/".join(parts[parts.index(name) + 1 :])
                self.outside.append(b"/".join(parts[2:]))
            elif parts[1] == b"scripts":
                self.outside.append(b"/".join([b"bin", *parts[2:]]))
            return None
        return name

    def _open(self, stream: BinaryIO, info: zipfile.ZipInfo) -> Iterator[bytes]:
        if info.header_offset < 0:
            raise self._damaged(info)
        stream.seek(info.header_offset)
        raw = stream.read(_LOCAL_HEADER.size)
        if len(raw) != _LOCAL_HEADER.size:
            raise self._damaged(info)
        *_, name_size, extra_size = _LOCAL_HEADER.unpack(raw)
        stream.seek(name_size, 1)
        stream.seek(extra_size, 1)
        left = info.compress_size
        inflate = None
        if info.compress_type == zipfile.ZIP_DEFLATED:
            inflate = deflated.decompressor(deflated.RAW)
        produced = 0
        crc = 0
        while left:
            data = stream.read(min(left, CHUNK // 4))
            if not data:
                raise self._damaged(info)
            left -= len(data)
            while data:
                if inflate is None:
                    output, data = data, b""
                else:
                    try:
                        output = inflate.decompress(data, CHUNK)
                    except deflated.ERRORS:
                        raise self._damaged(info) from None
                    data = inflate.unconsumed_tail
                produced += len(output)
                if produced > info.file_size or produced > self._limits.layer:
                    raise self._damaged(info)
                crc = deflated.crc32(output, crc)
                if output:
                    yield output
        if inflate is not None and (tail := inflate.flush()):
            produced += len(tail)
            crc = deflated.crc32(tail, crc)
            yield tail
        if inflate is not None and (inflate.unused_data or not inflate.eof):
            # A reader of the stream takes what follows for the next member.
            raise self._damaged(info)
        if produced != info.file_size or crc != info.CRC:
            raise self._damaged(info)

    def _damaged(self, info: zipfile.ZipInfo) -> ImageFormatError:
        return ImageFormatError(
            f"{self._path}: the member {info.filename!r} is damaged",
            kind="bad-wheel",
            hint="get the wheel again",
            where={"file": str(self._path), "member": info.filename},
        )

    def read(self, path: bytes, /) -> bytes:
        """Return the bytes of a member; at most what is kept of any file."""
        info = self._members[path.lstrip(b"/")]
        parts = []
        total = 0
        with self._path.open("rb") as stream:
            for chunk in self._open(stream, info):
                total += len(chunk)
                if total > self._limits.kept:
                    break
                parts.append(chunk)
        return b"".join(parts)

    def entry_points(self) -> dict[bytes, bytes]:
        """Return what its distribution says that it runs, by path."""
        return {
            path: self.read(path)
            for path in self._members
            if path.endswith(b".dist-info/entry_points.txt") and path.count(b"/") == 1
        }

    def view(self, *, sha256: bool = False) -> View:
        """Return the files as they stand in site-packages.

        Args:
            sha256: Hash files with SHA-256 too.
        """
        view = View()
        with self._path.open("rb", buffering=0) as stream:
            ordered = sorted(self._members.items(), key=lambda m: m[1].header_offset)
            for path, info in ordered:
                parts = path.split(b"/")
                folder = view.root
                for part in parts[:-1]:
                    assert folder.children is not None
                    child = folder.children.get(part)
                    if child is None:
                        child = folder.children[part] = Node("d")
                    elif child.kind != "d":
                        raise self._damaged(info)
                    folder = child
                assert folder.children is not None
                if parts[-1] in folder.children:
                    raise self._damaged(info)
                folder.children[parts[-1]] = self._node(stream, info, sha256)
        return view

    def _node(self, stream: BinaryIO, info: zipfile.ZipInfo, sha256: bool) -> Node:
        mode = stat.S_IMODE(info.external_attr >> 16) or 0o644
        node = Node("f", mode=mode)
        node.size = info.file_size
        # Installers give a file the time at which they write it.
        node.mtime = UNKNOWN_TIME
        sha1 = hashlib.sha1(b"blob %d\0" % info.file_size, usedforsecurity=False)
        other = hashlib.sha256() if sha256 else None
        for chunk in self._open(stream, info):
            if not node.head:
                node.head = chunk[:16]
            sha1.update(chunk)
            if other is not None:
                other.update(chunk)
        node.oid = sha1.digest()
        node.sha256 = other.digest() if other is not None else None
        return node

    def pinned(self) -> Mapping[bytes, Pinned]:
        """Return the files that an installation of this wheel has, by path."""
        view = self.view()
        return {
            path: Pinned(node.oid, node.size)
            for path, node in view.walk(view.root)
            if node.kind == "f" and node.oid is not None
        }


def _other_name(extra: bytes, name: bytes) -> bytes:
    """Return the name in the Unicode path field, if it is there and another.

    Args:
        extra: The extra fields of a member.
        name: The name of the member.
    """
    while len(extra) >= 4:
        kind, size = struct.unpack_from("<HH", extra)
        body, extra = extra[4 : 4 + size], extra[4 + size :]
        # A version and a checksum come first.
        if kind == _UNICODE_PATH and body[5:] != name:
            return body[5:] or b"(nothing)"
    return b""
