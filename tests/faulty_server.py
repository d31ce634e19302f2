# SPDX-License-Identifier: Apache-2.0
"""A scripted OpenAI-compatible server over real sockets, with every fault we know of.

It speaks HTTP/1.1 with chunked bodies itself, so that it can break any rule. Requests,
tokens and steps are truly counted on its metrics page (vLLM's names).

    python tests/faulty_server.py --port PORT [--script JSON]

The script's keys are the fields of `Script`.
"""

import argparse
import asyncio
import json
import re
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

WORDS = [
    "alpha",
    "beta",
    "gamma",
    "delta",
    "epsilon",
    "zeta",
    "eta",
    "theta",
    "iota",
    "kappa",
    "lambda",
    "mu",
    "nu",
]


@dataclass
class Script:
    """How the server behaves. The defaults behave well."""

    status: int = 200
    only: int | None = None  # the faults below are for the request of this number
    first_s: float = 0.0
    gap_s: float = 0.0
    tokens: list[str] | None = None  # the answer; otherwise as many words as asked for
    reasoning: list[str] = field(default_factory=list)
    finish: str | None = None
    stall_after: int | None = None
    heartbeat: bool = False
    cut_after: int | None = None
    clean_cut: bool = False  # the cut looks like the regular end of the body
    malformed_after: int | None = None
    error_after: int | None = None
    no_done: bool = False
    after_done: bool = False
    usage: dict[str, int] | None = None
    no_usage: bool = False
    ignore_limit: bool = False
    content_type: str = "text/event-stream"
    encoding: str | None = None
    huge_line: bool = False
    per_chunk: int = 1
    linger_s: float = 0.0
    once: bool = False  # drops a connection that is used again, without a word
    together: int = 64  # requests that are worked on at a time
    alone_from: int | None = None  # from this number on, one at a time
    metrics: bool = True
    deaf: bool = False  # works on for a client that has gone away
    foreign_running: int = 0  # what somebody else has on the server, or had
    foreign_finished: int = 0
    foreign_tokens: int = 0
    foreign_from: int = 0  # it starts with the request of this number
    foreign_until: int | None = None  # and is over with that one
    cached: int = 0
    ready_after: int = 0  # looks at /v1/models that are answered 503
    exit_after: int | None = None  # requests after which the process ends
    says: list[str] = field(default_factory=list)  # written at the start, one by one
    forks: list[float | str | None] = field(default_factory=list)  # look by look


class Server:
    """One server; `script` may be changed while it runs."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.port = 0
        self.seen: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.running = self.waiting = self.steps = self.finished = 0
        self.generated = self.prompted = self.looks = self.pages = 0
        self.reply: Callable[[str], str] | None = None  # answers a prompt
        self._slots: asyncio.Semaphore | None = None
        self._alone: Any = None

    async def start(self, port: int = 0) -> asyncio.Server:
        self._slots = asyncio.Semaphore(self.script.together)
        self._alone = asyncio.Lock()
        server = await asyncio.start_server(self._connection, "127.0.0.1", port)
        self.port = server.sockets[0].getsockname()[1]
        return server

    async def _connection(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        try:
            while await self._request(reader, writer):
                if self.script.once:
                    await reader.readline()
                    break
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.transport.abort()

    async def _request(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> bool:
        line = (await reader.readline()).decode()
        if not line.strip():
            return False
        method, path, _ = line.split()
        headers: dict[str, str] = {}
        while (raw := (await reader.readline()).decode().strip()) != "":
            name, _, value = raw.partition(":")
            headers[name.lower()] = value.strip()
        body = await reader.readexactly(int(headers.get("content-length", 0)))
        if method == "GET":
            return await self._get(path, writer)
        self.headers.append(headers)
        self.seen.append(json.loads(body))
        return await self._complete(path, self.seen[-1], reader, writer)

    async def _plain(
        self, writer: asyncio.StreamWriter, status: int, kind: str, body: str
    ) -> bool:
        data = body.encode()
        head = f"HTTP/1.1 {status} X\r\nContent-Type: {kind}\r\n"
        writer.write(f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data)
        await writer.drain()
        return True

    async def _get(self, path: str, writer: asyncio.StreamWriter) -> bool:
        if path == "/v1/models":
            self.looks += 1
            if self.looks <= self.script.ready_after:
                return await self._plain(writer, 503, "text/plain", "loading")
            models = json.dumps({"data": [{"id": "tiny"}]})
            return await self._plain(writer, 200, "application/json", models)
        if path == "/metrics" and self.script.metrics:
            return await self._plain(writer, 200, "text/plain", self._metrics())
        return await self._plain(writer, 404, "text/plain", "no such page")

    def _metrics(self) -> str:
        script, seen = self.script, len(self.seen)
        began = seen >= script.foreign_from
        ended = script.foreign_until is not None and seen >= script.foreign_until
        others = script.foreign_running if began and not ended else 0
        label = '{engine="0",model_name="tiny"}'
        gauges = {
            "num_requests_running": self.running + others,
            "num_requests_waiting": self.waiting,
        }
        counters = {
            "request_success": self.finished + script.foreign_finished * began,
            "generation_tokens": self.generated + script.foreign_tokens * began,
            "prompt_tokens": self.prompted,
        }
        lines = []
        for name, value in gauges.items():
            lines += [f"# TYPE vllm:{name} gauge", f"vllm:{name}{label} {value}"]
        for name, value in counters.items():
            lines += [
                f"# TYPE vllm:{name} counter",
                f"vllm:{name}_total{label} {value}",
            ]
        lines += [
            "# TYPE vllm:iteration_tokens_total histogram",
            f'vllm:iteration_tokens_total_bucket{{le="+Inf"}} {self.steps}',
            f"vllm:iteration_tokens_total_count {self.steps}",
            f"vllm:iteration_tokens_total_sum {self.generated}",
        ]
        if script.forks:
            forks = script.forks[min(self.pages, len(script.forks) - 1)]
            self.pages += 1
            if forks is not None:
                lines += [
                    "# TYPE faulty:forks counter",
                    f'faulty:forks_total{{kind="side",rank="0"}} {forks}',
                    'faulty:forks_total{kind="main",rank="0"} 7',
                ]
        return "\n".join(lines) + "\n"

    async def _complete(
        self,
        path: str,
        body: dict[str, Any],
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> bool:
        number = len(self.seen) - 1
        script = self.script
        if script.only is not None and script.only != number:
            script = Script(
                gap_s=script.gap_s, together=script.together, per_chunk=script.per_chunk
            )
        alone = self.script.alone_from
        narrow = self._alone if alone is not None and number >= alone else nullcontext()
        if script.status != 200:
            error = json.dumps({"error": {"message": "refused"}})
            return await self._plain(writer, script.status, "application/json", error)
        assert self._slots is not None
        self.waiting += 1
        async with narrow, self._slots:
            self.waiting -= 1
            self.running += 1
            try:
                return await self._stream(path, body, reader, writer, script)
            finally:
                self.running -= 1
                self.finished += 1
                if self.script.exit_after and len(self.seen) >= self.script.exit_after:
                    raise SystemExit(3)

    async def _stream(
        self,
        path: str,
        body: dict[str, Any],
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        script: Script,
    ) -> bool:
        chat = path.endswith("/chat/completions")
        prompt = body["messages"][-1]["content"] if chat else body["prompt"]
        size = len(prompt) if isinstance(prompt, list) else (len(prompt) + 3) // 4
        self.prompted += size
        limit = body["max_tokens"]
        head = f"HTTP/1.1 200 OK\r\nContent-Type: {script.content_type}\r\n"
        if script.encoding:
            head += f"Content-Encoding: {script.encoding}\r\n"
        writer.write(f"{head}Transfer-Encoding: chunked\r\n\r\n".encode())
        await asyncio.sleep(script.first_s)

        async def send(text: str) -> None:
            data = text.encode()
            writer.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
            await writer.drain()

        async def event(document: object) -> None:
            await send(f"data: {json.dumps(document)}\n\n")

        def choice(text: str, finish: str | None, reasoning: str = "") -> Any:
            if not chat:
                found: dict[str, Any] = {"index": 0, "text": text}
            else:
                delta = {"content": text}
                if reasoning:
                    delta = {"reasoning": reasoning}
                found = {"index": 0, "delta": delta}
            return {"choices": [found | {"finish_reason": finish}], "usage": None}

        if script.huge_line:
            block = "x" * 65536
            await send("data: ")
            for _ in range(1024):
                await send(block)
        tokens = script.tokens
        if self.reply is not None and tokens is None:
            tokens = re.findall(r"\s*\S+|\s+", self.reply(prompt))
        if tokens is None:
            count = 10 * limit + 1000 if script.ignore_limit else limit
            tokens = [f" {WORDS[(7 * n * n + n) % 13]}{n}" for n in range(count)]
        if not script.ignore_limit:
            tokens = tokens[: max(limit - len(script.reasoning), 0)]
        for text in script.reasoning[:limit]:
            await event(choice("", None, text))
        by_length = script.tokens is None and self.reply is None
        finish = script.finish or ("length" if by_length else "stop")
        sent = len(script.reasoning[:limit])
        self.generated += sent
        for n in range(0, len(tokens), script.per_chunk):
            if script.stall_after is not None and n >= script.stall_after:
                for _ in range(600):
                    if reader.at_eof() and not script.deaf:
                        return False  # the client has gone away
                    if script.heartbeat:
                        await send(": still here\n\n")
                    await asyncio.sleep(0.1)
            if script.cut_after is not None and n >= script.cut_after:
                if script.clean_cut:
                    writer.write(b"0\r\n\r\n")
                    await writer.drain()
                return False
            if script.malformed_after is not None and n >= script.malformed_after:
                await send('data: {"choices": [{"text": "ha\n\n')
            if script.error_after is not None and n >= script.error_after:
                await event({"error": {"message": "engine died", "code": 500}})
            part = tokens[n : n + script.per_chunk]
            await event(choice("".join(part), None))
            sent += len(part)
            self.generated += len(part)
            self.steps += 1
            await asyncio.sleep(script.gap_s)
        await event(choice("", finish))
        usage = script.usage or {"prompt_tokens": size, "completion_tokens": sent}
        details = {"prompt_tokens_details": {"cached_tokens": script.cached}}
        if not script.no_usage:
            await event({"choices": [], "usage": {**usage, **details}})
        if not script.no_done:
            await send("data: [DONE]\n\n")
        if script.after_done:
            await event(choice("more", None))
        await asyncio.sleep(script.linger_s)
        writer.write(b"0\r\n\r\n")
        await writer.drain()
        return True


@contextmanager
def faulty_server(script: Script | None = None) -> Iterator[Server]:
    """Run a server in a thread of its own.

    Yields:
        The server; its address is `http://127.0.0.1:{port}/v1`.
    """
    server = Server(script or Script())
    loop = asyncio.new_event_loop()
    loop.set_exception_handler(lambda *_: None)  # clients that go away are its trade
    started = threading.Event()
    sockets: list[asyncio.Server] = []

    def run() -> None:
        asyncio.set_event_loop(loop)
        sockets.append(loop.run_until_complete(server.start()))
        started.set()
        loop.run_forever()
        sockets[0].close()
        tasks = asyncio.all_tasks(loop)
        for task in tasks:
            task.cancel()
        loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        # Transports are closed one turn of the loop after they are told to.
        loop.run_until_complete(asyncio.sleep(0))
        loop.close()

    thread = threading.Thread(target=run)
    thread.start()
    started.wait()
    try:
        yield server
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(60)


@contextmanager
def nobody_at() -> Iterator[int]:
    """Yield a port at which nobody listens, and that nobody else is given."""
    with socket.socket() as kept:
        kept.bind(("127.0.0.1", 0))
        yield kept.getsockname()[1]


async def serve(port: int, script: Script) -> None:
    """Serve until the process is ended."""
    for text in script.says:
        print(text, end="", flush=True)
    server = await Server(script).start(port)
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--script", default="{}")
    options = parser.parse_args()
    asyncio.run(serve(options.port, Script(**json.loads(options.script))))
