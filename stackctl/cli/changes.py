# SPDX-License-Identifier: Apache-2.0
"""`stackctl changes`: change fragments and the release notes made of them."""

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from stackctl.cli.command import Session, command
from stackctl.cli.output import Outcome, table
from stackctl.errors import ExitCode

if TYPE_CHECKING:
    from stackctl.model.lock import Content
    from stackctl.release.changes import Changes

CHECK_EXAMPLE = (
    "Examples: stackctl changes check; stackctl changes check --repo ../vllm"
)
RENDER_EXAMPLE = (
    "Examples: stackctl changes render; "
    "stackctl changes render --title v0.33.0+glm53.1 --out notes.md; "
    "stackctl changes render --all --json"
)

RepoOption = Annotated[
    Path | None,
    typer.Option(
        "--repo",
        metavar="REPO",
        help="Repository with the tags of earlier releases; by default the project's "
        "own.",
    ),
]


def _changes(session: Session, content: "Content", repo: Path | None) -> "Changes":
    from stackctl.release.changes import check_changes
    from stackctl.release.earlier import earlier_releases, repository_or_none
    from stackctl.release.fragments import load_fragments
    from stackctl.release.proof import Repository

    found = Repository(repo) if repo else repository_or_none(session.project)
    return check_changes(
        session.series,
        content,
        load_fragments(session.project),
        earlier_releases(found, session.series.name),
        session.project,
    )


def changes_text(changes: "Changes") -> Iterable[str]:
    """Return fragments and problems as lines for a person."""
    if changes.fragments:
        yield from table(
            ["fragment", "category", "state", "sets"],
            [
                [
                    each.id,
                    each.category,
                    changes.first.get(each.id) or changes.states[each.id],
                    ", ".join(each.sets),
                ]
                for each in changes.fragments
            ],
        )
    else:
        yield "there is no change fragment"
    for problem in changes.problems:
        yield f"{problem.kind}: {problem.message}"
    if not changes.problems:
        since = f" since {changes.since}" if changes.since else ""
        yield f"complete: every set is told, {len(changes.new)} new{since}"


def register(app: typer.Typer) -> None:
    """Add the commands to the application."""
    group = typer.Typer(
        name="changes",
        help="Change fragments, and the release notes made of them.",
        epilog="Example: stackctl changes check",
        no_args_is_help=True,
        rich_markup_mode=None,
    )

    @group.callback()
    def _group() -> None:
        pass

    @command(group, "check", epilog=CHECK_EXAMPLE)
    def check(session: Session, repo: RepoOption = None) -> Outcome:
        """Check that every change is told, and that nothing released was edited.

        Exits 1 where a fragment is missing, or not what an earlier release carried.
        """
        from stackctl.compose.lock import project_lock

        found = _changes(session, project_lock(session.project).content, repo)
        code = ExitCode.NO if found.problems else ExitCode.OK
        return Outcome(found.document(), lambda: changes_text(found), code)

    @command(group, "render", epilog=RENDER_EXAMPLE)
    def render(
        session: Session,
        everything: Annotated[
            bool,
            typer.Option("--all", help="Tell what earlier releases carried, too."),
        ] = False,
        title: Annotated[
            str | None, typer.Option(metavar="NAME", help="Name of the release.")
        ] = None,
        out: Annotated[
            Path | None, typer.Option(metavar="FILE", help="Write the notes there.")
        ] = None,
        repo: RepoOption = None,
    ) -> Outcome:
        """Write the release notes from exactly the sets in the composition.

        Exits 1, and writes nothing, where `changes check` finds a problem.
        """
        from stackctl.compose.compose import Options, compose_series
        from stackctl.fsutil import write_atomic
        from stackctl.release.authors import authors_by_set
        from stackctl.release.notes import render_notes

        composition = compose_series(
            session.series,
            session.cache,
            options=Options(offline=session.offline),
            progress=session.progress,
        )
        content = composition.content()
        found = _changes(session, content, repo)
        document = {**found.document(), "composition": composition.composition}
        if found.problems:
            text = [f"{each.kind}: {each.message}" for each in found.problems]
            return Outcome(document, lambda: text, ExitCode.NO)
        authors = authors_by_set(session.cache.store, content)
        notes = render_notes(
            session.series,
            content,
            found,
            authors,
            title=title,
            everything=everything,
        )
        document["notes"] = notes
        document["authors"] = {
            name: [each._asdict() for each in people]
            for name, people in authors.items()
        }
        if out is None:
            return Outcome(document, lambda: notes.splitlines())
        write_atomic(out, notes.encode())
        return Outcome(document, lambda: [f"written  {out}"])

    app.add_typer(group)
