# SPDX-License-Identifier: Apache-2.0
"""The commit that proves a tag: files in a tree, read without trusting them.

`refs/stackctl/<tag>` points to it. Its parent is the proof of the release before, so
the proofs of a series form a line.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from stackctl.compose.publish import repository_of
from stackctl.errors import InputError, PinError
from stackctl.git.command import HermeticGit
from stackctl.git.merge import object_folders
from stackctl.git.objects import (
    BLOB,
    COMMIT,
    COMMITTER,
    MODE_FILE,
    MODE_TREE,
    TREE,
    Entry,
    commit_tree_of,
    encode_commit,
    encode_tree,
    iterate_tree,
)
from stackctl.git.packs import PackWriter
from stackctl.git.store import Store
from stackctl.model.ids import CommitId
from stackctl.release.message import REF, TAGS, Tag, parse_tag

MAX_FILES: Final = 50_000
"""Most files of a proof: a series of 10,000 patches has some more."""

MAX_BYTES: Final = 1 << 30
"""Most bytes of all files of a proof."""

COMPONENTS: Final = "components"
"""Folder of a proof with a folder of its own for every further component."""

SUBJECT: Final = "Proof of "
"""How the message of a proof's commit starts; the name of the tag follows."""

MAX_DEPTH: Final = 16
"""Deepest folder of a proof."""

_NAME = re.compile(r"[^\x00-\x1f\x7f/\\]{1,255}")

_TAG = 4


class Repository:
    """A repository in which tags and their proofs lie.

    Only refs are asked of git; objects are read here and checked against their ids.

    Args:
        path: A work tree, a git directory or a bare repository.

    Raises:
        InputError: There is no repository.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.git_dir = repository_of(path)
        self.common = object_folders(self.git_dir)[1]
        self.store = Store(self.common)
        self.git = HermeticGit(self.git_dir)

    def ref(self, name: str) -> str | None:
        """Return the object that a ref points to, None where there is no such ref."""
        # `rev-parse` would also take the name of a commit or of another ref.
        status, out, _ = self.git.call("show-ref", "--verify", "--hash", "--", name)
        return None if status else out.decode("ascii").strip()

    def tags_with_proof(self) -> list[str]:
        """Return the names below `refs/stackctl/`, sorted."""
        out = self.git.run("for-each-ref", "--format=%(refname)", REF)
        names = out.decode("utf-8", "surrogateescape").splitlines()
        return sorted(name.removeprefix(REF) for name in names)

    def tags(self) -> list[str]:
        """Return the names of all tags, sorted."""
        out = self.git.run("for-each-ref", "--format=%(refname)", TAGS)
        names = out.decode("utf-8", "surrogateescape").splitlines()
        return sorted(name.removeprefix(TAGS) for name in names)

    def read_tag(self, name: str) -> Tag:
        """Read an integration tag.

        Raises:
            PinError: There is no such tag, or it lacks its object.
            InputError: It is no integration tag.
        """
        oid = self.ref(TAGS + name)
        if oid is None:
            raise PinError(
                f"{self.path} has no tag {name}",
                kind="no-tag",
                hint=f"fetch it: git fetch ORIGIN {TAGS}{name} {REF}{name}",
                where={"file": str(self.path), "tag": name},
            )
        kind, _ = self.store.read_raw(bytes.fromhex(oid))
        if kind != _TAG:
            raise InputError(
                f"tag {name} of {self.path} is not annotated: it says nothing",
                kind="bad-tag",
                hint="integration tags are made by `stackctl tag cut`",
                where={"tag": name},
            )
        return parse_tag(self.store.read(bytes.fromhex(oid), _TAG), name)

    def read_proof(self, commit: str) -> "Proof":
        """Read the files of a proof.

        Args:
            commit: Hex id of its commit.

        Raises:
            PinError: An object is missing or damaged.
            InputError: The tree holds what no proof holds: links, odd names, too much.
        """
        raw = self.store.commit(bytes.fromhex(commit))
        head, _, message = raw.partition(b"\n\n")
        parents = re.findall(rb"^parent ([0-9a-f]{40})$", head, re.MULTILINE)
        files: dict[str, bytes] = {}
        tree = bytes.fromhex(commit_tree_of(raw))
        self._read(tree, "", files, [MAX_BYTES], 0)
        return Proof(
            CommitId(commit),
            tuple(CommitId(p.decode()) for p in parents),
            files,
            message.split(b"\n")[0].decode("utf-8", "replace"),
        )

    def _read(
        self,
        tree: bytes,
        prefix: str,
        files: dict[str, bytes],
        left: list[int],
        depth: int,
    ) -> None:
        for raw, mode, oid, _ in iterate_tree(self.store.tree(tree)):
            name = raw.decode("utf-8", "replace")
            odd = name in (".", "..") or name.lower() == ".git"
            if odd or not _NAME.fullmatch(name) or name.encode() != raw:
                raise _bad_proof(f"a file has the name {raw[:80]!r}")
            path = prefix + name
            if mode == MODE_TREE:
                if depth >= MAX_DEPTH:
                    raise _bad_proof(f"{path} lies too deep")
                self._read(oid, path + "/", files, left, depth + 1)
                continue
            if mode != MODE_FILE:
                raise _bad_proof(f"{path} is no plain file (mode {mode:o})")
            data = self.store.blob(oid)
            left[0] -= len(data)
            if left[0] < 0 or len(files) >= MAX_FILES:
                raise _bad_proof(
                    f"more than {MAX_FILES:,} files or {MAX_BYTES:,} bytes"
                )
            if path in files:
                raise _bad_proof(f"{path} is there twice")
            files[path] = data


def _bad_proof(why: str) -> InputError:
    return InputError(
        f"the proof cannot be read: {why}",
        kind="bad-proof",
        hint="it was not made by `stackctl tag cut`",
    )


@dataclass(frozen=True, slots=True)
class Proof:
    """The files that prove a tag.

    Attributes:
        commit: The commit that holds them.
        parents: The proofs of the releases before.
        files: Bytes by path.
        subject: First line of the commit's message.
    """

    commit: CommitId
    parents: tuple[CommitId, ...]
    files: Mapping[str, bytes]
    subject: str

    @property
    def tag(self) -> str:
        """The tag that it says it proves."""
        return self.subject.removeprefix(SUBJECT)

    def part(self, component: str) -> "Proof":
        """Return what it carries of a further component, as a proof of its own."""
        start = f"{COMPONENTS}/{component}/"
        files = {
            path.removeprefix(start): data
            for path, data in self.files.items()
            if path.startswith(start)
        }
        return replace(self, files=files)

    def below(self, folder: str) -> dict[str, bytes]:
        """Return the files of a folder, by their whole paths."""
        return {p: d for p, d in self.files.items() if p.startswith(folder + "/")}


def write_proof(
    writer: PackWriter,
    files: Mapping[str, bytes],
    parents: tuple[CommitId, ...],
    when: str,
    tag: str,
) -> CommitId:
    """Write files as a tree and a commit.

    Args:
        writer: Takes the objects.
        files: Bytes by path.
        parents: The proofs of the releases before.
        when: Seconds and zone of author and committer.
        tag: The tag that it proves.
    """
    folders: dict[str, dict[bytes, Entry]] = {"": {}}
    for path, data in files.items():
        folder, _, name = path.rpartition("/")
        at = folder
        while at not in folders:
            folders[at] = {}
            at = at.rpartition("/")[0]
        folders[folder][name.encode()] = Entry(MODE_FILE, writer.add(BLOB, data))
    # The deepest first, so that every folder has its own folders' ids.
    for folder in sorted((f for f in folders if f), key=lambda f: -f.count("/")):
        above, _, name = folder.rpartition("/")
        tree = writer.add(TREE, encode_tree(folders[folder]))
        folders[above][name.encode()] = Entry(MODE_TREE, tree)
    root = writer.add(TREE, encode_tree(folders[""]))
    who = COMMITTER + b" " + when.encode()
    message = f"{SUBJECT}{tag}\n".encode()
    body = encode_commit(root.hex(), parents, who, who, message)
    return CommitId(writer.add(COMMIT, body).hex())
