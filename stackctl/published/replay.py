# SPDX-License-Identifier: Apache-2.0
"""Rebuilding published compositions from git objects, and saying where they differ.

Many locks are replayed together: the first merge of each is one git process, then the
second of each, and a merge that several locks share is made once. Nothing is written
into the repository that the objects come from.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from pathlib import Path
from shlex import quote
from typing import Literal

from stackctl.errors import ConflictError, InputError, PinError, StackctlError
from stackctl.fsutil import read_regular
from stackctl.git.command import DamagedObjectError, GitCommandError
from stackctl.git.merge import (
    Conflict,
    History,
    MergeResult,
    MergeSpace,
    MissingObjectError,
    merge_commit,
    merge_space,
    picked_message,
)
from stackctl.git.objects import COMMITTER, TREE, Entry, encode_commit
from stackctl.model.ids import CommitId, Sha256, TreeId
from stackctl.progress import SILENT, Progress
from stackctl.published.formats import (
    MAX_PATCH_BYTES,
    Published,
    PublishedPull,
    SourcePatch,
)

MAX_PATHS = 50
"""Most differing paths that are listed."""

Claim = Literal["ancestry", "patch-id", "neither", "unchecked"]


@dataclass(slots=True)
class ReplayStep:
    """One pull request or patch of a replay, and the state after it.

    Attributes:
        pull: The pull request, None for a source patch or the pinned branch.
        patch: Path of the source patch, None for others.
        head: The commit that was merged or picked.
        says: The disposition that the lock records.
        disposition: What became of it here.
        tree: Tree after the step.
        commit: Commit after the step; None after source patches.
        claim: For `recorded_in_composition`: what the claim holds by; `unchecked`
            where the head is not at hand.
        conflicts: Paths that the merge could not decide.
        expected_tree: Tree after the step where the lock names one.
    """

    pull: PublishedPull | None
    patch: str | None
    head: CommitId | None
    says: str | None
    disposition: str
    tree: TreeId
    commit: CommitId | None
    claim: Claim | None = None
    conflicts: tuple[Conflict, ...] = ()
    expected_tree: TreeId | None = None

    @property
    def name(self) -> str:
        """What messages call it."""
        if self.patch is not None:
            return self.patch
        if self.pull is not None:
            return f"pull request {self.pull.name}"
        return f"composition {(self.head or '')[:12]}"

    def document(self) -> dict[str, object]:
        """Return the step for the JSON document."""
        out: dict[str, object] = {}
        if self.pull is not None:
            out["number"] = self.pull.number
        if self.patch is not None:
            out["patch"] = self.patch
        out |= {
            "head": self.head,
            "disposition": self.disposition,
            "recorded_disposition": self.says,
            "tree": self.tree,
            "commit": self.commit,
        }
        if self.claim is not None:
            out["claim"] = self.claim
        if self.expected_tree is not None:
            out["expected_tree"] = self.expected_tree
        if self.conflicts:
            out["conflicts"] = [each.document() for each in self.conflicts]
        return out


@dataclass(frozen=True, slots=True)
class PathDifference:
    """A path at which two trees differ."""

    path: bytes
    expected: Entry | None
    found: Entry | None

    def document(self) -> dict[str, object]:
        """Return it for the JSON document."""
        return {
            "path": self.path.decode("utf-8", "surrogateescape"),
            **{
                name: entry and {"mode": f"{entry.mode:06o}", "blob": entry.oid.hex()}
                for name, entry in (("expected", self.expected), ("found", self.found))
            },
        }


@dataclass(frozen=True, slots=True)
class Difference:
    """Where a replayed tree parts from the published one.

    Attributes:
        step: Number of the first step after which the trees differ, from 1; 0 is the
            base; None where nothing tells.
        certain: The lock names the tree after that step. Otherwise the step is
            concluded from the paths: up to the step before, they could still be as
            published.
        paths: The first differing paths; None where the published tree's objects are
            not at hand.
        count: How many paths differ.
        equal_after: Number of the step whose tree is the published one, if any.
        source: Where the published tree was found: `repository` or `patch`.
    """

    step: int | None
    certain: bool
    paths: tuple[PathDifference, ...] | None
    count: int | None
    equal_after: int | None = None
    source: str | None = None

    def document(self) -> dict[str, object]:
        """Return it for the JSON document."""
        return {
            "step": self.step,
            "certain": self.certain,
            "paths": None
            if self.paths is None
            else [each.document() for each in self.paths],
            "count": self.count,
            "equal_after": self.equal_after,
            "published_tree_from": self.source,
        }


@dataclass(slots=True)
class Replay:
    """What replaying one lock gave.

    Attributes:
        lock: The lock.
        steps: The steps, in order.
        tree: The tree that came out; None after a conflict.
        patch: The flat patch; None where none was asked for.
        patch_sha256: Its digest (of the variant that matched, if one did).
        patch_variant: How the matching patch is made; None where none matched.
        patch_applies: Whether the patch, applied to the base, gives the tree again.
        difference: Where the tree parts from the published one.
        notes: What a person should know.
    """

    lock: Published
    steps: list[ReplayStep] = field(default_factory=list)
    tree: TreeId | None = None
    patch: bytes | None = field(default=None, repr=False)
    patch_sha256: Sha256 | None = None
    patch_variant: str | None = None
    patch_applies: bool | None = None
    difference: Difference | None = None
    notes: list[str] = field(default_factory=list)

    @property
    def conflict(self) -> ReplayStep | None:
        """The step that could not be merged, if any."""
        if self.steps and self.steps[-1].conflicts:
            return self.steps[-1]
        return None

    @property
    def equal(self) -> bool:
        """Whether the tree is the published one."""
        return self.tree is not None and self.tree == self.lock.tree

    @property
    def patch_equal(self) -> bool | None:
        """Whether the patch is the published one; None where there is no digest."""
        if self.lock.patch_sha256 is None or self.patch is None:
            return None
        return self.patch_sha256 == self.lock.patch_sha256

    @property
    def right(self) -> bool:
        """Whether everything that was compared is equal."""
        return (
            self.equal
            and self.patch_equal is not False
            and self.patch_applies is not False
        )

    def document(self) -> dict[str, object]:
        """Return the JSON document of `replay`."""
        lock = self.lock
        return {
            "lock": str(lock.file),
            "name": lock.name,
            "form": lock.form,
            "strategy": lock.strategy,
            "base": lock.base_commit,
            "expected_tree": lock.tree,
            "tree": self.tree,
            "equal": self.equal,
            "expected_patch_sha256": lock.patch_sha256,
            "patch_sha256": self.patch_sha256,
            "patch_equal": self.patch_equal,
            "patch_variant": self.patch_variant,
            "patch_applies": self.patch_applies,
            "steps": [step.document() for step in self.steps],
            "difference": self.difference and self.difference.document(),
            "notes": self.notes,
        }


@dataclass(slots=True)
class _Run:
    """One lock under way."""

    replay: Replay
    tree: TreeId
    commit: CommitId
    todo: list[PublishedPull]
    merged: list[CommitId] = field(default_factory=list)


class _Replayer:
    def __init__(
        self, space: MergeSpace, repository: Path, patch_folder: Path | None
    ) -> None:
        self.space = space
        self.repository = repository
        self.patch_folder = patch_folder
        self.history = History(space.git, [])
        self._merges: dict[tuple[CommitId, CommitId], MergeResult | StackctlError] = {}

    def run(
        self, locks: Sequence[Published], progress: Progress
    ) -> list[Replay | StackctlError]:
        out: list[Replay | StackctlError] = []
        runs: dict[int, _Run] = {}
        tips: list[str] = []
        for number, lock in enumerate(locks):
            try:
                run, named = self._start(lock)
                runs[number] = run
                tips += named
                out.append(run.replay)
            except StackctlError as error:
                out.append(error)
        self.history = History(self.space.git, tips)
        total = sum(len(run.todo) for run in runs.values())
        while any(run.todo for run in runs.values()):
            left = sum(len(run.todo) for run in runs.values())
            progress.update("replay", total - left, total)
            self._merge_next([run for run in runs.values() if run.todo])
            for number, run in runs.items():
                if run.todo:
                    try:
                        self._step(run)
                    except StackctlError as error:
                        out[number] = error
                        run.todo = []
        for number, run in runs.items():
            if isinstance(out[number], StackctlError) or run.replay.conflict:
                continue
            try:
                self._finish(run)
            except StackctlError as error:
                out[number] = error
        return out

    # -- what a lock names

    def _need(self, lock: Published, commit: str, ref: str | None) -> None:
        try:
            self.space.commit(commit)
        except MissingObjectError as error:
            error.message = f"{lock.file}: commit {commit} is not in {self.repository}"
            source = lock.repository or "URL"
            if source.startswith("-") or "::" in source:
                # An option or a remote helper, which must not be pasted into a shell.
                source = "URL"
            # A head that moved on is not what its ref holds now: ask by id.
            error.hint = (
                f"bring it: git --git-dir={quote(str(self.repository))} fetch "
                f"{quote(source)} {commit}" + (f" (or {ref})" if ref else "")
            )
            error.where = {"file": str(lock.file), "commit": commit, "ref": ref}
            raise

    def _start(self, lock: Published) -> tuple[_Run, list[str]]:
        if lock.form == "manifest" or lock.base_commit is None:
            raise InputError(
                f"{lock.file} is a manifest: it says what to compose, not what came "
                "out",
                kind="not-a-lock",
                hint="replay the lock that was made from it, or import it: stackctl "
                "import-manifest",
                where={"file": str(lock.file)},
            )
        base = lock.base_commit
        self._need(lock, base, lock.base_ref)
        tips = [str(base)]
        if lock.composition_commit and lock.strategy == "pinned_branch":
            self._need(lock, lock.composition_commit, lock.composition_ref)
            tips.append(lock.composition_commit)
        pulls = []
        for each in lock.pulls:
            pull = each
            if pull.head is None:
                pull = self._head_of_merge(lock, pull)
            assert pull.head is not None
            ref = pull.ref or (f"refs/pull/{pull.number}/head" if pull.number else None)
            if lock.strategy != "pinned_branch":
                self._need(lock, pull.head, ref)
            for commit in pull.commits:
                self._need(lock, commit, ref)
            if pull.head in self.space.store:
                tips.append(pull.head)
            pulls.append(pull)
        tree = self.space.commit(base).tree
        return _Run(Replay(lock), tree, base, pulls), tips

    def _head_of_merge(self, lock: Published, pull: PublishedPull) -> PublishedPull:
        assert pull.merge_commit is not None
        self._need(lock, pull.merge_commit, None)
        parents = self.space.commit(pull.merge_commit).parents
        if len(parents) < 2:
            return replace(pull, head=pull.merge_commit)
        return replace(pull, head=parents[1])

    # -- the steps

    def _contained(self, run: _Run, head: CommitId) -> bool:
        """Whether the composition so far has a head among its ancestors."""
        lock = run.replay.lock
        assert lock.base_commit is not None
        return any(
            self.history.contains(tip, head) for tip in (lock.base_commit, *run.merged)
        )

    def _merge_next(self, runs: Sequence[_Run]) -> None:
        pairs: dict[tuple[CommitId, CommitId], None] = {}
        for run in runs:
            head = run.todo[0].head
            if run.replay.lock.strategy != "merge" or head is None:
                continue
            if not self._contained(run, head):
                pairs[run.commit, head] = None
        fresh = [pair for pair in pairs if pair not in self._merges]
        results = self.space.merge(fresh)
        self._merges.update(zip(fresh, results, strict=True))

    def _step(self, run: _Run) -> None:
        pull = run.todo.pop(0)
        lock = run.replay.lock
        if lock.strategy == "pinned_branch":
            self._recorded(run, pull)
        elif lock.strategy == "cherry_pick":
            self._pick(run, pull)
        else:
            self._merge(run, pull)

    def _merge(self, run: _Run, pull: PublishedPull) -> None:
        head = pull.head
        assert head is not None
        step = ReplayStep(
            pull=pull,
            patch=None,
            head=head,
            says=pull.disposition,
            disposition="already-in-base",
            tree=run.tree,
            commit=run.commit,
            expected_tree=self._published_step(pull),
        )
        if not self._contained(run, head):
            result = self._merges[run.commit, head]
            if isinstance(result, StackctlError):
                where = {"file": str(run.replay.lock.file), "pull": pull.number}
                result.where = where | result.where
                raise result
            step.disposition, step.tree = "merged", result.tree
            step.conflicts = result.conflicts
            raw = merge_commit(
                result.tree,
                run.commit,
                head,
                self.space.commit(head).committed,
                f"pull request {pull.name}",
            )
            step.commit = self.space.write_commit(raw)
            run.merged.append(head)
        elif not self._in_base(run, head):
            # An earlier pull request of the list brought it: nothing is left to merge.
            step.disposition = "merged"
        self._advance(run, step)

    def _in_base(self, run: _Run, head: CommitId) -> bool:
        base = run.replay.lock.base_commit
        assert base is not None
        return self.history.contains(base, head)

    def _advance(self, run: _Run, step: ReplayStep) -> None:
        run.replay.steps.append(step)
        run.tree, run.commit = step.tree, step.commit or run.commit
        if step.conflicts:
            run.todo = []

    def _published_step(self, pull: PublishedPull) -> TreeId | None:
        if pull.merge_commit is None or pull.merge_commit not in self.space.store:
            return None
        return self.space.commit(pull.merge_commit).tree

    def _pick(self, run: _Run, pull: PublishedPull) -> None:
        assert pull.head is not None
        commits = pull.commits
        if not commits:
            base = run.replay.lock.base_commit
            text = self.space.git.text(
                "rev-list", "--reverse", "--topo-order", f"{base}..{pull.head}"
            )
            commits = tuple(CommitId(each) for each in text.split())
        if self._contained(run, pull.head):
            step = ReplayStep(
                pull=pull,
                patch=None,
                head=pull.head,
                says=pull.disposition,
                disposition="already-in-base",
                tree=run.tree,
                commit=run.commit,
            )
            self._advance(run, step)
            return
        for commit in commits:
            pair = self.space.cherry_pair(run.tree, commit)
            if pair is None:
                raise InputError(
                    f"{run.replay.lock.file}: {commit} of pull request {pull.name} is "
                    "a merge, which cannot be cherry-picked",
                    kind="merge-picked",
                    where={"file": str(run.replay.lock.file), "commit": commit},
                )
            (result,) = self.space.merge([pair])
            if isinstance(result, StackctlError):
                raise result
            facts = self.space.commit(commit)
            who = COMMITTER + b" " + facts.authored
            made = self.space.write_commit(
                encode_commit(
                    result.tree,
                    (run.commit,),
                    facts.author,
                    who,
                    picked_message(facts.message, commit),
                )
            )
            step = ReplayStep(
                pull=pull,
                patch=None,
                head=commit,
                says=pull.disposition,
                disposition="cherry-picked",
                tree=result.tree,
                commit=made,
                conflicts=result.conflicts,
            )
            self._advance(run, step)
            if result.conflicts:
                return

    def _recorded(self, run: _Run, pull: PublishedPull) -> None:
        """Check the claim that a pinned composition holds a pull request."""
        lock = run.replay.lock
        composition = lock.composition_commit
        assert composition is not None and lock.base_commit is not None
        claim: Claim = "neither"
        if pull.head is None or pull.head not in self.space.store:
            run.replay.notes.append(
                f"pull request {pull.name}: head {pull.head} is not in "
                f"{self.repository}; the claim is not checked"
            )
            claim = "unchecked"
        elif self.history.contains(composition, pull.head):
            claim = "ancestry"
        elif self._by_patch_id(lock.base_commit, composition, pull.head):
            claim = "patch-id"
        run.replay.steps.append(
            ReplayStep(
                pull=pull,
                patch=None,
                head=pull.head,
                says=pull.disposition,
                disposition="recorded",
                tree=self.space.commit(composition).tree,
                commit=composition,
                claim=claim,
            )
        )
        if claim == "neither":
            run.replay.notes.append(
                f"pull request {pull.name} is said to be in the composition, but "
                "neither its head nor changes with its patch ids are"
            )

    def _by_patch_id(self, base: str, composition: str, head: str) -> bool:
        """Whether every change of a head is in a composition under another id."""
        wanted = self._patch_ids(f"{base}..{head}")
        if not wanted:
            return False
        return wanted <= self._patch_ids(f"{base}..{composition}")

    def _patch_ids(self, commits: str) -> frozenset[str]:
        from stackctl.git.patchtext.patchid import patch_id

        listed = self.space.git.text("rev-list", "--no-merges", commits).split()
        if not listed:
            return frozenset()
        text = self.space.git.run(
            *("diff-tree", "--stdin", "--root", "-r", "-p", "--full-index"),
            *("--no-renames", "--no-ext-diff", "--no-textconv"),
            stdin="".join(f"{commit}\n" for commit in listed).encode(),
        )
        out = set()
        position = 0
        heads = {commit.encode() for commit in listed}
        parts: list[list[bytes]] = []
        while position < len(text):
            end = text.find(b"\n", position) + 1 or len(text)
            line = text[position:end]
            position = end
            if len(line) == 41 and line[:40] in heads:
                parts.append([])
            elif parts:
                parts[-1].append(line)
        for lines in parts:
            found = patch_id(b"".join(lines))
            if found:
                out.add(found)
        return frozenset(out)

    # -- after the pull requests

    def _finish(self, run: _Run) -> None:
        lock = run.replay.lock
        if lock.strategy == "pinned_branch":
            composition, base = lock.composition_commit, lock.base_commit
            assert composition is not None and base is not None
            if not self.history.contains(composition, base):
                raise PinError(
                    f"{lock.file}: the composition {composition} does not descend from "
                    f"the base {base}",
                    kind="base-not-an-ancestor",
                    hint="the lock names another base or another composition than "
                    "were used",
                    where={"file": str(lock.file), "commit": composition},
                )
            run.tree = self.space.commit(composition).tree
            run.commit = composition
            run.replay.steps.insert(
                0,
                ReplayStep(
                    pull=None,
                    patch=None,
                    head=composition,
                    says=None,
                    disposition="recorded",
                    tree=run.tree,
                    commit=composition,
                ),
            )
        for patch in lock.patches:
            run.tree = self._apply(lock, patch, run.tree)
            run.replay.steps.append(
                ReplayStep(
                    pull=None,
                    patch=patch.path,
                    head=None,
                    says=None,
                    disposition="applied",
                    tree=run.tree,
                    commit=None,
                )
            )
        run.replay.tree = run.tree
        for step in run.replay.steps:
            says = (step.says or "").replace("_", "-")
            if step.disposition == "already-in-base" and says == "merged":
                run.replay.notes.append(
                    f"{step.name} is recorded as merged, but its head is an ancestor "
                    "of the base"
                )
            if step.disposition == "merged" and says == "already-in-base":
                run.replay.notes.append(
                    f"{step.name} is recorded as already in the base, but its head is "
                    "no ancestor of it; it was merged"
                )

    def _apply(self, lock: Published, patch: SourcePatch, tree: TreeId) -> TreeId:
        # Not needed for trees alone, and costly to import.
        from stackctl.git.apply import Workspace
        from stackctl.git.patchtext.diff import parse_diff_span
        from stackctl.git.patchtext.model import Identity, Patch

        path = self._patch_path(lock, patch)
        data = patch.read(path, lock.file)
        parsed = parse_diff_span(data, name=patch.path, first_line=1)
        if not parsed.changes:
            raise InputError(
                f"{path} has no diff", kind="empty-patch", where={"file": str(path)}
            )
        workspace = Workspace(self.space.store, tree, every_step=False)
        try:
            workspace.apply(
                Patch(
                    name=patch.path,
                    line=1,
                    author=Identity(b"", b"", 0, b"+0000"),
                    message=b"",
                    changes=parsed.changes,
                    raw=data,
                    diff=data[parsed.start : parsed.end],
                )
            )
            after = workspace.write_tree()
            workspace.publish()
        except StackctlError as error:
            error.where |= {"file": str(path)}
            raise
        finally:
            workspace.abort()
        return after

    def _patch_path(self, lock: Published, patch: SourcePatch) -> Path:
        folders = [lock.file.parent]
        if self.patch_folder is not None:
            folders.insert(0, self.patch_folder)
        for folder in folders:
            path = folder / patch.path
            if path.exists():
                return path
        raise PinError(
            f"{lock.file}: the source patch {patch.path} is not there",
            kind="missing-patch",
            hint="put it beside the lock, or name the folder that holds it with "
            "--patches",
            where={"file": str(folders[0] / patch.path)},
        )

    # -- the patch, and differences

    def patches(self, replays: Sequence[Replay]) -> None:
        """Make the flat patches, compare their digests and apply them again."""
        # Not needed for trees alone, and costly to import.
        from stackctl.published.patch import (
            STANDARD,
            flat_patches,
            matching_variant,
            tree_of_patch,
        )

        pairs = []
        for each in replays:
            assert each.lock.base_commit is not None and each.tree is not None
            pairs.append((self.space.commit(each.lock.base_commit).tree, each.tree))
        again: dict[tuple[TreeId, bytes], TreeId] = {}
        for each, pair, data in zip(
            replays,
            pairs,
            flat_patches(self.space, pairs) if pairs else (),
            strict=True,
        ):
            each.patch = data
            each.patch_sha256 = Sha256(sha256(data).hexdigest())
            wanted = each.lock.patch_sha256
            if wanted is None or wanted == each.patch_sha256:
                each.patch_variant = STANDARD
            elif each.equal:
                found = matching_variant(self.space, *pair, wanted)
                if found is not None:
                    each.patch_variant = found[0]
                    each.patch_sha256 = wanted
            key = (pair[0], sha256(data).digest())
            if key not in again:
                again[key] = tree_of_patch(
                    self.space.store, pair[0], data, "the flat patch"
                )
            each.patch_applies = again[key] == each.tree

    def patch_error(self, replay: Replay, error: StackctlError) -> StackctlError:
        """Return why a flat patch cannot be made: mostly, blobs are missing."""
        if not isinstance(error, (DamagedObjectError, GitCommandError)):
            error.where.setdefault("file", str(replay.lock.file))
            return error
        tips = [replay.lock.base_commit or "", replay.steps[-1].commit or ""]
        names = self.space.missing([tip for tip in tips if tip])
        verdict = "the published one" if replay.equal else "not the published one"
        return MissingObjectError(
            f"{replay.lock.file}: the tree is {verdict}, but its patch needs objects "
            f"that are missing: {', '.join(names[:5])}",
            hint="complete the repository (git fetch --refetch --no-filter), or "
            "compare the trees alone: --no-patch",
            where={"file": str(replay.lock.file), "objects": names[:50]},
        )

    def explain(self, replay: Replay) -> None:
        """Find where a replayed tree parts from the published one."""
        lock = replay.lock
        assert lock.tree is not None and lock.base_commit is not None
        base = self.space.commit(lock.base_commit).tree
        trees = [base, *[step.tree for step in replay.steps]]
        certain = next(
            (
                number
                for number, step in enumerate(replay.steps, 1)
                if step.expected_tree not in (None, step.tree)
            ),
            None,
        )
        wanted, source = self._published_tree(lock, base)
        if certain is not None:
            step = replay.steps[certain - 1]
            assert step.expected_tree is not None
            differing = self._differing(step.expected_tree, step.tree)
            replay.difference = Difference(
                certain, True, tuple(differing[:MAX_PATHS]), len(differing),
                source="repository",
            )  # fmt: skip
            return
        equal_after = max(
            (number for number, tree in enumerate(trees) if tree == lock.tree),
            default=None,
        )
        if wanted is None:
            replay.difference = Difference(None, False, None, None, equal_after)
            replay.notes.append(
                f"the published tree {lock.tree} is not in {self.repository}, and the "
                "published patch is not beside the lock: the differing paths cannot "
                "be named"
            )
            return
        assert replay.tree is not None
        differing = self._differing(wanted, replay.tree)
        steps = [self._first_step(each, trees) for each in differing[:1000]]
        replay.difference = Difference(
            min(steps, default=None),
            False,
            tuple(differing[:MAX_PATHS]),
            len(differing),
            equal_after,
            source,
        )

    def _first_step(self, difference: PathDifference, trees: Sequence[TreeId]) -> int:
        entries = [self.space.entry(tree, difference.path) for tree in trees]
        for number in range(len(entries) - 1, -1, -1):
            if entries[number] == difference.expected:
                return number + 1
        for number in range(len(entries) - 1, 0, -1):
            if entries[number] != entries[number - 1]:
                return number
        return 0

    def _published_tree(
        self, lock: Published, base: TreeId
    ) -> tuple[TreeId | None, str | None]:
        assert lock.tree is not None
        found = self.space.store.find(bytes.fromhex(lock.tree))
        if found is not None and found[0] == TREE:
            return lock.tree, "repository"
        if lock.patch is None or lock.patch_sha256 is None:
            return None, None
        path = lock.file.parent / Path(lock.patch).name
        try:
            data = read_regular(path, MAX_PATCH_BYTES)
        except InputError:
            return None, None
        if sha256(data).hexdigest() != lock.patch_sha256:
            return None, None
        try:
            tree = self._apply(
                lock, SourcePatch(Path(lock.patch).name, lock.patch_sha256), base
            )
        except (ConflictError, InputError):
            return None, None
        return (tree, "patch") if tree == lock.tree else (None, None)

    def _differing(self, expected: TreeId, found: TreeId) -> list[PathDifference]:
        text = self.space.git.run(
            "diff-tree", "-r", "-z", "--no-renames", "--full-index", expected, found
        )
        out = []
        fields = text.split(b"\0")
        for head, path in zip(fields[::2], fields[1::2], strict=False):
            if not head.startswith(b":"):
                break
            old_mode, new_mode, old, new, _ = head[1:].split(b" ")
            sides = [
                None
                if int(mode, 8) == 0
                else Entry(int(mode, 8), bytes.fromhex(oid.decode()))
                for mode, oid in ((old_mode, old), (new_mode, new))
            ]
            out.append(PathDifference(path, sides[0], sides[1]))
        return out


def replay(
    locks: Sequence[Published],
    repository: Path,
    scratch: Path,
    *,
    patch: bool = True,
    patch_folder: Path | None = None,
    progress: Progress = SILENT,
) -> list[Replay | StackctlError]:
    """Rebuild published compositions and compare them with what was published.

    Args:
        locks: The locks.
        repository: Git directory that has their objects; it is only read.
        scratch: Folder for scratch work.
        patch: Also make the flat patch, compare its digest and apply it again.
        patch_folder: Where source patches are looked for first.
        progress: Told what is being done.

    Returns:
        For each lock what came out, or why nothing did.
    """
    with merge_space(scratch, [repository]) as space:
        replayer = _Replayer(space, repository, patch_folder)
        out = replayer.run(locks, progress)
        done = [
            each for each in out if isinstance(each, Replay) and each.conflict is None
        ]
        if patch:
            out = _with_patches(replayer, out, done)
        for result in out:
            if isinstance(result, Replay) and not result.equal and not result.conflict:
                replayer.explain(result)
        return out


def _with_patches(
    replayer: _Replayer, out: list[Replay | StackctlError], done: list[Replay]
) -> list[Replay | StackctlError]:
    """Make the patches, all at once; where that fails, one by one."""
    try:
        replayer.patches(done)
    except StackctlError:
        failed: dict[int, StackctlError] = {}
        for each in done:
            try:
                replayer.patches([each])
            except StackctlError as error:
                failed[id(each)] = replayer.patch_error(each, error)
        return [failed.get(id(each), each) for each in out]
    return out
