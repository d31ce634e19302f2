# SPDX-License-Identifier: Apache-2.0
"""Which files a gate's answer depends on."""

from pathlib import Path

from gating import add_gate, arms, gate_project

from stackctl.gates.bound import bound_files
from stackctl.gates.kinds.script import imported_files
from stackctl.gates.model import load_gate


def write(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def imported(folder: Path) -> list[str]:
    found = imported_files(folder / "script.py", folder)
    return [path.relative_to(folder).as_posix() for path in found]


def test_packages_run_their_own_files_too(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "script.py": "import pack.deep.leaf\nfrom other import thing\n",
            "pack/__init__.py": "from . import near\n",
            "pack/near.py": "",
            "pack/deep/__init__.py": "from ..far import x\n",
            "pack/deep/leaf.py": "from .beside import y\n",
            "pack/deep/beside.py": "",
            "pack/far.py": "",
            "pack/unused.py": "",
            "other/__init__.py": "",
            "other/thing.py": "from .... import outside\n",
            "outside.py": "",
        },
    )
    assert imported(tmp_path) == [
        "other/__init__.py",
        "other/thing.py",
        "pack/__init__.py",
        "pack/deep/__init__.py",
        "pack/deep/beside.py",
        "pack/deep/leaf.py",
        "pack/far.py",
        "pack/near.py",
        "script.py",
    ]


def test_a_folder_of_the_path_is_bound_with_its_packages(tmp_path: Path) -> None:
    project = gate_project(tmp_path / "project")
    add_gate(
        project,
        "one",
        "say(cases(True))",
        'pythonpath = ["lib"]\n' + arms(on="composed"),
    )
    write(
        project.folder,
        {"lib/a.py": "", "lib/pack/b.py": "", "lib/.hidden/c.py": "", "lib/d": ""},
    )
    toml = project.folder / "ci/gates/one.toml"
    found = bound_files(project.folder, load_gate(toml))
    assert {path: role for path, (role, _) in found.items()} == {
        "ci/gates/one.py": "script",
        "ci/gates/one.toml": "gate",
        "lib/a.py": "code",
        "lib/pack/b.py": "code",
    }
