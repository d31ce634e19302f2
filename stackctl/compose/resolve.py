# SPDX-License-Identifier: Apache-2.0
"""Resolving the conflicts of a pinned set, in two runs of one command.

The first run writes the conflicting files into a folder: a text with conflict markers
under its own name, everything else as `NAME.ours` and `NAME.theirs` beside it. People
edit. The next run takes every file that has no markers any more for the resolution.
"""

import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from stackctl.cache import Cache
from stackctl.compose.compare import before_set, make_composer
from stackctl.compose.compose import Composer
from stackctl.compose.pinned import MergeConflictError
from stackctl.compose.plan import Selection, find_set
from stackctl.compose.resolutions import MAX_BYTES, Resolution, Resolutions
from stackctl.errors import InputError, UsageError
from stackctl.fsutil import read_regular, refuse_link_out, write_atomic
from stackctl.git.merge import Conflict
from stackctl.git.objects import (
    BLOB,
    MODE_EXEC,
    MODE_FILE,
    MODE_LINK,
    MODE_SUBMODULE,
    Entry,
    object_id,
)
from stackctl.git.patchtext.paths import path_problem
from stackctl.model.series import Series
from stackctl.progress import SILENT, Progress

Side = Literal["ours", "theirs"]

_MARKERS = re.compile(rb"^(?:<{7} |>{7} )", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Resolving:
    """Where the resolution of a set stands.

    Attributes:
        set: The set.
        open: Conflicts that wait for people.
        edit: Files to edit, by path of the conflict.
        written: Resolution files that were written now.
        used: Resolution files that the set needs.
        commit: The commit whose conflicts are open.
    """

    set: str
    open: tuple[Conflict, ...]
    edit: dict[bytes, tuple[Path, ...]]
    written: tuple[str, ...]
    used: tuple[str, ...]
    commit: str | None = None


def default_folder(project: Path, name: str) -> Path:
    """Return where the conflicting files of a set are edited."""
    return project / ".stackctl" / "resolve" / name


class Resolver:
    """Resolves the conflicts of one set.

    Args:
        series: The series.
        cache: Store and facts.
        name: The set.
        folder: Where files are edited.
        take: Take this side for every conflict.
        only: Paths that `take` and `remove` are about; all where there are none.
        remove: Paths that go away.
        offline: Never use the network.
        progress: Told what is being done.
    """

    def __init__(
        self,
        series: Series,
        cache: Cache,
        name: str,
        folder: Path,
        *,
        take: Side | None = None,
        only: tuple[str, ...] = (),
        remove: tuple[str, ...] = (),
        offline: bool = False,
        progress: Progress = SILENT,
    ) -> None:
        patch_set = find_set(series, name)
        if not patch_set.pinned:
            raise UsageError(
                f"set `{name}` is made of patch files",
                kind="not-pinned",
                hint="change its patches: stackctl refresh, stackctl export",
                where={"set": name},
            )
        self._composer: Composer = make_composer(series, cache, offline, progress)
        self._series = series
        self._name = name
        self._folder = folder
        self._take = take
        self._only = {os.fsencode(path) for path in only}
        self._remove = {os.fsencode(path) for path in remove}
        self._resolutions = Resolutions(series.root)

    def run(self) -> Resolving:
        """Take what is resolved, and write what is not for people to edit.

        Raises:
            MergeConflictError: A set below does not merge either, or the conflict is
                one of names.
            InputError: A file in the folder cannot be taken.
        """
        if self._folder.is_relative_to(self._series.root):
            refuse_link_out(self._series.root, self._folder)
        # What lies below must be in the store, and must compose by itself.
        self._composer.compose(before_set(self._series, self._name))
        written: list[str] = []
        while True:
            try:
                composition = self._composer.compose(Selection(upto=self._name))
            except MergeConflictError as error:
                if error.source.set != self._name or error.structural:
                    raise
                saved, still_open = self._take_resolved(error)
                written += saved
                if still_open:
                    return Resolving(
                        self._name,
                        tuple(still_open),
                        {each.path: self._prepare(each, error) for each in still_open},
                        tuple(written),
                        (),
                        error.commit,
                    )
                # The next commit of the set may conflict as well.
                self._composer.forget_resolutions()
                continue
            used = {
                name
                for step in composition.steps
                if step.set == self._name
                for name in step.resolutions
            }
            shutil.rmtree(self._folder, ignore_errors=True)
            return Resolving(self._name, (), {}, tuple(written), tuple(sorted(used)))

    def _take_resolved(
        self, error: MergeConflictError
    ) -> tuple[list[str], list[Conflict]]:
        saved, still_open = [], []
        resolutions = []
        for conflict in error.conflicts:
            resolution = self._resolution(conflict, error)
            if resolution is None:
                still_open.append(conflict)
            else:
                resolutions.append(resolution)
        for resolution in resolutions:
            saved.append(self._resolutions.save(resolution))
        return saved, still_open

    def _resolution(
        self, conflict: Conflict, error: MergeConflictError
    ) -> Resolution | None:
        if conflict.path in self._remove:
            return Resolution(conflict, None, b"")
        if self._take and (not self._only or conflict.path in self._only):
            entry = conflict.ours if self._take == "ours" else conflict.theirs
            data = error.sides.get(entry.oid, b"") if entry else b""
            return Resolution(conflict, entry, data)
        return self._edited(conflict)

    def _edited(self, conflict: Conflict) -> Resolution | None:
        path = self._place(conflict)
        if path.is_symlink():
            # `Path.readlink` would tidy the target up.
            data = os.fsencode(os.readlink(path))  # noqa: PTH115
            mode = MODE_LINK
        elif path.exists():
            data = read_regular(path, MAX_BYTES)
            if _MARKERS.search(data):
                return None
            executable = path.stat().st_mode & 0o100
            mode = MODE_EXEC if executable else MODE_FILE
        else:
            return None
        return Resolution(conflict, Entry(mode, object_id(BLOB, data)), data)

    def _place(self, conflict: Conflict) -> Path:
        problem = path_problem(conflict.path)
        if problem is not None:
            shown = conflict.path.decode("utf-8", "backslashreplace")
            raise InputError(
                f"{shown} conflicts, and is no safe path: {problem}", kind="unsafe-path"
            )
        place = self._folder / os.fsdecode(conflict.path)
        refuse_link_out(self._folder, place.parent)
        return place

    def _prepare(
        self, conflict: Conflict, error: MergeConflictError
    ) -> tuple[Path, ...]:
        path = self._place(conflict)
        path.parent.mkdir(parents=True, exist_ok=True)
        ignore = self._series.root / ".stackctl" / ".gitignore"
        if ignore.parent.is_dir() and not ignore.exists():
            ignore.write_text("*\n")
        if path.exists():
            return (path,)
        marked = error.marked.get(conflict.path)
        if marked is not None and _MARKERS.search(marked):
            modes = {entry.mode for entry in (conflict.ours, conflict.theirs) if entry}
            write_atomic(path, marked, 0o755 if MODE_EXEC in modes else 0o644)
            return (path,)
        out = []
        for side, entry in (("ours", conflict.ours), ("theirs", conflict.theirs)):
            if entry is not None and entry.mode != MODE_SUBMODULE:
                beside = path.with_name(f"{path.name}.{side}")
                write_atomic(beside, error.sides[entry.oid])
                out.append(beside)
        return tuple(out)
