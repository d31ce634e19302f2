# SPDX-License-Identifier: Apache-2.0
"""Pages of a server that would hold a unit up, or fill its memory."""

import asyncio
import gzip
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import httpx
import pytest

from stackctl.errors import InputError
from stackctl.gates.serving.client import Limits, connect, served_model
from stackctl.gates.serving.metrics import fetch
from stackctl.gates.serving.page import MAX_BYTES, Page, fetch_page

HEAD = "HTTP/1.1 200 OK\r\nConnection: close\r\n"


def asked(
    head: str,
    parts: Callable[[], bytes],
    ask: Callable[[httpx.AsyncClient], Awaitable[Any]],
) -> tuple[Any, int]:
    """What came of a page of endless parts, and how many bytes of it were sent."""
    sent = 0

    async def answer(
        reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        nonlocal sent
        await reader.readuntil(b"\r\n\r\n")
        writer.write(f"{HEAD}{head}\r\n".encode())
        with suppress(ConnectionError):
            while part := parts():
                writer.write(part)
                await writer.drain()
                sent += len(part)
                await asyncio.sleep(0)
        writer.close()

    async def run() -> Any:
        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        async with (
            server,
            connect(f"http://127.0.0.1:{port}/v1", Limits()) as client,
        ):
            return await ask(client)

    return asyncio.run(run()), sent


def once(*parts: bytes) -> Callable[[], bytes]:
    """Parts that come to an end."""
    left = iter(parts)
    return lambda: next(left, b"")


def test_a_page_in_parts() -> None:
    found, _ = asked("", once(b"a_total", b" 1\n"), lambda c: fetch_page(c, "/models"))
    assert found == Page(200, b"a_total 1\n")


def test_an_endless_page_is_left_off_once_it_is_too_large() -> None:
    part = b"# a comment\n" * 50_000
    page, sent = asked("", lambda: part, lambda c: fetch_page(c, "/models"))
    assert page == Page(200, None)
    assert sent < 2 * MAX_BYTES
    found, _ = asked("", lambda: part, lambda c: fetch(c, "/metrics"))
    assert found is None


def test_a_page_that_unpacks_to_more_than_was_sent_is_not_unpacked() -> None:
    bomb = gzip.compress(bytes(4 * MAX_BYTES))
    head = f"Content-Encoding: gzip\r\nContent-Length: {len(bomb)}\r\n"
    found, _ = asked(head, once(bomb), lambda c: fetch_page(c, "/models"))
    assert found == Page(200, None)


def test_a_page_that_trickles_must_be_there_in_time_all_the_same() -> None:
    async def ask(client: httpx.AsyncClient) -> None:
        with pytest.raises(httpx.ReadTimeout, match="not there after"):
            await fetch_page(client, "/models", 0.5)

    asked("", lambda: b"#", ask)


@pytest.mark.parametrize("models", [b"[" * 200_000, b"", b'{"data": [{"id": 3}]}'])
def test_a_list_of_models_that_is_none(models: bytes) -> None:
    async def ask(client: httpx.AsyncClient) -> None:
        with pytest.raises(InputError, match="does not say which model"):
            await served_model(client, Limits())

    asked("", once(models), ask)
