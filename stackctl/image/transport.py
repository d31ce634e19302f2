# SPDX-License-Identifier: Apache-2.0
"""How to talk to registries: the settings, without the client."""

import time
from collections.abc import Callable
from typing import NamedTuple


class Transport(NamedTuple):
    """How to talk to registries.

    Attributes:
        plain_http: Use HTTP without TLS.
        ca_file: Certificates to trust, in place of the default ones.
        auth_host: A host beside the registry's own that may be sent its credentials.
        connect_seconds: Longest wait for a connection.
        read_seconds: Longest wait for the next byte.
        slowest: Bytes per second below which a body is given up after `read_seconds`.
        tries: Attempts for one request.
        longest_wait: Longest pause between attempts, in seconds.
        sleep: Called to pause; tests replace it.
    """

    plain_http: bool = False
    ca_file: str | None = None
    auth_host: str | None = None
    connect_seconds: float = 10
    read_seconds: float = 60
    slowest: int = 1024
    tries: int = 4
    longest_wait: float = 20
    sleep: Callable[[float], None] = time.sleep
