# SPDX-License-Identifier: Apache-2.0
"""Which receipt answers a gate now: believed, fresh, and the newest of those.

The report, `qualify` and `tag cut` all ask here. A receipt that counts and rejects
stands before one that qualifies, however old: who runs until it qualifies has stopped
at will. One that is not believed, or is about something else by now, answers nothing,
whatever it says. A run that may not be used, or that did not come to measure, stands
behind those that did.
"""

from collections.abc import Container, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from stackctl.errors import StackctlError
from stackctl.gates.receipt.model import Receipt, Verdict
from stackctl.gates.receipt.stale import ProjectState, stale
from stackctl.gates.receipt.store import Shelf
from stackctl.gates.receipt.verify import Check, ahead, check
from stackctl.progress import SILENT, Progress

if TYPE_CHECKING:
    from stackctl.model.series import Series


MAX_SHOWN: Final = 3
"""Most sentences against a receipt that a message names."""

_RANK: Final = {
    "rejected": 0,
    "qualified": 1,
    "insufficient-evidence": 1,
    "not-tested": 2,
    "invalid": 2,
}
"""Order of receipts that count, by verdict; the newest of a rank stands first."""


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

    @property
    def against(self) -> tuple[str, ...]:
        """Why it does not count; empty where it does."""
        said = [f"not believed: {reason}" for reason in self.check.reasons]
        if self.changes is None:
            said.append(f"whether it is stale cannot be told: {self.unknown}")
        elif self.changes:
            said.append(f"stale: {shortened(self.changes)}")
        return tuple(said)


def shortened(sentences: Sequence[str]) -> str:
    """Return the first sentences on one line, and how many there are beside them."""
    more = len(sentences) - MAX_SHOWN
    shown = "; ".join(sentences[:MAX_SHOWN])
    return f"{shown}; and {more} more" if more > 0 else shown


def judge_all(
    shelf: Shelf,
    series: "Series",
    state: ProjectState,
    progress: Progress = SILENT,
    *,
    gates: Container[str] | None = None,
) -> dict[str, list[Judged]]:
    """Judge the receipts of a project.

    Args:
        shelf: What lies below `receipts/`.
        series: The series, whose policy says who may sign.
        state: What the project is now.
        progress: Told how far it is.
        gates: Only receipts of these gates; None for all.

    Returns:
        By gate, the receipt that answers it first: those that count before the others;
        of those, one that rejects before all others, then those that measured, then
        the newest first.

    Raises:
        InputError: A receipt signer of the policy is no key.
        UsageError: A statistics library or a program for signatures is missing.
    """
    wanted = [
        item.receipt
        for item in shelf.found
        if item.receipt is not None and (gates is None or item.receipt.gate in gates)
    ]
    found: dict[str, list[Judged]] = {}
    for number, receipt in enumerate(wanted):
        progress.update("receipts", number, len(wanted))
        judged = _judge(receipt, series, state)
        found.setdefault(receipt.gate, []).append(judged)
    return {gate: ordered(found[gate]) for gate in sorted(found)}


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


def ordered(judged: Sequence[Judged]) -> list[Judged]:
    """Return the receipts of a gate, the one that answers it first."""
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
            _RANK[each.verdict] if each.counts else 0,
            ahead(each.receipt),  # a date to come would stay the newest
        ),
    )
