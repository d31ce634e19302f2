# SPDX-License-Identifier: Apache-2.0
"""`stackctl pr status`, `submit` and `sync`: the stack of pull requests."""

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import fields
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stackctl.cli.command import Session, command
from stackctl.cli.output import Outcome, table
from stackctl.cli.selection import complete_sets, split_names
from stackctl.errors import ExitCode

if TYPE_CHECKING:
    from stackctl.github.actions import Action
    from stackctl.github.apply import Done
    from stackctl.github.desk import Desk
    from stackctl.github.model import Seen, Stack
    from stackctl.github.plan import Plan, Wish

STATUS_EXAMPLE = "Examples: stackctl pr status; stackctl pr status --json"
SUBMIT_EXAMPLE = (
    "Examples: stackctl pr submit --dry-run; stackctl pr submit; "
    "stackctl pr submit --ready kda-overlap"
)
SYNC_EXAMPLE = "Examples: stackctl pr sync --dry-run; stackctl pr sync"

WaitOption = Annotated[
    float,
    typer.Option(
        min=0,
        metavar="SECONDS",
        help="How long to wait for GitHub in all, at rate limits and faults.",
    ),
]
DryRunOption = Annotated[
    bool, typer.Option("--dry-run", help="Only show what would be done.")
]
SetsOption = list[str] | None


def _action(action: "Action") -> dict[str, Any]:
    from stackctl.github.actions import Push

    out: dict[str, Any] = {"kind": action.kind}
    for each in fields(action):
        value = getattr(action, each.name)
        if isinstance(value, Push):
            continue
        out[each.name] = list(value) if isinstance(value, tuple) else value
    out["words"] = action.words
    return out


def _sets(stack: "Stack", seen: "Seen", plan: "Plan", done: "Done | None") -> list[Any]:
    landed = {each.set: each for each in stack.landings}
    names = list(landed) + [each.set for each in stack.layers]
    out = []
    for name in names:
        pull = seen.pull(name)
        number = pull.number if pull else None
        url = pull.url if pull else ""
        role: str = plan.roles.get(name, "landed" if name in landed else "waiting")
        if done is not None and name in done.opened:
            number, url, role = done.numbers[name], done.opened[name], "open"
        out.append(
            {
                "set": name,
                "state": role,
                "number": number if role in ("open", "landed") else None,
                "url": url or None,
                "opened": done is not None and name in done.opened,
                "branch": plan.branches.get(name),
                "base": plan.bases.get(name),
                "commit": plan.heads.get(name),
                "draft": pull.draft if pull and role == "open" else None,
                "review": pull.review if pull and role == "open" else None,
                "checks": pull.checks if pull and role == "open" else None,
                "landed": landed[name].commit if name in landed else None,
                "in_base": landed[name].in_base if name in landed else None,
            }
        )
    return out


def _document(
    stack: "Stack",
    seen: "Seen",
    plan: "Plan",
    done: "Done | None",
    more: Sequence[tuple[str, str]] = (),
) -> dict[str, Any]:
    notes = [*plan.notes, *more, *(done.notes if done else ())]
    return {
        "repo": stack.repo,
        "trunk": stack.trunk,
        "start": stack.start,
        "sets": _sets(stack, seen, plan, done),
        "plan": [_action(each) for each in plan.actions],
        "done": done.count if done else 0,
        "notes": [{"set": name or None, "text": text} for name, text in notes],
        "blocked": [
            {"set": each.set or None, "kind": each.kind, "why": each.why}
            | {"hint": each.hint}
            for each in plan.blocked
        ],
    }


def _text(document: dict[str, Any], head: str) -> Iterable[str]:
    yield f"{document['repo']}, onto {document['trunk']}: {head}"
    if document["sets"]:
        yield from table(
            ["set", "#", "state", "review", "checks", "branch"],
            [
                [
                    each["set"],
                    str(each["number"] or ""),
                    each["state"] + (" (draft)" if each["draft"] else ""),
                    each["review"] or "",
                    each["checks"] or "",
                    each["branch"] or "",
                ]
                for each in document["sets"]
            ],
        )
    for number, each in enumerate(document["plan"], 1):
        yield f"{number:3}. {each['words']}"
    if document["done"]:
        for each in document["sets"]:
            if each["opened"]:
                yield f"opened: {each['set']}: {each['url']}"
    for each in document["notes"]:
        place = f"{each['set']}: " if each["set"] else ""
        yield f"note: {place}{each['text']}"
    for each in document["blocked"]:
        place = f"{each['set']}: " if each["set"] else ""
        yield f"blocked: {place}{each['why']}"
        yield f"   hint: {each['hint']}"


def _known_sets(session: Session, names: Sequence[str]) -> frozenset[str]:
    from stackctl.compose.plan import find_set

    return frozenset(find_set(session.series, name).name for name in names)


def _desk(session: Session, wait: float) -> "AbstractContextManager[Desk]":
    from stackctl.github.desk import open_desk

    return open_desk(
        session.series,
        session.cache,
        offline=session.offline,
        wait=wait,
        progress=session.progress,
    )


def _run(session: Session, wish: "Wish", dry_run: bool, wait: float) -> Outcome:
    from stackctl.github.apply import apply_plan
    from stackctl.github.plan import make_plan

    with _desk(session, wait) as desk:
        stack, seen = desk.look()
        plan = make_plan(stack, seen, wish)
        taken = desk.taken_upstream(stack, seen) if wish.tidy else []
        done = None
        if not dry_run and not plan.blocked:
            done = apply_plan(desk, stack, seen, plan)
    document = _document(stack, seen, plan, done, taken)
    count = len(plan.actions)
    if plan.blocked:
        head, code = "nothing is done", ExitCode.CONFLICT
    elif not count:
        head, code = "nothing to do", ExitCode.OK
    else:
        noun = "action" if count == 1 else "actions"
        head = f"{count} {noun} {'to do' if done is None else 'done'}"
        code = ExitCode.OK
    return Outcome(document, lambda: _text(document, head), code)


def register(group: typer.Typer) -> None:
    """Add the commands to the group `pr`."""

    @command(group, "status", epilog=STATUS_EXAMPLE)
    def status(session: Session, wait: WaitOption = 900) -> Outcome:
        """Show the stack on GitHub: reviews, checks, landings, what is to be done.

        Exits 1 where `pr submit` or `pr sync` would do something, 5 where they could
        not.
        """
        from stackctl.github.plan import Wish, make_plan

        with _desk(session, wait) as desk:
            stack, seen = desk.look(checks=True)
            taken = desk.taken_upstream(stack, seen)
        plan = make_plan(stack, seen, Wish(create=True, content=True, tidy=True))
        document = _document(stack, seen, plan, None, taken)
        if plan.blocked:
            head, code = "something is in the way", ExitCode.CONFLICT
        elif plan.actions:
            head, code = "to be done:", ExitCode.NO
        else:
            head, code = "as the series wants it", ExitCode.OK
        return Outcome(document, lambda: _text(document, head), code)

    @command(group, "submit", epilog=SUBMIT_EXAMPLE)
    def submit(
        session: Session,
        dry_run: DryRunOption = False,
        ready: Annotated[
            SetsOption,
            typer.Option(
                metavar="SET",
                help="Make its pull request ready for review, no draft any more.",
                autocompletion=complete_sets,
            ),
        ] = None,
        rewrite: Annotated[
            bool,
            typer.Option(
                "--rewrite",
                help="Replace the commits of reviewed pull requests, with a comment "
                "that shows the range-diff.",
            ),
        ] = False,
        again: Annotated[
            SetsOption,
            typer.Option(
                metavar="SET",
                help="Open a new pull request, on a new branch, after a closed one.",
                autocompletion=complete_sets,
            ),
        ] = None,
        over: Annotated[
            SetsOption,
            typer.Option(
                metavar="SET",
                help="Undo what others pushed to its branch and the series has not.",
                autocompletion=complete_sets,
            ),
        ] = None,
        wait: WaitOption = 900,
    ) -> Outcome:
        """Push the sets and open or update their pull requests, one on the other.

        A pull request is a draft until --ready names its set. Reviewed commits stay:
        an update is a commit on top. Stop it anywhere and run it again.

        Exits 4 where a branch moved meanwhile, 5 where nothing may be done (the answer
        says why), 6 where GitHub refuses or has to be waited for.
        """
        from stackctl.github.plan import Wish

        wish = Wish(
            create=True,
            content=True,
            rewrite=rewrite,
            ready=_known_sets(session, split_names(ready)),
            again=_known_sets(session, split_names(again)),
            over=_known_sets(session, split_names(over)),
        )
        return _run(session, wish, dry_run, wait)

    @command(group, "sync", epilog=SYNC_EXAMPLE)
    def sync(
        session: Session,
        dry_run: DryRunOption = False,
        delete_closed: Annotated[
            bool,
            typer.Option(
                "--delete-closed",
                help="Delete the branches of pull requests that were closed without "
                "being merged, too.",
            ),
        ] = False,
        wait: WaitOption = 900,
    ) -> Outcome:
        """Follow what happened on GitHub: landings, closed and moved pull requests.

        The pull request above a landed one gets the base of that one; then branches
        that nothing needs are deleted. A set that the pinned base contains becomes
        superseded in series.toml. Nothing that the series changed is pushed: that is
        `pr submit`. Exit codes are those of `pr submit`.
        """
        from stackctl.github.plan import Wish

        return _run(session, Wish(tidy=True, tidy_closed=delete_closed), dry_run, wait)
