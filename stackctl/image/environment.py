# SPDX-License-Identifier: Apache-2.0
"""An installed Python environment on this machine, found without running it."""

import os
import re
from dataclasses import dataclass
from pathlib import Path

from stackctl.errors import InputError
from stackctl.image.expectation import ExpectedTree
from stackctl.image.roots import PACKAGE, Root

_LIBRARY = re.compile(r"python3(\.\d+t?)?")
#: Folders of a source tree that are no part of an installation even if importable.
_NOT_INSTALLED = frozenset(
    ("benchmarks", "docs", "examples", "scripts", "test", "tests", "tools")
)


@dataclass(frozen=True, slots=True)
class Environment:
    """Where an environment keeps its packages.

    Attributes:
        prefix: The folder that holds `bin` and `lib`.
        packages: Its site-packages folders.
    """

    prefix: Path
    packages: tuple[Path, ...]


def find_environment(python: Path) -> Environment:
    """Return the environment of an interpreter, or of a prefix folder.

    The interpreter is not run: what it would say could be what its `.pth` files make it
    say.

    Raises:
        InputError: There is no environment there.
    """
    path = Path(os.path.abspath(python))
    prefix = path if path.is_dir() else _prefix(path)
    found = []
    for library in ("lib", "lib64", "local/lib"):
        folder = prefix / library
        if folder.is_symlink() or not folder.is_dir():
            continue
        for version in sorted(folder.iterdir()):
            if _LIBRARY.fullmatch(version.name):
                for name in ("site-packages", "dist-packages"):
                    if (version / name).is_dir():
                        found.append(version / name)
    if not found or not path.exists():
        raise InputError(
            f"{python} is no Python environment: there is no "
            f"{prefix}/lib/python3.*/site-packages",
            kind="not-an-environment",
            hint="name the interpreter in the environment's bin folder",
            where={"file": str(python)},
        )
    return Environment(prefix, tuple(found))


def _prefix(python: Path) -> Path:
    """Return the prefix that an interpreter finds, if it is called by this name.

    A virtual environment is where the name stands, whatever it is a link to; without
    one Python looks where the file itself is.
    """
    for place in (python.parent, python.parent.parent):
        if (place / "pyvenv.cfg").is_file():
            return python.parent.parent
    return Path(os.path.realpath(python)).parent.parent


def package_names(expected: ExpectedTree) -> list[str]:
    """Return the top folders of a tree that are packages of an installation."""
    names = {
        os.fsdecode(path.split(b"/")[0])
        for path in expected.entries
        if path.count(b"/") == 1 and path.endswith(b"/__init__.py")
    }
    return sorted(names - _NOT_INSTALLED)


def environment_roots(environment: Environment, expected: ExpectedTree) -> list[Root]:
    """Return the roots that an environment has of a tree.

    Raises:
        InputError: None of the tree's packages is installed there.
    """
    names = package_names(expected)
    roots = [
        Root(name, str(packages / name), PACKAGE)
        for packages in environment.packages
        for name in names
        if (packages / name).is_dir()
    ]
    if not roots:
        raise InputError(
            f"none of the packages {', '.join(names) or '(none)'} is installed in "
            f"{environment.prefix}",
            kind="not-installed",
            hint="install it, or name its place with --root TREE=PATH",
            where={"prefix": str(environment.prefix)},
        )
    return roots
