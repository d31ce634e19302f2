# SPDX-License-Identifier: Apache-2.0
"""A registry on loopback that misbehaves when told to and remembers who asked what."""

import base64
import json
import re
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType

from images import OCI_INDEX, OCI_MANIFEST, Built

#: Takes the handler and the body that would be sent; returns whether it answered.
Fault = Callable[["_Handler", bytes], bool]


@dataclass
class Seen:
    """A request that arrived."""

    path: str
    authorization: str | None
    range: str | None


@dataclass
class FakeRegistry:
    """A registry with one repository, `team/demo`.

    Attributes:
        images: What it holds; the first has the tag `latest`.
        auth: None, `basic` or `bearer`.
        user: Name and password that it takes.
        realm: Where it says the token service is; its own by default.
        faults: What to do in place of an answer, by a pattern of the path.
        seen: The requests so far.
    """

    images: list[Built] = field(default_factory=list)
    auth: str | None = None
    user: tuple[str, str] = ("ann", "secret")
    realm: str | None = None
    faults: dict[str, Fault] = field(default_factory=dict)
    seen: list[Seen] = field(default_factory=list)
    tags: dict[str, str] = field(default_factory=dict)
    extra: dict[str, bytes] = field(default_factory=dict)

    def __enter__(self) -> "FakeRegistry":
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
        self._server.daemon_threads = True
        self._server.registry = self  # type: ignore[attr-defined]
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self._server.server_address[1]}"

    @property
    def reference(self) -> str:
        return f"docker://{self.host}/team/demo:latest"

    def blob(self, digest: str) -> bytes | None:
        for image in self.images:
            if digest in image.blobs:
                return image.blobs[digest]
        return self.extra.get(digest)

    def manifest(self, reference: str) -> bytes | None:
        if reference in self.tags:
            reference = self.tags[reference]
        elif reference == "latest" and self.images:
            reference = self.images[0].manifest
        return self.blob(reference)

    def secrets_seen(self) -> list[str]:
        """Return the paths that were asked for with the password."""
        secret = base64.b64encode(":".join(self.user).encode()).decode()
        return [s.path for s in self.seen if s.authorization == f"Basic {secret}"]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    @property
    def registry(self) -> FakeRegistry:
        return self.server.registry  # type: ignore[attr-defined, no-any-return]

    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", "0")))
        self.do_GET()

    def do_GET(self) -> None:
        registry = self.registry
        registry.seen.append(
            Seen(
                self.path, self.headers.get("Authorization"), self.headers.get("Range")
            )
        )
        path = self.path.partition("?")[0]
        if path == "/token":
            self._token()
            return
        body, kind = self._find(path)
        for pattern, fault in list(registry.faults.items()):
            if re.search(pattern, path) and fault(self, body or b""):
                return
        if not self._allowed():
            return
        if body is None:
            self.answer(404, b'{"errors":[]}')
            return
        start = 0
        match = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
        if match:
            start = int(match[1])
        self.answer(206 if start else 200, body[start:], {"Content-Type": kind})

    def _find(self, path: str) -> tuple[bytes | None, str]:
        match = re.fullmatch(r"/v2/team/demo/(manifests|blobs)/(.+)", path)
        if not match:
            return None, ""
        if match[1] == "blobs":
            return self.registry.blob(match[2]), "application/octet-stream"
        body = self.registry.manifest(match[2])
        kind = OCI_INDEX if body and b'"manifests"' in body else OCI_MANIFEST
        return body, kind

    def _basic(self) -> bool:
        pair = ":".join(self.registry.user).encode()
        expected = "Basic " + base64.b64encode(pair).decode()
        return self.headers.get("Authorization") == expected

    def _allowed(self) -> bool:
        registry = self.registry
        if registry.auth is None:
            return True
        if registry.auth == "basic":
            if self._basic():
                return True
            challenge = 'Basic realm="registry"'
        else:
            if self.headers.get("Authorization") == "Bearer good-token":
                return True
            realm = registry.realm or f"http://{registry.host}/token"
            challenge = (
                f'Bearer realm="{realm}",service="{registry.host}",'
                'scope="repository:team/demo:pull"'
            )
        self.answer(401, b"{}", {"WWW-Authenticate": challenge})
        return False

    def _token(self) -> None:
        if self._basic():
            self.answer(200, json.dumps({"token": "good-token"}).encode())
        else:
            self.answer(401, b"{}")

    def answer(
        self, status: int, body: bytes, headers: dict[str, str] | None = None
    ) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def status(code: int, times: int = 10**9, retry_after: str | None = None) -> Fault:
    """Answer with a status, the first few times."""
    left = [times]

    def fault(handler: _Handler, body: bytes) -> bool:
        if left[0] <= 0:
            return False
        left[0] -= 1
        handler.answer(code, b"", {"Retry-After": retry_after} if retry_after else {})
        return True

    return fault


def truncated(after: int, times: int = 10**9) -> Fault:
    """Promise the whole body and break off."""
    left = [times]

    def fault(handler: _Handler, body: bytes) -> bool:
        if left[0] <= 0:
            return False
        left[0] -= 1
        match = re.fullmatch(r"bytes=(\d+)-", handler.headers.get("Range", ""))
        start = int(match[1]) if match else 0
        handler.send_response(206 if start else 200)
        handler.send_header("Content-Length", str(len(body) - start))
        handler.end_headers()
        handler.wfile.write(body[start : start + after])
        handler.close_connection = True
        return True

    return fault


def replaced(change: Callable[[bytes], bytes], **headers: str) -> Fault:
    """Send another body."""

    def fault(handler: _Handler, body: bytes) -> bool:
        handler.answer(
            200, change(body), {k.replace("_", "-"): v for k, v in headers.items()}
        )
        return True

    return fault


def endless(handler: _Handler, body: bytes) -> bool:
    """Send the body and then zeros for as long as anybody listens."""
    handler.send_response(200)
    handler.end_headers()
    handler.close_connection = True
    try:
        handler.wfile.write(body)
        for _ in range(4096):
            handler.wfile.write(bytes(1 << 16))
    except OSError:
        pass
    return True


def trickle(handler: _Handler, body: bytes) -> bool:
    """Send a byte at a time."""
    handler.send_response(200)
    handler.send_header("Content-Length", str(len(body)))
    handler.end_headers()
    handler.close_connection = True
    try:
        for number in range(len(body)):
            handler.wfile.write(body[number : number + 1])
            time.sleep(0.05)
    except OSError:
        pass
    return True


def redirect(target: str) -> Fault:
    """Redirect to another place; `{path}` stands for the path asked for."""

    def fault(handler: _Handler, body: bytes) -> bool:
        handler.answer(307, b"", {"Location": target.format(path=handler.path)})
        return True

    return fault
