# SPDX-License-Identifier: Apache-2.0
"""How PyGithub's requests go out: no redirect is followed, no answer is endless.

PyGithub follows a redirect without the parameters of the query, and takes others for an
answer; a renamed repository would then be looked at, and changed, in part.
"""

import time
from typing import Any, Final

import requests
from github import Auth, Github
from github.Requester import (
    HTTPRequestsConnectionClass,
    HTTPSRequestsConnectionClass,
    Requester,
)

from stackctl.connection import BoundedAdapter

MAX_ANSWER: Final = 64 << 20
"""Largest answer that is read: bytes. A page of 100 pull requests is below 15 MiB."""

MAX_SECONDS: Final = 300.0
"""Longest time that one answer may take: seconds."""

_REDIRECTS: Final = frozenset((301, 302, 303, 307, 308))


class MovedError(Exception):
    """The server sends a request elsewhere.

    Args:
        location: Where to, as it says.
    """

    def __init__(self, location: str) -> None:
        super().__init__(location)
        self.location = location


class EndlessError(Exception):
    """An answer is too long."""


class _Answer:
    def __init__(self, found: requests.Response) -> None:
        self.status = found.status_code
        self.headers = found.headers
        if self.status in _REDIRECTS:
            found.close()
            raise MovedError(found.headers.get("Location", ""))
        end = time.monotonic() + MAX_SECONDS
        data = bytearray()
        for part in found.iter_content(1 << 16):
            data += part
            if len(data) > MAX_ANSWER or time.monotonic() > end:
                found.close()
                raise EndlessError
        self._text = data.decode("utf-8", "replace")

    def getheaders(self) -> Any:
        return self.headers.items()

    def read(self) -> str:
        return self._text


def _getresponse(this: Any) -> Any:
    return _Answer(
        this.session.request(
            this.verb,
            f"{this.protocol}://{this.host}:{this.port}{this.url}",
            headers=this.headers,
            data=this.input,
            timeout=this.timeout,
            verify=this.verify,
            allow_redirects=False,
            stream=True,
        )
    )


class _Http(HTTPRequestsConnectionClass):
    getresponse = _getresponse

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.session.mount("http://", BoundedAdapter(max_retries=0))


class _Https(HTTPSRequestsConnectionClass):
    getresponse = _getresponse

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.session.mount("https://", BoundedAdapter(max_retries=0))


def connect(api: str, token: str, timeout: int) -> Requester:
    """Return what sends requests; it does not wait and does not try again.

    Args:
        api: Base URL of the REST interface.
        token: Token to log in with.
        timeout: Longest silence of the server, and time until the head of an answer
            is there: seconds.
    """
    Requester.injectConnectionClasses(_Http, _Https)
    try:
        return Github(
            base_url=api,
            auth=Auth.Token(token),
            retry=None,
            timeout=timeout,
            seconds_between_requests=0,
            seconds_between_writes=0,
            user_agent="stackctl",
        ).requester
    finally:
        Requester.resetConnectionClasses()
