# SPDX-License-Identifier: Apache-2.0
"""Which sets of a series are composed: the whole series or a subset of it."""

import difflib
from collections.abc import Sequence
from dataclasses import dataclass

from stackctl.errors import UsageError
from stackctl.model.series import PatchSet, Series


@dataclass(frozen=True, slots=True)
class Selection:
    """A subset of the series, as a user names it.

    Attributes:
        base_only: Compose no set at all.
        upto: Compose the sets up to and including this one.
        only: Compose these sets and what they require.
        without: Compose everything but these.
        force: Leave a set out although a kept one requires it.
    """

    base_only: bool = False
    upto: str | None = None
    only: tuple[str, ...] = ()
    without: tuple[str, ...] = ()
    force: bool = False

    @property
    def whole(self) -> bool:
        """Whether this is the whole series."""
        return not (
            self.base_only or self.upto is not None or self.only or self.without
        )


WHOLE = Selection()


def find_set(series: Series, name: str) -> PatchSet:
    """Return the set of a name.

    Raises:
        UsageError: There is none; the message names the nearest.
    """
    for patch_set in series.sets:
        if patch_set.name == name:
            return patch_set
    names = [patch_set.name for patch_set in series.sets]
    all_names = ", ".join(names)
    near = difflib.get_close_matches(name, names, 1)
    raise UsageError(
        f"there is no set `{name}` in {series.name}",
        kind="unknown-set",
        hint=f"did you mean `{near[0]}`?" if near else f"the sets are: {all_names}",
        where={"set": name},
    )


def _requires(series: Series, names: Sequence[str]) -> set[str]:
    wanted: set[str] = set()
    open_names = list(names)
    while open_names:
        name = open_names.pop()
        if name not in wanted:
            wanted.add(name)
            open_names += find_set(series, name).requires
    return wanted


def select(series: Series, selection: Selection = WHOLE) -> tuple[PatchSet, ...]:
    """Return the sets to compose, in the series' order.

    Args:
        series: The series.
        selection: The subset.

    Raises:
        UsageError: An unknown set, options that exclude one another, or a set left out
            that a kept one requires.
    """
    modes = {
        "--base-only": selection.base_only,
        "--upto": selection.upto is not None,
        "--only": bool(selection.only),
        "--without": bool(selection.without),
    }
    used = [name for name, value in modes.items() if value]
    if len(used) > 1:
        raise UsageError(f"{used[0]} and {used[1]} exclude each other")
    if selection.base_only:
        return ()
    if selection.upto is not None:
        last = find_set(series, selection.upto)
        return series.sets[: series.sets.index(last) + 1]
    if selection.only:
        wanted = _requires(series, selection.only)
        return tuple(s for s in series.sets if s.name in wanted)
    left_out = {find_set(series, name).name for name in selection.without}
    kept = tuple(s for s in series.sets if s.name not in left_out)
    if not selection.force:
        for patch_set in kept:
            for name in patch_set.requires:
                if name in left_out:
                    raise UsageError(
                        f"`{patch_set.name}` requires `{name}`, which is left out",
                        kind="required-set",
                        hint=f"leave `{patch_set.name}` out too, or add --force",
                        where={"set": patch_set.name},
                    )
    return kept
