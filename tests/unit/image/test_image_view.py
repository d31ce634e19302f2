# SPDX-License-Identifier: Apache-2.0
"""What layers become when they are applied."""

import hashlib
from collections.abc import Sequence

import pytest
from images import Tar
from layered import CASES

from stackctl.image.errors import AmbiguousImageError, ImageFormatError
from stackctl.image.layers import Budget, Interest, scan_layer
from stackctl.image.limits import Limits
from stackctl.image.view import Applier, View


def apply(tars: Sequence[bytes]) -> View:
    view = View()
    applier = Applier(view)
    budget = Budget(Limits())
    for tar in tars:
        applier.apply(
            scan_layer([tar], budget, Interest(sha256=True), size_hint=0).entries
        )
    return view


@pytest.mark.parametrize("name", CASES)
def test_case(name: str) -> None:
    case = CASES[name]
    if case.refused:
        with pytest.raises(ImageFormatError) as caught:
            apply(case.tars())
        assert caught.value.kind == case.refused
        return
    view = apply(case.tars())
    assert tuple(doubt.code for doubt in view.doubts) == case.doubts
    for path, content in case.has.items():
        node = view.lookup(path.encode("utf-8", "surrogateescape"), follow=False).node
        if content is None:
            assert node is None, path
        elif content.startswith("->"):
            assert node is not None and node.link == content[2:].encode()
        else:
            assert node is not None, path
            assert node.sha256 == hashlib.sha256(content.encode()).digest(), path


def test_global_path_is_refused() -> None:
    layer = Tar().pax((b"path", b"evil"), kind=b"g").file("b", "B").done()
    with pytest.raises(AmbiguousImageError, match="global PAX"):
        apply([layer])


def test_lookup_is_clamped_at_the_root() -> None:
    layer = Tar().folder("a").file("a/x", "1").symlink("out", "/../../a").done()
    view = apply([layer])
    found = view.lookup(b"/out/../../../out/x")
    assert found.path == b"a/x" and found.node is not None


def test_lookup_gives_up_on_loops() -> None:
    view = apply([Tar().symlink("a", "b").symlink("b", "a").done()])
    assert view.lookup(b"a/x").node is None


def test_visited_names_every_symlink() -> None:
    layer = (
        Tar()
        .folder("usr")
        .folder("usr/lib")
        .file("usr/lib/x")
        .symlink("lib", "usr/lib")
    )
    found = apply([layer.done()]).lookup(b"/lib/x")
    assert found.visited == (b"lib", b"usr", b"usr/lib", b"usr/lib/x")


def test_deep_folders_need_no_recursion() -> None:
    deep = "/".join(["d"] * 1900)
    view = apply([Tar().file(f"{deep}/x", "1").done(), Tar().opaque("d").done()])
    assert view.lookup(deep.encode() + b"/x").node is None
    assert len(list(view.walk(view.root))) == 1


def test_duplicates_are_reported() -> None:
    view = apply([Tar().file("b", "1").file("b", "2").done()])
    assert view.duplicates == [b"b"]
