# SPDX-License-Identifier: Apache-2.0
"""Turning a published manifest or lock into a series."""

import re
from dataclasses import dataclass
from pathlib import Path

from stackctl.base.git import list_refs
from stackctl.errors import InputError, PinError, UsageError
from stackctl.fsutil import write_atomic
from stackctl.model.edit import render_series
from stackctl.model.ids import CommitId
from stackctl.model.series import (
    SCHEMA,
    Exclude,
    ExcludedPull,
    ExcludeKind,
    GitBase,
    PatchSet,
    PatchSource,
    Pull,
    Series,
    parse_series,
)
from stackctl.published.formats import Published, PublishedPull

_KINDS: dict[str, ExcludeKind] = {
    "alternative": "alternative",
    "experimental": "experimental",
    "out_of_scope": "out-of-scope",
    "research-only": "research-only",
    "superseded": "superseded",
    "unsupported": "unsupported",
}


@dataclass(frozen=True, slots=True)
class Imported:
    """A series made from a published file.

    Attributes:
        text: Text of series.toml.
        series: The series.
        patches: Source patches: path in the project, and bytes.
        notes: What a person should know.
    """

    text: str
    series: Series
    patches: dict[str, bytes]
    notes: tuple[str, ...]


def repository_name(url: str) -> tuple[str, str | None]:
    """Return `owner/name` of a repository, and its URL where that is not on GitHub.

    Args:
        url: A URL, `host:path`, or a path.
    """
    plain = url.removesuffix("/").removesuffix(".git")
    match = re.fullmatch(
        r"(?:https?://(?:[^/@]*@)?github\.com/|git@github\.com:|"
        r"ssh://git@github\.com/|git://github\.com/)?"
        r"([A-Za-z0-9_.-]+/[A-Za-z0-9_.-]+)",
        plain,
    )
    if match:
        return match[1], None
    parts = [part for part in re.split(r"[/:]+", plain) if part][-2:]
    safe = [re.sub(r"[^A-Za-z0-9_.-]", "-", part) or "-" for part in parts]
    return "/".join(safe if len(safe) == 2 else ["local", *safe]), url


def _name(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-") or "series"


def _set(
    published: Published, pull: PublishedPull, repo: str, url: str | None, name: str
) -> PatchSet:
    assert pull.head is not None
    ref = pull.ref
    if pull.number is not None and ref == f"refs/pull/{pull.number}/head":
        ref = None
    if pull.number is None and ref is None:
        ref = published.composition_ref or published.base_ref or "refs/heads/main"
    title = re.sub(r"[\x00-\x1f\x7f]+", " ", pull.title).strip()
    recorded = published.strategy == "pinned_branch"
    picked = published.strategy == "cherry_pick" and bool(pull.commits)
    return PatchSet(
        name=name,
        title=title,
        pull=Pull(
            repo=repo,
            number=pull.number,
            head=pull.head,
            commits=pull.commits if picked else (),
            url=url,
            ref=ref,
        ),
        strategy="cherry-pick" if picked else "merge",
        disposition="superseded" if recorded else "included",
        why="Recorded in the pinned composition, which holds it." if recorded else "",
    )


def import_published(
    published: Published,
    *,
    project: Path,
    base_commit: CommitId | None = None,
    offline: bool = False,
) -> Imported:
    """Turn a published manifest or lock into a series.

    Args:
        published: The manifest or lock.
        project: Folder that the series is for.
        base_commit: The base, for a manifest, which names only a branch.
        offline: Never ask the repository where that branch is.

    Returns:
        The series; nothing is written.

    Raises:
        UsageError: A manifest, and no way to know its base.
        PinError: A source patch has another digest.
        InputError: A source patch is missing, or the published file cannot be a series.
    """
    notes = []
    commit = published.base_commit or base_commit
    if base_commit and published.base_commit not in (None, base_commit):
        raise UsageError(
            f"{published.file} pins the base {published.base_commit}, not {base_commit}"
        )
    repo, url = repository_name(published.repository)
    source = url or f"https://github.com/{repo}"
    if commit is None:
        if offline or published.base_ref is None:
            raise UsageError(
                f"{published.file} is a manifest and names only the branch "
                f"{published.base_ref} as its base",
                kind="no-base",
                hint="name the commit: --base-commit (or leave --offline out)",
            )
        commit = list_refs(source, [published.base_ref], project).get(
            published.base_ref
        )
        if commit is None:
            raise PinError(
                f"{source} has no {published.base_ref}",
                kind="missing-ref",
                hint="name the base's commit: --base-commit",
            )
        notes.append(f"the base is where {published.base_ref} is now: {commit}")
    sets: list[PatchSet] = []
    if published.strategy == "pinned_branch":
        assert published.composition_commit is not None
        sets.append(
            PatchSet(
                name="composition",
                title="The pinned composition",
                pull=Pull(
                    repo=repo,
                    head=published.composition_commit,
                    url=url,
                    ref=published.composition_ref or published.base_ref,
                ),
                strategy="merge",
            )
        )
    taken = {each.name for each in sets} | {"source-patches"}
    for pull in published.pulls:
        if pull.head is None:
            notes.append(
                f"pull request {pull.name} names only its merge commit "
                f"{pull.merge_commit}; that commit is pinned"
            )
            pull = _with_merge_commit(pull)
        name = f"pull-{pull.number}" if pull.number else f"commit-{pull.name}"
        count = 1
        while name in taken:
            count += 1
            name = f"pull-{pull.number or pull.name}-{count}"
        taken.add(name)
        sets.append(_set(published, pull, repo, url, name))
        if pull.disposition == "already_in_base":
            notes.append(f"set `{name}` is already in the base")
        if published.strategy == "cherry_pick" and not pull.commits:
            notes.append(f"set `{name}` lists no commits to pick; it is merged")
    patches: dict[str, bytes] = {}
    if published.patches:
        for number, patch in enumerate(published.patches, 1):
            data = patch.read(published.file.parent / patch.path, published.file)
            stem = _name(Path(patch.path).stem)[:50]
            patches[f"patches/source-patches/{number:04d}-{stem}.patch"] = data
        sets.append(
            PatchSet(
                name="source-patches",
                title="Source patches of the published composition",
                patches=PatchSource(files=tuple(patches)),
            )
        )
    named = {pull.number for pull in published.pulls}
    excludes = tuple(
        Exclude(
            pull=ExcludedPull(repo=repo, number=each.number, head=each.head),
            kind=_KINDS[each.disposition],
            why=each.reason.strip() or "No reason was published.",
        )
        for each in published.exclusions
        if each.number not in named
    )
    series = Series(
        root=project,
        file=str(project / "series.toml"),
        schema=SCHEMA,
        name=_name(published.name),
        base=GitBase(git=source, commit=commit, ref=published.base_ref),
        sets=tuple(sets),
        excludes=excludes,
    )
    text = render_series(series)
    return Imported(
        text,
        parse_series(text, file=str(project / "series.toml"), root=project),
        patches,
        tuple(notes),
    )


def _with_merge_commit(pull: PublishedPull) -> PublishedPull:
    return PublishedPull(
        number=pull.number,
        head=pull.merge_commit,
        title=pull.title,
        ref=pull.ref,
        disposition=pull.disposition,
        merge_commit=pull.merge_commit,
    )


def write_project(imported: Imported, folder: Path) -> list[Path]:
    """Write an imported series as a project.

    Args:
        imported: The series.
        folder: The project folder; made where it is missing.

    Returns:
        The files that were written.

    Raises:
        InputError: There is a series already, or the folder cannot be written.
    """
    target = folder / "series.toml"
    if target.exists() or target.is_symlink():
        raise InputError(
            f"{target} exists",
            kind="exists",
            hint="choose another folder, or look at the text without --out",
            where={"file": str(target)},
        )
    written = []
    try:
        for name, data in imported.patches.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomic(path, data)
            written.append(path)
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(
            f"{folder} cannot be written: {error.strerror}", kind="not-writable"
        ) from error
    write_atomic(target, imported.text.encode())
    return [*written, target]
