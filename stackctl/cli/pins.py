# SPDX-License-Identifier: Apache-2.0
"""`stackctl pins`: which pinned heads have moved, and moving one."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated

import typer

from stackctl.cli.command import Session, command
from stackctl.cli.output import Outcome, table
from stackctl.cli.selection import complete_sets, split_names
from stackctl.errors import ExitCode, UsageError

if TYPE_CHECKING:
    from stackctl.compose.pins import PinState, PinUpdate

EXAMPLE = "Examples: stackctl pins --check; stackctl pins --update pull-619"


def _check_text(states: "list[PinState]") -> Iterable[str]:
    if not states:
        yield "no set has a pinned head"
        return
    yield from table(
        ["set", "pull", "state", "pinned", "remote"],
        [
            [
                each.set,
                str(each.pull),
                each.state if each.counts else f"{each.state} (not included)",
                each.pinned[:12],
                (each.remote or "")[:12],
            ]
            for each in states
        ],
    )
    for each in states:
        if each.state == "moved":
            yield f"{each.set}: pins {each.pinned}, remote has {each.remote}"
        elif each.state == "gone":
            yield f"{each.set}: {each.pull.fetch_url} has no {each.pull.fetch_ref}"
        elif each.problem:
            yield f"{each.set}: {each.problem}"
        if each.swallows:
            yield (
                f"{each.set}: brings {len(each.swallows)} upstream commits that the "
                f"base does not have (last: {each.swallows[0]}); move the base"
            )


def _update_text(done: "PinUpdate") -> Iterable[str]:
    if done.old == done.new:
        yield f"{done.set}: {done.pull} is still at {done.old}"
        return
    yield f"{done.set}: {done.pull}"
    yield f"  pinned {done.old}"
    yield f"  now    {done.new}{'' if done.written else ' (not written)'}"
    yield from done.range_diff.splitlines()
    if done.written:
        yield "series.toml is changed; next: stackctl lock"


def register(app: typer.Typer) -> None:
    """Add the command to the application."""

    @command(app, "pins", epilog=EXAMPLE)
    def pins(
        session: Session,
        check: Annotated[
            bool, typer.Option("--check", help="Show all moved heads; exit 4 if any.")
        ] = False,
        update: Annotated[
            str | None,
            typer.Option(
                metavar="SET",
                help="Pin what the remote has now.",
                autocompletion=complete_sets,
            ),
        ] = None,
        to: Annotated[
            str | None,
            typer.Option(metavar="COMMIT", help="With --update: pin this commit."),
        ] = None,
        commits: Annotated[
            list[str] | None,
            typer.Option(metavar="COMMIT,...", help="With --update: pick these."),
        ] = None,
        dry_run: Annotated[
            bool, typer.Option("--dry-run", help="With --update: only show.")
        ] = False,
    ) -> Outcome:
        """Compare pinned heads with their remotes, or move one and show what changed.

        A moved head is never followed by itself.
        """
        from stackctl.compose.pins import Pins

        if check and update is not None:
            raise UsageError("--check and --update exclude each other")
        if update is None and (to is not None or commits or dry_run):
            raise UsageError("--to, --commits and --dry-run go with --update")
        found = Pins(session.context)
        if update is not None:
            done = found.update(
                update, to=to, commits=split_names(commits), write=not dry_run
            )
            return Outcome(done.document(), lambda: _update_text(done))
        states = found.check()
        code = ExitCode.OK
        if any(each.bad for each in states):
            code = ExitCode.PIN
        elif any(each.state == "unreachable" and each.counts for each in states):
            code = ExitCode.REMOTE
        document = {
            "pins": [each.document() for each in states],
            "moved": [each.set for each in states if each.state == "moved"],
            "gone": [each.set for each in states if each.state == "gone"],
        }
        return Outcome(document, lambda: _check_text(states), code)
