# SPDX-License-Identifier: Apache-2.0
"""Real processes on one stack: killed, interrupted, two at once, led elsewhere."""

import os
import shutil
import signal
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from github_server import Call, FakeGitHub
from stacks import ALPHA, BETA, Team
from support import Project

# Minutes of requests and pushes: in the tier whose time is not an author's.
pytestmark = pytest.mark.tools


@pytest.fixture
def team(tmp_path: Path, server: FakeGitHub) -> Team:
    project = Project(tmp_path / "project").base()
    project.add("alpha", ALPHA, extra='labels = ["fast"]\n')
    return Team(project.add("beta", BETA).save(), server)


def start(team: Team, folder: Path, cache: Path) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(
        [sys.executable, "-m", "stackctl", "pr", "submit", "-C", folder, "--json"],
        env={
            **os.environ, **team.github.env, "STACKCTL_CACHE_DIR": str(cache),
            "NO_PROXY": "127.0.0.1",
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )  # fmt: skip


def children(pid: int) -> list[int]:
    """Return the living processes below one."""
    out = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
        except (OSError, IndexError):
            continue
        if parent == pid:
            out += [int(folder.name), *children(int(folder.name))]
    return out


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="needs /proc")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_stopped_while_git_pushes(
    team: Team, hermetic: Path, number: signal.Signals
) -> None:
    secret = team.github.token.encode()
    shown: list[bytes] = []
    killed: list[int] = []
    process: Any = None

    def fault(call: Call) -> None:
        if call.verb == "POST" and call.path.endswith("git-receive-pack"):
            for pid in children(process.pid):
                for name in ("environ", "cmdline"):
                    shown.append(Path(f"/proc/{pid}/{name}").read_bytes())
            if not killed:
                killed.append(process.pid)
                group = number == signal.SIGINT  # as a terminal does
                (os.killpg if group else os.kill)(process.pid, number)

    team.github.faults = [fault]
    process = start(team, team.project.folder, hermetic)
    out, err = process.communicate(timeout=120)
    assert process.returncode == (130 if number == signal.SIGINT else -number), err
    assert secret not in out + err
    assert shown and any(b"push" in each for each in shown)
    assert all(secret not in each for each in shown)
    team.github.faults = []
    process = start(team, team.project.folder, hermetic)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    assert [each.base for each in team.github.pulls.values()] == [
        "main", "stack/demo/alpha",
    ]  # fmt: skip
    # What the killed one could not remove is gone too.
    assert list(hermetic.rglob("credentials")) == []
    assert team.call("submit")["plan"] == []


def test_two_people_at_once(team: Team, tmp_path: Path) -> None:
    """Each on a machine of their own: no lock is shared."""
    other = tmp_path / "theirs"
    shutil.copytree(team.project.folder, other)
    places = [(team.project.folder, tmp_path / "c1"), (other, tmp_path / "c2")]
    both = [start(team, *place) for place in places]
    for each in both:
        out, err = each.communicate(timeout=180)
        assert each.returncode in (0, 4), out + err
    for place in places:
        again = start(team, *place)
        out, err = again.communicate(timeout=180)
        assert again.returncode == 0, out + err
    pulls = team.github.pulls
    assert [each.base for each in pulls.values()] == ["main", "stack/demo/alpha"]
    assert pulls[1].labels == ["fast"]
    theirs = (other / "series.toml").read_text()
    assert theirs == team.text and "number = 2" in theirs
    assert team.call("submit")["plan"] == []


def test_git_is_led_to_another_server(team: Team) -> None:
    seen: list[str | None] = []

    class Other(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            seen.append(self.headers.get("Authorization"))
            self.send_response(401)
            self.send_header("WWW-Authenticate", 'Basic realm="GitHub"')
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Other) as other:
        threading.Thread(target=other.serve_forever, daemon=True).start()
        host = f"http://127.0.0.1:{other.server_address[1]}"

        def fault(call: Call) -> Any:
            if call.path.endswith("/info/refs"):
                place = f"{host}{call.path}?service={call.query['service']}"
                return 302, {}, {"Location": place}
            return None

        team.github.faults = [fault]
        error = team.call("submit", code=6)["error"]
        other.shutdown()
    assert team.github.token not in str(error)
    assert all(each is None for each in seen)
    assert team.github.pulls == {}


def test_line_ends_and_comments_of_the_file_stay(team: Team) -> None:
    file = team.project.folder / "series.toml"
    text = team.text.replace("[[set]]", "# why  \n[[set]]  # set", 1)
    file.write_bytes(text.replace("\n", "\r\n").encode())
    before = file.read_bytes().split(b"\n")
    team.call("submit")
    after = file.read_bytes().split(b"\n")
    assert [each for each in after if b"pull = " not in each] == before
    assert all(each.endswith(b"\r") for each in after if each)
    assert team.call("submit")["plan"] == []
