# SPDX-License-Identifier: Apache-2.0
"""Looking at GitHub: our branches and their pull requests, reviews and checks."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from stackctl.errors import ConflictError, RemoteError
from stackctl.github.endpoint import Endpoint, RefusedError
from stackctl.github.model import PullRequest, State, branch_name
from stackctl.model.ids import GIT_ID, CommitId
from stackctl.model.series import PatchSet

_BAD_REF = re.compile(r"[\x00-\x20\x7f~^:?*\[\\]|\.\.|@\{|//|^[/.]|[/.]$|^$")
_FAILED = frozenset(
    ("failure", "timed_out", "cancelled", "action_required", "startup_failure", "stale")
)


def branches(endpoint: Endpoint, prefix: str) -> dict[str, CommitId]:
    """Return the branches whose names start with a prefix, and their commits.

    Args:
        endpoint: The repository.
        prefix: Start of their names.
    """
    found = endpoint.get_all(f"/git/matching-refs/heads/{prefix}")
    out = {}
    for each in found:
        name = str(each.get("ref")).removeprefix("refs/heads/")
        if not name.startswith(prefix):
            continue
        target = each.get("object")
        sha = target.get("sha") if isinstance(target, dict) else None
        if not isinstance(sha, str) or not GIT_ID.match(sha) or _BAD_REF.search(name):
            raise _not_known("branch", repr(each)[:200])
        out[name] = CommitId(sha)
    return out


def branch(endpoint: Endpoint, name: str) -> CommitId | None:
    """Return the commit of a branch, None where there is none."""
    return branches(endpoint, name).get(name)


def contains(endpoint: Endpoint, commit: str, in_commit: str) -> bool:
    """Return whether a commit or branch has another one in its history.

    Args:
        endpoint: The repository.
        commit: The commit that is looked for.
        in_commit: The commit or branch.
    """
    found = endpoint.find(f"/compare/{commit}...{in_commit}", per_page=1)
    return found is not None and found.get("status") in ("ahead", "identical")


def ahead(endpoint: Endpoint, commit: str, branch_or_commit: str) -> int:
    """Return how many commits something has that a commit has not.

    Args:
        endpoint: The repository.
        commit: The commit.
        branch_or_commit: What is compared with it.
    """
    found = endpoint.find(f"/compare/{commit}...{branch_or_commit}", per_page=1)
    return int(found.get("ahead_by") or 0) if found is not None else 0


def pulls_of(
    endpoint: Endpoint, sets: Iterable[PatchSet], prefix: str, trunk: str | None
) -> dict[str, tuple[PullRequest, ...]]:
    """Return the pull requests of each set, the one to go on with first.

    They are found by the names of the branches; a pull request that series.toml names
    counts too, whatever its branch is called. One from a fork counts once it is merged.

    Args:
        endpoint: The repository.
        sets: The sets.
        prefix: Start of the branches' names.
        trunk: Branch that the lowest pull request should be for.

    Raises:
        ConflictError: series.toml names what is no pull request.
    """
    owner = endpoint.repo.partition("/")[0]
    out: dict[str, tuple[PullRequest, ...]] = {}
    for item in sets:
        found: dict[int, PullRequest] = {}
        number = 1
        named = item.pull.number if item.pull is not None else None
        while True:
            name = branch_name(prefix, item.name, number)
            listed = endpoint.pages("/pulls", head=f"{owner}:{name}", state="all")
            ours = [each for each in listed if is_of(each, endpoint.repo, name)]
            mine = list(map(read_pull, ours))
            if len(mine) > 1:
                # One may also be for a release, say: the stack leaves it alone.
                mine = [
                    replace(each, apart=_is_apart(each, named, prefix, trunk))
                    for each in mine
                ]
            found |= {each.number: each for each in mine}
            # Only a closed one makes room for the next number.
            if not mine or any(e.state == "open" and not e.apart for e in mine):
                break
            number += 1
        if (
            named is not None
            and item.pull is not None
            and item.pull.repo.lower() == endpoint.repo.lower()
            and named not in found
        ):
            raw = endpoint.find(f"/pulls/{named}")
            if raw is None:
                raise ConflictError(
                    f"{endpoint.repo} has no pull request #{named}, which set "
                    f"`{item.name}` names",
                    kind="no-such-pull",
                    hint="an issue has that number, or nothing: correct `pull` of the "
                    "set in series.toml, or take it out to open a new one",
                    where={"set": item.name, "number": named},
                )
            pull = read_pull(raw)
            pull = replace(pull, apart=not _same_repo(raw, endpoint.repo))
            if not found or not pull.apart or pull.state == "merged":
                found[named] = pull
        out[item.name] = tuple(
            sorted(
                found.values(),
                key=lambda each, named=named: (  # type: ignore[misc]
                    each.apart, (each.state, each.number) != ("open", named),
                    -each.number,
                ),
            )
        )  # fmt: skip
    return out


def _is_apart(
    pull: PullRequest, named: int | None, prefix: str, trunk: str | None
) -> bool:
    """Return whether an open pull request of our branch is for a branch of others."""
    if pull.state != "open" or pull.number == named:
        return False
    return pull.base != trunk and not pull.base.startswith(prefix)


def _same_repo(raw: Mapping[str, Any], repo: str) -> bool:
    """Return whether the branch of a pull request is one of the repository itself."""
    head = raw.get("head") or {}
    there = head.get("repo") or {}
    return str(there.get("full_name", "")).lower() == repo.lower()


def is_of(raw: Mapping[str, Any], repo: str, branch: str) -> bool:
    """Return whether a pull request is of a branch of the repository itself.

    Forks of the same owner answer to the same `owner:branch`.

    Args:
        raw: The JSON object.
        repo: `owner/name`.
        branch: Name of the branch.
    """
    return read_pull(raw).head == branch and _same_repo(raw, repo)


def read_pull(raw: Any) -> PullRequest:
    """Read a pull request as GitHub's API gives it.

    Args:
        raw: The JSON object.

    Raises:
        RemoteError: It is none.
    """
    try:
        state: State = "open" if raw["state"] == "open" else "closed"
        landed = None
        if raw.get("merged_at"):
            state = "merged"
            landed = raw.get("merge_commit_sha")
        sha = raw["head"]["sha"]
        for each in (sha, landed):
            if each is not None and not GIT_ID.match(each):
                raise ValueError(each)
        for side in (raw["head"], raw["base"]):
            if not isinstance(side["ref"], str) or _BAD_REF.search(side["ref"]):
                raise ValueError(side["ref"])
        teams = raw.get("requested_teams") or ()
        owner = str(raw["base"]["label"]).partition(":")[0] if raw["base"] else ""
        return PullRequest(
            number=int(raw["number"]),
            node=str(raw["node_id"]),
            state=state,
            draft=bool(raw.get("draft")),
            title=str(raw["title"]),
            body=str(raw.get("body") or ""),
            author=str((raw.get("user") or {}).get("login", "")),
            head=str(raw["head"]["ref"]),
            sha=CommitId(sha),
            base=str(raw["base"]["ref"]),
            url=str(raw.get("html_url") or ""),
            landed=CommitId(landed) if landed else None,
            landed_at=str(raw.get("merged_at") or ""),
            asked=frozenset(
                [str(each["login"]) for each in raw.get("requested_reviewers") or ()]
                + [f"{owner}/{each['slug']}" for each in teams]
            ),
            labels=frozenset(str(each["name"]) for each in raw.get("labels") or ()),
            stack=int((raw.get("stack") or {}).get("number") or 0),
        )
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        why = "its JSON has another shape"
        if isinstance(error, KeyError):
            why = f"its JSON has no `{error.args[0]}`"
        raise _not_known("pull request", why) from error


def _not_known(what: str, why: str) -> RemoteError:
    return RemoteError(
        f"GitHub describes a {what} in a way that is not known: {why}",
        kind="bad-answer",
        hint="check GITHUB_API_URL",
    )


def based_on(endpoint: Endpoint, branch: str) -> set[int]:
    """Return the open pull requests that are for a branch.

    Args:
        endpoint: The repository.
        branch: Name of the branch.
    """
    found = map(read_pull, endpoint.pages("/pulls", base=branch, state="open"))
    return {each.number for each in found if each.base == branch}


def reviews_of(endpoint: Endpoint, pull: PullRequest) -> dict[str, str]:
    """Return the last word of each reviewer of a pull request.

    A comment does not take an approval back; a dismissal does.

    Args:
        endpoint: The repository.
        pull: The pull request.
    """
    out: dict[str, str] = {}
    for each in endpoint.pages(f"/pulls/{pull.number}/reviews"):
        user = each.get("user")
        who = str(user.get("login")) if isinstance(user, dict) else "ghost"
        word = str(each.get("state", "")).lower().replace("_", "-")
        if who == pull.author or word == "pending":
            continue
        if word == "commented" and out.get(who) in ("approved", "changes-requested"):
            continue
        out[who] = word
    return out


def checks_of(endpoint: Endpoint, commit: CommitId) -> str:
    """Return what the checks of a commit say.

    Args:
        endpoint: The repository.
        commit: The commit.

    Returns:
        `success`, `failure`, `pending`, `none`, or `unknown` where the token may not
        see them.
    """
    words: set[str] = set()
    try:
        for run in endpoint.pages(f"/commits/{commit}/check-runs", "check_runs"):
            if run.get("status") != "completed":
                words.add("pending")
            else:
                failed = run.get("conclusion") in _FAILED
                words.add("failure" if failed else "success")
        status = endpoint.get(f"/commits/{commit}/status")
    except RefusedError as error:
        if error.status in (403, 404):
            return "unknown"
        raise
    if status.get("total_count"):
        state = str(status.get("state"))
        words.add({"error": "failure"}.get(state, state))
    for word in ("failure", "pending", "success"):
        if word in words:
            return word
    return "none"
