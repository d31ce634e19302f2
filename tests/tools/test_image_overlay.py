# SPDX-License-Identifier: Apache-2.0
"""Release images end to end: made here, carried and unpacked by other tools."""

import os
import shutil
import tempfile
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import pytest
from images import Tar, write_layout
from overlaid import BASE, COMPILED, PACKAGES, Shop, demo, installed
from releases import bare, cut, fragment, tag_body, wrong
from releases import verify as releases_verify
from runtimes import (
    Containerd,
    Docker,
    Podman,
    find_dockerd,
    run,
    running_registry,
    umoci,
)
from support import ROOT, Project
from support import run as stackctl

pytestmark = pytest.mark.tools
FROM = "localhost/team/base:1"


def need(*programs: str) -> None:
    for program in programs:
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed")


@pytest.fixture
def shop(make_series: Callable[..., Project], tmp_path: Path) -> Shop:
    return Shop(demo(make_series), tmp_path)


def verify(shop: Shop, reference: str, *more: str) -> tuple[int, dict]:
    done = stackctl(
        "verify-image", reference, *shop.root, *more, "--json",
        cwd=shop.project.folder,
    )  # fmt: skip
    return done.code, done.json


def test_through_a_registry(shop: Shop, tmp_path: Path) -> None:
    need("skopeo", "docker-registry")
    made = shop.overlay("out:r1").json
    with running_registry(tmp_path) as host:
        target = f"docker://{host}/team/demo:r1"
        run("skopeo", "copy", "-q", "--preserve-digests", "--dest-tls-verify=false",
            f"oci:{shop.folder}/out:r1", target)  # fmt: skip
        code, document = verify(shop, target, "--plain-http", "--strict")
        assert (code, document["image"]["digest"]) == (0, made["digest"])
        # And the other way: a base in the registry.
        base = f"docker://{host}/team/base:1"
        run("skopeo", "copy", "-q", "--preserve-digests", "--dest-tls-verify=false",
            f"oci:{shop.folder}/base:latest", base)  # fmt: skip
        again = shop.overlay("again:r1", "--plain-http", base=base)
        assert again.code == 0, again.out
        assert again.json["layer"] == made["layer"]


def test_a_tag_stands_on_an_image_in_a_registry(shop: Shop, tmp_path: Path) -> None:
    need("skopeo", "docker-registry")
    project, into = shop.project.folder, bare(tmp_path / "fork.git")
    for name in ("alpha", "beta"):
        fragment(project, name, name)
    with running_registry(tmp_path) as host:
        made = {}
        for name, base in (("good", f"oci:{shop.folder}/good"), ("base", shop.base)):
            if name == "good":
                made[name] = shop.overlay("good").json["digest"]
            target = f"docker://{host}/team/demo:{name}"
            run("skopeo", "copy", "-q", "--preserve-digests",
                "--dest-tls-verify=false", base, target)  # fmt: skip
        image = f"docker://{host}/team/demo"
        series = project / "series.toml"
        plain = series.read_text()
        digest = sha256(COMPILED["pkg/_C.abi3.so"].encode()).hexdigest()
        roots = (
            f'roots = [{{ tree = "pkg", path = "/{PACKAGES}/pkg", kind = "package" }}]'
            f'\nallow = [{{ path = "pkg/_C.abi3.so", sha256 = "{digest}" }}]\n'
        )

        def listed(ref: str) -> str:
            series.write_text(plain + f'\n[[image]]\nref = "{ref}"\n{roots}')
            return f"image:{ref}"

        # Without TLS only where that is asked for, and never an image without the
        # composition.
        good = listed(f"{image}@{made['good']}")
        assert wrong(cut(project, into, code=1)).keys() == {good}
        other = listed(f"{image}:base")
        found = wrong(cut(project, into, "--plain-http", code=1))
        assert found.keys() == {other} and found[other].startswith("mismatch")
        listed(f"{image}@{made['good']}")
        cut(project, into, "--plain-http")
        assert f"Image: {image}@{made['good']}" in tag_body(into).decode()
        assert releases_verify(into, "--images", "--plain-http")["ok"]
    gone = releases_verify(into, "--images", "--plain-http", code=1)
    assert wrong(gone).keys() == {"images"}
    assert releases_verify(into)["ok"]


def test_as_runtimes_unpack_it(shop: Shop, tmp_path: Path) -> None:
    assert shop.overlay("out:latest").code == 0
    layout = shop.folder / "out"
    seen = {}
    if shutil.which("umoci") and not os.geteuid():
        seen["umoci"] = umoci(layout, tmp_path)
    if shutil.which("podman") and not os.geteuid():
        seen["podman"] = Podman(tmp_path, "vfs")(layout)
    if shutil.which("containerd") and not os.geteuid():
        daemon = Containerd(tmp_path)
        try:
            seen["containerd"] = daemon(layout, "native")
        finally:
            daemon.close()
    if not seen:
        pytest.skip("neither umoci nor podman nor containerd can run here")
    for runtime, tree in seen.items():
        names = {
            os.fsdecode(path).removeprefix(f"{PACKAGES}/")
            for path in tree
            if tree[path][0] == "f" and os.fsdecode(path).startswith(f"{PACKAGES}/")
        }
        sources = {name for name in names if "__pycache__" not in name}
        assert sources == {
            "pkg/_C.abi3.so",
            "pkg/__init__.py",
            "pkg/core.py",
            "pkg/kept.py",
            "pkg/new/fresh.py",
            "pkg/run.sh",
            "pkg/turns/inside.json",
        }, runtime
        stems = {Path(name).name.split(".")[0] for name in names - sources}
        assert stems == {"__init__", "kept"}, runtime
        # A folder that was there keeps its mode.
        assert tree[b"opt"][:2] == ("d", 0o750), runtime


def test_umoci_unpacks_the_composition(shop: Shop, tmp_path: Path) -> None:
    need("umoci")
    assert shop.overlay("out:latest").code == 0
    run("umoci", "unpack", "--rootless", "--image", f"{shop.folder}/out:latest",
        str(tmp_path / "bundle"))  # fmt: skip
    code, document = verify(shop, f"rootfs:{tmp_path}/bundle/rootfs")
    assert (code, document["verdict"]) == (0, "match")


def shell() -> bytes:
    """Return a layer with a shell, for a base in which a builder can run one."""
    program = shutil.which("busybox")
    if program is None:
        pytest.skip("busybox is not installed")
    data = Path(program).read_bytes()
    if b"ld-linux" in data[:4096]:
        pytest.skip("this busybox is not static")
    tar = Tar().folder("bin").file("bin/busybox", data, mode=0o755)
    for name in ("sh", "rm"):
        tar.symlink(f"bin/{name}", "busybox")
    return tar.folder("tmp").folder("etc").done()


def test_containerfile_with_buildah(shop: Shop, tmp_path: Path) -> None:
    need("buildah", "skopeo")
    if os.geteuid():
        pytest.skip("buildah needs root here")
    base = write_layout(tmp_path / "shell", installed(BASE, below=shell()))
    context = tmp_path / "context"
    made = stackctl("image", "label", "--context", context, "--package", "pkg",
                    cwd=shop.project.folder)  # fmt: skip
    assert made.code == 0, made.err
    runroot = tempfile.mkdtemp(prefix="bld")
    storage = ["--root", str(tmp_path / "s"), "--runroot", runroot,
               "--storage-driver", "vfs"]  # fmt: skip
    image = run("buildah", *storage, "pull", "-q", f"oci:{base}:latest").split()[-1]
    run("buildah", *storage, "tag", image, FROM)
    run(
        "buildah", *storage, "bud", "--isolation", "chroot", "--pull-never",
        "-f", str(ROOT / "ci/Containerfile"), "--build-arg", f"BASE={FROM}",
        "--build-arg", f"PACKAGES=/{PACKAGES}",
        *(context / "options").read_text().split(), "-t", "demo", str(context),
    )  # fmt: skip
    run("buildah", *storage, "push", "-q", "demo", f"oci:{tmp_path}/built:1")
    code, document = verify(shop, f"oci:{tmp_path}/built:1")
    assert (code, document["verdict"]) == (0, "match"), document["reason"]
    assert {w["code"] for w in document["warnings"]} <= {"ambiguous-outside-root"}
    labels = stackctl("image", "label", "--json", cwd=shop.project.folder).json
    stated = run("skopeo", "inspect", "--config", f"oci:{tmp_path}/built:1")
    for name, value in labels["labels"].items():
        assert f'"{name}":"{value}"' in stated.replace(" ", "")


def test_containerfile_with_docker(shop: Shop, tmp_path: Path) -> None:
    need("skopeo")
    program = find_dockerd()
    if program is None or os.geteuid():
        pytest.skip("dockerd is not installed, or may not run here")
    base = write_layout(tmp_path / "shell", installed(BASE, below=shell()))
    archive = tmp_path / "base.tar"
    run(
        "skopeo", "copy", "-q", f"oci:{base}:latest", f"docker-archive:{archive}:{FROM}"
    )
    context = tmp_path / "context"
    stackctl("image", "label", "--context", context, "--package", "pkg",
             cwd=shop.project.folder)  # fmt: skip
    shutil.copy(ROOT / "ci/Containerfile", context)
    daemon = Docker(tmp_path, program)
    try:
        daemon.run("load", "-q", "-i", str(archive))
        daemon.run(
            "build", "-q", "--network", "none", "-f", str(context / "Containerfile"),
            "--build-arg", f"BASE={FROM}", "--build-arg", f"PACKAGES=/{PACKAGES}",
            *(context / "options").read_text().split(), "-t", "team/demo:1",
            str(context),
        )  # fmt: skip
        saved = tmp_path / "saved.tar"
        daemon.run("save", "-o", str(saved), "team/demo:1")
    finally:
        daemon.close()
    code, document = verify(shop, f"docker-archive:{saved}")
    assert (code, document["verdict"]) == (0, "match"), document["reason"]
