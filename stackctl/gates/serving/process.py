# SPDX-License-Identifier: Apache-2.0
"""The process of a unit that talks to a server: its options, and where answers go."""

import argparse
import json
import os
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from stackctl.errors import InternalError, StackctlError, UsageError
from stackctl.fsutil import write_atomic
from stackctl.gates.model import Gate, load_gate
from stackctl.gates.rule.model import reference
from stackctl.gates.serving.unit import Target, measure, stop


class _Notes:
    """Progress on standard error."""

    def update(self, phase: str, done: int, total: int | None) -> None:
        print(f"{phase} ({done + 1} of {total})", file=sys.stderr, flush=True)  # noqa: T201

    def note(self, message: str) -> None:
        print(message, file=sys.stderr, flush=True)  # noqa: T201


def _number(name: str) -> int:
    text = os.environ.get(name, "0")
    if not text.isdecimal():
        raise UsageError(f"the environment variable {name} must be a number")
    return int(text)


def parse(kind: str, arguments: list[str] | None) -> argparse.Namespace:
    """Parse the options of a unit's process.

    Args:
        kind: `serving` or `accuracy`.
        arguments: The command line, None for this process's own.
    """
    parser = argparse.ArgumentParser(
        prog=f"python -m stackctl.gates.{kind}",
        description=f"Measures one unit of a gate of kind {kind}.",
    )
    parser.add_argument("--gate", type=Path, required=True, help="ci/gates/NAME.toml")
    parser.add_argument("--arm", help="name of the arm")
    parser.add_argument("--base-url", help="a running server, up to /v1")
    parser.add_argument("--served-model", help="the server's name for the model")
    for name in ("tree", "python", "model", "project"):
        parser.add_argument(f"--{name}", help=f"{{{name}}} of the server command")
    return parser.parse_args(arguments)


def target(options: argparse.Namespace) -> Target:
    """Return where the unit's answers come from."""
    return Target(
        base_url=options.base_url or None,
        served_model=options.served_model or None,
        values={
            "tree": options.tree,
            "python": options.python or sys.executable,
            "model": options.model,
            "project": options.project,
        },
        arm=options.arm or "",
        unit=_number("STACKCTL_GATE_UNIT"),
        block=_number("STACKCTL_GATE_BLOCK"),
        seed=_number("STACKCTL_GATE_SEED"),
        folder=Path(os.environ.get("STACKCTL_GATE_DIR") or "."),
    )


def _answer(kind: str, gate: Gate, where: Target) -> Mapping[str, Any]:
    if gate.kind != kind:
        raise UsageError(f"{gate.path} is a gate of kind {gate.kind}, not {kind}")
    where = replace(where, reference=reference(gate.claims) or "")
    if gate.accuracy is not None:
        from stackctl.gates.accuracy.unit import measure as ask_all

        return ask_all(gate.accuracy, where, _Notes())
    assert gate.serving is not None  # the gate was checked
    return measure(gate.serving, where, _Notes())


def main(kind: str, arguments: list[str] | None = None) -> int:
    """Measure one unit and write its answer.

    Args:
        kind: `serving` or `accuracy`.
        arguments: The command line, None for this process's own.

    Returns:
        0 with an answer: also one without samples, where the gate, an option or a
        package was no good; 130 where it was interrupted.
    """
    options = parse(kind, arguments)
    try:
        where = target(options)
        answer = _answer(kind, load_gate(options.gate), where)
    except StackctlError as error:
        text = f"error: {error.message}\n"
        if error.hint:
            text += f"hint: {error.hint}\n"
        sys.stderr.write(text)
        if isinstance(error, InternalError):
            return int(error.exit_code)
        # What is known to be wrong is an answer: the receipt says it, as far as it may.
        answer = stop("invalid", error.message)
    except KeyboardInterrupt:
        return 130
    line = json.dumps(answer, sort_keys=True, separators=(",", ":"))
    if out := os.environ.get("STACKCTL_GATE_OUT"):
        write_atomic(Path(out), line.encode() + b"\n")
    sys.stdout.write(line + "\n")
    return 0
