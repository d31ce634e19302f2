# SPDX-License-Identifier: Apache-2.0
"""What receipts answer already, so that `qualify` need not run it again.

A receipt answers a gate where it counts (believed, about the project as it is) and a
run was decided in it. One of a run that may not be used, or that measured nothing,
answers no question.
"""

from collections import Counter
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from stackctl.errors import UsageError
from stackctl.gates.receipt import find
from stackctl.gates.receipt.current import Judged, judge_all
from stackctl.gates.receipt.stale import ProjectState
from stackctl.gates.receipt.words import hardware
from stackctl.progress import SILENT, Progress

if TYPE_CHECKING:
    from stackctl.cache import Cache
    from stackctl.model.series import Series

DECIDED: Final = frozenset(("qualified", "rejected", "insufficient-evidence"))
"""Verdicts of runs that came to an answer."""


@dataclass(frozen=True, slots=True)
class Answers:
    """The receipts of gates, judged.

    Attributes:
        project: Folder that paths are relative to.
        judged: By gate, the receipt that answers it first.
        unjudged: By gate, why its receipts cannot be judged here.
        unread: By gate, how many files of its folder are no receipts any more: one may
            have said no.
    """

    project: Path
    judged: Mapping[str, Sequence[Judged]] = field(default_factory=dict)
    unjudged: Mapping[str, str] = field(default_factory=dict)
    unread: Mapping[str, int] = field(default_factory=dict)

    def answer(self, gate: str) -> Judged | None:
        """Return the receipt that answers a gate, None where none does."""
        first = next(iter(self.judged.get(gate, ())), None)
        if first is None or not first.counts or first.verdict not in DECIDED:
            return None
        return first

    def unit_seconds(self, gate: str) -> float | None:
        """Return how long a unit took in the newest receipt that has any, seconds.

        On whatever machine that was, and stale or not: it is an estimate.
        """
        for each in self.judged.get(gate, ()):
            units = each.receipt.predicate.units
            if units:
                return sum(unit.ns for unit in units) / len(units) / 1e9
        return None

    def against(self, gate: str) -> list[str]:
        """Say why the receipts of a gate that nothing answers do not count."""
        said = []
        if gate in self.unjudged:
            said.append(f"its receipts are not judged: {self.unjudged[gate]}")
        for each in self.judged.get(gate, ()):
            why = each.against or (f"is {each.verdict}, which is no answer",)
            said.append(f"its receipt {each.receipt.digest[:12]}: {'; '.join(why)}")
        return said

    def facts(self, judged: Judged) -> dict[str, Any]:
        """Return which receipt it is, and of when and where, as JSON.

        `of` is how many receipts count and came to an answer: a gate that was run
        again and again until one qualified shows it. `unread` is how many files beside
        it were receipts and cannot be read as such: `receipt verify` says why.
        """
        receipt = judged.receipt
        return {
            "file": self.place(judged),
            "digest": receipt.digest,
            "verdict": judged.verdict,
            "started": receipt.predicate.run.started,
            "hardware": hardware(receipt.predicate.scope),
            "signature": str(judged.check.signature),
            "of": sum(
                each.counts and each.verdict in DECIDED
                for each in self.judged.get(receipt.gate, ())
            ),
            "unread": self.unread.get(receipt.gate, 0),
        }

    def place(self, judged: Judged) -> str:
        """Return a receipt's path, relative to the project."""
        path = judged.receipt.path
        assert path is not None  # it was found below receipts/
        return path.relative_to(self.project).as_posix()

    def document(self, judged: Judged) -> dict[str, Any]:
        """Return a receipt's answer in the form of `gate run`."""
        receipt = judged.receipt
        return {
            "gate": receipt.gate,
            "verdict": judged.verdict,
            "reasons": list(receipt.reasons),
            "limitations": list(receipt.predicate.limitations),
            "problems": [],
            "last_words": [],
            "receipt": self.place(judged),
            "output": None,
            "resumed_units": 0,
            "units": len(receipt.predicate.units),
            "nodes": [],
            "lost_nodes": [],
            "claims": list(receipt.predicate.decision.get("claims", ())),
            "ns": 0,
        }


def look(
    series: "Series",
    cache: "Cache",
    gates: Container[str],
    *,
    model: Mapping[str, Any] | None = None,
    offline: bool = False,
    progress: Progress = SILENT,
) -> Answers:
    """Judge the receipts of gates.

    Args:
        series: The series.
        cache: Store and facts.
        gates: Names of the gates.
        model: Identity of the model that is named here: a receipt about another one
            is stale.
        offline: Never use the network.
        progress: Told how far it is.

    Raises:
        InputError: A receipt signer of the policy is no key.
        UsageError: A program for signatures is missing.
    """
    root = Path(series.root)
    state = ProjectState(series, cache, offline=offline, progress=progress, model=model)
    shelf = find(root)
    judged: dict[str, Sequence[Judged]] = {}
    unjudged: dict[str, str] = {}
    held = {each.receipt.gate for each in shelf.found if each.receipt is not None}
    for gate in sorted(held):
        if gate not in gates:
            continue
        try:
            judged |= judge_all(shelf, series, state, progress, gates={gate})
        except UsageError as error:
            # What counts only needs no statistics, and is judged all the same.
            if error.kind != "package-missing":
                raise
            unjudged[gate] = error.message
    bad = [each.path.parent.name for each in shelf.found if each.receipt is None]
    return Answers(root, judged, unjudged, Counter(bad))
