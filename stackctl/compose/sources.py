# SPDX-License-Identifier: Apache-2.0
"""Where the steps of a set come from: patch files, or a pinned pull request."""

from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from stackctl.errors import InputError, StackctlError
from stackctl.fsutil import read_regular
from stackctl.model.canonical import canonical_json
from stackctl.model.ids import CommitId, Sha256
from stackctl.model.series import PatchSet, Pull, Series

if TYPE_CHECKING:
    from stackctl.git.patchtext.mail import GitRunner
    from stackctl.git.patchtext.model import Patch

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

    def patches(self, git: "GitRunner") -> "tuple[Patch, ...]":
        """Return the patches of the file, at least one.

        Args:
            git: Reads what `git format-patch` would not write.

        Raises:
            InputError: The file is malformed or says too little.
        """
        # Costly to import, and not needed where every step is known.
        from stackctl.git.patchtext.mail import read_patches

        try:
            return read_patches(self.data, name=self.name, git=git)
        except StackctlError as error:
            self.put_into(error)
            raise

    def put_into(self, error: StackctlError) -> None:
        """Say in an error of this file where it lies, and of which set it is.

        Args:
            error: An error whose message may name the file as `name`.
        """
        error.where |= {"file": str(self.path), "set": self.set}
        path = str(self.path)
        if self.name in error.message and path not in error.message:
            whole = error.message.replace(self.name, path, 1)
            error.message = f"set `{self.set}`: {whole}"
            error.args = (error.message,)


@dataclass(frozen=True, slots=True)
class PinnedPull:
    """A pinned pull request as the source of a set.

    Attributes:
        set: Name of its set.
        pull: The pull request; its head is pinned.
        head: The pinned head.
        strategy: How it enters the composition.
        sha256: Digest of everything that decides what it becomes.
    """

    set: str
    pull: Pull
    head: CommitId
    strategy: Literal["merge", "cherry-pick"]
    sha256: Sha256

    @property
    def name(self) -> str:
        """Name that messages use."""
        return str(self.pull)


Source = PatchFile | PinnedPull


def pinned_pull(patch_set: PatchSet) -> PinnedPull:
    """Return the pinned pull request of a set.

    Args:
        patch_set: A set whose strategy is `merge` or `cherry-pick`.

    Raises:
        InputError: It has no pinned head.
    """
    pull = patch_set.pull
    if pull is None or pull.head is None or patch_set.strategy == "apply":
        raise InputError(
            f"set `{patch_set.name}` has neither patches nor a pinned head",
            kind="no-source",
            hint="add `patches`, or `head` to its `pull`, or `draft = true`",
            where={"set": patch_set.name},
        )
    identity = {
        "strategy": patch_set.strategy,
        "head": pull.head,
        "commits": list(pull.commits),
        "name": str(pull),
    }
    digest = Sha256(sha256(canonical_json(identity)).hexdigest())
    return PinnedPull(patch_set.name, pull, pull.head, patch_set.strategy, digest)


def set_sources(series: Series, patch_set: PatchSet) -> list[Source]:
    """Return what a set is composed from, in order.

    Args:
        series: The series the set belongs to.
        patch_set: The set.

    Returns:
        Its patch files, or its pinned pull request; empty where it adds nothing.

    Raises:
        InputError: It has no source, or a file is bad.
    """
    if not patch_set.composed:
        return []
    if patch_set.pinned:
        return [pinned_pull(patch_set)]
    return list(patch_files(series, patch_set))


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
