# SPDX-License-Identifier: Apache-2.0
"""What runs instead of or beside the tracked files: each case with its right answer.

The warnings of a case are all that there may be, so that the innocent ones beside the
others show that nothing is said of what everybody has.
"""

import hashlib
import importlib.util
import marshal
import struct
import zipfile
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from images import PACKAGE_ROOT, SITE, Demo, Tar, build_image, tree_layer, write_layout

from stackctl.image.expectation import folder_tree
from stackctl.image.platform import Platform
from stackctl.image.report import Report
from stackctl.image.roots import CHECKOUT, PACKAGE, Root
from stackctl.image.rules import Allow
from stackctl.image.verify import PinnedWheel, Request, verify

DEMO = Demo(
    {
        "pyproject.toml": b'[project]\nname = "demo"\n'
        b'[project.scripts]\ndemo = "demo.cli:main"\n'
        b'[project.entry-points."demo.plugins"]\nown = "demo.core:own"\n',
        "demo/__init__.py": b'"""Demo."""\n',
        "demo/core.py": b"VALUE = 1\n",
        "demo/cli.py": b"def main():\n    return 0\n",
        "demo/names/deep.py": b"X = 1\n",
    }
)
PACKAGE_LAYER = tree_layer(DEMO.package(), SITE)
CHECKOUT_LAYER = tree_layer(dict(DEMO.files), "opt/demo")
GOOD = DEMO.files["demo/core.py"]
EVIL = b"VALUE = 666\n"
GENERATED = b"__version__ = '1'\n"
GENERATED_SHA256 = hashlib.sha256(GENERATED).hexdigest()
TIME = 1_700_000_000


@dataclass(frozen=True)
class Case:
    """An image over the good layer, and its answer.

    Attributes:
        codes: Its warnings, separated by spaces.
        layers: Over the good one.
        verdict: The right one.
        run: What its config runs.
        wheel: Files that the pinned wheel has besides the package's.
        root: Where the package is; `.` for a checkout in /opt/demo.
        base: The good layer.
        more: Further settings of the request.
    """

    codes: str
    layers: tuple[Tar, ...] = ()
    verdict: str = "match"
    run: dict[str, object] | None = None
    wheel: dict[str, bytes] | None = None
    root: str = PACKAGE_ROOT
    base: bytes = PACKAGE_LAYER
    more: dict[str, object] = field(default_factory=dict)


def over(codes: str, *layers: Tar, **more: object) -> Case:
    return Case(codes, layers, **more)  # type: ignore[arg-type]


def answer(folder: Path, case: Case) -> tuple[str, set[str]]:
    tars = [case.base, *(layer.done() for layer in case.layers)]
    layout = write_layout(folder / "image", build_image(tars, run=case.run))
    pinned = None
    if case.wheel is not None:
        pinned = PinnedWheel(wheel_of(folder / "pinned.whl", case.wheel))
    root = (
        Root(".", "/opt/demo", CHECKOUT)
        if case.root == "."
        else Root("demo", case.root, PACKAGE)
    )
    report = ask(folder, f"oci:{layout}", (root,), wheel=pinned, **case.more)
    return report.verdict, {warning.code for warning in report.warnings}


def ask(
    folder: Path, reference: str, roots: tuple[Root, ...] = (), **more: object
) -> Report:
    expected = [folder_tree(DEMO.write(folder / "expected"))]
    settings: dict[str, object] = {
        "platform": Platform("linux", "amd64", ""),
        "environ": {},
        **more,
    }
    return verify(Request(reference, expected, roots, **settings))  # type: ignore[arg-type]


def wheel_of(path: Path, more: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in {**DEMO.package(), **more}.items():
            archive.writestr(name, data)
    return path


def pyc(code: bytes, of: bytes = GOOD, time: int = TIME, flags: int = 0) -> bytes:
    compiled = compile(code, "demo/core.py", "exec", dont_inherit=True)
    head = struct.pack("<III", flags, time, len(of))
    return importlib.util.MAGIC_NUMBER + head + marshal.dumps(compiled)


def cached(name: str, data: bytes, tar: Tar | None = None) -> Tar:
    path = f"{SITE}/demo/__pycache__/{name}.cpython-311.pyc"
    return (tar or Tar()).file(path, data)


def generated(bytecode: bytes) -> Tar:
    source = Tar().file(f"{SITE}/demo/_version.py", GENERATED)
    return cached("_version", bytecode, source)


def allowing(*rules: Allow) -> dict[str, object]:
    return {"allow": rules}


BY_SHA256 = allowing(Allow("demo/_version.py", GENERATED_SHA256))
BY_GLOB = allowing(Allow("demo/_v*.py"))
FOREIGN = "bytecode-foreign"

BYTECODE = {
    f"{what} of a source that is allowed by {how}": over(
        codes, generated(data), more=rules
    )
    for how, rules in (("its sha256", BY_SHA256), ("a glob", BY_GLOB))
    for what, data, codes in (
        ("good bytecode", pyc(GENERATED, GENERATED), ""),
        ("other bytecode", pyc(EVIL, GENERATED), FOREIGN),
        ("stale bytecode", pyc(EVIL, GENERATED, TIME - 1), "bytecode-stale"),
        ("checked and stale", pyc(EVIL, GENERATED, 1, 3), "bytecode-stale"),
    )
} | {
    "bytecode that an allowed folder holds": over(
        FOREIGN, cached("core", pyc(EVIL)), more=allowing(Allow("demo/**"))
    ),
    "compiled functions of numba": over(
        "",
        Tar().file(f"{SITE}/demo/__pycache__/core.f-5.py311.nbi", "x"),
        verdict="mismatch",
    ),
}

ELF = b"\x7fELF\2\1\1"
UNTRACKED = {
    "a program without a suffix": over(
        "", Tar().file(f"{SITE}/demo/helper", ELF), verdict="mismatch"
    ),
    "data without a suffix": over(
        "untracked-unverified", Tar().file(f"{SITE}/demo/LICENSE", "text")
    ),
    "the second digest of a path": over(
        "",
        Tar().file(f"{SITE}/demo/_version.py", GENERATED),
        more=allowing(
            Allow("demo/_version.py", "0" * 64),
            Allow("demo/_version.py", GENERATED_SHA256),
        ),
    ),
    "neither digest of a path": over(
        "",
        Tar().file(f"{SITE}/demo/_version.py", EVIL),
        verdict="mismatch",
        more=allowing(
            Allow("demo/_version.py", "0" * 64),
            Allow("demo/_version.py", GENERATED_SHA256),
        ),
    ),
}


def of_wheel(codes: str, name: str) -> Case:
    """The wheel has it, and so has the image."""
    return over(
        codes, Tar().file(f"{SITE}/{name}", b"W = 1\n"), wheel={name: b"W = 1\n"}
    )


SHADOWS = {
    "a module over a folder without __init__": of_wheel(
        "shadowed-module", "demo/names.py"
    ),
    "a library over a folder without __init__": of_wheel(
        "shadowed-module", "demo/names.abi3.so"
    ),
    "data beside a folder without __init__": of_wheel("", "demo/names.json"),
    "a folder without __init__ over nothing": of_wheel("", "demo/core/x.py"),
}

MID = Tar().symlink("links/venv", "/mid/x").symlink("mid/x", "/usr")
MID_ROOT = "/links/venv/lib/python3.11/site-packages/demo"
EDITABLE = '{"url":"file:///s","dir_info":{"editable":true}}'
PLACES = {
    **{
        f"a volume at {volume}": over(
            code, MID, run={"Volumes": {volume: {}}}, root=MID_ROOT
        )
        for volume, code in (
            ("/mid", "volume-over-root"),
            ("/mid/x", "volume-over-root"),
            ("/midst", ""),
            ("/links/other", ""),
        )
    },
    "an egg that a .pth file names": over(
        "pth-file second-copy",
        Tar().file(f"{SITE}/x-1.egg", "PK").file(f"{SITE}/x.pth", "./x-1.egg\n"),
    ),
    "an archive on the PYTHONPATH": over(
        "pythonpath second-copy",
        Tar().file("opt/x.zip", "PK"),
        run={"Env": ["PYTHONPATH=/opt/x.zip"]},
    ),
    "no archive on the PYTHONPATH": over(
        "pythonpath", run={"Env": ["PYTHONPATH=/opt/x.zip"]}
    ),
    "an editable install behind a link": over(
        "editable-install",
        Tar()
        .symlink(f"{SITE}/o-1.dist-info/direct_url.json", "/opt/u")
        .file("opt/u", EDITABLE),
    ),
    "an interpreter that believes to be in its build folder": over(
        "pth-file", Tar().file("usr/bin/pybuilddir.txt", "/evil\n")
    ),
}
for _name in ("CUDA_INJECTION64_PATH", "VLLM_NCCL_SO_PATH", "PYTHON_PRESITE"):
    PLACES[f"the variable {_name}"] = over("environment", run={"Env": [f"{_name}=/x"]})
for _name in ("PYTHONUNBUFFERED", "PYTHONNOUSERSITE", "PYTHONSAFEPATH", "LANG"):
    PLACES[f"the variable {_name}"] = over("", run={"Env": [f"{_name}=1"]})

CASES = {**BYTECODE, **UNTRACKED, **SHADOWS, **PLACES}


@pytest.mark.parametrize("name", CASES)
def test_known_answer(tmp_path: Path, name: str) -> None:
    case = CASES[name]
    assert answer(tmp_path, case) == (case.verdict, set(case.codes.split()))


@pytest.mark.parametrize(
    ("bytecode", "codes"),
    [
        (pyc(GOOD, time=1_800_000_000), set()),
        (pyc(EVIL, time=1_800_000_000), {FOREIGN}),
        (pyc(EVIL, b""), {"bytecode-stale"}),
    ],
)
def test_bytecode_of_a_wheel_may_fit_the_time_of_its_installation(
    tmp_path: Path, bytecode: bytes, codes: set[str]
) -> None:
    cache = {"demo/__pycache__/core.cpython-311.pyc": bytecode}
    report = ask(tmp_path, f"wheel:{wheel_of(tmp_path / 'demo.whl', cache)}")
    assert (report.verdict, {w.code for w in report.warnings}) == ("match", codes)
