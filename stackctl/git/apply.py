# SPDX-License-Identifier: Apache-2.0
"""Applying a patch to a tree, exactly as `git apply` would, mostly without git.

A change is applied here only where nothing can differ from git: the patch names the
full ids of the blob before and after, the file at hand has the first, every hunk stands
at its recorded place, and the result hashes to the second. Everything else (a file that
other patches moved on, renames, abbreviated ids, deltas) goes to `git apply` on a small
index that holds just the paths in question, and is counted.
"""

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from stackctl.errors import ConflictError, InputError
from stackctl.git.command import GitCommandError, disk_problem
from stackctl.git.index import encode_index, read_index
from stackctl.git.objects import (
    BLOB,
    COMMIT,
    MODE_EXEC,
    MODE_FILE,
    MODE_LINK,
    MODE_TREE,
    Entry,
    object_id,
)
from stackctl.git.packs import Copy, DeltaOp
from stackctl.git.patchtext.model import FileChange, Hunk, Patch
from stackctl.git.store import Store, read_loose, write_loose
from stackctl.git.tree import TreeEditor
from stackctl.model.ids import CommitId, TreeId
from stackctl.scratch import scratch_folder

_FILE_MODES = (MODE_FILE, MODE_EXEC, MODE_LINK)
_NO_ID = "0" * 40


@dataclass(frozen=True, slots=True)
class _Outcome:
    """What a change makes of one path; `data` is None where the file goes away."""

    path: bytes
    mode: int
    oid: bytes
    data: bytes | None
    old_oid: bytes
    old_size: int
    ops: tuple[DeltaOp, ...]


class PatchRejectedError(ConflictError):
    """`git apply` refused a patch.

    Args:
        patch: The patch.
        output: What git said, for the record.
        message: The explanation.
        where: Place of the fault.
    """

    default_kind = "patch-does-not-apply"


def _after_lines(data: bytes, start: int, lines: int) -> int:
    """Return the offset after `lines` line feeds from `start`, or -1."""
    low, high = start, len(data)
    while high - low > 512:
        middle = (low + high) // 2
        count = data.count(b"\n", low, middle)
        if count >= lines:
            high = middle
        else:
            lines -= count
            low = middle
    for _ in range(lines):
        low = data.find(b"\n", low) + 1
        if low == 0:
            return -1
    return low


def apply_in_place(
    data: bytes, hunks: Iterable[Hunk]
) -> tuple[bytes, tuple[DeltaOp, ...]] | None:
    """Apply hunks at exactly their recorded places.

    Args:
        data: The file's bytes.
        hunks: Hunks in order.

    Returns:
        The new bytes and the edit as delta instructions; None where a hunk does not
        stand at its place, or git's own rules for the ends of a file (a hunk without
        trailing context must reach the end) would not accept it there.
    """
    pieces: list[bytes] = []
    ops: list[DeltaOp] = []
    position = 0  # offset in `data` up to which everything is taken over
    line = 1  # line number at `position`
    shift = 0
    for hunk in hunks:
        if hunk.old_count == 0 or hunk.new_count == 0:
            whole = hunk.old_start <= 1 and hunk.new_start <= 1 and position == 0
            if not whole or b"".join(hunk.old) != data or line != 1:
                return None
            start = 0
        else:
            if hunk.old_start < line or hunk.new_start - hunk.old_start != shift:
                return None
            start = _after_lines(data, position, hunk.old_start - line)
            if start < 0:
                return None
        old = b"".join(hunk.old)
        new = b"".join(hunk.new)
        end = start + len(old)
        if data[start:end] != old:
            return None
        if end != len(data) and (hunk.trailing == 0 or not old.endswith(b"\n")):
            return None
        if new and not new.endswith(b"\n") and end != len(data):
            return None
        pieces += (data[position:start], new)
        ops += (Copy(position, start - position), new)
        position = end
        line = hunk.old_start + hunk.old_count
        shift += hunk.new_count - hunk.old_count
    pieces.append(data[position:])
    ops.append(Copy(position, len(data) - position))
    return b"".join(pieces), tuple(ops)


def _binary_result(change: FileChange, old_data: bytes) -> bytes:
    """Return what a binary change makes of the file it is for.

    git does not look at the change where it has the result already, so what it accepts
    would depend on what lies in the store.

    Raises:
        InputError: The change does not give the blob that it names.
    """
    from stackctl.git.patchtext.binary import CorruptBinaryError, apply_binary

    assert change.binary is not None
    try:
        data = apply_binary(old_data, change.binary)
        reason = "it gives another blob"
    except CorruptBinaryError as error:
        data, reason = b"", error.reason
    wanted = _NO_ID if change.kind == "delete" else object_id(BLOB, data).hex()
    if change.new_id != wanted or reason != "it gives another blob":
        shown = (change.new_path or change.old_path or b"").decode("utf-8", "replace")
        raise InputError(
            f"the binary change of {shown} does not give blob {change.new_id}: "
            f"{reason}",
            kind="bad-binary",
            hint="make the patch again with `git diff --binary --full-index`",
            where={"path": shown, "line": change.line},
        )
    return data


class Workspace:
    """A tree that patches are applied to, in memory.

    Args:
        store: Where objects are read and, at `publish`, written.
        tree: The starting tree.
        every_step: Keep each version of a file (for commits) and not only the last.
    """

    def __init__(self, store: Store, tree: TreeId, *, every_step: bool = True) -> None:
        self.store = store
        self.editor = TreeEditor(store, tree)
        self.writer = store.writer()
        self.native = 0
        self.fallback = 0
        self._every_step = every_step
        self._contents: dict[bytes, tuple[bytes, bytes]] = {}
        self._pending: dict[bytes, bytes] = {}

    def content(self, path: bytes, oid: bytes) -> bytes:
        """Return the bytes of the file at a path whose blob has the given raw id."""
        known = self._contents.get(path)
        if known is not None and known[0] == oid:
            return known[1]
        data = self.store.blob(oid)
        self._contents[path] = (oid, data)
        return data

    def apply(self, patch: Patch) -> bool:
        """Apply a patch, wholly or not at all.

        Args:
            patch: The patch.

        Returns:
            Whether it was applied here; False where `git apply` did it.

        Raises:
            ConflictError: The patch does not apply.
        """
        outcomes = self._native(patch.changes)
        if outcomes is None:
            self._fall_back(patch)
            self.fallback += 1
            return False
        for outcome in outcomes:
            self._take(outcome)
        self.native += 1
        return True

    def _native(self, changes: tuple[FileChange, ...]) -> list[_Outcome] | None:
        outcomes: list[_Outcome] = []
        named: set[bytes] = set()
        for change in changes:
            outcome = self._native_change(change)
            if outcome is None or outcome.path in named:
                return None
            named.add(outcome.path)
            outcomes.append(outcome)
        for outcome in outcomes:
            # A file and a folder of one name in one patch: order matters, git decides.
            parts = outcome.path.split(b"/")
            for depth in range(1, len(parts)):
                if b"/".join(parts[:depth]) in named:
                    return None
        return outcomes

    def _native_change(self, change: FileChange) -> _Outcome | None:
        if change.kind not in ("modify", "add", "delete"):
            return None
        path = change.new_path if change.kind == "add" else change.old_path
        if path is None or (change.kind == "modify" and change.new_path != path):
            return None
        entry = self.editor.get(path)
        if change.kind == "add":
            mode = change.new_mode
            if entry is not None or mode not in _FILE_MODES:
                return None
            if self.editor.blocking(path) is not None:
                return None
            old_data, old_oid = b"", b""
        else:
            if entry is None or entry.mode not in _FILE_MODES:
                return None
            if change.old_mode not in (None, entry.mode):
                return None
            mode = entry.mode if change.new_mode is None else change.new_mode
            if mode not in _FILE_MODES or (mode ^ entry.mode) & 0o170000:
                return None
            old_oid = entry.oid
            if change.old_id is None and change.new_id is None:
                # Only the mode changes; git writes no ids then.
                if change.kind == "delete" or change.hunks or change.binary:
                    return None
                if change.new_mode is None:
                    return None
                return _Outcome(path, mode, old_oid, b"", old_oid, 0, ())
            if change.old_id != old_oid.hex():
                return None
            old_data = self.content(path, old_oid)
        if change.new_id is None or len(change.new_id) != 40:
            return None
        if change.binary is not None:
            data = _binary_result(change, old_data)
            ops: tuple[DeltaOp, ...] = (data,)
        else:
            applied = apply_in_place(old_data, change.hunks)
            if applied is None:
                return None
            data, ops = applied
        if change.kind == "delete":
            if data or change.new_id != _NO_ID:
                return None
            return _Outcome(path, 0, b"", None, old_oid, 0, ())
        oid = object_id(BLOB, data)
        if oid.hex() != change.new_id:
            return None
        if change.kind == "add" and change.old_id not in (None, _NO_ID):
            return None
        return _Outcome(path, mode, oid, data, old_oid, len(old_data), ops)

    def _take(self, outcome: _Outcome) -> None:
        path = outcome.path
        if outcome.data is None:
            self.editor.delete(path)
            self._contents.pop(path, None)
            self._pending.pop(path, None)
            return
        self.editor.put(path, outcome.mode, outcome.oid)
        if outcome.oid == outcome.old_oid:
            return
        self._contents[path] = (outcome.oid, outcome.data)
        if not self._every_step:
            self._pending[path] = outcome.oid
        elif outcome.old_oid:
            self.writer.add_version(
                BLOB,
                outcome.data,
                outcome.oid,
                outcome.old_oid,
                outcome.old_size,
                outcome.ops,
            )
        else:
            self.writer.add(BLOB, outcome.data, outcome.oid)

    def _fall_back(self, patch: Patch) -> None:
        before = self._around(patch.changes)
        for change in patch.changes:
            entry = before.get(change.old_path or b"")
            if change.binary and entry and change.old_id == entry.oid.hex():
                _binary_result(change, self.content(change.old_path or b"", entry.oid))
        # git writes into objects of its own: what it leaves behind when it is killed,
        # or makes of a patch that is refused later, never reaches the store.
        with scratch_folder(self.store.git_dir / "scratch") as folder:
            objects = folder / "objects"
            (objects / "info").mkdir(parents=True)
            shared = (self.store.git_dir / "objects").resolve()
            (objects / "info" / "alternates").write_bytes(os.fsencode(shared) + b"\n")
            for path, entry in before.items():
                self._lend(objects, path, entry.oid)
            index = folder / "index"
            index.write_bytes(encode_index(before))
            status, _, error = self.store.git.call(
                "apply",
                "--cached",
                "--whitespace=nowarn",
                "--allow-empty",
                "-",
                stdin=patch.diff,
                env={
                    "GIT_INDEX_FILE": str(index),
                    "GIT_OBJECT_DIRECTORY": str(objects),
                },
            )
            problem = disk_problem(status, error) if status else None
            if problem is not None:
                raise problem
            if status < 0:
                raise GitCommandError(("apply",), status, b"", error)
            if status:
                raise self._rejection(patch, error.decode("utf-8", "replace"))
            after = read_index(index)
            fresh = {
                path: read_loose(objects, entry.oid)
                for path, entry in after.items()
                if before.get(path) != entry
            }
        for path in sorted(before.keys() - after.keys()):
            self.editor.delete(path)
            self._contents.pop(path, None)
            self._pending.pop(path, None)
        for path, found in fresh.items():
            mode, oid = after[path]
            self.editor.put(path, mode, oid)
            self._pending.pop(path, None)
            if found is None:  # in the store already
                continue
            self._contents[path] = (oid, found[1])
            if self._every_step:
                self.writer.add(BLOB, found[1], oid)
            else:
                self._pending[path] = oid

    def _around(self, changes: tuple[FileChange, ...]) -> dict[bytes, Entry]:
        """Return the entries that decide what git makes of the changes."""
        entries: dict[bytes, Entry] = {}
        named = {change.old_path for change in changes}
        named |= {change.new_path for change in changes}
        besides = {path for path in named if path is not None}
        for change in changes:
            for path in (change.old_path, change.new_path):
                if path is None:
                    continue
                blocker = self.editor.blocking(path)
                target = path if blocker is None else blocker
                entry = self.editor.get(target)
                if entry is None:
                    continue
                if entry.mode == MODE_TREE:
                    # The patch may empty the folder: what else is in it decides.
                    inside = self.editor.first_file(target, besides)
                    if inside is not None:
                        entries[inside[0]] = inside[1]
                else:
                    entries[target] = entry
        return entries

    def _lend(self, objects: Path, path: bytes, oid: bytes) -> None:
        """Let git see a blob that is not in the store yet."""
        pending = oid in self.writer or self._pending.get(path) == oid
        if pending and oid.hex() not in self.store:
            write_loose(objects, oid, BLOB, self.content(path, oid))

    def _rejection(self, patch: Patch, output: str) -> ConflictError:
        from stackctl.git.explain import explain_rejection

        return explain_rejection(self, patch, output)

    def write_tree(self) -> TreeId:
        """Write what changed since the last call; return the tree's id."""
        for path, oid in self._pending.items():
            self.writer.add(BLOB, self._contents[path][1], oid)
        self._pending.clear()
        return self.editor.write(self.writer)

    def add_commit(self, raw: bytes) -> CommitId:
        """Write a commit and return its id.

        Args:
            raw: Content of the commit object.
        """
        return CommitId(self.writer.add(COMMIT, raw).hex())

    def publish(self) -> None:
        """Make everything written so far visible in the store, all at once."""
        self.writer.finish()
        self.store.refresh()

    def abort(self) -> None:
        """Forget what was not published."""
        self.writer.abort()
