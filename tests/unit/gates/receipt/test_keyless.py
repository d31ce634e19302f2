# SPDX-License-Identifier: Apache-2.0
"""Signers that are identities, and what is told where the package is missing.

Signing and judging themselves: tests/tools/test_sigstore.py.
"""

import sys
from pathlib import Path
from typing import Any

import pytest
from gates import document, kernel_evidence
from support import Project, run

from stackctl.errors import InputError, UsageError
from stackctl.gates.receipt import keyless, read, write
from stackctl.gates.receipt.signature import Signer, judge, parse_signers

ISSUER = "https://issuer.example"


def test_an_identity_has_an_issuer() -> None:
    for identity in ("ada@example.org", "https://ci.example/team/f.yml@refs/heads/x"):
        assert parse_signers([f"sigstore:{identity} issuer={ISSUER}/a"]) == (
            Signer("sigstore", identity, identity, f"{ISSUER}/a"),
        )


@pytest.mark.parametrize(
    "text",
    [
        "sigstore:ada@example.org",
        "ada@example.org issuer=https://issuer.example",
        "sigstore: issuer=https://issuer.example",
        "sigstore:ada@example.org issuer=",
        "sigstore:ada@example.org issuer=issuer.example",
        "sigstore:ada@example.org issuer=http://issuer.example",
        "sigstore:ada@example.org issuer=https://",
        "sigstore:ada@example.org issuer=https://issuer.example more",
        "sigstore:ada lovelace issuer=https://issuer.example",
        "sigstore:ada@example.org\nissuer=https://issuer.example",
    ],
)
def test_what_is_no_identity_is_an_error(text: str) -> None:
    with pytest.raises(InputError, match=r"sigstore:IDENTITY issuer=https") as caught:
        parse_signers([text])
    assert caught.value.where["key"] == "policy.receipt_signers[0]"


@pytest.fixture
def written(project: Project) -> Path:
    path = write(document(kernel_evidence()), project.folder)
    path.with_name(f"{path.name}.sigstore.json").write_text("{}")
    return path


def without_package(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("sigstore.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "sigstore", None)


def test_without_the_package_a_bundle_is_not_passed_over(
    project: Project, written: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_package(monkeypatch)
    for args in (("verify",), ("sign", "kpool-speed", "--sigstore")):
        done = run("receipt", *args, "--json", "-C", project.folder)
        assert done.code == 2
        error = done.json["error"]
        assert error["kind"] == "package-missing"
        assert error["hint"] == "pip install 'stackctl[sigstore]'"


@pytest.mark.parametrize("found", ["4.4.9", "5.0.0", "3.6.1"])
def test_another_version_of_the_package_is_not_used(
    written: Path, project: Project, monkeypatch: pytest.MonkeyPatch, found: str
) -> None:
    modules: dict[str, Any] = {}
    for name in ("", ".models", ".oidc", ".sign", ".verify", ".verify.policy"):
        modules[name] = type(sys)(f"sigstore{name}")
        monkeypatch.setitem(sys.modules, f"sigstore{name}", modules[name])
    for name in ("models", "oidc", "sign", "verify"):
        setattr(modules[""], name, modules[f".{name}"])
    modules[".verify"].policy = modules[".verify.policy"]
    monkeypatch.setattr(keyless, "version", lambda name: found)
    with pytest.raises(UsageError, match=f"found {found}") as caught:
        judge(read(written), (), project.folder)
    assert caught.value.kind == "package-missing"


@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        ((), 2, "name one way to sign"),
        (("--sigstore", "--gpg-key", "A"), 2, "name one way to sign"),
        (("--ssh-key", "k", "--browser"), 2, "--browser belongs to --sigstore"),
        (
            ("--gpg-key", "A", "--sigstore-config", "f"),
            2,
            "--sigstore-config belongs to --sigstore",
        ),
        (("--sigstore", "--offline"), 6, "--offline forbids"),
        (("--sigstore", "--browser"), 2, "--browser needs a terminal"),
    ],
)
def test_options_that_say_no_one_way_are_refused(
    project: Project, written: Path, options: tuple[str, ...], code: int, words: str
) -> None:
    done = run(
        "receipt", "sign", "kpool-speed", *options, "--json", "-C", project.folder
    )
    assert done.code == code
    assert words in done.json["error"]["message"]
