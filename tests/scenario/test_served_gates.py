# SPDX-License-Identifier: Apache-2.0
"""A team measures a server's speed and its answers, on the command line."""

import json
from hashlib import sha256
from pathlib import Path

import pytest
from faulty_server import Script, faulty_server
from faulty_server import __file__ as FAULTY
from gating import gate_project, processes_of
from support import Project, run

from stackctl.model.canonical import canonical_json

pytestmark = pytest.mark.usefixtures("short_looks")

SAYS = "INFO line ten is served slowly."

# A server that is slow where the patch is in its tree, and says so there.
LAUNCH = f"""\
import json, os, sys
tree, port, script = sys.argv[1:]
script = json.loads(script)
slow = "line ten" in open(tree + "/pkg/core.py").read()
slow_s = script.pop("slow_s", 0.1)
script["gap_s"] = slow_s if slow else script.pop("gap_s", 0.002)
script.setdefault("says", [{SAYS!r} + "\\n"] if slow else [])
os.execv(sys.executable, [
    sys.executable, {FAULTY!r}, "--port", port, "--script", json.dumps(script)
])
"""

SERVING = """\
schema = 1
kind = "serving"
title = "speed"
[arms]
base = {{ tree = "base" }}
on = {{ tree = "upto:alpha" }}
[rule]
statistic = "paired-log-ratio"
blocks = true
pairs = 6
looks = 1
engaged = ["on"]
control_confidence = 0.999
host_load_limit = 100.0
load_imbalance_limit = 100.0
[[claim]]
name = "tokens"
cell = "c2/ctx32:tokens_per_s"
arm = "on"
against = "base"
better = "higher"
margin = -0.8
[serving]
server = ["{{python}}", "{{project}}/launch.py", "{{tree}}", "{{port}}", '{script}']
sample_milliseconds = 50
lag_milliseconds = 60_000
fill_percent = 20
warmup = 0
drain_seconds = {drain}
[[serving.engagement]]
arm = "on"
feature = "line-ten"
log = "line ten is * slowly"
[[serving.cell]]
concurrency = 2
context = 32
output = 8
requests = 4
"""

ACCURACY = """\
schema = 1
kind = "accuracy"
title = "answers"
[arms]
base = {{ tree = "base" }}
on = {{ tree = "upto:alpha" }}
[rule]
statistic = "paired-difference"
blocks = true
pairs = 1
looks = 1
engaged = ["on"]
[[claim]]
name = "right"
arm = "on"
against = "base"
better = "higher"
margin = -0.05
[accuracy]
server = ["{{python}}", "{{project}}/launch.py", "{{tree}}", "{{port}}", '{script}']
[[accuracy.engagement]]
arm = "on"
feature = "line-ten"
log = "line ten is * slowly"
[[accuracy.set]]
kind = "ledger"
items = 4
tokens = 500
"""

BY_METRIC = ('log = "line ten is * slowly"', 'metric = "faulty:forks_total"')
"""What a server at an address can show as well."""


@pytest.fixture
def project(tmp_path: Path) -> Project:
    made = gate_project(tmp_path / "project")
    (made.folder / "launch.py").write_text(LAUNCH)
    return made


def add(project: Project, name: str, text: str, drain: int = 60, **script) -> None:
    if text is SERVING:
        # Long enough that a busy machine's samples meet it at work.
        script.setdefault("gap_s", 0.02)
    quoted = json.dumps(script).replace("{", "{{").replace("}", "}}")
    folder = project.folder / "ci/gates"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.toml"
    path.write_text(text.format(script=quoted, drain=drain))


def gate(project: Project, *args: str, **options):
    return run("gate", "run", *args, "--json", cwd=project.folder, **options)


def test_a_planted_slowdown_is_refused_and_the_control_passes(project) -> None:
    add(project, "speed", SERVING, gap_s=0.01, slow_s=0.2)
    done = gate(project, "speed")
    assert (done.code, done.json["verdict"]) == (1, "rejected"), done.json
    assert done.json["units"] == 18
    (claim,) = done.json["claims"]
    assert claim["pairs"] == 6
    # 10 ms a token against 200: whatever else the machine does, more than twice.
    assert claim["high"] < -0.69
    # The reference against itself: the control of the same run.
    assert claim["control"]["low"] <= 0 <= claim["control"]["high"]
    receipt = project.folder / done.json["receipt"]
    text = receipt.read_text()
    assert str(project.folder) not in text and "127.0.0.1" not in text
    assert '"tokens_per_s"' in text and '"ttft_ns"' in text
    shown = run("receipt", "show", str(receipt), cwd=project.folder).out
    assert "on    line-ten (log)  1 in each of 6 units" in shown
    assert "base  line-ten (log)  0 in each of 12 units" in shown
    checked = run("receipt", "verify", str(receipt), "--json", cwd=project.folder)
    assert checked.code == 0, checked.json
    for change, told in FORGED:
        forged = rewritten(receipt, change)
        found = run("receipt", "stale", str(forged), "--json", cwd=project.folder)
        assert found.code == 1, found.json
        assert found.json["receipts"][0]["reasons"] == told
        forged.unlink()


def rename(predicate) -> None:
    """Say that another feature was looked for."""
    for unit in predicate["units"]:
        for found in unit["answer"]["engagement"].values():
            found["features"][0]["feature"] = "line-two"


def forget(predicate) -> None:
    """Say that nothing had to be looked for."""
    predicate["bound"]["rule"]["engaged"] = []
    for unit in predicate["units"]:
        del unit["answer"]["engagement"]


def try_out(predicate) -> None:
    """Say that the arm is the one that a bisection tries."""
    predicate["bound"]["arms"]["on"]["definition"] = "candidate"


LACKS = "the gate has line-ten (log)"
FORGED = [
    (
        rename,
        [
            f"features: unit 0 of the arm base looked for line-two (log), {LACKS}",
            f"features: unit 1 of the arm on looked for line-two (log), {LACKS}",
        ],
    ),
    (
        forget,
        [
            f"features: unit 0 of the arm base looked for none, {LACKS}",
            f"features: unit 1 of the arm on looked for none, {LACKS}",
            'rule: `engaged` was [], is ["on"] now',
        ],
    ),
    (
        try_out,
        [
            "arm on (candidate): the series has no such set any more",
            "arm on: was candidate, the gate has upto:alpha",
        ],
    ),
]
"""What somebody wrote into a receipt, and what is said of it."""


def rewritten(path: Path, change) -> Path:
    """Return a receipt with other content, under its own name."""
    statement = json.loads(path.read_bytes())
    change(statement["predicate"])
    data = canonical_json(statement) + b"\n"
    forged = path.with_name(f"{sha256(data).hexdigest()}.json")
    forged.write_bytes(data)
    return forged


def test_a_bisection_asks_only_whether_a_server_is_worse(project) -> None:
    """Trees before the culprit do not have what the gate's arm must show."""
    wrong = 'script["tokens"] = ["none"] if slow else ["ANSWER: 5"]\n'
    (project.folder / "launch.py").write_text(
        LAUNCH.replace("os.execv", wrong + "os.execv")
    )
    near = ACCURACY.replace(
        "margin = -0.05", 'margin = -0.05\nright = ["exact", "near"]'
    )
    add(project, "answers", near.replace("items = 4", "items = 12\nnear = 100"))
    ends = ("--good", "base", "--bad", "alpha")
    done = run("bisect", "--gate", "answers", *ends, "--json", cwd=project.folder)
    assert done.code == 0, done.out + done.err
    assert done.json["culprit"]["set"] == "alpha"
    assert done.json["good"]["why"].startswith("the good end against itself")
    receipt = json.loads(Path(done.json["bad"]["receipt"]).read_bytes())
    arms = receipt["predicate"]["bound"]["arms"]
    assert (arms["on"]["definition"], arms["base"]["definition"]) == (
        "candidate",
        "base",
    )


def test_a_busy_server_is_refused(project) -> None:
    add(project, "speed", SERVING, drain=1, foreign_running=1)
    done = gate(project, "speed")
    assert (done.code, done.json["verdict"]) == (9, "invalid")
    assert "busy server" in json.dumps(done.json["reasons"])
    assert done.json["units"] == 1
    assert processes_of(project.folder) == []


@pytest.mark.parametrize(("name", "units"), [("speed", 3), ("answers", 3)])
@pytest.mark.parametrize(
    ("says", "why"),
    [
        ([], 'line-ten never engaged in the arm "on": no line of its server says so'),
        ([SAYS], 'line-ten engaged in the reference arm "base" as well'),
    ],
)
def test_a_feature_that_is_off_or_on_in_both_arms_is_not_tested(
    project, name, units, says, why
) -> None:
    add(project, "speed", SERVING, says=says)
    add(project, "answers", ACCURACY, says=says, tokens=["ANSWER: 1"])
    done = gate(project, name)
    assert (done.code, done.json["verdict"]) == (8, "not-tested"), done.json
    assert done.json["units"] == units  # not six blocks: nothing would come of them
    assert why in done.json["reasons"][0]
    receipt = project.folder / done.json["receipt"]
    checked = run("receipt", "verify", str(receipt), "--json", cwd=project.folder)
    assert checked.code == 0, checked.json


def test_a_composed_server_that_declares_nothing_is_not_tested(project) -> None:
    text = ACCURACY.replace('engaged = ["on"]\n', "").replace(
        '[[accuracy.engagement]]\narm = "on"\nfeature = "line-ten"\n'
        'log = "line ten is * slowly"\n',
        "",
    )
    add(project, "answers", text, tokens=["ANSWER: 1"])
    add(project, "fine", SERVING)
    listed = run("gate", "list", "--json", cwd=project.folder).json["gates"]
    found = {entry["name"]: entry for entry in listed}
    assert (found["answers"]["unshown"], found["fine"]["unshown"]) == (["on"], [])
    assert found["fine"]["arms"][1]["engagement"] == [
        {"arm": "on", "feature": "line-ten", "log": "line ten is * slowly"}
    ]
    words = run("gate", "list", cwd=project.folder).out
    assert words.count("not-tested in any case: nothing shows what on has on") == 1
    done = gate(project, "answers")
    assert (done.code, done.json["verdict"]) == (8, "not-tested")
    assert "declare in [[accuracy.engagement]]" in done.json["reasons"][0]


def test_servers_at_addresses_are_no_trees_of_ours(project) -> None:
    """Whatever the gate has in their place: nobody vouches for what they run."""
    add(project, "speed", SERVING)
    # No answer of the arm is right, which would be a rejection of a tree of ours.
    text = ACCURACY.replace("items = 4", "items = 12\nnear = 100").replace(*BY_METRIC)
    text = text.replace("margin = -0.05", 'margin = -0.05\nright = ["exact", "near"]')
    add(project, "answers", text)
    forks = list(range(1000))
    with (
        faulty_server(Script(gap_s=0.02, tokens=["ANSWER: 5"])) as base,
        faulty_server(Script(gap_s=0.02, tokens=["none"], forks=forks)) as on,
        faulty_server(Script(gap_s=0.02)) as fast,
    ):
        urls = [f"on=http://127.0.0.1:{on.port}/v1"]
        urls.append(f"base=http://127.0.0.1:{base.port}/v1")
        shown = gate(project, "answers", "--base-url", " ".join(urls))
        asked = gate(project, "speed", "--base-url", f"http://127.0.0.1:{fast.port}/v1")
    assert (asked.code, asked.json["verdict"]) == (8, "not-tested")
    assert "what a server at an address writes" in asked.json["reasons"][0]
    assert (shown.code, shown.json["verdict"]) == (7, "insufficient-evidence"), (
        shown.out
    )
    (claim,) = shown.json["claims"]
    assert claim["high"] < -0.05  # worse than what is allowed, whatever it was
    assert "nothing binds the arm" in json.dumps(shown.json["reasons"])
    receipt = json.loads((project.folder / shown.json["receipt"]).read_bytes())
    for arm in receipt["predicate"]["bound"]["arms"].values():
        assert (arm["definition"], arm["tree"]) == ("external", None)


def test_few_equal_answers_decide_nothing(project) -> None:
    add(project, "answers", ACCURACY, tokens=["ANSWER: 1"])
    done = gate(project, "answers")
    assert (done.code, done.json["verdict"]) == (7, "insufficient-evidence"), done.json
    assert done.json["units"] == 3
    text = (project.folder / done.json["receipt"]).read_text()
    assert '"ledger-003"' in text
    assert "73 are the fewest" in json.dumps(done.json["reasons"])


@pytest.mark.parametrize(
    ("address", "word"),
    [
        ("notaurl", "an http or https URL"),
        ("ftp://host/v1", "an http or https URL"),
        ("http://host/v1\nX: y", "an http or https URL"),
        ("http://ada:hunter2@host/v1", "no user, password"),
        ("base=http://a/v1 on=nowhere", "an http or https URL"),
        ("base=http://a/v1 onn=http://b/v1", "did you mean `on`"),
        ("base=http://a/v1", "no server of the arm on"),
    ],
)
def test_a_bad_address_is_refused_before_anything_runs(
    tmp_path: Path, address: str, word: str
) -> None:
    project = gate_project(tmp_path / "project")
    text = SERVING.format(script="{}", drain=1)
    text = text.replace(*BY_METRIC)
    lines = [line for line in text.splitlines() if not line.startswith("server =")]
    (project.folder / "ci/gates/url.toml").write_text("\n".join(lines))
    done = run(
        "gate", "run", "url", "--base-url", address, "--json", cwd=project.folder
    )
    assert done.code == 2, done.out
    assert word in done.json["error"]["message"] and "hunter2" not in done.out
    assert not (project.folder / ".stackctl").exists()
    assert not (project.folder / "receipts").exists()


def broken_server(project: Project, code: str) -> None:
    (project.folder / "launch.py").write_text(code)
    add(project, "speed", SERVING)
    add(project, "answers", ACCURACY)


@pytest.mark.parametrize("name", ["speed", "answers"])
def test_what_a_server_said_before_it_ended_is_told(project, name) -> None:
    broken_server(
        project,
        "import sys\n"
        f"print('\\x1b[31mreads\\x1b[0m {project.folder}/model', flush=True)\n"
        f"sys.exit('ValueError: no head of size 96 in {project.folder}/model')\n",
    )
    done = gate(project, name)
    assert (done.code, done.json["verdict"]) == (9, "invalid")
    why = "the server ended with exit code 1 before it was ready: ValueError: no head"
    assert any(why in text for text in done.json["reasons"]), done.json["reasons"]
    (words,) = [w for w in done.json["last_words"] if w["file"].endswith("server.log")]
    assert words["lines"][0] == f"reads {project.folder}/model"
    assert words["lines"][1].endswith("model")
    assert (project.folder / words["file"]).is_file()
    # A person sees place and words; a receipt has neither path nor the machine.
    shown = run("gate", "run", name, cwd=project.folder).out
    assert f"| reads {project.folder}/model" in shown
    assert "/units/0000/server.log:" in shown
    text = (project.folder / done.json["receipt"]).read_text()
    assert "no head of size 96" in text and str(project.folder) not in text
    assert "last_words" not in text and "reads" not in text


@pytest.mark.parametrize("name", ["speed", "answers"])
def test_a_server_that_ends_while_it_is_asked_is_named(project, name) -> None:
    add(project, "speed", SERVING, exit_after=2)
    add(project, "answers", ACCURACY, exit_after=2, tokens=["ANSWER: 1"])
    done = gate(project, name)
    assert (done.code, done.json["verdict"]) == (9, "invalid")
    assert "the server ended with exit code 3" in done.json["reasons"][0]


def test_what_the_unit_itself_finds_wrong_is_told(project) -> None:
    add(project, "speed", SERVING)
    path = project.folder / "ci/gates/speed.toml"
    # An arm that is no tree has nothing to start a server of.
    text = path.read_text().replace("upto:alpha", "external")
    path.write_text(text.replace(*BY_METRIC))
    done = gate(project, "speed", "--seed", "4")
    assert (done.code, done.json["verdict"]) == (9, "invalid")
    assert "needs {tree}, which was not given" in done.json["reasons"][0]
    (words,) = [w for w in done.json["last_words"] if w["file"].endswith("stderr")]
    assert words["lines"][-1] == "hint: give it with --tree"


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("{{tree}}", "{{model}}", "`--model` is not given"),
        ('"{{python}}"', '"no-such-server"', "program no-such-server is not on the"),
        ('"{{python}}"', '"env", "A=b", "no-such", "x"', "program no-such is not on"),
        ("launch.py", "lunch.py", "there is no file lunch.py"),
        ("server = [", "body = {{}}\n#", "`--base-url` is not given"),
        ("upto:alpha", "upto:alfa", "the series has no set alfa"),
    ],
)
def test_what_a_server_lacks_is_told_before_it_is_started(
    project, old, new, reason
) -> None:
    add(project, "speed", SERVING.replace(*BY_METRIC).replace(old, new))
    for command in ("list",), ("list", "--base-url", "http://127.0.0.1:1/v1"):
        listed = run("gate", *command, "--json", cwd=project.folder)
        (entry,) = listed.json["gates"]
        # Where a server runs already, none is started.
        given = len(command) > 1 and ("program" in reason or "`--" in reason)
        assert entry["can_run"] is given
        assert given or reason in "; ".join(entry["missing"])
