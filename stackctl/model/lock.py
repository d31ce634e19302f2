# SPDX-License-Identifier: Apache-2.0
"""`series.lock`: what a series resolved to, and the composition id.

The file is canonical JSON (RFC 8785) and one line feed. `content` says what was
composed and is what the id is taken over; `made_by` says with what, and is never
compared.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

from stackctl.errors import InputError
from stackctl.fsutil import read_regular, write_atomic
from stackctl.model.canonical import canonical_file, canonical_json, loads_strict
from stackctl.model.fields import (
    At,
    Choice,
    FreeTable,
    Inside,
    Integer,
    Many,
    Maybe,
    Record,
    Report,
    Text,
    escape,
    key,
    read_record,
    refuse_newer,
    show,
    write_record,
)
from stackctl.model.ids import CommitId, CompositionId, Sha256, TreeId

SCHEMA: Final = 1
"""Newest version of the format that this code reads."""

MAX_BYTES: Final = 64 * 1024 * 1024
"""Largest accepted file; a step takes about 400 bytes, so 10,000 steps take 4 MB."""

BaseKind = Literal["pypi", "git", "archive", "path"]
StepStrategy = Literal["apply", "merge", "cherry-pick"]
StepDisposition = Literal[
    "applied",
    "merged",
    "cherry-picked",
    "already-in-base",
    "superseded",
    "excluded",
    "recorded",
]

_LINE = Text("a text of one line", r"[^\x00-\x1f\x7f]+")
_GIT_ID = Text("a full git id (40 lower-case hex digits)", "[0-9a-f]{40}")
_SHA256 = Text("a SHA-256 (64 lower-case hex digits)", "[0-9a-f]{64}")


@dataclass(frozen=True, slots=True, kw_only=True)
class LockedBase:
    """The base of a composition."""

    kind: BaseKind = field(
        metadata=key(
            Choice("pypi", "git", "archive", "path"), "Form of the base in the series."
        )
    )
    identity: str = field(
        metadata=key(_LINE, "What pins it, in one text without a path of a machine.")
    )
    tree: TreeId = field(metadata=key(_GIT_ID, "Its git tree."))
    commit: CommitId = field(
        metadata=key(_GIT_ID, "The commit that the sets stand on.")
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One patch or pinned commit, and the state after it.

    A set that is superseded or excluded has one step that changes nothing.
    """

    set: str = field(
        metadata=key(
            Text("a set name ([a-z0-9-]+)", "[a-z0-9-]+"), "Set that the step is of."
        )
    )
    patch: str | None = field(
        metadata=key(
            Maybe(Inside("a path inside the project")),
            "Patch file, relative to the project; null for pinned commits.",
        )
    )
    sha256: Sha256 | None = field(
        default=None,
        metadata=key(_SHA256, "SHA-256 of the patch file's bytes; only with a patch."),
    )
    head: CommitId | None = field(
        default=None,
        metadata=key(_GIT_ID, "The pinned commit that was merged or picked."),
    )
    strategy: StepStrategy = field(
        metadata=key(Choice("apply", "merge", "cherry-pick"), "How it was composed.")
    )
    disposition: StepDisposition = field(
        metadata=key(
            Choice(
                "applied",
                "merged",
                "cherry-picked",
                "already-in-base",
                "superseded",
                "excluded",
                "recorded",
            ),
            "What became of it.",
        )
    )
    patch_id: str | None = field(
        metadata=key(
            Maybe(_GIT_ID), "Stable patch id of the change; null for an empty change."
        )
    )
    tree: TreeId = field(metadata=key(_GIT_ID, "Tree after the step."))
    commit: CommitId = field(metadata=key(_GIT_ID, "Commit after the step."))

    def __str__(self) -> str:
        return self.patch or f"{self.set} ({self.strategy} {self.head or 'of nothing'})"


def _check_step(values: dict[str, Any], table: Mapping[str, Any], at: At) -> None:
    if "sha256" in table and "head" in table:
        (at / "head").problem(f"{at} has both `sha256` and `head`; expected one")
    inert = table.get("disposition") in {"superseded", "excluded"}
    if "sha256" not in table and "head" not in table and not inert:
        at.problem(f"{at} needs `sha256` (of a patch) or `head` (of a pinned commit)")
    if ("sha256" in table) and table.get("patch") is None:
        (at / "sha256").problem(f"{at} has the digest of a patch, but no `patch`")


@dataclass(frozen=True, slots=True, kw_only=True)
class Content:
    """What was composed: the part of a lock that the composition id is taken over."""

    schema: int = field(metadata=key(Integer(1, SCHEMA), "Version of the format."))
    base: LockedBase = field(metadata=key(Record(LockedBase), "The base."))
    steps: tuple[Step, ...] = field(
        metadata=key(
            Many(Record(Step, _check_step), unique=None), "The steps, in order."
        )
    )
    tree: TreeId = field(metadata=key(_GIT_ID, "Tree of the composition."))
    commit: CommitId = field(metadata=key(_GIT_ID, "Commit of the composition."))
    content_sha256: Sha256 = field(
        metadata=key(
            _SHA256,
            "SHA-256 over mode, SHA-256 and path of every file, sorted by path.",
        )
    )

    def to_json(self) -> dict[str, Any]:
        """Return the JSON form."""
        return write_record(self)


def _check_content(values: dict[str, Any], table: Mapping[str, Any], at: At) -> None:
    """The composition is the state after the last step."""
    if not {"base", "steps", "tree", "commit"} <= values.keys():
        return
    steps: tuple[Step, ...] = values["steps"]
    last: Step | LockedBase = steps[-1] if steps else values["base"]
    after = f"step {len(steps)}" if steps else "the base"
    for name in ("tree", "commit"):
        if values[name] != getattr(last, name):
            (at / name).problem(
                f"{at / name} is {values[name]}, but {after} ends with "
                f"{getattr(last, name)}"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class MadeBy:
    """What made a lock. Never part of the id; no time, host or path of a machine."""

    tool: str = field(metadata=key(_LINE, "Name and version of the tool."))
    git: str = field(metadata=key(_LINE, "Version of git."))
    python: str = field(metadata=key(_LINE, "Version of Python."))
    options: Mapping[str, Any] = field(
        default_factory=dict, metadata=key(FreeTable(), "Options that were given.")
    )
    resolutions: tuple[str, ...] = field(
        default=(),
        metadata=key(
            Many(Inside("a path inside the project")),
            "Files of the conflict resolutions that were used.",
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Lock:
    """A resolved composition.

    Attributes:
        canonical: Whether the bytes that were read were exactly `to_bytes()`; True
            for a lock that was not read.
    """

    content: Content = field(
        metadata=key(Record(Content, _check_content), "What was composed.")
    )
    made_by: MadeBy = field(metadata=key(Record(MadeBy), "With what."))
    canonical: bool = field(default=True, compare=False)

    @property
    def composition(self) -> CompositionId:
        """The composition id."""
        return composition_id(self.content)

    def to_bytes(self) -> bytes:
        """Return the bytes of the file: canonical JSON and one line feed."""
        return canonical_file(write_record(self))


def composition_id(content: Content) -> CompositionId:
    """Return the SHA-256 of the canonical JSON of a lock's content.

    A subset of a series that is composed on demand gets its own id the same way.
    """
    return CompositionId(hashlib.sha256(canonical_json(content.to_json())).hexdigest())


def read_lock(path: Path) -> Lock:
    """Read a `series.lock`.

    Args:
        path: The file.

    Raises:
        InputError: The file cannot be read, is not JSON with one meaning, or breaks a
            rule of the format; the message lists every problem.
    """
    return parse_lock(read_regular(path, MAX_BYTES), file=str(path))


def parse_lock(data: bytes, *, file: str) -> Lock:
    """Read the bytes of a `series.lock`.

    Args:
        data: The bytes. Another spelling of the same JSON is accepted; `canonical`
            tells.
        file: Name of the file, for messages.

    Raises:
        InputError: Not JSON with one meaning, or a rule of the format is broken.
    """
    document = loads_strict(data, file=file, hint=_HINT)
    if not isinstance(document, dict):
        raise InputError(
            f"{file}: expected a JSON object with `content` and `made_by`; "
            f"found {show(document)}",
            kind="bad-lock",
            hint=_HINT,
            where={"file": file},
        )
    content = document.get("content")
    schema = content.get("schema") if isinstance(content, dict) else None
    refuse_newer(schema, SCHEMA, file, key="content.schema")
    report = Report(file, document, kind="bad-lock", hint=_HINT)
    lock = read_record(Record(Lock), document, report.top)
    report.raise_problems()
    assert isinstance(lock, Lock)  # otherwise there was a problem to raise
    if lock.to_bytes() == data:
        return lock
    return Lock(content=lock.content, made_by=lock.made_by, canonical=False)


_HINT: Final = "`stackctl lock` writes the file anew; it is not edited by hand"


def write_lock(path: Path, lock: Lock) -> bool:
    """Write a `series.lock`, whole or not at all.

    Args:
        path: The file.
        lock: What to write.

    Returns:
        False where the file already had exactly these bytes (it is not touched).

    Raises:
        InputError: The file cannot be written.
    """
    data = lock.to_bytes()
    if path.is_file() and not path.is_symlink():
        try:
            if read_regular(path, len(data)) == data:
                return False
        except InputError:
            pass  # too large or unreadable: it differs, and is replaced
    write_atomic(path, data)
    return True


def difference(locked: Content, composed: Content) -> tuple[str, ...]:
    """Say in plain words where two compositions part.

    Args:
        locked: What the lock records.
        composed: What was composed now.

    Returns:
        One sentence for each difference of the base, then for the first step that
        differs (later ones follow from it), or, where all steps are equal, for the
        result. Empty where both are equal.
    """
    if locked == composed:
        return ()
    said = [
        *_fields("schema", locked, composed, ("schema",)),
        *_fields(
            "the base",
            locked.base,
            composed.base,
            ("kind", "identity", "tree", "commit"),
        ),
    ]
    if said and locked.base.commit != composed.base.commit:
        # Every commit stands on the base, so all of them differ and say nothing new.
        return (*said, *_first_step(locked, composed, ignore={"commit", "tree"}))
    said += _first_step(locked, composed, ignore=set())
    if not said:
        said = _fields(
            "the result", locked, composed, ("tree", "commit", "content_sha256")
        )
    return tuple(said)


def _first_step(a: Content, b: Content, ignore: set[str]) -> list[str]:
    for n, (old, new) in enumerate(zip(a.steps, b.steps, strict=False), 1):
        if (old.set, old.patch, old.head) == (new.set, new.patch, new.head):
            names = ("sha256", "strategy", "disposition", "patch_id", "tree", "commit")
            kept = tuple(name for name in names if name not in ignore)
            if said := _fields(f"step {n} ({_name(old)})", old, new, kept):
                return said
            continue
        if (old.set, old.patch) == (new.set, new.patch):
            return _fields(f"step {n} ({_name(old)})", old, new, ("head",))
        there = {(step.set, step.patch) for step in b.steps}
        here = {(step.set, step.patch) for step in a.steps}
        parted = f"step {n} is {_name(old)} in the lock, but {_name(new)} now"
        if (old.set, old.patch) not in there:
            parted += f"; {_name(old)} is gone"
        if (new.set, new.patch) not in here:
            parted += f"; {_name(new)} is not in the lock"
        return [parted]
    if len(a.steps) > len(b.steps):
        n = len(b.steps)
        return [
            f"the lock goes on with step {n + 1} ({_name(a.steps[n])}); "
            f"the composition ends after {n}"
        ]
    if len(b.steps) > len(a.steps):
        n = len(a.steps)
        return [
            f"step {n + 1} ({_name(b.steps[n])}) is not in the lock, "
            f"which ends after {n}"
        ]
    return []


def _name(step: Step) -> str:
    return escape(str(step))


def _fields(what: str, old: object, new: object, names: tuple[str, ...]) -> list[str]:
    def text(value: object) -> str:
        return "none" if value is None else escape(str(value), 400)

    return [
        f"{what}: {name} is {text(getattr(old, name))} in the lock, "
        f"but {text(getattr(new, name))} now"
        for name in names
        if getattr(old, name) != getattr(new, name)
    ]
