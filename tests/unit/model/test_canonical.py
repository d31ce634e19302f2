# SPDX-License-Identifier: Apache-2.0
"""Canonical JSON: the vectors of RFC 8785 and what is refused."""

import json
import struct

import pytest

from stackctl.errors import InputError
from stackctl.model.canonical import canonical_json, loads_strict, number_text

# RFC 8785, appendix B: IEEE 754 bits and the ECMAScript text.
NUMBERS = [
    ("0000000000000000", "0"),
    ("8000000000000000", "0"),
    ("0000000000000001", "5e-324"),
    ("8000000000000001", "-5e-324"),
    ("7fefffffffffffff", "1.7976931348623157e+308"),
    ("ffefffffffffffff", "-1.7976931348623157e+308"),
    ("4340000000000000", "9007199254740992"),
    ("c340000000000000", "-9007199254740992"),
    ("4430000000000000", "295147905179352830000"),
    ("44b52d02c7e14af5", "9.999999999999997e+22"),
    ("44b52d02c7e14af6", "1e+23"),
    ("44b52d02c7e14af7", "1.0000000000000001e+23"),
    ("444b1ae4d6e2ef4e", "999999999999999700000"),
    ("444b1ae4d6e2ef4f", "999999999999999900000"),
    ("444b1ae4d6e2ef50", "1e+21"),
    ("3eb0c6f7a0b5ed8c", "9.999999999999997e-7"),
    ("3eb0c6f7a0b5ed8d", "0.000001"),
    ("41b3de4355555553", "333333333.3333332"),
    ("41b3de4355555554", "333333333.33333325"),
    ("41b3de4355555555", "333333333.3333333"),
    ("41b3de4355555556", "333333333.3333334"),
    ("41b3de4355555557", "333333333.33333343"),
    ("becbf647612f3696", "-0.0000033333333333333333"),
    ("43143ff3c1cb0959", "1424953923781206.2"),
]


@pytest.mark.parametrize(("bits", "text"), NUMBERS)
def test_numbers_of_the_rfc(bits: str, text: str) -> None:
    (number,) = struct.unpack(">d", bytes.fromhex(bits))
    assert number_text(number) == text
    assert canonical_json([number]) == f"[{text}]".encode()


def test_example_of_the_rfc() -> None:
    # RFC 8785, 3.2.2 and 3.2.3.
    value = {
        "numbers": [333333333.33333329, 1e30, 4.50, 2e-3, 1e-27],
        "string": "\u20ac$\u000f\u000aA'\u0042\u0022\u005c\\\"/",
        "literals": [None, True, False],
    }
    assert canonical_json(value).decode() == (
        '{"literals":[null,true,false],'
        '"numbers":[333333333.3333333,1e+30,4.5,0.002,1e-27],'
        '"string":"€$\\u000f\\nA\'B\\"\\\\\\\\\\"/"}'
    )


def test_keys_are_in_utf16_order() -> None:
    # RFC 8785, 3.2.3: a surrogate pair (the emoji) comes before U+FB33.
    keys = ["\u20ac", "\r", "\ufb33", "1", "\U0001f600", "\u0080", "\u00f6"]
    written = list(json.loads(canonical_json(dict.fromkeys(keys))))
    assert written == ["\r", "1", "\u0080", "\u00f6", "\u20ac", "\U0001f600", "\ufb33"]


def test_empty_and_nested() -> None:
    assert canonical_json({"b": [], "a": {}, "c": ((1,),)}) == (
        b'{"a":{},"b":[],"c":[[1]]}'
    )


@pytest.mark.parametrize("value", [2**53, -(2**53), 0, True, 2**53 + 2])
def test_integers_that_a_double_keeps(value: int) -> None:
    assert json.loads(canonical_json(value)) == value


@pytest.mark.parametrize(
    "value",
    [
        2**53 + 1,
        2**60 + 1,
        10**21,
        10**400,
        -(2**53) - 1,
        float("nan"),
        float("inf"),
        "\ud800",
        {"\udc00": 1},
    ],
)
def test_values_without_a_canonical_form_are_refused(value: object) -> None:
    with pytest.raises(InputError, match="no canonical JSON"):
        canonical_json(value)


def test_a_value_that_contains_itself_is_refused() -> None:
    value: list[object] = []
    value.append(value)
    with pytest.raises(InputError, match="nested more than"):
        canonical_json(value)


@pytest.mark.parametrize("value", [{1: 2}, {1, 2}, b"x", object()])
def test_what_json_does_not_know_is_a_programming_error(value: object) -> None:
    with pytest.raises(TypeError):
        canonical_json(value)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b'{"a": 1, "b": {"c": 1, "c": 2}}', 'f: key "c" twice in one object'),
        (b'{"a": 1, "\\u0061": 1}', 'f: key "a" twice'),
        (b"[NaN]", "f: NaN is not a JSON number"),
        (b"[-Infinity]", "f: -Infinity is not a JSON number"),
        (b"[1e999]", "f: the number 1e999 is beyond the range"),
        (b'["\\uD800"]', "f: a text holds a lone surrogate"),
        (b'{"\\udfff": 1}', "f: a text holds a lone surrogate"),
        (b'["\xff"]', "f:1: not UTF-8: byte 0xff at offset 2"),
        (b'\n["\xed\xa0\x80"]', "f:2: not UTF-8"),
        (b"\xef\xbb\xbf{}", "f: starts with a byte order mark"),
        (b"{} {}", r"f:1: not JSON: Extra data \(column 4\)"),
        (b'{\n"a": 1,\n}', "f:3: not JSON"),
        (b"", "f:1: not JSON"),
        (b"[" * 100_000, "f: nested too deeply"),
        (b"1" * 5000, "f: a number has more digits"),
    ],
)
def test_json_with_more_than_one_meaning_is_refused(data: bytes, message: str) -> None:
    with pytest.raises(InputError, match=message):
        loads_strict(data, file="f")


def test_surrogate_pairs_are_read() -> None:
    assert loads_strict(b'["\\ud83d\\ude00"]') == ["\U0001f600"]
