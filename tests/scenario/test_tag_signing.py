# SPDX-License-Identifier: Apache-2.0
"""Signed tags: by the user's own configuration, with keys that the test makes."""

import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from releases import TAG, bare, cut, refs, releasable, set_tag, tag_body, verify, wrong
from support import HOSTILE_CONFIG, git, run

ssh = pytest.mark.skipif(
    shutil.which("ssh-keygen") is None, reason="ssh-keygen is not installed"
)
gpg = pytest.mark.skipif(shutil.which("gpg") is None, reason="gpg is not installed")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project that lacks nothing, and its cache."""
    folder = tmp_path_factory.mktemp("made")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("STACKCTL_CACHE_DIR", str(folder / "cache"))
        releasable(folder / "project")
    return folder


@pytest.fixture
def project(made: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("STACKCTL_CACHE_DIR", str(made / "cache"))
    return made / "project"


@pytest.fixture
def into(tmp_path: Path) -> Path:
    return bare(tmp_path / "fork.git")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home with a hostile configuration, which tests add the signer's keys to."""
    folder = tmp_path / "home"
    folder.mkdir()
    (folder / ".gitconfig").write_text(HOSTILE_CONFIG.format(home=folder))
    monkeypatch.setenv("HOME", str(folder))
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")
    for name in ("XDG_CONFIG_HOME", "GIT_CONFIG_GLOBAL", "SSH_AUTH_SOCK"):
        monkeypatch.delenv(name, raising=False)
    return folder


def configure(home: Path, **values: str) -> None:
    """Set keys of the user's configuration; `a__b` is the key `a.b`."""
    for name, value in values.items():
        key = name.replace("__", ".")
        git("config", "--file", str(home / ".gitconfig"), key, value)


def ssh_key(home: Path, name: str = "key") -> Path:
    path = home / name
    subprocess.run(
        ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "test", "-f", path],
        check=True,
    )
    return path


@pytest.fixture
def ssh_home(home: Path) -> Path:
    key = ssh_key(home)
    configure(
        home,
        user__name="Grace Hopper",
        user__email="grace@example.org",
        user__signingKey=f"{key}.pub",
        gpg__format="ssh",
        gpg__ssh__program="ssh-keygen",
    )
    return home


@pytest.fixture
def gpg_home(home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    # The path of the agent's socket must be short.
    folder = tempfile.mkdtemp(prefix="gpg-")
    monkeypatch.setenv("GNUPGHOME", folder)
    subprocess.run(
        ["gpg", "--batch", "--quiet", "--passphrase", "", "--quick-gen-key",
         "Grace Hopper <grace@example.org>", "ed25519", "sign", "never"],
        check=True,
    )  # fmt: skip
    configure(
        home,
        user__name="Grace Hopper",
        user__email="grace@example.org",
        user__signingKey="grace@example.org",
        gpg__program="gpg",
    )
    yield home
    subprocess.run(["gpgconf", "--kill", "all"], check=True)
    shutil.rmtree(folder)


def signature(answer: dict) -> tuple[str, str]:
    (why,) = (e["why"] for e in answer["checks"] if e["name"] == "signature")
    return answer["signature"], why


@ssh
def test_ssh(project: Path, into: Path, ssh_home: Path, tmp_path: Path) -> None:
    done = cut(project, into, "--sign")
    assert done["signed"]
    body = tag_body(into)
    assert b"\ntagger Grace Hopper <grace@example.org> " in body
    assert b"-----BEGIN SSH SIGNATURE-----" in body
    # Nobody says whose key it is: the bytes are its, and that is said.
    state, why = signature(verify(into))
    assert state == "unknown" and "SHA256:" in why and "allowed signers" in why
    assert wrong(verify(into, "--signed", code=1)).keys() == {"signature"}
    key = (ssh_home / "key.pub").read_text()
    signers = tmp_path / "signers"
    signers.write_text(f"grace@example.org {key}")
    state, why = signature(verify(into, "--signed", "--allowed-signers", signers))
    assert state == "good" and "grace@example.org" in why
    configure(ssh_home, gpg__ssh__allowedSignersFile="~/signers")
    shutil.copy(signers, ssh_home / "signers")
    assert signature(verify(into, "--signed"))[0] == "good"
    # git itself agrees.
    env = {"HOME": str(ssh_home), "GIT_CONFIG_GLOBAL": str(ssh_home / ".gitconfig")}
    git("-c", "gpg.program=gpg", "verify-tag", TAG, cwd=into, env=env)
    other = ssh_key(ssh_home, "other")
    signers.write_text(f"mary@example.org {other.with_suffix('.pub').read_text()}")
    state, why = signature(verify(into, "--allowed-signers", signers))
    assert state == "unknown" and "SHA256:" in why


@gpg
def test_gpg(
    project: Path, into: Path, gpg_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert cut(project, into, "--sign")["signed"]
    assert b"-----BEGIN PGP SIGNATURE-----" in tag_body(into)
    state, why = signature(verify(into, "--signed"))
    assert state == "good" and "Grace Hopper" in why
    body = tag_body(into)
    set_tag(into, body.replace(b"Shape: linear", b"Shape: merges"))
    found = verify(into, code=1)
    assert found["signature"] == "bad"
    assert wrong(found).keys() == {"signature", "commit", "statement"}
    set_tag(into, body)
    # Another machine, without the key: it cannot be checked, and that is no yes.
    empty = tempfile.mkdtemp(prefix="gpg-")
    try:
        monkeypatch.setenv("GNUPGHOME", empty)
        found = verify(into, code=1)
        assert found["signature"] == "unchecked"
        assert "import it" in wrong(found)["signature"]
    finally:
        subprocess.run(["gpgconf", "--homedir", empty, "--kill", "all"], check=True)
        shutil.rmtree(empty, ignore_errors=True)


@ssh
def test_any_change_of_a_signed_message_is_named(
    project: Path, into: Path, ssh_home: Path
) -> None:
    cut(project, into, "--sign")
    body = tag_body(into)
    for old, new in (
        (b"tagger Grace", b"tagger Gracy"),
        (b"Tree: ", b"Tree: 0"),
        (b"-----BEGIN SSH SIGNATURE-----\nU1", b"-----BEGIN SSH SIGNATURE-----\nU2"),
    ):
        assert old in body
        set_tag(into, body.replace(old, new))
        found = verify(into, code=1)
        assert found["signature"] == "bad" or wrong(found).keys() == {"tag"}
    # A signature that is cut off leaves an unsigned tag with the name of a person.
    set_tag(into, body[: body.index(b"-----BEGIN SSH")])
    for options in ((), ("--signed",)):
        found = verify(into, *options, code=1)
        assert found["signature"] == "unsigned"
        assert wrong(found).keys() == {"signature"}


@ssh
def test_again_is_nothing_new(project: Path, into: Path, ssh_home: Path) -> None:
    cut(project, into, "--sign")
    before = refs(into)
    done = cut(project, into, "--sign")
    assert done["exists"] and done["signed"] and not done["written"]
    assert refs(into) == before
    unsigned = bare(into.with_name("unsigned.git"))
    cut(project, unsigned)
    error = cut(project, unsigned, "--sign", code=2)["error"]
    assert error["kind"] == "tag-exists" and "not signed" in error["message"]


def test_without_sign_the_configuration_has_no_say(
    project: Path, into: Path, home: Path
) -> None:
    assert not cut(project, into)["signed"]
    body = tag_body(into)
    assert b"\ntagger stackctl <stackctl@localhost> " in body
    assert b"SIGNATURE" not in body
    assert verify(into)["ok"]


@ssh
def test_who_cannot_sign_is_told_and_nothing_is_written(
    project: Path, into: Path, home: Path
) -> None:
    (home / ".gitconfig").write_text("[gpg]\n\tformat = ssh\n")
    error = cut(project, into, "--sign", code=2)["error"]
    assert error["kind"] == "cannot-sign" and "user.name" in error["message"]
    configure(home, user__name="G", user__email="g@example.org")
    configure(home, user__signingKey=str(home / "missing.pub"))
    error = cut(project, into, "--sign", code=2)["error"]
    assert error["kind"] == "cannot-sign"
    assert refs(into) == {}


@ssh
def test_a_repository_cannot_name_the_program_that_signs(
    project: Path, into: Path, ssh_home: Path, tmp_path: Path
) -> None:
    trap = tmp_path / "trap"
    trap.write_text(f"#!/bin/sh\ntouch {tmp_path}/sprung\nexit 1\n")
    trap.chmod(0o755)
    for key in ("gpg.ssh.program", "gpg.program", "gpg.ssh.defaultKeyCommand"):
        git("config", key, str(trap), cwd=into)
    git("config", "user.signingKey", "nothing", cwd=into)
    cut(project, into, "--sign")
    assert verify(into)["signature"] == "unknown"
    assert not (tmp_path / "sprung").exists()
    assert run("tag", "verify", TAG, "--repo", into).code == 0
