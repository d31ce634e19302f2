# SPDX-License-Identifier: Apache-2.0
"""Distributions from the configured package indexes, chosen by digest, never built."""

import os
import re
from dataclasses import dataclass, field
from pathlib import Path

from stackctl.base.index import Listed, Source, files_of, sources
from stackctl.base.pipconf import PipConfig, load, redact
from stackctl.base.web import Web, offline_error, verified
from stackctl.cache import Cache
from stackctl.errors import InputError, PinError, RemoteError
from stackctl.fsutil import sha256_of_file
from stackctl.model.ids import Sha256
from stackctl.progress import SILENT, Progress

_SDIST = (".tar.gz", ".zip", ".tar.bz2", ".tar.xz", ".tgz")
_PIN = re.compile(
    r"\s*([A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?)\s*==\s*([A-Za-z0-9.!+_-]+)\s*\Z"
)


def split_pin(pin: str) -> tuple[str, str]:
    """Return normalised project and version of a pin like `vllm==0.33.0`.

    Raises:
        InputError: It is no pin of one version.
    """
    match = _PIN.match(pin)
    if match is None:
        raise InputError(
            f"{pin!r} is not of the form name==version",
            kind="bad-pin",
            hint='write an exact version, like "vllm==0.33.0"',
        )
    return re.sub(r"[-_.]+", "-", match[1]).lower(), match[2]


def _named(filename: str, project: str, version: str, wheel: bool) -> bool:
    """Return whether a file name is one of a project's version."""
    from packaging.utils import canonicalize_name
    from packaging.version import InvalidVersion, Version

    if wheel:
        parts = filename.removesuffix(".whl").split("-")
        if not filename.endswith(".whl") or len(parts) not in (5, 6):
            return False
        name, found = parts[:2]
    else:
        suffix = next((s for s in _SDIST if filename.endswith(s)), None)
        if suffix is None:
            return False
        name, _, found = filename.removesuffix(suffix).rpartition("-")
    if not name or canonicalize_name(name) != project:
        return False
    try:
        return Version(found) == Version(version)
    except InvalidVersion:
        return found == version


def _is_sdist_of(filename: str, project: str) -> bool:
    from packaging.utils import canonicalize_name

    suffix = next((s for s in _SDIST if filename.endswith(s)), None)
    if suffix is None:
        return False
    name, _, version = filename.removesuffix(suffix).rpartition("-")
    return bool(version[:1].isdigit() and name and canonicalize_name(name) == project)


@dataclass(slots=True)
class _Search:
    """What was seen on the way, for the error where nothing fits."""

    project: str
    version: str
    sha256: Sha256
    wheel: bool
    asked: list[str] = field(default_factory=list)
    failures: list[RemoteError] = field(default_factory=list)
    others: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    undigested: list[Listed] = field(default_factory=list)

    @property
    def pin(self) -> str:
        return f"{self.project}=={self.version}"

    @property
    def what(self) -> str:
        return "wheel" if self.wheel else "sdist"

    def matching(self, files: list[Listed], source: Source) -> list[Listed]:
        """Return the files of a source that are certainly, by name and digest, it."""
        found = []
        for item in files:
            named = _named(item.filename, self.project, self.version, self.wheel)
            if item.sha256 == self.sha256 and not named:
                raise PinError(
                    f"the pinned SHA-256 {self.sha256} is that of {item.filename!r} "
                    f"in {source.label}, which is no {self.what} of {self.pin}",
                    kind="wrong-file",
                    hint=f"pin the digest of the {self.what}",
                    where={"pin": self.pin, "filename": item.filename},
                )
            if not named:
                if _is_sdist_of(item.filename, self.project):
                    self.others.append(item.filename)
                continue
            digest = item.sha256
            if digest is None and item.path is not None:
                try:
                    digest = Sha256(sha256_of_file(item.path))
                except OSError:
                    continue
            if digest is None:
                self.undigested.append(item)
            elif digest == self.sha256:
                found.append(item)
            else:
                self.wrong.append(f"{item.filename} ({digest}) in {source.label}")
        return found

    def not_found(self) -> PinError | RemoteError:
        """Return the error for a file that no source has."""
        asked = ", ".join(self.asked) or "none (no-index is set, and no find-links)"
        where: dict[str, object] = {"pin": self.pin, "asked": self.asked}
        if self.wrong:
            return PinError(
                f"{self.pin}: expected the {self.what} with SHA-256 {self.sha256}, "
                "found " + "; ".join(self.wrong),
                kind="wrong-digest",
                hint="the file is not the one that was pinned: find out why before "
                "you change the pin",
                where=where,
            )
        if self.failures:
            reasons = "; ".join(error.message for error in self.failures)
            return RemoteError(
                f"{self.pin}: no {self.what} found, and not every index could be "
                f"asked: {reasons}",
                kind=self.failures[0].kind,
                hint=self.failures[0].hint,
                where=where,
            )
        names = sorted(set(self.others))
        others = ", ".join(names[:10]) + (" …" if len(names) > 10 else "")
        return PinError(
            f"{self.pin}: no {self.what} found. Asked: {asked}. Sdists there of this "
            f"project: {others or 'none'}",
            kind="not-found",
            hint="check the name, the version and pip's configuration "
            "(`pip config list`, PIP_INDEX_URL, PIP_EXTRA_INDEX_URL, PIP_FIND_LINKS)",
            where=where,
        )


def fetch_distribution(
    pin: str,
    expected: Sha256,
    *,
    cache: Cache,
    wheel: bool = False,
    offline: bool = False,
    config: PipConfig | None = None,
    progress: Progress = SILENT,
) -> Path:
    """Return the path of a distribution file, fetched where it is not cached.

    Its bytes have the digest now; whoever uses them checks again what it reads.

    Args:
        pin: Project and version, like `vllm==0.33.0`.
        expected: SHA-256 of the file.
        cache: Where downloads are kept.
        wheel: Look for a wheel instead of an sdist.
        offline: Ask only what lies on this machine.
        config: pip's configuration; read from this machine by default.
        progress: Told the bytes of a download.

    Raises:
        PinError: No source has the file, or one has another under its name.
        RemoteError: It had to be fetched and could not.
    """
    project, version = split_pin(pin)
    cached = cache.downloads / expected
    if verified(cached, expected):
        return cached
    config = config or load()
    search = _Search(project, version, expected, wheel)
    skipped = False
    with Web(config) as web:
        for source in sources(config, project):
            if offline and not source.local:
                skipped = True
                continue
            search.asked.append(source.label)
            try:
                found = search.matching(files_of(source, web), source)
                for item in found:
                    path = _obtain(item, search, web, cache, offline, progress)
                    if path is not None:
                        return path
            except RemoteError as error:
                search.failures.append(error)
        for item in search.undigested:
            try:
                path = _obtain(item, search, web, cache, offline, progress)
            except PinError as error:
                search.wrong.append(error.message)
            except RemoteError as error:
                search.failures.append(error)
            else:
                if path is not None:
                    return path
    if skipped and not search.wrong:
        raise offline_error(f"the {search.what} of {search.pin}", {"pin": search.pin})
    raise search.not_found()


def _obtain(
    item: Listed,
    search: _Search,
    web: Web,
    cache: Cache,
    offline: bool,
    progress: Progress,
) -> Path | None:
    if item.path is not None:
        if item.sha256 is not None:
            # A page's word for a file of this machine is not enough.
            try:
                digest = sha256_of_file(item.path)
            except OSError as error:
                raise RemoteError(
                    f"{item.path}: cannot be read: {error.strerror}", kind="unreachable"
                ) from None
            if digest != search.sha256:
                search.wrong.append(f"{item.filename} ({digest}) at {item.path}")
                return None
        return item.path
    if offline:
        return None
    if item.yanked is not None:
        reason = f": {item.yanked}" if item.yanked else ""
        progress.note(f"{item.filename} was yanked from its index{reason}")
    progress.note(f"fetching {item.filename} from {redact(item.url)}")
    return web.download(item.url, search.sha256, cache, progress)


def fetch_url(
    url: str,
    expected: Sha256,
    *,
    cache: Cache,
    offline: bool = False,
    config: PipConfig | None = None,
    progress: Progress = SILENT,
) -> Path:
    """Return the path of a file from a URL, fetched where it is not cached.

    Args:
        url: `https:` or `http:`.
        expected: SHA-256 of the file.
        cache: Where downloads are kept.
        offline: Do not fetch.
        config: pip's configuration, for proxies and certificates.
        progress: Told the bytes of a download.

    Raises:
        PinError: The server sends something else.
        RemoteError: It had to be fetched and could not.
    """
    cached = cache.downloads / expected
    if verified(cached, expected):
        return cached
    if offline:
        raise offline_error(redact(url), {"url": redact(url)})
    with Web(config or load(os.environ)) as web:
        return web.download(url, expected, cache, progress)
