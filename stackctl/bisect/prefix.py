# SPDX-License-Identifier: Apache-2.0
"""Searching the first bad prefix of a row, where every answer is right.

Position 0 is the good end, position n the bad end. Both are tried before anything is
concluded. Between them each answer halves what is left; with several workers it is cut
into as many parts as there are workers, plus one.
"""

import math
from collections.abc import Collection
from itertools import pairwise
from typing import Literal

from stackctl.bisect.model import Finding, Verdict
from stackctl.errors import ExitCode


class PrefixSearch:
    """Finds the first bad position of `0..n`.

    Args:
        last: n, the position of the bad end; at least 1.
    """

    def __init__(self, last: int) -> None:
        self.last = last
        self._good: set[int] = set()
        self._bad: set[int] = set()
        self._skipped: set[int] = set()

    @property
    def bounds(self) -> tuple[int, int]:
        """The last position known to be good, and the first known to be bad after it.

        The ends stand for themselves until they are known.
        """
        high = min(self._bad, default=self.last)
        low = max((p for p in self._good if p < high), default=0)
        return low, high

    @property
    def open(self) -> list[int]:
        """Positions between the bounds that were not tried."""
        low, high = self.bounds
        return [p for p in range(low + 1, high) if p not in self._skipped]

    @property
    def verified(self) -> bool:
        """Whether both ends are what they should be."""
        return 0 in self._good and self.last in self._bad

    @property
    def _failed(self) -> bool:
        return (
            0 in self._bad
            or self.last in self._good
            or bool({0, self.last} & self._skipped)
        )

    @property
    def done(self) -> bool:
        """Whether nothing more needs to be tried."""
        return self._failed or (self.verified and not self.open)

    def wants(self, free: int, running: Collection[int]) -> list[int]:
        """Return the positions to try next, the ends first."""
        if self.done:
            return []
        ends = [
            p
            for p in (0, self.last)
            if p not in self._good | self._bad and p not in running
        ]
        wanted = ends[:free]
        taken = {*running, *wanted} - {0, self.last}
        low, high = self.bounds
        alone = not any(low < p < high for p in taken)
        while len(wanted) < free:
            parts = free - len(wanted) + 1 if alone else 2
            chosen = self._choose(taken, parts)
            if chosen is None:
                break
            wanted.append(chosen)
            taken.add(chosen)
        return wanted

    def _choose(self, taken: Collection[int], parts: int) -> int | None:
        """Return the position that tells most, beside those that are being tried.

        Args:
            taken: Positions that are being tried.
            parts: Into how many equal parts the widest gap is to be cut in the end.
        """
        low, high = self.bounds
        free = [p for p in self.open if p not in taken]
        if not free:
            return None
        cuts = sorted({low, high, *(p for p in taken if low < p < high)})
        # The widest part between two running positions, cut into equal parts.
        left, right = max(
            pairwise(cuts),
            key=lambda gap: (self._open_in(free, *gap) > 0, gap[1] - gap[0], -gap[0]),
        )
        target = left + (right - left) / parts
        inside = [p for p in free if left < p < right]
        return max(
            inside,
            key=lambda p: (self._worth(p, target, left, right), -abs(p - target), -p),
        )

    @staticmethod
    def _open_in(free: list[int], left: int, right: int) -> int:
        return sum(left < p < right for p in free)

    def _worth(self, place: int, target: float, left: int, right: int) -> float:
        """Return what a position is expected to tell.

        A position beside skipped ones is likely to be skipped too: what breaks a build
        stays broken until a later patch mends it. The more were skipped, the further
        away it pays to look.
        """
        near = [p for p in self._skipped if left <= p <= right]
        if not near:
            return 0.0
        distance = min(abs(place - p) for p in near)
        answered = distance / (len(near) + distance)
        share = (place - left) / (right - left)
        wish = (target - left) / (right - left)
        # Bits of an answer that splits at `share`, where `wish` is the best split.
        scaled = (
            share * 0.5 / wish if share <= wish else 1 - (1 - share) * 0.5 / (1 - wish)
        )
        return answered * _bits(scaled)

    def tell(self, key: int, verdict: Verdict | Literal["conflict"]) -> None:
        """Take an answer."""
        if verdict == "good":
            self._good.add(key)
        elif verdict == "bad":
            self._bad.add(key)
        else:
            self._skipped.add(key)

    def useless(self, running: Collection[int]) -> list[int]:
        """Return the running positions that can no longer change the answer."""
        if self._failed:
            return list(running)
        low, high = self.bounds
        ends = {0, self.last} - self._good - self._bad
        return [p for p in running if not low < p < high and p not in ends]

    def state(self) -> str:
        """Return in one line what is known and what is left."""
        low, high = self.bounds
        if not self.verified:
            return "checking both ends"
        left = high - low
        more = math.ceil(math.log2(left)) if left > 1 else 0
        skipped = len(self._skipped)
        steps = f", about {more} more step{'s' if more != 1 else ''}" if more else ""
        return f"{left} candidate{'s' if left > 1 else ''} left{steps}" + (
            f", {skipped} skipped" if skipped else ""
        )

    def finding(self) -> Finding[int]:
        """Return the answer; only once the search is done."""
        ended = self._ended_at_an_end()
        if ended is not None:
            return ended
        low, high = self.bounds
        notes = self._notes()
        if high - low == 1:
            return Finding(
                "patch",
                ExitCode.OK,
                "found",
                "the first bad patch",
                high,
                (high,),
                notes,
            )
        suspects = tuple(range(low + 1, high + 1))
        return Finding(
            "unresolved",
            ExitCode.INSUFFICIENT,
            "skipped",
            f"it is one of {len(suspects)} patches: those between could not be tried",
            None,
            suspects,
            notes,
        )

    def _ended_at_an_end(self) -> Finding[int] | None:
        if 0 in self._bad:
            return Finding(
                "unresolved",
                ExitCode.INVALID,
                "good-end-is-bad",
                "the good end is bad already: nothing between can be blamed",
            )
        if 0 in self._skipped:
            return Finding(
                "unresolved",
                ExitCode.NOT_TESTED,
                "good-end-skipped",
                "the good end cannot be tried: the command skipped it",
            )
        if self.last in self._good:
            return Finding(
                "unresolved",
                ExitCode.NO,
                "nothing-is-bad",
                "nothing is bad: the bad end is good",
            )
        if self.last in self._skipped:
            return Finding(
                "unresolved",
                ExitCode.NOT_TESTED,
                "bad-end-skipped",
                "the bad end cannot be tried: the command skipped it",
            )
        return None

    def _notes(self) -> tuple[str, ...]:
        _, high = self.bounds
        late = sorted(p for p in self._good if p > high)
        if not late:
            return ()
        return (
            "the answers are not one good and one bad part: some positions after the "
            "first bad one are good, so the command may be flaky (see --confidence), "
            "or a later patch mends what an earlier one broke",
        )


def _bits(share: float) -> float:
    """Return the entropy of a yes-or-no answer: bits."""
    if not 0 < share < 1:
        return 0.0
    return -share * math.log2(share) - (1 - share) * math.log2(1 - share)
