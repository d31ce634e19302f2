# SPDX-License-Identifier: Apache-2.0
"""Branches on GitHub: a scratch repository that fetches, makes commits and pushes.

It sees the objects of the cache's store and keeps what it fetches or makes to itself.
The user's git configuration has no say: it could rewrite URLs or add options to a push.
The token is in a file that only git's own credential helper reads, by its name.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final
from urllib.parse import quote, urlsplit

from stackctl.base.pipconf import redact
from stackctl.compose.compose import patch_ids_in
from stackctl.errors import PinError, RemoteError, StackctlError
from stackctl.git.command import FETCH, HermeticGit
from stackctl.git.merge import MergeSpace, read_commit
from stackctl.git.objects import COMMIT, COMMITTER
from stackctl.git.patchtext.patchid import patch_id
from stackctl.git.store import Store, write_loose
from stackctl.github.actions import Push
from stackctl.github.endpoint import Patience
from stackctl.github.model import Head
from stackctl.github.token import RIGHTS, Token
from stackctl.model.ids import CommitId
from stackctl.scratch import scratch_folder

USER: Final = "x-access-token"
"""User name that goes with a token."""

_ATTEMPTS: Final = 5
_BUSY: Final = re.compile(
    rb"returned error: (?:429|5\d\d)|RPC failed|HTTP/?2? (?:429|5\d\d)|timed out"
    rb"|Connection (?:reset|refused)|Failed to connect|Could not resolve host"
    rb"|unexpected disconnect|remote end hung up|Empty reply from server"
    rb"|expected flush after ref listing|early EOF|transfer closed"
)
_NOT_ALLOWED: Final = re.compile(
    rb"returned error: (?:401|403)|Authentication failed|could not read Username"
    rb"|Permission (?:to \S+ )?denied|Write access to repository not granted"
)
_NOT_FOUND: Final = re.compile(rb"not found|does not exist|returned error: 404")
_MISSING: Final = re.compile(
    rb"not our ref|unadvertised object|couldn't find remote ref"
)


class Remote:
    """A repository on GitHub, seen by git.

    Args:
        folder: An empty scratch folder of mode 0700.
        store: The cache's store, which is only read.
        url: Where to fetch from and push to.
        token: Token for https.
        patience: How long to wait.
    """

    def __init__(
        self, folder: Path, store: Store, url: str, token: Token, patience: Patience
    ) -> None:
        self.url = url
        self.patience = patience
        self._token = token
        space = MergeSpace(folder, [store.git_dir])
        self.store = space.store
        self._objects = space.objects
        self._options = ["-c", "credential.helper="]
        parts = urlsplit(url)
        if parts.scheme in ("http", "https") and parts.username is None:
            file = folder / "credentials"
            secret = quote(token.reveal(), safe="")
            file.touch(0o600)
            file.write_text(f"{parts.scheme}://{USER}:{secret}@{parts.netloc}\n")
            helper = f"store --file={_shell(str(file))}"
            self._options += ["-c", f"credential.helper={helper}"]
        self._git = HermeticGit(
            self.store.git_dir,
            network=True,
            env={
                "GIT_ASKPASS": "",
                "GIT_CONFIG_GLOBAL": "/dev/null",
                "GIT_CONFIG_NOSYSTEM": "1",
                "SSH_ASKPASS": "",
            },
        )

    # -- reading

    def have(self, commits: Sequence[CommitId]) -> None:
        """Tell the server what is here already, when something is fetched.

        Args:
            commits: Commits of the store.
        """
        lines = "".join(f"update refs/have/{each} {each}\n" for each in commits)
        self.store.git.run("update-ref", "--stdin", stdin=lines.encode())

    def fetch(self, commits: Sequence[CommitId]) -> None:
        """Bring commits with what they stand on, as far as it is not here.

        Args:
            commits: The commits; all are heads of branches, or reachable from them.

        Raises:
            RemoteError: They cannot be had.
        """
        missing = [each for each in dict.fromkeys(commits) if each not in self.store]
        if not missing:
            return
        status, out, err = self._run(*FETCH, "--", self.url, *missing)
        if status:
            raise self._error("fetch", out, err)
        self.store.refresh()

    def branches(self, names: Sequence[str]) -> dict[str, CommitId]:
        """Ask where branches are.

        Args:
            names: Their names.
        """
        refs = [f"refs/heads/{name}" for name in names]
        status, out, err = self._run("ls-remote", "--quiet", "--", self.url, *refs)
        if status:
            raise self._error("ls-remote", out, err)
        found = {}
        for line in out.decode("utf-8", "surrogateescape").splitlines():
            oid, _, name = line.partition("\t")
            found[name.removeprefix("refs/heads/")] = CommitId(oid)
        return {name: found[name] for name in names if name in found}

    def head(
        self,
        commit: CommitId,
        bases: Sequence[CommitId],
        others: Sequence[CommitId],
    ) -> Head:
        """Return what git knows about a branch's commit.

        Args:
            commit: The commit; it is here.
            bases: Commits whose history is not the stack's, the base first.
            others: Commits that it may have been made on.
        """
        git = self.store.git
        known = [each for each in bases if each in self.store]
        outside = [f"^{each}" for each in known]
        # A landing may contain what the branch was made on: only the base is left out.
        contains = set(git.text("rev-list", commit, *outside[:1]).split())
        for base in known:
            if not git.call("merge-base", "--is-ancestor", base, commit)[0]:
                contains.add(base)
        facts = read_commit(self.store.commit(bytes.fromhex(commit)))
        # What it was made on is the nearest of those that it contains.
        below: CommitId | None = None
        least = -1
        for other in dict.fromkeys((*others, *known)):
            if other == commit or other not in contains:
                continue
            count = int(
                git.text("rev-list", "--count", commit, f"^{other}", *outside[:1])
            )
            if least < 0 or count < least:
                below, least = other, count
        # What is below is judged where it is.
        if below is not None:
            outside.append(f"^{below}")
        line = git.text("rev-list", "--first-parent", commit, *outside).split()
        foreign = []
        for oid in line:
            each = read_commit(self.store.commit(bytes.fromhex(oid)))
            ours = each.committer.startswith(COMMITTER + b" ")
            if not ours and len(each.parents) < 2:
                foreign.append(oid)
        shown = None if below is None else self.change(below, commit)
        return Head(
            commit, facts.tree, frozenset(contains), tuple(foreign), shown, below
        )

    def lend(self, commit: CommitId, without: Sequence[CommitId], to: Store) -> None:
        """Copy a commit with what it stands on into the cache's store.

        Args:
            commit: The commit; it is here.
            without: Commits of the store, whose history is not copied again.
            to: The cache's store.
        """
        if commit in to:
            return
        lines = "".join(f"{each}\n" for each in (commit, *(f"^{w}" for w in without)))
        pack = self.store.git.run(
            "pack-objects", "--revs", "--stdout", "--quiet", stdin=lines.encode()
        )
        to.git.run("index-pack", "--stdin", stdin=pack)
        to.refresh()

    def change(self, before: str, after: str) -> str | None:
        """Return the patch id of all that is different between two commits or trees.

        Args:
            before: Hex id.
            after: Hex id.
        """
        diff = self.store.git.run(
            "diff-tree",
            "-r",
            "-p",
            "--full-index",
            "--no-renames",
            "--no-ext-diff",
            "--no-textconv",
            before,
            after,
        )
        return patch_id(diff) if diff else None

    def taken(self, start: CommitId, tip: CommitId) -> dict[str, CommitId]:
        """Return the patch ids of a branch's commits, and the commits.

        Args:
            start: Where to begin; it is here.
            tip: The branch's commit; it is here.
        """
        git = self.store.git
        line = git.text("rev-list", "--first-parent", tip, f"^{start}").split()
        found = patch_ids_in(git, line)
        # The oldest of several is the one that took it.
        return {
            found[commit] or "": CommitId(commit)
            for commit in line
            if found[commit] is not None
        }

    # -- writing

    def add(self, objects: Mapping[CommitId, bytes]) -> None:
        """Write commits.

        Args:
            objects: Their bytes by their ids.
        """
        for commit, raw in objects.items():
            if commit not in self.store:
                write_loose(self._objects, bytes.fromhex(commit), COMMIT, raw)

    def push(self, pushes: Sequence[Push]) -> None:
        """Move branches, all or none, each only from where it was seen.

        Args:
            pushes: What to push.

        Raises:
            PinError: A branch has moved since it was seen.
            RemoteError: The server refuses, or cannot be reached.
        """
        leases = [
            f"--force-with-lease=refs/heads/{p.branch}:{p.old or ''}" for p in pushes
        ]
        specs = [f"{p.new}:refs/heads/{p.branch}" for p in pushes]
        self._change(leases, specs, {p.branch: p.new for p in pushes})

    def delete(self, branch: str, old: CommitId) -> None:
        """Delete a branch, only where it still is what it was.

        Args:
            branch: Its name.
            old: Its commit.

        Raises:
            PinError: It has moved since it was seen.
            RemoteError: The server refuses, or cannot be reached.
        """
        lease = f"--force-with-lease=refs/heads/{branch}:{old}"
        self._change([lease], [f":refs/heads/{branch}"], {branch: None})

    def _change(
        self,
        leases: Sequence[str],
        specs: Sequence[str],
        wanted: Mapping[str, CommitId | None],
    ) -> None:
        status, out, err = self._run(
            "push",
            "--porcelain",
            "--atomic",
            "--no-verify",
            "--no-signed",
            "--no-follow-tags",
            "--recurse-submodules=no",
            *leases,
            "--",
            self.url,
            *specs,
        )
        if not status:
            return
        if not _NOT_ALLOWED.search(err):
            # It may have happened although the answer was lost, and was sent again.
            try:
                there = self.branches(list(wanted))
            except StackctlError:
                there = {}
            else:
                if all(there.get(name) == oid for name, oid in wanted.items()):
                    return
        for line in out.decode("utf-8", "replace").splitlines():
            flag, _, rest = line.partition("\t")
            if flag.strip() == "!" and "(atomic" not in rest:
                self._rejected(rest, err)
        raise self._error("push", out, err)

    def _rejected(self, line: str, err: bytes) -> None:
        ref, _, reason = line.partition("\t")
        branch = ref.partition(":")[2].removeprefix("refs/heads/")
        if "stale info" in reason or "fetch first" in reason:
            raise PinError(
                f"{branch} has moved since it was looked at; nothing was pushed",
                kind="moved-head",
                hint="run the command again, and look at its plan first: --dry-run",
                where={"branch": branch},
            )
        said = [
            text.removeprefix("remote: ").strip()
            for text in err.decode("utf-8", "replace").splitlines()
            if text.startswith("remote: ")
        ]
        why = "; ".join([reason.strip(), *[text for text in said if text]])
        hint = "check the repository's branch protection and rulesets, and `prefix` in "
        hint += "[github]; nothing was pushed"
        if "workflow" in why:
            hint = "the token also needs Workflows: write (classic tokens: the scope "
            hint += "`workflow`); nothing was pushed"
        raise RemoteError(
            self._token.hide(f"GitHub refuses the push to {branch}: {why}"),
            kind="push-refused",
            hint=hint,
            where={"branch": branch},
        )

    def _run(self, *args: str) -> tuple[int, bytes, bytes]:
        for attempt in range(_ATTEMPTS):
            status, out, err = self._git.call(*self._options, *args)
            if not status or not _BUSY.search(err) or b"\n!\t" in b"\n" + out:
                break
            if attempt + 1 < _ATTEMPTS:
                self.patience.wait(
                    2.0**attempt, "git does not get through", "unreachable"
                )
        return status, out, err

    def _error(self, verb: str, out: bytes, err: bytes) -> RemoteError:
        text = self._token.hide(err.decode("utf-8", "replace").strip())
        text = re.sub(r"(?<=://)[^/@\s']*@", "", text)
        label = redact(self.url)
        kind, hint = "unreachable", "run the same command again later"
        if _NOT_ALLOWED.search(err):
            kind, hint = "not-allowed", RIGHTS
        elif _MISSING.search(err):
            kind, hint = "moved-head", "a branch has moved: run the command again"
        elif _NOT_FOUND.search(err):
            kind, hint = "not-found", f"check `repo` and `push` in [github]; {RIGHTS}"
        return RemoteError(
            f"{label}: git {verb} failed: {text}",
            kind=kind,
            hint=hint,
            where={"url": label},
        )


def _shell(path: str) -> str:
    return "'" + path.replace("'", "'\\''") + "'"


@contextmanager
def open_remote(
    store: Store, url: str, token: Token, patience: Patience
) -> Iterator[Remote]:
    """Open a repository on GitHub, in a scratch folder of the store.

    Args:
        store: The cache's store.
        url: Where to fetch from and push to.
        token: Token for https.
        patience: How long to wait.

    Yields:
        The repository; the folder and the file with the token are removed afterwards.
    """
    with scratch_folder(store.git_dir / "scratch") as folder:
        yield Remote(folder, store, url, token, patience)
