# SPDX-License-Identifier: Apache-2.0
"""Signatures by real SSH and OpenPGP keys, made here."""

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from gates import document, kernel_evidence

from stackctl.errors import InputError, UsageError
from stackctl.gates.receipt import Receipt, read, write
from stackctl.gates.receipt.signature import (
    NAMESPACE,
    Signature,
    judge,
    parse_signers,
    sign,
)
from stackctl.gates.receipt.verify import check

for program in ("ssh-keygen", "gpg"):
    if shutil.which(program) is None:
        pytest.skip(f"{program} is not installed", allow_module_level=True)


def ssh_key(folder: Path, name: str, kind: str = "ed25519") -> tuple[Path, str]:
    """Make a key; return its file and its public line."""
    file = folder / name
    command = ["ssh-keygen", "-q", "-t", kind, "-N", "", "-C", name, "-f", str(file)]
    subprocess.run(command, check=True)
    return file, file.with_suffix(".pub").read_text().strip()


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, str]]:
    folder = tmp_path_factory.mktemp("ssh")
    return {name: ssh_key(folder, name) for name in ("ada", "eve")}


@pytest.fixture(scope="module")
def gnupg(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, str]]:
    """A key ring with two keys; its folder and the first key's fingerprint."""
    home = tmp_path_factory.mktemp("gnupg")
    home.chmod(0o700)
    for name in ("ada", "eve"):
        gpg(home, "--passphrase", "", "--quick-gen-key", f"{name}@example.org",
            "ed25519", "sign", "0")  # fmt: skip
    yield home, fingerprint(home, "ada")
    subprocess.run(["gpgconf", "--homedir", str(home), "--kill", "all"], check=False)


def gpg(home: Path, *args: str, stdin: bytes = b"") -> bytes:
    command = ["gpg", "--homedir", str(home), "--batch", "--quiet", *args]
    return subprocess.run(command, input=stdin, capture_output=True, check=True).stdout


def fingerprint(home: Path, name: str) -> str:
    lines = gpg(home, "--with-colons", "--list-keys", f"{name}@example.org").decode()
    found = [line.split(":")[9] for line in lines.splitlines() if line[:3] == "fpr"]
    return found[0]


@pytest.fixture
def receipt(tmp_path: Path) -> Receipt:
    return read(write(document(kernel_evidence()), tmp_path))


def state(receipt: Receipt, *signers: str, project: Path | None = None) -> str:
    return judge(receipt, parse_signers(signers), project).state


def test_without_a_signature_it_is_unsigned(receipt: Receipt) -> None:
    assert judge(receipt, ()) == Signature("unsigned")
    assert check(receipt).ok


def test_an_unsigned_receipt_is_not_enough_where_signers_are_named(
    receipt: Receipt, keys: dict[str, tuple[Path, str]]
) -> None:
    result = check(receipt, [keys["ada"][1]])
    assert not result.ok
    assert "unsigned; the policy asks for a signature" in result.reasons[0]


def test_an_ssh_signature_by_a_listed_key_is_trusted(
    receipt: Receipt, keys: dict[str, tuple[Path, str]]
) -> None:
    file = sign(receipt, ssh_key=keys["ada"][0])
    assert file.name == f"{receipt.digest}.json.sig"
    signers = parse_signers([keys["eve"][1], keys["ada"][1]])
    assert judge(receipt, signers) == Signature("trusted", "ada")
    assert check(receipt, [keys["ada"][1]]).ok


def test_a_signature_by_another_key_is_not_trusted(
    receipt: Receipt, keys: dict[str, tuple[Path, str]]
) -> None:
    sign(receipt, ssh_key=keys["eve"][0])
    assert state(receipt, keys["ada"][1]) == "unlisted"
    assert not check(receipt, [keys["ada"][1]]).ok
    # Nobody is listed: it is believed as an unsigned one, and not called signed.
    assert check(receipt).ok
    assert str(check(receipt).signature) == "unlisted signature"


def test_two_people_may_sign(
    receipt: Receipt, keys: dict[str, tuple[Path, str]]
) -> None:
    first = sign(receipt, ssh_key=keys["eve"][0])
    first.rename(first.with_name(f"{receipt.digest}.json.eve.sig"))
    sign(receipt, ssh_key=keys["ada"][0])
    assert state(receipt, keys["ada"][1]) == "trusted"
    assert state(receipt, keys["eve"][1]) == "trusted"


def test_a_signature_of_other_bytes_is_never_believed(
    receipt: Receipt, tmp_path: Path, keys: dict[str, tuple[Path, str]]
) -> None:
    other = read(write(document(kernel_evidence(seed=5)), tmp_path))
    made = sign(other, ssh_key=keys["ada"][0])
    assert receipt.path is not None
    made.rename(receipt.path.with_name(f"{receipt.path.name}.sig"))
    for signers in ([keys["ada"][1]], []):
        result = check(receipt, signers)
        assert result.signature.state == "invalid"
        assert not result.ok
        assert "of other bytes" in result.reasons[0]


def test_a_signature_for_another_purpose_does_not_count(
    receipt: Receipt, keys: dict[str, tuple[Path, str]]
) -> None:
    assert receipt.path is not None
    subprocess.run(
        ["ssh-keygen", "-q", "-Y", "sign", "-f", str(keys["ada"][0]), "-n", "git",
         str(receipt.path)],
        check=True,
    )  # fmt: skip
    result = check(receipt, [keys["ada"][1]])
    assert result.signature.state == "invalid"
    assert NAMESPACE in result.reasons[0]


@pytest.mark.parametrize("junk", [b"", b"junk\n", b"-----BEGIN SSH SIGNATURE-----\n"])
def test_a_broken_signature_is_invalid(receipt: Receipt, junk: bytes) -> None:
    assert receipt.path is not None
    receipt.path.with_name(f"{receipt.path.name}.sig").write_bytes(junk)
    assert judge(receipt, ()).state == "invalid"
    assert not check(receipt).ok


def test_any_changed_byte_of_the_receipt_ends_its_signature(
    receipt: Receipt, keys: dict[str, tuple[Path, str]]
) -> None:
    sign(receipt, ssh_key=keys["ada"][0])
    for at in range(0, len(receipt.data), len(receipt.data) // 7):
        data = bytearray(receipt.data)
        data[at] ^= 1
        changed = Receipt(receipt.statement, bytes(data), receipt.path)
        assert state(changed, keys["ada"][1]) == "invalid"


def test_rsa_and_ecdsa_keys_work(receipt: Receipt, tmp_path: Path) -> None:
    for kind in ("rsa", "ecdsa"):
        file, public = ssh_key(tmp_path, kind, kind)
        sign(receipt, ssh_key=file)
        assert state(receipt, public) == "trusted"


def test_a_gpg_signature_is_judged_by_the_projects_key(
    receipt: Receipt,
    tmp_path: Path,
    gnupg: tuple[Path, str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    home, listed = gnupg
    monkeypatch.setenv("GNUPGHOME", str(home))
    file = sign(receipt, gpg_key="ada@example.org")
    assert file.name == f"{receipt.digest}.json.asc"
    spaced = " ".join(listed[n : n + 4] for n in range(0, 40, 4))
    assert state(receipt, spaced) == "trusted"  # the key ring knows it
    monkeypatch.setenv("GNUPGHOME", str(tmp_path / "none"))
    unknown = judge(receipt, parse_signers([f"gpg:{listed}"]), tmp_path)
    assert unknown.state == "unlisted"
    assert f"receipts/keys/{listed}.asc" in unknown.why
    keys = tmp_path / "receipts" / "keys"
    keys.mkdir()
    exported = gpg(home, "--armor", "--export", listed)
    (keys / f"{listed}.asc").write_bytes(exported)
    assert judge(receipt, parse_signers([f"gpg:{listed}"]), tmp_path) == Signature(
        "trusted", listed
    )


def test_a_key_file_with_another_key_gives_no_trust(
    receipt: Receipt,
    tmp_path: Path,
    gnupg: tuple[Path, str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    home, listed = gnupg
    monkeypatch.setenv("GNUPGHOME", str(home))
    sign(receipt, gpg_key="eve@example.org")
    assert state(receipt, listed) == "unlisted"
    keys = tmp_path / "receipts" / "keys"
    keys.mkdir()
    # Somebody puts the key of another person under the listed key's name.
    (keys / f"{listed}.asc").write_bytes(
        gpg(home, "--armor", "--export", fingerprint(home, "eve"))
    )
    assert state(receipt, listed, project=tmp_path) == "unlisted"


def test_gpg_signatures_of_other_bytes_are_never_believed(
    receipt: Receipt, gnupg: tuple[Path, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    home, listed = gnupg
    monkeypatch.setenv("GNUPGHOME", str(home))
    assert receipt.path is not None
    file = receipt.path.with_name(f"{receipt.path.name}.asc")
    # Detached, of other bytes; and two that carry the bytes they are of inside.
    for options in (
        ["--armor", "--detach-sign"], ["--armor", "--sign"], ["--clear-sign"],
    ):  # fmt: skip
        file.write_bytes(
            gpg(home, "--local-user", "ada@example.org", *options, stdin=b"other")
        )
        assert state(receipt, listed) == "invalid", options
    for options in (["--armor", "--sign"], ["--clear-sign"]):
        signed = gpg(
            home, "--local-user", "ada@example.org", *options, stdin=receipt.data
        )
        file.write_bytes(signed)
        assert state(receipt, listed) == "invalid", options


def test_a_revoked_key_gives_no_trust(receipt: Receipt, tmp_path: Path) -> None:
    home = tmp_path / "gnupg"
    home.mkdir(mode=0o700)
    gpg(home, "--passphrase", "", "--quick-gen-key", "old@example.org", "ed25519",
        "sign", "0")  # fmt: skip
    listed = fingerprint(home, "old")
    assert receipt.path is not None
    file = receipt.path.with_name(f"{receipt.path.name}.asc")
    file.write_bytes(gpg(home, "--armor", "--detach-sign", stdin=receipt.data))
    keys = tmp_path / "receipts" / "keys"
    keys.mkdir()
    (keys / f"{listed}.asc").write_bytes(gpg(home, "--armor", "--export", listed))
    assert state(receipt, listed, project=tmp_path) == "trusted"
    revocation = (home / "openpgp-revocs.d" / f"{listed}.rev").read_text()
    (home / "rev").write_text(revocation.replace(":-----BEGIN", "-----BEGIN"))
    gpg(home, "--import", str(home / "rev"))
    (keys / f"{listed}.asc").write_bytes(gpg(home, "--armor", "--export", listed))
    result = judge(receipt, parse_signers([listed]), tmp_path)
    assert result.state == "unlisted"
    assert "revoked" in result.why
    subprocess.run(["gpgconf", "--homedir", str(home), "--kill", "all"], check=False)


@pytest.mark.parametrize(
    "text",
    ["ada", "ssh-ed25519", "ssh-ed25519 AAAA\nother", "gpg:123", "ssh-dss AAAA x",
     'namespaces="x" ssh-ed25519 AAAA'],
)  # fmt: skip
def test_a_signer_that_is_no_key_is_an_error(text: str) -> None:
    with pytest.raises(InputError, match="must be an SSH public key") as caught:
        parse_signers(["gpg:" + "A" * 40, text])
    assert caught.value.where["key"] == "policy.receipt_signers[1]"


def test_a_key_that_does_not_sign_is_an_error(receipt: Receipt, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="ssh-keygen did not sign"):
        sign(receipt, ssh_key=tmp_path / "missing")
    with pytest.raises(UsageError, match="gpg did not sign"):
        sign(receipt, gpg_key="nobody@example.org")
    with pytest.raises(UsageError, match="name one key"):
        sign(receipt)
