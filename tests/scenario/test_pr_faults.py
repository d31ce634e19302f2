# SPDX-License-Identifier: Apache-2.0
"""Stopped anywhere, limited, refused, broken off: run again, done."""

import os
import re
import shutil
import stat
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from github_server import Call, FakeGitHub
from stacks import ALPHA, BETA, Team, core
from support import Project, run

from stackctl.github import endpoint, remote

# Minutes of requests and pushes: in the tier whose time is not an author's.
pytestmark = pytest.mark.tools


def two(folder: Path) -> Project:
    return (
        Project(folder)
        .base()
        .add("alpha", ALPHA, extra='labels = ["fast"]\nreviewers = ["bob"]\n')
        .add("beta", BETA)
        .save()
    )


@pytest.fixture
def team(tmp_path: Path, server: FakeGitHub) -> Team:
    return Team(two(tmp_path / "project"), server)


class Requests:
    """Counts what goes out, and stops the program before a certain one."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        self.stop = 0
        once, git = endpoint.Endpoint._once, remote.Remote._run

        def rest(this: Any, *args: Any) -> Any:
            self._next()
            return once(this, *args)

        def network(this: Any, *args: Any) -> Any:
            self._next()
            return git(this, *args)

        monkeypatch.setattr(endpoint.Endpoint, "_once", rest)
        monkeypatch.setattr(remote.Remote, "_run", network)

    def _next(self) -> None:
        self.count += 1
        if self.count == self.stop:
            raise KeyboardInterrupt


def fresh(team: Team) -> list[str]:
    return ["submit", "--ready", "alpha"]


def rewritten(team: Team) -> list[str]:
    team.call("submit")
    team.github.review(1)
    team.patch("alpha", ("alpha: TEN\n", {"pkg/core.py": core(_10="TEN")}))
    return ["submit", "--rewrite"]


def landed(team: Team) -> list[str]:
    team.call("submit", "--ready", "alpha")
    team.github.review(2)
    team.github.merge(1)
    return ["sync"]


def reordered(team: Team) -> list[str]:
    team.call("submit")
    text = team.text
    team.project.repo.git("checkout", "-q", "--detach", team.project.base_commit)
    a, b = text.index('[[set]]\nname = "alpha"'), text.index('[[set]]\nname = "beta"')
    end = text.index("[github]")
    # On its own, beta keeps line 10 as it is.
    team.project.repo.commit("beta: forty\n", {"pkg/core.py": core(_40="forty")})
    folder = team.project.folder / "patches" / "beta"
    shutil.rmtree(folder)
    team.project.repo.patches("HEAD~1..HEAD", folder)
    team.text = text[:a] + text[b:end] + "\n" + text[a:b] + text[end:]
    return ["submit"]


@pytest.mark.parametrize("start", [fresh, rewritten, landed, reordered])
def test_stopped_before_any_request(
    team: Team,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    start: Callable[[Team], list[str]],
) -> None:
    command = start(team)
    text = team.text
    team.github.save(tmp_path / "saved.git")
    requests = Requests(monkeypatch)
    team.call(*command)
    total, wanted, wanted_text = requests.count, team.github.picture(), team.text
    writes = len([1 for each in team.github.writes if "git-" not in each])
    assert total > 8
    for stop in range(1, total + 1):
        team.github.restore()
        team.text = text
        requests.count, requests.stop = 0, stop
        code = team.run(*command).code
        if stop > requests.count:  # the first run had to fetch what is here now
            assert code == 0
            break
        assert code == 130, stop
        requests.stop = 0
        team.call(*command)
        assert team.github.picture() == wanted, stop
        assert team.text == wanted_text, stop
        assert all(each.events == [] for each in team.github.open_pulls()), stop
        done = [1 for each in team.github.writes if "git-" not in each]
        assert len(done) <= writes + 2, stop


@pytest.mark.parametrize("start", [fresh, rewritten, landed])
def test_lost_answers(
    team: Team, tmp_path: Path, start: Callable[[Team], list[str]]
) -> None:
    command = start(team)
    text = team.text
    team.github.save(tmp_path / "saved.git")
    team.call(*command)
    wanted = team.github.picture()
    total = len(team.github.writes)
    for lost in range(1, total + 1):
        team.github.restore()
        team.text = text
        seen = 0

        def fault(call: Call, lost: int = lost) -> str | None:
            nonlocal seen
            seen += call.writes
            return "lost" if call.writes and seen == lost else None

        team.github.faults = [fault]
        team.call(*command)
        assert team.github.picture() == wanted, lost


def limited(status: int, message: str, **headers: str) -> Any:
    named = {key.replace("_", "-"): value for key, value in headers.items()}
    return status, {"message": message}, named


LIMITS = {
    "primary": limited(
        403,
        "API rate limit exceeded for user ID 1.",
        x_ratelimit_remaining="0",
        x_ratelimit_reset=str(int(time.time()) + 120),
    ),
    "primary-429": limited(
        429, "", x_ratelimit_remaining="0", x_ratelimit_reset=str(int(time.time()) + 9)
    ),
    "secondary": limited(403, "You have exceeded a secondary rate limit."),
    "retry-after": limited(429, "slow down", retry_after="7"),
    "retry-after-403": limited(403, "abuse detection mechanism", retry_after="7"),
    "server": limited(502, "Server Error"),
    "broken": "reset",
}


@pytest.mark.parametrize("kind", LIMITS)
def test_limits_are_waited_out(
    team: Team, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    waited: list[float] = []
    monkeypatch.setattr(endpoint, "sleep", waited.append)
    left = {"GET": 1, "POST": 1, "PATCH": 1}

    def fault(call: Call) -> Any:
        if "/git-" in call.path or call.path.endswith("/info/refs"):
            return None
        left[call.verb] = left.get(call.verb, 0) - 1
        return LIMITS[kind] if left[call.verb] == 0 else None

    team.github.faults = [fault]
    team.call("submit")
    assert len(team.github.pulls) == 2
    assert 2 < sum(waited) < 700
    assert team.call("submit")["plan"] == []


@pytest.mark.parametrize("kind", LIMITS)
def test_what_takes_too_long_ends_and_goes_on_later(team: Team, kind: str) -> None:
    def fault(call: Call) -> Any:
        created = call.verb == "POST" and call.path.endswith("/pulls")
        return LIMITS[kind] if created and len(team.github.pulls) == 1 else None

    team.github.faults = [fault]
    error = team.call("submit", "--wait", "5", code=6)["error"]
    assert error["kind"] in ("rate-limited", "unreachable")
    assert "run the same command again" in error["hint"]
    assert 0 < error["where"]["done"] < error["where"]["of"]
    assert "number = 1" in team.text and "number = 2" not in team.text
    team.github.faults = []
    team.call("submit")
    assert len(team.github.pulls) == 2 and "number = 2" in team.text


@pytest.mark.parametrize(
    "headers",
    [
        {"retry_after": "9" * 30},
        {"retry_after": "9" * 400},
        {"x_ratelimit_remaining": "0", "x_ratelimit_reset": "9" * 25},
    ],
    ids=["far", "without-end", "reset"],
)
@pytest.mark.parametrize("verb", ["GET", "POST"])
def test_a_limit_until_no_date_ends_as_any_other(
    team: Team, verb: str, headers: dict[str, str]
) -> None:
    answer = limited(429, "slow down", **headers)

    def fault(call: Call) -> Any:
        return answer if call.verb == verb and "/api/" in call.path else None

    team.github.faults = [fault]
    error = team.call("submit", code=6)["error"]
    assert error["kind"] == "rate-limited"
    assert re.search(r"after \d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC", error["hint"])


def test_git_does_not_get_through_at_first(team: Team) -> None:
    left = [2]

    def fault(call: Call) -> Any:
        if call.path.endswith("git-receive-pack") and left[0]:
            left[0] -= 1
            return 503, {"message": "busy"}, {}
        return None

    team.github.faults = [fault]
    team.call("submit")
    assert left == [0] and len(team.github.pulls) == 2


def test_a_refused_push_moves_nothing(team: Team) -> None:
    team.github.protected = {"stack/demo/beta"}
    error = team.call("submit", code=6)["error"]
    assert error["kind"] == "push-refused" and "GH006" in error["message"]
    assert list(team.github.heads()) == ["main"] and team.github.pulls == {}


def test_a_branch_that_moves_meanwhile(team: Team) -> None:
    team.call("submit")
    team.patch("alpha", ("alpha: TEN\n", {"pkg/core.py": core(_10="TEN")}))
    heads: dict[str, str] = {}

    def fault(call: Call) -> None:
        if call.query.get("service") == "git-receive-pack" and not heads:
            team.github.commit("stack/demo/beta", {"theirs": "x\n"})
            heads.update(team.github.heads())

    team.github.faults = [fault]
    error = team.call("submit", code=4)["error"]
    assert error["kind"] == "moved-head"
    assert error["where"]["branch"] == "stack/demo/beta"
    assert team.github.heads() == heads


def test_a_wrong_token_is_not_shown(
    team: Team, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GITHUB_TOKEN", "ghp_wrong_wrong_wrong")
    done = team.run("submit", "-vv")
    assert done.code == 6 and "does not accept the token" in done.err
    assert "ghp_wrong" not in done.out + done.err
    monkeypatch.delenv("GITHUB_TOKEN")
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    if shutil.which("gh") is None:
        error = team.call("submit", code=2)["error"]
        assert error["kind"] == "no-token" and "Pull requests" in error["hint"]


GIT = """\
#!/bin/sh
{ printf '%s\\n' "$@"; env; } >>"$LOG"
exec /usr/bin/env PATH=/usr/bin:/bin git "$@"
"""


def test_the_token_goes_nowhere_else(
    team: Team, tmp_path: Path, hermetic: Path
) -> None:
    """Run it as its own process, with a git that notes what it is given."""
    tools, log = tmp_path / "tools", tmp_path / "log"
    tools.mkdir()
    shim = tools / "git"
    shim.write_text(GIT.replace('"$LOG"', f"'{log}'"))
    shim.chmod(0o755)
    modes: set[int] = set()

    def fault(call: Call) -> None:
        for found in hermetic.rglob("credentials"):
            modes.add(stat.S_IMODE(found.stat().st_mode))

    team.github.faults = [fault]
    done = run(
        "pr", "submit", "-vv", "-C", team.project.folder,
        env={
            **team.github.env, "PATH": f"{tools}:{os.environ['PATH']}",
            "STACKCTL_CACHE_DIR": str(hermetic),
        },
    )  # fmt: skip
    assert done.code == 0, done.err
    secret = team.github.token
    noted = log.read_text()
    assert "push" in noted and "credential.helper=store" in noted
    assert secret not in noted and secret not in done.out + done.err
    assert modes == {0o600}
    for folder in (hermetic, team.project.folder):
        for path in folder.rglob("*"):
            if path.is_file():
                assert secret.encode() not in path.read_bytes(), path


def test_no_network_when_it_is_forbidden(team: Team) -> None:
    assert team.call("status", "--offline", code=6)["error"]["kind"] == "offline"
    assert team.github.calls == []


def test_many_pages(team: Team) -> None:
    team.call("submit")
    for _ in range(130):
        team.github.review(1, "bob", "COMMENTED")
    team.github.review(1, "cyd", "CHANGES_REQUESTED")
    assert team.call("status", code=0)["sets"][0]["review"] == "changes-requested"


def test_reviewers_whom_github_refuses(team: Team) -> None:
    team.text = team.text.replace('["bob"]', '["bob", "stranger"]')
    done = team.call("submit")
    assert team.github.pulls[1].asked == ["bob"]
    assert any("stranger cannot be asked" in each["text"] for each in done["notes"])


def test_no_drafts_in_this_repository(team: Team) -> None:
    team.github.drafts = False
    done = team.call("submit")
    assert [each.draft for each in team.github.pulls.values()] == [False, False]
    assert any("no drafts" in each["text"] for each in done["notes"])


def test_settings_that_do_not_fit(team: Team, tmp_path: Path) -> None:
    text = team.text
    team.text = text[: text.index("[github]")]
    assert team.call("status", code=2)["error"]["kind"] == "no-repository"
    team.text = text.replace('repo = "o/r"\nbase', 'repo = "o/other"\nbase')
    assert team.call("status", code=6)["error"]["kind"] == "not-found"
    team.text = text.replace('base = "main"', 'base = "nothing"')
    done = team.call("submit", code=5)
    assert done["blocked"][0]["kind"] == "no-base-branch"
    assert team.github.pulls == {}


def test_the_users_own_git_has_no_say(
    team: Team, hostile: Path, tmp_path: Path
) -> None:
    with (hostile / ".gitconfig").open("a") as file:
        file.write(
            f"[credential]\n\thelper = {hostile}/hooks/trap\n"
            '[url "http://127.0.0.1:1/"]\n\tinsteadOf = http://127.0.0.1\n'
            "[push]\n\tgpgSign = true\n\tfollowTags = true\n"
        )
    team.call("submit")
    assert not (tmp_path / "trap-was-run").exists()
    made = run("compose", "-C", team.project.folder, "--json").json
    commits = {step["set"]: step["commit"] for step in made["steps"]}
    assert {name: team.branch(name) for name in commits} == commits


def test_the_token_of_the_github_program(
    team: Team, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tools = tmp_path / "tools"
    tools.mkdir()
    program = tools / "gh"
    program.write_text(
        f'#!/bin/sh\n[ "$*" = "auth token --hostname 127.0.0.1" ] || exit 3\n'
        f"echo {team.github.token}\n"
    )
    program.chmod(0o755)
    monkeypatch.delenv("GITHUB_TOKEN")
    monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
    assert team.call("submit", "--dry-run")["plan"]


def test_a_redirect_to_somewhere_else(team: Team) -> None:
    place = {"Location": "http://elsewhere.example/repos/o/r/pulls"}
    team.github.faults = [lambda call: (301, {"message": "moved"}, place)]
    error = team.call("status", code=6)["error"]
    assert error["kind"] == "bad-answer"


def test_the_token_goes_to_github_alone(
    team: Team, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = team.text
    for url in ("https://evil.example/o/r.git", "http://127.0.0.1:1/o/r.git"):
        team.text = f'{text}push = "{url}"\n'
        error = team.call("submit", code=2)["error"]
        assert error["kind"] == "push-elsewhere"
        assert error["where"]["key"] == "github.push"
    team.text = text
    for name in ("GITHUB_API_URL", "GITHUB_SERVER_URL"):
        with monkeypatch.context() as patch:
            patch.setenv(name, "http://github.example")
            assert team.call("submit", code=2)["error"]["kind"] == "bad-server"
    assert team.github.calls == []
    # A path or an ssh URL gets no token at all.
    team.text = f'{text}push = "{team.github.git_dir}"\n'
    team.call("submit")
    assert [each for each in team.github.calls if ".git/" in each.path] == []
    assert team.branch("alpha")
