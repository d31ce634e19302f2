# SPDX-License-Identifier: Apache-2.0
"""Where a zstd stream may end."""

import random
import struct

import pytest
import zstandard

from stackctl.image.frames import Frames

TEXT = bytes(random.Random(5).choices(b"abcd", k=300_000))
SKIPPED = struct.pack("<II", 0x184D2A5F, 3) + b"xyz"


def frame(data: bytes, **options: object) -> bytes:
    return zstandard.ZstdCompressor(**options).compress(data)


def streamed(data: bytes) -> bytes:
    """A frame that does not tell its size, of blocks of several kinds."""
    made = zstandard.ZstdCompressor(level=1).compressobj()
    parts = [made.compress(data[:500]), made.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK)]
    parts += [made.compress(data[500:]), made.flush()]
    return b"".join(parts)


FRAMES = [
    frame(b"words " * 30),
    frame(b"", write_checksum=True),
    SKIPPED,
    frame(b"a" * 1000, write_checksum=True),
    streamed(b"text " * 300),
    frame(bytes(random.Random(1).randbytes(300)), write_content_size=False),
    struct.pack("<II", 0x184D2A50, 0),
]


@pytest.mark.parametrize("step", [1, 2, 3, 7, 10_000])
def test_a_stream_may_end_between_its_frames_only(step: int) -> None:
    stream = b"".join(FRAMES)
    ends = {0}
    for each in FRAMES:
        ends.add(max(ends) + len(each))
    frames = Frames()
    for at in range(0, len(stream), step):
        assert frames.between == (at in ends)
        frames.feed(stream[at : at + step])
    assert frames.between and not frames.wasteful


@pytest.mark.parametrize("size", [255, 256, 65_791, 65_792, len(TEXT)])
@pytest.mark.parametrize("checksum", [False, True])
def test_sizes_of_every_length(size: int, checksum: bool) -> None:
    """The header holds the size in one, two, four or eight bytes."""
    stream = frame(TEXT[:size], write_checksum=checksum)
    frames = Frames()
    frames.feed(stream[:-1])
    assert not frames.between
    frames.feed(stream[-1:])
    assert frames.between


def test_what_is_no_frame_is_left_to_the_library() -> None:
    frames = Frames()
    frames.feed(frame(b"a") + b"garbage")
    assert frames.between


def test_a_stream_of_empty_blocks_is_given_up() -> None:
    """Each costs a step and says nothing."""
    head = b"\x28\xb5\x2f\xfd\x00\x58"
    frames = Frames()
    frames.feed(head + bytes(3 * 99_000))
    assert not frames.wasteful
    frames.feed(bytes(3 * 2_000))
    assert frames.wasteful
