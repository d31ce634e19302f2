# SPDX-License-Identifier: Apache-2.0
"""What a command prints: a JSON document, or text for a person; progress on stderr."""

import contextlib
import errno
import json
import os
import shutil
import sys
import textwrap
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple, TextIO

from stackctl.errors import (
    ExitCode,
    InputError,
    InternalError,
    StackctlError,
    UsageError,
)


class Outcome(NamedTuple):
    """The answer of a command.

    Attributes:
        document: The JSON document.
        text: Lines for a person; called only without `--json`.
        code: Exit code.
    """

    document: object
    text: Callable[[], Iterable[str]] = tuple
    code: int = ExitCode.OK


_answered = False


def begin() -> None:
    """Begin a command, which has not answered yet."""
    global _answered
    _answered = False


def print_json(document: object) -> None:
    """Print one JSON document on standard output, in UTF-8 whatever the locale."""
    global _answered
    _answered = True
    text = json.dumps(document, ensure_ascii=False, indent=2) + "\n"
    # A lone surrogate (of a path that is not UTF-8) becomes `\udcXX`, JSON's own form.
    _write(text.encode("utf-8", "backslashreplace"))


class Styled(str):
    """A line with colours of ours; whatever it shows went through `printable`."""

    __slots__ = ()


def print_text(lines: Iterable[str]) -> None:
    """Print lines on standard output, whatever the terminal's encoding."""
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    for line in lines:
        safe = line.encode(encoding, "backslashreplace").decode(encoding)
        text = safe if isinstance(line, Styled) else printable(safe)
        _write(text.encode(encoding) + b"\n", flush=False)
    _write(b"")


class _LostAnswerError(InputError):
    """Standard output takes nothing any more, also no error document."""


def _let_go(stream: TextIO) -> None:
    """Lead a stream nowhere: what it still holds would fail again at exit."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, stream.fileno())
    os.close(null)


def _write(data: bytes, flush: bool = True) -> None:
    """Write to standard output, and notice there and not at exit where that fails."""
    out = sys.stdout
    if out is None:  # closed by the caller
        return
    try:
        out.buffer.write(data)
        if flush:
            out.buffer.flush()
    except OSError as error:
        _let_go(out)
        # The reader of a pipe that goes away, as `head` does, has what it wanted.
        if not isinstance(error, BrokenPipeError):
            raise _LostAnswerError(
                f"standard output cannot be written: {error.strerror}",
                kind="cannot-write",
                hint="the command itself is done; only its answer was lost",
            ) from error


def printable(text: str) -> str:
    """Return text without control characters, which could drive a terminal.

    Patches, archives and remotes are hostile input, and their bytes end up in messages.
    """
    if text.isprintable():
        return text
    return "".join(
        c if c.isprintable() or c in "\n\t" else c.encode("unicode_escape").decode()
        for c in text
    )


def _say(text: str) -> None:
    stream = sys.stderr
    if stream is not None:
        encoding = stream.encoding or "utf-8"
        safe = printable(text).encode(encoding, "backslashreplace").decode(encoding)
        try:
            print(safe, file=stream, flush=True)
        except OSError:
            # The exit code is the answer, and must not be lost with the words about it.
            _let_go(stream)


_OUTSIDE = frozenset(
    (
        errno.EACCES, errno.EDQUOT, errno.EFBIG, errno.EMFILE, errno.ENAMETOOLONG,
        errno.ENFILE, errno.ENOMEM, errno.ENOSPC, errno.EPERM, errno.EROFS,
    )
)  # fmt: skip
_FULL = frozenset((errno.EDQUOT, errno.EFBIG, errno.ENOSPC))


def _outside_error(error: OSError) -> InputError:
    """Return the error for what the machine refused: no fault of stackctl."""
    full = error.errno in _FULL
    name = error.filename
    if isinstance(name, bytes):
        name = os.fsdecode(name)
    place = f"{name}: " if name else ""
    return InputError(
        f"{place}{error.strerror}; nothing half-written was kept",
        kind="disk-full" if full else "not-permitted",
        hint="free some space (or raise the quota) and run the command again"
        if full
        else "check the permissions and limits, then run the command again",
        where={"file": str(name)} if name else None,
    )


def _has_folder() -> bool:
    try:
        Path.cwd()
    except FileNotFoundError:
        return False
    return True


def print_error(error: Exception, as_json: bool, verbose: bool = False) -> int:
    """Print an error as the contract asks for and return the exit code.

    Args:
        error: What was raised.
        as_json: Print the JSON document on standard output.
        verbose: Show the traceback of an internal error.
    """
    if isinstance(error, OSError) and error.errno in _OUTSIDE:
        error = _outside_error(error)
    elif isinstance(error, FileNotFoundError) and not _has_folder():
        error = UsageError(
            "the folder that this shell works in is gone",
            kind="no-folder",
            hint="go to a folder that exists (`cd .` where it was made again)",
        )
    if not isinstance(error, StackctlError):
        if verbose:
            import traceback

            _say("".join(traceback.format_exception(error)).rstrip())
        name = type(error).__name__
        error = InternalError(
            f"{name}: {error}" if str(error) else name,
            hint="this is a fault of stackctl; run it again with -vv and report it",
        )
    if as_json and not isinstance(error, _LostAnswerError):
        # Where it is lost, the exit code still is the error's.
        with contextlib.suppress(_LostAnswerError):
            print_json(error.document())
    else:
        place = ""
        file, line = error.where.get("file"), error.where.get("line")
        if file and str(file) not in error.message:
            place = f"{file}:{line}: " if line else f"{file}: "
        _say(f"error: {place}{error.message}")
        if error.hint:
            _say(f"hint: {error.hint}")
    return error.exit_code


def of_file(file: str | Path, message: str) -> str:
    """Return a message that says of which file it is, and says so once."""
    return message if Path(file).name in message else f"{file}: {message}"


def print_interrupted(as_json: bool) -> None:
    """Say that the user stopped the command."""
    hint = "nothing half-done was kept; run the same command again to go on"
    if as_json:
        if _answered:
            return  # two documents would be none
        where: dict[str, object] = {}
        kind, message = "interrupted", "interrupted"
        document = {"kind": kind, "message": message, "hint": hint, "where": where}
        print_json({"error": document})
    else:
        _say(f"interrupted: {hint}")


def usage_error(message: str, hint: str | None = None) -> UsageError:
    """Return the error for arguments that cannot be parsed."""
    return UsageError(message, hint=hint)


class TerminalProgress:
    """One line on standard error that shows long work, only on a terminal."""

    def __init__(self, quiet: bool, verbose: int) -> None:
        self._verbose = verbose
        self._quiet = quiet
        stream = sys.stderr
        self._live = (
            not quiet
            and stream is not None
            and stream.isatty()
            and os.environ.get("TERM") != "dumb"
        )
        self._last = 0.0
        self._shown = ""
        self._started = time.monotonic()

    def update(self, phase: str, done: int, total: int | None) -> None:
        """Show a state, at most ten times a second and not for quick work."""
        now = time.monotonic()
        if not self._live or now - self._last < 0.1 or now - self._started < 0.4:
            return
        self._last = now
        if total:
            text = f"{phase} {100 * done // total:3d} %  {_amount(done, total)}"
        else:
            text = f"{phase} {done}"
        self._write(text)

    def note(self, message: str) -> None:
        """Show a message for people who asked for them."""
        if self._verbose and not self._quiet:
            self.clear()
            _say(message)

    def _write(self, text: str) -> None:
        sys.stderr.write("\r" + text + " " * max(len(self._shown) - len(text), 0))
        sys.stderr.flush()
        self._shown = text

    def clear(self) -> None:
        """Remove the line."""
        if self._shown:
            sys.stderr.write("\r" + " " * len(self._shown) + "\r")
            sys.stderr.flush()
            self._shown = ""


def _amount(done: int, total: int) -> str:
    if total >= 10_000_000:
        return f"({done / 1e6:.0f} of {total / 1e6:.0f} million)"
    return f"({done} of {total})"


#: Columns below which nothing is folded: what is left would be no table.
_LEAST = 30
#: Columns that text needs beside others; where fewer are left, it goes below them.
_READABLE = 36


def table(
    header: Sequence[str], rows: Iterable[Sequence[str]], width: int | None = None
) -> list[str]:
    """Return a plain table's lines: columns padded, two spaces apart.

    Args:
        header: Column names.
        rows: Cells; as many per row as the header has.
        width: Columns to which a wider table is folded: its last column is wrapped, and
            what does not fit beside the first columns goes below them. By default
            `columns()`: files and pipes get one line a row.
    """
    cells = [list(header), *[list(map(printable, row)) for row in rows]]
    widths = [max(len(row[n]) for row in cells) for n in range(len(header))]
    room = columns() if width is None else width
    total = sum(widths) + 2 * (len(widths) - 1)
    if room and total > room >= _LEAST:
        return _folded(cells, widths, room)
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        for row in cells
    ]
    return [line.rstrip() for line in lines]


def columns() -> int | None:
    """Return how wide lines may be: the terminal's width, None where there is none.

    `COLUMNS` says it for a terminal and for a pipe, as into a pager.
    """
    if sys.stdout is not None and sys.stdout.isatty():
        return shutil.get_terminal_size().columns
    named = os.environ.get("COLUMNS", "")
    return int(named) or None if named.isascii() and named.isdigit() else None


def labelled(label: str, text: str) -> list[str]:
    """Return a label with text behind it, wrapped beside the label where it is long.

    Args:
        label: What stands before the text on its first line.
        text: The text; one line where nothing says how wide lines may be.
    """
    room = columns()
    if room is None or room < len(label) + _LEAST or len(label) + len(text) <= room:
        return [label + text]
    return textwrap.wrap(
        printable(text),
        room,
        initial_indent=label,
        subsequent_indent=" " * len(label),
        break_long_words=False,
        break_on_hyphens=False,
    )


def fitting(text: str, taken: int = 0) -> str:
    """Return a name cut at its end where lines may not be as long.

    Args:
        text: The name; `--json` has it whole.
        taken: Columns of the line before it.
    """
    room = columns()
    if room is None or room < _LEAST or len(text) + taken <= room:
        return text
    return text[: max(room - taken - 3, 1)] + "..."


def _folded(cells: list[list[str]], widths: list[int], room: int) -> list[str]:
    """Return a table's lines with the columns that do not fit below the first ones."""
    groups: list[list[int]] = [[]]
    end = -2
    for number, width in enumerate(widths):
        last = number == len(widths) - 1
        if groups[-1] and end + 2 + (min(width, _READABLE) if last else width) > room:
            groups.append([])
            end = 2
        groups[-1].append(number)
        end += 2 + width
    lines = []
    for row in cells:
        for position, group in enumerate(groups):
            start = "    " if position else ""
            for number in group[:-1]:
                start += row[number].ljust(widths[number]) + "  "
            wrapped = textwrap.wrap(
                row[group[-1]],
                room,
                initial_indent=start,
                subsequent_indent=" " * len(start),
                break_long_words=False,
                break_on_hyphens=False,
            )
            # Without a last cell nothing is wrapped, nor are the others shown.
            lines += wrapped or [start.rstrip()]
    return [line for line in lines if line.strip()]
