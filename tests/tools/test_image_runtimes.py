# SPDX-License-Identifier: Apache-2.0
"""The table of odd layers, given to real runtimes."""

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from images import build_image, write_layout
from layered import CASES, view_of
from runtimes import Containerd, Docker, Podman, Refused, Tree, find_dockerd, umoci

pytestmark = pytest.mark.tools
_Runtime = Callable[[Path], Tree]


@pytest.fixture(scope="module")
def runtimes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, _Runtime]]:
    if os.geteuid():
        pytest.skip("runtimes need root to make devices and mounts")
    work = tmp_path_factory.mktemp("runtimes")
    found: dict[str, _Runtime] = {}
    if shutil.which("umoci"):
        found["umoci"] = lambda layout: umoci(layout, work)
    if shutil.which("podman"):
        found["podman"] = Podman(work, "overlay")
    daemons: list[Containerd | Docker] = []
    program = os.environ.get("STACKCTL_TEST_CONTAINERD") or shutil.which("containerd")
    if program:
        running = Containerd(work, program)
        daemons.append(running)
        found["containerd"] = lambda layout: running(layout, "overlayfs")
        found["containerd-native"] = lambda layout: running(layout, "native")
    dockerd = find_dockerd()
    if dockerd and shutil.which("skopeo"):
        docker = Docker(work, dockerd)
        daemons.append(docker)
        found["docker"] = docker
    if not found:
        pytest.skip("neither umoci nor podman nor containerd is installed")
    yield found
    for daemon in daemons:
        daemon.close()


def contents(tree: Tree) -> Tree:
    return {
        path: (kind, mode if kind == "f" else 0, value)
        for path, (kind, mode, value) in tree.items()
        if kind in "flo"
    }


def ours(tars: list[bytes]) -> Tree:
    view = view_of(tars)
    tree: Tree = {}
    for path, node in view.walk(view.root):
        if node.kind == "f" and node.sha256 is not None:
            tree[path] = ("f", node.mode, node.sha256.hex().encode())
        elif node.kind == "l":
            tree[path] = ("l", 0, node.link)
        elif node.kind == "o":
            tree[path] = ("o", 0, b"")
    return tree


@pytest.mark.parametrize("name", CASES)
def test_runtimes(runtimes: dict[str, _Runtime], tmp_path: Path, name: str) -> None:
    case = CASES[name]
    layout = write_layout(tmp_path / "image", build_image(case.tars()))
    seen: dict[str, Tree] = {}
    refused = {}
    for runtime, read in runtimes.items():
        try:
            seen[runtime] = contents(read(layout))
        except Refused as error:
            refused[runtime] = str(error)
    if case.refused:
        assert refused, f"{sorted(seen)} all take it"
        return
    expected = ours(case.tars())
    if case.same:
        assert seen, refused
        for runtime, tree in seen.items():
            assert tree == expected, runtime
    elif len(runtimes) >= 4:
        different = [runtime for runtime, tree in seen.items() if tree != expected]
        assert different or refused, "all agree: this needs no doubt"
