# SPDX-License-Identifier: Apache-2.0
"""From the stack that a series wants and what GitHub has to a list of actions.

Nothing here asks anybody: the ids of commits that are still to be made follow from
their content. The order of the actions is what makes stopping anywhere harmless, and
what keeps GitHub from closing or merging what it should not:

- A pull request whose branch would become part of its own base is moved off that base
  first: GitHub takes it for merged otherwise.
- The comment on a rewriting comes before the push, so that no rewriting goes untold.
- All pushes are one, and none of it happens where one is refused.
- A branch is deleted last, when no open pull request is for it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

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
from stackctl.github.body import Row, find_block, render_block, rows_of, wanted_title
from stackctl.github.model import (
    Change,
    Head,
    Layer,
    PullRequest,
    Seen,
    Stack,
    branch_name,
    carried_name,
)
from stackctl.model.ids import CommitId

Role = Literal["open", "new", "carried", "waiting"]


@dataclass(frozen=True, slots=True)
class Wish:
    """What a command is allowed to do.

    Attributes:
        create: Open pull requests.
        content: Push what the series changed.
        tidy: Delete the branches of what landed, and write landings into series.toml.
        tidy_closed: Delete the branches of what was closed without being merged too.
        rewrite: Replace reviewed commits.
        ready: Sets whose pull request is no draft any more.
        again: Sets that get a new pull request after a closed one.
        over: Sets whose branch may be set back although others pushed to it.
    """

    create: bool = False
    content: bool = False
    tidy: bool = False
    tidy_closed: bool = False
    rewrite: bool = False
    ready: frozenset[str] = frozenset()
    again: frozenset[str] = frozenset()
    over: frozenset[str] = frozenset()


SUBMIT = Wish(create=True, content=True)
SYNC = Wish(tidy=True)


@dataclass(frozen=True, slots=True)
class Blocked:
    """Why nothing is done.

    Attributes:
        set: The set.
        kind: Stable word for scripts.
        why: What is wrong.
        hint: What to do about it.
    """

    set: str
    kind: str
    why: str
    hint: str


@dataclass(frozen=True, slots=True)
class Plan:
    """What is to be done.

    Attributes:
        actions: The actions, in order.
        objects: Bytes of the commits that are made for it, by id.
        branches: Branch of each set that has or gets one.
        bases: Branch below each of them.
        heads: Commit that each of them has in the end.
        roles: What each set is on GitHub.
        states: What the table says of sets without an open pull request here.
        notes: What a person should know, by set.
        blocked: Why nothing is done; empty where it can be.
    """

    actions: tuple[Action, ...] = ()
    objects: Mapping[CommitId, bytes] = field(default_factory=dict, repr=False)
    branches: Mapping[str, str] = field(default_factory=dict)
    bases: Mapping[str, str] = field(default_factory=dict)
    heads: Mapping[str, CommitId] = field(default_factory=dict)
    roles: Mapping[str, Role] = field(default_factory=dict)
    states: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[tuple[str, str], ...] = ()
    blocked: tuple[Blocked, ...] = ()


def table_rows(
    stack: Stack, plan_states: Mapping[str, str], numbers: Mapping[str, int]
) -> list[Row]:
    """Return the table of a stack.

    Args:
        stack: The stack.
        plan_states: What is said of sets without an open pull request here.
        numbers: Open pull requests by set.
    """
    sets = [(each.set, each.title) for each in stack.layers]
    return rows_of(sets, numbers, plan_states)


def make_plan(stack: Stack, seen: Seen, wish: Wish) -> Plan:
    """Return what has to be done so that GitHub has what the series wants.

    Args:
        stack: What the series wants.
        seen: What is there.
        wish: What may be done.
    """
    return _Planner(stack, seen, wish).plan()


class _Planner:
    def __init__(self, stack: Stack, seen: Seen, wish: Wish) -> None:
        self.stack = stack
        self.seen = seen
        self.wish = wish
        self.objects: dict[CommitId, bytes] = {}
        self.branches: dict[str, str] = {}
        self.bases: dict[str, str] = {}
        self.heads: dict[str, CommitId] = {}
        self.roles: dict[str, Role] = {}
        self.states: dict[str, str] = {}
        self.notes: list[tuple[str, str]] = []
        self.blocked: list[Blocked] = []
        self.pushes: list[Push] = []
        self.comments: list[Comment] = []
        self.early: list[Retarget] = []
        self.late: list[Retarget] = []
        self.rest: list[Action] = []
        self.order = {each.set: n for n, each in enumerate(stack.layers)}
        # Where the plan stops changing commits: the set, and why.
        self.held = ""

    def plan(self) -> Plan:
        stack, seen = self.stack, self.seen
        seed: list[Action] = []
        if stack.trunk not in seen.branches:
            if stack.seed:
                seed.append(Push("", stack.trunk, None, stack.start, "new"))
            else:
                self._block(
                    "",
                    "no-base-branch",
                    f"{stack.repo} has no branch {stack.trunk}",
                    "push it, or correct `base` in [github] of series.toml",
                )
        for name, why in stack.absent.items():
            self._note(name, why)
        self._note_stacks()
        below, head = stack.trunk, stack.start
        for layer in stack.layers:
            below, head = self._layer(layer, below, head)
        self._find_traps()
        if self.blocked:
            return Plan(
                branches=self.branches,
                bases=self.bases,
                heads=self.heads,
                roles=self.roles,
                states=self.states,
                notes=tuple(self.notes),
                blocked=tuple(self.blocked),
            )
        creates = self._creates()
        self._words_on_pulls()
        tidy = self._tidy() if self.wish.tidy else []
        # Without a pull request to need it, a base of ours is not pushed either.
        if not self.pushes and not creates:
            seed = []
        actions = (
            *seed,
            *self.early,
            *self.comments,
            *self.pushes,
            *self.late,
            *creates,
            *self.rest,
            *tidy,
        )
        return Plan(
            actions,
            self.objects,
            self.branches,
            self.bases,
            self.heads,
            self.roles,
            self.states,
            tuple(self.notes),
        )

    def _note(self, name: str, text: str) -> None:
        self.notes.append((name, text))

    def _block(self, name: str, kind: str, why: str, hint: str) -> None:
        self.blocked.append(Blocked(name, kind, why, hint))

    # -- native stacks

    @property
    def _native(self) -> dict[str, int]:
        found = {}
        for layer in self.stack.layers:
            pull = self.seen.pull(layer.set)
            if pull is not None and pull.state == "open" and pull.stack:
                found[layer.set] = pull.stack
        return found

    def _note_stacks(self) -> None:
        for number in sorted(set(self._native.values())):
            names = [name for name, each in self._native.items() if each == number]
            self._note(
                "",
                f"GitHub's own stack {number} holds {', '.join(names)}: the bases of "
                "its pull requests are left to GitHub",
            )

    # -- one set

    def _role(self, layer: Layer) -> tuple[Role, str, PullRequest | None]:
        """Return what a set is on GitHub, its branch, and its open pull request."""
        prefix = self.stack.prefix
        carried = carried_name(prefix, layer.set)
        if layer.elsewhere:
            self.states[layer.set] = layer.elsewhere
            self._note(layer.set, f"no pull request here: {layer.elsewhere}")
            return "carried", carried, None
        pull = self.seen.pull(layer.set)
        if pull is not None and pull.state == "open" and not pull.apart:
            self._note_others(layer.set, pull)
            return "open", pull.head, pull
        if pull is None:
            return self._fresh(layer)
        if layer.set in self.wish.again:
            return self._fresh(layer)
        if pull.apart and pull.state != "merged":
            self.states[layer.set] = f"#{pull.number}, from a fork"
            self._note(
                layer.set,
                f"#{pull.number} is from a fork and stays as it is; a pull request of "
                f"the stack needs --again {layer.set}",
            )
            return "carried", carried, None
        if pull.state == "merged" and pull.base in self.branches.values():
            into = next(
                (name for name, each in self.branches.items() if each == pull.base),
                pull.base,
            )
            why = (
                f"#{pull.number} ({layer.set}) was merged into {pull.base}, not into "
                f"{self.stack.trunk}: the pull request of {into} shows both now"
            )
            self._block(
                layer.set,
                "merged-below",
                why,
                f"open a new one and set {into} back: stackctl pr submit --again "
                f"{layer.set} --over {into}; or move the patches into {into}",
            )
        self.states[layer.set] = f"#{pull.number}, {pull.state}"
        if pull.state == "merged":
            self._note(
                layer.set,
                f"#{pull.number} was merged into {pull.base}, which the series does "
                f"not stand on (now: {self.stack.trunk}): make the set superseded if "
                f"the base has it, else open a new one with --again {layer.set}",
            )
        else:
            self._note(
                layer.set,
                f"#{pull.number} was closed without being merged; a new pull request "
                f"needs --again {layer.set}",
            )
        return "carried", carried, None

    def _note_others(self, name: str, pull: PullRequest) -> None:
        for each in self.seen.pulls.get(name, ()):
            if each.state == "open" and each.number != pull.number and not each.apart:
                self._note(
                    name,
                    f"#{each.number} is open too, and left alone: the stack goes on "
                    f"with #{pull.number}",
                )

    def _fresh(self, layer: Layer) -> tuple[Role, str, PullRequest | None]:
        stem = branch_name(self.stack.prefix, layer.set)
        used = [0]
        for pull in self.seen.pulls.get(layer.set, ()):
            _, found, rest = pull.head.partition(stem)
            if found and rest.removeprefix(".").isdecimal():
                used.append(int(rest.removeprefix(".")))
            elif pull.head == stem:
                used.append(1)
        # One above the highest: the branch of a pull request is never used again.
        name = branch_name(self.stack.prefix, layer.set, max(used) + 1)
        return ("new" if self.wish.create else "waiting"), name, None

    def _layer(self, layer: Layer, below: str, start: CommitId) -> tuple[str, CommitId]:
        role, branch, pull = self._role(layer)
        self.roles[layer.set] = role
        if role == "waiting":
            self.states[layer.set] = "to come"
            self._note(layer.set, "no pull request yet: stackctl pr submit")
            self.held = self.held or layer.set
            return below, start
        present = self.seen.branches.get(branch)
        if role == "carried" and self.held and present is None:
            return below, start
        self.branches[layer.set] = branch
        self.bases[layer.set] = below
        if pull is not None:
            self._base_of(layer, pull, below)
        head = self._head(layer, branch, start, pull)
        self.heads[layer.set] = head
        return branch, head

    def _base_of(self, layer: Layer, pull: PullRequest, below: str) -> None:
        if pull.base == below:
            return
        if layer.set in self._native:
            self._note(
                layer.set,
                f"#{pull.number} is for {pull.base}, not for {below}: GitHub's own "
                "stack decides",
            )
            return
        if not self.wish.content and pull.base in self._live():
            # Another order: its base may only change together with the commits.
            self._note(layer.set, f"is to stand on {below}: stackctl pr submit")
            self.held = self.held or layer.set
            return
        known = self.seen.pulls
        why = "the set below has changed"
        for landing in self.stack.landings:
            if any(each.head == pull.base for each in known.get(landing.set, ())):
                why = f"{landing.set} has landed"
        if pull.base == self.stack.trunk:
            why = f"it stands on {below}"
        self.late.append(Retarget(layer.set, pull.number, pull.base, below, why))

    def _live(self) -> set[str]:
        """Return the branches that the sets have on GitHub now."""
        out = set()
        for layer in self.stack.layers:
            pull = self.seen.pull(layer.set)
            opened = pull is not None and pull.state == "open" and not pull.apart
            if pull is not None and opened and not layer.elsewhere:
                out.add(pull.head)
            else:
                out.add(carried_name(self.stack.prefix, layer.set))
        return out

    def _head(
        self,
        layer: Layer,
        branch: str,
        start: CommitId,
        pull: PullRequest | None,
    ) -> CommitId:
        """Return the commit that a branch is to have, and plan the push."""
        grown = layer.grown_on(start)
        wanted = grown[-1][0]
        present = self.seen.branches.get(branch)
        if present == wanted:
            return present
        if present is None:
            self._push(Push(layer.set, branch, None, wanted, "new"), grown)
            return wanted
        head = self.seen.heads[present]
        if pull is None and head.foreign:
            self._block(
                layer.set,
                "foreign-branch",
                f"branch {branch} has commits that are not stackctl's, and no pull "
                "request",
                "delete or rename it, or set another `prefix` in [github]",
            )
            return present
        exact = head.tree == layer.tree and start in head.contains
        reviewed = pull is not None and pull.reviewed
        # Where nobody has looked, a branch also gets new messages of its commits.
        kept = reviewed or head.foreign or not self.wish.content
        if exact and kept and not (self.wish.rewrite and reviewed):
            if pull is not None and head.foreign:
                self._note(
                    layer.set, f"{branch} has commits of others, with the same result"
                )
            return present
        change: Change = "content"
        if head.patch_id == layer.patch_id:
            change = "rebase"
        if self.held or (change == "content" and not self.wish.content):
            if self.held:
                self._note(layer.set, f"is not pushed before {self.held} is: pr submit")
            else:
                self._note(layer.set, "differs from the series: stackctl pr submit")
            self.held = self.held or layer.set
            return present
        if head.foreign and layer.set not in self.wish.over and not exact:
            self._refuse_foreign(layer, branch, head)
            return present
        if present in {commit for commit, _ in grown}:
            self._push(
                Push(layer.set, branch, present, wanted, "forward", change), grown
            )
            return wanted
        if reviewed and not self.wish.rewrite:
            return self._on_top(layer, branch, start, head, change)
        if pull is not None and head.foreign and not self.wish.rewrite:
            return self._on_top(layer, branch, start, head, change)
        push = Push(layer.set, branch, present, wanted, "rewrite", change)
        self._push(push, grown)
        if pull is not None and reviewed:
            old = (head.on or start, present)
            new = (start, wanted)
            self.comments.append(Comment(layer.set, pull.number, push, old, new))
        return wanted

    def _on_top(
        self, layer: Layer, branch: str, start: CommitId, head: Head, change: Change
    ) -> CommitId:
        parents = [head.commit]
        if start not in head.contains:
            parents.append(start)
        words = {
            "content": "content: its change is another one than before",
            "rebase": "rebase: its change is the same as before",
        }[change]
        message = f"Update {layer.set} to the series\n\n{words}\n"
        commit, raw = layer.on_top(parents, message)
        push = Push(layer.set, branch, head.commit, commit, "on-top", change)
        self._push(push, ((commit, raw),))
        return commit

    def _push(self, push: Push, objects: Sequence[tuple[CommitId, bytes]]) -> None:
        self.pushes.append(push)
        self.objects.update(objects)

    def _refuse_foreign(self, layer: Layer, branch: str, head: Head) -> None:
        count = len(head.foreign)
        noun = "commit" if count == 1 else "commits"
        self._block(
            layer.set,
            "foreign-commits",
            f"{branch} has {count} {noun} that the series does not have (newest: "
            f"{head.foreign[0]})",
            f"take them into the set (git fetch the branch, then stackctl export "
            f"{layer.set} --from REPO RANGE), or undo them: --over {layer.set}",
        )

    # -- traps

    def _find_traps(self) -> None:
        """Move pull requests off bases that their branch would become a part of."""
        late: list[Retarget] = []
        safe = self._safe_base()
        owner = {branch: name for name, branch in self.branches.items()}
        for each in self.late:
            now = owner.get(each.old)
            trap = now is not None and self.order[now] > self.order[each.set]
            if trap and each.new != safe:
                why = f"it would count as merged once {now} stands on it"
                self.early.append(Retarget(each.set, each.number, each.old, safe, why))
                late.append(Retarget(each.set, each.number, safe, each.new, each.why))
            elif trap:
                self.early.append(each)
            else:
                late.append(each)
        self.late = late
        for name in self._native:
            pull = self.seen.pull(name)
            assert pull is not None
            now = owner.get(pull.base)
            if now is not None and self.order[now] > self.order[name]:
                self._block(
                    name,
                    "native-stack",
                    f"{name} comes before {now} in the series, but after it in "
                    f"GitHub's own stack {pull.stack}",
                    "dissolve that stack on GitHub, then run the command again",
                )

    def _safe_base(self) -> str:
        """Return the branch below the whole stack, as GitHub has it now."""
        ours = set(self.branches.values())
        for name in self.order:
            pull = self.seen.pull(name)
            if pull is not None and pull.state == "open" and pull.base not in ours:
                return pull.base
        return self.stack.trunk

    # -- pull requests

    def _creates(self) -> list[Action]:
        out: list[Action] = []
        for layer in self.stack.layers:
            if self.roles[layer.set] == "new":
                draft = layer.set not in self.wish.ready
                name = layer.set
                out.append(Create(name, self.branches[name], self.bases[name], draft))
        return out

    def _words_on_pulls(self) -> None:
        numbers = self._numbers()
        fresh = [name for name, role in self.roles.items() if role == "new"]
        rows = table_rows(self.stack, self.states, numbers)
        for layer in self.stack.layers:
            name = layer.set
            if self.roles[name] == "new":
                # The last one that is opened can name all others from the start.
                if name != fresh[-1]:
                    self.rest.append(Edit(name, None))
                self._wishes(layer, None)
                continue
            pull = self.seen.pull(name)
            if self.roles[name] != "open" or pull is None:
                continue
            if layer.number != pull.number:
                self.rest.append(Record(name, pull.number))
            found = find_block(pull.body)
            block = render_block(self.stack.name, name, layer.title, layer.about, rows)
            title = wanted_title(pull.title, found.title, layer.title)
            if found.damaged:
                self._note(
                    name,
                    f"#{pull.number}: the marks around the stack's table are damaged; "
                    "it is left alone (remove the rest of it, and it is written again)",
                )
            elif found.text != block or title is not None or fresh:
                # With the numbers of those that are opened, every table is another.
                self.rest.append(Edit(name, pull.number, title))
            elif pull.title != layer.title:
                self._note(name, f"#{pull.number} has a title of its own, which stays")
            self._wishes(layer, pull)
        for name in sorted(self.wish.ready):
            if self.roles.get(name) not in ("open", "new"):
                self._note(name, "has no open pull request to be made ready")
        for name in sorted(self.wish.again):
            if self.roles.get(name) != "new":
                self._note(name, "gets no new pull request: it is open, or has landed")

    def _numbers(self) -> dict[str, int]:
        out = {}
        for layer in self.stack.layers:
            pull = self.seen.pull(layer.set)
            if self.roles[layer.set] == "open" and pull is not None:
                out[layer.set] = pull.number
        return out

    def _wishes(self, layer: Layer, pull: PullRequest | None) -> None:
        if not self.wish.create:
            return
        number = pull.number if pull else None
        labels = tuple(
            each
            for each in layer.labels
            if pull is None or each.lower() not in {n.lower() for n in pull.labels}
        )
        if labels:
            self.rest.append(Label(layer.set, number, labels))
        known: set[str] = set()
        if pull is not None:
            people = (*pull.asked, *pull.reviews, pull.author)
            known = {each.lower() for each in people}
            # A team is not named any more once one of it has reviewed.
            if pull.reviews:
                known |= {each.lower() for each in layer.reviewers if "/" in each}
        who = tuple(each for each in layer.reviewers if each.lower() not in known)
        if pull is not None and pull.author.lower() in {
            each.lower() for each in layer.reviewers
        }:
            self._note(layer.set, f"{pull.author} opened it and cannot review it")
        if who:
            self.rest.append(Ask(layer.set, number, who))
        if pull is not None and layer.set in self.wish.ready and pull.draft:
            self.rest.append(Ready(layer.set, number))

    # -- after landings

    def _tidy(self) -> list[Action]:
        out: list[Action] = []
        for landing in self.stack.landings:
            if landing.in_base:
                out.append(
                    Retire(
                        landing.set,
                        f"already-in-base: {self.stack.repo}#{landing.number} landed "
                        f"as {landing.commit}",
                    )
                )
            else:
                self._note(
                    landing.set,
                    f"landed as {landing.commit}: already-in-base once the base is at "
                    "that commit or a later one",
                )
        out += self._deletions()
        return out

    def _deletions(self) -> list[Action]:
        out: list[Action] = []
        needed = {*self.branches.values(), *self._kept_bases()}
        for name, pulls in self.seen.pulls.items():
            for pull in pulls:
                present = self.seen.branches.get(pull.head)
                if pull.state == "open" or present is None or pull.head in needed:
                    continue
                if pull.apart:
                    continue
                if not pull.head.startswith(self.stack.prefix):
                    continue  # not a branch that we made
                if pull.head in self.seen.needed:
                    self._note(
                        name, f"{pull.head} stays: open pull requests are for it"
                    )
                    continue
                if pull.state == "closed" and not self.wish.tidy_closed:
                    self._note(
                        name,
                        f"#{pull.number} is closed, its branch {pull.head} stays "
                        "(--delete-closed)",
                    )
                    continue
                if present != pull.sha:
                    self._note(
                        name,
                        f"{pull.head} stays: it has moved since #{pull.number} was "
                        f"{pull.state}",
                    )
                    continue
                why = f"#{pull.number} is {pull.state}, nothing is based on it"
                out.append(Delete(name, pull.head, present, why))
        return [*out, *self._leftovers(needed)]

    def _leftovers(self, needed: set[str]) -> list[Action]:
        """Return the deletions of branches without a pull request; name the rest."""
        prefix = self.stack.prefix
        known = {pull.head for pulls in self.seen.pulls.values() for pull in pulls}
        out: list[Action] = []
        for branch, present in self.seen.branches.items():
            name = branch.removeprefix(prefix)
            if not branch.startswith(prefix) or branch in needed | known:
                continue
            if name.startswith("base.") or branch == self.stack.trunk:
                continue  # what landed there is nowhere else
            if name.endswith(".carried"):
                why = "nothing is based on it"
                out.append(Delete(name.partition(".")[0], branch, present, why))
            elif name not in self.roles:
                self._note(
                    "",
                    f"{branch} belongs to no set of the series: close its pull request "
                    "and delete it, or choose another `prefix`",
                )
        return out

    def _kept_bases(self) -> set[str]:
        """Return the branches that open pull requests will still be for."""
        moved = {each.number: each.new for each in (*self.early, *self.late)}
        return {
            moved.get(pull.number, pull.base)
            for pulls in self.seen.pulls.values()
            for pull in pulls
            if pull.state == "open"
        }
