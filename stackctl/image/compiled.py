# SPDX-License-Identifier: Apache-2.0
"""What is to say about the bytecode under the roots."""

import re
import sys
from collections.abc import Callable, Iterable, Iterator

from stackctl.image import bytecode as pyc
from stackctl.image import documents
from stackctl.image.compare import Comparison
from stackctl.image.contents import Contents
from stackctl.image.expectation import ExpectedTree
from stackctl.image.rules import bytecode
from stackctl.image.view import Node, View, show
from stackctl.image.warn import Warn, about

_VENV_VERSION = re.compile(rb"(?m)^version(?:_info)?\s*=\s*(\d+\.\d+\.\d+)")


def bytecode_warnings(
    comparisons: Iterable[Comparison],
    expected: ExpectedTree,
    contents: Contents,
    judged_source: Callable[[bytes], bytes | None],
    version: Callable[[Comparison], str] = lambda _: "",
) -> Iterator[Warn]:
    """Yield what is to say about bytecode under the roots.

    Args:
        comparisons: The compared roots.
        expected: Where the sources of tracked files come from.
        contents: Where the bytecode comes from.
        judged_source: Gives the source of an untracked file that is judged, by its
            path in the image, or None.
        version: Gives the Python release that a root states to be for, or nothing.
    """
    found: dict[str, list[bytes]] = {}
    for comparison in comparisons:
        stated = version(comparison)
        other = bool(stated) and not same_release(stated)
        _check_bytecode(comparison, expected, contents, judged_source, found, other)
    messages = {
        "bytecode-unchecked": "Python runs this bytecode whatever the source says",
        "bytecode-foreign": "Python runs this bytecode, and it is not what the source "
        "compiles to",
        "bytecode-unverifiable": "Python may run this bytecode, and it cannot be "
        "compared with its source here",
        "bytecode-orphan": "this bytecode has no source beside it",
    }
    for code, message in messages.items():
        yield from about(code, message, found.get(code, ()))
    yield from about(
        "bytecode-stale",
        "Python passes over this bytecode, whose header does not fit the source",
        found.get("stale", ()),
        strict=False,
    )


def _check_bytecode(
    comparison: Comparison,
    expected: ExpectedTree,
    contents: Contents,
    judged_source: Callable[[bytes], bytes | None],
    found: dict[str, list[bytes]],
    other_release: bool,
) -> None:
    root = comparison.real_path + b"/" if comparison.real_path else b""
    wanted = expected.subtree(comparison.root.tree)
    pending: list[tuple[bytes, bytes, Node, int]] = []
    for path, node in comparison.bytecode.items():
        place = bytecode(path)
        if place is None:
            continue
        source = comparison.nodes.get(place.source)
        if source is None:
            found.setdefault("bytecode-orphan", []).append(root + path)
            continue
        header = pyc.read_header(node.head)
        comparable = (
            header is not None
            and header.magic == pyc.MAGIC
            and place.level in ("", "1", "2")
            # pytest changes what it compiles and says so in the tag.
            and place.tag.count("-") < 2
        )
        text: bytes | None = None
        if comparable or (header is not None and header.hashed):
            if place.source in comparison.tracked and source.kind == "f":
                text = expected.read(wanted[place.source][1])
            else:
                text = judged_source(root + place.source)
        times = (source.mtime, *source.times)
        use = pyc.usage(header, times, source.size, text)
        if source.kind != "f" and use == pyc.STALE:
            # The time and size that count are those of what the link leads to.
            use = pyc.USED
        if use == pyc.UNCHECKED:
            found.setdefault("bytecode-unchecked", []).append(root + path)
        elif use in (pyc.STALE, pyc.BROKEN):
            found.setdefault("stale", []).append(root + path)
            continue
        if not comparable or text is None:
            if use != pyc.UNCHECKED:
                found.setdefault("bytecode-unverifiable", []).append(root + path)
            continue
        pending.append((path, text, node, int(place.level or 0)))
    by_path = {root + path: (text, level) for path, text, _, level in pending}
    nodes = [(root + path, node) for path, _, node, _ in pending]
    for where, body in contents.fetch(nodes):
        text, level = by_path.pop(where)
        outcome = pyc.compare_code(body, text, show(where), level)
        if outcome == pyc.INSTRUCTIONS and other_release:
            found.setdefault("bytecode-unverifiable", []).append(where)
        elif outcome != pyc.SAME:
            found.setdefault("bytecode-foreign", []).append(where)
    for where in by_path:
        found.setdefault("bytecode-unverifiable", []).append(where)


def same_release(stated: str) -> bool:
    """Whether a stated version is that of the Python that runs this."""
    own = sys.version_info[:3]
    return stated.split(".")[:3] == [str(number) for number in own]


def stated_version(
    view: View,
    comparison: Comparison,
    contents: Contents,
    config: documents.Object | None,
) -> str:
    """Return the Python release that an image states for a root, or nothing.

    It is only used to choose between two warnings, so it need not be true.
    """
    parts = comparison.real_path.split(b"/")
    for depth in range(len(parts) - 1, 0, -1):
        path = b"/".join([*parts[:depth], b"pyvenv.cfg"])
        node = view.lookup(path).node
        if node is not None and node.kind == "f":
            data = dict(contents.fetch([(path, node)])).get(path, b"")
            matched = _VENV_VERSION.search(data)
            if matched:
                return matched[1].decode("ascii")
    run = config.get("config") if config else None
    for item in documents.as_list(
        run.get("Env") if isinstance(run, dict) else None, "config Env"
    ):
        name, _, value = str(item).partition("=")
        if name == "PYTHON_VERSION":
            return value
    return ""
