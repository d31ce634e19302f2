# SPDX-License-Identifier: Apache-2.0
"""Contents of a few files of an image, fetched when they turn out to matter."""

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Protocol

from stackctl.image.layers import rehash, reread
from stackctl.image.limits import Limits
from stackctl.image.source import Layer
from stackctl.image.view import Node

if TYPE_CHECKING:
    from stackctl.image.folder import Folder


class Contents(Protocol):
    """Gives the bytes of nodes of a view."""

    def fetch(
        self, nodes: Iterable[tuple[bytes, Node]]
    ) -> Iterator[tuple[bytes, bytes]]:
        """Yield the bytes of files with their path; what cannot be had is left out.

        One at a time, since all of them may be much.

        Args:
            nodes: Paths in the view and what is there.
        """

    def hash(self, nodes: Iterable[Node]) -> None:
        """Hash files that have no hash yet."""


class LayerContents:
    """Contents from layers: what the first pass kept, or else a second pass.

    Args:
        layers: The image's layers.
        limits: Bounds of a pass; files over `kept` are not given.
    """

    def __init__(self, layers: tuple[Layer, ...], limits: Limits) -> None:
        self._layers = layers
        self._limits = limits

    def fetch(
        self, nodes: Iterable[tuple[bytes, Node]]
    ) -> Iterator[tuple[bytes, bytes]]:
        """Yield the bytes of files with their path."""
        missing: dict[int, dict[int, list[bytes]]] = {}
        for path, node in nodes:
            kept = node.entry.content() if node.entry is not None else None
            if kept is not None:
                yield path, kept
            elif node.kind == "l":
                yield path, node.link
            elif node.ref is not None and node.size <= self._limits.kept:
                layer, ordinal = node.ref
                missing.setdefault(layer, {}).setdefault(ordinal, []).append(path)
        for layer, wanted in missing.items():
            source = self._layers[layer]
            again = reread(source.open, self._limits, wanted, source.diff_id)
            for ordinal, data in again.items():
                for path in wanted[ordinal]:
                    yield path, data

    def hash(self, nodes: Iterable[Node]) -> None:
        """Hash files that the first pass left out, by a second pass."""
        missing: dict[int, dict[int, Node]] = {}
        for node in nodes:
            if node.ref is not None:
                missing.setdefault(node.ref[0], {})[node.ref[1]] = node
        for layer, wanted in missing.items():
            source = self._layers[layer]
            again = rehash(source.open, self._limits, wanted, source.diff_id)
            for ordinal, entry in again.items():
                wanted[ordinal].oid = entry.oid
                wanted[ordinal].sha256 = entry.sha256


class FolderContents:
    """Contents from a folder on this machine.

    Args:
        folder: The folder.
    """

    def __init__(self, folder: "Folder") -> None:
        self._folder = folder

    def fetch(
        self, nodes: Iterable[tuple[bytes, Node]]
    ) -> Iterator[tuple[bytes, bytes]]:
        """Yield the bytes of files with their path."""
        for path, node in nodes:
            if node.kind == "l":
                yield path, node.link
            elif node.kind == "f" and self._folder.keeps(node.size):
                yield path, self._folder.read(path)

    def hash(self, nodes: Iterable[Node]) -> None:
        """Do nothing: every file was hashed."""


class MemoryContents:
    """Contents that are at hand, as those of a wheel.

    Args:
        read: Returns a file's bytes by its path.
        limits: Files over `kept` are not given.
    """

    def __init__(self, read: "Reader", limits: Limits) -> None:
        self._read = read
        self._most = limits.kept

    def fetch(
        self, nodes: Iterable[tuple[bytes, Node]]
    ) -> Iterator[tuple[bytes, bytes]]:
        """Yield the bytes of files with their path."""
        for path, node in nodes:
            if node.kind == "f" and node.size <= self._most:
                yield path, self._read(path)

    def hash(self, nodes: Iterable[Node]) -> None:
        """Do nothing: every file was hashed."""


class Reader(Protocol):
    """Returns the bytes of a file by its path."""

    def __call__(self, path: bytes, /) -> bytes:
        """Return the bytes."""
