# SPDX-License-Identifier: Apache-2.0
"""The flat patch of a composition: git's bytes, its digest, and that it gives the tree.

Published patches are what `git diff --binary --full-index BASE..RESULT` wrote with the
defaults of the publisher's git. `git diff-tree -p -r -M` writes the same bytes and
listens to less configuration. The attributes of the result decide what is binary and
which words stand behind `@@`, as they do in a work tree of it.
"""

from collections.abc import Iterator, Sequence
from hashlib import sha256

from stackctl.errors import InternalError
from stackctl.git.apply import Workspace
from stackctl.git.merge import MergeSpace
from stackctl.git.packs import DeltaOp, PackWriter
from stackctl.git.patchtext.diff import parse_diff_span
from stackctl.git.patchtext.model import Identity, Patch
from stackctl.git.store import Store
from stackctl.model.ids import Sha256, TreeId

DIFF = ("-r", "-p", "-M", "--no-ext-diff", "--no-textconv")

STANDARD = "git diff --binary --full-index"


def flat_patches(
    space: MergeSpace, pairs: Sequence[tuple[TreeId, TreeId]]
) -> list[bytes]:
    """Return the flat patch of each pair of trees.

    Args:
        space: Sees the trees.
        pairs: Tree before and after.
    """
    out: dict[tuple[TreeId, TreeId], bytes] = {}
    groups: dict[tuple[bytes, ...], list[tuple[TreeId, TreeId]]] = {}
    for pair in dict.fromkeys(pairs):
        key = space.attribute_key(pair[1], diff=True)
        groups.setdefault(key, []).append(pair)
    for key, some in groups.items():
        with space.with_attributes(some[0][1], key) as (git, folder):
            lines = "".join(f"{before} {after}\n" for before, after in some)
            text = git.run(
                *("diff-tree", "--stdin", *DIFF, "--binary", "--full-index"),
                stdin=lines.encode(),
                cwd=folder,
            )
        position = 0
        heads = [f"{before} {after}\n".encode() for before, after in some]
        if not text.startswith(heads[0]):
            raise InternalError("git diff-tree did not name the trees it compared")
        for number, pair in enumerate(some):
            start = position + len(heads[number])
            end = len(text)
            if number + 1 < len(some):
                # No line of a diff looks like this one.
                end = text.index(b"\n" + heads[number + 1], start - 1) + 1
            out[pair] = text[start:end]
            position = end
    return [out[pair] for pair in pairs]


def one_patch(
    space: MergeSpace, before: str, after: str, options: Sequence[str]
) -> bytes:
    """Return the diff of two trees with other options.

    Args:
        space: Sees the trees.
        before: Tree before.
        after: Tree after.
        options: `-c` settings, then a `--`, then options of `git diff-tree`.
    """
    split = list(options).index("--")
    key = space.attribute_key(after, diff=True)
    with space.with_attributes(after, key) as (git, folder):
        return git.run(
            *options[:split],
            *("diff-tree", *DIFF, *options[split + 1 :], before, after),
            cwd=folder,
        )


def variants() -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield the ways in which publishers are known to make the patch differently.

    Yields:
        A name, and the options for `one_patch`.
    """
    single: tuple[tuple[str, tuple[str, ...], tuple[str, ...]], ...] = (
        ("diff.noprefix", (), ("--no-prefix",)),
        ("diff.suppressBlankEmpty", ("-c", "diff.suppressBlankEmpty=true"), ()),
        ("diff.interHunkContext=1", (), ("--inter-hunk-context=1",)),
        ("diff.indentHeuristic=false", (), ("--no-indent-heuristic",)),
        ("histogram", (), ("--diff-algorithm=histogram",)),
        ("patience", (), ("--diff-algorithm=patience",)),
        ("minimal", (), ("--diff-algorithm=minimal",)),
        ("--no-renames", (), ("--no-renames",)),
        ("copies", (), ("-C",)),
    )
    full = ("--binary", "--full-index")
    yield "without --binary", ("--", "--full-index")
    # How far git shortens ids depends on how many objects the publisher had.
    for length in (*range(7, 14), 40):
        abbreviated = ("--binary", f"--abbrev={length}")
        name = f"without --full-index (ids of {length} digits)"
        if length < 40:
            yield name, ("--", *abbreviated)
            yield f"{name}, without --binary", ("--", f"--abbrev={length}")
    for name, settings, options in single:
        yield name, (*settings, "--", *full, *options)
    for name, settings, options in single:
        for length in range(7, 11):
            yield (
                f"without --full-index (ids of {length} digits), {name}",
                (*settings, "--", "--binary", f"--abbrev={length}", *options),
            )


def matching_variant(
    space: MergeSpace, before: str, after: str, wanted: Sha256
) -> tuple[str, bytes] | None:
    """Return the known way of making the patch that gives a digest, and its bytes.

    Args:
        space: Sees the trees.
        before: Tree before.
        after: Tree after.
        wanted: The published digest.
    """
    for name, options in variants():
        data = one_patch(space, before, after, options)
        if sha256(data).hexdigest() == wanted:
            return name, data
    return None


class _Discard(PackWriter):
    """Takes objects for their ids only."""

    def add_packed(self, kind: int, size: int, packed: bytes, oid: bytes) -> None:
        del kind, size, packed, oid

    def add(self, kind: int, data: bytes, oid: bytes | None = None) -> bytes:
        from stackctl.git.objects import object_id

        return oid if oid is not None else object_id(kind, data)

    def add_version(
        self,
        kind: int,
        data: bytes,
        oid: bytes,
        old_oid: bytes,
        old_size: int,
        ops: Sequence[DeltaOp],
    ) -> None:
        del kind, data, oid, old_oid, old_size, ops


def tree_of_patch(store: Store, before: TreeId, data: bytes, name: str) -> TreeId:
    """Apply a flat patch to a tree, without git's merge, and return the tree.

    Nothing is written. An empty patch, which `git apply` refuses, changes nothing.

    Args:
        store: Has the tree's objects.
        before: The tree to apply to.
        data: The patch.
        name: Its name, for messages.

    Raises:
        ConflictError: It does not apply.
        InputError: It cannot be read.
    """
    if not data:
        return before
    parsed = parse_diff_span(data, name=name, first_line=1)
    patch = Patch(
        name=name,
        line=1,
        author=Identity(b"", b"", 0, b"+0000"),
        message=b"",
        changes=parsed.changes,
        raw=data,
        diff=data,
    )
    workspace = Workspace(store, before, every_step=False)
    workspace.writer = _Discard(store.git_dir)
    workspace.apply(patch)
    return workspace.write_tree()
