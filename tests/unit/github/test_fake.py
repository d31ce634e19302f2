# SPDX-License-Identifier: Apache-2.0
"""The tests' own GitHub does what GitHub does, or tests on it would prove nothing."""

from pathlib import Path
from typing import Any

import pytest
import requests
from github_server import FakeGitHub
from support import Repo


class Person:
    """Somebody who calls the interface by hand."""

    def __init__(self, server: FakeGitHub, folder: Path) -> None:
        self.server = server
        self.repo = Repo(folder)
        first = self.repo.commit("base\n", {"a": "1\n"})
        server.seed(self.repo, first)
        for name in ("one", "two"):
            server.seed(self.repo, self.repo.commit(name, {name: "x\n"}), name)

    def call(self, verb: str, path: str, body: Any = None) -> Any:
        done = requests.request(
            verb,
            f"{self.server.env['GITHUB_API_URL']}/repos/o/r{path}",
            json=body,
            headers={"Authorization": f"token {self.server.token}"},
            timeout=30,
        )
        return done.status_code, done.json() if done.content else None

    def open(self, head: str, base: str, **more: Any) -> int:
        status, made = self.call(
            "POST", "/pulls", {"title": head, "head": head, "base": base, **more}
        )
        assert status == 201, made
        return int(made["number"])


@pytest.fixture
def person(server: FakeGitHub, tmp_path: Path) -> Person:
    return Person(server, tmp_path / "clone")


def test_branches_that_go(person: Person, server: FakeGitHub) -> None:
    one, two = person.open("one", "main"), person.open("two", "one")
    assert person.call("DELETE", "/git/refs/heads/one")[0] == 204
    # The head of the first, the base of the second.
    assert server.pulls[one].state == server.pulls[two].state == "closed"
    assert person.call("DELETE", "/git/refs/heads/one")[0] == 422


def test_the_branch_of_a_merged_one(person: Person, server: FakeGitHub) -> None:
    one, two = person.open("one", "main"), person.open("two", "one")
    server.merge(one)
    person.call("DELETE", "/git/refs/heads/one")
    assert (server.pulls[two].state, server.pulls[two].base) == ("open", "main")


def test_what_gets_into_its_base_is_merged(person: Person, server: FakeGitHub) -> None:
    one = person.open("one", "main")
    server.git("update-ref", "refs/heads/main", server.heads()["two"])
    server.settle()
    assert server.pulls[one].merged_at is not None


@pytest.mark.parametrize("how", ["merge", "squash", "rebase"])
def test_ways_to_merge(person: Person, server: FakeGitHub, how: str) -> None:
    one = person.open("one", "main")
    head, base = server.heads()["one"], server.heads()["main"]
    landed = server.merge(one, how)
    parents = server.git("log", "-1", "--format=%P", landed).split()
    assert parents == ([base, head] if how == "merge" else [base])
    assert (landed == head) is False
    status, raw = person.call("GET", f"/pulls/{one}")
    assert (status, raw["merged"], raw["merge_commit_sha"]) == (200, True, landed)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"base": "none"}, "invalid"),
        ({"base": "two"}, "No commits between"),
        ({"body": "x" * 65537}, "too long"),
        ({"title": "x" * 257}, "too long"),
    ],
)
def test_edits_that_are_refused(
    person: Person, change: dict[str, str], reason: str
) -> None:
    one = person.open("one", "main")
    status, answer = person.call("PATCH", f"/pulls/{one}", change)
    assert status == 422 and reason in str(answer)


def test_bases_that_stay(person: Person, server: FakeGitHub) -> None:
    one, two = person.open("one", "main"), person.open("two", "one")
    server.make_stack(one, two)
    assert person.call("PATCH", f"/pulls/{two}", {"base": "main"})[0] == 422
    assert person.call("GET", f"/pulls/{two}")[1]["stack"]["position"] == 2
    server.close(one)
    assert person.call("PATCH", f"/pulls/{one}", {"base": "two"})[0] == 422


def test_an_other_history(person: Person) -> None:
    person.repo.git("checkout", "-q", "--orphan", "alone")
    person.server.seed(person.repo, person.repo.commit("alone\n", {"z": "z"}), "alone")
    body = {"title": "t", "head": "alone", "base": "main"}
    status, answer = person.call("POST", "/pulls", body)
    assert status == 422 and "no history in common" in str(answer)


def test_drafts_and_labels(person: Person, server: FakeGitHub) -> None:
    one = person.open("one", "main", draft=True)
    person.call("PATCH", f"/pulls/{one}", {"draft": False})
    assert server.pulls[one].draft
    assert "new" not in server.known_labels
    assert person.call("POST", f"/issues/{one}/labels", {"labels": ["new"]})[0] == 200
    assert "new" in server.known_labels
    for who in ("ada", "stranger"):
        path, body = f"/pulls/{one}/requested_reviewers", {"reviewers": [who]}
        assert person.call("POST", path, body)[0] == 422


def test_who_may_push(person: Person, server: FakeGitHub) -> None:
    url = server.url.replace("http://", "http://x-access-token:{}@") + "/o/r.git"
    server.protected = {"main"}
    push = ("push", "-q", "--porcelain", url.format(server.token))
    with pytest.raises(AssertionError, match="GH006"):
        person.repo.git(*push, "HEAD:refs/heads/main")
    person.repo.git(*push, "HEAD:refs/heads/three")
    with pytest.raises(AssertionError, match="Authentication failed"):
        person.repo.git("push", "-q", url.format("wrong"), "HEAD:refs/heads/four")
