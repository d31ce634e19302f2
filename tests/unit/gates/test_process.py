"""Commands under limits, as real processes: whatever they do, none is left."""

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from gating import processes_of
from support import program_environment, until

from stackctl.gates import process
from stackctl.gates.process import Stopped, Work, run

MIB = 1 << 20


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(process, "GRACE", 0.3)


def work(tmp_path: Path, script: str, **changes) -> Work:
    values = {
        "command": [sys.executable, "-I", "-c", script, str(tmp_path)],
        "env": {"PATH": os.environ["PATH"], "MARK": "x"},
        "cwd": tmp_path,
        "stdout": tmp_path / "out",
        "stderr": tmp_path / "err",
        "seconds": 600,
        "memory": 1024 * MIB,
        "data": 0,
        "output": MIB,
        **changes,
    }
    return Work(**values)


FORKS = """
import os, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
code = (
    "import signal, time; signal.signal(15, 1);"
    "open('deep', 'w').close(); time.sleep(600)"
)
grandchild = (
    "import subprocess, sys, time;"
    f"subprocess.Popen([sys.executable, '-I', '-c', {code!r}, sys.argv[1]],"
    "start_new_session=True); time.sleep(600)"
)
subprocess.Popen([sys.executable, "-I", "-c", grandchild, sys.argv[1]],
                 start_new_session=True)
while not os.path.exists("deep"):
    time.sleep(0.02)
open("ready", "w").close()
"""

# The same at once: two shells of sessions of their own, and no Python has to start.
FORKS_AT_ONCE = """
trap "" TERM
setsid sh -c 'setsid sh -c ": > ready; sleep 600; :" "$0" & sleep 600; :' "$0" &
sleep 600; :
"""


def test_a_command_runs_with_its_environment_and_nothing_else(tmp_path):
    script = "import os, json; print(json.dumps(dict(os.environ)))"
    done = run(work(tmp_path, script))
    assert (done.exit, done.ended, done.left) == (0, None, 0)
    assert done.ns > 0 and done.cpu_ns > 0
    found = json.loads((tmp_path / "out").read_text())
    found.pop("LC_CTYPE", None)  # Python's own, for a C locale
    assert found == {"PATH": os.environ["PATH"], "MARK": "x"}


def test_exit_codes_and_signals_are_told(tmp_path):
    failed = run(work(tmp_path, "import sys; sys.exit(3)"))
    assert failed.exit == 3 and failed.problems(work(tmp_path, "")) == []
    killed = run(work(tmp_path, "import os; os.kill(os.getpid(), 9)"))
    assert killed.exit == -9
    assert killed.problems(work(tmp_path, "")) == ["it was killed by signal 9"]


def test_what_cannot_start_is_told(tmp_path):
    done = run(work(tmp_path, "", command=[str(tmp_path / "nothing")]))
    assert done.exit is None and "No such file" in done.error


def test_time_is_limited_also_for_who_does_not_listen(tmp_path):
    command = ["sh", "-c", FORKS_AT_ONCE, str(tmp_path)]
    limited = work(tmp_path, "", command=command, seconds=3)
    done = run(limited)
    assert done.ended == "time" and (tmp_path / "ready").exists()
    assert done.problems(limited) == ["it ran longer than 3 s and was ended"]
    assert processes_of(tmp_path) == []


def test_processes_left_behind_are_counted_and_ended(tmp_path):
    done = run(work(tmp_path, FORKS))
    assert (done.exit, done.ended, done.left) == (0, None, 2)
    assert processes_of(tmp_path) == []


def test_memory_of_all_processes_counts(tmp_path):
    script = """
import subprocess, sys, time
code = "x = b'x' * (60 << 20); import time; time.sleep(600)"
for _ in range(3):
    subprocess.Popen([sys.executable, "-I", "-c", code, sys.argv[1]])
time.sleep(600)
"""
    done = run(work(tmp_path, script, memory=150 * MIB))
    assert done.ended == "memory" and done.memory > 150 * MIB
    assert processes_of(tmp_path) == []


def test_one_large_allocation_fails_at_once(tmp_path):
    script = "b'x' * (1 << 34)"
    done = run(work(tmp_path, script, data=512 * MIB))
    assert done.exit == 1 and "MemoryError" in (tmp_path / "err").read_text()


def test_output_is_limited(tmp_path):
    done = run(work(tmp_path, "while True: print('x' * 9999)"))
    assert done.ended == "output"


def test_another_thread_can_stop_it(tmp_path):
    stop = threading.Event()

    def when_ready() -> None:
        until((tmp_path / "ready").exists)
        stop.set()

    thread = threading.Thread(target=when_ready)
    thread.start()
    with pytest.raises(Stopped):
        run(work(tmp_path, FORKS + "time.sleep(600)"), stop)
    thread.join()
    assert processes_of(tmp_path) == []


PROGRAM = """
import sys
from pathlib import Path
from stackctl.gates import process
process.GRACE = 0.3
folder = Path(sys.argv[1])
process.run(process.Work(
    [sys.executable, "-I", "-c", (folder / "script").read_text(), str(folder)],
    {}, folder, folder / "out", folder / "err", 600, 1 << 30, 0, 1 << 20))
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL, signal.SIGTERM])
def test_no_process_survives_who_started_it(tmp_path, number):
    (tmp_path / "script").write_text(FORKS + "time.sleep(600)")
    parent = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(tmp_path)],
        stderr=subprocess.DEVNULL,
        # Ctrl-C is ignored in what a shell starts in the background, and stays so.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    until((tmp_path / "ready").exists, parent)
    parent.send_signal(number)
    assert parent.wait(300) != 0
    until(lambda: not processes_of(tmp_path))


LISTS = """
import subprocess, sys, time
from pathlib import Path
from stackctl.gates import launch
launch._prctl(launch._SET_CHILD_SUBREAPER, 1)
child = subprocess.Popen(["sh", "-c", *sys.argv[1:]])
# Three shells, and the sleep that each of them gets to.
while len(launch._listed()) < 6:
    time.sleep(0.02)
listed, every = launch._listed(), launch._family()
launch._end_all(child.pid, None, 0.0)
child.returncode = 0  # waited for above
print(child.pid in listed, set(listed) == set(every), len(launch._family()))
"""


def test_the_kernel_s_lists_show_the_same_processes(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", LISTS, FORKS_AT_ONCE, str(tmp_path)],
        cwd=tmp_path,
        env=program_environment(),
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.stdout == "True True 0\n", done.stderr
    assert processes_of(tmp_path) == []


def test_foreign_load_is_not_our_own(tmp_path):
    script = (
        "import time\nt = time.monotonic()\n"
        "while time.monotonic() < t + 2 or time.process_time() < 0.2: pass"
    )
    done = run(work(tmp_path, script))
    assert done.cpu_ns > 10**8
    # Not a statement about this machine's load: only that it is a number of CPUs.
    assert done.load_mean is not None and done.load_peak is not None
    assert 0 <= done.load_mean <= done.load_peak <= (os.cpu_count() or 1) * 1.5
