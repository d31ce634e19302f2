# SPDX-License-Identifier: Apache-2.0
"""`stackctl show`: the series, or one set."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stackctl.cli.command import Session, command
from stackctl.cli.output import Outcome, labelled, table
from stackctl.cli.selection import complete_sets

if TYPE_CHECKING:
    from stackctl.git.patchtext.model import Patch
    from stackctl.model.series import PatchSet, Series

EXAMPLE = "Examples: stackctl show; stackctl show parallel-prefill"


def _state(patch_set: "PatchSet") -> str:
    return "draft" if patch_set.draft else patch_set.disposition


def _set_document(patch_set: "PatchSet", count: int) -> dict[str, Any]:
    pull = patch_set.pull
    return {
        "name": patch_set.name,
        "title": patch_set.title,
        "state": _state(patch_set),
        "why": patch_set.why,
        "reason": patch_set.reason,
        "retire": patch_set.retire,
        "strategy": patch_set.strategy,
        "requires": list(patch_set.requires),
        "patches": count,
        "pull": {"repo": pull.repo, "number": pull.number, "head": pull.head}
        if pull
        else None,
        "gates": {
            "required": list(patch_set.gates.required),
            "advisory": list(patch_set.gates.advisory),
        },
    }


def _series_text(series: "Series", sets: list[dict[str, Any]]) -> Iterable[str]:
    yield f"{series.name}: {len(sets)} sets"
    yield from table(
        ["#", "set", "state", "patches", "requires", "title"],
        [
            [
                str(number),
                each["name"],
                each["state"],
                str(each["patches"]),
                ", ".join(each["requires"]),
                each["title"],
            ]
            for number, each in enumerate(sets, 1)
        ],
    )


def _patch_document(patch: "Patch") -> dict[str, Any]:
    added = removed = 0
    paths = []
    for change in patch.changes:
        path = change.new_path or change.old_path or b""
        paths.append(path.decode("utf-8", "backslashreplace"))
        for hunk in change.hunks:
            gone, come = _changed(hunk.old, hunk.new)
            added += come
            removed += gone
    author = patch.author
    return {
        "patch": patch.name,
        "subject": patch.message.split(b"\n", 1)[0].decode("utf-8", "replace"),
        "author": f"{author.name.decode('utf-8', 'replace')} "
        f"<{author.email.decode('utf-8', 'replace')}>",
        "paths": paths,
        "added": added,
        "removed": removed,
    }


def _resolutions(session: Session, document: dict[str, Any], name: str | None) -> None:
    """Add the conflict resolutions that the composition uses, and the unused ones.

    Only a composition knows them; where there can be none, nothing is composed.
    """
    document["resolutions"] = []
    if name is None:
        document["unused_resolutions"] = []
    if not (session.project / "patches" / "resolutions").is_dir():
        return
    from stackctl.compose.resolutions import Resolutions

    resolutions = Resolutions(session.project)
    if not resolutions.files():
        return
    from stackctl.compose.compose import Options, compose_series
    from stackctl.errors import StackctlError

    try:
        composition = compose_series(
            session.series,
            session.cache,
            options=Options(offline=session.offline),
            progress=session.progress,
        )
    except StackctlError as error:
        document["resolutions"] = None
        document["problem"] = error.message
        return
    document["resolutions"] = sorted(
        {
            file
            for step in composition.steps
            if name in (None, step.set)
            for file in step.resolutions
        }
    )
    if name is None:
        document["unused_resolutions"] = resolutions.unused(composition.resolutions)


def _resolution_text(document: dict[str, Any]) -> Iterable[str]:
    if document.get("problem"):
        yield f"resolutions: not known, it does not compose: {document['problem']}"
    for name in document["resolutions"] or ():
        yield f"resolution  {name}"
    for name in document.get("unused_resolutions", ()):
        yield f"unused      {name} (nothing conflicts like that)"


def _changed(old: tuple[bytes, ...], new: tuple[bytes, ...]) -> tuple[int, int]:
    """Count the lines a hunk removes and adds: both sides less their common lines."""
    if len(old) * len(new) > 1_000_000:
        # Exact matching is quadratic; for huge hunks, equal lines count as kept.
        from collections import Counter

        kept = (Counter(old) & Counter(new)).total()
        return len(old) - kept, len(new) - kept
    from difflib import SequenceMatcher

    same = sum(
        block.size
        for block in SequenceMatcher(
            None, old, new, autojunk=False
        ).get_matching_blocks()
    )
    return len(old) - same, len(new) - same


def _set_text(document: dict[str, Any]) -> Iterable[str]:
    title = f": {document['title']}" if document["title"] else ""
    yield f"{document['name']}{title}"
    for key in ("state", "why", "reason", "retire", "strategy"):
        if document[key]:
            yield from labelled(f"  {key:<9} ", document[key])
    if document["requires"]:
        yield f"  {'requires':<9} {', '.join(document['requires'])}"
    if document["pull"]:
        pull = document["pull"]
        where = f"#{pull['number']}" if pull["number"] else ""
        pinned = f" at {pull['head']}" if pull["head"] else ""
        yield f"  {'pull':<9} {pull['repo']}{where}{pinned}"
    for kind, names in document["gates"].items():
        if names:
            yield from labelled(f"  {kind:<9} ", ", ".join(names))
    for patch in document["files"]:
        yield f"  {patch['patch']}  +{patch['added']} -{patch['removed']}"
        yield f"    {patch['subject']}"
        for path in patch["paths"]:
            yield f"      {path}"


def register(app: typer.Typer) -> None:
    """Add the command to the application."""

    @command(app, "show", epilog=EXAMPLE)
    def show(
        session: Session,
        name: Annotated[
            str | None,
            typer.Argument(
                metavar="SET", help="Name of a set.", autocompletion=complete_sets
            ),
        ] = None,
    ) -> Outcome:
        """Show the series, or one set with its patches."""
        from stackctl.compose.plan import find_set
        from stackctl.compose.sources import patch_files

        series = session.series
        if name is None:
            sets = [
                _set_document(each, len(patch_files(series, each)))
                if each.patches
                else _set_document(each, 0)
                for each in series.sets
            ]
            document: dict[str, Any] = {"name": series.name, "sets": sets}
            _resolutions(session, document, None)
            return Outcome(
                document,
                lambda: [*_series_text(series, sets), *_resolution_text(document)],
            )
        from stackctl.git.command import HermeticGit

        patch_set = find_set(series, name)
        patches = [
            _patch_document(patch)
            for file in (patch_files(series, patch_set) if patch_set.patches else ())
            for patch in file.patches(HermeticGit())
        ]
        document = _set_document(patch_set, len(patches)) | {"files": patches}
        _resolutions(session, document, name)
        return Outcome(
            document, lambda: [*_set_text(document), *_resolution_text(document)]
        )
