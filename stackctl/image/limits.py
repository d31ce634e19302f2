# SPDX-License-Identifier: Apache-2.0
"""Limits that keep a hostile image from exhausting the reader."""

from typing import NamedTuple

MIB = 1 << 20
GIB = 1 << 30


class Limits(NamedTuple):
    """What the reader accepts before it gives up with a `limit-*` reason.

    Attributes:
        manifest: Bytes of one manifest, index or archive list. 4 MiB is what registries
            accept at most.
        config: Bytes of an image config.
        compressed_layer: Bytes of one layer blob as stored.
        layer: Bytes of one layer uncompressed, sparse holes included.
        image: Bytes of all layers uncompressed.
        ratio: Uncompressed bytes for one stored byte, judged from 64 MiB of output on.
            Real layers stay below 20; deflate reaches 1,032 on zeros.
        entries: Tar entries of all layers.
        layers: Layers of the image; overlay mounts take at most 500, runtimes 127.
        kept: Bytes of one small file that is kept for inspection.
        kept_total: Bytes kept for inspection in all, compressed.
        window: Bytes of a zstd window; what the zstd tool accepts by default.
        nesting: Indexes within indexes.
    """

    manifest: int = 4 * MIB
    config: int = 8 * MIB
    compressed_layer: int = 64 * GIB
    layer: int = 128 * GIB
    image: int = 512 * GIB
    ratio: int = 200
    entries: int = 4_000_000
    layers: int = 500
    kept: int = 4 * MIB
    kept_total: int = 48 * MIB
    window: int = 1 << 27
    nesting: int = 4
