# SPDX-License-Identifier: Apache-2.0
"""Golden error messages: each `*.toml` has the message that it must give beside it.

`STACKCTL_GOLDEN=write pytest tests/unit/model/test_series_errors.py` writes them anew;
read the difference before committing it.
"""

import json
import os
from pathlib import Path

import pytest

from stackctl.errors import InputError
from stackctl.model.series import parse_series

FOLDER = Path(__file__).parents[2] / "golden" / "series-errors"
CASES = sorted(FOLDER.glob("*.toml"))


def rendered(path: Path) -> str:
    """Return the error of a file as text, or fail where there is none."""
    with pytest.raises(InputError) as caught:
        parse_series(path.read_text("utf-8"), file="series.toml")
    error = caught.value
    where = json.dumps(error.where, ensure_ascii=False)
    return (
        f"{error.message}\n\nkind: {error.kind}\nhint: {error.hint}\nwhere: {where}\n"
    )


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_message(path: Path) -> None:
    expected = path.with_suffix(".txt")
    if os.environ.get("STACKCTL_GOLDEN") == "write":
        expected.write_text(rendered(path), "utf-8")
    assert rendered(path) == expected.read_text("utf-8")


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_every_line_that_is_named_exists(path: Path) -> None:
    lines = path.read_text("utf-8").split("\n")
    for said in rendered(path).splitlines():
        if said.startswith("series.toml:"):
            number = int(said.split(":")[1])
            assert 1 <= number <= len(lines)


def test_there_are_no_stray_messages() -> None:
    assert len(CASES) > 20
    assert {path.stem for path in FOLDER.iterdir()} == {path.stem for path in CASES}
