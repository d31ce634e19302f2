# SPDX-License-Identifier: Apache-2.0
"""A receipt: an in-toto Statement (v1) that holds a gate's evidence and its verdict.

The file is canonical JSON (RFC 8785) and one line feed, and its name is the SHA-256 of
its bytes. The classes below are the only description of the format: the strict reader
and docs/receipt.schema.json are made from them.

What is *bound* makes a receipt stale when it changes: the arms' trees and switches, the
gate's files, the image, the model's revision, the rule and the claims. The *scope* (the
hardware, the host, the versions) is shown and matched by policy.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from stackctl.errors import InputError
from stackctl.model.canonical import canonical_file, loads_strict
from stackctl.model.fields import (
    INVALID,
    NAME,
    At,
    Choice,
    FreeTable,
    Inside,
    Integer,
    Kind,
    Many,
    Maybe,
    Names,
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
from stackctl.model.ids import CompositionId, Sha256, TreeId

if TYPE_CHECKING:
    from stackctl.gates.evidence import Evidence

SCHEMA: Final = 1
"""Newest version of the predicate that this code reads."""

STATEMENT_TYPE: Final = "https://in-toto.io/Statement/v1"

PREDICATE_TYPE: Final = "https://stackctl.example/predicates/gate-receipt/v1"
"""Type of our predicate; a name, not an address."""

MAX_BYTES: Final = 64 * 1024 * 1024
"""Largest accepted receipt; 27 server starts with 10,000 requests each take 30 MB."""

FOLDER: Final = "receipts"
"""Folder of the project that holds the receipts, one folder a gate."""

Verdict = Literal[
    "qualified", "rejected", "insufficient-evidence", "not-tested", "invalid"
]

VERDICTS: Final[tuple[Verdict, ...]] = (
    "invalid",
    "rejected",
    "insufficient-evidence",
    "not-tested",
    "qualified",
)
"""All verdicts, worst first."""

Role = Literal["gate", "script", "code", "prompts", "scorer"]

CUT_HINT: Final = (
    "a receipt that was cut off or changed cannot be mended: take it from the history "
    "again, or run its gate again"
)

HINT: Final = "receipts are written by `stackctl gate run`, never by hand"

_ARM = Text("an arm's name", "[A-Za-z0-9][A-Za-z0-9_.-]*")
_LINE = Text("a text of one line", r"[^\x00-\x1f\x7f]+")
_WORDS = Text("a text", r"[^\x00-\x08\x0b-\x1f\x7f]+")
_GIT_ID = Text("a full git id (40 lower-case hex digits)", "[0-9a-f]{40}")
_SHA256 = Text("a SHA-256 (64 lower-case hex digits)", "[0-9a-f]{64}")
_IMAGE = Text("a digest like `sha256:...`", "sha256:[0-9a-f]{64}")


class Time(Text):
    """A moment of the calendar, UTC, to the second."""

    def __init__(self) -> None:
        super().__init__(
            "a time like `2026-11-29T22:05:00Z`",
            r"[0-9]{4}-[01][0-9]-[0-3][0-9]T[0-2][0-9]:[0-5][0-9]:[0-6][0-9]Z",
        )

    def read(self, value: object, at: At) -> Any:
        """Return the text, or INVALID after recording a problem."""
        found = super().read(value, at)
        if found is INVALID:
            return INVALID
        try:
            datetime.strptime(found, "%Y-%m-%dT%H:%M:%SZ")
        except ValueError:
            return at.wrong(self.words, value)
        return found


_TIME = Time()


class Constant(Kind):
    """Exactly one text."""

    def __init__(self, value: str) -> None:
        self.value = value
        self.words = f'"{value}"'

    def read(self, value: object, at: At) -> Any:
        """Return the text, or INVALID after recording a problem."""
        return value if value == self.value else at.wrong(self.words, value)

    def schema(self, definitions: dict[str, Any]) -> dict[str, Any]:
        """Return the JSON schema."""
        return {"const": self.value}


class Value(Text):
    """A text of one line that may be empty: the value of a variable, an argument."""

    def __init__(self) -> None:
        super().__init__("a text of one line", r"[^\x00-\x1f\x7f]*")

    def read(self, value: object, at: At) -> Any:
        """Return the text, or INVALID after recording a problem."""
        return value if value == "" else super().read(value, at)

    def schema(self, definitions: dict[str, Any]) -> dict[str, Any]:
        """Return the JSON schema."""
        return {"type": "string", "pattern": f"^{self.pattern}$"}


class Sets(Kind):
    """Names of sets: one as a text, several as a list."""

    words = "a set's name, or a list of names"
    one = NAME
    several = Many(NAME, least=2)

    def read(self, value: object, at: At) -> Any:
        """Return the names, or INVALID after recording a problem."""
        if isinstance(value, list):
            return self.several.read(value, at)
        name = self.one.read(value, at)
        return name if name is INVALID else (name,)

    def schema(self, definitions: dict[str, Any]) -> dict[str, Any]:
        """Return the JSON schema."""
        forms = (self.one, self.several)
        return {"oneOf": [form.schema(definitions) for form in forms]}

    def write(self, value: Any, *, sparse: bool = False) -> Any:
        """Return the JSON form: one content has one spelling."""
        return value[0] if len(value) == 1 else list(value)


_ENVIRONMENT = Names(Value(), Text("a variable's name", "[A-Z][A-Z0-9_]*"))


@dataclass(frozen=True, slots=True, kw_only=True)
class DigestSet:
    """Digests of a subject, by the names that in-toto gives them."""

    git_tree: TreeId | None = field(
        default=None,
        metadata=key(_GIT_ID, "Git tree of an arm.", name="gitTree"),
    )
    sha256: Sha256 | None = field(
        default=None, metadata=key(_SHA256, "Composition id, or digest of an image.")
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """What the receipt is about: an arm's tree, a composition, an image."""

    name: str = field(metadata=key(_LINE, "`arm:NAME`, `composition:NAME` or `image`."))
    digest: DigestSet = field(metadata=key(Record(DigestSet), "Its digest."))


@dataclass(frozen=True, slots=True, kw_only=True)
class GateName:
    """The gate that was run."""

    name: str = field(metadata=key(NAME, "Its name."))
    kind: str = field(
        metadata=key(
            Choice(
                "tests", "parity", "kernel", "compile", "serving", "accuracy", "image"
            ),
            "Its kind.",
        )
    )
    set: tuple[str, ...] | None = field(
        default=None,
        metadata=key(
            Sets(),
            "The set of the series that asked for it when it was run, or a list of "
            "them; left out where none did.",
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundBase:
    """The base that the arms stand on."""

    identity: str = field(metadata=key(_LINE, "What pins it."))
    tree: TreeId = field(metadata=key(_GIT_ID, "Its git tree."))
    commit: str = field(metadata=key(_GIT_ID, "Its commit."))


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundArm:
    """One side of the comparison."""

    tree: TreeId | None = field(
        metadata=key(Maybe(_GIT_ID), "Its git tree; null for a server at a URL.")
    )
    composition: CompositionId | None = field(
        metadata=key(
            Maybe(_SHA256),
            "Composition id; null for the base. Shown, not compared: another commit "
            "message changes it and no file.",
        )
    )
    definition: str = field(
        metadata=key(_LINE, "`base`, `composed`, `only:SET`, `without:SET`, ...")
    )
    env: Mapping[str, str] = field(
        metadata=key(_ENVIRONMENT, "Switches by environment that the receipt may hold.")
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundFile:
    """A file that decides what was asked and how it was judged."""

    role: Role = field(
        metadata=key(
            Choice("gate", "script", "code", "prompts", "scorer"), "What it is for."
        )
    )
    path: str = field(
        metadata=key(
            Inside(),
            "Path in the project, `stackctl/...` for a file of the program, or "
            "`generated:NAME` for prompts made from a seed.",
        )
    )
    sha256: Sha256 = field(metadata=key(_SHA256, "SHA-256 of its bytes."))


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundModel:
    """The model and checkpoint that were served."""

    name: str = field(metadata=key(_LINE, "Its name."))
    revision: str | None = field(
        metadata=key(Maybe(_LINE), "Its revision; null where it is not known.")
    )
    sha256: Sha256 | None = field(
        metadata=key(
            Maybe(_SHA256), "SHA-256 of its files, where they lie in a folder."
        )
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """What the verdict is about: the receipt is stale when any of it changes."""

    base: BoundBase | None = field(
        metadata=key(Maybe(Record(BoundBase)), "The base; shown, the trees decide.")
    )
    arms: Mapping[str, BoundArm] = field(
        metadata=key(Names(Record(BoundArm), _ARM, 1), "The arms by name.")
    )
    files: tuple[BoundFile, ...] = field(
        metadata=key(
            Many(Record(BoundFile), unique="path"),
            "The gate's own file, scripts, prompts and scorers.",
        )
    )
    image: str | None = field(
        metadata=key(Maybe(_IMAGE), "Digest of the image, where one is judged.")
    )
    model: BoundModel | None = field(
        metadata=key(Maybe(Record(BoundModel)), "The model, where one is served.")
    )
    rule: Mapping[str, Any] = field(
        metadata=key(FreeTable(), "The decision rule with all of its parameters.")
    )
    claims: tuple[Mapping[str, Any], ...] = field(
        metadata=key(
            Many(FreeTable(), repeats=True), "The claims, as they were declared."
        )
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedSlot:
    """One process start of the schedule."""

    unit: int = field(metadata=key(Integer(0, 2**31), "Number of the unit."))
    block: int = field(metadata=key(Integer(0, 2**31), "Block that it belongs to."))
    arms: tuple[str, ...] = field(
        metadata=key(Many(_ARM, repeats=True), "Arms in the order they are taken.")
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The order of all process starts, fixed before the first one."""

    seed: int = field(metadata=key(Integer(0, 2**53), "Seed of the order."))
    looks: tuple[int, ...] = field(
        metadata=key(
            Many(Integer(1, 2**31), repeats=True), "Numbers of pairs at which it looks."
        )
    )
    slots: tuple[PlannedSlot, ...] = field(
        metadata=key(Many(Record(PlannedSlot)), "The starts, in order.")
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """How it was run, and what became of the run as a whole."""

    started: str | None = field(
        default=None,
        metadata=key(Maybe(_TIME), "When it started (UTC); null where not recorded."),
    )
    argv: tuple[str, ...] = field(
        metadata=key(
            Many(Value(), repeats=True),
            "Command of a unit, with `{tree:ARM}`, `{python}`, `{model}` for paths.",
        )
    )
    env: Mapping[str, str] = field(
        metadata=key(_ENVIRONMENT, "Variables of the allow-list.")
    )
    schedule: Plan = field(metadata=key(Record(Plan), "The schedule."))
    problems: tuple[str, ...] = field(
        metadata=key(Many(_WORDS, repeats=True), "What makes the run unusable.")
    )
    missing: tuple[str, ...] = field(
        metadata=key(Many(_WORDS, repeats=True), "Why the gate cannot run here.")
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """Where it was run: shown, and matched by policy."""

    hardware: Mapping[str, Any] = field(
        default_factory=dict,
        metadata=key(FreeTable(), "GPUs, driver, clocks, topology."),
    )
    host: Mapping[str, Any] = field(
        default_factory=dict, metadata=key(FreeTable(), "CPU, NUMA, load.")
    )
    versions: Mapping[str, Any] = field(
        default_factory=dict,
        metadata=key(FreeTable(), "Python, torch, triton, vllm, git, stackctl."),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RawUnit:
    """One process start: what it answered, and the machine around it."""

    unit: int = field(metadata=key(Integer(0, 2**31), "Its number in the schedule."))
    exit: int | None = field(
        metadata=key(
            Maybe(Integer(-255, 255)),
            "Exit code, negative for a signal; null where it was ended from outside.",
        )
    )
    ns: int = field(metadata=key(Integer(0, 2**53), "How long it ran, nanoseconds."))
    answer: Mapping[str, Any] | None = field(
        metadata=key(Maybe(FreeTable()), "The unit's answer with its raw samples.")
    )
    host: Mapping[str, Any] = field(
        metadata=key(FreeTable(), "Foreign load in busy CPUs, around and during it.")
    )
    gpus: tuple[Mapping[str, Any], ...] = field(
        metadata=key(
            Many(FreeTable(), repeats=True), "State of each GPU before and after."
        )
    )
    problems: tuple[str, ...] = field(
        metadata=key(Many(_WORDS, repeats=True), "What makes the unit unusable.")
    )


class Decided(FreeTable):
    """The decision document: at least a verdict and its reasons."""

    words = "a table with `verdict` and `reasons`"

    def read(self, value: object, at: At) -> Any:
        """Return the table, or INVALID after recording a problem."""
        if not isinstance(value, dict):
            return at.wrong(self.words, value)
        good = True
        for name, kind in self._keys.items():
            if name not in value:
                (at / name).problem(f"{at} needs the key `{name}`: {kind.words}")
                good = False
            elif kind.read(value[name], at / name) is INVALID:
                good = False
        return value if good else INVALID

    def schema(self, definitions: dict[str, Any]) -> dict[str, Any]:
        """Return the JSON schema."""
        properties = {
            name: kind.schema(definitions) for name, kind in self._keys.items()
        }
        return {
            "type": "object",
            "required": list(self._keys),
            "properties": properties,
        }

    _keys: Final[Mapping[str, Kind]] = {
        "verdict": Choice(*VERDICTS),
        "reasons": Many(_WORDS, repeats=True),
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Predicate:
    """A gate's question, its evidence and its verdict."""

    schema: int = field(metadata=key(Integer(1, SCHEMA), "Version of the predicate."))
    gate: GateName = field(metadata=key(Record(GateName), "The gate."))
    bound: Bound = field(metadata=key(Record(Bound), "What makes it stale."))
    run: Run = field(metadata=key(Record(Run), "How it was run."))
    scope: Scope = field(metadata=key(Record(Scope), "Where it was run."))
    units: tuple[RawUnit, ...] = field(
        metadata=key(Many(Record(RawUnit)), "The finished units with raw samples.")
    )
    decision: Mapping[str, Any] = field(
        metadata=key(Decided(), "Verdict, reasons and each claim's interval.")
    )
    limitations: tuple[str, ...] = field(
        metadata=key(Many(_WORDS, repeats=True), "What the run does not show.")
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    """An in-toto Statement (v1) with our predicate."""

    type: str = field(
        metadata=key(Constant(STATEMENT_TYPE), "Type of the document.", name="_type")
    )
    subject: tuple[Subject, ...] = field(
        metadata=key(
            Many(Record(Subject), least=1, unique="name"),
            "Trees, compositions and image by digest; they follow from `bound`.",
        )
    )
    predicate_type: str = field(
        metadata=key(
            Constant(PREDICATE_TYPE), "Type of the predicate.", name="predicateType"
        )
    )
    predicate: Predicate = field(metadata=key(Record(Predicate), "The receipt."))


@dataclass(frozen=True, slots=True)
class Receipt:
    """A receipt that keeps every rule of the format.

    Attributes:
        statement: The document.
        data: Its bytes.
        path: Where it was read from, None for one that was not.
    """

    statement: Statement
    data: bytes
    path: Path | None = None

    @property
    def predicate(self) -> Predicate:
        """The predicate."""
        return self.statement.predicate

    @property
    def digest(self) -> Sha256:
        """SHA-256 of the bytes, which is the file's name."""
        return Sha256(hashlib.sha256(self.data).hexdigest())

    @property
    def gate(self) -> str:
        """Name of the gate."""
        return self.predicate.gate.name

    @property
    def kind(self) -> str:
        """Kind of the gate."""
        return self.predicate.gate.kind

    @property
    def verdict(self) -> Verdict:
        """The recorded verdict."""
        verdict: Verdict = self.predicate.decision["verdict"]
        return verdict

    @property
    def reasons(self) -> tuple[str, ...]:
        """The recorded reasons."""
        return tuple(self.predicate.decision["reasons"])

    @property
    def arms(self) -> Mapping[str, BoundArm]:
        """The arms by name."""
        return self.predicate.bound.arms

    @property
    def compositions(self) -> tuple[CompositionId, ...]:
        """The composition ids of the arms, sorted."""
        found = {arm.composition for arm in self.arms.values() if arm.composition}
        return tuple(sorted(found))

    def document(self) -> dict[str, Any]:
        """Return the JSON form."""
        return write_record(self.statement)

    def evidence(self) -> "Evidence":
        """Return the evidence that the decision was made from."""
        from stackctl.gates.evidence import from_document

        return from_document(evidence_document(self), str(self.path or "receipt"))


def evidence_document(receipt: Receipt) -> dict[str, Any]:
    """Return a receipt's evidence in the JSON form of `gates.evidence`."""
    predicate = receipt.predicate
    bound = write_record(predicate.bound)
    run = write_record(predicate.run)
    inputs = ("base", "files", "image", "model")
    return {
        "gate": predicate.gate.name,
        "kind": predicate.gate.kind,
        "arms": bound["arms"],
        "schedule": run["schedule"],
        "units": [write_record(unit) for unit in predicate.units],
        "scope": write_record(predicate.scope),
        "inputs": {name: bound[name] for name in inputs if name in bound},
        "problems": run["problems"],
        "limitations": list(predicate.limitations),
        "missing": run["missing"],
    }


def subjects(bound: Bound) -> tuple[Subject, ...]:
    """Return the subjects that follow from what a receipt is bound to."""
    found: list[Subject] = []
    for name, arm in sorted(bound.arms.items()):
        if arm.tree is not None:
            found.append(
                Subject(name=f"arm:{name}", digest=DigestSet(git_tree=arm.tree))
            )
        if arm.composition is not None:
            digest = DigestSet(sha256=Sha256(arm.composition))
            found.append(Subject(name=f"composition:{name}", digest=digest))
    if bound.image is not None:
        digest = DigestSet(sha256=Sha256(bound.image.removeprefix("sha256:")))
        found.append(Subject(name="image", digest=digest))
    if not found:
        # A server that somebody else runs has no tree; the gate's own file is certain.
        found += [
            Subject(name=f"gate:{file.path}", digest=DigestSet(sha256=file.sha256))
            for file in bound.files
            if file.role == "gate"
        ]
    return tuple(found)


def to_bytes(statement: Statement) -> bytes:
    """Return the bytes of a receipt's file.

    Raises:
        InputError: A number or a text has no canonical form.
    """
    return canonical_file(write_record(statement))


def parse(data: bytes, *, file: str, path: Path | None = None) -> Receipt:
    """Read the bytes of a receipt strictly.

    Args:
        data: The bytes.
        file: Name of the file, for messages.
        path: The file, where there is one.

    Returns:
        The receipt.

    Raises:
        InputError: It is no receipt (`not-a-receipt`: another kind of document), not
            JSON with one meaning, breaks a rule of the format (every problem is
            listed), or is spelled in another way than canonical JSON.
    """
    document = loads_strict(data, file=file, hint=CUT_HINT)
    _refuse_other(document, file)
    predicate = document.get("predicate")
    schema = predicate.get("schema") if isinstance(predicate, dict) else None
    refuse_newer(schema, SCHEMA, file, key="predicate.schema")
    report = Report(file, document, kind="bad-receipt", hint=HINT)
    statement = read_record(Record(Statement, _check), document, report.top)
    report.raise_problems()
    assert isinstance(statement, Statement)  # otherwise there was a problem to raise
    if to_bytes(statement) != data:
        raise InputError(
            f"{file}: is not spelled as receipts are (canonical JSON of RFC 8785 with "
            "every key, and one line feed at the end); it was edited or reformatted",
            kind="bad-receipt",
            hint=HINT,
            where={"file": file},
        )
    return Receipt(statement, data, path)


def is_receipt(document: object) -> bool:
    """Tell whether a document claims to be a receipt of ours, good or bad."""
    return (
        isinstance(document, dict) and document.get("predicateType") == PREDICATE_TYPE
    )


def _refuse_other(document: object, file: str) -> None:
    if isinstance(document, dict) and ("_type" in document or is_receipt(document)):
        found = document.get("predicateType")
        if found == PREDICATE_TYPE or not isinstance(found, str):
            return
        raise InputError(
            f"{file}: `predicateType` is {show(found)}; a receipt has "
            f"{show(PREDICATE_TYPE)}",
            kind="not-a-receipt",
            where={"file": file, "key": "predicateType"},
        )
    raise InputError(
        f"{file}: is not a receipt but {_called(document)}: it has no `_type` of an "
        "in-toto Statement",
        kind="not-a-receipt",
        hint="raw figures of a gate script are no receipt; `stackctl gate run` writes "
        "receipts (docs/receipts.md)",
        where={"file": file, "key": "_type"},
    )


def _called(document: object) -> str:
    if isinstance(document, dict):
        names = ", ".join(f"`{escape(str(name), 24)}`" for name in list(document)[:4])
        return f"other JSON (with {names})" if names else "an empty JSON object"
    return f"JSON of another kind ({show(document)})"


def _check(values: dict[str, Any], table: Mapping[str, Any], at: At) -> None:
    """Check what stands in two places against each other."""
    if not {"predicate", "subject"} <= values.keys():
        return
    predicate: Predicate = values["predicate"]
    expected = subjects(predicate.bound)
    if values["subject"] != expected:
        shown = ", ".join(f"`{subject.name}`" for subject in expected)
        (at / "subject").problem(
            f"{at / 'subject'} does not follow from `predicate.bound`; expected "
            f"{shown or 'none'} with the digests that stand there"
        )
    arms = set(predicate.bound.arms)
    for n, slot in enumerate(predicate.run.schedule.slots):
        for arm in slot.arms:
            if arm not in arms:
                place = at / "predicate" / "run" / "schedule" / "slots" / n / "arms"
                place.problem(
                    f"{place} names the arm {show(arm)}; known are "
                    f"{', '.join(sorted(arms))}"
                )
    planned = {slot.unit for slot in predicate.run.schedule.slots}
    seen: set[int] = set()
    for n, unit in enumerate(predicate.units):
        place = at / "predicate" / "units" / n / "unit"
        if unit.unit not in planned:
            place.problem(f"{place} is {unit.unit}, which the schedule does not have")
        if unit.unit in seen:
            place.problem(f"{place}: unit {unit.unit} is there twice")
        seen.add(unit.unit)
