# SPDX-License-Identifier: Apache-2.0
"""Images in a tar file: OCI archives and `docker save` in its three layouts.

An uncompressed file is indexed once and its members are read in place. A compressed
one, and a stream from a daemon, can only be read from the beginning: `StreamArchive`
reads every member in one pass, keeps the documents and scans what may be a layer, so
that nothing is written to disk and nothing is read twice.

The layouts of `docker save`: Docker up to 24 has `ID/layer.tar` and makes repeated
layers symlinks; skopeo has `DIFFID.tar` and symlinks the other way; Docker from 25 on
has `blobs/sha256/…` and an OCI index beside `manifest.json`.
"""

import hashlib
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Protocol

from stackctl.errors import StackctlError, UsageError
from stackctl.image import documents
from stackctl.image.blobs import (
    CHUNK,
    check_blob,
    compression,
    decompress,
    read_small,
    verified,
)
from stackctl.image.errors import (
    AmbiguousImageError,
    DigestError,
    ImageFormatError,
    LimitError,
)
from stackctl.image.layers import Budget, Interest, LayerScan, clean_path, scan_layer
from stackctl.image.layout import check_layout_version, choose_by_tag, read_file
from stackctl.image.limits import Limits
from stackctl.image.platform import Platform
from stackctl.image.source import (
    REF_NAME,
    Descriptor,
    Image,
    Layer,
    Resolver,
    config_diff_ids,
    config_platform,
    index_entries,
    parse_config,
)
from stackctl.image.tar import ByteStream, TarReader
from stackctl.image.view import show

#: Members of an archive that is an image; one for each layer and a few documents.
_MAX_MEMBERS = 20_000
_MAX_LINKS = 8
_BLOB_NAME = re.compile(r"blobs/(sha256)/([0-9a-f]{64})")
#: As Docker and skopeo name a config, and as crane, ko and kaniko do.
_CONFIG_NAME = re.compile(r"([0-9a-f]{64})\.json|sha256:([0-9a-f]{64})")
_POSITION = re.compile(r"[0-9]{1,9}")
#: By which Docker with the containerd store names what it loads.
_DOCKER_NAME = "io.containerd.image.name"
_ARCHIVE_KEYS = ("Config", "RepoTags", "Layers")


class Archive(Protocol):
    """A tar file whose members can be read by name."""

    def has(self, name: str) -> bool:
        """Whether there is such a member."""

    def open(self, name: str) -> Iterator[bytes]:
        """Yield a member's bytes, links inside the archive followed."""

    def member(self, name: str) -> bytes:
        """Return the path of the member that a name leads to."""

    def scan(
        self, name: str, digest: str | None = None, size: int | None = None
    ) -> Callable[[], LayerScan] | None:
        """Return the finished scan of a layer, if the archive was read in one pass.

        Args:
            name: Member that holds the layer.
            digest: What it must hash to as stored, if that is stated.
            size: How long it must be as stored, in bytes, if that is stated.
        """


@dataclass(slots=True)
class _Member:
    kind: str
    offset: int
    size: int
    link: bytes
    count: int = 1


class _Members:
    """The names in an archive and what they link to."""

    def __init__(self) -> None:
        self._members: dict[bytes, _Member] = {}

    def add(self, name: bytes, kind: str, offset: int, size: int, link: bytes) -> None:
        if kind == "5":
            return
        if len(self._members) >= _MAX_MEMBERS:
            raise LimitError(
                f"the archive has more than {_MAX_MEMBERS} members",
                kind="limit-entries",
                hint="this is no saved image",
            )
        member = self._members.get(name)
        count = member.count + 1 if member else 1
        self._members[name] = _Member(kind, offset, size, link, count)

    def check(self) -> None:
        """Refuse names of which only a program that unpacks the archive sees all.

        Raises:
            AmbiguousImageError: A member stands below another that is no folder.
        """
        for path in self._members:
            folder = path.rpartition(b"/")[0]
            while folder and folder not in self._members:
                folder = folder.rpartition(b"/")[0]
            if folder:
                raise AmbiguousImageError(
                    f"the archive has the member {show(path)!r} behind "
                    f"{show(folder)!r}, which is no folder: what unpacks it first, as "
                    "Docker and for OCI archives skopeo and podman do, finds it where "
                    "that leads",
                    kind="ambiguous-member",
                    hint="save the image again",
                    where={"member": show(path)},
                )

    def find(self, name: str) -> tuple[bytes, _Member]:
        """Return the file that a name leads to.

        Raises:
            DigestError: There is none.
            AmbiguousImageError: The name stands twice in the archive.
        """
        path = clean_path(name.encode("utf-8", "surrogateescape"))
        for _ in range(_MAX_LINKS):
            member = self._members.get(path)
            if member is None:
                break
            if member.count > 1:
                raise AmbiguousImageError(
                    f"the archive has the member {name!r} {member.count} times: Docker "
                    "takes the last one, skopeo and podman the first",
                    kind="ambiguous-member",
                    hint="save the image again",
                    where={"member": name},
                )
            if member.kind == "0":
                return path, member
            if member.kind == "2":
                folder = path.rpartition(b"/")[0]
                path = clean_path(folder + b"/" + member.link)
            elif member.kind == "1":
                path = clean_path(member.link)
            else:
                break
        raise DigestError(
            f"the archive has no file {name!r}",
            kind="missing-blob",
            hint="the image was not saved completely: save it again",
            where={"member": name},
        )

    def has(self, name: str) -> bool:
        return name.encode("utf-8", "surrogateescape") in self._members


class _FileStream(ByteStream):
    """A stream over a file that seeks where others read and throw away."""

    def __init__(self, stream: BinaryIO) -> None:
        super().__init__(())
        self._file = stream

    def read(self, size: int) -> bytes:
        data = self._file.read(size)
        self.offset += len(data)
        return data

    def pieces(self, size: int) -> Iterator[memoryview]:
        while size and (data := self.read(min(size, CHUNK))):
            size -= len(data)
            yield memoryview(data)

    def skip(self, size: int) -> int:
        end = os.fstat(self._file.fileno()).st_size
        done = min(size, max(end - self.offset, 0))
        self._file.seek(done, os.SEEK_CUR)
        self.offset += done
        return done


class FileArchive:
    """An uncompressed tar file, read in place.

    Args:
        path: The file.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._members = _Members()
        with path.open("rb") as stream:
            tar = _FileStream(stream)
            for entry in TarReader(tar, max_entries=_MAX_MEMBERS):
                kind = "?" if entry.sparse is not None else entry.type
                self._members.add(
                    clean_path(entry.name),
                    kind,
                    tar.offset,
                    entry.size,
                    entry.linkname,
                )
        self._members.check()

    def has(self, name: str) -> bool:
        """Whether there is such a member."""
        return self._members.has(name)

    def open(self, name: str) -> Iterator[bytes]:
        """Yield a member's bytes."""
        _, member = self._members.find(name)
        return self._read(member.offset, member.size)

    def _read(self, offset: int, size: int) -> Iterator[bytes]:
        with self._path.open("rb", buffering=0) as stream:
            stream.seek(offset)
            while size and (chunk := stream.read(min(size, CHUNK))):
                size -= len(chunk)
                yield chunk

    def member(self, name: str) -> bytes:
        """Return the path of the member that a name leads to."""
        return self._members.find(name)[0]

    def scan(
        self, name: str, digest: str | None = None, size: int | None = None
    ) -> None:
        """Return None: members are scanned when they are needed."""


class StreamArchive:
    """An archive that is read once, from its beginning to its end.

    Args:
        open_stream: Opens the uncompressed archive from its beginning.
        budget: Limits of the image.
        interest: Which files of its layers to keep.
    """

    def __init__(
        self,
        open_stream: Callable[[], Iterator[bytes]],
        budget: Budget,
        interest: Interest,
    ) -> None:
        self._open_stream = open_stream
        self._members = _Members()
        self._documents: dict[bytes, bytes] = {}
        self._scans: dict[bytes, LayerScan | StackctlError] = {}
        self._digests: dict[bytes, str] = {}
        kept = 0
        reader = TarReader(ByteStream(open_stream()), max_entries=_MAX_MEMBERS)
        for entry in reader:
            name = clean_path(entry.name)
            kind = "?" if entry.sparse is not None else entry.type
            self._members.add(name, kind, 0, entry.size, entry.linkname)
            if kind != "0":
                continue
            chunks = map(bytes, reader.data())
            head = next(chunks, b"")
            if head.lstrip()[:1] in (b"{", b"["):
                if entry.size > budget.limits.config or kept > 64 << 20:
                    continue
                kept += entry.size
                self._documents[name] = head + b"".join(chunks)
                continue
            self._scans[name] = self._scan(name, head, chunks, budget, interest)
        self._members.check()

    def _scan(
        self,
        name: bytes,
        head: bytes,
        chunks: Iterator[bytes],
        budget: Budget,
        interest: Interest,
    ) -> LayerScan | StackctlError:
        digest = hashlib.sha256()

        def stored() -> Iterator[bytes]:
            digest.update(head)
            yield head
            for chunk in chunks:
                digest.update(chunk)
                yield chunk

        blob = stored()
        try:
            # What may be a layer is only known at the end, so a failure counts when
            # the image turns out to need this member.
            return scan_layer(blob, budget, interest)
        except (ImageFormatError, AmbiguousImageError) as exc:
            return exc
        finally:
            for _ in blob:
                pass
            self._digests[name] = f"sha256:{digest.hexdigest()}"

    def has(self, name: str) -> bool:
        """Whether there is such a member."""
        return self._members.has(name)

    def open(self, name: str) -> Iterator[bytes]:
        """Yield a member's bytes, by another pass for anything but a document."""
        path, _ = self._members.find(name)
        if path in self._documents:
            return iter([self._documents[path]])
        return self._again(path)

    def _again(self, path: bytes) -> Iterator[bytes]:
        reader = TarReader(ByteStream(self._open_stream()))
        for entry in reader:
            if clean_path(entry.name) == path:
                yield from map(bytes, reader.data())
                return

    def member(self, name: str) -> bytes:
        """Return the path of the member that a name leads to."""
        return self._members.find(name)[0]

    def scan(
        self, name: str, digest: str | None = None, size: int | None = None
    ) -> Callable[[], LayerScan] | None:
        """Return the finished scan of a layer, which checks its digest and size.

        None if it has to be read again: no other digest than SHA-256 was taken.
        """
        path, member = self._members.find(name)
        result = self._scans.get(path)
        if result is None or (digest and not digest.startswith("sha256:")):
            return None

        def finished() -> LayerScan:
            # Before any complaint about the content, which then is not what was named.
            check_blob(
                f"layer {digest or name}",
                (digest, self._digests[path]),
                (size, member.size),
            )
            if isinstance(result, StackctlError):
                raise result
            return result

        return finished


def open_archive(path: Path, budget: Budget, interest: Interest) -> Archive:
    """Open a tar file, plain or compressed with gzip or zstd."""
    if not path.is_file():
        raise ImageFormatError(
            f"{path} is not a file",
            kind="not-an-archive",
            hint="expected a tar file of an image",
            where={"file": str(path)},
        )
    head = next(read_file(path), b"")[:16]
    kind = compression(head)
    if kind == "tar":
        return FileArchive(path)
    if kind not in ("gzip", "zstd"):
        raise ImageFormatError(
            f"{path} is compressed with {kind}, which is not read here",
            kind="archive-compression",
            hint="unpack it, or compress it with gzip or zstd",
            where={"file": str(path)},
        )
    limits = budget.limits
    return StreamArchive(lambda: decompress(read_file(path), limits), budget, interest)


class ArchiveLayout:
    """An OCI image layout inside an archive.

    Args:
        archive: The archive.
        limits: Bounds of documents.
        what: What to call it in an error.
    """

    def __init__(self, archive: Archive, limits: Limits, what: str) -> None:
        self._archive = archive
        self._limits = limits
        self._what = what

    def roots(self, tag: str) -> list[Descriptor]:
        """Return the images that a tag names, or all of them."""
        for name in ("oci-layout", "index.json"):
            if not self._archive.has(name):
                raise ImageFormatError(
                    f"{self._what} is no OCI archive: it has no {name}",
                    kind="not-a-layout",
                    hint="for `docker save` archives use docker-archive:",
                    where={"file": self._what},
                )
        marker = read_small(self._archive.open("oci-layout"), 4096, "oci-layout")
        check_layout_version(marker, "oci-layout")
        data = read_small(
            self._archive.open("index.json"), self._limits.manifest, "index.json"
        )
        return choose_by_tag(index_entries(data, "index.json"), tag, self._what)

    def blob(self, descriptor: Descriptor) -> Iterator[bytes]:
        """Yield a blob."""
        return self._archive.open(self._name(descriptor))

    manifest = blob

    def finished_scan(self, descriptor: Descriptor) -> Callable[[], LayerScan] | None:
        """Return the scan of a layer that was made while the archive was read."""
        return self._archive.scan(
            self._name(descriptor), descriptor.digest, descriptor.size
        )

    def _name(self, descriptor: Descriptor) -> str:
        return "blobs/" + descriptor.digest.replace(":", "/", 1)


def load_oci_archive(
    archive: Archive,
    tag: str,
    limits: Limits,
    platform: Platform | None,
    what: str,
) -> Image:
    """Return an image of an OCI archive.

    Args:
        archive: The archive.
        tag: Tag or digest of the image; empty if it is the only one.
        limits: Bounds of documents.
        platform: Which image of an index.
        what: What to call the archive in an error.

    Raises:
        AmbiguousImageError: It is one of `docker save` too, with another image.
    """
    layout = ArchiveLayout(archive, limits, what)
    roots = layout.roots(tag)
    image = Resolver(layout, limits, platform).resolve(roots)
    if not archive.has("manifest.json"):
        return image
    own = Resolver(layout, limits, None).configs(
        [Descriptor(image.digest)], image.platform
    )
    names = {
        _full_tag(str(root.annotations[key]))
        for root in roots
        for key in (_DOCKER_NAME, REF_NAME)
        if key in root.annotations
    }
    others = _docker_configs(archive, limits, image.platform, names)
    if others and not own & others:
        raise _two_tables(what, others, own)
    return image


def _docker_configs(
    archive: Archive, limits: Limits, platform: Platform, names: set[str]
) -> set[str]:
    """Return the configs that `manifest.json` lists for a platform.

    Args:
        archive: The archive.
        limits: Bounds of documents.
        platform: The platform.
        names: If it has some of these tags, only what it has them at counts.
    """
    found = set()
    named = set()
    try:
        data = read_small(
            archive.open("manifest.json"), limits.manifest, "manifest.json"
        )
        listed = documents.parse(data, "manifest.json", _ARCHIVE_KEYS)
        for item in documents.as_list(listed, "manifest.json"):
            entry = documents.as_object(item, "manifest.json")
            name = documents.as_text(entry.get("Config"), "manifest.json Config")
            try:
                raw = read_small(archive.open(name), limits.config, f"config {name}")
            except DigestError:
                continue
            if config_platform(parse_config(raw, f"config {name}")).same(platform):
                digest = "sha256:" + hashlib.sha256(raw).hexdigest()
                found.add(digest)
                tags = documents.as_list(entry.get("RepoTags"), "RepoTags")
                if names & {_full_tag(str(tag)) for tag in tags}:
                    named.add(digest)
    except ImageFormatError:
        # Docker refuses such a list and whatever is beside it.
        return set()
    return named or found


def _two_tables(what: str, listed: set[str], indexed: set[str]) -> AmbiguousImageError:
    return AmbiguousImageError(
        f"{what} names one image in manifest.json and another in index.json: "
        "Docker with the containerd store, and everybody who reads it as an OCI "
        "archive, takes the latter, other Dockers, podman and skopeo the former",
        kind="ambiguous-archive",
        hint="save the image again",
        where={"manifest.json": sorted(listed), "index.json": sorted(indexed)},
    )


def load_docker_archive(
    archive: Archive,
    reference: str,
    limits: Limits,
    platform: Platform | None,
    what: str,
) -> Image:
    """Return an image of a `docker save` archive.

    Args:
        archive: The archive.
        reference: Tag of the image, or `@N` for its position; empty if it is the only
            one.
        limits: Bounds of documents.
        platform: What the image must be for, if anything.
        what: What to call the archive in an error.
    """
    if not archive.has("manifest.json"):
        raise ImageFormatError(
            f"{what} is no docker archive: it has no manifest.json",
            kind="not-a-docker-archive",
            hint="for OCI archives use oci-archive:; archives of Docker before 1.10 "
            "are not read",
            where={"file": what},
        )
    data = read_small(archive.open("manifest.json"), limits.manifest, "manifest.json")
    listed = documents.as_list(
        documents.parse(data, "manifest.json", _ARCHIVE_KEYS), "manifest.json"
    )
    entry = _choose(listed, reference, what)
    name = documents.as_text(entry.get("Config"), "manifest.json Config")
    raw = read_small(archive.open(name), limits.config, f"config {name}")
    digest = "sha256:" + hashlib.sha256(raw).hexdigest()
    stated = _CONFIG_NAME.fullmatch(name) or _BLOB_NAME.fullmatch(name)
    if stated and stated[stated.lastindex or 0] != digest[7:]:
        raise DigestError(
            f"config {name} hashes to {digest}",
            hint="the image was damaged or tampered with: get it again",
            where={"expected": name, "actual": digest},
        )
    config = parse_config(raw, f"config {name}")
    names = [
        documents.as_text(item, f"manifest.json Layers[{number}]")
        for number, item in enumerate(
            documents.as_list(entry.get("Layers"), "manifest.json Layers")
        )
    ]
    diff_ids = config_diff_ids(config, len(names), limits)
    found = config_platform(config)
    if platform is not None and not platform.same(found):
        raise ImageFormatError(
            f"the image is for {found}, not for {platform}",
            kind="no-platform",
            hint="choose another image, or leave --platform out",
            where={"platform": str(platform)},
        )
    if archive.has("index.json"):
        listed_tags = documents.as_list(entry.get("RepoTags"), "RepoTags")
        tags = {_full_tag(str(tag)) for tag in listed_tags}
        layout = ArchiveLayout(archive, limits, what)
        _check_index(layout, (digest, found, tags), len(listed), limits, what)
    layers = [
        _layer(archive, layer, diff_id)
        for layer, diff_id in zip(names, diff_ids, strict=True)
    ]
    return Image(digest, found, config, tuple(layers))


def _layer(archive: Archive, name: str, diff_id: str) -> Layer:
    matched = _BLOB_NAME.fullmatch(name)
    digest = f"sha256:{matched[2]}" if matched else None

    def open_layer() -> Iterator[bytes]:
        chunks = archive.open(name)
        if digest is None:
            return chunks
        return verified(chunks, digest, None, f"layer {name}")

    return Layer(
        digest,
        diff_id,
        None,
        "",
        open_layer,
        archive.scan(name, digest),
        archive.member(name),
    )


def _choose(listed: list[object], reference: str, what: str) -> documents.Object:
    entries = [documents.as_object(item, "manifest.json") for item in listed]
    tags = [
        [
            documents.as_text(tag, "manifest.json RepoTags")
            for tag in documents.as_list(entry.get("RepoTags"), "RepoTags")
        ]
        for entry in entries
    ]
    if not entries:
        raise ImageFormatError(
            f"{what} has no image in it", kind="no-image", where={"file": what}
        )
    if reference.startswith("@"):
        number = reference[1:]
        if not _POSITION.fullmatch(number) or int(number) >= len(entries):
            raise UsageError(
                f"{what} has {len(entries)} images; {reference!r} is none of them",
                hint="positions start with @0",
            )
        return entries[int(number)]
    wanted = _full_tag(reference) if reference else ""
    fitting = [
        entry
        for entry, names in zip(entries, tags, strict=True)
        if not wanted or wanted in map(_full_tag, names)
    ]
    if not fitting:
        known = ", ".join(sorted(tag for names in tags for tag in names)[:10])
        raise ImageFormatError(
            f"{what} has no image tagged {reference!r}",
            kind="no-tag",
            hint=f"tags in it: {known or 'none'}",
            where={"tag": reference},
        )
    if len({documents.as_text(e.get("Config"), "Config") for e in fitting}) > 1:
        raise AmbiguousImageError(
            f"{what} has {len(fitting)} images "
            + (f"tagged {reference!r}" if wanted else "and no tag was named"),
            kind="ambiguous-tag",
            hint="name one as docker-archive:FILE:TAG or docker-archive:FILE:@0",
        )
    first = fitting[0]
    if any(entry.get("Layers") != first.get("Layers") for entry in fitting):
        raise AmbiguousImageError(
            f"{what} lists one image twice with different layers",
            kind="ambiguous-tag",
            hint="save the image again",
        )
    return first


def _full_tag(tag: str) -> str:
    """Return a tag in the form that Docker takes it for."""
    name, colon, version = tag.rpartition(":")
    if not colon or "/" in version:
        name, version = tag, "latest"
    first, slash, _ = name.partition("/")
    if not slash:
        name = f"docker.io/library/{name}"
    elif "." not in first and ":" not in first and first != "localhost":
        name = f"docker.io/{name}"
    return f"{name}:{version}"


def _check_index(
    layout: ArchiveLayout,
    image: tuple[str, Platform, set[str]],
    listed: int,
    limits: Limits,
    what: str,
) -> None:
    """Refuse an archive whose two tables of contents name different images.

    Args:
        layout: The archive as an OCI layout.
        image: Config digest, platform and tags that `manifest.json` gives the image.
        listed: How many images are in `manifest.json`.
        limits: Bounds of documents.
        what: What to call the archive in an error.
    """
    config, platform, tags = image
    roots = layout.roots("")
    configs = Resolver(layout, limits, None).configs(roots, platform)
    same = config in configs and (listed > 1 or len(configs) == 1)
    named = [
        root
        for root in roots
        if (name := root.annotations.get(_DOCKER_NAME)) and _full_tag(str(name)) in tags
    ]
    if same and named:
        configs = Resolver(layout, limits, None).configs(named, platform)
        same = configs == {config}
    if not same:
        raise _two_tables(what, {config}, configs)
