# SPDX-License-Identifier: Apache-2.0
import pytest

from stackctl.git.patchtext.binary import (
    CorruptBinaryError,
    apply_binary,
    apply_delta,
    decode_base85,
)
from stackctl.git.patchtext.model import BinaryHunk

# 5 bytes become 8: copy 3 from offset 1, insert `xy`, copy 3 from offset 0.
DELTA = bytes((5, 8, 0x91, 1, 3, 2)) + b"xy" + bytes((0x90, 3))


def test_a_delta_copies_and_inserts():
    assert apply_delta(b"abcde", DELTA) == b"bcdxyabc"
    assert apply_binary(b"abcde", BinaryHunk("delta", DELTA, len(DELTA))) == b"bcdxyabc"
    assert apply_binary(b"abcde", BinaryHunk("literal", b"new", 3)) == b"new"


def test_a_copy_of_size_zero_stands_for_64_kib():
    source = bytes(0x10001)
    delta = bytes((0x81, 0x80, 4, 0x80, 0x80, 4, 0x80))
    assert apply_delta(source, delta) == source[:0x10000]


@pytest.mark.parametrize(
    ("source", "delta", "words"),
    [
        (b"abcd", DELTA, "is for 5 bytes"),
        (b"abcde", DELTA[:3], "at least"),
        (b"abcde", DELTA[:5], "short"),
        (b"abcde", bytes((5, 8, 0x91, 1)), "within an instruction"),
        (b"abcde", bytes((5, 8, 0x91, 4, 3, 0)), "beyond the old content"),
        (b"abcde", bytes((5, 2, 0x90, 3)), "beyond the old content"),
        (b"abcde", bytes((5, 9, 9)) + b"abc", "more than it carries"),
        (b"abcde", bytes((5, 8, 0, 0)), "instruction 0"),
        (b"abcde", b"\x05" + b"\xff" * 12, "too large"),
        (b"abcde", bytes((5, 0xFF, 0xFF, 0xFF, 0xFF, 0x7F, 1)), "at most"),
    ],
)
def test_a_delta_that_does_not_fit_is_refused(source: bytes, delta: bytes, words: str):
    with pytest.raises(CorruptBinaryError, match=words):
        apply_delta(source, delta)


def test_base85_refuses_foreign_characters_and_too_large_groups():
    assert decode_base85(b"00000") == bytes(4)
    for text in (b'0000"', b"0000\xff", b"~~~~~", b"0000"):
        with pytest.raises(CorruptBinaryError):
            decode_base85(text)
