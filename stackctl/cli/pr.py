# SPDX-License-Identifier: Apache-2.0
"""`stackctl pr`: the pull requests of the series."""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from stackctl.cli import pr_stack
from stackctl.cli.command import Session, command
from stackctl.cli.output import Outcome, table
from stackctl.errors import ExitCode

if TYPE_CHECKING:
    from stackctl.github.audit import Audit

EXAMPLE = (
    "Examples: stackctl pr audit; stackctl pr audit --pulls-json pulls.json; "
    "stackctl pr submit --dry-run"
)


def _text(found: "Audit") -> Iterable[str]:
    branch = f", branch {found.base}" if found.base else ""
    yield f"{found.repo}{branch}: {len(found.findings)} open pull requests"
    if found.findings:
        yield from table(
            ["#", "status", "by", "head", "title"],
            [
                [
                    str(each.pull.number),
                    each.status,
                    each.by or "",
                    each.pull.head[:12],
                    each.pull.title[:60],
                ]
                for each in found.findings
            ],
        )
    for each in found.findings:
        if not each.good:
            yield f"#{each.pull.number}: {each.why}"
    for label in found.closed:
        yield f"{label}: its pull request is not open any more"


def register(app: typer.Typer) -> None:
    """Add the commands to the application."""
    group = typer.Typer(
        name="pr",
        help="Pull requests of the series.",
        epilog=EXAMPLE,
        no_args_is_help=True,
        rich_markup_mode=None,
    )

    @group.callback()
    def _group() -> None:
        pass

    @command(
        group,
        "audit",
        epilog="Examples: stackctl pr audit; stackctl pr audit --pulls-json pulls.json",
    )
    def audit(
        session: Session,
        pulls_json: Annotated[
            Path | None,
            typer.Option(metavar="FILE", help="A saved listing instead of GitHub."),
        ] = None,
        repo: Annotated[
            str | None,
            typer.Option(metavar="OWNER/NAME", help="Repository to audit."),
        ] = None,
        base: Annotated[
            str | None,
            typer.Option(metavar="BRANCH", help="Branch that they are for."),
        ] = None,
    ) -> Outcome:
        """Check that every open pull request is a set or an exclusion with a reason.

        Exits 1 where one is neither, or where a head that was looked at has moved.
        """
        from stackctl.base.web import offline_error
        from stackctl.github import audit as auditing

        series = session.series
        name, branch = auditing.audited_repository(series, repo)
        branch = base or branch
        if pulls_json is not None:
            pulls = auditing.read_pulls(pulls_json)
        elif session.offline:
            raise offline_error(f"the list of pull requests of {name}", {"repo": name})
        else:
            token = os.environ.get("GITHUB_TOKEN") or os.environ.get("GH_TOKEN")
            pulls = auditing.live_pulls(name, branch, token)
        found = auditing.audit(series, pulls, name, branch)
        code = ExitCode.OK if found.good else ExitCode.NO
        return Outcome(found.document(), lambda: _text(found), code)

    pr_stack.register(group)
    app.add_typer(group)
