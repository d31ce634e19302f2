# SPDX-License-Identifier: Apache-2.0
"""Which sets a selection names."""

from pathlib import Path

import pytest

from stackctl.compose.plan import Selection, find_set, select
from stackctl.errors import UsageError
from stackctl.model.series import Series, parse_series

TEXT = """\
schema = 1
name = "demo"
[base]
path = "."
tree = "4b825dc642cb6eb9a060e54bf8d69288fbee4904"
"""


def series(**requires: list[str]) -> Series:
    text = TEXT
    for name, names in requires.items():
        text += (
            f'[[set]]\nname = "{name}"\ntitle = "t"\nreason = "r"\nretire = "e"\n'
            f'patches = "patches/{name}"\nrequires = {names!r}\n'.replace("'", '"')
        )
    return parse_series(text, file="series.toml", root=Path("/nowhere"))


DEMO = series(a=[], b=["a"], c=[], d=["b", "c"], e=[])


@pytest.mark.parametrize(
    ("selection", "names"),
    [
        (Selection(), "abcde"),
        (Selection(base_only=True), ""),
        (Selection(upto="a"), "a"),
        (Selection(upto="c"), "abc"),
        (Selection(only=("b",)), "ab"),
        (Selection(only=("d",)), "abcd"),
        (Selection(only=("e", "a")), "ae"),
        (Selection(without=("e",)), "abcd"),
        (Selection(without=("d", "b", "a")), "ce"),
        (Selection(without=("a",), force=True), "bcde"),
    ],
)
def test_selections(selection: Selection, names: str) -> None:
    assert "".join(each.name for each in select(DEMO, selection)) == names


@pytest.mark.parametrize(
    ("selection", "message"),
    [
        (Selection(without=("a",)), "`b` requires `a`, which is left out"),
        (Selection(upto="x"), "no set `x`"),
        (Selection(upto=""), "no set ``"),
        (Selection(only=("x",)), "no set `x`"),
        (Selection(without=("x",)), "no set `x`"),
        (Selection(base_only=True, upto="a"), "--base-only and --upto exclude"),
        (Selection(only=("a",), without=("b",)), "--only and --without exclude"),
    ],
)
def test_refusals(selection: Selection, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        select(DEMO, selection)


def test_the_nearest_name_is_offered() -> None:
    named = series(**{"prefetch": [], "persist": []})
    with pytest.raises(UsageError) as error:
        find_set(named, "prefech")
    assert error.value.hint == "did you mean `prefetch`?"


def test_a_subset_is_not_the_whole() -> None:
    assert Selection().whole
    assert not Selection(upto="").whole
    assert not Selection(base_only=True).whole
