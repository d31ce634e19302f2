# SPDX-License-Identifier: Apache-2.0
"""What a distribution's entry points run: the commands of a package, and plug-ins.

An installer writes a command from its entry point, so that it is in no wheel and cannot
be compared with one. But installers write little: an interpreter, one import, one call.
A command that is read as just that, of a function of the compared package, is no other;
anything more makes it a program of its own, which runs before the package does.
"""

import ast
import re
import tomllib
import warnings
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import NamedTuple

from stackctl.image.expectation import ExpectedTree

#: Name of the file of a distribution that lists them.
FILE = b"entry_points.txt"
#: Bytes of a command of an installer; its interpreter's path is most of it.
MOST_BYTES = 8192
_COMMANDS = frozenset(("console_scripts", "gui_scripts"))
#: Groups that torch, which vLLM imports first of all, loads when it is imported.
_LOADED_BY_TORCH = "torch.backends"
_FLAGS = rb"(?: -[sPEIu]+)*"
_SHEBANG = re.compile(rb"#! ?(?P<path>/[^\s\0]+)" + _FLAGS)
_BY_ENV = re.compile(rb"#! ?/usr/bin/env (?:-S )?(?P<path>[^\s/\0]+)" + _FLAGS)
#: What a shell starts where the path is too long, or has a space, for the kernel.
_EXEC = re.compile(
    rb"'''exec' (?:\"(?P<double>/[^\"$`\\\n]+)\"|'(?P<single>/[^'\n]+)'"
    rb"|(?P<bare>/[\w./+@%,:=-]+))" + _FLAGS + rb' "\$0" "\$@"'
)
#: The same, relative to the command's own folder.
_EXEC_BESIDE = re.compile(
    rb"'''exec' \"\$\(dirname -- \"\$\(realpath -- \"\$0\"\)\"\)\"/'?(?P<path>[\w.]+)'?"
    + _FLAGS
    + rb' "\$0" "\$@"'
)
_EXEC_END = b"' '''"
_CODING = re.compile(rb"[ \t\f]*#.*?coding[:=][ \t]*([-\w.]+)")
#: Names of interpreters.
INTERPRETER = re.compile(rb"python(3(\.\d+)?t?)?")
_CALL = re.compile(r"(?:sys\.exit|raise SystemExit)\(([\w.]+)\(\)\)|([\w.]+)\(\)")
_PREPARATIONS = frozenset(
    ast.unparse(ast.parse(text))
    for text in (
        r"sys.argv[0] = re.sub(r'(-script\.pyw|\.exe)?$', '', sys.argv[0])",
        r"sys.argv[0] = re.sub(r'(-script\.pyw?|\.exe)?$', '', sys.argv[0])",
        "sys.argv[0] = sys.argv[0].removesuffix('.exe')",
        "if sys.argv[0].endswith('-script.pyw'):\n"
        "    sys.argv[0] = sys.argv[0][:-11]\n"
        "elif sys.argv[0].endswith('.exe'):\n"
        "    sys.argv[0] = sys.argv[0][:-4]",
    )
)


class Target(NamedTuple):
    """What an entry point leads to.

    Attributes:
        module: Dotted name of the module.
        attribute: Dotted name in it; empty for the module itself.
    """

    module: str
    attribute: str

    @property
    def package(self) -> str:
        """Name of the top package."""
        return self.module.partition(".")[0]


class EntryPoint(NamedTuple):
    """A row of `entry_points.txt`.

    Attributes:
        group: Who looks for it.
        name: Its name in the group.
        target: What it leads to.
    """

    group: str
    name: str
    target: Target


#: What the commands of a package lead to, by their names.
Commands = Mapping[str, Collection[Target]]


class Launcher(NamedTuple):
    """A command as installers write it.

    Attributes:
        interpreter: Its path, or the name of one beside it or on the `PATH`.
        target: What it calls.
    """

    interpreter: bytes
    target: Target


def parse_entry_points(data: bytes) -> Iterator[EntryPoint]:
    """Yield the rows of an `entry_points.txt`, as `importlib.metadata` reads it.

    Args:
        data: The file; rows that are malformed are given with what they seem to say.
    """
    group = ""
    for line in data.decode("utf-8", "surrogateescape").splitlines():
        row = line.strip()
        if not row or row.startswith("#"):
            continue
        if row.startswith("[") and row.endswith("]"):
            group = row.strip("[]")
            continue
        name, _, value = row.partition("=")
        yield EntryPoint(group, name.strip(), parse_target(value))


def parse_target(text: str) -> Target:
    """Return what `MODULE:ATTRIBUTE [EXTRA]` leads to."""
    module, _, attribute = text.partition("[")[0].partition(":")
    return Target(module.strip(), attribute.strip())


def plugins(data: bytes, packages: Collection[str]) -> list[EntryPoint]:
    """Return the entry points that run code of others when a package starts.

    Args:
        data: An `entry_points.txt`.
        packages: The compared packages, which load the groups named after them.
    """
    groups = tuple(f"{name}." for name in packages)
    return [
        row
        for row in parse_entry_points(data)
        if (row.group.startswith(groups) and row.target.package not in packages)
        or (
            row.group == _LOADED_BY_TORCH
            and row.target.package not in {"torch", *packages}
        )
    ]


def commands_of(files: Iterable[bytes]) -> dict[str, set[Target]]:
    """Return the commands that some `entry_points.txt` files declare."""
    found: dict[str, set[Target]] = {}
    for data in files:
        for row in parse_entry_points(data):
            if row.group in _COMMANDS:
                found.setdefault(row.name, set()).add(row.target)
    return found


def tree_commands(expected: ExpectedTree) -> dict[str, set[Target]]:
    """Return the commands that a tree declares in its `pyproject.toml`."""
    entry = expected.entries.get(b"pyproject.toml")
    found: dict[str, set[Target]] = {}
    if entry is None:
        return found
    try:
        document = tomllib.loads(expected.read(entry[1]).decode("utf-8"))
    except (ValueError, RecursionError):
        return found
    project = document.get("project")
    for table in ("scripts", "gui-scripts"):
        rows = project.get(table) if isinstance(project, dict) else None
        for name, value in rows.items() if isinstance(rows, dict) else ():
            if isinstance(value, str):
                found.setdefault(name, set()).add(parse_target(value))
    return found


def read_launcher(data: bytes) -> Launcher | None:
    """Return what a command calls if it does what an installer writes, and no more.

    Args:
        data: The whole file. It is parsed, and nothing of it is run.
    """
    if len(data) > MOST_BYTES:
        return None
    lines = data.split(b"\n")
    by_shell = lines[0] == b"#!/bin/sh"
    interpreter = _by_shell(lines) if by_shell else _by_kernel(lines[0])
    if interpreter is None:
        return None
    # As much of the head as has no text of Python's.
    head = 3 if by_shell else 1
    for line in lines[:2]:
        coding = _CODING.match(line)
        if coding and coding[1].lower() not in (b"utf-8", b"utf8"):
            return None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            # What nests deeply is read, and written again, by recursion.
            target = _called(ast.parse(b"\n".join(lines[head:]).decode("utf-8")))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    return None if target is None else Launcher(interpreter, target)


def _by_kernel(line: bytes) -> bytes | None:
    matched = _SHEBANG.fullmatch(line) or _BY_ENV.fullmatch(line)
    return _interpreter(matched["path"]) if matched else None


def _by_shell(lines: list[bytes]) -> bytes | None:
    if len(lines) < 3 or lines[2] != _EXEC_END:
        return None
    matched = _EXEC.fullmatch(lines[1])
    if matched:
        return _interpreter(matched["double"] or matched["single"] or matched["bare"])
    matched = _EXEC_BESIDE.fullmatch(lines[1])
    return _interpreter(matched["path"]) if matched else None


def _interpreter(path: bytes) -> bytes | None:
    return path if INTERPRETER.fullmatch(path.rpartition(b"/")[2]) else None


def _called(tree: ast.Module) -> Target | None:
    """Return the function that a command imports and calls, if it does only that."""
    imported: tuple[str, str] | None = None
    for node in tree.body[:-1]:
        if isinstance(node, ast.Import):
            if any(
                name.asname or name.name not in ("re", "sys") for name in node.names
            ):
                return None
        elif isinstance(node, ast.ImportFrom):
            if imported or node.level or len(node.names) != 1 or node.names[0].asname:
                return None
            imported = node.module or "", node.names[0].name
        else:
            return None
    if imported is None:
        return None
    # By hand it is written without a condition, and means the same.
    body = tree.body[-1:]
    if isinstance(body[0], ast.If) and not body[0].orelse:
        if ast.unparse(body[0].test) != "__name__ == '__main__'":
            return None
        body = body[0].body
    *before, call = body
    if any(ast.unparse(node) not in _PREPARATIONS for node in before):
        return None
    matched = _CALL.fullmatch(ast.unparse(call))
    module, name = imported
    called = matched[1] or matched[2] if matched else ""
    if called.partition(".")[0] != name:
        return None
    return Target(module, called)
