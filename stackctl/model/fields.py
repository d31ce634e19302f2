# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: D102 - the methods of each kind are those that `Kind` documents
"""Keys of our files as data: one description that reads, writes, documents, completes.

A frozen dataclass describes a table; the metadata of each field holds its `Key`: the
kind of value, what it is for and an example. The strict reader, the JSON schema, the
reference tables and the written form of the lock all come from these descriptions.

The reader never stops at the first problem: it collects all of them.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, fields
from posixpath import normpath
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from stackctl.errors import InputError

if TYPE_CHECKING:
    from stackctl.model.positions import Path, Positions

MAX_SHOWN: Final = 50
"""Most problems of one file that a message lists; the rest is counted."""

MAX_PROBLEMS: Final = 500
"""Reading stops after this many problems: the file is something else altogether."""


class _Invalid:
    """The value of a key that had a problem (which is already recorded)."""

    __slots__ = ()


INVALID: Final = _Invalid()


class Problem(NamedTuple):
    """One fault of a file.

    Attributes:
        message: What was found and what was expected.
        line: Line from 1, or None where the format has none.
        key: Keys from the top, like `set[1].pull.head` (indexes from 0).
        set: Name of the patch set that it is in, where there is one.
    """

    message: str
    line: int | None
    key: str
    set: str | None


class Report:
    """Collects the problems of one document.

    Args:
        file: Name of the file, for messages.
        document: The parsed document, as the parser gave it.
        kind: Kind of the error that is raised.
        hint: What to do about it.
        toml: True where tables are spoken of as TOML headers.
        positions: Makes the position index; called only when there is a problem.
    """

    def __init__(
        self,
        file: str,
        document: Mapping[str, Any],
        *,
        kind: str,
        hint: str,
        toml: bool = False,
        positions: "Callable[[], Positions] | None" = None,
    ) -> None:
        self.file = file
        self.document = document
        self.kind = kind
        self.hint = hint
        self.toml = toml
        self.problems: list[Problem] = []
        self._make = positions
        self._positions: Positions | None = None

    @property
    def top(self) -> "At":
        """The place of the whole document."""
        return At(self, ())

    def line(self, path: "Path") -> int | None:
        """Return the line of a value, or None where lines are not known."""
        if self._positions is None and self._make is not None:
            self._positions = self._make()
        return self._positions.line(path) if self._positions is not None else None

    def set_name(self, path: "Path") -> str | None:
        """Return the name of the set that a path lies in."""
        if len(path) < 2 or path[0] != "set":
            return None
        try:
            name = self.document["set"][path[1]]["name"]
        except (KeyError, IndexError, TypeError):
            return None
        return name if isinstance(name, str) else None

    def add(self, problem: Problem) -> None:
        """Record a problem; raises all of them when there are too many to go on."""
        self.problems.append(problem)
        if len(self.problems) >= MAX_PROBLEMS:
            self.raise_problems()

    def raise_problems(self) -> None:
        """Raise all problems as one error, the first by line in `where`.

        Raises:
            InputError: There is at least one problem.
        """
        if not self.problems:
            return
        found = sorted(dict.fromkeys(self.problems), key=lambda p: p.line or 0)
        first = found[0]
        where: dict[str, object] = {"file": self.file}
        if first.line is not None:
            where["line"] = first.line
        where["key"] = first.key
        if first.set is not None:
            where["set"] = first.set
        lines = [self._render(problem) for problem in found[:MAX_SHOWN]]
        if len(found) > MAX_SHOWN:
            lines.append(f"... and {len(found) - MAX_SHOWN} more")
        if len(found) > 1:
            least = "at least " if len(self.problems) >= MAX_PROBLEMS else ""
            lines.insert(0, f"{least}{len(found)} problems in {self.file}:")
        raise InputError("\n".join(lines), kind=self.kind, hint=self.hint, where=where)

    def _render(self, problem: Problem) -> str:
        line = "" if problem.line is None else f":{problem.line}"
        return f"{self.file}{line}: {problem.message}"


class At(NamedTuple):
    """A place in a document that is being read.

    Attributes:
        report: Where problems go.
        path: Keys and indexes from the top.
    """

    report: Report
    path: "Path"

    def __truediv__(self, step: str | int) -> "At":
        return At(self.report, (*self.path, step))

    def problem(self, message: str) -> None:
        """Record a problem of this place."""
        self.report.add(
            Problem(
                message,
                self.report.line(self.path),
                path_text(self.path),
                self.report.set_name(self.path),
            )
        )

    def wrong(self, expected: str, value: object) -> _Invalid:
        """Record that this value is not what it must be."""
        self.problem(f"{self} must be {expected}; found {show(value)}")
        return INVALID

    def __str__(self) -> str:
        if not self.path:
            return "the document"
        inner, rest = _tail(self.path)
        name = self._header(inner, rest)
        if name is None:
            name = _quoted(inner)
        return name if not rest else f"{name} in {At(self.report, rest)}"

    def _header(self, inner: "Path", rest: "Path") -> str | None:
        """Return a top-level table as its TOML header."""
        if rest or not self.report.toml:
            return None
        value = self.report.document.get(str(inner[0]))
        if len(inner) == 1 and isinstance(value, dict):
            return f"[{inner[0]}]"
        if len(inner) == 2 and isinstance(inner[1], int):
            name = self.report.set_name(inner)
            named = f" ({escape(name)})" if name else ""
            return f"[[{inner[0]}]] #{inner[1] + 1}{named}"
        return None


def _tail(path: "Path") -> "tuple[Path, Path]":
    """Split off the last key with the indexes that follow it."""
    cut = len(path) - 1
    while cut > 0 and isinstance(path[cut], int):
        cut -= 1
    return path[cut:], path[:cut]


def _quoted(inner: "Path") -> str:
    numbers = "".join(f" #{step + 1}" for step in inner[1:] if isinstance(step, int))
    return f"`{escape(str(inner[0]))}`{numbers}"


def path_text(path: "Path") -> str:
    """Return a path as text, like `set[1].pull.head`; odd keys are quoted."""
    text = ""
    for step in path:
        if isinstance(step, int):
            text += f"[{step}]"
        else:
            plain = re.fullmatch(r"[A-Za-z0-9_-]+", step)
            name = step if plain else f'"{escape(step)}"'
            text += f".{name}" if text else name
    return text


def escape(text: str, length: int = 80) -> str:
    """Return text that cannot disturb a terminal, cut to a readable length."""
    cut = text if len(text) <= length else text[: length - 3] + "..."
    return "".join(
        char if char.isprintable() else f"\\u{ord(char):04x}" for char in cut
    )


def show(value: object) -> str:
    """Return a value as an error message names it."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        text = escape(value).replace('"', '\\"')
        return f'"{text}"'
    if isinstance(value, (int, float)):
        try:
            return f"the number {value}"[:80]
        except ValueError:  # beyond Python's limit of digits
            return "a very large number"
    if isinstance(value, Mapping):
        return "a table"
    if isinstance(value, (list, tuple)):
        return "an empty list" if not value else "a list"
    if value is None:
        return "null"
    return f"a {type(value).__name__}"


def nearest(name: str, known: Sequence[str]) -> str:
    """Return the end of a message about an unknown name: what it may have meant.

    Args:
        name: What was found.
        known: What is known; may be empty.

    Returns:
        Text that starts with `; `.
    """
    from difflib import get_close_matches  # only wanted once something is wrong

    if not known:
        return "; there is none"
    if close := get_close_matches(name, known, n=1):
        return f"; did you mean `{close[0]}`?"
    best = get_close_matches(name, known, n=1, cutoff=0.0) or [known[0]]
    shown = ", ".join(f"`{item}`" for item in known[:20])
    more = ", ..." if len(known) > 20 else ""
    return f"; nearest is `{best[0]}`, known are {shown}{more}"


def refuse_newer(
    found: object,
    known: int,
    file: str,
    *,
    key: str = "schema",
    line: Callable[[], int | None] = lambda: None,
) -> None:
    """Say that the tool is too old, not that the keys of a newer format are wrong.

    Args:
        found: The version that a file names; what is no number is left to the reader.
        known: The newest version that is read.
        file: Name of the file.
        key: Where it names its version.
        line: Called for the line of that key, where the file has lines.

    Raises:
        InputError: It is newer (`schema-too-new`).
    """
    if isinstance(found, bool) or not isinstance(found, int) or found <= known:
        return
    where: dict[str, object] = {"file": file}
    at = file
    if (number := line()) is not None:
        where["line"] = number
        at = f"{file}:{number}"
    raise InputError(
        f"{at}: {key} = {show(found).removeprefix('the number ')}, but this stackctl "
        f"knows the format only up to {known}",
        kind="schema-too-new",
        hint="install a newer stackctl",
        where=where | {"key": key},
    )


class Kind:
    """A kind of value: how it is read, what its JSON schema is, how it is called.

    Attributes:
        words: What a value must be, for messages: "an integer from 1 to 9".
    """

    # Plain classes: making a dozen dataclasses costs 20 ms at every start.
    words: str = ""

    def read(self, value: object, at: At) -> Any:
        """Return the value for the dataclass, or INVALID after recording a problem."""
        raise NotImplementedError

    def schema(self, definitions: dict[str, Any]) -> dict[str, Any]:
        """Return the JSON schema; schemas of records go to `definitions`."""
        raise NotImplementedError

    def write(self, value: Any, *, sparse: bool = False) -> Any:
        """Return the JSON form of what `read` gave; `sparse` leaves defaults out."""
        return value

    def records(self) -> tuple[type, ...]:
        """Return the record classes that this kind holds."""
        return ()


class Text(Kind):
    """A text that says something: not empty, not blank.

    Attributes:
        words: What it must be, for messages: "a name of ...".
        pattern: Regular expression for the whole text, common to Python and ECMAScript.
    """

    def __init__(self, words: str, pattern: str | None = None) -> None:
        self.words = words
        self.pattern = pattern

    def read(self, value: object, at: At) -> Any:
        if not isinstance(value, str):
            return at.wrong(self.words, value)
        if not value.strip():
            at.problem(f"{at} is empty; expected {self.words}")
            return INVALID
        if self.pattern is not None and not re.fullmatch(self.pattern, value):
            return at.wrong(self.words, value)
        return value

    def schema(self, definitions: dict[str, Any]) -> dict[str, Any]:
        schema: dict[str, Any] = {"type": "string", "minLength": 1}
        if self.pattern is not None:
            schema["pattern"] = f"^(?:{self.pattern})$"
        return schema


NAME: Final = Text("a name of lower-case letters, digits and hyphens", "[a-z0-9-]+")
"""Names of sets, gates, arms, features and the like."""


class Value(Kind):
    """A text of one line that may be empty: what something is set to."""

    words = "a text of one line, which may be empty"

    def read(self, value: object, at: At) -> Any:
        if not isinstance(value, str) or not re.fullmatch(r"[^\x00-\x1f\x7f]*", value):
            return at.wrong(self.words, value)
        return value

    def schema(self, definitions: dict[str, Any]) -> dict[str, Any]:
        return {"type": "string"}


class Inside(Text):
    """A relative path that stays inside its folder; read as its normal form."""

    def __init__(
        self, words: str = "a path inside the project (relative, without `..`)"
    ) -> None:
        super().__init__(words, r"(?!/)(?!(?:.*/)?\.\.(?:/|$))[^\x00-\x1f\x7f\\]+")

    def read(self, value: object, at: At) -> Any:
        path = super().read(value, at)
        return normpath(path) if isinstance(path, str) else path


class Absolute(Text):
    """An absolute path without `..`; read as its normal form."""

    def __init__(self, words: str = "an absolute path without `..`") -> None:
        super().__init__(words, r"/(?!(?:.*/)?\.\.(?:/|$))[^\x00-\x1f\x7f]*")

    def read(self, value: object, at: At) -> Any:
        path = super().read(value, at)
        # normpath keeps two leading slashes, which POSIX leaves undefined.
        return "/" + normpath(path).lstrip("/") if isinstance(path, str) else path


class Integer(Kind):
    """An integer between two bounds, both included."""

    def __init__(self, minimum: int, maximum: int) -> None:
        self.minimum = minimum
        self.maximum = maximum
        self.words = (
            f"an integer from {minimum} to {maximum}"
            if minimum < maximum
            else f"the number {minimum}"
        )

    def read(self, value: object, at: At) -> Any:
        if isinstance(value, bool) or not isinstance(value, int):
            return at.wrong(self.words, value)
        if not self.minimum <= value <= self.maximum:
            return at.wrong(self.words, value)
        return value

    def schema(self, definitions: dict[str, Any]) -> dict[str, Any]:
        return {"type": "integer", "minimum": self.minimum, "maximum": self.maximum}


class Number(Kind):
    """A number between two bounds, both included; read as a float."""

    def __init__(self, minimum: float, maximum: float) -> None:
        self.minimum = minimum
        self.maximum = maximum
        self.words = f"a number from {minimum:g} to {maximum:g}"

    def read(self, value: object, at: At) -> Any:
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            return at.wrong(self.words, value)
        # Written so that nan, which compares with nothing, is refused too.
        if not self.minimum <= value <= self.maximum:
            return at.wrong(self.words, value)
        return float(value)

    def schema(self, definitions: dict[str, Any]) -> dict[str, Any]:
        return {"type": "number", "minimum": self.minimum, "maximum": self.maximum}


class Flag(Kind):
    """True or false."""

    words = "true or false"

    def read(self, value: object, at: At) -> Any:
        return value if isinstance(value, bool) else at.wrong(self.words, value)

    def schema(self, definitions: dict[str, Any]) -> dict[str, Any]:
        return {"type": "boolean"}


class Choice(Kind):
    """One of a few words."""

    def __init__(self, *values: str) -> None:
        self.values = values
        self.words = "one of " + ", ".join(f'"{value}"' for value in values)

    def read(self, value: object, at: At) -> Any:
        if not isinstance(value, str):
            return at.wrong(self.words, value)
        if value not in self.values:
            at.problem(
                f"{at} must be {self.words}; found {show(value)}"
                f"{nearest(value, self.values)}"
            )
            return INVALID
        return value

    def schema(self, definitions: dict[str, Any]) -> dict[str, Any]:
        return {"enum": list(self.values)}


class Maybe(Kind):
    """A value or null (JSON only)."""

    def __init__(self, kind: Kind) -> None:
        self.kind = kind
        self.words = f"{kind.words}, or null"

    def read(self, value: object, at: At) -> Any:
        return None if value is None else self.kind.read(value, at)

    def schema(self, definitions: dict[str, Any]) -> dict[str, Any]:
        return {"anyOf": [self.kind.schema(definitions), {"type": "null"}]}

    def write(self, value: Any, *, sparse: bool = False) -> Any:
        return None if value is None else self.kind.write(value, sparse=sparse)


class Many(Kind):
    """A list, read as a tuple.

    Attributes:
        item: Kind of the items.
        least: Smallest number of items.
        unique: Key that must differ between tables; "" compares texts themselves (the
            default for what is no table, unless it `repeats`), None compares nothing.
    """

    def __init__(
        self,
        item: Kind,
        least: int = 0,
        unique: str | None = None,
        *,
        repeats: bool = False,
    ) -> None:
        self.item = item
        self.least = least
        compares = unique is None and not item.records() and not repeats
        self.unique = "" if compares else unique
        self.words = f"a list, each item {item.words}"

    def read(self, value: object, at: At) -> Any:
        if not isinstance(value, list):
            header = f"[[{at.path[-1]}]]" if at.report.toml and self.records() else ""
            if header and len(at.path) == 1:
                return at.wrong(f"an array of tables ({header})", value)
            return at.wrong(self.words, value)
        if len(value) < self.least:
            at.problem(f"{at} is empty; expected at least {self.least} item")
            return INVALID
        items = [self.item.read(item, at / n) for n, item in enumerate(value)]
        if self.unique is not None:
            self._repeated(value, items, at)
        return INVALID if any(item is INVALID for item in items) else tuple(items)

    def _repeated(self, value: list[Any], items: list[Any], at: At) -> None:
        first: dict[str, int] = {}
        for n, (raw, item) in enumerate(zip(value, items, strict=True)):
            # What was read is in normal form; a table with a problem has its raw name.
            name = raw if item is INVALID else item
            place = at / n
            if self.unique and item is INVALID:
                name = raw.get(self.unique) if isinstance(raw, dict) else None
            elif self.unique:
                name = getattr(item, self.unique)
            if self.unique:
                place = place / self.unique
            if not isinstance(name, str):
                continue
            if name in first:
                at_line = at.report.line((*at.path, first[name]))
                seen = f"line {at_line}" if at_line else f"#{first[name] + 1}"
                place.problem(f"{place}: {show(name)} is already there ({seen})")
            first.setdefault(name, n)

    def schema(self, definitions: dict[str, Any]) -> dict[str, Any]:
        items = self.item.schema(definitions)
        schema: dict[str, Any] = {"type": "array", "items": items}
        if self.least:
            schema["minItems"] = self.least
        if self.unique == "":
            schema["uniqueItems"] = True
        return schema

    def write(self, value: Any, *, sparse: bool = False) -> Any:
        return [self.item.write(item, sparse=sparse) for item in value]

    def records(self) -> tuple[type, ...]:
        return self.item.records()


Check = Callable[[dict[str, Any], Mapping[str, Any], At], None]
"""Rule between the keys of one table.

Gets the values read so far by attribute (without those that had a problem, and free to
be completed), the raw table, and the place.
"""


class Record(Kind):
    """A table that becomes a dataclass.

    Attributes:
        cls: The dataclass; its fields carry keys.
        check: Rule between its keys.
        requirements: JSON schema of what `check` asks, where it can be said.
    """

    words = "a table"

    def __init__(
        self,
        cls: type,
        check: Check | None = None,
        requirements: Mapping[str, Any] | None = None,
    ) -> None:
        self.cls = cls
        self.check = check
        self.requirements = requirements

    def read(self, value: object, at: At) -> Any:
        if not isinstance(value, dict):
            return at.wrong(self.words, value)
        return read_record(self, value, at)

    def schema(self, definitions: dict[str, Any]) -> dict[str, Any]:
        name = self.cls.__name__
        if name not in definitions:
            definitions[name] = {}  # keeps the place in order while keys are read
            definitions[name] = record_schema(self.cls, definitions, self.requirements)
        return {"$ref": f"#/$defs/{name}"}

    def write(self, value: Any, *, sparse: bool = False) -> Any:
        return write_record(value, sparse=sparse)

    def records(self) -> tuple[type, ...]:
        return (self.cls,)


class Names(Kind):
    """A table whose keys are names that the user chooses; read as a dictionary.

    Attributes:
        item: Kind of the values.
        name: What the names must be.
        least: Smallest number of entries.
    """

    def __init__(self, item: Kind, name: Text, least: int = 0) -> None:
        self.item = item
        self.name = name
        self.least = least
        self.words = f"a table: {name.words} = {item.words}"

    def read(self, value: object, at: At) -> Any:
        if not isinstance(value, dict):
            return at.wrong(self.words, value)
        if len(value) < self.least:
            at.problem(f"{at} is empty; expected at least {self.least} entry")
            return INVALID
        found: dict[str, Any] = {}
        good = True
        for name, content in value.items():
            if not re.fullmatch(self.name.pattern or ".+", name):
                (at / name).problem(
                    f"the name {show(name)} in {at} must be {self.name.words}"
                )
                good = False
                continue
            found[name] = self.item.read(content, at / name)
            good = good and found[name] is not INVALID
        return found if good else INVALID

    def schema(self, definitions: dict[str, Any]) -> dict[str, Any]:
        schema: dict[str, Any] = {
            "type": "object",
            "propertyNames": {"pattern": f"^(?:{self.name.pattern or '.+'})$"},
            "additionalProperties": self.item.schema(definitions),
        }
        if self.least:
            schema["minProperties"] = self.least
        return schema

    def write(self, value: Any, *, sparse: bool = False) -> Any:
        return {
            name: self.item.write(item, sparse=sparse) for name, item in value.items()
        }

    def records(self) -> tuple[type, ...]:
        return self.item.records()


class OneForm(Kind):
    """A table in exactly one of several forms, told apart by a key that only one has.

    Attributes:
        forms: The form of each telling key.
    """

    def __init__(self, forms: Mapping[str, Record]) -> None:
        self.forms = forms
        names = ", ".join(f"`{name}`" for name in forms)
        self.words = f"a table with exactly one of {names}"

    def read(self, value: object, at: At) -> Any:
        if not isinstance(value, dict):
            return at.wrong(self.words, value)
        found = [name for name in self.forms if name in value]
        if len(found) == 1:
            record = self.forms[found[0]]
            others = {
                key.name: name
                for name, form in self.forms.items()
                for key in keys_of(form.cls)
            }
            return read_record(record, value, at, form=found[0], others=others)
        expected = ", ".join(f"`{name}`" for name in self.forms)
        if found:
            both = " and ".join(f"`{name}`" for name in found)
            (at / found[1]).problem(
                f"{at} has {both}; expected exactly one of {expected}"
            )
            return INVALID
        known = {key.name for form in self.forms.values() for key in keys_of(form.cls)}
        at.problem(f"{at} needs exactly one of {expected}; found none")
        for name in value:
            if name not in known:
                (at / name).problem(
                    f"unknown key `{escape(name)}` in {at}"
                    f"{nearest(name, sorted(known))}"
                )
        return INVALID

    def schema(self, definitions: dict[str, Any]) -> dict[str, Any]:
        return {"oneOf": [form.schema(definitions) for form in self.forms.values()]}

    def write(self, value: Any, *, sparse: bool = False) -> Any:
        return write_record(value, sparse=sparse)

    def records(self) -> tuple[type, ...]:
        return tuple(form.cls for form in self.forms.values())


class FreeTable(Kind):
    """An object with any keys."""

    words = "a table"

    def read(self, value: object, at: At) -> Any:
        return value if isinstance(value, dict) else at.wrong(self.words, value)

    def schema(self, definitions: dict[str, Any]) -> dict[str, Any]:
        return {"type": "object"}


class Key(NamedTuple):
    """What is known about one key of a table.

    Attributes:
        kind: Kind of its value.
        doc: What it is for; one or two sentences.
        name: The key as it is written in the file.
        attribute: The dataclass attribute.
        example: Its value as TOML text.
        required: Whether it must be there.
        default: Value where it is not there.
        computed: How the default comes about, where it depends on other keys.
    """

    kind: Kind
    doc: str
    name: str = ""
    attribute: str = ""
    example: str = ""
    required: bool = True
    default: Any = None
    computed: str = ""


_METADATA: Final = "stackctl.key"


def key(
    kind: Kind, doc: str, *, example: str = "", name: str = "", computed: str = ""
) -> dict[str, tuple[Kind, str, str, str, str]]:
    """Return the metadata that makes a dataclass field a key of a file.

    Args:
        kind: Kind of its value.
        doc: What it is for.
        example: Its value as TOML text.
        name: The key, where it is not the attribute's name.
        computed: How the default comes about, where it depends on other keys.
    """
    return {_METADATA: (kind, doc, example, name, computed)}


_keys: dict[type, tuple[Key, ...]] = {}


def keys_of(cls: type) -> tuple[Key, ...]:
    """Return the keys of a record class, in their order."""
    if (known := _keys.get(cls)) is not None:
        return known
    found: list[Key] = []
    for item in fields(cls):
        if _METADATA not in item.metadata:
            continue
        kind, doc, example, name, computed = item.metadata[_METADATA]
        required = item.default is MISSING and item.default_factory is MISSING
        default = None if item.default is MISSING else item.default
        if item.default_factory is not MISSING:
            default = item.default_factory()
        found.append(
            Key(
                kind,
                doc,
                name or item.name,
                item.name,
                example,
                required,
                default,
                computed,
            )
        )
    return _keys.setdefault(cls, tuple(found))


def read_record(
    record: Record,
    table: Mapping[str, Any],
    at: At,
    *,
    form: str = "",
    others: Mapping[str, str] | None = None,
    extra: Mapping[str, Any] | None = None,
) -> Any:
    """Read a table strictly into its dataclass.

    Args:
        record: What the table must be.
        table: The parsed table.
        at: Its place.
        form: Telling key of the form that was chosen, for messages.
        others: Keys of the other forms, each with that form's telling key.
        extra: Attributes that are not keys.

    Returns:
        The dataclass, or INVALID after recording every problem of the table.
    """
    known = {item.name: item for item in keys_of(record.cls)}
    before = len(at.report.problems)
    for name in table:
        if name in known:
            continue
        if others and name in others:
            (at / name).problem(
                f"`{name}` in {at} goes with `{others[name]}`, not with `{form}`"
            )
            continue
        inside = f" in {at}" if at.path else ""
        (at / name).problem(
            f"unknown key `{escape(name)}`{inside}{nearest(name, list(known))}"
        )
    values: dict[str, Any] = dict(extra or {})
    for name, item in known.items():
        if name in table:
            value = item.kind.read(table[name], at / name)
            if value is not INVALID:
                values[item.attribute] = value
        elif item.required:
            (at / name).problem(f"{at} needs the key `{name}`: {item.kind.words}")
    if record.check is not None:
        record.check(values, table, at)
    if len(at.report.problems) > before:
        return INVALID
    return record.cls(**values)


def write_record(value: Any, *, sparse: bool = False) -> dict[str, Any]:
    """Return a record's JSON form.

    Args:
        value: A dataclass whose fields carry keys.
        sparse: Whether keys that have their default value are left out.

    Returns:
        The keys in their order, without optional ones that have no value.
    """
    written: dict[str, Any] = {}
    for item in keys_of(type(value)):
        content = getattr(value, item.attribute)
        if content is None and not isinstance(item.kind, Maybe):
            continue
        if sparse and not item.required and content == item.default:
            continue
        written[item.name] = item.kind.write(content, sparse=sparse)
    return written


def record_schema(
    cls: type,
    definitions: dict[str, Any],
    requirements: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return the JSON schema of a record class.

    Args:
        cls: The dataclass.
        definitions: Receives the schemas of the records inside.
        requirements: Further conditions.
    """
    schema: dict[str, Any] = {
        "type": "object",
        "description": summary(cls),
        "additionalProperties": False,
        "properties": {},
    }
    for item in keys_of(cls):
        described = {"description": item.doc, **item.kind.schema(definitions)}
        # "" stands for "not said"; as a default it would be a value to complete.
        fixed = not item.required and not item.computed and item.default != ""
        if fixed and isinstance(item.default, (str, bool, int, float)):
            described["default"] = item.default
        schema["properties"][item.name] = described
    if needed := [item.name for item in keys_of(cls) if item.required]:
        schema["required"] = needed
    schema.update(requirements or {})
    return schema


def summary(cls: type) -> str:
    """Return the first line of a class's docstring."""
    return (cls.__doc__ or "").strip().splitlines()[0]


def json_text(value: object) -> str:
    """Return a value as readable JSON text with a final line feed."""
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"
