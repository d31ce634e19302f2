# SPDX-License-Identifier: Apache-2.0
"""What layers become when they are applied."""

import hashlib

import pytest
from images import Tar, header
from layered import CASES, view_of

from stackctl.image.errors import AmbiguousImageError, ImageFormatError


@pytest.mark.parametrize("name", CASES)
def test_case(name: str) -> None:
    case = CASES[name]
    if case.refused:
        with pytest.raises(ImageFormatError) as caught:
            view_of(case.tars())
        assert caught.value.kind == case.refused
        return
    view = view_of(case.tars())
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


def test_global_size_is_refused() -> None:
    layer = Tar().pax((b"size", b"1"), kind=b"g").file("b", "B").done()
    with pytest.raises(AmbiguousImageError, match="global PAX"):
        view_of([layer])


def test_doubts_end_path_by_path() -> None:
    lower = Tar().folder("d").symlink("s", "d").done()
    through = Tar().file("s/k", "1").done()
    (doubt,) = view_of([lower, through]).doubts
    assert doubt.paths == (b"s", b"d/k")
    (doubt,) = view_of([lower, through, Tar().file("d/k", "2").done()]).doubts
    assert doubt.paths == (b"s",)


def test_many_entries_behind_a_global_path_are_the_whole_image() -> None:
    layer = Tar().pax((b"path", b"evil"), kind=b"g").done()[:-1024]
    layer += b"".join(header(b"%d" % number) for number in range(10_500))
    doubts = list(view_of([layer]).doubts)
    assert len(doubts) == 10_001 and doubts[-1].paths == (b"",)


def test_lookup_is_clamped_at_the_root() -> None:
    layer = Tar().folder("a").file("a/x", "1").symlink("out", "/../../a").done()
    view = view_of([layer])
    found = view.lookup(b"/out/../../../out/x")
    assert found.path == b"a/x" and found.node is not None


def test_folders_come_in_the_order_of_walk() -> None:
    layer = Tar().file("b/z/1").file("b/a/1/x").file("a/c/k").file("a0/c").file("c")
    view = view_of([layer.done()])
    walked = [(path, node) for path, node in view.walk(view.root) if node.kind == "d"]
    assert list(view.folders()) == walked
    assert [path for path, _ in walked] == [
        b"a", b"a0", b"b", b"a/c", b"b/a", b"b/z", b"b/a/1",
    ]  # fmt: skip


def test_lookup_gives_up_on_loops() -> None:
    view = view_of([Tar().symlink("a", "b").symlink("b", "a").done()])
    assert view.lookup(b"a/x").node is None


def test_visited_names_every_symlink() -> None:
    layer = (
        Tar()
        .folder("usr")
        .folder("usr/lib")
        .file("usr/lib/x")
        .symlink("lib", "usr/lib")
    )
    found = view_of([layer.done()]).lookup(b"/lib/x")
    assert found.visited == (b"lib", b"usr", b"usr/lib", b"usr/lib/x")


def test_deep_folders_need_no_recursion() -> None:
    deep = "/".join(["d"] * 1900)
    view = view_of([Tar().file(f"{deep}/x", "1").done(), Tar().opaque("d").done()])
    assert view.lookup(deep.encode() + b"/x").node is None
    assert len(list(view.walk(view.root))) == 1


def test_duplicates_are_reported() -> None:
    view = view_of([Tar().file("b", "1").file("b", "2").done()])
    assert view.duplicates == [b"b"]
