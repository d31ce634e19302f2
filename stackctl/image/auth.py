# SPDX-License-Identifier: Apache-2.0
"""Registry credentials from the files and helpers of Docker and Podman."""

import base64
import binascii
import contextlib
import json
import os
import re
import select
import shutil
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from stackctl.errors import InputError

_HELPER = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_HELPER_SECONDS = 30
_HELPER_BYTES = 1 << 20
#: Names under which the tools file Docker Hub.
_HUB = ("https://index.docker.io/v1/", "docker.io", "index.docker.io")


@dataclass(frozen=True, slots=True)
class Credentials:
    """What proves to a registry who asks.

    Attributes:
        username: Name; empty with an identity token.
        password: Password or access token.
        identity_token: A refresh token in place of both.
    """

    username: str = ""
    password: str = ""
    identity_token: str = ""

    def __repr__(self) -> str:
        return "Credentials(…)"


def auth_files(environ: Mapping[str, str]) -> list[Path]:
    """Return the files that may hold credentials, most specific first.

    Args:
        environ: The process environment.
    """
    if environ.get("REGISTRY_AUTH_FILE"):
        # Skopeo, podman and buildah of today look nowhere else then; those of 2022 did.
        return [Path(environ["REGISTRY_AUTH_FILE"])]
    files = []
    if environ.get("DOCKER_CONFIG"):
        files.append(Path(environ["DOCKER_CONFIG"]) / "config.json")
    if environ.get("XDG_RUNTIME_DIR"):
        files.append(Path(environ["XDG_RUNTIME_DIR"]) / "containers" / "auth.json")
    else:
        files.append(Path(f"/run/containers/{os.getuid()}/auth.json"))
    home = environ.get("HOME")
    if home:
        config = environ.get("XDG_CONFIG_HOME") or f"{home}/.config"
        files.append(Path(config) / "containers" / "auth.json")
        if not environ.get("DOCKER_CONFIG"):
            files.append(Path(home) / ".docker" / "config.json")
    return files


def find_credentials(
    host: str, repository: str, environ: Mapping[str, str]
) -> Credentials | None:
    """Return the credentials for a repository, or None.

    Args:
        host: Registry host, with its port if one is named.
        repository: Path of the repository; entries for a part of it count too.
        environ: The process environment.

    Raises:
        InputError: A file is damaged, or a helper fails.
    """
    for path in auth_files(environ):
        document = _read(path)
        if document is None:
            continue
        found = _from_document(document, path, host, repository, environ)
        if found is not None:
            return found
    return None


def _read(path: Path) -> Mapping[str, object] | None:
    try:
        data = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return None
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        document = None
    if not isinstance(document, dict):
        raise _bad(path, "it is not a JSON object")
    return document


def _bad(path: Path, why: str) -> InputError:
    return InputError(
        f"the registry credentials in {path} cannot be used: {why}",
        kind="bad-auth-file",
        hint="log in again with docker or podman, or remove the file",
        where={"file": str(path)},
    )


def _from_document(
    document: Mapping[str, object],
    path: Path,
    host: str,
    repository: str,
    environ: Mapping[str, str],
) -> Credentials | None:
    names = list(_HUB) if host == "docker.io" else list({host: 0, host.lower(): 0})
    helpers = document.get("credHelpers")
    if isinstance(helpers, dict):
        for name in names:
            if isinstance(helpers.get(name), str):
                found = _ask_helper(str(helpers[name]), name, path, environ)
                if found is not None:
                    return found
    auths = document.get("auths")
    if isinstance(auths, dict):
        for key in _keys(host, repository):
            entry = auths.get(key)
            if isinstance(entry, dict):
                found = _from_entry(entry, path)
                if found is not None:
                    return found
    store = document.get("credsStore")
    if isinstance(store, str) and store:
        for name in names:
            found = _ask_helper(store, name, path, environ)
            if found is not None:
                return found
    return None


def _keys(host: str, repository: str) -> list[str]:
    """Return the keys of `auths` that cover a repository, most specific first."""
    parts = repository.split("/")
    hosts = [host] if host == host.lower() else [host, host.lower()]
    keys = [
        f"{name}/{'/'.join(parts[:n])}"
        for n in range(len(parts), 0, -1)
        for name in hosts
    ]
    if host == "docker.io":
        return [*keys, *_HUB]
    keys += hosts
    for name in hosts:
        for scheme in ("https", "http"):
            for suffix in ("", "/", "/v1", "/v1/", "/v2", "/v2/"):
                keys.append(f"{scheme}://{name}{suffix}")
    return keys


def _from_entry(entry: Mapping[str, object], path: Path) -> Credentials | None:
    token = entry.get("identitytoken")
    if isinstance(token, str) and token:
        return Credentials(identity_token=token)
    auth = entry.get("auth")
    if isinstance(auth, str) and auth:
        try:
            text = base64.b64decode(auth, validate=True).decode("utf-8")
        except (binascii.Error, UnicodeDecodeError):
            raise _bad(path, "an auth entry is not base64") from None
        username, colon, password = text.partition(":")
        if not colon:
            raise _bad(path, "an auth entry is not name:password")
        return Credentials(username, password.strip("\0"))
    name, secret = entry.get("username"), entry.get("password")
    if isinstance(name, str) and isinstance(secret, str):
        return Credentials(name, secret)
    return None


def _ask_helper(
    helper: str, server: str, path: Path, environ: Mapping[str, str]
) -> Credentials | None:
    program = None
    if _HELPER.fullmatch(helper):
        program = shutil.which(
            f"docker-credential-{helper}", path=environ.get("PATH", os.defpath)
        )
    if program is None:
        raise _bad(path, f"its helper docker-credential-{helper[:40]} is not installed")
    code, output = _run(program, server, path, environ)
    if code:
        # Helpers say "credentials not found" this way; podman goes on too.
        return None
    try:
        answer = json.loads(output)
    except (ValueError, RecursionError):
        answer = None
    if not isinstance(answer, dict):
        raise _bad(path, f"its helper {program} answers with something else than JSON")
    username, secret = answer.get("Username"), answer.get("Secret")
    if not isinstance(username, str) or not isinstance(secret, str):
        return None
    if username == "<token>":
        return Credentials(identity_token=secret)
    return Credentials(username, secret)


def _run(
    program: str, server: str, path: Path, environ: Mapping[str, str]
) -> tuple[int, bytes]:
    """Return a helper's exit code and what it prints, which is bounded."""
    silent = _bad(path, f"its helper {program} does not answer")
    end = time.monotonic() + _HELPER_SECONDS
    output = b""
    try:
        process = subprocess.Popen(
            [program, "get"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=dict(environ),
        )
    except OSError:
        raise silent from None
    with process:
        assert process.stdin is not None and process.stdout is not None
        try:
            with contextlib.suppress(BrokenPipeError):
                process.stdin.write(server.encode())
                process.stdin.close()
            reading = process.stdout.fileno()
            while True:
                left = max(end - time.monotonic(), 0)
                if not select.select([reading], [], [], left)[0]:
                    raise silent
                if not (chunk := os.read(reading, 1 << 16)):
                    break
                output += chunk
                if len(output) > _HELPER_BYTES:
                    raise _bad(path, f"its helper {program} prints without end")
            process.wait(max(end - time.monotonic(), 0))
        except (OSError, subprocess.TimeoutExpired):
            raise silent from None
        finally:
            process.kill()
    return process.returncode, output
