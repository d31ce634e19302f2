# SPDX-License-Identifier: Apache-2.0
"""Pinned heads against what the remotes have now: checking, and moving one.

A moved head is reported and never followed: a pin changes only where somebody asks for
that set by name, and sees what changed.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Literal

from stackctl.base.git import list_refs
from stackctl.base.web import offline_error
from stackctl.compose.compare import range_diff
from stackctl.compose.context import Context
from stackctl.compose.plan import find_set
from stackctl.errors import (
    InputError,
    PinError,
    RemoteError,
    StackctlError,
    UsageError,
)
from stackctl.git.command import HermeticGit
from stackctl.model.edit import edit_series, set_pin
from stackctl.model.ids import CommitId
from stackctl.model.lock import read_lock
from stackctl.model.series import GitBase, PatchSet, Pull
from stackctl.project import LOCK_FILE

State = Literal["same", "moved", "gone", "unreachable"]


@dataclass(frozen=True, slots=True)
class PinState:
    """One pinned head.

    Attributes:
        set: Name of its set.
        pull: Its pull request.
        pinned: The pinned commit.
        remote: What the remote has; None where it has no such ref.
        state: What that means.
        counts: Whether it counts: the set is included.
        swallows: Upstream commits that the head brings along as if they were its own.
        problem: Why the remote could not be asked.
    """

    set: str
    pull: Pull
    pinned: CommitId
    remote: CommitId | None
    state: State
    counts: bool
    swallows: tuple[str, ...] = ()
    problem: str | None = None

    @property
    def bad(self) -> bool:
        """Whether the pin does not hold."""
        return self.counts and (self.state in ("moved", "gone") or bool(self.swallows))

    def document(self) -> dict[str, object]:
        """Return the pin for a JSON document."""
        return {
            "set": self.set,
            "pull": str(self.pull),
            "url": self.pull.fetch_url,
            "ref": self.pull.fetch_ref,
            "pinned": self.pinned,
            "remote": self.remote,
            "state": self.state,
            "included": self.counts,
            "swallows": list(self.swallows),
            "problem": self.problem,
        }


def swallowed_commits(
    git: HermeticGit, base: str, head: str, tip: str
) -> tuple[str, ...]:
    """Return upstream commits that merging a head would bring along.

    They are those between base and head on the first-parent line of the upstream
    branch. A pull request that upstream has merged lies beside that line; one that it
    fast-forwarded to is the line, and brings nothing but itself.

    Args:
        git: Runs where the commits and their history are.
        base: The pinned base.
        head: The pinned head.
        tip: Where the upstream branch is now.
    """
    line = git.text("rev-list", "--first-parent", tip, f"^{base}").split()
    if head in line:
        return ()
    own = set(git.text("rev-list", head, f"^{base}").split())
    return tuple(commit for commit in line if commit in own)


def _swallowing(
    name: str, pull: Pull, head: CommitId, commits: Sequence[str]
) -> PinError:
    noun = "commit" if len(commits) == 1 else "commits"
    return PinError(
        f"set `{name}`: {pull} at {head} brings {len(commits)} upstream {noun} that "
        f"the base does not have, as if they were its own (first: {commits[-1]})",
        kind="swallowed-upstream",
        hint=f"move the base first: it must have {commits[0]}; or pin a head that was "
        "not rebased past it",
        where={"set": name, "head": head, "commits": list(commits)},
    )


class Pins:
    """The pins of a series.

    Args:
        context: The series, and the means to ask its remotes.
    """

    def __init__(self, context: Context) -> None:
        self.context = context
        self.series = context.series
        self._tip: CommitId | None = None

    def refuse_swallowing(self, sets: Sequence[PatchSet]) -> tuple[str, ...]:
        """Refuse new pins whose merge would bring upstream commits along.

        A pin is new until the lock has it on this base: what was locked once must
        compose for ever, wherever upstream goes. What was found good is remembered.

        Args:
            sets: The sets that are composed.

        Returns:
            Names of the sets that could not be checked: the network is off limits, or
            upstream cannot be reached.

        Raises:
            PinError: A head brings upstream commits that the base does not have.
        """
        base = self.series.base
        if not isinstance(base, GitBase) or base.ref is None:
            return ()
        new = [
            (each.name, each.pull, each.pull.head)
            for each in sets
            if each.pull is not None
            and each.pull.head is not None
            and each.composed
            and each.pinned
            and each.strategy == "merge"
        ]
        locked = self._locked_heads(base) if new else frozenset()
        keys = {
            head: sha256(
                f"{base.git} {base.ref} {base.commit} {head}".encode()
            ).digest()
            for _, _, head in new
        }
        known = self.context.cache.get("own-history", keys.values())
        unchecked = []
        for name, pull, head in new:
            if head in locked or keys[head] in known:
                continue
            try:
                if self.context.offline:
                    raise offline_error("where upstream is now", {"set": name})
                tip = self._upstream()
                if tip is None:
                    raise RemoteError(f"{base.git} has no {base.ref}")
            except RemoteError:
                unchecked.append(name)
                continue
            self.context.bring(pull.fetch_url, head, pull.fetch_ref)
            found = swallowed_commits(
                self.context.cache.store.git, base.commit, head, tip
            )
            if found:
                raise _swallowing(name, pull, head, found)
            self.context.cache.put("own-history", {keys[head]: b"1"})
        return tuple(unchecked)

    def _locked_heads(self, base: GitBase) -> frozenset[str]:
        path = self.series.root / LOCK_FILE
        try:
            lock = read_lock(path)
        except InputError:  # no lock yet, or one that `lock` writes anew
            return frozenset()
        if lock.content.base.commit != base.commit:
            return frozenset()
        # What was locked without a look upstream is still to be looked at.
        unchecked = lock.made_by.options.get("unchecked_pins", ())
        return frozenset(
            step.head
            for step in lock.content.steps
            if step.head and step.set not in unchecked
        )

    def check(self) -> list[PinState]:
        """Ask every remote where the pinned refs are now.

        Returns:
            One state per set with a pinned head, in the series' order.

        Raises:
            RemoteError: The network is off limits.
        """
        if self.context.offline:
            raise offline_error("the list of the remotes' heads", {})
        pinned = [
            (patch_set, patch_set.pull)
            for patch_set in self.series.sets
            if patch_set.pull is not None and patch_set.pull.head is not None
        ]
        refs: dict[str, dict[str, CommitId] | RemoteError] = {}
        for _, pull in pinned:
            if pull.fetch_url in refs:
                continue
            names = [p.fetch_ref for _, p in pinned if p.fetch_url == pull.fetch_url]
            try:
                refs[pull.fetch_url] = list_refs(
                    pull.fetch_url, list(dict.fromkeys(names)), self.series.root
                )
            except RemoteError as error:
                refs[pull.fetch_url] = error
        return [self._state(each, pull, refs[pull.fetch_url]) for each, pull in pinned]

    def _state(
        self, patch_set: PatchSet, pull: Pull, refs: dict[str, CommitId] | RemoteError
    ) -> PinState:
        assert pull.head is not None
        included = patch_set.disposition == "included"
        if isinstance(refs, RemoteError):
            return PinState(
                *(patch_set.name, pull, pull.head, None, "unreachable", included),
                problem=refs.message,
            )
        remote = refs.get(pull.fetch_ref)
        state: State = "moved"
        if remote is None:
            state = "gone"
        elif remote == pull.head:
            state = "same"
        swallows: tuple[str, ...] = ()
        if included and patch_set.strategy == "merge":
            swallows = self._swallows(pull, pull.head)
        return PinState(
            *(patch_set.name, pull, pull.head, remote, state, included), swallows
        )

    def _upstream(self) -> CommitId | None:
        """Return where the base's branch is now, None where it has none."""
        base = self.series.base
        if self._tip is None and isinstance(base, GitBase) and base.ref is not None:
            found = list_refs(base.git, [base.ref], self.series.root).get(base.ref)
            if found is not None:
                self.context.bring(base.git, found, base.ref)
                self.context.bring(base.git, base.commit, base.ref)
            self._tip = found
        return self._tip

    def _swallows(self, pull: Pull, head: CommitId) -> tuple[str, ...]:
        base = self.series.base
        try:
            tip = self._upstream()
            if tip is None or not isinstance(base, GitBase):
                return ()
            self.context.bring(pull.fetch_url, head, pull.fetch_ref)
        except StackctlError:
            return ()  # what is missing is said by the state, or when it is composed
        return swallowed_commits(self.context.cache.store.git, base.commit, head, tip)

    def update(
        self,
        name: str,
        *,
        to: str | None = None,
        commits: Sequence[str] = (),
        write: bool = True,
    ) -> "PinUpdate":
        """Move the pin of one set to what its remote has now.

        Args:
            name: The set.
            to: Pin this commit instead, which must be part of the remote's head.
            commits: New commits of a cherry-picked set.
            write: Change series.toml; otherwise only say what would change.

        Raises:
            UsageError: The set has no pinned head.
            PinError: The remote has no such ref, or the head swallows upstream commits.
            RemoteError: The remote cannot be asked.
        """
        patch_set = find_set(self.series, name)
        pull = patch_set.pull
        if pull is None or pull.head is None:
            raise UsageError(
                f"set `{name}` has no pinned head",
                kind="not-pinned",
                where={"set": name},
            )
        if self.context.offline:
            raise offline_error(f"the present head of {pull}", {"set": name})
        remote = list_refs(pull.fetch_url, [pull.fetch_ref], self.series.root).get(
            pull.fetch_ref
        )
        if remote is None:
            raise PinError(
                f"{pull} is gone: {pull.fetch_url} has no {pull.fetch_ref}",
                kind="gone-head",
                hint="exclude the set, or name another `ref`",
                where={"set": name, "ref": pull.fetch_ref},
            )
        self.context.bring(pull.fetch_url, remote, pull.fetch_ref)
        new = self._chosen(pull, remote, to)
        picked = self._picked(patch_set, pull, new, commits)
        swallows: tuple[str, ...] = ()
        if patch_set.strategy == "merge":
            swallows = self._swallows(pull, new)
        if swallows:
            raise _swallowing(name, pull, new, swallows)
        text, equal = self._range_diff(pull, new)
        changed = new != pull.head or (picked is not None and picked != pull.commits)
        if changed and write:
            file = self.series.root / "series.toml"
            edit_series(
                file,
                lambda old: set_pin(
                    old,
                    file=str(file),
                    name=name,
                    head=new,
                    commits=None if picked is None else list(picked),
                ),
            )
        return PinUpdate(name, pull, pull.head, new, changed and write, text, equal)

    def _chosen(self, pull: Pull, remote: CommitId, to: str | None) -> CommitId:
        if to is None:
            return remote
        git = self.context.cache.store.git
        if git.call("merge-base", "--is-ancestor", to, remote)[0]:
            raise PinError(
                f"{to} is not part of {pull}, whose head is {remote}",
                kind="not-in-pull",
                where={"commit": to, "head": remote},
            )
        return CommitId(git.text("rev-parse", "--verify", f"{to}^{{commit}}"))

    def _own_commits(self, head: str) -> tuple[CommitId, ...]:
        base = self.series.base
        git = self.context.cache.store.git
        below = []
        if isinstance(base, GitBase) and base.commit in self.context.cache.store:
            below = [f"^{base.commit}"]
        text = git.text("rev-list", "--reverse", "--no-merges", head, *below)
        return tuple(CommitId(each) for each in text.split())

    def _picked(
        self, patch_set: PatchSet, pull: Pull, new: CommitId, commits: Sequence[str]
    ) -> tuple[CommitId, ...] | None:
        if patch_set.strategy != "cherry-pick":
            if commits:
                raise UsageError('--commits goes with strategy = "cherry-pick" only')
            return None
        if commits:
            return tuple(CommitId(each) for each in commits)
        assert pull.head is not None
        self.context.bring(pull.fetch_url, pull.head, pull.fetch_ref)
        base = self.series.base
        if isinstance(base, GitBase):
            self.context.bring(base.git, base.commit, base.ref or pull.fetch_ref)
        if pull.commits != self._own_commits(pull.head) and new != pull.head:
            raise UsageError(
                f"set `{patch_set.name}` picks some commits of {pull}, not all: which "
                "of the new ones is for you to say",
                kind="ambiguous-commits",
                hint=f"name them: stackctl pins --update {patch_set.name} --commits "
                f"{','.join(self._own_commits(new)[:3])}",
                where={"set": patch_set.name},
            )
        return pull.commits if new == pull.head else self._own_commits(new)

    def _range_diff(self, pull: Pull, new: CommitId) -> tuple[str, bool]:
        assert pull.head is not None
        store = self.context.cache.store
        if new == pull.head:
            return "", True
        try:
            self.context.bring(pull.fetch_url, pull.head, pull.fetch_ref)
        except StackctlError as error:
            return f"the old head cannot be compared: {error.message}\n", False
        base = self.series.base
        against = new
        if isinstance(base, GitBase) and base.commit in store:
            against = base.commit
        ranges = []
        for head in (pull.head, new):
            other = against if against != head else pull.head
            status, out, _ = store.git.call("merge-base", other, head)
            below = out.decode().strip() if not status else ""
            if not below:
                return "the two heads have no history in common\n", False
            ranges.append((below, head))
        return range_diff(store, ranges[0], ranges[1])


@dataclass(frozen=True, slots=True)
class PinUpdate:
    """What became of a pin.

    Attributes:
        set: The set.
        pull: Its pull request.
        old: The head that was pinned.
        new: The head that is pinned now.
        written: Whether series.toml changed.
        range_diff: git's comparison of the old and the new commits.
        equal: Whether all patches are equal.
    """

    set: str
    pull: Pull
    old: CommitId
    new: CommitId
    written: bool
    range_diff: str
    equal: bool

    def document(self) -> dict[str, object]:
        """Return the update for a JSON document."""
        return {
            "set": self.set,
            "pull": str(self.pull),
            "old": self.old,
            "new": self.new,
            "written": self.written,
            "equal": self.equal,
            "range_diff": self.range_diff,
        }
