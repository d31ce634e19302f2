# SPDX-License-Identifier: Apache-2.0
"""What may stand under a root beside the tracked files, and what it is."""

import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import NamedTuple

_COMPILED = re.compile(rb"\.(so(\.\d+)*|pyd|dylib|dll|a|o|lib|cubin|fatbin|ptx)$")
_LOADABLE = re.compile(rb"\.(py|pyw|pyc|pyo|pyd|so(\.\d+)*|egg|zip|pth|pyz|nbi|nbc)$")
#: First bytes of programs and libraries.
ELF = b"\x7fELF"
_BYTECODE = re.compile(
    rb"(?P<folder>(?:.*/)?)__pycache__/(?P<stem>[^/]+?)\."
    rb"(?P<tag>[a-z]+-?\d+t?(?:-\d+|-[a-z]+-\d[\d.]*)?)"
    rb"(?:\.opt-(?P<level>[0-9A-Za-z]+))?\.pyc"
)
_GENERATED = re.compile(
    rb"(?:.*/)?(?:_version\.py|[^/]*_pb2(?:_grpc)?\.pyi?|[^/]*\.egg-info/.*|_build_info\.py)"
)
_VENDORED = re.compile(rb"(?:^|/)(?:third_party|_vendor|vendor|vendored)/")


class Allow(NamedTuple):
    """A file that may stand under a root although nothing tracks it.

    Attributes:
        path: Path or glob. `*` stays within a folder, `**` crosses them.
        sha256: What it must hash to; empty allows any content.
    """

    path: str
    sha256: str = ""

    def covers(self, *paths: bytes) -> bool:
        """Whether the rule speaks of any of these paths."""
        fits = glob(self.path).fullmatch
        return any(map(fits, paths))


@cache
def glob(text: str) -> re.Pattern[bytes]:
    """Return a pattern for a glob over paths.

    Args:
        text: `?` and `*` match within a folder, `**` across folders, `[…]` one of some
            characters.
    """
    data = text.encode("utf-8", "surrogateescape")
    out = b""
    pos = 0
    while pos < len(data):
        char = data[pos : pos + 1]
        pos += 1
        if char == b"*":
            if data[pos : pos + 2] == b"*/":
                out += b"(?:[^/]+/)*"
                pos += 2
            elif data[pos : pos + 1] == b"*":
                out += b".*"
                pos += 1
            else:
                out += b"[^/]*"
        elif char == b"?":
            out += b"[^/]"
        elif char == b"[" and (end := data.find(b"]", pos + 1)) > 0:
            body = data[pos:end].replace(b"\\", b"\\\\").replace(b"[", b"\\[")
            if body[:1] in (b"!", b"^"):
                body = b"^/" + body[1:]
            out += b"[" + body + b"]"
            pos = end + 1
        else:
            out += re.escape(char)
    return re.compile(out, re.DOTALL)


def covered(path: bytes, globs: Iterable[str]) -> str:
    """Return the first glob that covers a path, or nothing."""
    for text in globs:
        if glob(text).fullmatch(path):
            return text
    return ""


class Bytecode(NamedTuple):
    """A bytecode file in the place where Python looks for it.

    Attributes:
        source: Path of the source that it stands in for.
        tag: Interpreter tag, such as `cpython-312`.
        level: Optimization level: empty, `1` or `2`.
    """

    source: bytes
    tag: str
    level: str


def bytecode(path: bytes) -> Bytecode | None:
    """Return what a path in a `__pycache__` folder stands in for, if it is one."""
    matched = _BYTECODE.fullmatch(path)
    if matched is None:
        return None
    return Bytecode(
        matched["folder"] + matched["stem"] + b".py",
        matched["tag"].decode("ascii"),
        (matched["level"] or b"").decode("ascii"),
    )


def is_loadable(path: bytes) -> bool:
    """Whether Python or the loader can run a file of this name."""
    return bool(_LOADABLE.search(path))


def classify(path: bytes, head: bytes = b"") -> str:
    """Return the class of an untracked file.

    Args:
        path: Path relative to the tree, such as `vllm/_C.abi3.so`.
        head: First bytes of the file, if known.

    Returns:
        `bytecode`, `compiled`, `vendored`, `generated` or `unknown`.
    """
    if path.endswith(b".pyc"):
        return "bytecode"
    if _COMPILED.search(path) or head.startswith(ELF):
        return "compiled"
    known = known_wheel_file(path)
    if known:
        return known
    if _VENDORED.search(path):
        return "vendored"
    if _GENERATED.fullmatch(path):
        return "generated"
    return "unknown"


@cache
def _known() -> tuple[dict[bytes, str], dict[str, re.Pattern[bytes]]]:
    # Not by importlib.resources: its import takes longer than all look-ups.
    text = (Path(__file__).parent / "data/vllm-wheel.txt").read_text("utf-8")
    exact: dict[bytes, str] = {}
    globs: dict[str, list[bytes]] = {}
    for line in text.splitlines():
        if line and not line.startswith("#"):
            kind, _, path = line.partition(" ")
            if "*" in path:
                globs.setdefault(kind, []).append(glob(path).pattern)
            else:
                exact[path.encode()] = kind
    # One pattern for each class: thousands of files are looked up.
    joined = {k: re.compile(b"|".join(v), re.DOTALL) for k, v in globs.items()}
    return exact, joined


def known_wheel_file(path: bytes) -> str:
    """Return the class of a file that a known wheel has at this path, or nothing."""
    exact, globs = _known()
    if path in exact:
        return exact[path]
    for kind, pattern in globs.items():
        if pattern.fullmatch(path):
            return kind
    return ""
