# SPDX-License-Identifier: Apache-2.0
"""What GitHub, its people and a server that is none can put in the way."""

import json
from pathlib import Path
from typing import Any

import pytest
from github_server import Call, FakeGitHub, Pull
from stacks import ALPHA, BETA, Team
from support import Project

from stackctl.github import endpoint, transport


@pytest.fixture
def team(tmp_path: Path, server: FakeGitHub) -> Team:
    project = Project(tmp_path / "project").base().add("alpha", ALPHA)
    return Team(project.add("beta", BETA).save(), server)


def name_pull(team: Team, number: int) -> None:
    team.text = team.text.replace(
        'name = "alpha"\n',
        f'name = "alpha"\npull = {{ repo = "o/r", number = {number} }}\n',
    )


def test_the_number_of_an_issue(team: Team) -> None:
    team.github.issues = {7}
    name_pull(team, 7)
    before = team.text
    for command in ("status", "submit"):
        error = team.call(command, code=5)["error"]
        assert error["kind"] == "no-such-pull"
        assert error["where"] == {"set": "alpha", "number": 7}
    assert team.text == before and team.github.writes == []


def test_a_pull_request_from_a_fork_stays_what_it_is(team: Team) -> None:
    """Nothing else is opened for it, and its number stays in series.toml."""
    server, tip = team.github, team.project.tips["alpha"]
    server.seed(team.project.repo, tip, "elsewhere")
    server.pulls[3] = Pull(
        3, "Mine", "Body.", "stack/demo/alpha", "main", tip, "eve", fork="eve/r"
    )
    name_pull(team, 3)
    done = team.call("submit")
    assert [(each.head, each.fork) for each in server.open_pulls()] == [
        ("stack/demo/alpha", "eve/r"), ("stack/demo/beta", ""),
    ]  # fmt: skip
    assert server.pulls[3].body == "Body." and "number = 3" in team.text
    assert server.pulls[4].base == "stack/demo/alpha.carried"
    assert "#3, from a fork" in server.pulls[4].body
    assert any("--again alpha" in each["text"] for each in done["notes"])
    assert team.call("submit")["plan"] == []
    team.call("submit", "--again", "alpha")
    assert server.pulls[5].head.startswith("stack/demo/alpha")
    assert server.pulls[5].fork == "" and "number = 5" in team.text


def test_a_fork_of_the_same_owner_has_the_same_branch(team: Team) -> None:
    server, tip = team.github, team.project.tips["alpha"]
    server.seed(team.project.repo, tip, "elsewhere")
    server.pulls[1] = Pull(
        1, "Theirs", "", "stack/demo/alpha", "main", tip, "eve", fork="o/other"
    )
    team.call("submit")
    assert server.pulls[1].title == "Theirs" and server.pulls[1].body == ""
    assert "number = 2" in team.text and "number = 1 " not in team.text
    assert team.call("submit")["plan"] == []


def test_a_renamed_repository(team: Team) -> None:
    """PyGithub would follow without the query, and take a 307 for done."""
    server = team.github
    team.call("submit")
    server.old_names = {"o/before"}
    team.text = team.text.replace(
        '[github]\nrepo = "o/r"', '[github]\nrepo = "o/before"'
    )
    server.calls.clear()
    error = team.call("submit", code=6)["error"]
    assert error["kind"] == "repository-moved" and "to o/r" in error["message"]
    assert error["where"]["now"] == "o/r" and server.writes == []


def test_a_redirect_of_a_change_is_not_taken_for_done(team: Team) -> None:
    place = {"Location": f"{team.github.url}/api/v3/repositories/1/pulls"}

    def fault(call: Call) -> Any:
        changes = call.verb != "GET" and "git-" not in call.path
        return (307, {"message": "Temporary Redirect"}, place) if changes else None

    team.github.faults = [fault]
    assert team.call("submit", code=6)["error"]["kind"] == "repository-moved"
    assert "number" not in team.text


ODD = {
    "html": "<html>502</html>",
    "list": [1, 2],
    "text": "x",
    "null": None,
    "deep": "[" * 100_000,
}


@pytest.mark.parametrize("kind", ODD)
def test_answers_that_are_none(
    team: Team, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At every request: exit code 6, and never an internal error."""
    team.call("submit")
    reads = [each for each in team.github.calls if each.verb == "GET"]
    total = len({each.path for each in reads if "/git-" not in each.path})
    raw = kind in ("html", "deep")
    if raw:  # as it is, not as a JSON text
        real = json.dumps
        monkeypatch.setattr(
            json, "dumps", lambda v, **kw: v if v == ODD[kind] else real(v, **kw)
        )
    for stop in range(1, total + 1):
        count = 0

        def fault(call: Call, stop: int = stop) -> Any:
            nonlocal count
            count += call.path.startswith("/api/")
            return (200, ODD[kind], {}) if count == stop else None

        team.github.faults = [fault]
        done = team.run("status", "--json")
        if count < stop:
            break
        assert done.code == 6, (stop, done.out, done.err)
        assert done.json["error"]["kind"] == "bad-answer"


def test_an_endless_answer(team: Team, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "MAX_ANSWER", 100_000)
    team.github.faults = [lambda call: (200, ["x" * 200_000], {})]
    assert team.call("status", code=6)["error"]["kind"] == "bad-answer"


@pytest.mark.parametrize("where", ["http://evil.example/x", "{api}/repos/o/r/pulls"])
def test_pages_that_lead_elsewhere_or_nowhere(team: Team, where: str) -> None:
    link = f'<{where.format(api=team.github.env["GITHUB_API_URL"])}>; rel="next"'
    team.github.faults = [lambda call: (200, [], {"Link": link})]
    assert team.call("status", code=6)["error"]["kind"] == "bad-answer"


@pytest.mark.parametrize("ref", ["../x", "a b", "\x1b]0;x\x07", "a:b", "x..y", 5])
def test_names_of_branches_that_are_none(team: Team, ref: Any) -> None:
    team.call("submit")
    raw = team.github.simple(team.github.pulls[1])
    raw["base"]["ref"] = ref
    team.github.faults = [
        lambda call: (200, [raw], {}) if call.path.endswith("/pulls") else None
    ]
    done = team.run("status")
    assert done.code == 6 and "not known" in done.err
    assert "\x1b" not in done.out + done.err


def test_landed_commits_that_are_none(team: Team) -> None:
    team.call("submit")
    pull = team.github.pulls[1]
    pull.state, pull.merged_at = "closed", "2026-11-30T00:00:00Z"
    pull.landed = "+refs/heads/*:refs/heads/*"
    assert team.call("sync", code=6)["error"]["kind"] == "bad-answer"


GRAPHQL = {"errors": [{"type": "RATE_LIMITED", "message": "API rate limit exceeded"}]}
QUICK = {
    "message": "Validation Failed",
    "errors": [{"code": "custom", "message": "was submitted too quickly"}],
}


def test_limits_that_are_told_as_200_and_as_422(
    team: Team, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited: list[float] = []
    monkeypatch.setattr(endpoint, "sleep", waited.append)
    team.call("submit")
    told = []

    def fault(call: Call) -> Any:
        if call.path == "/api/graphql" and "graphql" not in told:
            told.append("graphql")
            return 200, GRAPHQL, {}
        if call.verb == "PATCH" and "quick" not in told:
            told.append("quick")
            return 422, QUICK, {}
        return None

    team.github.faults = [fault]
    team.text = team.text.replace("because of alpha", "because")
    team.call("submit", "--ready", "alpha")
    assert told == ["quick", "graphql"] and sum(waited) >= 120
    assert (
        not team.github.pulls[1].draft and "because of" not in team.github.pulls[1].body
    )


def test_ready_although_the_answer_is_lost(team: Team) -> None:
    team.call("submit")
    left = [1]

    def fault(call: Call) -> str | None:
        if call.path == "/api/graphql" and left[0]:
            left[0] -= 1
            return "lost"
        return None

    team.github.faults = [fault]
    team.call("submit", "--ready", "alpha")
    assert not team.github.pulls[1].draft and left == [0]


@pytest.mark.parametrize("answer", [None, True, [], {}, {"data": None}, {"errors": 1}])
def test_ready_is_not_said_where_nothing_says_it(team: Team, answer: Any) -> None:
    team.call("submit")

    def fault(call: Call) -> Any:
        return (200, answer, {}) if call.path == "/api/graphql" else None

    team.github.faults = [fault]
    team.call("submit", "--ready", "alpha", code=6)
    assert team.github.pulls[1].draft


def test_the_table_calls_nobody_and_closes_nothing(team: Team) -> None:
    """`Fixes #12` in a row would close an issue where another set lands."""
    title = "Fixes #12 and GH-9 of @o/core, fixes http://x/o/r/issues/3"
    team.text = team.text.replace('"Set beta"', f'"{title}"')
    team.call("submit")
    body = team.github.pulls[1].body
    for each in ("#12", "GH-9", "@o", "://"):
        assert each not in body.partition("-->")[2]
    assert team.github.pulls[2].title == title
    assert team.call("submit")["plan"] == []


def test_a_label_that_github_refuses(team: Team) -> None:
    long = "x" * 51
    team.text = team.text.replace(
        'name = "alpha"\n', f'name = "alpha"\nlabels = ["{long}", "ok"]\n'
    )
    done = team.call("submit")
    assert team.github.pulls[1].labels == ["ok"] and len(team.github.pulls) == 2
    assert any("is not put on" in each["text"] for each in done["notes"])


def test_workflows_need_a_right_of_their_own(
    tmp_path: Path, server: FakeGitHub
) -> None:
    project = Project(tmp_path / "project").base()
    project.add("alpha", ("alpha: ci\n", {".github/workflows/ci.yml": "on: push\n"}))
    team = Team(project.save(), server)
    error = team.call("submit", code=6)["error"]
    assert error["kind"] == "push-refused" and "Workflows" in error["hint"]
    assert server.pulls == {} and list(server.heads()) == ["main"]
    server.workflows = True
    team.call("submit")
    assert len(server.pulls) == 1


def test_a_landed_branch_is_also_proposed_for_a_release(team: Team) -> None:
    server, repo = team.github, team.project.repo
    team.call("submit", "--ready", "alpha")
    server.seed(repo, team.project.base_commit, "release")
    tip = server.heads()["stack/demo/alpha"]
    server.pulls[3] = Pull(3, "Port", "", "stack/demo/alpha", "release", tip, "bob")
    assert team.call("submit")["plan"] == []
    landed = server.merge(1)
    done = team.call("sync")
    assert [each["landed"] for each in done["sets"] if each["set"] == "alpha"] == [
        landed
    ]
    assert server.pulls[2].base == "main"
    # Deleting its branch would close it.
    assert (server.pulls[3].state, server.pulls[3].base) == ("open", "release")
    assert "stack/demo/alpha" in server.heads()
    assert team.call("sync")["plan"] == []


def test_a_closed_one_is_opened_again_beside_its_successor(team: Team) -> None:
    server = team.github
    team.call("submit")
    server.close(2)
    team.call("submit", "--again", "beta")
    server.pulls[2].state = "open"
    done = team.call("submit")
    assert done["plan"] == [] and "number = 3" in team.text
    assert any("#2 is open too" in each["text"] for each in done["notes"])
    # Where people go on with the old one, series.toml says so.
    team.text = team.text.replace("number = 3", "number = 2")
    team.call("submit")
    assert "number = 2" in team.text and team.call("submit")["plan"] == []
