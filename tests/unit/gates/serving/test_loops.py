# SPDX-License-Identifier: Apache-2.0
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stackctl.gates.serving.loops import loop_in
from stackctl.gates.serving.prompts import text_prompt


@pytest.mark.parametrize(
    "text",
    [
        "0" * 300,
        "I am sorry. " * 40,
        "A real beginning, quite long. " + "and then " * 60,
        "\n".join(["| 1 | 2 | 3 |"] * 40),
        # Turns that differ in one word of twenty.
        "".join(
            f"the valve was opened and the pressure fell again as before {n % 3} "
            for n in range(60)
        ),
    ],
)
def test_loops_are_seen(text: str) -> None:
    assert loop_in(text) is not None


@pytest.mark.parametrize(
    "text",
    [
        "",
        "yes",
        "0" * 100,
        "ha " * 20,
        text_prompt(["x"], 20_000),
        "\n".join(f"| {n} | {n * n} | {n * n * n} |" for n in range(300)),
        # Ended its loop: what follows is long enough to be something else.
        "again " * 60 + text_prompt(["y"], 3000),
    ],
)
def test_what_only_looks_like_a_loop(text: str) -> None:
    assert loop_in(text) is None


@given(st.text(min_size=1, max_size=40), st.text(max_size=200))
def test_any_text_that_is_repeated_long_enough_is_a_loop(part: str, head: str) -> None:
    turns = max(8, 300 // len(part) + 1)
    assert loop_in(head + part * turns) is not None


@given(st.integers())
def test_random_letters_are_no_loop(seed: int) -> None:
    rng = random.Random(seed)
    assert loop_in("".join(rng.choices("abcdefgh ", k=2000))) is None
