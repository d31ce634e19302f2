# SPDX-License-Identifier: Apache-2.0
"""GitHub on loopback: one repository with pull requests, and git over smart HTTP.

It refuses what GitHub refuses. What happens to pull requests when branches move or go
away follows from the real repository behind it, after every push and every call.
"""

import base64
import copy
import hashlib
import json
import re
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlencode, urlsplit

from support import Repo, git

TOKEN = "ghp_0123456789abcdefSECRET"
WHEN = "2026-11-30T00:00:{:02d}Z"
GITHUB = {"GIT_COMMITTER_NAME": "GitHub", "GIT_COMMITTER_EMAIL": "noreply@github.com"}

Answer = tuple[int, Any, dict[str, str]]


@dataclass
class Call:
    """A request that arrived.

    Attributes:
        verb: Its method.
        path: Its path.
        query: Its parameters.
        body: Its JSON document.
        headers: Its headers, lower case.
    """

    verb: str
    path: str
    query: dict[str, str] = field(default_factory=dict)
    body: Any = None
    headers: dict[str, str] = field(default_factory=dict)

    @property
    def writes(self) -> bool:
        return self.verb != "GET" and not self.path.endswith("git-upload-pack")


#: Gets a call; returns an answer in place of the real one, `reset` to do nothing and
#: break the connection, `lost` to do it and break the connection, or None.
Fault = Callable[[Call], "Answer | str | None"]


class Problem(Exception):
    """An answer that is an error."""

    def __init__(self, status: int, message: str, *errors: Any) -> None:
        super().__init__(message)
        self.status = status
        self.document: dict[str, Any] = {
            "message": message,
            "documentation_url": "https://docs.github.com/rest",
        }
        if status == 422:
            self.document["errors"] = list(errors)


def invalid(resource: str, **error: str) -> Problem:
    return Problem(422, "Validation Failed", {"resource": resource, **error})


def custom(message: str) -> Problem:
    return invalid("PullRequest", code="custom", message=message)


@dataclass
class Pull:
    """A pull request."""

    number: int
    title: str
    body: str
    head: str
    base: str
    sha: str
    author: str
    draft: bool = False
    state: str = "open"
    merged_at: str | None = None
    landed: str | None = None
    asked: list[str] = field(default_factory=list)
    teams: list[str] = field(default_factory=list)
    labels: list[str] = field(default_factory=list)
    reviews: list[dict[str, Any]] = field(default_factory=list)
    comments: list[dict[str, Any]] = field(default_factory=list)
    stack: int = 0
    fork: str = ""
    events: list[str] = field(default_factory=list)


class FakeGitHub:
    """GitHub with one repository.

    Args:
        folder: Where the repository is kept.
        repo: Its name, `owner/name`.
    """

    def __init__(self, folder: Path, repo: str = "o/r") -> None:
        self.repo = repo
        self.git_dir = folder / f"{repo}.git"
        self.git_dir.mkdir(parents=True)
        self.git("init", "-q", "--bare", "-b", "main")
        self.git("config", "http.receivepack", "true")
        self.git("config", "receive.denyDeleteCurrent", "ignore")
        self.git("config", "uploadpack.allowAnySHA1InWant", "true")
        self.git("config", "transfer.hideRefs", "refs/pull")
        self.git("config", "uploadpack.hideRefs", "!refs/pull")
        self.folder = folder
        self.token = TOKEN
        self.login = "ada"
        self.collaborators = {"ada", "bob", "cyd"}
        self.teams = {"core"}
        self.members = {"cyd": "core"}
        self.known_labels: set[str] = {"bug"}
        self.checks: dict[str, list[tuple[str, str]]] = {}
        self.statuses: dict[str, str] = {}
        self.pulls: dict[int, Pull] = {}
        self.stacks: dict[int, list[int]] = {}
        self.last_stack = 0
        self.issues: set[int] = set()
        self.old_names: set[str] = set()
        self.workflows = False
        self.count = 0
        self.drafts = True
        self.delete_on_merge = False
        self.protected: set[str] = set()
        self.calls: list[Call] = []
        self.faults: list[Fault] = []
        self.refs: dict[str, str] = {}
        self.watch: Callable[[Call, int, Any], None] | None = None
        self.lock = threading.RLock()
        self.ticks = 0

    # -- running

    def __enter__(self) -> "FakeGitHub":
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
        self._server.daemon_threads = True
        self._server.github = self  # type: ignore[attr-defined]
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    @property
    def env(self) -> dict[str, str]:
        return {
            "GITHUB_API_URL": f"{self.url}/api/v3",
            "GITHUB_SERVER_URL": self.url,
            "GITHUB_TOKEN": self.token,
        }

    def now(self) -> str:
        self.ticks += 1
        return WHEN.format(self.ticks % 60)

    # -- the repository

    def git(
        self, *args: str, stdin: bytes = b"", check: bool = True, **env: str
    ) -> str:
        out = git(*args, cwd=self.git_dir, stdin=stdin, env=env, check=check)
        return out.decode("utf-8", "surrogateescape").strip()

    def seed(self, repo: Repo, commit: str, branch: str = "main") -> None:
        """Push a commit as a branch."""
        repo.git("push", "-q", str(self.git_dir), f"{commit}:refs/heads/{branch}")
        self.settle()

    def heads(self) -> dict[str, str]:
        """Return the branches and their commits."""
        form = "--format=%(refname:lstrip=2) %(objectname)"
        lines = self.git("for-each-ref", form, "refs/heads").splitlines()
        return dict(line.split(" ") for line in lines)

    def has(self, ancestor: str, commit: str) -> bool:
        done = subprocess.run(
            ["git", "merge-base", "--is-ancestor", ancestor, commit],
            cwd=self.git_dir,
            capture_output=True,
        )
        return done.returncode == 0

    def between(self, base: str, head: str) -> list[str]:
        return self.git("rev-list", head, f"^{base}").split()

    def settle(self) -> None:
        """Do what GitHub does after branches have moved."""
        heads = self.heads()
        before, self.refs = self.refs, heads
        for name in before.keys() - heads.keys():
            self._deleted(name)
        for pull in self.pulls.values():
            if pull.state != "open":
                continue
            if not pull.fork:
                pull.sha = heads.get(pull.head, pull.sha)
            base = heads.get(pull.base)
            if base and self.has(pull.sha, base):
                # Whatever got its commits into the base: it counts as merged.
                pull.state, pull.merged_at = "closed", self.now()
                pull.landed = pull.sha
                pull.events.append("merged by a push")
            self.git("update-ref", f"refs/pull/{pull.number}/head", pull.sha)

    def _deleted(self, name: str) -> None:
        merged = [
            each
            for each in self.pulls.values()
            if each.head == name and each.merged_at is not None and not each.fork
        ]
        for pull in self.pulls.values():
            if pull.state != "open":
                continue
            if pull.head == name and not pull.fork:
                pull.state = "closed"
                pull.events.append("closed: branch deleted")
            elif pull.base == name and merged:
                pull.base = merged[-1].base
                pull.events.append(f"retargeted to {pull.base}")
            elif pull.base == name:
                pull.state = "closed"
                pull.events.append("closed: base deleted")

    # -- what people do

    def review(self, number: int, who: str = "bob", state: str = "APPROVED") -> None:
        pull = self.pulls[number]
        if who in pull.asked:
            pull.asked.remove(who)
        if self.members.get(who) in pull.teams:
            pull.teams.remove(self.members[who])
        self.count += 1
        pull.reviews.append(
            {"id": self.count, "who": who, "state": state, "sha": pull.sha}
        )

    def merge(self, number: int, how: str = "squash") -> str:
        """Merge a pull request as the button does; return the landed commit."""
        pull = self.pulls[number]
        assert pull.state == "open" and not pull.draft, pull
        base = self.heads()[pull.base]
        tree = self.git("merge-tree", "--write-tree", base, pull.sha).split()[0]
        if how == "rebase":
            clone = Repo(self.folder / f"merge-{number}")
            clone.git("fetch", "-q", str(self.git_dir), base, pull.sha)
            clone.git("checkout", "-q", "--detach", pull.sha)
            clone.git("rebase", "-q", "--force-rebase", base, **GITHUB)
            new = clone.head
            clone.git("push", "-q", str(self.git_dir), f"{new}:refs/landed/{number}")
        else:
            parents = ["-p", base] + (["-p", pull.sha] if how == "merge" else [])
            message = f"{pull.title} (#{number})\n"
            new = self.git(
                "commit-tree", tree, *parents, stdin=message.encode(), **GITHUB
            )
        pull.state, pull.merged_at, pull.landed = "closed", self.now(), new
        self.git("update-ref", f"refs/heads/{pull.base}", new)
        if self.delete_on_merge:
            self.git("update-ref", "-d", f"refs/heads/{pull.head}")
        self.settle()
        return new

    def close(self, number: int) -> None:
        self.pulls[number].state = "closed"

    def commit(
        self, branch: str, files: dict[str, str | None], message: str = "x\n"
    ) -> str:
        """Commit onto a branch as a person does in the browser; return the commit."""
        self.count += 1
        clone = Repo(self.folder / f"clone-{self.count}")
        clone.git("fetch", "-q", str(self.git_dir), f"refs/heads/{branch}")
        clone.git("checkout", "-q", "--detach", "FETCH_HEAD")
        new = clone.commit(message, dict(files))
        clone.git("push", "-q", str(self.git_dir), f"{new}:refs/heads/{branch}")
        self.settle()
        return new

    def make_stack(self, *numbers: int) -> int:
        """Make one of GitHub's own stacks; its number was never used before."""
        self.last_stack += 1
        self.stacks[self.last_stack] = list(numbers)
        for number in numbers:
            self.pulls[number].stack = self.last_stack
        return self.last_stack

    def shown(self, number: int) -> str:
        """Return the diff that a pull request shows."""
        pull = self.pulls[number]
        return self.git("diff", f"{self.heads()[pull.base]}...{pull.sha}")

    def open_pulls(self) -> list[Pull]:
        return [each for each in self.pulls.values() if each.state == "open"]

    def picture(self) -> Any:
        """Return all that counts, for comparing two of these."""
        return (
            self.heads(),
            [
                (
                    pull.number, pull.title, pull.body, pull.head, pull.base, pull.sha,
                    pull.draft, pull.state, sorted(pull.asked), sorted(pull.teams),
                    sorted(pull.labels), [each["body"] for each in pull.comments],
                )
                for pull in self.pulls.values()
            ],
        )  # fmt: skip

    def save(self, folder: Path) -> None:
        """Keep a copy of everything."""
        shutil.copytree(self.git_dir, folder)
        state = (self.pulls, self.refs, self.count, self.ticks, self.known_labels)
        self._saved = (folder, copy.deepcopy(state))

    def restore(self) -> None:
        """Be what was saved."""
        folder, state = self._saved
        shutil.rmtree(self.git_dir)
        shutil.copytree(folder, self.git_dir)
        self.pulls, self.refs, self.count, self.ticks, self.known_labels = (
            copy.deepcopy(state)
        )
        self.calls.clear()
        self.faults.clear()

    @property
    def writes(self) -> list[str]:
        """The calls that changed something."""
        return [f"{each.verb} {each.path}" for each in self.calls if each.writes]

    # -- documents

    @property
    def _api(self) -> str:
        return f"{self.url}/api/v3"

    def user(self, login: str) -> dict[str, Any]:
        base = f"{self._api}/users/{login}"
        names = ("followers", "subscriptions", "orgs", "repos", "received_events")
        words = {"orgs": "organizations"}
        return {
            "login": login,
            "id": int.from_bytes(login.encode()[:3], "big"),
            "node_id": f"U_{login}",
            "avatar_url": f"{self.url}/{login}.png",
            "gravatar_id": "",
            "url": base,
            "html_url": f"{self.url}/{login}",
            **{f"{words.get(name, name)}_url": f"{base}/{name}" for name in names},
            "following_url": f"{base}/following{{/other_user}}",
            "gists_url": f"{base}/gists{{/gist_id}}",
            "starred_url": f"{base}/starred{{/owner}}{{/repo}}",
            "events_url": f"{base}/events{{/privacy}}",
            "type": "User",
            "site_admin": False,
        }

    def repository(self) -> dict[str, Any]:
        base = f"{self._api}/repos/{self.repo}"
        owner, name = self.repo.split("/")
        words = (
            "archive assignees blobs branches collaborators comments commits compare "
            "contents contributors deployments downloads events forks git_commits "
            "git_refs git_tags hooks issue_comment issue_events issues keys labels "
            "languages merges milestones notifications pulls releases stargazers "
            "statuses subscribers subscription tags teams trees"
        )
        return {
            "id": 1,
            "node_id": "R_1",
            "name": name,
            "full_name": self.repo,
            "owner": self.user(owner),
            "private": True,
            "html_url": f"{self.url}/{self.repo}",
            "description": None,
            "fork": False,
            "url": base,
            **{f"{word}_url": f"{base}/{word}" for word in words.split()},
            "clone_url": f"{self.url}/{self.repo}.git",
            "git_url": f"git://127.0.0.1/{self.repo}.git",
            "ssh_url": f"git@127.0.0.1:{self.repo}.git",
            "svn_url": f"{self.url}/{self.repo}",
            "mirror_url": None,
            "homepage": None,
            "language": None,
            "license": None,
            "default_branch": "main",
            **dict.fromkeys(("forks", "forks_count", "open_issues"), 0),
            **dict.fromkeys(("open_issues_count", "size", "stargazers_count"), 0),
            **dict.fromkeys(("watchers", "watchers_count"), 0),
            **dict.fromkeys(("has_downloads", "has_issues", "has_projects"), True),
            **dict.fromkeys(("has_wiki", "has_pages", "archived", "disabled"), False),
            "pushed_at": WHEN.format(0),
            "created_at": WHEN.format(0),
            "updated_at": WHEN.format(0),
        }

    def _label(self, name: str) -> dict[str, Any]:
        return {
            "id": 1 + sorted(self.known_labels).index(name),
            "node_id": f"LA_{name}",
            "url": f"{self._api}/repos/{self.repo}/labels/x",
            "name": name,
            "description": "",
            "color": "ededed",
            "default": False,
        }

    def _team(self, slug: str) -> dict[str, Any]:
        url = f"{self._api}/teams/1"
        return {
            "id": 1, "node_id": "T_1", "name": slug, "slug": slug, "description": None,
            "permission": "push", "url": url, "html_url": f"{self.url}/orgs/o/teams/x",
            "members_url": f"{url}/members{{/member}}", "parent": None,
            "repositories_url": f"{url}/repos", "type": "organization",
        }  # fmt: skip

    def _side(self, ref: str, sha: str, fork: str = "") -> dict[str, Any]:
        owner = (fork or self.repo).partition("/")[0]
        repository = self.repository()
        if fork:
            repository |= {"full_name": fork, "name": fork.split("/")[1], "id": 2}
        return {
            "label": f"{owner}:{ref}",
            "ref": ref,
            "sha": sha,
            "user": self.user(owner),
            "repo": repository,
        }

    def simple(self, pull: Pull) -> dict[str, Any]:
        base = f"{self._api}/repos/{self.repo}"
        mine, issue = f"{base}/pulls/{pull.number}", f"{base}/issues/{pull.number}"
        page = f"{self.url}/{self.repo}/pull/{pull.number}"
        heads = self.heads()
        links = {
            "self": mine, "html": page, "issue": issue, "comments": f"{issue}/comments",
            "review_comments": f"{mine}/comments",
            "review_comment": f"{base}/pulls/comments{{/number}}",
            "commits": f"{mine}/commits", "statuses": f"{base}/statuses/{pull.sha}",
        }  # fmt: skip
        stack = None
        if pull.stack:
            numbers = self.stacks[pull.stack]
            first = self.pulls[numbers[0]].base
            stack = {
                "base": {"ref": first, "sha": heads[first]}, "size": len(numbers),
                "position": 1 + numbers.index(pull.number), "id": 900 + pull.stack,
                "number": pull.stack,
            }  # fmt: skip
        return {
            "url": mine,
            "id": 1000 + pull.number,
            "node_id": f"PR_{pull.number}",
            "html_url": page,
            "diff_url": f"{page}.diff",
            "patch_url": f"{page}.patch",
            "issue_url": issue,
            "commits_url": links["commits"],
            "review_comments_url": links["review_comments"],
            "review_comment_url": links["review_comment"],
            "comments_url": links["comments"],
            "statuses_url": links["statuses"],
            "number": pull.number,
            "state": pull.state,
            "locked": False,
            "title": pull.title,
            "user": self.user(pull.author),
            "body": pull.body or None,
            "labels": [self._label(each) for each in pull.labels],
            "milestone": None,
            "active_lock_reason": None,
            "created_at": WHEN.format(0),
            "updated_at": WHEN.format(0),
            "closed_at": None if pull.state == "open" else WHEN.format(1),
            "merged_at": pull.merged_at,
            "merge_commit_sha": pull.landed,
            "assignee": None,
            "assignees": [],
            "requested_reviewers": [self.user(each) for each in pull.asked],
            "requested_teams": [self._team(each) for each in pull.teams],
            "head": self._side(pull.head, pull.sha, pull.fork),
            "base": self._side(pull.base, heads.get(pull.base, "0" * 40)),
            "_links": {name: {"href": url} for name, url in links.items()},
            "author_association": "MEMBER",
            "auto_merge": None,
            "draft": pull.draft,
            "stack": stack,
        }

    def full(self, pull: Pull) -> dict[str, Any]:
        merged = pull.merged_at is not None
        return {
            **self.simple(pull),
            "merged": merged,
            "mergeable": None if merged else True,
            "rebaseable": None if merged else True,
            "mergeable_state": "unknown" if merged else "clean",
            "merged_by": self.user("bob") if merged else None,
            "comments": len(pull.comments),
            "review_comments": 0,
            "maintainer_can_modify": False,
            "commits": 1,
            "additions": 1,
            "deletions": 1,
            "changed_files": 1,
        }

    def _review(self, pull: Pull, review: dict[str, Any]) -> dict[str, Any]:
        page = f"{self.url}/{self.repo}/pull/{pull.number}"
        mine = f"{self._api}/repos/{self.repo}/pulls/{pull.number}"
        return {
            "id": review["id"],
            "node_id": f"PRR_{review['id']}",
            "user": self.user(review["who"]),
            "body": "",
            "state": review["state"],
            "html_url": page,
            "pull_request_url": mine,
            "author_association": "MEMBER",
            "_links": {"html": {"href": page}, "pull_request": {"href": mine}},
            "submitted_at": WHEN.format(5),
            "commit_id": review["sha"],
        }

    def _comment(self, pull: Pull, comment: dict[str, Any]) -> dict[str, Any]:
        base = f"{self._api}/repos/{self.repo}/issues"
        return {
            "id": comment["id"],
            "node_id": f"IC_{comment['id']}",
            "url": f"{base}/comments/{comment['id']}",
            "html_url": f"{self.url}/{self.repo}/pull/{pull.number}#{comment['id']}",
            "issue_url": f"{base}/{pull.number}",
            "user": self.user(comment["who"]),
            "body": comment["body"],
            "created_at": WHEN.format(0),
            "updated_at": WHEN.format(0),
            "author_association": "MEMBER",
        }

    def _commit(self, sha: str) -> dict[str, Any]:
        base = f"{self._api}/repos/{self.repo}"
        form = "%T%n%P%n%an%n%ae%n%cn%n%ce%n%B"
        tree, parents, an, ae, cn, ce, message = self.git(
            "show", "-s", f"--format={form}", sha
        ).split("\n", 6)
        return {
            "url": f"{base}/commits/{sha}",
            "sha": sha,
            "node_id": f"C_{sha}",
            "html_url": f"{self.url}/{self.repo}/commit/{sha}",
            "comments_url": f"{base}/commits/{sha}/comments",
            "commit": {
                "url": f"{base}/git/commits/{sha}",
                "author": {"name": an, "email": ae, "date": WHEN.format(0)},
                "committer": {"name": cn, "email": ce, "date": WHEN.format(0)},
                "message": message,
                "comment_count": 0,
                "tree": {"sha": tree, "url": f"{base}/git/trees/{tree}"},
            },
            "author": None,
            "committer": None,
            "parents": [
                {"sha": each, "url": f"{base}/commits/{each}"}
                for each in parents.split()
            ],
        }

    # -- calls

    def answer(self, call: Call) -> Answer:
        """Answer a call of the REST or GraphQL interface."""
        if call.path == "/api/graphql":
            return 200, self._graphql(call.body), {}
        if call.path == "/api/v3/repositories/1":
            return 200, self.repository(), {}
        for name in self.old_names:
            start, found, rest = call.path.partition(f"/repos/{name}/")
            if start == "/api/v3" and found:
                query = urlencode(call.query)
                url = f"{self._api}/repositories/1/{rest}" + (query and f"?{query}")
                words = (
                    "Moved Permanently" if call.verb == "GET" else "Temporary Redirect"
                )
                status = 301 if call.verb == "GET" else 307
                return status, {"message": words, "url": url}, {"Location": url}
        prefix = f"/api/v3/repos/{self.repo}"
        if not call.path.startswith(prefix + "/"):
            raise Problem(404, "Not Found")
        rest = call.path.removeprefix(prefix)
        for verb, pattern, method in _ROUTES:
            match = re.fullmatch(pattern, rest)
            if match and verb == call.verb:
                found = getattr(self, method)(call, *match.groups())
                status = {"POST": 201, "DELETE": 204}.get(verb, 200)
                if method == "_add_labels":
                    status = 200
                return self._paged(call, status, found)
        raise Problem(404, "Not Found")

    def _paged(self, call: Call, status: int, found: Any) -> Answer:
        listed = (
            found["check_runs"]
            if isinstance(found, dict) and ("check_runs" in found)
            else found
        )
        if call.verb != "GET" or not isinstance(listed, list):
            return status, found, {}
        size = min(int(call.query.get("per_page", "30")), 100)
        page = int(call.query.get("page", "1"))
        part = listed[(page - 1) * size : page * size]
        headers = {}
        if len(listed) > page * size:
            query = {**call.query, "page": str(page + 1)}
            text = "&".join(f"{key}={value}" for key, value in query.items())
            headers["Link"] = (
                f'<{self.url}{call.path}?{text}>; rel="next", '
                f'<{self.url}{call.path}?page=99>; rel="last"'
            )
        if listed is not found:
            return status, {**found, "check_runs": part}, headers
        return status, part, headers

    def _find(self, number: str) -> Pull:
        pull = self.pulls.get(int(number))
        if pull is None:
            raise Problem(404, "Not Found")
        return pull

    def _graphql(self, body: Any) -> Any:
        query = body["query"]
        if "markPullRequestReadyForReview" not in query:
            return {"errors": [{"message": "Parse error on a field"}]}
        node = body["variables"]["id"]
        for pull in self.pulls.values():
            if f"PR_{pull.number}" == node:
                if pull.state != "open" or not pull.draft:
                    message = "Pull request is not in a draft state."
                    return {"data": None, "errors": [{"message": message}]}
                pull.draft = False
                inner = {"pullRequest": {"isDraft": False}}
                return {"data": {"markPullRequestReadyForReview": inner}}
        message = f"Could not resolve to a node with the global id of '{node}'."
        return {"data": None, "errors": [{"type": "NOT_FOUND", "message": message}]}

    def _matching(self, call: Call, start: str) -> Any:
        base = f"{self._api}/repos/{self.repo}/git"
        return [
            {
                "ref": f"refs/heads/{name}",
                "node_id": f"REF_{name}",
                "url": f"{base}/refs/heads/{name}",
                "object": {
                    "type": "commit",
                    "sha": sha,
                    "url": f"{base}/commits/{sha}",
                },
            }
            for name, sha in sorted(self.heads().items())
            if f"heads/{name}".startswith(start)
        ]

    def _list_pulls(self, call: Call) -> Any:
        state = call.query.get("state", "open")
        found = []
        for pull in sorted(self.pulls.values(), key=lambda each: -each.number):
            head = call.query.get("head", "")
            owner = (pull.fork or self.repo).partition("/")[0]
            if head and head != f"{owner}:{pull.head}":
                continue
            if call.query.get("base", pull.base) != pull.base:
                continue
            if state in ("all", pull.state):
                found.append(self.simple(pull))
        return found

    def _get_pull(self, call: Call, number: str) -> Any:
        return self.full(self._find(number))

    def _check_pair(self, head: str, base: str, but: int = 0) -> None:
        heads = self.heads()
        for name, word in ((head, "head"), (base, "base")):
            if name not in heads:
                raise invalid("PullRequest", field=word, code="invalid")
        for pull in self.pulls.values():
            same = (pull.head, pull.base, pull.state) == (head, base, "open")
            if same and not pull.fork and pull.number != but:
                owner = self.repo.partition("/")[0]
                raise custom(f"A pull request already exists for {owner}:{head}.")
        if head == base or not self.between(heads[base], heads[head]):
            raise custom(f"No commits between {base} and {head}")
        if not self.git("merge-base", heads[base], heads[head], check=False):
            raise custom(f"The {head} branch has no history in common with {base}")

    @staticmethod
    def _check_words(body: Any) -> None:
        for key, most in (("title", 256), ("body", 65536)):
            if len(body.get(key) or "") > most:
                text = f"{key} is too long (maximum is {most} characters)"
                raise custom(text)

    def _create_pull(self, call: Call) -> Any:
        body = call.body
        if not body.get("title"):
            raise invalid("PullRequest", field="title", code="missing_field")
        self._check_words(body)
        head = body["head"].partition(":")[2] or body["head"]
        self._check_pair(head, body["base"])
        if body.get("draft") and not self.drafts:
            raise Problem(
                422,
                "Draft pull requests are not supported in this repository.",
            )
        number = max((*self.pulls, *self.issues), default=0) + 1
        pull = Pull(
            number, body["title"], body.get("body") or "", head, body["base"],
            self.heads()[head], self.login, bool(body.get("draft")),
        )  # fmt: skip
        self.pulls[number] = pull
        self.settle()
        return self.full(pull)

    def _edit_pull(self, call: Call, number: str) -> Any:
        pull, body = self._find(number), call.body
        self._check_words(body)
        if "base" in body and body["base"] != pull.base:
            if pull.state != "open":
                raise custom("Cannot change the base branch of a closed pull request.")
            if pull.stack:
                raise custom("The base branch of a stacked pull request is fixed.")
            self._check_pair(pull.head, body["base"], pull.number)
            pull.base = body["base"]
        pull.title = body.get("title", pull.title)
        pull.body = body.get("body", pull.body) or ""
        if body.get("state") == "closed":
            pull.state = "closed"
        self.settle()
        return self.full(pull)

    def _list_reviews(self, call: Call, number: str) -> Any:
        pull = self._find(number)
        return [self._review(pull, each) for each in pull.reviews]

    def _request(self, call: Call, number: str) -> Any:
        pull = self._find(number)
        for who in call.body.get("reviewers", ()):
            if who == pull.author:
                raise Problem(
                    422, "Review cannot be requested from pull request author."
                )
            if who not in self.collaborators:
                raise Problem(
                    422,
                    "Reviews may only be requested from collaborators. One or more of "
                    "the users or teams you specified is not a collaborator of the "
                    f"{self.repo} repository.",
                )
        for team in call.body.get("team_reviewers", ()):
            if team not in self.teams:
                raise Problem(422, "Could not resolve to a node with the global id.")
        for kind, known in (("reviewers", pull.asked), ("team_reviewers", pull.teams)):
            for name in call.body.get(kind, ()):
                if name not in known:
                    known.append(name)
        return self.simple(pull)

    def _add_labels(self, call: Call, number: str) -> Any:
        pull = self._find(number)
        if any(len(name) > 50 for name in call.body["labels"]):
            raise invalid("Label", code="too_long", field="name")
        for name in call.body["labels"]:
            self.known_labels.add(name)
            if name not in pull.labels:
                pull.labels.append(name)
        return [self._label(each) for each in pull.labels]

    def _list_comments(self, call: Call, number: str) -> Any:
        pull = self._find(number)
        return [self._comment(pull, each) for each in pull.comments]

    def _add_comment(self, call: Call, number: str) -> Any:
        pull = self._find(number)
        if len(call.body["body"]) > 65536:
            text = "body is too long (maximum is 65536 characters)"
            raise invalid("IssueComment", code="custom", message=text)
        self.count += 1
        comment = {"id": self.count, "who": self.login, "body": call.body["body"]}
        pull.comments.append(comment)
        return self._comment(pull, comment)

    def _delete_ref(self, call: Call, ref: str) -> Any:
        name = ref.removeprefix("heads/")
        if name not in self.heads():
            raise Problem(422, "Reference does not exist")
        if name in self.protected:
            raise Problem(422, "Cannot delete this protected branch")
        self.git("update-ref", "-d", f"refs/heads/{name}")
        self.settle()
        return None

    def _compare(self, call: Call, pair: str) -> Any:
        left, _, right = unquote(pair).partition("...")
        heads = self.heads()
        shas = []
        for name in (left, right):
            found = self.git(
                "rev-parse", "-q", "--verify", heads.get(name, name) + "^{commit}",
                check=False,
            )  # fmt: skip
            if not found:
                raise Problem(404, "Not Found")
            shas.append(found)
        base = self.git("merge-base", *shas, check=False)
        if not base:
            raise Problem(404, f"No common ancestor between {left} and {right}.")
        ahead, behind = self.between(*shas), self.between(*reversed(shas))
        status = "diverged" if ahead and behind else "identical"
        if bool(ahead) != bool(behind):
            status = "ahead" if ahead else "behind"
        page = f"{self.url}/{self.repo}/compare/{left}...{right}"
        return {
            "url": f"{self._api}/repos/{self.repo}/compare/x",
            "html_url": page,
            "permalink_url": page,
            "diff_url": f"{page}.diff",
            "patch_url": f"{page}.patch",
            "base_commit": self._commit(shas[0]),
            "merge_base_commit": self._commit(base),
            "status": status,
            "ahead_by": len(ahead),
            "behind_by": len(behind),
            "total_commits": len(ahead),
            "commits": [self._commit(each) for each in ahead[:1]],
            "files": [],
        }

    def _check_runs(self, call: Call, sha: str) -> Any:
        base = f"{self._api}/repos/{self.repo}"
        runs = [
            {
                "id": number,
                "node_id": f"CR_{number}",
                "head_sha": sha,
                "external_id": "",
                "name": name,
                "url": f"{base}/check-runs/{number}",
                "html_url": f"{self.url}/{self.repo}/runs/{number}",
                "details_url": None,
                "status": "in_progress" if conclusion == "" else "completed",
                "conclusion": conclusion or None,
                "started_at": WHEN.format(0),
                "completed_at": WHEN.format(1) if conclusion else None,
                "output": {
                    "title": None, "summary": None, "text": None,
                    "annotations_count": 0, "annotations_url": f"{base}/x",
                },
                "check_suite": {"id": 1},
                "app": None,
                "pull_requests": [],
            }
            for number, (name, conclusion) in enumerate(self.checks.get(sha, ()), 1)
        ]  # fmt: skip
        return {"total_count": len(runs), "check_runs": runs}

    def _status(self, call: Call, sha: str) -> Any:
        base = f"{self._api}/repos/{self.repo}"
        state = self.statuses.get(sha)
        statuses = [
            {
                "url": f"{base}/statuses/{sha}", "avatar_url": None, "id": 1,
                "node_id": "S_1", "state": state, "description": None,
                "target_url": None, "context": "ci", "created_at": WHEN.format(0),
                "updated_at": WHEN.format(0),
            }
        ] if state else []  # fmt: skip
        return {
            "state": state or "pending",
            "statuses": statuses,
            "sha": sha,
            "total_count": len(statuses),
            "repository": self.repository(),
            "commit_url": f"{base}/commits/{sha}",
            "url": f"{base}/commits/{sha}/status",
        }

    # -- git

    def serve_git(
        self, call: Call, data: bytes, query: str
    ) -> tuple[int, dict[str, str], bytes]:
        """Answer git through its own CGI program."""
        self._write_hook()
        environment = {
            "PATH": "/usr/bin:/bin:/usr/local/bin",
            "GIT_PROJECT_ROOT": str(self.folder),
            "GIT_HTTP_EXPORT_ALL": "1",
            "GIT_CONFIG_NOSYSTEM": "1",
            "PATH_INFO": call.path,
            "QUERY_STRING": query,
            "REQUEST_METHOD": call.verb,
            "CONTENT_TYPE": call.headers.get("content-type", ""),
            "CONTENT_LENGTH": str(len(data)),
            "REMOTE_USER": self.login,
            "REMOTE_ADDR": "127.0.0.1",
            "HTTP_GIT_PROTOCOL": call.headers.get("git-protocol", ""),
            "HTTP_CONTENT_ENCODING": call.headers.get("content-encoding", ""),
        }
        done = subprocess.run(
            ["git", "http-backend"], input=data, env=environment, capture_output=True
        )
        head, _, body = done.stdout.partition(b"\r\n\r\n")
        status, headers = 200, {}
        for line in head.decode().split("\r\n"):
            name, _, value = line.partition(": ")
            if name.lower() == "status":
                status = int(value.split()[0])
            elif name:
                headers[name] = value
        if call.path.endswith("git-receive-pack"):
            self.settle()
        return status, headers, body

    def _write_hook(self) -> None:
        hook = self.git_dir / "hooks" / "update"
        hook.parent.mkdir(exist_ok=True)
        names = " ".join(f"refs/heads/{each}" for each in sorted(self.protected))
        hook.write_text(
            f'#!/bin/sh\nfor ref in {names}; do if [ "$1" = "$ref" ]; then\n'
            'echo "GH006: Protected branch update failed for $1." >&2; exit 1\n'
            "fi; done\n" + ("" if self.workflows else _NO_WORKFLOWS) + "exit 0\n"
        )
        hook.chmod(0o755)


#: A token without the right for it brings no workflow that is new to the repository.
_NO_WORKFLOWS = """\
case $3 in *[!0]*)
for file in $(git diff-tree -r --root --no-commit-id --name-only --diff-filter=AM -m \\
  $(git rev-list $3 --not --all) -- .github/workflows 2>/dev/null); do
    echo "refusing to allow a Personal Access Token to create or update workflow" \\
      "\\`$file\\` without \\`workflow\\` scope" >&2; exit 1
done;; esac
"""

_ROUTES = (
    ("GET", r"/git/matching-refs/(.+)", "_matching"),
    ("GET", r"/pulls", "_list_pulls"),
    ("POST", r"/pulls", "_create_pull"),
    ("GET", r"/pulls/(\d+)", "_get_pull"),
    ("PATCH", r"/pulls/(\d+)", "_edit_pull"),
    ("GET", r"/pulls/(\d+)/reviews", "_list_reviews"),
    ("POST", r"/pulls/(\d+)/requested_reviewers", "_request"),
    ("POST", r"/issues/(\d+)/labels", "_add_labels"),
    ("GET", r"/issues/(\d+)/comments", "_list_comments"),
    ("POST", r"/issues/(\d+)/comments", "_add_comment"),
    ("DELETE", r"/git/refs/(.+)", "_delete_ref"),
    ("GET", r"/compare/(.+)", "_compare"),
    ("GET", r"/commits/([^/]+)/check-runs", "_check_runs"),
    ("GET", r"/commits/([^/]+)/status", "_status"),
)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    @property
    def github(self) -> FakeGitHub:
        return self.server.github  # type: ignore[attr-defined, no-any-return]

    def log_message(self, format: str, *args: object) -> None:
        pass

    def _read(self) -> bytes:
        if self.headers.get("Transfer-Encoding", "").lower() == "chunked":
            data = bytearray()
            while size := int(self.rfile.readline().split(b";")[0], 16):
                data += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
            return bytes(data)
        return self.rfile.read(int(self.headers.get("Content-Length", "0")))

    def _handle(self) -> None:
        data = self._read()
        parts = urlsplit(self.path)
        query = {key: each[-1] for key, each in parse_qs(parts.query).items()}
        headers = {key.lower(): value for key, value in self.headers.items()}
        call = Call(self.command, unquote(parts.path), query, None, headers)
        is_git = parts.path.startswith(f"/{self.github.repo}.git/")
        if data and not is_git:
            call.body = json.loads(data)
        with self.github.lock:
            if not self._allowed(is_git):
                return
            self.github.calls.append(call)
            for fault in list(self.github.faults):
                found = fault(call)
                if found == "reset":
                    self.close_connection = True
                    return
                if found == "lost":
                    self._respond(call, is_git, data, parts.query)
                    self.close_connection = True
                    return
                if isinstance(found, tuple):
                    self._send_json(*found)
                    return
            answer = self._respond(call, is_git, data, parts.query)
        if is_git:
            self._send(answer[0], answer[1], answer[2])
        else:
            self._send_json(*answer)

    def _respond(self, call: Call, is_git: bool, data: bytes, query: str) -> Any:
        if is_git:
            return self.github.serve_git(call, data, query)
        try:
            status, document, headers = self.github.answer(call)
        except Problem as problem:
            status, document, headers = problem.status, problem.document, {}
        if self.github.watch is not None:
            self.github.watch(call, status, document)
        return status, document, headers

    def _allowed(self, is_git: bool) -> bool:
        given = self.headers.get("Authorization", "")
        token = self.github.token
        if is_git:
            pair = base64.b64encode(f"x-access-token:{token}".encode()).decode()
            if given == f"Basic {pair}":
                return True
            self._send(401, {"WWW-Authenticate": 'Basic realm="GitHub"'}, b"")
            return False
        if given in (f"token {token}", f"Bearer {token}"):
            return True
        self._send_json(401, {"message": "Bad credentials"}, {})
        return False

    def _send_json(self, status: int, document: Any, headers: dict[str, str]) -> None:
        body = b"" if document is None else json.dumps(document).encode()
        tag = f'W/"{hashlib.sha256(body).hexdigest()}"'
        more = {
            "Content-Type": "application/json; charset=utf-8",
            "X-RateLimit-Limit": "5000",
            "X-RateLimit-Remaining": "4999",
            "X-RateLimit-Reset": str(int(time.time()) + 3600),
            "X-RateLimit-Resource": "core",
        }
        known = {name.lower(): name for name in more}
        more |= {known.get(name.lower(), name): v for name, v in headers.items()}
        if self.command == "GET" and status == 200:
            more["ETag"] = tag
            if self.headers.get("If-None-Match") == tag:
                status, body = 304, b""
        self._send(status, more, body)

    def _send(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_POST = do_PATCH = do_PUT = do_DELETE = _handle


@contextmanager
def github(folder: Path) -> Iterator[FakeGitHub]:
    """Run GitHub in a folder."""
    with FakeGitHub(folder) as server:
        yield server
