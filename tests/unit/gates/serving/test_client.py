# SPDX-License-Identifier: Apache-2.0
import asyncio
import time

import pytest
from faulty_server import Script, Server, faulty_server, nobody_at

from stackctl.errors import UsageError
from stackctl.gates.serving.client import (
    KEY_VARIABLE,
    Answer,
    Limits,
    Request,
    ask,
    check_base_url,
    connect,
    served_model,
)


def get(server: Server, limits: Limits | None = None, **changes) -> Answer:
    settings = {
        "api": "completions",
        "model": "tiny",
        "prompt": "tell me",
        "max_tokens": 20,
        **changes,
    }
    limits = limits or Limits()

    async def run() -> Answer:
        async with connect(f"http://127.0.0.1:{server.port}/v1", limits) as client:
            return await ask(client, Request(**settings), limits)

    return asyncio.run(run())


def codes(answer: Answer) -> list[str]:
    return [problem.code for problem in answer.problems]


@pytest.mark.parametrize("api", ["completions", "chat"])
def test_a_good_answer_is_read_whole(api: str) -> None:
    with faulty_server() as server:
        answer = get(server, api=api, exact_length=True, count="chunks")
    assert codes(answer) == []
    assert len(answer.chunk_ns) == answer.counted == answer.completion_tokens == 20
    assert answer.finish == "length"
    assert answer.content.startswith(" alpha0 ")
    assert answer.prompt_tokens == 2
    times = [answer.sent_ns, *answer.chunk_ns, answer.end_ns]
    assert times == sorted(times)
    assert answer.ttft_ns == answer.chunk_ns[0] - answer.sent_ns


def test_what_is_sent() -> None:
    with faulty_server() as server:
        get(server, api="chat", body={"temperature": 0.5, "top_k": 3})
        get(server, prompt=[5, 6], count="token-ids", check_usage=False)
    chat, ids = server.seen
    assert chat["messages"] == [{"role": "user", "content": "tell me"}]
    assert (chat["temperature"], chat["top_k"], chat["stream"]) == (0.5, 3, True)
    assert ids["prompt"] == [5, 6]
    assert ids["return_token_ids"] is True


def test_reasoning_is_kept_apart() -> None:
    with faulty_server(Script(reasoning=["hm ", "so"], tokens=["42"])) as server:
        answer = get(server, api="chat")
    assert (answer.reasoning, answer.content, codes(answer)) == ("hm so", "42", [])
    assert answer.completion_tokens == 3


FAULTS = [
    (Script(status=429), "http-429"),
    (Script(status=500), "http-500"),
    (Script(status=503), "http-503"),
    (Script(status=302), "http-302"),
    (Script(cut_after=5), "cut"),
    (Script(cut_after=5, clean_cut=True), "cut"),
    (Script(no_done=True, no_usage=True), "cut"),
    (Script(malformed_after=5), "malformed"),
    (Script(after_done=True), "malformed"),
    (Script(content_type="application/json"), "malformed"),
    (Script(encoding="gzip"), "malformed"),
    (Script(error_after=5), "error-event"),
    (Script(ignore_limit=True), "over-length"),
    (Script(huge_line=True), "too-large"),
    (Script(tokens=["the same again. "] * 400), "loop"),
    (Script(tokens=["0"] * 400), "loop"),
    (Script(tokens=[]), "empty"),
    (Script(no_usage=True), "usage-missing"),
    (Script(usage={"prompt_tokens": 2, "completion_tokens": 3}), "usage-wrong"),
    (Script(usage={"prompt_tokens": 2, "completion_tokens": 4000}), "usage-wrong"),
    (Script(usage={"prompt_tokens": 2, "completion_tokens": -1}), "usage-wrong"),
    (Script(usage={"completion_tokens": 400}), "usage-wrong"),
]


@pytest.mark.parametrize(("script", "code"), FAULTS)
def test_each_fault_is_told(script: Script, code: str) -> None:
    with faulty_server(script) as server:
        answer = get(server, max_tokens=400)
    assert codes(answer) == [code]


def test_an_endless_loop_is_left_early() -> None:
    script = Script(tokens=["round and "] * 100_000)
    with faulty_server(script) as server:
        answer = get(server, max_tokens=100_000)
    assert codes(answer) == ["loop"]
    assert len(answer.chunk_ns) < 1000


def test_a_wrong_count_inside_the_bounds_shows_where_chunks_are_counted() -> None:
    usage = {"prompt_tokens": 2, "completion_tokens": 19}
    with faulty_server(Script(tokens=["x "] * 10, usage=usage)) as server:
        assert codes(get(server)) == []
        assert codes(get(server, count="chunks")) == ["usage-wrong"]


def test_an_answer_that_is_too_short_for_the_cell() -> None:
    with faulty_server(Script(tokens=["a", "b"])) as server:
        assert codes(get(server, exact_length=True)) == ["short"]


@pytest.mark.parametrize("heartbeat", [False, True])
def test_a_stall_is_told_also_behind_heartbeats(heartbeat: bool) -> None:
    limits = Limits(stall_s=2)
    with faulty_server(Script(stall_after=3, heartbeat=heartbeat)) as server:
        answer = get(server, limits)
    assert codes(answer) == ["stalled"]
    assert len(answer.chunk_ns) == 3


def test_a_slow_first_token() -> None:
    with faulty_server(Script(first_s=30)) as server:
        answer = get(server, Limits(first_token_s=0.3))
    assert codes(answer) == ["no-first-token"]


def test_a_slow_first_token_is_no_stall_of_later_ones() -> None:
    with faulty_server(Script(first_s=2.5)) as server:
        answer = get(server, Limits(stall_s=2, first_token_s=60))
    assert codes(answer) == []
    assert answer.ttft_ns is not None and answer.ttft_ns >= 2_500_000_000


def test_tokens_do_not_extend_the_whole_time() -> None:
    with faulty_server(Script(gap_s=0.05)) as server:
        answer = get(server, Limits(total_s=3), max_tokens=10_000)
    assert codes(answer) == ["timed-out"]
    assert answer.chunk_ns


def test_servers_that_leave_done_out() -> None:
    with faulty_server(Script(no_done=True)) as server:
        assert codes(get(server)) == []


def test_a_connection_that_stays_open_after_done_is_no_stall() -> None:
    with faulty_server(Script(linger_s=600)) as server:
        started = time.monotonic()
        answer = get(server, Limits(stall_s=300))
    assert codes(answer) == []
    assert time.monotonic() - started < 250


def test_a_connection_that_the_server_may_drop_is_not_used_again() -> None:
    async def run() -> list[Answer]:
        url = f"http://127.0.0.1:{server.port}/v1"
        async with connect(url, Limits()) as client:
            request = Request("completions", "tiny", "tell me", max_tokens=20)
            return [await ask(client, request, Limits()) for _ in range(3)]

    with faulty_server(Script(once=True)) as server:
        answers = asyncio.run(run())
    assert [codes(answer) for answer in answers] == [[], [], []]


def test_nobody_listens() -> None:
    server = Server(Script())
    with nobody_at() as server.port:
        assert codes(get(server)) == ["connect"]


def test_the_key_goes_only_where_it_belongs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KEY_VARIABLE, "sesame")
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    with faulty_server() as server:
        assert codes(get(server)) == []
    assert server.headers[0]["authorization"] == "Bearer sesame"


def test_the_model_is_asked_for() -> None:
    async def run(port: int) -> str:
        async with connect(f"http://127.0.0.1:{port}/v1", Limits()) as client:
            return await served_model(client, Limits())

    with faulty_server() as server:
        assert asyncio.run(run(server.port)) == "tiny"


@pytest.mark.parametrize(
    "url",
    [
        "localhost:8000",
        "ftp://host/v1",
        "http://user:pw@host/v1",
        "http://host/v1?x=1",
        "http://[/v1",
        "http://host:99999/v1",
        "",
    ],
)
def test_bad_base_urls(url: str) -> None:
    with pytest.raises(UsageError):
        check_base_url(url)


def test_base_urls_lose_their_last_slash() -> None:
    assert check_base_url("https://host:1/v1/") == "https://host:1/v1"
