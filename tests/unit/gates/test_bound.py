# SPDX-License-Identifier: Apache-2.0
"""Which files a gate's answer depends on."""

from pathlib import Path

import pytest
from gating import add_gate, arms, gate_project

from stackctl.errors import InputError
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


def test_what_a_command_names_in_the_project_is_bound(tmp_path: Path) -> None:
    project = gate_project(tmp_path / "project")
    write(
        project.folder,
        {
            "data/a.json": "{}",
            "data/b.json": "{}",
            "serve.py": "import beside\n",
            "beside.py": "",
        },
    )
    given = '["{project}/data/a.json", "--x={project}/data/b.json", "{project}"]'
    add_gate(project, "one", "say(cases(True))", f"arguments = {given}\n")
    found = bound_files(project.folder, load_gate(project.folder / "ci/gates/one.toml"))
    assert {"data/a.json", "data/b.json", "ci/gates/one.py"} < set(found)
    words = (
        '["{python}", "{project}/serve.py", "{port}", "--config={project}/data/a.json"]'
    )
    served = f"""
[arms.base]
tree = "base"
[rule]
statistic = "paired-log-ratio"
blocks = true
[[claim]]
name = "n"
cell = "c2/ctx32:tokens_per_s"
arm = "base"
bar = 1.0
[serving]
server = {words}
[[serving.cell]]
concurrency = 2
context = 32
output = 1
requests = 2
"""
    add_gate(project, "two", "", served, kind="serving")
    found = bound_files(project.folder, load_gate(project.folder / "ci/gates/two.toml"))
    assert found["serve.py"][0] == "script"
    assert found["beside.py"][0] == "code"
    assert "data/a.json" in found


@pytest.mark.parametrize("where", ["{project}/../out.json", "{project}/data/../../x"])
def test_what_a_command_names_lies_in_the_project(tmp_path: Path, where: str) -> None:
    project = gate_project(tmp_path / "project")
    add_gate(project, "one", "say(cases(True))", f'arguments = ["{where}"]\n')
    gate = load_gate(project.folder / "ci/gates/one.toml")
    with pytest.raises(InputError, match="leads out of the project"):
        bound_files(project.folder, gate)


def test_a_script_is_no_link(tmp_path: Path) -> None:
    project = gate_project(tmp_path / "project")
    script = add_gate(project, "one", "say(cases(True))")
    script.rename(tmp_path / "elsewhere.py")
    script.symlink_to(tmp_path / "elsewhere.py")
    gate = load_gate(project.folder / "ci/gates/one.toml")
    with pytest.raises(InputError) as caught:
        bound_files(project.folder, gate)
    assert caught.value.kind == "file-is-link"


@pytest.mark.parametrize("path", ["../up", "a/../../b", "..", "a/.."])
def test_a_path_to_import_from_lies_in_the_project(tmp_path: Path, path: str) -> None:
    project = gate_project(tmp_path / "project")
    add_gate(project, "one", "say(cases(True))", f'pythonpath = ["{path}"]\n')
    with pytest.raises(InputError, match="a path inside the project"):
        load_gate(project.folder / "ci/gates/one.toml")


def test_an_accuracy_gate_binds_what_asks_and_what_scores() -> None:
    project = Path(__file__).parents[3]
    gate = load_gate(project / "ci/gates/accuracy-url.toml")
    found = bound_files(project, gate)
    assert {
        "stackctl/gates/accuracy/score.py",
        "stackctl/gates/accuracy/items.py",
        "stackctl/gates/serving/client.py",
    } < set(found)
