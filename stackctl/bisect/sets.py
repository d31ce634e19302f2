# SPDX-License-Identifier: Apache-2.0
"""A search over subsets, from the series to the report."""

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from stackctl.bisect.command import Evaluator
from stackctl.bisect.driver import UNWATCHED, Driver, Watch
from stackctl.bisect.model import Probe
from stackctl.bisect.noise import Repeated
from stackctl.bisect.report import (
    Culprit,
    Neighbour,
    Report,
    commit_facts,
    describe_patch,
    describe_set,
)
from stackctl.bisect.search import (
    Ground,
    Options,
    conduct,
    neighbour,
    prefix_strategy,
    unsure_end,
)
from stackctl.bisect.stack import Identities, distinct, find_place, places_of
from stackctl.bisect.subsets import (
    Fault,
    Subset,
    SubsetFinding,
    SubsetSearch,
    join_names,
)
from stackctl.compose.compare import tree_diff
from stackctl.compose.compose import Composer
from stackctl.compose.model import Composition
from stackctl.compose.plan import Selection
from stackctl.errors import ConflictError, ExitCode, UsageError
from stackctl.progress import SILENT, Progress


@dataclass(frozen=True, slots=True)
class _Choice:
    """Which sets may be left out.

    Attributes:
        fixed: Sets of the good end, always in; and those that add nothing.
        free: The others, in the series' order.
    """

    fixed: tuple[str, ...]
    free: tuple[str, ...]


class Subsets:
    """Composes subsets, each once.

    Args:
        composer: Composes subsets.
        fixed: Sets that are always in.
    """

    def __init__(self, composer: Composer, fixed: tuple[str, ...]) -> None:
        self._composer = composer
        self._fixed = fixed
        self._made: dict[Subset, Composition | None] = {}
        self.conflicts: dict[Subset, str] = {}

    def compose(self, subset: Subset) -> Composition | None:
        """Compose a subset; None where its patches conflict."""
        if subset not in self._made:
            names = {*self._fixed, *subset}
            only = tuple(s.name for s in self._composer.series.sets if s.name in names)
            selection = Selection(only=only) if only else Selection(base_only=True)
            try:
                self._made[subset] = self._composer.compose(selection)
            except ConflictError as error:
                self._made[subset] = None
                self.conflicts[subset] = error.message
        return self._made[subset]

    def name(self, subset: Subset) -> str:
        """Return the name of a subset for people."""
        names = {*subset}
        ordered = [s.name for s in self._composer.series.sets if s.name in names]
        if not self._fixed or not ordered:
            return "+".join(ordered) or "the good end"
        return "the good end+" + "+".join(ordered)

    def probe(self, subset: Subset) -> Probe | None:
        """Return what is tried for a subset; None where it does not compose."""
        made = self.compose(subset)
        if made is None or made.commit is None or made.composition is None:
            return None
        held = dict.fromkeys(step.set for step in made.steps if step.commit)
        return Probe(
            self.name(subset), made.tree, made.commit, made.composition, tuple(held)
        )

    def selection(self, subset: Subset) -> str:
        """Return the options of `compose` that make a subset."""
        names = {*self._fixed, *subset}
        only = [
            s.name for s in self._composer.series.sets if s.name in names and s.composed
        ]
        return f"--only {','.join(only)}" if only else "--base-only"


def _choice(ground: Ground, options: Options) -> _Choice:
    """Return which sets lie between the ends, which must be ends of sets."""
    ends = []
    for option, text in (("good", options.good), ("bad", options.bad)):
        index = find_place(ground.places, text)
        place = ground.places[index]
        after = ground.places[index + 1 : index + 2]
        if after and place.set is not None and after[0].set == place.set:
            raise UsageError(
                f"--{option} {text} is in the middle of `{place.set}`",
                kind="half-a-set",
                hint=f"--subsets takes whole sets: name `{place.set}` or the one "
                "before it",
            )
        ends.append(place)
    low, high = ends
    sets = ground.series.sets
    names = [each.name for each in sets]
    start = names.index(low.set) + 1 if low.set else 0
    stop = names.index(high.set) + 1 if high.set else 0
    free = tuple(each.name for each in sets[start:stop] if each.composed)
    if not free:
        raise UsageError(
            f"there is no set between --good {options.good} and --bad {options.bad}",
            kind="nothing-between",
            hint="the good end is the earlier one; by default base and full",
        )
    idle = [each.name for each in sets[start:stop] if not each.composed]
    return _Choice((*names[:start], *idle), free)


def find_set(
    ground: Ground,
    evaluator: Evaluator,
    options: Options | None = None,
    *,
    watch: Watch = UNWATCHED,
    progress: Progress = SILENT,
) -> Report:
    """Find the smallest bad subset of the sets between two places.

    Args:
        ground: The composed series.
        evaluator: Tries a tree.
        options: How to bisect.
        watch: Is told what is done.
        progress: Told of long work.

    Returns:
        The report.

    Raises:
        UsageError: An end is unknown or no end of a set, or the command cannot be run.
        AbortedError: The command asked to stop.
    """
    options = options or Options()
    choice = _choice(ground, options)
    subsets = Subsets(ground.composer, choice.fixed)
    requires = {each.name: each.requires for each in ground.series.sets}

    def search(driver: "Driver[object]", log: str) -> Report:
        strategy = SubsetSearch(choice.free, requires)
        finding = _drive(driver, strategy, subsets, options)
        made = [subsets.compose(end) for end in (frozenset[str](), strategy.whole)]
        trees = [each.tree if each else None for each in made]
        if problem := unsure_end(finding.reason, trees, driver):
            finding = SubsetFinding(
                "noise", problem.code, problem.reason, problem.message
            )
        report = _report(ground, finding, strategy, subsets, driver, evaluator, log)
        if options.confidence is not None and finding.code == ExitCode.OK:
            report = replace(report, confidence=options.confidence)
        if finding.kind == "set":
            report = _within(ground, report, finding, subsets, driver, options)
        return report

    return conduct(ground, evaluator, options, search, watch=watch, progress=progress)


def _drive(
    driver: "Driver[object]",
    search: SubsetSearch,
    subsets: Subsets,
    options: Options,
) -> SubsetFinding:
    """Run a search, with repetitions where answers may be wrong."""
    nothing: Subset = frozenset()
    if options.confidence is None:
        driver.drive(search, subsets.probe, nothing)  # type: ignore[arg-type]
        return search.finding()
    # Both ends, every set alone, and what it takes to make the rest small.
    decisions = 4 * len(search.rules.sets) + 2
    repeated = Repeated(
        search,
        nothing,
        search.whole,
        options.confidence,
        decisions,
        options.repeats,
    )
    driver.drive(repeated, subsets.probe, nothing)  # type: ignore[arg-type]
    problem = repeated.ends.problem()
    if problem is None:
        return search.finding()
    code, reason, message = problem
    kind: Literal["noise", "unresolved"] = "unresolved"
    if reason == "ends-overlap":
        kind = "noise"
    return SubsetFinding(kind, code, reason, message)


def _report(
    ground: Ground,
    finding: SubsetFinding,
    strategy: SubsetSearch,
    subsets: Subsets,
    driver: "Driver[object]",
    evaluator: Evaluator,
    log: str,
) -> Report:
    rules = strategy.rules
    first = finding.faults[0] if finding.faults else None
    named: tuple[str, ...] = ()
    suspects: tuple[str, ...] = ()
    if first is not None and finding.kind == "unresolved":
        suspects = rules.tops(first.subset)
    elif first is not None:
        named = first.culprits or rules.tops(first.subset)
    good, bad = finding.good, finding.bad
    if first is None:
        good, bad = frozenset[str](), strategy.whole
    faults = [
        {
            "sets": list(rules.ordered(fault.subset)),
            "culprits": list(fault.culprits),
            "carriers": list(fault.carriers),
            "open": list(fault.open),
        }
        for fault in finding.faults
    ]
    return Report(
        kind=finding.kind,
        code=finding.code,
        reason=finding.reason,
        message=finding.message,
        candidates=len(rules.sets),
        log=log,
        work=driver.work,
        evaluations=tuple(driver.evaluations),
        culprits=tuple(_describe(ground, subsets, name, bad) for name in named),
        needs_without=finding.without,
        suspects=suspects,
        good=_neighbour(good, subsets, driver),
        bad=_neighbour(bad, subsets, driver),
        not_composing=tuple(
            {"subset": subsets.name(key), "sets": list(rules.ordered(key)), "why": why}
            for key, why in subsets.conflicts.items()
        ),
        reproduce=_reproduce(subsets, bad, evaluator.identity),
        notes=finding.notes,
        details={
            "faults": faults,
            "left_out": {
                name: strategy.answers.get(rules.without(strategy.whole, [name]))
                for name in rules.sets
            },
        },
    )


def _describe(
    ground: Ground,
    subsets: Subsets,
    name: str,
    bad: Subset | None,
) -> Culprit:
    """Return what there is to say of a set that is part of a bad subset."""
    culprit = describe_set(ground.series, name)
    made = subsets.compose(bad) if bad is not None else None
    if bad is None or made is None:
        return culprit
    store = ground.cache.store
    commits = [s.commit for s in made.steps if s.set == name and s.commit]
    if not commits:
        return culprit
    facts = [commit_facts(store.commit(bytes.fromhex(each))) for each in commits]
    authors = list(dict.fromkeys(author for author, _, _ in facts))
    steps = [step for step in made.steps if step.commit]
    start = next(n for n, step in enumerate(steps) if step.set == name)
    before = steps[start - 1].tree if start else made.base.tree
    after = next(step.tree for step in reversed(steps) if step.set == name)
    return replace(
        culprit,
        author=", ".join(authors),
        date=facts[-1][1],
        commit=commits[-1],
        diff=tree_diff(store, before, after),
    )


def _neighbour(
    subset: Subset | None, subsets: Subsets, driver: "Driver[object]"
) -> Neighbour | None:
    made = subsets.compose(subset) if subset is not None else None
    if subset is None or made is None:
        return None
    return neighbour(subsets.name(subset), made.tree, driver)


def _reproduce(
    subsets: Subsets, bad: Subset | None, identity: Mapping[str, object]
) -> tuple[str, ...]:
    run = identity.get("run")
    if bad is None:
        return ()
    if run is None:
        options = subsets.selection(bad).partition(" ")
        arm = f"only:{options[2]}" if options[2] else "base"
        return (f"stackctl gate run {identity.get('gate')} --arm ARM={arm}",)
    return (
        f"stackctl compose -q {subsets.selection(bad)} --out bad && "
        f"(cd bad && sh -c {shlex.quote(str(run))})",
    )


def _within(
    ground: Ground,
    report: Report,
    finding: SubsetFinding,
    subsets: Subsets,
    driver: "Driver[object]",
    options: Options,
) -> Report:
    """Find the first bad patch within a bad set of several patches.

    The smallest bad subset ends with that set: what it requires stands before it.
    """
    fault: Fault = finding.faults[0]
    name = fault.culprits[0]
    made = subsets.compose(fault.subset)
    if made is None:
        return report
    places = places_of(made)
    own = [n for n, place in enumerate(places) if place.set == name]
    if len(own) < 2 or own != list(range(own[0], len(places))):
        return report
    row = distinct(places[own[0] - 1 :])
    if len(row) < 3:
        return report
    identities = Identities(ground.cache, made)
    held = join_names(dict.fromkeys(step.set for step in made.steps if step.commit))

    def resolve(position: int) -> Probe:
        place = row[position]
        return Probe(
            f"{place.name} of {held}",
            place.tree,
            place.commit,
            identities.composition(place),
            tuple(dict.fromkeys(s.set for s in made.steps[: place.steps] if s.commit)),
        )

    strategy = prefix_strategy(len(row) - 1, options)
    driver.drive(strategy, resolve, 0)  # type: ignore[arg-type]
    found = strategy.finding()
    report = replace(report, work=driver.work, evaluations=tuple(driver.evaluations))
    if found.culprit is None:
        return replace(report, notes=(*report.notes, f"within it: {found.message}"))
    before, after = row[found.culprit - 1], row[found.culprit]
    patch = describe_patch(ground.series, ground.cache.store, before, after)
    return replace(
        report,
        details={**report.details, "within": patch.document()},
        notes=(*report.notes, f"the first bad patch within it: {patch.patch}"),
    )
