# SPDX-License-Identifier: Apache-2.0
"""HTTP as pip is configured for it: proxies, certificates, credentials, retries.

Credentials come from a URL, from the index URL of the same origin, or from netrc, as
for pip. They go to that origin only, and never into a message: every URL is shown
through `redact`, and the HTTP library's exception texts, which quote URLs, never.
"""

import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import unquote, urlsplit

from stackctl.base.archive import wrong_digest
from stackctl.base.limits import LIMITS, MIB
from stackctl.base.pipconf import PipConfig, redact
from stackctl.cache import Cache, disk_error
from stackctl.errors import InputError, RemoteError, StackctlError
from stackctl.fsutil import sha256_of_file
from stackctl.model.ids import Sha256
from stackctl.progress import SILENT, Progress

if TYPE_CHECKING:
    import requests

PAGE_LIMIT = 64 * MIB
"""Largest index page accepted; the largest on PyPI has about 10 MB."""

_CHUNK = MIB // 4
_AGAIN = (408, 429, 500, 502, 503, 504, 520, 522, 524)
_LONGEST_WAIT = 8.0
_ERRNO = re.compile(r"\[Errno -?\d+\] [\w ,.-]+")


def offline_error(what: str, where: dict[str, object]) -> RemoteError:
    """Return the error for something that is not cached and must not be fetched."""
    return RemoteError(
        f"{what} is not in the cache, and --offline forbids fetching it",
        kind="offline",
        hint="run the command once without --offline",
        where=where,
    )


def _origin(url: str) -> tuple[str, str, int | None]:
    parts = urlsplit(url)
    port = parts.port or {"http": 80, "https": 443}.get(parts.scheme)
    return parts.scheme, (parts.hostname or "").lower(), port


def _credentials(url: str) -> tuple[str, str] | None:
    parts = urlsplit(url)
    if parts.username is None:
        return None
    return unquote(parts.username), unquote(parts.password or "")


def verified(path: Path, expected: Sha256) -> bool:
    """Return whether a file is there and has a digest."""
    return path.exists() and sha256_of_file(path) == expected


@dataclass(slots=True)
class Page:
    """A fetched page.

    Attributes:
        url: Where it came from in the end (after redirects).
        content_type: Media type, lower case, without parameters.
        charset: Its character set where one was told.
        data: Its bytes.
    """

    url: str
    content_type: str
    charset: str | None
    data: bytes = field(repr=False)


class Web:
    """A session with the package indexes.

    Args:
        config: pip's configuration.
        sleep: Waits between attempts.
    """

    def __init__(
        self, config: PipConfig, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self._config = config
        self._sleep = sleep
        self._session: requests.Session | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._session is not None:
            self._session.close()

    def _connect(self) -> "requests.Session":
        if self._session is not None:
            return self._session
        import requests
        from requests.adapters import HTTPAdapter
        from requests.auth import AuthBase, HTTPBasicAuth
        from requests.utils import get_netrc_auth

        known = [
            (url, found)
            for url in (*self._config.indexes, *self._config.find_links)
            if "://" in url and (found := _credentials(url)) is not None
        ]

        class Credentials(AuthBase):
            """Adds what belongs to a request's origin."""

            def __call__(self, request: Any) -> Any:
                pair = _credentials(request.url)
                if pair is None:
                    origin = _origin(request.url)
                    pair = next((p for u, p in known if _origin(u) == origin), None)
                pair = pair or get_netrc_auth(request.url)
                return HTTPBasicAuth(*pair)(request) if pair else request

        class Unchecked(HTTPAdapter):
            """Does not look at certificates, for hosts the user trusts."""

            def cert_verify(self, conn: Any, url: Any, verify: Any, cert: Any) -> None:
                super().cert_verify(conn, url, False, cert)  # type: ignore[no-untyped-call]

            def send(self, request: Any, **options: Any) -> Any:  # type: ignore[override]
                options["verify"] = False
                return super().send(request, **options)

        session = requests.Session()
        session.auth = Credentials()
        session.headers["User-Agent"] = "stackctl"
        session.headers["Accept-Encoding"] = "identity"
        for host in self._config.trusted_hosts:
            session.mount(f"https://{host}/", Unchecked())
            if ":" not in host:
                session.mount(f"https://{host}:", Unchecked())
        self._session = session
        return session

    def _get(self, url: str, headers: dict[str, str]) -> "requests.Response":
        """Send one request, repeated while the server is busy or cannot be reached."""
        session = self._connect()
        import requests

        config = self._config
        proxies = {"http": config.proxy, "https": config.proxy} if config.proxy else {}
        for attempt in range(config.retries + 1):
            last = attempt == config.retries
            try:
                response = session.get(
                    url,
                    headers=headers,
                    stream=True,
                    timeout=config.timeout or None,
                    verify=config.cert or True,
                    cert=config.client_cert,
                    proxies=proxies,
                )
            except requests.exceptions.SSLError as error:
                raise self._unreachable(url, error) from None
            except (
                requests.exceptions.ConnectionError,
                requests.exceptions.Timeout,
            ) as error:
                if last:
                    raise self._unreachable(url, error) from None
            except (requests.exceptions.RequestException, OSError) as error:
                # OSError: the configured CA bundle or client certificate is missing.
                raise self._unreachable(url, error) from None
            else:
                if response.status_code not in _AGAIN or last:
                    return response
                response.close()
            self.pause(attempt)
        raise AssertionError("unreachable")

    def pause(self, attempt: int) -> None:
        """Wait before another attempt, longer each time."""
        self._sleep(min(0.25 * 2**attempt, _LONGEST_WAIT))

    def _unreachable(self, url: str, error: Exception) -> RemoteError:
        import requests

        kinds = (
            (requests.exceptions.SSLError, "its certificate was not accepted"),
            (requests.exceptions.ProxyError, "the proxy failed"),
            (requests.exceptions.Timeout, "it does not answer in time"),
            (requests.exceptions.TooManyRedirects, "it redirects without end"),
            (requests.exceptions.ConnectionError, "no connection"),
            (requests.exceptions.RequestException, "the URL cannot be used"),
        )
        reason = next(
            (text for kind, text in kinds if isinstance(error, kind)),
            "a configured certificate file cannot be read",
        )
        detail = _ERRNO.search(str(error))
        if detail is not None:
            reason += f" ({detail[0].strip()})"
        return RemoteError(
            f"{redact(url)}: {reason}",
            kind="unreachable",
            hint="check the network, the proxy variables and pip's configuration "
            "(`pip config list`)",
            where={"url": redact(url)},
        )

    def _refused(self, url: str, status: int) -> RemoteError:
        hint = None
        if status in (401, 403, 407):
            hint = "put credentials into ~/.netrc or the index URL, as for pip"
        return RemoteError(
            f"{redact(url)}: the server answers {status}",
            kind="http",
            hint=hint,
            where={"url": redact(url), "status": status},
        )

    def page(self, url: str, accept: str) -> Page | None:
        """Fetch a page.

        Args:
            url: Where it is.
            accept: Media types wanted.

        Returns:
            The page, None where there is none (404, 410).

        Raises:
            RemoteError: The server cannot be reached or refuses.
        """
        import urllib3

        for attempt in range(self._config.retries + 1):
            with self._get(
                url, {"Accept": accept, "Cache-Control": "max-age=0"}
            ) as got:
                if got.status_code in (404, 410):
                    return None
                if got.status_code != 200:
                    raise self._refused(url, got.status_code)
                try:
                    data = got.raw.read(PAGE_LIMIT + 1, decode_content=True)
                    # A first read may be short where the body comes in chunks.
                    while part := got.raw.read(_CHUNK, decode_content=True):
                        data += part
                        if len(data) > PAGE_LIMIT:
                            break
                except (urllib3.exceptions.HTTPError, OSError):
                    self.pause(attempt)
                    continue
                if len(data) > PAGE_LIMIT:
                    raise RemoteError(
                        f"{redact(url)}: the page has more than {PAGE_LIMIT:,} bytes",
                        kind="limit",
                        where={"url": redact(url)},
                    )
                kind, _, parameters = got.headers.get("Content-Type", "").partition(";")
                charset = re.search(r"charset=\"?([\w-]+)", parameters, re.IGNORECASE)
                return Page(
                    got.url,
                    kind.strip().lower(),
                    charset[1] if charset else None,
                    data,
                )
        raise self._cut_off(url)

    def _cut_off(self, url: str) -> RemoteError:
        return RemoteError(
            f"{redact(url)}: the connection broke each time",
            kind="unreachable",
            hint="run the command again; a download goes on where it stopped",
            where={"url": redact(url)},
        )

    def download(
        self,
        url: str,
        expected: Sha256,
        cache: Cache,
        progress: Progress = SILENT,
    ) -> Path:
        """Fetch a file into the cache; what was there already of it is kept.

        Args:
            url: Where it is.
            expected: Its SHA-256, under which the cache keeps it.
            cache: Takes the file.
            progress: Told the bytes.

        Returns:
            Path of the file.

        Raises:
            PinError: What the server sends has another digest; nothing is kept.
            RemoteError: The server cannot be reached or refuses.
            InputError: The disk is full, or the file is too large.
        """
        final = cache.downloads / expected
        with cache.lock(f"download-{expected}"):
            if verified(final, expected):
                return final
            # A damaged entry holds nothing that cannot be fetched again.
            final.unlink(missing_ok=True)
            part = cache.downloads / f"{expected}.part"
            try:
                cache.downloads.mkdir(parents=True, exist_ok=True)
                self._fill(url, expected, part, progress)
                part.chmod(0o444)
                part.replace(final)
            except StackctlError as error:
                if not isinstance(error, RemoteError):
                    part.unlink(missing_ok=True)
                raise
            except OSError as error:
                part.unlink(missing_ok=True)
                raise disk_error(error, cache.downloads) from None
        return final

    def _fill(self, url: str, expected: Sha256, part: Path, progress: Progress) -> None:
        for attempt in range(self._config.retries + 1):
            start = part.stat().st_size if part.exists() else 0
            complete, resumed = self._fetch_rest(url, part, start, progress)
            if not complete:
                self.pause(attempt)
                continue
            found = sha256_of_file(part)
            if found == expected:
                return
            part.unlink()
            if not resumed:
                raise wrong_digest(redact(url), expected, found)
            # The beginning may have been that of another file: once more from scratch.
        raise self._cut_off(url)

    def _fetch_rest(
        self, url: str, part: Path, start: int, progress: Progress
    ) -> tuple[bool, bool]:
        """Append what is missing; return whether all came, and whether by a range."""
        import urllib3

        headers = {"Range": f"bytes={start}-"} if start else {}
        with self._get(url, headers) as got:
            if got.status_code == 416 and start:
                # Nothing lies behind what we have: it is whole, or something else.
                return True, True
            resumed = got.status_code == 206 and got.headers.get(
                "Content-Range", ""
            ).startswith(f"bytes {start}-")
            if got.status_code not in (200, 206) or (
                got.status_code == 206 and not resumed
            ):
                raise self._refused(url, got.status_code)
            done = start if resumed else 0
            length = got.headers.get("Content-Length", "")
            total = done + int(length) if length.isdecimal() else None
            with part.open("ab" if resumed else "wb") as file:
                while True:
                    try:
                        chunk = got.raw.read(_CHUNK, decode_content=False)
                    except (urllib3.exceptions.HTTPError, TimeoutError):
                        return False, resumed
                    if not chunk:
                        break
                    done += len(chunk)
                    if done > LIMITS.archive_bytes:
                        raise InputError(
                            f"{redact(url)}: has more than {LIMITS.archive_bytes:,} "
                            "bytes",
                            kind="limit",
                            where={"url": redact(url)},
                        )
                    file.write(chunk)
                    progress.update("download", done, total)
            return total is None or done == total, resumed
