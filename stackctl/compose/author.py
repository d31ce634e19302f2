# SPDX-License-Identifier: Apache-2.0
"""Turning commits, or an edited folder, into the canonical patches of a set.

The text is that of `git format-patch` with every option pinned, whatever the version of
git. What reading it back would not give again is refused.
"""

import fcntl
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path

from stackctl.base.path import import_path
from stackctl.cache import Cache
from stackctl.compose.compare import before_set, make_composer
from stackctl.compose.compose import Composer, commit_of_patch
from stackctl.compose.model import Step
from stackctl.compose.plan import WHOLE, Selection, find_set
from stackctl.compose.publish import repository_of, without_settings
from stackctl.compose.sources import patch_files
from stackctl.errors import ConflictError, InputError, PinError, UsageError
from stackctl.fsutil import refuse_link_out, sync_folder, write_atomic
from stackctl.git.apply import Workspace
from stackctl.git.command import DamagedObjectError, GitCommandError, HermeticGit
from stackctl.git.objects import COMMIT
from stackctl.git.patchtext.canonical import (
    DIFF_OPTIONS,
    file_name,
    round_trip_problem,
    write_patch,
)
from stackctl.git.patchtext.mail import read_patches
from stackctl.git.patchtext.model import Identity, Patch
from stackctl.git.store import Store
from stackctl.interrupts import Hold
from stackctl.model.ids import CommitId, Sha256, TreeId
from stackctl.model.series import PatchSet, Series
from stackctl.progress import SILENT, Progress
from stackctl.scratch import scratch_folder


@dataclass(frozen=True, slots=True)
class CanonicalPatch:
    """A patch file to be written.

    Attributes:
        name: `NNNN-subject.patch`.
        data: Its bytes.
        patch: What reading it back gives.
    """

    name: str
    data: bytes
    patch: Patch

    def document(self) -> dict[str, object]:
        """Return the patch for a JSON document."""
        return {
            "patch": self.name,
            "sha256": Sha256(sha256(self.data).hexdigest()),
            "subject": self.patch.message.split(b"\n", 1)[0].decode("utf-8", "replace"),
        }


@dataclass(frozen=True, slots=True)
class Written:
    """What became of a set's folder.

    Attributes:
        patches: The set's patches now.
        changed: Names of the files that were written.
        removed: Names of the files that were removed.
        notes: What a person should know about it.
    """

    patches: tuple[CanonicalPatch, ...]
    changed: tuple[str, ...]
    removed: tuple[str, ...]
    notes: tuple[str, ...] = ()


def _commit_facts(raw: bytes) -> tuple[Identity, bytes, int, bool]:
    """Return author, message, number of parents and whether a commit is signed."""
    head, _, message = raw.partition(b"\n\n")
    author = Identity(b"", b"", 0, b"+0000")
    parents = 0
    signed = False
    for line in head.split(b"\n"):
        key, _, value = line.partition(b" ")
        if key == b"author":
            name, _, rest = value.rpartition(b" <")
            email, _, when = rest.rpartition(b"> ")
            seconds, _, zone = when.partition(b" ")
            author = Identity(name, email, int(seconds), zone)
        parents += key == b"parent"
        signed |= key in (b"gpgsig", b"gpgsig-sha256")
    return author, message, parents, signed


def canonical_patches(
    git: HermeticGit, commits: Sequence[str]
) -> tuple[tuple[CanonicalPatch, ...], tuple[str, ...]]:
    """Write commits as canonical patches and read them back.

    Args:
        git: Runs in a repository that has the commits.
        commits: Hex ids in order, each a single-parent commit.

    Returns:
        The patches, and what a person should know about them.

    Raises:
        InputError: A commit is a merge, or its patch would lose something.
    """
    out: list[CanonicalPatch] = []
    notes: list[str] = []
    for number, commit in enumerate(commits, 1):
        raw = git.run("cat-file", "commit", commit)
        author, message, parents, signed = _commit_facts(raw)
        short = commit[:12]
        if parents != 1:
            raise InputError(
                f"commit {short} has {parents} parents; a patch needs exactly one",
                kind="merge-commit",
                hint="rebase the range so that it is linear, then export it",
                where={"commit": commit},
            )
        if signed:
            notes.append(f"commit {short} is signed; a patch cannot keep that")
        diff = git.run("diff-tree", "--no-commit-id", *DIFF_OPTIONS, commit)
        problem = round_trip_problem(author, message, diff, git=git)
        if problem is not None:
            raise InputError(
                f"commit {short} cannot be a patch: {problem}",
                kind="lossy-patch",
                hint="amend it (git rebase -i), then export again",
                where={"commit": commit},
            )
        name = file_name(number, message)
        data = write_patch(author, message, diff)
        (patch,) = read_patches(data, name=name, git=git)
        out.append(CanonicalPatch(name, data, patch))
    return tuple(out), tuple(notes)


def write_set(
    series: Series, patch_set: PatchSet, patches: Sequence[CanonicalPatch]
) -> Written:
    """Replace the patch files of a set.

    New files are complete on disk before an old one goes, and all take their places at
    once, whatever interrupts it but `kill -9`; that is mended by the same command.

    Args:
        series: The series.
        patch_set: A set whose patches lie in a folder.
        patches: The new patches.
    """
    folder = _folder(series, patch_set)
    folder.mkdir(parents=True, exist_ok=True)
    wanted = {patch.name: patch.data for patch in patches}
    held = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        # Of two runs at once, one comes last as a whole: files of both never mix.
        fcntl.flock(held, fcntl.LOCK_EX)
        changed, removed = _replace_files(folder, wanted)
    finally:
        os.close(held)
    return Written(tuple(patches), tuple(changed), tuple(removed))


def _replace_files(
    folder: Path, wanted: Mapping[str, bytes]
) -> tuple[list[str], list[str]]:
    present = {path.name: path for path in folder.glob("*.patch")}
    changed = [
        name
        for name, data in wanted.items()
        if name not in present
        or present[name].is_symlink()
        or present[name].read_bytes() != data
    ]
    removed = sorted(present.keys() - wanted.keys())
    with scratch_folder(folder, ".stackctl-") as fresh:
        for name in changed:
            write_atomic(fresh / name, wanted[name])
        # Neither a full disk nor Ctrl-C may leave a part of the old set beside a part
        # of the new one: from here on, there is only renaming.
        hold = Hold()
        try:
            hold.take()
            for name in changed:
                os.replace(fresh / name, folder / name)
            for name in removed:
                present[name].unlink()
            sync_folder(folder)
        finally:
            hold.release()
    return changed, removed


def _folder(series: Series, patch_set: PatchSet) -> Path:
    source = patch_set.patches
    if source is None or source.folder is None:
        raise UsageError(
            f"the patches of `{patch_set.name}` are not a folder",
            kind="no-folder",
            hint='set `patches = "patches/<set>"` in series.toml',
            where={"set": patch_set.name},
        )
    folder = series.root / source.folder
    refuse_link_out(series.root, folder)
    return folder


def _check_applies(
    composer: Composer, patch_set: PatchSet, patches: Sequence[CanonicalPatch]
) -> TreeId:
    """Return the tree the patches give on what stands below the set."""
    below = composer.compose(before_set(composer.series, patch_set.name))
    workspace = Workspace(composer.cache.store, below.tree, every_step=False)
    try:
        for each in patches:
            try:
                workspace.apply(each.patch)
            except ConflictError as error:
                error.where["set"] = patch_set.name
                error.hint = "rebase the commits onto what stands below the set"
                raise
        tree = workspace.write_tree()
        workspace.publish()
    finally:
        workspace.abort()
    return tree


def export_commits(
    series: Series,
    cache: Cache,
    name: str,
    repository: Path,
    commit_range: str,
    *,
    offline: bool = False,
    check: bool = True,
    progress: Progress = SILENT,
) -> Written:
    """Turn the commits of a range into the patches of a set.

    Args:
        series: The series.
        cache: Store and facts.
        name: Name of the set.
        repository: Repository that has the commits.
        commit_range: `A..B`, oldest exclusive.
        offline: Never use the network.
        check: Refuse patches that do not apply on what stands below the set.
        progress: Told what is being done.

    Raises:
        PinError: The range names nothing.
        InputError: A merge, or a commit that a patch cannot hold.
        ConflictError: A patch does not apply below the set.
    """
    patch_set = find_set(series, name)
    _folder(series, patch_set)
    git_dir = repository_of(repository)
    if (
        ".." not in commit_range
        or "..." in commit_range
        or commit_range.startswith("-")
    ):
        raise UsageError(f"{commit_range} is not a range", hint="write it like A..B")
    # The user's repository is only read, and with our settings: its own configuration
    # and attributes would change the text, and could run programs.
    with without_settings(cache.store, git_dir) as source:
        try:
            commits = source.text(
                "rev-list", "--reverse", "--topo-order", commit_range, "--"
            ).split()
        except (DamagedObjectError, GitCommandError) as error:
            said = error.message.rpartition("fatal: ")[2]
            raise PinError(
                f"{repository} has no range {commit_range}: {said}",
                kind="missing-object",
                hint="fetch the commits first",
                where={"file": str(repository)},
            ) from error
        if not commits:
            raise UsageError(f"the range {commit_range} is empty")
        patches, notes = canonical_patches(source, commits)
    if check:
        composer = make_composer(series, cache, offline, progress)
        _check_applies(composer, patch_set, patches)
    return replace(write_set(series, patch_set, patches), notes=notes)


def refresh_from_folder(
    series: Series,
    cache: Cache,
    name: str,
    folder: Path,
    *,
    patch: str | None = None,
    message: str | None = None,
    author: Identity | None = None,
    whole: bool = False,
    offline: bool = False,
    progress: Progress = SILENT,
) -> Written:
    """Fold the edits of a materialised tree into a set.

    Args:
        series: The series.
        cache: Store and facts.
        name: Name of the set.
        folder: The edited tree, made by `compose --upto SET --out`.
        patch: Name of the patch that takes the edits; the set's last by default.
        message: Make a new last patch with this message instead.
        author: Author of the new patch.
        whole: The tree was made from the whole series, not up to the set.
        offline: Never use the network.
        progress: Told what is being done.

    Raises:
        UsageError: There is nothing to fold, or no patch to fold it into.
        ConflictError: The edits touch what later patches of the set need.
    """
    patch_set = find_set(series, name)
    _folder(series, patch_set)
    composer = make_composer(series, cache, offline, progress)
    composed = composer.compose(Selection(upto=name))
    start = composer.compose(WHOLE).tree if whole else composed.tree
    edited, _ = import_path(folder, cache=cache, progress=progress)
    edited, ignored = _without_ignored(cache.store, start, edited, folder)
    if edited == start:
        raise UsageError(
            f"{folder} is the composed tree: there is nothing to fold in",
            kind="nothing-to-do",
            where={"file": str(folder)},
        )
    store = cache.store
    below = composer.compose(before_set(series, name))
    assert below.commit is not None
    assert composed.commit is not None
    own = [step for step in composed.steps if step.set == name]
    if whole:
        edited = _carry(store, start, edited, composed.tree)
    if message is not None:
        if author is None:
            raise UsageError("a new patch needs an author", hint="add --author")
        text = message.strip("\n").encode() + b"\n"
        fresh = Patch("new", 1, author, text, (), b"", b"")
        chain = [str(step.commit) for step in own]
        raw = commit_of_patch(fresh, edited, composed.commit)
        chain.append(_add_commit(store, raw))
    else:
        chain = _amend(store, composer, patch_set, own, below.commit, edited, patch)
    patches, notes = canonical_patches(store.git, chain)
    empty = [each.name for each in patches if not each.patch.changes]
    if empty:
        raise UsageError(
            f"{empty[0]} would change nothing any more",
            kind="empty-patch",
            hint="delete the patch file instead",
            where={"patch": empty[0]},
        )
    if _check_applies(composer, patch_set, patches) != edited:
        raise InputError(
            f"the patches of `{name}` do not give the edited tree",
            kind="lossy-patch",
            where={"set": name},
        )
    return replace(write_set(series, patch_set, patches), notes=(*notes, *ignored))


def _without_ignored(
    store: Store, start: TreeId, edited: TreeId, folder: Path
) -> tuple[TreeId, tuple[str, ...]]:
    """Drop new files that the tree's own `.gitignore` names, as `git add` would.

    Files of the composed tree count whatever `.gitignore` says; only what running the
    tree left behind (bytecode, caches) is new and ignored.
    """
    known = {path for path, _, _ in store.walk(start)}
    fresh = [path for path, _, _ in store.walk(edited) if path not in known]
    if not fresh:
        return edited, ()
    git = HermeticGit(store.git_dir, work_tree=folder.absolute())
    _, out, _ = git.call(
        "check-ignore", "--no-index", "-z", "--stdin", stdin=b"\0".join([*fresh, b""])
    )
    ignored = [path for path in out.split(b"\0") if path]
    if not ignored:
        return edited, ()
    workspace = Workspace(store, edited, every_step=False)
    try:
        for path in ignored:
            workspace.editor.delete(path)
        tree = workspace.write_tree()
        workspace.publish()
    finally:
        workspace.abort()
    shown = ignored[0].decode("utf-8", "backslashreplace")
    more = f" and {len(ignored) - 1} more" if len(ignored) > 1 else ""
    return tree, (f"left out as ignored: {shown}{more}",)


def _add_commit(store: Store, raw: bytes) -> CommitId:
    writer = store.writer()
    commit = CommitId(writer.add(COMMIT, raw).hex())
    writer.finish()
    store.refresh()
    return commit


def _diff_patch(store: Store, before: TreeId, after: TreeId, name: str) -> Patch:
    from stackctl.git.patchtext.diff import parse_diff

    text = store.git.run(
        "diff-tree", "-r", "-p", "--binary", "--full-index", "--no-renames",
        "--no-ext-diff", "--no-textconv", before, after,
    )  # fmt: skip
    nobody = Identity(b"nobody", b"nobody@localhost", 0, b"+0000")
    changes = parse_diff(text, name=name, first_line=1)
    return Patch(name, 1, nobody, b"edits\n", changes, text, text)


def _carry(store: Store, before: TreeId, after: TreeId, onto: TreeId) -> TreeId:
    """Return a tree with the change from `before` to `after` made on `onto`."""
    edits = _diff_patch(store, before, after, "the edits")
    workspace = Workspace(store, onto, every_step=False)
    try:
        workspace.apply(edits)
        tree = workspace.write_tree()
        workspace.publish()
    finally:
        workspace.abort()
    return tree


def _amend(
    store: Store,
    composer: Composer,
    patch_set: PatchSet,
    own: Sequence[Step],
    below: CommitId,
    edited: TreeId,
    wanted: str | None,
) -> list[str]:
    """Return the set's commits with the edits folded into one of its patches."""
    if not own:
        raise UsageError(
            f"`{patch_set.name}` has no patch to fold the edits into",
            kind="no-patches",
            hint="add --message and --author to make its first patch",
            where={"set": patch_set.name},
        )
    names = [step.patch or "" for step in own]
    if wanted is None:
        position = len(own) - 1
    else:
        found = [n for n, each in enumerate(names) if each.startswith(wanted)]
        if len(found) != 1:
            raise UsageError(
                f"`{wanted}` names {len(found)} patches of `{patch_set.name}`",
                kind="unknown-patch",
                hint=f"the patches are: {', '.join(names)}",
            )
        (position,) = found
    patches = [
        patch
        for file in patch_files(composer.series, patch_set)
        for patch in file.patches(store.git)
    ]
    tree = edited
    if position < len(own) - 1:
        tree = _carry(store, own[-1].tree, edited, own[position].tree)
    chain = [str(step.commit) for step in own[:position]]
    parent = CommitId(chain[-1]) if chain else below
    parent = _add_commit(store, commit_of_patch(patches[position], tree, parent))
    chain.append(parent)
    for patch in patches[position + 1 :]:
        workspace = Workspace(store, tree)
        try:
            workspace.apply(patch)
            tree = workspace.write_tree()
            parent = workspace.add_commit(commit_of_patch(patch, tree, parent))
            workspace.publish()
        finally:
            workspace.abort()
        chain.append(parent)
    return chain
