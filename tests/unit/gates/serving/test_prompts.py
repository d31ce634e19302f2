# SPDX-License-Identifier: Apache-2.0
import hashlib
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stackctl.gates.draw import Draw
from stackctl.gates.serving.prompts import text_prompt, token_prompt


@given(st.integers(1, 3000), st.integers())
def test_length_is_exact(characters: int, seed: int) -> None:
    assert len(text_prompt([seed], characters)) == characters


def test_no_two_prompts_share_a_beginning() -> None:
    prompts = [text_prompt([0, "block", b, n], 200) for b in range(3) for n in range(9)]
    assert len({prompt[:22] for prompt in prompts}) == len(prompts)
    assert text_prompt([1], 200) == text_prompt([1], 200)


def test_token_ids_are_inside_the_vocabulary() -> None:
    ids = token_prompt([0], 5000, 1000)
    assert len(ids) == 5000
    assert (min(ids), max(ids)) == (250, 999)


def test_draws_never_change() -> None:
    """Prompt sets are bound by digest: their draws must be the same for ever."""
    draw = Draw("golden", 7)
    values = [draw.below(10**n) for n in range(1, 30)]
    order = list(range(50))
    draw.shuffle(order)
    text = repr((values, order, draw.hex(9), draw.sample("abcdefgh", 3)))
    assert (
        hashlib.sha256(text.encode()).hexdigest()
        == "e785272fa186c804edfa9d04d0f573cc7fde85b45cc78bb6b591f3e1fc563aa4"
    )


def test_different_keys_give_different_draws() -> None:
    keys = [("a", "bc"), ("ab", "c"), ("a|bc",), (1, 11), (11, 1), ("1", 11), (111,)]
    assert len({Draw(*key).hex(32) for key in keys}) == len(keys)


def test_draws_are_even() -> None:
    draw = Draw("even")
    found = Counter(draw.below(6) for _ in range(12_000))
    assert sorted(found) == list(range(6))
    # Ten standard deviations of a binomial: a biased draw is farther off.
    assert all(abs(count - 2000) < 410 for count in found.values())


@pytest.mark.parametrize("limit", [0, -1])
def test_nothing_is_below_zero(limit: int) -> None:
    with pytest.raises(ValueError, match="positive"):
        Draw("x").below(limit)
