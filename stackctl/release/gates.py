# SPDX-License-Identifier: Apache-2.0
"""Do the required gates have fresh, qualified receipts from accepted signers?"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from stackctl.cache import Cache
from stackctl.fsutil import read_regular
from stackctl.gates.asked import askers
from stackctl.gates.model import FOLDER as GATES
from stackctl.gates.receipt.model import FOLDER as RECEIPTS
from stackctl.gates.receipt.model import BoundFile, Receipt
from stackctl.gates.receipt.signature import KEYS, signature_files
from stackctl.gates.receipt.stale import ProjectState, stale
from stackctl.gates.receipt.store import Found, find
from stackctl.model.ids import Sha256
from stackctl.model.series import Series
from stackctl.progress import SILENT, Progress

MAX_FILE: Final = 256 << 20
"""Largest file that a proof carries: bytes."""

_SHOWN: Final = 3
"""Reasons that a message names."""


@dataclass(frozen=True, slots=True)
class GateState:
    """One required gate and the receipt that answers it.

    Attributes:
        gate: Name of the gate.
        sets: The sets that require it.
        ok: Whether a receipt counts.
        why: Which one, or why none does.
        receipt: Path of the receipt that counts, relative to the project.
        sha256: Its digest.
        signature: `unsigned`, or whose signature it has.
        files: What a proof carries of it, by path.
    """

    gate: str
    sets: tuple[str, ...]
    ok: bool
    why: str
    receipt: str = ""
    sha256: Sha256 | None = None
    signature: str = ""
    files: Mapping[str, bytes] = field(default_factory=dict)

    @property
    def line(self) -> str:
        """The receipt as a line of a tag's message."""
        return f"{self.gate} qualified {self.sha256} {self.signature}"


def required_gates(series: Series, composed: Iterable[str]) -> dict[str, list[str]]:
    """Return the gates that composed sets require, each with those sets.

    Args:
        series: The series.
        composed: Names of the sets that the composition has.
    """
    wanted = askers(series, set(composed))
    return {gate: list(who.required) for gate, who in wanted.items() if who.required}


def gate_states(
    series: Series,
    composed: Iterable[str],
    cache: Cache,
    *,
    offline: bool = False,
    released: bool = False,
    progress: Progress = SILENT,
) -> list[GateState]:
    """Find what answers each required gate.

    Args:
        series: The series; receipts and gates lie below its root.
        composed: Names of the sets that the composition has.
        cache: Store and facts.
        offline: Never use the network.
        released: The receipts are those of a release: the program that judged them
            then may be another version than this one.
        progress: Told what is being done.

    Raises:
        InputError: A receipt signer of the policy is no key.
        UsageError: What judging a receipt needs is not installed.
    """
    required = required_gates(series, composed)
    if not required:
        return []
    kind = _Released if released else ProjectState
    state = kind(series, cache, offline=offline, progress=progress)
    found: dict[str, list[Found]] = {}
    for each in find(series.root).found:
        # A file that cannot be read is still below the folder of its gate.
        name = each.receipt.gate if each.receipt else each.path.parent.name
        found.setdefault(name, []).append(each)
    return [
        _gate_state(series, gate, tuple(sets), found.get(gate, []), state)
        for gate, sets in required.items()
    ]


class _Candidate(NamedTuple):
    """A receipt of a gate, and what speaks against it."""

    path: str
    receipt: Receipt | None
    signature: str
    against: tuple[str, ...]
    fresh: bool


def _gate_state(
    series: Series,
    gate: str,
    sets: tuple[str, ...],
    found: Sequence[Found],
    state: ProjectState,
) -> GateState:
    if not found:
        why = f"no receipt of it below receipts/ (stackctl gate run {gate})"
        return GateState(gate, sets, False, why)
    some = [_candidate(series, each, state) for each in found]
    good = [each for each in some if not each.against]
    against = [
        each.path
        for each in some
        if each.fresh and each.receipt and each.receipt.verdict == "rejected"
    ]
    if not good:
        some.sort(key=lambda each: (not each.fresh, len(each.against), each.path))
        best = some[0]
        why = f"{best.path}: {'; '.join(best.against[:_SHOWN])}"
        if len(some) > 1:
            why += f" (and {len(some) - 1} more receipts, none of which counts)"
        return GateState(gate, sets, False, why)
    chosen = min(good, key=lambda each: each.path)
    assert chosen.receipt is not None  # it would have something against it
    why = f"qualified, {chosen.signature}: {chosen.path}"
    if against:
        # A gate that is run until it qualifies would else say yes to anything.
        noun = (
            "a fresh receipt rejects" if len(against) == 1 else "fresh receipts reject"
        )
        why = (
            f"{noun} it: {', '.join(against)}, beside {chosen.path}; if a run was "
            "faulty, take its receipt out in a commit that says why"
        )
        return GateState(gate, sets, False, why)
    return GateState(
        gate,
        sets,
        True,
        why,
        chosen.path,
        chosen.receipt.digest,
        chosen.signature,
        _carried(series, chosen.receipt, gate),
    )


def _candidate(series: Series, found: Found, state: ProjectState) -> _Candidate:
    from stackctl.gates.receipt.verify import check  # brings the statistics

    path = found.path.relative_to(series.root).as_posix()
    receipt = found.receipt
    if receipt is None:
        why = found.error.message if found.error else "cannot be read"
        return _Candidate(path, None, "", (why,), False)
    against = []
    if receipt.verdict != "qualified":
        against.append(f"{receipt.verdict} ({'; '.join(receipt.reasons[:1])})")
    changed = stale(receipt, state)
    gate = state.gate(receipt.gate)
    declared = {name: arm.tree for name, arm in gate.arms.items()} if gate else {}
    arms = {name: arm.definition for name, arm in receipt.arms.items()}
    if gate is not None and arms != declared:
        # `gate run --arm` asks the question of other trees; that is not the answer.
        against.append("its arms are not those that the gate declares")
    if changed:
        against.append(f"stale: {'; '.join(changed[:_SHOWN])}")
    signature = ""
    if not against:
        # Judging the samples again is the costly part.
        judged = check(receipt, series.policy.receipt_signers, series.root)
        against += judged.reasons
        signature = str(judged.signature)
    return _Candidate(path, receipt, signature, tuple(against), not changed)


def _carried(series: Series, receipt: Receipt, gate: str) -> dict[str, bytes]:
    """Return what a proof carries of a receipt: it, its signatures, what it binds."""
    root = series.root
    assert receipt.path is not None  # it was found below receipts/
    wanted = [*signature_files(receipt.path), root / GATES / f"{gate}.toml"]
    wanted += sorted((root / RECEIPTS / KEYS).glob("*.asc"))
    for file in receipt.predicate.bound.files:
        if not file.path.startswith(("stackctl/", "generated:")):
            wanted.append(root / file.path)
    files = {receipt.path.relative_to(root).as_posix(): receipt.data}
    for path in wanted:
        if path.is_file():
            name = path.relative_to(root).as_posix()
            files.setdefault(name, read_regular(path, MAX_FILE))
    return files


class _Released(ProjectState):
    """A project as a release carries it: without the program that judged then."""

    def sha256(self, file: BoundFile) -> str | None:
        """Return the digest that a bound file has now, None where it is gone."""
        if file.path.startswith("stackctl/"):
            return file.sha256
        return super().sha256(file)
