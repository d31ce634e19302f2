# SPDX-License-Identifier: Apache-2.0
"""Reading and writing somebody's repository without obeying its configuration.

A repository's configuration can name programs (ssh, who brings missing objects, who
lists those of alternates) and other addresses. So git works in a folder of ours that
has the objects and the refs of the repository, by links, and none of its settings.
"""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from stackctl.errors import InputError, UsageError
from stackctl.fsutil import read_regular
from stackctl.git.command import FETCH, GitCommandError, HermeticGit
from stackctl.git.merge import object_folders
from stackctl.git.store import Store
from stackctl.model.fields import escape
from stackctl.model.ids import CommitId
from stackctl.scratch import scratch_folder

_MAX_HEAD = 4096
"""Largest `HEAD` that is read: bytes."""

_VIEW_CONFIG = """\
[core]
\trepositoryformatversion = 1
\tbare = true
\tcommitGraph = false
\tlogAllRefUpdates = false
"""


def repository_of(path: Path) -> Path:
    """Return the git directory of a repository.

    Args:
        path: A work tree, a git directory or a bare repository.

    Raises:
        InputError: There is no repository, or one with other object ids.
    """
    # A repository of another user is fine: only objects are read or written, its
    # configuration's commands (hooks, helpers) are switched off.
    status, out, said = (
        HermeticGit().call(
            *("-c", "safe.directory=*", "rev-parse"),
            *("--show-object-format", "--absolute-git-dir"),
            cwd=path,
        )
        if path.is_dir()
        else (1, b"", b"")
    )
    lines = said.decode("utf-8", "replace").splitlines()
    why = lines[0].partition(": ")[2] if lines else ""
    if status and why and not why.startswith("not a git repository"):
        raise InputError(  # there is one, and git cannot use it: a broken `config`
            f"git cannot use the repository {path}: {escape(why, 400)}",
            kind="bad-repository",
            hint="plain git says the same there; mend what it names",
            where={"file": str(path)},
        )
    if status:
        raise InputError(
            f"{path} is not a git repository",
            kind="not-a-repository",
            hint="name a work tree or a git directory; `git init` makes a new one",
            where={"file": str(path)},
        )
    form, _, folder = os.fsdecode(out).partition("\n")
    if form != "sha1":
        raise InputError(
            f"{path} is a repository with {form} object ids; compositions have sha1",
            kind="object-format",
            hint="`git init --object-format=sha1` makes one that fits",
            where={"file": str(path)},
        )
    return Path(folder.removesuffix("\n"))


@contextmanager
def without_settings(store: Store, git_dir: Path) -> Iterator[HermeticGit]:
    """Give git the objects and refs of a repository, without its configuration.

    Args:
        store: Where a scratch folder may be made.
        git_dir: The git directory of the repository.

    Yields:
        A git that sees and writes the repository's objects and refs.
    """
    objects, common = object_folders(git_dir)
    with scratch_folder(store.git_dir / "scratch") as view:
        config = _VIEW_CONFIG
        if (common / "reftable").is_dir():
            config += "[extensions]\n\trefStorage = reftable\n"
        (view / "config").write_text(config)
        # Not a link: git reads a link at this place as the name of a branch.
        (view / "HEAD").write_bytes(read_regular(git_dir / "HEAD", _MAX_HEAD))
        os.symlink(objects, view / "objects")
        for name in ("refs", "packed-refs", "reftable", "shallow", "logs"):
            if (common / name).exists():
                os.symlink((common / name).resolve(), view / name)
        yield HermeticGit(view)


def publish_commit(store: Store, commit: CommitId, repository: Path, ref: str) -> None:
    """Bring a commit and its history into a repository and point a ref to it.

    The ref moves last, in one step, and only forward from what it was when we looked.

    Args:
        store: Holds the commit.
        commit: Hex id of the commit.
        repository: The target repository.
        ref: Full name of the ref.

    Raises:
        UsageError: The ref has no valid full name, is symbolic, or is checked out.
        InputError: The repository cannot be written.
    """
    target = repository_of(repository)
    git = HermeticGit(target)
    if not ref.startswith("refs/") or git.call("check-ref-format", ref)[0]:
        raise UsageError(
            f"{ref} is not the full name of a ref",
            hint="write it like refs/heads/fork",
        )
    status, out, _ = git.call("symbolic-ref", "-q", ref)
    if not status:
        # To write it would be to write that one, which may be checked out.
        named = out.decode("utf-8", "replace").strip()
        raise UsageError(
            f"{ref} is a symbolic ref of {repository}: it stands for {named}",
            kind="symbolic-ref",
            hint="name the ref that is meant",
        )
    trees = git.call("worktree", "list", "--porcelain")[1].decode("utf-8", "replace")
    used = {line[7:] for line in trees.splitlines() if line.startswith("branch ")}
    if git.call("rev-parse", "--is-bare-repository")[1].strip() != b"true":
        used.add(git.call("symbolic-ref", "-q", "HEAD")[1].decode().strip())
    if ref in used:
        raise UsageError(
            f"{ref} is checked out in {repository}",
            kind="checked-out",
            hint="choose another ref, then merge or reset to it",
        )
    before = git.call("rev-parse", "--verify", "-q", ref)[1].decode().strip()
    try:
        bring_commit(store, commit, repository, target)
        git.run("update-ref", "-m", "stackctl compose", ref, commit, before or "0" * 40)
    except GitCommandError as error:
        raise _cannot_publish(repository, ref, error) from error


def bring_commit(
    store: Store, commit: CommitId, repository: Path, target: Path
) -> None:
    """Bring a commit and its history into a repository; no ref moves.

    Args:
        store: Holds the commit.
        commit: Hex id of the commit.
        repository: The target repository, as it was named.
        target: Its git directory.

    Raises:
        InputError: The repository does not have the history of a git base.
        DamagedObjectError: The store is damaged.
        GitCommandError: The repository cannot be written.
    """
    with without_settings(store, target) as view:
        try:
            view.run(
                *shared_option(target),
                *FETCH,
                str(store.git_dir.resolve()),
                commit,
            )
        except GitCommandError:
            # Of the two repositories, git does not say which is the bad one.
            store.git.run("pack-objects", "--revs", "--stdout", "-q",
                          stdin=f"{commit}\n".encode())  # fmt: skip
            raise
    # A base that was fetched by its id came without its history. Where the target has
    # none either, the ref would stand on a commit whose parents are missing.
    if (store.git_dir / "shallow").exists() and HermeticGit(target).call(
        "rev-list", "--quiet", commit
    )[0]:
        raise InputError(
            f"{repository} does not have the history of the base",
            kind="no-history",
            hint="fetch the base's commit into it first, from where it comes from",
            where={"file": str(repository)},
        )


def shared_option(target: Path) -> tuple[str, str]:
    """Return the one setting of a repository that is obeyed: who may read it.

    Args:
        target: Its git directory.
    """
    out = HermeticGit(target).call("config", "--get", "core.sharedRepository")[1]
    return "-c", f"core.sharedRepository={out.decode().strip() or 'umask'}"


_REF_HINTS = (
    ("; cannot create", "refs are files and folders: choose another name"),
    ("reference broken", "look at that ref: `git for-each-ref` says what is wrong"),
    (
        "cannot lock ref",
        "something else wrote it meanwhile; look at it, and run the command again",
    ),
)


def _cannot_publish(repository: Path, what: str, error: GitCommandError) -> InputError:
    reason = error.stderr.decode("utf-8", "replace").strip()
    return InputError(
        f"{repository}: cannot write {what}: {reason}",
        kind="cannot-publish",
        hint=next((hint for word, hint in _REF_HINTS if word in reason), None),
        where={"file": str(repository)},
    )


def publish_together(
    store: Store,
    repository: Path,
    commit: CommitId,
    pack: bytes,
    refs: Mapping[str, str],
) -> None:
    """Bring a commit and a pack of objects into a repository, and make refs at once.

    Objects come first, and nothing refers to them yet. Then all refs appear in one
    transaction, or none does.

    Args:
        store: Holds the commit.
        repository: The target repository.
        commit: Hex id of the commit.
        pack: Bytes of a pack; its objects may need those of the target.
        refs: Objects by the full names of the refs, in the order in which they are
            made. A ref that is there already must have its value.

    Raises:
        InputError: The repository cannot be written, or a ref has another value.
    """
    target = repository_of(repository)
    git = HermeticGit(target)
    names = " and ".join(refs)
    lines = ["start"]
    for name, oid in refs.items():
        status, out, _ = git.call("show-ref", "--verify", "--hash", "--", name)
        same = not status and out.decode("ascii").strip() == oid
        lines.append(f"verify {name} {oid}" if same else f"create {name} {oid}")
    try:
        bring_commit(store, commit, repository, target)
        with without_settings(store, target) as view:
            view.run(*shared_option(target), "index-pack", "--stdin", stdin=pack)
        lines += ["prepare", "commit", ""]
        git.run("update-ref", "--stdin", stdin="\n".join(lines).encode())
    except GitCommandError as error:
        raise _cannot_publish(repository, names, error) from error
