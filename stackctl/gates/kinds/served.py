# SPDX-License-Identifier: Apache-2.0
"""Kinds serving and accuracy: a unit asks one server, in a process of its own."""

import importlib.util
import os
import re
import shutil
import sys
from collections.abc import Sequence
from pathlib import PurePath
from string import Formatter
from typing import Any, Final

from stackctl.errors import UsageError
from stackctl.gates.evidence import EXTERNAL
from stackctl.gates.here import Here
from stackctl.gates.kinds import Place, given_answer
from stackctl.gates.kinds.image import PACKAGE_ROOT
from stackctl.gates.model import Gate
from stackctl.model.fields import nearest, show, write_record

KEY_VARIABLE: Final = "STACKCTL_GATE_API_KEY"
"""The one secret that is passed on: the API key of the server that is asked."""

CLIENT: Final = ("httpx", "httpx_sse", "prometheus_client")
"""Packages of what asks servers: units run in stackctl's own Python."""

_NAMED = re.compile(r"([A-Za-z0-9][A-Za-z0-9_.-]*)=(.*)")


class Served:
    """What is known of units that ask a server."""

    def lacks(self, gate: Gate, here: Here) -> list[str]:
        """Return what asking a server lacks, and starting one where a gate does."""
        absent = [name for name in CLIENT if importlib.util.find_spec(name) is None]
        reasons = []
        if absent:
            names = ", ".join(absent).replace("_", "-")
            reasons.append(f"not installed for stackctl's own Python: {names}")
        addresses = by_arm(here.parameters.get("base-url", ""))
        if all(addresses.get(arm, addresses.get("")) for arm in gate.arms):
            return reasons
        plan = gate.serving or gate.accuracy
        if plan is None or not plan.server:
            return [*reasons, "`--base-url` is not given"]
        if "model" in _placeholders(plan.server) and "model" not in here.named:
            reasons.append("`--model` is not given")
        if "python" in _placeholders(plan.server):
            reasons += here.python_lacks()
        program = program_of(plan.server)
        if program and "{" not in program and shutil.which(program) is None:
            reasons.append(f"the program {program} is not on the path")
        return reasons

    def command(self, place: Place) -> list[str]:
        """Return the program and arguments of a unit: one start of one arm."""
        ((name, arm),) = place.arms.items()
        command = [sys.executable, "-m", f"stackctl.gates.{place.gate.kind}"]
        command += ["--gate", str(place.gate.path), "--arm", name]
        command += ["--python", place.here.python, "--project", str(place.project)]
        if arm.site is not None:
            command += ["--tree", str(arm.site)]
        for option, value in place.here.parameters.items():
            values = by_arm(value)
            if (own := values.get(name, values.get(""))) is not None:
                command += [f"--{option}", own]
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


def _placeholders(template: Sequence[str]) -> set[str]:
    return {
        name
        for argument in template
        for _, name, _, _ in Formatter().parse(argument)
        if name
    }


def program_of(template: Sequence[str]) -> str:
    """Return the program that a server command starts, behind `env NAME=VALUE`.

    Args:
        template: The command; its program may have placeholders.
    """
    words = list(template)
    if words and PurePath(words[0]).name == "env":
        words = words[1:]
        while words and re.match(r"[A-Za-z_]\w*=", words[0]):
            words = words[1:]
    return words[0] if words and not words[0].startswith("-") else ""


def project_files(template: Sequence[str]) -> list[str]:
    """Return the files of the project that a server command runs: its program, scripts.

    Args:
        template: The command.
    """
    start = "{project}/"
    program = program_of(template)
    return [
        word.removeprefix(start)
        for word in template
        if word.startswith(start)
        and "{" not in word.removeprefix(start)
        and (word == program or word.endswith(".py"))
    ]


def unshown(gate: Gate) -> list[str]:
    """Return the arms that change something and declare nothing that shows it.

    Args:
        gate: A gate; only those that ask servers have such arms.
    """
    plan = gate.serving or gate.accuracy
    if plan is None:
        return []
    shown = {sign.arm for sign in plan.engagement}
    return [
        name
        for name, arm in gate.arms.items()
        if name not in shown
        and arm.tree != EXTERNAL
        and (arm.tree != "base" or arm.env)
    ]


def shown_by(gate: Gate, arm: str) -> list[dict[str, Any]]:
    """Return what a gate declares to show the features of an arm, as JSON.

    Args:
        gate: A gate.
        arm: Name of the arm.
    """
    plan = gate.serving or gate.accuracy
    signs = () if plan is None else plan.engagement
    return [write_record(sign, sparse=True) for sign in signs if sign.arm == arm]


def by_arm(value: str) -> dict[str, str]:
    """Return what `VALUE` or `ARM=VALUE ARM=VALUE` means.

    Args:
        value: What the user wrote.

    Returns:
        The value of each arm; under "" that of all arms, where there is one for all.
    """
    found = [_NAMED.fullmatch(part) for part in value.split()]
    if not found or not all(found):
        return {"": value}
    return {match[1]: match[2] for match in found if match is not None}


def at_addresses(gate: Gate, here: Here) -> set[str]:
    """Return the arms whose servers the user named, and that are no tree of ours.

    Args:
        gate: The gate.
        here: What the user named.
    """
    value = here.parameters.get("base-url")
    if not value or (gate.serving or gate.accuracy) is None:
        return set()
    addresses = by_arm(value)
    return {name for name in gate.arms if addresses.get(name, addresses.get(""))}


def check_addresses(gate: Gate, value: str) -> None:
    """Check that the arms of a gate have servers, before anything runs.

    Args:
        gate: The gate.
        value: `--base-url`.

    Raises:
        UsageError: An arm is unknown, or has none.
    """
    addresses = by_arm(value)
    for name in addresses:
        if name and name not in gate.arms:
            raise UsageError(
                f"--base-url names the arm {show(name)}, which {gate.name} does not "
                f"have{nearest(name, sorted(gate.arms))}",
                kind="unknown-arm",
            )
    plan = gate.serving or gate.accuracy
    missing = sorted(set(gate.arms) - set(addresses))
    if "" not in addresses and missing and plan is not None and not plan.server:
        raise UsageError(
            f"--base-url names no server of the arm {missing[0]} of {gate.name}",
            hint="like --base-url 'base=http://a:8000/v1 on=http://b:8000/v1'",
        )
