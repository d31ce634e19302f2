# SPDX-License-Identifier: Apache-2.0
"""The releases before: what their tags carried, newest last."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from stackctl.errors import InputError, StackctlError
from stackctl.model.ids import CommitId
from stackctl.model.lock import Content, parse_lock
from stackctl.model.series import parse_series
from stackctl.model.toml import decode
from stackctl.project import LOCK_FILE, SERIES_FILE
from stackctl.release.fragments import FOLDER, fragment_id
from stackctl.release.message import REF
from stackctl.release.proof import Proof, Repository


@dataclass(frozen=True, slots=True)
class Release:
    """An earlier release of a series.

    Attributes:
        tag: Name of its tag.
        proof: The commit that proves it.
        parents: The proofs before it.
        content: What it composed.
        fragments: Bytes of its change fragments, by id.
    """

    tag: str
    proof: CommitId
    parents: tuple[CommitId, ...]
    content: Content
    fragments: dict[str, bytes]


@dataclass(frozen=True, slots=True)
class Earlier:
    """The releases of a series that a repository has.

    Attributes:
        releases: The releases, each after those that it stands on.
        problems: Tags whose proof does not hold, in words.
    """

    releases: tuple[Release, ...] = ()
    problems: tuple[str, ...] = ()

    @property
    def last(self) -> Release | None:
        """The newest release."""
        return self.releases[-1] if self.releases else None

    @property
    def fragments(self) -> dict[str, tuple[str, bytes]]:
        """The first release that carried a fragment, and its bytes, by id."""
        found: dict[str, tuple[str, bytes]] = {}
        for release in self.releases:
            for name, data in release.fragments.items():
                found.setdefault(name, (release.tag, data))
        return found

    def heads(self) -> tuple[CommitId, ...]:
        """Return the proofs that no other release stands on, in order."""
        below = {parent for release in self.releases for parent in release.parents}
        return tuple(r.proof for r in self.releases if r.proof not in below)

    def before(self, parents: Sequence[CommitId]) -> "Earlier":
        """Return only the releases that some proofs stand on.

        Args:
            parents: Proofs.
        """
        known = {release.proof: release for release in self.releases}
        wanted = set(parents)
        queue = list(parents)
        while queue:
            release = known.get(queue.pop())
            for parent in release.parents if release else ():
                if parent not in wanted:
                    wanted.add(parent)
                    queue.append(parent)
        return Earlier(tuple(r for r in self.releases if r.proof in wanted))


def carried_fragments(proof: Proof) -> dict[str, bytes]:
    """Return the bytes of the change fragments of a proof, by id."""
    found = {}
    for path, data in proof.below(FOLDER).items():
        name = fragment_id(path.removeprefix(FOLDER + "/"))
        if name is not None:
            found[name] = data
    return found


def _read(repository: Repository, tag: str, series: str) -> Release | None:
    """Read a release, None where it is one of another series."""
    found = repository.read_tag(tag)
    at = repository.ref(REF + tag)
    if at != found.message.proof:
        raise InputError(
            f"{REF}{tag} is at {at}, but the tag names {found.message.proof}",
            kind="moved-proof",
        )
    return _release(repository.read_proof(found.message.proof), tag, series)


def _release(proof: Proof, tag: str, series: str) -> Release | None:
    """Return what a proof carries of a series, None where that is not a part of it."""
    for name in (SERIES_FILE, LOCK_FILE):
        if name not in proof.files:
            raise InputError(f"the proof of {tag} has no {name}", kind="bad-proof")
    text = decode(proof.files[SERIES_FILE], f"{SERIES_FILE} of {tag}")
    if parse_series(text, file=f"{SERIES_FILE} of {tag}").name != series:
        inner = proof.part(series)
        if SERIES_FILE not in inner.files:
            return None
        return _release(inner, tag, series)
    lock = parse_lock(proof.files[LOCK_FILE], file=f"{LOCK_FILE} of {tag}")
    return Release(
        tag, proof.commit, proof.parents, lock.content, carried_fragments(proof)
    )


def ancestry(
    repository: Repository, parents: Sequence[CommitId], series: str
) -> Earlier:
    """Read the releases that a proof stands on, by its history alone.

    Args:
        repository: Where the proofs lie.
        parents: The proofs that it stands on.
        series: Name of the series.

    Raises:
        PinError: A proof is missing.
        InputError: A proof cannot be read.
    """
    found: dict[CommitId, Release] = {}
    seen: set[CommitId] = set()
    queue = list(parents)
    while queue:
        commit = queue.pop()
        if commit in seen:
            continue
        proof = repository.read_proof(commit)
        seen.add(commit)
        release = _release(proof, proof.tag, series)
        if release is not None:
            found[commit] = release
        queue += proof.parents
    return Earlier(tuple(_in_order(found)))


def earlier_releases(
    repository: Repository | None, series: str, *, without: str | None = None
) -> Earlier:
    """Read the releases of a series.

    Args:
        repository: Where their tags lie; None where there is no repository.
        series: Name of the series.
        without: A tag that is not asked for: the one that is being cut.

    Returns:
        The releases. A tag whose proof does not hold is a problem and not a release.
    """
    if repository is None:
        return Earlier()
    found: dict[CommitId, Release] = {}
    problems: list[str] = []
    for tag in repository.tags_with_proof():
        if tag == without:
            continue
        try:
            release = _read(repository, tag, series)
        except StackctlError as error:
            problems.append(f"release {tag}: {error.message}")
            continue
        if release is not None:
            found[release.proof] = release
    return Earlier(tuple(_in_order(found)), tuple(problems))


def _in_order(found: dict[CommitId, Release]) -> list[Release]:
    """Return releases so that each comes after its parents; ties by name of the tag."""
    order: list[Release] = []
    done: set[CommitId] = set()
    left = sorted(found.values(), key=lambda release: release.tag)
    while left:
        # A commit cannot be its own ancestor, so one of them is always free.
        free = next(
            r for r in left if all(p in done or p not in found for p in r.parents)
        )
        order.append(free)
        done.add(free.proof)
        left.remove(free)
    return order


def repository_or_none(path: Path) -> Repository | None:
    """Return a project's own repository, None where it lies in none."""
    try:
        return Repository(path)
    except InputError:
        return None
