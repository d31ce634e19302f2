# SPDX-License-Identifier: Apache-2.0
"""What package indexes offer: pages in HTML (PEP 503) and JSON (PEP 691), and folders.

Every source that pip would ask is asked, those on this machine first. An index that
cannot be reached does not hide one that can.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urljoin, urlsplit
from urllib.request import url2pathname

from stackctl.base.pipconf import PipConfig, redact
from stackctl.base.web import PAGE_LIMIT, Page, Web
from stackctl.errors import RemoteError
from stackctl.model.ids import SHA256, Sha256

_JSON = "application/vnd.pypi.simple.v1+json"
_HTML = "application/vnd.pypi.simple.v1+html"
_ACCEPT = f"{_JSON}, {_HTML}; q=0.2, text/html; q=0.1"


@dataclass(frozen=True, slots=True)
class Listed:
    """A file that a source lists.

    Attributes:
        filename: Its name, without any folder.
        url: Where it is; may carry credentials, so never show it unredacted.
        sha256: The digest the source tells, None where it tells none.
        yanked: Why it was withdrawn, None where it was not.
        path: Where it lies, for files of this machine.
    """

    filename: str
    url: str
    sha256: Sha256 | None
    yanked: str | None = None
    path: Path | None = None


@dataclass(frozen=True, slots=True)
class Source:
    """Somewhere files are listed.

    Attributes:
        url: Page or folder; may carry credentials.
        label: The same for messages.
        local: Whether it lies on this machine.
    """

    url: str
    label: str
    local: bool


class _Links(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.base: str | None = None
        self.links: list[tuple[str, str | None]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Take note of links and of the base they are relative to."""
        values = dict(attrs)
        href = values.get("href")
        if href is None:
            return
        if tag == "base" and self.base is None:
            self.base = href
        elif tag == "a":
            yanked = values.get("data-yanked", "") if "data-yanked" in values else None
            self.links.append((href, yanked))


def _from_fragment(fragment: str) -> Sha256 | None:
    for part in fragment.split("&"):
        name, _, value = part.partition("=")
        if name == "sha256" and SHA256.match(value.lower()):
            return Sha256(value.lower())
    return None


def local_path(url: str) -> Path | None:
    """Return the path a `file:` URL names, None for other URLs."""
    parts = urlsplit(url)
    if parts.scheme != "file" or parts.netloc not in ("", "localhost"):
        return None
    return Path(url2pathname(parts.path))


def _listed(
    base: str, href: str, sha256: Sha256 | None, yanked: str | None
) -> Listed | None:
    url = urljoin(base, href.strip())
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https", "file"):
        return None
    path = local_path(url)
    if path is not None and urlsplit(base).scheme != "file":
        # A page from elsewhere has no say over files of this machine.
        return None
    name = unquote(parts.path.rstrip("/").rpartition("/")[2])
    if not name or "/" in name:
        return None
    bare = url.partition("#")[0]
    return Listed(name, bare, sha256 or _from_fragment(parts.fragment), yanked, path)


def parse_html(base: str, text: str) -> list[Listed]:
    """Return the files that an HTML page lists.

    Args:
        base: URL of the page.
        text: The page.
    """
    parser = _Links()
    parser.feed(text)
    if parser.base is not None:
        base = urljoin(base, parser.base)
    found = (_listed(base, href, None, yanked) for href, yanked in parser.links)
    return [item for item in found if item is not None]


def parse_json(base: str, data: bytes) -> list[Listed]:
    """Return the files that a JSON page lists.

    Args:
        base: URL of the page.
        data: The page.

    Raises:
        ValueError: It is no such page.
    """
    document = json.loads(data)
    if not isinstance(document, dict) or not isinstance(document.get("files"), list):
        raise ValueError("no list of files")
    files = []
    for item in document["files"]:
        if not isinstance(item, dict) or not isinstance(item.get("url"), str):
            raise ValueError("a file without a URL")
        hashes = item.get("hashes")
        value = hashes.get("sha256") if isinstance(hashes, dict) else None
        digest = None
        if isinstance(value, str) and SHA256.match(value.lower()):
            digest = Sha256(value.lower())
        yanked = item.get("yanked")
        reason = None
        if yanked is True or (isinstance(yanked, str) and yanked):
            reason = yanked if isinstance(yanked, str) else ""
        found = _listed(base, item["url"], digest, reason)
        if found is not None:
            files.append(found)
    return files


def sources(config: PipConfig, project: str) -> list[Source]:
    """Return everything that is to be asked for a project, this machine's first.

    Args:
        config: pip's configuration.
        project: Normalised name of the project.
    """
    found = []
    for link in config.find_links:
        url = link
        if urlsplit(link).scheme not in ("http", "https", "file"):
            url = Path(link).expanduser().absolute().as_uri()
        found.append(Source(url, redact(link), local_path(url) is not None))
    for index in config.indexes:
        url = index
        if urlsplit(index).scheme not in ("http", "https", "file"):
            url = Path(index).absolute().as_uri()
        found.append(
            Source(f"{url}/{project}/", redact(index), local_path(url) is not None)
        )
    return sorted(found, key=lambda source: not source.local)


def _local_files(path: Path, label: str) -> list[Listed]:
    page = path
    if path.is_dir():
        page = path / "index.html"
        if not page.is_file():
            return [
                Listed(entry.name, entry.absolute().as_uri(), None, None, entry)
                for entry in sorted(path.iterdir())
                if entry.is_file()
            ]
    try:
        with page.open("rb") as file:
            data = file.read(PAGE_LIMIT)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise RemoteError(
            f"{label}: cannot be read: {error.strerror}", kind="unreachable"
        ) from None
    base = page.absolute().as_uri()
    return parse_html(base, data.decode("utf-8", "replace"))


def files_of(source: Source, web: Web) -> list[Listed]:
    """Return the files that a source lists; none where it does not know the project.

    Raises:
        RemoteError: The source cannot be reached, refuses, or sends something else.
    """
    if source.local:
        path = local_path(source.url)
        return [] if path is None else _local_files(path, source.label)
    page = web.page(source.url, _ACCEPT)
    return [] if page is None else list(_parse(page, source))


def _parse(page: Page, source: Source) -> Iterator[Listed]:
    if page.content_type in (_JSON, "application/json"):
        try:
            yield from parse_json(page.url, page.data)
        except (ValueError, RecursionError) as error:
            raise RemoteError(
                f"{source.label}: the page is no package index page ({error})",
                kind="bad-index",
                where={"url": source.label},
            ) from None
    elif page.content_type in (_HTML, "text/html", "application/xhtml+xml", ""):
        try:
            text = page.data.decode(page.charset or "utf-8", "replace")
        except LookupError:
            text = page.data.decode("utf-8", "replace")
        yield from parse_html(page.url, text)
    else:
        raise RemoteError(
            f"{source.label}: the page is {page.content_type!r}, which no package "
            "index sends",
            kind="bad-index",
            where={"url": source.label},
        )
