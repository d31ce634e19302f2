# SPDX-License-Identifier: Apache-2.0
"""Verdicts: what a user is told about whole images."""

import importlib.util
import json
import marshal
import os
import struct
import sys
import threading
from pathlib import Path

import pytest
from images import (
    COMPRESS,
    PACKAGE_ROOT,
    REF_NAME,
    SITE,
    Built,
    Demo,
    Tar,
    archive_of,
    build_image,
    docker_archive,
    layout_files,
    sha256,
    tree_layer,
    write_files,
    write_layout,
)

from stackctl.cli.verify_image import report_lines
from stackctl.errors import PinError, UsageError
from stackctl.image import bytecode
from stackctl.image.expectation import ExpectedTree, folder_tree
from stackctl.image.limits import Limits
from stackctl.image.report import Report
from stackctl.image.roots import CHECKOUT, PACKAGE, Root
from stackctl.image.rules import Allow
from stackctl.image.verify import PinnedWheel, Request, verify

MAGIC = importlib.util.MAGIC_NUMBER
MTIME = 1_700_000_000


class Shop:
    """Builds images of the demo package and asks for verdicts."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.demo = Demo()
        self.expected = folder_tree(self.demo.write(folder / "expected"))
        self.root = Root("demo", PACKAGE_ROOT, PACKAGE)
        self.count = 0

    def good(self) -> bytes:
        return tree_layer(self.demo.package(), SITE)

    def layout(self, image: Built) -> str:
        self.count += 1
        return f"oci:{write_layout(self.folder / str(self.count), image)}"

    def ask(self, *layers: bytes | Tar, **more: object) -> Report:
        """Verify an image of these layers."""
        run = more.pop("run", None)
        tars = [la.done() if isinstance(la, Tar) else la for la in layers]
        image = build_image(tars, run=run)  # type: ignore[arg-type]
        return self.verify(self.layout(image), **more)

    def over(self, *layers: bytes | Tar, **more: object) -> Report:
        """Verify an image of a good layer and these over it."""
        return self.ask(self.good(), *layers, **more)

    def verify(self, reference: str, **more: object) -> Report:
        settings: dict[str, object] = {
            "expected": [self.expected],
            "roots": (self.root,),
            "environ": {},
            **more,
        }
        return verify(Request(reference, **settings))  # type: ignore[arg-type]


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    return Shop(tmp_path)


def codes(report: Report) -> set[str]:
    return {warning.code for warning in report.warnings}


def outcome(report: Report) -> tuple[str, int]:
    return report.verdict, int(report.exit_code)


# Matching and not


@pytest.mark.parametrize("compression", COMPRESS)
def test_match(shop: Shop, compression: str) -> None:
    image = build_image([shop.good()], compression=compression)
    report = shop.verify(shop.layout(image))
    assert outcome(report) == ("match", 0)
    root = report.comparisons[0]
    assert root.installed_tree == root.expected_tree
    assert root.counts["matched"] == 4
    assert report.image["digest"] == image.manifest
    assert codes(report) == set()


def test_missing_file(shop: Shop) -> None:
    report = shop.over(Tar().whiteout(f"{SITE}/demo/core.py"))
    assert outcome(report) == ("mismatch", 1)
    assert report.reason["missing"] == 1


def test_missing_root(shop: Shop) -> None:
    report = shop.ask(Tar().file("etc/x"))
    assert outcome(report) == ("mismatch", 1)
    assert report.reason["code"] == "root-missing"
    assert report.reason["missing"] == 4
    assert report.document()["details"] == []
    assert f"no {PACKAGE_ROOT}; it has /, which holds etc" in str(
        report.reason["message"]
    )


def test_missing_root_names_where_the_tree_is(shop: Shop) -> None:
    there = tree_layer(shop.demo.package(), "opt/venv/lib/python3.12/site-packages")
    other = tree_layer({"demo/unrelated.py": "x"}, "srv")
    for path in (PACKAGE_ROOT, "/srv/demo"):
        report = shop.ask(there, other, roots=(Root("demo", path, PACKAGE),))
        assert report.reason["code"] == "root-missing"
        place = "/opt/venv/lib/python3.12/site-packages/demo"
        (absent,) = report.reason["absent"]  # type: ignore[misc]
        assert absent["candidates"] == [place]
        assert report.reason["hint"] == f"--root demo={place}"
    assert "none of the 4 expected files" in str(report.reason["message"])


def test_missing_root_beside_another_that_differs(shop: Shop) -> None:
    roots = (shop.root, Root("demo", "/nowhere/demo", PACKAGE))
    report = shop.over(Tar().file(f"{SITE}/demo/core.py", "changed"), roots=roots)
    assert report.reason["code"] == "root-missing"
    assert [c["root"] for c in report.reason["absent"]] == ["/nowhere/demo"]  # type: ignore[attr-defined]
    details = report.document()["details"]
    assert [d["path"] for d in details] == ["demo/core.py"]  # type: ignore[attr-defined]


def test_root_that_is_a_file(shop: Shop) -> None:
    report = shop.ask(Tar().file(PACKAGE_ROOT[1:], "x"))
    assert outcome(report) == ("mismatch", 1)
    assert "is a file in the image" in str(report.reason["message"])


def test_empty_root(shop: Shop) -> None:
    report = shop.ask(Tar().folder(PACKAGE_ROOT[1:]))
    assert report.reason["code"] == "root-missing"
    assert "is empty" in str(report.reason["message"])


def test_changed_byte(shop: Shop) -> None:
    report = shop.over(Tar().file(f"{SITE}/demo/core.py", "VALUE = 2\n"))
    assert outcome(report) == ("mismatch", 1)
    assert report.document()["details"][0]["path"] == "demo/core.py"  # type: ignore[index]


def test_file_that_became_a_symlink_to_equal_bytes(shop: Shop) -> None:
    layer = Tar().file("opt/copy.py", shop.demo.files["demo/core.py"])
    layer.symlink(f"{SITE}/demo/core.py", "/opt/copy.py")
    report = shop.over(layer)
    assert outcome(report) == ("mismatch", 1)
    assert report.comparisons[0].findings[0].status == "type"


def test_hard_link_from_outside_matches(shop: Shop) -> None:
    layer = Tar().file("cache/1", shop.demo.files["demo/core.py"])
    layer.hardlink(f"{SITE}/demo/core.py", "cache/1")
    layers = [tree_layer(shop.demo.package() | {"demo/core.py": b"old"}, SITE), layer]
    assert outcome(shop.ask(*layers)) == ("match", 0)
    # The source may be replaced later without any effect on the link.
    assert outcome(shop.ask(*layers, Tar().file("cache/1", "no"))) == ("match", 0)


def test_root_behind_a_symlink(shop: Shop) -> None:
    layer = tree_layer(shop.demo.package(), "opt/v1/lib/python3.11/site-packages")
    report = shop.ask(
        layer,
        Tar().symlink("opt/venv", "v1"),
        roots=(Root("demo", "/opt/venv/lib/python3.11/site-packages/demo", PACKAGE),),
    )
    assert outcome(report) == ("match", 0)


@pytest.mark.parametrize("name", ["evil.py", "evil.so", "evil.pyc", "evil.pth"])
def test_extra_code(shop: Shop, name: str) -> None:
    report = shop.over(Tar().file(f"{SITE}/demo/{name}", "x"))
    assert outcome(report) == ("mismatch", 1)
    assert report.reason["extra"] == 1


def test_extra_data_is_a_warning_without_a_wheel(shop: Shop) -> None:
    layer = Tar().file(f"{SITE}/demo/notes.txt", "x")
    assert outcome(shop.over(layer)) == ("match", 0)
    assert codes(shop.over(layer)) == {"untracked-unverified"}
    assert outcome(shop.over(layer, strict=True)) == ("mismatch", 1)


@pytest.mark.parametrize(
    ("name", "verdict"),
    [
        ("vllm/_version.py", "match"),
        ("vllm/vllm-rs", "match"),
        ("vllm/spinloop.abi3.so", "match"),
        ("vllm/_versions.py", "mismatch"),
        ("vllm/sub/_version.py", "mismatch"),
        ("vllm/spinlock.abi3.so", "mismatch"),
    ],
)
def test_files_that_a_known_wheel_has_and_no_wheel_judges(
    tmp_path: Path, name: str, verdict: str
) -> None:
    shop = Shop(tmp_path)
    shop.expected = folder_tree(
        write_files(tmp_path / "tree", {"vllm/__init__.py": b"x", "vllm/sub/a.py": b""})
    )
    root = Root("vllm", f"/{SITE}/vllm", PACKAGE)
    files = {"vllm/__init__.py": b"x", "vllm/sub/a.py": b"", name: b"?"}
    report = shop.ask(tree_layer({**files}, SITE), roots=(root,))
    assert report.verdict == verdict
    if verdict == "match":
        assert codes(report) == {"untracked-unverified"}


def test_extra_symlink_and_device(shop: Shop) -> None:
    assert shop.over(Tar().symlink(f"{SITE}/demo/x", "/")).verdict == "mismatch"
    assert shop.over(Tar().device(f"{SITE}/demo/x", 1, 3)).verdict == "mismatch"


def test_allow(shop: Shop) -> None:
    layer = Tar().file(f"{SITE}/demo/_version.py", "V")
    right, wrong = sha256(b"V")[7:], sha256(b"W")[7:]
    for rule, verdict in (
        (Allow("demo/_version.py"), "match"),
        (Allow("demo/**"), "match"),
        (Allow("demo/*.py"), "match"),
        (Allow("*.py"), "mismatch"),
        (Allow("demo/_version.py", right), "match"),
        (Allow("demo/_version.py", wrong), "mismatch"),
        (Allow("demo/other.py"), "mismatch"),
    ):
        assert shop.over(layer, allow=(rule,)).verdict == verdict, rule


def test_allow_does_not_cover_tracked_files(shop: Shop) -> None:
    layer = Tar().file(f"{SITE}/demo/core.py", "evil")
    assert shop.over(layer, allow=(Allow("**"),)).verdict == "mismatch"


def test_unpackaged(shop: Shop) -> None:
    layer = Tar().whiteout(f"{SITE}/demo/core.py")
    report = shop.over(layer, unpackaged=("demo/c*.py",))
    assert outcome(report) == ("match", 0)
    details = report.document()["details"]
    assert [d["why"] for d in details] == ["not packaged, by the rule 'demo/c*.py'"]  # type: ignore[attr-defined]
    said = "1 tracked file is not packaged, by the rule 'demo/c*.py'"
    assert said in list(report_lines(report, "x"))
    assert shop.over(layer, unpackaged=("demo/x*.py",)).verdict == "mismatch"


def test_pinned_wheel_judges(shop: Shop) -> None:
    import zipfile

    path = shop.folder / "demo-1-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        for name, data in {**shop.demo.package(), "demo/_C.so": b"ELF"}.items():
            wheel.writestr(name, data)
    pin = PinnedWheel(path, sha256(path.read_bytes())[7:])
    good = Tar().file(f"{SITE}/demo/_C.so", "ELF")
    assert outcome(shop.over(good, wheel=pin)) == ("match", 0)
    assert codes(shop.over(good, wheel=pin)) == set()
    swapped = Tar().file(f"{SITE}/demo/_C.so", "EVIL")
    record = f"demo/_C.so,{sha256(b'EVIL')},4\n"
    swapped.file(f"{SITE}/demo-1.dist-info/RECORD", record)
    assert outcome(shop.over(swapped, wheel=pin)) == ("mismatch", 1)
    other = Tar().file(f"{SITE}/demo/notes.txt", "x")
    assert outcome(shop.over(other, wheel=pin)) == ("mismatch", 1)
    wrong = PinnedWheel(path, "0" * 64)
    report = shop.over(good, wheel=wrong)
    assert (outcome(report), report.reason["code"]) == (
        ("unverifiable", 4),
        "wheel-digest",
    )


def test_wheel_itself(shop: Shop) -> None:
    import zipfile

    path = shop.folder / "demo.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as wheel:
        for name, data in shop.demo.package().items():
            wheel.writestr(name, data)
    assert outcome(shop.verify(f"wheel:{path}", roots=())) == ("match", 0)
    with zipfile.ZipFile(path, "a") as wheel:
        wheel.writestr("demo/evil.py", "x")
    assert shop.verify(f"wheel:{path}", roots=()).verdict == "mismatch"
    hidden = shop.folder / "hidden.whl"
    data = path.read_bytes()
    one = shop.folder / "one.zip"
    with zipfile.ZipFile(one, "w") as extra:
        extra.writestr("demo/hidden.py", "x")
    member = one.read_bytes()[: one.read_bytes().index(b"PK\1\2")]
    hidden.write_bytes(member + data)
    report = shop.verify(f"wheel:{hidden}", roots=())
    assert report.reason["code"] == "ambiguous-member"
    with zipfile.ZipFile(path, "a") as wheel, pytest.warns(UserWarning):
        wheel.writestr("demo/core.py", "evil")
    report = shop.verify(f"wheel:{path}", roots=())
    assert (report.verdict, report.reason["code"]) == (
        "unverifiable",
        "ambiguous-member",
    )


def test_environment(shop: Shop) -> None:
    prefix = shop.folder / "venv"
    site = prefix / "lib" / "python3.11" / "site-packages"
    write_files(site, dict(shop.demo.package()))  # type: ignore[arg-type]
    write_files(prefix, {"bin/python": b"", "pyvenv.cfg": b"home = /usr/bin\n"})
    reference = f"env:{prefix}/bin/python"
    assert outcome(shop.verify(reference, roots=())) == ("match", 0)
    assert outcome(
        shop.verify(
            f"rootfs:{prefix}",
            roots=(Root("demo", "/lib/python3.11/site-packages/demo", PACKAGE),),
        )
    ) == ("match", 0)
    (site / "demo" / "core.py").write_text("VALUE = 3\n")
    assert outcome(shop.verify(reference, roots=())) == ("mismatch", 1)
    assert shop.verify(f"env:{shop.folder}/nope", roots=()).exit_code == 3


@pytest.mark.parametrize("link", ["demo", "site-packages"])
def test_environment_that_is_linked_from_elsewhere(shop: Shop, link: str) -> None:
    prefix = shop.folder / "venv"
    site = prefix / "lib" / "python3.11" / "site-packages"
    elsewhere = shop.folder / "elsewhere"
    write_files(elsewhere, dict(shop.demo.package()))  # type: ignore[arg-type]
    write_files(prefix, {"bin/python": b"", "lib/python3.11/os.py": b""})
    if link == "demo":
        site.mkdir()
        (site / "demo").symlink_to(elsewhere / "demo")
    else:
        site.symlink_to(elsewhere)
    report = shop.verify(f"env:{prefix}/bin/python", roots=())
    assert (outcome(report), report.reason["code"]) == (
        ("unverifiable", 3),
        "root-outside",
    )
    assert str(elsewhere) in str(report.reason["message"])


def test_environment_with_links_inside(shop: Shop) -> None:
    prefix = shop.folder / "venv"
    real = prefix / "share"
    write_files(real, dict(shop.demo.package()))  # type: ignore[arg-type]
    write_files(prefix, {"bin/python": b""})
    site = prefix / "lib" / "python3.11" / "site-packages"
    site.mkdir(parents=True)
    (site / "demo").symlink_to("../../../share/demo")
    report = shop.verify(f"env:{prefix}/bin/python", roots=())
    assert outcome(report) == ("match", 0)
    (site / "demo").unlink()
    (site / "demo").symlink_to("../../../share/gone")
    root = Root("demo", str(site / "demo"), PACKAGE)
    assert outcome(shop.verify(f"env:{prefix}", roots=(root,))) == ("mismatch", 1)


def test_unreadable_folder_hides_nothing(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    import os

    root = shop.folder / "root"
    write_files(root / SITE, dict(shop.demo.package()))  # type: ignore[arg-type]
    write_files(root / SITE, {"demo/hidden/evil.py": b"x"})
    assert shop.verify(f"rootfs:{root}").verdict == "mismatch"
    real = os.open

    def refuse(path: object, *more: object, **named: object) -> int:
        if path == b"hidden":
            raise PermissionError(13, "Permission denied")
        return real(path, *more, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "open", refuse)
    report = shop.verify(f"rootfs:{root}")
    assert (report.exit_code, report.reason["code"]) == (3, "unreadable")


def test_root_folder_marked_for_overlay(shop: Shop) -> None:
    layer = Tar().pax((b"SCHILY.xattr.trusted.overlay.opaque", b"y")).folder("./")
    assert shop.over(layer).reason["code"] == "ambiguous-overlay-marker"


# Checkouts


def checkout(shop: Shop, **files: str) -> Tar:
    tar = Tar()
    for name, data in shop.demo.files.items():
        tar.file(f"opt/src/{name}", data)
    return tar


CHECKOUT_ROOT = Root(".", "/opt/src", CHECKOUT)


def test_checkout(shop: Shop) -> None:
    good = checkout(shop)
    assert outcome(shop.ask(good, roots=(CHECKOUT_ROOT,))) == ("match", 0)
    extra = Tar().file("opt/src/new.txt", "x")
    assert shop.ask(good, extra, roots=(CHECKOUT_ROOT,)).verdict == "mismatch"


def test_checkout_compares_modes(shop: Shop) -> None:
    layer = Tar().file("opt/src/README.md", shop.demo.files["README.md"], mode=0o755)
    report = shop.ask(checkout(shop), layer, roots=(CHECKOUT_ROOT,))
    assert outcome(report) == ("mismatch", 1)
    assert report.comparisons[0].findings[0].status == "mode"
    group = Tar().file("opt/src/README.md", shop.demo.files["README.md"], mode=0o676)
    assert shop.ask(checkout(shop), group, roots=(CHECKOUT_ROOT,)).verdict == "match"


def test_package_does_not_compare_modes(shop: Shop) -> None:
    data = shop.demo.files["demo/core.py"]
    report = shop.over(Tar().file(f"{SITE}/demo/core.py", data, mode=0o755))
    assert outcome(report) == ("match", 0)
    assert report.document()["roots"][0]["modes"] == "assumed"  # type: ignore[index]


def test_checkout_symlinks(shop: Shop) -> None:
    (shop.folder / "expected" / "link").symlink_to("README.md")
    shop.expected = folder_tree(shop.folder / "expected")
    good = checkout(shop).symlink("opt/src/link", "README.md")
    assert shop.ask(good, roots=(CHECKOUT_ROOT,)).verdict == "match"
    bad = checkout(shop).symlink("opt/src/link", "demo")
    assert shop.ask(bad, roots=(CHECKOUT_ROOT,)).verdict == "mismatch"
    file = checkout(shop).file("opt/src/link", "README.md")
    assert shop.ask(file, roots=(CHECKOUT_ROOT,)).verdict == "mismatch"


def test_git_folder_of_a_checkout_is_a_warning(shop: Shop) -> None:
    report = shop.ask(
        checkout(shop).file("opt/src/.git/HEAD", "x"), roots=(CHECKOUT_ROOT,)
    )
    assert report.verdict == "match" and "git-data" in codes(report)


def test_mode_of_a_hard_link_is_a_doubt_in_a_checkout_only(shop: Shop) -> None:
    data = shop.demo.files["README.md"]
    layer = Tar().file("cache/1", data).hardlink("opt/src/README.md", "cache/1", 0o755)
    report = shop.ask(checkout(shop), layer, roots=(CHECKOUT_ROOT,))
    assert report.reason["code"] == "ambiguous-hardlink-mode"
    again = Tar().file("opt/src/README.md", data)
    report = shop.ask(checkout(shop), layer, again, roots=(CHECKOUT_ROOT,))
    assert report.verdict == "match"
    other = Tar().raw(layer.data).hardlink("opt/src/demo/core.py", "cache/1")
    report = shop.ask(checkout(shop), other, again, roots=(CHECKOUT_ROOT,))
    assert report.reason["code"] == "ambiguous-hardlink-mode"
    core = shop.demo.files["demo/core.py"]
    layer = Tar().file("cache/1", core)
    layer.hardlink(f"{SITE}/demo/core.py", "cache/1", 0o755)
    assert shop.over(layer).verdict == "match"


# Doubts


@pytest.mark.parametrize(
    ("layer", "code"),
    [
        (
            Tar()
            .file(f"{SITE}/demo/core.py", "VALUE = 1\n")
            .whiteout(f"{SITE}/demo/core.py"),
            "whiteout-after-file",
        ),
        (Tar().whiteout("usr").file("usr/x", "x"), "whiteout-and-folder"),
        (
            Tar().hardlink(f"{SITE}/demo/core.py", f"{SITE}/demo/core.py2"),
            "hardlink-missing",
        ),
        (Tar().device(f"{SITE}/demo/sub", 0, 0), "overlay-marker"),
        (
            Tar().file(f"{SITE}/evil.pth", "x").whiteout(f"{SITE}/evil.pth"),
            "whiteout-after-file",
        ),
        (
            Tar().file("usr/bin/python3", "x").whiteout("usr/bin/python3"),
            "whiteout-after-file",
        ),
    ],
)
def test_doubts_that_matter(shop: Shop, layer: Tar, code: str) -> None:
    report = shop.over(layer)
    assert outcome(report) == ("unverifiable", 3)
    assert str(report.reason["code"]).endswith(code)


def test_doubt_says_who_sees_what(shop: Shop) -> None:
    report = shop.over(Tar().folder(f"{SITE}/demo/sub").whiteout(f"{SITE}/demo/sub"))
    where = report.reason["where"]
    assert set(where["sees"]) == {"overlay", "one-folder"}  # type: ignore[index,call-overload]


def test_source_of_a_hard_link_matters(shop: Shop) -> None:
    data = shop.demo.files["demo/core.py"]
    layer = Tar().file("cache/1", data).hardlink(f"{SITE}/demo/core.py", "cache/1")
    layer.whiteout("cache/1")
    report = shop.over(layer)
    assert report.reason["code"] == "ambiguous-whiteout-after-file"


def test_doubts_elsewhere_are_warnings(shop: Shop) -> None:
    merged = Tar().folder("usr/lib64").symlink("lib64", "usr/lib64").done()
    report = shop.over(merged, Tar().file("lib64/ld.so", "x"))
    assert outcome(report) == ("match", 0)
    assert codes(report) == {"ambiguous-outside-root"}
    said = report.warnings[0].document()
    assert said["causes"] == ["parent-symlink"]
    assert set(said["sees"]["parent-symlink"]) == {"overlay", "one-folder"}  # type: ignore[index]
    assert outcome(shop.over(merged, Tar().file("lib64/ld.so"), strict=True)) == (
        "match",
        0,
    )


def test_doubt_on_the_way_to_the_root(shop: Shop) -> None:
    site = "lib/python3.11/site-packages"
    report = shop.ask(
        tree_layer(shop.demo.package(), f"opt/v1/{site}"),
        Tar().symlink("opt/venv", "v1"),
        Tar().file("opt/venv/extra", "x"),
        roots=(Root("demo", f"/opt/venv/{site}/demo", PACKAGE),),
    )
    assert report.reason["code"] == "ambiguous-parent-symlink"


def test_duplicates_are_a_warning(shop: Shop) -> None:
    data = shop.demo.files["demo/core.py"]
    path = f"{SITE}/demo/core.py"
    report = shop.over(Tar().file(path, "x").file(path, data))
    assert outcome(report) == ("match", 0)
    assert codes(report) == {"duplicate-entry"}
    assert shop.over(Tar().file(path, data).file(path, "x")).verdict == "mismatch"


def test_folders_that_stand_twice_are_a_warning(shop: Shop) -> None:
    """Docker and podman refuse such a layer; others take it."""
    folder = f"{SITE}/demo/sub"
    report = shop.over(Tar().folder(folder).folder(folder, mode=0o700))
    assert outcome(report) == ("match", 0)
    assert codes(report) == {"duplicate-entry"}
    implied = Tar().file(f"{folder}/deep.py", shop.demo.files["demo/sub/deep.py"])
    assert codes(shop.over(implied.folder(folder))) == set()


# Digests, documents, formats


def damaged(shop: Shop, image: Built, digest: str) -> Report:
    blob = bytearray(image.blobs[digest])
    blob[len(blob) // 2] ^= 1
    image.blobs[digest] = bytes(blob)
    return shop.verify(shop.layout(image))


@pytest.mark.parametrize("which", ["manifest", "config", "layer"])
def test_every_digest_is_checked(shop: Shop, which: str) -> None:
    image = build_image([shop.good()], compression="tar")
    digest = image.layers[0] if which == "layer" else getattr(image, which)
    report = damaged(shop, image, digest)
    assert outcome(report) == ("unverifiable", 4)


def test_diff_ids_are_checked(shop: Shop) -> None:
    image = build_image([shop.good()], diff_ids=[sha256(b"other")])
    report = shop.verify(shop.layout(image))
    assert (outcome(report), report.reason["code"]) == (
        ("unverifiable", 4),
        "diff-id-mismatch",
    )


def test_missing_blob(shop: Shop) -> None:
    image = build_image([shop.good()])
    del image.blobs[image.layers[0]]
    report = shop.verify(shop.layout(image))
    assert (report.exit_code, report.reason["code"]) == (4, "missing-blob")


def test_size_of_the_descriptor_is_checked(shop: Shop) -> None:
    def edit(manifest: dict[str, object]) -> None:
        manifest["layers"][0]["size"] += 1  # type: ignore[index]

    image = build_image([shop.good()], edit_manifest=edit)
    report = shop.verify(shop.layout(image))
    assert (report.exit_code, report.reason["code"]) == (4, "size-mismatch")


@pytest.mark.parametrize("wrong", [0, 1])
def test_size_of_a_repeated_layer_is_checked_each_time(shop: Shop, wrong: int) -> None:
    def edit(manifest: dict[str, object]) -> None:
        manifest["layers"][wrong]["size"] += 1  # type: ignore[index]

    image = build_image([shop.good(), shop.good()], edit_manifest=edit)
    report = shop.verify(shop.layout(image))
    assert (report.exit_code, report.reason["code"]) == (4, "size-mismatch")


@pytest.mark.parametrize("jobs", [1, 3])
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("other", ["layer", "document"])
@pytest.mark.parametrize("first", [True, False])
def test_no_layer_of_an_archive_hides_behind_the_diff_id_of_another(
    shop: Shop, tmp_path: Path, first: bool, other: str, packed: bool, jobs: int
) -> None:
    good = shop.good()
    bad = Tar().file(f"{SITE}/demo/core.py", b"VALUE = 666\n").done()
    if other == "document":
        # What begins like JSON is kept by who reads an archive in one pass.
        bad = Tar().file("{", b"").done() + bad
    image = build_image([good, good])
    config = image.config[7:] + ".json"
    names = ["bad.tar", "good.tar"] if first else ["good.tar", "bad.tar"]
    listed = [{"Config": config, "RepoTags": ["a/b:c"], "Layers": names}]
    data = archive_of(
        {
            config: image.blobs[image.config],
            "bad.tar": bad,
            "good.tar": good,
            "manifest.json": json.dumps(listed).encode(),
        }
    )
    path = tmp_path / "image.tar"
    path.write_bytes(COMPRESS["gzip" if packed else "tar"](data))
    report = shop.verify(f"docker-archive:{path}", jobs=jobs)
    assert (report.exit_code, report.reason["code"]) == (4, "diff-id-mismatch")


def test_number_of_diff_ids(shop: Shop) -> None:
    image = build_image([shop.good()], diff_ids=[sha256(b"a"), sha256(b"b")])
    report = shop.verify(shop.layout(image))
    assert (report.exit_code, report.reason["code"]) == (3, "layer-count")


@pytest.mark.parametrize(
    "edit",
    [
        lambda m: m.update(Layers=[]),
        lambda m: m.update(LAYERS=m.pop("layers")),
        lambda m: m.update({"layer\u017f": []}),
        lambda m: m["config"].update(Digest="x"),
        lambda m: m.update(manifests=[]),
    ],
)
def test_documents_with_two_meanings(shop: Shop, edit: object) -> None:
    image = build_image([shop.good()], edit_manifest=edit)  # type: ignore[arg-type]
    report = shop.verify(shop.layout(image))
    assert outcome(report) == ("unverifiable", 3)
    assert str(report.reason["code"]).startswith("ambiguous-")


def test_duplicate_keys(shop: Shop) -> None:
    image = build_image([shop.good()])
    raw = image.blobs.pop(image.manifest)
    raw = raw.replace(b'{"schemaVersion"', b'{"layers":[],"schemaVersion"', 1)
    image.manifest = sha256(raw)
    image.blobs[image.manifest] = raw
    report = shop.verify(shop.layout(image))
    assert report.reason["code"] == "ambiguous-json"


def test_labels_may_differ_by_case(shop: Shop) -> None:
    report = shop.over(run={"Labels": {"Maintainer": "a", "maintainer": "b"}})
    assert report.verdict == "match"


def test_unknown_compression(shop: Shop) -> None:
    import bz2

    image = build_image([shop.good()])
    blob = bz2.compress(shop.good())
    image.blobs[sha256(blob)] = blob
    manifest = json.loads(image.blobs[image.manifest])
    manifest["layers"][0].update(digest=sha256(blob), size=len(blob))
    raw = json.dumps(manifest).encode()
    image.manifest = sha256(raw)
    image.blobs[image.manifest] = raw
    report = shop.verify(shop.layout(image))
    assert (report.exit_code, report.reason["code"]) == (3, "layer-compression")


def test_bomb(shop: Shop) -> None:
    layer = Tar().file("zeros", bytes(100 << 20)).done()
    report = shop.ask(layer, limits=Limits())
    assert (report.exit_code, report.reason["code"]) == (3, "limit-ratio")
    assert shop.over(layer, limits=Limits(ratio=2000)).verdict == "match"


def test_layer_limit(shop: Shop) -> None:
    report = shop.over(limits=Limits(layer=1024))
    assert (report.exit_code, report.reason["code"]) == (3, "limit-layer")


def test_not_a_layout(shop: Shop) -> None:
    report = shop.verify(f"oci:{shop.folder}")
    assert (report.exit_code, report.reason["code"]) == (3, "not-a-layout")
    nothing = {"digest": None, "platform": None, "layers": []}
    assert report.document()["image"] == nothing


def index_of(*images: Built, **platforms: str) -> list[dict[str, object]]:
    return [image.descriptor() for image in images]


def test_same_tag_twice(shop: Shop) -> None:
    one, two = build_image([shop.good()]), build_image([Tar().file("x").done()])
    entries = [i.descriptor(annotations={REF_NAME: "latest"}) for i in (one, two)]
    folder = write_files(shop.folder / "two", layout_files([one, two], entries))
    report = shop.verify(f"oci:{folder}:latest")
    assert (report.exit_code, report.reason["code"]) == (3, "ambiguous-tag")


def test_same_platform_twice(shop: Shop) -> None:
    one, two = build_image([shop.good()]), build_image([Tar().file("x").done()])
    platform = {"os": "linux", "architecture": "amd64"}
    entries = [image.descriptor(platform=platform) for image in (one, two)]
    folder = write_files(shop.folder / "two", layout_files([one, two], entries))
    from stackctl.image.platform import parse_platform

    report = shop.verify(f"oci:{folder}", platform=parse_platform("linux/amd64"))
    assert (report.exit_code, report.reason["code"]) == (3, "ambiguous-platform")


def test_nested_index(shop: Shop) -> None:
    one, arm = build_image([shop.good()]), build_image([], architecture="arm64")
    inner = json.dumps(
        {
            "schemaVersion": 2,
            "manifests": [
                one.descriptor(platform={"os": "linux", "architecture": "amd64"}),
                arm.descriptor(platform={"os": "linux", "architecture": "arm64"}),
            ],
        }
    ).encode()
    entries: list[dict[str, object]] = [
        {
            "mediaType": "application/vnd.oci.image.index.v1+json",
            "digest": sha256(inner),
            "size": len(inner),
        }
    ]
    extra = {"blobs/" + sha256(inner).replace(":", "/"): inner}
    folder = write_files(shop.folder / "n", layout_files([one, arm], entries, extra))
    from stackctl.image.platform import parse_platform

    for name, verdict in (("amd64", "match"), ("arm64", "mismatch")):
        platform = parse_platform(f"linux/{name}")
        assert shop.verify(f"oci:{folder}", platform=platform).verdict == verdict


# Archives


@pytest.mark.parametrize("style", ["docker24", "skopeo", "docker25"])
@pytest.mark.parametrize("compression", ["tar", "gzip", "zstd"])
def test_docker_archives(shop: Shop, style: str, compression: str) -> None:
    image = build_image([shop.good(), Tar().file("x").done(), shop.good()])
    path = shop.folder / "saved.tar"
    path.write_bytes(COMPRESS[compression](docker_archive(image, style)))
    report = shop.verify(f"docker-archive:{path}")
    assert outcome(report) == ("match", 0)
    assert shop.verify(f"docker-archive:{path}:test/image").verdict == "match"
    other = shop.verify(f"docker-archive:{path}:test/other")
    assert (other.exit_code, other.reason["code"]) == (3, "no-tag")


@pytest.mark.parametrize("style", ["docker24", "skopeo", "docker25"])
def test_docker_archive_with_another_layer(shop: Shop, style: str) -> None:
    image = build_image([shop.good()])
    data = docker_archive(image, style)
    path = shop.folder / "saved.tar"
    path.write_bytes(data.replace(b"VALUE = 1", b"VALUE = 2"))
    report = shop.verify(f"docker-archive:{path}")
    assert outcome(report) == ("unverifiable", 4)


def test_archive_with_a_member_twice(shop: Shop) -> None:
    image = build_image([shop.good()])
    files = layout_files([image])
    name = "blobs/" + image.layers[0].replace(":", "/")
    path = shop.folder / "saved.tar"
    path.write_bytes(
        archive_of({name: files[name]})[:-10240] + archive_of(files)
        if len(files[name]) > 10240
        else Tar().file(name, files[name]).data + archive_of(files)
    )
    report = shop.verify(f"oci-archive:{path}")
    assert (report.exit_code, report.reason["code"]) == (3, "ambiguous-member")


def test_archive_with_two_tables_of_contents(shop: Shop) -> None:
    good, bad = build_image([shop.good()]), build_image([Tar().file("x").done()])
    config = good.blobs[good.config]
    name = "blobs/" + good.config.replace(":", "/")
    layer = "blobs/" + sha256(shop.good()).replace(":", "/")
    listed = [{"Config": name, "RepoTags": ["a:b"], "Layers": [layer]}]
    files = layout_files([bad])
    files.update({name: config, layer: shop.good()})
    files["manifest.json"] = json.dumps(listed).encode()
    path = shop.folder / "saved.tar"
    path.write_bytes(archive_of(files))
    report = shop.verify(f"docker-archive:{path}")
    assert (report.exit_code, report.reason["code"]) == (3, "ambiguous-archive")


def test_nothing_is_written(shop: Shop, tmp_path: Path) -> None:
    reference = shop.layout(build_image([shop.good(), Tar().file("../../x").done()]))
    before = sorted(str(p) for p in tmp_path.rglob("*"))
    shop.verify(reference)
    assert sorted(str(p) for p in tmp_path.rglob("*")) == before


# Bytecode


def pyc(
    source: bytes,
    *,
    mtime: int = MTIME,
    size: int | None = None,
    flags: int = 0,
    magic: bytes = MAGIC,
    hashed: bytes | None = None,
) -> bytes:
    code = marshal.dumps(compile(source, "/elsewhere/x.py", "exec"))
    if flags:
        return magic + struct.pack("<I", flags) + (hashed or bytes(8)) + code
    length = len(source) if size is None else size
    return magic + struct.pack("<III", 0, mtime, length) + code


CORE = b"VALUE = 1\n"


def with_bytecode(shop: Shop, data: bytes, **more: object) -> Report:
    tag = sys.implementation.cache_tag
    path = f"{SITE}/demo/__pycache__/core.{tag}.pyc"
    return shop.over(Tar().file(path, data), **more)


def test_bytecode_of_the_source(shop: Shop) -> None:
    report = with_bytecode(shop, pyc(CORE))
    assert (outcome(report), codes(report)) == (("match", 0), set())
    strict = with_bytecode(shop, pyc(CORE), strict=True)
    assert outcome(strict) == ("match", 0)


def test_bytecode_of_something_else(shop: Shop) -> None:
    foreign = pyc(b"VALUE = 7\n", size=len(CORE))
    report = with_bytecode(shop, foreign)
    assert (outcome(report), codes(report)) == (("match", 0), {"bytecode-foreign"})
    assert outcome(with_bytecode(shop, foreign, strict=True)) == ("mismatch", 1)


def test_bytecode_compiled_in_another_place(shop: Shop) -> None:
    """The name of the source is in the bytecode and decides nothing."""
    for name in ("/build/demo/core.py", "core.py", "/" + "d/" * 200 + "core.py"):
        code = compile(CORE, name, "exec", dont_inherit=True)
        data = pyc(CORE)[:16] + marshal.dumps(code)
        assert codes(with_bytecode(shop, data)) == set()
        foreign = marshal.dumps(compile(b"VALUE = 7\n", name, "exec"))
        data = pyc(CORE)[:16] + foreign
        assert codes(with_bytecode(shop, data)) == {"bytecode-foreign"}


def test_recorded_name_is_only_a_guess() -> None:
    code = compile(CORE, "/a/core.py", "exec")
    assert bytecode.recorded_name(marshal.dumps(code), "core.py") == "/a/core.py"
    for body in (b"", b"/core.py", b"\xda\x08/core.p", b"z\x08\xff/core.py"):
        assert bytecode.recorded_name(body, "core.py") == ""


def test_compiling_says_nothing(shop: Shop, capfd: pytest.CaptureFixture[str]) -> None:
    source = b"VALUE = '\\d'\n"
    with pytest.warns(
        SyntaxWarning if sys.version_info >= (3, 12) else DeprecationWarning
    ):
        code = compile(source, "x", "exec")
    assert bytecode.compare_code(bytes(16) + marshal.dumps(code), source, "x", 0) == (
        bytecode.SAME
    )
    assert capfd.readouterr() == ("", "")


def test_bytecode_of_another_release(shop: Shop) -> None:
    """Releases with one magic number may give other instructions for a source."""
    code = compile(CORE, "x", "exec")
    other = code.replace(co_code=code.co_code[:2] + b"\x09\0" + code.co_code[2:])
    data = pyc(CORE)[:16] + marshal.dumps(other)
    assert codes(with_bytecode(shop, data)) == {"bytecode-foreign"}
    same = ".".join(map(str, sys.version_info[:3]))
    for version, code_ in (
        (same, "bytecode-foreign"),
        ("3.11.99", "bytecode-unverifiable"),
    ):
        report = with_bytecode(shop, data, run={"Env": [f"PYTHON_VERSION={version}"]})
        assert codes(report) == {code_}
    foreign = pyc(b"VALUE = 7\n", size=len(CORE))
    report = with_bytecode(shop, foreign, run={"Env": ["PYTHON_VERSION=3.11.99"]})
    assert codes(report) == {"bytecode-foreign"}


def test_bytecode_of_an_older_source_is_not_used(shop: Shop) -> None:
    report = with_bytecode(shop, pyc(b"VALUE = 7\n", mtime=MTIME - 1))
    assert codes(report) == {"bytecode-stale"}
    # A newer time is no better: Python compares for equality.
    report = with_bytecode(shop, pyc(b"VALUE = 7\n", mtime=MTIME + 1))
    assert codes(report) == {"bytecode-stale"}


def test_unchecked_bytecode(shop: Shop) -> None:
    report = with_bytecode(shop, pyc(CORE, flags=1))
    assert codes(report) == {"bytecode-unchecked"}
    report = with_bytecode(shop, pyc(b"VALUE = 7\n", flags=1))
    assert codes(report) == {"bytecode-unchecked", "bytecode-foreign"}


def test_checked_bytecode(shop: Shop) -> None:
    right = importlib.util.source_hash(CORE)
    assert codes(with_bytecode(shop, pyc(CORE, flags=3, hashed=right))) == set()
    report = with_bytecode(shop, pyc(b"VALUE = 7\n", flags=3, hashed=right))
    assert codes(report) == {"bytecode-foreign"}
    assert codes(with_bytecode(shop, pyc(CORE, flags=3))) == {"bytecode-stale"}


def test_bytecode_of_another_python(shop: Shop) -> None:
    path = f"{SITE}/demo/__pycache__/core.cpython-37.pyc"
    data = pyc(CORE, magic=b"\x42\x0d\r\n")
    report = shop.over(Tar().file(path, data))
    assert codes(report) == {"bytecode-unverifiable"}


def test_bytecode_without_a_source(shop: Shop) -> None:
    path = f"{SITE}/demo/__pycache__/gone.cpython-311.pyc"
    assert codes(shop.over(Tar().file(path, pyc(CORE)))) == {"bytecode-orphan"}


def test_hostile_bytecode_is_only_read(shop: Shop) -> None:
    head = pyc(CORE)[:16]
    for body in (b"", b"\xff" * 50, b"(" * 1000, b"c" * 100, b"r\0\0\0\0", b"["):
        report = with_bytecode(shop, head + body)
        assert codes(report) == {"bytecode-foreign"}


# What runs beside


def test_shadowing(shop: Shop) -> None:
    layer = Tar().file(f"{SITE}/demo/core.abi3.so", "x")
    report = shop.over(layer, allow=(Allow("demo/core.abi3.so"),))
    assert (report.verdict, codes(report)) == ("match", {"shadowed-module"})
    layer = Tar().file(f"{SITE}/demo/core/__init__.py", "x")
    report = shop.over(layer, allow=(Allow("demo/core/**"),))
    assert codes(report) == {"shadowed-module"}


@pytest.mark.parametrize(
    ("path", "data", "code"),
    [
        (f"{SITE}/evil.pth", "import evil\n", "pth-file"),
        (f"{SITE}/more.pth", "/opt/more\n", "pth-file"),
        (f"{SITE}/sitecustomize.py", "x", "sitecustomize"),
        (f"{SITE}/usercustomize.pyc", "x", "sitecustomize"),
        ("usr/lib/python3.11/sitecustomize.py", "x", "sitecustomize"),
        ("usr/lib/python3/dist-packages/demo/__init__.py", "x", "second-copy"),
        ("usr/lib/python3.11/demo/__init__.py", "x", "second-copy"),
        ("usr/lib/python311.zip", "PK", "second-copy"),
        ("usr/bin/demo.py", "x", "second-copy"),
        ("usr/bin/demo/__init__.py", "x", "second-copy"),
        ("demo/__init__.py", "x", "second-copy"),
        (f"{SITE}/__editable__.demo.pth", "/src\n", "editable-install"),
        (
            f"{SITE}/demo-1.dist-info/direct_url.json",
            '{"url":"file:///src","dir_info":{"editable":true}}',
            "editable-install",
        ),
    ],
)
def test_start_up(shop: Shop, path: str, data: str, code: str) -> None:
    report = shop.over(Tar().file(path, data))
    assert report.verdict == "match"
    assert code in codes(report)
    assert outcome(shop.over(Tar().file(path, data), strict=True)) == ("mismatch", 1)


def test_pth_without_a_line_is_nothing(shop: Shop) -> None:
    assert codes(shop.over(Tar().file(f"{SITE}/a.pth", "# nothing\n\n"))) == set()


def test_pth_through_a_hard_link_is_read(shop: Shop) -> None:
    layer = Tar().file("cache/0", "import evil\n").hardlink(f"{SITE}/e.pth", "cache/0")
    assert codes(shop.over(layer)) == {"pth-file"}


@pytest.mark.parametrize(
    ("run", "code"),
    [
        ({"Env": ["PATH=/bin", "PYTHONPATH=/evil"]}, "pythonpath"),
        ({"Env": ["LD_PRELOAD=/evil.so"]}, "environment"),
        ({"Env": ["LD_LIBRARY_PATH=/usr/lib/none:/usr/lib"]}, "environment"),
        ({"Env": ["LD_LIBRARY_PATH=/usr/lib/none:"]}, "environment"),
        ({"Env": ["LD_LIBRARY_PATH=lib"]}, "environment"),
        ({"Env": ["BASH_ENV=/etc/profile"]}, "environment"),
        ({"Env": ["PYTHONBREAKPOINT=evil.hook"]}, "environment"),
        ({"Env": ["PYTHONWARNINGS=ignore,error::evil.Warn"]}, "environment"),
        ({"Entrypoint": ["/run.sh"]}, "entrypoint"),
        ({"Volumes": {"/usr/lib": {}}}, "volume-over-root"),
        ({"Volumes": {f"{PACKAGE_ROOT}/sub": {}}}, "volume-over-root"),
    ],
)
def test_config(shop: Shop, run: dict[str, object], code: str) -> None:
    report = shop.over(run=run)
    assert (report.verdict, codes(report)) == ("match", {code})


@pytest.mark.parametrize("half", ["\ud800", "\udcff"])
def test_half_a_surrogate_pair_is_read_as_go_reads_it(shop: Shop, half: str) -> None:
    run = {"WorkingDir": f"/{half}", "Env": [f"PYTHONPATH=/{half}"],
           "Volumes": {f"/{half}": {}}}  # fmt: skip
    layer = Tar().file("\ufffd/demo/__init__.py", "x")
    report = shop.over(layer, run=run)
    assert (report.verdict, codes(report)) == ("match", {"pythonpath", "second-copy"})


def test_keys_that_go_reads_alike_are_one_key_twice(shop: Shop) -> None:
    labels = dict.fromkeys(("\ud800", "\ud801"), "x")
    report = shop.over(run={"Labels": labels})
    assert report.reason["code"] == "ambiguous-json"


def test_folder_of_the_tree_that_is_not_utf_8(shop: Shop, tmp_path: Path) -> None:
    name = os.fsdecode(b"d\xff")
    try:
        (tmp_path / "odd" / name).mkdir(parents=True)
    except OSError:
        pytest.skip("file system takes UTF-8 only")
    (tmp_path / "odd" / name / "a.py").write_text("x = 1\n")
    report = shop.ask(
        Tar().file(b"opt/d\xff/a.py", "x = 2\n"),
        roots=(Root(name, f"/opt/{name}", PACKAGE),),
        expected=[folder_tree(tmp_path / "odd")],
        diff=(f"{name}/a.py",),
    )
    assert report.verdict == "mismatch"
    assert "+x = 2" in report.diffs[f"{name}/a.py"]
    json.dumps(report.document())


def test_label_of_another_tree(shop: Shop) -> None:
    name = "example.stackctl.tree"
    tree = shop.expected.subtree_id(".").hex()
    for value, found in ((tree, set()), ("0" * 40, {"label-differs"}), (5, set())):
        report = shop.over(run={"Labels": {name: value}})
        assert (outcome(report), codes(report)) == (("match", 0), found)


def test_harmless_config(shop: Shop) -> None:
    run = {"Env": ["PATH=/bin", "PYTHONPATH=", "PYTHONBREAKPOINT=0",
                   "PYTHONWARNINGS=ignore::DeprecationWarning,default",
                   "LD_LIBRARY_PATH=/usr/local/nvidia/lib:/usr/local/nvidia/lib64"],
           "Volumes": {"/data": {}}, "Cmd": ["python3"]}  # fmt: skip
    assert codes(shop.over(run=run)) == set()


def test_folder_of_libraries_can_be_allowed(shop: Shop) -> None:
    layer = Tar().file("opt/cuda/lib/libx.so", "x").file("opt/b/y.so", "y")
    one = {"Env": ["LD_LIBRARY_PATH=/opt/cuda/lib/"]}
    two = {"Env": ["LD_LIBRARY_PATH=/opt/cuda/lib:/opt/b"]}
    settings: dict[str, object] = {"strict": True, "allow": (Allow("/opt/cuda/lib"),)}
    assert codes(shop.over(layer, run=one)) == {"environment"}
    assert shop.over(layer, run=one, strict=True).verdict == "mismatch"
    assert shop.over(layer, run=one, **settings).verdict == "match"
    assert shop.over(layer, run=two, **settings).verdict == "mismatch"


def test_second_copy_on_the_pythonpath(shop: Shop) -> None:
    layer = Tar().file("evil/demo/__init__.py", "x")
    assert "second-copy" in codes(shop.over(layer, run={"Env": ["PYTHONPATH=/evil"]}))
    assert "second-copy" in codes(shop.over(layer, run={"WorkingDir": "/evil"}))
    assert codes(shop.over(layer)) == set()


def test_commands_and_folders_of_the_same_name_are_no_copy(shop: Shop) -> None:
    layer = Tar().file("usr/bin/demo", "#!", mode=0o755).file("demo/notes.txt", "x")
    assert codes(shop.over(layer)) == set()
    at_root = Tar().file("demo.py", "x")
    assert codes(shop.over(at_root, run={"WorkingDir": "/srv"})) == set()


def test_customize_module_where_python_looks_for_it(shop: Shop) -> None:
    layer = Tar().file("opt/p/sitecustomize.py", "x")
    assert codes(shop.over(layer)) == set()
    report = shop.over(layer, run={"Env": ["PYTHONPATH=/usr:p"], "WorkingDir": "/opt"})
    assert codes(report) == {"pythonpath", "sitecustomize"}
    report = shop.over(layer.file(f"{SITE}/p.pth", "/opt/p\n"))
    assert codes(report) == {"pth-file", "sitecustomize"}


def test_package_of_which_only_a_part_is_compared_is_no_copy(shop: Shop) -> None:
    part = (Root("demo/sub", f"{PACKAGE_ROOT}/sub", PACKAGE),)
    assert codes(shop.over(roots=part)) == set()
    moved = tree_layer({"demo/sub/__init__.py": b"", "demo/sub/deep.py": "x"}, "opt/q")
    report = shop.over(
        moved,
        roots=(Root("demo/sub", "/opt/q/demo/sub", PACKAGE),),
    )
    assert codes(report) == {"second-copy"}


# Requests


def test_allow_in_a_checkout_at_the_top(shop: Shop) -> None:
    layer = tree_layer({**shop.demo.files, "etc/passwd": "x"}, "")
    top = (Root(".", "/", CHECKOUT),)
    report = shop.ask(layer, roots=top)
    assert report.document()["details"][0]["image_path"] == "/etc/passwd"  # type: ignore[index]
    for glob in ("/etc/**", "etc/*"):
        allowed = shop.ask(layer, roots=top, allow=(Allow(glob),))
        assert outcome(allowed) == ("match", 0)


def test_diff(shop: Shop) -> None:
    report = shop.over(
        Tar().file(f"{SITE}/demo/core.py", "VALUE = 2\n"), diff=("demo/core.py",)
    )
    assert report.diffs["demo/core.py"] == (
        "--- expected/demo/core.py\n+++ image/demo/core.py\n"
        "@@ -1 +1 @@\n-VALUE = 1\n+VALUE = 2\n"
    )
    with pytest.raises(UsageError):
        shop.over(diff=("demo/none.py",))


def test_root_of_a_folder_that_is_not_in_the_tree(shop: Shop) -> None:
    with pytest.raises(UsageError, match="no folder"):
        shop.over(roots=(Root("nope", "/nope", PACKAGE),))


def test_no_roots(shop: Shop) -> None:
    with pytest.raises(UsageError, match="no root"):
        shop.over(roots=())


def test_unknown_transport(shop: Shop) -> None:
    with pytest.raises(UsageError, match="no image reference"):
        shop.verify("ftp:x")


def test_expectation_is_made_while_layers_are_read(shop: Shop) -> None:
    reference = shop.layout(build_image([shop.good()]))
    asked = []

    def trees() -> list[ExpectedTree]:
        asked.append(True)
        return [shop.expected]

    before = threading.active_count()
    assert outcome(shop.verify(reference, expected=trees)) == ("match", 0)
    assert asked == [True]
    assert threading.active_count() == before


def test_expectation_that_fails_is_no_verdict(shop: Shop) -> None:
    layers = [Tar().file("big", bytes(1 << 22)).done() for _ in range(3)]
    good = shop.layout(build_image(layers, compression="tar"))
    bad = shop.layout(build_image([b"x"], diff_ids=[sha256(b"")]))

    def trees() -> list[ExpectedTree]:
        raise PinError("the lock is stale", kind="stale-lock")

    before = threading.active_count()
    for reference in (good, bad, "oci:nowhere"):
        with pytest.raises(PinError, match="stale"):
            shop.verify(reference, expected=trees)
        assert threading.active_count() == before


def test_several_expected_trees(shop: Shop) -> None:
    other = ExpectedTree({b"demo/x.py": (0o100644, bytes(20))}, lambda _: b"", "other")
    shop.expected = ExpectedTree(shop.expected.entries, shop.expected.read, "right")
    report = shop.over(expected=[other, shop.expected])
    assert (report.verdict, report.expected) == ("match", "right")


def test_document_is_json(shop: Shop) -> None:
    layer = Tar().file(f"{SITE}/demo/b\udcff.py".encode("utf-8", "surrogateescape"))
    document = shop.over(layer).document()
    assert set(document) == {
        "verdict", "reason", "expected", "roots", "details", "warnings", "explains",
        "image", "ns",
    }  # fmt: skip
    json.dumps(document).encode()


def test_big_tracked_files_are_hashed_in_the_end(shop: Shop) -> None:
    big = bytes(range(256)) * (40 << 10)
    shop.demo.files["demo/big.bin"] = big
    shop.expected = folder_tree(shop.demo.write(shop.folder / "expected"))
    report = shop.over()
    assert (outcome(report), codes(report)) == (("match", 0), set())
    changed = Tar().file(f"{SITE}/demo/big.bin", big[:-1] + b"x")
    report = shop.over(changed)
    assert outcome(report) == ("mismatch", 1)
    assert "actual" in report.document()["details"][0]  # type: ignore[index]
    elsewhere = Tar().file("cache/0", big).hardlink(f"{SITE}/demo/big.bin", "cache/0")
    assert outcome(shop.over(elsewhere)) == ("match", 0)
    extra = shop.over(Tar().file(f"{SITE}/demo/evil.so", big))
    assert outcome(extra) == ("mismatch", 1)


def test_many_layers(shop: Shop) -> None:
    layers = [Tar().file(f"layer/{n}", str(n)) for n in range(120)]
    assert shop.over(*layers, jobs=3).verdict == "match"


@pytest.mark.parametrize("jobs", [1, 3])
def test_layer_that_comes_again(shop: Shop, jobs: int) -> None:
    other = Tar().file("other", b"x")
    gone = Tar().whiteout(f"{SITE}/demo")
    assert shop.over(other, gone, jobs=jobs).verdict == "mismatch"
    again = shop.over(other, gone, shop.good(), gone, shop.good(), jobs=jobs)
    assert (outcome(again), codes(again)) == (("match", 0), set())
    assert [layer["uncompressed_size"] for layer in again.image["layers"]] == [
        len(shop.good()),
        len(other.done()),
        len(gone.done()),
        len(shop.good()),
        len(gone.done()),
        len(shop.good()),
    ]


def test_no_thread_stays_after_a_layer_that_cannot_be_applied(shop: Shop) -> None:
    before = threading.active_count()
    bad = Tar().hardlink("a", "nothing").done()
    upper = [Tar().file(f"{number}", b"1").done() for number in range(12)]
    layout = shop.layout(build_image([bad, *upper]))
    for _ in range(5):
        report = shop.verify(layout, jobs=4)
        assert report.reason["code"] == "hardlink-missing"
        assert threading.active_count() == before


@pytest.mark.parametrize("jobs", [1, 3])
@pytest.mark.parametrize(
    ("wrong", "code"),
    [
        ("", "hardlink-missing"),
        ("digest", "digest-mismatch"),
        ("diff_id", "diff-id-mismatch"),
        ("lower diff_id", "diff-id-mismatch"),
        ("upper diff_id", "hardlink-missing"),
    ],
)
def test_digests_come_before_what_cannot_be_applied(
    shop: Shop, wrong: str, code: str, jobs: int
) -> None:
    bad = Tar().hardlink("a", "nothing").file("b", b"1" * 4000).done()
    layers = [shop.good(), bad, Tar().file("c", b"c").done()]
    ids = [sha256(layer) for layer in layers]
    which = {"lower diff_id": 0, "diff_id": 1, "upper diff_id": 2}.get(wrong)
    if which is not None:
        ids[which] = sha256(b"another")
    image = build_image(layers, diff_ids=ids, compression="tar")
    if wrong == "digest":
        blob = image.blobs[image.layers[1]]
        image.blobs[image.layers[1]] = blob.replace(b"1" * 4000, b"2" * 4000)
    report = shop.verify(shop.layout(image), jobs=jobs)
    assert (report.verdict, report.reason["code"]) == ("unverifiable", code)
