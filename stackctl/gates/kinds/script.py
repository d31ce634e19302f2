# SPDX-License-Identifier: Apache-2.0
"""Kinds parity, kernel and compile: a script of the project prints the answer."""

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from stackctl.gates.here import Here
from stackctl.gates.kinds import Place, given_answer
from stackctl.gates.model import Gate

if TYPE_CHECKING:
    import ast


class Script:
    """What is known of units that are scripts."""

    def lacks(self, gate: Gate, here: Here) -> list[str]:
        """Return why the Python that runs the script cannot be used."""
        return here.python_lacks()

    def command(self, place: Place) -> list[str]:
        """Return the program and arguments of a unit."""
        gate = place.gate
        assert gate.script is not None  # the reader of gates sees to it
        arguments = [place.fill(argument) for argument in gate.arguments]
        return [place.here.python, str(place.project / gate.script), *arguments]

    def environment(self, place: Place) -> dict[str, str]:
        """Return what a unit of this kind sees beside the common environment."""
        return {}

    def answer(self, place: Place, code: int | None, stdout: bytes) -> dict[str, Any]:
        """Return the unit's answer.

        Raises:
            BadAnswer: It gave none that can be used, or failed in spite of it.
        """
        return given_answer(place, code, stdout)


SCRIPT: Final = Script()


def imported_files(script: Path, folder: Path) -> list[Path]:
    """Return the Python files beside a script that it imports, itself included.

    Args:
        script: The script.
        folder: Where modules are looked for: the script's folder, or another one of
            its path.
    """
    import ast

    found: dict[Path, None] = {}
    queue = [script]
    for path in queue:
        if path in found:
            continue
        found[path] = None
        try:
            nodes = list(ast.walk(ast.parse(path.read_bytes())))
        except (SyntaxError, ValueError):
            continue  # it will fail when it runs, and say so
        for node in nodes:
            for name in _names(node, path.parent, folder):
                queue += _module(folder, name.split("."))
    return sorted(found)


def _names(node: "ast.AST", own: Path, folder: Path) -> list[str]:
    """Return the dotted names that a statement may import, from the folder down."""
    import ast

    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if not isinstance(node, ast.ImportFrom):
        return []
    start = node.module or ""
    if node.level:
        above = own
        for _ in range(node.level - 1):
            above = above.parent
        if not above.is_relative_to(folder):
            return []
        start = ".".join([*above.relative_to(folder).parts, *filter(None, [start])])
    more = [f"{start}.{alias.name}".lstrip(".") for alias in node.names]
    return [start, *more] if start else more


def _module(folder: Path, parts: list[str]) -> list[Path]:
    """Return the files that importing a dotted name runs, its packages' included."""
    found = []
    for count in range(1, len(parts) + 1):
        module = folder.joinpath(*parts[:count])
        for candidate in (module.with_suffix(".py"), module / "__init__.py"):
            if candidate.is_file():
                found.append(candidate)
    return found
