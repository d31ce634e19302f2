# SPDX-License-Identifier: Apache-2.0
"""Detached signatures of receipts: SSH (`ssh-keygen -Y`), OpenPGP (`gpg`), sigstore.

A receipt is a file that anyone can write. `[policy] receipt_signers` lists the keys
whose signatures count: SSH public keys, fingerprints of OpenPGP keys as
`gpg:FINGERPRINT`, or identities as `sigstore:IDENTITY issuer=https://...`. A signature
lies beside its receipt, `<digest>.json.sig`, `.asc` or `.sigstore.json` (several:
`<digest>.json.<name>.sig`), and is judged over the very bytes that were read. Nothing
of the user's trust settings takes part.
"""

import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import gettempdir
from typing import Final, Literal

from stackctl.errors import InputError, UsageError
from stackctl.fsutil import read_regular, write_atomic
from stackctl.gates.receipt.model import FOLDER, Receipt
from stackctl.model.fields import escape, show
from stackctl.scratch import scratch_folder

NAMESPACE: Final = "stackctl-receipt"
"""Namespace of SSH signatures: one for another purpose does not count."""

KEYS: Final = "keys"
"""Folder below `receipts/` with OpenPGP keys, `<fingerprint>.asc`, and a trust root."""

TRUSTED_ROOT: Final = "sigstore-trusted-root.json"
"""File in that folder: the authorities and logs that sigstore bundles are judged by."""

BUNDLE: Final = ".sigstore.json"
"""End of the name of a sigstore bundle."""

MAX_BYTES: Final = 64 * 1024
"""Largest accepted signature."""

MAX_KEY: Final = 1024 * 1024
"""Largest accepted OpenPGP key, trust root or configuration of sigstore."""

SCRATCH: Final = "stackctl-signature-"
"""Start of the names of folders that programs and libraries read from."""

TIMEOUT: Final = 60.0
"""Longest that judging one signature may take, seconds."""

State = Literal["unsigned", "trusted", "unlisted", "invalid"]

_SSH_KEY = re.compile(
    r"((?:sk-)?(?:ssh-ed25519|ssh-rsa|ecdsa-sha2-nistp(?:256|384|521))"
    r"(?:@openssh\.com)?) +([A-Za-z0-9+/]+={0,2})(?: +(.*))?"
)
_FINGERPRINT = re.compile(r"(?:[0-9A-F]{40}|[0-9A-F]{64})")
_IDENTITY = re.compile(r"sigstore:(\S+) +issuer=(https://[^\s/]\S*)")
_SSH_MARK: Final = b"-----BEGIN SSH SIGNATURE-----"


@dataclass(frozen=True, slots=True)
class Signer:
    """A key or identity whose signatures count.

    Attributes:
        kind: `ssh`, `gpg` or `sigstore`.
        key: The SSH public key without its comment, the fingerprint, or the identity.
        name: How it is called: the comment, the fingerprint, or the identity.
        issuer: Who vouches for the identity; empty for a key.
    """

    kind: Literal["ssh", "gpg", "sigstore"]
    key: str
    name: str
    issuer: str = ""


@dataclass(frozen=True, slots=True)
class Signature:
    """What is known about the signatures of a receipt.

    Attributes:
        state: `trusted`: by a listed key over these bytes. `unlisted`: there is one,
            but by no listed key. `invalid`: there is one of other bytes, or a broken
            one. `unsigned`: there is none.
        signer: Name of the listed key.
        why: What is wrong, in words.
    """

    state: State
    signer: str | None = None
    why: str = ""

    def __str__(self) -> str:
        if self.state == "trusted":
            return f"signed by {self.signer}"
        if self.state == "unsigned":
            return "unsigned"
        return f"{'invalid' if self.state == 'invalid' else 'unlisted'} signature"


def parse_signers(
    texts: Sequence[str], file: str = "series.toml"
) -> tuple[Signer, ...]:
    """Read `[policy] receipt_signers`.

    Args:
        texts: The list.
        file: Name of the file, for messages.

    Raises:
        InputError: An entry is no SSH public key, fingerprint or identity.
    """
    found = []
    for n, text in enumerate(texts):
        if match := _SSH_KEY.fullmatch(text.strip()):
            blob = match[2]
            found.append(
                Signer(
                    "ssh", f"{match[1]} {blob}", match[3] or f"{match[1]} {blob[-12:]}"
                )
            )
            continue
        if match := _IDENTITY.fullmatch(text.strip()):
            found.append(Signer("sigstore", match[1], match[1], match[2]))
            continue
        digits = text.strip().removeprefix("gpg:").replace(" ", "").upper()
        if _FINGERPRINT.fullmatch(digits):
            found.append(Signer("gpg", digits, digits))
            continue
        key = f"policy.receipt_signers[{n}]"
        raise InputError(
            f"{file}: `{key}` must be an SSH public key (`ssh-ed25519 AAAA... name`), "
            "the fingerprint of an OpenPGP key (`gpg:` and 40 hex digits) or an "
            "identity (`sigstore:IDENTITY issuer=https://...`); found "
            f"{show(text)}",
            kind="bad-signer",
            hint="`ssh-keygen -y -f KEY` or `gpg --fingerprint` prints a key; an "
            "identity is what the certificate names: a mail address, a workflow's URL",
            where={"file": file, "key": key},
        )
    return tuple(found)


def signature_files(path: Path) -> tuple[Path, ...]:
    """Return the files with signatures of a receipt, sorted."""
    start = path.name + "."
    try:
        names = sorted(os.listdir(path.parent))
    except OSError:
        return ()
    return tuple(
        path.parent / name
        for name in names
        if name.startswith(start) and name.endswith((".sig", ".asc", BUNDLE))
    )


def judge(
    receipt: Receipt, signers: Sequence[Signer], project: Path | None = None
) -> Signature:
    """Judge the signatures that lie beside a receipt.

    Args:
        receipt: The receipt, read from a file.
        signers: Those that count.
        project: The project folder, whose `receipts/keys/` holds OpenPGP keys and the
            trust root of sigstore.

    Raises:
        InputError: The trust root cannot be read.
        UsageError: `ssh-keygen`, `gpg` or `sigstore` is wanted and not installed.
    """
    if receipt.path is None:
        return Signature("unsigned")
    best = Signature("unsigned")
    for file in signature_files(receipt.path):
        try:
            signature = read_regular(file, MAX_BYTES)
        except InputError as error:
            return Signature("invalid", why=error.message)
        if file.name.endswith(BUNDLE):
            # Not above: it imports this module, and takes more than a second.
            from stackctl.gates.receipt.keyless import judge_bundle

            found = judge_bundle(receipt.data, signature, signers, project)
        else:
            found = _judge(receipt.data, signature, signers, project)
        if found.state == "invalid":
            # A broken one beside a good one is still a reason to look.
            return Signature("invalid", why=f"{file.name}: {found.why}")
        if best.state != "trusted":
            best = found
    return best


def _judge(
    data: bytes, signature: bytes, signers: Sequence[Signer], project: Path | None
) -> Signature:
    with scratch_folder(Path(gettempdir()), SCRATCH) as folder:
        (folder / "receipt").write_bytes(data)
        (folder / "signature").write_bytes(signature)
        if signature.lstrip().startswith(_SSH_MARK):
            keys = [signer for signer in signers if signer.kind == "ssh"]
            return _judge_ssh(folder, data, keys)
        keys = [signer for signer in signers if signer.kind == "gpg"]
        return _judge_gpg(folder, keys, project)


def _program(name: str, package: str) -> str:
    found = shutil.which(name)
    if found is None:
        raise UsageError(
            f"{name} is needed for this signature and was not found on PATH",
            kind="program-missing",
            hint=f"install {package}",
        )
    return os.path.abspath(found)


def _run(
    command: Sequence[str | Path], folder: Path, stdin: bytes = b""
) -> "subprocess.CompletedProcess[bytes]":
    """Run a program that takes nothing from the user's settings."""
    env = {
        "PATH": os.environ.get("PATH", os.defpath),
        "HOME": str(folder),
        "LC_ALL": "C",
    }
    try:
        return subprocess.run(
            [str(part) for part in command],
            cwd=folder,
            env=env,
            input=stdin,
            capture_output=True,
            timeout=TIMEOUT,
        )
    except subprocess.TimeoutExpired:
        raise UsageError(
            f"{Path(command[0]).name} gave no answer in {TIMEOUT:g} s",
            kind="program-failed",
        ) from None


def _judge_ssh(folder: Path, data: bytes, signers: Sequence[Signer]) -> Signature:
    program = _program("ssh-keygen", "OpenSSH 8.2 or later (openssh-client)")
    sane = _run(
        [program, "-Y", "check-novalidate", "-n", NAMESPACE, "-s", "signature"],
        folder,
        data,
    )
    if sane.returncode:
        return Signature("invalid", why=_ssh_words(sane.stdout + sane.stderr))
    for signer in signers:
        allowed = f'signer namespaces="{NAMESPACE}" {signer.key}\n'
        (folder / "allowed").write_text(allowed, "ascii")
        done = _run(
            [program, "-Y", "verify", "-f", "allowed", "-I", "signer", "-n", NAMESPACE,
             "-s", "signature"],
            folder,
            data,
        )  # fmt: skip
        if done.returncode == 0:
            return Signature("trusted", signer.name)
    return Signature("unlisted", why="it is by no key of `receipt_signers`")


def _ssh_words(output: bytes) -> str:
    text = output.decode("utf-8", "replace")
    if "namespace" in text:
        return f"it was made for another purpose than `-n {NAMESPACE}`"
    if "incorrect signature" in text or "verification failed" in text.lower():
        return "it is a signature of other bytes"
    last = text.strip().splitlines()
    return f"it cannot be read: {escape(last[-1] if last else 'no message')}"


def _judge_gpg(
    folder: Path, signers: Sequence[Signer], project: Path | None
) -> Signature:
    program = _program("gpg", "GnuPG 2.2 or later (gnupg)")
    home = folder / "gnupg"
    home.mkdir(mode=0o700)
    command: list[str | Path] = [program, "--homedir", home, "--batch", "--no-tty"]
    command.append("--no-autostart")
    known: dict[str, Signer] = {}
    for signer in signers:
        key = _openpgp_key(signer.key, project, program)
        if key is not None:
            (folder / "key").write_bytes(key)
            _run([*command, "--import", folder / "key"], folder)
            known[signer.key] = signer
    done = _run(
        [*command, "--trust-model", "always", "--no-auto-key-retrieve", "--status-fd",
         "1", "--verify", folder / "signature", folder / "receipt"],
        folder,
    )  # fmt: skip
    return _gpg_verdict(done.stdout.decode("utf-8", "replace"), known, signers)


def _gpg_verdict(
    status: str, known: Mapping[str, Signer], signers: Sequence[Signer]
) -> Signature:
    """Judge by gpg's status lines (GnuPG's doc/DETAILS), never by its exit code."""
    words = [
        line.split()[1:] for line in status.splitlines() if line.startswith("[GNUPG:] ")
    ]
    said = {line[0] for line in words if line}
    if "BADSIG" in said:
        return Signature("invalid", why="it is a signature of other bytes")
    for word, meaning in (
        ("REVKEYSIG", "its key was revoked"),
        ("EXPKEYSIG", "its key has expired"),
        ("EXPSIG", "it has expired"),
    ):
        if word in said:
            return Signature("unlisted", why=meaning)
    if "GOODSIG" in said:
        for line in words:
            # The last word is the primary key's, the second that of the key used.
            if line[0] == "VALIDSIG" and (signer := known.get(line[-1])):
                return Signature("trusted", signer.name)
        return Signature("unlisted", why="it is by no key of `receipt_signers`")
    if "NO_PUBKEY" in said:
        missing = [signer.name for signer in signers if signer.key not in known]
        why = "it is by no key of `receipt_signers`"
        if missing:
            why += (
                f"; the public key {missing[0]} is not known: put it into "
                f"{FOLDER}/{KEYS}/{missing[0]}.asc"
            )
        return Signature("unlisted", why=why)
    return Signature("invalid", why="it is no detached OpenPGP signature")


def _openpgp_key(fingerprint: str, project: Path | None, program: str) -> bytes | None:
    """Return a public key: the project's, else from the user's key ring."""
    if project is not None:
        file = project / FOLDER / KEYS / f"{fingerprint}.asc"
        if file.is_file():
            return read_regular(file, MAX_KEY)
    done = subprocess.run(
        [program, "--batch", "--no-tty", "--export", fingerprint],
        capture_output=True,
        stdin=subprocess.DEVNULL,
    )
    return done.stdout or None


def sign(
    receipt: Receipt, *, ssh_key: Path | None = None, gpg_key: str | None = None
) -> Path:
    """Sign a receipt with a key of the user's, beside its file.

    Args:
        receipt: The receipt, read from its file.
        ssh_key: The SSH key (a public key's private part may be in the agent).
        gpg_key: The OpenPGP key, as gpg takes it.

    Returns:
        The file with the signature.

    Raises:
        UsageError: No key is named, or the program is not installed or refuses.
    """
    if receipt.path is None or (ssh_key is None) == (gpg_key is None):
        raise UsageError("name one key: an SSH key or an OpenPGP key")
    if ssh_key is not None:
        program = _program("ssh-keygen", "OpenSSH 8.2 or later (openssh-client)")
        # Without a file, ssh-keygen signs standard input to standard output.
        command = [program, "-Y", "sign", "-f", str(ssh_key), "-n", NAMESPACE, "-q"]
        target = receipt.path.with_name(receipt.path.name + ".sig")
    else:
        program = _program("gpg", "GnuPG 2.2 or later (gnupg)")
        command = [program, "--armor", "--detach-sign", "--local-user", str(gpg_key)]
        target = receipt.path.with_name(receipt.path.name + ".asc")
    # No limit of time: it may ask for a passphrase, or for a touch of a token.
    done = subprocess.run(command, input=receipt.data, capture_output=True)
    if done.returncode or not done.stdout:
        last = done.stderr.decode("utf-8", "replace").strip().splitlines()
        raise UsageError(
            f"{Path(program).name} did not sign: "
            f"{escape(last[-1], 200) if last else 'no message'}",
            kind="not-signed",
            where={"file": str(receipt.path)},
        )
    write_atomic(target, done.stdout)
    return target
