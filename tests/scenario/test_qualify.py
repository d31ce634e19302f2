# SPDX-License-Identifier: Apache-2.0
"""A team qualifies its series: one table, one verdict, and no work done twice."""

import subprocess
import time
from pathlib import Path

import pytest
from gating import add_gate, gate_project, processes_of
from support import Project, program, program_environment, run


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return gate_project(tmp_path / "project")


def ask(project: Project, **gates: str) -> None:
    """Give sets their gates, as TOML."""
    text = (project.folder / "series.toml").read_text()
    for name, table in gates.items():
        old = f'patches = "patches/{name}"\n'
        text = text.replace(old, old + f"gates = {table}\n")
    (project.folder / "series.toml").write_text(text)


def qualify(project: Project, *args: str, **options):
    return run("qualify", *args, "--json", cwd=project.folder, **options)


def fill(project: Project) -> None:
    add_gate(project, "good", "say(cases(True))")
    add_gate(project, "bad", "say(cases(False))")
    add_gate(project, "broken", "print('no')")
    add_gate(project, "absent", "say(cases(True))", '[needs]\ncommands = ["nothing-"]')


@pytest.mark.parametrize(
    ("alpha", "gamma", "verdict", "code"),
    [
        ('{ required = ["good"] }', "{}", "qualified", 0),
        ('{ required = ["good"], advisory = ["bad", "broken"] }', "{}", "qualified", 0),
        ('{ required = ["good"] }', '{ required = ["absent"] }', "not-tested", 8),
        ('{ required = ["absent"] }', '{ required = ["bad"] }', "rejected", 1),
        ('{ required = ["bad"] }', '{ required = ["broken"] }', "invalid", 9),
        ('{ advisory = ["good"] }', "{}", "not-tested", 8),
        ("{}", "{}", "not-tested", 8),
        ('{ advisory = ["bad"] }', '{ required = ["bad"] }', "rejected", 1),
    ],
)
def test_the_worst_required_verdict_decides(project, alpha, gamma, verdict, code):
    fill(project)
    ask(project, alpha=alpha, gamma=gamma)
    done = qualify(project)
    assert (done.code, done.json["verdict"]) == (code, verdict), done.json
    names = [entry["gate"] for entry in done.json["gates"]]
    assert len(names) == len(set(names))
    text = run("qualify", cwd=project.folder)
    assert text.code == code
    assert verdict in text.out.splitlines()[-1] or not names


def test_gates_of_one_set_alone(project):
    fill(project)
    ask(project, alpha='{ required = ["good"] }', gamma='{ required = ["bad"] }')
    assert qualify(project, "--set", "alpha").code == 0
    assert qualify(project, "--set", "gamma").code == 1
    assert qualify(project, "--set", "gama").code == 2


def test_a_gate_that_is_not_defined_is_a_bad_series(project):
    ask(project, alpha='{ required = ["missing"] }')
    done = qualify(project)
    assert done.code == 3 and "ci/gates/missing.toml" in done.json["error"]["message"]


def test_a_dry_run_runs_nothing_and_says_how_long(project, tmp_path):
    mark = tmp_path / "ran"
    add_gate(
        project,
        "marks",
        f"Path({str(mark)!r}).touch()\nsay(cases(True))",
        "[limits]\nseconds = 7\n",
    )
    add_gate(project, "absent", "say(cases(True))", '[needs]\ncommands = ["nothing-"]')
    ask(project, alpha='{ required = ["marks", "absent"] }')
    (row, other) = qualify(project, "--dry-run").json["gates"]
    assert not mark.exists() and not (project.folder / "receipts").exists()
    assert (row["units"], row["limit_s"], row["expected_s"]) == (1, 7, None)
    assert row["missing"] == [] and "nothing-" in other["missing"][0]
    assert qualify(project).code == 8 and mark.exists()
    (row, _) = qualify(project, "--dry-run").json["gates"]
    assert row["expected_s"] is not None
    text = run("qualify", "--dry-run", cwd=project.folder).out
    assert "1 of 2 gates can run here" in text


WAITS = """
import time
folder = Path({folder!r})
(folder / "ran").open("a").write({name!r} + os.environ["STACKCTL_GATE_UNIT"] + "\\n")
if {name!r} == "second" and os.environ["STACKCTL_GATE_UNIT"] == "1":
    while not (folder / "go").exists():
        (folder / "ready").touch()
        time.sleep(0.05)
say({{"schema": 1, "samples": {{"cases": [{{"id": os.environ["STACKCTL_GATE_UNIT"],
    "equal": True, "elements": 1, "differing": 0}}]}}}})
"""


def test_an_interrupted_run_goes_on_without_repeating(project, tmp_path):
    folder = tmp_path / "state"
    folder.mkdir()
    for name in ("first", "second", "third"):
        script = WAITS.format(folder=str(folder), name=name)
        add_gate(project, name, script, "units = 2\n")
    ask(
        project,
        alpha='{ required = ["first", "second"] }',
        gamma='{ required = ["third"] }',
    )
    child = subprocess.Popen(
        program("qualify", "--jobs", "1", "--json"),
        cwd=project.folder,
        env=program_environment(),
        stdout=subprocess.DEVNULL,
    )
    limit = time.monotonic() + 120
    while not (folder / "ready").exists():
        assert time.monotonic() < limit and child.poll() is None
        time.sleep(0.05)
    child.kill()
    child.wait()
    while processes_of(folder):
        assert time.monotonic() < limit
        time.sleep(0.05)
    (folder / "go").touch()
    done = qualify(project, "--jobs", "1")
    assert done.code == 0, done.json
    before = {entry["gate"]: entry["answered_before"] for entry in done.json["gates"]}
    assert before == {"first": True, "second": False, "third": False}
    ran = (folder / "ran").read_text().split()
    assert sorted(ran) == sorted(
        ["first0", "first1", "second0", "second1", "second1", "third0", "third1"]
    )
    # That run is over: the next one asks everything again.
    again = qualify(project, "--jobs", "2")
    assert [entry["answered_before"] for entry in again.json["gates"]] == [False] * 3
    assert len((folder / "ran").read_text().split()) == len(ran) + 6


def test_an_answer_does_not_outlive_what_it_depends_on(project, tmp_path):
    folder = tmp_path / "state"
    folder.mkdir()
    scripts = {
        name: add_gate(
            project,
            name,
            WAITS.format(folder=str(folder), name=name),
            "units = 2\n",
        )
        for name in ("first", "second")
    }
    ask(project, alpha='{ required = ["first", "second"] }')
    child = subprocess.Popen(
        program("qualify", "--jobs", "1"),
        cwd=project.folder,
        env=program_environment(),
        stdout=subprocess.DEVNULL,
    )
    limit = time.monotonic() + 120
    while not (folder / "ready").exists():
        assert time.monotonic() < limit and child.poll() is None
        time.sleep(0.05)
    child.terminate()
    assert child.wait(60) == 130
    assert processes_of(folder) == []
    (folder / "go").touch()
    scripts["first"].write_text(scripts["first"].read_text() + "# changed\n")
    done = qualify(project)
    assert done.code == 0
    assert [entry["answered_before"] for entry in done.json["gates"]] == [False] * 2
