# SPDX-License-Identifier: Apache-2.0
"""Receipts signed and judged by the real sigstore package.

The services are an instance of the tests' own (`sigstore_server.py`); Sigstore's public
ones, Rekor v2 and the login with a browser are not tested.
"""

import io
import json
import logging
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from gates import document, kernel_evidence
from gating import add_gate, arms, gate_project
from releases import (
    bare,
    cut,
    forge,
    fragment,
    proof_file,
    tag_body,
    verify,
    wrong,
)
from support import Project, run

pytest.importorskip("sigstore", reason="sigstore is not installed")
from sigstore_server import ISSUER, WORKFLOW, Instance, b64, token

from stackctl.gates.receipt import Receipt, find, keyless, read, write
from stackctl.gates.receipt.signature import Signature, judge, parse_signers
from stackctl.gates.receipt.verify import check

pytestmark = pytest.mark.tools

SIGNER = f"sigstore:{WORKFLOW} issuer={ISSUER}"
ROOT_FILE = "receipts/keys/sigstore-trusted-root.json"


@pytest.fixture(scope="module")
def instance() -> Iterator[Instance]:
    made = Instance()
    yield made
    made.close()


@pytest.fixture
def services(instance: Instance, monkeypatch: pytest.MonkeyPatch) -> Iterator[Instance]:
    """The instance with nothing set, and the job of a CI service around the test."""
    instance.answer, instance.spoil = None, False
    instance.asked.clear()
    for name in ("GITHUB_ACTIONS", "BUILDKITE", "CIRCLECI", "HTTP_PROXY", "http_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("GITLAB_CI", "true")
    monkeypatch.setenv("SIGSTORE_ID_TOKEN", token())
    yield instance
    instance.answer, instance.spoil = None, False


def trust(folder: Path, instance: Instance) -> None:
    file = folder / ROOT_FILE
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(instance.trusted_root()))


@pytest.fixture
def written(project: Project, services: Instance) -> Path:
    trust(project.folder, services)
    (project.folder / "services.json").write_text(json.dumps(services.config()))
    return write(document(kernel_evidence()), project.folder)


def sign(folder: Path, *options: str | Path, name: str = "kpool-speed") -> Any:
    return run("receipt", "sign", name, "-C", folder, "--sigstore", "--sigstore-config",
               folder / "services.json", "--json", *options)  # fmt: skip


@dataclass
class Signed:
    """A receipt with a bundle, and where they lie."""

    folder: Path
    receipt: Receipt
    bundle: Path

    def judged(self, *signers: str) -> Signature:
        return judge(self.receipt, parse_signers(signers), self.folder)

    def edit(self, change: Callable[[dict[str, Any]], object]) -> None:
        found = json.loads(self.bundle.read_bytes())
        change(found)
        self.bundle.write_text(json.dumps(found))


@pytest.fixture
def signed(project: Project, written: Path) -> Signed:
    done = sign(project.folder)
    assert done.code == 0, done.out
    (told,) = done.json["receipts"]
    bundle = project.folder / told["signed"]
    assert bundle.name == f"{written.name}.sigstore.json"
    return Signed(project.folder, read(written), bundle)


def test_a_listed_identity_is_trusted(signed: Signed) -> None:
    assert signed.judged("gpg:" + "0" * 40, SIGNER) == Signature("trusted", WORKFLOW)
    assert check(signed.receipt, [SIGNER], signed.folder).ok


def test_nothing_is_asked_of_the_network_to_judge(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    instance = Instance()
    monkeypatch.setenv("GITLAB_CI", "true")
    monkeypatch.setenv("SIGSTORE_ID_TOKEN", token())
    trust(project.folder, instance)
    (project.folder / "services.json").write_text(json.dumps(instance.config()))
    write(document(kernel_evidence()), project.folder)
    assert sign(project.folder).code == 0
    asked = list(instance.asked)
    assert asked == ["/api/v2/signingCert", "/api/v1/log/entries"]
    instance.close()
    series = project.folder / "series.toml"
    series.write_text(
        series.read_text() + f'\n[policy]\nreceipt_signers = ["{SIGNER}"]\n'
    )
    done = run("receipt", "verify", "--offline", "--json", "-C", project.folder)
    assert done.code == 0, done.out
    (told,) = done.json["receipts"]
    assert told["signature"] == f"signed by {WORKFLOW}"
    assert instance.asked == asked


@pytest.mark.parametrize(
    "signer",
    [
        f"sigstore:{WORKFLOW}x issuer={ISSUER}",
        f"sigstore:{WORKFLOW[:-1]} issuer={ISSUER}",
        f"sigstore:{WORKFLOW.upper()} issuer={ISSUER}",
        f"sigstore:{WORKFLOW} issuer={ISSUER}/",
        f"sigstore:{WORKFLOW} issuer=https://evil.example",
        "gpg:" + "0" * 40,
    ],
)
def test_another_identity_or_issuer_is_unlisted(signed: Signed, signer: str) -> None:
    assert signed.judged(signer).state == "unlisted"
    result = check(signed.receipt, [signer], signed.folder)
    assert result.reasons == ("signed, but it is by no identity of `receipt_signers`",)
    assert check(signed.receipt, (), signed.folder).ok  # as an unsigned one


def test_a_mail_address_is_an_identity(
    project: Project, written: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SIGSTORE_ID_TOKEN", token("ada@example.org"))
    assert sign(project.folder).code == 0
    signers = parse_signers([f"sigstore:ada@example.org issuer={ISSUER}"])
    found = judge(read(written), signers, project.folder)
    assert found == Signature("trusted", "ada@example.org")


def test_a_bundle_of_other_bytes_is_never_believed(signed: Signed) -> None:
    path = write(document(kernel_evidence(seed=5)), signed.folder)
    other = read(path)
    signed.bundle.rename(path.with_name(f"{path.name}.sigstore.json"))
    for signers in ([SIGNER], []):
        result = check(other, signers, signed.folder)
        assert result.signature.state == "invalid"
        assert not result.ok


def log_entry(bundle: dict[str, Any]) -> dict[str, Any]:
    (entry,) = bundle["verificationMaterial"]["tlogEntries"]
    return entry


TAMPERED = {
    "signature": lambda b: b["messageSignature"].update(signature=b64(b"x" * 70)),
    "no signature": lambda b: b.pop("messageSignature"),
    "no log entry": lambda b: b["verificationMaterial"].update(tlogEntries=[]),
    "no proof": lambda b: log_entry(b).pop("inclusionProof"),
    "no promise": lambda b: log_entry(b).pop("inclusionPromise"),
    "another time": lambda b: log_entry(b).update(integratedTime="1700000000"),
    "another root": lambda b: log_entry(b)["inclusionProof"].update(
        rootHash=b64(b"r" * 32)
    ),
    "no checkpoint": lambda b: log_entry(b)["inclusionProof"].pop("checkpoint"),
    "another kind": lambda b: b.update(mediaType="application/json"),
}


@pytest.mark.parametrize("change", TAMPERED.values(), ids=TAMPERED)
def test_a_tampered_bundle_is_invalid(
    signed: Signed, change: Callable[[dict[str, Any]], object]
) -> None:
    signed.edit(change)
    assert signed.judged(SIGNER).state == "invalid"
    assert signed.judged().state == "invalid"  # whatever the policy
    assert not check(signed.receipt, (), signed.folder).ok


@pytest.mark.parametrize(
    "data",
    [b"", b"junk", b"{}", b"[" * 20_000, b"\xff\xfe", b"null", b" " * (64 * 1024 + 1)],
    ids=["empty", "junk", "object", "deep", "bytes", "null", "large"],
)
def test_what_is_no_bundle_is_invalid(signed: Signed, data: bytes) -> None:
    signed.bundle.write_bytes(data)
    found = signed.judged(SIGNER)
    assert found.state == "invalid"
    assert "\n" not in found.why
    done = run("receipt", "verify", "--json", "-C", signed.folder)
    assert done.code == 1
    assert done.json["receipts"][0]["signature"] == "invalid signature"


def test_another_instance_vouches_for_nobody_here(signed: Signed) -> None:
    other = Instance()
    try:
        trust(signed.folder, other)
    finally:
        other.close()
    assert signed.judged(SIGNER).state == "invalid"


def test_without_a_trust_root_it_is_unlisted_and_says_what_to_do(
    signed: Signed,
) -> None:
    (signed.folder / ROOT_FILE).unlink()
    found = signed.judged(SIGNER)
    assert found.state == "unlisted"
    assert found.why.endswith(f"put it into {ROOT_FILE}")


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"mediaType":"x"}'])
def test_a_bad_trust_root_is_named(signed: Signed, text: str) -> None:
    (signed.folder / ROOT_FILE).write_text(text)
    done = run("receipt", "verify", "--json", "-C", signed.folder)
    assert done.code == 3
    assert done.json["error"]["kind"] == "bad-trust-root"
    assert done.json["error"]["where"]["file"].endswith(ROOT_FILE)


def test_two_identities_may_sign(
    signed: Signed, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = signed.receipt.path
    assert path is not None
    signed.bundle.rename(path.with_name(f"{path.name}.ci.sigstore.json"))
    monkeypatch.setenv("SIGSTORE_ID_TOKEN", token("ada@example.org"))
    assert sign(signed.folder).code == 0
    assert signed.judged(SIGNER).state == "trusted"
    ada = f"sigstore:ada@example.org issuer={ISSUER}"
    assert signed.judged(ada).state == "trusted"


def test_bundles_and_the_trust_root_are_no_raw_figures(signed: Signed) -> None:
    shelf = find(signed.folder)
    assert [each.path for each in shelf.found] == [signed.receipt.path]
    assert shelf.others == ()
    (signed.bundle.parent / "figures.sigstore.json").write_text("{}")
    assert [path.name for path in find(signed.folder).others] == [
        "figures.sigstore.json"
    ]


def test_several_receipts_are_signed_by_one_certificate(
    project: Project, written: Path, services: Instance
) -> None:
    write(document(kernel_evidence(seed=5)), project.folder)
    done = sign(project.folder)
    assert len(done.json["receipts"]) == 2
    assert services.asked.count("/api/v2/signingCert") == 1
    assert len(set(project.folder.glob("receipts/*/*.sigstore.json"))) == 2


REFUSALS = {
    "certificate": ("/api/v2/signingCert", 400, "no, %TOKEN%", b"{}"),
    "no chain": ("/api/v2/signingCert", 201, "", b"{}"),
    "no JSON": ("/api/v2/signingCert", 201, "", b"<html>"),
    "log": ("/api/v1/log/entries", 503, "away", b""),
    "log says nothing": ("/api/v1/log/entries", 201, "", b"{}"),
}


@pytest.mark.parametrize("answer", REFUSALS.values(), ids=REFUSALS)
def test_a_service_that_refuses_is_one_clear_error(
    project: Project, written: Path, services: Instance, answer: Any
) -> None:
    services.answer = answer
    done = sign(project.folder)
    assert done.code == 6
    error = done.json["error"]
    assert error["kind"] == "not-signed"
    assert re.match(r"sigstore did not sign: \S", error["message"])
    assert "\n" not in error["message"]
    assert list(project.folder.glob("receipts/*/*.sigstore.json")) == []


def test_a_bundle_that_would_not_hold_is_not_written(
    project: Project, written: Path, services: Instance
) -> None:
    services.spoil = True
    done = sign(project.folder)
    assert done.code == 6
    assert "what the services gave is bad" in done.json["error"]["message"]
    assert list(project.folder.glob("receipts/*/*.sigstore.json")) == []


def test_services_that_are_not_there_are_named(
    project: Project, written: Path, services: Instance
) -> None:
    other = Instance()
    other.close()
    (project.folder / "services.json").write_text(json.dumps(other.config()))
    done = sign(project.folder)
    assert done.code == 6
    assert "127.0.0.1" in done.json["error"]["message"]


@pytest.mark.parametrize("path", ["/api/v2/signingCert", "/api/v1/log/entries"])
def test_a_service_that_never_answers_is_given_up(
    project: Project, written: Path, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    other = Instance()
    other.hang = path
    (project.folder / "services.json").write_text(json.dumps(other.config()))
    monkeypatch.setattr(keyless, "TIMEOUT", 0.5)
    try:
        done = sign(project.folder)
    finally:
        other.go_on.set()
        other.close()
    assert done.code == 6
    assert other.asked[-1] == path
    assert "timed out" in done.json["error"]["message"]


@pytest.mark.parametrize("raw", ["junk", token(age=4000)], ids=["junk", "expired"])
def test_a_bad_identity_is_told(
    project: Project, written: Path, monkeypatch: pytest.MonkeyPatch, raw: str
) -> None:
    monkeypatch.setenv("SIGSTORE_ID_TOKEN", raw)
    done = sign(project.folder)
    assert done.code == 6
    assert done.json["error"]["kind"] == "not-signed"
    assert raw not in done.out


def test_without_an_identity_it_says_where_one_comes_from(
    project: Project, written: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GITLAB_CI")
    if Path("/sys/class/dmi/id/product_name").is_file():
        name = Path("/sys/class/dmi/id/product_name").read_text().strip()
        if name in {"Google", "Google Compute Engine"}:
            pytest.skip("this machine has an identity of its own")
    done = sign(project.folder)
    assert done.code == 2
    assert done.json["error"]["kind"] == "no-identity"
    assert "--browser" in done.json["error"]["hint"]


def test_a_bad_configuration_is_named(project: Project, written: Path) -> None:
    for text in ("junk", "{}"):
        (project.folder / "services.json").write_text(text)
        done = sign(project.folder)
        assert done.code == 3
        assert done.json["error"]["kind"] == "bad-sigstore-config"


def test_the_token_is_nowhere(
    project: Project,
    written: Path,
    services: Instance,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    raw = token()
    monkeypatch.setenv("SIGSTORE_ID_TOKEN", raw)
    log, root = io.StringIO(), logging.getLogger()
    handler, level = logging.StreamHandler(log), root.level
    root.addHandler(handler)
    root.setLevel(logging.DEBUG)
    try:
        said = [sign(project.folder, "-v", "-v")]
        services.answer = REFUSALS["certificate"]
        said.append(sign(project.folder, "-v", "-v"))
        logging.getLogger("sigstore").debug("still heard")
    finally:
        root.removeHandler(handler)
        root.setLevel(level)
    assert [done.code for done in said] == [0, 6]
    assert "[removed]" in said[1].json["error"]["message"]
    files = [path.read_bytes() for path in project.folder.rglob("*") if path.is_file()]
    streams = capfd.readouterr()
    texts = [log.getvalue(), *streams, *(done.out + done.err for done in said)]
    for part in raw.split("."):
        assert not [text for text in texts if part in text]
        assert not [data for data in files if part.encode() in data]
    assert log.getvalue() == "still heard\n"


SCRIPT = """
texts = {n: (Path(a["tree"]) / "pkg/core.py").read_text() for n, a in arms.items()}
say(cases("line ten" in texts["on"]))
"""


def test_a_tag_carries_bundle_and_trust_root(
    tmp_path: Path, services: Instance
) -> None:
    project = gate_project(tmp_path / "project").folder
    series = project / "series.toml"
    text = series.read_text().replace(
        'name = "alpha"', 'name = "alpha"\ngates.required = ["texts"]'
    )
    series.write_text(text + f'\n[policy]\nreceipt_signers = ["{SIGNER}"]\n')
    made = type("P", (), {"folder": project})
    add_gate(made, "texts", SCRIPT, arms(base="base", on="composed"))
    for name in ("alpha", "beta", "gamma"):
        fragment(project, name, name)
    assert run("lock", "-C", project).code == 0
    done = run("gate", "run", "texts", "--json", "-C", project)
    assert done.code == 0, done.out
    (project / "services.json").write_text(json.dumps(services.config()))
    into = bare(tmp_path / "fork.git")
    assert sign(project, name="texts").code == 0
    # Signed, and nobody to judge it by.
    assert "no trust root" in wrong(cut(project, into, code=1))["gate:texts"]
    trust(project, services)
    cut(project, into)
    said = f"signed by {WORKFLOW}"
    assert re.search(
        rf"\nReceipt: texts .* {re.escape(said)}\n", tag_body(into).decode()
    )
    (bundle,) = project.glob("receipts/texts/*.sigstore.json")
    for path in (bundle, project / ROOT_FILE):
        assert proof_file(into, str(path.relative_to(project))) == path.read_bytes()
    page = run("report", "--out", tmp_path / "page", "-C", project)
    assert page.code == 0, page.err
    shown = tmp_path / "page" / bundle.relative_to(project)
    assert shown.read_bytes() == bundle.read_bytes()
    name = str(bundle.relative_to(project))
    shutil.rmtree(project)
    assert verify(into, "--offline")["ok"]
    forge(into, {name: None})
    assert "receipts" in wrong(verify(into, code=1))
