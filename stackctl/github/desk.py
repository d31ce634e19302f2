# SPDX-License-Identifier: Apache-2.0
"""What a command on pull requests works with, opened and closed together."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from hashlib import sha256
from typing import Final

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

MAX_UPSTREAM: Final = 1000
"""Most commits of upstream that are searched for patches of the sets."""


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
        pulls = look.pulls_of(
            self.endpoint, self._asked(), self.settings.prefix, self.settings.base
        )
        landings, start = self._landings(base, trunk, pulls)
        self.remote.have([base.commit])
        standing = base
        if start is not None:
            self.remote.fetch([start])
            with self.cache.lock("git-fetch"):
                self.remote.lend(start, [base.commit], self.cache.store)
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
                if pull.state == "open" and not pull.apart:
                    branches.setdefault(pull.head, pull.sha)
        heads = self._heads(base, stack, branches, pulls)
        pulls = {
            name: tuple(self._complete(each, checks) for each in known)
            for name, known in pulls.items()
        }
        needed = self._needed(branches, pulls)
        return stack, Seen(branches, pulls, heads, needed)

    def _needed(
        self,
        branches: Mapping[str, CommitId],
        pulls: Mapping[str, Sequence[PullRequest]],
    ) -> frozenset[str]:
        """Return the branches of closed ones that pull requests of others are for."""
        every = [pull for known in pulls.values() for pull in known]
        ours = {pull.number for pull in every}
        done = {pull.head for pull in every if pull.state != "open"}
        heads = {pull.head for pull in every if pull.state == "open" and pull.apart}
        return frozenset(
            name
            for name in sorted(done & branches.keys())
            if name in heads or look.based_on(self.endpoint, name) - ours
        )

    def taken_upstream(self, stack: Stack, seen: Seen) -> list[tuple[str, str]]:
        """Return notes on sets whose patches upstream has, by another way than theirs.

        Args:
            stack: What the series wants.
            seen: What is there.
        """
        tip = seen.branches.get(stack.trunk)
        if stack.seed or tip is None or tip == stack.start or not stack.layers:
            return []
        count = look.ahead(self.endpoint, stack.start, tip)
        if count > MAX_UPSTREAM:
            text = f"{stack.trunk} is {count} commits ahead of {stack.start}: "
            return [("", f"{text}they are not searched for patches of the sets")]
        self.remote.have([stack.start])
        self.remote.fetch([tip])
        known = self.remote.taken(stack.start, tip)
        notes = []
        for layer in stack.layers:
            squashed = known.get(layer.patch_id or "-")
            some = [known[each] for each in layer.patches if each in known]
            if squashed is not None or len(some) == len(layer.patches):
                commit = squashed or some[-1]
                text = (
                    f"all of it is in {stack.trunk}, as {commit}: already-in-base once "
                    "the base is at that commit or a later one; make it superseded then"
                )
            elif some:
                text = (
                    f"{len(some)} of {len(layer.patches)} patches are in "
                    f"{stack.trunk}, the last as {some[-1]}: take them out of the set "
                    "once the base has them"
                )
            else:
                continue
            notes.append((layer.set, text))
        return notes

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
        names: dict[str, str] = {}
        for layer in stack.layers:
            known = pulls.get(layer.set, ())
            pull = newest(known)
            mine = [carried_name(stack.prefix, layer.set)]
            if pull is not None and pull.state == "open" and not pull.apart:
                mine.append(pull.head)
            mine += [
                branch_name(stack.prefix, layer.set, number)
                for number in range(1, len(known) + 2)
            ]
            names |= {name: layer.set for name in mine if name in branches}
        every = [
            (name, p) for name, known in pulls.items() for p in known if not p.apart
        ]
        opened = {pull.head for _, pull in every if pull.state == "open"}
        used = {pull.head for _, pull in every} - opened
        wanted = {branches[name]: names[name] for name in names if name not in used}
        self.remote.fetch(list(wanted))
        # Only needed to tell a rebase from a new content.
        with suppress(StackctlError):
            self.remote.fetch([p.sha for _, p in every if p.state == "merged"])
        # What a branch may have been made on: anything of another set, any landing.
        others = [(name, pull.sha) for name, pull in every]
        others += [("", pull.landed) for _, pull in every if pull.landed is not None]
        for name, commit in branches.items():
            stem = name.removeprefix(stack.prefix).partition(".")[0]
            if name != stack.trunk:
                others.append((names.get(name, stem), commit))
        below: CommitId = stack.start
        for layer in stack.layers:
            below = layer.grown_on(below)[-1][0]
            others.append((layer.set, below))
        bases = list(dict.fromkeys((base.commit, stack.start)))
        return {
            commit: self.remote.head(
                commit, bases, [each for name, each in others if name != owner]
            )
            for commit, owner in wanted.items()
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
