# SPDX-License-Identifier: Apache-2.0
"""The stack that a series wants: settings, the commits of its sets, what has landed."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final, TypeAlias
from urllib.parse import urlsplit

from stackctl.base import ResolvedBase, resolve_base
from stackctl.base.pipconf import redact
from stackctl.cache import Cache
from stackctl.compose.compose import Composer, Options
from stackctl.compose.plan import Selection
from stackctl.errors import ConflictError, UsageError
from stackctl.git.merge import read_commit
from stackctl.git.store import Store
from stackctl.github.body import about_set
from stackctl.github.model import Landing, Layer, PullRequest, Stack
from stackctl.model.ids import CommitId, TreeId
from stackctl.model.series import GitBase, PatchSet, Series
from stackctl.progress import Progress

API: Final = "https://api.github.com"
SERVER: Final = "https://github.com"

MAX_TITLE: Final = 256
"""Longest title that GitHub takes: characters."""

Change: TypeAlias = Callable[[str, str], str | None]
"""Returns the patch id of all that is different between two commits."""


@dataclass(frozen=True, slots=True)
class Settings:
    """Where the stack of a series is.

    Attributes:
        repo: `owner/name`.
        base: Branch that the lowest pull request should be for, None for a branch of
            our own.
        prefix: Start of the names of our branches.
        push: Where to push to.
        api: Base URL of the REST interface.
        server: Base URL of the server.
    """

    repo: str
    base: str | None
    prefix: str
    push: str
    api: str
    server: str


def settings_of(series: Series) -> Settings:
    """Return where the stack of a series is.

    Args:
        series: The series.

    Raises:
        UsageError: It does not say.
    """
    github = series.github
    if github is None:
        raise UsageError(
            f"{series.file} does not say where the pull requests are",
            kind="no-repository",
            hint='add [github] with repo = "owner/name"; docs/pull-requests.md tells '
            "the rest",
            where={"file": series.file, "key": "github"},
        )
    # Set by GitHub's own runners, and by those of its enterprise servers.
    server = (os.environ.get("GITHUB_SERVER_URL") or SERVER).rstrip("/")
    api = (os.environ.get("GITHUB_API_URL") or API).rstrip("/")
    for name, url in (("GITHUB_SERVER_URL", server), ("GITHUB_API_URL", api)):
        _refuse_open_line(name, url)
    push = github.push or f"{server}/{github.repo}.git"
    parts, ours = urlsplit(push), urlsplit(server)
    if parts.scheme in ("http", "https") and (
        (parts.scheme, parts.netloc.lower()) != (ours.scheme, ours.netloc.lower())
    ):
        # The file may come from anybody, and the token would go to whom it names.
        raise UsageError(
            f"`push` in [github] of {series.file} is not on {server}, and the token is "
            "not sent elsewhere",
            kind="push-elsewhere",
            hint="use an ssh URL there, or set GITHUB_SERVER_URL and GITHUB_API_URL to "
            "that server",
            where={"file": series.file, "key": "github.push"},
        )
    base = github.base
    if base is None and isinstance(series.base, GitBase) and series.base.ref:
        _, found, name = series.base.ref.partition("refs/heads/")
        base = name if found else None
    return Settings(
        repo=github.repo,
        base=base,
        prefix=github.prefix or f"stack/{series.name}/",
        push=push,
        api=api,
        server=server,
    )


def _refuse_open_line(name: str, url: str) -> None:
    """Refuse an address to which the token would go unencrypted."""
    parts = urlsplit(url)
    here = parts.hostname in ("127.0.0.1", "::1", "localhost")
    if parts.scheme == "https" or (parts.scheme == "http" and here):
        return
    raise UsageError(
        f"{name} is {redact(url)}; expected an https URL",
        kind="bad-server",
        hint="the token is only sent over TLS",
    )


def base_of(
    series: Series, cache: Cache, *, offline: bool, progress: Progress
) -> ResolvedBase:
    """Resolve the base of a series.

    Args:
        series: The series.
        cache: Store and facts.
        offline: Never use the network.
        progress: Told what is being done.
    """
    return resolve_base(
        series.base,
        project=series.root,
        cache=cache,
        offline=offline,
        expected_tree=series.base.tree,
        progress=progress,
    )


def newest(pulls: Sequence[PullRequest]) -> PullRequest | None:
    """Return the open one of a set's pull requests, else the newest."""
    for each in pulls:
        if each.state == "open" and not each.apart:
            return each
    return pulls[0] if pulls else None


def compose_stack(
    series: Series,
    settings: Settings,
    cache: Cache,
    base: ResolvedBase,
    start: ResolvedBase,
    trunk: str,
    landings: Sequence[Landing],
    *,
    change: Change,
    progress: Progress,
) -> Stack:
    """Compose what has not landed, and return it as a stack.

    Args:
        series: The series.
        settings: Where the stack is.
        cache: Store and facts.
        base: The pinned base.
        start: What the lowest set stands on: the base, or the last landing.
        trunk: Branch that the lowest pull request is for.
        landings: The sets that have landed.
        change: Returns the patch id of what is different between two commits.
        progress: Told what is being done.

    Raises:
        ConflictError: A set does not apply.
    """
    gone = {each.set for each in landings}
    names = [each.name for each in series.sets]
    without = tuple(name for name in names if name in gone)
    composer = Composer(series, cache, start, Options(), progress)
    try:
        composition = composer.compose(Selection(without=without, force=True))
    except ConflictError as error:
        if start is not base:
            error.hint = (
                f"it must stand on {start.commit}, where {', '.join(sorted(gone))} "
                "landed: move the base there, then refresh the set"
            )
        raise
    spans: dict[str, tuple[CommitId, CommitId, list[CommitId]]] = {}
    ids: dict[str, list[str]] = {}
    below = start.commit
    for step in composition.steps:
        assert step.commit is not None
        first, _, commits = spans.setdefault(step.set, (below, below, []))
        if step.commit != below:
            commits.append(step.commit)
            ids.setdefault(step.set, []).append(step.patch_id or "")
        spans[step.set] = (first, step.commit, commits)
        below = step.commit
    layers = []
    absent: dict[str, str] = {}
    for item in series.sets:
        if item.name in gone:
            continue
        if item.draft:
            absent[item.name] = "is a draft without patches"
            continue
        if item.disposition != "included":
            continue
        span = spans.get(item.name)
        if span is None or not span[2]:
            absent[item.name] = "changes nothing on this base"
            continue
        first, last, commits = span
        layer = _layer(item, settings, cache.store, first, last, commits, change)
        layers.append(replace(layer, patches=tuple(ids[item.name])))
    seed = trunk != settings.base
    return Stack(
        name=series.name,
        repo=settings.repo,
        prefix=settings.prefix,
        trunk=trunk,
        start=start.commit,
        seed=seed,
        layers=tuple(layers),
        landings=tuple(landings),
        absent=absent,
    )


def _layer(
    item: PatchSet,
    settings: Settings,
    store: Store,
    below: CommitId,
    last: CommitId,
    commits: Sequence[CommitId],
    change: Change,
) -> Layer:
    raws = tuple(store.commit(bytes.fromhex(each)) for each in commits)
    number = None
    elsewhere = ""
    pull = item.pull
    if pull is not None:
        if item.pinned or pull.repo.lower() != settings.repo.lower():
            elsewhere = f"reviewed in {pull}"
        else:
            number = pull.number
    return Layer(
        set=item.name,
        title=(item.title or item.name)[:MAX_TITLE],
        about=about_set(item),
        commits=raws,
        below=below,
        tree=read_commit(raws[-1]).tree,
        patch_id=change(below, last),
        reviewers=item.reviewers,
        labels=item.labels,
        number=number,
        elsewhere=elsewhere,
    )


def standing_on(base: ResolvedBase, commit: CommitId, store: Store) -> ResolvedBase:
    """Return a commit as what the lowest set stands on.

    Args:
        base: The pinned base.
        commit: The commit, in the store.
        store: The cache's store.
    """
    return replace(
        base,
        kind="git",
        identity=f"commit:{commit}",
        tree=TreeId(store.commit_tree(commit)),
        commit=commit,
    )
