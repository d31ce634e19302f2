# SPDX-License-Identifier: Apache-2.0
"""Change fragments: one file per change that users notice, `changes/<id>.toml`.

A fragment is written with the change, and never edited once a release carried it: what
turns out wrong is corrected by another fragment. Release notes are made of them.
"""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from stackctl.errors import InputError
from stackctl.fsutil import read_regular
from stackctl.model.fields import (
    NAME,
    At,
    Choice,
    Inside,
    Integer,
    Kind,
    Many,
    Record,
    Text,
    key,
    read_record,
    show,
)
from stackctl.model.toml import decode, toml_report

if TYPE_CHECKING:
    pass

SCHEMA: Final = 1
"""Newest version of the format that this code reads."""

FOLDER: Final = "changes"

MAX_BYTES: Final = 64 * 1024
"""Largest accepted file; a fragment has a few hundred bytes."""

MAX_SUMMARY: Final = 240
"""Longest summary, characters: three lines of a release note."""

MAX_FRAGMENTS: Final = 20_000
"""Most files of the folder that are read."""

Category = Literal[
    "added", "performance", "fixed", "changed", "removed", "security", "base", "known"
]
Compatibility = Literal["compatible", "opt-in", "default-on", "breaking"]

CATEGORIES: Final[Mapping[str, str]] = {
    "security": "Security",
    "added": "Added",
    "performance": "Performance",
    "fixed": "Fixed",
    "changed": "Changed",
    "removed": "Removed",
    "base": "Base",
    "known": "Known limits",
}
"""Categories in the order of release notes, with their headings."""

_IDENTIFIER = re.compile(r"[a-z0-9]+(?:[.-][a-z0-9]+)*")
_LINE = r"[^\x00-\x1f\x7f]+"
_ID = Text("the id of a fragment", _IDENTIFIER.pattern)
_MORE = re.compile(r"[.!?]\s+[A-Z]")


class _Sentence(Text):
    """One sentence on one line."""

    def __init__(self) -> None:
        super().__init__(
            f"one sentence that ends with a full stop, at most {MAX_SUMMARY} "
            "characters",
            rf"[^\x00-\x1f\x7f]{{1,{MAX_SUMMARY - 1}}}\.",
        )

    def read(self, value: object, at: At) -> Any:
        text = super().read(value, at)
        if isinstance(text, str) and _MORE.search(text):
            return at.wrong("one sentence, not several", value)
        return text


class _Evidence(Kind):
    """A file of the project, or a public page."""

    words = "a file inside the project, or an https URL"
    page = Text(
        "an https URL, without a user or password",
        r"https://[^\x00-\x20\x7f/?#@`]+(?:[/?#][^\x00-\x20\x7f`]*)?",
    )
    inside = Inside("a file inside the project (relative, without `..`)")

    def read(self, value: object, at: At) -> Any:
        page = isinstance(value, str) and value.startswith("https://")
        return (self.page if page else self.inside).read(value, at)

    def schema(self, definitions: dict[str, Any]) -> dict[str, Any]:
        return {"anyOf": [k.schema(definitions) for k in (self.page, self.inside)]}


@dataclass(frozen=True, slots=True, kw_only=True)
class Fragment:
    """One change that users of a release notice.

    Attributes:
        id: Name of the file without `.toml`.
        data: Bytes of the file.
    """

    id: str
    data: bytes
    schema: int = field(
        metadata=key(Integer(1, SCHEMA), "Version of the format.", example="1")
    )
    category: Category = field(
        metadata=key(
            Choice(*CATEGORIES),
            "Section of the release notes. `base` is a move of the base, `known` a "
            "limit that users run into.",
            example='"performance"',
        )
    )
    summary: str = field(
        metadata=key(
            _Sentence(),
            "What users notice.",
            example='"The prefill writer launches one program per completed pool."',
        )
    )
    models: tuple[str, ...] = field(
        metadata=key(
            Many(Text("the name of a model", _LINE), least=1),
            'Models that are affected; `"all"` where it does not depend on the model.',
            example='["GLM-5.3-Flash"]',
        )
    )
    compatibility: Compatibility = field(
        metadata=key(
            Choice("compatible", "opt-in", "default-on", "breaking"),
            "`compatible`: outputs and settings stay as they were; `opt-in`: nothing "
            "happens until it is switched on; `default-on`: it acts without being "
            "asked; `breaking`: something that worked does not any more.",
            example='"opt-in"',
        )
    )
    action: str = field(
        default="",
        metadata=key(
            Text("a text of one line", _LINE),
            "What users do: how to switch it on or off, what to change. Required "
            "unless compatible.",
            example='"Set VLLM_GLM53_L2_PREFETCH=1."',
        ),
    )
    sets: tuple[str, ...] = field(
        default=(),
        metadata=key(
            Many(NAME),
            "Sets that the change is in. Only a `base` fragment may have none.",
            example='["parallel-prefill"]',
        ),
    )
    evidence: tuple[str, ...] = field(
        default=(),
        metadata=key(
            Many(_Evidence()),
            "What shows that the summary is true: receipts and other files of the "
            "project, or public pages.",
            example='["receipts/parallel-prefill/kpool-parity.json"]',
        ),
    )
    unproved: str = field(
        default="",
        metadata=key(
            Text("a text of one line", _LINE),
            "Why there is no evidence; required where `evidence` is empty.",
            example='"No GPU of that kind was at hand."',
        ),
    )
    corrects: str = field(
        default="",
        metadata=key(
            _ID,
            "The released fragment that this one corrects.",
            example='"2026-10-prefetch"',
        ),
    )

    @property
    def files(self) -> tuple[str, ...]:
        """The evidence that is files of the project."""
        return tuple(e for e in self.evidence if not e.startswith("https://"))


def _check(values: dict[str, Any], table: Mapping[str, Any], at: At) -> None:
    """Check the keys of a fragment against each other."""
    category = values.get("category")
    if "sets" not in table or values.get("sets") == ():
        if category is not None and category != "base":
            at.problem(f'a fragment of category "{category}" names its `sets`')
    elif category == "base":
        (at / "sets").problem(
            "`sets` does not go with category base: a new base is under every set"
        )
    kind = values.get("compatibility")
    if kind not in (None, "compatible") and "action" not in table:
        (at / "compatibility").problem(
            f'compatibility = "{kind}" needs the key `action`: what users do'
        )
    if table.get("evidence", []) == [] and "unproved" not in table:
        at.problem("a fragment needs `evidence`, or `unproved` with the reason")
    if values.get("evidence") and "unproved" in table:
        (at / "unproved").problem("`unproved` does not go with `evidence`")


FRAGMENT = Record(
    Fragment,
    _check,
    {
        "anyOf": [
            {
                "required": ["evidence"],
                "properties": {"evidence": {"type": "array", "minItems": 1}},
            },
            {"required": ["unproved"]},
        ]
    },
)


def parse_fragment(data: bytes, file: str) -> Fragment:
    """Read the bytes of a change fragment.

    Args:
        data: The bytes.
        file: Name of the file, for messages; its stem is the fragment's id.

    Raises:
        InputError: Not TOML, or a rule of the format is broken; the message lists
            every problem.
    """
    identifier = os.path.basename(file).removesuffix(".toml")
    text = decode(data, file)
    report = toml_report(
        text,
        file,
        schema=SCHEMA,
        kind="bad-fragment",
        hint="docs/release.md describes every key of a fragment",
    )
    extra = {"id": identifier, "data": data}
    fragment = read_record(FRAGMENT, report.document, report.top, extra=extra)
    if isinstance(fragment, Fragment) and fragment.corrects == identifier:
        (report.top / "corrects").problem("a fragment cannot correct itself")
    report.raise_problems()
    assert isinstance(fragment, Fragment)  # otherwise there was a problem to raise
    return fragment


def fragment_id(name: str) -> str | None:
    """Return the id that a file name of the folder stands for, None where it has none.

    Args:
        name: Name of a file in `changes/`.
    """
    stem, dot, ending = name.rpartition(".")
    named = dot and ending == "toml" and _IDENTIFIER.fullmatch(stem)
    return stem if named else None


def load_fragments(project: Path) -> tuple[Fragment, ...]:
    """Read the change fragments of a project, by id.

    Args:
        project: The project folder.

    Raises:
        InputError: A file is bad or has no name of a fragment; the message lists the
            problems of every file.
    """
    folder = project / FOLDER
    try:
        names = sorted(os.listdir(folder))
    except FileNotFoundError:
        return ()
    except NotADirectoryError:
        raise InputError(
            f"{folder}: expected a folder of change fragments",
            kind="not-a-folder",
            where={"file": str(folder)},
        ) from None
    # Notes of people and of editors may lie beside the fragments.
    names = [n for n in names if not n.startswith(".") and not n.startswith("README")]
    if len(names) > MAX_FRAGMENTS:
        raise InputError(
            f"{folder}: {len(names):,} files; at most {MAX_FRAGMENTS:,} are accepted",
            kind="limit",
            where={"file": str(folder)},
        )
    found: list[Fragment] = []
    errors: list[InputError] = []
    for name in names:
        try:
            found.append(_load(folder / name))
        except InputError as error:
            errors.append(error)
    if len(errors) > 1:
        raise InputError(
            "\n".join(error.message for error in errors),
            kind=errors[0].kind,
            hint=errors[0].hint,
            where=errors[0].where,
        )
    if errors:
        raise errors[0]
    return tuple(sorted(found, key=lambda each: each.id))


def _load(path: Path) -> Fragment:
    if fragment_id(path.name) is None:
        raise InputError(
            f"{path}: {show(path.name)} is no name of a fragment; expected "
            "`<id>.toml`, the id of lower-case letters and digits with `-` or `.` "
            "between",
            kind="fragment-name",
            hint="rename the file, or move it out of the folder",
            where={"file": str(path)},
        )
    return parse_fragment(read_regular(path, MAX_BYTES), str(path))
