# SPDX-License-Identifier: Apache-2.0
"""Whether a receipt may be believed: its signature, and its verdict derived again."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

from stackctl import __version__
from stackctl.errors import InputError
from stackctl.gates.model import TIMED, load_gate
from stackctl.gates.receipt.model import Receipt
from stackctl.gates.receipt.signature import Signature, judge, parse_signers
from stackctl.gates.receipt.words import shown
from stackctl.gates.rule.words import counted, listed

TOLERANCE: Final = 1e-6
"""Relative difference of two figures that count as equal: libraries differ a little."""

CLOCKS_APART: Final = timedelta(days=1)
"""How far the clocks of two machines may be apart."""

MAX_SHOWN: Final = 5
"""Most differences that are listed."""


@dataclass(frozen=True, slots=True)
class Check:
    """What became of a check.

    Attributes:
        ok: Whether the receipt may be believed.
        reasons: Why not.
        signature: What is known about its signatures.
        notes: What was not compared, and why.
    """

    ok: bool
    reasons: tuple[str, ...]
    signature: Signature
    notes: tuple[str, ...] = ()


def check(
    receipt: Receipt,
    signers: Sequence[str] = (),
    project: Path | None = None,
    *,
    series_file: str = "series.toml",
) -> Check:
    """Check a receipt that was read: schema and digest held already.

    Args:
        receipt: The receipt.
        signers: `[policy] receipt_signers`. Empty: an unsigned receipt is believed,
            and called unsigned.
        project: The project folder.
        series_file: Where the policy stands, for messages.

    Raises:
        InputError: An entry of `signers` is no key.
        UsageError: A statistics library (`stackctl[gates]`) or a program for the
            signature is missing.
    """
    reasons = [*follows(receipt), *_left_out(receipt, project)]
    keys = parse_signers(signers, series_file)
    signature = judge(receipt, keys, project)
    if signature.state == "invalid":
        reasons.append(f"invalid signature: {signature.why}")
    elif keys and signature.state == "unsigned":
        reasons.append("unsigned; the policy asks for a signature (`receipt_signers`)")
    elif keys and signature.state == "unlisted":
        reasons.append(f"signed, but {signature.why}")
    notes: tuple[str, ...] = ()
    if (other := _other_version(receipt)) is not None:
        notes = (
            f"worded by stackctl {other}: the words of its reasons were not compared, "
            "all verdicts and figures were",
        )
    if ahead(receipt):
        started = receipt.predicate.run.started
        notes += (
            f"started at {started}, which has not come yet by the clock here: any "
            "other receipt that counts stands before it",
        )
    return Check(not reasons, tuple(reasons), signature, notes)


def _left_out(receipt: Receipt, project: Path | None) -> list[str]:
    """Say which units of a gate that measures time name too few GPUs.

    Nothing but the gate's file tells how many it needs. Who took the states of its GPUs
    out of a receipt took out whether they were busy.
    """
    predicate = receipt.predicate
    files = [file for file in predicate.bound.files if file.role == "gate"]
    if project is None or receipt.kind not in TIMED or len(files) != 1:
        return []
    try:
        gate = load_gate(project / files[0].path)
    except InputError:
        return []  # it is gone or bad: stale says so
    if gate.sha256 != files[0].sha256:
        return []
    few = [str(u.unit) for u in predicate.units if len(u.gpus) < gate.needs.gpus]
    if not few:
        return []
    asked = counted(gate.needs.gpus, "GPU")
    return [f"the gate needs {asked}, and units {listed(few)} name fewer"]


def ahead(receipt: Receipt) -> bool:
    """Return whether a receipt has a date that has not come, by this machine's clock.

    Args:
        receipt: The receipt.
    """
    started = receipt.predicate.run.started
    latest = datetime.now(UTC) + CLOCKS_APART
    return started is not None and datetime.fromisoformat(started) > latest


def _other_version(receipt: Receipt) -> str | None:
    """Return the version that decided it, where that is known and not this one."""
    recorded = receipt.predicate.scope.versions.get("stackctl")
    if not isinstance(recorded, str) or recorded == __version__:
        return None
    return recorded


def follows(receipt: Receipt) -> tuple[str, ...]:
    """Say where a recorded decision is not the one that its samples give.

    Args:
        receipt: The receipt.

    Returns:
        Sentences; empty where the rule decides the same again.

    Raises:
        UsageError: A statistics library is missing (`package-missing`).
    """
    from stackctl.gates.rule.decide import decide
    from stackctl.gates.rule.model import from_document

    bound = receipt.predicate.bound
    file = str(receipt.path or "receipt")
    try:
        rule, claims = from_document(
            dict(bound.rule), [dict(claim) for claim in bound.claims], file
        )
        again = decide(rule, claims, receipt.evidence()).document()
        why = "; ".join(again["reasons"])
    except InputError as error:
        return (f"nothing can be decided from it: {error.message}",)
    recorded = dict(receipt.predicate.decision)
    if _other_version(receipt) is not None:
        recorded, again = _without_words(recorded), _without_words(again)
    said = list(_differences("", recorded, again))
    if receipt.verdict != again["verdict"]:
        said = [
            f"the verdict is {receipt.verdict}, but its samples give "
            f"{again['verdict']}: {why}"
        ]
    if len(said) > MAX_SHOWN:
        said[MAX_SHOWN:] = [f"... and {len(said) - MAX_SHOWN} more differences"]
    return tuple(said)


def _without_words(value: Any) -> Any:
    """Return a decision without its sentences, which another version words anew."""
    if isinstance(value, Mapping):
        return {
            key: _without_words(item)
            for key, item in value.items()
            if key not in {"reasons", "limitations"}
        }
    return list(map(_without_words, value)) if isinstance(value, list) else value


def _differences(place: str, old: Any, new: Any) -> Sequence[str]:
    """List where two decision documents differ by more than rounding."""
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        return [
            text
            for name in sorted({*old, *new})
            for text in _differences(
                f"{place}.{name}".lstrip("."), old.get(name), new.get(name)
            )
        ]
    if isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        return [
            text
            for n, (was, now) in enumerate(zip(old, new, strict=True))
            for text in _differences(f"{place}[{n}]", was, now)
        ]
    if _number(old) and _number(new):
        if math.isclose(old, new, rel_tol=TOLERANCE, abs_tol=1e-12):
            return []
    elif type(old) is type(new) and old == new:
        return []
    return [f"`decision.{place}` is {shown(old)}, but its samples give {shown(new)}"]


def _number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
