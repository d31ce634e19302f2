# SPDX-License-Identifier: Apache-2.0
"""Images in a folder: OCI image layouts and skopeo's `dir:`."""

import hashlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from stackctl.image import documents
from stackctl.image.blobs import CHUNK, read_small
from stackctl.image.errors import AmbiguousImageError, DigestError, ImageFormatError
from stackctl.image.limits import Limits
from stackctl.image.source import REF_NAME, Descriptor, index_entries


def read_file(path: Path) -> Iterator[bytes]:
    """Yield a regular file's bytes; nothing else is opened, pipes and devices least.

    Raises:
        DigestError: It is missing.
        ImageFormatError: It is no regular file, or cannot be read.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError:
        raise DigestError(
            f"{path} is missing",
            kind="missing-blob",
            hint="the image was not copied completely: copy it again",
            where={"file": str(path)},
        ) from None
    except OSError as exc:
        raise ImageFormatError(
            f"{path} cannot be read: {exc.strerror}",
            kind="unreadable",
            where={"file": str(path)},
        ) from None
    with os.fdopen(descriptor, "rb", buffering=0) as stream:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise ImageFormatError(
                f"{path} is not a regular file",
                kind="unreadable",
                where={"file": str(path)},
            )
        try:
            while chunk := stream.read(CHUNK):
                yield chunk
        except OSError as exc:
            raise ImageFormatError(
                f"{path} cannot be read: {exc.strerror}",
                kind="unreadable",
                where={"file": str(path)},
            ) from None


def choose_by_tag(entries: list[Descriptor], tag: str, what: str) -> list[Descriptor]:
    """Return the index entries that a tag names, or all without a tag.

    Raises:
        AmbiguousImageError: The tag stands at several images.
        ImageFormatError: It stands at none.
    """
    if not tag:
        return entries
    named = {
        entry.digest: entry
        for entry in entries
        if entry.annotations.get(REF_NAME) == tag or entry.digest == tag
    }
    if not named:
        tags = sorted(
            str(entry.annotations[REF_NAME])
            for entry in entries
            if REF_NAME in entry.annotations
        )
        raise ImageFormatError(
            f"{what} has no image tagged {tag!r}",
            kind="no-tag",
            hint="tags in it: " + (", ".join(tags[:10]) or "none"),
            where={"tag": tag},
        )
    if len(named) > 1:
        raise AmbiguousImageError(
            f"{what} has the tag {tag!r} at {len(named)} images: skopeo refuses, "
            "others take the first or the last",
            kind="ambiguous-tag",
            hint="name the image by its digest",
            where={"digests": sorted(named)},
        )
    return list(named.values())


def check_layout_version(data: bytes, what: str) -> None:
    """Refuse a layout of a version that is not known."""
    document = documents.as_object(
        documents.parse(data, what, ("imageLayoutVersion",)), what
    )
    version = document.get("imageLayoutVersion")
    if version != "1.0.0":
        raise ImageFormatError(
            f"{what} states version {version!r}, not '1.0.0'",
            kind="layout-version",
            hint="this version of the layout is not known",
        )


class OciLayout:
    """An OCI image layout in a folder.

    Args:
        folder: The folder that holds `oci-layout`.
        limits: Bounds of documents.
    """

    def __init__(self, folder: Path, limits: Limits) -> None:
        self._folder = folder
        self._limits = limits

    def roots(self, tag: str) -> list[Descriptor]:
        """Return the images that a tag names, or all of them."""
        marker = self._folder / "oci-layout"
        if not self._folder.is_dir() or not marker.is_file():
            raise ImageFormatError(
                f"{self._folder} is no OCI layout: it has no oci-layout file",
                kind="not-a-layout",
                hint="expected a folder as skopeo, buildah or docker buildx write it",
                where={"file": str(self._folder)},
            )
        check_layout_version(
            read_small(read_file(marker), 4096, str(marker)), str(marker)
        )
        index = self._folder / "index.json"
        data = read_small(read_file(index), self._limits.manifest, str(index))
        return choose_by_tag(index_entries(data, str(index)), tag, str(self._folder))

    def blob(self, descriptor: Descriptor) -> Iterator[bytes]:
        """Yield a blob."""
        algorithm, _, value = descriptor.digest.partition(":")
        return read_file(self._folder / "blobs" / algorithm / value)

    manifest = blob


class DirLayout:
    """A folder as skopeo's `dir:` transport writes it.

    Args:
        folder: The folder that holds `manifest.json`.
        limits: Bounds of documents.
    """

    def __init__(self, folder: Path, limits: Limits) -> None:
        self._folder = folder
        self._limits = limits
        self._manifest = b""

    def roots(self) -> list[Descriptor]:
        """Return the one image or index of the folder."""
        path = self._folder / "manifest.json"
        if not path.is_file():
            raise ImageFormatError(
                f"{self._folder} is no dir: image: it has no manifest.json",
                kind="not-a-dir-image",
                hint="expected a folder as `skopeo copy … dir:` writes it",
                where={"file": str(self._folder)},
            )
        self._manifest = read_small(read_file(path), self._limits.manifest, str(path))
        digest = "sha256:" + hashlib.sha256(self._manifest).hexdigest()
        return [Descriptor(digest, len(self._manifest))]

    def manifest(self, descriptor: Descriptor) -> Iterator[bytes]:
        """Yield the folder's manifest, or one of the instances of its index."""
        value = descriptor.digest.partition(":")[2]
        if hashlib.sha256(self._manifest).hexdigest() == value:
            return iter([self._manifest])
        return read_file(self._folder / f"{value}.manifest.json")

    def blob(self, descriptor: Descriptor) -> Iterator[bytes]:
        """Yield a blob."""
        value = descriptor.digest.partition(":")[2]
        return read_file(self._folder / value)
