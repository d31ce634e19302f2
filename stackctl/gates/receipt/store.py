# SPDX-License-Identifier: Apache-2.0
"""Receipts as files: `receipts/<gate>/<sha256 of the file>.json`.

A receipt is never changed: another run is another file. Whatever else lies below
`receipts/` (raw figures of scripts, logs, tables) is left alone and told apart.
"""

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from stackctl.errors import InputError, InternalError
from stackctl.fsutil import read_regular, refuse_link_out, write_atomic
from stackctl.gates.evidence import Evidence, from_document
from stackctl.gates.receipt import allow, model
from stackctl.gates.receipt.model import (
    FOLDER,
    HINT,
    MAX_BYTES,
    PREDICATE_TYPE,
    SCHEMA,
    STATEMENT_TYPE,
    Receipt,
)
from stackctl.gates.receipt.signature import BUNDLE, KEYS, TRUSTED_ROOT
from stackctl.gates.rule.decide import decide
from stackctl.gates.rule.model import from_document as rule_from_document
from stackctl.model.canonical import canonical_file, canonical_json, loads_strict
from stackctl.model.fields import INVALID, Record, Report, read_record, write_record

_DIGEST_NAME: Final = re.compile(r"[0-9a-f]{64}\.json")
_BUNDLE_NAME: Final = re.compile(r"[0-9a-f]{64}\.json(?:\..+)?" + re.escape(BUNDLE))


def safe_evidence(
    evidence: Evidence,
    claims: Iterable[Mapping[str, Any]] = (),
    private: Iterable[str] = (),
) -> Evidence:
    """Return evidence that holds only what a receipt may hold.

    The decision has to be made from this, so that a receipt, which holds nothing else,
    gives the same one again. Calling it twice changes nothing.

    Args:
        evidence: What was observed.
        claims: The gate's claims as their `document()` gives them: the cells that they
            name keep their names, whatever their shape.
        private: Further names that must not enter, such as those of other nodes.

    Raises:
        InputError: An answer holds what JSON has not, or is nested too deeply.
    """
    given = evidence.document()
    document = _safe(given, _filter(given, claims, private))
    return from_document(document, f"evidence of {evidence.gate}")


def _filter(
    evidence: Mapping[str, Any],
    claims: Iterable[Mapping[str, Any]],
    private: Iterable[str],
) -> allow.Filter:
    """Return the filter for one run: what the project itself names is public."""
    public = {evidence["gate"], evidence["kind"], *evidence["arms"]}
    for claim in claims:
        cell = str(claim.get("cell", ""))
        public |= {cell, cell.rpartition(":")[0]}
    public.discard("")
    for arm in evidence["arms"].values():
        public.add(arm["definition"])
    return allow.Filter(allow.private_values(private), public)


def _safe(evidence: Mapping[str, Any], chosen: allow.Filter) -> dict[str, Any]:
    arms = {
        name: {**arm, "env": chosen.switches(arm["env"])}
        for name, arm in evidence["arms"].items()
    }
    return {
        **evidence,
        "arms": arms,
        "units": [chosen.unit(unit) for unit in evidence["units"]],
        "scope": chosen.scope(evidence["scope"]),
        **{
            name: [chosen.text(text) for text in evidence[name]]
            for name in ("problems", "limitations", "missing")
        },
    }


def make(document: Mapping[str, Any], private: Iterable[str] = ()) -> Receipt:
    """Make a receipt from a run's evidence and decision.

    Args:
        document: `evidence`, `rule`, `claims`, `decision` as their `document()` gives
            them; `argv` with placeholders, `env`, and where known `own` (the arguments
            that the gate's file spells), `set` (the names of the sets that asked for
            it) and `started`.
        private: Further names that must not enter.

    Returns:
        The receipt, not written yet.

    Raises:
        InputError: A number has no JSON form, or a text of the gate no place.
        InternalError: The decision does not follow from the evidence that is kept.
        UsageError: A statistics library is missing (`package-missing`).
    """
    given = document["evidence"]
    chosen = _filter(given, document["claims"], private)
    evidence = _safe(given, chosen)
    inputs = given["inputs"]
    _refuse_other_decision(document, evidence)
    predicate = {
        "schema": SCHEMA,
        "gate": {
            name: value
            for name, value in (
                ("name", evidence["gate"]),
                ("kind", evidence["kind"]),
                ("set", _sets(document.get("set"))),
            )
            if value is not None
        },
        "bound": {
            "base": inputs.get("base"),
            "arms": evidence["arms"],
            "files": sorted(inputs.get("files", ()), key=lambda file: file["path"]),
            "image": inputs.get("image"),
            "model": _model(inputs.get("model"), chosen),
            "rule": document["rule"],
            "claims": document["claims"],
        },
        "run": {
            "started": document.get("started"),
            "argv": chosen.arguments(document["argv"], document.get("own", ())),
            "env": chosen.environment(document["env"]),
            "schedule": evidence["schedule"],
            "problems": evidence["problems"],
            "missing": evidence["missing"],
        },
        "scope": {
            part: evidence["scope"].get(part, {})
            for part in ("hardware", "host", "versions")
        },
        "units": evidence["units"],
        "decision": document["decision"],
        "limitations": evidence["limitations"],
    }
    return _state(predicate)


def _sets(names: Sequence[str] | None) -> str | list[str] | None:
    """Return who asked for a gate as a receipt spells it."""
    if not names:
        return None
    return names[0] if len(names) == 1 else list(names)


def _model(
    model: Mapping[str, Any] | None, chosen: allow.Filter
) -> dict[str, Any] | None:
    """Return what was served; a folder's name may be anything."""
    if model is None:
        return None
    revision = model.get("revision")
    return {
        "name": chosen.text(model["name"]),
        "revision": revision and chosen.value(revision, "commit"),
        "sha256": model.get("sha256"),
    }


def _state(predicate: Mapping[str, Any]) -> Receipt:
    """Return the receipt of a predicate."""
    gate = predicate["gate"]["name"]
    report = Report(f"receipt of {gate}", predicate, kind="bad-receipt", hint=HINT)
    bound = read_record(
        Record(model.Bound), predicate["bound"], report.top / "predicate" / "bound"
    )
    report.raise_problems()
    assert bound is not INVALID  # otherwise there was a problem to raise
    statement = {
        "_type": STATEMENT_TYPE,
        "subject": [write_record(subject) for subject in model.subjects(bound)],
        "predicateType": PREDICATE_TYPE,
        "predicate": predicate,
    }
    # Through bytes, so that what is written is what the strict reader accepts.
    data = canonical_file(statement)
    if len(data) > MAX_BYTES:
        raise InputError(
            f"the receipt of {gate} would have {len(data):,} bytes; at most "
            f"{MAX_BYTES:,} are read again",
            kind="receipt-too-large",
            hint="let the gate's script print fewer samples or figures",
        )
    return model.parse(data, file=f"receipt of {gate}")


def _refuse_other_decision(
    document: Mapping[str, Any], evidence: Mapping[str, Any]
) -> None:
    """Refuse a decision that nobody could derive again from the receipt."""
    rule, claims = rule_from_document(document["rule"], document["claims"])
    again = decide(rule, claims, from_document(evidence)).document()
    if canonical_json(again) != canonical_json(document["decision"]):
        raise InternalError(
            f"the decision of {evidence['gate']} does not follow from the evidence "
            "that a receipt may hold",
            kind="decision-differs",
            hint="decide from what `safe_evidence` returns",
        )


def write(
    document: Mapping[str, Any], project: Path, private: Iterable[str] = ()
) -> Path:
    """Write the receipt of a run.

    Args:
        document: As for `make`.
        project: The project folder.
        private: Further names that must not enter.

    Returns:
        The file, `receipts/<gate>/<digest>.json`.

    Raises:
        InputError: The file cannot be written.
        StackctlError: As `make`.
    """
    return store(make(document, private), project)


def store(receipt: Receipt, project: Path) -> Path:
    """Put a receipt in its place, whole or not at all.

    Args:
        receipt: The receipt.
        project: The project folder.

    Returns:
        The file. One with the same bytes that is there already is left alone.
    """
    folder = project / FOLDER / receipt.gate
    refuse_link_out(project, folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(
            f"{folder}: cannot be made: {error.strerror}",
            kind="not-writable",
            where={"file": str(folder)},
        ) from None
    path = folder / f"{receipt.digest}.json"
    if path.is_file() and not path.is_symlink():
        try:
            if read_regular(path, len(receipt.data)) == receipt.data:
                return path
        except InputError:
            pass  # too large or unreadable: it is not what the name says
    write_atomic(path, receipt.data)
    return path


def read(path: Path) -> Receipt:
    """Read a receipt strictly.

    Args:
        path: The file.

    Raises:
        InputError: As `model.parse`, and where the name is not the SHA-256 of the
            bytes (`receipt-digest`): then the file was changed or renamed.
    """
    receipt = model.parse(read_regular(path, MAX_BYTES), file=str(path), path=path)
    expected = f"{receipt.digest}.json"
    if path.name != expected:
        changed = _DIGEST_NAME.fullmatch(path.name)
        raise InputError(
            f"{path}: its bytes have the SHA-256 {receipt.digest}, "
            + (
                "which is not its name; the file was changed after it was written"
                if changed
                else f"so its name must be {expected}"
            ),
            kind="receipt-digest",
            hint=HINT if changed else "give the file its name back",
            where={"file": str(path)},
        )
    return receipt


@dataclass(frozen=True, slots=True)
class Found:
    """A file below `receipts/` that is, or claims to be, a receipt.

    Attributes:
        path: The file.
        receipt: The receipt, None where it cannot be read as one.
        error: Why not.
    """

    path: Path
    receipt: Receipt | None = None
    error: InputError | None = None


@dataclass(frozen=True, slots=True)
class Shelf:
    """What lies below `receipts/`.

    Attributes:
        found: The receipts, good and bad, by gate and name.
        others: JSON files that are no receipts: raw figures.
    """

    found: tuple[Found, ...]
    others: tuple[Path, ...]


def find(project: Path) -> Shelf:
    """Find the receipts of a project.

    Args:
        project: The project folder.

    Returns:
        The receipts and, apart, the raw figures beside them. A bad receipt is no
        error here: it is told of where it is asked for.
    """
    found: list[Found] = []
    others: list[Path] = []
    top = project / FOLDER
    names: list[Path] = []
    for folder, folders, files in os.walk(top):
        folders.sort()
        names += [Path(folder) / name for name in sorted(files)]
    for path in names:
        if path.suffix != ".json" or _BUNDLE_NAME.fullmatch(path.name):
            continue
        if path == top / KEYS / TRUSTED_ROOT:
            continue
        if not _DIGEST_NAME.fullmatch(path.name) and not _claims(path):
            others.append(path)
            continue
        try:
            found.append(Found(path, read(path)))
        except InputError as error:
            found.append(Found(path, error=error))
    return Shelf(tuple(found), tuple(others))


def _claims(path: Path) -> bool:
    """Tell whether a file with another name claims to be a receipt."""
    try:
        return model.is_receipt(
            loads_strict(read_regular(path, MAX_BYTES), file=str(path))
        )
    except InputError:
        return False
