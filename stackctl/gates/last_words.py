# SPDX-License-Identifier: Apache-2.0
"""What a unit that failed said last: one line for the evidence, the end for a person.

The line becomes a part of a problem, and so passes the allow-list of receipts. The end
of a file is for the terminal of whoever runs the gate, and enters no receipt.
"""

import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from stackctl.fsutil import open_regular
from stackctl.gates.evidence import Unit

TAIL: Final = 16_000
"""Bytes of a file's end that are looked at."""

LINES: Final = 12
"""Most lines of a file that are shown."""

LINE: Final = 300
"""Most characters of a line that is shown."""

SENTENCE: Final = 200
"""Most characters of a line that becomes a part of a problem."""

UNITS: Final = 2
"""Most units of a run whose words are shown: the others mostly say the same."""

SERVER_LOG: Final = "server.log"
"""What a server said that was started for a unit, in the unit's folder."""

_STYLE: Final = re.compile(
    r"\x1b(?:\[[0-9;?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\))"
)


@dataclass(frozen=True, slots=True)
class LastWords:
    """The end of what one process said.

    Attributes:
        unit: Number of its unit.
        file: Where all of it is.
        lines: The last lines, without colours.
    """

    unit: int
    file: Path
    lines: tuple[str, ...]

    def document(self, project: Path | None = None) -> dict[str, Any]:
        """Return the JSON form.

        Args:
            project: Folder that the path is relative to, where it is inside.
        """
        inside = project is not None and self.file.is_relative_to(project)
        file = self.file.relative_to(project) if inside and project else self.file
        return {"unit": self.unit, "file": str(file), "lines": list(self.lines)}


def end_of(path: Path) -> list[str]:
    """Return the last lines of a file that are not blank, without colours.

    Args:
        path: The file; a unit may have put something else there, which has no lines.
    """
    try:
        descriptor = open_regular(path)
    except OSError:
        return []
    if descriptor is None:
        return []
    try:
        start = max(os.fstat(descriptor).st_size - TAIL, 0)
        data = os.pread(descriptor, TAIL, start)
    finally:
        os.close(descriptor)
    text = _STYLE.sub("", data.decode("utf-8", "replace"))
    # What a progress line showed last is what it came to.
    lines = [line.rstrip().rpartition("\r")[2] for line in text.split("\n")]
    if start:
        lines = lines[1:]  # the first one is a part of one
    return [line for line in lines if line.strip()]


def last_line(path: Path) -> str:
    """Return the last line of a file, for a sentence; empty where it has none."""
    found = end_of(path)
    return found[-1].strip()[:SENTENCE] if found else ""


def exit_words(code: int | None, path: Path, who: str = "it", when: str = "") -> str:
    """Say that a process ended, and what it said last.

    Args:
        code: Its exit code.
        path: File with its messages.
        who: Which process, in words.
        when: While what, in words.
    """
    words = " ".join(filter(None, [f"{who} ended with exit code {code}", when]))
    said = last_line(path)
    return f"{words}: {said}" if said else words


def last_words(units: Iterable[tuple[Unit, Path]]) -> Iterator[LastWords]:
    """Yield what the first units that failed said last, and what their servers did.

    Args:
        units: Units with their folders.
    """
    failed = 0
    for unit, folder in units:
        if not _failed(unit) or failed == UNITS:
            continue
        failed += 1
        for names in (("stderr", "stdout"), (SERVER_LOG,)):
            for name in names:
                if lines := end_of(folder / name):
                    shown = tuple(line[:LINE] for line in lines[-LINES:])
                    yield LastWords(unit.unit, folder / name, shown)
                    break


def _failed(unit: Unit) -> bool:
    if unit.problems or unit.answer is None:
        return True
    return unit.stop is not None and unit.stop[0] == "invalid"
