# SPDX-License-Identifier: Apache-2.0
"""Runs one command and outlives none of its processes: `process.py` starts this file.

A process of its own, because only a process can be the one that orphans fall to: as
"child subreaper" it inherits every grandchild whose parent ended, also those that left
the session, and so can end all of them. It ends them when the command is done, when a
limit is passed, and when its standard input closes, which happens too when the program
that started it is killed. Only the standard library is used, and no path of ours.

It reads one line of JSON from standard input (`command`, `env`, `cwd`, `stdout`,
`stderr`, `seconds`, `memory`, `data`, `output`, `grace`) and prints one line: `exit`,
`ns`, `ended` (why it was ended, or null), `left` (processes that outlived the command),
`memory` (peak, bytes), `cpu_ns`, `load_peak` and `load_mean` (foreign busy CPUs).
"""

import contextlib
import ctypes
import json
import os
import resource
import select
import signal
import subprocess
import sys
import time

_SET_CHILD_SUBREAPER = 36
_SET_PDEATHSIG = 1
_TICK = 0.05
_WINDOW = 1.0
_PAGE = os.sysconf("SC_PAGE_SIZE")
_CLOCK = os.sysconf("SC_CLK_TCK")


def _prctl(option: int, value: int) -> None:
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def _process(pid: int) -> tuple[int, int, int]:
    """Return parent, resident pages and CPU ticks of a process."""
    with open(f"/proc/{pid}/stat", "rb") as file:  # noqa: PTH123
        # The name in brackets may hold brackets and spaces.
        cells = file.read().rpartition(b")")[2].split()
    # With those of children that were waited for.
    ticks = sum(int(cell) for cell in cells[11:15])
    return int(cells[1]), int(cells[21]), ticks


def _processes() -> dict[int, tuple[int, int, int]]:
    """Return the same of every process by its number."""
    found = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError):
                found[int(name)] = _process(int(name))
    return found


def _family() -> dict[int, tuple[int, int]]:
    """Return resident pages and CPU ticks of our descendants."""
    try:
        every = _processes()
    except OSError:  # no /proc: only the session can be ended
        return {}
    children: dict[int, list[int]] = {}
    for pid, (parent, _, _) in every.items():
        children.setdefault(parent, []).append(pid)
    family = {}
    queue = list(children.get(os.getpid(), ()))
    for pid in queue:
        family[pid] = every[pid][1:]
        queue += children.get(pid, ())
    return family


def _listed() -> dict[int, tuple[int, int]]:
    """Return our descendants as the kernel lists them, process by process.

    Other processes of the machine cost nothing then: measured with 94 of them, a look
    takes 0.04 ms in place of 4 ms, 20 times a second beside what is timed. A list may
    lack a process while another one of it ends: it is for looking, not for ending them.
    """
    family: dict[int, tuple[int, int]] = {}
    queue = [os.getpid()]
    for pid in queue:
        try:
            for task in os.listdir(f"/proc/{pid}/task"):
                path = f"/proc/{pid}/task/{task}/children"
                with open(path, "rb") as file:  # noqa: PTH123
                    queue += map(int, file.read().split())
            if pid != os.getpid():
                family[pid] = _process(pid)[1:]
        except OSError:  # it has ended; or the kernel has no such lists
            if pid == os.getpid():
                return _family()
    return family


def _busy() -> float | None:
    """Return the CPU seconds that all processes of the machine have used."""
    try:
        with open("/proc/stat", "rb") as file:  # noqa: PTH123
            cells = [int(cell) for cell in file.readline().split()[1:9]]
    except (OSError, ValueError):
        return None
    return (sum(cells) - cells[3] - cells[4]) / _CLOCK


class _Load:
    """Foreign load: what the machine did beside us, in busy CPUs."""

    def __init__(self) -> None:
        self.peak: float | None = None
        self.spent = 0.0
        self.foreign = 0.0
        self.last = (time.monotonic(), _busy(), 0.0)

    def take(self, own: float, force: bool = False) -> None:
        """Look at the clock; `own` is the CPU seconds of our processes so far."""
        at, busy, before = self.last
        now = time.monotonic()
        if now - at < (0.2 if force else _WINDOW) or busy is None:
            return
        current = _busy()
        if current is None:
            return
        self.last = (now, current, own)
        load = max(0.0, (current - busy - (own - before)) / (now - at))
        self.peak = max(self.peak or 0.0, load)
        self.spent += now - at
        self.foreign += max(0.0, current - busy - (own - before))

    @property
    def mean(self) -> float | None:
        """The mean over the whole run."""
        return self.foreign / self.spent if self.spent else None


def _own_seconds(family: dict[int, tuple[int, int]]) -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    ours = resource.getrusage(resource.RUSAGE_SELF)
    alive = sum(ticks for _, ticks in family.values()) / _CLOCK
    return alive + used.ru_utime + used.ru_stime + ours.ru_utime + ours.ru_stime


def _signal_all(pids: "list[int]", session: int, number: int) -> None:
    for pid in pids:
        with contextlib.suppress(OSError):
            os.kill(pid, number)
    with contextlib.suppress(OSError):
        os.killpg(session, number)


def _reap(wanted: int) -> int | None:
    """Wait for all that ended; return the status of the wanted one, if it did."""
    status = None
    while True:
        try:
            pid, found = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return status
        if pid == 0:
            return status
        if pid == wanted:
            status = found


def _end_all(child: int, status: int | None, grace: float) -> int | None:
    """End every descendant: first politely, then not."""
    begun = time.monotonic()
    asked = False
    while True:
        found = _reap(child)
        status = found if status is None else status
        family = list(_family())
        alive = family or (status is None and [child])
        if not alive:
            return status
        late = time.monotonic() - begun > grace
        if late or not asked:
            # Stopped ones would not hear the polite word.
            _signal_all(family, child, signal.SIGKILL if late else signal.SIGTERM)
            _signal_all(family, child, signal.SIGCONT)
            asked = True
        time.sleep(0.02)


def _left_behind() -> int:
    """Return how many processes outlive the command, beyond a moment to end."""
    limit = time.monotonic() + 0.5
    while (alive := len(_family())) and time.monotonic() < limit:
        _reap(-1)
        time.sleep(0.01)
    return alive


def _prepare(data: int) -> None:
    """What the command's process sets for itself before it becomes the command."""
    _prctl(_SET_PDEATHSIG, signal.SIGKILL)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE):
        signal.signal(number, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if data:
        resource.setrlimit(resource.RLIMIT_DATA, (data, data))


def _watch(spec: dict[str, "object"], child: int) -> dict[str, "object"]:
    """Wait for the command, or for a reason to end it."""
    load = _Load()
    begun = time.monotonic()
    peak = 0
    ended = None
    status = None
    own = 0.0
    while ended is None:
        readable, _, _ = select.select([0], [], [], _TICK)
        if readable and not os.read(0, 4096):
            ended = "stopped"
        status = _reap(child)
        if status is not None:
            break
        family = _listed()
        memory = sum(pages for pages, _ in family.values()) * _PAGE
        own = max(own, _own_seconds(family))
        load.take(own)
        peak = max(peak, memory)
        if time.monotonic() - begun > spec["seconds"]:  # type: ignore[operator]
            ended = "time"
        elif memory > spec["memory"]:  # type: ignore[operator]
            ended = "memory"
        else:
            for name in ("stdout", "stderr"):
                with contextlib.suppress(OSError):
                    size = os.stat(str(spec[name])).st_size
                    if size > spec["output"]:  # type: ignore[operator]
                        ended = "output"
    ns = time.monotonic_ns()
    left = _left_behind() if status is not None else 0
    status = _end_all(child, status, float(spec["grace"]))  # type: ignore[arg-type]
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = used.ru_utime + used.ru_stime
    load.take(max(own, seconds), force=True)
    return {
        "exit": None if status is None else os.waitstatus_to_exitcode(status),
        "ended": ended,
        "left": left,
        "memory": peak,
        "cpu_ns": int(seconds * 1e9),
        "load_peak": load.peak,
        "load_mean": load.mean,
        "finished_ns": ns,
    }


def main() -> None:
    """Run what standard input describes."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        # Ended is by closing standard input, so that nothing is left behind.
        signal.signal(number, signal.SIG_IGN)
    _prctl(_SET_CHILD_SUBREAPER, 1)
    line = b""
    while not line.endswith(b"\n"):
        part = os.read(0, 1 << 16)
        if not part:
            return
        line += part
    spec = json.loads(line)
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
    outputs = [os.open(spec[name], flags, 0o600) for name in ("stdout", "stderr")]
    begun = time.monotonic_ns()
    try:
        child = subprocess.Popen(
            spec["command"],
            stdin=subprocess.DEVNULL,
            stdout=outputs[0],
            stderr=outputs[1],
            cwd=spec["cwd"],
            env=spec["env"],
            start_new_session=True,
            preexec_fn=lambda: _prepare(spec["data"]),
        )
    except (OSError, subprocess.SubprocessError) as error:
        answer: dict[str, object] = {"error": str(getattr(error, "strerror", error))}
    else:
        answer = _watch(spec, child.pid)
        child.returncode = 0  # waited for above
        answer["ns"] = int(answer.pop("finished_ns")) - begun  # type: ignore[call-overload]
    sys.stdout.write(json.dumps(answer) + "\n")


if __name__ == "__main__":
    main()
