# SPDX-License-Identifier: Apache-2.0
"""One streamed request to an OpenAI-compatible server, with everything that was seen.

httpx and httpx-sse rather than the `openai` package: what is measured is the stream
itself. Every event needs its own time, a malformed one must be seen and not skipped,
fields that the API's types do not know (`reasoning`) count, and nothing may be retried
behind our back.
"""

import asyncio
import json
import os
import ssl
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from stackctl.errors import InputError, UsageError
from stackctl.gates.serving.loops import loop_in
from stackctl.gates.serving.page import fetch_page

if TYPE_CHECKING:
    import httpx

MAX_BYTES: Final = 64 << 20
"""Most bytes of one streamed answer: far above a million tokens as events."""

MAX_EVENT: Final = 4 << 20
"""Most bytes between two line feeds."""

LOOP_EVERY: Final = 128
"""Chunks between two looks for a loop."""

KEY_VARIABLE: Final = "STACKCTL_GATE_API_KEY"
"""Environment variable with the server's API key; never written anywhere."""


@dataclass(frozen=True, slots=True)
class Problem:
    """Why an answer may not be used.

    Attributes:
        code: Stable word: `connect`, `http-429`, `cut`, `malformed`, `error-event`,
            `stalled`, `no-first-token`, `timed-out`, `over-length`, `too-large`,
            `loop`, `empty`, `usage-missing`, `usage-wrong`, `short`.
        text: What was seen, in words that name no host, path or secret.
    """

    code: str
    text: str

    def document(self) -> dict[str, str]:
        """Return the JSON form."""
        return {"code": self.code, "text": self.text}


@dataclass(frozen=True, slots=True)
class Limits:
    """How long and how much an answer may be.

    Attributes:
        connect_s: Seconds to a connection.
        first_token_s: Seconds from sending to the first token.
        stall_s: Seconds without a token after the first one.
        total_s: Seconds of the whole request.
    """

    connect_s: float = 10.0
    first_token_s: float = 300.0
    stall_s: float = 60.0
    total_s: float = 900.0


@dataclass(slots=True)
class Answer:
    """What came back for one request.

    Attributes:
        sent_ns: Monotonic clock when it was sent.
        end_ns: Monotonic clock when it ended, well or not.
        chunk_ns: Monotonic clock of every chunk with tokens.
        content: Visible text.
        reasoning: Reasoning text that the server keeps apart.
        finish: `finish_reason`, None where none came.
        usage: The server's usage object, None where none came.
        counted: Tokens that were streamed, None where chunks do not tell.
        problems: Why it may not be used; empty for a good answer.
    """

    sent_ns: int
    end_ns: int = 0
    chunk_ns: list[int] = field(default_factory=list)
    content: str = ""
    reasoning: str = ""
    finish: str | None = None
    usage: dict[str, Any] | None = None
    counted: int | None = None
    problems: list[Problem] = field(default_factory=list)

    @property
    def ttft_ns(self) -> int | None:
        """Nanoseconds from sending to the first token, None without one."""
        return self.chunk_ns[0] - self.sent_ns if self.chunk_ns else None

    @property
    def completion_tokens(self) -> int | None:
        """Tokens of the answer as the server counts them."""
        return _count(self.usage, "completion_tokens")

    @property
    def prompt_tokens(self) -> int | None:
        """Tokens of the prompt as the server counts them."""
        return _count(self.usage, "prompt_tokens")

    @property
    def cached_tokens(self) -> int:
        """Prompt tokens that the server took from its prefix cache, 0 if unsaid."""
        details = (self.usage or {}).get("prompt_tokens_details")
        return _count(details, "cached_tokens") or 0

    def add(self, code: str, text: str) -> None:
        """Record a problem."""
        self.problems.append(Problem(code, text))


def _count(table: object, name: str) -> int | None:
    value = table.get(name) if isinstance(table, Mapping) else None
    ok = isinstance(value, int) and not isinstance(value, bool) and value >= 0
    return value if ok else None


@dataclass(frozen=True, slots=True)
class Request:
    """What to ask.

    Attributes:
        api: `completions` or `chat`.
        model: Served name of the model.
        prompt: Text, or token ids (`completions` only).
        max_tokens: Most tokens of the answer.
        body: Further keys of the request.
        count: How streamed tokens are counted: `bounds` (not at all: a chunk holds at
            least one), `chunks` (one each), `logprobs` or `token-ids` (as listed in
            every chunk).
        exact_length: Whether the answer must have exactly `max_tokens` tokens.
        check_loops: Whether a loop ends the request as a problem.
        check_usage: Whether the usage must be there and must fit.
    """

    api: str
    model: str
    prompt: str | Sequence[int]
    max_tokens: int
    body: Mapping[str, Any] = field(default_factory=dict)
    count: str = "bounds"
    exact_length: bool = False
    check_loops: bool = True
    check_usage: bool = True

    @property
    def path(self) -> str:
        """Path of the endpoint below the base URL."""
        return "/chat/completions" if self.api == "chat" else "/completions"

    def document(self) -> dict[str, Any]:
        """Return the body of the HTTP request."""
        body: dict[str, Any] = {
            "model": self.model,
            "max_tokens": self.max_tokens,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if self.api == "chat":
            body["messages"] = [{"role": "user", "content": self.prompt}]
        else:
            prompt = self.prompt
            body["prompt"] = prompt if isinstance(prompt, str) else list(prompt)
        if self.count == "logprobs":
            body |= {"logprobs": True} if self.api == "chat" else {"logprobs": 0}
        elif self.count == "token-ids":
            body["return_token_ids"] = True
        return body | dict(self.body)


def check_base_url(text: str) -> str:
    """Return a server's base URL (with its `/v1`) without a final slash.

    Args:
        text: As given.

    Raises:
        UsageError: Not an http or https URL, or one with a user, query or fragment.
    """
    from urllib.parse import urlsplit

    try:
        parts = urlsplit(text)
        host, _ = parts.hostname, parts.port
    except ValueError:
        host = None
    plain = text.isprintable() and not any(map(str.isspace, text))
    if host is None or not plain or parts.scheme not in ("http", "https"):
        raise UsageError(
            "--base-url needs an http or https URL",
            hint="give the address up to the version, like http://127.0.0.1:8000/v1",
        )
    if parts.username or parts.password or parts.query or parts.fragment:
        raise UsageError(
            "--base-url takes no user, password, query or fragment",
            hint=f"put an API key into the environment variable {KEY_VARIABLE}",
        )
    return text.rstrip("/")


def need_http() -> Any:
    """Import httpx, or say how to get it.

    Raises:
        UsageError: The extra is not installed.
    """
    try:
        import httpx
        import httpx_sse  # noqa: F401
        import prometheus_client  # noqa: F401
    except ImportError as error:
        raise UsageError(
            f"serving and accuracy gates need the package {error.name}",
            kind="missing-package",
            hint="pip install 'stackctl[gates]'",
        ) from None
    return httpx


@asynccontextmanager
async def connect(base_url: str, limits: Limits) -> "AsyncIterator[httpx.AsyncClient]":
    """Open connections to a server.

    Args:
        base_url: Up to and with `/v1`.
        limits: Time limits; only the one for connecting is httpx's.

    Yields:
        A client that opens a connection for each request, ignores proxies of the
        environment and follows no redirect.
    """
    httpx = need_http()
    key = os.environ.get(KEY_VARIABLE)
    headers = {"Accept-Encoding": "identity", "User-Agent": "stackctl"}
    if key:
        headers["Authorization"] = f"Bearer {key}"
    verify = ssl.create_default_context() if base_url.startswith("https") else True
    async with httpx.AsyncClient(
        base_url=base_url,
        headers=headers,
        # A proxy in between would decide what is measured.
        trust_env=False,
        follow_redirects=False,
        verify=verify,
        timeout=httpx.Timeout(None, connect=limits.connect_s),
        # A connection for each request. A server closes one when it likes, and a
        # request on its way then is lost without an answer: llama.cpp's server was
        # seen to do so with one of about 100 requests that followed a stream.
        limits=httpx.Limits(max_connections=None, max_keepalive_connections=0),
    ) as client:
        yield client


async def served_model(client: "httpx.AsyncClient", limits: Limits) -> str:
    """Return the name of the first model that a server lists.

    Raises:
        InputError: The list cannot be had or is empty.
    """
    import httpx

    try:
        page = await fetch_page(client, "/models", limits.first_token_s)
        names = [entry["id"] for entry in json.loads(page.data or b"")["data"]]
        if isinstance(names[0], str):
            return names[0]
    except (httpx.HTTPError, ValueError, LookupError, TypeError, RecursionError):
        pass
    raise InputError(
        "the server does not say which model it serves (GET /models)",
        kind="no-model",
        hint="name it with --served-model",
    )


async def ask(
    client: "httpx.AsyncClient",
    request: Request,
    limits: Limits,
    *,
    on_token: Callable[[], None] | None = None,
) -> Answer:
    """Send one request and read its stream to the end.

    Args:
        client: Connections from `connect`.
        request: What to ask.
        limits: How long and how much.
        on_token: Called for every chunk with tokens.

    Returns:
        The answer; whatever went wrong is in its problems, never raised.
    """
    import httpx
    import httpx_sse

    reader = _Reader(request, limits, on_token)
    answer = reader.answer
    try:
        async with asyncio.timeout(None) as clock:
            reader.wind(clock)
            async with httpx_sse.aconnect_sse(
                client, "POST", request.path, json=request.document()
            ) as source:
                await reader.read(source)
    except _StopError:
        pass
    except TimeoutError:
        reader.timed_out()
    except (httpx.ConnectError, httpx.ConnectTimeout):
        answer.add("connect", "no connection to the server")
    except httpx_sse.SSEError:
        answer.add("malformed", "the answer is no event stream")
    except (httpx.DecodingError, UnicodeError):
        answer.add("malformed", "the answer is not plain UTF-8 text")
    except httpx.HTTPError as error:
        what = type(error).__name__
        if reader.opened:
            answer.add("cut", f"the stream broke off ({what})")
        else:
            answer.add("connect", f"the connection broke before an answer ({what})")
    answer.end_ns = time.monotonic_ns()
    reader.finish()
    return answer


class _StopError(Exception):
    """Reading ends; the answer has the problem."""


class _Bounded:
    """The bytes of a response, ended where they are more than an answer can be."""

    def __init__(self, stream: Any, reader: "_Reader") -> None:
        self._stream = stream
        self._reader = reader

    async def __aiter__(self) -> AsyncIterator[bytes]:
        total = line = 0
        async for part in self._stream:
            total += len(part)
            newline = part.rfind(b"\n")
            line = line + len(part) if newline < 0 else len(part) - newline - 1
            if total > MAX_BYTES or line > MAX_EVENT:
                self._reader.stop("too-large", "the answer is far larger than any text")
            yield part

    async def aclose(self) -> None:
        await self._stream.aclose()


class _Reader:
    """Reads one stream into an answer."""

    def __init__(
        self,
        request: Request,
        limits: Limits,
        on_token: Callable[[], None] | None,
    ) -> None:
        self.answer = Answer(time.monotonic_ns())
        self.opened = False
        self._request = request
        self._limits = limits
        self._on_token = on_token
        self._start = asyncio.get_running_loop().time()
        self._content: list[str] = []
        self._reasoning: list[str] = []
        self._counted = 0
        self._done = False
        self._clock: asyncio.Timeout | None = None

    def stop(self, code: str, text: str) -> None:
        """End reading with a problem."""
        self.answer.add(code, text)
        raise _StopError

    def wind(self, clock: asyncio.Timeout) -> None:
        """Set the clock to the first token."""
        self._clock = clock
        limit = min(self._limits.first_token_s, self._limits.total_s)
        clock.reschedule(self._start + limit)

    def _rewind(self) -> None:
        assert self._clock is not None
        now = asyncio.get_running_loop().time()
        total = self._start + self._limits.total_s
        self._clock.reschedule(min(now + self._limits.stall_s, total))

    def timed_out(self) -> None:
        """Record which limit was passed."""
        if self._done:
            return  # the server only keeps the connection open
        limits = self._limits
        now = asyncio.get_running_loop().time()
        if now >= self._start + limits.total_s:
            self.answer.add("timed-out", f"not finished after {limits.total_s:g} s")
        elif self.answer.chunk_ns:
            self.answer.add("stalled", f"no token for {limits.stall_s:g} s")
        else:
            self.answer.add(
                "no-first-token", f"no token within {limits.first_token_s:g} s"
            )

    async def read(self, source: Any) -> None:
        """Read the events."""
        response = source.response
        if response.status_code != 200:
            self.stop(
                f"http-{response.status_code}",
                f"the server answered with HTTP status {response.status_code}",
            )
        if response.headers.get("content-encoding", "identity") != "identity":
            self.stop("malformed", "the answer is compressed, which was not asked for")
        self.opened = True
        response.stream = _bounded(response.stream, self)
        async with aclosing(source.aiter_sse()) as events:
            async for event in events:
                if event.data == "[DONE]":
                    self._done = True
                    # What may follow is the end of the connection.
                    assert self._clock is not None
                    self._clock.reschedule(asyncio.get_running_loop().time() + 2.0)
                elif self._done:
                    self.stop("malformed", "events after [DONE]")
                elif event.event == "error":
                    self.stop("error-event", "the server sent an error in the stream")
                elif event.data:
                    self._event(event.data)

    def _event(self, data: str) -> None:
        now = time.monotonic_ns()
        try:
            document = json.loads(data)
        except (ValueError, RecursionError):
            document = None
        if not isinstance(document, dict):
            return self.stop("malformed", "an event is not a JSON object")
        if document.get("error"):
            self.stop("error-event", "the server sent an error in the stream")
        usage = document.get("usage")
        if isinstance(usage, dict):
            self.answer.usage = usage
        choices = document.get("choices", [])
        if not isinstance(choices, list) or len(choices) > 1:
            return self.stop("malformed", "an event does not have one choice")
        if choices:
            self._choice(choices[0], now)
        return None

    def _choice(self, choice: object, now: int) -> None:
        if not isinstance(choice, dict) or choice.get("index", 0) != 0:
            return self.stop("malformed", "a choice is not the one asked for")
        delta = choice.get("delta") if self._request.api == "chat" else choice
        if delta is None:
            delta = {}
        if not isinstance(delta, dict):
            return self.stop("malformed", "a delta is not an object")
        name = "content" if self._request.api == "chat" else "text"
        content = delta.get(name) or ""
        reasoning = delta.get("reasoning") or delta.get("reasoning_content") or ""
        if not isinstance(content, str) or not isinstance(reasoning, str):
            return self.stop("malformed", "a text is not a text")
        tokens = self._tokens(choice, delta, bool(content or reasoning))
        if content or reasoning or tokens:
            if self.answer.finish is not None:
                self.stop("malformed", "text after the finish reason")
            self._content.append(content)
            self._reasoning.append(reasoning)
            self._counted += tokens
            self.answer.chunk_ns.append(now)
            self._rewind()
            if self._on_token is not None:
                self._on_token()
            self._check_length()
        finish = choice.get("finish_reason")
        if finish is not None:
            self.answer.finish = str(finish)
        return None

    def _tokens(
        self, choice: Mapping[str, Any], delta: Mapping[str, Any], text: bool
    ) -> int:
        """Return how many tokens a chunk holds, as far as it can be told."""
        count = self._request.count
        if count == "token-ids":
            ids = choice.get("token_ids") or delta.get("token_ids") or []
            return len(ids) if isinstance(ids, list) else 0
        if count == "logprobs":
            table = choice.get("logprobs") or {}
            name = "content" if self._request.api == "chat" else "tokens"
            listed = table.get(name) if isinstance(table, dict) else None
            return len(listed) if isinstance(listed, list) else 0
        return int(text)

    def _check_length(self) -> None:
        chunks = len(self.answer.chunk_ns)
        most = self._request.max_tokens + 8  # chunks of odd servers hold half a token
        if max(chunks, self._counted) > most:
            self.stop(
                "over-length",
                f"more than the {self._request.max_tokens} tokens that were asked for",
            )
        if self._request.check_loops and chunks % LOOP_EVERY == 0:
            self._look_for_loop()

    def _look_for_loop(self) -> None:
        for pieces in (self._content, self._reasoning):
            if (loop := loop_in("".join(pieces[-4096:]))) is not None:
                self.stop("loop", loop)

    def finish(self) -> None:
        """Complete the answer and judge it as a whole."""
        answer, request = self.answer, self._request
        answer.content = "".join(self._content)
        answer.reasoning = "".join(self._reasoning)
        if request.count != "bounds":
            answer.counted = self._counted
        if answer.problems:
            return
        # Some servers leave [DONE] out; a usage after the finish is an end as well.
        ended = self._done or answer.usage is not None
        if not ended or answer.finish is None:
            answer.add("cut", "the stream ended before the answer did")
            return
        if not answer.chunk_ns:
            answer.add("empty", "the answer has no token")
            return
        try:
            if request.check_loops:
                self._look_for_loop()
            if request.check_usage:
                self._check_usage()
        except _StopError:
            pass

    def _check_usage(self) -> None:
        answer, request = self.answer, self._request
        if answer.usage is None:
            return self.stop("usage-missing", "the server sent no usage")
        said = answer.completion_tokens
        if said is None or answer.prompt_tokens is None:
            return self.stop("usage-wrong", "the usage has no token counts")
        chunks, most = len(answer.chunk_ns), request.max_tokens
        if said > most:
            self.stop("usage-wrong", f"{said} tokens counted, {most} asked for")
        if said < chunks:
            self.stop("usage-wrong", f"{said} tokens counted, {chunks} chunks streamed")
        if answer.finish == "length" and said != most:
            self.stop("usage-wrong", f"ended at the length {most} with {said} counted")
        if answer.counted is not None:
            # The token that ends an answer has no text.
            ends = request.count != "token-ids" and answer.finish == "stop"
            if not 0 <= said - answer.counted <= int(ends):
                self.stop(
                    "usage-wrong", f"{said} tokens counted, {answer.counted} streamed"
                )
        if request.exact_length and said != most:
            self.stop("short", f"{said} tokens where {most} were asked for")
        return None


def _bounded(stream: Any, reader: _Reader) -> Any:
    import httpx

    # httpx asks for its own class; it is imported only where it is used.
    kind = type("Bounded", (_Bounded, httpx.AsyncByteStream), {})
    return kind(stream, reader)
