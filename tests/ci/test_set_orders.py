# SPDX-License-Identifier: Apache-2.0
"""All orders of the sets (`ci/set_orders.py`), on small projects of real git."""

import subprocess
import sys
from pathlib import Path

import pytest
from support import BASE_FILES, Project

SCRIPT = Path(__file__).parents[2] / "ci" / "set_orders.py"


def orders(project: Project) -> tuple[int, list[str]]:
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "-C", str(project.folder), "--offline"],
        capture_output=True,
        text=True,
    )
    assert not done.stderr
    return done.returncode, done.stdout.splitlines()


def test_every_order_that_is_allowed_is_composed(project: Project) -> None:
    code, lines = orders(project)
    assert code == 0, lines
    # alpha, gamma; alpha beta, alpha gamma twice; three of all: beta is after alpha.
    assert lines[-1] == "8 orders of 5 choices of sets, 0 wrong"
    assert lines[-2] == f"ok   {project.trees[-1][:12]} alpha, beta, gamma"
    assert not [line for line in lines if line.startswith("ok ") and "  beta" in line]


@pytest.mark.parametrize("requires", [[], ["one"]], ids=["free", "requires"])
def test_sets_that_need_an_order_are_told(make_series, requires: list[str]) -> None:
    project = make_series().base()
    old = BASE_FILES["README.md"]
    assert isinstance(old, str)
    project.add("one", ("one: a line\n", {"README.md": old + "one\n"}))
    project.add(
        "two", ("two: on it\n", {"README.md": old + "one\ntwo\n"}), requires=requires
    )
    code, lines = orders(project.save())
    if requires:
        assert code == 0, lines
    else:
        assert code == 1
        assert [line for line in lines if line.startswith("FAIL two: ")]
        assert [line for line in lines if line.startswith("FAIL two, one: ")]
