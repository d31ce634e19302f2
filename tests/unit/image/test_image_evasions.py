# SPDX-License-Identifier: Apache-2.0
"""Images made so that a runtime runs what a reader of the image does not see.

Each has something wrong that only one step of the way from the index to the running
process shows; beside each stands the innocent image that looks alike.
"""

import importlib.util
import json
import marshal
import os
import struct
import zipfile
import zlib
from pathlib import Path

import pytest
from images import (
    COMPRESS,
    OCI_LAYER,
    PACKAGE_ROOT,
    SITE,
    Built,
    Demo,
    Tar,
    archive_of,
    build_image,
    docker_archive,
    header,
    layout_files,
    padded,
    pax_records,
    sha256,
    tree_layer,
    write_files,
    write_layout,
)

from stackctl.image import bytecode
from stackctl.image.expectation import ExpectedTree, folder_tree
from stackctl.image.limits import Limits
from stackctl.image.platform import Platform
from stackctl.image.report import Report
from stackctl.image.roots import CHECKOUT, PACKAGE, Root
from stackctl.image.rules import Allow
from stackctl.image.verify import PinnedWheel, Request, verify

DEMO = Demo()
CORE = f"{SITE}/demo/core.py"
GOOD = DEMO.files["demo/core.py"]
EVIL = b"VALUE = 666\n"
CACHE = f"{SITE}/demo/__pycache__/core.cpython-311.pyc"
BASE = tree_layer(DEMO.package(), SITE)
ROOT = Root("demo", PACKAGE_ROOT, PACKAGE)
AMD64 = Platform("linux", "amd64", "")
OVER = Tar().file(CORE, EVIL).done()


def ask(folder: Path, reference: str, **more: object) -> Report:
    settings: dict[str, object] = {
        "expected": [folder_tree(DEMO.write(folder / "expected"))],
        "roots": (ROOT,),
        "platform": AMD64,
        "environ": {},
        **more,
    }
    return verify(Request(reference, **settings))  # type: ignore[arg-type]


def over(folder: Path, *layers: bytes | Tar, **more: object) -> Report:
    tars = [la.done() if isinstance(la, Tar) else la for la in (BASE, *layers)]
    run = more.pop("run", None)
    layout = write_layout(folder / "image", build_image(tars, run=run))  # type: ignore[arg-type]
    return ask(folder, f"oci:{layout}", **more)


def codes(report: Report) -> set[str]:
    return {warning.code for warning in report.warnings}


def pyc(source: bytes, mtime: int, size: int = len(GOOD)) -> bytes:
    code = compile(source, "demo/core.py", "exec", dont_inherit=True)
    head = struct.pack("<III", 0, mtime & 0xFFFFFFFF, size)
    return importlib.util.MAGIC_NUMBER + head + marshal.dumps(code)


# Which image of an index a runtime takes


def index_of(folder: Path, *entries: tuple[Built, dict[str, object]]) -> str:
    """Write a layout whose one entry is an index of some images."""
    listed = [{**image.descriptor(), **more} for image, more in entries]
    inner = json.dumps({"schemaVersion": 2, "manifests": listed}).encode()
    kind = "application/vnd.oci.image.index.v1+json"
    top = {"mediaType": kind, "digest": sha256(inner), "size": len(inner)}
    files = layout_files([image for image, _ in entries], [top])
    files["blobs/" + sha256(inner).replace(":", "/")] = inner
    return f"oci:{write_files(folder / 'image', files)}"


GOOD_IMAGE = build_image([BASE])
EVIL_IMAGE = build_image([BASE, OVER])
LINUX = {"platform": {"os": "linux", "architecture": "amd64"}}


def named(system: str, architecture: str, **more: str) -> dict[str, object]:
    return {"platform": {"os": system, "architecture": architecture, **more}}


@pytest.mark.parametrize(
    "disguise",
    [
        {**LINUX, "annotations": {"vnd.docker.reference.type": "attestation-manifest"}},
        {"annotations": {"vnd.docker.reference.type": "attestation-manifest"}},
        named("Linux", "amd64"),
        named("linux", "AMD64"),
        named("", "amd64"),
        named("linux", "x86-64"),
        named("linux", "x86_64"),
        named("linux", "amd64", variant="v1"),
    ],
)
def test_no_image_of_an_index_hides_from_us_alone(
    tmp_path: Path, disguise: dict[str, object]
) -> None:
    reference = index_of(tmp_path, (EVIL_IMAGE, disguise), (GOOD_IMAGE, LINUX))
    report = ask(tmp_path, reference)
    assert (report.verdict, report.reason["code"]) == (
        "unverifiable",
        "ambiguous-platform",
    )


@pytest.mark.parametrize("stated", [LINUX, {}])
def test_image_whose_config_has_another_type(
    tmp_path: Path, stated: dict[str, object]
) -> None:
    def edit(manifest: dict[str, object]) -> None:
        manifest["config"]["mediaType"] = "application/vnd.example+json"  # type: ignore[index]

    odd = build_image([BASE, OVER], edit_manifest=edit)
    reference = index_of(tmp_path, (odd, stated), (GOOD_IMAGE, LINUX))
    report = ask(tmp_path, reference)
    assert (report.verdict, report.reason["code"]) == ("unverifiable", "not-an-image")


def test_artifacts_beside_an_image_are_passed_over(tmp_path: Path) -> None:
    def edit(manifest: dict[str, object]) -> None:
        manifest["config"]["mediaType"] = "application/vnd.oci.empty.v1+json"  # type: ignore[index]

    def strip(config: dict[str, object]) -> None:
        config.clear()

    artifact = build_image([OVER], edit_manifest=edit, edit_config=strip)
    attestation = build_image([OVER], architecture="unknown")
    reference = index_of(
        tmp_path,
        (artifact, {}),
        (GOOD_IMAGE, LINUX),
        (
            attestation,
            {
                **named("unknown", "unknown"),
                "annotations": {"vnd.docker.reference.type": "attestation-manifest"},
            },
        ),
    )
    assert ask(tmp_path, reference).verdict == "match"


# Which time a source has


@pytest.mark.parametrize(
    ("records", "seen"),
    [
        # Docker, containerd and podman set times they cannot represent to 1970.
        ((b"mtime", b"-5"), 0),
        ((b"mtime", b"-5"), -5),
        ((b"mtime", b"9223372037"), 0),
        ((b"mtime", b"9223372037"), -(1 << 31)),
        # Python reads times as floats, in which this is the next second.
        ((b"mtime", b"1650000000.999999999"), 1_650_000_001),
    ],
)
def test_every_time_that_a_source_may_get_counts(
    tmp_path: Path, records: tuple[bytes, bytes], seen: int
) -> None:
    layer = Tar().pax(records).file(CORE, GOOD).file(CACHE, pyc(EVIL, seen))
    assert codes(over(tmp_path, layer)) == {"bytecode-foreign"}


@pytest.mark.parametrize("seen", [1_600_000_000, 1_650_000_000])
def test_times_of_both_names_of_a_source_count(tmp_path: Path, seen: int) -> None:
    layer = (
        Tar()
        .file("opt/x", GOOD, mtime=1_600_000_000)
        .raw(header(CORE.encode(), b"1", mtime=1_650_000_000, link=b"opt/x"))
        .file(CACHE, pyc(EVIL, seen))
    )
    assert codes(over(tmp_path, layer)) == {"bytecode-foreign"}


def test_python_sees_the_next_second(tmp_path: Path) -> None:
    path = tmp_path / "x.py"
    path.write_bytes(GOOD)
    os.utime(path, ns=(0, 1_650_000_000_999_999_999))
    assert int(path.stat().st_mtime) == 1_650_000_001


# What bytecode says


def test_text_that_is_spelled_alike_and_read_otherwise() -> None:
    source = "A = 'é'\n".encode()
    good = pyc(source, 0)
    assert bytecode.compare_code(good, source, "x.py", 0) == bytecode.SAME
    spelled = "é".encode()
    at = good.index(spelled)
    # A short string whose type says one byte a letter.
    other = good[: at - 5] + bytes([good[at - 5] & 0x80 | ord("z"), 2]) + good[at:]
    value: dict[str, object] = {}
    exec(marshal.loads(other[16:]), value)
    assert value["A"] == "Ã©"
    assert bytecode.compare_code(other, source, "x.py", 0) == bytecode.DIFFERENT


@pytest.mark.parametrize("tag", ["pypy310", "graalpy240-311", "cpython-311-pytest-8.3"])
def test_bytecode_of_other_writers(tmp_path: Path, tag: str) -> None:
    name = f"{SITE}/demo/__pycache__/core.{tag}.pyc"
    report = over(tmp_path, Tar().file(name, b"\x99\x0b\r\n" + bytes(12)))
    assert (report.verdict, codes(report)) == ("match", {"bytecode-stale"})
    fits = b"\x99\x0b\r\n" + struct.pack("<III", 0, 1_700_000_000, len(GOOD))
    report = over(tmp_path / "2", Tar().file(name, fits))
    assert codes(report) == {"bytecode-unverifiable"}


def test_importable_bytecode_in_the_cache_folder(tmp_path: Path) -> None:
    name = f"{SITE}/demo/__pycache__/evil.pyc"
    assert over(tmp_path, Tar().file(name, pyc(EVIL, 0))).verdict == "mismatch"


# What a wheel installs


def wheel_of(path: Path, **more: bytes) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in {**DEMO.package(), **more}.items():
            archive.writestr(name, data)
    return path


def test_wheel_that_installs_by_the_prefix(tmp_path: Path) -> None:
    data = "demo-1.data/data"
    innocent = wheel_of(tmp_path / "a.whl", **{f"{data}/share/demo/x.py": EVIL})
    assert ask(tmp_path, f"wheel:{innocent}", roots=()).verdict == "match"
    path = f"{data}/lib/python3.11/site-packages/demo/evil.py"
    hidden = wheel_of(tmp_path / "b.whl", **{path: EVIL})
    assert ask(tmp_path, f"wheel:{hidden}", roots=()).verdict == "mismatch"
    path = f"{data}/lib/python3.11/site-packages/demo/core.py"
    twice = wheel_of(tmp_path / "c.whl", **{path: EVIL})
    report = ask(tmp_path, f"wheel:{twice}", roots=())
    assert report.reason["code"] == "ambiguous-member"


def test_data_folder_of_another_distribution(tmp_path: Path) -> None:
    about = {"demo-1.dist-info/WHEEL": b"Wheel-Version: 1.0\n"}
    own = {**about, "demo-1.data/purelib/other.py": b""}
    report = ask(tmp_path, f"wheel:{wheel_of(tmp_path / 'a.whl', **own)}", roots=())
    assert report.verdict == "match"
    # pip installs what is in it, uv leaves it where it is.
    other = {**about, "other-1.data/purelib/demo/more.py": b""}
    report = ask(tmp_path, f"wheel:{wheel_of(tmp_path / 'b.whl', **other)}", roots=())
    assert report.reason["code"] == "ambiguous-member"


def test_member_that_is_called_otherwise_in_place(tmp_path: Path) -> None:
    folder = wheel_of(tmp_path / "a.whl", **{"demo/folder/": b"x = 1\n"})
    data = folder.read_bytes()
    at = data.index(b"demo/folder/")
    folder.write_bytes(data[:at] + b"demo/evil.py" + data[at + 12 :])
    report = ask(tmp_path, f"wheel:{folder}", roots=())
    assert report.reason["code"] == "ambiguous-member"


@pytest.mark.parametrize(("told", "code"), [("a.txt", "equal"), ("b.py", None)])
def test_member_with_a_second_name(tmp_path: Path, told: str, code: str | None) -> None:
    info = zipfile.ZipInfo("a.txt")
    body = struct.pack("<BL", 1, zlib.crc32(b"a.txt")) + told.encode()
    info.extra = struct.pack("<HH", 0x7075, len(body)) + body
    wheel = wheel_of(tmp_path / "a.whl")
    with zipfile.ZipFile(wheel, "a") as archive:
        archive.writestr(info, b"x")
    report = ask(tmp_path, f"wheel:{wheel}", roots=())
    assert report.reason["code"] == (code or "ambiguous-member")


@pytest.mark.parametrize("hidden", [b"", b"PK\3\4 demo/evil.py"])
def test_data_after_the_end_of_a_packed_member(tmp_path: Path, hidden: bytes) -> None:
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    body = packer.compress(b"hello") + packer.flush() + hidden
    wheel = wheel_of(tmp_path / "a.whl")
    with zipfile.ZipFile(wheel, "a") as archive:
        archive.writestr("demo-1.dist-info/a.txt", body)
    data = bytearray(wheel.read_bytes())
    numbers = struct.pack("<L", zlib.crc32(b"hello"))
    for mark, method in ((b"PK\3\4", 8), (b"PK\1\2", 10)):
        at = data.rindex(mark, 0, data.rindex(b"demo-1.dist-info/a.txt"))
        if mark == b"PK\3\4":
            at = data.index(b"demo-1.dist-info/a.txt") - 30
        struct.pack_into("<H", data, at + method, 8)
        data[at + method + 6 : at + method + 10] = numbers
        struct.pack_into("<L", data, at + method + 14, 5)
    wheel.write_bytes(data)
    report = ask(tmp_path, f"wheel:{wheel}", roots=())
    assert report.reason["code"] == ("bad-wheel" if hidden else "equal")


def test_size_that_only_the_member_itself_states(tmp_path: Path) -> None:
    wheel = wheel_of(tmp_path / "a.whl", **{"notes.txt": b"x" * 100})
    data = bytearray(wheel.read_bytes())
    struct.pack_into("<LL", data, data.index(b"notes.txt") - 12, 10, 10)
    wheel.write_bytes(data)
    report = ask(tmp_path, f"wheel:{wheel}", roots=())
    assert report.reason["code"] == "ambiguous-member"


@pytest.mark.parametrize(
    ("path", "data", "code"),
    [
        ("usr/bin/python3._pth", "/evil", "pth-file"),
        ("usr/lib/x86_64-linux-gnu/libpython3.11._pth", "/evil", "pth-file"),
        ("usr/share/doc/python3._pth", "/evil", ""),
        ("etc/ld.so.preload", "/lib/evil.so\n", "ld-preload"),
        ("etc/ld.so.preload", "", ""),
    ],
)
def test_files_beside_the_interpreter_and_for_the_loader(
    tmp_path: Path, path: str, data: str, code: str
) -> None:
    report = over(tmp_path, Tar().file(path, data))
    assert (report.verdict, codes(report)) == ("match", {code} - {""})
    if code:
        again = over(tmp_path / "b", Tar().file(path, data), strict=True)
        assert again.verdict == "mismatch"


def test_interpreter_that_is_a_link(tmp_path: Path) -> None:
    for name, data in (("real", GOOD), ("beside", EVIL)):
        site = tmp_path / name / "lib/python3.11/site-packages"
        package = {**DEMO.package(), "demo/core.py": data}
        write_files(site, dict(package))  # type: ignore[arg-type]
        (tmp_path / name / "bin").mkdir()
    (tmp_path / "real/bin/python3.11").write_bytes(b"")
    link = tmp_path / "beside/bin/python"
    link.symlink_to(tmp_path / "real/bin/python3.11")
    # Python finds its library from where the file is, not where its link is,
    assert ask(tmp_path, f"env:{link}", roots=()).verdict == "match"
    assert ask(tmp_path, f"env:{tmp_path}/beside", roots=()).verdict == "mismatch"
    # but in a virtual environment.
    (tmp_path / "beside/pyvenv.cfg").write_text("home = /usr/bin\n")
    assert ask(tmp_path, f"env:{link}", roots=()).verdict == "mismatch"


@pytest.mark.parametrize(
    ("path", "code"),
    [
        ("scripts/demo.py", "second-copy"),
        ("scripts/demo.cpython-311-x86_64-linux-gnu.so", "second-copy"),
        ("scripts/demo", ""),
        ("scripts/demo.sh", ""),
        ("scripts/demo-serve.py", ""),
        ("scripts/python3", "environment"),
        ("data/bin/demo.py", "second-copy"),
        ("data/bin/demo/__init__.py", "second-copy"),
        ("data/bin/demo/readme.txt", ""),
        ("data/bin/other/__init__.py", ""),
        ("data/bin/python3.11", "environment"),
        ("data/pyvenv.cfg", "environment"),
        ("data/lib/python3.11/demo/__init__.py", "second-copy"),
        ("data/lib/python3.11/lib-dynload/demo.so", "second-copy"),
        ("data/lib/python3.11/sitecustomize.py", "sitecustomize"),
        ("data/lib/python311.zip", "second-copy"),
        ("data/lib/demo/__init__.py", ""),
        ("data/share/demo/demo.py", ""),
        ("headers/demo.h", ""),
        ("data/bin", ""),
        ("scripts", ""),
    ],
)
def test_wheel_that_installs_where_python_looks_first(
    tmp_path: Path, path: str, code: str
) -> None:
    wheel = wheel_of(tmp_path / "demo.whl", **{f"demo-1.0.data/{path}": EVIL})
    report = ask(tmp_path, f"wheel:{wheel}", roots=())
    assert (report.verdict, codes(report)) == ("match", {code} - {""})
    report = ask(tmp_path, f"wheel:{wheel}", roots=(), strict=True)
    assert report.verdict == ("mismatch" if code else "match")
    if code:
        place = path.replace("scripts/", "bin/").removeprefix("data/")
        assert report.warnings[0].paths == (f"/{place}",)
        allow = (Allow(f"/{place}"),)
        report = ask(tmp_path, f"wheel:{wheel}", roots=(), strict=True, allow=allow)
        assert (report.verdict, codes(report)) == ("match", set())


def test_file_that_the_composition_removed(tmp_path: Path) -> None:
    """What the pinned wheel has of the base is no reason to leave it there."""
    wheel = wheel_of(
        tmp_path / "demo.whl", **{"demo/old.py": b"OLD = 1\n", "demo/_C.so": b"C"}
    )
    tree = folder_tree(DEMO.write(tmp_path / "expected"))
    expected = ExpectedTree(
        tree.entries, tree.read, removed=lambda: frozenset([b"demo/old.py"])
    )
    library = Tar().file(f"{SITE}/demo/_C.so", "C")
    settings: dict[str, object] = {"wheel": PinnedWheel(wheel), "expected": [expected]}
    assert over(tmp_path, library, **settings).verdict == "match"
    library.file(f"{SITE}/demo/old.py", "OLD = 1\n")
    report = over(tmp_path / "2", library, **settings)
    assert (report.verdict, report.comparisons[0].counts["extra"]) == ("mismatch", 1)


# What a folder holds


@pytest.mark.parametrize("name", ["dev", "proc", "sys"])
def test_folders_that_are_named_like_the_kernels(tmp_path: Path, name: str) -> None:
    demo = Demo({**DEMO.files, f"{name}/tool.py": b"x = 1\n"})
    tree = folder_tree(demo.write(tmp_path / "tree"))
    settings: dict[str, object] = {
        "expected": [tree],
        "roots": (Root(".", "/", CHECKOUT),),
    }
    root = demo.write(tmp_path / "root")
    assert ask(tmp_path, f"rootfs:{root}", **settings).verdict == "match"
    write_files(root, {f"{name}/evil.py": EVIL})
    assert ask(tmp_path, f"rootfs:{root}", **settings).verdict == "mismatch"


def test_long_pth_file_of_a_folder(tmp_path: Path) -> None:
    root = tmp_path / "root"
    write_files(root / SITE, dict(DEMO.package()))  # type: ignore[arg-type]
    long = b"#" * (Limits().kept + 10) + b"\nimport evil\n"
    (root / SITE / "x.pth").write_bytes(long)
    assert codes(ask(tmp_path, f"rootfs:{root}")) == {"pth-file"}


@pytest.mark.parametrize(
    "text", [b"#\x0cimport evil", "#\u2028import evil".encode(), b"#\x85import evil"]
)
def test_line_of_a_pth_file_that_only_later_pythons_see(
    tmp_path: Path, text: bytes
) -> None:
    report = over(tmp_path, Tar().file(f"{SITE}/x.pth", text))
    assert codes(report) == {"pth-file"}


def test_folder_that_a_pth_file_names_like_a_comment(tmp_path: Path) -> None:
    layer = Tar().file(f"{SITE}/x.pth", " # x\n").file(f"{SITE}/ # x/demo.py", "x")
    assert codes(over(tmp_path, layer)) == {"pth-file", "second-copy"}
    report = over(tmp_path / "2", Tar().file(f"{SITE}/x.pth", "# x\n \n"))
    assert codes(report) == set()


def test_volume_that_is_named_by_a_detour(tmp_path: Path) -> None:
    run = {"Volumes": {"/v/../v": {}}}
    report = over(tmp_path, Tar().symlink("v", "/usr/lib"), run=run)
    assert codes(report) == {"volume-over-root"}


# Where links lead


def test_link_that_goes_up_from_a_file(tmp_path: Path) -> None:
    """The kernel has no folder above a file."""
    folder = Tar().file("opt/f", "x").folder("opt/good").symlink("r", "/opt/good")
    root = Root("demo", "/r/demo", PACKAGE)
    put = tree_layer(DEMO.package(), "opt/good")
    assert over(tmp_path, folder, put, roots=(root,)).verdict == "match"
    bent = Tar().file("opt/f", "x").symlink("r", "/opt/f/../good")
    report = over(tmp_path / "2", bent, put, roots=(root,))
    assert report.verdict == "mismatch"
    bent = Tar().symlink("r", "/opt/good/demo/core.py/.")
    root = Root("demo/sub", "/r/../sub", PACKAGE)
    assert over(tmp_path / "3", bent, put, roots=(root,)).verdict == "mismatch"


def test_link_to_nothing_at_all(tmp_path: Path) -> None:
    report = over(tmp_path, Tar().symlink("opt/x", ""))
    assert report.verdict == "unverifiable"


@pytest.mark.parametrize(
    ("link", "target", "gone"),
    [
        ("lib", "usr/lib", "lib/.wh.python3.11"),
        ("lib", "/usr/lib", "lib/.wh..wh..opq"),
        ("opt/top", "/", "opt/top/.wh.usr"),
        ("opt/up", "..", "opt/up/.wh.usr"),
    ],
)
def test_folder_above_a_root_that_is_removed_through_a_link(
    tmp_path: Path, link: str, target: str, gone: str
) -> None:
    """What is put back hides what only some runtimes have removed."""
    below = (Tar().file(f"{SITE}/demo/evil.py", EVIL), Tar().symlink(link, target))
    report = over(tmp_path, *below, Tar().file(gone), BASE)
    assert (report.verdict, report.reason["code"]) == (
        "unverifiable",
        "ambiguous-parent-symlink",
    )
    elsewhere = gone.replace("python3.11", "other").replace("usr", "other")
    if "opq" not in elsewhere:
        good = Tar().symlink(link, target)
        report = over(tmp_path / "2", good, Tar().file(elsewhere), BASE)
        assert report.verdict == "match"
        assert codes(report) == {"ambiguous-outside-root"}


def test_global_header_named_like_a_folder_behind_a_link(tmp_path: Path) -> None:
    body = pax_records([(b"comment", b"x")])
    block = header(b"lib/python3.11", b"g", size=len(body)) + padded(body)
    layer = Tar().symlink("lib", "usr/lib").raw(block)
    report = over(tmp_path, layer)
    assert report.reason["code"] == "ambiguous-global-header-name"


# What a config and a checkout may have


def test_variable_that_is_set_twice(tmp_path: Path) -> None:
    run = {"Env": ["PYTHONPATH=/evil", "PYTHONPATH="], "WorkingDir": "/tmp"}
    assert codes(over(tmp_path, run=run)) == {"pythonpath"}


@pytest.mark.parametrize("path", ["lib", ".", ""])
def test_relative_python_path(tmp_path: Path, path: str) -> None:
    run = {"Env": [f"PYTHONPATH=/x:{path}"], "WorkingDir": "/srv"}
    place = f"srv/{path}/demo/__init__.py".replace("//", "/")
    report = over(tmp_path, Tar().file(place, "x"), run=run)
    assert codes(report) == {"pythonpath", "second-copy"}


def test_git_folder_that_is_a_link(tmp_path: Path) -> None:
    checkout = tree_layer(DEMO.files, "opt/demo")
    root = Root(".", "/opt/demo", CHECKOUT)
    gone = Tar().whiteout("usr")
    linked = Tar().symlink("opt/demo/.git", "/srv/demo.git")
    report = over(tmp_path, gone, checkout, linked, roots=(root,))
    assert (report.verdict, codes(report)) == ("match", {"git-data"})
    inside = Tar().file("opt/demo/.git/HEAD", "x").symlink("opt/demo/.git/config", "/c")
    report = over(tmp_path / "2", gone, checkout, inside, roots=(root,))
    assert (report.verdict, codes(report)) == ("match", {"git-data"})


def test_mark_of_the_overlay_driver_in_user_space(tmp_path: Path) -> None:
    mark = (b"SCHILY.xattr.user.fuseoverlayfs.opaque", b"y")
    report = over(tmp_path, Tar().pax(mark).folder(f"{SITE}/demo"))
    assert report.reason["code"] == "ambiguous-overlay-marker"


def test_global_header_that_is_malformed(tmp_path: Path) -> None:
    """containerd and Docker pass over what it says."""
    layer = Tar().pax((b"mtime", b"soon"), kind=b"g").file("opt/x", "x")
    assert over(tmp_path, layer).verdict == "match"


@pytest.mark.parametrize(
    "run", [[], "x", {"Labels": []}, {"Volumes": ["/usr"]}, {"Env": {}}]
)
def test_config_that_go_does_not_read(tmp_path: Path, run: object) -> None:
    def edit(config: dict[str, object]) -> None:
        config["config"] = run

    layout = write_layout(tmp_path / "image", build_image([BASE], edit_config=edit))
    report = ask(tmp_path, f"oci:{layout}")
    assert (report.verdict, report.reason["code"]) == ("unverifiable", "bad-document")


# Ordinary images that are written in a rare way


def stored(blob: bytes, tar: bytes, kind: str, **more: object) -> Built:
    """Return an image of one layer that is stored as these bytes."""
    image = build_image([tar])
    manifest = json.loads(image.blobs.pop(image.manifest))
    manifest["layers"][0].update(
        digest=sha256(blob), size=len(blob), mediaType=kind, **more
    )
    raw = json.dumps(manifest).encode()
    image.manifest = sha256(raw)
    image.blobs |= {sha256(blob): blob, image.manifest: raw}
    return image


@pytest.mark.parametrize(
    "kind",
    [
        "application/vnd.docker.image.rootfs.foreign.diff.tar",
        "application/vnd.oci.image.layer.nondistributable.v1.tar",
        OCI_LAYER,
    ],
)
def test_layers_that_others_may_not_hand_on(tmp_path: Path, kind: str) -> None:
    image = stored(BASE, BASE, kind, urls=["https://example.org/x"], data="AAAA")
    layout = write_layout(tmp_path / "image", image)
    assert ask(tmp_path, f"oci:{layout}").verdict == "match"


@pytest.mark.parametrize("empty", [b"", bytes(1024), bytes(512), bytes(10240)])
@pytest.mark.parametrize("compression", ["tar", "gzip", "zstd"])
def test_empty_layers(tmp_path: Path, empty: bytes, compression: str) -> None:
    image = build_image([empty, BASE, empty, BASE, empty], compression=compression)
    layout = write_layout(tmp_path / "image", image)
    assert ask(tmp_path, f"oci:{layout}").verdict == "match"


def test_numbers_in_base_256(tmp_path: Path) -> None:
    block = bytearray(header(CORE.encode(), b"0", len(GOOD)))
    block[124:136] = b"\x80" + len(GOOD).to_bytes(11, "big")
    block[136:148] = (1 << 96 | 1 << 95 | (1 << 95) - 7).to_bytes(13, "big")[1:]
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    report = over(tmp_path, bytes(block) + padded(GOOD) + bytes(1024))
    assert report.verdict == "match"


# What those see in an archive who unpack it first, or read its other table of contents


@pytest.mark.parametrize("style", ["oci-archive", "docker-archive"])
@pytest.mark.parametrize("compression", ["tar", "gzip"])
@pytest.mark.parametrize("target", [".", "share"])
def test_member_behind_a_link_of_the_archive(
    tmp_path: Path, style: str, compression: str, target: str
) -> None:
    data = (
        archive_of(layout_files([GOOD_IMAGE]))
        if style == "oci-archive"
        else docker_archive(build_image([BASE], compression="tar"), "docker24")
    )
    path = tmp_path / "saved.tar"
    shown = []
    for name in ("x/index.json", "y/index.json"):
        more = Tar().symlink("x", target).file(name, "{}").done()
        path.write_bytes(COMPRESS[compression](padded(data.rstrip(b"\0")) + more))
        report = ask(tmp_path, f"{style}:{path}")
        shown.append(str(report.reason["code"]))
    assert shown == ["ambiguous-member", "equal"]


def saved(folder: Path, index: list[dict[str, object]], *images: Built) -> str:
    """Write an archive of some images as Docker 25 does, tagged `demo:0`, `demo:1`."""
    files = layout_files(images, index)
    listed = []
    for number, image in enumerate(images):
        names = ["blobs/" + d.replace(":", "/") for d in (image.config, *image.layers)]
        tags = [f"team/demo:{number}"]
        listed.append({"Config": names[0], "RepoTags": tags, "Layers": names[1:]})
    files["manifest.json"] = json.dumps(listed).encode()
    path = write_files(folder, {"saved.tar": archive_of(files)}) / "saved.tar"
    return f"docker-archive:{path}"


def test_tags_that_are_swapped_in_the_other_table(tmp_path: Path) -> None:
    images = build_image([BASE], compression="tar"), build_image([BASE, OVER])
    codes_seen = []
    for order in ((0, 1), (1, 0)):
        index = [
            image.descriptor(
                annotations={"io.containerd.image.name": f"docker.io/team/demo:{n}"}
            )
            for image, n in zip(images, order, strict=True)
        ]
        reference = saved(tmp_path, index, *images)
        report = ask(tmp_path, f"{reference}:team/demo:0")
        codes_seen.append(str(report.reason["code"]))
    assert codes_seen == ["equal", "ambiguous-archive"]


def test_saved_image_of_several_platforms(tmp_path: Path) -> None:
    ours = build_image([BASE], compression="tar")
    arm = build_image([BASE, OVER], compression="tar", architecture="arm64")
    for other, verdict in ((arm, "match"), (EVIL_IMAGE, "unverifiable")):
        index = [ours.descriptor(), other.descriptor()]
        files = layout_files([ours, other], index)
        names = ["blobs/" + d.replace(":", "/") for d in (ours.config, *ours.layers)]
        listed = [{"Config": names[0], "RepoTags": ["a:b"], "Layers": names[1:]}]
        files["manifest.json"] = json.dumps(listed).encode()
        path = tmp_path / "saved.tar"
        path.write_bytes(archive_of(files))
        assert ask(tmp_path, f"docker-archive:{path}").verdict == verdict
