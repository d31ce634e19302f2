# SPDX-License-Identifier: Apache-2.0
"""Registries that are well, ill and hostile."""

import base64
import gzip
import json
import os
import stat
import time
import zlib
from pathlib import Path
from typing import Any

import pytest
from images import PACKAGE_ROOT, SITE, Demo, build_image, sha256, tree_layer
from registry_server import (
    FakeRegistry,
    Fault,
    endless,
    redirect,
    replaced,
    status,
    trickle,
    truncated,
)
from talker import ENDLESS_HEADS, talker, without_end

from stackctl.image.expectation import folder_tree
from stackctl.image.report import Report
from stackctl.image.roots import PACKAGE, Root
from stackctl.image.transport import Transport
from stackctl.image.verify import Request, verify


class Client:
    """Verifies the demo package in a registry."""

    def __init__(self, folder: Path) -> None:
        self.expected = folder_tree(Demo().write(folder / "expected"))
        self.home = folder / "home"
        self.home.mkdir()
        self.waits: list[float] = []

    def login(self, host: str, user: str = "ann:secret", **more: object) -> None:
        path = self.home / ".docker" / "config.json"
        path.parent.mkdir(exist_ok=True)
        auth = base64.b64encode(user.encode()).decode()
        path.write_text(json.dumps({"auths": {host: {"auth": auth}}, **more}))

    def verify(self, reference: str, **transport: object) -> Report:
        settings: dict[str, object] = {
            "plain_http": True,
            "sleep": self.waits.append,
            "read_seconds": 5,
            **transport,
        }
        return verify(
            Request(
                reference=reference,
                expected=[self.expected],
                roots=(Root("demo", PACKAGE_ROOT, PACKAGE),),
                transport=Transport(**settings),  # type: ignore[arg-type]
                environ={"HOME": str(self.home), "PATH": os.environ["PATH"]},
            )
        )


@pytest.fixture
def client(tmp_path: Path) -> Client:
    return Client(tmp_path)


@pytest.fixture
def demo() -> FakeRegistry:
    return FakeRegistry([build_image([tree_layer(Demo().package(), SITE)])])


def test_tag_and_digest(client: Client, demo: FakeRegistry) -> None:
    with demo:
        by_tag = client.verify(demo.reference)
        digest = demo.images[0].manifest
        by_digest = client.verify(f"docker://{demo.host}/team/demo@{digest}")
    assert (by_tag.verdict, by_digest.verdict) == ("match", "match")
    assert by_tag.image["digest"] == by_digest.image["digest"] == digest


def test_tag_is_resolved_once(client: Client, demo: FakeRegistry) -> None:
    with demo:
        client.verify(demo.reference)
        asked = [seen.path for seen in demo.seen if "/manifests/" in seen.path]
    assert asked == ["/v2/team/demo/manifests/latest"]


@pytest.mark.parametrize("auth", ["basic", "bearer"])
def test_credentials(client: Client, demo: FakeRegistry, auth: str) -> None:
    demo.auth = auth
    with demo:
        refused = client.verify(demo.reference)
        assert refused.verdict == "unverifiable"
        assert refused.reason["code"] == "registry-auth"
        assert refused.exit_code == 6
        client.login(demo.host)
        assert client.verify(demo.reference).verdict == "match"


@pytest.mark.parametrize(
    ("challenge", "auth"),
    [
        ('Negotiate, Basic realm="x"', "basic"),
        ("Basic", "basic"),
        ('Basic realm="x", Bearer realm="REALM",service="s"', "bearer"),
        ('Bearer service="",realm="REALM", Basic realm="x"', "bearer"),
        ("bearer Realm=REALM,service=s", "bearer"),
    ],
)
def test_ways_in_which_a_registry_may_ask(
    client: Client, demo: FakeRegistry, challenge: str, auth: str
) -> None:
    def ask(handler: Any, body: bytes) -> bool:
        if handler.headers.get("Authorization"):
            return False
        text = challenge.replace("REALM", f"http://{demo.host}/token")
        handler.answer(401, b"{}", {"WWW-Authenticate": text})
        return True

    demo.auth, demo.faults = auth, {"/v2/": ask}
    with demo:
        client.login(demo.host)
        assert client.verify(demo.reference).verdict == "match"


def test_wrong_password(client: Client, demo: FakeRegistry) -> None:
    demo.auth = "bearer"
    with demo:
        client.login(demo.host, "ann:wrong")
        report = client.verify(demo.reference)
    assert (report.exit_code, report.reason["code"]) == (6, "registry-auth")


def test_credentials_of_a_helper(client: Client, demo: FakeRegistry) -> None:
    demo.auth = "basic"
    tools = client.home / "bin"
    tools.mkdir()
    helper = tools / "docker-credential-fake"
    helper.write_text(
        "#!/bin/sh\nread server\n"
        'printf \'{"ServerURL":"%s","Username":"ann","Secret":"secret"}\' "$server"\n'
    )
    helper.chmod(helper.stat().st_mode | stat.S_IXUSR)
    with demo:
        path = client.home / ".docker" / "config.json"
        path.parent.mkdir()
        path.write_text(json.dumps({"credHelpers": {demo.host: "fake"}}))
        report = verify(
            Request(
                reference=demo.reference,
                expected=[client.expected],
                roots=(Root("demo", PACKAGE_ROOT, PACKAGE),),
                transport=Transport(plain_http=True),
                environ={
                    "HOME": str(client.home),
                    "PATH": f"{tools}:{os.environ['PATH']}",
                },
            )
        )
    assert report.verdict == "match"


def test_realm_on_another_host_gets_no_credentials(
    client: Client, demo: FakeRegistry
) -> None:
    demo.auth = "bearer"
    with demo, FakeRegistry() as other:
        demo.realm = f"http://localhost:{other.host.rpartition(':')[2]}/token"
        client.login(demo.host)
        report = client.verify(demo.reference)
        assert (report.exit_code, report.reason["code"]) == (6, "registry-realm")
        assert other.seen == []
        trusted = client.verify(demo.reference, auth_host="localhost")
        assert trusted.verdict == "match"


def test_redirect_to_another_host_gets_no_credentials(
    client: Client, demo: FakeRegistry
) -> None:
    demo.auth = "basic"
    with demo, FakeRegistry(demo.images) as other:
        client.login(demo.host)
        layer = demo.images[0].layers[0]
        demo.faults[f"blobs/{layer}"] = redirect("http://" + other.host + "{path}")
        assert client.verify(demo.reference).verdict == "match"
        assert demo.secrets_seen()
        assert [seen.authorization for seen in other.seen] == [None]


def test_redirected_host_that_wants_credentials_gets_none(
    client: Client, demo: FakeRegistry
) -> None:
    demo.auth = "basic"
    with demo, FakeRegistry(demo.images, auth="basic") as other:
        client.login(demo.host)
        client.login(other.host)
        demo.faults["blobs/"] = redirect("http://" + other.host + "{path}")
        report = client.verify(demo.reference)
        assert (report.exit_code, report.verdict) == (6, "unverifiable")
        assert other.secrets_seen() == []


def test_redirect_loop_ends(client: Client, demo: FakeRegistry) -> None:
    with demo:
        demo.faults["blobs/"] = redirect("{path}")
        report = client.verify(demo.reference)
    assert report.reason["code"] == "registry-redirect"
    assert len(demo.seen) < 20


def test_wrong_bytes(client: Client, demo: FakeRegistry) -> None:
    layer = demo.images[0].layers[0]
    with demo:
        demo.faults[f"blobs/{layer}"] = replaced(lambda b: b[:-1] + bytes([b[-1] ^ 1]))
        report = client.verify(demo.reference)
    assert (report.exit_code, report.reason["code"]) == (4, "digest-mismatch")


def test_digest_of_a_header_is_not_believed(client: Client, demo: FakeRegistry) -> None:
    other = build_image([tree_layer({"demo/__init__.py": b"evil"}, SITE)])
    digest = demo.images[0].manifest
    with demo:
        demo.faults["manifests/"] = replaced(
            lambda _: other.blobs[other.manifest], Docker_Content_Digest=digest
        )
        report = client.verify(f"docker://{demo.host}/team/demo@{digest}")
    assert report.exit_code == 4


def test_broken_connection_is_continued(client: Client, demo: FakeRegistry) -> None:
    layer = demo.images[0].layers[0]
    with demo:
        demo.faults[f"blobs/{layer}"] = truncated(100, times=2)
        report = client.verify(demo.reference)
        ranges = [seen.range for seen in demo.seen if layer in seen.path]
    assert report.verdict == "match"
    assert ranges == [None, "bytes=100-", "bytes=200-"]


def test_connection_that_always_breaks(client: Client, demo: FakeRegistry) -> None:
    with demo:
        demo.faults["blobs/"] = truncated(3)
        report = client.verify(demo.reference)
    assert (report.exit_code, report.verdict) == (6, "unverifiable")
    assert len(demo.seen) < 20


@pytest.mark.parametrize("code", [429, 500, 502, 503])
def test_busy_registry_is_asked_again(
    client: Client, demo: FakeRegistry, code: int
) -> None:
    with demo:
        demo.faults["manifests/"] = status(code, times=2, retry_after="3")
        assert client.verify(demo.reference).verdict == "match"
    assert client.waits == [3, 3]


def test_registry_that_stays_busy(client: Client, demo: FakeRegistry) -> None:
    with demo:
        demo.faults["manifests/"] = status(503, retry_after="86400")
        report = client.verify(demo.reference)
    assert report.exit_code == 6
    assert max(client.waits) <= 20


def test_endless_layer(client: Client, demo: FakeRegistry) -> None:
    with demo:
        demo.faults[f"blobs/{demo.images[0].layers[0]}"] = endless
        report = client.verify(demo.reference)
    assert (report.exit_code, report.reason["code"]) == (4, "size-mismatch")


def test_endless_manifest(client: Client, demo: FakeRegistry) -> None:
    with demo:
        demo.faults["manifests/"] = endless
        report = client.verify(demo.reference)
    assert (report.exit_code, report.reason["code"]) == (3, "limit-manifest")


def test_trickling_layer(client: Client, demo: FakeRegistry) -> None:
    with demo:
        demo.faults[f"blobs/{demo.images[0].layers[0]}"] = trickle
        report = client.verify(demo.reference, read_seconds=0.5, tries=1)
    assert (report.exit_code, report.reason["code"]) == (6, "registry-slow")


def test_missing_image(client: Client, demo: FakeRegistry) -> None:
    with demo:
        report = client.verify(f"docker://{demo.host}/team/demo:other")
    assert (report.exit_code, report.reason["code"]) == (6, "registry-not-found")


def test_nobody_listens(client: Client) -> None:
    report = client.verify("docker://127.0.0.1:9/team/demo", tries=2)
    assert (report.exit_code, report.verdict) == (6, "unverifiable")


def test_tls_is_the_default(client: Client, demo: FakeRegistry) -> None:
    with demo:
        report = client.verify(demo.reference, plain_http=False, tries=1)
        assert demo.seen == []
    assert report.exit_code == 6


def test_index_of_several_platforms(client: Client) -> None:
    good = build_image([tree_layer(Demo().package(), SITE)])
    arm = build_image([tree_layer({"demo/x.py": b""}, SITE)], architecture="arm64")
    index = json.dumps(
        {
            "schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.index.v1+json",
            "manifests": [
                arm.descriptor(platform={"os": "linux", "architecture": "arm64"}),
                good.descriptor(platform={"os": "linux", "architecture": "amd64"}),
                {
                    **arm.descriptor(),
                    "digest": sha256(b"attestation"),
                    "platform": {"os": "unknown", "architecture": "unknown"},
                },
            ],
        }
    ).encode()
    registry = FakeRegistry([good, arm], tags={"latest": sha256(index)})
    registry.extra[sha256(index)] = index
    with registry:
        from stackctl.image.platform import parse_platform

        def ask(platform: str) -> Report:
            return verify(
                Request(
                    reference=registry.reference,
                    expected=[client.expected],
                    roots=(Root("demo", PACKAGE_ROOT, PACKAGE),),
                    platform=parse_platform(platform),
                    transport=Transport(plain_http=True),
                    environ={},
                )
            )

        assert ask("linux/amd64").verdict == "match"
        assert ask("linux/arm64").verdict == "mismatch"
        assert ask("linux/s390x").reason["code"] == "no-platform"
        assert all(sha256(b"attestation") not in seen.path for seen in registry.seen)


def answer(report: Report) -> tuple[str, int, object]:
    return report.verdict, report.exit_code, report.reason["code"]


MATCH = ("match", 0, "equal")
PARTS = ("manifests/latest", "blobs/LAYER", "blobs/CONFIG", "manifests/sha256")


def asks(demo: FakeRegistry, part: str, fault: Fault) -> str:
    """Return the reference by which a part of the image is asked for, with a fault."""
    image = demo.images[0]
    pattern = part.replace("LAYER", image.layers[0]).replace("CONFIG", image.config)
    demo.faults[pattern] = fault
    if part == "manifests/sha256":
        return f"docker://{demo.host}/team/demo@{image.manifest}"
    return demo.reference


def with_header(name: str, value: str) -> Fault:
    def fault(handler: Any, body: bytes) -> bool:
        handler.send_response(200)
        handler.send_header(name, value)
        if name != "Content-Length":
            handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body)
        handler.close_connection = True
        return True

    return fault


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("pack", [gzip.compress, zlib.compress])
def test_encoding_that_nobody_asked_for(
    client: Client, demo: FakeRegistry, part: str, pack: Any
) -> None:
    with demo:
        fault = replaced(pack, Content_Encoding="gzip")
        report = client.verify(asks(demo, part, fault))
    assert answer(report) == ("unverifiable", 6, "registry-encoding")
    assert "Content-Encoding" in str(report.reason["message"])


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("Content-Encoding", "gzip"),
        ("Content-Type", "text/html"),
        ("Content-Length", "\u00b2"),
        ("Content-Length", "9" * 5000),
        ("Docker-Content-Digest", sha256(b"")),
    ],
)
def test_headers_that_lie_about_right_bytes(
    client: Client, demo: FakeRegistry, part: str, name: str, value: str
) -> None:
    with demo:
        report = client.verify(asks(demo, part, with_header(name, value)))
    assert answer(report) == MATCH


@pytest.mark.parametrize("wait", ["\u00b2", "9" * 5000, "-1", "soon"])
def test_pause_that_is_no_number(client: Client, demo: FakeRegistry, wait: str) -> None:
    with demo:
        demo.faults["manifests/"] = status(429, times=1, retry_after=wait)
        assert client.verify(demo.reference).verdict == "match"
    assert client.waits == [1]


@pytest.mark.parametrize("part", PARTS[1:])
def test_blob_that_is_too_short_is_not_a_broken_connection(
    client: Client, demo: FakeRegistry, part: str
) -> None:
    with demo:
        report = client.verify(asks(demo, part, replaced(lambda body: body[:-9])))
        assert len(demo.seen) < 5
    assert (report.verdict, report.exit_code) == ("unverifiable", 4)


@pytest.mark.parametrize("which", ["config", "layer"])
def test_blob_that_the_registry_does_not_have(
    client: Client, demo: FakeRegistry, which: str
) -> None:
    image = demo.images[0]
    del image.blobs[image.config if which == "config" else image.layers[0]]
    with demo:
        report = client.verify(demo.reference)
    assert answer(report) == ("unverifiable", 4, "missing-blob")


def test_registry_that_answers_with_nothing(client: Client, demo: FakeRegistry) -> None:
    with demo:
        demo.faults["manifests/"] = replaced(lambda _: b"")
        report = client.verify(demo.reference)
    assert answer(report) == ("unverifiable", 6, "registry-truncated")


@pytest.mark.parametrize("spelt", ["LocalHost", "localhost"])
def test_host_in_upper_case(client: Client, demo: FakeRegistry, spelt: str) -> None:
    demo.auth = "basic"
    with demo:
        port = demo.host.rpartition(":")[2]
        client.login(f"{spelt}:{port}")
        report = client.verify(f"docker://LocalHost:{port}/team/demo")
    assert answer(report) == MATCH


def test_challenge_that_only_the_registry_as_a_whole_makes(
    client: Client, demo: FakeRegistry
) -> None:
    def refuse(handler: Any, body: bytes) -> bool:
        if handler.headers.get("Authorization"):
            return False
        handler.answer(401, b"{}")
        return True

    demo.auth, demo.faults = "bearer", {"/v2/team": refuse}
    with demo:
        client.login(demo.host)
        assert client.verify(demo.reference).verdict == "match"


@pytest.mark.parametrize(
    "target",
    ["http://[::1/x", "http://127.0.0.1:99999999/x", "http://127.0.0.1:a/x", "http://"],
)
def test_places_that_are_none(client: Client, demo: FakeRegistry, target: str) -> None:
    def ask(handler: Any, body: bytes) -> bool:
        handler.answer(401, b"", {"WWW-Authenticate": f'Bearer realm="{target}"'})
        return True

    with demo:
        demo.faults["blobs/"] = redirect(target)
        assert client.verify(demo.reference).exit_code == 6
        demo.faults["manifests/"] = ask
        assert client.verify(demo.reference).exit_code == 6


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"<html>top-secret",
        b'"top-secret"',
        b'["top-secret"]',
        b'{"token": 5}',
        b'{"token": "top-secret\\r\\nX: y"}',
        b'{"token": "' + bytes(2 << 20) + b'"}',
        b"[" * 100_000,
    ],
)
def test_token_service_that_gives_no_token(
    client: Client, demo: FakeRegistry, body: bytes
) -> None:
    def give(handler: Any, _: bytes) -> bool:
        handler.answer(200, body)
        return True

    demo.auth = "bearer"
    with demo:
        demo.realm = f"http://{demo.host}/give"
        demo.faults["^/give"] = give
        report = client.verify(demo.reference)
    assert answer(report) == ("unverifiable", 6, "registry")
    assert "top-secret" not in json.dumps(report.document())


@pytest.mark.parametrize(("first", "again"), ENDLESS_HEADS)
def test_head_of_an_answer_that_does_not_end(
    client: Client, first: bytes, again: bytes
) -> None:
    with talker(without_end(first, again)) as port:
        report = client.verify(
            f"docker://127.0.0.1:{port}/a", read_seconds=0.5, tries=2
        )
    assert (report.verdict, report.exit_code) == ("unverifiable", 6)


def test_file_without_certificates(client: Client, tmp_path: Path) -> None:
    path = tmp_path / "ca.pem"
    for _ in range(2):
        report = client.verify(
            "docker://127.0.0.1:9/a", plain_http=False, ca_file=str(path)
        )
        assert answer(report) == ("unverifiable", 3, "bad-ca-file")
        assert str(path) in str(report.reason["message"])
        path.write_text("no certificate")


@pytest.mark.parametrize(("silent", "asked"), [(True, 2), (False, 4)])
def test_who_is_silent_is_asked_half_as_often(
    client: Client, demo: FakeRegistry, silent: bool, asked: int
) -> None:
    def answer_late(handler: Any, body: bytes) -> bool:
        if silent:
            time.sleep(1)
        handler.close_connection = True
        return True

    with demo:
        demo.faults["manifests/"] = answer_late
        report = client.verify(demo.reference, read_seconds=0.3)
        assert len(demo.seen) == asked
    assert (report.verdict, report.exit_code) == ("unverifiable", 6)


@pytest.mark.parametrize(
    "target",
    [
        "http://127.0.0.1:9/x?sig=top-secret",
        "http://ann:top-secret@127.0.0.1:9/x",
        "http://ann:top-secret@127.0.0.1:a/x",
        "http://[::1/x?sig=top-secret",
        "http://a b/x?sig=top-secret",
        "http://ann:top-secret@a b/x",
        "ftp://ann:top-secret@ex.org/x?sig=top-secret",
        "http://nowhere.invalid/x?sig=top-secret",
    ],
)
def test_signature_of_a_redirect_is_not_shown(
    client: Client, demo: FakeRegistry, target: str
) -> None:
    with demo:
        demo.faults["blobs/"] = redirect(target)
        report = client.verify(demo.reference, tries=1)
    assert report.exit_code == 6
    assert "top-secret" not in json.dumps(report.document())
