# SPDX-License-Identifier: Apache-2.0
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stackctl.gates.accuracy.items import digest, make_items


def read_packet(prompt: str) -> tuple[str, str]:
    """Find the adopted figure and the draft the way a reader would."""
    name = re.search(r"did the board adopt for the (.*)\?", prompt)[1]
    documents = prompt.split("\n\nQuestion: ")[0]
    adopted = re.findall(
        rf"The board adopts (\d+) crowns as the reserve for the {re.escape(name)}\.",
        documents,
    )
    drafts = re.findall(
        rf"set the reserve for the {re.escape(name)} at (\d+) crowns", documents
    )
    assert len(adopted) == len(drafts) == 1
    return adopted[0], drafts[0]


def read_ledger(prompt: str) -> str:
    """Count the wrong lines the way a reader would."""
    lines = re.findall(r"(\d+) x (\d+) = (\d+)$", prompt, re.MULTILINE)
    assert lines
    return str(sum(int(a) * int(b) != int(c) for a, b, c in lines))


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**31), st.integers(2_000, 30_000))
def test_a_packet_says_one_thing(seed: int, characters: int) -> None:
    for item in make_items("packet", seed=seed, items=3, characters=characters):
        assert read_packet(item.prompt) == (item.answer, item.decoy)
        # The right figure, and the decoy, are nowhere else.
        assert item.prompt.count(item.answer) == 1
        assert item.decoy is not None and item.prompt.count(item.decoy) == 1
        assert abs(len(item.prompt) - characters) <= max(0.02 * characters, 700)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**31), st.integers(1_000, 30_000))
def test_a_ledger_has_the_errors_it_says(seed: int, characters: int) -> None:
    for item in make_items("ledger", seed=seed, items=3, characters=characters):
        assert read_ledger(item.prompt) == item.answer
        assert item.decoy is None
        assert abs(len(item.prompt) - characters) <= 100


def test_answers_stand_everywhere_in_the_packet() -> None:
    items = make_items("packet", seed=3, items=20, characters=12_000)
    depths = [item.prompt.index(item.answer) / len(item.prompt) for item in items]
    assert depths == sorted(depths)
    assert depths[0] < 0.15 and depths[-1] > 0.85
    before = sum(
        item.prompt.index(item.decoy or "") < item.prompt.index(item.answer)
        for item in items
    )
    assert 4 <= before <= 16


def test_counts_differ() -> None:
    items = make_items("ledger", seed=3, items=40, characters=12_000)
    assert len({item.answer for item in items}) > 15


def test_items_differ_and_have_their_own_names() -> None:
    items = make_items("packet", seed=0, items=50, characters=3000)
    assert len({item.prompt for item in items}) == 50
    assert len({item.id for item in items}) == 50
    other = make_items("packet", seed=1, items=50, characters=3000)
    assert {item.answer for item in items} != {item.answer for item in other}


@pytest.mark.parametrize(
    ("kind", "wanted"),
    [
        ("packet", "4839edb93b900b19afc325290ae36437b79f7a64b2c244b6fa89abd99dbc956f"),
        ("ledger", "f96c86c1e8f44d20fd72b81a26179fd3440d32321958bd9de42520168cfe80b4"),
    ],
)
def test_prompts_never_change(kind: str, wanted: str) -> None:
    """Gates pin these digests, and receipts are bound to them."""
    assert digest(make_items(kind, seed=7, items=5, characters=6000)) == wanted
