# SPDX-License-Identifier: Apache-2.0
"""Auditing open pull requests: each is a set, an exclusion with a reason, or an error.

The listing comes from GitHub (`live_pulls`) or from a file (`read_pulls`), as
`GET /repos/OWNER/NAME/pulls` or `gh pr list --json number,title,headRefOid,baseRefName`
print it.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from stackctl.errors import InputError, RemoteError, UsageError
from stackctl.fsutil import read_regular
from stackctl.model.canonical import loads_strict
from stackctl.model.ids import GIT_ID, CommitId
from stackctl.model.series import GitBase, Pull, Series

MAX_BYTES = 256 << 20
"""Largest saved listing: bytes. GitHub's form takes about 20 kB for a pull request."""

Status = Literal["set", "excluded", "moved", "uncovered"]


@dataclass(frozen=True, slots=True)
class OpenPull:
    """An open pull request.

    Attributes:
        number: Its number.
        title: Its title.
        head: Its head commit.
        base: Name of the branch it is for, without `refs/heads/`; None if unknown.
        repo: `owner/name`; None if the listing does not say.
        draft: Whether it is a draft.
    """

    number: int
    title: str
    head: CommitId
    base: str | None = None
    repo: str | None = None
    draft: bool = False


@dataclass(frozen=True, slots=True)
class Finding:
    """What the series says about one open pull request.

    Attributes:
        pull: The pull request.
        status: `set` or `excluded` where it is covered, else what is wrong.
        by: The set, or the kind of exclusion.
        pinned: The head that was looked at.
        why: A sentence.
    """

    pull: OpenPull
    status: Status
    by: str | None
    pinned: CommitId | None
    why: str

    @property
    def good(self) -> bool:
        """Whether the pull request is covered."""
        return self.status in ("set", "excluded")

    def document(self) -> dict[str, object]:
        """Return the finding for a JSON document."""
        return {
            "number": self.pull.number,
            "title": self.pull.title,
            "head": self.pull.head,
            "draft": self.pull.draft,
            "status": self.status,
            "by": self.by,
            "pinned": self.pinned,
            "why": self.why,
        }


@dataclass(frozen=True, slots=True)
class Audit:
    """The audit of one repository.

    Attributes:
        repo: `owner/name`.
        base: The branch whose pull requests were looked at, None for all.
        findings: One per open pull request, by number.
        closed: Sets and exclusions whose pull request is not open any more.
    """

    repo: str
    base: str | None
    findings: tuple[Finding, ...]
    closed: tuple[str, ...]

    @property
    def good(self) -> bool:
        """Whether every open pull request is covered."""
        return all(each.good for each in self.findings)

    def document(self) -> dict[str, object]:
        """Return the audit as the JSON document of `pr audit`."""
        return {
            "repo": self.repo,
            "base": self.base,
            "ok": self.good,
            "pulls": [each.document() for each in self.findings],
            "errors": [each.pull.number for each in self.findings if not each.good],
            "closed": list(self.closed),
        }


def audited_repository(series: Series, repo: str | None) -> tuple[str, str | None]:
    """Return the repository and the branch that an audit is about.

    Args:
        series: The series.
        repo: `owner/name` as a user named it.

    Raises:
        UsageError: The series does not tell.
    """
    from stackctl.published.manifest import repository_name

    branch = None
    found: str | None = None
    if isinstance(series.base, GitBase):
        name, elsewhere = repository_name(series.base.git)
        found = None if elsewhere else name
        branch = (series.base.ref or "").removeprefix("refs/heads/") or None
    repos = [each.pull.repo for each in series.sets if each.pull is not None]
    repos += [each.pull.repo for each in series.excludes]
    named = {each.lower(): each for each in repos}
    if repo is not None:
        same = found is not None and found.lower() == repo.lower()
        return repo, branch if same or found is None else None
    if found is not None and (not named or found.lower() in named):
        return found, branch
    if len(named) == 1:
        return next(iter(named.values())), branch
    raise UsageError(
        "the series does not say whose pull requests are to be audited",
        kind="no-repository",
        hint="name it: --repo owner/name",
    )


def read_pulls(path: Path) -> list[OpenPull]:
    """Read a saved listing of pull requests.

    Args:
        path: A JSON list, as GitHub's API or `gh pr list --json` gives it, or several
            pages of it (a list of lists).

    Raises:
        InputError: It is not such a list.
    """
    data = read_regular(path, MAX_BYTES)
    document = loads_strict(data, file=str(path), hint=_SAVE)
    if isinstance(document, dict):
        document = document.get("pulls", document.get("items"))
    if not isinstance(document, list):
        raise _bad(path, "the file", "a JSON list of pull requests")
    items: list[Any] = []
    for item in document:
        items += item if isinstance(item, list) else [item]
    pulls = []
    for number, item in enumerate(items):
        pull = _read_pull(item, path, number)
        if pull is not None:
            pulls.append(pull)
    return pulls


_SAVE = (
    "save it with: gh api --paginate --slurp 'repos/OWNER/NAME/pulls?state=open' "
    "(or: gh pr list --json number,title,headRefOid,baseRefName,state,isDraft)"
)


def _bad(path: Path, place: str, expected: str) -> InputError:
    return InputError(
        f"{path}: {place}: expected {expected}",
        kind="bad-listing",
        hint=_SAVE,
        where={"file": str(path), "key": place},
    )


def _read_pull(item: object, path: Path, index: int) -> OpenPull | None:
    place = f"[{index}]"
    if not isinstance(item, dict):
        raise _bad(path, place, "an object")
    number = item.get("number")
    if not isinstance(number, int) or isinstance(number, bool) or number < 1:
        raise _bad(path, f"{place}.number", "a positive number")
    state = item.get("state", "open")
    if not isinstance(state, str) or state.lower() != "open":
        return None
    head, base = item.get("head"), item.get("base")
    sha = head.get("sha") if isinstance(head, dict) else item.get("headRefOid", head)
    if not isinstance(sha, str) or not GIT_ID.match(sha):
        raise _bad(path, f"{place}.head.sha", "a full git id")
    ref = base.get("ref") if isinstance(base, dict) else item.get("baseRefName", base)
    repo = None
    if isinstance(base, dict) and isinstance(base.get("repo"), dict):
        repo = base["repo"].get("full_name")
    return OpenPull(
        number=number,
        title=str(item.get("title") or ""),
        head=CommitId(sha),
        base=ref.removeprefix("refs/heads/") if isinstance(ref, str) else None,
        repo=repo if isinstance(repo, str) else None,
        draft=bool(item.get("draft", item.get("isDraft", False))),
    )


def live_pulls(repo: str, base: str | None, token: str | None) -> list[OpenPull]:
    """Ask GitHub for the open pull requests of a repository.

    Args:
        repo: `owner/name`.
        base: Only those for this branch.
        token: Token to log in with; without one, public repositories only.

    Raises:
        RemoteError: GitHub cannot be asked.
    """
    # Costly to import, and needed for nothing else here.
    from github import Auth, Github, GithubException

    # Set by GitHub's own runners, and by those of its enterprise servers.
    url = os.environ.get("GITHUB_API_URL") or "https://api.github.com"
    client = Github(
        base_url=url,
        auth=Auth.Token(token) if token else None,
        retry=2,
        timeout=30,
        per_page=100,
    )
    try:
        found = client.get_repo(repo).get_pulls(
            state="open", **({"base": base} if base else {})
        )
        return [
            OpenPull(
                number=pull.number,
                title=pull.title or "",
                head=CommitId(pull.head.sha),
                base=pull.base.ref,
                repo=repo,
                draft=bool(pull.draft),
            )
            for pull in found
        ]
    except (GithubException, OSError) as error:
        raise RemoteError(
            f"GitHub cannot be asked for the pull requests of {repo}: {error}",
            kind="unreachable",
            hint="set GITHUB_TOKEN, or use a saved listing: --pulls-json FILE",
            where={"repo": repo},
        ) from error
    finally:
        client.close()


def audit(
    series: Series, pulls: Sequence[OpenPull], repo: str, base: str | None
) -> Audit:
    """Hold the open pull requests of a repository against a series.

    Args:
        series: The series.
        pulls: The open pull requests.
        repo: `owner/name` of the repository that is audited.
        base: Only pull requests for this branch count.
    """
    name = repo.lower()
    sets = {
        each.pull.number: each
        for each in series.sets
        if each.pull is not None
        and each.pull.number is not None
        and each.pull.repo.lower() == name
    }
    excludes = {
        each.pull.number: each
        for each in series.excludes
        if each.pull.repo.lower() == name
    }
    findings = []
    for pull in sorted(pulls, key=lambda each: each.number):
        other = pull.repo is not None and pull.repo.lower() != name
        if other or (base is not None and pull.base not in (None, base)):
            continue
        if pull.number in sets:
            item = sets[pull.number]
            assert isinstance(item.pull, Pull)
            findings.append(_of_set(pull, item.name, item.pull, item.disposition))
        elif pull.number in excludes:
            exclude = excludes[pull.number]
            findings.append(
                _pinned(pull, "excluded", exclude.kind, exclude.pull.head, exclude.why)
            )
        else:
            findings.append(
                Finding(pull, "uncovered", None, None, "neither a set nor an exclusion")
            )
    there = {pull.number for pull in pulls}
    closed = [
        f"{kind} {label}"
        for kind, label, number in (
            *(("set", each.name, number) for number, each in sets.items()),
            *(("exclusion", f"#{number}", number) for number in excludes),
        )
        if number not in there
    ]
    return Audit(repo, base, tuple(findings), tuple(closed))


def _of_set(pull: OpenPull, name: str, pinned: Pull, disposition: str) -> Finding:
    why = f"set `{name}`" + (f", {disposition}" if disposition != "included" else "")
    if pinned.head is None:
        # A set of patches may name where it is reviewed and no head.
        return Finding(pull, "set", name, None, why)
    return _pinned(pull, "set", name, pinned.head, why)


def _pinned(
    pull: OpenPull, status: Status, by: str, head: CommitId, why: str
) -> Finding:
    if head == pull.head:
        return Finding(pull, status, by, head, why)
    return Finding(
        pull,
        "moved",
        by,
        head,
        f"the head has moved: pins {head}, remote has {pull.head}",
    )
