# SPDX-License-Identifier: Apache-2.0
"""`stackctl resolve`: conflict resolutions of a pinned set, as files."""

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stackctl.cli.command import Session, command
from stackctl.cli.output import Outcome
from stackctl.cli.selection import complete_sets
from stackctl.errors import ExitCode, UsageError

if TYPE_CHECKING:
    from stackctl.compose.resolve import Resolving

EXAMPLE = (
    "Examples: stackctl resolve pull-619; stackctl resolve pull-619 --take theirs "
    "--path uv.lock"
)


def _text(done: "Resolving") -> Iterable[str]:
    for name in done.written:
        yield f"written  {name}"
    if not done.open:
        if not done.used:
            yield f"{done.set}: nothing conflicts"
        else:
            yield f"{done.set}: composes, with {len(done.used)} resolutions"
            yield from (f"  {name}" for name in done.used)
        return
    yield f"{done.set}: {len(done.open)} conflicts wait for you (of {done.commit})"
    for conflict in done.open:
        yield f"  {conflict.path.decode('utf-8', 'backslashreplace')}"
        files = done.edit[conflict.path]
        marked = [path for path in files if path.suffix not in (".ours", ".theirs")]
        if marked:
            yield f"    edit {marked[0]}"
        elif files:
            yield f"    write the file beside {', '.join(map(str, files))}"
            yield "    (or: --take ours, --take theirs, --remove, with --path)"
        else:
            yield "    choose: --take ours, --take theirs"
    yield f"then: stackctl resolve {done.set}"


def register(app: typer.Typer) -> None:
    """Add the command to the application."""

    @command(app, "resolve", epilog=EXAMPLE)
    def resolve(
        session: Session,
        name: Annotated[
            str,
            typer.Argument(
                metavar="SET", help="A pinned set.", autocompletion=complete_sets
            ),
        ],
        work: Annotated[
            Path | None,
            typer.Option(
                metavar="DIR",
                help="Where files are edited; by default .stackctl/resolve/SET.",
            ),
        ] = None,
        take: Annotated[
            str | None,
            typer.Option(metavar="ours|theirs", help="Take one side as it is."),
        ] = None,
        path: Annotated[
            list[str] | None,
            typer.Option(metavar="PATH", help="Only this path (several times)."),
        ] = None,
        remove: Annotated[
            list[str] | None,
            typer.Option(metavar="PATH", help="Resolve PATH by removing it."),
        ] = None,
    ) -> Outcome:
        """Write the resolution of a set's merge conflicts under patches/resolutions/.

        Run it once to get the conflicting files, edit them, and run it again. Exits 5
        while conflicts are open.
        """
        from stackctl.compose.resolve import Resolver, default_folder

        if take not in (None, "ours", "theirs"):
            raise UsageError(f"--take {take}: expected ours or theirs")
        side: Any = take
        folder = work or default_folder(session.project, name)
        done = Resolver(
            session.series,
            session.cache,
            name,
            folder,
            take=side,
            only=tuple(path or ()),
            remove=tuple(remove or ()),
            offline=session.offline,
            progress=session.progress,
        ).run()
        document = {
            "set": name,
            "resolved": not done.open,
            "commit": done.commit,
            "written": list(done.written),
            "resolutions": list(done.used),
            "conflicts": [
                each.document() | {"edit": [str(file) for file in done.edit[each.path]]}
                for each in done.open
            ],
        }
        code = ExitCode.CONFLICT if done.open else ExitCode.OK
        return Outcome(document, lambda: _text(done), code)
