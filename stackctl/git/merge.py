# SPDX-License-Identifier: Apache-2.0
"""Merging commits in memory: git's own merge, no index, no work tree.

The objects come from other repositories through alternates; what a merge makes goes to
a scratch repository, so that nothing is written where it only reads. Many merges are
one process (`git merge-tree --stdin`); that process is not talked to and fro, because
git 2.39 answers only when its input ends.

Attributes decide how a file is merged, and a bare repository has none. They are taken
from the first parent's tree, as a real merge in a work tree of it would see them, by
giving git a folder that holds just the `.gitattributes` files of that tree.
"""

import os
import re
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from stackctl.errors import (
    ConflictError,
    InputError,
    InternalError,
    PinError,
    StackctlError,
)
from stackctl.git.command import (
    DamagedObjectError,
    GitCommandError,
    HermeticGit,
    disk_problem,
    git_version,
)
from stackctl.git.objects import (
    COMMIT,
    COMMITTER,
    MODE_EXEC,
    MODE_FILE,
    MODE_TREE,
    TREE,
    Entry,
    commit_tree_of,
    encode_commit,
    encode_tree,
    index_tree,
    iterate_tree,
    object_id,
)
from stackctl.git.store import Store, create_bare, write_loose
from stackctl.model.ids import CommitId, TreeId
from stackctl.scratch import scratch_folder

MAX_ATTRIBUTES = 100 << 20
"""git ignores larger attribute files: bytes (git's ATTR_MAX_FILE_SIZE)."""

_BUILT_IN = frozenset((b"text", b"union", b"binary"))
_MERGES = re.compile(
    rb"\bmerge\b|\bbinary\b|\bconflict-marker-size\b|^[ \t]*\[attr\]", re.M
)
_DIFFS = re.compile(rb"\bdiff\b|\bbinary\b|^[ \t]*\[attr\]", re.M)
_DRIVER = re.compile(rb"(?<![\w-])merge=(\S+)")
_PLAIN_DRIVER = re.compile(rb"[A-Za-z0-9_.+-]+\Z")

_TRAILER = re.compile(rb"(?:[A-Za-z0-9-]+: |\(cherry picked from commit )[^\n]*\Z")

# Only labels and the graph are needed: nobody reads these commits.
_WHO = COMMITTER + b" 0 +0000"


class Conflict(NamedTuple):
    """One path that a merge could not decide.

    Attributes:
        path: The path.
        base: Entry of the common ancestor, None where it has none.
        ours: Entry of the first parent.
        theirs: Entry of the second.
    """

    path: bytes
    base: Entry | None
    ours: Entry | None
    theirs: Entry | None

    def document(self) -> dict[str, object]:
        """Return the conflict for a JSON document."""
        stages = {"base": self.base, "ours": self.ours, "theirs": self.theirs}
        return {
            "path": self.path.decode("utf-8", "surrogateescape"),
            **{
                name: entry and {"mode": f"{entry.mode:06o}", "blob": entry.oid.hex()}
                for name, entry in stages.items()
            },
        }


@dataclass(frozen=True, slots=True)
class MergeResult:
    """What a merge made.

    Attributes:
        tree: The tree; with conflicts, its undecided files hold conflict markers.
        conflicts: The paths that were not decided, by path.
    """

    tree: TreeId
    conflicts: tuple[Conflict, ...] = ()


class UnrelatedError(PinError):
    """Two commits have no common ancestor."""

    default_kind = "unrelated-histories"


class MissingObjectError(PinError):
    """An object that a merge needs is not there."""

    default_kind = "missing-object"


class MergeCrashError(ConflictError):
    """git itself failed in a merge, by a fault of its own."""

    default_kind = "git-cannot-merge"


class CommitFacts(NamedTuple):
    """What the header of a commit says.

    Attributes:
        tree: Its tree.
        parents: Its parents in order.
        author: Name, address and date, in git's encoding.
        committer: The same of the committer.
        message: The message.
    """

    tree: TreeId
    parents: tuple[CommitId, ...]
    author: bytes
    committer: bytes
    message: bytes

    @property
    def committed(self) -> bytes:
        """Seconds and zone of the committer date."""
        return self.committer.rpartition(b"> ")[2]

    @property
    def authored(self) -> bytes:
        """Seconds and zone of the author date."""
        return self.author.rpartition(b"> ")[2]


def read_commit(raw: bytes) -> CommitFacts:
    """Read the content of a commit object."""
    head, _, message = raw.partition(b"\n\n")
    parents = []
    author = committer = b""
    for line in head.split(b"\n")[1:]:
        key, _, value = line.partition(b" ")
        if key == b"parent":
            parents.append(CommitId(value.decode("ascii")))
        elif key == b"author" and not author:
            author = value
        elif key == b"committer" and not committer:
            committer = value
    tree = TreeId(commit_tree_of(raw))
    return CommitFacts(tree, tuple(parents), author, committer, message)


def picked_message(message: bytes, commit: str) -> bytes:
    """Return a commit message with the trailer of `git cherry-pick -x`.

    Args:
        message: The original message.
        commit: Hex id of the original commit.
    """
    text = message.rstrip(b"\n")
    line = f"(cherry picked from commit {commit})\n".encode()
    last = text.rpartition(b"\n\n")
    block = last[2].split(b"\n") if last[1] else []
    between = b"\n" if block and all(map(_TRAILER.match, block)) else b"\n\n"
    return text + between + line


def merge_commit(
    tree: TreeId, first: CommitId, head: CommitId, committed: bytes, name: str
) -> bytes:
    """Return the content of the commit that a merged pull request becomes.

    Args:
        tree: Tree after the merge.
        first: The composition so far.
        head: The reviewed head.
        committed: Committer date of the head: seconds and zone.
        name: Name of the pull request, for the message.
    """
    who = COMMITTER + b" " + committed
    return encode_commit(
        tree, (first, head), who, who, f"Merge {name} at {head}\n".encode()
    )


def object_folders(git_dir: Path) -> tuple[Path, Path]:
    """Return the object folder of a repository and the folder of its `shallow` file.

    A linked work tree's git directory has neither; both lie in the common one.

    Args:
        git_dir: The git directory.
    """
    common = git_dir
    pointer = git_dir / "commondir"
    if pointer.is_file():
        common = (git_dir / pointer.read_text().strip()).resolve()
    return (common / "objects").resolve(), common


class MergeSpace:
    """A scratch repository that sees the objects of others and merges in memory.

    Args:
        folder: An empty folder, whose content is the caller's to remove.
        sources: Git directories whose objects are seen.
    """

    def __init__(self, folder: Path, sources: Sequence[Path]) -> None:
        self._folder = folder
        git_dir = folder / "merge.git"
        create_bare(git_dir)
        self.objects = git_dir / "objects"
        shallow = []
        alternates = []
        for source in sources:
            objects, common = object_folders(source)
            alternates.append(os.fsencode(objects))
            if (common / "shallow").is_file():
                shallow.append((common / "shallow").read_bytes())
        (self.objects / "info" / "alternates").write_bytes(
            b"".join(path + b"\n" for path in alternates)
        )
        if shallow:
            (git_dir / "shallow").write_bytes(b"".join(shallow))
        self.store = Store(git_dir)
        self.git: HermeticGit = self.store.git
        self._facts: dict[str, CommitFacts] = {}
        self._attributes: dict[bytes, tuple[tuple[bytes, bytes], ...]] = {}
        self._count = 0

    # -- objects

    def commit(self, commit: str) -> CommitFacts:
        """Return what a commit says.

        Args:
            commit: Hex id.

        Raises:
            PinError: It is missing, damaged, or no commit.
        """
        known = self._facts.get(commit)
        if known is None:
            found = self.store.find_commit(commit)
            if found is None:
                raise MissingObjectError(
                    f"commit {commit} is missing", where={"commit": commit}
                )
            if object_id(COMMIT, found) != bytes.fromhex(commit):
                raise PinError(f"commit {commit} is damaged", kind="bad-object")
            known = self._facts[commit] = read_commit(found)
        return known

    def write(self, kind: int, data: bytes) -> bytes:
        """Write an object into the scratch repository; return its raw id."""
        oid = object_id(kind, data)
        write_loose(self.objects, oid, kind, data)
        return oid

    def write_commit(self, raw: bytes) -> CommitId:
        """Write a commit; return its id."""
        return CommitId(self.write(COMMIT, raw).hex())

    # -- attributes

    def attributes(self, tree: str) -> tuple[tuple[bytes, bytes], ...]:
        """Return the `.gitattributes` files of a tree: path and raw blob id.

        Args:
            tree: Hex id.
        """
        return self._attributes_of(bytes.fromhex(tree))

    def _attributes_of(self, tree: bytes) -> tuple[tuple[bytes, bytes], ...]:
        known = self._attributes.get(tree)
        if known is None:
            found: list[tuple[bytes, bytes]] = []
            for name, mode, oid, _ in iterate_tree(self.store.tree(tree)):
                if mode == MODE_TREE:
                    below = self._attributes_of(oid)
                    found += [(name + b"/" + path, blob) for path, blob in below]
                elif name == b".gitattributes" and mode in (MODE_FILE, MODE_EXEC):
                    found.append((name, oid))
            known = self._attributes[tree] = tuple(found)
        return known

    def attribute_key(self, tree: str, *, diff: bool = False) -> tuple[bytes, ...]:
        """Return the attribute files that matter, as one value to group by.

        Args:
            tree: Hex id of the tree that they are taken from.
            diff: Those that change a diff, instead of those that change a merge.
        """
        files = self.attributes(tree)
        wanted = _DIFFS if diff else _MERGES
        if not any(wanted.search(self.store.blob(oid)) for _, oid in files):
            return ()
        return tuple(path + b"\0" + oid for path, oid in files)

    @contextmanager
    def with_attributes(
        self, tree: str, key: tuple[bytes, ...]
    ) -> Iterator[tuple[HermeticGit, Path]]:
        """Give git a work tree that holds the attribute files of a tree and no more.

        Args:
            tree: Hex id of the tree.
            key: What `attribute_key` returned for it.

        Yields:
            A git, and the folder to run it in.
        """
        if not key:
            yield self.git, Path("/")
            return
        self._count += 1
        folder = self._folder / f"attributes-{self._count}"
        for each in key:
            path, _, oid = each.partition(b"\0")
            place = folder / os.fsdecode(path)
            if not place.resolve().is_relative_to(folder.resolve()):
                raise InputError("a tree has a path that leads out of it")
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(self.store.blob(oid))
        try:
            # git 2.41 and later take the tree, earlier ones the files.
            yield (
                HermeticGit(
                    self.store.git_dir, work_tree=folder, env={"GIT_ATTR_SOURCE": tree}
                ),
                folder,
            )
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    # -- merging

    def merge(
        self, pairs: Sequence[tuple[CommitId, CommitId]]
    ) -> list[MergeResult | StackctlError]:
        """Merge pairs of commits with git's default strategy.

        Args:
            pairs: First parent and second parent of each.

        Returns:
            For each pair the result, or why there is none.
        """
        groups: dict[tuple[bytes, ...], list[int]] = {}
        out: list[MergeResult | StackctlError | None] = [None] * len(pairs)
        for number, (ours, _) in enumerate(pairs):
            try:
                key = self.attribute_key(self.commit(ours).tree)
            except StackctlError as error:
                if error.kind == "missing-object":
                    error.hint = "complete the repository: git fetch --refetch"
                out[number] = error
                continue
            groups.setdefault(key, []).append(number)
        for key, numbers in groups.items():
            some = [pairs[number] for number in numbers]
            for number, result in zip(numbers, self._batch(some, key), strict=True):
                out[number] = result
        assert None not in out
        return [each for each in out if each is not None]

    def _batch(
        self, pairs: list[tuple[CommitId, CommitId]], key: tuple[bytes, ...]
    ) -> Sequence[MergeResult | StackctlError]:
        try:
            return self._run(pairs, key)
        except StackctlError as error:
            if len(pairs) == 1:
                return [error]
        # One pair that cannot be merged ends the process: find out which.
        return [each for pair in pairs for each in self._batch([pair], key)]

    def _run(
        self, pairs: list[tuple[CommitId, CommitId]], key: tuple[bytes, ...]
    ) -> list[MergeResult]:
        tree = self.commit(pairs[0][0]).tree
        lines = "".join(f"{ours} {theirs}\n" for ours, theirs in pairs)
        with self.with_attributes(tree, key) as (git, folder):
            drivers = self._drivers(key)
            options = []
            for name in drivers:
                # A driver of that name would have to be installed to be run. It is
                # only missed where git asks for it, and this tells.
                options += ["-c", f"merge.{name}.driver=: >driver-was-needed; exit 1"]
                options += ["-c", f"merge.{name}.name={name}"]
            command = (
                *("-c", "core.fsync=none", *options),
                *("merge-tree", "--write-tree", "--no-messages", "--stdin"),
            )
            status, out, err = git.call(*command, stdin=lines.encode(), cwd=folder)
            if key and (folder / "driver-was-needed").exists():
                raise InputError(
                    "the merge needs a merge driver of the repository's own "
                    f"({', '.join(drivers)}); only text, union and binary are known",
                    kind="merge-driver",
                    hint="the pull request has to be merged where that driver is "
                    "installed; pin the merged commit",
                    where={"commit": pairs[0][1]},
                )
        if status:
            raise self._failure(pairs, status, out, err)
        results = list(_parse(out))
        if len(results) != len(pairs):
            raise InternalError("git merge-tree gave fewer answers than questions")
        return results

    def _drivers(self, key: tuple[bytes, ...]) -> list[str]:
        names = set()
        for each in key:
            oid = each.partition(b"\0")[2]
            for name in _DRIVER.findall(self.store.blob(oid)):
                if name in _BUILT_IN:
                    continue
                if not _PLAIN_DRIVER.match(name):
                    shown = name.decode("utf-8", "backslashreplace")
                    raise InputError(
                        f"a .gitattributes file names the merge driver {shown!r}",
                        kind="merge-driver",
                    )
                names.add(name.decode("ascii"))
        return sorted(names)

    def _failure(
        self,
        pairs: list[tuple[CommitId, CommitId]],
        status: int,
        out: bytes,
        err: bytes,
    ) -> Exception:
        problem = disk_problem(status, err)
        if problem is not None:
            return problem
        text = err.decode("utf-8", "replace").strip()
        ours, theirs = pairs[0]
        where = {"commit": theirs}
        if status < 0 or "BUG:" in text:
            # git 2.39 fails an assertion of its own on some renames, in a work tree as
            # well as here.
            version = ".".join(map(str, git_version()))
            return MergeCrashError(
                f"git {version} cannot merge {theirs}: it fails by itself ({text})",
                hint="another version of git may do it; otherwise have the pull "
                "request rebased, and pin its new head",
                where=where,
            )
        if "unrelated histories" in text:
            hint = (
                "a merge needs commits of one history: pin a base that the pull "
                "request stands on, or take the set by cherry-pick"
            )
            if (self.store.git_dir / "shallow").exists():
                hint = (
                    "the repository is shallow, their common ancestor may be cut off; "
                    "complete it: git fetch --unshallow"
                )
            return UnrelatedError(
                f"{theirs} and {ours} have no common ancestor", hint=hint, where=where
            )
        missing = re.search(
            r"unable to read|could not parse|bad object|bad tree|not a valid object"
            r"|unable to find|missing|cannot read|collecting merge info failed"
            r"|not something we can merge",
            text,
            re.IGNORECASE,
        )
        if missing:
            names = self.missing([theirs, ours])
            shown = ", ".join(names[:5]) or "some"
            return MissingObjectError(
                f"merging {theirs} needs objects that are missing: {shown}",
                hint="the repository is shallow or partial; complete it: "
                "git fetch --unshallow, git fetch --refetch --no-filter",
                where={**where, "objects": names[:50]},
            )
        return self.git.failure(("merge-tree",), status, out, err)

    def missing(self, commits: Sequence[str]) -> list[str]:
        """Return the ids of the objects that the trees of some commits lack."""
        # Commits themselves may be the ones: then there is nothing to walk.
        here = [commit for commit in commits if commit in self.store]
        gone = [commit for commit in commits if commit not in self.store]
        status, out, _ = self.git.call(
            "rev-list", "--objects", "--missing=print", "--no-walk", *here
        )
        if status and not out:
            return gone
        return gone + re.findall(r"^\?([0-9a-f]{40})", out.decode(), re.MULTILINE)

    def cherry_pair(
        self, onto: TreeId, commit: CommitId
    ) -> tuple[CommitId, CommitId] | None:
        """Return two commits whose merge is the pick of a commit onto a tree.

        Their only common ancestor has the tree of the commit's parent, which is how a
        cherry-pick differs from a merge.

        Args:
            onto: Hex id of the tree to pick onto.
            commit: The commit; it has one parent or none.

        Returns:
            The pair; None where the commit is a merge.
        """
        facts = self.commit(commit)
        if len(facts.parents) > 1:
            return None
        if facts.parents:
            before = self.commit(facts.parents[0]).tree
        else:
            before = TreeId(self.write(TREE, b"").hex())
        base = self._plain_commit(before)
        return self._plain_commit(onto, base), self._plain_commit(facts.tree, base)

    def _plain_commit(self, tree: TreeId, *parents: CommitId) -> CommitId:
        return self.write_commit(encode_commit(tree, parents, _WHO, _WHO, b"\n"))

    def entry(self, tree: str, path: bytes) -> Entry | None:
        """Return the entry at a path of a tree, None where there is none.

        Args:
            tree: Hex id of the tree.
            path: The path.
        """
        oid = bytes.fromhex(tree)
        *folders, name = path.split(b"/")
        for folder in folders:
            entry = self._entry(oid, folder)
            if entry is None or entry.mode != MODE_TREE:
                return None
            oid = entry.oid
        return self._entry(oid, name)

    def _entry(self, tree: bytes, name: bytes) -> Entry | None:
        raw = self.store.tree(tree)
        place = index_tree(raw).get(name)
        if place is None:
            return None
        mode, offset = place
        return Entry(mode, raw[offset : offset + 20])

    def replace_paths(self, tree: TreeId, entries: dict[bytes, Entry | None]) -> TreeId:
        """Return a tree with other entries at some paths; None removes one.

        Args:
            tree: Hex id of the tree.
            entries: New entries by path.
        """
        below: dict[bytes, dict[bytes, Entry | None]] = {}
        content: dict[bytes, Entry] = {
            name: Entry(mode, oid)
            for name, mode, oid, _ in iterate_tree(
                self.store.tree(bytes.fromhex(tree)) if tree else b""
            )
        }
        for path, entry in entries.items():
            name, _, rest = path.partition(b"/")
            if rest:
                below.setdefault(name, {})[rest] = entry
            elif entry is None:
                content.pop(name, None)
            else:
                content[name] = entry
        for name, inside in below.items():
            here = content.get(name)
            old = TreeId(here.oid.hex() if here and here.mode == MODE_TREE else "")
            new = self.replace_paths(old, inside)
            if self.store.tree(bytes.fromhex(new)):
                content[name] = Entry(MODE_TREE, bytes.fromhex(new))
            elif here and here.mode == MODE_TREE:
                del content[name]
        return TreeId(self.write(TREE, encode_tree(content)).hex())


def _parse(out: bytes) -> Iterator[MergeResult]:
    fields = iter(out.split(b"\0"))
    for status in fields:
        if not status:
            break
        tree = TreeId(next(fields).decode("ascii"))
        stages: dict[bytes, list[Entry | None]] = {}
        for line in fields:
            if not line:
                break
            head, _, path = line.partition(b"\t")
            mode, oid, stage = head.split(b" ")
            entry = Entry(int(mode, 8), bytes.fromhex(oid.decode("ascii")))
            stages.setdefault(path, [None, None, None])[int(stage) - 1] = entry
        conflicts = tuple(
            Conflict(path, *each) for path, each in sorted(stages.items())
        )
        if status == b"0" and not conflicts:
            raise InternalError("git reports a conflict without a path")
        yield MergeResult(tree, conflicts)


@contextmanager
def merge_space(parent: Path, sources: Sequence[Path]) -> Iterator[MergeSpace]:
    """Make a scratch repository for merges and remove it at the end.

    Args:
        parent: Folder that scratch folders lie in.
        sources: Git directories whose objects are seen.
    """
    with scratch_folder(parent) as folder:
        yield MergeSpace(folder, sources)


class History:
    """Who is an ancestor of whom, among some commits.

    The graph is read by one process, down to a commit that all have in common; that one
    and everything below it is an ancestor of them all.

    Args:
        git: Runs where the commits are.
        commits: Hex ids of the commits that will be asked about.
    """

    def __init__(self, git: HermeticGit, commits: Sequence[str]) -> None:
        tips = sorted(set(commits))
        self._parents: dict[str, list[str]] = {}
        self._above: dict[str, frozenset[str]] = {}
        if not tips:
            return
        status, out, _ = git.call("merge-base", "--octopus", *tips)
        below = [] if status else [f"^{out.decode().split()[0]}"]
        listed = "\n".join(tips + below).encode()
        try:
            text = git.text("rev-list", "--parents", "--stdin", stdin=listed)
        except (DamagedObjectError, GitCommandError) as error:
            raise MissingObjectError(
                f"the history of the pinned commits is not complete: {error.message}",
                hint="complete the repository: git fetch --unshallow, git fetch "
                "--refetch; where an object is corrupt, get the repository anew",
            ) from error
        for line in text.splitlines():
            commit, *parents = line.split(" ")
            self._parents[commit] = parents

    def ancestors(self, commit: str) -> frozenset[str]:
        """Return a commit and its ancestors, less those that all commits share."""
        known = self._above.get(commit)
        if known is None:
            seen = set()
            todo = [commit]
            while todo:
                each = todo.pop()
                if each not in seen and each in self._parents:
                    seen.add(each)
                    todo += self._parents[each]
            known = self._above[commit] = frozenset(seen)
        return known

    def contains(self, commit: str, ancestor: str) -> bool:
        """Return whether one of the commits is another or has it as an ancestor."""
        return ancestor not in self._parents or ancestor in self.ancestors(commit)
