# SPDX-License-Identifier: Apache-2.0
"""Which registry a reference names, and where its credentials come from."""

import base64
import json
import os
from pathlib import Path

import pytest

from stackctl.errors import InputError, UsageError
from stackctl.image import auth
from stackctl.image.auth import Credentials, find_credentials
from stackctl.image.reference import parse_reference, parse_registry


@pytest.mark.parametrize(
    ("text", "host", "repository", "tag"),
    [
        ("ubuntu", "docker.io", "library/ubuntu", "latest"),
        ("index.docker.io/ubuntu:1", "docker.io", "library/ubuntu", "1"),
        ("index.docker.io/a/b", "docker.io", "a/b", "latest"),
        ("myhost/a", "docker.io", "myhost/a", "latest"),
        ("localhost/a", "localhost", "a", "latest"),
        ("[::1]:5000/a:t", "[::1]:5000", "a", "t"),
        ("ex.org:65535/a__b/c", "ex.org:65535", "a__b/c", "latest"),
    ],
)
def test_registry_reference(text: str, host: str, repository: str, tag: str) -> None:
    assert parse_registry(text) == (host, repository, tag, "")


@pytest.mark.parametrize(
    "text",
    ["ex.org/a:", "ex.org:65536/a", "ex.org:/a", "ex.org/A", "ex.org/" + "a" * 256],
)
def test_no_registry_reference(text: str) -> None:
    with pytest.raises(UsageError):
        parse_registry(text)


def test_password_in_a_reference_is_not_repeated() -> None:
    with pytest.raises(UsageError) as first:
        parse_registry("ann:secret@ex.org/a")
    with pytest.raises(UsageError) as second:
        parse_reference("https://ann:secret@ex.org/a")
    for error in (first.value, second.value):
        assert "secret" not in f"{error.message} {error.hint} {error.where}"
        assert "ex.org/a" in error.message


def write(path: Path, user: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    secret = base64.b64encode(f"{user}:x".encode()).decode()
    path.write_text(json.dumps({"auths": {"ex.org": {"auth": secret}}}))
    return path


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (set(), "docker"),
        ({"podman"}, "podman"),
        ({"config"}, "config"),
        ({"config", "podman"}, "config"),
        ({"other", "config", "podman"}, "other"),
        ({"no config"}, None),
        ({"no other"}, None),
        ({"no other", "config", "podman"}, None),
    ],
)
def test_files_that_are_asked(
    tmp_path: Path, names: set[str], expected: str | None
) -> None:
    """REGISTRY_AUTH_FILE alone, and DOCKER_CONFIG in place of ~/.docker."""
    write(tmp_path / ".docker/config.json", "docker")
    environ = {"HOME": str(tmp_path), "XDG_RUNTIME_DIR": str(tmp_path / "run")}
    if "podman" in names:
        write(tmp_path / "run/containers/auth.json", "podman")
    if "config" in names:
        write(tmp_path / "set/config.json", "config")
    if names & {"config", "no config"}:
        environ["DOCKER_CONFIG"] = str(tmp_path / "set")
    if "other" in names:
        write(tmp_path / "other.json", "other")
    if names & {"other", "no other"}:
        environ["REGISTRY_AUTH_FILE"] = str(tmp_path / "other.json")
    found = find_credentials("ex.org", "a", environ)
    assert (found and found.username) == expected


def helper(tmp_path: Path, script: str) -> dict[str, str]:
    path = tmp_path / "bin" / "docker-credential-fake"
    path.parent.mkdir()
    path.write_text("#!/bin/sh\n" + script)
    path.chmod(0o755)
    config = tmp_path / ".docker" / "config.json"
    config.parent.mkdir()
    config.write_text('{"credHelpers": {"ex.org": "fake"}}')
    search = f"{path.parent}:{os.environ['PATH']}"
    return {"HOME": str(tmp_path), "PATH": search}


def test_helper_that_does_not_read(tmp_path: Path) -> None:
    environ = helper(tmp_path, 'echo \'{"Username":"ann","Secret":"x"}\'\n')
    assert find_credentials("ex.org", "a", environ) == Credentials("ann", "x")


@pytest.mark.parametrize("script", ["exec yes secret", "sleep 9 & sleep 9"])
def test_helper_without_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str
) -> None:
    monkeypatch.setattr(auth, "_HELPER_SECONDS", 1)
    with pytest.raises(InputError) as caught:
        find_credentials("ex.org", "a", helper(tmp_path, script))
    assert caught.value.kind == "bad-auth-file"
    assert "secret" not in caught.value.message


def test_helper_that_fails_is_no_login(tmp_path: Path) -> None:
    environ = helper(tmp_path, "echo secret; exit 1\n")
    assert find_credentials("ex.org", "a", environ) is None
