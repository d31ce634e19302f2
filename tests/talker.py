# SPDX-License-Identifier: Apache-2.0
"""A server on a bare socket that says what it likes, and is gone when it is closed."""

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator


class Stopped(Exception):
    """The server is closed."""


class Talk:
    """One connection of a server.

    Args:
        connected: The socket.
        stop: Set when the server is closed.
    """

    def __init__(self, connected: socket.socket, stop: threading.Event) -> None:
        self.connected = connected
        self._stop = stop

    def wait(self, seconds: float) -> None:
        """Say nothing for some seconds."""
        if self._stop.wait(seconds):
            raise Stopped


@contextlib.contextmanager
def talker(answer: Callable[[Talk], None]) -> Iterator[int]:
    """Answer every connection in a thread of its own.

    When it ends no thread of it is left. One that still waited on a socket that is
    closed would take what the next server of the same number gets.

    Yields:
        The port.
    """
    stop = threading.Event()
    threads: list[threading.Thread] = []
    sockets: list[socket.socket] = []

    def talk(connected: socket.socket) -> None:
        with connected, contextlib.suppress(OSError, Stopped):
            answer(Talk(connected, stop))

    def serve() -> None:
        while True:
            try:
                connected, _ = listener.accept()
            except OSError:
                return
            sockets.append(connected)
            threads.append(threading.Thread(target=talk, args=(connected,)))
            threads[-1].start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        accepting = threading.Thread(target=serve)
        accepting.start()
        try:
            yield listener.getsockname()[1]
        finally:
            stop.set()
            # Closing it does not wake who waits in it.
            listener.shutdown(socket.SHUT_RDWR)
            accepting.join()
            for connected in sockets:
                with contextlib.suppress(OSError):
                    connected.shutdown(socket.SHUT_RDWR)
            for thread in threads:
                thread.join()


def without_end(first: bytes, again: bytes) -> Callable[[Talk], None]:
    """Return what says something and then something else without an end."""

    def answer(talk: Talk) -> None:
        talk.connected.recv(1 << 16)
        talk.connected.sendall(first)
        while True:
            talk.connected.sendall(again)
            talk.wait(0.02)

    return answer


#: Heads of an HTTP answer that do not end, as `without_end` takes them.
ENDLESS_HEADS = [
    (b"HTTP/1.1 200 OK\r\nX: ", b"a"),
    (b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
    (b"HTTP/1.1 200 OK\r\n", b"X: y\r\n"),
]
