# SPDX-License-Identifier: Apache-2.0
"""The tree that a lock expects in an image, and trees that explain another."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain, combinations, islice
from pathlib import Path

from stackctl.cache import Cache
from stackctl.compose.compose import Options, compose_series
from stackctl.compose.context import Context
from stackctl.compose.model import Composition
from stackctl.compose.plan import Selection
from stackctl.errors import PinError, StackctlError
from stackctl.image.attribute import Candidate, Touch
from stackctl.image.expectation import Entries, ExpectedTree, from_store
from stackctl.image.verify import PinnedWheel
from stackctl.model.lock import Lock, read_lock
from stackctl.model.series import PathWheel, Wheel, load_series
from stackctl.progress import SILENT, Progress
from stackctl.project import SERIES_FILE

#: Sets of which each is left out, and composed alone, to explain an image.
_MOST_SETS = 40
#: Further subsets that are composed; each costs some milliseconds.
_MOST_SUBSETS = 64


def locked_tree(
    path: Path,
    cache: Cache,
    *,
    offline: bool = False,
    progress: Progress = SILENT,
) -> ExpectedTree:
    """Return the tree that a lock composed.

    The tree is taken from the cache, or composed again from the series beside the lock.

    Args:
        path: The lock.
        cache: Where objects are kept.
        offline: Never use the network.
        progress: Told what is being done.

    Raises:
        PinError: The series beside it composes another tree.
        InputError: The lock is bad, or there is no series beside it.
    """
    lock = read_lock(path)
    label = f"composition {lock.composition}"

    def compose() -> Composition:
        series = load_series(path.parent / SERIES_FILE)
        return compose_series(
            series, cache, options=Options(offline=offline), progress=progress
        )

    def removed() -> frozenset[bytes]:
        base = lock.content.base.tree
        try:
            paths = {name for name, _, _ in cache.store.walk(base)}
        except PinError:
            compose()
            paths = {name for name, _, _ in cache.store.walk(base)}
        return frozenset(paths - expected.entries.keys())

    try:
        expected = from_store(cache.store, lock.content.tree, label)
        return replace(expected, removed=removed)
    except PinError:
        composition = compose()
    if composition.tree != lock.content.tree:
        raise PinError(
            f"{path} locks the tree {lock.content.tree}, and the series beside it "
            f"composes {composition.tree}",
            kind="stale-lock",
            hint="run `stackctl lock`, or take the series of the lock's revision",
            where={"file": str(path)},
        )
    expected = from_store(cache.store, composition.tree, label)
    return replace(expected, removed=removed)


def pinned_wheel(
    wheel: Wheel,
    project: Path,
    cache: Cache,
    *,
    offline: bool = False,
    progress: Progress = SILENT,
) -> PinnedWheel:
    """Return the wheel that judges untracked files of an image, fetching it if needed.

    Args:
        wheel: What the series names.
        project: The project folder, from which relative paths count.
        cache: Takes the download.
        offline: Never use the network.
        progress: Told what is being done.
    """
    if isinstance(wheel, PathWheel):
        return PinnedWheel(project / wheel.path, wheel.sha256)
    from stackctl.base.pypi import fetch_distribution

    path = fetch_distribution(
        wheel.pypi,
        wheel.sha256,
        cache=cache,
        wheel=True,
        offline=offline,
        progress=progress,
    )
    return PinnedWheel(path, wheel.sha256)


def _subsets(names: Sequence[str]) -> Iterator[tuple[str, Selection]]:
    """Yield the subsets that an image may be, the likeliest first, and their labels."""
    few = names[:_MOST_SETS]
    for name in few:
        yield f"the series without {name}", Selection(without=(name,))
    for name in few:
        yield f"only {name}", Selection(only=(name,))
    larger = chain.from_iterable(
        combinations(names, size) for size in range(2, len(names) - 1)
    )
    for left_out in islice(larger, _MOST_SUBSETS):
        kept = [name for name in names if name not in left_out]
        if len(kept) < len(left_out):
            label = f"only {_listed(kept)}"
        else:
            label = f"the series without {_listed(left_out)}"
        yield label, Selection(without=left_out)


def _listed(names: Sequence[str]) -> str:
    return f"{', '.join(names[:-1])} and {names[-1]}"


class SeriesCandidates:
    """The trees that a series can give, for `stackctl.image.attribute`.

    Args:
        context: The series, and the means to compose it.
        locks: Locks of other releases that are known.
    """

    def __init__(
        self, context: Context, locks: Sequence[tuple[Path, Lock]] = ()
    ) -> None:
        self._context = context
        self._locks = locks
        self._whole: Composition | None = None
        self._entries: dict[str, Entries] = {}

    def _compose(self, selection: Selection) -> Composition:
        context = self._context
        options = Options(commits=False, offline=context.offline, patch_ids=False)
        return compose_series(
            context.series, context.cache, selection, options, context.progress
        )

    def _composition(self) -> Composition:
        if self._whole is None:
            self._whole = self._compose(Selection())
        return self._whole

    def _tree(self, tree: str) -> Entries:
        if tree not in self._entries:
            store = self._context.cache.store
            self._entries[tree] = {
                path: (mode, oid) for path, mode, oid in store.walk(tree)
            }
        return self._entries[tree]

    def _states(self) -> Iterator[tuple[str, str, str]]:
        """Yield kind, label and tree, the most telling first."""
        whole = self._composition()
        yield "composition", "the whole series", whole.tree
        yield "base", "the base", whole.base.tree
        for step in whole.steps:
            name = f"{step.set}/{step.patch}" if step.patch else step.set
            yield "after-patch", f"the series up to {name}", step.tree
        for label, selection in _subsets([s.name for s in self._context.series.sets]):
            try:
                tree = self._compose(selection).tree
            except StackctlError:
                # A subset that does not compose is no explanation.
                continue
            yield "subset", label, tree
        for path, lock in self._locks:
            label = f"composition {lock.composition} of {path}"
            yield "composition", label, lock.content.tree

    def trees(self) -> Iterable[Candidate]:
        """Yield the trees, each once."""
        seen: set[str] = set()
        for kind, label, tree in self._states():
            if tree in seen:
                continue
            seen.add(tree)
            try:
                entries = self._tree(tree)
            except PinError:
                continue
            yield Candidate(kind, label, entries)

    def touching(self, path: bytes) -> Sequence[Touch]:
        """Return the patches that change a path, in order."""
        whole = self._composition()
        found = []
        before = self._tree(whole.base.tree)
        for step in whole.steps:
            after = self._tree(step.tree)
            if before.get(path) != after.get(path):
                found.append(Touch(step.set, step.patch or ""))
            before = after
        return found
