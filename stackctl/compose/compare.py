# SPDX-License-Identifier: Apache-2.0
"""Comparing trees and revisions: what a set changes, and what changed in a set."""

import re
from pathlib import Path

from stackctl.base import resolve_base
from stackctl.cache import Cache
from stackctl.compose.compose import Composer, Options
from stackctl.compose.model import Composition
from stackctl.compose.plan import WHOLE, Selection, find_set
from stackctl.errors import UsageError
from stackctl.git.command import GitCommandError
from stackctl.git.store import Store
from stackctl.model.ids import TreeId
from stackctl.model.series import Series, load_series
from stackctl.progress import SILENT, Progress
from stackctl.project import SERIES_FILE


def make_composer(
    series: Series, cache: Cache, offline: bool = False, progress: Progress = SILENT
) -> Composer:
    """Resolve a series' base and return a composer on it."""
    base = resolve_base(
        series.base,
        project=series.root,
        cache=cache,
        offline=offline,
        expected_tree=series.base.tree,
        progress=progress,
    )
    return Composer(series, cache, base, Options(offline=offline), progress)


def before_set(series: Series, name: str) -> Selection:
    """Return the selection of everything below a set."""
    position = series.sets.index(find_set(series, name))
    if position == 0:
        return Selection(base_only=True)
    return Selection(upto=series.sets[position - 1].name)


def set_trees(
    series: Series,
    cache: Cache,
    name: str | None,
    *,
    offline: bool = False,
    progress: Progress = SILENT,
) -> tuple[TreeId, TreeId]:
    """Return the trees before and after a set, or the base and the composition.

    Args:
        series: The series.
        cache: Store and facts.
        name: Name of the set, None for the whole series.
        offline: Never use the network.
        progress: Told what is being done.
    """
    composer = make_composer(series, cache, offline, progress)
    if name is None:
        return composer.base.tree, composer.compose().tree
    before = composer.compose(before_set(series, name))
    return before.tree, composer.compose(Selection(upto=name)).tree


def tree_diff(
    store: Store, before: str, after: str, *, stat: bool = False, path: str = ""
) -> str:
    """Return git's diff of two trees at its defaults.

    Args:
        store: Holds both trees.
        before: Hex id of a tree or commit.
        after: Hex id of another.
        stat: Only the statistics.
        path: Only this path.
    """
    form = ["--stat=100"] if stat else ["--patch"]
    out = store.git.run(
        "diff-tree",
        "-r",
        "-M",
        *form,
        "--no-ext-diff",
        "--no-textconv",
        before,
        after,
        *(["--", f":(literal){path}"] if path else []),
    )
    return out.decode("utf-8", "backslashreplace")


def _commit_range(text: str, composer: Composer) -> tuple[str, str] | None:
    """Return the commits that a range in the store names, None for other texts."""
    first, dots, last = text.partition("..")
    if not dots:
        return None
    git = composer.cache.store.git
    try:
        return git.text("rev-parse", "--verify", f"{first}^{{commit}}"), git.text(
            "rev-parse", "--verify", f"{last}^{{commit}}"
        )
    except GitCommandError:
        raise UsageError(f"{text} is no range of composed commits") from None


def _range(composition: Composition, name: str | None) -> tuple[str, str]:
    before = composition.base.commit
    if name is None:
        return before, composition.commit or before
    first: str | None = None
    last: str | None = None
    current: str = before
    for step in composition.steps:
        if step.set == name and first is None:
            first = current
        current = step.commit or current
        if step.set == name:
            last = current
    return first or current, last or current


def revision_range(
    text: str,
    series: Series,
    cache: Cache,
    *,
    offline: bool = False,
    progress: Progress = SILENT,
) -> tuple[str, str]:
    """Return the commits that a revision of a set or a series names.

    Args:
        text: One of: `PATH[:SET]`, a project folder (another clone or work tree, say)
            and a set of it; `SET`, a set of this series; `COMMIT..COMMIT`, composed
            commits in the store.
        series: This project's series.
        cache: Store and facts.
        offline: Never use the network.
        progress: Told what is being done.

    Returns:
        Hex ids of the commit below and of the last commit.

    Raises:
        UsageError: The text names nothing.
    """
    composer = make_composer(series, cache, offline, progress)
    known = {patch_set.name for patch_set in series.sets}
    if text in known:
        return _range(composer.compose(Selection(upto=text)), text)
    # Folders come before ranges: `../old` has two dots as well.
    folder, _, name = text.partition(":")
    path = Path(folder).expanduser()
    if (path / SERIES_FILE).is_file():
        other = load_series(path / SERIES_FILE)
        composer = make_composer(other, cache, offline, progress)
        selection = Selection(upto=name) if name else WHOLE
        return _range(composer.compose(selection), name or None)
    commits = _commit_range(text, composer)
    if commits is not None:
        return commits
    raise UsageError(
        f"{text} names no set, project folder or commit range",
        hint="write SET, DIR, DIR:SET or COMMIT..COMMIT",
    )


_RANGE_ROW = re.compile(r"^ *(?:[0-9]+|-): +\S+ ([=!<>]) ", re.MULTILINE)


def range_diff(
    store: Store, old: tuple[str, str], new: tuple[str, str]
) -> tuple[str, bool]:
    """Compare two chains of commits with `git range-diff`.

    Args:
        store: Holds all commits.
        old: Commit below and last commit of the old chain.
        new: The same of the new chain.

    Returns:
        git's text, and whether all patches are equal.
    """
    out = store.git.run(
        "range-diff",
        "--no-color",
        "--creation-factor=60",
        f"{old[0]}..{old[1]}",
        f"{new[0]}..{new[1]}",
    )
    text = out.decode("utf-8", "backslashreplace")
    return text, all(mark == "=" for mark in _RANGE_ROW.findall(text))
