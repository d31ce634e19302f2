# SPDX-License-Identifier: Apache-2.0
"""Drawings as inline SVG: the stack, and the pairs of a claim.

Colours are classes of the page, so a drawing follows its light or dark scheme. Every
drawing has a title and a description that say in words what it shows.
"""

import math
from collections.abc import Sequence
from typing import Any, Final

from stackctl.gates.receipt.words import (
    LARGEST,
    SYMBOLS,
    figure,
    figures_of,
    interval,
    real,
)
from stackctl.gates.report.html import Html, el
from stackctl.model.fields import escape

WIDTH: Final = 320
"""Width of every drawing, in its own units and at most in pixels: fits a phone."""

MAX_ROWS: Final = 40
"""Most rows of a plot; more figures share rows."""


def short(value: str, length: int) -> str:
    """Return a text that fits: SVG does not wrap."""
    return escape(value, length)


def drawing(name: str, height: float, title: str, told: str, *content: object) -> Html:
    """Return an SVG with a title and a description for those who do not see it.

    Args:
        name: Start of its ids, unique on the page.
        height: Height in its own units.
        title: What it is.
        told: What it shows, in words.
        *content: What is drawn.
    """
    return el(
        "svg",
        el("title", title, id=f"{name}-title"),
        el("desc", told, id=f"{name}-told"),
        *content,
        role="img",
        viewBox=f"0 0 {WIDTH} {_number(height)}",
        width=WIDTH,
        height=_number(height),
        aria_labelledby=f"{name}-title {name}-told",
    )


class Layer:
    """One layer of the stack.

    Args:
        name: What it is called.
        note: A line about it.
        verdict: Verdict of its required gates, "" where it has none.
        solid: Whether it is composed.
        requires: Names of layers that it needs.
    """

    def __init__(
        self,
        name: str,
        note: str,
        verdict: str = "",
        solid: bool = True,
        requires: Sequence[str] = (),
    ) -> None:
        self.name = name
        self.note = note
        self.verdict = verdict
        self.solid = solid
        self.requires = tuple(requires)


def stack(base: Layer, layers: Sequence[Layer], told: str) -> Html:
    """Draw the sets as layers on their base, the first at the bottom.

    Args:
        base: What they stand on.
        layers: The sets, in the order they are composed.
        told: The picture in words.
    """
    step, tall = 50, 44
    count = len(layers) + 1
    right = WIDTH - 28
    tops = {
        layer.name: (count - 1 - n) * step + 4
        for n, layer in enumerate([base, *layers])
    }
    parts: list[object] = []
    for n, layer in enumerate([base, *layers]):
        top = tops[layer.name]
        kind = "base" if n == 0 else "layer" if layer.solid else "layer out"
        parts.append(
            el("rect", class_=kind, x=4, y=top, width=right - 4, height=tall, rx=5)
        )
        if n and layer.verdict:
            parts.append(
                el("rect", class_=f"v-{layer.verdict}", x=4, y=top, width=24,
                   height=tall, rx=5)
            )  # fmt: skip
            sign = SYMBOLS.get(layer.verdict, "")
            parts.append(
                el("text", sign, class_=f"s-{layer.verdict}", x=16, y=top + 27,
                   text_anchor="middle")
            )  # fmt: skip
        number = "" if n == 0 else f"{n}  "
        parts.append(
            el("text", f"{number}{short(layer.name, 30)}", class_="name", x=36,
               y=top + 19)
        )  # fmt: skip
        parts.append(el("text", short(layer.note, 44), class_="note", x=36, y=top + 35))
    for layer in layers:
        for other in layer.requires:
            if other in tops:
                parts.append(_arrow(tops[layer.name], tops[other], right, tall))
    return drawing("stack", count * step + 4, "The stack", told, *parts)


def _arrow(start: int, end: int, x: int, tall: int) -> Html:
    """Draw a bow from a set to one that it requires."""
    a, b = start + tall / 2 - 4, end + tall / 2 + 4
    bow = min(24, 10 + abs(b - a) / 12)
    path = (
        f"M{x} {_number(a)}C{_number(x + bow)} {_number(a)} {_number(x + bow)} "
        f"{_number(b)} {x + 2} {_number(b)}"
    )
    head = f"M{x + 8} {_number(b - 4)}L{x + 1} {_number(b)}L{x + 8} {_number(b + 4)}"
    return Html(el("path", class_="needs", d=path) + el("path", class_="needs", d=head))


def pairs(name: str, claim: dict[str, Any]) -> Html | None:
    """Plot the pairs of a claim, its interval, and what is asked for.

    Args:
        name: Start of the drawing's ids.
        claim: The claim's result as the decision gives it.

    Returns:
        The drawing; None where there is neither a pair nor an interval to draw.
    """
    values = figures_of(claim)
    if not values and not (real(claim.get("low")) and real(claim.get("high"))):
        return None
    unit = str(claim.get("unit", ""))
    marks = {
        key: float(claim[key])
        for key in ("estimate", "low", "high", "boot_low", "boot_high", "target")
        if real(claim.get(key))
    }
    reach = [*values, *marks.values()]
    if unit in ("change", "difference"):
        reach.append(0.0)
    size = max(map(abs, reach))
    if size > LARGEST or 0 < size < 1 / LARGEST:
        return None  # nobody measured that
    low, high = min(reach), max(reach)
    room = (high - low) * 0.06 or abs(high) * 0.1 or 1.0
    low, high = low - room, high + room
    left, right, top = 24, WIDTH - 8, 30
    rows = min(len(values), MAX_ROWS)
    row = 10.0 if rows <= 12 else max(4.0, 160 / rows)
    space = rows * row if rows else 24.0
    bottom = top + space + 6

    def at(value: float) -> str:
        return _number(left + (value - low) / (high - low) * (right - left))

    parts: list[object] = []
    if "low" in marks and "high" in marks:
        wide = (marks["high"] - marks["low"]) / (high - low) * (right - left)
        parts.append(
            el("rect", class_="interval", x=at(marks["low"]), y=top - 2,
               width=_number(max(wide, 1.0)), height=_number(bottom - top + 2))
        )  # fmt: skip
    if "estimate" in marks:
        parts.append(_line("estimate", at(marks["estimate"]), top - 2, bottom))
    if low < 0 < high and unit in ("change", "difference"):
        parts.append(_line("zero", at(0.0), top - 2, bottom))
    if "target" in marks:
        parts.append(_line("target", at(marks["target"]), top - 8, bottom))
        parts.append(
            _label("asked " + figure(marks["target"], unit), float(at(marks["target"])),
                   16, left, right, "ask")
        )  # fmt: skip
    for n, value in enumerate(values):
        y = top + (n % rows) * row + row / 2
        parts.append(el("circle", class_="pair", cx=at(value), cy=_number(y), r=3))
    if "boot_low" in marks and "boot_high" in marks:
        place = f"{at(marks['boot_low'])} {_number(bottom - 1)}"
        path = f"M{place}H{at(marks['boot_high'])}"
        parts.append(el("path", class_="boot", d=path))
    parts.append(el("path", class_="axis", d=f"M{left} {_number(bottom)}H{right}"))
    for tick in ticks(low, high):
        x = at(tick)
        parts.append(el("path", class_="axis", d=f"M{x} {_number(bottom)}v4"))
        parts.append(
            _label(_tick(tick, high - low, unit), float(x), bottom + 16, left, right,
                   "tick")
        )  # fmt: skip
    for n in sorted({0, rows - 1}) if rows else ():
        parts.append(
            el("text", str(n + 1), class_="tick", x=left - 6,
               y=_number(top + n * row + row / 2 + 3.5), text_anchor="end")
        )  # fmt: skip
    what = "Pairs" if values else "Interval"
    title = f"{what} of {short(str(claim.get('name')), 40)}"
    return drawing(name, bottom + 22, title, _told(claim, values, unit), *parts)


def _told(claim: dict[str, Any], values: Sequence[float], unit: str) -> str:
    said = []
    if values:
        said.append(
            f"{len(values)} figures from {figure(min(values), unit)} to "
            f"{figure(max(values), unit)}"
        )
    if real(claim.get("estimate")):
        said.append(f"estimate {figure(claim['estimate'], unit)}")
    if real(claim.get("low")) and real(claim.get("high")):
        said.append(f"interval {interval(claim)}")
    if real(claim.get("target")):
        said.append(f"asked for {figure(claim['target'], unit)}")
    return "; ".join(said)


def ticks(low: float, high: float, most: int = 5) -> list[float]:
    """Return round figures between two bounds.

    Args:
        low: Lower bound.
        high: Upper bound, above it.
        most: About how many.
    """
    raw = (high - low) / most
    size = 10.0 ** math.floor(math.log10(raw))
    step = next(size * by for by in (1, 2, 5, 10) if size * by >= 0.75 * raw)
    first = math.ceil(low / step)
    last = math.floor(high / step)
    return [n * step for n in range(first, last + 1)]


def _tick(value: float, span: float, unit: str) -> str:
    share = unit in ("change", "difference")
    scaled, wide = (100 * value, 100 * span) if share else (value, span)
    digits = max(0, -math.floor(math.log10(wide / 5)))
    shown = f"{scaled:.{digits}f}" if digits < 7 else f"{scaled:.3g}"
    if float(shown) == 0:
        shown = "0"
    return f"{shown} %" if unit == "change" and float(shown) else shown


def _line(kind: str, x: str, top: float, bottom: float) -> Html:
    return el("path", class_=kind, d=f"M{x} {_number(top)}V{_number(bottom)}")


def _label(
    words: str, x: float, y: float, left: float, right: float, kind: str
) -> Html:
    """Write a label at a place, moved in where it would not fit."""
    half = len(words) * 3.1
    x = min(max(x, left - 16 + half), right + 4 - half)
    return el(
        "text", words, class_=kind, x=_number(x), y=_number(y), text_anchor="middle"
    )


def _number(value: float) -> str:
    """Return a coordinate with two decimals at most: the same on every machine."""
    return f"{value:.2f}".rstrip("0").rstrip(".")
