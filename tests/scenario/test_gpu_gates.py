# SPDX-License-Identifier: Apache-2.0
"""Gates on a machine with two GPUs, and how much runs at once.

The GPUs are those of a driver's library that answers from variables; locks, processes
and what units see are real.
"""

import uuid
from pathlib import Path

import nvml
import pytest
from gating import add_gate, gate_project, read_json
from support import Project, run

from stackctl.gates import hosts
from stackctl.gates.snapshot import gpu_lock


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return gate_project(tmp_path / "project")


@pytest.fixture
def machine(tmp_path: Path) -> dict[str, str]:
    """Variables of a machine with two GPUs that no other test knows."""
    pytest.importorskip("pynvml")
    if nvml.COMPILER is None:
        pytest.skip("no C compiler")
    library = nvml.build(tmp_path / "nvml")
    return {
        "LD_LIBRARY_PATH": str(library),
        "STUB_UUID": uuid.uuid4().hex[:8],
        "STUB_SLOW": "9",
    }


def gpu(machine: dict[str, str], number: int) -> str:
    return f"GPU-{machine['STUB_UUID']}-0000-4000-8000-{number:012d}"


MEETS = """
import time
folder = Path({folder!r})
(folder / {name!r}).write_text(os.environ["CUDA_VISIBLE_DEVICES"])
limit = time.monotonic() + 120
while not (folder / {other!r}).exists() and time.monotonic() < limit:
    time.sleep(0.02)
say(cases((folder / {other!r}).exists(), True))
"""


def test_two_gates_run_side_by_side_on_two_gpus(project, machine, tmp_path):
    for name, other in (("one", "two"), ("two", "one")):
        script = MEETS.format(folder=str(tmp_path), name=name, other=other)
        add_gate(project, name, script, "[needs]\ngpus = 1\n")
    text = (project.folder / "series.toml").read_text()
    old = 'patches = "patches/alpha"\n'
    table = 'gates = { required = ["one", "two"] }\n'
    (project.folder / "series.toml").write_text(text.replace(old, old + table))
    done = run("qualify", "--jobs", "2", "--json", cwd=project.folder, env=machine)
    assert (done.code, done.json["verdict"]) == (0, "qualified"), done.json
    seen = {(tmp_path / name).read_text() for name in ("one", "two")}
    assert seen == {gpu(machine, 0), gpu(machine, 1)}


def test_a_gpu_that_is_held_is_left_alone(project, machine):
    add_gate(project, "sees", "say(cases(True))", "[needs]\ngpus = 1\n")
    with gpu_lock(gpu(machine, 0)):
        done = run("gate", "run", "sees", "--json", cwd=project.folder, env=machine)
    assert done.code == 0, done.json
    held = read_json(project.folder / done.json["receipt"])["predicate"]
    assert [item["uuid"] for item in held["units"][0]["gpus"]] == [gpu(machine, 1)]
    assert held["units"][0]["gpus"][0]["before"]["sm_mhz"] == 1410


ALONE = """
import time
busy = Path({folder!r}) / "busy"
alone = not busy.exists()
busy.touch()
time.sleep(0.2)
busy.unlink(missing_ok=True)
say({{"schema": 1, "samples": {{"cases": [{{"id": os.environ["STACKCTL_GATE_UNIT"],
    "equal": alone, "elements": 1, "differing": 0 if alone else 1}}]}}}})
"""


def test_units_that_may_run_at_once_are_bounded_by_the_cpus(
    project, tmp_path, monkeypatch
):
    monkeypatch.setattr(hosts, "usable_cpus", lambda: 1)
    script = ALONE.format(folder=str(tmp_path))
    add_gate(project, "many", script, "units = 4\nparallel = 4\n")
    done = run("gate", "run", "many", "--json", cwd=project.folder)
    assert (done.code, done.json["units"]) == (0, 4), done.json
