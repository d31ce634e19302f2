# SPDX-License-Identifier: Apache-2.0
"""Where a base comes from: a PyPI sdist, a git commit, an archive, a folder.

Every form ends as a tree and a commit in the object store. What was resolved once
is remembered under its identity, so that the next run reads two facts and nothing else.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal
from urllib.parse import urlsplit

from stackctl.cache import Cache
from stackctl.errors import InputError, PinError
from stackctl.model.ids import CommitId, Sha256, TreeId
from stackctl.progress import SILENT, Progress

if TYPE_CHECKING:
    from stackctl.model.series import ArchiveBase, Base, GitBase, PypiBase

RULES_VERSION = 1
"""Version of the rules by which files become a tree; another version resolves anew."""

Kind = Literal["pypi", "git", "archive", "path"]


@dataclass(frozen=True, slots=True)
class ResolvedBase:
    """A base as objects of the store.

    Attributes:
        kind: Which form it has.
        identity: What it is, wherever it came from: no path, host or URL.
            `vllm==0.33.0@sha256:<hex>`, `commit:<hex>`, `sha256:<hex>` (an archive,
            with `;strip=N` where N is not 1) or `tree:<hex>` (a folder).
        tree: Its tree.
        commit: Its own commit, or the parentless one that stands for it.
    """

    kind: Kind
    identity: str
    tree: TreeId
    commit: CommitId


def _recall(cache: Cache, identity: str) -> tuple[TreeId, CommitId] | None:
    key = f"{RULES_VERSION}\0{identity}".encode()
    store = cache.store
    value = cache.get("base", [key]).get(key)
    if value is None or len(value) != 40:
        return None
    tree, commit = TreeId(value[:20].hex()), CommitId(value[20:].hex())
    return (tree, commit) if commit in store else None


def _remember(cache: Cache, identity: str, tree: TreeId, commit: CommitId) -> None:
    key = f"{RULES_VERSION}\0{identity}".encode()
    cache.put("base", {key: bytes.fromhex(tree) + bytes.fromhex(commit)})


def resolve_base(
    base: "Base",
    *,
    project: Path,
    cache: Cache,
    offline: bool = False,
    expected_tree: TreeId | None,
    history: bool = False,
    progress: Progress = SILENT,
) -> ResolvedBase:
    """Bring a base into the store and return its tree and commit.

    Args:
        base: What the series names.
        project: The project folder, from which relative paths count.
        cache: Takes downloads and objects.
        offline: Use the cache and this machine only.
        expected_tree: Tree that the base must have; None where none is pinned.
        history: For a git base: bring its ancestors too, not only its files.
        progress: Told what takes long.

    Raises:
        PinError: A digest, the tree or the commit is not what is pinned.
        RemoteError: Something had to be fetched and could not.
        InputError: An archive or folder is malformed, hostile or unreadable.
    """
    from stackctl.model.series import ArchiveBase, GitBase, PypiBase

    if isinstance(base, PypiBase):
        resolved = _pypi(base, cache, offline, progress)
    elif isinstance(base, ArchiveBase):
        resolved = _archive(base, project, cache, offline, progress)
    elif isinstance(base, GitBase):
        resolved = _git(base, project, cache, offline, history, progress)
    else:
        from stackctl.base.path import import_path

        tree, commit = import_path(
            project / Path(base.path).expanduser(), cache=cache, progress=progress
        )
        resolved = ResolvedBase("path", f"tree:{tree}", tree, commit)
    if expected_tree is not None and resolved.tree != expected_tree:
        raise PinError(
            f"the base's tree is not the pinned one: expected {expected_tree}, got "
            f"{resolved.tree}",
            kind="wrong-tree",
            hint=f"the base is {resolved.identity}; correct the pin if that is the "
            "one you mean",
            where={"key": "base.tree"},
        )
    return resolved


def _pypi(
    base: "PypiBase", cache: Cache, offline: bool, progress: Progress
) -> ResolvedBase:
    # Not from `pypi`: that module's imports cost more than a cached base does.
    name, _, version = (part.strip() for part in base.pypi.partition("=="))
    normal = "-".join(name.lower().replace("_", "-").replace(".", "-").split("-"))
    while "--" in normal:
        normal = normal.replace("--", "-")
    identity = f"{normal}=={version}@sha256:{base.sha256}"

    def fetch() -> tuple[Path, str]:
        from stackctl.base.pypi import fetch_distribution

        path = fetch_distribution(
            base.pypi, base.sha256, cache=cache, offline=offline, progress=progress
        )
        return path, f"the sdist of {base.pypi}"

    found = _imported(identity, base.sha256, fetch, 1, cache, progress)
    return ResolvedBase("pypi", identity, *found)


def _imported(
    identity: str,
    digest: Sha256,
    fetch: Callable[[], tuple[Path, str]],
    strip: int,
    cache: Cache,
    progress: Progress,
) -> tuple[TreeId, CommitId]:
    """Return what an archive became; it is fetched and imported once, by one of many.

    Args:
        identity: Identity of the base.
        digest: The archive's SHA-256.
        fetch: Gets the archive; returns where it lies and what messages call it.
        strip: Leading folders that its paths lose.
        cache: Takes the objects, and remembers.
        progress: Told what takes long.
    """
    found = _recall(cache, identity)
    if found is None:
        with cache.lock(f"base-{digest}"):
            found = _recall(cache, identity)
            if found is None:
                from stackctl.base.archive import import_archive

                path, label = fetch()
                found = import_archive(
                    path,
                    digest,
                    strip=strip,
                    cache=cache,
                    label=label,
                    progress=progress,
                )
                _remember(cache, identity, *found)
    return found


def _archive(
    base: "ArchiveBase",
    project: Path,
    cache: Cache,
    offline: bool,
    progress: Progress,
) -> ResolvedBase:
    identity = f"sha256:{base.sha256}"
    if base.strip != 1:
        identity += f";strip={base.strip}"

    def fetch() -> tuple[Path, str]:
        return _archive_file(base, project, cache, offline, progress)

    found = _imported(identity, base.sha256, fetch, base.strip, cache, progress)
    return ResolvedBase("archive", identity, *found)


def _archive_file(
    base: "ArchiveBase",
    project: Path,
    cache: Cache,
    offline: bool,
    progress: Progress,
) -> tuple[Path, str]:
    if "://" not in base.archive:
        return project / Path(base.archive).expanduser(), base.archive
    from stackctl.base.index import local_path
    from stackctl.base.pipconf import redact
    from stackctl.base.pypi import fetch_url

    label = redact(base.archive)
    local = local_path(base.archive)
    if local is not None:
        return local, label
    if urlsplit(base.archive).scheme not in ("http", "https"):
        raise InputError(
            f"{label}: an archive's URL must be https:, http: or file:",
            kind="bad-url",
            where={"key": "base.archive"},
        )
    path = fetch_url(
        base.archive, base.sha256, cache=cache, offline=offline, progress=progress
    )
    return path, label


def _git(
    base: "GitBase",
    project: Path,
    cache: Cache,
    offline: bool,
    history: bool,
    progress: Progress,
) -> ResolvedBase:
    identity = f"commit:{base.commit}"
    found = None if history else _recall(cache, identity)
    if found is None:
        from stackctl.base.git import fetch_commit

        fetch_commit(
            base.git,
            base.commit,
            cache=cache,
            project=project,
            history=history,
            offline=offline,
            progress=progress,
        )
        found = TreeId(cache.store.commit_tree(base.commit)), base.commit
        _remember(cache, identity, *found)
    return ResolvedBase("git", identity, *found)
