# SPDX-License-Identifier: Apache-2.0
"""Reading published integration manifests and locks.

There are three forms. A *manifest* says what is to be composed, on a branch. An
*integration lock* says what was composed, on a commit, and what came out. A *source
lock*, the later form, names the composed commit and the merge commit of each pull
request. Keys that are not known are left alone: these files belong to others, and
newer ones say more.
"""

import hashlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, cast

from stackctl.errors import InputError, PinError
from stackctl.fsutil import read_regular
from stackctl.model.canonical import loads_strict
from stackctl.model.ids import GIT_ID, SHA256, CommitId, Sha256, TreeId

MAX_BYTES = 16 << 20
"""Largest file that is read: bytes. The published ones have a few kilobytes."""

MAX_PATCH_BYTES = 256 << 20
"""Largest source patch or published patch that is read: bytes."""

SCHEMA = 1
"""Newest version of the published formats that this code reads."""

_HINT = "docs/pins.md describes the published formats that are read"

Strategy = Literal["merge", "cherry_pick", "pinned_branch"]
Form = Literal["manifest", "lock", "source-lock"]

DISPOSITIONS = ("merged", "already_in_base", "cherry_picked", "recorded_in_composition")
EXCLUSIONS = (
    "alternative",
    "experimental",
    "out_of_scope",
    "research-only",
    "superseded",
    "unsupported",
)


@dataclass(frozen=True, slots=True)
class PublishedPull:
    """A pull request of a published file.

    Attributes:
        number: Its number, None where only a commit is named.
        head: The pinned head; empty where the file names only the merge commit.
        title: Its title.
        ref: The ref that held the head.
        disposition: What the file says became of it; None in manifests.
        commits: Commits to pick, in order.
        merge_commit: The commit that merged it, where the file says so.
    """

    number: int | None
    head: CommitId | None
    title: str = ""
    ref: str | None = None
    disposition: str | None = None
    commits: tuple[CommitId, ...] = ()
    merge_commit: CommitId | None = None

    @property
    def name(self) -> str:
        """What messages call it."""
        return f"#{self.number}" if self.number is not None else (self.head or "")[:12]


@dataclass(frozen=True, slots=True)
class SourcePatch:
    """A patch file that is applied after the pull requests."""

    path: str
    sha256: Sha256
    title: str = ""

    def read(self, path: Path, pinned_by: Path) -> bytes:
        """Return the bytes of the file, which must have the digest.

        Args:
            path: Where the file lies.
            pinned_by: The manifest or lock that pins it.

        Raises:
            InputError: It cannot be read.
            PinError: It has another digest.
        """
        data = read_regular(path, MAX_PATCH_BYTES)
        found = hashlib.sha256(data).hexdigest()
        if found != self.sha256:
            raise PinError(
                f"{path} has the digest {found}; {pinned_by} pins {self.sha256}",
                kind="wrong-digest",
                hint=f"take it from the revision that published {pinned_by.name}",
                where={"file": str(path)},
            )
        return data


@dataclass(frozen=True, slots=True)
class ReviewedExclusion:
    """A pull request that was looked at and left out."""

    number: int
    head: CommitId
    disposition: str
    reason: str


@dataclass(frozen=True, slots=True)
class Published:
    """A published manifest or lock.

    Attributes:
        file: Where it was read.
        sha256: Digest of its bytes.
        form: Which of the three forms.
        name: Name of the composition.
        repository: URL of the repository.
        base_ref: Branch of the base, in full.
        base_commit: The base; None in a manifest.
        strategy: How the pull requests enter.
        pulls: The pull requests, in order.
        patches: The source patches, in order.
        composition_ref: Branch of a pinned composition.
        composition_commit: Its commit.
        exclusions: Reviewed exclusions.
        tree: The tree that came out; None in a manifest.
        patch: Name of the published patch.
        patch_sha256: Its digest.
        manifest_sha256: Digest of the manifest that a lock was made from.
    """

    file: Path
    sha256: Sha256
    form: Form
    name: str
    repository: str
    base_ref: str | None
    base_commit: CommitId | None
    strategy: Strategy
    pulls: tuple[PublishedPull, ...]
    patches: tuple[SourcePatch, ...] = ()
    composition_ref: str | None = None
    composition_commit: CommitId | None = None
    exclusions: tuple[ReviewedExclusion, ...] = ()
    tree: TreeId | None = None
    patch: str | None = None
    patch_sha256: Sha256 | None = None
    manifest_sha256: Sha256 | None = field(default=None, compare=False)


class _Reader:
    """One JSON object of a file, and where it stands."""

    def __init__(self, value: object, file: str, place: str = "") -> None:
        self.file = file
        self.place = place
        if not isinstance(value, dict):
            raise self.wrong("", "an object", value)
        self.value: dict[str, Any] = value

    def at(self, key: str) -> str:
        return f"{self.place}.{key}".strip(".") if key else self.place or "the file"

    def wrong(self, key: str, expected: str, found: object) -> InputError:
        shown = repr(found)
        shown = shown if len(shown) <= 80 else shown[:77] + "..."
        what = "is missing" if found is None else f"is {shown}"
        return InputError(
            f"{self.file}: {self.at(key)} {what}; expected {expected}",
            kind="bad-published-file",
            hint=_HINT,
            where={"file": self.file, "key": self.at(key)},
        )

    def text(self, key: str, default: str | None = None, *, need: bool = False) -> str:
        value = self.value.get(key, default)
        if value is None and not need:
            return ""
        if not isinstance(value, str) or "\0" in value:
            raise self.wrong(key, "a text", value)
        return value

    def matched(self, key: str, pattern: Any, words: str, need: bool) -> str | None:
        value = self.value.get(key)
        if value is None and not need:
            return None
        if not isinstance(value, str) or not pattern.match(value):
            raise self.wrong(key, words, value)
        return value

    def commit(self, key: str, need: bool = True) -> CommitId | None:
        words = "a full git id (40 lower-case hex digits)"
        found = self.matched(key, GIT_ID, words, need)
        return CommitId(found) if found else None

    def digest(self, key: str, need: bool = True) -> Sha256 | None:
        words = "a SHA-256 (64 lower-case hex digits)"
        found = self.matched(key, SHA256, words, need)
        return Sha256(found) if found else None

    def choice(self, key: str, choices: tuple[str, ...], default: str | None) -> str:
        value = self.value.get(key)
        if value is None:
            value = default
        # Published files spell both `out_of_scope` and `research-only`.
        spelled = {each.replace("-", "_"): each for each in choices}
        found = spelled.get(value.replace("-", "_")) if isinstance(value, str) else None
        if found is None:
            raise self.wrong(key, f"one of {', '.join(choices)}", value)
        return found

    def number(self, key: str, need: bool = True) -> int | None:
        value = self.value.get(key)
        if value is None and not need:
            return None
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise self.wrong(key, "a positive number", value)
        return value

    def many(self, key: str) -> list["_Reader"]:
        value = self.value.get(key)
        if value is None:
            return []
        if not isinstance(value, list):
            raise self.wrong(key, "a list", value)
        return [
            _Reader(item, self.file, f"{self.at(key)}[{number}]")
            for number, item in enumerate(value)
        ]

    def below(self, key: str) -> "_Reader":
        value = self.value.get(key)
        if not isinstance(value, dict):
            raise self.wrong(key, "an object", value)
        return _Reader(value, self.file, self.at(key))


def read_published(path: Path) -> Published:
    """Read a published manifest or lock.

    Args:
        path: The file.

    Raises:
        InputError: It cannot be read, or breaks a rule of its form; the message names
            the file and the key.
    """
    data = read_regular(path, MAX_BYTES)
    return parse_published(data, path)


def parse_published(data: bytes, path: Path) -> Published:
    """Read the bytes of a published manifest or lock.

    Args:
        data: The bytes.
        path: Where they come from; source patches lie relative to it.

    Raises:
        InputError: They break a rule of their form.
    """
    top = _Reader(loads_strict(data, file=str(path), hint=_HINT), str(path))
    schema = top.value.get("schema_version")
    if schema is not None and (isinstance(schema, bool) or schema not in (1, "1")):
        if isinstance(schema, int) and schema > SCHEMA:
            raise InputError(
                f"{path}: schema_version {schema}; this stackctl knows the published "
                f"formats only up to {SCHEMA}",
                kind="schema-too-new",
                hint="install a newer stackctl",
                where={"file": str(path), "key": "schema_version"},
            )
        raise top.wrong("schema_version", f"the number {SCHEMA}", schema)
    digest = Sha256(hashlib.sha256(data).hexdigest())
    if isinstance(top.value.get("source"), dict):
        return _source_lock(top, path, digest)
    if "result" in top.value or isinstance(top.value.get("base"), dict):
        return _lock(top, path, digest)
    if "base_ref" in top.value:
        return _manifest(top, path, digest)
    raise InputError(
        f"{path}: neither a manifest (`base_ref`), an integration lock (`base` and "
        "`result`) nor a source lock (`source`)",
        kind="bad-published-file",
        hint="a series.lock is checked with `stackctl lock --check`"
        if "content" in top.value
        else "docs/pins.md describes the published formats that are read",
        where={"file": str(path)},
    )


def _pull(reader: _Reader, strategy: str, form: Form) -> PublishedPull:
    merge_commit = reader.commit("merge_commit", need=False)
    default = {"merge": "merged", "cherry_pick": "cherry_picked"}.get(
        strategy, "recorded_in_composition"
    )
    disposition = None
    if form == "lock":
        disposition = reader.choice("disposition", DISPOSITIONS, default)
    elif form == "source-lock":
        disposition = reader.text("disposition") or "merged"
    commits = reader.value.get("commits")
    if commits is None:
        commits = []
    if not isinstance(commits, list):
        raise reader.wrong("commits", "a list of git ids", commits)
    for item in commits:
        if not isinstance(item, str) or not GIT_ID.match(item):
            raise reader.wrong("commits", "full git ids", item)
    return PublishedPull(
        number=reader.number("number", need=form != "source-lock"),
        head=reader.commit("head", need=form != "source-lock" or merge_commit is None),
        title=reader.text("title"),
        ref=reader.text("ref") or None,
        disposition=disposition,
        commits=tuple(CommitId(item) for item in commits),
        merge_commit=merge_commit,
    )


def _patches(top: _Reader) -> tuple[SourcePatch, ...]:
    out = []
    for reader in top.many("source_patches"):
        name = reader.text("path", need=True)
        if not name or name.startswith("/"):
            raise reader.wrong("path", "a path relative to the file", name)
        digest = reader.digest("sha256")
        assert digest is not None
        out.append(SourcePatch(name, digest, reader.text("title")))
    return tuple(out)


def _exclusions(top: _Reader) -> tuple[ReviewedExclusion, ...]:
    out = []
    for reader in top.many("reviewed_exclusions"):
        number, head = reader.number("number"), reader.commit("head")
        assert number is not None and head is not None
        kind = reader.choice("disposition", EXCLUSIONS, None)
        out.append(ReviewedExclusion(number, head, kind, reader.text("reason")))
    return tuple(out)


def _strategy(top: _Reader) -> Strategy:
    choices = ("merge", "cherry_pick", "pinned_branch")
    return cast("Strategy", top.choice("composition_strategy", choices, "merge"))


def _manifest(top: _Reader, path: Path, digest: Sha256) -> Published:
    strategy = _strategy(top)
    pinned = strategy == "pinned_branch"
    ref = top.text("base_ref", need=True)
    if not ref.startswith("refs/"):
        raise top.wrong("base_ref", "a full ref like refs/heads/main", ref)
    return Published(
        file=path,
        sha256=digest,
        form="manifest",
        name=top.text("name", need=True),
        repository=top.text("repository", need=True),
        base_ref=ref,
        base_commit=top.commit("base_commit", need=False),
        strategy=strategy,
        pulls=tuple(
            _pull(each, strategy, "manifest") for each in top.many("pull_requests")
        ),
        patches=_patches(top),
        composition_ref=top.text("composition_ref") or None,
        composition_commit=top.commit("composition_commit", need=pinned),
        exclusions=_exclusions(top),
    )


def _lock(top: _Reader, path: Path, digest: Sha256) -> Published:
    base, result = top.below("base"), top.below("result")
    composition: _Reader | None = None
    if top.value.get("composition") is not None:
        composition = top.below("composition")
    elif top.value.get("composition_commit") is not None:
        composition = _Reader(
            {
                "ref": top.value.get("composition_ref"),
                "commit": top.value["composition_commit"],
            },
            top.file,
            "composition",
        )
    # Older locks do not name the strategy, but a pinned branch shows itself.
    default = "pinned_branch" if composition is not None else "merge"
    if top.value.get("composition_strategy") is None:
        dispositions = {
            each.value.get("disposition") for each in top.many("pull_requests")
        }
        if composition is None and "cherry_picked" in dispositions:
            default = "cherry_pick"
        strategy = cast("Strategy", default)
    else:
        strategy = _strategy(top)
    if strategy == "pinned_branch" and composition is None:
        raise top.wrong("composition", "an object with `ref` and `commit`", None)
    tree = result.matched(
        "tree", GIT_ID, "a full git id (40 lower-case hex digits)", True
    )
    manifest = top.value.get("manifest")
    return Published(
        file=path,
        sha256=digest,
        form="lock",
        name=top.text("name") or path.name.split(".")[0],
        repository=base.text("repository") or top.text("repository"),
        base_ref=base.text("ref") or None,
        base_commit=base.commit("commit"),
        strategy=strategy,
        pulls=tuple(
            _pull(each, strategy, "lock") for each in top.many("pull_requests")
        ),
        patches=_patches(top),
        composition_ref=(composition.text("ref") or None) if composition else None,
        composition_commit=composition.commit(
            "commit", need=strategy == "pinned_branch"
        )
        if composition
        else None,
        exclusions=_exclusions(top),
        tree=TreeId(tree or ""),
        patch=result.text("patch") or None,
        patch_sha256=result.digest("patch_sha256", need=False),
        manifest_sha256=top.below("manifest").digest("sha256", need=False)
        if isinstance(manifest, dict)
        else None,
    )


def _source_lock(top: _Reader, path: Path, digest: Sha256) -> Published:
    source = top.below("source")
    tree = source.matched(
        "tree", GIT_ID, "a full git id (40 lower-case hex digits)", True
    )
    repository, ref = source.text("repository"), None
    if isinstance(top.value.get("upstream_base"), dict):
        base = top.below("upstream_base")
        base_commit = base.commit("commit")
        repository = repository or base.text("repository")
        ref = base.text("ref") or None
    else:
        base_commit = top.commit("upstream_base")
    result = (
        top.below("result") if isinstance(top.value.get("result"), dict) else source
    )
    return Published(
        file=path,
        sha256=digest,
        form="source-lock",
        name=top.text("name") or source.text("name") or path.name.split(".")[0],
        repository=repository or top.text("repository"),
        base_ref=ref,
        base_commit=base_commit,
        strategy="merge",
        pulls=tuple(
            _pull(each, "merge", "source-lock") for each in top.many("pull_requests")
        ),
        patches=_patches(top),
        composition_ref=source.text("ref") or None,
        composition_commit=source.commit("commit"),
        exclusions=_exclusions(top),
        tree=TreeId(tree or ""),
        patch=result.text("patch") or None,
        patch_sha256=result.digest("patch_sha256", need=False),
    )
