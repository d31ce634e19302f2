# SPDX-License-Identifier: Apache-2.0
"""What a reference names: skopeo's transports and three of our own."""

import re
from pathlib import Path
from typing import NamedTuple

from stackctl.errors import UsageError

TRANSPORTS = (
    "oci",
    "oci-archive",
    "docker-archive",
    "docker-daemon",
    "dir",
    "docker",
    "rootfs",
    "wheel",
    "env",
)
_WITH_TAG = ("oci", "oci-archive", "docker-archive")
_NAME = re.compile(r"[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*")
_TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}|sha512:[0-9a-f]{128}")
#: Longest name of a repository, host included, that tools take.
_MAX_NAME = 255
#: What looks like a name and password before a host.
_USER = re.compile(r"(^|//)[^/@]*:[^/@]*@")
_HOST = re.compile(r"(?:[A-Za-z0-9.-]+|\[[0-9A-Fa-f:]+\])(?::[0-9]{1,5})?")


class Reference(NamedTuple):
    """A parsed reference.

    Attributes:
        transport: One of `TRANSPORTS`.
        location: A path, or for `docker-daemon` the reference that the daemon knows.
        tag: Tag or digest inside the location; may be empty.
    """

    transport: str
    location: str
    tag: str = ""


class RegistryReference(NamedTuple):
    """An image in a registry.

    Attributes:
        host: Host, and port if one is named.
        repository: Path of the repository.
        tag: Tag; empty if there is a digest.
        digest: Digest; empty if there is none.
    """

    host: str
    repository: str
    tag: str
    digest: str

    def __str__(self) -> str:
        text = f"docker://{self.host}/{self.repository}"
        return f"{text}@{self.digest}" if self.digest else f"{text}:{self.tag}"


def parse_reference(text: str, folder: Path | None = None) -> Reference:
    """Return what a reference names.

    Args:
        text: The reference.
        folder: Where a relative path is looked for; None for the working folder.

    Raises:
        UsageError: It names a transport that does not exist, or nothing.
    """
    transport, colon, rest = text.partition(":")
    if not colon or transport not in TRANSPORTS:
        raise UsageError(
            f"{_shown(text)!r} is no image reference",
            hint="expected one of " + ", ".join(f"{name}:" for name in TRANSPORTS),
            where={"ref": _shown(text)},
        )
    if transport == "docker":
        if not rest.startswith("//"):
            raise UsageError(
                f"{text!r} is no registry reference",
                hint="expected docker://HOST/REPOSITORY[:TAG|@DIGEST]",
                where={"ref": text},
            )
        return Reference(transport, rest[2:])
    tag = ""
    if transport == "docker-daemon":
        folder = None
    if transport in _WITH_TAG and ":" in rest and not _is_there(rest, folder):
        rest, tag = _divided(rest, folder)
    if not rest:
        raise UsageError(
            f"{text!r} names nothing after {transport}:",
            hint="give a path or a name",
            where={"ref": text},
        )
    return Reference(transport, str(_placed(rest, folder)) if folder else rest, tag)


def _divided(text: str, folder: Path | None) -> tuple[str, str]:
    """Return the path and the tag of `PATH:TAG`, both of which may have colons."""
    first, _, tag = text.partition(":")
    place = text
    while ":" in place:
        place = place.rpartition(":")[0]
        if place and _is_there(place, folder):
            return place, text[len(place) + 1 :]
    return first, tag


def _is_there(path: str, folder: Path | None) -> bool:
    try:
        return _placed(path, folder).exists()
    except (OSError, ValueError):
        return False  # no file can have such a name


def _placed(path: str, folder: Path | None) -> Path:
    return Path(path) if folder is None else folder / path


def parse_registry(text: str) -> RegistryReference:
    """Return the image that a registry reference names.

    Args:
        text: `HOST/REPOSITORY[:TAG|@DIGEST]`, Docker Hub's short forms included.

    Raises:
        UsageError: It has another form.
    """
    name, at, digest = text.partition("@")
    first, slash, path = name.partition("/")
    if slash and ("." in first or ":" in first or first == "localhost"):
        host = first
    else:
        host, path = "docker.io", name
    tag = ""
    base, colon, last = path.rpartition(":")
    if colon and "/" not in last:
        path, tag = base, last
    if host == "index.docker.io":
        host = "docker.io"
    if host == "docker.io" and "/" not in path:
        path = f"library/{path}"
    if (
        not _HOST.fullmatch(host)
        or not all(_NAME.fullmatch(part) for part in path.split("/"))
        or (colon and "/" not in last and not tag)
        or _port(host) > 65535
        or len(f"{host}/{path}") > _MAX_NAME
        or (tag and not _TAG.fullmatch(tag))
        or (at and not _DIGEST.fullmatch(digest))
    ):
        raise UsageError(
            f"{_shown(text)!r} is no registry reference",
            hint="a password is not part of it: log in with docker or podman login"
            if _USER.search(text)
            else "expected HOST/REPOSITORY[:TAG|@DIGEST] in lower case",
            where={"ref": _shown(text)},
        )
    return RegistryReference(host, path, "" if digest else tag or "latest", digest)


def _port(host: str) -> int:
    """Return the port of a host that matches `_HOST`, 0 where it names none."""
    port = host.rpartition("]")[2].rpartition(":")[2] if ":" in host else ""
    return int(port) if port.isascii() and port.isdigit() else 0


def _shown(text: str) -> str:
    """Return a reference that may hold a password without it."""
    return _USER.sub(r"\1…@", text)
