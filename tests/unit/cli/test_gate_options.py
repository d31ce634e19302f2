# SPDX-License-Identifier: Apache-2.0
import json
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from stackctl.cli.command import Session, command
from stackctl.cli.gate_options import Where
from stackctl.cli.output import Outcome
from stackctl.errors import UsageError
from stackctl.progress import SILENT


def test_what_is_named_is_what_gates_ask_for(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    here = Where(
        python="/opt/python", site=Path("site"), model="m", base_url="http://a/v1"
    ).here()
    assert here.python == "/opt/python"
    assert here.named == {
        "site": str(tmp_path / "site"),
        "model": "m",
        "base-url": "http://a/v1",
    }
    monkeypatch.setenv("STACKCTL_GATE_PYTHON", "/other/python")
    assert Where().here().python == "/other/python" and Where().here().named == {}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"ray_address": "10.0.0.5:6379"}, "--ray-address is for --executor ray"),
        ({"ray_label": ["a=b"]}, "--ray-label is for --executor ray"),
        ({"executor": "ray", "gpu": "0"}, "--gpu is for this machine"),
    ],
)
def test_options_that_do_not_go_together(options: Any, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        Where(**options).use_executor(None, None, SILENT)  # type: ignore[arg-type]


@pytest.mark.parametrize("label", ["a", "=b", "a="])
def test_a_label_is_a_key_and_a_value(label: str) -> None:
    where = Where(executor="ray", ray_label=["x=y=z", label])
    with pytest.raises(UsageError, match="expected KEY=VALUE"):
        where.wanted_labels()
    assert Where(ray_label=["x=y=z"]).wanted_labels() == {"x": "y=z"}


def test_a_command_has_the_options_that_a_parameter_stands_for() -> None:
    app = typer.Typer()

    @command(app, "one")
    def one(
        session: Session, name: str, *, where: Where, more: bool = False
    ) -> Outcome:
        """Show what was given."""
        told = {"name": name, "more": more, "model": where.model}
        labels, executor = where.wanted_labels(), where.executor
        return Outcome(told | {"labels": labels, "executor": executor}, lambda: ["x"])

    @command(app, "two")
    def two(session: Session) -> Outcome:
        """Nothing."""
        return Outcome({}, list)

    given = ["one", "a", "--model", "m", "--ray-label", "k=v", "--ray-label", "l=w"]
    done = CliRunner().invoke(app, [*given, "--more", "--json"])
    assert json.loads(done.stdout) == {
        "name": "a",
        "more": True,
        "model": "m",
        "labels": {"k": "v", "l": "w"},
        "executor": "local",
    }
    plain = json.loads(CliRunner().invoke(app, ["one", "a", "--json"]).stdout)
    assert (plain["model"], plain["labels"]) == (None, {})
    assert CliRunner().invoke(app, ["one", "a", "--executor", "mars"]).exit_code == 2
    # The options stand where the parameter does.
    words = CliRunner().invoke(app, ["one", "--help"]).stdout
    assert words.index("--python") < words.index("--ray-label") < words.index("--more")
