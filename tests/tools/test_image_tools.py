# SPDX-License-Identifier: Apache-2.0
"""Images made, copied and unpacked by skopeo, umoci and buildah; a real registry."""

import json
import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from images import PACKAGE_ROOT, SITE, Demo, Tar, build_image, tree_layer, write_layout
from runtimes import run

from stackctl.image.compare import CHECKOUT, PACKAGE, Root
from stackctl.image.expectation import ExpectedTree, folder_tree
from stackctl.image.transport import Transport
from stackctl.image.verify import Report, Request, verify

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


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[str]:
    need("docker-registry", "skopeo")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    config = tmp_path / "registry.yml"
    config.write_text(
        "version: 0.1\n"
        f"storage:\n  filesystem:\n    rootdirectory: {tmp_path}/store\n"
        f"http:\n  addr: 127.0.0.1:{port}\n"
        "auth:\n  htpasswd:\n    realm: test\n"
        f"    path: {tmp_path}/htpasswd\n"
    )
    # bcrypt of "secret" at cost 5.
    (tmp_path / "htpasswd").write_text(
        "ann:$2b$05$aaaaaaaaaaaaaaaaaaaaaOjOHCcGZ1ZydhnG2lX11qSmiRJbsbsA.\n"
    )
    process = subprocess.Popen(
        ["docker-registry", "serve", str(config)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        for _ in range(100):
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                break
            except OSError:
                time.sleep(0.1)
        yield f"127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(10)


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
