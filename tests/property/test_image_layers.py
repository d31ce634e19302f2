# SPDX-License-Identifier: Apache-2.0
"""Random layers: whatever we are sure of, a runtime sees the same.

umoci is the oracle of every run; containerd's overlay driver too where there is one.
"""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, assume, event, example, given, settings
from hypothesis import strategies as st
from images import Tar, build_image, write_layout
from layered import view_of
from runtimes import Containerd, Refused, Tree, umoci

from stackctl.image.errors import ImageFormatError
from stackctl.image.view import View

pytestmark = pytest.mark.tools

_EXAMPLES = int(os.environ.get("STACKCTL_TEST_EXAMPLES", "60"))
_names = st.sampled_from(["a", "b", "c", "d" * 120, "x.py"])
_paths = st.lists(_names, min_size=1, max_size=3).map("/".join)
_targets = st.one_of(_paths, _paths.map("../".__add__), _paths.map("/".__add__))


@st.composite
def _layer(draw: st.DrawFn) -> list[tuple[str, str, str]]:
    """Draw a layer; most of its hard links lead to a file that it has."""
    operations: list[tuple[str, str, str]] = []
    files: list[str] = []
    for _ in range(draw(st.integers(1, 8))):
        kind = draw(
            st.sampled_from(
                ["file", "file", "folder", "symlink", "hardlink", "whiteout", "opaque"]
            )
        )
        path = draw(_paths)
        more = ""
        if kind == "file":
            more = draw(st.sampled_from(["1", "22", ""]))
            files.append(path)
        elif kind == "symlink":
            more = draw(_targets)
        elif kind == "hardlink":
            more = draw(st.sampled_from(files) if files else _paths)
            files.append(path)
        operations.append((kind, path, more))
    return operations


_layers = st.lists(_layer(), min_size=1, max_size=4)


def build(operations: list[tuple[str, str, str]]) -> bytes:
    tar = Tar()
    for kind, path, more in operations:
        if kind in ("file", "symlink", "hardlink"):
            getattr(tar, kind)(path, more)
        else:
            getattr(tar, kind)(path)
    return tar.done()


def ours(tars: list[bytes]) -> tuple[Tree, View]:
    view = view_of(tars)
    tree: Tree = {}
    for path, node in view.walk(view.root):
        if node.kind == "f":
            assert node.sha256 is not None
            tree[path] = ("f", 0, node.sha256.hex().encode())
        elif node.kind == "l":
            tree[path] = ("l", 0, node.link)
    return tree, view


def plain(tree: Tree) -> Tree:
    """Leave out folders, of which runtimes may make more, and modes."""
    return {
        path: (kind, 0, value)
        for path, (kind, _, value) in tree.items()
        if kind in "fl"
    }


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("umoci") is None:
        pytest.skip("umoci is not installed")
    return tmp_path_factory.mktemp("runtimes")


@pytest.fixture(scope="module")
def containerd(work: Path) -> Iterator[Containerd | None]:
    program = os.environ.get("STACKCTL_TEST_CONTAINERD") or shutil.which("containerd")
    if program is None or os.geteuid():
        yield None
        return
    daemon = Containerd(work, program)
    yield daemon
    daemon.close()


@settings(
    max_examples=_EXAMPLES,
    deadline=None,
    # Every try starts a runtime: a failure is reported as it was found.
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
@example(
    # containerd loses the symlink, whose folder no entry names; umoci keeps it.
    layers=[[("symlink", "b/x.py/a", "x.py"), ("opaque", "b", ""), ("file", "a", "1")]]
)
@given(layers=_layers)
def test_runtimes_see_what_we_see(
    work: Path, containerd: Containerd | None, layers: list[list[tuple[str, str, str]]]
) -> None:
    tars = [build(operations) for operations in layers]
    try:
        tree, view = ours(tars)
    except ImageFormatError as error:
        event(error.kind)
        assume(False)
        return
    for doubt in view.doubts:
        event(doubt.code)
    assume(not view.doubts)
    layout = work / "image"
    shutil.rmtree(layout, ignore_errors=True)
    write_layout(layout, build_image(tars))
    assert plain(umoci(layout, work)) == tree
    if containerd is not None:
        try:
            seen = containerd(layout, "overlayfs")
        except Refused:
            # It refuses some layers that others take, never the other way.
            event("refused by containerd")
        else:
            assert plain(seen) == tree
