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
            f"{text!r} is no image reference",
            hint="expected one of " + ", ".join(f"{name}:" for name in TRANSPORTS),
            where={"ref": text},
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
    if transport in _WITH_TAG and ":" in rest and not _placed(rest, folder).exists():
        rest, _, tag = rest.partition(":")
    if not rest:
        raise UsageError(
            f"{text!r} names nothing after {transport}:",
            hint="give a path or a name",
            where={"ref": text},
        )
    return Reference(transport, str(_placed(rest, folder)) if folder else rest, tag)


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
    if host in ("docker.io", "index.docker.io") and "/" not in path:
        path = f"library/{path}"
    if (
        not _HOST.fullmatch(host)
        or not all(_NAME.fullmatch(part) for part in path.split("/"))
        or (tag and not _TAG.fullmatch(tag))
        or (at and not _DIGEST.fullmatch(digest))
    ):
        raise UsageError(
            f"{text!r} is no registry reference",
            hint="expected HOST/REPOSITORY[:TAG|@DIGEST] in lower case",
            where={"ref": text},
        )
    return RegistryReference(host, path, "" if digest else tag or "latest", digest)
