# SPDX-License-Identifier: Apache-2.0
"""What runs inside Ray on a node: it starts a process of ours and passes messages on.

Ray sends this module by value, so it stands alone: the standard library and Ray. The
process that does the work is another one, for two reasons. It runs exactly the code
that was sent, whatever the node has installed. And when Ray ends a worker it kills the
worker's children at once; units are its grandchildren, which end in order when their
input closes.
"""

import contextlib
import fcntl
import hashlib
import io
import json
import os
import queue
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

START = (
    "import sys; sys.path.insert(0, sys.argv[1]); "
    "from stackctl.gates.cluster.node import main; main()"
)

END_SECONDS = 20.0
"""How long our process may take to end its units."""

KEEP_SECONDS = 30 * 24 * 3600.0
"""How long code and files of projects are kept on a node without being used."""

_EPOCH = (1980, 1, 1, 0, 0, 0)


def digest_of(files: Mapping[str, bytes]) -> str:
    """Return the digest of files by their names and contents."""
    total = hashlib.sha256()
    for name in sorted(files):
        line = f"{hashlib.sha256(files[name]).hexdigest()} {name}\0"
        total.update(line.encode("utf-8", "surrogateescape"))
    return total.hexdigest()


def pack(files: Mapping[str, bytes]) -> bytes:
    """Return files as an archive, always the same."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for name in sorted(files):
            info = zipfile.ZipInfo(name, _EPOCH)
            info.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(info, files[name])
    return out.getvalue()


def read_folder(folder: str) -> dict[str, bytes]:
    """Return the files below a folder; bytecode is none of them."""
    found = {}
    for top, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if name != "__pycache__"]
        for name in names:
            path = os.path.join(top, name)  # noqa: PTH118
            inside = os.path.relpath(path, folder)
            with open(path, "rb") as file:  # noqa: PTH123
                found[inside.replace(os.sep, "/")] = file.read()
    return found


def unpack(data: bytes, digest: str, target: str) -> None:
    """Write an archive of `pack` as a folder, whole or not at all.

    Args:
        data: The archive.
        digest: What `digest_of` must say of it.
        target: The folder; must not exist.

    Raises:
        ValueError: It is another archive, or a name leads out of the folder.
    """
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    if digest_of(files) != digest:
        raise ValueError(f"what arrived is not {digest}")
    parent = os.path.dirname(target)
    os.makedirs(parent, exist_ok=True)
    made = tempfile.mkdtemp(prefix=".new-", dir=parent)
    try:
        for name, content in files.items():
            parts = name.split("/")
            if name.startswith("/") or {"", ".", ".."} & set(parts):
                raise ValueError(f"{name} leads out of the folder")
            path = os.path.join(made, *parts)  # noqa: PTH118
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "xb") as file:  # noqa: PTH123
                file.write(content)
        os.rename(made, target)
    finally:
        shutil.rmtree(made, ignore_errors=True)


def keep_folder(data: Callable[[], bytes], digest: str, target: str) -> int:
    """Make sure that a folder is there with just the files of a digest.

    Args:
        data: Fetches the archive; called only where the folder is not there.
        digest: Its digest.
        target: The folder.

    Returns:
        How many bytes were fetched.
    """
    with held(f"{target}.lock"):
        if Path(target).is_dir():
            if digest_of(read_folder(target)) == digest:
                os.utime(target)
                return 0
            shutil.rmtree(target)
        found = data()
        unpack(found, digest, target)
        _forget_old(Path(target).parent)
        return len(found)


def _forget_old(folder: Path) -> None:
    """Remove the folders that no run has used for long."""
    for path in folder.iterdir():
        with contextlib.suppress(OSError):
            if time.time() - path.stat().st_mtime > KEEP_SECONDS and path.is_dir():
                shutil.rmtree(path)


@contextlib.contextmanager
def held(path: str) -> Iterator[None]:
    """Hold a lock against all processes of this node."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def cache_folder() -> str:
    """Return the node's cache folder, by the same rule as everywhere."""
    explicit = os.environ.get("STACKCTL_CACHE_DIR")
    if explicit:
        return str(Path(explicit).expanduser().absolute())
    xdg = os.environ.get("XDG_CACHE_HOME", "")
    top = Path(xdg) if xdg.startswith("/") else Path.home() / ".cache"
    return str(top / "stackctl")


class Shim:
    """The actor of one run on its node; it holds the run's CPUs and GPUs."""

    def __init__(self) -> None:
        os.makedirs(cache_folder(), 0o700, exist_ok=True)
        self._top = os.path.join(cache_folder(), "nodes")  # noqa: PTH118
        self._lock = threading.Lock()
        self._answers: dict[int, queue.SimpleQueue[dict[str, Any]]] = {}
        self._number = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._messages: Any = None
        self._ended = False

    def where(self) -> str:
        """Return the id of the node that this came to be on."""
        import ray

        node: str = ray.get_runtime_context().get_node_id()
        return node

    def start(self, digest: str, code: list[Any], hello: dict[str, Any]) -> Any:
        """Start our process with the code that was sent.

        Args:
            digest: Digest of the code.
            code: A reference to it, fetched only where it is not there.
            hello: Its first request.

        Returns:
            How many bytes of code were fetched, and the process's answer.
        """
        import ray

        folder = os.path.join(self._top, "code", digest)  # noqa: PTH118
        fetched = keep_folder(lambda: ray.get(code[0]), digest, folder)
        self._messages = tempfile.TemporaryFile()  # noqa: SIM115
        self._process = subprocess.Popen(
            [sys.executable, "-s", "-c", START, folder],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._messages,
            cwd="/",
            start_new_session=True,
        )
        threading.Thread(target=self._listen, daemon=True).start()
        gpus = [str(number) for number in ray.get_gpu_ids()]
        told = self.ask({**hello, "cache": cache_folder(), "gpus": gpus})
        return fetched, told

    def _listen(self) -> None:
        assert self._process is not None and self._process.stdout is not None
        for line in self._process.stdout:
            answer = json.loads(line)
            waiting = self._answers.pop(answer.pop("id"), None)
            if waiting is not None:
                waiting.put(answer)
        with self._lock:
            self._ended = True
            left, self._answers = self._answers, {}
        for waiting in left.values():
            waiting.put(self._gone())

    def _gone(self) -> dict[str, Any]:
        assert self._process is not None
        code = self._process.wait()
        self._messages.seek(0)
        last = self._messages.read()[-2000:].decode("utf-8", "replace").strip()
        why = "".join(last.splitlines()[-1:]) or f"it ended with {code}"
        return {"gone": why}

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """Pass a request on and return the answer."""
        answer: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        assert self._process is not None and self._process.stdin is not None
        with self._lock:
            if self._ended:
                return self._gone()
            self._number += 1
            self._answers[self._number] = answer
            line = json.dumps({**request, "id": self._number}) + "\n"
            with contextlib.suppress(BrokenPipeError, ValueError):
                self._process.stdin.write(line.encode())
                self._process.stdin.flush()
        return answer.get()

    def give(self, request: dict[str, Any], data: list[Any]) -> Any:
        """Have something taken into the node's store, unless it is there.

        Args:
            request: What it is: `kind` and `digest`.
            data: A reference to it, fetched only where it is not there.

        Returns:
            How many bytes were fetched, and the process's answer.
        """
        import ray

        name = f"{request['kind']}-{request['digest']}.lock"
        with held(os.path.join(self._top, "locks", name)):  # noqa: PTH118
            found = self.ask({**request, "do": "have"})
            if found.get("have") or "have" not in found:
                return 0, found
            content = ray.get(data[0])
            with tempfile.NamedTemporaryFile(dir=self._top) as file:
                file.write(content)
                file.flush()
                taken = self.ask({**request, "do": "take", "file": file.name})
            return len(content), taken

    def unit(self, request: dict[str, Any]) -> tuple[dict[str, Any], bytes]:
        """Run a unit; return its answer and an archive of its output."""
        answer = self.ask({**request, "do": "unit"})
        path = answer.pop("output", None)
        if path is None:
            return answer, b""
        with open(path, "rb") as file:  # noqa: PTH123
            data = file.read()
        os.unlink(path)
        return answer, data

    def stop(self) -> None:
        """End our process and everything that it started."""
        process = self._process
        if process is None or process.stdin is None:
            return
        with contextlib.suppress(OSError, ValueError):
            process.stdin.close()
        try:
            process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
