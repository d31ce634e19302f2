# SPDX-License-Identifier: Apache-2.0
"""GitHub's REST and GraphQL interface: waits where it must, says what was refused.

Requests go out through PyGithub. Waiting is ours: GitHub says for how long (primary and
secondary limits, both also as 403), and somebody should see it happen. The time that
one command may wait is limited; beyond it the command ends with exit code 6, and the
same command goes on later, because all state is on GitHub.
"""

import email.utils
import json
import re
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, urlencode, urljoin, urlsplit

from stackctl.errors import RemoteError
from stackctl.github.token import RIGHTS, Token
from stackctl.progress import SILENT, Progress

if TYPE_CHECKING:
    from github.Requester import Requester

WAIT: Final = 900.0
"""How long one command waits for GitHub in all by default: seconds."""

WRITE_PAUSE: Final = 1.0
"""Time between two requests that change something: seconds, as GitHub asks for."""

TIMEOUT: Final = 30
"""Longest silence of the server: seconds."""

LONGEST: Final = 30 * 86_400.0
"""Longest wait that is told: seconds. A header may name any number."""

_SECONDARY_WAIT: Final = 60.0
"""First wait at a secondary limit that names no time: seconds, as GitHub asks for."""

_BUSY: Final = frozenset((500, 502, 503, 504))
_ATTEMPTS: Final = 6
_PAGE: Final = 100
_MAX_PAGES: Final = 1000
_LIMIT: Final = re.compile(
    r"secondary rate limit|abuse detection|submitted too quickly|API rate limit", re.I
)

sleep: Callable[[float], None] = time.sleep
clock: Callable[[], float] = time.time


class Patience:
    """The time that one command may wait.

    Args:
        seconds: All of it.
        progress: Told how long it will take.
    """

    def __init__(self, seconds: float = WAIT, progress: Progress = SILENT) -> None:
        self._left = seconds
        self._progress = progress

    def wait(self, seconds: float, why: str, kind: str) -> None:
        """Wait, and show it.

        Args:
            seconds: How long.
            why: What for, for people.
            kind: Kind of the error where it is too long.

        Raises:
            RemoteError: It is longer than what is left.
        """
        seconds = min(max(0.0, seconds), LONGEST)
        if seconds > self._left:
            form = "%H:%M:%S" if seconds < 86_400 else "%Y-%m-%d %H:%M:%S"
            when = time.strftime(form, time.gmtime(clock() + seconds))
            raise RemoteError(
                f"{why}: {seconds:.0f} s to wait, and {self._left:.0f} s are left to "
                "this command",
                kind=kind,
                hint=f"run the same command again after {when} UTC: it goes on where "
                "it stopped (or allow it longer with --wait)",
                where={"seconds": round(seconds)},
            )
        self._left -= seconds
        self._progress.note(f"{why}: waiting {seconds:.0f} s")
        done = 0.0
        while done < seconds:
            self._progress.update(f"{why}, waiting (s)", int(done), int(seconds) or 1)
            step = min(1.0, seconds - done)
            sleep(step)
            done += step


class RefusedError(RemoteError):
    """GitHub understood a request and does not do it.

    Attributes:
        status: HTTP status.
        reasons: What it says.
    """

    default_kind = "refused"

    def __init__(
        self, message: str, status: int, reasons: tuple[str, ...], **more: Any
    ) -> None:
        super().__init__(message, **more)
        self.status = status
        self.reasons = reasons


class Endpoint:
    """One repository on GitHub.

    Args:
        repo: `owner/name`.
        token: Token to log in with.
        api: Base URL of the REST interface.
        patience: How long to wait.
    """

    def __init__(self, repo: str, token: Token, api: str, patience: Patience) -> None:
        self.repo = repo
        self.api = api
        self.patience = patience
        self._token = token
        self._requester: Requester | None = None
        self._known: dict[str, tuple[str, Any, str]] = {}
        self._write = 0.0

    def close(self) -> None:
        """Close the connection."""
        if self._requester is not None:
            self._requester.close()
            self._requester = None

    def _connect(self) -> "Requester":
        if self._requester is None:
            # Costly to import.
            from stackctl.github.transport import connect

            self._requester = connect(self.api, self._token.reveal(), TIMEOUT)
        return self._requester

    # -- requests

    def get(self, path: str, **parameters: object) -> Any:
        """Ask for something.

        Args:
            path: Path below the repository, starting with `/`.
            **parameters: Parameters of the query.

        Raises:
            RemoteError: It cannot be had, or is no object.
        """
        found = self._get(self._url(path, parameters))[0]
        if not isinstance(found, dict):
            raise self._bad_answer(path)
        return found

    def find(self, path: str, **parameters: object) -> Any:
        """Ask for something that may be missing; return None then.

        Args:
            path: Path below the repository.
            **parameters: Parameters of the query.
        """
        try:
            return self.get(path, **parameters)
        except RefusedError as error:
            if error.status == 404:
                return None
            raise

    def pages(self, path: str, key: str = "", **parameters: object) -> list[Any]:
        """Ask for a list, all pages of it.

        Args:
            path: Path below the repository.
            key: Key of the list where the pages are objects.
            **parameters: Parameters of the query.
        """
        return self._all(self._url(path, {"per_page": _PAGE, **parameters}), key)

    def get_all(self, path: str) -> list[Any]:
        """Ask for a list whose pages have no parameters.

        Args:
            path: Path below the repository.
        """
        return self._all(self._url(path, {}), "")

    def _all(self, url: str, key: str) -> list[Any]:
        path = url
        out: list[Any] = []
        seen: set[str] = set()
        while url:
            if url in seen or len(seen) == _MAX_PAGES:
                raise self._bad_answer(path)
            seen.add(url)
            page, url = self._get(url)
            found = page.get(key) if key and isinstance(page, dict) else page
            if not isinstance(found, list):
                raise self._bad_answer(path)
            if not all(isinstance(each, dict) for each in found):
                raise self._bad_answer(path)
            out += found
        return out

    def send(
        self,
        verb: str,
        path: str,
        body: Mapping[str, object] | None = None,
        done: Callable[[], Any] | None = None,
    ) -> Any:
        """Change something.

        Args:
            verb: `POST`, `PATCH`, `PUT` or `DELETE`.
            path: Path below the repository.
            body: The request's JSON document.
            done: Looks whether it happened although no answer came: None where it did
                not. Without it, the request is sent again, which must do no harm.

        Raises:
            RefusedError: GitHub does not do it.
            RemoteError: GitHub cannot be reached.
        """
        return self._send(verb, f"/repos/{self.repo}{path}", body, done)[1]

    def graphql(self, query: str, variables: Mapping[str, object]) -> Any:
        """Run a GraphQL mutation, which must do no harm when it is sent twice.

        Args:
            query: The document.
            variables: Its variables.

        Raises:
            RefusedError: GitHub does not do it.
        """
        parts = urlsplit(self.api)
        path = parts.path.rstrip("/").removesuffix("/v3") + "/graphql"
        answer = self._send(
            "POST",
            f"{parts.scheme}://{parts.netloc}{path}",
            {"query": query, "variables": dict(variables)},
            None,
        )[1]
        if not isinstance(answer, dict):
            raise self._bad_answer(path)
        if answer.get("errors"):
            reasons = _reasons(answer)
            raise RefusedError(
                self._token.hide(f"GitHub refuses: {'; '.join(reasons)}"), 200, reasons
            )
        if not isinstance(answer.get("data"), dict):
            raise self._bad_answer(path)  # nothing says that it was done
        return answer

    def _url(self, path: str, parameters: Mapping[str, object]) -> str:
        query = urlencode({k: v for k, v in parameters.items() if v is not None})
        url = f"/repos/{self.repo}{quote(path, safe='/.:+')}"
        return f"{url}?{query}" if query else url

    def _get(self, url: str) -> tuple[Any, str]:
        """Return a document, and the URL of the page behind it."""
        headers: dict[str, str] = {}
        known = self._known.get(url)
        if known is not None:
            headers["If-None-Match"] = known[0]
        status, document, answer = self._exchange("GET", url, None, headers, None)
        if status == 304 and known is not None:
            return known[1], known[2]
        behind = _next(answer.get("link", ""))
        if behind and not behind.startswith(f"{self.api}/"):
            raise self._bad_answer(_short(url))
        if "etag" in answer:
            self._known[url] = (answer["etag"], document, behind)
        return document, behind

    def _send(
        self,
        verb: str,
        url: str,
        body: Mapping[str, object] | None,
        done: Callable[[], Any] | None,
    ) -> tuple[int, Any]:
        pause = self._write + WRITE_PAUSE - clock()
        if 0 < pause <= WRITE_PAUSE:
            sleep(pause)
        try:
            status, document, _ = self._exchange(verb, url, body, {}, done)
        finally:
            self._write = clock()
        return status, document

    def _exchange(
        self,
        verb: str,
        url: str,
        body: Mapping[str, object] | None,
        headers: dict[str, str],
        done: Callable[[], Any] | None,
    ) -> tuple[int, Any, dict[str, str]]:
        limits = 0
        for attempt in range(_ATTEMPTS):
            answer = self._once(verb, url, body, headers)
            if answer is None or answer[0] in _BUSY:
                what = "does not answer" if answer is None else f"answers {answer[0]}"
                if attempt + 1 == _ATTEMPTS:
                    raise RemoteError(
                        f"GitHub {what}, {_ATTEMPTS} times ({verb} {_short(url)})",
                        kind="unreachable",
                        hint="run the same command again later: it goes on where it "
                        "stopped",
                        where={"url": _short(url)},
                    )
                self.patience.wait(2.0**attempt, f"GitHub {what}", "unreachable")
                # It may have been done although nobody heard of it.
                if done is not None and (found := done()) is not None:
                    return 200, found, {}
                continue
            status, answered, text = answer
            document = self._parse(text, url, status) if text.strip() else None
            wait = _limit(status, answered, document, limits)
            if wait is not None:
                limits += 1
                if attempt + 1 == _ATTEMPTS:
                    wait = max(wait, _SECONDARY_WAIT * 60)
                self.patience.wait(wait, "GitHub's rate limit", "rate-limited")
                continue
            if status >= 300 and status != 304:
                raise self._refused(verb, url, status, answered, document)
            return status, document, answered
        raise RemoteError(
            "GitHub's rate limit stays",
            kind="rate-limited",
            hint="run the same command again later: it goes on where it stopped",
        )

    def _once(
        self,
        verb: str,
        url: str,
        body: Mapping[str, object] | None,
        headers: dict[str, str],
    ) -> tuple[int, dict[str, str], str] | None:
        """Send one request; return None where no answer came."""
        # Costly to import.
        import requests

        from stackctl.github.transport import EndlessError, MovedError

        requester = self._connect()
        try:
            status, answered, text = requester.requestJson(
                verb,
                url,
                headers={"Accept": "application/vnd.github+json", **headers},
                input=None if body is None else dict(body),
            )
        except requests.exceptions.SSLError as error:
            raise RemoteError(
                f"GitHub's certificate was not accepted ({self.api})",
                kind="unreachable",
                hint="set SSL_CERT_FILE or REQUESTS_CA_BUNDLE",
            ) from error
        except MovedError as error:
            raise self._moved(url, error.location) from error
        except (requests.exceptions.RequestException, OSError):
            self.close()
            return None
        except (EndlessError, RuntimeError, ValueError) as error:
            # Of PyGithub: a header that is no number.
            self.close()
            raise self._bad_answer(_short(url)) from error
        return status, {k.lower(): str(v) for k, v in answered.items()}, text

    # -- answers

    def _parse(self, text: str, url: str, status: int) -> Any:
        try:
            return json.loads(text)
        except (ValueError, RecursionError) as error:
            if status < 300:
                raise self._bad_answer(_short(url)) from error
            return {"message": text[:200]}

    def _moved(self, url: str, location: str) -> RemoteError:
        """Return the error for a redirect: the name of the repository is an old one."""
        here = urlsplit(self.api)
        there = urlsplit(urljoin(f"{self.api}/", location))
        if (here.scheme, here.netloc) != (there.scheme, there.netloc):
            return self._bad_answer(_short(url))
        name = ""
        match = re.fullmatch(r".*(/repositories/[0-9]+)(?:/.*)?", there.path)
        # Only once: what that is sent elsewhere too has no name.
        if match and not url.startswith("/repositories/"):
            with suppress(RemoteError):
                answer = self._once("GET", match[1], None, {})
                if answer is not None and answer[0] == 200:
                    found = self._parse(answer[2], match[1], 200)
                    name = str(
                        found.get("full_name") if isinstance(found, dict) else ""
                    )
        return RemoteError(
            f"{self.repo} has moved on GitHub" + (f", to {name}" if name else ""),
            kind="repository-moved",
            hint="write its name of today as `repo` in [github] of series.toml, and in "
            "each `pull` that names the old one",
            where={"repo": self.repo, "now": name or None},
        )

    def _bad_answer(self, path: str) -> RemoteError:
        return RemoteError(
            f"{self.api} answers {path} in a form that GitHub does not use",
            kind="bad-answer",
            hint="check GITHUB_API_URL",
        )

    def _refused(
        self, verb: str, url: str, status: int, headers: Mapping[str, str], found: Any
    ) -> RemoteError:
        reasons = _reasons(found)
        text = self._token.hide("; ".join(reasons) or f"status {status}")
        where: dict[str, object] = {"url": _short(url), "status": status}
        if status == 401:
            return RefusedError(
                f"GitHub does not accept the token: {text}",
                status,
                reasons,
                kind="not-logged-in",
                hint=f"make a new one; {RIGHTS}",
                where=where,
            )
        needed = headers.get("x-accepted-github-permissions", "")
        if status in (403, 404):
            hint = f"this request needs: {needed}; " if needed else ""
            what = "does not allow" if status == 403 else "does not find"
            return RefusedError(
                f"GitHub {what} {verb} {_short(url)}: {text}",
                status,
                reasons,
                kind="not-allowed" if status == 403 else "not-found",
                hint=f"{hint}{RIGHTS}",
                where=where,
            )
        return RefusedError(
            f"GitHub refuses {verb} {_short(url)}: {text}", status, reasons, where=where
        )


def _short(url: str) -> str:
    return urlsplit(url).path


def _next(link: str) -> str:
    """Return the URL of the next page from a `Link` header."""
    for part in link.split(","):
        match = re.fullmatch(r'\s*<([^>]*)>\s*;.*\brel="next".*', part)
        if match:
            return match[1]
    return ""


def _reasons(found: Any) -> tuple[str, ...]:
    if not isinstance(found, dict):
        return ()
    out = []
    errors = found.get("errors")
    for each in errors if isinstance(errors, list) else ():
        if isinstance(each, dict):
            words = [str(each[k]) for k in ("field", "code") if each.get(k)]
            out.append(str(each.get("message") or " ".join(words)))
        else:
            out.append(str(each))
    message = str(found.get("message") or "")
    if not out or message not in ("", "Validation Failed"):
        out.insert(0, message)
    return tuple(each for each in out if each)


def _limit(
    status: int, headers: Mapping[str, str], document: Any, before: int
) -> float | None:
    """Return how long a rate limit asks to wait, None where it is none.

    Args:
        status: HTTP status.
        headers: Headers of the answer, lower case.
        document: Its JSON document.
        before: How often it was a limit already, for this request.
    """
    said = "; ".join(_reasons(document))
    if status in (200, 422):
        # GraphQL answers 200 at a limit; what was created too fast is 422.
        errors = document.get("errors") if isinstance(document, dict) else None
        errors = errors if isinstance(errors, list) else []
        kinds = [each.get("type") for each in errors if isinstance(each, dict)]
        if not errors or not ("RATE_LIMITED" in kinds or _LIMIT.search(said)):
            return None
    elif status not in (403, 429):
        return None
    after = headers.get("retry-after", "")
    if after.strip().isdecimal():
        return float(after) + 1
    if headers.get("x-ratelimit-remaining") == "0":
        reset = headers.get("x-ratelimit-reset", "")
        if reset.isdecimal():
            # By the server's clock, which ours may differ from.
            now = clock()
            told = email.utils.parsedate_tz(headers.get("date", ""))
            if told is not None:
                with suppress(OverflowError, ValueError):  # no date of any calendar
                    now = email.utils.mktime_tz(told)
            return max(1.0, float(reset) - now + 1)
    if status in (200, 422, 429) or _LIMIT.search(said):
        return float(_SECONDARY_WAIT * 2**before)
    return None
