# SPDX-License-Identifier: Apache-2.0
"""Composing pinned pull requests: merges and picks in memory, with resolutions."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from stackctl.base.git import fetch_together, list_refs
from stackctl.cache import disk_error
from stackctl.compose.context import Context
from stackctl.compose.model import Step
from stackctl.compose.resolutions import Resolutions
from stackctl.compose.sources import PinnedPull
from stackctl.errors import (
    ConflictError,
    InputError,
    PinError,
    RemoteError,
    StackctlError,
)
from stackctl.git.merge import (
    Conflict,
    MergeResult,
    MergeSpace,
    merge_commit,
    merge_space,
    picked_message,
)
from stackctl.git.objects import (
    BLOB,
    COMMIT,
    COMMITTER,
    MODE_SUBMODULE,
    MODE_TREE,
    TREE,
    Entry,
    encode_commit,
    iterate_tree,
)
from stackctl.git.packs import PackWriter
from stackctl.git.store import read_loose
from stackctl.model.ids import CommitId, TreeId
from stackctl.model.lock import StepDisposition
from stackctl.model.series import GitBase


class MergeConflictError(ConflictError):
    """A pinned commit conflicts with the composition.

    Args:
        source: The pull request.
        commit: The commit that was merged or picked.
        conflicts: The paths that are open.
        before: The composition's commit that it conflicts with.
        marked: What git made of the open files, with conflict markers.
        sides: Content of both sides' files, by raw blob id.
        structural: Paths that are about names (a file against a folder), not content.
    """

    default_kind = "merge-conflict"

    def __init__(
        self,
        source: PinnedPull,
        commit: CommitId,
        conflicts: Sequence[Conflict],
        before: CommitId,
        marked: Mapping[bytes, bytes],
        sides: Mapping[bytes, bytes],
        structural: Sequence[bytes],
    ) -> None:
        self.source = source
        self.commit = commit
        self.conflicts = tuple(conflicts)
        self.before = before
        self.marked = dict(marked)
        self.sides = dict(sides)
        self.structural = tuple(structural)
        paths = [each.path.decode("utf-8", "backslashreplace") for each in conflicts]
        shown = ", ".join(paths[:3]) + (" ..." if len(paths) > 3 else "")
        verb = "merged" if source.strategy == "merge" else "picked"
        super().__init__(
            f"set `{source.set}`: {commit} of {source.pull} cannot be {verb}: "
            f"conflict in {shown}",
            hint="the names conflict (a file against a folder or a link): have the "
            "pull request rebased, and pin its new head"
            if structural
            else f"resolve it: stackctl resolve {source.set}",
            where={
                "set": source.set,
                "commit": commit,
                "onto": before,
                "paths": [
                    each.path.decode("utf-8", "surrogateescape") for each in conflicts
                ],
                "conflicts": [each.document() for each in conflicts],
            },
        )


class PinnedMaker:
    """Composes pinned pull requests, one after the other, onto a commit.

    Args:
        context: The series, and the means to compose it.
        resolutions: The project's conflict resolutions.
    """

    def __init__(self, context: Context, resolutions: Resolutions) -> None:
        self.context = context
        self.resolutions = resolutions

    def make(
        self,
        sources: Sequence[PinnedPull],
        base: CommitId,
        tree: TreeId,
        commit: CommitId,
    ) -> list[list[Step]]:
        """Compose pull requests.

        Args:
            sources: The pull requests, in order.
            base: Hex id of the base's commit.
            tree: Hex id of the tree to start from.
            commit: Hex id of its commit.

        Returns:
            The steps of each, without patch ids. Their objects are in the store.

        Raises:
            MergeConflictError: A conflict has no resolution; nothing is written then.
            PinError: A head is missing, or does not belong to its pull request.
            RemoteError: A head has to be fetched and cannot be.
        """
        self._bring_together(sources)
        for source in sources:
            self.bring(source)
        store = self.context.cache.store
        store.refresh()
        made: list[list[Step]] = []
        writer = store.writer()
        try:
            with merge_space(store.git_dir / "scratch", [store.git_dir]) as space:
                for number, source in enumerate(sources):
                    self.context.progress.update("merge", number, len(sources))
                    run = _Run(space, self.resolutions, source, base, tree, commit)
                    try:
                        steps = run.steps()
                    except StackctlError as error:
                        error.where.setdefault("set", source.set)
                        if not error.message.startswith("set `"):
                            error.message = f"set `{source.set}`: {error.message}"
                        raise
                    made.append(steps)
                    tree, commit = run.tree, run.commit
                for steps in made:
                    for step in steps:
                        _collect(space, writer, step)
            writer.finish()
            store.refresh()
        except OSError as error:
            raise disk_error(error, self.context.cache.folder) from error
        finally:
            writer.abort()
        self.context.progress.update("merge", len(sources), len(sources))
        return made

    def _bring_together(self, sources: Sequence[PinnedPull]) -> None:
        if self.context.offline:
            return
        wanted: dict[str, dict[CommitId, None]] = {}
        base = self.context.series.base
        if isinstance(base, GitBase):
            wanted.setdefault(base.git, {})[base.commit] = None
        for source in sources:
            wanted.setdefault(source.pull.fetch_url, {})[source.head] = None
        for url, commits in wanted.items():
            fetch_together(
                url,
                list(commits),
                cache=self.context.cache,
                project=self.context.series.root,
                progress=self.context.progress,
            )

    def bring(self, source: PinnedPull) -> None:
        """Bring a pull request's commits, and the base's history, into the store.

        Raises:
            PinError: The head is missing; where its ref has moved, that is said.
            InputError: The base has no history to merge with.
            RemoteError: The repository cannot be reached.
        """
        base = self.context.series.base
        if isinstance(base, GitBase):
            self.context.bring(base.git, base.commit, base.ref)
        elif source.strategy == "merge":
            raise InputError(
                f"set `{source.set}` merges {source.pull}, but the base is no commit "
                "of a repository: it has no history in common with a pull request",
                kind="base-without-history",
                hint="pin the base as `git` and `commit`, or take the set by "
                'strategy = "cherry-pick", or as patches',
                where={"set": source.set, "key": "base"},
            )
        pull = source.pull
        try:
            self.context.bring(pull.fetch_url, source.head, pull.fetch_ref)
        except PinError as error:
            error.where |= {"set": source.set, "ref": pull.fetch_ref}
            error.message = f"set `{source.set}`: {error.message}"
            self._say_moved(source, error)
            raise
        except RemoteError as error:
            error.where["set"] = source.set
            raise

    def _say_moved(self, source: PinnedPull, error: PinError) -> None:
        pull = source.pull
        try:
            found = list_refs(
                pull.fetch_url, [pull.fetch_ref], self.context.series.root
            )
        except StackctlError:
            return
        remote = found.get(pull.fetch_ref)
        if remote is not None and remote != source.head:
            error.kind = "moved-head"
            error.message = (
                f"set `{source.set}`: {pull} has moved and its pinned head is gone: "
                f"pins {source.head}, remote has {remote}"
            )
            error.hint = (
                f"review the new head, then: stackctl pins --update {source.set}; or "
                "bring the old one from a repository that has it: git --git-dir="
                f"{self.context.cache.store.git_dir} fetch URL {source.head}"
            )
            error.where |= {"pinned": source.head, "remote": remote}


class _Run:
    """One pull request being composed."""

    def __init__(
        self,
        space: MergeSpace,
        resolutions: Resolutions,
        source: PinnedPull,
        base: CommitId,
        tree: TreeId,
        commit: CommitId,
    ) -> None:
        self.space = space
        self.resolutions = resolutions
        self.source = source
        self.base = base
        self.tree = tree
        self.commit = commit

    def steps(self) -> list[Step]:
        if self.source.strategy == "merge":
            return [self._merge()]
        head = self.source.head
        out = []
        for commit in self.source.pull.commits:
            self.space.commit(commit)
            if not self._is_ancestor(commit, head):
                raise PinError(
                    f"{commit} is not part of {self.source.pull} at {head}",
                    kind="not-in-pull",
                    hint="list commits of the pinned head: git log "
                    f"{self.base[:12]}..{head[:12]}",
                    where={"commit": commit, "head": head},
                )
            out.append(self._pick(commit))
        return out

    def _is_ancestor(self, commit: str, of: str) -> bool:
        status, _, error = self.space.git.call(
            "merge-base", "--is-ancestor", commit, of
        )
        if status not in (0, 1):
            text = error.decode("utf-8", "replace").strip()
            raise PinError(f"the history of {of} is damaged: {text}", kind="bad-object")
        return status == 0

    def _step(
        self,
        head: CommitId,
        disposition: StepDisposition,
        resolutions: tuple[str, ...] = (),
    ) -> Step:
        return Step(
            set=self.source.set,
            patch=None,
            sha256=None,
            head=head,
            strategy=self.source.strategy,
            disposition=disposition,
            patch_id=None,
            tree=self.tree,
            commit=self.commit,
            resolutions=resolutions,
        )

    def _merge(self) -> Step:
        head = self.source.head
        facts = self.space.commit(head)
        if self._is_ancestor(head, self.base):
            return self._step(head, "already-in-base")
        if self._is_ancestor(head, self.commit):
            # An earlier set brought it: as with git, there is nothing to merge.
            return self._step(head, "merged")
        tree, used = self._decide(head, self.commit, head)
        raw = merge_commit(tree, self.commit, head, facts.committed, self.source.name)
        self.tree, self.commit = tree, self.space.write_commit(raw)
        return self._step(head, "merged", used)

    def _pick(self, commit: CommitId) -> Step:
        if self._is_ancestor(commit, self.commit):
            return self._step(commit, "already-in-base")
        pair = self.space.cherry_pair(self.tree, commit)
        if pair is None:
            raise InputError(
                f"{commit} is a merge, which cannot be cherry-picked",
                kind="merge-picked",
                hint='list the commits that it merges, or use strategy = "merge"',
                where={"commit": commit},
            )
        tree, used = self._decide(commit, *pair)
        if tree == self.tree:
            # The change is there already, under another id.
            return self._step(commit, "already-in-base", used)
        facts = self.space.commit(commit)
        raw = encode_commit(
            tree,
            (self.commit,),
            facts.author,
            COMMITTER + b" " + facts.authored,
            picked_message(facts.message, commit),
        )
        self.tree, self.commit = tree, self.space.write_commit(raw)
        return self._step(commit, "cherry-picked", used)

    def _decide(
        self, commit: CommitId, ours: CommitId, theirs: CommitId
    ) -> tuple[TreeId, tuple[str, ...]]:
        """Merge two commits; return the tree and the resolutions that were used."""
        (result,) = self.space.merge([(ours, theirs)])
        if isinstance(result, StackctlError):
            raise result
        if not result.conflicts:
            return result.tree, ()
        return self._resolve(commit, result)

    def _resolve(
        self, commit: CommitId, result: MergeResult
    ) -> tuple[TreeId, tuple[str, ...]]:
        entries: dict[bytes, Entry | None] = {}
        used = []
        unresolved = []
        for conflict in result.conflicts:
            found = self.resolutions.find(conflict)
            if found is None or self.structural(conflict, commit):
                unresolved.append(conflict)
                continue
            name, resolution = found
            used.append(name)
            entries[conflict.path] = resolution.entry
            if resolution.entry is not None and (
                resolution.entry.mode != MODE_SUBMODULE
            ):
                self.space.write(BLOB, resolution.data)
        if unresolved:
            raise MergeConflictError(
                self.source,
                commit,
                unresolved,
                self.commit,
                self._marked(result, unresolved),
                self._sides(unresolved),
                [
                    conflict.path
                    for conflict in unresolved
                    if self.structural(conflict, commit)
                ],
            )
        tree = self.space.replace_paths(result.tree, entries)
        return tree, tuple(sorted(used))

    def _marked(
        self, result: MergeResult, conflicts: Sequence[Conflict]
    ) -> dict[bytes, bytes]:
        out = {}
        for conflict in conflicts:
            entry = self.space.entry(result.tree, conflict.path)
            if entry is not None and entry.mode not in (MODE_TREE, MODE_SUBMODULE):
                out[conflict.path] = self.space.store.blob(entry.oid)
        return out

    def _sides(self, conflicts: Sequence[Conflict]) -> dict[bytes, bytes]:
        return {
            entry.oid: self.space.store.blob(entry.oid)
            for conflict in conflicts
            for entry in (conflict.base, conflict.ours, conflict.theirs)
            if entry is not None and entry.mode != MODE_SUBMODULE
        }

    def structural(self, conflict: Conflict, commit: CommitId) -> bool:
        """Whether a conflict is about names (a file against a folder), not content."""
        trees = (self.tree, self.space.commit(commit).tree)
        return all(self.space.entry(tree, conflict.path) is None for tree in trees)


def _collect(space: MergeSpace, writer: PackWriter, step: Step) -> None:
    """Take what a step made out of the scratch repository, and nothing else of it."""
    if step.commit is not None:
        _take(space.objects, writer, COMMIT, bytes.fromhex(step.commit))
    _take_tree(space.objects, writer, bytes.fromhex(step.tree))


def _take(objects: Path, writer: PackWriter, kind: int, oid: bytes) -> bytes | None:
    if oid in writer:
        return None
    found = read_loose(objects, oid)
    if found is None:
        return None
    writer.add(kind, found[1], oid)
    return found[1]


def _take_tree(objects: Path, writer: PackWriter, tree: bytes) -> None:
    raw = _take(objects, writer, TREE, tree)
    for _, mode, oid, _ in iterate_tree(raw or b""):
        if mode == MODE_TREE:
            _take_tree(objects, writer, oid)
        elif mode != MODE_SUBMODULE:
            _take(objects, writer, BLOB, oid)


def with_patch_ids(
    steps: list[Step], ids: dict[str, str | None], before: str
) -> list[Step]:
    """Return steps with their patch ids; a step without a commit of its own has none.

    Args:
        steps: The steps, in order.
        ids: Patch ids by commit.
        before: The commit before the first.
    """
    out = []
    for step in steps:
        own = step.commit is not None and step.commit != before
        out.append(replace(step, patch_id=ids[step.commit or ""] if own else None))
        before = step.commit or before
    return out
