# SPDX-License-Identifier: Apache-2.0
"""Starts an arm's server from its command template, and ends it again."""

import asyncio
import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from string import Formatter
from typing import TYPE_CHECKING, Final

from stackctl.errors import InputError, UsageError
from stackctl.gates.last_words import SERVER_LOG, exit_words
from stackctl.gates.serving.page import fetch_page
from stackctl.scratch import scratch_folder

if TYPE_CHECKING:
    import httpx

GRACE_S: Final = 30.0
"""Seconds a server gets to end by itself."""

SHORT: Final = Path("/tmp")  # noqa: S108 - the folder made there is private
"""Where a server's temporary folder is made: the path of a socket in it may have 107
bytes, which the folder of a unit alone can be longer than."""

RUNNING_S: Final = 10.0
"""Seconds that a server which is said to run gets to answer."""

FIRST_PORT: Final = 20_000
"""The first port that a server is given."""

GIVEN_OUT: Final = Path("/proc/sys/net/ipv4/ip_local_port_range")
"""Tells which ports Linux gives to connections, and to who asks for any."""

NOTICE_S: Final = 2.0
"""Seconds after a fault within which it is seen that the server has ended."""


def fill(template: Sequence[str], values: Mapping[str, str | None]) -> list[str]:
    """Fill a command template.

    Args:
        template: Arguments with placeholders like `{tree}`; `{{` is a brace.
        values: What each placeholder stands for, None where the caller gave nothing.

    Returns:
        The command.

    Raises:
        UsageError: A placeholder has no value.
    """
    filled = []
    for argument in template:
        for _, name, _, _ in Formatter().parse(argument):
            if name is not None and values.get(name) is None:
                raise UsageError(
                    f"the server command needs {{{name}}}, which was not given",
                    hint=f"give it with --{name}",
                )
        filled.append(argument.format_map({k: v or "" for k, v in values.items()}))
    return filled


@contextmanager
def kept_port() -> Iterator[int]:
    """Yield a TCP port that nobody has, and that stays free for the server.

    A large server takes minutes to get to its port. Until then the system could give
    the port to any connection, or to who asks for any port, where it is one of those
    that it gives out; another run could choose it, where nothing tells that we have.

    Yields:
        The port; no other run of this machine is given it meanwhile.
    """
    for port in range(FIRST_PORT, _first_given_out()):
        with _chosen(port) as ours:
            if ours and _is_free(port):
                yield port
                return
    with socket.socket() as probe:  # the system gives out all of them, or all are used
        probe.bind(("127.0.0.1", 0))
        given: int = probe.getsockname()[1]
    yield given


def _first_given_out() -> int:
    """Return the first of the ports that the system itself gives out."""
    try:
        return int(GIVEN_OUT.read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return FIRST_PORT


@contextmanager
def _chosen(port: int) -> Iterator[bool]:
    """Tell other runs that a port is ours; yields False where it is one of theirs."""
    with socket.socket(socket.AF_UNIX) as kept:
        try:
            # A name without a file: it goes with the process, and is of the same
            # network as the port.
            kept.bind(f"\0stackctl-port-{port}")
            ours = True
        except OSError:
            ours = False
        yield ours


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True


class Server:
    """A started server.

    Attributes:
        port: Where it listens.
        log: File with its output.
    """

    def __init__(
        self, process: "subprocess.Popen[bytes]", port: int, log: Path
    ) -> None:
        self.port = port
        self.log = log
        self._process = process

    @property
    def exited(self) -> int | None:
        """Exit code, None while it runs."""
        return self._process.poll()

    def ended(self, when: str) -> str | None:
        """Say that it ended by itself, and what it said last; None where it runs.

        A moment is waited for that: connections break before its end is noticed.

        Args:
            when: While what, in words.
        """
        try:
            code = self._process.wait(NOTICE_S)
        except subprocess.TimeoutExpired:
            return None
        return exit_words(code, self.log, "the server", when)


@contextmanager
def started(
    template: Sequence[str], values: Mapping[str, str | None], folder: Path
) -> Iterator[Server]:
    """Start a server and end it at the end, with all its processes.

    Args:
        template: Its command.
        values: Of the placeholders but `{port}`.
        folder: Where `server.log` goes.

    Yields:
        The server; it may not be ready yet.
    """
    log = folder / SERVER_LOG
    keeper = [sys.executable, "-m", "stackctl.gates.serving.keeper", str(GRACE_S)]
    with kept_port() as port, scratch_folder(SHORT, "stackctl-server-") as temporary:
        command = fill(template, {**values, "port": str(port)})
        with log.open("wb") as output:
            process = subprocess.Popen(
                [*keeper, *command],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, "TMPDIR": str(temporary)},
            )
        assert process.stdin is not None
        try:
            yield Server(process, port, log)
        finally:
            process.stdin.close()
            process.wait()


async def ready(
    client: "httpx.AsyncClient", url: str, limit_s: float, server: Server | None
) -> None:
    """Wait until a server answers.

    Args:
        client: Connections to it.
        url: Address that answers 200 once it is ready.
        limit_s: Seconds to wait for a server that we started; one that is said to
            run gets a few seconds.
        server: The server where we started it: it may end before it is ready.

    Raises:
        InputError: It ended, or the time is over.
    """
    import httpx

    loop = asyncio.get_running_loop()
    if server is None:
        limit_s = min(limit_s, RUNNING_S)
    end = loop.time() + limit_s
    last = "no connection"
    while True:
        if server is not None and server.exited is not None:
            raise InputError(
                server.ended("before it was ready") or "",
                kind="server-ended",
                hint=f"its output is in {server.log}",
            )
        try:
            page = await fetch_page(client, url)
            if page.status == 200:
                return
            last = f"HTTP status {page.status}"
        except httpx.HTTPError as error:
            last = type(error).__name__
        if loop.time() >= end:
            raise InputError(
                f"the server was not ready within {limit_s:g} s ({last})",
                kind="server-not-ready",
                hint="raise `ready_seconds`, or look at the server's output"
                if server is not None
                else "check --base-url, and that the server runs",
            )
        await asyncio.sleep(0.2)
