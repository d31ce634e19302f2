# SPDX-License-Identifier: Apache-2.0
"""Figures and lists in words, the same in every locale."""

from collections.abc import Sequence
from typing import Final

from stackctl.model.fields import escape

MAX_LISTED: Final = 5
"""Most things that a sentence lists; the rest is counted."""


def listed(items: Sequence[str], more: str = "more") -> str:
    """Return a list in words, cut to a readable length, safe for a terminal.

    Args:
        items: What to list; not empty.
        more: What the rest is called.
    """
    shown = [escape(item) for item in items[:MAX_LISTED]]
    if len(items) > MAX_LISTED:
        shown.append(f"and {len(items) - MAX_LISTED} {more}")
    return ", ".join(shown)


def counted(number: int, one: str, many: str | None = None) -> str:
    """Return a number with its noun: `1 pair`, `9 pairs`."""
    return f"{number} {one if number == 1 else many or one + 's'}"


def change(value: float) -> str:
    """Return a relative change: `8.90 % lower`."""
    amount = f"{abs(value) * 100:.2f}"
    if float(amount) == 0:
        return "no change"
    return f"{amount} % {'lower' if value < 0 else 'higher'}"


def percent(value: float) -> str:
    """Return a share or a confidence: `95 %`, `96.8 %`."""
    return f"{round(value * 100, 1):g} %"


def points(value: float) -> str:
    """Return a difference of shares: `-2.5 points`."""
    return f"{round(value * 100, 2):+g} points"


def figure(value: float) -> str:
    """Return a figure with four digits: `12.34`, `0.0123`."""
    return f"{value:.4g}"
