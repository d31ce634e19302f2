# SPDX-License-Identifier: Apache-2.0
"""The view of a search while it runs: live on a terminal, plain lines in a pipe."""

import os
import sys
import threading
import time
from types import TracebackType
from typing import TYPE_CHECKING

from stackctl.cli.output import printable

if TYPE_CHECKING:
    from rich.console import Group

    from stackctl.bisect.model import Evaluation

SHOWN = 12
"""How many of the last answers stay in the live view."""


def can_be_live() -> bool:
    """Return whether standard error is a terminal that can be drawn on."""
    stream = sys.stderr
    return stream is not None and stream.isatty() and os.environ.get("TERM") != "dumb"


def _line(evaluation: "Evaluation") -> str:
    answer = evaluation.answer
    how = f"exit {answer.exit}" if answer.exit is not None else answer.why
    took = "from the log" if evaluation.replayed else f"{answer.ns / 1e9:.1f} s"
    return f"{evaluation.name}: {answer.verdict} ({how}, {took})"


class PlainWatch:
    """One line per answer on standard error."""

    def __init__(self) -> None:
        self._state = ""

    def _say(self, text: str) -> None:
        if sys.stderr is not None:
            encoding = sys.stderr.encoding or "utf-8"
            safe = printable(text).encode(encoding, "backslashreplace")
            print(safe.decode(encoding), file=sys.stderr, flush=True)  # noqa: T201

    def started(self, worker: int, name: str) -> None:
        """A worker begins to try a tree: said when it is done."""

    def ended(self, worker: int | None, evaluation: "Evaluation") -> None:
        """Show an answer."""
        self._say(f"bisect: {_line(evaluation)}")

    def cancelled(self, worker: int, name: str) -> None:
        """Show that a run was ended."""
        self._say(f"bisect: {name}: ended, it no longer matters")

    def state(self, text: str) -> None:
        """Show what is left, where that is news."""
        if text != self._state:
            self._state = text
            self._say(f"bisect: {text}")


class LiveWatch:
    """A view that is drawn again and again: what is tried, known and left.

    Args:
        workers: How many workers there are.
        question: The command or the gate.
    """

    def __init__(self, workers: int, question: str) -> None:
        from rich.console import Console
        from rich.live import Live

        self._question = question
        self._lock = threading.Lock()
        self._running: dict[int, tuple[str, float]] = {}
        self._answers: list[str] = []
        self._counts = {"good": 0, "bad": 0, "skip": 0}
        self._state = ""
        self._started = time.monotonic()
        self._workers = workers
        console = Console(stderr=True, highlight=False)
        self._live = Live(
            get_renderable=self.picture,
            console=console,
            refresh_per_second=4,
            transient=True,
        )

    def __enter__(self) -> "LiveWatch":
        self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._live.stop()

    def picture(self) -> "Group":
        """Return what is drawn."""
        from rich.console import Group
        from rich.text import Text

        colours = {"good": "green", "bad": "red", "skip": "yellow"}
        now = time.monotonic()
        with self._lock:
            head = Text()
            head.append("bisect ", "bold")
            head.append(printable(self._question), "cyan")
            head.append(f"  {now - self._started:.0f} s")
            known = Text("  known    ")
            for name, count in self._counts.items():
                known.append(f"{count} {name}  ", colours[name])
            lines = [head, known, Text(f"  left     {self._state}")]
            for text in self._answers[-SHOWN:]:
                verdict = text.partition(": ")[2].partition(" ")[0]
                line = Text("    ")
                line.append(printable(text), colours.get(verdict, ""))
                lines.append(line)
            for worker in range(self._workers):
                if worker in self._running:
                    name, since = self._running[worker]
                    what = f"{printable(name)}, {now - since:.0f} s"
                else:
                    what = "idle"
                mark = Text(f"  trying   {what}", "bold")
                lines.append(mark)
            for line in lines:
                line.no_wrap = True
                line.overflow = "ellipsis"
            return Group(*lines)

    def started(self, worker: int, name: str) -> None:
        """Show that a worker begins to try a tree."""
        with self._lock:
            self._running[worker] = (name, time.monotonic())

    def ended(self, worker: int | None, evaluation: "Evaluation") -> None:
        """Show an answer."""
        with self._lock:
            if worker is not None:
                self._running.pop(worker, None)
            self._counts[evaluation.answer.verdict] += 1
            self._answers.append(_line(evaluation))

    def cancelled(self, worker: int, name: str) -> None:
        """Show that a run was ended."""
        with self._lock:
            self._running.pop(worker, None)

    def state(self, text: str) -> None:
        """Show what is left."""
        with self._lock:
            self._state = text
