# SPDX-License-Identifier: Apache-2.0
"""One command is loaded alone, and says what it says among all others."""

import subprocess
import sys

import pytest
from support import program_environment

from stackctl.cli import app, program

NAMES = [
    each.name or getattr(each, "typer_instance", app.app).info.name
    for each in (*app.app.registered_commands, *app.app.registered_groups)
]


@pytest.mark.parametrize("name", NAMES)
def test_a_command_alone_is_the_same(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert program.invoke([name, "--help"]) == 0
    alone = capsys.readouterr().out
    monkeypatch.setattr(program, "app_for", lambda _: app.app)
    assert program.invoke([name, "--help"]) == 0
    assert capsys.readouterr().out == alone
    assert f"stackctl {name}" in alone


def test_most_commands_are_loaded_alone() -> None:
    alone = [name for name in NAMES if program.app_for([str(name)]) is not app.app]
    assert len(alone) > 0.8 * len(NAMES)
    for words in ([], ["--help"], ["-C", "x", "show"], ["output"], ["app"], [".."]):
        assert program.app_for(words) is app.app


def test_other_commands_are_not_imported() -> None:
    script = (
        "import sys; from stackctl.cli import run; run(['show', '--help']); "
        "print([m for m in ('pins', 'tag') if f'stackctl.cli.{m}' in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        env=program_environment(),
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.splitlines()[-1] == "[]"
