# SPDX-License-Identifier: Apache-2.0
"""A registry whose answers are random: a verdict each time, and no wrong one."""

import gzip
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from images import PACKAGE_ROOT, SITE, Demo, build_image, tree_layer
from talker import Talk, talker

from stackctl.image.expectation import ExpectedTree, folder_tree
from stackctl.image.roots import PACKAGE, Root
from stackctl.image.transport import Transport
from stackctl.image.verify import Request, verify

IMAGE = build_image([tree_layer(Demo().package(), SITE)])
STATES = ["200 OK", "206 P", "301 M", "307 T", "401 U", "403 F", "404 N", "416 R",
          "429 T", "503 E", "100 C", "204 N", "304 N", "\u00b2 x", ""]  # fmt: skip
HEADS = [
    "Content-Length: SIZE", "Content-Length: SIZE", "Content-Length: 9",
    "Content-Length: \u00b2", "Content-Length: -1", "Content-Length: 1, 2",
    "Transfer-Encoding: chunked", "Content-Encoding: gzip", "Retry-After: \u00b9",
    "Retry-After: 5", "Location: http://127.0.0.1:9/x", "Location: http://[::1/x",
    "Location: //", "Location: \u00e4", "Location: http://a:b:c/", "Location: PATH",
    'WWW-Authenticate: Bearer realm="http://127.0.0.1:PORT/t"',
    'WWW-Authenticate: Bearer realm="http://[::1/t"', "WWW-Authenticate: Basic",
    "WWW-Authenticate: \u0001", "Set-Cookie: \u00ff=\u0001", "Connection: close",
    "Content-Range: bytes 0-1/2", "no colon", " folded", "X: " + "y" * 70_000,
]  # fmt: skip
CHANGES: list[Callable[[bytes], bytes]] = [
    lambda body: body,
    lambda body: body,
    lambda body: body[: len(body) // 2],
    lambda body: body + b"{}",
    lambda body: b"\0" + body[1:],
    lambda body: b"%x\r\n" % len(body) + body + b"\r\n0\r\n\r\n",
    lambda body: b"zz\r\n" + body,
    gzip.compress,
    lambda _: b"",
]


@dataclass(frozen=True)
class Answer:
    """What is said in place of what is right."""

    state: str
    heads: tuple[str, ...]
    change: int


@dataclass
class Server:
    """Gives the answers of a list, then right ones."""

    answers: list[Answer | None] = field(default_factory=list)
    port: int = 0

    def answer(self, talk: Talk) -> None:
        """Answer one request."""
        connected = talk.connected
        connected.settimeout(5)
        asked = b""
        while b"\r\n\r\n" not in asked:
            if not (part := connected.recv(1 << 16)):
                return
            asked += part
        path = asked.split(b" ")[1].decode().partition("?")[0]
        name = path.rpartition("/")[2]
        body = IMAGE.blobs.get(
            IMAGE.manifest if name == "latest" else name, b'{"token":"t"}'
        )
        answer = self.answers.pop(0) if self.answers else None
        if answer is None:
            answer = Answer("200 OK", ("Content-Length: SIZE", "Connection: close"), 0)
        body = CHANGES[answer.change](body)
        lines = [f"HTTP/1.1 {answer.state}", *answer.heads]
        text = "\r\n".join(lines).replace("SIZE", str(len(body)))
        text = text.replace("PATH", path).replace("PORT", str(self.port))
        connected.sendall(text.encode("latin-1") + b"\r\n\r\n" + body)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    made = Server()
    with talker(made.answer) as made.port:
        yield made


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> ExpectedTree:
    return folder_tree(Demo().write(tmp_path_factory.mktemp("expected")))


@settings(
    deadline=None,
    max_examples=25,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(
    answers=st.lists(
        st.none()
        | st.builds(
            Answer,
            st.sampled_from(["200 OK"] * 8 + STATES),
            st.lists(st.sampled_from(HEADS), max_size=4).map(tuple),
            st.integers(0, len(CHANGES) - 1),
        ),
        max_size=8,
    )
)
def test_random_answers(
    server: Server, expected: ExpectedTree, answers: list[Answer | None]
) -> None:
    server.answers[:] = answers
    report = verify(
        Request(
            reference=f"docker://127.0.0.1:{server.port}/a",
            expected=[expected],
            roots=(Root("demo", PACKAGE_ROOT, PACKAGE),),
            transport=Transport(
                plain_http=True, tries=3, read_seconds=1, sleep=lambda _: None
            ),
            environ={},
        )
    )
    assert report.verdict in ("match", "unverifiable")
    assert report.reason["code"] != "unreadable"
    if not answers:
        assert report.verdict == "match"
