# SPDX-License-Identifier: Apache-2.0
"""The second route: the same series composed by git alone, from the original sources.

Nothing of our patch reader, tree editor, in-memory merge or cache takes part: git reads
each patch file into an index of the whole tree and writes the tree; a pinned pull
request is merged or picked by `git merge` and `git cherry-pick` in a work tree. A lock
is written only where both routes agree after every source.
"""

import os
import re
from collections.abc import Sequence
from pathlib import Path

from stackctl.compose.model import Composition, Step
from stackctl.compose.resolutions import Resolutions
from stackctl.compose.sources import PatchFile, PinnedPull, Source
from stackctl.errors import InternalError
from stackctl.git.command import GitCommandError, HermeticGit
from stackctl.git.merge import Conflict
from stackctl.git.objects import Entry
from stackctl.git.store import Store, create_bare
from stackctl.model.ids import CommitId, TreeId
from stackctl.progress import SILENT, Progress
from stackctl.scratch import scratch_folder

_ENCODED = re.compile(
    rb"^content-transfer-encoding:[ \t]*(?:base64|quoted-printable)",
    re.IGNORECASE | re.MULTILINE,
)

_IDENTITY = {
    "GIT_AUTHOR_NAME": "stackctl",
    "GIT_AUTHOR_EMAIL": "stackctl@localhost",
    "GIT_AUTHOR_DATE": "@0 +0000",
    "GIT_COMMITTER_NAME": "stackctl",
    "GIT_COMMITTER_EMAIL": "stackctl@localhost",
    "GIT_COMMITTER_DATE": "@0 +0000",
}


class RoutesDisagreeError(InternalError):
    """Our composition differs from the one real git makes."""

    default_kind = "routes-disagree"


class _GitRoute:
    """A scratch clone in which git composes."""

    def __init__(
        self,
        store: Store,
        folder: Path,
        tree: TreeId,
        commit: CommitId,
        resolutions: Resolutions,
    ) -> None:
        scratch = folder / "scratch.git"
        create_bare(scratch)
        alternates = scratch / "objects" / "info" / "alternates"
        shared = (store.git_dir / "objects").resolve()
        alternates.write_bytes(os.fsencode(shared) + b"\n")
        shallow = store.git_dir / "shallow"
        if shallow.exists():
            (scratch / "shallow").write_bytes(shallow.read_bytes())
        # No conversion on the way into the work tree and back; how a file is merged
        # stays with the attributes of the tree.
        (scratch / "info").mkdir(exist_ok=True)
        (scratch / "info" / "attributes").write_text(
            "* -text -ident !eol !filter !working-tree-encoding\n"
        )
        self.folder = folder
        self.work_tree = folder / "tree"
        self.scratch = scratch
        self.resolutions = resolutions
        index = {"GIT_INDEX_FILE": str(folder / "index")}
        self.git = HermeticGit(scratch, env=index)
        self.merging = HermeticGit(
            scratch, work_tree=self.work_tree, env={**index, **_IDENTITY}
        )
        self.git.run("read-tree", tree)
        self.tree = tree
        self.commit = commit

    def apply(self, file: PatchFile) -> None:
        """Apply a patch file to the index."""
        for text in _diffs(self.git, file.data, self.folder / "mail"):
            self.git.run(
                "apply",
                "--cached",
                "--whitespace=nowarn",
                "--allow-empty",
                "-",
                stdin=text,
            )
        self.tree = TreeId(self.git.text("write-tree"))

    def merge(self, pull: PinnedPull) -> None:
        """Merge or pick a pull request in the work tree."""
        self._check_out()
        if pull.strategy == "merge":
            self._take(("merge", "--no-ff", "--no-edit", "-q", pull.head), pull.head)
            return
        for commit in pull.pull.commits:
            # What a merge or an earlier pick brought already is no commit to pick.
            reached = self.git.call("merge-base", "--is-ancestor", commit, self.commit)
            if reached[0]:
                self._take(
                    ("cherry-pick", "--allow-empty", "--keep-redundant-commits",
                     "--allow-empty-message", commit),
                    None,
                )  # fmt: skip

    def _check_out(self) -> None:
        if self.git.text("rev-parse", f"{self.commit}^{{tree}}") != self.tree:
            self.commit = CommitId(
                self.merging.text(
                    "commit-tree", "-p", self.commit, "-m", "patches", self.tree
                )
            )
        (self.scratch / "HEAD").write_text(f"{self.commit}\n")
        self.work_tree.mkdir(exist_ok=True)
        self.merging.run("read-tree", "--reset", "-u", self.tree, cwd=self.work_tree)

    def _take(self, command: tuple[str, ...], head: CommitId | None) -> None:
        # The attributes of the first parent decide, also in gits that would take them
        # from the tree that is named in the environment.
        git = self.merging.with_env(GIT_ATTR_SOURCE=self.tree)
        status, out, err = git.call(
            "-c", "core.fsync=none", *command, cwd=self.work_tree
        )
        if status:
            unmerged = git.run("ls-files", "-u", "-z")
            if not unmerged:
                raise git.failure(command, status, out, err)
            for conflict in _unmerged(unmerged):
                self._resolve(git, conflict)
            tree = git.text("write-tree")
            parents = ["-p", self.commit, *(["-p", head] if head else [])]
            self.commit = CommitId(
                git.text("commit-tree", *parents, "-m", "resolved", tree)
            )
            for name in ("MERGE_HEAD", "CHERRY_PICK_HEAD"):
                (self.scratch / name).unlink(missing_ok=True)
            (self.scratch / "HEAD").write_text(f"{self.commit}\n")
            git.run("read-tree", "--reset", "-u", tree, cwd=self.work_tree)
        self.commit = CommitId(git.text("rev-parse", "HEAD"))
        self.tree = TreeId(git.text("rev-parse", "HEAD^{tree}"))

    def _resolve(self, git: HermeticGit, conflict: Conflict) -> None:
        found = self.resolutions.find(conflict)
        if found is None:
            shown = conflict.path.decode("utf-8", "replace")
            raise RoutesDisagreeError(
                f"git reports a conflict in {shown} that our merge does not have",
                hint="please report this with the pull request; no lock was written",
            )
        path = os.fsdecode(conflict.path)
        entry = found[1].entry
        git.run("update-index", "--force-remove", "--", path, cwd=self.work_tree)
        if entry is not None:
            if entry.mode != 0o160000:
                git.run("hash-object", "-w", "--stdin", stdin=found[1].data)
            info = f"{entry.mode:06o},{entry.oid.hex()},{path}"
            git.run("update-index", "--add", "--cacheinfo", info, cwd=self.work_tree)


def _unmerged(listing: bytes) -> list[Conflict]:
    stages: dict[bytes, list[Entry | None]] = {}
    for line in listing.split(b"\0"):
        if line:
            head, _, path = line.partition(b"\t")
            mode, oid, stage = head.split(b" ")
            entry = Entry(int(mode, 8), bytes.fromhex(oid.decode("ascii")))
            stages.setdefault(path, [None, None, None])[int(stage) - 1] = entry
    return [Conflict(path, *each) for path, each in sorted(stages.items())]


def trees_by_git(
    store: Store,
    base: tuple[TreeId, CommitId],
    sources: Sequence[Source],
    resolutions: Resolutions,
    progress: Progress = SILENT,
) -> list[TreeId]:
    """Compose sources with git's own commands and return the tree after each.

    Args:
        store: Holds the base, and the commits of pinned pull requests.
        base: Tree and commit of the base.
        sources: Patch files and pinned pull requests, in order.
        resolutions: The project's conflict resolutions.
        progress: Told the number of sources done.
    """
    with scratch_folder(store.git_dir / "scratch") as folder:
        route = _GitRoute(store, folder, *base, resolutions)
        trees = []
        for number, source in enumerate(sources):
            progress.update("check with git", number, len(sources))
            try:
                if isinstance(source, PinnedPull):
                    route.merge(source)
                else:
                    route.apply(source)
            except GitCommandError as error:
                raise RoutesDisagreeError(
                    f"{source.name} of set `{source.set}` was composed here, but git "
                    f"refuses it: {error.stderr.decode('utf-8', 'replace').strip()}",
                    hint="please report this with the patch",
                    where={"set": source.set, "patch": source.name},
                ) from error
            trees.append(route.tree)
        progress.update("check with git", len(sources), len(sources))
        return trees


def _diffs(git: HermeticGit, data: bytes, folder: Path) -> list[bytes]:
    """Return what `git apply` is given: the file, or the texts of encoded mails."""
    if _ENCODED.search(data) is None:
        return [data]
    folder.mkdir(exist_ok=True)
    mails = folder / "mails"
    mails.mkdir()
    git.run("mailsplit", "-b", "--keep-cr", f"-o{mails}", stdin=data)
    out = []
    for mail in sorted(mails.iterdir()):
        patch = folder / "patch"
        git.run(
            "mailinfo",
            "-b",
            "-u",
            "--no-scissors",
            "--quoted-cr=nowarn",
            str(folder / "message"),
            str(patch),
            stdin=mail.read_bytes(),
        )
        out.append(patch.read_bytes())
        mail.unlink()
    mails.rmdir()
    return out


def _trees(steps: Sequence[Step]) -> dict[tuple[str, str | None], TreeId]:
    """Return the tree after each source by set and name; pull requests have None."""
    out: dict[tuple[str, str | None], TreeId] = {}
    for step in steps:
        name = step.patch
        if name is not None:
            # The n-th patch of a file with several is called `name#n`.
            stem, mark, number = name.rpartition("#")
            if mark and number.isdigit():
                out[step.set, stem] = step.tree
        out[step.set, name] = step.tree
    return out


def check_routes(
    store: Store,
    composition: Composition,
    sources: Sequence[Source],
    resolutions: Resolutions,
    progress: Progress = SILENT,
) -> None:
    """Compare a composition with git's, source by source.

    Args:
        store: Holds the base, and the commits of pinned pull requests.
        composition: What was composed here, with a tree for every step.
        sources: What it was composed from, in order.
        resolutions: The project's conflict resolutions.
        progress: Told the number of sources done.

    Raises:
        RoutesDisagreeError: The trees differ, or git refuses a source.
    """
    expected = _trees(composition.steps)
    base = (composition.base.tree, composition.base.commit)
    trees = trees_by_git(store, base, sources, resolutions, progress)
    for source, tree in zip(sources, trees, strict=True):
        name = source.name if isinstance(source, PatchFile) else None
        ours = expected.get((source.set, name))
        if ours != tree:
            raise RoutesDisagreeError(
                f"after {source.name} of set `{source.set}` we have tree {ours}, git "
                f"has {tree}",
                hint="please report this with the patch; no lock was written",
                where={"set": source.set, "patch": source.name},
            )
