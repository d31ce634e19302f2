# SPDX-License-Identifier: Apache-2.0
"""Are the change fragments of a release complete, right, and unchanged since?"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from stackctl.model.fields import nearest
from stackctl.model.lock import Content, Step
from stackctl.model.series import Series
from stackctl.release.earlier import Earlier
from stackctl.release.fragments import FOLDER, Fragment

State = Literal["new", "released", "waiting"]

INERT = ("superseded", "excluded", "already-in-base")
"""Dispositions of steps that add nothing to a composition."""


@dataclass(frozen=True, slots=True)
class Problem:
    """What is wrong with the fragments.

    Attributes:
        kind: Which rule: `missing`, `edited`, `removed`, `unknown-set`, ...
        about: The fragment or set.
        message: What was found, and what to do.
    """

    kind: str
    about: str
    message: str

    def document(self) -> dict[str, object]:
        """Return the problem for a JSON document."""
        return {"kind": self.kind, "about": self.about, "message": self.message}


@dataclass(frozen=True, slots=True)
class Changes:
    """The change fragments of a composition.

    Attributes:
        fragments: All fragments of the project, by id.
        states: What each is: `new` (of this release), `released` (carried by an
            earlier one), `waiting` (its sets are drafts or left out).
        first: The release that carried a fragment first, by id.
        sets: Names of the sets that the composition has, in order.
        since: The newest release before, None for the first.
        problems: What is wrong.
    """

    fragments: tuple[Fragment, ...]
    states: Mapping[str, State]
    first: Mapping[str, str]
    sets: tuple[str, ...]
    since: str | None
    problems: tuple[Problem, ...]

    @property
    def new(self) -> tuple[Fragment, ...]:
        """The fragments of this release."""
        return tuple(f for f in self.fragments if self.states[f.id] == "new")

    @property
    def carried(self) -> tuple[Fragment, ...]:
        """The fragments that a release carries: all but those that wait."""
        return tuple(f for f in self.fragments if self.states[f.id] != "waiting")

    def document(self) -> dict[str, object]:
        """Return the answer of `changes check` for a JSON document."""
        return {
            "ok": not self.problems,
            "since": self.since,
            "sets": list(self.sets),
            "fragments": [
                {
                    "id": each.id,
                    "category": each.category,
                    "sets": list(each.sets),
                    "state": self.states[each.id],
                    "release": self.first.get(each.id),
                    "summary": each.summary,
                }
                for each in self.fragments
            ],
            "problems": [each.document() for each in self.problems],
        }


def composed_sets(steps: Iterable[Step]) -> tuple[str, ...]:
    """Return the names of the sets that add something, in order."""
    return tuple(dict.fromkeys(s.set for s in steps if s.disposition not in INERT))


def _identities(content: Content) -> dict[str, list[str]]:
    """Return what each set is: its changes, whatever they stand on."""
    found: dict[str, list[str]] = {}
    for step in content.steps:
        if step.disposition not in INERT:
            identity = step.head or step.patch_id or "empty"
            found.setdefault(step.set, []).append(identity)
    return found


def check_changes(
    series: Series,
    content: Content,
    fragments: Sequence[Fragment],
    earlier: Earlier,
    root: Path,
) -> Changes:
    """Hold the change fragments against a composition and the releases before.

    Args:
        series: The series.
        content: What was composed.
        fragments: The project's fragments.
        earlier: The releases before.
        root: Folder in which files of evidence lie.
    """
    sets = composed_sets(content.steps)
    carried = earlier.fragments
    problems = [Problem("bad-release", "releases", text) for text in earlier.problems]
    known = {each.name for each in series.sets}
    states: dict[str, State] = {}
    by_id = {each.id: each for each in fragments}
    for each in fragments:
        if each.id in carried:
            states[each.id] = "released"
            continue
        states[each.id] = "new"
        problems += _set_problems(each, known, sets)
        if each.sets and not set(each.sets) & set(sets) and each.category != "removed":
            states[each.id] = "waiting"
        problems += _evidence_problems(each, root)
        if each.corrects and each.corrects not in carried:
            what = "is not released" if each.corrects in by_id else "does not exist"
            problems.append(
                Problem(
                    "nothing-to-correct",
                    each.id,
                    f"{each.id} corrects `{each.corrects}`, which {what}"
                    + ("; edit that one" if each.corrects in by_id else ""),
                )
            )
    problems += _immutable(carried, by_id)
    new = [each for each in fragments if states[each.id] == "new"]
    problems += _missing(content, sets, fragments, new, earlier)
    return Changes(
        fragments=tuple(fragments),
        states=states,
        first={name: tag for name, (tag, _) in carried.items()},
        sets=sets,
        since=earlier.last.tag if earlier.last else None,
        problems=tuple(problems),
    )


def _set_problems(
    fragment: Fragment, known: set[str], composed: Sequence[str]
) -> list[Problem]:
    if fragment.category == "removed":
        return []  # a set that is gone has no name in the series any more
    unknown = [name for name in fragment.sets if name not in known]
    problems = [
        Problem(
            "unknown-set",
            fragment.id,
            f"{fragment.id} names a set `{name}` that the series does not have"
            + nearest(name, sorted(known)),
        )
        for name in unknown
    ]
    out = [n for n in fragment.sets if n in known and n not in composed]
    if out and len(out) + len(unknown) < len(fragment.sets):
        names = ", ".join(f"`{name}`" for name in out)
        problems.append(
            Problem(
                "mixed-sets",
                fragment.id,
                f"{fragment.id} also names {names}, which the composition does not "
                "have; write a fragment of its own for that",
            )
        )
    return problems


def _evidence_problems(fragment: Fragment, root: Path) -> list[Problem]:
    problems = []
    inside = root.resolve()
    for name in fragment.files:
        path = root / name
        if path.is_file() and path.resolve().is_relative_to(inside):
            continue
        what = "leads out of the project" if path.is_file() else "is no file"
        problems.append(
            Problem(
                "no-evidence",
                fragment.id,
                f"{fragment.id} names the evidence {name}, which {what}",
            )
        )
    return problems


def _immutable(
    carried: Mapping[str, tuple[str, bytes]], by_id: Mapping[str, Fragment]
) -> list[Problem]:
    """Find fragments that changed after a release carried them."""
    problems = []
    for name, (tag, data) in sorted(carried.items()):
        path = f"{FOLDER}/{name}.toml"
        if name not in by_id:
            problems.append(
                Problem(
                    "removed",
                    name,
                    f"{path} is gone, but release {tag} carried it; put it back "
                    f"(git show refs/stackctl/{tag}:{path}), and correct it by a new "
                    "fragment",
                )
            )
        elif by_id[name].data != data:
            problems.append(
                Problem(
                    "edited",
                    name,
                    f"{path} is not what release {tag} carried; put that back "
                    f"(git show refs/stackctl/{tag}:{path}), and write a new fragment "
                    f'with corrects = "{name}"',
                )
            )
    return problems


def _missing(
    content: Content,
    sets: Sequence[str],
    fragments: Sequence[Fragment],
    new: Sequence[Fragment],
    earlier: Earlier,
) -> list[Problem]:
    """Find changes that no fragment tells."""
    problems: list[Problem] = []

    def missing(about: str, why: str) -> None:
        hint = f"add {FOLDER}/<id>.toml"
        problems.append(Problem("missing", about, f"{why}; {hint}"))

    told = {name for each in fragments for name in each.sets}
    told_now = {name for each in new for name in each.sets}
    before = _identities(earlier.last.content) if earlier.last else {}
    now = _identities(content)
    for name in sets:
        if name not in told:
            missing(name, f"no fragment names the set `{name}`")
        elif earlier.last and name not in told_now and before.get(name) != now[name]:
            what = "changed" if name in before else "is new"
            missing(
                name,
                f"the set `{name}` {what} since {earlier.last.tag}, and no new "
                "fragment names it",
            )
    if earlier.last is None:
        return problems
    gone = {n for each in new if each.category == "removed" for n in each.sets}
    for name in before:
        if name not in now and name not in gone:
            missing(
                name,
                f"{earlier.last.tag} had the set `{name}`, and no new fragment of "
                "category removed names it",
            )
    old = earlier.last.content.base
    moved = (old.identity, old.tree) != (content.base.identity, content.base.tree)
    if moved and not any(each.category == "base" for each in new):
        missing(
            "base",
            f"the base moved from {old.identity} to {content.base.identity} since "
            f"{earlier.last.tag}, and no new fragment of category base says so",
        )
    return problems
