# SPDX-License-Identifier: Apache-2.0
"""Doing what a plan says, one action after the other; each may be done again."""

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from stackctl.compose.compare import range_diff
from stackctl.errors import InternalError, RemoteError, StackctlError
from stackctl.github import look
from stackctl.github.actions import (
    Action,
    Ask,
    Comment,
    Create,
    Delete,
    Edit,
    Label,
    Push,
    Ready,
    Record,
    Retarget,
    Retire,
)
from stackctl.github.body import (
    find_block,
    render_block,
    rewrite_comment,
    rewrite_marker,
    wanted_title,
    with_block,
)
from stackctl.github.desk import Desk
from stackctl.github.endpoint import RefusedError
from stackctl.github.model import Layer, PullRequest, Seen, Stack
from stackctl.github.plan import Plan, table_rows
from stackctl.model.edit import edit_series, set_disposition, set_pull
from stackctl.project import SERIES_FILE

_READ_BACKS = 5
_READY = (
    "mutation($id: ID!) { markPullRequestReadyForReview(input: {pullRequestId: $id}) "
    "{ pullRequest { isDraft } } }"
)


@dataclass(slots=True)
class Done:
    """What became of a plan.

    Attributes:
        count: Actions that were done.
        numbers: Open pull requests by set.
        opened: Pages of the pull requests that were opened, by set.
        notes: What a person should know, by set.
    """

    count: int = 0
    numbers: dict[str, int] = field(default_factory=dict)
    opened: dict[str, str] = field(default_factory=dict)
    notes: list[tuple[str, str]] = field(default_factory=list)


def apply_plan(desk: Desk, stack: Stack, seen: Seen, plan: Plan) -> Done:
    """Do what a plan says.

    Args:
        desk: What it is done with.
        stack: What the series wants.
        seen: What was on GitHub when the plan was made.
        plan: The plan.

    Raises:
        StackctlError: An action failed; what was done stays, and the next plan goes on
            from there. `where` says how many were done.
    """
    return _Worker(desk, stack, seen, plan).run()


class _Worker:
    def __init__(self, desk: Desk, stack: Stack, seen: Seen, plan: Plan) -> None:
        self.desk = desk
        self.endpoint = desk.endpoint
        self.stack = stack
        self.seen = seen
        self.plan = plan
        self.layers = {each.set: each for each in stack.layers}
        self.pulls: dict[str, PullRequest] = {}
        self.done = Done()
        for name, role in plan.roles.items():
            pull = seen.pull(name)
            if role == "open" and pull is not None:
                self.pulls[name] = pull
                self.done.numbers[name] = pull.number

    def run(self) -> Done:
        total = len(self.plan.actions)
        self.desk.remote.add(self.plan.objects)
        try:
            for kind, group in groupby(self.plan.actions, type):
                some = list(group)
                if kind is Push:
                    self._say(some[0], total)
                    pushes = [each for each in some if isinstance(each, Push)]
                    self.desk.remote.push(pushes)
                    self.done.count += len(some)
                    continue
                for action in some:
                    self._say(action, total)
                    self._do(action)
                    self.done.count += 1
        except StackctlError as error:
            error.where |= {"done": self.done.count, "of": total}
            raise
        return self.done

    def _say(self, action: Action, total: int) -> None:
        self.desk.progress.note(action.words)
        self.desk.progress.update("pull requests", self.done.count, total)

    def _do(self, action: Action) -> None:
        steps: dict[type, Callable[[Any], None]] = {
            Ask: self._ask,
            Comment: self._comment,
            Create: self._create,
            Delete: self._delete,
            Edit: self._edit,
            Label: self._label,
            Ready: self._ready,
            Record: self._record,
            Retarget: self._retarget,
            Retire: self._retire,
        }
        steps[type(action)](action)

    def _note(self, name: str, text: str) -> None:
        self.done.notes.append((name, text))

    def _pull(self, name: str) -> PullRequest:
        pull = self.pulls.get(name)
        if pull is None:
            raise InternalError(f"set `{name}` has no pull request at this point")
        return pull

    def _read(self, number: int) -> PullRequest:
        return look.read_pull(self.endpoint.get(f"/pulls/{number}"))

    # -- pull requests

    def _create(self, action: Create) -> None:
        layer = self.layers[action.set]
        body: dict[str, object] = {
            "title": layer.title,
            "head": action.branch,
            "base": action.base,
            "body": self._block(layer),
            "draft": action.draft,
        }

        def there() -> Any:
            owner = self.stack.repo.partition("/")[0]
            found = self.endpoint.pages(
                "/pulls", head=f"{owner}:{action.branch}", state="open"
            )
            for each in found:
                if look.is_of(each, self.stack.repo, action.branch):
                    return each
            return None

        try:
            raw = self._open(body, there)
        except RefusedError as error:
            found = there() if error.status == 422 else None
            if found is None:
                error.where["set"] = action.set
                raise
            raw = found
        pull = look.read_pull(raw)
        self.pulls[action.set] = pull
        self.done.numbers[action.set] = pull.number
        self.done.opened[action.set] = pull.url
        self._write_number(action.set, pull.number)

    def _open(self, body: dict[str, object], there: Callable[[], Any]) -> Any:
        try:
            return self.endpoint.send("POST", "/pulls", body, there)
        except RefusedError as error:
            # Private repositories of some plans have no drafts.
            if not body["draft"] or not any(
                "raft pull requests are not supported" in each for each in error.reasons
            ):
                raise
            self._note("", "this repository has no drafts: opened as ready")
            return self.endpoint.send("POST", "/pulls", {**body, "draft": False}, there)

    def _write_number(self, name: str, number: int) -> None:
        file = self.desk.series.root / SERIES_FILE
        repo = self.stack.repo
        edit_series(
            file,
            lambda text: set_pull(
                text, file=str(file), name=name, repo=repo, number=number
            ),
        )

    def _record(self, action: Record) -> None:
        self._write_number(action.set, action.number)

    def _block(self, layer: Layer) -> str:
        rows = table_rows(self.stack, self.plan.states, self.done.numbers)
        return render_block(self.stack.name, layer.set, layer.title, layer.about, rows)

    def _edit(self, action: Edit) -> None:
        layer = self.layers[action.set]
        # Read again: somebody may have written into it since.
        pull = self._read(self._pull(action.set).number)
        body = with_block(pull.body, self._block(layer))
        if body is None:
            self._note(
                action.set,
                f"#{pull.number}: the stack's table is not written: the markers around "
                "it are damaged, or the body would be too long for GitHub",
            )
            return
        title = wanted_title(pull.title, find_block(pull.body).title, layer.title)
        change: dict[str, object] = {}
        if body != pull.body:
            change["body"] = body
        if title is not None:
            change["title"] = title
        if change:
            self.endpoint.send("PATCH", f"/pulls/{pull.number}", change)

    def _label(self, action: Label) -> None:
        number = self._pull(action.set).number
        # One by one: GitHub refuses all where it refuses one.
        for each in action.labels:
            try:
                self.endpoint.send(
                    "POST", f"/issues/{number}/labels", {"labels": [each]}
                )
            except RefusedError as error:
                if error.status != 422:
                    raise
                self._note(action.set, f"label {each} is not put on: {error.message}")

    def _ask(self, action: Ask) -> None:
        pull = self._pull(action.set)
        who = [each for each in action.who if each.lower() != pull.author.lower()]
        if len(who) < len(action.who):
            self._note(action.set, f"{pull.author} opened it and cannot review it")
        # One by one: GitHub refuses all where it refuses one.
        for each in who:
            org, is_team, team = each.partition("/")
            body: dict[str, object] = (
                {"team_reviewers": [team]} if is_team else {"reviewers": [org]}
            )
            try:
                self.endpoint.send(
                    "POST", f"/pulls/{pull.number}/requested_reviewers", body
                )
            except RefusedError as error:
                if error.status != 422:
                    raise
                self._note(action.set, f"{each} cannot be asked: {error.message}")

    def _ready(self, action: Ready) -> None:
        pull = self._pull(action.set)
        try:
            self.endpoint.graphql(_READY, {"id": pull.node})
        except RefusedError:
            # Somebody was faster, or the answer to it was lost.
            if self._read(pull.number).draft:
                raise

    def _retarget(self, action: Retarget) -> None:
        path = f"/pulls/{action.number}"
        self.endpoint.send("PATCH", path, {"base": action.new})
        for attempt in range(_READ_BACKS):
            if self._read(action.number).base == action.new:
                return
            self.endpoint.patience.wait(
                2.0**attempt, "GitHub does not show the new base yet", "unreachable"
            )
        raise RemoteError(
            f"#{action.number} is still for another branch than {action.new}, although "
            "GitHub took the change",
            kind="not-retargeted",
            hint="look at the pull request, then run the same command again",
            where={"set": action.set, "number": action.number},
        )

    def _comment(self, action: Comment) -> None:
        push = action.push
        assert push.old is not None
        mark = rewrite_marker(push.old, push.new)
        path = f"/issues/{action.number}/comments"

        def there() -> Any:
            for each in self.endpoint.pages(path):
                if mark in str(each.get("body") or ""):
                    return each
            return None

        if there() is not None:
            return
        text, _ = range_diff(self.desk.remote.store, action.old, action.new)
        body = rewrite_comment(
            push.branch, push.old, push.new, push.change or "content", text
        )
        self.endpoint.send("POST", path, {"body": body}, there)

    # -- after landings

    def _delete(self, action: Delete) -> None:
        # Asked again: deleting a branch closes the pull requests that are for it.
        based = look.based_on(self.endpoint, action.branch)
        names = [f"#{number}" for number in sorted(based)]
        if names:
            self._note(
                action.set, f"{action.branch} stays: {', '.join(names)} is for it"
            )
            return
        self.desk.remote.delete(action.branch, action.old)

    def _retire(self, action: Retire) -> None:
        file = self.desk.series.root / SERIES_FILE
        edit_series(
            file,
            lambda text: set_disposition(
                text,
                file=str(file),
                name=action.set,
                disposition="superseded",
                why=action.why,
            ),
        )
