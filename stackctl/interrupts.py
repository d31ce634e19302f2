# SPDX-License-Identifier: Apache-2.0
"""Holding Ctrl-C back while something is half made or half removed."""

import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any, Final

_NUMBERS: Final = (signal.SIGINT, signal.SIGTERM)


class Hold:
    """Holds SIGINT and SIGTERM back between `take` and `release`.

    Python runs handlers between any two instructions of the main thread, so also
    between the making of a folder and the `try` that removes it. Elsewhere than in the
    main thread nothing has to be held back.
    """

    __slots__ = ("_came", "_handlers")

    def __init__(self) -> None:
        self._handlers: dict[int, Callable[[int, FrameType | None], Any]] = {}
        self._came: list[int] = []

    def take(self) -> None:
        """Hold signals back that Python handles; others end the process as before."""
        if self._handlers or threading.current_thread() is not threading.main_thread():
            return
        for number in _NUMBERS:
            handler = signal.getsignal(number)
            if callable(handler):
                self._handlers[number] = handler
                signal.signal(number, self._note)

    def release(self) -> None:
        """Let signals through again, the first of those that came at once."""
        handlers, self._handlers = self._handlers, {}
        for number, handler in handlers.items():
            signal.signal(number, handler)
        came, self._came = self._came, []
        if came:
            handlers[came[0]](came[0], None)

    def _note(self, number: int, _frame: FrameType | None) -> None:
        self._came.append(number)
