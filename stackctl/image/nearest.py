# SPDX-License-Identifier: Apache-2.0
"""Where a root may be that is not where it should be.

A wrong path in `--root` is the commonest mistake there is, and thousands of missing
files are no help against it: what is there instead is.
"""

import os
from collections.abc import Iterable
from dataclasses import dataclass

from stackctl.image.compare import Comparison
from stackctl.image.roots import PACKAGE
from stackctl.image.startup import PACKAGES_FOLDERS
from stackctl.image.view import Node, View, show

#: Names and places that are shown.
_MOST = 5


@dataclass(frozen=True, slots=True)
class Absence:
    """What is where a root should be.

    Attributes:
        message: One sentence.
        hint: What to try.
        existing: Deepest folder of the root's path that is there.
        holds: Some names in it.
        candidates: Folders that look like the tree, best first.
    """

    message: str
    hint: str
    existing: str
    holds: tuple[str, ...]
    candidates: tuple[str, ...]

    def document(self) -> dict[str, object]:
        """Return it as members of a JSON reason."""
        return {
            "existing": self.existing,
            "holds": list(self.holds),
            "candidates": list(self.candidates),
        }


def absence(
    view: View, comparison: Comparison, wanted: Iterable[bytes]
) -> Absence | None:
    """Say what is there if nothing of a root is, or None if something is.

    Args:
        view: The image.
        comparison: The outcome for the root.
        wanted: Paths of the expected files, relative to the root.
    """
    names = set(wanted)
    if not names or any(path in comparison.nodes for path in names):
        return None
    root = comparison.root
    path = os.fsencode(root.path)
    node = view.lookup(path).node
    existing = _existing(view, path)
    inside = view.lookup(existing).node
    holds = sorted((inside.children or {}) if inside is not None else ())
    candidates = _candidates(view, path, names, root.kind == PACKAGE)
    shown = "/" + show(existing)
    if node is None:
        what = f"the image has no {root.path}; it has {shown}"
    elif node.kind != "d":
        what = f"{root.path} is a file in the image, not a folder"
    elif comparison.nodes:
        what = f"{root.path} holds none of the {len(names)} expected files"
    else:
        what = f"{root.path} is empty in the image"
    if node is None and holds:
        what += f", which holds {', '.join(map(show, holds[:_MOST]))}"
        what += ", …" if len(holds) > _MOST else ""
    hint = "name the place with --root TREE=PATH"
    if candidates:
        hint = f"--root {root.tree}={candidates[0]}"
        if len(candidates) > 1:
            hint += f" (or {', '.join(candidates[1:])})"
    return Absence(what, hint, shown, tuple(map(show, holds[: 4 * _MOST])), candidates)


def _existing(view: View, path: bytes) -> bytes:
    """Return the deepest folder on the way to a path."""
    parts = [part for part in path.split(b"/") if part]
    for depth in range(len(parts), 0, -1):
        found = view.lookup(b"/".join(parts[:depth]))
        if found.node is not None and found.node.kind == "d":
            return found.path
    return b""


def _candidates(
    view: View, path: bytes, wanted: set[bytes], package: bool
) -> tuple[str, ...]:
    """Return the folders that hold the most of what is at the top of the tree.

    Those where packages are installed come first for a package, last for a checkout.
    """
    tops = {name.partition(b"/")[0] for name in wanted}
    base = path.rstrip(b"/").rpartition(b"/")[2]
    found: list[tuple[bool, int, bool, bytes]] = []

    def look(place: bytes, node: Node) -> None:
        there = len(tops & (node.children or {}).keys())
        if 2 * there > len(tops):
            folder, _, name = place.rpartition(b"/")
            installed = folder.rpartition(b"/")[2] in PACKAGES_FOLDERS
            found.append((installed != package, -there, name != base, place))

    look(b"", view.root)
    for place, node in view.walk(view.root):
        if node.kind == "d":
            look(place, node)
    return tuple("/" + show(place) for *_, place in sorted(found)[:_MOST])
