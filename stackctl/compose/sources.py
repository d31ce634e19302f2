# SPDX-License-Identifier: Apache-2.0
"""The patch files of a set: which there are, in which order, and their bytes."""

from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from stackctl.errors import InputError
from stackctl.fsutil import read_regular
from stackctl.model.ids import Sha256
from stackctl.model.series import PatchSet, Series

MAX_PATCH_BYTES = 256 << 20
"""Largest patch file that is read: bytes."""


@dataclass(frozen=True, slots=True)
class PatchFile:
    """One patch file.

    Attributes:
        set: Name of its set.
        name: Name that steps and messages use: the file name within the set's folder,
            or the path that series.toml lists.
        path: Where it lies.
        data: Its bytes.
        sha256: Their digest.
    """

    set: str
    name: str
    path: Path
    data: bytes
    sha256: Sha256


def patch_files(series: Series, patch_set: PatchSet) -> list[PatchFile]:
    """Read the patch files of a set, in their order.

    Args:
        series: The series the set belongs to.
        patch_set: The set.

    Returns:
        The files; empty for a draft set.

    Raises:
        InputError: A file is missing, not a regular file, too large, or outside the
            project; or a set that is no draft has no patch.
    """
    if patch_set.draft:
        return []
    paths = patch_set.patches.paths(series.root) if patch_set.patches else ()
    if not paths:
        raise InputError(
            f"set `{patch_set.name}` has no patches",
            kind="no-patches",
            hint="add NNNN-subject.patch files, or mark the set `draft = true`",
            where={"set": patch_set.name},
        )
    files = []
    named = patch_set.patches.files if patch_set.patches else ()
    for number, path in enumerate(paths):
        data = read_regular(path, MAX_PATCH_BYTES)
        digest = Sha256(sha256(data).hexdigest())
        name = named[number] if named else path.name
        files.append(PatchFile(patch_set.name, name, path, data, digest))
    return files
