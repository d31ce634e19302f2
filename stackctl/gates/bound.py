# SPDX-License-Identifier: Apache-2.0
"""What a gate's answer depends on: bound when it runs, compared later."""

import hashlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import stackctl
from stackctl.errors import InputError
from stackctl.fsutil import sha256_of_file
from stackctl.gates.kinds.served import project_files
from stackctl.gates.model import FOLDER, SCRIPTED, Gate
from stackctl.model.canonical import canonical_json
from stackctl.model.fields import write_record
from stackctl.model.series import Series, load_series
from stackctl.project import SERIES_FILE

PROGRAM: Final = "stackctl/"
"""Start of the names of the program's own files."""

_IN_PROJECT: Final = re.compile(r"\{project\}/([^\s{}]+)")

IMAGES: Final = "generated:images"
"""Stands for the images that the series names, in the place of a path."""


def bound_files(project: Path, gate: Gate) -> dict[str, tuple[str, str]]:
    """Return role and SHA-256 of every file that a gate's answer depends on.

    Args:
        project: The project folder.
        gate: The gate.

    Returns:
        By path in the project; `stackctl/...` for files of the program.

    Raises:
        InputError: One is missing, or leads out of the project.
    """
    from stackctl.gates.kinds.script import imported_files

    roles: dict[Path, str] = {gate.path: "gate"}
    named = _named(project, gate)
    for path, what in absent(project, gate):
        raise _missing(path, gate, what)
    for name in _programs(gate):
        script = project / name
        if script.is_symlink():
            raise _link(script, gate)
        if script.suffix == ".py":
            for path in imported_files(script, script.parent):
                roles.setdefault(path, "code")
        roles[script] = "script"
    for name in (*named, *gate.files):
        roles.setdefault(project / name, "script")
    for name in gate.pythonpath:
        if not name.startswith("{"):
            for path in _modules(project / name):
                roles.setdefault(path, "code")
    found = {
        _inside(path, project): (role, sha256_of_file(path))
        for path, role in roles.items()
    }
    if _verifies_images(gate):
        found[IMAGES] = ("script", images_sha256(project))
    if gate.kind not in SCRIPTED:
        top = Path(stackctl.__file__).parents[1]
        # An accuracy gate asks as a serving gate does, with the same client.
        kinds = ("accuracy", "serving") if gate.kind == "accuracy" else (gate.kind,)
        for kind in kinds:
            for path in _modules(top / "stackctl" / "gates" / kind):
                name = path.relative_to(top).as_posix()
                found[name] = ("code", sha256_of_file(path))
    return dict(sorted(found.items()))


def absent(project: Path, gate: Gate) -> Iterator[tuple[Path, str]]:
    """Yield what a gate's file names and is not there, and whether file or folder.

    Args:
        project: The project folder.
        gate: The gate.
    """
    for name in (*_programs(gate), *gate.files):
        if not (project / name).is_file():
            yield project / name, "file"
    for name in gate.pythonpath:
        if not name.startswith("{") and not (project / name).is_dir():
            yield project / name, "folder"


def lacking(project: Path, gate: Gate, series: Series | None = None) -> list[str]:
    """Return what of a project `gate run` would miss, in words; empty where all is.

    Args:
        project: The project folder.
        gate: The gate.
        series: The project's series, whose sets the arms name; None in a pack.
    """
    found = list(absent(project, gate))
    reasons = [f"there is no {what} {_inside(path, project)}" for path, what in found]
    if series is None:
        return reasons
    sets = {item.name for item in series.sets}
    named = {
        name: None
        for arm in gate.arms.values()
        if not arm.tree.startswith("tree:")
        for name in filter(None, arm.tree.partition(":")[2].split(","))
    }
    if gate.tests is not None and gate.tests.of is not None:
        named[gate.tests.of] = None
    reasons += [f"the series has no set {name}" for name in named if name not in sets]
    if _verifies_images(gate) and not series.images:
        reasons.append("the series names no image")
    return reasons


def _programs(gate: Gate) -> list[str]:
    """Return the project's own programs that a gate's file names as its commands."""
    plan = gate.serving or gate.accuracy
    served = () if plan is None else project_files(plan.server)
    return [*filter(None, [gate.script]), *served]


def _named(project: Path, gate: Gate) -> list[str]:
    """Return the other files that the gate's commands name by `{project}/...`.

    Raises:
        InputError: One lies outside of the project.
    """
    plan = gate.serving or gate.accuracy
    words = [
        *gate.arguments,
        *(() if plan is None else plan.server),
        *(() if gate.tests is None else gate.tests.options),
        *(() if gate.image is None else gate.image.options),
    ]
    names = [name for word in words for name in _IN_PROJECT.findall(word)]
    for name in names:
        if ".." in Path(name).parts:
            raise InputError(
                f"{gate.path}: {{project}}/{name} leads out of the project",
                kind="outside-project",
                where={"file": str(gate.path)},
            )
    return [name for name in names if (project / name).is_file()]


def _verifies_images(gate: Gate) -> bool:
    """Whether a gate is about the images that the series names."""
    return gate.kind == "image" and (gate.image is None or gate.image.ref is None)


def images_sha256(project: Path) -> str:
    """Return the SHA-256 of what a series says of its images, as canonical JSON.

    A gate that verifies "the images of the series" asks something else when these do.

    Raises:
        InputError: There is no series, or it is bad.
    """
    images = load_series(project / SERIES_FILE).images
    document = [write_record(image) for image in images]
    return hashlib.sha256(canonical_json(document)).hexdigest()


def _modules(folder: Path) -> list[Path]:
    """Return what can be imported from a folder: its Python files and its packages'."""
    return [
        path
        for path in sorted(folder.rglob("*.py"))
        if not any(part.startswith(".") for part in path.relative_to(folder).parts)
        and path.is_file()
    ]


def _missing(path: Path, gate: Gate, what: str) -> InputError:
    return InputError(
        f"{gate.path}: names {path}, but there is no such {what}",
        kind="file-missing",
        where={"file": str(gate.path)},
    )


def _link(path: Path, gate: Gate) -> InputError:
    return InputError(
        f"{gate.path}: names {path}, which is a link: what it imports would be looked "
        "for beside the file that it leads to, and no receipt binds that",
        kind="file-is-link",
        hint="put the file itself there",
        where={"file": str(gate.path)},
    )


def _inside(path: Path, project: Path) -> str:
    if path.is_relative_to(project):
        return path.relative_to(project).as_posix()
    return f"{FOLDER}/{path.name}"


def model_identity(path: str | None) -> dict[str, Any] | None:
    """Return what a model is, without saying where.

    Args:
        path: Folder or name, as the user gave it.

    Returns:
        `name`, `revision` (None where it is not known) and `sha256` over names, sizes
        and, of files up to 1 MiB, contents; None where it is no folder.
    """
    if path is None:
        return None
    folder = Path(path)
    if not folder.is_dir():
        return {"name": path.rpartition("/")[2], "revision": None, "sha256": None}
    total = hashlib.sha256()
    for file in sorted(p for p in folder.rglob("*") if p.is_file()):
        size = file.stat().st_size
        name = file.relative_to(folder).as_posix()
        digest = sha256_of_file(file) if size <= 1 << 20 else "-"
        total.update(f"{name}\0{size}\0{digest}\0".encode("utf-8", "surrogateescape"))
    return {"name": folder.name, "revision": None, "sha256": total.hexdigest()}
