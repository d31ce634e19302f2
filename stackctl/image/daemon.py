# SPDX-License-Identifier: Apache-2.0
"""Images of a running Docker or Podman, over its API on a unix socket."""

import http.client
import socket
import urllib.parse
from collections.abc import Iterator, Mapping
from pathlib import Path

from stackctl.image.blobs import CHUNK
from stackctl.image.errors import RegistryError

_SECONDS = 120


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=_SECONDS)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(_SECONDS)
        self.sock.connect(self._path)


def sockets(environ: Mapping[str, str]) -> list[str]:
    """Return the sockets where a daemon may listen, most specific first.

    Args:
        environ: The process environment; `DOCKER_HOST` and `CONTAINER_HOST` count if
            they name a socket.
    """
    found = []
    for name in ("DOCKER_HOST", "CONTAINER_HOST"):
        value = environ.get(name, "")
        if value.startswith("unix://"):
            found.append(value.removeprefix("unix://"))
    if not found:
        found.append("/var/run/docker.sock")
        if environ.get("XDG_RUNTIME_DIR"):
            found.append(f"{environ['XDG_RUNTIME_DIR']}/podman/podman.sock")
        found.append("/run/podman/podman.sock")
    return found


def saved_image(name: str, environ: Mapping[str, str]) -> Iterator[bytes]:
    """Yield the archive that a daemon saves of an image.

    Args:
        name: Name or id as the daemon knows it.
        environ: The process environment.

    Raises:
        RegistryError: No daemon listens, or it does not have the image.
    """
    for variable in ("DOCKER_HOST", "CONTAINER_HOST"):
        value = environ.get(variable, "")
        if value.startswith("unix://"):
            break
        if value:
            # Another daemon may have another image of that name.
            raise RegistryError(
                f"{variable} names a daemon that is not on a socket of this machine",
                kind="no-daemon",
                hint="save the image there to a file and use docker-archive:, or push "
                f"it and use docker://; or unset {variable}",
                where={"variable": variable},
            )
    path = next((p for p in sockets(environ) if Path(p).exists()), None)
    if path is None:
        raise RegistryError(
            "no Docker or Podman listens on a socket here",
            kind="no-daemon",
            hint="start one, set DOCKER_HOST=unix://…, or save the image to a file and "
            "use docker-archive:",
            where={"sockets": sockets(environ)},
        )
    connection = _UnixConnection(path)
    try:
        try:
            quoted = urllib.parse.quote(name, safe="/:@")
            connection.request("GET", f"/images/{quoted}/get")
            response = connection.getresponse()
            if response.status != 200:
                text = response.read(500).decode("utf-8", "replace").strip()
                raise RegistryError(
                    f"the daemon at {path} does not give {name!r}: {response.status} "
                    f"{text[:200]}",
                    kind="daemon",
                    hint="check the name with `docker images`",
                    where={"socket": path},
                )
            while chunk := response.read(CHUNK):
                yield chunk
        except (OSError, http.client.HTTPException) as exc:
            raise RegistryError(
                f"the daemon at {path} does not answer: {exc}",
                kind="daemon",
                hint="check that it runs and that you may use its socket",
                where={"socket": path},
            ) from None
    finally:
        connection.close()
