# SPDX-License-Identifier: Apache-2.0
"""Which gates can run here, and why the others cannot."""

import os
import re
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
            able = fitting(gate, self.gpus)
            if not self.gpus:
                chosen = f" `{self.gpu}`" if self.gpu else ""
                reasons.append(f"no NVIDIA GPU{chosen}")
            elif len(able) < needs.gpus:
                reasons.append(f"{wanted_gpus(gate)} needed, {len(able)} here")
        for name in needs.parameters:
            if name not in self.named:
                reasons.append(f"`--{name}` is not given")
        for name in needs.commands:
            if shutil.which(name) is None:
                reasons.append(f"the program {name} is not on the path")
        if needs.packages:
            reasons += self.python_lacks(needs.packages)
        from stackctl.gates.kinds import kind_of

        return list(dict.fromkeys([*reasons, *kind_of(gate).lacks(gate, self)]))

    def python_lacks(self, packages: Sequence[str] = ()) -> list[str]:
        """Return why the Python that runs the units cannot be used.

        Args:
            packages: Requirements that it must meet.
        """
        python = self.interpreter
        if python.problem:
            return [f"Python does not start: {python.problem}"]
        return package_problems(packages, python.packages)


def wanted_gpus(gate: Gate) -> str:
    """Return in words which GPUs a gate needs."""
    needs = gate.needs
    words = f"{needs.gpus} GPU" + ("s" if needs.gpus > 1 else "")
    if needs.gpu_models:
        words += f" ({' or '.join(needs.gpu_models)})"
    if needs.gpu_memory_mib:
        words += f" with {needs.gpu_memory_mib:,} MiB"
    return words


def is_model(name: str, models: Sequence[str]) -> bool:
    """Whether a GPU's name, or a label, is that of one of some models.

    Args:
        name: The name, like `NVIDIA H200 NVL`.
        models: Models, each as words that stand together in it; none for any.
    """

    def words(text: str) -> list[str]:
        return re.split(r"[\s_-]+", text.casefold())

    has = words(name)
    wanted = [words(model) for model in models]
    return not wanted or any(
        has[start : start + len(each)] == each
        for each in wanted
        for start in range(len(has))
    )


def fitting(gate: Gate, gpus: Sequence[Gpu]) -> list[Gpu]:
    """Return the GPUs that have what a gate needs, in their order."""
    needs = gate.needs
    return [
        gpu
        for gpu in gpus
        if gpu.memory_mib >= needs.gpu_memory_mib
        and is_model(gpu.name, needs.gpu_models)
    ]


def default_python() -> str:
    """Return the Python that runs units: `STACKCTL_GATE_PYTHON`, else this one."""
    return os.environ.get(PYTHON_VARIABLE) or sys.executable
