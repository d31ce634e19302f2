# SPDX-License-Identifier: Apache-2.0
"""Says why a patch does not apply: file, hunk, expected and found lines, likely cause.

git's own message names a file and a line. A person wants to know what stands there
instead, whether the change is in already, and which line moved.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from stackctl.errors import ConflictError
from stackctl.git.apply import PatchRejectedError, Workspace
from stackctl.git.objects import MODE_LINK, MODE_TREE
from stackctl.git.patchtext.model import FileChange, Hunk, Patch

_SHOWN_BYTES = 200
_SHOWN_LINES = 12


@dataclass(frozen=True, slots=True)
class HunkProblem:
    """Where a hunk fails.

    Attributes:
        number: Number of the hunk in its file, 1-based.
        hunk: The hunk.
        line: Line of the file (1-based) where the hunk comes nearest to fitting.
        matched: How many of the hunk's old lines match there, in order from its start.
        present: Whether the hunk's new side stands in the file already.
    """

    number: int
    hunk: Hunk
    line: int
    matched: int
    present: bool


def _show(path: bytes | None) -> str:
    return (path or b"").decode("utf-8", "backslashreplace")


def _lines(data: bytes) -> list[bytes]:
    lines = data.split(b"\n")
    last = lines.pop()
    out = [line + b"\n" for line in lines]
    return [*out, last] if last else out


def _places(lines: Sequence[bytes], block: Sequence[bytes]) -> int | None:
    if not block:
        return None
    first = block[0]
    size = len(block)
    wanted = list(block)
    for start in range(len(lines) - size + 1):
        if lines[start] == first and lines[start : start + size] == wanted:
            return start
    return None


def _nearest(lines: Sequence[bytes], hunk: Hunk) -> tuple[int, int]:
    """Return the start (0-based) with most matching lines, nearest to the hunk's."""
    wanted = max(hunk.old_start - 1, 0)
    known: dict[bytes, list[int]] = {}
    for number, line in enumerate(lines):
        known.setdefault(line, []).append(number)
    votes: dict[int, int] = {}
    for offset, line in enumerate(hunk.old):
        if line.strip():
            for number in known.get(line, ())[:200]:
                start = number - offset
                votes[start] = votes.get(start, 0) + 1
    if not votes:
        return min(wanted, len(lines)), 0
    start = max(votes, key=lambda place: (votes[place], -abs(place - wanted)))
    return max(start, 0), votes[start]


def find_problem(data: bytes, hunks: Sequence[Hunk]) -> HunkProblem | None:
    """Return the first hunk that does not stand in a file's bytes, None if all do.

    Args:
        data: The file's bytes.
        hunks: The hunks of one file, in order.
    """
    lines = _lines(data)
    for number, hunk in enumerate(hunks, 1):
        if hunk.old and _places(lines, hunk.old) is not None:
            continue
        if not hunk.old and not lines:
            continue
        start, _ = _nearest(lines, hunk)
        matched = 0
        for offset, line in enumerate(hunk.old):
            if start + offset >= len(lines) or lines[start + offset] != line:
                break
            matched += 1
        present = bool(hunk.new) and _places(lines, hunk.new) is not None
        return HunkProblem(number, hunk, start + 1, matched, present)
    return None


def _text(line: bytes) -> str:
    if len(line) > _SHOWN_BYTES:
        start = line[:_SHOWN_BYTES].decode("utf-8", "backslashreplace")
        return f"{start}... ({len(line)} bytes)"
    shown = line.rstrip(b"\n").decode("utf-8", "backslashreplace")
    if not line.endswith(b"\n"):
        shown += "  (no line feed at the end)"
    elif shown.endswith("\r"):
        shown = shown[:-1] + "  (ends in CR LF)"
    return shown


def _compare(data: bytes, problem: HunkProblem) -> list[str]:
    lines = _lines(data)
    hunk = problem.hunk
    first = problem.matched
    begin = max(first - 2, 0)
    out = []
    for offset in range(begin, min(len(hunk.old), begin + _SHOWN_LINES)):
        number = problem.line + offset
        found = lines[number - 1] if number - 1 < len(lines) else None
        expected = hunk.old[offset]
        if found == expected:
            out.append(f"      {number:>6}   {_text(expected)}")
            continue
        out.append(f"    - {number:>6}   expected  {_text(expected)}")
        end = "(the file ends here)" if found is None else _text(found)
        out.append(f"    + {number:>6}   found     {end}")
    return out


def _explain_change(
    workspace: Workspace, change: FileChange
) -> tuple[str, dict[str, object], list[str]] | None:
    path = change.old_path if change.kind != "add" else change.new_path
    where: dict[str, object] = {"path": _show(path), "line": change.line}
    assert path is not None
    blocker = workspace.editor.blocking(path)
    if blocker is not None:
        found = workspace.editor.get(blocker)
        link = found is not None and found.mode == MODE_LINK
        kind = "a symbolic link" if link else "a file"
        return f"{_show(path)}: its parent {_show(blocker)} is {kind}", where, []
    entry = workspace.editor.get(path)
    if change.kind == "add":
        if entry is None:
            return None
        if entry.mode == MODE_TREE:
            return f"{_show(path)} should be new but is a folder", where, []
        data = workspace.content(path, entry.oid)
        if change.hunks and data == b"".join(change.hunks[0].new):
            return f"{_show(path)} exists with exactly this content", where, ["already"]
        return f"{_show(path)} should be new but exists", where, []
    if entry is None or entry.mode == MODE_TREE:
        return f"{_show(path)} does not exist", where, []
    if change.new_path is not None and change.new_path != path:
        target = workspace.editor.get(change.new_path)
        if target is not None:
            return f"{_show(change.new_path)} exists already", where, []
    if change.old_mode is not None and (change.old_mode ^ entry.mode) & 0o170000:
        return (
            f"{_show(path)} is of another type: mode {entry.mode:06o}, "
            f"expected {change.old_mode:06o}",
            where,
            [],
        )
    data = workspace.content(path, entry.oid)
    if change.binary is not None:
        if change.new_id and entry.oid.hex().startswith(change.new_id):
            return f"{_show(path)} has the new content already", where, ["already"]
        return (
            f"{_show(path)} is blob {entry.oid.hex()}, the binary patch is for "
            f"{change.old_id}",
            where,
            [],
        )
    problem = find_problem(data, change.hunks)
    if problem is None:
        return None
    where.update(hunk=problem.number, line=problem.hunk.line)
    where["file_line"] = problem.line + problem.matched
    if problem.present or (
        change.new_id is not None and entry.oid.hex().startswith(change.new_id)
    ):
        return f"{_show(path)}: hunk {problem.number} is in already", where, ["already"]
    shown = _compare(data, problem)
    moved = _moved(data, problem)
    if moved:
        shown.append(moved)
    return f"{_show(path)}: hunk {problem.number} does not match", where, shown


def _moved(data: bytes, problem: HunkProblem) -> str | None:
    """Say where the line that was expected first stands now, if it stands anywhere."""
    if problem.matched >= len(problem.hunk.old):
        return None
    expected = problem.hunk.old[problem.matched]
    if not expected.strip():
        return None
    numbers = [n for n, line in enumerate(_lines(data), 1) if line == expected]
    if not numbers:
        return "    the expected line is nowhere in the file: it was changed or removed"
    places = ", ".join(map(str, numbers[:3]))
    return f"    the expected line stands at line {places} now"


def explain_rejection(workspace: Workspace, patch: Patch, output: str) -> ConflictError:
    """Return the error for a patch that `git apply` refused.

    Args:
        workspace: The tree it was to be applied to.
        patch: The patch.
        output: git's standard error.
    """
    problems = []
    for change in patch.changes:
        found = _explain_change(workspace, change)
        if found is not None:
            problems.append(found)
    where: dict[str, object] = {"patch": patch.name}
    if not problems:
        first = next((line for line in output.splitlines() if line.strip()), "")
        return PatchRejectedError(
            f"{patch.name} does not apply: {first.removeprefix('error: ')}",
            hint="refresh the patch against the tree below it",
            where=where,
        )
    where.update(problems[0][1])
    text = [f"{patch.name} does not apply"]
    for message, place, shown in problems:
        text.append(f"  {message} (line {place['line']} of the patch)")
        text += [line for line in shown if line != "already"]
    already = [shown == ["already"] for _, _, shown in problems]
    if all(already) and len(problems) == len(patch.changes):
        hint = "the whole patch is in the tree already; drop it or mark the set"
    elif any(already):
        hint = "a part is in the tree already: an earlier patch or the base carries it"
    else:
        hint = "rebase it: `stackctl compose --upto` the set before, edit, then export"
    return PatchRejectedError("\n".join(text), hint=hint, where=where)
