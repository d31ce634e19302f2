# SPDX-License-Identifier: Apache-2.0
import pytest

from stackctl.cli.gate import all_askers, who_asks

KNOWN = ["a", "b", "c", "d"]


@pytest.mark.parametrize(
    ("required", "advisory", "words"),
    [
        (["a"], ["b"], "a, (b)"),
        ([], ["a", "b", "c", "d"], "(all sets)"),
        (["a", "b", "c", "d"], [], "all sets"),
        ([], ["a", "c", "d"], "(all sets but b)"),
        (["a", "b", "c"], [], "all sets but d"),
        (["a"], ["b", "c", "d"], "a, (b), (c), (d)"),
        ([], ["a", "b"], "(a), (b)"),
        ([], [], ""),
    ],
)
def test_who_asks_for_a_gate_is_said_in_few_words(required, advisory, words) -> None:
    assert who_asks(required, advisory, KNOWN) == words


def test_two_sets_are_named_also_where_there_are_no_others() -> None:
    assert who_asks([], ["a", "b"], all_askers([["a"], ["b", "a"]])) == "(a), (b)"
