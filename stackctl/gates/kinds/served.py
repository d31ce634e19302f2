# SPDX-License-Identifier: Apache-2.0
"""Kinds serving and accuracy: a unit asks one server, in a process of its own."""

import sys
from typing import Any, Final

from stackctl.gates.kinds import BadAnswer, Place, given_answer
from stackctl.gates.kinds.image import PACKAGE_ROOT


class Served:
    """What is known of units that ask a server."""

    def command(self, place: Place) -> list[str]:
        """Return the program and arguments of a unit: one start of one arm."""
        ((name, arm),) = place.arms.items()
        command = [sys.executable, "-m", f"stackctl.gates.{place.gate.kind}"]
        command += ["--gate", str(place.gate.path), "--arm", name]
        command += ["--python", place.here.python]
        if arm.site is not None:
            command += ["--tree", str(arm.site)]
        command += ["--project", str(place.project)]
        for option, value in place.here.parameters.items():
            command += [f"--{option}", _of_arm(value, name)]
        return command

    def environment(self, place: Place) -> dict[str, str]:
        """Return what a unit of this kind sees beside the common environment."""
        paths = [str(PACKAGE_ROOT), *filter(None, sys.path)]
        import os

        return {"PYTHONPATH": os.pathsep.join(dict.fromkeys(paths))}

    def answer(self, place: Place, code: int | None, stdout: bytes) -> dict[str, Any]:
        """Return the unit's answer.

        Raises:
            BadAnswer: It gave none that can be used, or failed in spite of it.
        """
        if code != 0:
            raise BadAnswer(f"it ended with exit code {code}")
        return given_answer(place, stdout)


SERVED: Final = Served()


def _of_arm(value: str, arm: str) -> str:
    """Return what `VALUE` or `ARM=VALUE ARM=VALUE` means for an arm."""
    named = dict(
        part.split("=", 1)
        for part in value.split(" ")
        if "=" in part and "/" not in part.split("=", 1)[0]
    )
    return named.get(arm, value)
