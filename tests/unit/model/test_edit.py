# SPDX-License-Identifier: Apache-2.0
"""Edits of `series.toml` keep every byte that they do not change."""

import difflib
import os
import stat
import tomllib
from pathlib import Path

import pytest

from stackctl.errors import InputError, UsageError
from stackctl.fsutil import read_regular
from stackctl.model.edit import (
    add_set,
    edit_series,
    render_series,
    set_base,
    set_disposition,
    set_draft,
    set_key,
    set_pin,
    set_pull,
    set_values,
    toml_value,
)
from stackctl.model.series import PatchSet, PatchSource, Pull, SetGates, parse_series

OLD = "0123456789abcdef0123456789abcdef01234567"
NEW = "76543210fedcba9876543210fedcba9876543210"
FILE = "series.toml"

TEXT = f"""\
#:schema docs/series.schema.json
# Our series.
schema = 1   # one
name = "demo"

[base]
path = "/b"   # a folder

# About a.
[[set]]
name = "a"   # first
patches = "a"
  # tail of a

# About b.
[[set]]
name = 'b'
pull = {{ repo = "o/n", number = 5,  head = "{OLD}" }}   # pinned

[[set]]
name = "c"
  draft = true
[set.pull]
  repo = "o/n" # where
  number = 6

[[set]]
name = "d"
pull.repo = "o/n"
pull.number = 7
draft = true
# About the exclusions.
[[exclude]]
pull = {{ repo = "o/n", number = 8, head = "{OLD}" }}
kind = "experimental"
why = "Later."
"""


def changes(old: str, new: str) -> list[str]:
    """Return the lines that differ, with - and + in front."""
    delta = difflib.ndiff(old.splitlines(True), new.splitlines(True))
    return [line for line in delta if line[0] in "-+"]


def test_pin_in_an_inline_table() -> None:
    new = set_pin(TEXT, file=FILE, name="b", head=NEW)
    assert new == TEXT.replace(f'5,  head = "{OLD}"', f'5,  head = "{NEW}"')


def test_pin_that_is_not_there_yet() -> None:
    new = set_pin(TEXT, file=FILE, name="c", head=NEW)
    assert changes(TEXT, new) == [f'+   head = "{NEW}"\n']
    assert new.index("number = 6") < new.index(NEW) < new.index('name = "d"')
    new = set_pin(TEXT, file=FILE, name="d", head=NEW)
    assert changes(TEXT, new) == [f'+ pull.head = "{NEW}"\n']
    assert new.index("pull.number = 7") < new.index(NEW) < new.index("# About the")


def test_pin_with_commits() -> None:
    text = TEXT.replace(
        f'head = "{OLD}" }}   # pinned\n',
        f'head = "{OLD}", commits = ["{OLD}"] }}\nstrategy = "cherry-pick"\n',
    )
    new = set_pin(text, file=FILE, name="b", head=NEW, commits=[OLD, NEW])
    assert parse_series(new, file=FILE).find("b").pull == Pull(
        repo="o/n", number=5, head=NEW, commits=(OLD, NEW)
    )
    assert len(changes(text, new)) == 2


def test_base_pins_are_added_below_the_base() -> None:
    new = set_base(TEXT, file=FILE, tree=NEW)
    assert changes(TEXT, new) == [f'+ tree = "{NEW}"\n']
    assert f'# a folder\ntree = "{NEW}"\n\n# About a.\n' in new
    assert set_base(new, file=FILE, tree=OLD) == new.replace(NEW, OLD)


def test_draft() -> None:
    new = set_draft(TEXT, file=FILE, name="a", draft=True)
    assert changes(TEXT, new) == ["+ draft = true\n"]
    assert 'patches = "a"\ndraft = true\n  # tail of a\n' in new
    assert set_draft(new, file=FILE, name="a", draft=False) == new.replace(
        "draft = true\n  # tail", "draft = false\n  # tail"
    )


def test_nothing_changes_where_it_is_so_already() -> None:
    assert set_pin(TEXT, file=FILE, name="b", head=OLD) == TEXT
    assert set_draft(TEXT, file=FILE, name="a", draft=False) == TEXT
    assert set_draft(TEXT, file=FILE, name="c", draft=True) == TEXT
    assert set_key(TEXT, file=FILE, name="a", key="labels", value=[]) == TEXT
    with_tree = set_base(TEXT, file=FILE, tree=NEW)
    assert set_base(with_tree, file=FILE, tree=NEW) == with_tree


def test_new_key_with_a_table() -> None:
    pull = {"repo": "o/n", "number": 9}
    new = set_key(TEXT, file=FILE, name="a", key="pull", value=pull)
    assert changes(TEXT, new) == ['+ pull = { repo = "o/n", number = 9 }\n']


def test_line_endings_are_kept() -> None:
    text = TEXT.replace("\n", "\r\n")
    for new in (
        set_base(text, file=FILE, tree=NEW),
        set_draft(text, file=FILE, name="a", draft=True),
        set_pin(text, file=FILE, name="c", head=NEW),
        add_set(text, PatchSet(name="e", draft=True), file=FILE),
    ):
        assert new != text
        assert new.count("\n") == new.count("\r\n")


def test_a_file_without_final_line_feed() -> None:
    text = f'schema = 1\nname = "s"\n[base]\npath = "b"\ntree = "{OLD}"\n[[set]]\n'
    text += 'name = "a"\npatches = "a"'
    new = set_draft(text, file=FILE, name="a", draft=True)
    assert new == text + "\ndraft = true\n"
    added = add_set(text, PatchSet(name="e", draft=True), file=FILE)
    assert added == text + '\n\n[[set]]\nname = "e"\ndraft = true\n'


def test_a_changed_multi_line_value_keeps_its_neighbours() -> None:
    text = TEXT.replace('patches = "a"', 'patches = [\n  "x.patch", # x\n] # list')
    new = set_key(text, file=FILE, name="a", key="patches", value="folder")
    assert 'name = "a"   # first\npatches = "folder" # list\n' in new


def test_sets_are_added_in_place() -> None:
    item = PatchSet(
        name="e",
        title='Quote "',
        reason="Two\nlines.",
        patches=PatchSource(files=tuple(f"patches/e/{n:04}-x.patch" for n in range(9))),
        requires=("a",),
        pull=Pull(repo="o/n", number=9),
        gates=SetGates(required=("speed",)),
    )
    new = add_set(TEXT, item, file=FILE, after="a")
    assert [found.name for found in parse_series(new, file=FILE).sets] == list("aebcd")
    assert parse_series(new, file=FILE).find("e") == item
    added = changes(TEXT, new)
    assert all(line.startswith("+") for line in added)
    assert "".join(line[2:] for line in added).strip() == (
        '[[set]]\nname = "e"\ntitle = "Quote \\""\nreason = "Two\\nlines."\n'
        "patches = [\n"
        + "".join(f'  "patches/e/{n:04}-x.patch",\n' for n in range(9))
        + ']\nrequires = ["a"]\npull = { repo = "o/n", number = 9 }\n'
        'gates = { required = ["speed"] }'
    )
    assert '  # tail of a\n\n[[set]]\nname = "e"' in new
    assert "# About b.\n[[set]]\nname = 'b'" in new


def test_a_set_at_the_end_stays_clear_of_the_next_comment() -> None:
    new = add_set(TEXT, PatchSet(name="e", draft=True), file=FILE)
    assert (
        'draft = true\n\n[[set]]\nname = "e"\ndraft = true\n# About the exclusions.\n'
        in new
    )


def test_first_set_of_a_series() -> None:
    text = 'schema = 1\nname = "s"\n\n[base]\npath = "b"\n\n[policy]\n'
    new = add_set(text, PatchSet(name="e", patches=PatchSource("p")), file=FILE)
    assert new == (
        'schema = 1\nname = "s"\n\n[base]\npath = "b"\n\n[[set]]\nname = "e"\n'
        'patches = "p"\n\n[policy]\n'
    )


def test_refusals() -> None:
    with pytest.raises(UsageError, match="did you mean `a`"):
        set_pin(TEXT, file=FILE, name="aa", head=NEW)
    with pytest.raises(UsageError, match="has no `pull`"):
        set_pin(TEXT, file=FILE, name="a", head=NEW)
    with pytest.raises(InputError, match="must be a full git id"):
        set_pin(TEXT, file=FILE, name="b", head="main")
    with pytest.raises(InputError, match="unknown key `odd`"):
        set_key(TEXT, file=FILE, name="b", key="odd", value=1)
    with pytest.raises(InputError, match="already there"):
        add_set(TEXT, PatchSet(name="a", draft=True), file=FILE)
    listed = f'schema=1\nname="s"\nset=[{{name="a",draft=true}}]\n[base]\npath="{OLD}"'
    with pytest.raises(UsageError, match="writes its sets as one list"):
        add_set(listed, PatchSet(name="b", draft=True), file=FILE)
    assert "draft = false" in set_values(
        listed.replace("draft=true", "draft = true"),
        {("set", 0, "draft"): False},
        file=FILE,
    )


def test_render_and_parse() -> None:
    series = parse_series(TEXT, file=FILE)
    rendered = render_series(series)
    assert parse_series(rendered, file=FILE) == series
    assert tomllib.loads(rendered)["base"] == {"path": "/b"}


def test_file_is_replaced_whole_with_its_permissions(tmp_path: Path) -> None:
    path = tmp_path / "series.toml"
    path.write_text(TEXT)
    path.chmod(0o640)
    link = tmp_path / "link.toml"
    link.symlink_to(path)
    assert edit_series(
        link, lambda text: set_draft(text, file=FILE, name="a", draft=True)
    )
    assert link.is_symlink()
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert "draft = true\n  # tail" in path.read_text()
    assert sorted(os.listdir(tmp_path)) == ["link.toml", "series.toml"]
    before = path.stat()
    assert not edit_series(
        path, lambda text: set_draft(text, file=FILE, name="a", draft=True)
    )
    assert (path.stat().st_ino, path.stat().st_mtime_ns) == (
        before.st_ino,
        before.st_mtime_ns,
    )


def test_a_change_that_breaks_the_file_is_not_written(tmp_path: Path) -> None:
    path = tmp_path / "series.toml"
    path.write_text(TEXT)
    with pytest.raises(InputError, match="unknown key `odd`"):
        edit_series(path, lambda text: text + "\nodd = 1\n")
    assert read_regular(path, 10**6) == TEXT.encode()


def test_values_of_other_types_are_refused() -> None:
    with pytest.raises(TypeError):
        toml_value(1.5)
    assert toml_value({}) == "{}"
    assert tomllib.loads(f"a = {toml_value(chr(127) + chr(0))}") == {"a": "\x7f\x00"}


def test_pull_and_disposition_touch_nothing_else() -> None:
    text = (
        '# top\nschema = 1\nname = "s"\n\n[base]\npath = "b"\n\n'
        '[[set]]\nname = "one"   # first\npatches = "p"\n\n# about two\n'
        '[[set]]\nname = "two"\npatches = "q"\n'
        'pull = { repo = "O/R", number = 3, head = "' + "a" * 40 + '" } # here\n'
    )
    new = set_pull(text, file=FILE, name="one", repo="o/r", number=7)
    line = 'pull = { repo = "o/r", number = 7 }\n'
    assert new == text.replace('patches = "p"\n', f'patches = "p"\n{line}')
    assert set_pull(new, file=FILE, name="one", repo="o/r", number=7) == new
    # What else a pull says stays.
    moved = set_pull(text, file=FILE, name="two", repo="o/r", number=9)
    assert moved == text.replace('"O/R", number = 3', '"o/r", number = 9')
    gone = set_disposition(
        new, file=FILE, name="two", disposition="superseded", why='has "it"'
    )
    assert gone.startswith(new.rstrip("\n"))
    assert gone.endswith('disposition = "superseded"\nwhy = "has \\"it\\""\n')
    assert parse_series(gone, file=FILE).find("two").disposition == "superseded"
