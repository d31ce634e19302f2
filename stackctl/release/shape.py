# SPDX-License-Identifier: Apache-2.0
"""The commits of a release: the line of the composition, or one merge per set.

`linear` is the composition's own commit. `merges` keeps each set apart: its commits
stand on a side, and a merge whose first parent is the sets before brings them in, so
that `git log --first-parent` shows one entry per set. A set that composes as a merge of
its pinned head is one already. The tree is the same, and so is every byte elsewhere.
"""

import re
from itertools import groupby
from typing import Final, Literal

from stackctl.errors import InternalError
from stackctl.git.objects import COMMIT, COMMITTER, encode_commit
from stackctl.git.packs import PackWriter
from stackctl.git.store import Store
from stackctl.model.ids import CommitId
from stackctl.model.lock import Content
from stackctl.model.series import PatchSet, Series

Shape = Literal["linear", "merges"]
SHAPES: Final[tuple[Shape, ...]] = ("linear", "merges")

_COMMITTER = re.compile(rb"\ncommitter [^\n]*> (-?[0-9]+ [+-][0-9]{4})\n")
_PARENTS = re.compile(rb"(?<=\n)parent ([0-9a-f]{40})\n")


def committed_when(raw: bytes) -> str:
    """Return the seconds and zone at which a commit was committed.

    Args:
        raw: Content of a commit object.
    """
    match = _COMMITTER.search(raw)
    return match[1].decode() if match else "0 +0000"


def shape_commit(
    store: Store, series: Series, content: Content, shape: Shape, writer: PackWriter
) -> CommitId:
    """Return the commit that a release of a shape tags.

    Args:
        store: Holds the composition's commits.
        series: The series, for what merges say.
        content: What was composed.
        shape: The shape.
        writer: Takes commits that the composition does not have.
    """
    if shape == "linear":
        return content.commit
    before: CommitId = content.base.commit
    tip = before
    sets = {each.name: each for each in series.sets}
    for name, group in groupby(content.steps, key=lambda step: step.set):
        side = tip
        merged = True
        for step in group:
            if step.commit == before:
                continue  # it added nothing
            raw = store.commit(bytes.fromhex(step.commit))
            side = _onto(raw, before, side, writer)
            merged = step.strategy == "merge"
            before = step.commit
        if side == tip:
            continue
        if not merged:
            raw = store.commit(bytes.fromhex(before))
            side = _merge(sets[name], raw, tip, side, writer)
        tip = side
    return tip


def _onto(raw: bytes, before: CommitId, now: CommitId, writer: PackWriter) -> CommitId:
    """Write a commit again with another first parent."""
    head, gap, message = raw.partition(b"\n\n")
    match = _PARENTS.search(head + b"\n")
    if match is None or match[1].decode() != before:
        raise InternalError(f"a composed commit does not stand on {before}")
    body = head[: match.start(1)] + now.encode() + head[match.end(1) :] + gap + message
    return CommitId(writer.add(COMMIT, body).hex())


def _merge(
    patch_set: PatchSet, last: bytes, tip: CommitId, side: CommitId, writer: PackWriter
) -> CommitId:
    who = COMMITTER + b" " + committed_when(last).encode()
    lines = [f"Merge set {patch_set.name}"]
    if patch_set.title:
        lines[0] += f": {patch_set.title}"
    if patch_set.reason:
        lines += ["", patch_set.reason.strip()]
    if patch_set.pull:
        lines += ["", f"Reviewed-in: {patch_set.pull}"]
    message = "\n".join(lines) + "\n"
    tree = last[5:45].decode("ascii")
    body = encode_commit(tree, (tip, side), who, who, message.encode())
    return CommitId(writer.add(COMMIT, body).hex())
