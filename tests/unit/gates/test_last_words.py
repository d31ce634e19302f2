# SPDX-License-Identifier: Apache-2.0
import os
from pathlib import Path

import pytest

from stackctl.gates.evidence import Unit
from stackctl.gates.last_words import (
    LINE,
    LINES,
    TAIL,
    end_of,
    exit_words,
    last_line,
    last_words,
)


def unit(number: int, *problems: str, answer: object = None) -> Unit:
    return Unit(number, 1, 5, answer, {}, (), problems)  # type: ignore[arg-type]


def test_the_end_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("a\n\n\x1b[1;31mb\x1b[0m  \r\n 10 %\r 90 %\rdone\n\n")
    assert end_of(path) == ["a", "b", "done"]
    assert last_line(path) == "done"


@pytest.mark.parametrize("data", [b"", b"\n \n", b"\xff\xfe"])
def test_what_is_no_text_ends_too(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "log"
    path.write_bytes(data)
    assert len(end_of(path)) == (1 if data.strip() else 0)


def test_a_long_file_is_read_from_its_end(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with path.open("wb") as file:
        file.write(b"first\n")
        file.truncate(TAIL * 1000)
        file.seek(0, os.SEEK_END)
        file.write(b"\nlast\n")
    found = end_of(path)
    assert found[-1] == "last" and "first" not in found
    path.write_text("x" * (TAIL + 5) + "\nwhole\n")
    assert end_of(path) == ["whole"]  # never half a line


def test_what_a_unit_put_in_place_of_a_file_has_no_words(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("not the unit's\n")
    (tmp_path / "link").symlink_to(secret)
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "folder").mkdir()
    for name in ("link", "fifo", "folder", "nothing"):
        assert end_of(tmp_path / name) == []


def test_the_sentence(tmp_path: Path) -> None:
    path = tmp_path / "log"
    assert exit_words(3, path) == "it ended with exit code 3"
    path.write_text(f"x\nValueError: {'y' * 900}\n")
    words = exit_words(3, path, "the server", "in time")
    assert words.startswith("the server ended with exit code 3 in time: ValueError: y")
    assert len(words) < 300


def test_only_failed_units_speak_and_only_the_first(tmp_path: Path) -> None:
    good = {"schema": 1, "samples": {"cases": []}}
    off = {"schema": 1, "stop": {"verdict": "not-tested", "reason": "off"}}
    bad = {"schema": 1, "stop": {"verdict": "invalid", "reason": "busy"}}
    units = [
        unit(0, answer=good),
        unit(1, answer=off),
        unit(2, "it ended with exit code 1"),
        unit(3, answer=bad),
        unit(4, "it ended with exit code 1"),
    ]
    pairs = [(each, tmp_path / str(each.unit)) for each in units]
    for each, folder in pairs:
        folder.mkdir()
        (folder / "stderr").write_text(f"unit {each.unit}\n" * 99)
        (folder / "stdout").write_text("out\n")
        (folder / "server.log").write_text("z" * 9999 + "\n")
    (tmp_path / "3/stderr").write_text("")
    found = list(last_words(pairs))
    assert [(words.unit, words.file.name) for words in found] == [
        (2, "stderr"),
        (2, "server.log"),
        (3, "stdout"),
        (3, "server.log"),
    ]
    assert found[0].lines == ("unit 2",) * LINES
    assert found[1].lines == ("z" * LINE,)
    assert found[0].document(tmp_path)["file"] == "2/stderr"
    assert found[0].document(tmp_path / "x")["file"] == str(found[0].file)
