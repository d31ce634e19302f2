# SPDX-License-Identifier: Apache-2.0
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from support import until

from stackctl.errors import UsageError
from stackctl.gates.serving import server as module
from stackctl.gates.serving.server import GIVEN_OUT, fill, kept_port, started

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
    until(path.exists)
    return [int(word) for word in path.read_text().split()]


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


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
    until(lambda: not any(map(alive, found)))


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
    until(lambda: not any(map(alive, found)))


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
        "open('part', 'w').write(tempfile.gettempdir())\n"
        "os.rename('part', 'bound')\n"
        "time.sleep(600)\n"
    )
    monkeypatch.chdir(tmp_path)
    with started([sys.executable, "-c", code, "{port}"], {}, tmp_path):
        until((tmp_path / "bound").exists)
        folder = Path((tmp_path / "bound").read_text())
        assert folder.is_dir()
    assert not folder.exists()


def test_a_port_stays_free_for_its_server(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        given_out = probe.getsockname()[1]
    with kept_port() as first, kept_port() as second:
        assert len({first, second}) == 2
        # Not one that the system gives out, be it in minutes.
        assert max(first, second) < int(GIVEN_OUT.read_text().split()[0]) <= given_out
        with socket.socket() as server:
            server.bind(("0.0.0.0", second))
            server.listen()
            monkeypatch.setattr(module, "FIRST_PORT", second)
            with kept_port() as third:
                assert third > second
        code = (
            "from stackctl.gates.serving import server\n"
            f"server.FIRST_PORT = {first}\n"
            "with server.kept_port() as port:\n    print(port)\n"
        )
        command = [sys.executable, "-c", code]
        other = subprocess.run(command, capture_output=True, check=True)
        assert int(other.stdout) not in (first, second)


@pytest.mark.parametrize("text", [None, "", "odd", "1024 65535"])
def test_where_the_system_gives_out_all_ports_it_gives_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str | None
) -> None:
    if text is not None:
        (tmp_path / "range").write_text(text)
    monkeypatch.setattr(module, "GIVEN_OUT", tmp_path / "range")
    with kept_port() as port, socket.socket() as server:
        server.bind(("127.0.0.1", port))


def test_templates() -> None:
    values = {"tree": "/a b", "port": "8000", "model": None}
    assert fill(["x={tree}/y", "{{}}", "{port}"], values) == ["x=/a b/y", "{}", "8000"]
    with pytest.raises(UsageError, match="model"):
        fill(["{model}"], values)
