# SPDX-License-Identifier: Apache-2.0
"""Which receipt answers a gate now: believed, fresh, and the newest of those.

A receipt that counts and rejects stands before one that qualifies, however old: who
runs until it qualifies has stopped at will.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from stackctl.errors import StackctlError
from stackctl.gates.receipt.model import Receipt, Verdict
from stackctl.gates.receipt.stale import ProjectState, stale
from stackctl.gates.receipt.store import Shelf
from stackctl.gates.receipt.verify import Check, check
from stackctl.progress import SILENT, Progress

if TYPE_CHECKING:
    from stackctl.model.series import Series


@dataclass(frozen=True, slots=True)
class Judged:
    """A receipt with all that is known about it.

    Attributes:
        receipt: The receipt.
        check: Whether it may be believed.
        changes: What changed since; None where that cannot be known.
        unknown: Why it cannot.
    """

    receipt: Receipt
    check: Check
    changes: tuple[str, ...] | None
    unknown: str = ""

    @property
    def fresh(self) -> bool:
        """Whether it is known to be about the project as it is."""
        return self.changes == ()

    @property
    def counts(self) -> bool:
        """Whether its verdict is one about the project as it is."""
        return self.check.ok and self.fresh

    @property
    def verdict(self) -> Verdict:
        """The recorded verdict."""
        return self.receipt.verdict


def judge_all(
    shelf: Shelf, series: "Series", state: ProjectState, progress: Progress = SILENT
) -> dict[str, list[Judged]]:
    """Judge every receipt of a project.

    Args:
        shelf: What lies below `receipts/`.
        series: The series, whose policy says who may sign.
        state: What the project is now.
        progress: Told how far it is.

    Returns:
        By gate, the receipt that answers it first: those that count before the others,
        those that reject before the rest, then the newest first.

    Raises:
        UsageError: A statistics library or a program for signatures is missing.
    """
    found: dict[str, list[Judged]] = {}
    for number, item in enumerate(shelf.found):
        progress.update("receipts", number, len(shelf.found))
        if item.receipt is not None:
            judged = _judge(item.receipt, series, state)
            found.setdefault(item.receipt.gate, []).append(judged)
    return {gate: _ordered(found[gate]) for gate in sorted(found)}


def _judge(receipt: Receipt, series: "Series", state: ProjectState) -> Judged:
    checked = check(
        receipt,
        series.policy.receipt_signers,
        Path(series.root),
        series_file=series.file,
    )
    try:
        return Judged(receipt, checked, tuple(stale(receipt, state)))
    except StackctlError as error:
        # Offline without the base, or a series that does not compose.
        return Judged(receipt, checked, None, error.message)


def _ordered(judged: Sequence[Judged]) -> list[Judged]:
    by_digest = sorted(judged, key=lambda each: each.receipt.digest)
    newest = sorted(
        by_digest,
        key=lambda each: each.receipt.predicate.run.started or "",
        reverse=True,
    )
    return sorted(
        newest,
        key=lambda each: (
            not each.check.ok,
            each.changes is None,
            not each.fresh,
            each.counts and each.verdict != "rejected",
        ),
    )
