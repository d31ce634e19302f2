# SPDX-License-Identifier: Apache-2.0
from pathlib import Path
from typing import Any

import pytest

from stackctl.cli.gate_options import Where
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
        ({"address": "10.0.0.5:6379"}, "--ray-address is for --executor ray"),
        ({"labels": ("a=b",)}, "--ray-label is for --executor ray"),
        ({"executor": "ray", "gpu": "0"}, "--gpu is for this machine"),
    ],
)
def test_options_that_do_not_go_together(options: Any, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        Where(**options).use_executor(None, None, SILENT)  # type: ignore[arg-type]


@pytest.mark.parametrize("label", ["a", "=b", "a="])
def test_a_label_is_a_key_and_a_value(label: str) -> None:
    where = Where(executor="ray", labels=("x=y=z", label))
    with pytest.raises(UsageError, match="expected KEY=VALUE"):
        where.wanted_labels()
    assert Where(labels=("x=y=z",)).wanted_labels() == {"x": "y=z"}
