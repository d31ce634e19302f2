# SPDX-License-Identifier: Apache-2.0
"""What can be done to a stack on GitHub, one action at a time, each in plain words."""

from dataclasses import dataclass
from typing import Literal, TypeAlias

from stackctl.github.model import Change
from stackctl.model.ids import CommitId


@dataclass(frozen=True, slots=True)
class Push:
    """Point a branch to a commit.

    Attributes:
        set: The set, empty for the base.
        branch: Name of the branch.
        old: What it must be before, None where it must not exist.
        new: The commit.
        how: `new`, `forward` (nothing is lost), `on-top` (one commit above what was
            reviewed) or `rewrite`.
        change: Whether the set's change is another one, None where it is new.
    """

    set: str
    branch: str
    old: CommitId | None
    new: CommitId
    how: Literal["new", "forward", "on-top", "rewrite"]
    change: Change | None = None

    kind = "push"

    @property
    def words(self) -> str:
        """The action in plain words."""
        what = {
            "content": ": its change is another one",
            "rebase": ": only a rebase, its change is the same",
            None: "",
        }[self.change]
        if self.how == "new":
            return f"push {self.new[:12]} as new branch {self.branch}"
        if self.how == "forward":
            return f"push {self.branch} forward to {self.new[:12]}{what}"
        if self.how == "on-top":
            return (
                f"push {self.new[:12]} on top of {self.branch}, whose commits stay"
                f"{what}"
            )
        return (
            f"rewrite {self.branch} from {str(self.old)[:12]} to {self.new[:12]}{what}"
        )


@dataclass(frozen=True, slots=True)
class Retarget:
    """Change the branch that a pull request is for.

    Attributes:
        set: The set.
        number: The pull request.
        old: The branch before.
        new: The branch after.
        why: The reason.
    """

    set: str
    number: int
    old: str
    new: str
    why: str

    kind = "retarget"

    @property
    def words(self) -> str:
        """The action in plain words."""
        return (
            f"change the base of #{self.number} ({self.set}) from {self.old} to "
            f"{self.new}: {self.why}"
        )


@dataclass(frozen=True, slots=True)
class Comment:
    """Tell of a rewriting.

    Attributes:
        set: The set.
        number: The pull request.
        push: The rewriting.
        old: Commit below the set before, and its last one.
        new: The same afterwards.
    """

    set: str
    number: int
    push: Push
    old: tuple[CommitId, CommitId]
    new: tuple[CommitId, CommitId]

    kind = "comment"

    @property
    def words(self) -> str:
        """The action in plain words."""
        return f"comment on #{self.number} ({self.set}): the range-diff of its rewrite"


@dataclass(frozen=True, slots=True)
class Create:
    """Open a pull request and write its number into series.toml.

    Attributes:
        set: The set.
        branch: Its branch.
        base: The branch that it is for.
        draft: Whether it starts as a draft.
    """

    set: str
    branch: str
    base: str
    draft: bool = True

    kind = "create"

    @property
    def words(self) -> str:
        """The action in plain words."""
        what = "draft pull request" if self.draft else "pull request"
        return f"open a {what} for {self.set}: {self.branch} into {self.base}"


@dataclass(frozen=True, slots=True)
class Record:
    """Write the number of a pull request into series.toml.

    Attributes:
        set: The set.
        number: The pull request.
    """

    set: str
    number: int

    kind = "record"

    @property
    def words(self) -> str:
        """The action in plain words."""
        return (
            f"write #{self.number} as the pull request of {self.set} into series.toml"
        )


@dataclass(frozen=True, slots=True)
class Edit:
    """Bring the block of a pull request's body up to date, and the title if it is ours.

    Attributes:
        set: The set.
        number: The pull request, None for one that is opened before.
        title: Title to set, None to leave it.
    """

    set: str
    number: int | None
    title: str | None = None

    kind = "edit"

    @property
    def words(self) -> str:
        """The action in plain words."""
        name = f"#{self.number} ({self.set})"
        if self.number is None:
            name = f"the new pull request of {self.set}"
        also = f", and the title {self.title!r}" if self.title is not None else ""
        return f"write the stack's table into {name}{also}"


@dataclass(frozen=True, slots=True)
class Ask:
    """Ask for reviews.

    Attributes:
        set: The set.
        number: The pull request, None for one that is opened before.
        who: Users and `org/team`s.
    """

    set: str
    number: int | None
    who: tuple[str, ...]

    kind = "ask"

    @property
    def words(self) -> str:
        """The action in plain words."""
        return f"ask {', '.join(self.who)} to review {self.set}"


@dataclass(frozen=True, slots=True)
class Label:
    """Put labels on a pull request.

    Attributes:
        set: The set.
        number: The pull request, None for one that is opened before.
        labels: Their names.
    """

    set: str
    number: int | None
    labels: tuple[str, ...]

    kind = "label"

    @property
    def words(self) -> str:
        """The action in plain words."""
        return f"label {self.set}: {', '.join(self.labels)}"


@dataclass(frozen=True, slots=True)
class Ready:
    """Make a draft ready for review.

    Attributes:
        set: The set.
        number: The pull request, None for one that is opened before.
    """

    set: str
    number: int | None

    kind = "ready"

    @property
    def words(self) -> str:
        """The action in plain words."""
        return f"mark {self.set} as ready for review"


@dataclass(frozen=True, slots=True)
class Delete:
    """Delete a branch that nothing needs any more.

    Attributes:
        set: The set that it was of.
        branch: Name of the branch.
        old: What it must be.
        why: The reason.
    """

    set: str
    branch: str
    old: CommitId
    why: str

    kind = "delete"

    @property
    def words(self) -> str:
        """The action in plain words."""
        return f"delete branch {self.branch}: {self.why}"


@dataclass(frozen=True, slots=True)
class Retire:
    """Write into series.toml that the base has a set already.

    Attributes:
        set: The set.
        why: The reason that is written.
    """

    set: str
    why: str

    kind = "retire"

    @property
    def words(self) -> str:
        """The action in plain words."""
        return f"write into series.toml that {self.set} is superseded: {self.why}"


Action: TypeAlias = (
    Push
    | Retarget
    | Comment
    | Create
    | Record
    | Edit
    | Ask
    | Label
    | Ready
    | Delete
    | Retire
)
