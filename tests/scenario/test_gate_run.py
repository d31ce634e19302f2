# SPDX-License-Identifier: Apache-2.0
"""A team runs gates: what is asked, what bad scripts do, what interruptions leave."""

import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from gating import add_gate, arms, gate_project, processes_of, read_json
from images import build_image, write_layout
from support import Project, program, program_environment, run, until

pytestmark = pytest.mark.usefixtures("short_looks")


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return gate_project(tmp_path / "project")


def gate(project: Project, *args: str, **options):
    return run("gate", "run", *args, "--json", cwd=project.folder, **options)


def test_a_gate_runs_in_its_trees_and_leaves_a_receipt(project):
    add_gate(
        project,
        "texts",
        """
texts = {n: (Path(a["tree"]) / "pkg/core.py").read_text() for n, a in arms.items()}
assert list(arms) == ["base", "on"], arms
assert sys.argv[1:] == [arms["on"]["tree"], "--x"], sys.argv
say(cases("line ten" not in texts["base"], "line ten" in texts["on"]))
""",
        'arguments = ["{tree:on}", "--x"]\n' + arms(base="base", on="upto:alpha"),
    )
    done = gate(project, "texts")
    assert (done.code, done.json["verdict"]) == (0, "qualified"), done.json
    receipt = project.folder / done.json["receipt"]
    held = read_json(receipt)
    text = json.dumps(held)
    composed = run("compose", "--upto", "alpha", "--json", cwd=project.folder).json
    assert composed["tree"] in text and composed["composition"] in text
    assert str(project.folder) not in text
    assert done.json["units"] == 1 and done.json["resumed_units"] == 0
    output = project.folder / done.json["output"]
    assert '"samples"' in (output / "units/0000/stdout").read_text()
    # Nothing of it is for the history, but the receipt.
    assert (project.folder / ".stackctl/gates/.gitignore").read_text() == "*\n"
    # Asked again, it runs again.
    again = gate(project, "texts")
    assert again.json["resumed_units"] == 0 and again.json["output"] != str(output)


@pytest.mark.parametrize(
    ("script", "toml", "code", "words"),
    [
        ("say(cases(True, False))", "", 1, "differ"),
        ("say(cases())", "", 9, ""),
        ("print('rubbish')", "", 9, "its last line cannot be read: not JSON"),
        ("say(cases(True)); print('{')", "", 9, "cannot be read: not JSON"),
        ("say(cases(True)); say(cases(True))", "", 9, "it printed two answers"),
        ("print('[1]')", "", 9, "its answer is no object"),
        ("say({'schema': 2, 'samples': {}})", "", 9, "its `schema` must be 1"),
        ("say({'schema': 1})", "", 9, "either `samples` or `stop`"),
        ("say({**cases(True), 'verdict': 'qualified'})", "", 9, "unknown key"),
        (
            "say({'schema': 1, 'stop': {'verdict': 'qualified', 'reason': 'x'}})",
            "",
            9,
            "`stop.verdict` must be one of",
        ),
        (
            "say({'schema': 1, 'stop': {'verdict': 'not-tested', 'reason': 'off'}})",
            "",
            8,
            "off",
        ),
        ('print(\'{"schema": 1, "samples": NaN}\')', "", 9, "NaN is not a JSON number"),
        ("say({**cases(True), 'extra': {'n': 2**60 + 1}})", "", 9, "beyond 2**53"),
        ("print('[' * 10**6)", "", 9, "cannot be read: nested too deeply"),
        (
            "say({**cases(True), 'extra': {'a': eval('[' * 40 + ']' * 40)}})",
            "",
            9,
            "12 l",
        ),
        ("print('{\"a\": ' + '9' * 5000 + '}')", "", 9, "more digits than any number"),
        (
            "sys.stdout.buffer.write(bytes([255, 10]))",
            "",
            9,
            "its last line cannot be read: not UTF-8",
        ),
        ("os.mkdir(os.environ['STACKCTL_GATE_OUT'])", "", 9, "no regular file"),
        ("os.mkfifo(os.environ['STACKCTL_GATE_OUT'])", "", 9, "no regular file"),
        (
            "os.symlink(__file__, os.environ['STACKCTL_GATE_OUT'])",
            "",
            9,
            "cannot be read",
        ),
        ("pass", "", 9, "it printed nothing"),
        ("say(cases(True)); sys.exit(4)", "", 9, "exit code 4"),
        ("{}['depth']", "", 9, "ended with exit code 1: KeyError: 'depth'"),
        ("os.kill(os.getpid(), 9)", "", 9, "killed by signal 9"),
        ("import time; time.sleep(600)", "[limits]\nseconds = 1", 9, "longer than 1 s"),
        (
            "x = [b'x' * (1 << 20)]\nwhile True: x.append(bytes(x[0]) + b'y')",
            "[limits]\nmemory_mib = 100",
            9,
            "",
        ),
        (
            "while True: print('x' * 9999)",
            "[limits]\noutput_mib = 1",
            9,
            "printed more than 1 MiB",
        ),
        (
            "say(cases(True))\n(Path(arms['on']['tree']) / 'new').write_text('x')",
            "",
            9,
            "the tree of arm on was changed",
        ),
        (
            "say(cases(True))\nopen(__file__, 'a').write('# more')",
            "",
            9,
            "files that the gate is bound to were changed",
        ),
        ("say(cases(True))", '[needs]\npackages = ["no-such-thing>=1"]', 8, "not inst"),
        ("say(cases(True))", '[needs]\ncommands = ["no-such-tool"]', 8, "no-such-tool"),
        ("say(cases(True))", '[needs]\nparameters = ["site"]', 8, "`--site`"),
    ],
)
def test_what_a_script_does_decides_the_verdict(project, script, toml, code, words):
    add_gate(project, "odd", script, toml)
    done = gate(project, "odd")
    assert done.code == code, done.json
    verdicts = {0: "qualified", 1: "rejected", 8: "not-tested", 9: "invalid"}
    assert done.json["verdict"] == verdicts[code]
    told = " ".join([*done.json["reasons"], *done.json["problems"]])
    assert words in told, done.json
    assert processes_of(project.folder) == []


def test_a_person_sees_what_a_failed_unit_said_last(project):
    add_gate(
        project,
        "fails",
        "import time\n"
        "print('step 1\\rstep 2', file=sys.stderr)\n"
        "print('\\x1b[2J\\x1b[31mred\\x1b[0m \\a', file=sys.stderr)\n"
        "sys.stderr.flush(); print('x' * (2 << 20), flush=True); time.sleep(600)",
        # Ended from outside, and only once it has said its words.
        "[limits]\noutput_mib = 1",
    )
    shown = run("gate", "run", "fails", cwd=project.folder).out
    lines = shown.splitlines()
    at = next(n for n, line in enumerate(lines) if "said last, in" in line)
    assert lines[at].strip() == (
        "unit 0 said last, in .stackctl/gates/fails/000001/units/0000/stderr:"
    )
    assert lines[at + 1 : at + 3] == ["    | step 2", "    | red \\x07"]
    told = run("gate", "run", "fails", "--json", cwd=project.folder)
    assert "step 2" not in (project.folder / told.json["receipt"]).read_text()


SPOIL = """
import shutil, socket
tree = Path(arms["on"]["tree"])
{what}
say(cases(True))
"""


@pytest.mark.parametrize(
    ("what", "code"),
    [
        ("(tree / 'README.md').write_text('x')", 9),
        ("(tree / 'pkg/core.py').chmod(0o755)", 9),
        ("os.mkfifo(tree / 'pkg/fifo')", 9),
        ("os.chdir(tree); socket.socket(socket.AF_UNIX).bind('socket')", 9),
        ("shutil.rmtree(tree)", 9),
        ("shutil.rmtree(tree); tree.write_text('x')", 9),
        ("shutil.move(tree, f'{tree}-x'); tree.symlink_to(f'{tree}-x')", 9),
        ("shutil.move(tree / 'pkg', tree / 'x'); (tree / 'pkg').symlink_to('x')", 9),
        # git knows no empty folder, and Python would import it.
        ("(tree / 'pkg/empty/deep').mkdir(parents=True)", 0),
    ],
)
def test_a_changed_tree_is_made_anew_for_the_next_gate(project, what, code):
    add_gate(project, "spoils", SPOIL.format(what=what))
    add_gate(
        project,
        "reads",
        "tree = Path(arms['on']['tree'])\n"
        "names = sorted(p.relative_to(tree).as_posix() for p in tree.rglob('*'))\n"
        "plain = not tree.is_symlink() and not (tree / 'pkg').is_symlink()\n"
        "mode = (tree / 'pkg/core.py').stat().st_mode & 0o777\n"
        "say({**cases(plain), 'notes': names, 'extra': {'mode': mode}})",
    )
    before = gate(project, "reads").json["receipt"]
    assert gate(project, "spoils").code == code
    after = gate(project, "reads")
    assert after.code == 0, after.json
    seen = [
        read_json(project.folder / each)["predicate"]["units"][0]["answer"]
        for each in (before, after.json["receipt"])
    ]
    assert seen[0] == seen[1]


def test_no_variable_of_the_user_reaches_a_unit(project, tmp_path):
    add_gate(
        project,
        "shows",
        "say({**cases(True), 'extra': {}})\nopen(os.environ['STACKCTL_GATE_DIR'] + "
        "'/env', 'w').write(json.dumps(dict(os.environ)))",
        'env = { SWITCH = "1" }\n[arms.on]\ntree = "base"\nenv = { ARM = "2" }',
    )
    hostile = {
        "HOME": str(tmp_path),
        "GITHUB_TOKEN": "secret-token",
        "HF_TOKEN": "secret-token",
        "SSH_AUTH_SOCK": "/tmp/agent",
        "LD_PRELOAD": "",
        "PYTHONSTARTUP": "/tmp/startup.py",
        "PYTHONOPTIMIZE": "1",
        "VLLM_USE_V1": "0",
        "CUDA_VISIBLE_DEVICES": "3",
        "TRITON_INTERPRET": "1",
        "LC_ALL": "C",
        "TZ": "Asia/Tokyo",
    }
    done = gate(project, "shows", env={**hostile})
    assert done.code == 0, done.out + done.err
    env = read_json(project.folder / done.json["output"] / "units/0000/env")
    assert "secret-token" not in json.dumps(env)
    for name in ("GITHUB_TOKEN", "HF_TOKEN", "SSH_AUTH_SOCK", "VLLM_USE_V1"):
        assert name not in env
    assert "PYTHONOPTIMIZE" not in env and "TRITON_INTERPRET" not in env
    assert env["HOME"].startswith(str(project.folder / ".stackctl"))
    assert (env["TZ"], env["LC_ALL"]) == ("UTC", "C.UTF-8")
    assert env["CUDA_VISIBLE_DEVICES"] == ""
    assert (env["SWITCH"], env["ARM"]) == ("1", "2")
    known = {"PATH", "LD_LIBRARY_PATH", "CUDA_HOME", "CUDA_PATH", "SWITCH", "ARM"}
    from stackctl.gates.units import CACHES, FIXED

    rest = {n for n in env if not n.startswith("STACKCTL_GATE_")} - known
    assert rest <= {*FIXED, *CACHES, "HOME", "TMPDIR", "CUDA_VISIBLE_DEVICES"}
    receipt = (project.folder / done.json["receipt"]).read_text()
    assert "secret-token" not in receipt and str(tmp_path) not in receipt


COUNTS = """
import time
folder = Path({folder!r})
unit = os.environ["STACKCTL_GATE_UNIT"]
(folder / "started").open("a").write(unit + "\\n")
if unit == "2" and not (folder / "go").exists():
    import subprocess
    code = "import signal, time; signal.signal(15, 1); time.sleep(600)"
    subprocess.Popen([sys.executable, "-I", "-c", code, {folder!r}],
                     start_new_session=True)
    (folder / "ready").touch()
    time.sleep(600)
say({{"schema": 1, "samples": {{"cases": [
    {{"id": unit, "equal": True, "elements": 1, "differing": 0}}]}}}})
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_is_taken_up_where_it_stood(project, tmp_path, number):
    folder = tmp_path / "state"
    folder.mkdir()
    script = add_gate(project, "long", COUNTS.format(folder=str(folder)), "units = 4\n")
    child = subprocess.Popen(
        program("gate", "run", "long", "--json"),
        cwd=project.folder,
        env=program_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        # Ctrl-C is ignored in what a shell starts in the background, and stays so.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    until((folder / "ready").exists, child)
    child.send_signal(number)
    out, _ = child.communicate(timeout=300)
    if number != signal.SIGKILL:
        assert child.returncode == 130
        assert json.loads(out)["error"]["kind"] == "interrupted"
    until(lambda: not processes_of(folder))
    (folder / "go").touch()
    done = gate(project, "long")
    assert (done.code, done.json["units"], done.json["resumed_units"]) == (0, 4, 2)
    started = (folder / "started").read_text().split()
    assert sorted(started) == ["0", "1", "2", "2", "3"]

    # Once more interrupted; then the script is another one.
    for name in ("go", "ready", "started"):
        (folder / name).unlink()
    child = subprocess.Popen(
        program("gate", "run", "long"), cwd=project.folder, env=program_environment()
    )
    until((folder / "ready").exists, child)
    child.kill()
    child.wait()
    (folder / "go").touch()
    script.write_text(script.read_text() + "\n# changed\n")
    done = gate(project, "long", "-v")
    assert (done.code, done.json["resumed_units"]) == (0, 0)
    assert "starts anew" in done.err and "changed: files" in done.err
    assert sorted((folder / "started").read_text().split()) == list("0011223")


TIMED = """
import random
unit = int(os.environ["STACKCTL_GATE_UNIT"])
draw = random.Random(unit)
noise = [draw.gauss(0, 0.01) for _ in range(8)]
order = ["base", "on", "on", "base"] * 2
values = {
    "base": [100 + noise[n] for n, arm in enumerate(order) if arm == "base"],
    "on": [50 + noise[n] for n, arm in enumerate(order) if arm == "on"],
}
say({"schema": 1, "samples": {"cells": {"c": {"order": order, "values": values}}}})
"""
CLAIM = """
[rule]
statistic = "paired-log-ratio"
host_load_limit = 100.0
[[claim]]
name = "gain"
cell = "c"
arm = "on"
against = "base"
margin = 0.08
"""


def test_a_run_that_a_look_had_decided_does_not_go_on(project):
    """Killed after the last unit of a look, it ends there when it is taken up."""
    both = arms(base="base", on="composed")
    add_gate(project, "fast", TIMED, CLAIM + both, kind="kernel")
    first = gate(project, "fast")
    assert (first.code, first.json["units"]) == (0, 6), first.json
    receipt = project.folder / first.json["receipt"]
    kept = receipt.read_bytes()
    assert json.loads(kept)["predicate"]["scope"]["versions"]["git"].startswith("2.")
    receipt.unlink()
    (project.folder / first.json["output"] / "finished.json").unlink()
    again = gate(project, "fast")
    assert (again.json["units"], again.json["resumed_units"]) == (6, 6)
    assert receipt.read_bytes() == kept


@pytest.mark.parametrize("asked", [["--fresh"], ["--seed", "5"]])
def test_what_is_thrown_away_is_told(project, tmp_path, asked):
    folder = tmp_path / "state"
    folder.mkdir()
    add_gate(project, "long", COUNTS.format(folder=str(folder)), "units = 4\n")
    child = subprocess.Popen(
        program("gate", "run", "long"), cwd=project.folder, env=program_environment()
    )
    until((folder / "ready").exists, child)
    child.kill()
    child.wait()
    (folder / "go").touch()
    done = gate(project, "long", *asked)
    assert (done.code, done.json["resumed_units"]) == (0, 0)
    told = "an interrupted run with 2 finished units was thrown away before this one"
    assert done.json["limitations"] == [told]
    assert gate(project, "long").json["limitations"] == []


def test_tests_do_not_run_in_what_is_no_tree(project):
    add_gate(project, "own", toml='[tests]\npaths = ["tests"]\n', kind="tests")
    done = gate(project, "own", "--arm", "on=external")
    assert (done.code, done.json["error"]["kind"]) == (2, "bad-arm")


def test_a_gate_runs_only_once_at_a_time(project, tmp_path):
    folder = tmp_path / "state"
    folder.mkdir()
    add_gate(project, "long", COUNTS.format(folder=str(folder)), "units = 4\n")
    child = subprocess.Popen(
        program("gate", "run", "long"), cwd=project.folder, env=program_environment()
    )
    try:
        until((folder / "ready").exists, child)
        refused = gate(project, "long")
        assert refused.code == 2 and refused.json["error"]["kind"] == "gate-running"
    finally:
        child.kill()
        child.wait()


def test_units_share_the_work_side_by_side(project):
    add_gate(
        project,
        "shares",
        "unit = os.environ['STACKCTL_GATE_UNIT']\n"
        "say({'schema': 1, 'samples': {'cases': [{'id': unit, 'equal': True, "
        "'elements': 1, 'differing': 0}]}})",
        "units = 3\nparallel = 3\n",
    )
    done = gate(project, "shares")
    assert (done.code, done.json["units"]) == (0, 3), done.json


def test_another_tree_for_an_arm(project):
    add_gate(
        project,
        "ten",
        "say(cases('line ten' in (Path(arms['on']['tree']) / 'pkg/core.py')"
        ".read_text()))",
    )
    assert gate(project, "ten").code == 0
    assert gate(project, "ten", "--arm", "on=base").code == 1
    assert gate(project, "ten", "--arm", "on=only:gamma").code == 1
    assert gate(project, "ten", "--arm", "off=base").code == 2
    assert gate(project, "ten", "--arm", "on=alpha").code == 2


def test_unknown_gates_and_missing_files_are_told(project):
    add_gate(project, "here", "say(cases(True))", 'files = ["ci/gates/data.json"]\n')
    unknown = gate(project, "her")
    assert (
        unknown.code == 2 and "did you mean `here`" in unknown.json["error"]["message"]
    )
    missing = gate(project, "here")
    assert missing.code == 3 and missing.json["error"]["kind"] == "file-missing"


@pytest.mark.parametrize(
    ("toml", "kind", "reasons"),
    [
        ("", "parity", ["there is no file ci/gates/odd.py"]),
        ('files = ["a.txt"]', "parity", ["no file ci/gates/odd.py", "no file a.txt"]),
        (
            'pythonpath = ["lib"]',
            "parity",
            ["no file ci/gates/odd.py", "no folder lib"],
        ),
        (
            arms(on="only:alpha,alpa"),
            "parity",
            ["no file", "the series has no set alpa"],
        ),
        ('[tests]\nof = "alpa"', "tests", ["the series has no set alpa"]),
        ("", "image", ["the series names no image"]),
    ],
)
def test_what_a_gate_names_and_is_not_there_is_listed(project, toml, kind, reasons):
    script = "say(cases(True))" if kind == "parity" else ""
    path = add_gate(project, "odd", script, toml, kind)
    path.unlink(missing_ok=True)
    (listed,) = run("gate", "list", "--json", cwd=project.folder).json["gates"]
    assert not listed["can_run"] and len(listed["missing"]) == len(reasons)
    for reason, found in zip(reasons, listed["missing"], strict=True):
        assert reason in found
    looked = run("doctor", "--json", cwd=project.folder).json["gates"]
    assert looked[0]["missing"] == listed["missing"]
    assert gate(project, "odd").code != 0


def test_a_python_that_does_not_start_is_listed_for_all_that_need_it(project):
    add_gate(project, "script", "say(cases(True))")
    add_gate(project, "tests", toml='[tests]\npaths = ["tests"]\n', kind="tests")
    nowhere = str(project.folder / "no/python")
    listed = run("gate", "list", "--json", "--python", nowhere, cwd=project.folder)
    for entry in listed.json["gates"]:
        (reason,) = entry["missing"]
        assert reason.startswith("Python does not start: ")
    done = gate(project, "script", "--python", nowhere)
    assert (done.code, done.json["verdict"]) == (8, "not-tested")


def test_a_python_without_pytest_is_listed(project, tmp_path):
    add_gate(project, "tests", toml='[tests]\npaths = ["tests"]\n', kind="tests")
    subprocess.run(
        [sys.executable, "-m", "venv", "--without-pip", tmp_path / "bare"], check=True
    )
    bare = str(tmp_path / "bare/bin/python")
    listed = run("gate", "list", "--json", "--python", bare, cwd=project.folder)
    assert listed.json["gates"][0]["missing"] == ["not installed: pytest"]


def test_several_gates_give_a_list_and_the_worst_code(project):
    add_gate(project, "good", "say(cases(True))")
    add_gate(project, "bad", "say(cases(False))")
    add_gate(project, "absent", "say(cases(True))", '[needs]\ncommands = ["nothing-"]')
    done = gate(project, "good", "bad", "absent")
    assert done.code == 1
    assert [each["verdict"] for each in done.json] == [
        "qualified",
        "rejected",
        "not-tested",
    ]
    listing = run("gate", "list", "--json", cwd=project.folder).json["gates"]
    assert {each["name"]: each["can_run"] for each in listing} == {
        "absent": False,
        "bad": True,
        "good": True,
    }


TEST_FILE = """
import os, pytest
def test_good(): assert os.environ["SWITCH"] == "1"
@pytest.mark.skipif({skip}, reason="not here")
def test_more(): assert {more}
"""


@pytest.mark.parametrize(
    ("skip", "more", "path", "code", "verdict"),
    [
        (False, True, "tests", 0, "qualified"),
        (False, False, "tests", 1, "rejected"),
        (True, True, "tests", None, None),
        (False, True, "tests/test_x.py::test_good", 0, "qualified"),
        (False, True, "pkg", 9, "invalid"),
        (False, True, "tests/test_none.py", 9, "invalid"),
    ],
)
def test_a_selection_of_pytest(tmp_path, skip, more, path, code, verdict):
    project = gate_project(tmp_path / "project")
    project.add(
        "delta",
        ("tests", {"tests/test_x.py": TEST_FILE.format(skip=skip, more=more)}),
    ).save()
    add_gate(
        project,
        "selected",
        toml=f'env = {{ SWITCH = "1" }}\n[tests]\npaths = ["{path}"]\n',
        kind="tests",
    )
    done = gate(project, "selected")
    if verdict is None:  # a skip is never a pass
        assert done.json["verdict"] != "qualified", done.json
    else:
        assert (done.code, done.json["verdict"]) == (code, verdict), done.json


def test_the_tests_of_a_set(tmp_path):
    project = gate_project(tmp_path / "project")
    project.add("delta", ("d", {"tests/test_d.py": "def test_d(): pass"})).save()
    project.add("omega", ("o", {"tests/test_o.py": "def test_o(): assert 0"})).save()
    for name in ("delta", "omega", "gamma"):
        add_gate(project, name, toml=f'[tests]\nof = "{name}"\n', kind="tests")
    assert gate(project, "delta").code == 0
    assert gate(project, "omega").code == 1
    lost = gate(project, "delta", "--arm", "on=base")
    assert lost.code == 9 and "1 of the 1 test files" in lost.json["reasons"][0]
    none = gate(project, "gamma")
    assert none.code == 9 and "brings no test file" in none.json["reasons"][0]


def test_a_busy_project_folder_does_not_matter(project):
    """The unit's working folder is its own, and it can write there."""
    add_gate(
        project,
        "writes",
        "open('here', 'w').write('x')\nassert Path.cwd() == "
        "Path(os.environ['STACKCTL_GATE_DIR'])\nsay(cases(True))",
    )
    done = gate(project, "writes")
    assert done.code == 0
    output = project.folder / done.json["output"]
    assert (output / "units/0000/here").read_text() == "x"
    assert not (output / "cache").exists()
    assert os.listdir(output / "units/0000") != []


@pytest.mark.parametrize(
    ("tree", "code", "verdict"),
    [("composed", 0, "qualified"), ("base", 1, "rejected"), (None, 8, "not-tested")],
)
def test_the_images_of_the_series(tmp_path, tree, code, verdict):
    project = gate_project(tmp_path / "project")
    root = tmp_path / "root"
    if tree is not None:
        options = ["--base-only"] if tree == "base" else []
        out = root / "opt/fork"
        out.parent.mkdir(parents=True)
        run("compose", *options, "--out", out, cwd=project.folder)
        series = project.folder / "series.toml"
        series.write_text(
            f'{series.read_text()}\n[[image]]\nref = "rootfs:{root}"\n'
            'platform = "linux/amd64"\n'
            'roots = [{ tree = ".", path = "/opt/fork", kind = "checkout" }]\n'
        )
    add_gate(project, "release-image", kind="image")
    done = gate(project, "release-image")
    assert (done.code, done.json["verdict"]) == (code, verdict), done.json
    if tree == "base":
        assert gate(project, "release-image", "--arm", "on=base").code == 0


@pytest.mark.parametrize("of", ["series", "gate"])
def test_the_receipt_of_an_image_names_its_digest(tmp_path, of):
    project = gate_project(tmp_path / "project")
    out = tmp_path / "fork"
    run("compose", "--out", out, cwd=project.folder)
    layer = io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w") as archive:
        archive.add(out, "opt/fork")
    image = build_image([layer.getvalue()])
    ref = f"oci:{write_layout(tmp_path / 'image', image)}:latest"
    root = '{ tree = ".", path = "/opt/fork", kind = "checkout" }'
    table = f'[image]\nref = "{ref}"\noptions = ["--root", ".=/opt/fork"]\n'
    if of == "series":
        series = project.folder / "series.toml"
        entry = f'\n[[image]]\nref = "{ref}"\nroots = [{root}]\n'
        series.write_text(series.read_text() + entry)
    add_gate(project, "release-image", toml=table if of == "gate" else "", kind="image")
    done = gate(project, "release-image")
    assert done.code == 0, done.json
    held = read_json(project.folder / done.json["receipt"])
    assert held["predicate"]["bound"]["image"] == image.manifest
    digest = image.manifest.removeprefix("sha256:")
    assert {"name": "image", "digest": {"sha256": digest}} in held["subject"]
    fresh = run("receipt", "stale", "--json", cwd=project.folder)
    assert fresh.code == 0, fresh.out
    # What lies there now counts, not what lay there: the name stays.
    layout, moved = tmp_path / "image", tmp_path / "moved"
    layout.rename(moved)
    unknown = run("receipt", "stale", "--json", cwd=project.folder)
    assert unknown.code == 1 and "whether it is still the same" in unknown.out
    write_layout(layout, build_image([layer.getvalue()], run={"User": "other"}))
    other = run("receipt", "stale", "--json", cwd=project.folder)
    assert other.code == 1 and f'was \\"{image.manifest}' in other.out, other.out
    shutil.rmtree(layout)
    moved.rename(layout)
    assert run("receipt", "stale", cwd=project.folder).code == 0
    # Another image of the series: it matters where that is what was verified.
    series = project.folder / "series.toml"
    text = series.read_text()
    other = text.replace(":latest", "@sha256:" + "0" * 64)
    series.write_text(f'{text}\n[[image]]\nref = "{ref}x"\nroots = [{root}]\n')
    if of == "series":
        series.write_text(other)
    found = run("receipt", "stale", "--json", cwd=project.folder)
    assert found.code == (1 if of == "series" else 0), found.out
    assert ("generated:images" in found.out) == (of == "series")


def test_a_receipt_names_the_sets_that_asked(project):
    for name in ("one", "two", "none"):
        add_gate(project, name, "say(cases(True))")
    series = project.folder / "series.toml"
    text = series.read_text()
    text = text.replace(
        'name = "alpha"', 'name = "alpha"\ngates = { advisory = ["two"] }'
    )
    text = text.replace(
        'name = "gamma"',
        'name = "gamma"\ngates = { required = ["two"], advisory = ["one"] }',
    )
    series.write_text(text)
    asked = []
    for name in ("one", "two", "none"):
        path = project.folder / gate(project, name).json["receipt"]
        asked.append(read_json(path)["predicate"]["gate"].get("set"))
    assert asked == ["gamma", ["gamma", "alpha"], None]
    shown = run("receipt", "show", "two", cwd=project.folder).out
    assert "for the sets gamma, alpha" in shown
    assert run("receipt", "verify", cwd=project.folder).code == 0


def test_what_a_person_reads(project):
    own = 'found["samples"]["cases"][0]["id"] = os.environ["STACKCTL_GATE_UNIT"]'
    script = f"found = cases(True)\n{own}\nsay(found)"
    add_gate(project, "good", script, "units = 2\n")
    add_gate(project, "absent", "say(cases(True))", '[needs]\ncommands = ["nothing-"]')
    done = run("gate", "run", "good", "absent", cwd=project.folder)
    assert done.code == 8
    first, *rest = done.out.splitlines()
    assert re.fullmatch(r"good: qualified \(2 units, [0-9]+ s\)", first)
    assert any(line.startswith("  receipt: receipts/good/") for line in rest)
    at = rest.index("absent: not-tested")
    assert rest[at + 1 :] == [
        "  the program nothing- is not on the path",
        "  for another machine: stackctl gate pack absent --out DIR --lib",
    ]
