# SPDX-License-Identifier: Apache-2.0
"""What a reviewer gets: the culprit, its neighbours, and how to see it again."""

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from pathlib import Path

from stackctl.bisect.model import Evaluation, Kept, Work
from stackctl.bisect.stack import Place
from stackctl.compose.compare import tree_diff
from stackctl.compose.materialise import materialise
from stackctl.errors import ExitCode, StackctlError
from stackctl.git.store import Store
from stackctl.model.ids import TreeId
from stackctl.model.series import PatchSet, Series
from stackctl.progress import SILENT, Progress


@dataclass(frozen=True, slots=True)
class Culprit:
    """One patch, or one set, that is named.

    Attributes:
        set: Name of the set.
        title: Its title.
        patch: File name of the patch, None for a whole set.
        number: Place of the patch in its set, None for a whole set.
        commit: Hex id of the composed commit, None for a whole set.
        author: `Name <email>`, None for a whole set.
        date: Author date, ISO 8601.
        subject: First line of the message.
        pull: Where it is reviewed: repo, number and url.
        diff: What it changes.
    """

    set: str
    title: str
    patch: str | None = None
    number: int | None = None
    commit: str | None = None
    author: str | None = None
    date: str | None = None
    subject: str | None = None
    pull: Mapping[str, object] | None = None
    diff: str | None = None

    def document(self) -> dict[str, object]:
        """Return it for a JSON document."""
        out = {name: getattr(self, name) for name in self.__slots__}
        out["pull"] = dict(self.pull) if self.pull else None
        return out


@dataclass(frozen=True, slots=True)
class Neighbour:
    """One side of the culprit: without it, or with it.

    Attributes:
        name: Place of the series, or names of sets.
        tree: Hex id of the tree.
        runs: Every time that it was tried.
    """

    name: str
    tree: str
    runs: tuple[Evaluation, ...]

    @property
    def last(self) -> Evaluation | None:
        """The last time that it was tried, None where it was not."""
        return self.runs[-1] if self.runs else None

    @property
    def bad_runs(self) -> int:
        """How often it was bad."""
        return sum(each.answer.verdict == "bad" for each in self.runs)

    def document(self) -> dict[str, object]:
        """Return it for a JSON document."""
        answer = self.last.answer if self.last else None
        return {
            "name": self.name,
            "tree": self.tree,
            "composition": self.last.composition if self.last else None,
            "runs": len(self.runs),
            "bad_runs": self.bad_runs,
            "verdict": answer.verdict if answer else None,
            "exit": answer.exit if answer else None,
            "why": answer.why if answer else None,
            "output": answer.output if answer else None,
            "receipt": answer.receipt if answer else None,
        }


@dataclass(frozen=True, slots=True)
class Report:
    """The answer of a bisection.

    Attributes:
        kind: `patch`, `set`, `interaction`, `noise` or `unresolved`.
        code: Exit code.
        reason: Stable word for why.
        message: One sentence.
        candidates: How many patches or sets it could have been.
        culprits: What is named: one patch or set, or the sets of an interaction.
        needs_without: Sets whose presence hides the fault.
        suspects: Names of what it could be, where that is unresolved.
        good: The neighbour without the culprit.
        bad: The neighbour with it.
        confidence: Probability that the culprit is right; None where the command is
            taken to be deterministic.
        not_composing: Subsets that do not compose, with the reason.
        reproduce: Command lines that show it again.
        kept: Folders for the user.
        notes: Further sentences.
        details: Further keys of the document.
        evaluations: Every tree that was tried, in order.
        work: What it cost.
        log: The log.
    """

    kind: str
    code: ExitCode
    reason: str
    message: str
    candidates: int
    log: str
    work: Work
    evaluations: tuple[Evaluation, ...]
    culprits: tuple[Culprit, ...] = ()
    needs_without: tuple[str, ...] = ()
    suspects: tuple[str, ...] = ()
    good: Neighbour | None = None
    bad: Neighbour | None = None
    confidence: float | None = None
    not_composing: tuple[Mapping[str, object], ...] = ()
    reproduce: tuple[str, ...] = ()
    kept: tuple[Kept, ...] = ()
    notes: tuple[str, ...] = ()
    details: Mapping[str, object] = field(default_factory=dict)

    def result(self) -> dict[str, object]:
        """Return what is found, without what it cost: the last line of the log."""
        first = self.culprits[0] if self.culprits else None
        return {
            "culprit": first.document() if first else None,
            "kind": self.kind,
            "reason": self.reason,
            "message": self.message,
            "culprits": [
                {"set": each.set, "patch": each.patch} for each in self.culprits
            ],
            "needs_without": list(self.needs_without),
            "suspects": list(self.suspects),
            "candidates": self.candidates,
            "confidence": self.confidence,
            "good": self.good.document() if self.good else None,
            "bad": self.bad.document() if self.bad else None,
            "not_composing": [dict(each) for each in self.not_composing],
            "reproduce": list(self.reproduce),
            "notes": list(self.notes),
            **self.details,
        }

    def document(self) -> dict[str, object]:
        """Return the JSON document of the command."""
        return {
            **self.result(),
            "evaluations": self.work.evaluations,
            "log": self.log,
            "evaluated": [
                {**each.document(), "replayed": each.replayed}
                for each in self.evaluations
            ],
            "kept": [
                {"path": str(each.path), "tree": each.tree, "existed": each.existed}
                for each in self.kept
            ],
            "work": self.work.document(),
            "ns": self.work.ns,
        }


def describe_patch(
    series: Series, store: Store, before: Place, after: Place
) -> Culprit:
    """Return what there is to say of a patch.

    Args:
        series: The series.
        store: Holds the commits.
        before: The place before it.
        after: The place with it.
    """
    assert after.set is not None
    patch_set = next(each for each in series.sets if each.name == after.set)
    author, date, subject = commit_facts(store.commit(bytes.fromhex(after.commit)))
    return Culprit(
        set=after.set,
        title=patch_set.title,
        patch=after.patch,
        number=after.number,
        commit=after.commit,
        author=author,
        date=date,
        subject=subject,
        pull=pull_of(patch_set),
        diff=tree_diff(store, before.tree, after.tree),
    )


def describe_set(series: Series, name: str) -> Culprit:
    """Return what there is to say of a whole set."""
    patch_set = next(each for each in series.sets if each.name == name)
    return Culprit(set=name, title=patch_set.title, pull=pull_of(patch_set))


def pull_of(patch_set: PatchSet) -> dict[str, object] | None:
    """Return where a set is reviewed, None where that is not said."""
    pull = patch_set.pull
    if pull is None:
        return None
    url = None
    if pull.number is not None:
        url = f"https://github.com/{pull.repo}/pull/{pull.number}"
    return {"repo": pull.repo, "number": pull.number, "url": url}


def commit_facts(raw: bytes) -> tuple[str, str, str]:
    """Return author, author date and subject of a commit object's content."""
    head, _, message = raw.partition(b"\n\n")
    line = next(each for each in head.split(b"\n") if each.startswith(b"author "))
    who, seconds, zone = line[7:].rsplit(b" ", 2)
    sign = -1 if zone.startswith(b"-") else 1
    offset = timedelta(
        hours=sign * int(zone[1:3] or b"0"), minutes=sign * int(zone[3:5] or b"0")
    )
    try:
        when = datetime.fromtimestamp(int(seconds), timezone(offset)).isoformat()
    except (ValueError, OverflowError, OSError):
        when = f"{seconds.decode()} {zone.decode()}"
    subject = message.strip().partition(b"\n")[0]
    return who.decode("utf-8", "replace"), when, subject.decode("utf-8", "replace")


def reproduce_prefix(before: Place, after: Place, question: str) -> str:
    """Return the command line that tries only a patch's two neighbours."""
    return f"stackctl bisect --good {before.name} --bad {after.name} {question}"


def question_words(
    identity: Mapping[str, object], confidence: float | None, repeats: int
) -> str:
    """Return the options that ask a question, quoted for a shell.

    Args:
        identity: What is asked of each tree.
        confidence: Confidence where answers may be wrong, None where not.
        repeats: Most runs of each end, where answers may be wrong.
    """
    words = []
    for name in ("run", "gate", "timeout"):
        value = identity.get(name)
        if value is not None:
            text = f"{value:g}" if isinstance(value, float) else str(value)
            words.append(f"--{name} {shlex.quote(text)}")
    if confidence is not None:
        words.append(f"--confidence {confidence:g} --repeats {repeats}")
    return " ".join(words)


def keep_folders(
    store: Store,
    parent: Path,
    neighbours: Mapping[str, str],
    progress: Progress = SILENT,
) -> tuple[tuple[Kept, ...], tuple[str, ...]]:
    """Write trees into folders for the user.

    A folder of the same name is left as it is: its name tells the tree, and somebody
    may be working in it.

    Args:
        store: Holds the trees.
        parent: Folder to put them in.
        neighbours: Start of the folder's name -> hex id of the tree.
        progress: Told the files written.

    Returns:
        The folders, and notes about those that could not be written.
    """
    kept, notes = [], []
    for name, tree in neighbours.items():
        path = parent / f"bisect-{name}-{tree[:12]}"
        if path.exists():
            kept.append(Kept(path, TreeId(tree), existed=True))
            continue
        try:
            parent.mkdir(parents=True, exist_ok=True)
            materialise(store, TreeId(tree), path, progress)
        except (StackctlError, OSError) as error:
            # The answer stands also where there is no room for the folders.
            notes.append(f"{path} could not be written: {error}")
            continue
        kept.append(Kept(path, TreeId(tree)))
    return tuple(kept), tuple(notes)
