# SPDX-License-Identifier: Apache-2.0
"""The command reference in the documents is what the program says of itself."""

from pathlib import Path

from stackctl.cli.reference import reference
from stackctl.image.limits import Limits
from stackctl.model.lock import read_lock

ROOT = Path(__file__).parents[3]


def test_the_committed_reference_is_current() -> None:
    assert (ROOT / "docs/commands.md").read_text() == reference()


def test_every_row_of_options_has_two_cells() -> None:
    rows = [line for line in reference().splitlines() if line.startswith("| `")]
    assert any("\\|" in row for row in rows)
    assert {row.replace("\\|", "").count("|") for row in rows} == {3}


def test_every_command_has_an_example() -> None:
    parts = reference().split("\n## ")[1:]
    assert len(parts) >= 11
    assert [part.split("\n")[0] for part in parts if "```sh" not in part] == []


def test_what_must_be_given_is_told_from_what_may() -> None:
    parts = dict(part.split("\n", 1) for part in reference().split("\n## ")[1:])
    assert "| `FILE...` |" in parts["`stackctl receipt sign`"]
    assert "| `[FILE]...` |" in parts["`stackctl receipt show`"]
    assert "| `[SET]` |" in parts["`stackctl diff`"]
    assert "has the tag. Required. |" in parts["`stackctl tag verify`"]
    assert reference().count(" Required. |") >= 8


def test_defaults_are_told_and_right() -> None:
    limits = Limits()
    text = reference()
    assert f"unpacked; by default {limits.layer >> 30} GiB. |" in text
    assert f"unpacked; by default {limits.image >> 30} GiB. |" in text
    assert f"a layer; by default {limits.ratio}. |" in text
    assert f"an image; by default {limits.entries:,}. |" in text
    assert "| `--executor` `local\\|ray` | " in text and " Default: `local`. |" in text


def test_the_readme_shows_what_the_lock_says() -> None:
    lock = read_lock(ROOT / "series.lock")
    readme = (ROOT / "README.md").read_text()
    assert f"tree            {lock.content.tree}\n" in readme
    assert f"commit          {lock.content.commit}\n" in readme
    assert f"content sha256  {lock.content.content_sha256}\n" in readme
    assert f"composition     {lock.composition}\n" in readme
