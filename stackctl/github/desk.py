# SPDX-License-Identifier: Apache-2.0
"""What a command on pull requests works with, opened and closed together."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from hashlib import sha256

from stackctl.base import ResolvedBase
from stackctl.base.web import offline_error
from stackctl.cache import Cache
from stackctl.errors import StackctlError
from stackctl.github import look
from stackctl.github.endpoint import Endpoint, Patience
from stackctl.github.model import (
    Head,
    Landing,
    PullRequest,
    Seen,
    Stack,
    base_name,
    branch_name,
    carried_name,
)
from stackctl.github.remote import Remote, open_remote
from stackctl.github.stack import (
    Settings,
    base_of,
    compose_stack,
    newest,
    settings_of,
    standing_on,
)
from stackctl.github.token import find_token
from stackctl.model.ids import CommitId
from stackctl.model.series import PatchSet, Series
from stackctl.progress import Progress


class Desk:
    """A series, its repository on GitHub, and git between them.

    Args:
        series: The series.
        cache: Store and facts.
        settings: Where the stack is.
        endpoint: GitHub's interface.
        remote: The repository, seen by git.
        progress: Told what is being done.
    """

    def __init__(
        self,
        series: Series,
        cache: Cache,
        settings: Settings,
        endpoint: Endpoint,
        remote: Remote,
        progress: Progress,
    ) -> None:
        self.series = series
        self.cache = cache
        self.settings = settings
        self.endpoint = endpoint
        self.remote = remote
        self.progress = progress

    def look(self, *, checks: bool = False) -> tuple[Stack, Seen]:
        """Return what the series wants, and what GitHub has.

        Args:
            checks: Ask for the states of the checks too.

        Raises:
            RemoteError: GitHub cannot be asked.
            ConflictError: The series does not compose.
        """
        base = base_of(self.series, self.cache, offline=False, progress=self.progress)
        self.progress.update("look at GitHub", 0, None)
        branches = look.branches(self.endpoint, self.settings.prefix)
        trunk = self._trunk(base, branches)
        pulls = look.pulls_of(self.endpoint, self._asked(), self.settings.prefix)
        landings, start = self._landings(base, trunk, pulls)
        self.remote.have([base.commit])
        standing = base
        if start is not None:
            self.remote.fetch([start])
            with self.cache.lock("git-fetch"):
                self.remote.lend(start, self.cache.store)
            standing = standing_on(base, start, self.cache.store)
        stack = compose_stack(
            self.series,
            self.settings,
            self.cache,
            base,
            standing,
            trunk,
            landings,
            change=self.remote.change,
            progress=self.progress,
        )
        for known in pulls.values():
            for pull in known:
                if pull.state == "open":
                    branches.setdefault(pull.head, pull.sha)
        heads = self._heads(base, stack, branches, pulls)
        pulls = {
            name: tuple(self._complete(each, checks) for each in known)
            for name, known in pulls.items()
        }
        return stack, Seen(branches, pulls, heads)

    def _asked(self) -> list[PatchSet]:
        """Return the sets whose pull requests are looked for."""
        repo = self.settings.repo.lower()
        out = []
        for each in self.series.sets:
            here = each.pull is not None and each.pull.repo.lower() == repo
            if each.pinned or (each.pull is not None and not here):
                continue
            if each.composed or here:
                out.append(each)
        return out

    def _trunk(self, base: ResolvedBase, branches: dict[str, CommitId]) -> str:
        """Return the branch below the stack, and add it to the branches."""
        name = self.settings.base
        if name is not None:
            commit = branches.get(name) or look.branch(self.endpoint, name)
            if commit is None:
                return name
            if commit == base.commit or look.contains(self.endpoint, base.commit, name):
                branches[name] = commit
                return name
        return base_name(self.settings.prefix, base.commit)

    def _landings(
        self,
        base: ResolvedBase,
        trunk: str,
        pulls: Mapping[str, Sequence[PullRequest]],
    ) -> tuple[list[Landing], CommitId | None]:
        """Return what has landed, and the last of it that the base does not have."""
        composed = {each.name for each in self.series.sets if each.composed}
        landings = []
        for name, known in pulls.items():
            pull = newest(known)
            if name not in composed or pull is None or pull.landed is None:
                continue
            if pull.base != trunk:
                continue
            there = look.contains(self.endpoint, pull.landed, base.commit)
            landings.append(
                Landing(name, pull.number, pull.landed, there, pull.landed_at)
            )
        later = [each for each in landings if not each.in_base]
        last = max(later, key=lambda each: (each.when, each.number), default=None)
        return landings, last.commit if last else None

    def _heads(
        self,
        base: ResolvedBase,
        stack: Stack,
        branches: Mapping[str, CommitId],
        pulls: Mapping[str, Sequence[PullRequest]],
    ) -> dict[str, Head]:
        names = []
        for layer in stack.layers:
            names.append(carried_name(stack.prefix, layer.set))
            known = pulls.get(layer.set, ())
            pull = newest(known)
            if pull is not None and pull.state == "open":
                names.append(pull.head)
            names += [
                branch_name(stack.prefix, layer.set, number)
                for number in range(1, len(known) + 2)
            ]
        used = {each.head for known in pulls.values() for each in known}
        opened = {
            each.head
            for known in pulls.values()
            for each in known
            if each.state == "open"
        }
        wanted = [
            branches[name]
            for name in dict.fromkeys(names)
            if name in branches and (name in opened or name not in used)
        ]
        self.remote.fetch(wanted)
        gone = [
            each.sha
            for known in pulls.values()
            for each in known
            if each.state == "merged" and each.sha not in self.remote.store
        ]
        # Only needed to tell a rebase from a new content.
        with suppress(StackctlError):
            self.remote.fetch(gone)
        others: list[CommitId] = [
            each.sha for known in pulls.values() for each in known
        ]
        others += [branches[name] for name in names if name in branches]
        below: CommitId = stack.start
        for layer in stack.layers:
            others.append(layer.below)
            below = layer.grown_on(below)[-1][0]
            others.append(below)
        bases = list(dict.fromkeys((base.commit, stack.start)))
        return {
            commit: self.remote.head(commit, bases, others)
            for commit in dict.fromkeys(wanted)
        }

    def _complete(self, pull: PullRequest, checks: bool) -> PullRequest:
        if pull.state != "open":
            return pull
        return replace(
            pull,
            reviews=look.reviews_of(self.endpoint, pull),
            checks=look.checks_of(self.endpoint, pull.sha) if checks else "unknown",
        )


@contextmanager
def open_desk(
    series: Series,
    cache: Cache,
    *,
    offline: bool,
    wait: float,
    progress: Progress,
) -> Iterator[Desk]:
    """Open what a command on pull requests works with.

    Two of them on one repository take turns.

    Args:
        series: The series.
        cache: Store and facts.
        offline: The network is off limits.
        wait: How long the command may wait for GitHub in all: seconds.
        progress: Told what is being done.

    Yields:
        The desk.

    Raises:
        UsageError: The series does not say where, or there is no token.
        RemoteError: The network is off limits.
    """
    settings = settings_of(series)
    if offline:
        raise offline_error(
            f"the list of pull requests of {settings.repo}", {"repo": settings.repo}
        )
    token = find_token(settings.server)
    patience = Patience(wait, progress)
    endpoint = Endpoint(settings.repo, token, settings.api, patience)
    name = sha256(f"{settings.api} {settings.repo.lower()}".encode()).hexdigest()
    try:
        with (
            cache.lock(f"github-{name[:16]}"),
            open_remote(cache.store, settings.push, token, patience) as remote,
        ):
            yield Desk(series, cache, settings, endpoint, remote, progress)
    finally:
        endpoint.close()
