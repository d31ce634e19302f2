# SPDX-License-Identifier: Apache-2.0
"""`series.toml`: the base, the ordered patch sets, the images, the policy.

`load_series` reads a file strictly and reports all of its problems at once, each with
its line and key. The classes below are the only description of the file: the JSON
schema and the reference in docs/series.md are made from them.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

from stackctl.errors import InputError, UsageError
from stackctl.fsutil import read_regular
from stackctl.model.fields import (
    INVALID,
    NAME,
    Absolute,
    At,
    Choice,
    Flag,
    Inside,
    Integer,
    Kind,
    Many,
    OneForm,
    Record,
    Report,
    Text,
    escape,
    key,
    nearest,
    read_record,
    show,
)
from stackctl.model.ids import CommitId, Sha256, TreeId
from stackctl.model.toml import decode, toml_report

SCHEMA: Final = 1
"""Newest version of the format that this code reads."""

MAX_BYTES: Final = 4 * 1024 * 1024
"""Largest accepted file: about 8,000 sets of 500 bytes."""

Strategy = Literal["apply", "merge", "cherry-pick"]
Disposition = Literal["included", "superseded", "excluded"]
ExcludeKind = Literal[
    "alternative",
    "experimental",
    "out-of-scope",
    "research-only",
    "superseded",
    "unsupported",
]
RootKind = Literal["package", "checkout"]
Requirement = Literal["gates", "images", "changes", "pins"]

_LINE = r"[^\x00-\x1f\x7f]+"

_GIT_ID = Text("a full git id (40 lower-case hex digits)", "[0-9a-f]{40}")
_SHA256 = Text("a SHA-256 (64 lower-case hex digits)", "[0-9a-f]{64}")
_WORDS = Text("a text", r"[^\x00-\x08\x0b-\x1f\x7f]+")
_TITLE = Text("a text of one line", _LINE)
_PIN = Text(
    "a name and version like `vllm==0.33.0`",
    r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?==[A-Za-z0-9.!+_-]+",
)
# `-x` would be an option and `ext::` a command; a password would end up in the lock.
_SAFE = r"(?!-)(?![A-Za-z0-9+.-]+::)(?![A-Za-z0-9+.-]+://[^/@]*:[^/@]*@)" + _LINE
_URL = Text("a git URL or path (no option, no `helper::`, no password)", _SAFE)
_ARCHIVE = Text("an https URL or a path (no password)", _SAFE)
_FOLDER = Text("a path", _LINE)
_REPO = Text("a repository as `owner/name`", r"[A-Za-z0-9_.-]+/[A-Za-z0-9_.-]+")
_REF = Text(
    "a full ref like `refs/heads/main`",
    r"refs/(?!.*(?:\.\.|//|@\{|\.lock(?:/|$)|/$|/\.|\.$))[^\x00-\x20\x7f~^:?*\[\\]+",
)
_REF_PART = r"(?![-/])(?!.*(?:\.\.|//|@\{|\.lock(?:/|$)|/\.))[^\x00-\x20\x7f~^:?*\[\\]+"
_BRANCH = Text("a branch without `refs/heads/`", _REF_PART + r"(?<![/.])")
_PREFIX = Text("the start of a branch's name, like `stack/`", _REF_PART)
_IMAGE = Text(
    "an image with its transport, like `docker://registry/name@sha256:...`",
    r"(?:docker://|oci:|oci-archive:|docker-archive:|docker-daemon:|dir:|rootfs:"
    r"|wheel:|env:)" + _LINE,
)
_PLATFORM = Text(
    "an operating system and architecture like `linux/amd64`",
    r"[a-z0-9]+/[a-z0-9_]+(?:/[a-z0-9._]+)?",
)
_TREE_PATH = Inside("a path inside the composed tree (relative, without `..`)")
_GLOB = Inside("a path pattern inside the composed tree (relative, without `..`)")


@dataclass(frozen=True, slots=True, kw_only=True)
class PypiBase:
    """Base from a source distribution of the configured package index."""

    pypi: str = field(
        metadata=key(_PIN, "Project and exact version.", example='"vllm==0.33.0"')
    )
    sha256: Sha256 = field(
        metadata=key(
            _SHA256,
            "SHA-256 of the sdist; it is checked before a byte is used.",
            example='"f4c33c25..."',
        )
    )
    tree: TreeId | None = field(
        default=None,
        metadata=key(
            _GIT_ID,
            "Git tree of the base, always checked.",
            example='"f4b70840c85fa72f907d1b6a3d3a4eb958a1b3e3"',
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class GitBase:
    """Base from a commit of a git repository."""

    git: str = field(
        metadata=key(
            _URL,
            "Where the commit is: any URL that git fetches from, or a path.",
            example='"https://github.com/vllm-project/vllm"',
        )
    )
    commit: CommitId = field(
        metadata=key(_GIT_ID, "The commit, in full.", example='"40 hex digits"')
    )
    ref: str | None = field(
        default=None,
        metadata=key(
            _REF,
            "Branch that the commit was taken from: told to people and to "
            "`pr audit`, never followed.",
            example='"refs/heads/main"',
        ),
    )
    tree: TreeId | None = field(
        default=None,
        metadata=key(_GIT_ID, "Git tree of the base, always checked."),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveBase:
    """Base from an archive (tar or zip) at a URL or path."""

    archive: str = field(
        metadata=key(
            _ARCHIVE,
            "URL, or path (a relative one counts from the project folder).",
            example='"https://example.org/vllm-0.33.0.tar.gz"',
        )
    )
    sha256: Sha256 = field(
        metadata=key(
            _SHA256,
            "SHA-256 of the archive; it is checked before a byte is used.",
            example='"64 hex digits"',
        )
    )
    strip: int = field(
        default=0,
        metadata=key(
            Integer(0, 16),
            "Leading folders to remove from each path; each must be common to all.",
            example="1",
        ),
    )
    tree: TreeId | None = field(
        default=None,
        metadata=key(_GIT_ID, "Git tree of the base, always checked."),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PathBase:
    """Base from a folder of this machine."""

    path: str = field(
        metadata=key(
            _FOLDER,
            "The folder (a relative path counts from the project folder).",
            example='"../vllm-0.33.0"',
        )
    )
    tree: TreeId | None = field(
        default=None,
        metadata=key(_GIT_ID, "Git tree of the base, always checked."),
    )


Base = PypiBase | GitBase | ArchiveBase | PathBase


@dataclass(frozen=True, slots=True)
class PatchSource:
    """Where the patch files of a set are: a folder, or named files in order.

    Attributes:
        folder: Folder relative to the project, or None where files are named.
        files: Named files relative to the project, in order.
    """

    folder: str | None = None
    files: tuple[str, ...] = ()

    def paths(self, root: Path) -> tuple[Path, ...]:
        """Return the patch files in the order in which they apply.

        In a folder these are the files named `NNNN-*.patch`, by number. Other files
        may lie beside them, but none that is called like a patch in another way
        (`*.diff`, `*.PATCH`, `*.patch.txt`), which would be left out silently.

        Args:
            root: The project folder.

        Returns:
            Paths below `root`.

        Raises:
            InputError: The folder or a file is missing, lies outside of the project
                (through a link), or the order is ambiguous.
        """
        if self.folder is None:
            found = [root / name for name in self.files]
            for path in found:
                if not path.is_file():
                    raise _missing(path, "patch file")
        else:
            found = _numbered(root / self.folder)
        inside = root.resolve()
        for path in found:
            if not path.resolve().is_relative_to(inside):
                raise InputError(
                    f"{path}: is a link out of the project",
                    kind="outside-project",
                    hint="put the file itself into the project folder",
                    where={"file": str(path)},
                )
        return tuple(found)


_NUMBERED = re.compile(r"([0-9]{4,})-.*\.patch\Z", re.DOTALL)
_PATCH_NAME = re.compile(r"\.(?:patch|diff|mbox|eml)(?:\.txt)?\Z", re.IGNORECASE)
"""What people and their mail programs call a patch."""


def _numbered(folder: Path) -> list[Path]:
    if not folder.is_dir():
        raise _missing(folder, "folder of patches")
    found: dict[int, Path] = {}
    for path in folder.iterdir():
        if _PATCH_NAME.search(path.name) is None:
            continue
        match = _NUMBERED.match(path.name)
        # Names are printed and are part of the lock, which holds text.
        if match is None or not path.name.isprintable() or not path.is_file():
            raise InputError(
                f"{path}: expected a file named like `0001-subject.patch`",
                kind="patch-name",
                hint="rename it, or list the set's files in `patches`",
                where={"file": str(path)},
            )
        number = int(match[1])
        if number in found:
            both = sorted((found[number].name, path.name))
            raise InputError(
                f"{folder}: the number {match[1]} is there twice: "
                f"{both[0]} and {both[1]}",
                kind="patch-name",
                hint="renumber one of them: the order would be a guess",
                where={"file": str(folder / both[1])},
            )
        found[number] = path
    return [found[number] for number in sorted(found)]


def _missing(path: Path, what: str) -> InputError:
    return InputError(
        f"{path}: no such {what}",
        kind="file-missing",
        hint="correct `patches` in series.toml, or set `draft = true` until it exists",
        where={"file": str(path)},
    )


class _Patches(Kind):
    """A folder, or a list of files."""

    words = "a folder of patches or a list of patch files inside the project"
    folder = Inside()
    files = Many(Inside(), least=1)

    def read(self, value: object, at: At) -> Any:
        if isinstance(value, str):
            path = self.folder.read(value, at)
            return path if path is INVALID else PatchSource(folder=path)
        if isinstance(value, list):
            files = self.files.read(value, at)
            return files if files is INVALID else PatchSource(files=files)
        return at.wrong(self.words, value)

    def schema(self, definitions: dict[str, Any]) -> dict[str, Any]:
        forms = (self.folder, self.files)
        return {"oneOf": [form.schema(definitions) for form in forms]}

    def write(self, value: Any, *, sparse: bool = False) -> Any:
        return list(value.files) if value.folder is None else value.folder


@dataclass(frozen=True, slots=True, kw_only=True)
class Pull:
    """A pull request: where a set is reviewed, or what it is pinned to."""

    repo: str = field(
        metadata=key(
            _REPO, "Repository of the pull request.", example='"vllm-project/vllm"'
        )
    )
    number: int | None = field(
        default=None,
        metadata=key(
            Integer(1, 2**31 - 1),
            "Number of the pull request. Only a set pinned by `ref` has none.",
            example="505",
        ),
    )
    head: CommitId | None = field(
        default=None,
        metadata=key(
            _GIT_ID,
            "The reviewed commit. Without `patches` it is what the set composes.",
            example='"40 hex digits"',
        ),
    )
    commits: tuple[CommitId, ...] = field(
        default=(),
        metadata=key(
            Many(_GIT_ID),
            'Commits to apply in this order; only with strategy = "cherry-pick".',
            example='["40 hex digits"]',
        ),
    )
    url: str | None = field(
        default=None,
        metadata=key(
            _URL,
            "Where to fetch from, if not from `repo` on GitHub.",
            example='"https://git.example.org/fork.git"',
        ),
    )
    ref: str | None = field(
        default=None,
        metadata=key(
            _REF,
            "Ref that holds the head, if not `refs/pull/<number>/head`.",
            example='"refs/heads/topic"',
        ),
    )

    @property
    def fetch_url(self) -> str:
        """URL or path to fetch the head from."""
        return self.url or f"https://github.com/{self.repo}"

    @property
    def fetch_ref(self) -> str:
        """Ref that should point to the head."""
        return self.ref or f"refs/pull/{self.number}/head"

    def __str__(self) -> str:
        return (
            f"{self.repo}#{self.number}" if self.number else f"{self.repo} {self.ref}"
        )


def _check_pull(values: dict[str, Any], table: Mapping[str, Any], at: At) -> None:
    if "number" not in table and "ref" not in table:
        at.problem(f"{at} needs the key `number` (or `ref`)")


@dataclass(frozen=True, slots=True, kw_only=True)
class SetGates:
    """Gates that a set names."""

    required: tuple[str, ...] = field(
        default=(),
        metadata=key(
            Many(NAME),
            "Gates that must qualify before a release.",
            example='["kpool-parity"]',
        ),
    )
    advisory: tuple[str, ...] = field(
        default=(),
        metadata=key(
            Many(NAME),
            "Gates whose verdict is shown and does not count.",
            example='["kpool-speed"]',
        ),
    )


def _check_gates(values: dict[str, Any], table: Mapping[str, Any], at: At) -> None:
    for n, name in enumerate(values.get("advisory", ())):
        if name in values.get("required", ()):
            (at / "advisory" / n).problem(
                f"gate {show(name)} in {at} is both required and advisory"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class PatchSet:
    """A patch set: one reviewable unit, from patch files or from pinned commits."""

    name: str = field(
        metadata=key(
            NAME,
            "Name of the set, unique in the series.",
            example='"parallel-prefill"',
        )
    )
    title: str = field(
        default="",
        metadata=key(
            _TITLE, "One line for people.", example='"Parallel prefill of pooled keys"'
        ),
    )
    reason: str = field(
        default="",
        metadata=key(
            _WORDS,
            "Why the fork carries it.",
            example='"Long prompts wait for idle programs."',
        ),
    )
    retire: str = field(
        default="",
        metadata=key(
            _WORDS,
            "What upstream change ends it.",
            example='"When upstream replaces the kernel."',
        ),
    )
    patches: PatchSource | None = field(
        default=None,
        metadata=key(
            _Patches(),
            "Folder of `NNNN-*.patch` files, or a list of files, inside the project.",
            example='"patches/parallel-prefill"',
        ),
    )
    requires: tuple[str, ...] = field(
        default=(),
        metadata=key(
            Many(NAME),
            "Sets that must be composed too; each stands earlier in the series.",
            example="[]",
        ),
    )
    draft: bool = field(
        default=False,
        metadata=key(
            Flag(), "Listed, composed as empty, never released.", example="false"
        ),
    )
    pull: Pull | None = field(
        default=None,
        metadata=key(
            Record(
                Pull,
                _check_pull,
                {"anyOf": [{"required": ["number"]}, {"required": ["ref"]}]},
            ),
            "Where it is reviewed and, with `head` and without `patches`, its source.",
            example='{ repo = "owner/name", number = 505 }',
        ),
    )
    strategy: Strategy = field(
        default="apply",
        metadata=key(
            Choice("merge", "cherry-pick", "apply"),
            "How the set enters the composition: `apply` patch files, `merge` the "
            "pinned head, or `cherry-pick` the pinned `commits`.",
            example='"merge"',
            computed="`apply` with `patches`, else `merge`",
        ),
    )
    disposition: Disposition = field(
        default="included",
        metadata=key(
            Choice("included", "superseded", "excluded"),
            "What becomes of it; a set that is not included says `why`.",
            example='"included"',
        ),
    )
    why: str = field(
        default="",
        metadata=key(
            _WORDS,
            "Why the set is superseded or excluded.",
            example='"Upstream took it in 0.33.0."',
        ),
    )
    reviewers: tuple[str, ...] = field(
        default=(),
        metadata=key(
            Many(
                Text(
                    "a GitHub user or `org/team`",
                    r"[A-Za-z0-9_.-]+(?:/[A-Za-z0-9_.-]+)?",
                )
            ),
            "Whom `pr submit` asks for a review.",
            example='["octocat"]',
        ),
    )
    labels: tuple[str, ...] = field(
        default=(),
        metadata=key(
            Many(_TITLE),
            "Labels that `pr submit` puts on the pull request.",
            example='["performance"]',
        ),
    )
    gates: SetGates = field(
        default=SetGates(),
        metadata=key(
            Record(SetGates, _check_gates),
            "Gates of the set.",
            example='{ required = ["kpool-parity"], advisory = ["kpool-speed"] }',
        ),
    )

    @property
    def pinned(self) -> bool:
        """Whether the set comes from pinned commits, not from patch files."""
        return self.strategy != "apply"

    @property
    def composed(self) -> bool:
        """Whether the set adds anything to a composition."""
        return self.disposition == "included" and not self.draft


def _check_set(values: dict[str, Any], table: Mapping[str, Any], at: At) -> None:
    """Check the keys of one set against each other, and fill in its strategy."""
    _check_source(values, table, at)
    disposition = table.get("disposition", "included")
    if disposition in ("superseded", "excluded") and "why" not in table:
        (at / "disposition").problem(
            f"{at} is {disposition}; it needs the key `why` (the reason)"
        )
    if disposition == "included" and "why" in table:
        (at / "why").problem(
            f"`why` in {at} goes with disposition superseded or excluded; "
            "for an included set use `reason`"
        )


def _check_source(values: dict[str, Any], table: Mapping[str, Any], at: At) -> None:
    has_patches = "patches" in table
    pull = table["pull"] if isinstance(table.get("pull"), dict) else {}
    has_head = "head" in pull
    if "strategy" not in table:
        values["strategy"] = "merge" if has_head and not has_patches else "apply"
    strategy = values.get("strategy")
    if not has_patches and not has_head:
        composed = table.get("disposition", "included") == "included"
        if composed and table.get("draft") is not True:
            at.problem(
                f"{at} has no source: it needs `patches`, or `pull` with `head`, "
                "or `draft = true` until there is one"
            )
        return
    if strategy == "apply" and not has_patches:
        (at / "strategy").problem(
            f'strategy = "apply" in {at} needs `patches`; a pinned head is composed '
            'by "merge" or "cherry-pick"'
        )
    elif strategy in ("merge", "cherry-pick") and has_patches:
        (at / "strategy").problem(
            f"strategy = {show(strategy)} in {at} takes the set from `pull.head`, not "
            "from patch files; remove `patches` or `strategy`"
        )
    elif strategy == "cherry-pick" and not pull.get("commits"):
        (at / "pull").problem(
            f'strategy = "cherry-pick" in {at} needs `commits` in `pull`'
        )
    if strategy in ("apply", "merge") and "commits" in pull:
        (at / "pull" / "commits").problem(
            f'`commits` of `pull` in {at} goes with strategy = "cherry-pick" only'
        )


_SET = Record(
    PatchSet,
    _check_set,
    {
        "if": {
            "required": ["disposition"],
            "properties": {"disposition": {"enum": ["superseded", "excluded"]}},
        },
        "then": {"required": ["why"]},
    },
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExcludedPull:
    """The pull request of an exclusion, with the head that was looked at."""

    repo: str = field(
        metadata=key(
            _REPO, "Repository of the pull request.", example='"vllm-project/vllm"'
        )
    )
    number: int = field(
        metadata=key(
            Integer(1, 2**31 - 1), "Number of the pull request.", example="289"
        )
    )
    head: CommitId = field(
        metadata=key(_GIT_ID, "The commit that was looked at.", example='"40 hex"')
    )

    def __str__(self) -> str:
        return f"{self.repo}#{self.number}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Exclude:
    """An open pull request that was looked at and left out."""

    pull: ExcludedPull = field(
        metadata=key(
            Record(ExcludedPull),
            "The pull request and the head that was looked at.",
            example='{ repo = "owner/name", number = 289, head = "40 hex" }',
        )
    )
    kind: ExcludeKind = field(
        metadata=key(
            Choice(
                "alternative",
                "experimental",
                "out-of-scope",
                "research-only",
                "superseded",
                "unsupported",
            ),
            "Kind of reason.",
            example='"superseded"',
        )
    )
    why: str = field(
        metadata=key(_WORDS, "The reason.", example='"Replaced by number 505."')
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Root:
    """A place in an image that must hold a part of the composed tree."""

    tree: str = field(
        metadata=key(
            _TREE_PATH,
            "Folder of the composed tree; `.` is the whole tree.",
            example='"vllm"',
        )
    )
    path: str = field(
        metadata=key(
            Absolute(),
            "Folder of the image.",
            example='"/opt/venv/lib/python3.12/site-packages/vllm"',
        )
    )
    kind: RootKind = field(
        metadata=key(
            Choice("package", "checkout"),
            "An installed package (modes are not compared, files of the wheel may lie "
            "beside) or a checkout (modes count).",
            example='"package"',
        )
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PypiWheel:
    """A wheel of the configured package index."""

    pypi: str = field(
        metadata=key(_PIN, "Project and exact version.", example='"vllm==0.33.0"')
    )
    sha256: Sha256 = field(
        metadata=key(_SHA256, "SHA-256 of the wheel.", example='"64 hex digits"')
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PathWheel:
    """A wheel file of this machine."""

    path: str = field(
        metadata=key(
            _FOLDER,
            "The file (a relative path counts from the project folder).",
            example='"dist/vllm-0.33.0-cp38-abi3-linux_x86_64.whl"',
        )
    )
    sha256: Sha256 = field(
        metadata=key(_SHA256, "SHA-256 of the wheel.", example='"64 hex digits"')
    )


Wheel = PypiWheel | PathWheel


@dataclass(frozen=True, slots=True, kw_only=True)
class Allow:
    """An untracked file that an image may hold, with exactly these bytes."""

    path: str = field(
        metadata=key(
            _TREE_PATH, "Path in the composed tree.", example='"vllm/_version.py"'
        )
    )
    sha256: Sha256 = field(
        metadata=key(_SHA256, "SHA-256 of the file.", example='"64 hex digits"')
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """A released image that must contain the composition."""

    ref: str = field(
        metadata=key(
            _IMAGE,
            "The image, with its transport; released ones by digest.",
            example='"docker://registry.example.org/vllm@sha256:..."',
        )
    )
    platform: str | None = field(
        default=None,
        metadata=key(
            _PLATFORM,
            "Platform to choose from an index; the default is this machine's.",
            example='"linux/amd64"',
        ),
    )
    roots: tuple[Root, ...] = field(
        metadata=key(
            Many(Record(Root), least=1, unique="path"),
            "Where the composed tree must be.",
            example='[{ tree = ".", path = "/opt/vllm", kind = "checkout" }]',
        )
    )
    wheel: Wheel | None = field(
        default=None,
        metadata=key(
            OneForm({"pypi": Record(PypiWheel), "path": Record(PathWheel)}),
            "Wheel that judges untracked files below a package root.",
            example='{ pypi = "vllm==0.33.0", sha256 = "64 hex digits" }',
        ),
    )
    allow: tuple[Allow, ...] = field(
        default=(),
        metadata=key(
            Many(Record(Allow), unique="path"),
            "Untracked files that may be there.",
            example='[{ path = "vllm/_version.py", sha256 = "64 hex digits" }]',
        ),
    )
    unpackaged: tuple[str, ...] = field(
        default=(),
        metadata=key(
            Many(_GLOB),
            "Tracked files that are legitimately not installed (path patterns).",
            example='["vllm/**/README.md"]',
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """What a release asks for."""

    receipt_signers: tuple[str, ...] = field(
        default=(),
        metadata=key(
            Many(_TITLE),
            "SSH or GPG keys whose signatures on receipts count, and identities of "
            "sigstore (`sigstore:IDENTITY issuer=https://...`). Empty: unsigned "
            "receipts count, and are called unsigned.",
            example="[]",
        ),
    )
    release_requires: tuple[Requirement, ...] = field(
        default=("gates", "images", "changes", "pins"),
        metadata=key(
            Many(Choice("gates", "images", "changes", "pins")),
            "What `tag cut` checks; the default is all of it.",
            example='["gates", "images", "changes", "pins"]',
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Github:
    """Where `pr submit` and `pr sync` keep the stack of pull requests."""

    repo: str = field(
        metadata=key(_REPO, "Repository of the pull requests.", example='"owner/name"')
    )
    base: str | None = field(
        default=None,
        metadata=key(
            _BRANCH,
            "Branch that the lowest pull request is for. Where it does not contain the "
            "base's commit, a branch that holds just the base is pushed instead.",
            example='"main"',
            computed="the branch of a git base's `ref`",
        ),
    )
    prefix: str | None = field(
        default=None,
        metadata=key(
            _PREFIX,
            "Start of the names of all branches that are pushed.",
            example='"stack/glm53-flash/"',
            computed="`stack/<name of the series>/`",
        ),
    )
    push: str | None = field(
        default=None,
        metadata=key(
            _URL,
            "Where to push to, such as an ssh URL of the same repository.",
            example='"git@github.com:owner/name.git"',
            computed="`repo` over https, with the token",
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """A series: the pinned base and the ordered patch sets that stand on it.

    Attributes:
        root: The project folder, which relative paths count from.
        file: The file that was read, for messages.
    """

    root: Path
    file: str
    schema: int = field(
        metadata=key(Integer(1, SCHEMA), "Version of the format.", example="1")
    )
    name: str = field(
        metadata=key(NAME, "Name of the series.", example='"glm53-flash"')
    )
    base: Base = field(
        metadata=key(
            OneForm(
                {
                    "pypi": Record(PypiBase),
                    "git": Record(GitBase),
                    "archive": Record(ArchiveBase),
                    "path": Record(PathBase),
                }
            ),
            "What the sets stand on, in exactly one of four forms.",
        )
    )
    sets: tuple[PatchSet, ...] = field(
        default=(),
        metadata=key(
            Many(_SET, unique="name"), "The patch sets, in order.", name="set"
        ),
    )
    excludes: tuple[Exclude, ...] = field(
        default=(),
        metadata=key(
            Many(Record(Exclude)),
            "Open pull requests that were looked at and left out.",
            name="exclude",
        ),
    )
    images: tuple[Image, ...] = field(
        default=(),
        metadata=key(
            Many(Record(Image)),
            "Released images that must contain the composition.",
            name="image",
        ),
    )
    policy: Policy = field(
        default=Policy(),
        metadata=key(Record(Policy), "What a release asks for."),
    )
    github: Github | None = field(
        default=None,
        metadata=key(Record(Github), "Where the stack of pull requests is."),
    )

    def find(self, name: str) -> PatchSet:
        """Return a set by its name.

        Raises:
            UsageError: There is no such set; the message names the nearest.
        """
        for item in self.sets:
            if item.name == name:
                return item
        known = [item.name for item in self.sets]
        raise UsageError(
            f"no set `{escape(name)}` in {self.file}{nearest(name, known)}",
            kind="unknown-set",
            where={"file": self.file, "set": name},
        )


def load_series(path: Path) -> Series:
    """Read a `series.toml`.

    Args:
        path: The file; its folder is the project folder.

    Returns:
        The series.

    Raises:
        InputError: The file cannot be read, is not TOML or breaks a rule of the format;
            the message lists every problem.
    """
    return parse_series(
        decode(read_regular(path, MAX_BYTES), str(path)), file=str(path)
    )


def parse_series(text: str, *, file: str, root: Path | None = None) -> Series:
    """Read the text of a `series.toml`.

    Args:
        text: TOML text.
        file: Name of the file, for messages.
        root: The project folder; by default the folder of `file`.

    Returns:
        The series.

    Raises:
        InputError: The text is not TOML or breaks a rule of the format; the message
            lists every problem.
    """
    report = toml_report(
        text,
        file,
        schema=SCHEMA,
        kind="bad-series",
        hint="docs/series.md describes every key of the file",
    )
    document = report.document
    extra = {"root": Path(file).parent if root is None else root, "file": file}
    series = read_record(Record(Series), document, report.top, extra=extra)
    _check_requires(document, report)
    _check_excludes(document, report)
    report.raise_problems()
    assert isinstance(series, Series)  # otherwise there was a problem to raise
    return series


def _tables(document: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
    found = document.get(name)
    if not isinstance(found, list):
        return []
    return [item if isinstance(item, dict) else {} for item in found]


def _check_requires(document: Mapping[str, Any], report: Report) -> None:
    """Check that required sets exist, stand earlier, and can be composed."""
    sets = _tables(document, "set")
    order: dict[str, int] = {}
    needs: dict[str, list[str]] = {}
    for n, item in enumerate(sets):
        if isinstance(name := item.get("name"), str) and name not in order:
            order[name] = n
            listed = item.get("requires")
            needs[name] = (
                [other for other in listed if isinstance(other, str)]
                if isinstance(listed, list)
                else []
            )
    for n, item in enumerate(sets):
        name, listed = item.get("name"), item.get("requires")
        if not isinstance(name, str) or not isinstance(listed, list):
            continue
        for k, other in enumerate(listed):
            if not isinstance(other, str):
                continue
            at = report.top / "set" / n / "requires" / k
            here = report.top / "set" / n
            if other not in order:
                if re.fullmatch("[a-z0-9-]+", other):
                    at.problem(
                        f"{here} requires an unknown set {show(other)}"
                        f"{nearest(other, list(order))}"
                    )
            elif order[other] >= n and (cycle := _way(needs, other, name)):
                at.problem(
                    f"sets require each other in a circle: {_chain(name, cycle)}"
                )
            elif order[other] > n:
                at.problem(
                    f"{here} requires `{other}`, which comes later in the series; "
                    f"move [[set]] `{other}` before it"
                )
            elif (
                item.get("disposition", "included") == "included"
                and sets[order[other]].get("disposition") == "excluded"
            ):
                at.problem(f"{here} requires `{other}`, which is excluded")


def _chain(name: str, cycle: list[str]) -> str:
    steps = [f"`{step}`" for step in (name, *cycle)]
    if len(steps) > 8:
        steps[4:-3] = [f"... {len(steps) - 7} more ..."]
    return " requires ".join(steps)


def _way(needs: Mapping[str, list[str]], start: str, goal: str) -> list[str]:
    """Return the shortest chain of requirements from one set to another, or []."""
    before: dict[str, str] = {start: start}
    queue = [start]
    for name in queue:
        if name == goal:
            chain = [name]
            while name != start:
                name = before[name]
                chain.append(name)
            return chain[::-1]
        for other in needs.get(name, ()):
            if other not in before:
                before[other] = name
                queue.append(other)
    return []


def _check_excludes(document: Mapping[str, Any], report: Report) -> None:
    """Check that no pull request is excluded twice, or excluded and a set's source."""

    def identity(item: Mapping[str, Any]) -> tuple[str, int] | None:
        pull = item.get("pull")
        if not isinstance(pull, dict):
            return None
        repo, number = pull.get("repo"), pull.get("number")
        if isinstance(repo, str) and isinstance(number, int):
            return repo.lower(), number
        return None

    used: dict[tuple[str, int], str] = {}
    for n, item in enumerate(_tables(document, "set")):
        if (pull := identity(item)) and item.get("disposition") != "excluded":
            used.setdefault(pull, str(report.top / "set" / n))
    for n, item in enumerate(_tables(document, "exclude")):
        if not (pull := identity(item)):
            continue
        at = report.top / "exclude" / n
        if pull in used:
            (at / "pull").problem(
                f"{at} leaves out {escape(pull[0])}#{pull[1]}, which {used[pull]} names"
            )
        used.setdefault(pull, str(at))
