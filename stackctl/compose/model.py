# SPDX-License-Identifier: Apache-2.0
"""The result of composing."""

from dataclasses import dataclass, field

from stackctl.base import ResolvedBase
from stackctl.errors import InternalError
from stackctl.model import lock
from stackctl.model.ids import CommitId, CompositionId, Sha256, TreeId


@dataclass(frozen=True, slots=True)
class Step:
    """One step of a composition: a patch, a merge, or a set that adds nothing.

    Attributes:
        set: Name of the set.
        patch: File name of the patch, `name#n` for the n-th of a file with several;
            None for a step that is no patch file.
        sha256: Digest of the patch's bytes, None for steps from commits.
        head: Pinned commit, None for patches.
        strategy: `apply`, `merge` or `cherry-pick`.
        disposition: What became of it.
        patch_id: Stable patch id, None where the step changes nothing.
        tree: Tree after the step; empty where only the final tree was made.
        commit: Commit after the step, None where commits were not asked for.
        how: `native`, `git` (fell back) or `cached`; not part of the composition.
        resolutions: Files of the conflict resolutions that were used, relative to the
            project; not part of the composition.
    """

    set: str
    patch: str | None
    sha256: Sha256 | None
    head: CommitId | None
    strategy: lock.StepStrategy
    disposition: lock.StepDisposition
    patch_id: str | None
    tree: TreeId
    commit: CommitId | None
    how: str = field(compare=False, default="native")
    resolutions: tuple[str, ...] = field(compare=False, default=())

    def locked(self) -> lock.Step:
        """Return the step as a lock records it."""
        if self.commit is None:
            raise InternalError("a tree without commits has no lock")
        return lock.Step(
            set=self.set,
            patch=self.patch,
            sha256=self.sha256,
            head=self.head,
            strategy=self.strategy,
            disposition=self.disposition,
            patch_id=self.patch_id,
            tree=self.tree,
            commit=self.commit,
        )

    def document(self) -> dict[str, object]:
        """Return the step for the JSON document of `compose`."""
        source = {"head": self.head} if self.head else {"sha256": self.sha256}
        return {
            "set": self.set,
            "patch": self.patch,
            **source,
            "strategy": self.strategy,
            "disposition": self.disposition,
            "patch_id": self.patch_id,
            "tree": self.tree or None,
            "commit": self.commit,
            "how": self.how,
            **({"resolutions": list(self.resolutions)} if self.resolutions else {}),
        }


@dataclass(frozen=True, slots=True)
class Composition:
    """A composed series.

    Attributes:
        base: What it stands on.
        steps: The steps in order.
        tree: The final tree.
        commit: The final commit, None for a tree only.
        content_sha256: Content digest of the final tree.
    """

    base: ResolvedBase
    steps: tuple[Step, ...]
    tree: TreeId
    commit: CommitId | None
    content_sha256: Sha256

    def content(self) -> lock.Content:
        """Return what a lock records of the composition.

        Raises:
            InternalError: It was composed without commits.
        """
        if self.commit is None:
            raise InternalError("a tree without commits has no lock")
        return lock.Content(
            schema=lock.SCHEMA,
            base=lock.LockedBase(
                kind=self.base.kind,
                identity=self.base.identity,
                tree=self.base.tree,
                commit=self.base.commit,
            ),
            steps=tuple(step.locked() for step in self.steps),
            tree=self.tree,
            commit=self.commit,
            content_sha256=self.content_sha256,
        )

    @property
    def composition(self) -> CompositionId | None:
        """The composition's id; None for a tree without commits."""
        if self.commit is None:
            return None
        return lock.composition_id(self.content())

    @property
    def resolutions(self) -> tuple[str, ...]:
        """Files of the conflict resolutions that were used, in order of their names."""
        used = {name for step in self.steps for name in step.resolutions}
        return tuple(sorted(used))

    def document(self) -> dict[str, object]:
        """Return the composition as the JSON document of `compose`."""
        return {
            "composition": self.composition,
            "base": {
                "kind": self.base.kind,
                "identity": self.base.identity,
                "tree": self.base.tree,
                "commit": self.base.commit,
            },
            "steps": [step.document() for step in self.steps],
            "tree": self.tree,
            "commit": self.commit,
            "content_sha256": self.content_sha256,
            "resolutions": list(self.resolutions),
        }
