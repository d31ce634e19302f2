# SPDX-License-Identifier: Apache-2.0
"""Which sets of a series ask for which gates."""

from collections.abc import Container
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from stackctl.errors import InputError

if TYPE_CHECKING:
    from stackctl.model.series import Series


@dataclass(frozen=True, slots=True)
class Askers:
    """The sets that ask for one gate, in the order of the series.

    Attributes:
        required: Sets that require it.
        advisory: Sets that only want to know.
    """

    required: tuple[str, ...] = ()
    advisory: tuple[str, ...] = ()

    @property
    def sets(self) -> tuple[str, ...]:
        """All of them, each once."""
        return tuple(dict.fromkeys([*self.required, *self.advisory]))


def askers(series: "Series", sets: Container[str] | None = None) -> dict[str, Askers]:
    """Return who asks for each gate that a series names.

    Args:
        series: The series.
        sets: Only what these sets ask for; None for all.

    Returns:
        By gate, in the order in which the sets name them. A set stands after what it
        requires, so that order is one of dependencies.
    """
    found: dict[str, Askers] = {}
    for patch_set in series.sets:
        if sets is not None and patch_set.name not in sets:
            continue
        for gate in patch_set.gates.required:
            old = found.get(gate, Askers())
            found[gate] = Askers((*old.required, patch_set.name), old.advisory)
        for gate in patch_set.gates.advisory:
            old = found.get(gate, Askers())
            found[gate] = Askers(old.required, (*old.advisory, patch_set.name))
    return found


def sets_asking(project: Path, gate: str) -> tuple[str, ...]:
    """Return the sets that ask for a gate, from the series.toml of a project.

    Args:
        project: The project folder, or that of a pack.
        gate: Name of the gate.

    Returns:
        Their names; none where no set asks for it, or where there is no such file: a
        run is not lost for that.
    """
    from stackctl.model.series import load_series
    from stackctl.project import SERIES_FILE

    try:
        series = load_series(project / SERIES_FILE)
    except InputError:
        return ()
    return askers(series).get(gate, Askers()).sets
