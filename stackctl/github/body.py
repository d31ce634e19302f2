# SPDX-License-Identifier: Apache-2.0
"""What is written into a pull request: a block between markers, nothing around it.

Whatever people write before or after the block stays as it is. The title that was set
is kept in the block's first line, so that one that somebody changed is recognised.
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from stackctl.model.series import PatchSet

MAX_BODY: Final = 65_536
"""Longest body that GitHub takes: characters."""

MAX_ABOUT: Final = 20_000
"""Longest description of a set: characters; the table must fit too."""

_BEGIN: Final = "<!-- stackctl:begin"
_END: Final = "<!-- stackctl:end -->"
_BLOCK: Final = re.compile(
    re.escape(_BEGIN) + r" (\{[^\n]*\}) -->\r?\n.*?" + re.escape(_END), re.DOTALL
)


class Row(NamedTuple):
    """One line of the table of a stack.

    Attributes:
        set: Name of the set.
        title: Its title.
        state: Its pull request, or why there is none.
    """

    set: str
    title: str
    state: str


def about_set(item: PatchSet) -> str:
    """Return what a body says about a set, as Markdown.

    Args:
        item: The set.
    """
    parts = []
    if item.reason:
        parts.append(f"**Why the fork carries it:** {item.reason}")
    if item.retire:
        parts.append(f"**What ends it:** {item.retire}")
    if item.requires:
        parts.append("**Requires:** " + _code(item.requires))
    gates = []
    if item.gates.required:
        gates.append("required " + _code(item.gates.required))
    if item.gates.advisory:
        gates.append("advisory " + _code(item.gates.advisory))
    if gates:
        parts.append("**Gates:** " + "; ".join(gates))
    text = "\n\n".join(parts)
    if len(text) > MAX_ABOUT:
        text = text[: MAX_ABOUT - 3] + "..."
    # A comment in it could end our block, or hide what follows.
    return text.replace("<!--", "&lt;!--").replace("-->", "--&gt;")


def _code(names: Sequence[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _cell(text: str) -> str:
    safe = text.replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;")
    # Titles of other sets: nobody is to be called by them, and no issue to be closed.
    safe = re.sub(r"[@#](?=\w)|\bGH-(?=\d)|:(?=//)", r"\g<0>&#8203;", safe)
    return " ".join(safe.split())


def render_block(
    series: str, name: str, title: str, about: str, rows: Sequence[Row]
) -> str:
    """Return the block of one pull request.

    Args:
        series: Name of the series.
        name: Name of the set.
        title: Title that the pull request is given.
        about: What is said about the set.
        rows: The stack, lowest first.
    """
    known = json.dumps({"set": name, "title": title}, ensure_ascii=True)
    known = known.replace(">", "\\u003e").replace("--", "-\\u002d")
    lines = [f"{_BEGIN} {known} -->"]
    if about:
        lines += [about, ""]
    names = [row.set for row in rows]
    lines += [
        f"Set {names.index(name) + 1} of {len(rows)} in the stack `{series}`, lowest "
        "first. Each pull request shows its own set only; review and merge from the "
        "top of this table down.",
        "",
        "| | set | pull request | |",
        "|---|---|---|---|",
    ]
    for row in rows:
        # Its own number is not known yet when it is opened.
        here, state = ("→", "this one") if row.set == name else ("", row.state)
        lines.append(f"| {here} | `{row.set}` | {state} | {_cell(row.title)} |")
    return "\n".join([*lines, _END])


class Found(NamedTuple):
    """The block of a body.

    Attributes:
        text: The block with plain line feeds; empty where there is none.
        title: The title that was set, None where that is not known.
        damaged: Whether the markers are there, but not as one block.
    """

    text: str
    title: str | None
    damaged: bool


def find_block(body: str) -> Found:
    """Find our block in a body.

    Args:
        body: The body as GitHub has it; its line ends may be those of a browser.
    """
    match = _BLOCK.search(body)
    marks = body.count(_BEGIN), body.count(_END)
    if marks == (0, 0):
        return Found("", None, False)
    if match is None or marks != (1, 1):
        return Found("", None, True)
    title: str | None = None
    try:
        known = json.loads(match[1])
        if isinstance(known, dict) and isinstance(known.get("title"), str):
            title = known["title"]
    except ValueError:
        pass
    return Found(match[0].replace("\r\n", "\n"), title, False)


def with_block(body: str, block: str) -> str | None:
    """Return a body with our block in place of the old one, or behind the text.

    Args:
        body: The body as GitHub has it.
        block: The block.

    Returns:
        The new body; None where it must be left alone: its markers are damaged, or it
        would be longer than GitHub takes.
    """
    found = find_block(body)
    if found.damaged:
        return None
    if found.text == block:
        return body
    if found.text:
        match = _BLOCK.search(body)
        assert match is not None
        changed = body[: match.start()] + block + body[match.end() :]
    elif body.strip():
        changed = body.rstrip("\r\n") + "\n\n" + block
    else:
        changed = block
    return changed if len(changed) <= MAX_BODY else None


def wanted_title(present: str, recorded: str | None, title: str) -> str | None:
    """Return the title to set, None where it is right or somebody's own.

    Args:
        present: The title that the pull request has.
        recorded: The title that was set last, None where that is not known.
        title: The title that the series gives.
    """
    return title if present == recorded and present != title else None


def rewrite_marker(old: str, new: str) -> str:
    """Return the mark of the comment on one rewriting of a branch."""
    return f"<!-- stackctl:rewrite {old}..{new} -->"


def rewrite_comment(branch: str, old: str, new: str, kind: str, text: str) -> str:
    """Return the comment on a rewriting of a branch.

    Args:
        branch: Name of the branch.
        old: Its commit before.
        new: Its commit after.
        kind: `content` or `rebase`.
        text: What git range-diff says; cut where it is too long.
    """
    words = {
        "content": "The set's change is another one than before.",
        "rebase": "Only what it stands on changed: the patch id is the same.",
    }[kind]
    head = f"{rewrite_marker(old, new)}\n`{branch}` goes from {old} to {new}. {words}\n"
    # A fence must be longer than any run of backticks in it.
    text = re.sub(r"`{20,}", "`" * 20, text)
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    room = MAX_BODY - len(head) - 2 * len(fence) - 200
    if len(text) > room:
        text = text[:room] + "\n... cut: it is too long for a comment\n"
    end = "" if text.endswith("\n") else "\n"
    return f"{head}\n{fence}diff\n{text}{end}{fence}\n"


def rows_of(
    sets: Sequence[tuple[str, str]],
    numbers: Mapping[str, int],
    states: Mapping[str, str],
) -> list[Row]:
    """Return the table of a stack.

    Args:
        sets: Name and title of each set, lowest first.
        numbers: Pull requests by set.
        states: What is said where a set has no open pull request here.
    """
    return [
        Row(
            name,
            title,
            states.get(name) or (f"#{numbers[name]}" if name in numbers else "to come"),
        )
        for name, title in sets
    ]
