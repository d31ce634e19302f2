# SPDX-License-Identifier: Apache-2.0
"""`stackctl compose`: build the tree and the commit chain."""

import time
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stackctl.cli.command import Session, command
from stackctl.cli.output import Outcome, fitting
from stackctl.cli.selection import (
    BaseOnlyOption,
    ForceOption,
    OnlyOption,
    UptoOption,
    WithoutOption,
    split_names,
)
from stackctl.errors import ExitCode, UsageError

if TYPE_CHECKING:
    from stackctl.compose.model import Composition
    from stackctl.model.series import PatchSet

EXAMPLE = (
    "Examples: stackctl compose; stackctl compose --only kda-overlap --out tree; "
    "stackctl compose --into ../vllm --ref refs/heads/fork"
)


def composition_text(
    composition: "Composition", name: str, ns: int, notes: Iterable[str] = ()
) -> Iterable[str]:
    """Return a composition as lines for a person."""
    base = composition.base
    yield f"{name}: {base.identity.partition('@')[0]}, {base.kind} base"
    yield f"{'tree':12}  set and patch"
    yield f"{base.tree[:12]}  base"
    last = None
    for step in composition.steps:
        said = "" if step.disposition == "applied" else f" ({step.disposition})"
        if not step.patch:
            yield f"{step.tree[:12]}  {step.set}{said}"
        elif step.set != last:
            yield f"{'':12}  {step.set}"
        if step.patch:
            # The longest name that git gives to a patch makes a line of 80 columns.
            shown = fitting(step.patch, 16 + len(said))
            yield f"{step.tree[:12]}    {shown}{said}"
        last = step.set
    yield ""
    yield f"tree            {composition.tree}"
    if composition.commit:
        yield f"commit          {composition.commit}"
    yield f"content sha256  {composition.content_sha256}"
    if composition.composition:
        yield f"composition     {composition.composition}"
    how = [step.how for step in composition.steps]
    counts = ", ".join(
        f"{how.count(kind)} {words}"
        for kind, words in (
            ("native", "applied"),
            ("git", "applied by git"),
            ("cached", "known"),
        )
        if kind in how
    )
    if counts:
        yield f"steps           {counts}"
    yield f"time            {ns / 1e9:.2f} s"
    yield from notes


def resolution_notes(
    project: Path, composition: "Composition", document: dict[str, Any]
) -> list[str]:
    """Name the conflict resolutions that were used, and those that nothing used.

    Args:
        project: The project folder.
        composition: The whole series, composed.
        document: Its JSON document, which gets the key `unused_resolutions`.

    Returns:
        Lines for a person.
    """
    unused: list[str] = []
    if (project / "patches" / "resolutions").is_dir():
        from stackctl.compose.resolutions import Resolutions  # costly to import

        unused = Resolutions(project).unused(composition.resolutions)
    document["unused_resolutions"] = unused
    return [
        *(f"resolution      {name}" for name in composition.resolutions),
        *(f"unused          {name} (nothing conflicts like that)" for name in unused),
    ]


def new_pin_notes(
    session: Session, sets: Iterable["PatchSet"], document: dict[str, Any]
) -> list[str]:
    """Refuse new pins that swallow upstream commits; name those not checked.

    Args:
        session: The command's session.
        sets: The sets that are composed.
        document: The JSON document, which gets the key `unchecked_pins`.

    Returns:
        Lines for a person.
    """
    pinned = [each for each in sets if each.pinned]
    unchecked: tuple[str, ...] = ()
    if pinned:
        from stackctl.compose.pins import Pins  # costly to import

        unchecked = Pins(session.context).refuse_swallowing(pinned)
    document["unchecked_pins"] = list(unchecked)
    return [
        f"not checked     {name} (whether its head brings upstream commits along: "
        "upstream was not asked)"
        for name in unchecked
    ]


def _compose_locks(session: Session, files: list[Path]) -> Outcome:
    """Compose the project of each lock and hold it against the lock."""
    from stackctl.compose.compose import Options, compose_series
    from stackctl.model.lock import difference, read_lock
    from stackctl.model.series import load_series
    from stackctl.project import SERIES_FILE

    documents = []
    equal = True
    lines: list[str] = []
    for file in files:
        started = time.perf_counter_ns()
        lock = read_lock(file)
        series = load_series(file.parent / SERIES_FILE)
        composition = compose_series(
            series,
            session.cache,
            options=Options(offline=session.offline),
            progress=session.progress,
        )
        found = "; ".join(difference(lock.content, composition.content())) or None
        ns = time.perf_counter_ns() - started
        equal &= found is None
        documents.append(
            {
                "lock": str(file),
                "name": series.name,
                **composition.document(),
                "locked": {"equal": found is None, "difference": found},
                "ns": ns,
            }
        )
        notes = [f"{file}     {found or 'equal'}"]
        lines += [*composition_text(composition, series.name, ns, notes), ""]
    return Outcome(
        documents if len(documents) > 1 else documents[0],
        lambda: lines[:-1],
        ExitCode.OK if equal else ExitCode.NO,
    )


def register(app: typer.Typer) -> None:
    """Add the command to the application."""

    @command(app, "compose", epilog=EXAMPLE)
    def compose(
        session: Session,
        base_only: BaseOnlyOption = False,
        upto: UptoOption = None,
        only: OnlyOption = None,
        without: WithoutOption = None,
        force: ForceOption = False,
        no_commits: Annotated[
            bool, typer.Option("--no-commits", help="Only the tree, no commits.")
        ] = False,
        out: Annotated[
            Path | None,
            typer.Option(metavar="DIR", help="Write the tree into a new folder."),
        ] = None,
        into: Annotated[
            Path | None,
            typer.Option(metavar="REPO", help="Write the commits into a repository."),
        ] = None,
        ref: Annotated[
            str | None,
            typer.Option(metavar="REF", help="The ref that --into sets, in full."),
        ] = None,
        locked: Annotated[
            bool, typer.Option("--locked", help="Exit 1 if series.lock differs.")
        ] = False,
        lock: Annotated[
            list[Path] | None,
            typer.Option(
                metavar="FILE",
                help="Compose the project of this series.lock and hold it against the "
                "lock (several times: the components of one release).",
            ),
        ] = None,
    ) -> Outcome:
        """Compose the series, or a subset, onto the base: one tree everywhere."""
        from stackctl.compose.compose import Options, compose_series
        from stackctl.compose.plan import Selection, select

        started = time.perf_counter_ns()
        if lock:
            others = (base_only, upto, only, without, force, no_commits, out, into, ref)
            if any(others):
                raise UsageError(
                    "--lock goes with --json, --offline and no other option"
                )
            return _compose_locks(session, lock)
        if (into is None) != (ref is None):
            raise UsageError("--into and --ref go together")
        if no_commits and (into is not None or locked):
            raise UsageError("--no-commits leaves nothing for --into and --locked")
        selection = Selection(
            base_only, upto, split_names(only), split_names(without), force
        )
        if locked and not selection.whole:
            raise UsageError("--locked is about the whole series, not a subset")
        composition = compose_series(
            session.series,
            session.cache,
            selection,
            Options(commits=not no_commits, offline=session.offline),
            session.progress,
        )
        document: dict[str, Any] = composition.document()
        notes = new_pin_notes(session, select(session.series, selection), document)
        if selection.whole:
            notes += resolution_notes(session.project, composition, document)
        code = ExitCode.OK
        if locked:
            from stackctl.compose.lock import compare_with_lock

            difference = compare_with_lock(session.project, composition)
            document["locked"] = {
                "equal": difference is None,
                "difference": difference,
            }
            notes.append(f"series.lock     {difference or 'equal'}")
            code = ExitCode.OK if difference is None else ExitCode.NO
        if code == ExitCode.OK and out is not None:
            from stackctl.compose.materialise import materialise

            count = materialise(
                session.cache.store, composition.tree, out, session.progress
            )
            document["out"] = {"path": str(out), "files": count}
            notes.append(f"written         {count} files to {out}")
        if code == ExitCode.OK and into is not None and ref is not None:
            from stackctl.compose.publish import publish_commit

            assert composition.commit is not None
            publish_commit(session.cache.store, composition.commit, into, ref)
            document["into"] = {"repository": str(into), "ref": ref}
            notes.append(f"published       {ref} in {into}")
        ns = time.perf_counter_ns() - started
        document["ns"] = ns
        return Outcome(
            document,
            lambda: composition_text(composition, session.series.name, ns, notes),
            code,
        )
