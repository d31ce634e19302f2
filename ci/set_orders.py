# SPDX-License-Identifier: Apache-2.0
"""Compose the sets alone, together, and in every order that `requires` allows.

    python ci/set_orders.py [--offline] [-C PROJECT]

Every choice of sets that has what it requires is composed in every order in which a
set comes after the ones it requires. Every patch has to apply without a conflict
resolution, and the order must not matter: the same sets give the same tree. Exit codes:
0 yes, 1 no.
"""

import argparse
import sys
from collections.abc import Iterator
from dataclasses import replace
from itertools import permutations
from pathlib import Path

from stackctl.cache import Cache
from stackctl.compose.compare import make_composer
from stackctl.errors import StackctlError
from stackctl.model.series import PatchSet, load_series

ROOT = Path(__file__).resolve().parents[1]


def orders(sets: tuple[PatchSet, ...]) -> Iterator[tuple[PatchSet, ...]]:
    """Give every order of every choice of sets that `requires` allows.

    Args:
        sets: The sets to choose from.

    Yields:
        Sets, each after the ones it requires.
    """
    for count in range(1, len(sets) + 1):
        for order in permutations(sets, count):
            below: set[str] = set()
            for each in order:
                if not below.issuperset(each.requires):
                    break
                below.add(each.name)
            else:
                yield order


def main() -> int:
    """Compose all orders, print what each choice gives, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-C", "--directory", type=Path, default=ROOT)
    parser.add_argument("--offline", action="store_true", help="use no network")
    options = parser.parse_args()
    series = load_series(options.directory / "series.toml")
    cache = Cache.open()
    composed = tuple(each for each in series.sets if each.composed)
    found: dict[frozenset[str], dict[str, str]] = {}
    total, wrong = 0, 0
    for order in orders(composed):
        names = ", ".join(each.name for each in order)
        total += 1
        try:
            tree = make_composer(
                replace(series, sets=order), cache, options.offline
            ).compose()
        except StackctlError as error:
            wrong += 1
            print(f"FAIL {names}: {error}")
            continue
        if resolved := [step.set for step in tree.steps if step.resolutions]:
            wrong += 1
            print(f"FAIL {names}: needs a resolution for {', '.join(resolved)}")
        trees = found.setdefault(frozenset(each.name for each in order), {})
        trees.setdefault(tree.tree, names)
    for trees in found.values():
        if len(trees) > 1:
            wrong += 1
            ways = "; ".join(f"{names}: {tree}" for tree, names in trees.items())
            print(f"FAIL the order matters: {ways}")
        else:
            ((tree, names),) = trees.items()
            print(f"ok   {tree[:12]} {names}")
    print(f"{total} orders of {len(found)} choices of sets, {wrong} wrong")
    return int(wrong > 0 or not total)


if __name__ == "__main__":
    sys.exit(main())
