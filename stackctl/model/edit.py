# SPDX-License-Identifier: Apache-2.0
"""Changes of a `series.toml` that touch nothing but what they change.

Comments, order, spacing and line endings stay as people wrote them. Every change is
proved before it is used: the new text must parse to the old document with exactly the
wanted values in place.

The text is edited at the places that the position index gives. A document model such as
tomlkit's keeps comments too, but puts a new key behind the comment lines that follow a
table, where they introduce the next one, and writes LF into files that have CRLF.
"""

import copy
import re
import stat
import tomllib
from collections.abc import Callable, Mapping
from json.encoder import encode_basestring
from pathlib import Path
from typing import Any, Final

from stackctl.errors import InternalError, UsageError
from stackctl.fsutil import read_regular, write_atomic
from stackctl.model import positions as places
from stackctl.model.fields import keys_of, write_record
from stackctl.model.positions import Pair, Positions, Section
from stackctl.model.series import (
    MAX_BYTES,
    PatchSet,
    Series,
    parse_series,
)
from stackctl.model.toml import decode, parse_toml

WIDTH: Final = 88
"""Longest line of a new list, characters; longer ones get a line per item."""


def edit_series(path: Path, change: Callable[[str], str]) -> bool:
    """Change a `series.toml` in place, whole or not at all.

    Args:
        path: The file; a symbolic link is followed and stays.
        change: Gets the text and returns the new one.

    Returns:
        False where nothing changed (the file is not touched).

    Raises:
        InputError: The file, before or after the change, breaks a rule of the format,
            or cannot be read or written.
    """
    target = path.resolve()
    text = decode(read_regular(target, MAX_BYTES), str(path))
    changed = change(text)
    if changed == text:
        return False
    parse_series(changed, file=str(path))
    mode = stat.S_IMODE(target.stat().st_mode)
    write_atomic(target, changed.encode("utf-8"), mode)
    return True


def set_pin(
    text: str, *, file: str, name: str, head: str, commits: list[str] | None = None
) -> str:
    """Return the text with another pinned head of a set.

    Args:
        text: Text of the file.
        file: Its name, for messages.
        name: The set.
        head: The new head, 40 hex digits.
        commits: The new commits of a cherry-picked set.

    Raises:
        UsageError: There is no such set, or it has no `pull`.
        InputError: The text, before or after, breaks a rule of the format.
    """
    series = parse_series(text, file=file)
    if series.find(name).pull is None:
        raise UsageError(
            f"set `{name}` in {file} has no `pull`, so no pin",
            hint='write `pull = { repo = "owner/name", number = ... }` first',
            where={"file": file, "set": name},
        )
    where = ("set", _index(series, name), "pull")
    values: dict[places.Path, Any] = {(*where, "head"): head}
    if commits is not None:
        values[*where, "commits"] = commits
    return _checked(set_values(text, values, file=file), file)


def set_base(text: str, *, file: str, **pins: str) -> str:
    """Return the text with other pins of the base.

    Args:
        text: Text of the file.
        file: Its name, for messages.
        pins: New values of `tree`, `sha256` or `commit`.

    Raises:
        InputError: The text, before or after, breaks a rule of the format.
    """
    parse_series(text, file=file)
    values: dict[places.Path, Any] = {("base", key): pins[key] for key in pins}
    return _checked(set_values(text, values, file=file), file)


def set_draft(text: str, *, file: str, name: str, draft: bool) -> str:
    """Return the text with a set made a draft, or no longer one.

    A missing `draft` means false already and is not added to say so.

    Args:
        text: Text of the file.
        file: Its name, for messages.
        name: The set.
        draft: The new value.

    Raises:
        UsageError: There is no such set.
        InputError: The text, before or after, breaks a rule of the format.
    """
    return set_key(text, file=file, name=name, key="draft", value=draft)


def set_key(text: str, *, file: str, name: str, key: str, value: object) -> str:
    """Return the text with another value of one key of a set.

    Args:
        text: Text of the file.
        file: Its name, for messages.
        name: The set.
        key: One of its keys.
        value: The new value: text, number, flag, or lists and tables of them. A value
            that the key has anyway is not written.

    Raises:
        UsageError: There is no such set.
        InputError: The text, before or after, breaks a rule of the format.
    """
    series = parse_series(text, file=file)
    item = series.find(name)
    for known in keys_of(PatchSet):
        if known.name != key:
            continue
        content = getattr(item, known.attribute)
        if content is not None and known.kind.write(content, sparse=True) == value:
            return text
    place = ("set", _index(series, name), key)
    return _checked(set_values(text, {place: value}, file=file), file)


def set_pull(text: str, *, file: str, name: str, repo: str, number: int) -> str:
    """Return the text with the pull request in which a set is reviewed.

    Args:
        text: Text of the file.
        file: Its name, for messages.
        name: The set.
        repo: `owner/name`.
        number: Number of the pull request.

    Raises:
        UsageError: There is no such set.
        InputError: The text, before or after, breaks a rule of the format.
    """
    series = parse_series(text, file=file)
    item = series.find(name)
    place: places.Path = ("set", _index(series, name), "pull")
    if item.pull is None:
        values: dict[places.Path, Any] = {place: {"repo": repo, "number": number}}
    else:
        values = {(*place, "repo"): repo, (*place, "number"): number}
    return _checked(set_values(text, values, file=file), file)


def set_disposition(
    text: str, *, file: str, name: str, disposition: str, why: str
) -> str:
    """Return the text with a set that is not composed any more, and the reason.

    Args:
        text: Text of the file.
        file: Its name, for messages.
        name: The set.
        disposition: `superseded` or `excluded`.
        why: The reason.

    Raises:
        UsageError: There is no such set.
        InputError: The text, before or after, breaks a rule of the format.
    """
    series = parse_series(text, file=file)
    index = _index(series, name)
    values: dict[places.Path, Any] = {
        ("set", index, "disposition"): disposition,
        ("set", index, "why"): why,
    }
    return _checked(set_values(text, values, file=file), file)


def add_set(text: str, item: PatchSet, *, file: str, after: str | None = None) -> str:
    """Return the text with one more set.

    Args:
        text: Text of the file.
        item: The set; keys that have their default are not written.
        file: Name of the file, for messages.
        after: Set that it follows; by default the last.

    Raises:
        UsageError: There is no set `after`, or the sets are written as one list.
        InputError: The text, before or after, breaks a rule of the format.
    """
    series = parse_series(text, file=file)
    index = len(series.sets) if after is None else _index(series, after) + 1
    found = Positions(text)
    if ("set",) in found.pairs:
        raise UsageError(
            f"{file} writes its sets as one list; a set can be added to [[set]] only",
            where={"file": file, "key": "set"},
        )
    newline = _newline(text)
    section = _last_of_set(found, index - 1) or _base_section(found)
    offset = _section_end(text, section)
    lines = ["", "[[set]]", *_table_lines(_set_document(item)), ""]
    block = newline.join(lines)
    if offset and not text[:offset].endswith("\n"):
        block = newline + block
    changed = text[:offset] + block + text[offset:]
    expected = [*series.sets[:index], item, *series.sets[index:]]
    if list(parse_series(changed, file=file).sets) != expected:
        raise InternalError(f"{file}: the added set reads differently than asked")
    return changed


def render_series(series: Series) -> str:
    """Return a series as the text of a new `series.toml`."""
    document = write_record(series, sparse=True)
    lines: list[str] = []
    tables: list[str] = []
    for key, value in document.items():
        if isinstance(value, dict):
            tables += ["", f"[{key}]", *_table_lines(value)]
        elif isinstance(value, list):
            for n, item in enumerate(value):
                if key == "set":
                    item = _set_document(series.sets[n])
                tables += ["", f"[[{key}]]", *_table_lines(item)]
        else:
            lines.append(f"{key} = {toml_value(value)}")
    return "\n".join([*lines, *tables, ""])


def set_values(text: str, values: Mapping[places.Path, Any], *, file: str) -> str:
    """Return TOML text with other values, everything else as it was.

    Args:
        text: TOML text.
        values: New values by path; the table that holds a key must exist.
        file: Name of the file, for messages.

    Raises:
        InputError: The text is not TOML.
        InternalError: The change cannot be made without changing something else.
    """
    for path, value in values.items():
        before = parse_toml(text, file)
        wanted = copy.deepcopy(before)
        table: Any = wanted
        for step in path[:-1]:
            table = table[step]
        if path[-1] in table and _same(table[path[-1]], value):
            continue
        table[path[-1]] = value
        text = _set_value(text, path, value)
        try:
            proved = _same(tomllib.loads(text), wanted)
        except ValueError:
            proved = False
        if not proved:
            raise InternalError(
                f"{file}: the change of `{path[-1]}` would change more than that",
                hint="edit the file by hand, and report this fault of stackctl",
                where={"file": file, "key": str(path[-1])},
            )
    return text


def _same(one: object, other: object) -> bool:
    """Compare with types: to Python `True == 1`, to a file it is another value."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(
            _same(one[key], other[key]) for key in one
        )
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_same, one, other))
    return type(one) is type(other) and (one == other or repr(one) == repr(other))


def _set_value(text: str, path: places.Path, value: object) -> str:
    found = Positions(text)
    written = toml_value(value)
    if pair := found.pairs.get(path):
        return text[: pair.value] + written + text[pair.end :]
    # The table that holds the key may itself be written as dotted keys in another.
    host = path[:-1]
    sections = {section.path: section for section in found.sections}
    while host not in sections and host not in found.inline:
        host = host[:-1]
    line = f"{'.'.join(_key(str(step)) for step in path[len(host) :])} = {written}"
    if inline := found.inline.get(host):
        if not inline.pairs:
            opening = text.rindex("{", 0, inline.end)
            return f"{text[: opening + 1]} {line} {text[inline.end :]}"
        end = _neighbour(inline.pairs, path).end
        return f"{text[:end]}, {line}{text[end:]}"
    section = sections[host]
    if section.pairs:
        pair = _neighbour(section.pairs, path)
        start = text.rfind("\n", 0, pair.start) + 1
        indent = text[start : pair.start]
        offset = _line_end(text, pair.end)
    else:
        start, offset = 0, _line_end(text, section.body) if host else 0
        indent = ""
    newline = _newline(text)
    before = newline if offset and not text[:offset].endswith("\n") else ""
    return f"{text[:offset]}{before}{indent}{line}{newline}{text[offset:]}"


def _neighbour(pairs: list[Pair], path: places.Path) -> Pair:
    """Return the last pair of the same table, or the last of all."""
    table = path[:-1]
    own = [pair for pair in pairs if pair.path[: len(table)] == table]
    return (own or pairs)[-1]


def _index(series: Series, name: str) -> int:
    return series.sets.index(series.find(name))


def _checked(text: str, file: str) -> str:
    parse_series(text, file=file)
    return text


def _line_end(text: str, offset: int) -> int:
    """Return the offset of the next line."""
    end = text.find("\n", offset)
    return len(text) if end < 0 else end + 1


def _newline(text: str) -> str:
    end = text.find("\n")
    return "\r\n" if end > 0 and text[end - 1] == "\r" else "\n"


def _last_of_set(found: Positions, index: int) -> Section | None:
    """Return the last section of a set, its sub-tables included."""
    own = [item for item in found.sections if item.path[:2] == ("set", index)]
    return own[-1] if own else None


def _base_section(found: Positions) -> Section:
    own = [item for item in found.sections if item.path[:1] == ("base",)]
    return own[-1] if own else found.sections[0]


_COMMENT = re.compile(r"[ \t]*+#[^\n]*+(?:\n|\Z)")


def _section_end(text: str, section: Section) -> int:
    """Return the offset of the line behind a section and the comments that close it.

    Comment lines right under a section belong to it, unless they stand right above
    the next header.
    """
    last = section.pairs[-1].end if section.pairs else section.body
    end = behind = _line_end(text, last)
    while match := _COMMENT.match(text, behind):
        behind = match.end()
    return end if text.startswith("[", behind) else behind


def _set_document(item: PatchSet) -> dict[str, Any]:
    """Return the keys of a set that must be written, in their order."""
    document = write_record(item, sparse=True)
    if item.strategy == "merge":  # what a pinned head means anyway
        document.pop("strategy", None)
    if item.disposition == "included":
        document.pop("disposition", None)
    return document


def _table_lines(table: Mapping[str, Any]) -> list[str]:
    lines: list[str] = []
    for key, value in table.items():
        line = f"{_key(key)} = {toml_value(value)}"
        if len(line) > WIDTH and isinstance(value, list) and value:
            lines.append(f"{_key(key)} = [")
            lines += [f"  {toml_value(item)}," for item in value]
            lines.append("]")
        else:
            lines.append(line)
    return lines


def _key(key: str) -> str:
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else _string(key)


def _string(text: str) -> str:
    # JSON's escapes are TOML's; TOML also wants DEL escaped.
    return encode_basestring(text).replace("\x7f", "\\u007f")


def toml_value(value: object) -> str:
    """Return a value as TOML text on one line.

    Args:
        value: Text, flag, integer, or lists and mappings of them.

    Raises:
        TypeError: The value has another type.
    """
    if isinstance(value, str):
        return _string(value)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(toml_value, value))}]"
    if isinstance(value, Mapping):
        pairs = [f"{_key(key)} = {toml_value(item)}" for key, item in value.items()]
        return f"{{ {', '.join(pairs)} }}" if pairs else "{}"
    raise TypeError(f"{type(value).__name__} is not written as TOML")
