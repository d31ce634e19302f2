# SPDX-License-Identifier: Apache-2.0
"""Do the required gates have fresh, qualified receipts from accepted signers?"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from stackctl.cache import Cache
from stackctl.fsutil import read_regular
from stackctl.gates.asked import askers
from stackctl.gates.model import FOLDER as GATES
from stackctl.gates.model import Gate
from stackctl.gates.receipt.current import Judged, judge_all, shortened
from stackctl.gates.receipt.model import FOLDER as RECEIPTS
from stackctl.gates.receipt.model import BoundFile, Receipt
from stackctl.gates.receipt.signature import KEYS, TRUSTED_ROOT, signature_files
from stackctl.gates.receipt.stale import SAME, ProjectState
from stackctl.gates.receipt.store import Found, find
from stackctl.gates.rule.words import counted
from stackctl.model.ids import Sha256
from stackctl.model.series import Series
from stackctl.progress import SILENT, Progress

MAX_FILE: Final = 256 << 20
"""Largest file that a proof carries: bytes."""


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
    shelf = find(series.root)
    judged = judge_all(shelf, series, state, progress, gates=required)
    # A file that cannot be read is still below the folder of its gate.
    bad: dict[str, list[Found]] = {}
    for each in shelf.found:
        if each.receipt is None:
            bad.setdefault(each.path.parent.name, []).append(each)
    return [
        _gate_state(series, gate, tuple(sets), judged.get(gate, []), bad.get(gate, []))
        for gate, sets in required.items()
    ]


def _gate_state(
    series: Series,
    gate: str,
    sets: tuple[str, ...],
    judged: Sequence[Judged],
    bad: Sequence[Found],
) -> GateState:
    if not judged or not judged[0].counts:
        return GateState(gate, sets, False, _nothing_counts(series, gate, judged, bad))
    first, *others = judged
    path = _path(series, first)
    if first.verdict != "qualified":
        why = f"{first.verdict} ({'; '.join(first.receipt.reasons[:1])}): {path}"
        yes = [each for each in others if each.counts and each.verdict == "qualified"]
        if first.verdict == "rejected" and yes:
            # A gate that is run until it qualifies would else say yes to anything.
            why = (
                f"a fresh receipt rejects it: {path}, beside {_path(series, yes[0])}; "
                "if a run was faulty, take its receipt out in a commit that says why"
            )
        more = len(others) - (1 if first.verdict == "rejected" and yes else 0)
        return GateState(gate, sets, False, why + _beside(more))
    signature = str(first.check.signature)
    fresh = sum(each.counts for each in judged)
    newest = f" (the newest of {fresh} fresh receipts)" if fresh > 1 else ""
    if bad:
        newest += f" (beside {counted(len(bad), 'damaged file')})"
    return GateState(
        gate,
        sets,
        True,
        f"qualified, {signature}: {path}{newest}",
        path,
        first.receipt.digest,
        signature,
        _carried(series, first.receipt, gate),
    )


def _nothing_counts(
    series: Series, gate: str, judged: Sequence[Judged], bad: Sequence[Found]
) -> str:
    """Say why no receipt answers a gate."""
    others = len(judged) + len(bad) - 1
    if judged:
        first = judged[0]
        said = f"{_path(series, first)}: {first.verdict}, {shortened(first.against)}"
    elif bad:
        error = bad[0].error
        path = bad[0].path.relative_to(series.root).as_posix()
        said = f"{path}: {error.message if error else 'cannot be read'}"
    else:
        return f"no receipt of it below receipts/ (stackctl gate run {gate})"
    return said + _beside(others)


def _beside(more: int) -> str:
    if more < 1:
        return ""
    return f" ({more} more {'receipt does' if more == 1 else 'receipts do'} not help)"


def _path(series: Series, judged: Judged) -> str:
    assert judged.receipt.path is not None  # it was found below receipts/
    return judged.receipt.path.relative_to(series.root).as_posix()


def _carried(series: Series, receipt: Receipt, gate: str) -> dict[str, bytes]:
    """Return what a proof carries of a receipt: it, its signatures, what it binds."""
    root = series.root
    assert receipt.path is not None  # it was found below receipts/
    wanted = [*signature_files(receipt.path), root / GATES / f"{gate}.toml"]
    wanted += sorted((root / RECEIPTS / KEYS).glob("*.asc"))
    wanted.append(root / RECEIPTS / KEYS / TRUSTED_ROOT)
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

    def images(self, gate: Gate) -> list[tuple[str, str | None]]:
        """Return the images of a gate as those that its receipt is about.

        The tag names them by digest; where they lay when it was cut says nothing here.
        """
        return [(ref, SAME) for ref, _ in self.named_images(gate)]

    def bound(self, gate: Gate) -> Mapping[str, tuple[str, str]]:
        """Return nothing: another version may have bound other files."""
        return {}
