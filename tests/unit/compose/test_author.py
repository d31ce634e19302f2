# SPDX-License-Identifier: Apache-2.0
"""The patches of a set are replaced together, or they stay."""

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from support import files_below, three_sets

from stackctl.compose import author
from stackctl.compose.author import CanonicalPatch, write_set
from stackctl.compose.plan import find_set
from stackctl.errors import InputError
from stackctl.git.patchtext.model import Identity, Patch
from stackctl.model.series import load_series


@pytest.fixture
def write(tmp_path: Path) -> Callable[[dict[str, bytes]], object]:
    series = load_series(three_sets(tmp_path / "project").folder / "series.toml")
    nobody = Patch("x", 1, Identity(b"a", b"a@b", 0, b"+0000"), b"m\n", (), b"", b"")

    def write_files(files: dict[str, bytes]) -> object:
        patches = [CanonicalPatch(name, data, nobody) for name, data in files.items()]
        return write_set(series, find_set(series, "alpha"), patches)

    return write_files


def test_what_cannot_be_written_whole_changes_nothing(
    tmp_path: Path, write: Callable[[dict[str, bytes]], object]
) -> None:
    folder = tmp_path / "project/patches/alpha"
    before = files_below(folder)
    names = list(before)
    with pytest.raises(InputError, match="cannot be written"):
        write({names[0]: b"new", "0002-" + "x" * 300 + ".patch": b"new"})
    assert files_below(folder) == before
    assert {path.name for path in folder.iterdir()} == set(names)


def test_an_interruption_does_not_mix_two_sets(
    tmp_path: Path,
    write: Callable[[dict[str, bytes]], object],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = tmp_path / "project/patches/alpha"
    replace = os.replace

    def interrupted(source: Path, target: Path) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        replace(source, target)

    monkeypatch.setattr(author.os, "replace", interrupted)
    files = {"0001-new.patch": b"1", "0002-new.patch": b"2", "0003-new.patch": b"3"}
    with pytest.raises(KeyboardInterrupt):
        write(files)
    # It came when the first had its place: then all have theirs.
    assert {name: data for name, (_, data) in files_below(folder).items()} == files
    assert {path.name for path in folder.iterdir()} == set(files)
