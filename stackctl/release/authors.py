# SPDX-License-Identifier: Apache-2.0
"""Who wrote what a composition is made of: authors and co-authors of its commits."""

import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from stackctl.git.objects import COMMITTER
from stackctl.git.store import Store
from stackctl.model.lock import Content

_FORMAT = (
    "%H%x00%P%x00%an <%ae>%x00"
    "%(trailers:key=Co-authored-by,valueonly,separator=%x00)%x1e"
)
_PERSON = re.compile(r"\s*([^<>]*?)\s*<([^<>]*)>\s*")


class Author(NamedTuple):
    """A person as commits name them."""

    name: str
    email: str


class _Commit(NamedTuple):
    parents: tuple[str, ...]
    people: tuple[Author, ...]


def _person(text: str) -> Author | None:
    match = _PERSON.fullmatch(text)
    if match is None or text.encode() == COMMITTER:
        return None
    shown = "".join(char for char in match[1] if char.isprintable())
    return Author(shown or match[2], match[2])


def _history(store: Store, content: Content) -> dict[str, _Commit]:
    out = store.git.run(
        "log",
        "--encoding=UTF-8",
        f"--format={_FORMAT}",
        content.commit,
        f"^{content.base.commit}",
    )
    found = {}
    for row in out.decode("utf-8", "replace").split("\x1e"):
        if not row.strip():
            continue
        commit, parents, author, *others = row.lstrip("\n").split("\0")
        people = [_person(each) for each in (author, *others)]
        known = tuple(dict.fromkeys(p for p in people if p is not None))
        found[commit] = _Commit(tuple(parents.split()), known)
    return found


def _reachable(history: Mapping[str, _Commit], starts: Iterable[str]) -> set[str]:
    found: set[str] = set()
    queue = [start for start in starts if start in history]
    while queue:
        commit = queue.pop()
        if commit not in found:
            found.add(commit)
            queue += [p for p in history[commit].parents if p in history]
    return found


def authors_by_set(store: Store, content: Content) -> dict[str, tuple[Author, ...]]:
    """Return the authors of each set, in the order in which they appear.

    Args:
        store: Holds the composition's commits.
        content: What was composed.
    """
    if not content.steps:
        return {}
    history = _history(store, content)
    order = {commit: n for n, commit in enumerate(reversed(history))}
    found: dict[str, dict[Author, None]] = {}
    for step in content.steps:
        commit = history.get(step.commit)
        people = found.setdefault(step.set, {})
        if commit is None:
            continue
        brought: set[str] = {step.commit}
        if step.strategy == "merge" and len(commit.parents) > 1:
            first, *others = commit.parents
            brought |= _reachable(history, others) - _reachable(history, [first])
        for each in sorted(brought, key=order.__getitem__):
            people.update(dict.fromkeys(history[each].people))
    return {name: tuple(people) for name, people in found.items()}
