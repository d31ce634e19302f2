# SPDX-License-Identifier: Apache-2.0
"""Searching where answers are sometimes wrong.

A bad tree says `bad` with some rate, a good tree with a lower one; both rates are
unknown. First the two ends are run until their rates differ beyond doubt (Fisher's
exact test at looks that are declared beforehand). Then every run updates a probability
for each candidate, with the rates integrated out, and the next run goes where it tells
most: Horstein's noisy bisection ("Sequential transmission using noiseless feedback",
1963) with unknown error rates. It stops when one candidate has the stated confidence.
"""

import math
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from typing import Generic, Literal

from stackctl.bisect.model import Finding, K, Strategy, Verdict
from stackctl.errors import ExitCode

PRIOR = 0.5
"""Both parameters of the Beta prior of a rate (Jeffreys)."""

REPEATS = 20
"""Most runs of each end, by default."""

LEAST_REPEATS = 5
"""Fewest runs of each end: below, not even 0 of n and n of n differ beyond doubt."""

EFFORT = 4
"""Runs after which a search gives up, in units of the repeats per halving."""


def looks(repeats: int) -> tuple[int, ...]:
    """Return after how many runs of each end the two are compared.

    Args:
        repeats: Most runs of each end.
    """
    steps = {max(repeats // 4, LEAST_REPEATS), max(repeats // 2, LEAST_REPEATS)}
    return tuple(sorted({*steps, repeats}))


def fisher(bad_low: int, runs_low: int, bad_high: int, runs_high: int) -> float:
    """Return how likely so large a difference is where there is none.

    One-sided Fisher's exact test: the probability that at least `bad_high` of all bad
    runs fall on the high side.

    Args:
        bad_low: Bad runs of the end that should be good.
        runs_low: Its runs.
        bad_high: Bad runs of the end that should be bad.
        runs_high: Its runs.
    """
    bad = bad_low + bad_high
    total = math.comb(runs_low + runs_high, bad)
    upper = min(bad, runs_high)
    ways = sum(
        math.comb(runs_high, k) * math.comb(runs_low, bad - k)
        for k in range(bad_high, upper + 1)
        if 0 <= bad - k <= runs_low
    )
    return ways / total


def _log_beta(bad: float, good: float) -> float:
    return math.lgamma(bad) + math.lgamma(good) - math.lgamma(bad + good)


def _bits(share: float) -> float:
    if not 0 < share < 1:
        return 0.0
    return -share * math.log2(share) - (1 - share) * math.log2(1 - share)


@dataclass(slots=True)
class Tally:
    """Runs of one tree.

    Attributes:
        bad: How many were bad.
        good: How many were good.
    """

    bad: int = 0
    good: int = 0

    @property
    def runs(self) -> int:
        """How many there were."""
        return self.bad + self.good

    def add(self, verdict: str) -> None:
        """Count a run."""
        self.bad += verdict == "bad"
        self.good += verdict == "good"

    def __str__(self) -> str:
        return f"{self.bad} of {self.runs}"


class Ends:
    """Runs both ends until they differ beyond doubt, or certainly do not.

    Args:
        repeats: Most runs of each end.
        confidence: Confidence that is asked for, like 0.95.
    """

    def __init__(self, repeats: int, confidence: float) -> None:
        self.repeats = repeats
        self.low = Tally()
        self.high = Tally()
        self.skipped: str | None = None
        self._looks = looks(repeats)
        # Half of the error is for the ends, half for the search that follows.
        self._alpha = (1 - confidence) / 2 / len(self._looks)
        self._confidence = confidence
        self._look = 0

    @property
    def target(self) -> int:
        """Runs of each end until the next look."""
        return self._looks[min(self._look, len(self._looks) - 1)]

    @property
    def verdict(self) -> Literal["open", "separated", "overlap", "all-good", "all-bad"]:
        """What is known of the ends."""
        while True:
            if min(self.low.runs, self.high.runs) < self.target:
                return "open"
            p = fisher(self.low.bad, self.low.runs, self.high.bad, self.high.runs)
            if p < self._alpha:
                return "separated"
            if not self.low.good and not self.high.good:
                return "all-bad"
            if self._look == len(self._looks) - 1:
                return "all-good" if not self.low.bad + self.high.bad else "overlap"
            self._look += 1

    def missing(self, running_low: int, running_high: int) -> list[Literal[0, 1]]:
        """Return which ends to run, 0 for the good one, to reach the next look."""
        out: list[Literal[0, 1]] = []
        low = self.target - self.low.runs - running_low
        high = self.target - self.high.runs - running_high
        while low > 0 or high > 0:
            if low > 0:
                out.append(0)
                low -= 1
            if high > 0:
                out.append(1)
                high -= 1
        return out

    def problem(self) -> tuple[ExitCode, str, str] | None:
        """Return exit code, reason and sentence where no search is possible."""
        if self.skipped is not None:
            return (
                ExitCode.NOT_TESTED,
                f"{self.skipped}-end-skipped",
                f"the {self.skipped} end cannot be tried: the command skipped it",
            )
        verdict = self.verdict
        if verdict == "all-bad":
            return (
                ExitCode.INVALID,
                "good-end-is-bad",
                "the good end is bad already: nothing between can be blamed "
                f"({self.low} runs bad)",
            )
        if verdict == "all-good":
            rate = 1 - (1 - self._confidence) ** (1 / self.high.runs)
            return (
                ExitCode.NO,
                "nothing-is-bad",
                f"nothing is bad: {self.high} runs of the bad end; a fault that shows "
                f"in less than {100 * rate:.0f} % of the runs could have been missed",
            )
        if verdict == "overlap":
            return (
                ExitCode.INSUFFICIENT,
                "ends-overlap",
                f"noise: the ends do not differ ({self.low} runs of the good end are "
                f"bad, {self.high} of the bad end), so no patch can be blamed",
            )
        return None


class NoisySearch:
    """Finds the first bad position of `0..n` from answers that may be wrong.

    Args:
        last: n, the position of the bad end; at least 1.
        confidence: Probability at which a candidate is named, like 0.95.
        repeats: Most runs of each end before the search.
    """

    def __init__(
        self, last: int, confidence: float = 0.95, repeats: int = REPEATS
    ) -> None:
        self.last = last
        self.confidence = confidence
        self._enough = 1 - (1 - confidence) / 2
        self.ends = Ends(repeats, confidence)
        halvings = math.ceil(math.log2(last)) + 2 if last > 1 else 2
        self._limit = EFFORT * repeats * halvings
        self._tallies: dict[int, Tally] = {0: self.ends.low, last: self.ends.high}
        self._skipped: set[int] = set()
        self._mass: list[float] = []
        self._top = 1
        self._weigh()

    @property
    def runs(self) -> int:
        """Runs up to now that said good or bad."""
        return sum(tally.runs for tally in self._tallies.values())

    def tally(self, position: int) -> Tally:
        """Return the runs of a position."""
        return self._tallies.get(position, Tally())

    def _weigh(self) -> None:
        """Compute the probability of each candidate, and the segments."""
        bad_above = sum(t.bad for t in self._tallies.values())
        good_above = sum(t.good for t in self._tallies.values())
        bad_below = good_below = 0
        logs = []
        for culprit in range(1, self.last + 1):
            tally = self._tallies.get(culprit - 1)
            if tally is not None:
                bad_below += tally.bad
                good_below += tally.good
                bad_above -= tally.bad
                good_above -= tally.good
            logs.append(
                _log_beta(PRIOR + bad_below, PRIOR + good_below)
                + _log_beta(PRIOR + bad_above, PRIOR + good_above)
            )
        top = max(logs)
        weights = [math.exp(value - top) for value in logs]
        whole = sum(weights)
        # Index 0 stands for no candidate, so that positions and indices agree.
        self._mass = [0.0, *(weight / whole for weight in weights)]

    def segments(self) -> list[tuple[float, int, int]]:
        """Return mass, first and last candidate between positions that can be tried."""
        out = []
        start = 1
        for position in range(1, self.last + 1):
            if position not in self._skipped or position == self.last:
                mass = sum(self._mass[start : position + 1])
                out.append((mass, start, position))
                start = position + 1
        return out

    @property
    def best(self) -> tuple[float, int, int]:
        """The segment with the most mass."""
        return max(self.segments(), key=lambda each: (each[0], -each[1]))

    @property
    def _separated(self) -> bool:
        return self.ends.skipped is None and self.ends.verdict == "separated"

    @property
    def done(self) -> bool:
        """Whether nothing more needs to be tried."""
        if self.ends.skipped is not None:
            return True
        if self.ends.verdict == "open":
            return False
        if self.ends.verdict != "separated":
            return True
        mass, first, last = self.best
        if self.runs >= self._limit:
            return True
        if mass < self._enough:
            return False
        # Both neighbours were seen with the reviewer's own eyes.
        return all(self.tally(place).runs for place in (first - 1, last))

    def wants(self, free: int, running: Collection[int]) -> list[int]:
        """Return the positions to run next; some of them again."""
        if self.done:
            return []
        counts = Counter(running)
        if not self._separated:
            ends = self.ends.missing(counts[0], counts[self.last])
            return [self.last if each else 0 for each in ends[:free]]
        wanted: list[int] = []
        while len(wanted) < free:
            position = self._next(counts)
            wanted.append(position)
            counts[position] += 1
        return wanted

    def _next(self, running: Counter[int]) -> int:
        """Return the position whose answer is expected to tell most."""
        mass, first, last = self.best
        if mass >= self._enough:
            for place in (first - 1, last):
                if not self.tally(place).runs and not running[place]:
                    return place
        low, high = self._rates(first)
        # Ends count too: where all else is known, they sharpen the rates.
        best = (-1.0, self.last)
        below = 0.0
        for position in range(1, self.last):
            below += self._mass[position]
            if position in self._skipped:
                continue
            chance = below * high + (1 - below) * low
            tells = _bits(chance) - below * _bits(high) - (1 - below) * _bits(low)
            tells /= 1 + running[position]
            if tells > best[0] + 1e-12:
                best = (tells, position)
        return best[1]

    def _rates(self, culprit: int) -> tuple[float, float]:
        """Return the expected rates of bad runs below and from a candidate on."""
        low, high = Tally(), Tally()
        for position, tally in self._tallies.items():
            side = low if position < culprit else high
            side.bad += tally.bad
            side.good += tally.good
        return (
            (low.bad + PRIOR) / (low.runs + 2 * PRIOR),
            (high.bad + PRIOR) / (high.runs + 2 * PRIOR),
        )

    def tell(self, key: int, verdict: Verdict | Literal["conflict"]) -> None:
        """Take an answer."""
        if verdict in ("skip", "conflict"):
            if key in (0, self.last):
                self.ends.skipped = "bad" if key else "good"
            self._skipped.add(key)
            return
        self._tallies.setdefault(key, Tally()).add(verdict)
        self._weigh()

    def useless(self, running: Collection[int]) -> list[int]:
        """Return what need not be awaited: every run tells something."""
        return [position for position in running if position in self._skipped]

    def state(self) -> str:
        """Return in one line what is known and what is left."""
        if not self._separated:
            ends = self.ends
            return (
                f"comparing both ends: bad {ends.low} and {ends.high}, next look at "
                f"{ends.target} runs each"
            )
        mass, first, last = self.best
        which = str(last) if first == last else f"{first} to {last}"
        return f"{self.runs} runs, candidate {which} at {100 * mass:.1f} %"

    def finding(self) -> Finding[int]:
        """Return the answer; only once the search is done."""
        problem = self.ends.problem()
        if problem is not None:
            code, reason, message = problem
            kind: Literal["noise", "unresolved"] = "unresolved"
            if reason == "ends-overlap":
                kind = "noise"
            return Finding(kind, code, reason, message)
        mass, first, last = self.best
        low, high = self._rates(first)
        notes = (
            f"rates of bad runs: {100 * low:.0f} % before it, {100 * high:.0f} % from "
            "it on",
        )
        if mass >= self._enough and first == last:
            return Finding(
                "patch",
                ExitCode.OK,
                "found",
                "the first bad patch",
                last,
                (last,),
                notes,
                mass,
            )
        if mass >= self._enough:
            return Finding(
                "unresolved",
                ExitCode.INSUFFICIENT,
                "skipped",
                f"it is one of {last - first + 1} patches: those between could not be "
                "tried",
                None,
                tuple(range(first, last + 1)),
                notes,
                mass,
            )
        suspects = self._credible()
        return Finding(
            "noise",
            ExitCode.INSUFFICIENT,
            "runs-exhausted",
            f"noise: {self.runs} runs did not single one patch out of "
            f"{len(suspects)} with {100 * self.confidence:g} %",
            None,
            suspects,
            notes,
            mass,
        )

    def _credible(self) -> tuple[int, ...]:
        """Return the fewest candidates that have the confidence together."""
        out: list[int] = []
        mass = 0.0
        order = sorted(range(1, self.last + 1), key=lambda c: (-self._mass[c], c))
        for candidate in order:
            out.append(candidate)
            mass += self._mass[candidate]
            if mass >= self.confidence:
                break
        return tuple(sorted(out))


class Repeated(Generic[K]):
    """Lets a strategy that believes every answer work with a flaky command.

    Every key is run until its runs look like those of one end and not of the other.
    The error of a single decision is the stated error over the number of decisions.

    Args:
        inner: The strategy.
        good: Key of the good end.
        bad: Key of the bad end.
        confidence: Confidence that all decisions are right, like 0.95.
        decisions: About how many keys will be decided.
        repeats: Most runs of each end; any other key is given up after twice as many.
    """

    def __init__(
        self,
        inner: Strategy[K],
        good: K,
        bad: K,
        confidence: float,
        decisions: int,
        repeats: int = REPEATS,
    ) -> None:
        self.inner = inner
        self.ends = Ends(repeats, confidence)
        self.confidence = confidence
        error = (1 - confidence) / 2 / max(decisions, 1)
        self._odds = math.log((1 - error) / error)
        self._most = 2 * repeats
        self._good_key, self._bad_key = good, bad
        self._low, self._high = Tally(), Tally()
        self._tallies: dict[K, Tally] = {}
        self._decided: set[K] = set()
        self._opened = False

    @property
    def done(self) -> bool:
        """Whether nothing more needs to be tried."""
        if self.ends.skipped is not None or self.ends.verdict not in (
            "open",
            "separated",
        ):
            return True
        return self._opened and self.inner.done

    def wants(self, free: int, running: Collection[K]) -> list[K]:
        """Return the keys to run next; some of them again."""
        if self.done:
            return []
        counts = Counter(running)
        if not self._opened:
            ends = self.ends.missing(counts[self._good_key], counts[self._bad_key])
            return [self._bad_key if each else self._good_key for each in ends[:free]]
        wanted: list[K] = []
        keys = self.inner.wants(free, [])
        if not keys:
            return []
        # What is wanted most is run several times at once rather than something else.
        for key in keys:
            while len(wanted) < free and counts[key] < 3:
                wanted.append(key)
                counts[key] += 1
        return wanted

    def tell(self, key: K, verdict: Verdict | Literal["conflict"]) -> None:
        """Take an answer."""
        if verdict in ("skip", "conflict"):
            if not self._opened:
                self.ends.skipped = "good" if key == self._good_key else "bad"
            else:
                self._decide(key, verdict)
            return
        if not self._opened:
            (self.ends.low if key == self._good_key else self.ends.high).add(verdict)
            if self.ends.verdict == "separated":
                self._opened = True
                self._low = Tally(self.ends.low.bad, self.ends.low.good)
                self._high = Tally(self.ends.high.bad, self.ends.high.good)
                self._decide(self._good_key, "good")
                self._decide(self._bad_key, "bad")
            return
        if key in self._decided:
            return
        tally = self._tallies.setdefault(key, Tally())
        tally.add(verdict)
        odds = _evidence(self._high, tally) - _evidence(self._low, tally)
        if abs(odds) >= self._odds:
            # What is decided sharpens the rates for what comes.
            side = self._high if odds > 0 else self._low
            side.bad += tally.bad
            side.good += tally.good
            self._decide(key, "bad" if odds > 0 else "good")
        elif tally.runs >= self._most:
            self._decide(key, "skip")

    def _decide(self, key: K, verdict: Verdict | Literal["conflict"]) -> None:
        if key not in self._decided:
            self._decided.add(key)
            self.inner.tell(key, verdict)

    def useless(self, running: Collection[K]) -> list[K]:
        """Return what is decided or no longer wanted."""
        if not self._opened:
            return []
        return [
            key
            for key in running
            if key in self._decided or key in self.inner.useless([key])
        ]

    def state(self) -> str:
        """Return in one line what is known and what is left."""
        if not self._opened:
            ends = self.ends
            return (
                f"comparing both ends: bad {ends.low} and {ends.high}, next look at "
                f"{ends.target} runs each"
            )
        return self.inner.state()


def _evidence(side: Tally, seen: Tally) -> float:
    """Return the log-probability of runs by the rate that a side has shown."""
    return _log_beta(
        PRIOR + side.bad + seen.bad, PRIOR + side.good + seen.good
    ) - _log_beta(PRIOR + side.bad, PRIOR + side.good)
