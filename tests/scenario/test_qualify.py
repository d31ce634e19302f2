# SPDX-License-Identifier: Apache-2.0
"""A team qualifies its series: one table, one verdict, and no work done twice."""

import hashlib
import json
import os
import subprocess
from pathlib import Path

import pytest
from gating import add_gate, arms, gate_project, processes_of, read_json
from support import Project, program, program_environment, run, until


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
    assert row["expected_s"] is not None and row["expected_from"] == "run"
    assert not row["runs"] and row["answered_by"]["verdict"] == "qualified"
    text = run("qualify", "--dry-run", cwd=project.folder).out
    assert "0 gates would run\n1 gate is answered by receipts; 1 of them" in text
    (row, _) = qualify(project, "--dry-run", "--run-all").json["gates"]
    assert row["runs"] and row["answered_by"] is None
    text = run("qualify", "--dry-run", "--run-all", cwd=project.folder).out
    assert "1 gate would run: about " in text and "at most 7 s\n" in text


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


def started(project: Project, folder: Path) -> "subprocess.Popen[bytes]":
    """Start qualify and return once the unit that waits is running."""
    child = subprocess.Popen(
        program("qualify", "--jobs", "1"),
        cwd=project.folder,
        env=program_environment(),
        stdout=subprocess.DEVNULL,
    )
    until((folder / "ready").exists, child)
    return child


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
    child = started(project, folder)
    child.kill()
    child.wait()
    until(lambda: not processes_of(folder))
    (folder / "go").touch()
    done = qualify(project, "--jobs", "1")
    assert done.code == 0, done.json
    before = {entry["gate"]: entry["answered_before"] for entry in done.json["gates"]}
    assert before == {"first": True, "second": False, "third": False}
    ran = (folder / "ran").read_text().split()
    assert sorted(ran) == sorted(
        ["first0", "first1", "second0", "second1", "second1", "third0", "third1"]
    )
    # That run is over: its receipts answer, or everything is asked again.
    again = qualify(project)
    assert [entry["source"] for entry in again.json["gates"]] == ["receipt"] * 3
    assert (folder / "ran").read_text().split() == ran
    again = qualify(project, "--jobs", "2", "--run-all")
    assert [entry["source"] for entry in again.json["gates"]] == ["ran"] * 3
    assert len((folder / "ran").read_text().split()) == len(ran) + 6


def test_a_kept_answer_counts_as_far_as_its_receipt_says_it(project, tmp_path):
    folder = tmp_path / "state"
    folder.mkdir()
    add_gate(project, "first", "say(cases(False))")
    script = WAITS.format(folder=str(folder), name="second")
    add_gate(project, "second", script, "units = 2\n")
    ask(project, alpha='{ required = ["first", "second"] }')
    child = started(project, folder)
    child.kill()
    child.wait()
    (folder / "go").touch()
    journal = project.folder / ".stackctl/gates/qualify.json"
    kept = journal.read_text()
    assert '"verdict": "rejected"' in kept
    journal.write_text(kept.replace('"verdict": "rejected"', '"verdict": "qualified"'))
    done = qualify(project)
    assert (done.code, done.json["verdict"]) == (1, "rejected")
    assert [entry["source"] for entry in done.json["gates"]] == ["receipt", "ran"]


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
    child = started(project, folder)
    child.terminate()
    assert child.wait(60) == 130
    assert processes_of(folder) == []
    (folder / "go").touch()
    scripts["first"].write_text(scripts["first"].read_text() + "# changed\n")
    done = qualify(project)
    assert done.code == 0
    assert [entry["answered_before"] for entry in done.json["gates"]] == [False] * 2


# --- receipts -----------------------------------------------------------------------

SPECIAL = '[needs]\ncommands = ["special-hardware"]\n'
FILE = """
found = Path(__file__).with_name("answer").read_text()
say(cases(found == "yes"))
"""


@pytest.fixture
def machine(tmp_path: Path) -> dict[str, str]:
    """The environment of a machine that has what the gate needs."""
    folder = tmp_path / "bin"
    folder.mkdir()
    program = folder / "special-hardware"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    return {"PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"}


@pytest.fixture
def brought(project: Project, machine: dict[str, str]) -> Project:
    """A project with a receipt of another machine: the gate cannot run on this one."""
    add_gate(project, "special", FILE, SPECIAL)
    answer(project, "yes")
    ask(project, alpha='{ required = ["special"] }')
    ran = qualify(project, env=machine)
    assert (ran.code, ran.json["gates"][0]["source"]) == (0, "ran"), ran.json
    return project


def answer(project: Project, text: str) -> None:
    (project.folder / "ci/gates/answer").write_text(text)


def receipts(project: Project) -> list[Path]:
    return sorted((project.folder / "receipts/special").glob("*.json"))


def test_a_receipt_answers_what_cannot_run_here(brought):
    (path,) = receipts(brought)
    done = qualify(brought)
    (row,) = done.json["gates"]
    assert (done.code, done.json["verdict"]) == (0, "qualified")
    assert (row["source"], row["answered_before"]) == ("receipt", False)
    held = read_json(path)["predicate"]
    by = row["answered_by"]
    assert by["digest"] == path.stem and by["file"] == f"receipts/special/{path.name}"
    assert by["started"] == held["run"]["started"] and by["signature"] == "unsigned"
    assert held["scope"]["host"]["cpu"] in by["hardware"]
    assert row["receipt"] == by["file"] and row["ns"] == 0 and row["units"] == 1
    # It does not become a run because one asks for everything.
    assert qualify(brought, "--run-all").json["gates"] == done.json["gates"]
    text = run("qualify", cwd=brought.folder).out
    assert f"receipt {path.stem[:12]}" in text and "unsigned" in text
    assert "1 gate was answered by receipts, not run" in text
    (row,) = qualify(brought, "--dry-run").json["gates"]
    assert row["answered_by"] == by and row["missing"] and not row["runs"]
    assert receipts(brought) == [path]


def edited(path: Path, old: bytes, new: bytes) -> None:
    """Rewrite a receipt by all rules of the format."""
    data = path.read_bytes()
    assert old in data
    data = data.replace(old, new)
    path.unlink()
    path.with_name(f"{hashlib.sha256(data).hexdigest()}.json").write_bytes(data)


def forge(project: Project) -> None:
    edited(receipts(project)[0], b'"equal":true', b'"equal":false')


def change_the_script(project: Project) -> None:
    script = project.folder / "ci/gates/special.py"
    script.write_text(script.read_text() + "# changed\n")


def ask_for_signatures(project: Project) -> None:
    key = "gpg:" + "0123456789ABCDEF" * 2 + "01234567"
    series = project.folder / "series.toml"
    text = f'{series.read_text()}\n[policy]\nreceipt_signers = ["{key}"]\n'
    series.write_text(text)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (forge, "not believed: the verdict is qualified, but its samples give"),
        (change_the_script, "stale: ci/gates/special.py (script): changed"),
        (ask_for_signatures, "not believed: unsigned; the policy asks"),
    ],
)
def test_a_receipt_that_does_not_count_answers_nothing(brought, machine, change, why):
    change(brought)
    done = qualify(brought)
    (row,) = done.json["gates"]
    assert (done.code, row["verdict"], row["source"]) == (8, "not-tested", None)
    assert row["answered_by"] is None and row["receipt"] is None
    assert any(why in reason for reason in row["reasons"]), row["reasons"]
    (row,) = qualify(brought, "--dry-run").json["gates"]
    assert any(why in text for text in row["receipts"])
    # Where it can run, it runs.
    done = qualify(brought, env=machine)
    assert (done.code, done.json["gates"][0]["source"]) == (0, "ran")


def test_a_rejection_is_not_run_away(brought, machine):
    answer(brought, "no")
    assert qualify(brought, "--run-all", env=machine).code == 1
    answer(brought, "yes")
    done = qualify(brought, env=machine)
    assert (done.code, done.json["gates"][0]["source"]) == (1, "receipt")
    done = qualify(brought, "--run-all", env=machine)
    (row,) = done.json["gates"]
    assert (done.code, row["verdict"], row["source"]) == (1, "rejected", "ran")
    assert "a fresh receipt rejects it" in row["reasons"][0]
    rejected = [p for p in receipts(brought) if b'"verdict":"rejected"' in
                p.read_bytes()]  # fmt: skip
    for path in rejected:
        path.unlink()
    assert qualify(brought).code == 0


def test_a_run_that_may_not_be_used_is_no_answer(project):
    add_gate(project, "broken", "print('no')")
    ask(project, alpha='{ required = ["broken"] }')
    for _ in range(2):
        done = qualify(project)
        assert (done.code, done.json["gates"][0]["source"]) == (9, "ran")


def test_without_statistics_the_receipts_that_need_none_answer(
    brought, machine, monkeypatch
):
    from stackctl.errors import UsageError
    from stackctl.gates.receipt import verify

    add_gate(brought, "other", FILE, SPECIAL)
    ask(brought, gamma='{ required = ["other"] }')
    assert qualify(brought, env=machine).code == 0
    real = verify.follows

    def missing(receipt):
        if receipt.gate == "special":
            raise UsageError("scipy is not installed", kind="package-missing")
        return real(receipt)

    monkeypatch.setattr(verify, "follows", missing)
    done = qualify(brought)
    (row, other) = done.json["gates"]
    assert (done.code, row["verdict"], row["source"]) == (8, "not-tested", None)
    assert (other["verdict"], other["source"]) == ("qualified", "receipt")
    why = "its receipts are not judged: scipy is not installed"
    assert why in row["reasons"]
    for option in ([], ["--dry-run"]):
        text = run("qualify", *option, cwd=brought.folder).out
        assert "the receipts of 1 gate are not judged here: pip install" in text


def test_a_bad_file_of_a_gate_keeps_no_other_gate_from_its_answer(project):
    """Nothing is qualified with it, whoever asks for it; the others are told."""
    fill(project)
    folder = project.folder / "ci/gates"
    (folder / "torn.toml").write_text('schema = 1\nkind = "parity"\ntitl = "t"\n')
    ask(project, alpha='{ required = ["good"] }', gamma='{ advisory = ["torn"] }')
    done = qualify(project)
    assert (done.code, done.json["verdict"]) == (3, "not-tested"), done.json
    good, torn = done.json["gates"]
    assert (good["gate"], good["verdict"]) == ("good", "qualified")
    assert (torn["gate"], torn["verdict"], torn["advisory"]) == (
        "torn",
        None,
        ["gamma"],
    )
    assert torn["error"]["kind"] == "bad-gate"
    assert "did you mean `title`" in torn["reasons"][0]
    words = run("qualify", cwd=project.folder)
    assert words.code == 3
    assert "bad files, so nothing is qualified: torn" in words.out
    assert "verdict: not-tested (1 of 1 required gates qualified)" in words.out
    plan = qualify(project, "--dry-run")
    assert plan.code == 3
    assert [row["runs"] for row in plan.json["gates"]] == [False, False]

    # What is worse than not tested stays so; a file that nobody asks for costs nothing.
    ask(project, beta='{ required = ["bad"] }')
    assert qualify(project).json["verdict"] == "rejected"
    only = qualify(project, "--set", "alpha", "-v")
    assert (only.code, only.json["verdict"]) == (0, "qualified")
    assert "torn: bad file, which no set asks for" in only.err


def test_a_bad_file_of_a_gate_is_listed_and_the_others_run(project):
    fill(project)
    (project.folder / "ci/gates/torn.toml").write_text(
        'schema = 1\nkind = 7\ntitle = "t"\n'
    )
    listed = run("gate", "list", "--json", cwd=project.folder)
    assert listed.code == 3
    entries = {entry["name"]: entry for entry in listed.json["gates"]}
    assert entries["good"]["can_run"] and not entries["torn"]["can_run"]
    assert entries["good"]["error"] is None
    assert entries["torn"]["error"]["where"]["line"] == 2
    assert "torn    bad file" in run("gate", "list", cwd=project.folder).out
    assert run("gate", "run", "good", cwd=project.folder).code == 0
    done = run("gate", "run", "good", "torn", "--json", cwd=project.folder)
    assert (done.code, done.json["error"]["kind"]) == (3, "bad-gate")
    doctor = run("doctor", "--json", cwd=project.folder).json
    (torn,) = [gate for gate in doctor["gates"] if gate["name"] == "torn"]
    assert not torn["can_run"] and "torn.toml:2" in torn["missing"][0]


def test_a_gate_that_was_run_again_and_again_shows_it(brought, machine):
    assert qualify(brought).json["gates"][0]["answered_by"]["of"] == 1
    assert "that count" not in run("qualify", cwd=brought.folder).out
    assert qualify(brought, "--run-all", env=machine).code == 0
    assert len(receipts(brought)) == 2
    (row,) = qualify(brought).json["gates"]
    assert (row["source"], row["answered_by"]["of"]) == ("receipt", 2)
    assert "one of 2 that count" in run("qualify", cwd=brought.folder).out


def test_every_row_has_the_same_keys_whatever_answers_it(brought, machine):
    (path,) = receipts(brought)
    held = qualify(brought).json["gates"]
    path.unlink()
    missing = qualify(brought).json["gates"]
    ran = qualify(brought, env=machine).json["gates"]
    assert [row["source"] for row in (*held, *missing, *ran)] == [
        "receipt",
        None,
        "ran",
    ]
    assert held[0].keys() == missing[0].keys() == ran[0].keys()
    (brought.folder / "ci/gates/special.toml").write_text("schema = 1\n")
    (torn,) = qualify(brought).json["gates"]
    assert torn.keys() == {*ran[0], "error"}


def test_damaged_files_beside_a_receipt_are_told(brought, machine):
    assert "damaged" not in run("qualify", cwd=brought.folder).out
    answer(brought, "no")
    qualify(brought, "--run-all", env=machine)
    answer(brought, "yes")
    said = {
        read_json(path)["predicate"]["decision"]["verdict"]
        for path in receipts(brought)
    }
    assert said == {"qualified", "rejected"}
    for path in receipts(brought):
        if b'"equal":false' in path.read_bytes():
            path.write_bytes(path.read_bytes() + b"\n")
    done = qualify(brought)
    assert done.json["gates"][0]["answered_by"]["unread"] == 1
    assert "beside 1 damaged file" in run("qualify", cwd=brought.folder).out


def test_a_journal_that_names_a_stale_receipt_is_not_believed(project, tmp_path):
    folder = tmp_path / "state"
    folder.mkdir()
    first = add_gate(project, "first", "say(cases(True))")
    old = run("gate", "run", "first", "--json", cwd=project.folder).json["receipt"]
    first.write_text(first.read_text().replace("cases(True)", "cases(False)"))
    script = WAITS.format(folder=str(folder), name="second")
    add_gate(project, "second", script, "units = 2\n")
    ask(project, alpha='{ required = ["first", "second"] }')
    child = started(project, folder)
    child.kill()
    child.wait()
    (folder / "go").touch()
    journal = project.folder / ".stackctl/gates/qualify.json"
    kept = json.loads(journal.read_text())
    said = kept["first"]["document"]
    assert said["verdict"] == "rejected"
    (project.folder / said["receipt"]).unlink()
    said.update(verdict="qualified", receipt=old)
    journal.write_text(json.dumps(kept))
    done = qualify(project)
    assert (done.code, done.json["verdict"]) == (1, "rejected")
    assert [entry["source"] for entry in done.json["gates"]] == ["ran", "ran"]


def test_a_gate_of_named_trees_alone_is_run_beside_its_receipts(project):
    tree = run("compose", "--json", cwd=project.folder).json["tree"]
    script = add_gate(project, "named", "say(cases(True))", arms(on=f"tree:{tree}"))
    ask(project, alpha='{ required = ["named"] }')
    assert qualify(project).code == 0
    script.write_text(script.read_text() + "# changed\n")
    done = qualify(project)
    assert (done.code, done.json["gates"][0]["source"]) == (0, "ran"), done.json
