# SPDX-License-Identifier: Apache-2.0
"""Connections whose answers begin in time.

A socket's timeout bounds the wait for the next byte. A server that sends a header byte
by byte, or `100 Continue` for ever, never lets it run out, so the whole of an answer's
head has a deadline too.
"""

import contextlib
import socket
import threading
from typing import Any

import requests.adapters
import urllib3
from urllib3.connection import HTTPConnection, HTTPSConnection

_LATE = "the head of the answer is not there in time"


class _Bounded:
    """Gives up an answer whose head is not there within the read timeout."""

    sock: socket.socket | None
    timeout: Any

    def getresponse(self) -> Any:
        seconds = self.timeout
        if self.sock is None or not isinstance(seconds, int | float):
            return super().getresponse()  # type: ignore[misc]
        late = threading.Event()
        connected = self.sock

        def give_up() -> None:
            late.set()
            # It may be closed already.
            with contextlib.suppress(OSError):
                connected.shutdown(socket.SHUT_RDWR)

        timer = threading.Timer(seconds, give_up)
        timer.daemon = True
        timer.start()
        try:
            response = super().getresponse()  # type: ignore[misc]
        except OSError as exc:
            if late.is_set():
                raise TimeoutError(_LATE) from exc
            raise
        finally:
            timer.cancel()
        if late.is_set():
            response.close()
            raise TimeoutError(_LATE)
        return response


class _Http(_Bounded, HTTPConnection):
    pass


class _Https(_Bounded, HTTPSConnection):
    pass


class _HttpPool(urllib3.HTTPConnectionPool):
    ConnectionCls = _Http


class _HttpsPool(urllib3.HTTPSConnectionPool):
    ConnectionCls = _Https


_POOLS = {"http": _HttpPool, "https": _HttpsPool}


class BoundedAdapter(requests.adapters.HTTPAdapter):
    """An adapter of requests with such connections."""

    def init_poolmanager(self, *args: Any, **kwargs: Any) -> None:
        """Make the pools of direct connections."""
        super().init_poolmanager(*args, **kwargs)
        self.poolmanager.pool_classes_by_scheme = _POOLS

    def proxy_manager_for(self, *args: Any, **kwargs: Any) -> Any:
        """Return the pools of connections by a proxy."""
        manager = super().proxy_manager_for(*args, **kwargs)
        manager.pool_classes_by_scheme = _POOLS
        return manager
