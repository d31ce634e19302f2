# SPDX-License-Identifier: Apache-2.0
"""The stack that a series wants on GitHub, and what is there: data, no network."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from stackctl.git.merge import read_commit
from stackctl.git.objects import COMMIT, COMMITTER, encode_commit, object_id
from stackctl.model.ids import CommitId, TreeId

State = Literal["open", "closed", "merged"]
Change = Literal["content", "rebase"]

_PARENT = re.compile(rb"^parent [0-9a-f]{40}$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Layer:
    """One set as the series composes it.

    Attributes:
        set: Name of the set.
        title: Title of its pull request.
        about: What a body says about it, as Markdown.
        commits: Its composed commits in order, as the bytes of the objects.
        below: The composed commit that it stands on.
        tree: Tree after it.
        patch_id: Patch id of all that it changes, None where that is nothing.
        patches: Patch id of each of its commits.
        reviewers: Users and `org/team`s to ask.
        labels: Labels to put on.
        number: Pull request that series.toml names, None where it names none.
        elsewhere: Why it gets no pull request here; empty for a set that gets one.
    """

    set: str
    title: str
    about: str
    commits: tuple[bytes, ...] = field(repr=False)
    below: CommitId
    tree: TreeId
    patch_id: str | None
    patches: tuple[str, ...] = ()
    reviewers: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()
    number: int | None = None
    elsewhere: str = ""

    def grown_on(self, commit: CommitId) -> tuple[tuple[CommitId, bytes], ...]:
        """Return the set's commits on another commit of the same tree.

        Args:
            commit: The commit below.
        """
        grown: list[tuple[CommitId, bytes]] = []
        for raw in self.commits:
            data = _PARENT.sub(b"parent " + commit.encode(), raw, count=1)
            commit = CommitId(object_id(COMMIT, data).hex())
            grown.append((commit, data))
        return tuple(grown)

    def on_top(
        self, parents: Sequence[CommitId], message: str
    ) -> tuple[CommitId, bytes]:
        """Return a commit of the set's tree on top of others.

        Args:
            parents: Its parents, the branch's own head first.
            message: Its message.
        """
        who = COMMITTER + b" " + read_commit(self.commits[-1]).committed
        raw = encode_commit(self.tree, tuple(parents), who, who, message.encode())
        return CommitId(object_id(COMMIT, raw).hex()), raw


@dataclass(frozen=True, slots=True)
class Landing:
    """A set whose pull request was merged.

    Attributes:
        set: Name of the set.
        number: The pull request.
        commit: What it became on the branch that it was for.
        in_base: Whether the pinned base contains that commit.
        when: When it was merged, as GitHub writes times.
    """

    set: str
    number: int
    commit: CommitId
    in_base: bool
    when: str = ""


@dataclass(frozen=True, slots=True)
class Stack:
    """What the series wants.

    Attributes:
        name: Name of the series.
        repo: `owner/name`.
        prefix: Start of the branches' names.
        trunk: Branch that the lowest pull request is for.
        start: Commit that the lowest set stands on: the base, or the last landing that
            the pinned base does not have.
        seed: Whether a missing trunk is made, at `start`.
        layers: The sets, lowest first.
        landings: Sets that were merged upstream.
        absent: Sets that get nothing here, and why.
    """

    name: str
    repo: str
    prefix: str
    trunk: str
    start: CommitId
    seed: bool
    layers: tuple[Layer, ...]
    landings: tuple[Landing, ...] = ()
    absent: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Head:
    """What git knows about the commit that a branch has.

    Attributes:
        commit: The commit.
        tree: Its tree.
        contains: It and its ancestors, as far as they are not in the base.
        foreign: Commits of others on its first-parent line, newest first.
        patch_id: Patch id of what it changes above `on`.
        on: The commit that it was made on: of another set, of the base or a landing.
    """

    commit: CommitId
    tree: TreeId
    contains: frozenset[str]
    foreign: tuple[str, ...] = ()
    patch_id: str | None = None
    on: CommitId | None = None


@dataclass(frozen=True, slots=True)
class PullRequest:
    """A pull request of one of our branches.

    Attributes:
        number: Its number.
        node: Its id for GraphQL.
        state: `open`, `closed` or `merged`.
        draft: Whether it is a draft.
        title: Its title.
        body: Its body, as it is stored.
        author: Who opened it.
        head: Name of its branch.
        sha: Commit of its branch, the last one where it is closed.
        base: Name of the branch that it is for.
        url: Its page.
        landed: What it became, where it is merged.
        landed_at: When, as GitHub writes times.
        asked: Users and `org/team`s who are asked for a review.
        reviews: Last word of each reviewer: `approved`, `changes-requested`, ...
        labels: Its labels.
        stack: Number of GitHub's own stack that it is in, 0 where it is in none.
        checks: `success`, `failure`, `pending`, `none` or `unknown`.
        apart: Whether it is not the stack's: of a fork, or for a branch of others.
    """

    number: int
    node: str
    state: State
    draft: bool
    title: str
    body: str = field(repr=False)
    author: str
    head: str
    sha: CommitId
    base: str
    url: str = ""
    landed: CommitId | None = None
    landed_at: str = ""
    asked: frozenset[str] = frozenset()
    reviews: Mapping[str, str] = field(default_factory=dict)
    labels: frozenset[str] = frozenset()
    stack: int = 0
    checks: str = "unknown"
    apart: bool = False

    @property
    def reviewed(self) -> bool:
        """Whether somebody looked at it: its commits must not be replaced then."""
        return bool(self.reviews)

    @property
    def review(self) -> str:
        """The reviews in a word."""
        words = set(self.reviews.values())
        for word in ("changes-requested", "approved", "commented", "dismissed"):
            if word in words:
                return word
        return "asked" if self.asked else "none"


@dataclass(frozen=True, slots=True)
class Seen:
    """What is on GitHub.

    Attributes:
        branches: Commits by the names of the branches: the trunk and all of ours.
        pulls: Pull requests of each set, the one to go on with first.
        heads: What git knows about the branches' commits.
        needed: Branches of closed pull requests that open ones of others are for.
    """

    branches: Mapping[str, CommitId]
    pulls: Mapping[str, tuple[PullRequest, ...]]
    heads: Mapping[str, Head]
    needed: frozenset[str] = frozenset()

    def pull(self, name: str) -> PullRequest | None:
        """Return the open pull request of a set, else its newest, else None.

        Args:
            name: Name of the set.
        """
        known = self.pulls.get(name, ())
        for each in known:
            if each.state == "open" and not each.apart:
                return each
        return known[0] if known else None


def branch_name(prefix: str, name: str, number: int = 1) -> str:
    """Return the branch of a set.

    Names of sets have no dots, so that what follows one cannot be another set.

    Args:
        prefix: Start of the branches' names.
        name: Name of the set.
        number: 1 for its first pull request, 2 for its second, ...
    """
    return f"{prefix}{name}" + (f".{number}" if number > 1 else "")


def carried_name(prefix: str, name: str) -> str:
    """Return the branch that holds a set without a pull request here."""
    return f"{prefix}{name}.carried"


def base_name(prefix: str, commit: str) -> str:
    """Return the branch that holds a base which is no commit of the repository."""
    return f"{prefix}base.{commit[:12]}"
