# SPDX-License-Identifier: Apache-2.0
"""Kinds serving and accuracy: a unit asks one server, in a process of its own."""

import os
import sys
from typing import Any, Final

from stackctl.gates.kinds import Place, given_answer
from stackctl.gates.kinds.image import PACKAGE_ROOT

KEY_VARIABLE: Final = "STACKCTL_GATE_API_KEY"
"""The one secret that is passed on: the API key of the server that is asked."""


class Served:
    """What is known of units that ask a server."""

    def command(self, place: Place) -> list[str]:
        """Return the program and arguments of a unit: one start of one arm."""
        ((name, arm),) = place.arms.items()
        command = [sys.executable, "-m", f"stackctl.gates.{place.gate.kind}"]
        command += ["--gate", str(place.gate.path), "--arm", name]
        command += ["--python", place.here.python, "--project", str(place.project)]
        if arm.site is not None:
            command += ["--tree", str(arm.site)]
        for option, value in place.here.parameters.items():
            command += [f"--{option}", _of_arm(value, name)]
        return command

    def environment(self, place: Place) -> dict[str, str]:
        """Return what a unit of this kind sees beside the common environment."""
        env = {"PYTHONPATH": str(PACKAGE_ROOT)}
        if key := os.environ.get(KEY_VARIABLE):
            env[KEY_VARIABLE] = key  # for the server alone; no receipt holds it
        return env

    def answer(self, place: Place, code: int | None, stdout: bytes) -> dict[str, Any]:
        """Return the unit's answer.

        Raises:
            BadAnswer: It gave none that can be used, or failed in spite of it.
        """
        return given_answer(place, code, stdout)


SERVED: Final = Served()


def _of_arm(value: str, arm: str) -> str:
    """Return what `VALUE` or `ARM=VALUE ARM=VALUE` means for an arm."""
    named = dict(
        part.split("=", 1)
        for part in value.split(" ")
        if "=" in part and "/" not in part.split("=", 1)[0]
    )
    return named.get(arm, value)
