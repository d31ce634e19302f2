# SPDX-License-Identifier: Apache-2.0
"""Signing tags as the user signs them, and checking such signatures.

This is the one place where the user's git configuration is wanted, and only the keys
below are read: who signs, with which key, by which program. Everything else of the
configuration stays out, and a repository's own is never read.
"""

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from stackctl.errors import UsageError
from stackctl.git.command import HermeticGit
from stackctl.git.objects import TAG
from stackctl.git.store import Store, create_bare, write_loose
from stackctl.model.ids import CommitId
from stackctl.release.message import split_signature
from stackctl.scratch import scratch_folder

KEYS: Final = (
    "user.name",
    "user.email",
    "user.signingKey",
    "gpg.format",
    "gpg.program",
    "gpg.minTrustLevel",
    "gpg.openpgp.program",
    "gpg.x509.program",
    "gpg.ssh.program",
    "gpg.ssh.defaultKeyCommand",
    "gpg.ssh.allowedSignersFile",
    "gpg.ssh.revocationFile",
)
"""The keys of the user's configuration that are read."""

_PATHS = frozenset(("gpg.ssh.allowedSignersFile", "gpg.ssh.revocationFile"))

_VARIABLES: Final = (
    "DBUS_SESSION_BUS_ADDRESS",
    "DISPLAY",
    "GNUPGHOME",
    "GPG_AGENT_INFO",
    "GPG_TTY",
    "HOME",
    "SSH_ASKPASS",
    "SSH_ASKPASS_REQUIRE",
    "SSH_AUTH_SOCK",
    "TERM",
    "WAYLAND_DISPLAY",
    "XDG_RUNTIME_DIR",
)
"""What the programs that sign need to find keys and to ask for a passphrase."""

_CONFIGURATION: Final = (
    "GIT_CONFIG_GLOBAL", "GIT_CONFIG_SYSTEM", "GIT_CONFIG_NOSYSTEM", "XDG_CONFIG_HOME",
)  # fmt: skip

_OF_KEY = re.compile(r"\b(SHA256:[A-Za-z0-9+/]{43}=?)")


def _passed(names: tuple[str, ...]) -> dict[str, str]:
    return {name: os.environ[name] for name in names if name in os.environ}


def user_settings() -> dict[str, str]:
    """Return the user's git settings for signing, without any repository's."""
    # Outside of every repository, so that none can name a program.
    git = HermeticGit(network=True, env=_passed(_CONFIGURATION))
    found = {}
    for name in KEYS:
        kind = ("--type=path",) if name in _PATHS else ()
        status, out, _ = git.call("config", "--includes", *kind, "--get", name)
        if not status:
            found[name] = out.decode("utf-8", "surrogateescape").rstrip("\n")
    return found


def _signing_git(
    folder: Path, settings: Mapping[str, str]
) -> tuple[HermeticGit, list[str]]:
    git = HermeticGit(folder, env=_passed(_VARIABLES))
    options = []
    for name, value in settings.items():
        options += ["-c", f"{name}={value}"]
    return git, options


def _scratch(store: Store, folder: Path) -> Path:
    scratch = folder / "sign.git"
    create_bare(scratch)
    alternates = scratch / "objects" / "info" / "alternates"
    alternates.write_bytes(os.fsencode((store.git_dir / "objects").resolve()) + b"\n")
    return scratch


def sign_tag(
    store: Store, commit: CommitId, tag: str, message: str, when: str
) -> bytes:
    """Return a tag that is signed as the user's configuration says.

    Args:
        store: Holds the commit.
        commit: What is tagged.
        tag: Name of the tag.
        message: Its message.
        when: Seconds and zone.

    Returns:
        The content of the tag object.

    Raises:
        UsageError: The user's configuration names nobody or no key, or the program
            that signs refuses.
    """
    settings = user_settings()
    for name in ("user.name", "user.email"):
        if not settings.get(name):
            raise UsageError(
                f"--sign needs {name} of your git configuration",
                kind="cannot-sign",
                hint=f'git config --global {name} "..."',
            )
    with scratch_folder(store.git_dir / "scratch") as folder:
        git, options = _signing_git(_scratch(store, folder), settings)
        status, _, err = git.with_env(
            GIT_COMMITTER_NAME=settings["user.name"],
            GIT_COMMITTER_EMAIL=settings["user.email"],
            GIT_COMMITTER_DATE="@" + when,
        ).call(
            *options,
            *("tag", "--sign", "--cleanup=verbatim", "-F", "-", "--", tag, commit),
            stdin=message.encode(),
        )
        body = b""
        if not status:
            made = Store(folder / "sign.git")
            oid = git.text("rev-parse", "--verify", f"refs/tags/{tag}")
            body = made.read(bytes.fromhex(oid), TAG)
        # With a key file that is missing, git 2.39 makes an unsigned tag and exits 0.
        if not split_signature(body)[1]:
            reason = err.decode("utf-8", "replace").strip()
            raise UsageError(
                f"the tag cannot be signed: {reason}",
                kind="cannot-sign",
                hint="try `git tag -s` in a scratch repository; user.signingKey and "
                "gpg.format choose the key",
            )
        return body


@dataclass(frozen=True, slots=True)
class Signature:
    """What became of checking a signature.

    Attributes:
        state: `unsigned`, `good` (by a key that this user trusts), `unknown` (good,
            by a key that nobody here vouches for), `unchecked` (the key or a program
            is missing) or `bad`.
        why: The same in words, with the key.
    """

    state: str
    why: str

    @property
    def holds(self) -> bool:
        """Whether nothing speaks against the tag's own words."""
        return self.state in ("unsigned", "good", "unknown")


def check_signature(
    store: Store, body: bytes, allowed_signers: Path | None = None
) -> Signature:
    """Check the signature of a tag.

    Args:
        store: Where a scratch folder may be made.
        body: Content of the tag object.
        allowed_signers: A file of ssh keys that may sign, instead of the user's
            `gpg.ssh.allowedSignersFile`.
    """
    payload, signature = split_signature(body)
    if not signature:
        return Signature("unsigned", "the tag is not signed")
    settings = user_settings()
    if allowed_signers is not None:
        settings["gpg.ssh.allowedSignersFile"] = str(allowed_signers.absolute())
    ssh = signature.startswith(b"-----BEGIN SSH")
    with scratch_folder(store.git_dir / "scratch") as folder:
        if ssh and not _is_file(settings.get("gpg.ssh.allowedSignersFile")):
            return _without_signers(folder, payload, signature, settings)
        scratch = _scratch(store, folder)
        oid = HermeticGit(scratch).text(
            "hash-object", "-t", "tag", "--stdin", "--literally", stdin=body
        )
        write_loose(scratch / "objects", bytes.fromhex(oid), TAG, body)
        git, options = _signing_git(scratch, settings)
        status, out, err = git.call(*options, "verify-tag", "--raw", oid)
    text = (out + err).decode("utf-8", "replace")
    return _ssh_result(status, text) if ssh else _gpg_result(status, text)


def _is_file(name: str | None) -> bool:
    return bool(name) and Path(str(name)).is_file()


def _ssh_result(status: int, text: str) -> Signature:
    match = _OF_KEY.search(text)
    named = f" with key {match[1]}" if match else ""
    who = re.search(r'^Good "git" signature for (.+) with ', text, re.MULTILINE)
    if not status and who:
        return Signature("good", f"signed by {who[1]}{named}")
    if re.search(r'^Good "git" signature with ', text, re.MULTILINE):
        return Signature(
            "unknown", f"signed{named}, which the allowed signers do not name"
        )
    if "not found" in text or "cannot run" in text:
        return Signature("unchecked", f"the ssh signature cannot be checked: {text}")
    return Signature("bad", f"the ssh signature is bad{named}")


def _without_signers(
    folder: Path, payload: bytes, signature: bytes, settings: Mapping[str, str]
) -> Signature:
    """Check that an ssh signature is one of these bytes, whoever made it."""
    program = settings.get("gpg.ssh.program") or "ssh-keygen"
    found = shutil.which(program)
    if found is None:
        return Signature("unchecked", f"{program} is not installed")
    file = folder / "signature"
    file.write_bytes(signature)
    done = subprocess.run(
        [found, "-Y", "check-novalidate", "-n", "git", "-s", str(file)],
        input=payload,
        capture_output=True,
        env={"LC_ALL": "C", "PATH": os.environ.get("PATH", os.defpath)},
        check=False,
    )
    text = (done.stdout + done.stderr).decode("utf-8", "replace")
    match = _OF_KEY.search(text)
    named = f" with key {match[1]}" if match else ""
    if done.returncode:
        return Signature("bad", f"the ssh signature is bad{named}")
    return Signature(
        "unknown",
        f"signed{named}; no file of allowed signers says whose that is "
        "(gpg.ssh.allowedSignersFile or --allowed-signers)",
    )


def _gpg_result(status: int, text: str) -> Signature:
    words = {
        line.split()[1]: line.split()[2:]
        for line in text.splitlines()
        if line.startswith("[GNUPG:] ") and len(line.split()) > 1
    }
    valid = words.get("VALIDSIG", [])
    key = f" with key {valid[0]}" if valid else ""
    who = " ".join(words.get("GOODSIG", [])[1:])
    if not status and "GOODSIG" in words:
        trusted = {"TRUST_ULTIMATE", "TRUST_FULLY", "TRUST_MARGINAL"} & words.keys()
        if trusted:
            return Signature("good", f"signed by {who}{key}")
        return Signature("unknown", f"signed by {who}{key}, which is not trusted here")
    if "NO_PUBKEY" in words:
        missing = " ".join(words["NO_PUBKEY"])
        return Signature(
            "unchecked", f"the key {missing} is not in the keyring; import it"
        )
    for word, what in (
        ("BADSIG", "is bad"),
        ("EXPKEYSIG", "is of an expired key"),
        ("REVKEYSIG", "is of a revoked key"),
        ("EXPSIG", "has expired"),
    ):
        if word in words:
            return Signature("bad", f"the gpg signature {what}{key}")
    if "GOODSIG" in words:  # git's minTrustLevel refused it
        return Signature(
            "unknown", f"signed by {who}{key}, which is not trusted enough"
        )
    if "gpg" in text and ("No such file" in text or "cannot run" in text):
        return Signature("unchecked", "gpg is not installed")
    return Signature("bad", "the gpg signature cannot be read")
