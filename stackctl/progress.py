# SPDX-License-Identifier: Apache-2.0
"""How long work tells what it is doing. The library reports; the command line shows."""

from typing import Protocol


class Progress(Protocol):
    """Receives the state of long work."""

    def update(self, phase: str, done: int, total: int | None) -> None:
        """Take note of a state.

        Args:
            phase: What is being done, like `download` or `compose`.
            done: Units done so far (bytes, files or patches).
            total: Units in all, None where that is not known.
        """

    def note(self, message: str) -> None:
        """Take note of something a person may want to know."""


class Silent:
    """Progress that goes nowhere."""

    def update(self, phase: str, done: int, total: int | None) -> None:
        """Take note of a state."""

    def note(self, message: str) -> None:
        """Take note of a message."""


SILENT = Silent()
