# SPDX-License-Identifier: Apache-2.0
"""Images made, copied and unpacked by skopeo, umoci and buildah; a real registry."""

import base64
import json
import os
import shutil
import subprocess
import tempfile
import threading
import time
import urllib.parse
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from images import PACKAGE_ROOT, SITE, Demo, Tar, build_image, tree_layer, write_layout
from runtimes import Docker, Refused, find_dockerd, run, running_registry

from stackctl.image.expectation import ExpectedTree, folder_tree
from stackctl.image.report import Report
from stackctl.image.roots import CHECKOUT, PACKAGE, Root
from stackctl.image.transport import Transport
from stackctl.image.verify import Request, verify

pytestmark = pytest.mark.tools
ROOT = Root("demo", PACKAGE_ROOT, PACKAGE)


def need(*programs: str) -> None:
    for program in programs:
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed")


@pytest.fixture
def expected(tmp_path: Path) -> ExpectedTree:
    return folder_tree(Demo().write(tmp_path / "expected"))


@pytest.fixture
def layout(tmp_path: Path) -> Path:
    layers = [
        tree_layer({"demo/old.py": b"old", "demo/core.py": b"old"}, SITE),
        Tar().whiteout(f"{SITE}/demo/old.py").done(),
        tree_layer(Demo().package(), SITE),
    ]
    return write_layout(tmp_path / "layout", build_image(layers))


def check(
    reference: str, expected: ExpectedTree, root: Root = ROOT, **more: object
) -> Report:
    request = Request(reference, [expected], (root,), **more)  # type: ignore[arg-type]
    return verify(request)


@pytest.mark.parametrize("target", ["oci", "oci-archive", "docker-archive", "dir"])
def test_skopeo_copies(
    tmp_path: Path, layout: Path, expected: ExpectedTree, target: str
) -> None:
    need("skopeo")
    tag = {"dir": "", "docker-archive": ":team/demo:1"}.get(target, ":1")
    reference = f"{target}:{tmp_path}/copy{tag}"
    run("skopeo", "copy", "-q", f"oci:{layout}:latest", reference)
    report = check(reference, expected)
    assert report.verdict == "match", report.reason


@pytest.mark.parametrize("compression", ["gzip", "zstd"])
def test_skopeo_compresses(
    tmp_path: Path, layout: Path, expected: ExpectedTree, compression: str
) -> None:
    need("skopeo")
    target = f"oci:{tmp_path}/copy:1"
    run(
        "skopeo", "copy", "-q", "--dest-compress-format", compression,
        "--dest-compress", f"oci:{layout}:latest", target,
    )  # fmt: skip
    assert check(target, expected).verdict == "match"


def test_umoci_unpacks(tmp_path: Path, layout: Path, expected: ExpectedTree) -> None:
    need("umoci")
    run("umoci", "unpack", "--rootless", "--image", f"{layout}:latest",
        str(tmp_path / "bundle"))  # fmt: skip
    report = check(f"rootfs:{tmp_path}/bundle/rootfs", expected)
    assert report.verdict == "match", report.reason


def test_umoci_changes_a_file(
    tmp_path: Path, layout: Path, expected: ExpectedTree
) -> None:
    need("umoci")
    bundle = tmp_path / "bundle"
    run("umoci", "unpack", "--rootless", "--image", f"{layout}:latest", str(bundle))
    package = bundle / "rootfs" / SITE / "demo"
    (package / "core.py").write_text("VALUE = 2\n")
    (package / "sub" / "deep.py").unlink()
    run("umoci", "repack", "--image", f"{layout}:latest", str(bundle))
    report = check(f"oci:{layout}:latest", expected)
    assert report.verdict == "mismatch"
    assert (report.reason["modified"], report.reason["missing"]) == (1, 1)


def test_buildah_builds(tmp_path: Path, expected: ExpectedTree) -> None:
    need("buildah")
    if os.geteuid():
        pytest.skip("buildah needs root here")
    context = tmp_path / "context"
    Demo().write(context / "tree")
    (context / "Containerfile").write_text(
        "FROM scratch\nCOPY tree /opt/demo\n"
        f'COPY tree/demo {PACKAGE_ROOT}\nVOLUME /opt\nENTRYPOINT ["/bin/x"]\n'
    )
    storage = ["--root", str(tmp_path / "s"), "--runroot", str(tmp_path / "r"),
               "--storage-driver", "vfs"]  # fmt: skip
    run("buildah", *storage, "bud", "--isolation", "chroot", "-t", "demo",
        str(context))  # fmt: skip
    run("buildah", *storage, "push", "demo", f"oci:{tmp_path}/built:1")
    both = verify(
        Request(
            f"oci:{tmp_path}/built:1",
            [expected],
            (ROOT, Root(".", "/opt/demo", CHECKOUT)),
        )
    )
    assert both.verdict == "match", both.reason
    assert {"entrypoint", "volume-over-root"} <= {w.code for w in both.warnings}


def test_running_podman(tmp_path: Path, layout: Path, expected: ExpectedTree) -> None:
    need("podman")
    if os.geteuid():
        pytest.skip("podman needs root here")
    # Podman takes no longer path for its run folder than 50 characters.
    short = Path(tempfile.mkdtemp(prefix="pod"))
    socket_path = short / "podman.sock"
    base = ["podman", "--root", str(tmp_path / "s"), "--runroot", str(short / "r"),
            "--storage-driver", "vfs"]  # fmt: skip
    run(*base, "pull", "-q", f"oci:{layout}:latest")
    image = run(*base, "images", "-q").split()[0]
    run(*base, "tag", image, "localhost/team/demo:1")
    service = subprocess.Popen(
        [*base, "system", "service", "--time=0", f"unix://{socket_path}"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        for _ in range(100):
            if socket_path.exists():
                break
            time.sleep(0.1)
        environ = {"DOCKER_HOST": f"unix://{socket_path}"}
        name = "docker-daemon:localhost/team/demo"
        report = check(f"{name}:1", expected, environ=environ)
        assert report.verdict == "match", report.reason
        missing = check(f"{name}:2", expected, environ=environ)
        assert (missing.exit_code, missing.reason["code"]) == (6, "daemon")
    finally:
        service.terminate()
        service.wait(10)
    nobody = check(f"{name}:1", expected, environ={"DOCKER_HOST": "unix:///nowhere"})
    assert (nobody.exit_code, nobody.reason["code"]) == (6, "no-daemon")


@pytest.fixture(scope="module")
def docker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Docker]:
    program = find_dockerd()
    if program is None:
        pytest.skip("dockerd is not installed")
    if os.geteuid():
        pytest.skip("dockerd needs root")
    daemon = Docker(tmp_path_factory.mktemp("docker"), program)
    yield daemon
    daemon.close()


def docker_build(docker: Docker, context: Path, lines: str) -> None:
    (context / "Dockerfile").write_text(lines)
    docker.run("build", "-q", "-t", "team/demo:1", str(context))


def test_docker_builds_and_saves(
    tmp_path: Path, expected: ExpectedTree, docker: Docker
) -> None:
    context = tmp_path / "context"
    Demo().write(context / "tree")
    (context / "tree" / "demo" / "old.py").write_text("gone in the next layer")
    (context / "clean" / "demo").mkdir(parents=True)
    # Of another size: the vfs driver overlooks a file of equal size and time.
    (context / "clean" / "demo" / "core.py").write_text("VALUE = 22\n")
    lines = (
        f"FROM scratch\nCOPY tree/demo {PACKAGE_ROOT}\n"
        "COPY tree /opt/demo\nENV PYTHONPATH=/opt/demo\nVOLUME /srv\n"
    )
    environ = {"DOCKER_HOST": f"unix://{docker.socket}"}
    roots = (ROOT, Root(".", "/opt/demo", CHECKOUT))

    def ask(reference: str) -> Report:
        return verify(Request(reference, [expected], roots, environ=environ))

    docker_build(docker, context, lines)
    report = ask("docker-daemon:team/demo:1")
    assert report.verdict == "mismatch"
    assert report.reason["extra"] == 2

    (context / "tree" / "demo" / "old.py").unlink()
    docker_build(docker, context, lines)
    archive = tmp_path / "saved.tar"
    docker.run("save", "-o", str(archive), "team/demo:1")
    identity = docker.run("images", "-q", "--no-trunc", "team/demo:1").strip()
    for reference in (
        "docker-daemon:team/demo:1",
        f"docker-daemon:{identity}",
        f"docker-archive:{archive}",
        f"docker-archive:{archive}:team/demo:1",
    ):
        report = ask(reference)
        assert report.verdict == "match", (reference, report.reason)
        assert report.image["digest"] == identity
        assert "pythonpath" in {w.code for w in report.warnings}

    docker_build(docker, context, f"{lines}COPY clean/demo {PACKAGE_ROOT}\n")
    report = ask("docker-daemon:team/demo:1")
    assert report.verdict == "mismatch", report.reason
    assert report.reason["modified"] == 1
    report = ask("docker-daemon:team/demo:2")
    assert (report.exit_code, report.reason["code"]) == (6, "daemon")


def test_docker_save_with_a_repeated_layer(
    tmp_path: Path, expected: ExpectedTree, docker: Docker
) -> None:
    """Docker stores a layer that comes twice as a link to the first."""
    context = tmp_path / "context"
    Demo().write(context / "tree")
    (context / "other").mkdir()
    (context / "other" / "core.py").write_text("VALUE = 22\n")
    copy = f"COPY tree/demo {PACKAGE_ROOT}\n"
    docker_build(
        docker, context, f"FROM scratch\n{copy}COPY other {PACKAGE_ROOT}\n{copy}"
    )
    archive = tmp_path / "saved.tar"
    docker.run("save", "-o", str(archive), "team/demo:1")
    report = check(f"docker-archive:{archive}", expected)
    assert report.verdict == "match", report.reason
    assert len(report.image["layers"]) == 3  # type: ignore[arg-type]


def test_docker_takes_what_skopeo_copies(
    tmp_path: Path, layout: Path, expected: ExpectedTree, docker: Docker
) -> None:
    need("skopeo")
    host = f"unix://{docker.socket}"
    try:
        run("skopeo", "copy", "-q", "--dest-daemon-host", host,
            f"oci:{layout}:latest", "docker-daemon:team/copied:1")  # fmt: skip
    except Refused as error:
        pytest.skip(f"skopeo cannot talk to this daemon: {error}")
    report = check(
        "docker-daemon:team/copied:1", expected, environ={"DOCKER_HOST": host}
    )
    assert report.verdict == "match", report.reason


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[str]:
    need("docker-registry", "skopeo")
    # bcrypt of "secret" at cost 5.
    (tmp_path / "htpasswd").write_text(
        "ann:$2b$05$aaaaaaaaaaaaaaaaaaaaaOjOHCcGZ1ZydhnG2lX11qSmiRJbsbsA.\n"
    )
    auth = f"  htpasswd:\n    realm: test\n    path: {tmp_path}/htpasswd\n"
    with running_registry(tmp_path, auth) as host:
        yield host


class TokenServer(ThreadingHTTPServer):
    """Issues tokens as the distribution project specifies them.

    The registry checks their signature and rights itself, and skopeo gets its tokens
    here too, so neither side of the protocol is only our own idea of it.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(("127.0.0.1", 0), TokenHandler)
        self.key, self.certificate = folder / "key.pem", folder / "cert.pem"
        run("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2",
            "-subj", "/CN=test", "-keyout", str(self.key), "-out",
            str(self.certificate))  # fmt: skip
        self.asked: list[str] = []

    def token(self, scope: str, service: str, user: str) -> str:
        body = "".join(self.certificate.read_text().split("\n")[1:-2])
        now = int(time.time())
        kind, name, actions = scope.split(":") if scope else ("", "", "")
        granted = [a for a in actions.split(",") if user == "ann" and a]
        access = [{"type": kind, "name": name, "actions": granted}] if scope else []
        parts = [
            {"typ": "JWT", "alg": "RS256", "x5c": [body]},
            {"iss": "test-issuer", "sub": user, "aud": service, "exp": now + 300,
             "nbf": now - 60, "iat": now, "jti": str(now), "access": access},
        ]  # fmt: skip
        text = ".".join(plain64(json.dumps(part).encode()) for part in parts)
        signed = subprocess.run(
            ["openssl", "dgst", "-sha256", "-sign", str(self.key)],
            input=text.encode(),
            capture_output=True,
            check=True,
        ).stdout
        return f"{text}.{plain64(signed)}"


def plain64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


class TokenHandler(BaseHTTPRequestHandler):
    server: TokenServer

    def do_GET(self) -> None:
        query = urllib.parse.parse_qs(urllib.parse.urlsplit(self.path).query)
        given = self.headers.get("Authorization", "")
        self.server.asked.append(given)
        user = "ann" if given == "Basic YW5uOnNlY3JldA==" else ""
        if given and not user:
            self.send_response(401)
            self.end_headers()
            return
        scope, service = query.get("scope", [""])[0], query.get("service", [""])[0]
        body = json.dumps({"token": self.server.token(scope, service, user)}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


def test_registry_with_tokens(
    tmp_path: Path, layout: Path, expected: ExpectedTree
) -> None:
    need("docker-registry", "skopeo", "openssl")
    tokens = TokenServer(tmp_path)
    threading.Thread(target=tokens.serve_forever, daemon=True).start()
    auth = (
        f"  token:\n    realm: http://127.0.0.1:{tokens.server_port}/token\n"
        "    service: test-service\n    issuer: test-issuer\n"
        f"    rootcertbundle: {tokens.certificate}\n"
    )
    try:
        with running_registry(tmp_path, auth) as host:
            target = f"docker://{host}/team/demo:1"
            run("skopeo", "copy", "-q", "--dest-tls-verify=false", "--dest-creds",
                "ann:secret", f"oci:{layout}:latest", target)  # fmt: skip
            logged_in = tmp_path / "auth.json"
            run("skopeo", "login", "--tls-verify=false", "--authfile", str(logged_in),
                "-u", "ann", "-p", "secret", host)  # fmt: skip
            transport = Transport(plain_http=True)
            before = len(tokens.asked)
            environ = {"REGISTRY_AUTH_FILE": str(logged_in)}
            report = check(target, expected, transport=transport, environ=environ)
            assert report.verdict == "match", report.reason
            assert tokens.asked[before:] == ["Basic YW5uOnNlY3JldA=="]
            # Without credentials the token service is asked too, and grants nothing.
            without = check(target, expected, transport=transport, environ={})
            assert (without.exit_code, without.reason["code"]) == (6, "registry-auth")
            assert tokens.asked[-1] == ""
            logged_in.write_text(
                json.dumps({"auths": {host: {"auth": "YW5uOndyb25n"}}})
            )
            wrong = check(target, expected, transport=transport, environ=environ)
            assert (wrong.exit_code, wrong.reason["code"]) == (6, "registry-auth")
    finally:
        tokens.shutdown()
        tokens.server_close()


def test_registry_with_a_password(
    tmp_path: Path, layout: Path, expected: ExpectedTree, registry: str
) -> None:
    target = f"docker://{registry}/team/demo:1"
    run("skopeo", "copy", "-q", "--dest-tls-verify=false", "--dest-creds",
        "ann:secret", f"oci:{layout}:latest", target)  # fmt: skip
    auth = tmp_path / "auth.json"
    run("skopeo", "login", "--tls-verify=false", "--authfile", str(auth), "-u", "ann",
        "-p", "secret", registry)  # fmt: skip
    transport = Transport(plain_http=True)
    without = check(target, expected, transport=transport, environ={})
    assert (without.exit_code, without.reason["code"]) == (6, "registry-auth")
    environ = {"REGISTRY_AUTH_FILE": str(auth)}
    report = check(target, expected, transport=transport, environ=environ)
    assert report.verdict == "match", report.reason
    stated = json.loads(
        run("skopeo", "inspect", "--tls-verify=false", "--authfile", str(auth), target)
    )
    assert report.image["digest"] == stated["Digest"]
