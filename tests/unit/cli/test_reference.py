# SPDX-License-Identifier: Apache-2.0
"""The command reference in the documents is what the program says of itself."""

from pathlib import Path

from stackctl.cli.reference import reference

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
