# SPDX-License-Identifier: Apache-2.0
"""Which trees of a cache stay: those in use, and the last used; with real processes."""

import gc
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from support import ROOT

from stackctl.gates.shelf import Shelf

HOLD = """
import sys
from pathlib import Path
from stackctl.gates.shelf import Shelf
shelf = Shelf(Path(sys.argv[1]))
shelf.hold(sys.argv[2])
print("held", flush=True)
sys.stdin.read()
"""


def tree(number: int) -> str:
    return f"{number:040x}"


def write(shelf: Shelf, number: int) -> Path:
    folder = shelf.hold(tree(number))
    (folder / "pkg").mkdir(parents=True, exist_ok=True)
    (folder / "pkg/a.py").write_text(str(number))
    return folder


def there(folder: Path) -> set[int]:
    return {int(path.name, 16) for path in (folder / "trees").glob("[0-9a-f]*")}


def put_away(folder: Path, most: int) -> set[int]:
    return {int(name, 16) for name in Shelf(folder, most).put_away()}


def test_the_last_used_stay_in_the_order_of_their_use(tmp_path: Path) -> None:
    for number in (1, 2, 3, 4, 5):
        write(Shelf(tmp_path), number)
    Shelf(tmp_path).hold(tree(1))  # used again
    gc.collect()
    assert put_away(tmp_path, 5) == set()
    assert put_away(tmp_path, 3) == {2, 3}
    assert there(tmp_path) == {1, 4, 5}
    assert (tmp_path / "trees" / tree(4) / "pkg/a.py").read_text() == "4"


def test_what_is_in_use_stays_and_counts(tmp_path: Path) -> None:
    mine = Shelf(tmp_path, 1)
    for number in (1, 2, 3):
        write(mine, number)
    assert mine.put_away() == [] and there(tmp_path) == {1, 2, 3}
    del mine
    gc.collect()
    assert put_away(tmp_path, 1) == {1, 2}


def test_another_process_holds_until_it_ends_or_is_killed(tmp_path: Path) -> None:
    for number in (1, 2, 3):
        write(Shelf(tmp_path), number)
    gc.collect()
    child = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path), tree(1)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={"PYTHONPATH": str(ROOT)},
    )
    assert child.stdout is not None and child.stdout.readline() == b"held\n"
    assert put_away(tmp_path, 0) == {2, 3}
    child.kill()
    child.communicate()
    assert put_away(tmp_path, 0) == {1}
    assert there(tmp_path) == set()


def test_nothing_but_trees_is_touched(tmp_path: Path) -> None:
    folder = tmp_path / "trees"
    other = tmp_path / "outside"
    other.mkdir()
    (other / "kept").write_text("x")
    for name in ("notes", "scratch-x", f"{tree(1)}x", f".{tree(1)}.new"):
        (folder / name).mkdir(parents=True)
    (folder / tree(2)).symlink_to(other)
    remains = folder / f".{tree(3)}.4711.old"
    (remains / "pkg").mkdir(parents=True)  # of a process that was killed meanwhile
    assert put_away(tmp_path, 0) == {2}
    left = {path.name for path in folder.iterdir()}
    assert left == {"notes", "scratch-x", f"{tree(1)}x", f".{tree(1)}.new"}
    assert (other / "kept").read_text() == "x"
    assert Shelf(tmp_path / "nowhere").put_away() == []


@pytest.mark.parametrize("most", [0, 2])
def test_many_at_once_never_lose_what_they_use(tmp_path: Path, most: int) -> None:
    lost: list[int] = []
    done: list[int] = []

    def work(seed: int) -> None:
        for step in range(40):
            number = (seed * 7 + step * 3) % 10
            shelf = Shelf(tmp_path, most)
            folder = write(shelf, number)
            shelf.put_away()
            if not (folder / "pkg/a.py").exists():
                lost.append(number)
            del shelf, folder
        done.append(seed)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert lost == [] and sorted(done) == list(range(6))
