# SPDX-License-Identifier: Apache-2.0
"""JSON with one spelling per value: the canonical form of RFC 8785, and strict reading.

Digests and ids are taken over canonical bytes, so they do not depend on who wrote the
document. Numbers follow the RFC: integers up to 2**53 in size, and floats in the
shortest form of ECMAScript (1.0 is `1`, 1e21 is `1e+21`, -0.0 is `0`). An integer whose
digits a double does not keep is refused.
"""

import json
from collections.abc import Mapping
from json.encoder import encode_basestring
from math import isfinite
from typing import Any, Final

from stackctl.errors import InputError

MAX_INTEGER: Final = 2**53
"""Largest integer that every JSON reader keeps exactly (RFC 8785, 3.2.2.3)."""

MAX_DEPTH: Final = 200
"""Deepest nesting that is written; our documents have less than ten levels."""


def canonical_json(value: object) -> bytes:
    """Return a value as RFC 8785 canonical JSON.

    Args:
        value: None, bool, int, float, str, or lists, tuples and string-keyed mappings
            of them.

    Returns:
        UTF-8 bytes without a final line feed.

    Raises:
        InputError: A number is NaN, infinite or an integer that a double does not
            keep, a text holds a lone surrogate, or the nesting is too deep.
        TypeError: The value, or a part of it, has no JSON form.
    """
    parts: list[str] = []
    _write(value, parts, 0)
    try:
        return "".join(parts).encode("utf-8")
    except UnicodeEncodeError as error:
        raise _unwritable(
            f"a text holds a lone surrogate (U+{ord(error.object[error.start]):04X})"
        ) from None


def canonical_file(value: object) -> bytes:
    """Return the bytes of a canonical file: canonical JSON and one line feed.

    Raises:
        InputError: As `canonical_json`.
    """
    return canonical_json(value) + b"\n"


def loads_strict(data: bytes, *, file: str = "JSON", hint: str = "") -> Any:
    """Read JSON that has exactly one meaning.

    Args:
        data: The whole document.
        file: Name for messages.
        hint: What to do about a file that is not JSON.

    Returns:
        The value, of the types that `json` gives.

    Raises:
        InputError: Not UTF-8, a byte order mark, not JSON, a key twice in one object,
            NaN or an infinite number, a lone surrogate, or nesting too deep.
    """

    def bad(problem: str, line: int | None = None) -> InputError:
        where: dict[str, object] = {"file": file}
        if line is not None:
            where["line"] = line
        at = file if line is None else f"{file}:{line}"
        return InputError(
            f"{at}: {problem}", kind="bad-json", hint=hint or None, where=where
        )

    if data.startswith(b"\xef\xbb\xbf"):
        raise bad("starts with a byte order mark; expected plain UTF-8")
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise bad(
            f"not UTF-8: byte 0x{data[error.start]:02x} at offset {error.start}",
            data.count(b"\n", 0, error.start) + 1,
        ) from None
    try:
        value = json.loads(
            text,
            object_pairs_hook=_unique,
            parse_constant=_refuse_constant,
            parse_float=_finite,
        )
    except json.JSONDecodeError as error:
        said = f"not JSON: {error.msg} (column {error.colno})"
        raise bad(said, error.lineno) from None
    except RecursionError:
        raise bad("nested too deeply") from None
    except ValueError as error:
        said = str(error)
        if "int_max_str_digits" in said:  # advice for programs, not for readers
            said = "a number has more digits than any number of ours"
        raise bad(said) from None
    # Only an escape can bring in a lone surrogate: the bytes were UTF-8.
    if (b"\\ud" in data or b"\\uD" in data) and _has_surrogate(value):
        raise bad("a text holds a lone surrogate")
    return value


def _write(value: object, parts: list[str], depth: int) -> None:
    if depth > MAX_DEPTH:
        raise _unwritable(f"nested more than {MAX_DEPTH} levels deep")
    if isinstance(value, str):
        # The same escapes as the RFC's: \b \t \n \f \r \" \\ and \u00xx, lower case.
        parts.append(encode_basestring(str(value)))
    elif value is None:
        parts.append("null")
    elif value is True:
        parts.append("true")
    elif value is False:
        parts.append("false")
    elif isinstance(value, int):
        parts.append(_integer(int(value)))
    elif isinstance(value, float):
        parts.append(number_text(float(value)))
    elif isinstance(value, Mapping):
        separator = "{"
        for key in sorted(value, key=_utf16):
            parts.append(separator)
            parts.append(encode_basestring(str(key)))
            parts.append(":")
            _write(value[key], parts, depth + 1)
            separator = ","
        parts.append("}" if separator == "," else "{}")
    elif isinstance(value, (list, tuple)):
        separator = "["
        for item in value:
            parts.append(separator)
            _write(item, parts, depth + 1)
            separator = ","
        parts.append("]" if separator == "," else "[]")
    else:
        raise TypeError(f"{type(value).__name__} has no JSON form")


def _integer(number: int) -> str:
    """Return an integer's text where a double keeps all of its digits."""
    if abs(number) <= MAX_INTEGER:
        return str(number)
    # A large float is written without a fraction and is read as an integer again; it
    # must have the same text then. Any other large integer would lose digits.
    if abs(number) < 10**21 and (text := number_text(float(number))) == str(number):
        return text
    raise _unwritable("an integer is larger than 2**53")


def _utf16(key: object) -> bytes:
    """Sort key of RFC 8785: UTF-16 code units, which is not code point order."""
    if not isinstance(key, str):
        raise TypeError(f"a key of a JSON object is a text, not {type(key).__name__}")
    # A lone surrogate is refused with its proper message when the text is encoded.
    return key.encode("utf-16-be", "surrogatepass")


def number_text(number: float) -> str:
    """Return a finite number as ECMAScript's Number::toString writes it.

    Args:
        number: An IEEE 754 double.

    Returns:
        The shortest digits that read back as `number`; plain notation from 1e-6 up to
        below 1e21, exponents outside (ECMA-262, 6.1.6.1.20).

    Raises:
        InputError: The number is NaN or infinite.
    """
    if not isfinite(number):
        raise _unwritable(f"{number} is not a JSON number")
    if number == 0:
        return "0"
    sign = "-" if number < 0 else ""
    # repr gives the same shortest digits as ECMAScript; only the layout differs.
    mantissa, _, exponent = repr(abs(number)).partition("e")
    whole, _, fraction = mantissa.partition(".")
    digits = (whole + fraction).lstrip("0")
    point = len(whole) + int(exponent or 0)
    point -= len(whole + fraction) - len(digits)
    digits = digits.rstrip("0")
    count = len(digits)
    if count <= point <= 21:
        return sign + digits + "0" * (point - count)
    if 0 < point <= 21:
        return f"{sign}{digits[:point]}.{digits[point:]}"
    if -6 < point <= 0:
        return f"{sign}0.{'0' * -point}{digits}"
    power = point - 1
    rest = f".{digits[1:]}" if count > 1 else ""
    return f"{sign}{digits[0]}{rest}e{'+' if power > 0 else '-'}{abs(power)}"


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table = dict(pairs)
    if len(table) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise ValueError(f"key {encode_basestring(key)} twice in one object")
            seen.add(key)
    return table


def _refuse_constant(text: str) -> float:
    raise ValueError(f"{text} is not a JSON number")


def _finite(text: str) -> float:
    number = float(text)
    if not isfinite(number):
        raise ValueError(f"the number {text[:40]} is beyond the range of a double")
    return number


def _has_surrogate(value: object) -> bool:
    stack = [value]
    while stack:
        item = stack.pop()
        if isinstance(item, str):
            try:
                item.encode("utf-8")
            except UnicodeEncodeError:
                return True
        elif isinstance(item, dict):
            stack.extend(item)
            stack.extend(item.values())
        elif isinstance(item, list):
            stack.extend(item)
    return False


def _unwritable(reason: str) -> InputError:
    return InputError(
        f"no canonical JSON for this value: {reason}", kind="no-canonical-json"
    )
