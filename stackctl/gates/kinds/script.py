# SPDX-License-Identifier: Apache-2.0
"""Kinds parity, kernel and compile: a script of the project prints the answer."""

from pathlib import Path
from typing import Any, Final

from stackctl.gates.kinds import Place, given_answer


class Script:
    """What is known of units that are scripts."""

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
        names = []
        for node in nodes:
            if isinstance(node, ast.Import):
                names += [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
                names.append(node.module)
                names += [f"{node.module}.{alias.name}" for alias in node.names]
        for name in names:
            module = folder.joinpath(*name.split("."))
            for candidate in (module.with_suffix(".py"), module / "__init__.py"):
                if candidate.is_file():
                    queue.append(candidate)
    return sorted(found)
