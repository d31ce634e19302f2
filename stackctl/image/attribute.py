# SPDX-License-Identifier: Apache-2.0
"""Which composition is it then? For an image that is not what it should be.

Every differing file is looked up in the trees that the series can give: the base, the
tree after each patch, other subsets, compositions of earlier releases. Which file came
from where, and which tree the whole image is or is nearest to, often names the mistake.
"""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from stackctl.image.compare import Comparison
from stackctl.image.expectation import MODE_EXECUTABLE, MODE_FILE, Entries
from stackctl.image.roots import CHECKOUT
from stackctl.image.view import show


@dataclass(frozen=True, slots=True)
class Candidate:
    """A tree that the image could contain.

    Attributes:
        kind: `base`, `after-patch`, `subset` or `composition`.
        label: What a person calls it: "the base", "after kda-overlap/0002", "the series
            without kda-overlap", "composition <id> of release r3".
        entries: Mode and blob id by path.
    """

    kind: str
    label: str
    entries: Entries


@dataclass(frozen=True, slots=True)
class Touch:
    """A patch that changes a file.

    Attributes:
        set: Name of the set.
        patch: Name of the patch.
    """

    set: str
    patch: str


class Candidates(Protocol):
    """Trees that a series can give. Made only when something differs."""

    def trees(self) -> Iterable[Candidate]:
        """Yield the trees, the most telling first."""

    def touching(self, path: bytes) -> Sequence[Touch]:
        """Return the patches that change a path, in order."""


def explain(
    comparisons: Sequence[Comparison], candidates: Candidates, *, most: int = 200
) -> list[dict[str, object]]:
    """Return the explanations of a mismatch, the one of the whole image first.

    Args:
        comparisons: The compared roots.
        candidates: Trees to look in.
        most: Files that are explained one by one.
    """
    differing: dict[bytes, tuple[int, bytes] | None] = {}
    packages: set[bytes] = set()
    for comparison in comparisons:
        for finding in comparison.of("missing", "modified", "type", "mode", "extra"):
            differing[finding.path] = finding.actual
            if comparison.root.kind != CHECKOUT:
                packages.add(finding.path)
    states: dict[bytes, list[Candidate]] = {path: [] for path in differing}
    nearest: list[tuple[int, Candidate]] = []
    for candidate in candidates.trees():
        for path, actual in differing.items():
            if _equal(candidate.entries.get(path), actual, path in packages):
                states[path].append(candidate)
        distance = sum(_distance(c, candidate.entries) for c in comparisons)
        if not nearest or distance < nearest[0][0]:
            nearest = [(distance, candidate)]
        elif distance == nearest[0][0]:
            nearest.append((distance, candidate))
    result: list[dict[str, object]] = []
    if nearest:
        distance, first = nearest[0]
        result.append(
            {
                "about": "image",
                "relation": "equals" if distance == 0 else "nearest",
                "kind": first.kind,
                "label": first.label,
                "differing": distance,
                "also": [other.label for _, other in nearest[1:6]],
                "text": ("equals " if distance == 0 else "is nearest to ")
                + first.label
                + (f", from which {distance} files differ" if distance else ""),
            }
        )
    for path in sorted(differing)[:most]:
        found = states[path]
        result.append(
            {
                "about": "file",
                "path": show(path),
                "touched_by": [
                    {"set": touch.set, "patch": touch.patch}
                    for touch in candidates.touching(path)
                ],
                "state": found[0].kind if found else "unknown",
                "label": found[0].label if found else "no known state",
                "also": [other.label for other in found[1:6]],
            }
        )
    return result


def _equal(
    wanted: tuple[int, bytes] | None, actual: tuple[int, bytes] | None, package: bool
) -> bool:
    if wanted is None or actual is None:
        return wanted is None and actual is None
    files = (MODE_FILE, MODE_EXECUTABLE)
    if package and wanted[0] in files and actual[0] in files:
        return wanted[1] == actual[1]
    return wanted == actual


def _distance(comparison: Comparison, entries: Entries) -> int:
    """Return how many files of a root differ from a tree."""
    package = comparison.root.kind != CHECKOUT
    actual: dict[bytes, tuple[int, bytes] | None] = {}
    excused: set[bytes] = set()
    for finding in comparison.findings:
        if finding.status != "unverified" and finding.status != "ignored":
            actual[finding.path] = finding.actual
        elif finding.expected is not None:
            # Tracked, and by a rule not installed, whatever the tree.
            excused.add(finding.path)
    count = 0
    wanted = dict(_below(entries, comparison.root.tree))
    for path, there in actual.items():
        if not _equal(wanted.get(path), there, package):
            count += 1
    prefix = _prefix(comparison.root.tree)
    for path, value in wanted.items():
        if path in actual or path in excused:
            continue
        node = comparison.tracked.get(path[len(prefix) :])
        if node is None:
            other = comparison.nodes.get(path[len(prefix) :])
            count += other is None or other.oid != value[1]
        elif node.oid != value[1]:
            count += 1
    # Tracked files that match the expectation and that this tree does not have.
    count += sum(1 for path in comparison.tracked if prefix + path not in wanted)
    return count


def _prefix(tree: str) -> bytes:
    return b"" if tree in ("", ".") else os.fsencode(tree.strip("/")) + b"/"


def _below(
    entries: Mapping[bytes, tuple[int, bytes]], tree: str
) -> Iterator[tuple[bytes, tuple[int, bytes]]]:
    prefix = _prefix(tree)
    for path, value in entries.items():
        if path.startswith(prefix):
            yield path, value
