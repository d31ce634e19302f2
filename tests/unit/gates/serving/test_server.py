# SPDX-License-Identifier: Apache-2.0
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from stackctl.errors import UsageError
from stackctl.gates.serving.server import fill, started

# A server with a child, both deaf to SIGTERM; it writes both process ids.
STUBBORN = """
import os, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
with open(sys.argv[1] + ".part", "w") as file:
    file.write(f"{os.getpid()} {child.pid}")
os.rename(sys.argv[1] + ".part", sys.argv[1])
time.sleep(600)
"""
IN_BRACES = STUBBORN.replace("{", "{{").replace("}", "}}")


def wait_for(path: Path) -> list[int]:
    for _ in range(600):
        if path.exists():
            return [int(word) for word in path.read_text().split()]
        time.sleep(0.05)
    raise AssertionError("the server did not start")


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def gone(pids: list[int]) -> bool:
    for _ in range(600):
        if not any(map(alive, pids)):
            return True
        time.sleep(0.05)
    return False


def test_a_server_ends_with_its_children(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stackctl.gates.serving.server.GRACE_S", 0.2)
    pids = tmp_path / "pids"
    command = [sys.executable, "-c", IN_BRACES, str(pids), "{port}"]
    with started(command, {}, tmp_path) as server:
        found = wait_for(pids)
        assert server.exited is None
        assert all(map(alive, found))
    assert gone(found)


def test_a_server_ends_also_when_its_starter_is_killed(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    starter = f"""
import sys, time
from pathlib import Path
import stackctl.gates.serving.server as module
module.GRACE_S = 0.2
command = [sys.executable, "-c", {IN_BRACES!r}, {str(pids)!r}, "{{port}}"]
with module.started(command, {{}}, Path({str(tmp_path)!r})):
    time.sleep(600)
"""
    process = subprocess.Popen([sys.executable, "-c", starter])
    found = wait_for(pids)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert gone(found)


def test_a_server_can_make_sockets_however_deep_the_unit_lies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deep = tmp_path / ("d" * 100)
    deep.mkdir()
    monkeypatch.setenv("TMPDIR", str(deep))
    code = (
        "import os, socket, tempfile, time\n"
        "s = socket.socket(socket.AF_UNIX)\n"
        "s.bind(os.path.join(tempfile.gettempdir(), 'x' * 36))\n"
        "open('bound', 'w').write(tempfile.gettempdir())\n"
        "time.sleep(600)\n"
    )
    monkeypatch.chdir(tmp_path)
    with started([sys.executable, "-c", code, "{port}"], {}, tmp_path):
        for _ in range(600):
            if (tmp_path / "bound").exists():
                break
            time.sleep(0.05)
        folder = Path((tmp_path / "bound").read_text())
        assert folder.is_dir()
    assert not folder.exists()


def test_templates() -> None:
    values = {"tree": "/a b", "port": "8000", "model": None}
    assert fill(["x={tree}/y", "{{}}", "{port}"], values) == ["x=/a b/y", "{}", "8000"]
    with pytest.raises(UsageError, match="model"):
        fill(["{model}"], values)
