# SPDX-License-Identifier: Apache-2.0
"""The plan as a pure function: what the series wants, what is there, what is done."""

from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from stackctl.git.objects import COMMIT, encode_commit, object_id
from stackctl.github.actions import Create, Push, Retarget
from stackctl.github.body import (
    MAX_BODY,
    find_block,
    render_block,
    rewrite_comment,
    rows_of,
    wanted_title,
    with_block,
)
from stackctl.github.model import Head, Layer, PullRequest, Seen, Stack, branch_name
from stackctl.github.plan import SUBMIT, Plan, Wish, make_plan, table_rows
from stackctl.model.ids import CommitId, TreeId

START = CommitId("a" * 40)
WHO = b"stackctl <stackctl@localhost> 1 +0000"


def tree(text: str) -> TreeId:
    return TreeId(text.encode().hex().ljust(40, "0")[:40])


def layers(*names: str, **more: Any) -> tuple[Layer, ...]:
    out, below = [], START
    for name in names:
        raw = encode_commit(tree(name), (below,), WHO, WHO, name.encode() + b"\n")
        layer = Layer(name, name.title(), "", (raw,), below, tree(name), name, **more)
        out.append(layer)
        below = CommitId(object_id(COMMIT, raw).hex())
    return tuple(out)


def stack(*names: str, **more: Any) -> Stack:
    return Stack("s", "o/r", "p/", "main", START, False, layers(*names, **more))


NOTHING = Seen({"main": START}, {}, {})


def done(wanted: Stack, plan: Plan, seen: Seen, review: bool = False) -> Seen:
    """Return what GitHub has after a plan: a model of it without a network."""
    branches, pulls = dict(seen.branches), dict(seen.pulls)
    heads = dict(seen.heads)
    contains = {START}
    for layer in wanted.layers:
        head = plan.heads[layer.set]
        contains |= {head, *(commit for commit, _ in layer.grown_on(layer.below))}
        known = heads.get(head)
        if known is None:
            heads[head] = Head(head, layer.tree, frozenset(contains), (), layer.set)
        contains |= heads[head].contains
    for action in plan.actions:
        if isinstance(action, Push):
            assert branches.get(action.branch) == action.old
            branches[action.branch] = action.new
        if isinstance(action, Create):
            assert action.branch in branches and action.base in branches
    numbers = {}
    for n, layer in enumerate(wanted.layers, 1):
        numbers[layer.set] = next((p.number for p in pulls.get(layer.set, ())), n)
    for layer in wanted.layers:
        rows = table_rows(wanted, plan.states, numbers)
        body = render_block("s", layer.set, layer.title, layer.about, rows)
        branch = plan.branches[layer.set]
        pull = PullRequest(
            numbers[layer.set], "n", "open", True, layer.title, body, "ada", branch,
            branches[branch], plan.bases[layer.set],
            reviews={"bob": "approved"} if review else {},
        )  # fmt: skip
        pulls[layer.set] = (pull,)
    return Seen(branches, pulls, heads)


def recorded(wanted: Stack, seen: Seen) -> Stack:
    return replace(
        wanted,
        layers=tuple(
            replace(each, number=seen.pulls[each.set][0].number)
            for each in wanted.layers
        ),
    )


def test_from_nothing() -> None:
    plan = make_plan(stack("a", "b"), NOTHING, SUBMIT)
    assert [each.kind for each in plan.actions] == [
        "push", "push", "create", "create", "edit",
    ]  # fmt: skip
    assert [each for each in plan.actions if isinstance(each, Create)] == [
        Create("a", "p/a", "main"), Create("b", "p/b", "p/a"),
    ]  # fmt: skip
    seen = done(stack("a", "b"), plan, NOTHING)
    assert make_plan(recorded(stack("a", "b"), seen), seen, SUBMIT).actions == ()


def test_status_only_creates_nothing() -> None:
    plan = make_plan(stack("a"), NOTHING, Wish(tidy=True))
    assert plan.actions == () and plan.roles == {"a": "waiting"}


@given(
    st.permutations(["a", "b", "c", "d"]),
    st.integers(0, 4),
    st.permutations(["a", "b", "c", "d"]),
    st.integers(0, 4),
    st.booleans(),
    st.booleans(),
)
def test_any_stack_from_any_other(
    first: list[str], m: int, second: list[str], n: int, review: bool, rewrite: bool
) -> None:
    before, after = stack(*first[:m]), stack(*second[:n])
    seen = done(before, make_plan(before, NOTHING, SUBMIT), NOTHING, review)
    before = recorded(before, seen)
    # The sets that are not in the series any more are not asked for.
    now = Seen(
        seen.branches,
        {k: v for k, v in seen.pulls.items() if k in second[:n]},
        seen.heads,
    )
    wish = replace(SUBMIT, rewrite=rewrite)
    plan = make_plan(after, now, wish)
    assert plan.blocked == ()
    base = {name: pulls[0].base for name, pulls in now.pulls.items()}
    branches = dict(now.branches)
    order = list(second[:n])
    for action in plan.actions:
        if isinstance(action, Retarget):
            assert base[action.set] == action.old and action.new in branches
            base[action.set] = action.new
        if isinstance(action, Push):
            assert branches.get(action.branch) == action.old
            branches[action.branch] = action.new
            if action.old is not None and review and not rewrite:
                assert action.how in ("on-top", "forward")
        if isinstance(action, Push):
            # No pull request may be for a branch that contains it now.
            for name, target in base.items():
                above = order[order.index(name) + 1 :]
                assert target not in [branch_name("p/", each) for each in above]
    again = done(after, plan, now, review)
    if n:
        assert make_plan(recorded(after, again), again, wish).actions == ()


def test_the_safe_base_is_one_that_is_there() -> None:
    """The trunk that a new base gets may have no history in common yet."""
    seen = done(stack("a", "b"), make_plan(stack("a", "b"), NOTHING, SUBMIT), NOTHING)
    wanted = replace(stack("b", "a"), trunk="p/base.new", seed=True)
    plan = make_plan(recorded(wanted, seen), seen, SUBMIT)
    first = next(each for each in plan.actions if isinstance(each, Retarget))
    assert (first.set, first.new) == ("b", "main")
    kinds = [each.kind for each in plan.actions]
    assert kinds[0] == "push" and kinds.index("retarget") < len(kinds)


def test_numbers_of_branches_are_never_used_again() -> None:
    def pull(number: int, head: str) -> PullRequest:
        return PullRequest(
            number, "n", "closed", False, "A", "", "ada", head, START, "main"
        )

    seen = Seen(
        {"main": START},
        {"a": (pull(9, "p/a.3"), pull(5, "p/a"), pull(7, "own"))},
        {},
    )
    plan = make_plan(stack("a"), seen, replace(SUBMIT, again=frozenset("a")))
    assert plan.branches == {"a": "p/a.4"}


# -- what is written

OWN = st.text(st.characters(codec="utf-8", exclude_characters="\x00"), max_size=60)


@given(OWN, OWN, OWN, st.booleans())
def test_what_people_write_stays(
    before: str, after: str, about: str, dos: bool
) -> None:
    def block(text: str, number: int) -> str:
        rows = rows_of([("a", "T|x"), ("b", "<b>")], {"a": 1, "b": number}, {})
        return render_block("s", "a", "T --> <!-- x", text, rows)

    old, new = block("", 2), block(about.replace("<!--", "").replace("-->", ""), 3)
    body = before + (old.replace("\n", "\r\n") if dos else old) + after
    if find_block(body).damaged or "stackctl:" in before + after:
        return
    assert find_block(body).title == "T --> <!-- x"
    assert with_block(body, old) == body
    assert with_block(body, new) == before + new + after


def test_bodies_that_are_left_alone() -> None:
    block = render_block("s", "a", "T", "", rows_of([("a", "T")], {}, {}))
    assert with_block("x" * MAX_BODY, block) is None
    assert with_block(block + "\n" + block, "new") is None
    assert with_block("mine", block) == f"mine\n\n{block}"
    assert with_block("", block) == block


def test_titles() -> None:
    assert wanted_title("old", "old", "new") == "new"
    assert wanted_title("own", "old", "new") is None
    assert wanted_title("own", None, "new") is None
    assert wanted_title("new", "new", "new") is None


@given(st.sampled_from(["`" * 70_000, "x\n" * 50_000, "a ``` b\n", ""]))
def test_comments_fit(text: str) -> None:
    made = rewrite_comment("b", "1" * 40, "2" * 40, "content", text)
    assert len(made) <= MAX_BODY and made.startswith("<!-- stackctl:rewrite ")
