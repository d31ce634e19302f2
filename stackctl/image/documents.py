# SPDX-License-Identifier: Apache-2.0
"""JSON of images, read so that it has one meaning only.

Container runtimes are written in Go, whose JSON reader matches keys whatever their case
and lets the last of several win. A document with `layers` and `Layers` means one thing
to them and another to everybody else, so such a document is refused, and so is a known
key in another spelling.
"""

import json
from collections.abc import Iterable, Mapping
from typing import NoReturn

from stackctl.image.errors import AmbiguousImageError, ImageFormatError

#: Keys whose value is a map of free text, where case may matter to people.
_FREE_MAPS = frozenset(("annotations", "labels", "volumes", "exposedports"))
_MAX_DEPTH = 40

Object = dict[str, object]


class _Pairs(list[tuple[str, object]]):
    """An object's members before anybody may have lost one."""


def _constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is no JSON")


def fold(key: str) -> str:
    """Return the form of a key that is the same for all that Go reads alike."""
    # Go folds two letters beyond ASCII onto ASCII ones; casefold does the same.
    return key.casefold()


def parse(data: bytes, what: str, known: Iterable[str] = ()) -> object:
    """Return the value of a JSON document.

    Args:
        data: The document.
        what: What to call it in an error.
        known: Keys with a meaning; another spelling of one is refused.

    Raises:
        AmbiguousImageError: An object has a key twice, or in two spellings.
        ImageFormatError: It is no JSON.
    """
    try:
        text = data.decode("utf-8")
        raw = json.loads(text, object_pairs_hook=_Pairs, parse_constant=_constant)
    except (ValueError, RecursionError) as exc:
        raise ImageFormatError(
            f"{what} is not valid JSON: {exc}",
            kind="bad-json",
            hint="the image was damaged or built wrongly",
            where={"document": what},
        ) from None
    spellings = {fold(key): key for key in known}
    return _plain(raw, what, spellings, depth=0, free=False)


def _plain(
    value: object, what: str, known: Mapping[str, str], *, depth: int, free: bool
) -> object:
    if depth > _MAX_DEPTH:
        raise ImageFormatError(
            f"{what} nests deeper than {_MAX_DEPTH} levels",
            kind="bad-json",
            hint="no image tool writes this",
            where={"document": what},
        )
    if isinstance(value, _Pairs):
        result: Object = {}
        check_keys((key for key, _ in value), what, known, free=free)
        for written, item in value:
            key = go_text(written)
            result[key] = _plain(
                item,
                what,
                known,
                depth=depth + 1,
                free=not free and fold(key) in _FREE_MAPS,
            )
        return result
    if isinstance(value, list):
        return [_plain(i, what, known, depth=depth + 1, free=False) for i in value]
    return go_text(value) if isinstance(value, str) else value


def check_keys(
    keys: Iterable[str], what: str, known: Mapping[str, str], *, free: bool = False
) -> None:
    """Refuse keys of one object of which readers take different ones.

    Args:
        keys: As they are written.
        what: What to call the document in an error.
        known: Spelling of keys with a meaning, by their folded form.
        free: Whether case matters to who reads them.

    Raises:
        AmbiguousImageError: One is there twice, or in two spellings.
    """
    folded: dict[str, str] = {}
    for written in keys:
        key = go_text(written)
        name = key if free else fold(key)
        if name in folded:
            _refuse_keys(what, folded[name], key)
        folded[name] = key
        if not free and known.get(name, key) != key:
            _refuse_keys(what, known[name], key)


def go_text(text: str) -> str:
    """Return a string with U+FFFD for half a surrogate pair, as Go reads it."""
    if text.isascii():
        return text
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _refuse_keys(what: str, first: str, second: str) -> NoReturn:
    how = "twice" if first == second else f"beside or in place of {first!r}"
    raise AmbiguousImageError(
        f"{what} has the key {second!r} {how}: container runtimes take the last one "
        "whatever its case, other readers do not",
        kind="ambiguous-json",
        hint="build the image again; no image tool writes such a document",
        where={"document": what, "keys": sorted({first, second})},
    )


def as_object(value: object, what: str) -> Object:
    """Return a JSON object or refuse."""
    if isinstance(value, dict):
        return value
    raise _wrong_type(what, "an object", value)


def as_list(value: object, what: str) -> list[object]:
    """Return a JSON list, empty for null, or refuse."""
    if value is None:
        return []
    if isinstance(value, list):
        return value
    raise _wrong_type(what, "a list", value)


def as_text(value: object, what: str) -> str:
    """Return a string, empty for null, or refuse."""
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    raise _wrong_type(what, "a string", value)


def as_size(value: object, what: str) -> int:
    """Return a size in bytes or refuse."""
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 62:
        return value
    raise _wrong_type(what, "a size", value)


def _wrong_type(what: str, expected: str, value: object) -> ImageFormatError:
    return ImageFormatError(
        f"{what} is not {expected} but {type(value).__name__} {str(value)[:60]!r}",
        kind="bad-document",
        hint="the image was damaged or built wrongly",
        where={"document": what},
    )
