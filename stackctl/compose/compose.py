# SPDX-License-Identifier: Apache-2.0
"""Composing: base plus sets, a tree and a commit per patch, no work tree, no index.

A plan is a list of sources: patch files, and pinned pull requests. What a source makes
follows from the commit below it and its own digest alone (and from the conflict
resolutions, where a pull request needs some), so steps are remembered by those and a
changed source recomposes from there on.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from io import BytesIO
from itertools import groupby
from typing import TYPE_CHECKING, Any

from stackctl.base import ResolvedBase, resolve_base
from stackctl.cache import Cache, disk_error
from stackctl.compose.digest import content_sha256
from stackctl.compose.model import Composition, Step
from stackctl.compose.plan import WHOLE, Selection, select
from stackctl.compose.sources import PatchFile, PinnedPull, Source, set_sources
from stackctl.errors import PinError, StackctlError
from stackctl.git.objects import COMMITTER, encode_commit
from stackctl.model.canonical import canonical_json
from stackctl.model.ids import CommitId, Sha256, TreeId
from stackctl.model.series import PatchSet, Series
from stackctl.progress import SILENT, Progress

if TYPE_CHECKING:
    from stackctl.compose.resolutions import Resolutions
    from stackctl.git.apply import Workspace
    from stackctl.git.command import HermeticGit
    from stackctl.git.patchtext.model import Patch

RULES = 2
"""Version of the rules by which steps are made; part of every remembered step's key."""


@dataclass(frozen=True, slots=True)
class Options:
    """How to compose.

    Attributes:
        commits: Make a commit per step; without, only the final tree.
        offline: Never use the network.
        patch_ids: Compute each step's patch id.
    """

    commits: bool = True
    offline: bool = False
    patch_ids: bool = True


def commit_of_patch(patch: "Patch", tree: TreeId, parent: CommitId) -> bytes:
    """Return the commit object's content for a patch.

    Author, author date and message are the patch's own; the committer is fixed and the
    committer date is the author's, so that the commit is the same everywhere.

    Args:
        patch: The patch.
        tree: Hex id of the tree after it.
        parent: Hex id of the commit before it.
    """
    author = patch.author
    when = b"%d %s" % (author.seconds, author.zone)
    return encode_commit(
        tree,
        (parent,),
        b"%s <%s> %s" % (author.name, author.email, when),
        b"%s %s" % (COMMITTER, when),
        patch.message,
    )


def _first_key(base: ResolvedBase) -> bytes:
    return sha256(f"compose/{RULES} {base.commit} {base.tree}".encode()).digest()


def _next_key(key: bytes, source: Source) -> bytes:
    return sha256(key + bytes.fromhex(source.sha256)).digest()


class Composer:
    """Composes subsets of one series onto one base.

    Args:
        series: The series.
        cache: Store and facts.
        base: The resolved base.
        options: How to compose.
        progress: Told what is being done.
    """

    def __init__(
        self,
        series: Series,
        cache: Cache,
        base: ResolvedBase,
        options: Options | None = None,
        progress: Progress = SILENT,
    ) -> None:
        self.series = series
        self.cache = cache
        self.base = base
        self.options = options or Options()
        self.progress = progress
        self._resolutions: Resolutions | None = None

    @property
    def resolutions(self) -> "Resolutions":
        """The project's conflict resolutions."""
        if self._resolutions is None:
            from stackctl.compose.resolutions import Resolutions

            self._resolutions = Resolutions(self.series.root)
        return self._resolutions

    def forget_resolutions(self) -> None:
        """Read the conflict resolutions again when they are needed next."""
        self._resolutions = None

    def compose(self, selection: Selection = WHOLE) -> Composition:
        """Compose a subset of the series.

        Args:
            selection: Which sets.

        Returns:
            The composition; its objects are in the cache's store.

        Raises:
            ConflictError: A patch does not apply.
            InputError: A patch cannot be read.
        """
        plan = [
            (patch_set, set_sources(self.series, patch_set))
            for patch_set in select(self.series, selection)
        ]
        composer = self
        if any(isinstance(each, PinnedPull) for _, sources in plan for each in sources):
            # A merge is one of commits: there is no way to make only the tree.
            composer = self if self.options.commits else self._with_commits()
        steps = composer._chain(plan)
        tree = steps[-1].tree if steps else self.base.tree
        digest = content_sha256(self.cache, tree)
        if not self.options.commits:
            steps = tuple(replace(step, commit=None) for step in steps)
            return Composition(self.base, steps, tree, None, digest)
        commit = steps[-1].commit if steps else self.base.commit
        return Composition(self.base, steps, tree, commit, digest)

    def _with_commits(self) -> "Composer":
        return Composer(
            self.series,
            self.cache,
            self.base,
            replace(self.options, commits=True),
            self.progress,
        )

    def _chain(self, plan: Sequence[tuple[PatchSet, list[Source]]]) -> tuple[Step, ...]:
        sources = [source for _, sources in plan for source in sources]
        keys = []
        key = _first_key(self.base)
        for source in sources:
            key = _next_key(key, source)
            keys.append(key)
        known = self._known_prefix(sources, keys)
        made: dict[int, list[Step]] = dict(enumerate(known))
        tree, commit = self.base.tree, self.base.commit
        if known:
            tree, commit = known[-1][-1].tree, known[-1][-1].commit or commit
        if len(known) < len(sources):
            fresh = self.make(sources[len(known) :], tree, commit)
            for number, steps in enumerate(fresh, len(known)):
                made[number] = steps
            if self.options.commits:
                self._remember(keys[len(known) :], fresh, commit)
        return self._in_order(plan, made)

    def _in_order(
        self,
        plan: Sequence[tuple[PatchSet, list[Source]]],
        made: dict[int, list[Step]],
    ) -> tuple[Step, ...]:
        out: list[Step] = []
        number = 0
        for patch_set, sources in plan:
            if patch_set.disposition != "included":
                out.append(self._not_composed(patch_set, out))
            for source in sources:
                out += [replace(step, set=source.set) for step in made[number]]
                number += 1
        return tuple(out)

    def _not_composed(self, patch_set: PatchSet, before: list[Step]) -> Step:
        pull = patch_set.pull
        return Step(
            set=patch_set.name,
            patch=None,
            sha256=None,
            head=pull.head if pull else None,
            strategy=patch_set.strategy,
            disposition="excluded"
            if patch_set.disposition == "excluded"
            else "superseded",
            patch_id=None,
            tree=before[-1].tree if before else self.base.tree,
            commit=before[-1].commit if before else self.base.commit,
        )

    def _known_prefix(
        self, sources: Sequence[Source], keys: Sequence[bytes]
    ) -> list[list[Step]]:
        facts = self.cache.get("step", keys)
        known: list[list[Step]] = []
        onto: str | None = self.base.commit
        for source, key in zip(sources, keys, strict=True):
            if key not in facts:
                break
            try:
                fact = json.loads(facts[key])
            except ValueError:
                break  # damaged: it is derived again
            # With other conflict resolutions, the same sources end elsewhere.
            if fact["onto"] != onto or not self._still_resolved(fact["resolutions"]):
                break
            rows = fact["steps"]
            names = [source.name]
            if len(rows) > 1:
                names = [f"{source.name}#{n}" for n in range(1, len(rows) + 1)]
            known.append(
                [
                    self._recall(source, name, row)
                    for name, row in zip(names, rows, strict=True)
                ]
            )
            onto = known[-1][-1].commit
        # A fact outlives its objects where somebody deleted a part of the cache.
        store = self.cache.store
        while known:
            last = known[-1][-1]
            if last.tree in store and last.commit and last.commit in store:
                break
            known.pop()
        if not self.options.commits:
            known = [[replace(step, commit=None) for step in each] for each in known]
        return known

    def _still_resolved(self, used: dict[str, str]) -> bool:
        return all(
            self.resolutions.digest(name) == digest for name, digest in used.items()
        )

    @staticmethod
    def _recall(source: Source, name: str, row: dict[str, Any]) -> Step:
        pinned = isinstance(source, PinnedPull)
        return Step(
            set=source.set,
            patch=None if pinned else name,
            sha256=None if pinned else Sha256(row["sha256"] or source.sha256),
            head=CommitId(row["head"]) if pinned else None,
            strategy=source.strategy if isinstance(source, PinnedPull) else "apply",
            disposition=row["disposition"],
            patch_id=row["patch_id"],
            tree=TreeId(row["tree"]),
            commit=CommitId(row["commit"]),
            how="cached",
            resolutions=tuple(row.get("resolutions", ())),
        )

    def _remember(
        self, keys: Sequence[bytes], made: list[list[Step]], onto: CommitId
    ) -> None:
        facts = {}
        for key, steps in zip(keys, made, strict=True):
            rows = []
            used: dict[str, str | None] = {}
            for step in steps:
                row: dict[str, object] = {
                    "sha256": step.sha256,
                    "patch_id": step.patch_id,
                    "disposition": step.disposition,
                    "tree": step.tree,
                    "commit": step.commit,
                }
                if step.head is not None:
                    row["head"] = step.head
                if step.resolutions:
                    row["resolutions"] = list(step.resolutions)
                    for name in step.resolutions:
                        used[name] = self.resolutions.digest(name)
                rows.append(row)
            fact = {"steps": rows, "onto": onto, "resolutions": used}
            facts[key] = canonical_json(fact)
            onto = steps[-1].commit or onto
        self.cache.put("step", facts)

    def make(
        self, sources: Sequence[Source], tree: TreeId, commit: CommitId
    ) -> list[list[Step]]:
        """Compose sources onto a commit, remembering nothing.

        Args:
            sources: Patch files and pinned pull requests, in order.
            tree: Hex id of the tree to start from.
            commit: Hex id of its commit.

        Returns:
            The steps of each source. Without commits, only the last step's tree is
            right.

        Raises:
            ConflictError: A patch does not apply, or a pull request does not merge.
        """
        made: list[list[Step]] = []
        for _, group in groupby(sources, type):
            some = list(group)
            pulls = [each for each in some if isinstance(each, PinnedPull)]
            files = [each for each in some if isinstance(each, PatchFile)]
            if pulls:
                steps = self._make_pinned(pulls, tree, commit)
            else:
                steps = self._make_patches(files, tree, commit)
            tree, commit = steps[-1][-1].tree, steps[-1][-1].commit or commit
            made += steps
        return made

    def _make_pinned(
        self, pulls: Sequence[PinnedPull], tree: TreeId, commit: CommitId
    ) -> list[list[Step]]:
        # Costly to import, and most series have only patches.
        from stackctl.compose.context import Context
        from stackctl.compose.pinned import PinnedMaker, with_patch_ids

        context = Context(self.series, self.cache, self.options.offline, self.progress)
        maker = PinnedMaker(context, self.resolutions)
        made = maker.make(pulls, self.base.commit, tree, commit)
        if not self.options.patch_ids:
            return made
        own = dict.fromkeys(
            step.commit for steps in made for step in steps if step.commit is not None
        )
        own.pop(commit, None)
        ids = patch_ids(self.cache, list(own))
        out = []
        before = commit
        for steps in made:
            out.append(with_patch_ids(steps, ids, before))
            before = steps[-1].commit or before
        return out

    def _make_patches(
        self, files: Sequence[PatchFile], tree: TreeId, commit: CommitId
    ) -> list[list[Step]]:
        """Apply patch files; nothing is written where one does not apply."""
        # Not needed where every step is known, and costly to import.
        from stackctl.git.apply import Workspace

        workspace = Workspace(self.cache.store, tree, every_step=self.options.commits)
        made: list[list[Step]] = []
        try:
            for number, file in enumerate(files):
                self.progress.update("compose", number, len(files))
                steps = []
                patches = file.patches(self.cache.store.git)
                for patch in patches:
                    native = self._apply(workspace, file, patch)
                    if self.options.commits:
                        tree = workspace.write_tree()
                        raw = commit_of_patch(patch, tree, commit)
                        commit = workspace.add_commit(raw)
                    # Without commits only the last tree is made.
                    after = tree if self.options.commits else TreeId("")
                    steps.append(self._step(file, patch, len(patches), after, commit))
                    if not native:
                        steps[-1] = replace(steps[-1], how="git")
                made.append(steps)
            if not self.options.commits and files:
                tree = workspace.write_tree()
                made[-1][-1] = replace(made[-1][-1], tree=tree)
            workspace.publish()
        except OSError as error:
            raise disk_error(error, self.cache.folder) from error
        finally:
            workspace.abort()
        self.progress.update("compose", len(files), len(files))
        if self.options.commits and self.options.patch_ids:
            made = self._with_patch_ids(made)
        return made

    @staticmethod
    def _apply(workspace: "Workspace", file: PatchFile, patch: "Patch") -> bool:
        try:
            return workspace.apply(patch)
        except StackctlError as error:
            error.where.setdefault("patch", patch.name)
            file.put_into(error)
            raise

    def _step(
        self,
        file: PatchFile,
        patch: "Patch",
        count: int,
        tree: TreeId,
        commit: CommitId,
    ) -> Step:
        digest = file.sha256
        if count > 1:
            digest = Sha256(sha256(patch.raw).hexdigest())
        return Step(
            set=file.set,
            patch=patch.name,
            sha256=digest,
            head=None,
            strategy="apply",
            disposition="applied",
            patch_id=None,
            tree=tree,
            commit=commit if self.options.commits else None,
        )

    def _with_patch_ids(self, made: list[list[Step]]) -> list[list[Step]]:
        commits = [step.commit for steps in made for step in steps if step.commit]
        ids = patch_ids(self.cache, commits)
        return [
            [replace(step, patch_id=ids[step.commit or ""]) for step in steps]
            for steps in made
        ]


def patch_ids(cache: Cache, commits: Sequence[str]) -> dict[str, str | None]:
    """Return the stable patch id of each commit of the cache's store.

    Args:
        cache: Whose store holds the commits.
        commits: Hex ids.
    """
    return patch_ids_in(cache.store.git, commits)


def patch_ids_in(git: "HermeticGit", commits: Sequence[str]) -> dict[str, str | None]:
    """Return the stable patch id of each commit against its first parent.

    The id of `git patch-id --stable` over `git diff-tree -p --full-index --no-renames`.
    One git process makes all the diffs; the ids are computed here, because git's own
    rules for binary files changed between versions.

    Args:
        git: Runs where the commits are.
        commits: Hex ids.

    Raises:
        PinError: A commit is missing, or it is damaged.
    """
    from stackctl.git.patchtext.patchid import patch_id

    if not commits:
        return {}
    text = git.run(
        "diff-tree",
        "--stdin",
        "--root",
        "-r",
        "-m",
        "--first-parent",
        "-p",
        "--full-index",
        "--no-renames",
        "--no-ext-diff",
        "--no-textconv",
        "--always",
        stdin="".join(f"{commit}\n" for commit in commits).encode(),
    )
    out: dict[str, str | None] = {}
    wanted = {commit.encode() for commit in commits}
    current: bytes | None = None
    lines: list[bytes] = []

    def finish() -> None:
        if current is not None:
            out[current.decode()] = patch_id(b"".join(lines)) or None

    # `bytes.splitlines` would also split at a lone CR within a line.
    for line in BytesIO(text):
        if len(line) == 41 and line[:40] in wanted:
            finish()
            current, lines = line[:40], []
        else:
            lines.append(line)
    finish()
    # git passes over a commit that it cannot read, and calls that a success.
    unread = [commit for commit in commits if commit not in out]
    if unread:
        raise PinError(
            f"git cannot read commit {unread[0]}",
            kind="missing-object",
            hint="run `stackctl cache clean` and compose again",
            where={"commit": unread[0]},
        )
    return out


def compose_series(
    series: Series,
    cache: Cache,
    selection: Selection = WHOLE,
    options: Options | None = None,
    progress: Progress = SILENT,
) -> Composition:
    """Resolve a series' base and compose a subset of it.

    Args:
        series: The series.
        cache: Store and facts.
        selection: Which sets.
        options: How to compose.
        progress: Told what is being done.

    Returns:
        The composition.
    """
    options = options or Options()
    base = resolve_base(
        series.base,
        project=series.root,
        cache=cache,
        offline=options.offline,
        expected_tree=series.base.tree,
        progress=progress,
    )
    return Composer(series, cache, base, options, progress).compose(selection)
