# SPDX-License-Identifier: Apache-2.0
"""Do the required gates have fresh, qualified receipts from accepted signers?"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from stackctl.cache import Cache
from stackctl.model.ids import Sha256
from stackctl.model.series import Series
from stackctl.progress import SILENT, Progress


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
    names = set(composed)
    found: dict[str, list[str]] = {}
    for patch_set in series.sets:
        if patch_set.name in names:
            for gate in patch_set.gates.required:
                found.setdefault(gate, []).append(patch_set.name)
    return found


def gate_states(
    series: Series,
    composed: Iterable[str],
    cache: Cache,
    *,
    offline: bool = False,
    progress: Progress = SILENT,
) -> list[GateState]:
    """Find what answers each required gate.

    Args:
        series: The series.
        composed: Names of the sets that the composition has.
        cache: Store and facts.
        offline: Never use the network.
        progress: Told what is being done.
    """
    return [
        GateState(gate, tuple(sets), False, f"no receipt of {gate} below receipts/")
        for gate, sets in required_gates(series, composed).items()
    ]
