# SPDX-License-Identifier: Apache-2.0
"""A project, and images of its base to lay its composition over."""

import importlib.util
import marshal
import struct
from collections.abc import Callable
from pathlib import Path

from images import Built, Tar, build_image, write_layout
from support import Project, Result, run

from stackctl.image.layers import Budget, Interest, scan_layer
from stackctl.image.limits import Limits

PACKAGES = "opt/venv/lib/python3.12/site-packages"
BASE = {
    "pkg/__init__.py": "",
    "pkg/core.py": "VALUE = 1\n",
    "pkg/kept.py": "KEPT = 1\n",
    "pkg/gone.py": "GONE = 1\n",
    "pkg/run.sh": "#!/bin/sh\n",
    "pkg/old/__init__.py": "",
    "pkg/old/deep/x.py": "X = 1\n",
    "pkg/turns": "a file\n",
    "csrc/kernel.cu": "// kernel\n",
    "README.md": "# demo\n",
    "tests/test_core.py": "def test(): pass\n",
    "setup.py": "setup()\n",
}
COMPILED = {"pkg/_C.abi3.so": "\x7fELF"}


def demo(make: Callable[..., Project]) -> Project:
    project = make().base(dict(BASE))
    project.add(
        "alpha",
        ("alpha: change and add\n", {
            "pkg/core.py": "VALUE = 22\n",
            "pkg/new/fresh.py": "NEW = 1\n",
            "tests/test_core.py": "def test(): assert True\n",
            "README.md": "# fork\n",
        }),
        ("alpha: delete\n", {
            "pkg/gone.py": None,
            "pkg/old/__init__.py": None,
            "pkg/old/deep/x.py": None,
        }),
    )  # fmt: skip
    project.add(
        "beta",
        ("beta: a file becomes a folder\n", {"pkg/turns": None}),
        ("beta: and holds one\n", {"pkg/turns/inside.json": "{}\n"}),
    )
    return project


def pyc(source: str) -> bytes:
    code = marshal.dumps(compile(source, "x", "exec"))
    head = importlib.util.MAGIC_NUMBER + struct.pack(
        "<III", 0, 1_700_000_000, len(source)
    )
    return head + code


def installed(
    files: dict[str, str], with_bytecode: bool = True, below: bytes | None = None
) -> Built:
    """Return an image with the package installed.

    Args:
        files: The tree.
        with_bytecode: Add what Python would have compiled.
        below: The lowest layer.
    """
    tar = Tar().folder("opt", 0o750).folder("opt/venv")
    for name, text in sorted({**files, **COMPILED}.items()):
        if not name.startswith("pkg/"):
            continue
        place = f"{PACKAGES}/{name}"
        tar.file(place, text, mode=0o755 if name.endswith(".sh") else 0o644)
        if name.endswith(".py") and with_bytecode:
            folder, _, base = place.rpartition("/")
            for level in ("", ".opt-1"):
                cached = f"{folder}/__pycache__/{base[:-3]}.cpython-311{level}.pyc"
                tar.file(cached, pyc(text))
    other = below or Tar().file("etc/hostname", "x").done()
    return build_image(
        [other, tar.done()], run={"Env": ["PATH=/bin"], "Labels": {"a": "b"}}
    )


class Shop:
    def __init__(self, project: Project, folder: Path) -> None:
        self.project = project.save()
        self.folder = folder
        done = run("lock", cwd=project.folder)
        assert done.code == 0, done.err
        self.base = f"oci:{write_layout(folder / 'base', installed(BASE))}"
        self.root = ("--root", f"pkg=/{PACKAGES}/pkg", "--allow", "pkg/*.so")

    def overlay(self, out: str, *arguments: str | Path, base: str = "") -> Result:
        return run(
            "image", "overlay", base or self.base, "--out", f"oci:{self.folder / out}",
            *self.root, *arguments, "--json", cwd=self.project.folder,
        )  # fmt: skip

    def verify(self, out: str, *arguments: str) -> Result:
        return run(
            "verify-image", f"oci:{self.folder / out}", *self.root, *arguments,
            "--json", cwd=self.project.folder,
        )  # fmt: skip

    def layer(self, out: str, digest: str) -> dict[str, tuple[str, int]]:
        data = (self.folder / out / "blobs/sha256" / digest[7:]).read_bytes()
        scan = scan_layer([data], Budget(Limits()), Interest(), size_hint=0)
        return {e.name.decode(): (e.type, e.mode) for e in scan.entries}
