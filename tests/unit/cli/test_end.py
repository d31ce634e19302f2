# SPDX-License-Identifier: Apache-2.0
"""How the program ends."""

import subprocess
import sys
from pathlib import Path

import stackctl

INSIDE_EXEC = """\
from stackctl import cli
from stackctl.cli import program

def invoke(arguments):
    exec("raise KeyboardInterrupt")

program.invoke = invoke
cli.main()
"""


def test_ctrl_c_within_an_exec_ends_with_130_and_not_by_the_signal(
    tmp_path: Path,
) -> None:
    """Modules that are imported make dataclasses, and those call exec."""
    (tmp_path / "inside.py").write_text(INSIDE_EXEC)
    done = subprocess.run(
        [sys.executable, "-m", "inside"],
        cwd=tmp_path,
        env={"PYTHONPATH": f"{tmp_path}:{Path(stackctl.__file__).parents[1]}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (130, "")
    assert "interrupted" in done.stderr
