# SPDX-License-Identifier: Apache-2.0
"""Running one command under limits, with no process left behind.

The command runs below a small process of ours (`launch.py`), which ends everything it
started: at the end, past a limit, on Ctrl-C, and when stackctl itself is killed.
"""

import contextlib
import json
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

LAUNCHER: Final = Path(__file__).with_name("launch.py")

GRACE: Final = 3.0
"""Seconds between the polite and the final signal."""

Ended = Literal["time", "memory", "output", "stopped"]


class Stopped(Exception):  # noqa: N818 - no error: the user wanted it
    """The run was stopped from outside, and the command has been ended."""


@dataclass(frozen=True, slots=True)
class Work:
    """What to run, and within which limits.

    Attributes:
        command: Program and arguments.
        env: Its whole environment.
        cwd: Its working folder.
        stdout: File that gets its output.
        stderr: File that gets its messages.
        seconds: Wall-clock limit.
        memory: Limit of the resident memory of all its processes together, bytes.
        data: Limit of one process's private memory, bytes; 0 for none. With it an
            allocation fails at once; GPU drivers reserve more than they use.
        output: Limit of each output file, bytes.
    """

    command: Sequence[str]
    env: Mapping[str, str]
    cwd: Path
    stdout: Path
    stderr: Path
    seconds: float
    memory: int
    data: int
    output: int


@dataclass(frozen=True, slots=True)
class Finished:
    """What became of it.

    Attributes:
        exit: Exit code; negative for a signal; None where it could not be told.
        ns: Wall-clock nanoseconds.
        ended: Which limit ended it; None where it ended itself.
        left: Processes that it left behind and that were ended.
        memory: Peak resident memory of all its processes together, bytes.
        cpu_ns: CPU nanoseconds of all its processes together.
        load_peak: Largest foreign load while it ran, busy CPUs; None if not known.
        load_mean: Mean foreign load.
        error: Why it could not be started, else empty.
    """

    exit: int | None
    ns: int
    ended: Ended | None
    left: int
    memory: int
    cpu_ns: int
    load_peak: float | None
    load_mean: float | None
    error: str = ""

    def problems(self, work: Work) -> list[str]:
        """Return what makes the run unusable, in words."""
        if self.error:
            return [f"it could not be started: {self.error}"]
        limits = {
            "time": f"it ran longer than {work.seconds:g} s and was ended",
            "memory": f"it used more than {work.memory >> 20:,} MiB and was ended",
            "output": f"it printed more than {work.output >> 20:,} MiB and was ended",
            "stopped": "it was stopped from outside",
        }
        if self.ended is not None:
            return [limits[self.ended]]
        if self.exit is not None and self.exit < 0:
            return [f"it was killed by signal {-self.exit}"]
        return []


def run(work: Work, stop: threading.Event | None = None) -> Finished:
    """Run a command to its end.

    Args:
        work: What to run.
        stop: Set by another thread to end it.

    Returns:
        What became of it.

    Raises:
        Stopped: `stop` was set; the command has been ended.
        KeyboardInterrupt: Ctrl-C; the command has been ended.
    """
    launcher = subprocess.Popen(
        [sys.executable, "-I", "-S", str(LAUNCHER)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        # Ctrl-C of a terminal goes to all of a group; this one ends in its own time.
        start_new_session=True,
    )
    assert launcher.stdin is not None
    spec = {
        "command": list(work.command),
        "env": dict(work.env),
        "cwd": str(work.cwd),
        "stdout": str(work.stdout),
        "stderr": str(work.stderr),
        "seconds": work.seconds,
        "memory": work.memory,
        "data": work.data,
        "output": work.output,
        "grace": GRACE,
    }
    assert launcher.stdout is not None
    assert launcher.stderr is not None
    out = errors = b""
    try:
        launcher.stdin.write(json.dumps(spec).encode() + b"\n")
        launcher.stdin.flush()
        out, errors = _wait(launcher, stop)
    except BrokenPipeError:
        out, errors = _wait(launcher, None)
    finally:
        # Closing its input is what ends the command.
        with contextlib.suppress(BrokenPipeError):
            launcher.stdin.close()
        if launcher.poll() is None:
            try:
                launcher.wait(GRACE + 10)
            except (subprocess.TimeoutExpired, KeyboardInterrupt):
                launcher.kill()
                launcher.wait()
        launcher.stdout.close()
        launcher.stderr.close()
    try:
        found = json.loads(out)
    except ValueError:
        last = errors.decode("utf-8", "replace").strip().splitlines()[-1:]
        why = "".join(last) or f"the launcher ended with {launcher.returncode}"
        found = {"error": why}
    if found.get("error"):
        return Finished(None, 0, None, 0, 0, 0, None, None, found["error"])
    finished = Finished(**found)
    if stop is not None and stop.is_set() and finished.ended == "stopped":
        raise Stopped
    return finished


def _wait(
    launcher: "subprocess.Popen[bytes]", stop: threading.Event | None
) -> tuple[bytes, bytes]:
    """Wait for the launcher without closing its input, unless to stop it."""
    assert launcher.stdin is not None
    assert launcher.stdout is not None
    assert launcher.stderr is not None
    while True:
        try:
            launcher.wait(0.2 if stop is not None else None)
            break
        except subprocess.TimeoutExpired:
            if stop is not None and stop.is_set() and not launcher.stdin.closed:
                launcher.stdin.close()
    # One short line each: they fit into the pipes.
    return launcher.stdout.read(), launcher.stderr.read()
