# SPDX-License-Identifier: Apache-2.0
"""Which gates can run here, and why the others cannot."""

import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from stackctl.gates.model import Gate
from stackctl.gates.snapshot import Gpu, Python, gpus, package_problems, probe_python

PYTHON_VARIABLE = "STACKCTL_GATE_PYTHON"
"""Environment variable: the Python that runs units, where `--python` is not given."""


@dataclass(frozen=True)
class Here:
    """What the user named and what this machine has.

    Attributes:
        python: Program of the Python that runs the units.
        site: Folder with an installed vLLM, if one was named.
        parameters: Further things that were named: `model`, `base-url`.
        gpu: UUID or index of the GPU to use; empty for the first.
    """

    python: str = field(default_factory=lambda: default_python())
    site: Path | None = None
    parameters: Mapping[str, str] = field(default_factory=dict)
    gpu: str = ""

    @cached_property
    def interpreter(self) -> Python:
        """The Python that runs the units, asked once."""
        return probe_python(self.python, self.site)

    @cached_property
    def gpus(self) -> Sequence[Gpu]:
        """The GPUs of this machine; the chosen one first."""
        found = gpus()
        if not self.gpu:
            return found
        chosen = [g for g in found if self.gpu in (g.uuid, str(g.index))]
        return [*chosen, *(g for g in found if g not in chosen)] if chosen else []

    @property
    def named(self) -> dict[str, str]:
        """What was named, by the name that gates use for it."""
        site = {} if self.site is None else {"site": str(self.site)}
        return {**self.parameters, **site}

    def missing(self, gate: Gate) -> list[str]:
        """Return why a gate cannot run here; empty where it can.

        Args:
            gate: The gate.
        """
        needs = gate.needs
        reasons = []
        if needs.gpus:
            large = [g for g in self.gpus if g.memory_mib >= needs.gpu_memory_mib]
            if not self.gpus:
                chosen = f" `{self.gpu}`" if self.gpu else ""
                reasons.append(f"no NVIDIA GPU{chosen}")
            elif len(large) < needs.gpus:
                wanted = f"{needs.gpus} GPU" + ("s" if needs.gpus > 1 else "")
                memory = f" with {needs.gpu_memory_mib:,} MiB"
                reasons.append(
                    f"{wanted}{memory if needs.gpu_memory_mib else ''} needed, "
                    f"{len(large)} here"
                )
        for name in needs.parameters:
            if name not in self.named:
                reasons.append(f"`--{name}` is not given")
        for name in needs.commands:
            if shutil.which(name) is None:
                reasons.append(f"the program {name} is not on the path")
        if needs.packages:
            python = self.interpreter
            if python.problem:
                reasons.append(f"Python does not start: {python.problem}")
            else:
                reasons += package_problems(needs.packages, python.packages)
        return reasons


def default_python() -> str:
    """Return the Python that runs units: `STACKCTL_GATE_PYTHON`, else this one."""
    return os.environ.get(PYTHON_VARIABLE) or sys.executable
