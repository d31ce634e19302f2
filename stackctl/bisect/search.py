# SPDX-License-Identifier: Apache-2.0
"""A bisection from the series to the report."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path

from stackctl.bisect.command import Evaluator
from stackctl.bisect.driver import UNWATCHED, Driver, Watch, work_folders
from stackctl.bisect.journal import Journal
from stackctl.bisect.model import Finding, Probe
from stackctl.bisect.noise import REPEATS, NoisySearch
from stackctl.bisect.prefix import PrefixSearch
from stackctl.bisect.report import (
    Neighbour,
    Report,
    describe_patch,
    keep_folders,
    question_words,
    reproduce_prefix,
)
from stackctl.bisect.stack import Identities, Place, distinct, find_place, places_of
from stackctl.cache import Cache
from stackctl.compose.compare import make_composer
from stackctl.compose.compose import Composer
from stackctl.compose.model import Composition
from stackctl.errors import ExitCode, UsageError
from stackctl.model.canonical import canonical_json
from stackctl.model.ids import TreeId
from stackctl.model.series import Series
from stackctl.progress import SILENT, Progress


@dataclass(frozen=True, slots=True)
class Options:
    """How to bisect.

    Attributes:
        good: Place that is known to be good.
        bad: Place that is known to be bad.
        workers: How many trees are tried at once.
        log: File for the log; by default one in the cache.
        restart: Forget what an interrupted run learned.
        keep: Folder to leave the trees with and without the culprit in; None to leave
            none.
        work: Folder for the work folders; by default one in the cache.
        confidence: Confidence that is asked for where answers may be wrong, like
            0.95; None where every answer is believed.
        repeats: Most runs of each end, where answers may be wrong.
        offline: Never use the network.
    """

    good: str = "base"
    bad: str = "full"
    workers: int = 1
    log: Path | None = None
    restart: bool = False
    keep: Path | None = None
    work: Path | None = None
    offline: bool = False
    confidence: float | None = None
    repeats: int = REPEATS


@dataclass(frozen=True, slots=True)
class Ground:
    """What every kind of search stands on.

    Attributes:
        series: The series.
        cache: Store and facts.
        composer: Composes subsets.
        composition: The whole series, composed.
        places: Every point of it.
    """

    series: Series
    cache: Cache
    composer: Composer
    composition: Composition
    places: tuple[Place, ...]


def prepare(
    series: Series, cache: Cache, offline: bool = False, progress: Progress = SILENT
) -> Ground:
    """Compose the series, once.

    Args:
        series: The series.
        cache: Store and facts.
        offline: Never use the network.
        progress: Told what is being done.
    """
    composer = make_composer(series, cache, offline, progress)
    composition = composer.compose()
    return Ground(series, cache, composer, composition, places_of(composition))


def between(ground: Ground, good: str, bad: str) -> tuple[Place, ...]:
    """Return the candidates from the good end to the bad end.

    Args:
        ground: The composed series.
        good: Name of the good end.
        bad: Name of the bad end.

    Raises:
        UsageError: An end is unknown, or there is nothing between.
    """
    low, high = (find_place(ground.places, text) for text in (good, bad))
    found = distinct(ground.places[low : high + 1])
    if low >= high or len(found) < 2:
        raise UsageError(
            f"there is no patch between --good {good} and --bad {bad}"
            if low <= high
            else f"--good {good} comes after --bad {bad} in the series",
            kind="nothing-between",
            hint="the good end is the earlier one; by default base and full",
        )
    return found


@contextmanager
def driver_for(
    ground: Ground,
    evaluator: Evaluator,
    options: Options,
    *,
    watch: Watch = UNWATCHED,
    progress: Progress = SILENT,
) -> "Iterator[tuple[Driver[object], Journal]]":
    """Open the log and the work folders of a search.

    Args:
        ground: The composed series.
        evaluator: Tries a tree.
        options: How to bisect.
        watch: Is told what is done.
        progress: Told of long work.

    Yields:
        The driver and the log.
    """
    cache = ground.cache
    # Where every answer is believed, a tree is never run twice.
    repeat = options.confidence is not None
    question: Mapping[str, object] = {**evaluator.identity, "repeat": repeat}
    key = {"question": question, "project": str(ground.series.root.resolve())}
    digest = sha256(canonical_json(key)).hexdigest()
    state = cache.folder / "bisect" / digest[:24]
    outputs = state / "output"
    outputs.mkdir(parents=True, exist_ok=True)
    fresh = "never" if options.log else "finished"
    if options.restart:
        fresh = "always"
    log = options.log or state / "log.jsonl"
    if not log.parent.is_dir():
        raise UsageError(
            f"the folder of --log does not exist: {log.parent}",
            hint="make it first",
        )
    journal = Journal(log, question, fresh)
    try:
        parent = options.work or cache.folder / "bisect" / "work"
        with work_folders(cache.store, parent, options.workers) as folders:
            yield (
                Driver(
                    folders,
                    evaluator,
                    journal,
                    outputs,
                    repeat=repeat,
                    watch=watch,
                    progress=progress,
                ),
                journal,
            )
    finally:
        journal.close()


def find_patch(
    ground: Ground,
    evaluator: Evaluator,
    options: Options | None = None,
    *,
    watch: Watch = UNWATCHED,
    progress: Progress = SILENT,
) -> Report:
    """Find the first bad patch between two places.

    Args:
        ground: The composed series.
        evaluator: Tries a tree.
        options: How to bisect.
        watch: Is told what is done.
        progress: Told of long work.

    Returns:
        The report.

    Raises:
        UsageError: An end is unknown, or the command cannot be run.
        AbortedError: The command asked to stop.
    """
    options = options or Options()
    row = between(ground, options.good, options.bad)
    identities = Identities(ground.cache, ground.composition)

    def resolve(position: int) -> Probe:
        place = row[position]
        return Probe(
            place.name,
            place.tree,
            place.commit,
            identities.composition(place),
            sets_below(ground, place),
        )

    def search(driver: "Driver[object]", log: str) -> Report:
        strategy = prefix_strategy(len(row) - 1, options)
        driver.drive(strategy, resolve, 0)  # type: ignore[arg-type]
        words = question_words(evaluator.identity, options.confidence, options.repeats)
        finding = strategy.finding()
        problem = unsure_end(finding.reason, (row[0].tree, row[-1].tree), driver)
        return _report(ground, row, problem or finding, driver, words, log)

    return conduct(ground, evaluator, options, search, watch=watch, progress=progress)


def conduct(
    ground: Ground,
    evaluator: Evaluator,
    options: Options,
    search: Callable[["Driver[object]", str], Report],
    *,
    watch: Watch,
    progress: Progress,
) -> Report:
    """Run a search with its log, and keep what was asked for.

    Args:
        ground: The composed series.
        evaluator: Tries a tree.
        options: How to bisect.
        search: The search itself: drives the driver, and reports; it is given the
            path of the log, too.
        watch: Is told what is done.
        progress: Told of long work.

    Returns:
        The report.

    Raises:
        UsageError: The command cannot be run.
        AbortedError: The command asked to stop.
    """
    with driver_for(ground, evaluator, options, watch=watch, progress=progress) as (
        driver,
        journal,
    ):
        report = search(driver, str(journal.path))
        journal.finish(report.result())
    return keep(ground, report, options.keep, progress)


def prefix_strategy(last: int, options: Options) -> PrefixSearch | NoisySearch:
    """Return the search over `0..last` that the options ask for."""
    if options.confidence is None:
        return PrefixSearch(last)
    return NoisySearch(last, options.confidence, options.repeats)


def unsure_end(
    reason: str, trees: Iterable[TreeId | None], driver: "Driver[object]"
) -> Finding[int] | None:
    """Return the finding where a gate cannot tell an end from the other.

    A gate that ran and found too little evidence did not skip: its figures overlap.

    Args:
        reason: Why the search ended.
        trees: Hex ids of the ends' trees; None for one that does not compose.
        driver: What tried them.
    """
    found = [driver.known.get(tree) for tree in trees if tree is not None]
    unsure = [known for known in found if known is not None and known.answer.unsure]
    if not reason.endswith("-end-skipped") or not unsure:
        return None
    known = unsure[0]
    return Finding(
        "noise",
        ExitCode.INSUFFICIENT,
        "ends-overlap",
        "noise: the gate cannot tell the ends apart, so nothing between can be blamed "
        f"({known.name}: {known.answer.why})",
    )


def sets_below(ground: Ground, place: Place) -> tuple[str, ...]:
    """Return the sets that a prefix holds, the last one perhaps in part."""
    steps = ground.composition.steps[: place.steps]
    return tuple(dict.fromkeys(step.set for step in steps if step.commit))


def _report(
    ground: Ground,
    row: tuple[Place, ...],
    finding: Finding[int],
    driver: "Driver[object]",
    words: str,
    log: str,
) -> Report:
    store = ground.cache.store
    report = Report(
        kind=finding.kind,
        code=finding.code,
        reason=finding.reason,
        message=finding.message,
        candidates=len(row) - 1,
        log=log,
        work=driver.work,
        evaluations=tuple(driver.evaluations),
        suspects=tuple(row[position].label for position in finding.suspects),
        confidence=finding.confidence,
        notes=finding.notes,
        details={"ends": {"good": row[0].document(), "bad": row[-1].document()}},
    )
    if finding.culprit is None:
        return replace(report, **_unresolved(row, finding, driver, words))  # type: ignore[arg-type]
    before, after = row[finding.culprit - 1], row[finding.culprit]
    return replace(
        report,
        message=f"{finding.message}: {after.label}",
        culprits=(describe_patch(ground.series, store, before, after),),
        good=_neighbour(before, driver),
        bad=_neighbour(after, driver),
        reproduce=(reproduce_prefix(before, after, words),),
    )


def _unresolved(
    row: tuple[Place, ...],
    finding: Finding[int],
    driver: "Driver[object]",
    words: str,
) -> dict[str, object]:
    low, high = 0, len(row) - 1
    if finding.suspects:
        low, high = finding.suspects[0] - 1, finding.suspects[-1]
    return {
        "good": _neighbour(row[low], driver),
        "bad": _neighbour(row[high], driver),
        "reproduce": (reproduce_prefix(row[low], row[high], words),),
    }


def _neighbour(place: Place, driver: "Driver[object]") -> Neighbour:
    return neighbour(place.name, place.tree, driver)


def neighbour(name: str, tree: TreeId, driver: "Driver[object]") -> Neighbour:
    """Return one side of a culprit, with all that its tree was tried.

    Args:
        name: Place of the series, or names of sets.
        tree: Hex id of the tree.
        driver: What tried it.
    """
    runs = [each for each in driver.evaluations if each.tree == tree]
    return Neighbour(name, tree, tuple(runs))


def keep(
    ground: Ground, report: Report, parent: Path | None, progress: Progress = SILENT
) -> Report:
    """Leave the trees with and without the culprit for the user.

    Args:
        ground: The composed series.
        report: What was found.
        parent: Folder to put them in; None to leave none.
        progress: Told the files written.
    """
    if parent is None or report.good is None or report.bad is None:
        return report
    folders = {"without": report.good.tree, "with": report.bad.tree}
    kept, notes = keep_folders(ground.cache.store, parent, folders, progress)
    return replace(report, kept=kept, notes=report.notes + notes)
