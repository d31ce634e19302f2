# SPDX-License-Identifier: Apache-2.0
"""The series as a row of trees: one candidate per patch, between a good and a bad end.

The composer gives the whole chain of commits at once, so a prefix costs nothing to
compose: its tree is known.
"""

import difflib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256

from stackctl.cache import Cache
from stackctl.compose.model import Composition, Step
from stackctl.errors import UsageError
from stackctl.git.changes import tree_changes
from stackctl.git.objects import MODE_SUBMODULE
from stackctl.model import lock
from stackctl.model.ids import CommitId, CompositionId, Sha256, TreeId

_PLACE = re.compile(r"(?P<set>[a-z0-9-]+)[:/](?P<patch>.+)\Z")
_COMMIT = re.compile(r"[0-9a-f]{7,40}\Z")


@dataclass(frozen=True, slots=True)
class Place:
    """A point of the series: everything up to and including one patch.

    Attributes:
        steps: Number of the composition's steps that are in.
        set: Set of the last one, None for the base.
        patch: File name of the last one, or the pinned head; None for the base.
        number: Place of the patch within its set, from 1; 0 for the base.
        tree: Hex id of the tree.
        commit: Hex id of the commit.
    """

    steps: int
    set: str | None
    patch: str | None
    number: int
    tree: TreeId
    commit: CommitId

    @property
    def name(self) -> str:
        """Name that `--good` and `--bad` take: `base`, or `set:number`."""
        return f"{self.set}:{self.number}" if self.set else "base"

    @property
    def label(self) -> str:
        """Name for people: set and patch."""
        return f"{self.set}/{self.patch}" if self.set else "base"

    def document(self) -> dict[str, object]:
        """Return the place for a JSON document."""
        return {
            "place": self.name,
            "set": self.set,
            "patch": self.patch,
            "tree": self.tree,
            "commit": self.commit,
        }


def places_of(composition: Composition) -> tuple[Place, ...]:
    """Return every point of a composition, the base first.

    Steps that add nothing (superseded and excluded sets) are no points; patches that
    leave the tree as it is are.
    """
    base = composition.base
    out = [Place(0, None, None, 0, base.tree, base.commit)]
    numbers: dict[str, int] = {}
    for count, step in enumerate(composition.steps, 1):
        if step.patch is None and step.strategy == "apply":
            continue
        if step.disposition in ("excluded", "superseded") or step.commit is None:
            continue
        number = numbers[step.set] = numbers.get(step.set, 0) + 1
        out.append(Place(count, step.set, _name(step), number, step.tree, step.commit))
    return tuple(out)


def _name(step: Step) -> str:
    return step.patch or f"{step.strategy} {(step.head or step.commit or '')[:12]}"


def find_place(places: Sequence[Place], text: str) -> int:
    """Return the index of the place that a user names.

    Args:
        places: All places.
        text: `base`, `full`, a set (all of it), `set:N` or `set/PATCH` (up to that
            patch), or the start of a composed commit's id.

    Raises:
        UsageError: There is no such place, or more than one.
    """
    if text == "base":
        return 0
    if text == "full":
        return len(places) - 1
    sets = dict.fromkeys(place.set for place in places if place.set)
    if text in sets:
        return max(n for n, place in enumerate(places) if place.set == text)
    found = _PLACE.match(text)
    if found is not None and found["set"] in sets:
        return _within(places, found["set"], found["patch"])
    if _COMMIT.match(text):
        hits = [n for n, place in enumerate(places) if place.commit.startswith(text)]
        if len(hits) == 1:
            return hits[0]
    names = [name for name in sets if name]
    near = difflib.get_close_matches(text, names, 1)
    raise UsageError(
        f"{text!r} is no place of the series",
        kind="unknown-place",
        hint=f"did you mean `{near[0]}`?"
        if near
        else "write base, full, SET, SET:N, SET/PATCH or a composed commit; the sets "
        f"are: {', '.join(names)}",
    )


def _within(places: Sequence[Place], name: str, patch: str) -> int:
    own = [n for n, place in enumerate(places) if place.set == name]
    if patch.isdigit() and len(patch) < 4:
        if 1 <= int(patch) <= len(own):
            return own[int(patch) - 1]
        hits = []
    else:
        hits = [n for n in own if places[n].patch == patch] or [
            n for n in own if (places[n].patch or "").startswith(patch)
        ]
    if len(hits) == 1:
        return hits[0]
    have = ", ".join(f"{places[n].number} {places[n].patch}" for n in own)
    raise UsageError(
        f"set `{name}` has {'more than one' if hits else 'no'} patch {patch}",
        kind="unknown-place",
        hint=f"it has: {have}",
    )


def distinct(places: Sequence[Place]) -> tuple[Place, ...]:
    """Return the places whose tree differs from the one before: the candidates."""
    kept = [places[0]] if places else []
    for place in places[1:]:
        if place.tree != kept[-1].tree:
            kept.append(place)
    return tuple(kept)


class Identities:
    """Composition ids of prefixes, each made from the one before.

    The content digest of a tree covers every file; from one prefix to the next only a
    few of them change.

    Args:
        cache: Holds the trees and remembers digests of files.
        composition: The whole composition.
    """

    def __init__(self, cache: Cache, composition: Composition) -> None:
        self._cache = cache
        self._composition = composition
        self._tree: TreeId | None = None
        self._lines: dict[bytes, bytes] = {}
        self._known: dict[int, CompositionId] = {}

    def composition(self, place: Place) -> CompositionId:
        """Return the composition id of a prefix.

        Args:
            place: Where the prefix ends.
        """
        known = self._known.get(place.steps)
        if known is not None:
            return known
        whole = self._composition
        steps = whole.steps[: place.steps]
        content = lock.Content(
            schema=lock.SCHEMA,
            base=lock.LockedBase(
                kind=whole.base.kind,
                identity=whole.base.identity,
                tree=whole.base.tree,
                commit=whole.base.commit,
            ),
            steps=tuple(step.locked() for step in steps),
            tree=place.tree,
            commit=place.commit,
            content_sha256=self._content(place.tree),
        )
        found = self._known[place.steps] = lock.composition_id(content)
        return found

    def _content(self, tree: TreeId) -> Sha256:
        store = self._cache.store
        if self._tree is None:
            files = list(store.walk(tree))
        else:
            files = []
            for path, _, after in tree_changes(store, self._tree, tree):
                if after is None:
                    del self._lines[path]
                else:
                    files.append((path, after.mode, after.oid))
        digests = self._cache.get("sha256", {oid for _, _, oid in files})
        fresh: dict[bytes, bytes] = {}
        for path, mode, oid in files:
            digest = digests.get(oid) or fresh.get(oid)
            if digest is None:
                data = oid.hex().encode()
                if mode != MODE_SUBMODULE:
                    data = store.blob(oid)
                digest = fresh[oid] = sha256(data).digest()
            self._lines[path] = b"%o %s\0%s\0" % (mode, digest.hex().encode(), path)
        self._cache.put("sha256", fresh)
        self._tree = tree
        lines = self._lines
        return Sha256(
            sha256(b"".join([lines[path] for path in sorted(lines)])).hexdigest()
        )
