# SPDX-License-Identifier: Apache-2.0
"""Images in a registry, over the distribution API version 2.

Rules that keep credentials and the reader safe:

- TLS, unless plain HTTP was asked for; a redirect never leads from TLS to plain HTTP.
- Credentials go to the registry that was asked for, and to the token service that it
  names if that is on the same host or in the same domain. Nowhere else, and never along
  a redirect to another host.
- Redirects are followed for blobs and manifests, without any credentials once the host
  changes, and not from a public host to an address of this machine or network.
- Nothing is believed of a header. Sizes and digests are those of the manifest.
- Every wait has an end: for the connection, for the next byte, and for a body that
  trickles. Answers 429 and 5xx and broken connections are tried again, a few times, and
  a broken blob is continued where it broke.
"""

import base64
import hashlib
import ipaddress
import itertools
import json
import re
import ssl
import time
import urllib.parse
from collections.abc import Iterator, Mapping
from pathlib import Path

import requests
import urllib3

from stackctl.connection import BoundedAdapter
from stackctl.errors import InputError
from stackctl.image.auth import Credentials, find_credentials
from stackctl.image.blobs import read_small, verified
from stackctl.image.errors import DigestError, LimitError, RegistryError
from stackctl.image.limits import Limits
from stackctl.image.reference import RegistryReference
from stackctl.image.source import INDEX_TYPES, MANIFEST_TYPES, Descriptor
from stackctl.image.transport import Transport

_ACCEPT = ", ".join((*MANIFEST_TYPES, *INDEX_TYPES))
#: A scheme, or a parameter of the scheme before it with its value.
_CHALLENGE = re.compile(r'([A-Za-z][\w-]*)(?:\s*=\s*(?:"([^"]*)"|([^\s,"]+)))?')
#: What may be secret in a URL: a signature in its query, a name and password.
_SECRET = re.compile(r"\?[^\s'\"]*|(?<=//)[^\s/@?'\"]*@")
_NUMBER = re.compile(r"[0-9]{1,18}")
_REDIRECTS = (301, 302, 303, 307, 308)
_MAX_REDIRECTS = 5
_TOKEN_LIMIT = 1 << 20
_READ = 1 << 18
_HUB_HOST = "registry-1.docker.io"


class _NoNetrc(requests.auth.AuthBase):
    """Keeps requests from adding credentials of its own."""

    def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        return request


class _RetryError(Exception):
    """An attempt failed in a way that may pass."""

    def __init__(
        self,
        error: RegistryError,
        wait: float | None = None,
        cause: BaseException | None = None,
    ) -> None:
        super().__init__(str(error))
        self.error = error
        self.wait = wait
        self.late = any(isinstance(e, TimeoutError) for e in _chain(cause))


class _Attempts:
    """Counts the attempts for one thing, and waits between them.

    Who does not answer in time has taken a minute, and so is asked half as often.
    """

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._used = 0

    def failed(self, exc: _RetryError, *, progress: bool = False) -> None:
        """Take note of a failure, and wait before the next attempt.

        Args:
            exc: How the attempt failed.
            progress: Whether it brought something; that earns new attempts.

        Raises:
            RegistryError: There are no attempts left.
        """
        self._used = 0 if progress else self._used + 1 + exc.late
        if self._used >= self._transport.tries:
            raise exc.error from None
        pause = exc.wait if exc.wait is not None else 0.5 * 2**self._used
        self._transport.sleep(min(pause, self._transport.longest_wait))


class Registry:
    """One repository of a registry.

    Args:
        reference: The image that was asked for.
        transport: How to talk to it.
        limits: Bounds of documents.
        environ: The process environment, for credential files, helpers and proxies.
    """

    def __init__(
        self,
        reference: RegistryReference,
        transport: Transport,
        limits: Limits,
        environ: Mapping[str, str],
    ) -> None:
        self._reference = reference
        self._transport = transport
        self._limits = limits
        self._environ = environ
        scheme = "http" if transport.plain_http else "https"
        host = _HUB_HOST if reference.host == "docker.io" else reference.host.lower()
        self._origin = f"{scheme}://{host}"
        self._base = f"{self._origin}/v2/{reference.repository}"
        self._session = requests.Session()
        self._session.trust_env = False
        for start in ("http://", "https://"):
            self._session.mount(start, BoundedAdapter())
        self._session.auth = _NoNetrc()
        self._session.headers["User-Agent"] = "stackctl"
        self._session.headers["Accept-Encoding"] = "identity"
        self._session.verify = transport.ca_file or _default_ca(environ)
        if scheme == "https" and isinstance(self._session.verify, str):
            _check_ca(self._session.verify)
        self._authorization: str | None = None
        self._credentials: Credentials | None = None
        self._looked_up = False
        self._first: tuple[str, bytes] = ("", b"")

    def roots(self) -> list[Descriptor]:
        """Return the image, its tag resolved to a digest once.

        Raises:
            RegistryError: There is none, or the registry does not answer.
        """
        if self._reference.digest:
            return [Descriptor(self._reference.digest)]
        url = f"{self._base}/manifests/{self._reference.tag}"
        codings: set[str] = set()
        data = self._small(url, codings)
        if codings and not data.lstrip().startswith(b"{"):
            raise self._encoded(codings, url)
        # The digest is that of the bytes received: a header could say anything.
        digest = "sha256:" + hashlib.sha256(data).hexdigest()
        self._first = (digest, data)
        return [Descriptor(digest, len(data))]

    def manifest(self, descriptor: Descriptor) -> Iterator[bytes]:
        """Yield a manifest by its digest."""
        if descriptor.digest == self._first[0]:
            return iter([self._first[1]])
        url = f"{self._base}/manifests/{descriptor.digest}"
        codings: set[str] = set()
        named = descriptor.digest == self._reference.digest
        try:
            data = self._small(url, codings)
        except RegistryError as exc:
            raise exc if named else _missing(exc, descriptor) from None
        return self._told(iter([data]), descriptor, codings, url)

    def blob(self, descriptor: Descriptor) -> Iterator[bytes]:
        """Yield a blob; a broken connection is taken up where it broke."""
        url = f"{self._base}/blobs/{descriptor.digest}"
        codings: set[str] = set()
        chunks = self._blob(descriptor, url, codings)
        try:
            # With it comes word of how the bytes are encoded.
            first = next(chunks, b"")
        except RegistryError as exc:
            raise _missing(exc, descriptor) from None
        yield from self._told(
            itertools.chain((first,), chunks), descriptor, codings, url
        )

    def _told(
        self,
        chunks: Iterator[bytes],
        descriptor: Descriptor,
        codings: set[str],
        url: str,
    ) -> Iterator[bytes]:
        """Yield a blob, and blame its encoding where it is not what was named.

        A header is no evidence, so that bytes that hash to the digest are taken.
        """
        if not codings:
            yield from chunks
            return
        try:
            yield from verified(chunks, descriptor.digest, descriptor.size, url)
        except DigestError:
            raise self._encoded(codings, url) from None

    def _encoded(self, codings: set[str], url: str) -> RegistryError:
        return self._error(
            f"it, or a proxy before it, sends Content-Encoding: {min(codings)[:40]!r} "
            "although the bytes were asked for as they are",
            url,
            kind="registry-encoding",
            hint="ask the registry without that proxy, or turn its compression off",
        )

    def _blob(
        self, descriptor: Descriptor, url: str, codings: set[str]
    ) -> Iterator[bytes]:
        done = 0
        attempts = _Attempts(self._transport)
        while True:
            before = done
            try:
                for chunk in self._stream(url, "*/*", codings, done, descriptor.size):
                    done += len(chunk)
                    yield chunk
                return
            except _RetryError as exc:
                attempts.failed(exc, progress=done - before > 1 << 20)

    def _small(self, url: str, codings: set[str]) -> bytes:
        attempts = _Attempts(self._transport)
        while True:
            try:
                data = read_small(
                    self._stream(url, _ACCEPT, codings), self._limits.manifest, url
                )
                if data:
                    return data
                raise _RetryError(
                    self._error(
                        "it answers with nothing", url, kind="registry-truncated"
                    )
                )
            except _RetryError as exc:
                attempts.failed(exc)

    def _stream(
        self,
        url: str,
        accept: str,
        codings: set[str],
        offset: int = 0,
        size: int | None = None,
    ) -> Iterator[bytes]:
        """Yield a body from an offset on.

        Args:
            url: Where it is.
            accept: Media types that may come.
            codings: Is told the encodings that the answer states.
            offset: How many bytes of it are here already.
            size: How long the whole must be, in bytes, if that is known.
        """
        response = self._get(url, accept, offset)
        coding = response.headers.get("Content-Encoding", "").strip().lower()
        if coding not in ("", "identity"):
            codings.add(coding)
        skip = 0
        if offset and response.status_code == 200:
            skip = offset
        started = time.monotonic()
        total = 0
        try:
            while True:
                chunk = response.raw.read1(_READ, decode_content=False)
                if not chunk:
                    break
                total += len(chunk)
                elapsed = time.monotonic() - started
                if (
                    elapsed > self._transport.read_seconds
                    and total < elapsed * self._transport.slowest
                ):
                    raise self._error(
                        f"the body trickles: {total} bytes in {elapsed:.0f} s",
                        url,
                        kind="registry-slow",
                    )
                if skip:
                    cut = min(skip, len(chunk))
                    skip -= cut
                    chunk = chunk[cut:]
                if chunk:
                    yield chunk
            # A body that says where it ends, and ends there, is whole: if it is not
            # what was named, asking again does not make it so.
            expected = _number(response.headers.get("Content-Length"))
            if expected is None and not _is_chunked(response) and size is not None:
                expected = size - offset if response.status_code == 206 else size
            if expected is not None and total < expected:
                raise _RetryError(
                    self._error(
                        f"the body ended after {total} of {expected} bytes",
                        url,
                        kind="registry-truncated",
                    )
                )
        except (urllib3.exceptions.HTTPError, OSError) as exc:
            raise _RetryError(self._error(_reason(exc), url), cause=exc) from None
        finally:
            response.close()

    def _get(self, url: str, accept: str, offset: int) -> requests.Response:
        """Return the answer to a request, authorised and redirected by the rules."""
        authorised = False
        while True:
            response = self._redirected(url, accept, offset)
            if response.status_code == 401 and not authorised:
                challenge = response.headers.get("WWW-Authenticate", "")
                home = _origin(response.url) == self._origin
                response.close()
                if not home:
                    raise self._error(
                        f"{_origin(response.url)}, where it redirects to, asks for "
                        "credentials; it gets none",
                        url,
                        kind="registry-auth",
                    )
                self._authorise(challenge or self._challenge(), url)
                authorised = True
                continue
            self._check_status(response, url)
            return response

    def _challenge(self) -> str:
        """Return how the registry as a whole asks for credentials."""
        response = self._redirected(f"{self._origin}/v2/", "*/*", 0)
        response.close()
        if response.status_code != 401 or _origin(response.url) != self._origin:
            return ""
        return response.headers.get("WWW-Authenticate", "")

    def _redirected(self, url: str, accept: str, offset: int) -> requests.Response:
        asked = url
        for _ in range(_MAX_REDIRECTS + 1):
            headers = {"Accept": accept}
            if offset:
                headers["Range"] = f"bytes={offset}-"
            if self._authorization and _origin(url) == self._origin:
                headers["Authorization"] = self._authorization
            response = self._send("GET", url, headers)
            if response.status_code not in _REDIRECTS:
                return response
            location = response.headers.get("Location", "")
            response.close()
            url = self._checked_redirect(url, location, asked)
        raise self._error(
            f"more than {_MAX_REDIRECTS} redirects", asked, kind="registry-redirect"
        )

    def _send(
        self,
        method: str,
        url: str,
        headers: Mapping[str, str],
        data: Mapping[str, str] | None = None,
    ) -> requests.Response:
        try:
            return self._session.request(
                method,
                url,
                headers=dict(headers),
                data=data,
                stream=True,
                allow_redirects=False,
                timeout=(
                    self._transport.connect_seconds,
                    self._transport.read_seconds,
                ),
                proxies=_proxies(url, self._environ),
            )
        except requests.exceptions.SSLError as exc:
            raise self._error(
                f"TLS fails: {_reason(exc)}",
                url,
                kind="registry-tls",
                hint="trust its certificate with --ca-file, or ask for --plain-http "
                "if this registry has none",
            ) from None
        except requests.exceptions.RequestException as exc:
            raise _RetryError(self._error(_reason(exc), url), cause=exc) from None
        except (urllib3.exceptions.HTTPError, UnicodeError, ValueError) as exc:
            raise self._error(_reason(exc), url) from None

    def _checked_redirect(self, source: str, location: str, asked: str) -> str:
        old = urllib.parse.urlsplit(source)
        target, new = _split(source, location)
        why = ""
        if new is None:
            why = f"a redirect to {_bare(location)!r}"
        elif new.scheme not in ("http", "https") or not new.hostname:
            why = f"a redirect to {_bare(target)!r}"
        elif old.scheme == "https" and new.scheme != "https":
            why = f"a redirect from TLS to plain HTTP at {new.netloc}"
        elif _is_local(new.hostname) and not _is_local(old.hostname or ""):
            why = f"a redirect to the local address {new.netloc}"
        if why:
            raise self._error(f"{why} is not followed", asked, kind="registry-redirect")
        return target

    def _check_status(self, response: requests.Response, url: str) -> None:
        status = response.status_code
        if status in (200, 206):
            return
        retry_after = response.headers.get("Retry-After", "")
        response.close()
        if status == 429 or status >= 500:
            wait = _number(retry_after)
            raise _RetryError(self._error(f"it answers {status}", url), wait)
        if status in (401, 403):
            raise self._error(
                f"it answers {status}: not allowed",
                url,
                kind="registry-auth",
                hint="log in with docker or podman login, or check the name",
            )
        if status == 404:
            raise self._error(
                "there is no such image or blob in it",
                url,
                kind="registry-not-found",
                hint="check the name, the tag, and whether the push was complete",
            )
        raise self._error(f"it answers {status}", url)

    def _authorise(self, challenge: str, url: str) -> None:
        """Get the authorization that a registry asks for in its challenge."""
        offered = _challenges(challenge)
        fields = offered.get("bearer", {})
        if not self._looked_up:
            self._credentials = find_credentials(
                self._reference.host, self._reference.repository, self._environ
            )
            self._looked_up = True
        # Docker takes a token too where a registry offers both.
        if fields.get("realm"):
            self._authorization = f"Bearer {self._token(fields, url)}"
        elif "basic" in offered:
            if self._credentials is None or self._credentials.identity_token:
                raise self._error(
                    "it asks for a name and password and there are none",
                    url,
                    kind="registry-auth",
                    hint="log in with docker login or podman login",
                )
            self._authorization = _basic(self._credentials)
        else:
            raise self._error(
                f"it asks for authentication in an unknown way: {challenge[:80]!r}",
                url,
                kind="registry-auth",
            )

    def _token(self, fields: Mapping[str, str], url: str) -> str:
        realm = fields["realm"]
        _, target = _split("", realm)
        if (
            target is None
            or target.scheme not in ("http", "https")
            or not target.hostname
        ):
            raise self._error(f"its token service is {_bare(realm)!r}", url)
        credentials = self._credentials
        if target.scheme == "http" and not self._transport.plain_http:
            raise self._error(
                f"its token service {_bare(realm)!r} is without TLS",
                url,
                kind="registry-auth",
            )
        if not self._may_have_credentials(target.hostname):
            if credentials is not None:
                raise self._error(
                    f"it sends us to {target.netloc} with its credentials, which is "
                    "neither its host nor in its domain",
                    url,
                    kind="registry-realm",
                    hint=f"if that is right, ask for --auth-host {target.hostname}",
                )
            if _is_local(target.hostname):
                raise self._error(
                    f"it sends us to the other local host {target.netloc}",
                    url,
                    kind="registry-realm",
                    hint=f"if that is right, ask for --auth-host {target.hostname}",
                )
        scope = f"repository:{self._reference.repository}:pull"
        service = fields.get("service", "")
        attempts = _Attempts(self._transport)
        while True:
            try:
                return self._ask_token(realm, service, scope, credentials, url)
            except _RetryError as exc:
                attempts.failed(exc)

    def _ask_token(
        self,
        realm: str,
        service: str,
        scope: str,
        credentials: Credentials | None,
        url: str,
    ) -> str:
        if credentials is not None and credentials.identity_token:
            response = self._send(
                "POST",
                realm,
                {},
                {
                    "grant_type": "refresh_token",
                    "refresh_token": credentials.identity_token,
                    "service": service,
                    "scope": scope,
                    "client_id": "stackctl",
                },
            )
        else:
            named = {"service": service} if service else {}
            query = urllib.parse.urlencode({**named, "scope": scope})
            joint = "&" if urllib.parse.urlsplit(realm).query else "?"
            headers = {"Authorization": _basic(credentials)} if credentials else {}
            response = self._send("GET", f"{realm}{joint}{query}", headers)
        if response.status_code in _REDIRECTS:
            response.close()
            raise self._error(
                "its token service redirects, which is not followed",
                url,
                kind="registry-realm",
            )
        self._check_status(response, realm)
        try:
            body = read_small(
                iter(lambda: response.raw.read1(_READ, decode_content=False), b""),
                _TOKEN_LIMIT,
                "the answer of the token service",
            )
            answer = json.loads(body)
        except (urllib3.exceptions.HTTPError, OSError) as exc:
            raise _RetryError(self._error(_reason(exc), realm), cause=exc) from None
        except (ValueError, RecursionError, LimitError):
            answer = None
        finally:
            response.close()
        # What it says may hold a secret, so it is not shown.
        if not isinstance(answer, dict):
            raise self._error("its token service gives no token", url)
        token = answer.get("token") or answer.get("access_token")
        if not isinstance(token, str) or not token or not token.isascii():
            raise self._error("its token service gives no token", url)
        if not token.isprintable():
            raise self._error("its token service gives no usable token", url)
        return token

    def _may_have_credentials(self, host: str) -> bool:
        own = urllib.parse.urlsplit(self._origin).hostname or ""
        if host in (own, self._transport.auth_host):
            return True
        if _address(host) or _address(own):
            return False
        # Two labels are enough for the registries in use: docker.io, gitlab.com.
        domain = own.split(".")[-2:]
        return len(domain) == 2 and host.split(".")[-2:] == domain

    def _error(
        self,
        why: str,
        url: str,
        *,
        kind: str = "registry",
        hint: str | None = None,
    ) -> RegistryError:
        return RegistryError(
            f"the registry {self._reference.host}: {_SECRET.sub('', why)}",
            kind=kind,
            hint=hint or "check the name and the network, then try again",
            where={"url": _SECRET.sub("", url)},
        )


def _challenges(text: str) -> dict[str, dict[str, str]]:
    """Return the ways of authentication that a header offers, by their scheme.

    Args:
        text: One header, or several joined by commas.
    """
    found: dict[str, dict[str, str]] = {}
    fields: dict[str, str] = {}
    for part in _CHALLENGE.finditer(text):
        name, quoted, plain = part.groups()
        if quoted is None and plain is None:
            fields = found.setdefault(name.lower(), {})
        else:
            fields.setdefault(name.lower(), quoted or plain or "")
    return found


def _missing(error: RegistryError, descriptor: Descriptor) -> Exception:
    """Return the error for what a manifest names and its registry does not have."""
    if error.kind != "registry-not-found":
        return error
    return DigestError(
        f"{error.message.partition(':')[0]} has no {descriptor.digest}, which its "
        "manifest names",
        kind="missing-blob",
        hint="the image was not pushed completely: push it again",
        where=error.where,
    )


def _number(text: str | None) -> int | None:
    """Return the number that a header states, None where it states none."""
    return int(text) if text and _NUMBER.fullmatch(text) else None


def _is_chunked(response: requests.Response) -> bool:
    return "chunked" in response.headers.get("Transfer-Encoding", "").lower()


def _split(base: str, text: str) -> tuple[str, urllib.parse.SplitResult | None]:
    """Return a reference's URL and its parts, None if it cannot be one."""
    try:
        url = urllib.parse.urljoin(base, text)
        parts = urllib.parse.urlsplit(url)
        parts.port  # noqa: B018  it is read now, to fail now
    except ValueError:
        return text, None
    return url, parts


def _basic(credentials: Credentials) -> str:
    pair = f"{credentials.username}:{credentials.password}".encode()
    return "Basic " + base64.b64encode(pair).decode()


def _origin(url: str | None) -> str:
    parts = urllib.parse.urlsplit(url or "")
    return f"{parts.scheme}://{parts.netloc}"


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return None


def _is_local(host: str) -> bool:
    address = _address(host)
    if address is not None:
        return not address.is_global
    return host == "localhost" or host.endswith((".localhost", ".local", ".internal"))


def _chain(exc: BaseException | None) -> Iterator[BaseException]:
    """Yield an exception and what it came of."""
    while exc is not None:
        yield exc
        exc = exc.__cause__ or exc.__context__


def _reason(exc: Exception) -> str:
    cause = [*_chain(exc)][-1]
    return _bare(f"{type(cause).__name__}: {cause}", 300)


def _bare(text: str, most: int = 80) -> str:
    """Return a text without the queries and passwords of URLs in it."""
    return _SECRET.sub("", text)[:most]


def _default_ca(environ: Mapping[str, str]) -> str | bool:
    return environ.get("SSL_CERT_FILE") or environ.get("REQUESTS_CA_BUNDLE") or True


def _check_ca(path: str) -> None:
    """Refuse a file or folder without certificates.

    Raises:
        InputError: It has none, or cannot be read.
    """
    folder = Path(path).is_dir()
    try:
        ssl.create_default_context(
            cafile=None if folder else path, capath=path if folder else None
        )
    except (OSError, ValueError) as exc:
        why = exc.strerror if isinstance(exc, FileNotFoundError) else "not in PEM form"
        raise InputError(
            f"no certificates can be read from {path}: {why}",
            kind="bad-ca-file",
            hint="name a file of certificates with --ca-file, or SSL_CERT_FILE",
            where={"file": path},
        ) from None


def _proxies(url: str, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the proxies of an environment for a URL."""
    parts = urllib.parse.urlsplit(url)
    no_proxy = environ.get("no_proxy") or environ.get("NO_PROXY") or ""
    if _is_local(parts.hostname or "") or requests.utils.should_bypass_proxies(
        url, no_proxy
    ):
        return {}
    found = {}
    for scheme in ("http", "https"):
        value = environ.get(f"{scheme}_proxy") or environ.get(f"{scheme.upper()}_PROXY")
        if value:
            found[scheme] = value
    return found
