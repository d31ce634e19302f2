# SPDX-License-Identifier: Apache-2.0
"""What shows that a feature was at work in a server: a line of it, or a metric.

An arm whose feature is silently off measures the base twice, and says that nothing was
lost. So a unit looks for what its gate declares (`[[serving.engagement]]`), in the
reference arm too, where it must not be; what was seen goes into the receipt, and the
rule judges it.
"""

import os
from collections.abc import Iterator, Sequence
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final

from stackctl.fsutil import open_regular
from stackctl.gates.serving.metrics import fetch, samples
from stackctl.gates.serving.plan import Sign

if TYPE_CHECKING:
    import httpx

LINE: Final = 16_384
"""Bytes of a line that are looked at, from its start."""

_CHUNK: Final = 1 << 18
"""Bytes that are read at a time."""

_EXACT: Final = 2**53
"""Up to here a float is an integer exactly."""

_Values = list[float | None]
"""What the metric of each sign is; None where the server has no such sample."""


def looked_for(signs: Sequence[Sign], arm: str, reference: str | None) -> list[Sign]:
    """Return the signs that a unit of an arm looks for.

    Args:
        signs: All signs of the gate.
        arm: The unit's arm.
        reference: The arm that others are compared with: it must show none of them.
    """
    return [sign for sign in signs if arm in (sign.arm, reference)]


class Watch:
    """Looks for signs while a unit asks its server.

    Args:
        signs: What to look for.
        reference: Whether the arm is the one that must not show any.
        url: Whole address of the server's metrics page.
    """

    def __init__(self, signs: Sequence[Sign], reference: bool, url: str) -> None:
        self._signs = signs
        self._reference = reference
        self._url = url
        self._first: _Values | None = None
        self._last: _Values | None = None

    async def begin(self, client: "httpx.AsyncClient") -> None:
        """Look at the metrics before the first request."""
        self._first = await self._look(client)

    async def end(self, client: "httpx.AsyncClient") -> None:
        """Look at the metrics after the last request."""
        self._last = await self._look(client)

    async def _look(self, client: "httpx.AsyncClient") -> _Values | None:
        if not any(sign.metric for sign in self._signs):
            return None
        page = await fetch(client, self._url)
        try:
            return None if page is None else metric_values(page, self._signs)
        except ValueError:
            return None

    def told(self, arm: str, log: Path | None) -> dict[str, Any]:
        """Return the part `engagement` of a unit's answer.

        Args:
            arm: The unit's arm.
            log: What the server wrote, once it has ended; None where it was not
                started by the gate.
        """
        if not self._signs:
            return {}
        lines, unread = None, "what a server at an address writes cannot be read"
        if log is not None:
            lines, unread = count_lines(log, self._signs), "its output is gone"
        features = [self._feature(n, lines, unread) for n in range(len(self._signs))]
        return {
            arm: {
                "expected": 0 if self._reference else len(features),
                "counted": sum(bool(feature["seen"]) for feature in features),
                "features": features,
            }
        }

    def _feature(
        self, n: int, lines: Sequence[int] | None, unread: str
    ) -> dict[str, Any]:
        sign = self._signs[n]
        seen: float | None
        if sign.log is None:
            seen, why = self._grown(n)
        elif lines is None:
            seen, why = None, unread
        else:
            seen, why = lines[n], ""
        found = {"feature": sign.feature, "seen": seen}
        found["by"] = "metric" if sign.log is None else "log"
        return found | ({"why": why} if why else {})

    def _grown(self, n: int) -> tuple[float | None, str]:
        """Return by how much a metric grew, or why that is not known."""
        if self._first is None or self._last is None:
            return None, "the metrics could not be read"
        # A sample with labels is not there before it is counted for the first time.
        first, last = self._first[n], self._last[n]
        if last is None and first is None:
            return 0, ""
        start, end = first or 0.0, last or 0.0
        grown = end - start
        if not isfinite(grown):
            return None, "the metric is not a number"
        if grown < 0:
            return None, "the metric fell, as that of a server that was started again"
        return int(grown) if grown.is_integer() and grown < _EXACT else grown, ""


def metric_values(page: str, signs: Sequence[Sign]) -> _Values:
    """Return what the metric of each sign is, None for one that is not there.

    Args:
        page: The metrics page.
        signs: The signs.

    Raises:
        ValueError: It is no metrics page.
    """
    wanted = {sign.metric for sign in signs if sign.metric is not None}
    found: _Values = [None] * len(signs)
    for name, labels, value in samples(page):
        if name not in wanted:
            continue
        for n, sign in enumerate(signs):
            if sign.metric == name and sign.labels.items() <= labels.items():
                found[n] = (found[n] or 0.0) + value
    return found


def count_lines(log: Path, signs: Sequence[Sign]) -> list[int] | None:
    """Return how many lines of a file have what each sign says.

    Args:
        log: The file.
        signs: The signs; those without a line count none.

    Returns:
        One number a sign; None where the file cannot be read.
    """
    parts = [
        [part.encode() for part in (sign.log or "").split("*") if part]
        for sign in signs
    ]
    counts = [0] * len(signs)
    try:
        descriptor = open_regular(log)
    except OSError:
        return None
    if descriptor is None:
        return None
    with os.fdopen(descriptor, "rb") as file:
        for line in _lines(file, [wanted for wanted in parts if wanted]):
            for n, wanted in enumerate(parts):
                counts[n] += bool(wanted) and _has(line, wanted)
    return counts


def _lines(file: BinaryIO, wanted: Sequence[Sequence[bytes]]) -> Iterator[bytes]:
    """Yield the starts of a file's lines; what a progress bar writes over is one.

    Where not all texts that are wanted together are near, there is no need to look at
    each line: a server that writes a gigabyte would keep its unit for many minutes.
    """
    rest = b""
    while chunk := file.read(_CHUNK):
        text = rest + chunk.replace(b"\r", b"\n")
        end = text.rfind(b"\n") + 1
        rest = text[end : end + LINE]
        if any(all(part in text for part in parts) for parts in wanted):
            for line in text[:end].split(b"\n"):
                yield line[:LINE]
    yield rest


def _has(line: bytes, parts: Sequence[bytes]) -> bool:
    """Whether a line holds some texts one after the other.

    The first place of each will do, so that no line makes this go back.
    """
    place = 0
    for part in parts:
        found = line.find(part, place)
        if found < 0:
            return False
        place = found + len(part)
    return True
