# SPDX-License-Identifier: Apache-2.0
"""Odd layers with the outcome that five runtimes were seen to give them.

The same cases are given to the runtimes themselves by the tools tests, so that neither
this table nor the code can drift from them.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from images import Tar, header, padded, pax_records

from stackctl.image.layers import Budget, Interest, scan_layer
from stackctl.image.limits import Limits
from stackctl.image.view import Applier, View

T = Tar


def view_of(tars: Sequence[bytes]) -> View:
    """Return what is seen of some layers, the lowest first."""
    view = View()
    applier = Applier(view)
    budget = Budget(Limits())
    for tar in tars:
        applier.apply(
            scan_layer([tar], budget, Interest(sha256=True), size_hint=0).entries
        )
    return view


def base() -> Tar:
    """The lowest layer of every case."""
    return (
        T()
        .folder("a")
        .file("a/x", "1")
        .file("a/y", "2")
        .folder("d")
        .file("d/k", "k")
        .symlink("s", "d")
        .file("f", "ff")
        .folder("d/e")
        .file("d/e/m", "m")
    )


@dataclass(frozen=True)
class Case:
    """Layers over the base, and what becomes of them.

    Attributes:
        layers: The layers above the base.
        has: Contents by path; None for a path that must not be there.
        doubts: Codes of the doubts.
        refused: Why no runtime takes it, or nothing.
        same: Whether the runtimes that take it all see the same.
        alone: Whether there is no base below.
    """

    layers: tuple[Tar | bytes, ...]
    has: dict[str, str | None]
    doubts: tuple[str, ...] = ()
    refused: str = ""
    same: bool = True
    alone: bool = False

    def tars(self) -> list[bytes]:
        return [
            layer if isinstance(layer, bytes) else layer.done()
            for layer in (*(() if self.alone else (base(),)), *self.layers)
        ]


def doubt(code: str, *layers: Tar | bytes, alone: bool = False) -> Case:
    return Case(layers, {}, (code,), same=False, alone=alone)


def refuse(code: str, *layers: Tar | bytes) -> Case:
    return Case(layers, {}, refused=code)


def _old_sparse() -> bytes:
    block = bytearray(header(b"b", b"S", size=3, magic=b"ustar  \0"))
    block[386:410] = b"%011o\0%011o\0" % (4, 3)
    block[483:495] = b"%011o\0" % 9
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block) + padded(b"abc")


_GLOBAL = pax_records([(b"comment", b"x")])
_SPARSE = "\0" * 5 + "abc" + "\0" * 12

CASES: dict[str, Case] = {
    "plain": Case((), {"a/x": "1", "d/e/m": "m", "f": "ff"}),
    # Whiteouts.
    "whiteout": Case((T().whiteout("a/x"),), {"a/x": None, "a/y": "2"}),
    "whiteout-folder": Case((T().whiteout("d"),), {"d/k": None, "d/e/m": None}),
    "whiteout-before-file": Case(
        (T().whiteout("a/x").file("a/x", "new"),), {"a/x": "new"}
    ),
    "whiteout-after-new-file": doubt(
        "whiteout-after-file", T().file("a/n", "new").whiteout("a/n")
    ),
    "whiteout-after-file": doubt(
        "whiteout-after-file", T().file("a/x", "new").whiteout("a/x")
    ),
    "whiteout-then-folder": doubt(
        "whiteout-and-folder", T().whiteout("d").folder("d").file("d/n", "n")
    ),
    "folder-then-whiteout": doubt(
        "whiteout-and-folder", T().folder("d").file("d/n", "n").whiteout("d")
    ),
    "whiteout-then-implicit-folder": doubt(
        "whiteout-and-folder", T().whiteout("d").file("d/n", "n")
    ),
    "whiteout-of-a-file-then-folder": Case(
        (T().whiteout("f").folder("f").file("f/n", "n"),), {"f/n": "n"}
    ),
    "whiteout-of-a-symlink-then-folder": Case(
        (T().whiteout("s").folder("s").file("s/n", "n"),), {"s/n": "n", "d/n": None}
    ),
    "whiteout-of-nothing-then-folder": Case(
        (T().whiteout("q").folder("q").file("q/n", "n"),), {"q/n": "n"}
    ),
    "whiteout-of-nothing-then-implicit-folder": doubt(
        "whiteout-and-folder", T().whiteout("q").file("q/n", "n")
    ),
    "whiteout-that-is-a-hard-link": Case(
        (T().raw(header(b"a/.wh.x", b"1", link=b"a/y")),), {"a/x": None, "a/y": "2"}
    ),
    "whiteout-that-is-a-symlink": Case(
        (T().raw(header(b"a/.wh.x", b"2", link=b"y")),), {"a/x": None, "a/y": "2"}
    ),
    "whiteout-that-is-a-folder": Case((T().folder("a/.wh.x"),), {"a/x": None}),
    "whiteout-of-nothing": Case((T().whiteout("a/nope"),), {"a/x": "1"}),
    "whiteout-of-a-symlink": Case((T().whiteout("s"),), {"s": None, "d/k": "k"}),
    "whiteout-then-back": Case(
        (T().whiteout("d"), T().folder("d").file("d/n", "n")),
        {"d/k": None, "d/n": "n"},
    ),
    "whiteout-without-a-name": doubt("bad-whiteout", T().file("d/.wh.")),
    "whiteout-of-dot": doubt("bad-whiteout", T().file("d/.wh..")),
    "whiteout-of-dotdot": doubt("bad-whiteout", T().file("d/e/.wh...")),
    # Opaque folders.
    "opaque-last": Case(
        (T().folder("d").file("d/n", "n").opaque("d"),), {"d/k": None, "d/n": "n"}
    ),
    "opaque-first": Case(
        (T().folder("d").opaque("d").file("d/n", "n"),), {"d/k": None, "d/n": "n"}
    ),
    "opaque-alone": Case((T().opaque("d"),), {"d/k": None, "d/e/m": None}),
    "opaque-with-folders": Case(
        (T().folder("d").folder("d/e").file("d/e/n", "n").opaque("d"),),
        {"d/e/m": None, "d/e/n": "n"},
    ),
    "opaque-before-unnamed-folder": Case(
        (T().opaque("d").file("d/q/n", "n"),), {"d/k": None, "d/q/n": "n"}
    ),
    "opaque-after-unnamed-folder": doubt(
        "opaque-after-unnamed-folder", T().folder("d").file("d/q/n", "n").opaque("d")
    ),
    "opaque-after-unnamed-folder-in-the-first-layer": doubt(
        "opaque-after-unnamed-folder",
        T().folder("d").file("d/q/n", "n").opaque("d"),
        alone=True,
    ),
    "opaque-after-a-folder-in-an-unnamed-one": doubt(
        "opaque-after-unnamed-folder",
        T().folder("d").folder("d/q/p").file("d/q/p/n", "n").opaque("d"),
    ),
    "opaque-after-a-named-folder-in-an-unnamed-one": doubt(
        "opaque-after-unnamed-folder",
        T().folder("d").folder("d/q/p").opaque("d"),
        alone=True,
    ),
    "opaque-behind-a-symlink": doubt(
        "opaque-behind-symlink", T().folder("d").symlink("q", "d").opaque("q")
    ),
    "opaque-root": doubt("opaque-root", T().opaque("").file("n", "n")),
    # One type in place of another.
    "file-over-folder": Case((T().file("d", "F"),), {"d": "F", "d/k": None}),
    "folder-over-file": Case((T().folder("f").file("f/n", "n"),), {"f/n": "n"}),
    "folder-over-symlink": Case(
        (T().folder("s").file("s/n", "n"),), {"s/n": "n", "d/n": None, "s/k": None}
    ),
    "file-then-folder": doubt(
        "folder-after-file", T().file("d", "F").folder("d").file("d/n", "n")
    ),
    "symlink-then-folder": doubt(
        "folder-after-file", T().symlink("d", "a").folder("d").file("d/n", "n")
    ),
    "new-file-then-folder": Case(
        (T().file("q", "F").folder("q").file("q/n", "n"),), {"q/n": "n"}
    ),
    "folder-in-a-folder-then-file": doubt(
        "folder-lost", T().folder("q").folder("q/p").file("q", "F")
    ),
    "folder-in-a-folder-then-symlink": doubt(
        "folder-lost", T().folder("q").folder("q/p/o").symlink("q", "d")
    ),
    "folder-then-file": Case(
        (T().folder("q").file("q/1", "1").file("q", "F"),), {"q": "F", "q/1": None}
    ),
    "folder-file-folder": Case(
        (T().file("d", "F"), T().folder("d").file("d/n", "n")),
        {"d/n": "n", "d/k": None},
    ),
    "file-folder-file": Case(
        (T().folder("f").file("f/1", "1"), T().file("f", "again")), {"f": "again"}
    ),
    # Symlinks on the way.
    "behind-a-lower-symlink": doubt("parent-symlink", T().file("s/n", "n")),
    "whiteout-behind-a-lower-symlink": doubt("parent-symlink", T().whiteout("s/k")),
    "behind-two-symlinks": doubt(
        "parent-symlink", T().symlink("s2", "s").file("s2/n", "n")
    ),
    "behind-a-symlink": Case(
        (T().symlink("s2", "d").file("s2/n", "n"),), {"d/n": "n", "d/k": "k"}
    ),
    "behind-an-absolute-symlink": Case(
        (T().symlink("s2", "/d").file("s2/n", "n"),), {"d/n": "n", "d/k": "k"}
    ),
    "behind-a-symlink-out": Case(
        (T().symlink("s2", "../../../d").file("s2/n", "n"),), {"d/n": "n", "d/k": "k"}
    ),
    "behind-a-symlink-in-a-new-folder": Case(
        (T().symlink("s2", "d").file("s2/new/n", "n"),), {"d/new/n": "n", "d/k": "k"}
    ),
    "behind-a-symlink-to-its-own-layer-in-a-new-folder": Case(
        (T().folder("d").symlink("s2", "/d").file("s2/new/er/n", "n"),),
        {"d/new/er/n": "n", "d/k": "k"},
    ),
    "whiteout-in-a-new-folder-behind-a-symlink": Case(
        (T().folder("d").symlink("s2", "d").whiteout("s2/new/n"),), {"d/k": "k"}
    ),
    "behind-a-symlink-to-a-dangling-one": doubt(
        "parent-dangling",
        T().symlink("s2", "s3").symlink("s3", "no").file("s2/new/n", "n"),
    ),
    "behind-a-dangling-symlink": doubt(
        "parent-dangling", T().symlink("s2", "no/where").file("s2/n", "n")
    ),
    "symlink-to-nothing": refuse("symlink-empty", T().symlink("b", "")),
    "symlink-too-long": refuse("name-too-long", T().symlink("b", "a/" * 2100)),
    "behind-a-loop": refuse(
        "symlink-loop", T().symlink("s2", "s3").symlink("s3", "s2").file("s2/n", "n")
    ),
    "below-a-lower-file": doubt("parent-not-folder", T().file("f/n", "n")),
    "below-a-file": refuse("entry-under-file", T().file("q", "q").file("q/n", "n")),
    "implicit-folders": Case((T().file("new/deep/n", "n"),), {"new/deep/n": "n"}),
    # Hard links.
    "hardlink": Case((T().file("b", "B").hardlink("c", "b"),), {"c": "B"}),
    "hardlink-absolute": Case((T().file("b", "B").hardlink("c", "/b"),), {"c": "B"}),
    "hardlink-dot": Case((T().file("b", "B").hardlink("c", "./b"),), {"c": "B"}),
    "hardlink-dotdot": Case((T().file("b", "B").hardlink("c", "../b"),), {"c": "B"}),
    "hardlink-dotdot-in-a-file": Case(
        (T().file("b", "B").hardlink("c", "b/../no/../b"),), {"c": "B"}
    ),
    "hardlink-dotdot-in-a-symlink": doubt(
        "hardlink-dotdot",
        T()
        .folder("q")
        .folder("q/r")
        .symlink("l", "q/r")
        .file("b", "B")
        .file("q/b", "Q")
        .hardlink("c", "l/../b"),
    ),
    "hardlink-to-a-lower-layer": doubt("hardlink-lower-layer", T().hardlink("c", "f")),
    "hardlink-forward": refuse(
        "hardlink-missing", T().hardlink("c", "b").file("b", "B")
    ),
    "hardlink-to-itself": refuse("hardlink-missing", T().hardlink("c", "c")),
    "hardlink-over-itself": refuse(
        "hardlink-missing", T().file("c", "C").hardlink("c", "c")
    ),
    "hardlink-to-a-folder": refuse(
        "hardlink-folder", T().folder("q").hardlink("c", "q")
    ),
    "hardlink-to-a-symlink": Case(
        (T().symlink("l", "d/k").hardlink("c", "l"),), {"c": "->d/k"}
    ),
    "hardlink-chain": Case(
        (T().file("b", "B").hardlink("c", "b").hardlink("e", "c"),), {"e": "B"}
    ),
    "hardlink-source-replaced": Case(
        (T().file("b", "B").hardlink("c", "b").file("b", "other"),),
        {"c": "B", "b": "other"},
    ),
    "hardlink-source-replaced-later": Case(
        (T().file("b", "B").hardlink("c", "b"), T().file("b", "other")),
        {"c": "B", "b": "other"},
    ),
    "hardlink-source-removed-later": Case(
        (T().file("b", "B").hardlink("c", "b"), T().whiteout("b")),
        {"c": "B", "b": None},
    ),
    "hardlink-behind-a-symlink": Case(
        (T().symlink("l", "d").folder("d").file("d/n", "N").hardlink("c", "l/n"),),
        {"c": "N"},
    ),
    "hardlink-behind-a-lower-symlink": doubt(
        "hardlink-symlink", T().folder("d").file("d/n", "N").hardlink("c", "s/n")
    ),
    "hardlink-with-another-mode": Case(
        (T().file("b", "B").hardlink("c", "b", mode=0o755),),
        {"c": "B"},
        ("hardlink-mode",),
        same=False,
    ),
    "hardlink-with-a-size": Case(
        (T().file("b", "B").raw(header(b"c", b"1", size=5, link=b"b")),), {"c": "B"}
    ),
    "hardlink-over-a-lower-file": Case(
        (T().file("b", "B").hardlink("f", "b"),), {"f": "B"}
    ),
    "hardlink-to-what-docker-skips": doubt(
        "hardlink-aufs", T().file(".wh..wh.q/b", "B").hardlink("c", ".wh..wh.q/b")
    ),
    "hardlink-to-what-is-whited-out": refuse(
        "hardlink-missing", T().whiteout("f").hardlink("c", "f")
    ),
    # Names.
    "duplicate": Case((T().file("b", "1").file("b", "2"),), {"b": "2"}),
    "name-out": Case((T().file("../out", "O"),), {"out": "O"}),
    "name-dotdot": Case((T().file("a/../out", "O"),), {"out": "O"}),
    "name-absolute": Case((T().file("/out", "O"),), {"out": "O"}),
    "name-not-utf8": Case((T().file(b"b\xff\xfe", "B"),), {"b\udcff\udcfe": "B"}),
    "name-too-long": refuse("name-too-long", T().file("n" * 256, "B")),
    "name-long": Case((T().file("n" * 255, "B"),), {"n" * 255: "B"}),
    "name-trailing-slash": Case((T().file("z/", "Z"),), {"z": "Z"}),
    "name-gnu": Case(
        (
            T()
            .gnu_long(b"L", b"q/" + b"n" * 120)
            .raw(header(b"x", b"0", size=1, magic=b"ustar  \0") + padded(b"B")),
        ),
        {"q/" + "n" * 120: "B"},
    ),
    "name-gnu-over-pax": Case(
        (
            T()
            .pax((b"path", b"pax"))
            .gnu_long(b"L", b"gnu")
            .raw(header(b"x", b"0", size=1) + padded(b"B")),
        ),
        {"gnu": "B", "pax": None, "x": None},
    ),
    "name-ustar-prefix": Case(
        (T().raw(header(b"b", size=1, prefix=b"pre") + padded(b"B")),), {"pre/b": "B"}
    ),
    "name-gnu-prefix": Case(
        (
            T().raw(
                header(b"b", size=1, magic=b"ustar  \0", prefix=b"pre") + padded(b"B")
            ),
        ),
        {"pre/b": "B"},
    ),
    # Types.
    "type-nul": Case(
        (T().raw(header(b"b", b"\0", size=1) + padded(b"B")),), {"b": "B"}
    ),
    "type-nul-folder": Case((T().raw(header(b"b/", b"\0")),), {}),
    "type-7": refuse("entry-type", T().raw(header(b"b", b"7", size=1) + padded(b"B"))),
    "type-old-sparse": refuse("entry-type", T().raw(_old_sparse())),
    "type-unknown": refuse("entry-type", T().raw(header(b"b", b"Z"))),
    "type-volume": refuse("entry-type", T().raw(header(b"b", b"V"))),
    "global-comment": Case(
        (T().pax((b"comment", b"x"), kind=b"g").file("b", "B"),), {"b": "B"}
    ),
    "global-named-like-a-file": doubt(
        "global-header-name",
        T().raw(header(b"f", b"g", size=len(_GLOBAL)) + padded(_GLOBAL)),
    ),
    "global-path": Case(
        (T().file("a/n", "n").pax((b"path", b"q"), kind=b"g").file("b", "B"),),
        {"a/n": "n", "b": "B"},
        ("global-pax", "global-pax"),
        same=False,
    ),
    "overlay-device": doubt("overlay-marker", T().device("f", 0, 0)),
    "overlay-xattr": doubt(
        "overlay-marker",
        T()
        .pax((b"SCHILY.xattr.trusted.overlay.opaque", b"y"))
        .folder("d")
        .file("d/n", "n"),
    ),
    "hardlink-to-an-overlay-device": Case(
        (T().device("q", 0, 0).hardlink("f", "q"),),
        {},
        ("overlay-marker", "overlay-marker"),
        same=False,
    ),
    # Doubts that later layers end, and some that they do not.
    "overlay-device-then-file": Case(
        (T().device("f", 0, 0), T().file("f", "new")), {"f": "new"}
    ),
    "overlay-device-then-file-then-device": doubt(
        "overlay-marker",
        T().device("f", 0, 0),
        T().file("f", "new"),
        T().device("f", 0, 0),
    ),
    "overlay-device-then-folder-removed": Case(
        (T().device("d/k", 0, 0), T().whiteout("d")), {"d/k": None}
    ),
    "overlay-device-with-an-opaque-marker": doubt(
        "overlay-marker", T().folder("d").device("d/k", 0, 0).opaque("d")
    ),
    "overlay-device-then-opaque": Case(
        (T().device("d/k", 0, 0), T().folder("d").file("d/n", "n").opaque("d")),
        {"d/k": None, "d/n": "n"},
    ),
    "overlay-xattr-then-removed": Case(
        (
            T().pax((b"SCHILY.xattr.trusted.overlay.opaque", b"y")).folder("d"),
            T().whiteout("d"),
            T().folder("d").file("d/n", "n"),
        ),
        {"d/k": None, "d/n": "n"},
    ),
    "whiteout-then-folder-then-removed": Case(
        (
            T().whiteout("d").folder("d").file("d/n", "n"),
            T().whiteout("d"),
            T().folder("d").file("d/m", "m"),
        ),
        {"d/k": None, "d/n": None, "d/m": "m"},
    ),
    "whiteout-then-folder-then-file-and-folder": Case(
        (
            T().whiteout("d").folder("d").file("d/n", "n"),
            T().file("d", "F").folder("d").file("d/m", "m"),
        ),
        {},
        ("folder-after-file",),
        same=False,
    ),
    "whiteout-then-folder-then-whiteout-and-folder": doubt(
        "whiteout-and-folder",
        T().whiteout("d").folder("d").file("d/n", "n"),
        T().whiteout("d").folder("d").file("d/m", "m"),
    ),
    "folder-then-whiteout-then-removed": doubt(
        "whiteout-and-folder",
        T().folder("d").file("d/n", "n").whiteout("d"),
        T().whiteout("d"),
    ),
    "behind-a-lower-symlink-then-replaced": Case(
        (T().file("s/k", "n"), T().file("d/k", "K").symlink("s", "d")),
        {"d/k": "K", "s": "->d"},
    ),
    "behind-a-lower-symlink-then-removed-in-part": doubt(
        "parent-symlink", T().file("s/n", "n"), T().whiteout("d/n")
    ),
    # Content.
    "sparse-0.1": Case(
        (
            T()
            .pax(
                (b"GNU.sparse.major", b"0"),
                (b"GNU.sparse.minor", b"1"),
                (b"GNU.sparse.name", b"sp"),
                (b"GNU.sparse.size", b"20"),
                (b"GNU.sparse.numblocks", b"1"),
                (b"GNU.sparse.map", b"5,3"),
            )
            .file("GNUSparseFile.0/sp", "abc"),
        ),
        {"sp": _SPARSE},
    ),
    "sparse-1.0": Case(
        (
            T()
            .pax(
                (b"GNU.sparse.major", b"1"),
                (b"GNU.sparse.minor", b"0"),
                (b"GNU.sparse.name", b"sp"),
                (b"GNU.sparse.realsize", b"20"),
            )
            .raw(
                header(b"GNUSparseFile.0/sp", b"0", size=515)
                + padded(b"1\n5\n3\n")
                + padded(b"abc")
            ),
        ),
        {"sp": _SPARSE},
    ),
    "size-in-pax": Case(
        (T().pax((b"size", b"3")).raw(header(b"x", b"0") + padded(b"BBB")),),
        {"x": "BBB"},
    ),
    "size-with-zeros": Case(
        (
            T()
            .pax((b"size", b"3".rjust(30, b"0")))
            .raw(header(b"x", b"0") + padded(b"BBB")),
        ),
        {"x": "BBB"},
    ),
    "after-the-end": Case(
        (T().file("b", "B").done() + T().file("evil", "E").done(),),
        {"b": "B", "evil": None},
    ),
    "without-an-end": Case((T().file("b", "B").data,), {"b": "B"}),
}
