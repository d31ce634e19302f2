# SPDX-License-Identifier: Apache-2.0
"""Searching the smallest bad subset of the sets, closed under what they require.

First each set is left out alone, with those that require it. Then delta debugging
(Zeller and Hildebrandt, "Simplifying and Isolating Failure-Inducing Input", 2002)
makes a bad subset smaller until no set can be taken out of it. Only subsets that
hold what their sets require are tried; those whose patches conflict say nothing about
good and bad, and are told apart.
"""

from collections.abc import Collection, Generator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from stackctl.bisect.model import Verdict
from stackctl.errors import ExitCode

Subset = frozenset[str]
Reply = Verdict | Literal["conflict"]
_Ask = Generator["_Batch", None, None]


@dataclass(frozen=True, slots=True)
class _Batch:
    """Subsets whose answers are needed before the search goes on.

    Attributes:
        keys: The subsets, in the order in which they count.
        until_bad: Whether the first bad one, in this order, is enough.
        what: What is being done, for people.
    """

    keys: tuple[Subset, ...]
    until_bad: bool
    what: str


@dataclass(frozen=True, slots=True)
class Fault:
    """A smallest bad subset.

    Attributes:
        subset: All sets of it, with those that are only required.
        culprits: The sets without which it is good.
        carriers: Sets without which it does not compose, though nothing requires them.
        open: Sets of which it could not be told, because the subset without them was
            skipped.
    """

    subset: Subset
    culprits: tuple[str, ...]
    carriers: tuple[str, ...] = ()
    open: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SubsetFinding:
    """The answer of a search over subsets.

    Attributes:
        kind: `set`, `interaction`, `noise` or `unresolved`.
        code: Exit code of the contract.
        reason: Stable word for why.
        message: One sentence.
        faults: Independent faults, the first one found first.
        without: Sets whose presence hides the fault.
        good: The nearest subset that is good.
        bad: The smallest subset that is bad.
        notes: Further sentences.
    """

    kind: Literal["set", "interaction", "noise", "unresolved"]
    code: ExitCode
    reason: str
    message: str
    faults: tuple[Fault, ...] = ()
    without: tuple[str, ...] = ()
    good: Subset | None = None
    bad: Subset | None = None
    notes: tuple[str, ...] = ()


class Requirements:
    """Which sets need which.

    Args:
        sets: The sets, in the series' order.
        requires: The names that each requires; names of other sets are ignored.
    """

    def __init__(
        self, sets: Sequence[str], requires: Mapping[str, Collection[str]]
    ) -> None:
        self.sets = tuple(sets)
        self._down: dict[str, Subset] = {}
        for name in self.sets:
            below = {name}
            for other in requires.get(name, ()):
                below |= self._down.get(other, frozenset())
            self._down[name] = frozenset(below)

    def closed(self, names: Collection[str]) -> Subset:
        """Return sets with all that they require."""
        out: set[str] = set()
        for name in names:
            out |= self._down[name]
        return frozenset(out)

    def dependents(self, name: str) -> Subset:
        """Return a set and all that require it."""
        return frozenset(other for other in self.sets if name in self._down[other])

    def without(self, subset: Subset, names: Collection[str]) -> Subset:
        """Return what is left of a subset without some sets and their dependents."""
        gone: set[str] = set()
        for name in names:
            gone |= self.dependents(name)
        return subset - gone

    def tops(self, subset: Subset) -> tuple[str, ...]:
        """Return the sets of a subset that no other of it requires."""
        return tuple(
            name
            for name in self.sets
            if name in subset and self.dependents(name) & subset == {name}
        )

    def ordered(self, subset: Collection[str]) -> tuple[str, ...]:
        """Return names in the series' order."""
        return tuple(name for name in self.sets if name in subset)


class SubsetSearch:
    """Finds the smallest bad subsets.

    Args:
        sets: The sets that may be left out, in the series' order.
        requires: The names that each requires.
    """

    def __init__(
        self, sets: Sequence[str], requires: Mapping[str, Collection[str]]
    ) -> None:
        self.rules = Requirements(sets, requires)
        self.answers: dict[Subset, Reply] = {}
        self._finding: SubsetFinding | None = None
        self._steps = self._search()
        self._batch: _Batch | None = None
        self._advance()

    @property
    def whole(self) -> Subset:
        """All sets."""
        return frozenset(self.rules.sets)

    @property
    def done(self) -> bool:
        """Whether nothing more needs to be tried."""
        return self._finding is not None

    def finding(self) -> SubsetFinding:
        """Return the answer; only once the search is done."""
        assert self._finding is not None
        return self._finding

    def wants(self, free: int, running: Collection[Subset]) -> list[Subset]:
        """Return the subsets to try next."""
        if self._batch is None:
            return []
        keys = [
            key
            for key in self._batch.keys
            if key not in self.answers and key not in running
        ]
        return keys[:free]

    def tell(self, key: Subset, verdict: Reply) -> None:
        """Take an answer."""
        self.answers[key] = verdict
        self._advance()

    def useless(self, running: Collection[Subset]) -> list[Subset]:
        """Return the running subsets that are not needed any more."""
        needed = self._batch.keys if self._batch is not None else ()
        return [key for key in running if key not in needed]

    def state(self) -> str:
        """Return in one line what is known and what is left."""
        if self._batch is None:
            return "done"
        known = sum(key in self.answers for key in self._batch.keys)
        return f"{self._batch.what}, {known} of {len(self._batch.keys)} known"

    def _advance(self) -> None:
        """Go on as far as the answers allow."""
        while self._finding is None and (
            self._batch is None or self._settled(self._batch)
        ):
            try:
                self._batch = next(self._steps)
            except StopIteration as stop:
                self._batch = None
                self._finding = stop.value
                return

    def _settled(self, batch: _Batch) -> bool:
        for key in batch.keys:
            if key not in self.answers:
                return False
            if batch.until_bad and self.answers[key] == "bad":
                return True
        return True

    def _first_bad(
        self, keys: Sequence[Subset], what: str
    ) -> Generator[_Batch, None, Subset | None]:
        """Ask for subsets until one is bad, and return the first one that is."""
        unique = tuple(dict.fromkeys(keys))
        if unique:
            yield _Batch(unique, True, what)
        return next((k for k in unique if self.answers.get(k) == "bad"), None)

    def _all(self, keys: Sequence[Subset], what: str) -> _Ask:
        unique = tuple(dict.fromkeys(keys))
        if unique:
            yield _Batch(unique, False, what)

    def _search(self) -> Generator[_Batch, None, SubsetFinding]:
        rules, nothing, whole = self.rules, frozenset[str](), self.whole
        yield from self._all([nothing], "checking both ends")
        problem = self._bad_end(nothing)
        if problem is not None:
            return problem
        yield from self._all([whole], "checking both ends")
        if self.answers[whole] == "skip":
            return SubsetFinding(
                "unresolved",
                ExitCode.NOT_TESTED,
                "bad-end-skipped",
                "the bad end cannot be tried: the command skipped it",
            )
        alone = {name: rules.without(whole, [name]) for name in rules.sets}
        yield from self._all(list(alone.values()), "leaving out each set alone")
        if self.answers[whole] == "good":
            return (yield from self._hidden(alone))
        return (yield from self._faults(alone))

    def _bad_end(self, nothing: Subset) -> SubsetFinding | None:
        if self.answers[nothing] == "bad":
            return SubsetFinding(
                "unresolved",
                ExitCode.INVALID,
                "good-end-is-bad",
                "the good end is bad already: no set can be blamed",
            )
        if self.answers[nothing] != "good":
            return SubsetFinding(
                "unresolved",
                ExitCode.NOT_TESTED,
                "good-end-skipped",
                "the good end cannot be tried: the command skipped it",
            )
        return None

    def _faults(
        self, alone: Mapping[str, Subset]
    ) -> Generator[_Batch, None, SubsetFinding]:
        """Find one fault, and then those that stay without it."""
        rules = self.rules
        needed = [name for name in rules.sets if self.answers[alone[name]] == "good"]
        start = self.whole
        core = rules.closed(needed)
        if needed and core != start:
            found = yield from self._first_bad([core], "trying only what is needed")
            start = found or start
        faults: list[Fault] = []
        while True:
            fault = yield from self._smallest(start)
            faults.append(fault)
            named = [name for each in faults for name in each.culprits]
            # Where none could be told apart, leaving all out would prove nothing.
            rest = rules.without(self.whole, named) if fault.culprits else frozenset()
            if not rest:
                break
            more = yield from self._first_bad([rest], "looking for further faults")
            if more is None:
                break
            start = more
        return self._named(tuple(faults))

    def _hidden(
        self, alone: Mapping[str, Subset]
    ) -> Generator[_Batch, None, SubsetFinding]:
        """Nothing is bad as a whole; find what is bad where a set is left out."""
        rules = self.rules
        for name in rules.sets:
            if self.answers[alone[name]] != "bad":
                continue
            fault = yield from self._smallest(alone[name])
            healed = rules.closed([*fault.subset, name])
            yield from self._all([healed], f"adding {name} again")
            hides = self.answers[healed] == "good"
            good = healed if hides else self.whole
            names = join_names(fault.culprits or rules.tops(fault.subset))
            return SubsetFinding(
                "interaction",
                ExitCode.OK,
                "needs-without",
                f"the whole is good, but {names} without {name} is bad: "
                f"it needs {name}",
                (fault,),
                (name,),
                good,
                fault.subset,
                ()
                if hides
                else (f"{name} alone does not mend it: further sets are needed",),
            )
        return SubsetFinding(
            "unresolved",
            ExitCode.NO,
            "nothing-is-bad",
            "nothing is bad: neither the whole nor the whole without any one set",
        )

    def _smallest(self, bad: Subset) -> Generator[_Batch, None, Fault]:
        """Make a bad subset smaller until no set can be left out."""
        rules = self.rules
        parts = 2
        while len(bad) > 1:
            units = rules.ordered(bad)
            parts = min(parts, len(units))
            cuts = [len(units) * n // parts for n in range(parts + 1)]
            chunks = [units[low:high] for low, high in pairwise(cuts)]
            keys = [rules.closed(chunk) for chunk in chunks]
            keys += [rules.without(bad, chunk) for chunk in chunks]
            smaller = [key for key in keys if key and len(key) < len(bad)]
            what = f"making {len(bad)} sets fewer"
            found = yield from self._first_bad(smaller, what)
            if found is not None:
                parts = max(parts - 1, 2) if len(found) > len(bad) // parts else 2
                bad = found
            elif parts >= len(units):
                break
            else:
                parts = min(2 * parts, len(units))
        return (yield from self._explain(bad))

    def _explain(self, bad: Subset) -> Generator[_Batch, None, Fault]:
        """Tell the sets that make it bad from those that only carry them."""
        rules = self.rules
        tops = rules.tops(bad)
        rest = {name: rules.without(bad, [name]) for name in tops}
        yield from self._all(list(rest.values()), "taking out each of what is left")
        by_reply: dict[Reply, list[str]] = {}
        for name in tops:
            by_reply.setdefault(self.answers[rest[name]], []).append(name)
        return Fault(
            bad,
            tuple(by_reply.get("good", ())),
            tuple(by_reply.get("conflict", ())),
            tuple(by_reply.get("skip", ())),
        )

    def _named(self, faults: tuple[Fault, ...]) -> SubsetFinding:
        rules, first = self.rules, faults[0]
        notes = []
        for fault in faults:
            for name in fault.carriers:
                names = join_names(fault.culprits or rules.tops(fault.subset))
                notes.append(
                    f"{names} does not compose without {name}, though it does not "
                    "require it"
                )
            for name in fault.open:
                notes.append(f"the subset without {name} was skipped")
        for fault in faults[1:]:
            names = join_names(fault.culprits or rules.tops(fault.subset))
            notes.append(f"another fault stays without it: {names}")
        named = first.culprits or rules.tops(first.subset)
        if not first.culprits:
            return SubsetFinding(
                "unresolved",
                ExitCode.INSUFFICIENT,
                "not-told-apart",
                f"{join_names(named)} is bad together, and could not be taken apart",
                faults,
                bad=first.subset,
                notes=tuple(notes),
            )
        good = rules.without(first.subset, [named[0]])
        if first.open:
            # Sets that could not be left out may be innocent: none is accused.
            return SubsetFinding(
                "unresolved",
                ExitCode.INSUFFICIENT,
                "not-told-apart",
                f"{join_names(named)} is bad, alone or together with "
                f"{join_names(first.open)}: that could not be tried",
                faults,
                (),
                good,
                first.subset,
                tuple(notes),
            )
        if len(named) == 1:
            return SubsetFinding(
                "set",
                ExitCode.OK,
                "found",
                f"the bad set: {named[0]}",
                faults,
                (),
                good,
                first.subset,
                tuple(notes),
            )
        return SubsetFinding(
            "interaction",
            ExitCode.OK,
            "found",
            f"the interaction of {join_names(named)}: each is good without the other"
            + ("s" if len(named) > 2 else ""),
            faults,
            (),
            good,
            first.subset,
            tuple(notes),
        )


def join_names(names: Collection[str]) -> str:
    """Return names as a sentence has them."""
    *most, last = names
    return f"{', '.join(most)} and {last}" if most else last
