# SPDX-License-Identifier: Apache-2.0
"""The position index: lines and spans of what `tomllib` gives without them."""

import pytest

from stackctl.model.positions import Path, Positions

TEXT = '''\
# [not.a.table]
top = 1 # a = 2
"quoted key" = 'x'   # trailing
'lit.eral' = """
fake = 1
[fake]
"quotes""" # end"""
a . "b" . 'c' = [ # comment ] with a bracket
  1, "]", \'\'\'
],\'\'\',
  { x = 1, y.z = "}" },
  [2,
   3],
]
[ table . sub ]
k\t=\t1979-05-27 07:32:00 # date
"\\u0041\\tb" = { in = { ner = [1] }, "}" = 2 }
[[aot]]
n = 1
[[aot]]
n = 2
[aot.child]
c = 1
[[aot.nested]]
d = 1
[[aot.nested]]
d = 2
[aot."x.y"]
'''


@pytest.mark.parametrize(
    ("path", "line"),
    [
        (("top",), 2),
        (("quoted key",), 3),
        (("lit.eral",), 4),
        (("a",), 8),
        (("a", "b", "c"), 8),
        (("a", "b", "c", 0), 9),
        (("a", "b", "c", 2), 9),
        (("a", "b", "c", 3), 11),
        (("a", "b", "c", 3, "x"), 11),
        (("a", "b", "c", 3, "y", "z"), 11),
        (("a", "b", "c", 4, 1), 13),
        (("table",), 15),
        (("table", "sub"), 15),
        (("table", "sub", "k"), 16),
        (("table", "sub", "A\tb"), 17),
        (("table", "sub", "A\tb", "in", "ner", 0), 17),
        (("table", "sub", "A\tb", "}"), 17),
        (("aot",), 18),
        (("aot", 0), 18),
        (("aot", 0, "n"), 19),
        (("aot", 1), 20),
        (("aot", 1, "child", "c"), 23),
        (("aot", 1, "nested", 0, "d"), 25),
        (("aot", 1, "nested", 1), 26),
        (("aot", 1, "nested", 1, "d"), 27),
        (("aot", 1, "x.y"), 28),
        # What is not there has the line of the nearest table.
        (("aot", 0, "missing"), 18),
        (("aot", 1, "nested", 1, "missing", 3), 26),
        (("missing",), 1),
        ((), 1),
    ],
)
@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_lines(path: Path, line: int, newline: str) -> None:
    # Bracket and key words inside of strings and comments must not count.
    found = Positions(TEXT.replace("\n", newline))
    assert found.line(path) == line


def test_spans_are_the_values_as_written() -> None:
    found = Positions(TEXT)
    spans = {
        path: TEXT[pair.value : pair.end]
        for path, pair in found.pairs.items()
        if len(path) <= 3
    }
    assert spans[("top",)] == "1"
    assert spans[("quoted key",)] == "'x'"
    assert spans[("lit.eral",)].endswith('"quotes"""')
    assert spans[("table", "sub", "k")] == "1979-05-27 07:32:00"
    assert spans["table", "sub", "A\tb"] == '{ in = { ner = [1] }, "}" = 2 }'


def test_sections_and_inline_tables() -> None:
    found = Positions(TEXT)
    assert [section.path for section in found.sections] == [
        (),
        ("table", "sub"),
        ("aot", 0),
        ("aot", 1),
        ("aot", 1, "child"),
        ("aot", 1, "nested", 0),
        ("aot", 1, "nested", 1),
        ("aot", 1, "x.y"),
    ]
    inline = found.inline["table", "sub", "A\tb"]
    assert TEXT[inline.end] == "}"
    assert [pair.path[-1] for pair in inline.pairs] == ["in", "}"]


@pytest.mark.parametrize(
    "text", ["", "a", "a =", '"', "[", "[[", "[[a", "a = [", "a = {b", "=", "\x00", "]"]
)
def test_other_text_gives_no_error(text: str) -> None:
    Positions(text).line(("a",))
