# SPDX-License-Identifier: Apache-2.0
"""Our requests, and the tests' own GitHub, held against GitHub's description."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests
from github_server import FakeGitHub
from openapi import Judge, missing
from stacks import Team, core, three

pytestmark = pytest.mark.tools


@pytest.fixture(scope="module")
def description() -> Judge:
    if missing():
        pytest.skip(f"{missing()} is not installed")
    return Judge()


@pytest.fixture
def judge(description: Judge, server: FakeGitHub) -> Iterator[Judge]:
    description.problems.clear()
    server.watch = description.watch
    yield description
    assert description.problems == []


@pytest.fixture
def team(tmp_path: Path, server: FakeGitHub, judge: Judge) -> Team:
    return Team(three(tmp_path / "project"), server)


def test_a_whole_life(team: Team, judge: Judge) -> None:
    server = team.github
    team.call("submit")
    server.checks[server.pulls[1].sha] = [("a", "success"), ("b", "")]
    server.statuses[server.pulls[2].sha] = "success"
    team.call("status", code=0)
    team.call("submit", "--ready", "alpha,beta,gamma")
    server.review(1)
    team.patch("alpha", ("alpha: TEN\n", {"pkg/core.py": core(_10="TEN")}))
    team.call("submit")
    team.patch("alpha", ("alpha: 10\n", {"pkg/core.py": core(_10="10")}))
    team.call("submit", "--rewrite")
    assert len(server.pulls[1].comments) == 1
    server.merge(1)
    team.call("sync")
    server.close(2)
    team.call("sync", "--delete-closed")
    team.call("submit", "--again", "beta")
    team.call("sync")
    server.make_stack(4, 3)
    team.call("status", code=0)
    assert {each.split(" ", 1)[0] for each in judge.seen} == {"GET", "POST", "PATCH"}
    assert len(judge.seen) >= 12, judge.seen


def test_the_judge_finds_faults(team: Team, judge: Judge, server: FakeGitHub) -> None:
    whole = server.simple

    def without(pull: Any) -> Any:
        return {k: v for k, v in whole(pull).items() if k != "node_id"}

    team.call("submit")
    server.simple = without  # type: ignore[method-assign]
    team.run("status")
    assert any("node_id" in each for each in judge.problems)
    judge.problems.clear()
    server.simple = whole  # type: ignore[method-assign]
    url = f"{server.env['GITHUB_API_URL']}/repos/o/r/pulls/1"
    login = {"Authorization": f"token {server.token}"}
    requests.patch(url, json={"draft": False}, headers=login, timeout=30)
    assert server.pulls[1].draft  # REST cannot
    assert judge.problems == [
        "PATCH /repos/{owner}/{repo}/pulls/{pull_number}: unknown key draft in the "
        "request"
    ]
    judge.problems.clear()


REFUSED = [
    ({"head": "none", "base": "main"}, "invalid"),
    ({"head": "main", "base": "none"}, "invalid"),
    ({"head": "main", "base": "main"}, "No commits between"),
    ({"head": "stack/demo/beta", "base": "stack/demo/alpha"}, "already exists"),
    ({"head": "stack/demo/alpha", "base": "stack/demo/beta"}, "No commits between"),
    ({"head": "stack/demo/gamma", "base": "main", "body": "x" * 65537}, "too long"),
]


@pytest.mark.parametrize(("body", "reason"), REFUSED)
def test_what_github_refuses(
    team: Team, server: FakeGitHub, body: dict[str, str], reason: str
) -> None:
    team.call("submit")
    url = f"{server.env['GITHUB_API_URL']}/repos/o/r"
    login = {"Authorization": f"token {server.token}"}
    done = requests.post(
        f"{url}/pulls", json={"title": "t", **body}, headers=login, timeout=30
    )
    assert done.status_code == 422 and reason in done.text
    for who in ("ada", "stranger"):
        done = requests.post(
            f"{url}/pulls/1/requested_reviewers",
            json={"reviewers": [who]},
            headers=login,
            timeout=30,
        )
        assert done.status_code == 422
