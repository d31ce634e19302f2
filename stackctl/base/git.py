# SPDX-License-Identifier: Apache-2.0
"""A commit of a git repository as a base, fetched with the least that is needed.

Without history that is one commit and its files (`--depth=1`, by id). The store then
is a shallow repository: git keeps the list of cut commits in the file `shallow`, under
a lock file of its own that it does not wait for. So fetches into one store take turns.
"""

import os
import re
from collections.abc import Sequence
from pathlib import Path

from stackctl.base.pipconf import redact
from stackctl.base.web import offline_error
from stackctl.cache import Cache
from stackctl.errors import InputError, PinError, RemoteError
from stackctl.fsutil import write_atomic
from stackctl.git.command import DAMAGED, FETCH, DamagedObjectError, HermeticGit
from stackctl.git.judge import check_tree
from stackctl.git.objects import commit_tree_of
from stackctl.git.store import Store
from stackctl.model.ids import CommitId
from stackctl.progress import SILENT, Progress

_ALL = "2147483647"
"""What git takes for a depth without end; it also completes what was cut before."""

_NO_SUCH_COMMIT = re.compile(
    rb"not our ref|unadvertised object|couldn't find remote ref|no such ref"
    rb"|dumb http transport does not support"
)
_SCP = re.compile(r"[^/]+:")


def repository(git: str, project: Path) -> tuple[str, bool]:
    """Return what git is to fetch from, and whether it lies on this machine.

    Args:
        git: URL, `host:path`, or a path.
        project: The folder from which a relative path counts.
    """
    if git.startswith("file://"):
        return git, True
    if "://" in git or _SCP.match(git):
        return git, False
    return str((project / Path(git).expanduser()).absolute()), True


def _fetcher(store: Store, local: bool) -> HermeticGit:
    """Return git for fetching: with the user's own access to remotes, else closed.

    A repository of this machine is only read, by id, so whose it is does not matter;
    git's question about that is answered in a file, since the option that would answer
    it does not reach the process that serves the fetch.
    """
    if not local:
        return HermeticGit(store.git_dir, network=True)
    trust = store.git_dir / "local-fetch.config"
    if not trust.exists():
        write_atomic(trust, b"[safe]\n\tdirectory = *\n")
    return HermeticGit(store.git_dir, env={"GIT_CONFIG_GLOBAL": str(trust)})


def _fetch(git: HermeticGit, *args: str) -> tuple[int, bytes]:
    status, _, err = git.call(
        "-c",
        "fetch.unpackLimit=1",
        "-c",
        "fetch.fsckObjects=false",
        *FETCH,
        *args,
    )
    return status, err


def _is_complete(store: Store, commit: CommitId, *, history: bool) -> bool:
    """Return whether a commit is there with all its files (and all its ancestors)."""
    if store.find_commit(commit) is None:
        return False
    status, out, _ = store.git.call(
        "rev-list", "--objects", "--missing=print", "--no-walk", commit
    )
    if status or re.search(rb"^\?", out, re.MULTILINE):
        return False
    if not history:
        return True
    try:
        cut = set((store.git_dir / "shallow").read_bytes().split())
    except FileNotFoundError:
        cut = set()
    status, out, _ = store.git.call("rev-list", commit)
    return not status and cut.isdisjoint(out.split())


def fetch_commit(
    url: str,
    commit: CommitId,
    *,
    cache: Cache,
    project: Path,
    history: bool = False,
    ref: str | None = None,
    offline: bool = False,
    progress: Progress = SILENT,
) -> None:
    """Bring a commit and its files into the cache's store.

    Args:
        url: Where it is: URL, `host:path`, or a path.
        commit: The commit.
        cache: The cache whose store takes it.
        project: The folder from which a relative path counts.
        history: Bring all its ancestors too.
        ref: A ref that contains it, asked for where the server refuses ids; without
            it, the refs that name the commit, then all branches and tags.
        offline: Do not use the network.
        progress: Told that a fetch begins.

    Raises:
        PinError: The repository does not have it, or it is no commit.
        RemoteError: The repository cannot be reached.
        InputError: Its tree is not one that git would write.
    """
    store = cache.store
    fact = bytes.fromhex(commit)
    kind = "git-history" if history else "git-files"
    if cache.get(kind, [fact]) and commit in store:
        return
    source, local = repository(url, project)
    label = redact(source)
    # Not looked at outside of the lock: git could be in the middle of a fetch.
    with cache.lock("git-fetch"):
        if not _is_complete(store, commit, history=history):
            if offline and not local:
                raise offline_error(f"commit {commit} of {label}", {"commit": commit})
            store.remove_fetch_remains()
            progress.note(f"fetching {commit} from {label}")
            _bring(store, source, label, commit, history, ref, local)
        found = store.find(fact)
        assert found is not None
        try:
            check_tree(store, commit_tree_of(found[1]))
        except InputError as error:
            error.where |= {"commit": commit, "url": label}
            error.message = f"commit {commit} of {label}: {error.message}"
            raise
        cache.put(kind, {fact: b"1"})


def fetch_together(
    url: str,
    commits: Sequence[CommitId],
    *,
    cache: Cache,
    project: Path,
    progress: Progress = SILENT,
) -> None:
    """Try to bring several commits with their history in one connection.

    What does not come is no error here: `fetch_commit` asks for each once more, finds
    other ways, and says what is wrong.

    Args:
        url: Where they are: URL, `host:path`, or a path.
        commits: The commits.
        cache: The cache whose store takes them.
        project: The folder from which a relative path counts.
        progress: Told that a fetch begins.
    """
    known = cache.get("git-history", [bytes.fromhex(commit) for commit in commits])
    missing = [commit for commit in commits if bytes.fromhex(commit) not in known]
    if len(missing) < 2:
        return
    source, _ = repository(url, project)
    with cache.lock("git-fetch"):
        cache.store.remove_fetch_remains()
        progress.note(f"fetching {len(missing)} commits from {redact(source)}")
        git = HermeticGit(cache.store.git_dir, network=True)
        _fetch(git, _depth(True), "--", source, *missing)


def list_refs(git: str, names: Sequence[str], project: Path) -> dict[str, CommitId]:
    """Ask a repository where some of its refs point.

    Args:
        git: Where it is: URL, `host:path`, or a path.
        names: Full names of refs.
        project: The folder from which a relative path counts.

    Returns:
        The commits of those refs that exist.

    Raises:
        RemoteError: The repository cannot be reached.
    """
    source, _ = repository(git, project)
    status, out, err = HermeticGit(network=True).call(
        "ls-remote", "--quiet", "--", source, *names
    )
    if status:
        raise _unreachable(redact(source), source, err)
    wanted = set(names)
    found = {}
    for line in out.decode("utf-8", "surrogateescape").splitlines():
        oid, _, name = line.partition("\t")
        if name in wanted:
            found[name] = CommitId(oid)
    return found


# A repository that misses objects, or a store of ours whose damage hides them.
_INCOMPLETE = b"did not send all necessary objects"


def _bring(
    store: Store,
    source: str,
    label: str,
    commit: CommitId,
    history: bool,
    ref: str | None,
    local: bool,
) -> None:
    git = _fetcher(store, local)
    status, err = _fetch(git, _depth(history), "--", source, commit)
    if not status and _is_complete(store, commit, history=history):
        return
    ours = DAMAGED.search(err) and os.fsencode(store.git_dir) in err
    if status and (ours or _INCOMPLETE in err):
        raise DamagedObjectError(("fetch", label), status, err, store.git_dir)
    if status and not _NO_SUCH_COMMIT.search(err):
        raise _unreachable(label, source, err)
    # Servers without a program behind them can only give whole histories.
    dumb = b"dumb http" in err
    for refs, whole in _other_ways(git, source, label, commit, history, ref):
        options = [] if dumb else [_depth(whole)]
        status, err = _fetch(git, *options, "--", source, *refs)
        if not status and _is_complete(store, commit, history=history):
            return
    raise PinError(
        f"commit {commit} is not in {label}",
        kind="missing-commit",
        hint="bring it from a repository that has it: git --git-dir="
        f"{store.git_dir} fetch --depth=1 URL {commit}",
        where={"commit": commit, "url": label},
    )


def _depth(history: bool) -> str:
    return f"--depth={_ALL if history else 1}"


def _other_ways(
    git: HermeticGit,
    source: str,
    label: str,
    commit: CommitId,
    history: bool,
    ref: str | None,
) -> list[tuple[list[str], bool]]:
    """Return what to fetch where the server refuses ids, cheapest first.

    Returns:
        Lists of refs, and whether their whole history is needed.
    """
    status, out, err = git.call("ls-remote", "--quiet", "--", source)
    if status:
        raise _unreachable(label, source, err)
    ways: list[tuple[list[str], bool]] = []
    named, branches = [], []
    for line in out.decode("utf-8", "surrogateescape").splitlines():
        oid, _, name = line.partition("\t")
        if name == "HEAD" or name.endswith("^{}"):
            if oid == commit and name.endswith("^{}"):
                named.append(name.removesuffix("^{}"))
            continue
        if oid == commit:
            named.append(name)
        if name.startswith(("refs/heads/", "refs/tags/")):
            branches.append(name)
    if named:
        ways.append((named[:1], history))
    if ref is not None:
        ways.append(([ref], True))
    if branches:
        ways.append((branches, True))
    return ways


def _unreachable(label: str, source: str, err: bytes) -> RemoteError:
    text = err.decode("utf-8", "replace").replace(source, label).strip()
    # git quotes the URL it ended at, which may differ from the one it was given.
    text = re.sub(r"(?<=://)[^/@\s']*@", "", text)
    return RemoteError(
        f"{label}: git cannot fetch: {text}",
        kind="unreachable",
        hint="check the URL, the network and your git credentials (`git ls-remote` "
        "must work without asking)",
        where={"url": label},
    )
