# SPDX-License-Identifier: Apache-2.0
from pathlib import Path

from stackctl.gates.accuracy.reference import HEADING, reference

PAGE = Path(__file__).resolve().parents[4] / "docs/serving-and-accuracy.md"


def test_the_page_has_every_key() -> None:
    """Write it with `python -m stackctl.gates.accuracy.reference`."""
    assert PAGE.read_text().partition(HEADING)[2] == reference()
