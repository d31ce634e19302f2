# SPDX-License-Identifier: Apache-2.0
"""Trying a tree by running the user's command in it, as `git bisect run` does."""

import os
import shlex
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path
from typing import Protocol

from stackctl.bisect.model import AbortedError, Answer, Probe
from stackctl.errors import InputError, UsageError
from stackctl.fsutil import read_regular

SKIP = 125
"""Exit status that says: this tree cannot be tried."""

CANNOT_RUN = (126, 127)
"""Exit statuses of a shell that cannot run or find the command."""

GRACE = 2.0
"""How long a process group may take to end before it is killed: seconds."""

_MAX_SCRIPT = 64 << 20
_OPERATORS = frozenset(";|&<>")
"""After these words of a shell may be files that are written."""

_REPOSITORY = (
    "GIT_ALTERNATE_OBJECT_DIRECTORIES", "GIT_COMMON_DIR", "GIT_DIR", "GIT_INDEX_FILE",
    "GIT_NAMESPACE", "GIT_OBJECT_DIRECTORY", "GIT_PREFIX", "GIT_WORK_TREE",
)  # fmt: skip


class CancelledError(Exception):
    """The run was ended because nobody waits for its answer any more."""


class Control:
    """Lets another thread end a run, with all the processes that it started."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._group: int | None = None
        self._timer: threading.Timer | None = None
        self._stop: Callable[[], object] | None = None
        self.cancelled = False

    def cancel(self) -> None:
        """End the run, and do not start it where it has not started."""
        with self._lock:
            self.cancelled = True
            self._end()
            if self._stop is not None:
                self._stop()

    @contextmanager
    def calling(self, stop: Callable[[], object]) -> Iterator[None]:
        """Call something where the run is to end, while this context lasts.

        Args:
            stop: Ends the run; returns at once.
        """
        with self._lock:
            self._stop = stop
            if self.cancelled:
                stop()
        try:
            yield
        finally:
            with self._lock:
                self._stop = None

    def holds(self, group: int) -> None:
        """Take note of the process group that is running."""
        with self._lock:
            self._group = group
            if self.cancelled:
                self._end()

    def end(self) -> None:
        """End the process group, first gently."""
        with self._lock:
            self._end()

    def _end(self) -> None:
        if self._group is not None and self._timer is None:
            _signal(self._group, signal.SIGTERM)
            self._timer = threading.Timer(GRACE, self._kill)
            self._timer.daemon = True
            self._timer.start()

    def _kill(self) -> None:
        with self._lock:
            if self._group is not None:
                _signal(self._group, signal.SIGKILL)

    def release(self) -> None:
        """Kill what the command left running; its first process has ended."""
        with self._lock:
            if self._group is not None:
                _signal(self._group, signal.SIGKILL)
            self._group = None
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None


def _signal(group: int, number: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)


class Evaluator(Protocol):
    """Tries one tree that lies in a folder."""

    @property
    def identity(self) -> Mapping[str, object]:
        """What is asked, in plain JSON: answers count only for the same question."""

    def evaluate(
        self, folder: Path, probe: Probe, control: Control, output: Path, worker: int
    ) -> Answer:
        """Try a tree.

        Args:
            folder: Holds the tree; may be changed.
            probe: What it is.
            control: By which another thread can end this.
            output: File to write what is printed to.
            worker: Number of the worker, from 0.

        Raises:
            AbortedError: The whole search is to stop.
            CancelledError: It was ended by `control`.
        """


class CommandEvaluator:
    """Runs a command line by the shell, in the folder of the tree.

    Args:
        command: The command line.
        timeout: After so many seconds the run is ended and counts as bad; None for no
            limit.
    """

    def __init__(self, command: str, timeout: float | None = None) -> None:
        if not command.strip():
            raise UsageError("the command of --run is empty")
        self.command = command
        self.timeout = timeout
        self._identity = _identity(command, timeout)

    @property
    def identity(self) -> Mapping[str, object]:
        """The command, the limit, and digests of the scripts that it names."""
        return self._identity

    def evaluate(
        self, folder: Path, probe: Probe, control: Control, output: Path, worker: int
    ) -> Answer:
        """Run the command in the tree."""
        others = _processes()
        started = time.perf_counter_ns()
        with output.open("wb") as sink:
            process = subprocess.Popen(
                ["/bin/sh", "-c", self.command],
                cwd=folder,
                env=environment(folder, probe, worker),
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        late = threading.Event()
        timer = None
        control.holds(process.pid)
        if self.timeout is not None:

            def too_late() -> None:
                late.set()
                control.end()

            timer = threading.Timer(self.timeout, too_late)
            timer.daemon = True
            timer.start()
        try:
            # Not reaped yet, so the number of its group is still taken.
            os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        finally:
            if timer is not None:
                timer.cancel()
            control.release()
            end_strays(folder, others)
            status = process.wait()
        ns = time.perf_counter_ns() - started
        if control.cancelled:
            raise CancelledError
        if late.is_set():
            why = f"ran longer than {self.timeout:g} s"
            return Answer("bad", None, ns, why, str(output))
        if status < 0 or status >= 128:
            raise _aborted(self.command, status, probe, output)
        if status == SKIP:
            return Answer("skip", status, ns, output=str(output))
        verdict = "good" if status == 0 else "bad"
        return Answer(verdict, status, ns, output=str(output))  # type: ignore[arg-type]


def end_strays(folder: Path, others: Collection[str] = ()) -> None:
    """Kill the processes of a run that have left its process group, and wait for them.

    A daemon that goes on writing would blame the next tree for it. Its environment
    still tells where it comes from; where the system does not show that, nothing is
    done.

    Args:
        folder: The working folder of the run, which no other run has.
        others: Numbers of processes that were there before, which are not looked at.
    """
    mark = b"STACKCTL_FOLDER=" + os.fsencode(folder)
    limit = time.monotonic() + GRACE
    while strays := _marked(mark, others):
        for number in strays:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(number, signal.SIGKILL)
        if time.monotonic() > limit:
            return
        time.sleep(0.001)


def _processes() -> frozenset[str]:
    """Return the numbers of all processes; none where the system has no /proc."""
    try:
        return frozenset(name for name in os.listdir("/proc") if name.isdigit())
    except OSError:
        return frozenset()


def _marked(mark: bytes, others: Collection[str]) -> list[int]:
    """Return the processes that have a variable; ended ones show none."""
    found = []
    for name in _processes().difference(others):
        # Of another user, or ended meanwhile.
        with suppress(OSError):
            if mark in Path("/proc", name, "environ").read_bytes().split(b"\0"):
                found.append(int(name))
    return found


def _aborted(command: str, status: int, probe: Probe, output: Path) -> AbortedError:
    number = -status if status < 0 else status - 128
    try:
        name = signal.Signals(number).name
    except ValueError:
        name = ""
    how = f"exit status {status}" if status >= 0 else f"signal {number}"
    if name:
        how += f" ({name})" if status < 0 else f" (as after {name})"
    return AbortedError(
        f"`{command}` ended with {how} at {probe.name}: the search stops",
        hint="1 to 127 say bad, 125 says skip; run the search again to go on where it "
        f"stopped; output: {output}",
        where={"tree": probe.tree, "place": probe.name, "status": status},
    )


def environment(folder: Path, probe: Probe, worker: int) -> dict[str, str]:
    """Return the environment of a command: the caller's, and what is being tried.

    Args:
        folder: Holds the tree.
        probe: What it is.
        worker: Number of the worker.
    """
    # A test runs with what its user set up; only a repository of the caller's would
    # be mistaken for one of the tree.
    variables = {k: v for k, v in os.environ.items() if k not in _REPOSITORY}
    variables |= {
        "PWD": str(folder),
        "STACKCTL_TREE": probe.tree,
        "STACKCTL_COMPOSITION": probe.composition,
        "STACKCTL_COMMIT": probe.commit,
        "STACKCTL_PLACE": probe.name,
        "STACKCTL_SETS": " ".join(probe.sets),
        "STACKCTL_FOLDER": str(folder),
        "STACKCTL_WORKER": str(worker),
    }
    return variables


def _identity(command: str, timeout: float | None) -> dict[str, object]:
    """Return what decides the answers: the command, and the script that it runs.

    That is the first file that is no compiled program: `/abs/check.sh`, `python
    /abs/check.py`, `timeout 9 /usr/bin/python3 /abs/check.py`. Further ones may be
    files that the command writes, and an interrupted search must find its log again.
    """
    try:
        words = shlex.split(command)
    except ValueError:
        words = []
    files = {}
    for word in words:
        if _OPERATORS & set(word):
            break
        path = Path(word)
        if path.is_absolute() and path.is_file():
            with suppress(InputError):
                data = read_regular(path, _MAX_SCRIPT)
                files[word] = sha256(data).hexdigest()
                if not data.startswith(b"\x7fELF"):
                    break
    return {"run": command, "timeout": timeout, "files": files}
