# SPDX-License-Identifier: Apache-2.0
"""Pages of a server that are no answers: its list of models, its metrics.

A page that is too large, or never ends, must not hold a unit up or fill its memory.
"""

import asyncio
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    import httpx

MAX_BYTES: Final = 16 << 20
"""Most bytes of a page."""

SECONDS: Final = 10.0
"""Seconds in which a whole page must have come, where nothing else is said."""


class Page(NamedTuple):
    """What a server answered.

    Attributes:
        status: HTTP status.
        data: The body; None where it is larger than `MAX_BYTES`, or encoded though that
            was not asked for.
    """

    status: int
    data: bytes | None


async def fetch_page(
    client: "httpx.AsyncClient", url: str, seconds: float = SECONDS
) -> Page:
    """Return a page.

    Args:
        client: Connections to the server.
        url: Its address.
        seconds: In which the whole of it must have come.

    Raises:
        httpx.HTTPError: It cannot be had, or not in time.
    """
    import httpx

    data = bytearray()
    try:
        async with (
            asyncio.timeout(seconds),
            client.stream("GET", url, timeout=seconds) as response,
        ):
            if response.headers.get("content-encoding", "identity") != "identity":
                return Page(response.status_code, None)
            async for part in response.aiter_raw():
                data += part
                if len(data) > MAX_BYTES:
                    return Page(response.status_code, None)
            return Page(response.status_code, bytes(data))
    except TimeoutError:
        raise httpx.ReadTimeout(f"not there after {seconds:g} s") from None
