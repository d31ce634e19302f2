"""The order of the process starts."""

import pytest

from stackctl.gates.rule.model import Rule
from stackctl.gates.rule.schedule import schedule

PAIRED = Rule(statistic="paired-log-ratio")
BLOCKS = Rule(statistic="paired-log-ratio", blocks=True)


def test_a_process_holds_every_arm():
    plan = schedule(PAIRED, ["base", "on"], 0)
    assert [slot.arms for slot in plan.slots] == [("base", "on")] * 9
    assert plan.looks == (6, 9)


def test_a_block_starts_and_ends_with_the_reference():
    plan = schedule(BLOCKS, ["base", "on"], 0)
    assert [slot.arms[0] for slot in plan.slots] == ["base", "on", "base"] * 9
    assert [slot.unit for slot in plan.slots] == list(range(27))
    assert [slot.block for slot in plan.slots] == [n // 3 for n in range(27)]


def test_other_arms_stand_in_a_drawn_order_which_the_next_block_reverses():
    orders = set()
    for seed in range(20):
        plan = schedule(BLOCKS, ["base", "a", "b", "c"], seed)
        blocks = [[s.arms[0] for s in plan.slots if s.block == n] for n in range(9)]
        assert all(block[0] == block[-1] == "base" for block in blocks)
        assert blocks[1][1:-1] == blocks[0][1:-1][::-1]
        orders.add(tuple(blocks[0]))
    assert len(orders) > 3


def test_the_order_in_which_arms_are_named_does_not_matter():
    one = schedule(BLOCKS, ["base", "a", "b"], 5)
    assert schedule(BLOCKS, ["base", "b", "a"], 5) == one


def test_a_seed_means_the_same_order_for_ever():
    plan = schedule(BLOCKS, ["base", "a", "b", "c"], 2026)
    order = "".join(slot.arms[0][0] for slot in plan.slots if slot.block < 4)
    assert order == "bacbbbbcabbcabbbbacb"


@pytest.mark.parametrize("statistic", ["counts", "all-equal"])
def test_what_is_not_timed_is_shared_by_processes(statistic):
    plan = schedule(Rule(statistic=statistic), ["base", "on"], 0, units=3)
    assert len(plan.slots) == 3
    assert plan.looks == ()
