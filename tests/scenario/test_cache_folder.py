# SPDX-License-Identifier: Apache-2.0
"""Caches at odd places and with damaged content change no answer."""

import os
import sqlite3
from pathlib import Path

import pytest
from support import run, three_sets


@pytest.mark.parametrize("name", [b"c c", b"c\xc3\xbc:;'\"$(x)", b"c\xff"])
def test_a_cache_at_an_odd_path(tmp_path: Path, name: bytes) -> None:
    project = three_sets(tmp_path / "project")
    expected = run("compose", "--json", "-C", project.folder).json["composition"]
    folder = tmp_path / os.fsdecode(name)
    env = {
        "STACKCTL_CACHE_DIR": str(folder),
        "LC_ALL": "C",
        "PYTHONUTF8": "0",
        "PYTHONCOERCECLOCALE": "0",
    }
    done = run("lock", "--json", "-C", project.folder, env=env)
    assert done.code == 0, done.err
    assert done.json["composition"] == expected
    assert (folder / "store.git").is_dir()


def test_damaged_facts_of_steps_are_derived_again(tmp_path: Path) -> None:
    project = three_sets(tmp_path / "project")
    folder = tmp_path / "cache"
    env = {"STACKCTL_CACHE_DIR": str(folder)}
    first = run("compose", "--json", "-C", project.folder, env=env)
    with sqlite3.connect(folder / "facts.sqlite3") as facts:
        rows = facts.execute("UPDATE facts SET value = x'7b00' WHERE kind = 'step'")
        assert rows.rowcount
    facts.close()
    second = run("compose", "--json", "-C", project.folder, env=env)
    assert second.code == 0, second.err
    assert second.json["composition"] == first.json["composition"]
