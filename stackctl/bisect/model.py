# SPDX-License-Identifier: Apache-2.0
"""What a search asks and learns."""

from collections.abc import Collection, Hashable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Generic, Literal, Protocol, TypeVar

from stackctl.errors import ExitCode, StackctlError
from stackctl.model.ids import CommitId, CompositionId, TreeId

Verdict = Literal["good", "bad", "skip"]
Kind = Literal["patch", "set", "interaction", "noise", "unresolved"]

K = TypeVar("K", bound=Hashable)


class AbortedError(StackctlError):
    """The command asked to stop the search (exit 9)."""

    exit_code = ExitCode.INVALID
    default_kind = "run-aborted"


@dataclass(frozen=True, slots=True)
class Probe:
    """One tree to try.

    Attributes:
        name: What it is, for people: a place of the series, or the names of its sets.
        tree: Hex id of the tree.
        commit: Hex id of its commit.
        composition: Its composition id.
        sets: The sets it holds.
    """

    name: str
    tree: TreeId
    commit: CommitId
    composition: CompositionId
    sets: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Answer:
    """What trying one tree gave.

    Attributes:
        verdict: `good`, `bad` or `skip`.
        exit: Exit status of the command; None for a gate, or where time ran out.
        ns: How long it took: ns.
        why: A gate's reasons, or why there is no exit status.
        output: File with what the command printed.
        receipt: Receipt of a gate.
        unsure: Whether it was skipped because a gate could not tell, although it ran.
    """

    verdict: Verdict
    exit: int | None
    ns: int
    why: str = ""
    output: str | None = None
    receipt: str | None = None
    unsure: bool = False


@dataclass(frozen=True, slots=True)
class Evaluation:
    """One tree that was tried, as the log keeps it.

    Attributes:
        name: What it was, for people.
        tree: Hex id of the tree.
        composition: Its composition id.
        answer: What came of it.
        replayed: Whether it comes from the log of an earlier run.
    """

    name: str
    tree: TreeId
    composition: CompositionId
    answer: Answer
    replayed: bool = False

    def document(self) -> dict[str, object]:
        """Return the evaluation as a line of the log."""
        answer = self.answer
        out: dict[str, object] = {
            "name": self.name,
            "tree": self.tree,
            "composition": self.composition,
            "verdict": answer.verdict,
            "exit": answer.exit,
            "ns": answer.ns,
        }
        if answer.why:
            out["why"] = answer.why
        if answer.output:
            out["output"] = answer.output
        if answer.receipt:
            out["receipt"] = answer.receipt
        if answer.unsure:
            out["unsure"] = True
        return out


class Strategy(Protocol[K]):
    """Decides what is tried next. Knows nothing of trees, folders and commands."""

    @property
    def done(self) -> bool:
        """Whether nothing more needs to be tried."""

    def wants(self, free: int, running: Collection[K]) -> list[K]:
        """Return what to try next.

        Args:
            free: At most so many.
            running: What is being tried now.

        Returns:
            Keys, most wanted first; may be empty while something is running.
        """

    def tell(self, key: K, verdict: Verdict | Literal["conflict"]) -> None:
        """Take an answer. `conflict` means that there is no such tree."""

    def useless(self, running: Collection[K]) -> list[K]:
        """Return what is being tried although no answer to it matters any more."""

    def state(self) -> str:
        """Return in one line what is known and what is left."""


@dataclass(frozen=True, slots=True)
class Work:
    """What the search cost.

    Attributes:
        evaluations: Trees tried, with those of an earlier run.
        replayed: Of these, from the log of an earlier run.
        cancelled: Speculative runs that were ended because they no longer mattered.
        first_ns: Time to write whole trees, one per worker: ns.
        waited_ns: Time until the first command could start: ns.
        switch_ns: Time to bring a folder from one tree to another: ns.
        switches: How often that was done.
        run_ns: Time in the command: ns, all workers together.
        ns: Time of the whole search: ns.
    """

    evaluations: int = 0
    replayed: int = 0
    cancelled: int = 0
    first_ns: int = 0
    waited_ns: int = 0
    switch_ns: int = 0
    switches: int = 0
    run_ns: int = 0
    ns: int = 0

    def document(self) -> dict[str, object]:
        """Return it for a JSON document."""
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(frozen=True, slots=True)
class Finding(Generic[K]):
    """The answer of a search, before it is told to anybody.

    Attributes:
        kind: What was found.
        code: Exit code of the contract.
        reason: Stable word for why, for scripts.
        message: One sentence for people.
        culprit: What was found, None where nothing was.
        suspects: What it could be where it is unresolved.
        notes: Further sentences.
        confidence: Probability that the culprit is right, None where the command is
            taken to be deterministic.
    """

    kind: Kind
    code: ExitCode
    reason: str
    message: str
    culprit: K | None = None
    suspects: tuple[K, ...] = ()
    notes: tuple[str, ...] = field(default=())
    confidence: float | None = None


@dataclass(frozen=True, slots=True)
class Kept:
    """A folder that was left for the user.

    Attributes:
        path: The folder.
        tree: Hex id of the tree in it.
        existed: Whether a folder of that name was there and was left as it was.
    """

    path: Path
    tree: TreeId
    existed: bool = False
