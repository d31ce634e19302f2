# SPDX-License-Identifier: Apache-2.0
"""Waiting, limits, pages and conditional requests."""

from typing import Any

import pytest
import requests
from github_server import Call, FakeGitHub, Pull
from talker import ENDLESS_HEADS, talker, without_end

from stackctl.errors import RemoteError
from stackctl.github import endpoint as module
from stackctl.github.endpoint import Endpoint, Patience, RefusedError, _limit, _next
from stackctl.github.look import contains, read_pull
from stackctl.github.token import Token
from stackctl.github.transport import connect


@pytest.fixture
def endpoint(server: FakeGitHub) -> Endpoint:
    api = server.env["GITHUB_API_URL"]
    return Endpoint("o/r", Token(server.token), api, Patience(100))


def test_a_page_that_is_known_is_not_sent_again(
    endpoint: Endpoint, server: FakeGitHub
) -> None:
    for number in range(1, 251):
        server.pulls[number] = Pull(
            number, "t", "", f"b{number}", "main", "0" * 40, "ada", state="closed"
        )
    server.refs = {}
    assert len(endpoint.pages("/pulls", state="all")) == 250
    pages = [each.query["page"] for each in server.calls if "page" in each.query]
    assert pages == ["2", "3"]
    server.calls.clear()
    assert len(endpoint.pages("/pulls", state="all")) == 250
    assert all("if-none-match" in each.headers for each in server.calls)
    assert len(server.calls) == 3
    # What has changed comes anew.
    server.pulls[250].title = "new"
    assert endpoint.pages("/pulls", state="all")[0]["title"] == "new"


@pytest.mark.parametrize(("first", "again"), ENDLESS_HEADS)
def test_the_head_of_an_answer_has_its_time(first: bytes, again: bytes) -> None:
    """However many bytes come: it is no answer."""
    with talker(without_end(first, again)) as port:
        requester = connect(f"http://127.0.0.1:{port}/api/v3", "t", 1)
        with pytest.raises((requests.exceptions.RequestException, OSError)):
            requester.requestJson("GET", "/repos/o/r")


def test_links() -> None:
    assert _next('<https://x/a?page=2>; rel="next", <https://x/b>; rel="last"') == (
        "https://x/a?page=2"
    )
    assert _next('<https://x/b>; rel="prev"') == "" and _next("") == ""


@pytest.mark.parametrize(
    ("status", "headers", "document", "before", "seconds"),
    [
        (403, {"retry-after": "30"}, {}, 0, 31),
        (429, {"retry-after": "30"}, {}, 0, 31),
        (403, {}, {"message": "exceeded a secondary rate limit"}, 0, 60),
        (403, {}, {"message": "exceeded a secondary rate limit"}, 2, 240),
        (429, {}, None, 0, 60),
        (403, {"x-ratelimit-remaining": "3"}, {"message": "no"}, 0, None),
        (404, {"retry-after": "30"}, {}, 0, None),
    ],
)
def test_how_long_a_limit_asks_to_wait(
    status: int, headers: dict[str, str], document: Any, before: int, seconds: Any
) -> None:
    assert _limit(status, headers, document, before) == seconds


def test_the_clock_of_the_server_counts() -> None:
    headers = {
        "x-ratelimit-remaining": "0",
        "x-ratelimit-reset": "1000",
        "date": "Thu, 01 Jan 1970 00:15:00 GMT",
    }
    assert _limit(403, headers, {}, 0) == 101
    assert _limit(403, {**headers, "x-ratelimit-reset": "1"}, {}, 0) == 1


def test_waiting_is_shown_and_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    shown: list[tuple[str, int, int | None]] = []

    class Shown:
        def update(self, phase: str, done: int, total: int | None) -> None:
            shown.append((phase, done, total))

        def note(self, message: str) -> None:
            shown.append((message, 0, None))

    monkeypatch.setattr(module, "sleep", slept.append)
    patience = Patience(10, Shown())
    patience.wait(3.5, "a limit", "rate-limited")
    assert sum(slept) == 3.5 and len(shown) == 5
    with pytest.raises(RemoteError) as caught:
        patience.wait(7, "a limit", "rate-limited")
    assert caught.value.kind == "rate-limited" and "--wait" in str(caught.value.hint)
    assert sum(slept) == 3.5


def test_what_is_refused_says_why(endpoint: Endpoint, server: FakeGitHub) -> None:
    with pytest.raises(RefusedError) as caught:
        endpoint.send("POST", "/pulls", {"title": "t", "head": "x", "base": "y"})
    assert caught.value.reasons == ("head invalid",)
    needs = {"X-Accepted-GitHub-Permissions": "pull_requests=write"}
    server.faults = [lambda call: (403, {"message": "Resource not accessible"}, needs)]
    with pytest.raises(RefusedError) as caught:
        endpoint.get("/pulls/1")
    assert caught.value.kind == "not-allowed"
    assert "needs: pull_requests=write" in str(caught.value.hint)


def test_a_lost_answer_is_looked_for(endpoint: Endpoint, server: FakeGitHub) -> None:
    sent = []

    def fault(call: Call) -> str | None:
        sent.append(call.verb)
        return "reset" if call.verb == "POST" else None

    server.faults = [fault]
    done = endpoint.send("POST", "/issues/1/comments", {"body": "x"}, lambda: {"id": 5})
    assert done == {"id": 5} and sent == ["POST"]


def test_an_answer_that_github_never_gives(
    endpoint: Endpoint, server: FakeGitHub
) -> None:
    server.faults = [lambda call: (200, {"items": []}, {})]
    with pytest.raises(RemoteError) as caught:
        endpoint.pages("/pulls")
    assert caught.value.kind == "bad-answer"
    with pytest.raises(RemoteError):
        read_pull({"number": 1})


def test_two_histories_without_a_common_commit(
    endpoint: Endpoint, server: FakeGitHub
) -> None:
    assert not contains(endpoint, "1" * 40, "main")


def test_the_token_hides_itself() -> None:
    token = Token("s3cret/with+signs")
    assert "s3cret" not in repr(token) + str(token)
    for text in ("a s3cret/with+signs b", "https://x:s3cret%2Fwith%2Bsigns@h"):
        assert "s3cret" not in token.hide(text)
