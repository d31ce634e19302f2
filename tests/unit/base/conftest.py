# SPDX-License-Identifier: Apache-2.0
"""Real repositories, real archives and a real index server for the tests of bases."""

import base64
import io
import os
import tarfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import support

from stackctl.cache import Cache


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return Cache.open(tmp_path / "cache")


@pytest.fixture(autouse=True)
def _no_pip_configuration(monkeypatch, tmp_path):
    """Tests decide what pip's configuration is; the machine's must not leak in."""
    for name in list(os.environ):
        if name.startswith("PIP_") or name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
    monkeypatch.delenv("NETRC", raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "home").mkdir()


def git(folder: Path, *args: str, stdin: bytes = b"") -> str:
    """Run real git without anybody's configuration."""
    return support.git(*args, cwd=folder, stdin=stdin).decode().strip()


@pytest.fixture
def real_git() -> Callable[..., str]:
    return git


@pytest.fixture
def git_tree(tmp_path: Path) -> Callable[[Path], str]:
    """Return the tree that real git makes of a folder's files, ignored ones too."""

    def tree(folder: Path) -> str:
        repository = tmp_path / "oracle.git"
        if not repository.exists():
            git(tmp_path, "init", "-q", "--bare", "oracle.git")
        index = tmp_path / "oracle.index"
        index.unlink(missing_ok=True)
        options = [
            f"--git-dir={repository}",
            f"--work-tree={folder}",
            "-c",
            f"core.attributesFile={os.devnull}",
        ]
        os.environ.pop("GIT_INDEX_FILE", None)
        # Attributes of the folder itself must have no say: info/attributes wins.
        (repository / "info").mkdir(exist_ok=True)
        (repository / "info" / "attributes").write_text("* -text -filter -ident\n")
        (repository / "index").unlink(missing_ok=True)
        git(folder, *options, "-c", "core.bare=false", "add", "-Af", ".")
        return git(folder, *options, "-c", "core.bare=false", "write-tree")

    return tree


@dataclass
class Tar:
    """A tar archive being made, header by header where that is needed."""

    format: int = tarfile.PAX_FORMAT
    buffer: io.BytesIO = field(default_factory=io.BytesIO)

    def __post_init__(self) -> None:
        self.tar = tarfile.TarFile(fileobj=self.buffer, mode="w", format=self.format)

    def add(self, name: str, data: bytes = b"", **fields: object) -> "Tar":
        info = tarfile.TarInfo(name)
        info.size = len(data)
        info.mode = 0o644
        for key, value in fields.items():
            setattr(info, key, value)
        self.tar.addfile(info, io.BytesIO(data))
        return self

    def link(self, name: str, target: str) -> "Tar":
        return self.add(name, type=tarfile.SYMTYPE, linkname=target)

    def hard(self, name: str, target: str) -> "Tar":
        return self.add(name, type=tarfile.LNKTYPE, linkname=target)

    def bytes(self) -> bytes:
        self.tar.close()
        return self.buffer.getvalue()


@pytest.fixture
def new_tar() -> Callable[..., Tar]:
    return Tar


@pytest.fixture
def written(tmp_path: Path) -> Callable[..., tuple[Path, str]]:
    """Write bytes to a file and return its path and SHA-256."""
    number = 0

    def write(data: bytes, name: str | None = None) -> tuple[Path, str]:
        nonlocal number
        number += 1
        path = tmp_path / (name or f"archive-{number}")
        path.write_bytes(data)
        return path, sha256(data).hexdigest()

    return write


@pytest.fixture
def nothing_written(cache: Cache) -> Callable[[], None]:
    """Assert that the cache holds no object and no remains of one."""

    def check() -> None:
        found = [
            path
            for path in (cache.folder / "store.git" / "objects").rglob("*")
            if path.is_file()
        ]
        assert found == []
        assert not any(cache.folder.glob("tmp*"))

    return check


@dataclass
class Route:
    """What the server answers at a path."""

    data: bytes = b""
    content_type: str = "application/octet-stream"
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    ranges: bool = True
    break_after: list[int] = field(default_factory=list)
    failures: list[int] = field(default_factory=list)


class Index:
    """A package index on the loopback interface."""

    def __init__(self) -> None:
        self.routes: dict[str, Route] = {}
        self.requests: list[tuple[str, dict[str, str]]] = []
        self.credentials: tuple[str, str] | None = None
        index = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, format: str, *args: object) -> None:
                pass

            def do_GET(self) -> None:
                index.answer(self)

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.port = self.server.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.01,))
        self.thread.start()

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        headers = {name.lower(): value for name, value in request.headers.items()}
        self.requests.append((request.path, headers))
        if self.credentials is not None:
            text = base64.b64encode(":".join(self.credentials).encode()).decode()
            if headers.get("authorization") != f"Basic {text}":
                request.send_response(401)
                request.send_header("Content-Length", "0")
                request.end_headers()
                return
        route = self.routes.get(request.path.partition("?")[0])
        if route is None:
            request.send_response(404)
            request.send_header("Content-Length", "0")
            request.end_headers()
            return
        status, data = route.status, route.data
        if route.failures:
            status, data = route.failures.pop(0), b""
        extra = dict(route.headers)
        wanted = headers.get("range")
        if wanted and route.ranges and status == 200:
            start = int(wanted.removeprefix("bytes=").removesuffix("-"))
            if start >= len(data):
                status, data = 416, b""
            else:
                extra["Content-Range"] = f"bytes {start}-{len(data) - 1}/{len(data)}"
                status, data = 206, data[start:]
        request.send_response(status)
        request.send_header("Content-Type", route.content_type)
        request.send_header("Content-Length", str(len(data)))
        for name, value in extra.items():
            request.send_header(name, value)
        request.end_headers()
        if route.break_after:
            data = data[: route.break_after.pop(0)]
            request.close_connection = True
        request.wfile.write(data)

    def page(self, project: str, *links: str) -> None:
        body = "<!DOCTYPE html><html><body>" + "".join(
            f'<a href="{link}">x</a><br>' for link in links
        )
        self.routes[f"/simple/{project}/"] = Route(
            body.encode(), "text/html; charset=utf-8"
        )


@pytest.fixture
def index() -> Iterator[Index]:
    server = Index()
    yield server
    server.close()


@pytest.fixture
def other_index() -> Iterator[Index]:
    server = Index()
    yield server
    server.close()


@pytest.fixture
def new_route() -> type[Route]:
    return Route
