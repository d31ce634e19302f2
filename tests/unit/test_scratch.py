# SPDX-License-Identifier: Apache-2.0
"""Scratch folders: gone at the end, gone after a kill, never another's."""

import importlib
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from support import ROOT, interruptions

from stackctl import scratch
from stackctl.scratch import remove_dead, scratch_folder


def test_gone_at_the_end_and_after_an_error(tmp_path: Path) -> None:
    with scratch_folder(tmp_path / "new" / "parent") as folder:
        (folder / "sub").mkdir()
        (folder / "sub" / "file").write_text("x")
    assert list((tmp_path / "new/parent").iterdir()) == []
    with pytest.raises(KeyboardInterrupt), scratch_folder(tmp_path / "s") as folder:
        raise KeyboardInterrupt
    assert list((tmp_path / "s").iterdir()) == []


def test_gone_wherever_it_is_interrupted(tmp_path: Path) -> None:
    def use() -> None:
        with scratch_folder(tmp_path) as folder:
            (folder / "file").write_text("x")

    seen = set()
    for interrupted in interruptions(scratch.__file__, use):
        assert os.listdir(tmp_path) == []
        seen.add(interrupted)
    assert seen == {True, False}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("place", ["tempfile.mkdtemp", "shutil.rmtree"])
def test_gone_also_where_it_is_interrupted_while_made_or_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str, number: int
) -> None:
    module = importlib.import_module(place.partition(".")[0])
    name = place.partition(".")[2]
    real = getattr(module, name)

    def interrupted(*args: Any, **options: Any) -> Any:
        if name == "rmtree":
            os.kill(os.getpid(), number)
            return real(*args, **options)
        made = real(*args, **options)
        os.kill(os.getpid(), number)
        return made

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(module, name, interrupted)
    before = signal.signal(number, stop)
    try:
        with pytest.raises(KeyboardInterrupt), scratch_folder(tmp_path):
            pass
        assert signal.getsignal(number) is stop
    finally:
        signal.signal(number, before)
    assert list(tmp_path.iterdir()) == []


def test_an_error_while_it_is_made_leaves_the_handlers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    (tmp_path / "file").write_text("")
    for parent in (tmp_path / "file", tmp_path):
        if parent == tmp_path:
            monkeypatch.setattr("tempfile.mkdtemp", lambda **_: os.mkdir(tmp_path))
        with pytest.raises(OSError), scratch_folder(parent):
            pass
    after = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    assert after == before


def test_a_folder_that_was_renamed_away_stays(tmp_path: Path) -> None:
    with scratch_folder(tmp_path) as folder:
        (folder / "f").write_text("x")
        os.rename(folder, tmp_path / "result")
    assert [path.name for path in tmp_path.iterdir()] == ["result"]
    assert (tmp_path / "result/f").read_text() == "x"


def test_what_a_killed_process_left_goes_with_the_next(tmp_path: Path) -> None:
    code = (
        "import os, sys\nfrom pathlib import Path\n"
        "from stackctl.scratch import scratch_folder\n"
        "with scratch_folder(Path(sys.argv[1])) as folder:\n"
        "    (folder / 'f').write_text('x')\n    os.kill(os.getpid(), 9)\n"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], cwd=ROOT, check=False)
    (left,) = tmp_path.iterdir()
    with scratch_folder(tmp_path) as folder:
        assert not left.exists()
        assert folder.exists()


def test_the_living_are_left_alone(tmp_path: Path) -> None:
    with scratch_folder(tmp_path) as first, scratch_folder(tmp_path) as second:
        assert first != second
        assert first.exists()
        assert remove_dead(tmp_path, "scratch-") == 0


def test_only_the_prefix_counts_and_links_are_not_followed(tmp_path: Path) -> None:
    (tmp_path / "else").mkdir()
    (tmp_path / "else" / "f").write_text("x")
    (tmp_path / "scratch-link").symlink_to(tmp_path / "else")
    (tmp_path / "scratch-file").write_text("x")
    assert remove_dead(tmp_path, "scratch-") == 0
    assert (tmp_path / "else/f").exists()
    assert remove_dead(tmp_path / "missing", "scratch-") == 0


def test_no_descriptor_is_left(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        with scratch_folder(tmp_path):
            pass
    assert len(os.listdir("/proc/self/fd")) == before


def test_many_at_once_never_lose_a_folder(tmp_path: Path) -> None:
    problems: list[BaseException] = []

    def work() -> None:
        try:
            for number in range(30):
                with scratch_folder(tmp_path) as folder:
                    (folder / "f").write_text(str(number))
                    assert (folder / "f").read_text() == str(number)
        except BaseException as error:
            problems.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert problems == []
    assert list(tmp_path.iterdir()) == []
