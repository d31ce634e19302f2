# SPDX-License-Identifier: Apache-2.0
"""A reviewer with a red gate and a stack."""

from pathlib import Path

import pytest
from gating import add_gate, arms, read_json
from support import Project, run

pytestmark = pytest.mark.usefixtures("short_looks")

ARMS = arms(base="base", on="composed")

TIMED = """
import random
values = {}
noise = random.Random(int(os.environ["STACKCTL_GATE_SEED"])
                      * 1000 + int(os.environ["STACKCTL_GATE_UNIT"]))
order = [name for name in arms] + [name for name in arms][::-1]
for name in order:
    slow = %s if (Path(arms[name]["tree"]) / "marks/4").exists() else 1.0
    values.setdefault(name, []).append(100 * slow * noise.gauss(1, %s))
say({"schema": 1, "samples": {"cells": {"c": {"order": order, "values": values}}}})
"""
TIMED_TOML = (
    ARMS + '[rule]\nstatistic = "paired-log-ratio"\npairs = 6\nlooks = 1\n'
    "host_load_limit = 64.0\nload_imbalance_limit = 64.0\n"
    '[[claim]]\nname = "gain"\ncell = "c"\narm = "on"\nagainst = "base"\n'
    'better = "lower"\nmargin = 0.1\n'
)


@pytest.fixture
def project(tmp_path: Path) -> Project:
    project = Project(tmp_path / "p").base({"marks/0": ""})
    for n in range(1, 7):
        project.add(f"s{n}", (f"patch {n}\n", {f"marks/{n}": ""}))
    (project.folder / "ci/gates").mkdir(parents=True)
    return project.save()


def test_a_rejected_gate_is_bad_and_both_neighbours_have_receipts(
    project: Project,
) -> None:
    add_gate(
        project,
        "parity",
        'say(cases(not (Path(arms["on"]["tree"]) / "marks/4").exists()))',
        ARMS,
    )
    done = run("bisect", "--gate", "parity", "--json", cwd=project.folder)
    assert done.code == 0, done.out + done.err
    answer = done.json
    assert (answer["kind"], answer["culprit"]["set"]) == ("patch", "s4")
    assert answer["evaluations"] <= 5
    assert answer["reproduce"] == [
        "stackctl bisect --good s3:1 --bad s4:1 --gate parity"
    ]
    for side, verdict in (("good", "qualified"), ("bad", "rejected")):
        receipt = Path(answer[side]["receipt"])
        text = receipt.read_text()
        assert answer[side]["tree"] in text
        assert answer[side]["composition"] in text
        assert verdict in text
        assert answer[side]["why"].startswith(verdict)
        assert read_json(receipt)
    # The project's own receipts are about its series, not about a search.
    assert not (project.folder / "receipts").exists()


def test_subsets_by_a_gate(project: Project) -> None:
    add_gate(
        project,
        "parity",
        'there = [(Path(arms["on"]["tree"]) / f"marks/{n}").exists() for n in (2, 5)]\n'
        "say(cases(not all(there)))",
        ARMS,
    )
    done = run("bisect", "--gate", "parity", "--subsets", "--json", cwd=project.folder)
    assert done.code == 0, done.out + done.err
    assert [each["set"] for each in done.json["culprits"]] == ["s2", "s5"]
    assert done.json["bad"]["receipt"]
    assert "--arm ARM=only:s2,s5" in done.json["reproduce"][0]


def test_a_gate_that_is_not_tested_skips_and_one_that_cannot_run_says_so(
    project: Project,
) -> None:
    add_gate(
        project,
        "skips",
        """
tree = Path(arms["on"]["tree"])
if (tree / "marks/2").exists() and not (tree / "marks/4").exists():
    say({"schema": 1, "stop": {"verdict": "not-tested", "reason": "no such feature"}})
else:
    say(cases(not (tree / "marks/6").exists()))
""",
        ARMS,
    )
    done = run("bisect", "--gate", "skips", "--json", cwd=project.folder)
    assert done.json["culprit"]["set"] == "s6", done.out
    add_gate(project, "gpu", "say(cases(True))", "[needs]\ngpus = 8\n" + ARMS)
    cannot = run("bisect", "--gate", "gpu", "--json", cwd=project.folder)
    assert (cannot.code, cannot.json["error"]["kind"]) == (8, "not-tested")
    unknown = run("bisect", "--gate", "nope", "--json", cwd=project.folder)
    assert unknown.code == 2


def test_a_run_that_may_not_be_used_is_made_again(
    project: Project, tmp_path: Path
) -> None:
    count = tmp_path / "count"
    add_gate(
        project,
        "odd",
        f"""
count = Path("{count}")
number = int(count.read_text()) if count.exists() else 0
count.write_text(str(number + 1))
if number % 2 == 0:
    print("rubbish")
else:
    say(cases(not (Path(arms["on"]["tree"]) / "marks/2").exists()))
""",
        ARMS,
    )
    done = run("bisect", "--gate", "odd", "--json", cwd=project.folder)
    assert done.json["culprit"]["set"] == "s2", done.out
    assert int(count.read_text()) == 2 * done.json["evaluations"]


def test_a_timed_gate_pairs_each_candidate_with_the_good_end(project: Project) -> None:
    add_gate(project, "speed", TIMED % ("1.12", "0.005"), TIMED_TOML, "kernel")
    done = run("bisect", "--gate", "speed", "--good", "s1", "--json",
               cwd=project.folder)  # fmt: skip
    assert done.code == 0, done.out + done.err
    answer = done.json
    assert answer["culprit"]["set"] == "s4"
    receipt = Path(answer["bad"]["receipt"]).read_text()
    # Against the good end, and asked whether half of the gain is still there.
    assert project.trees[0] in receipt
    assert '"margin":-0.05' in receipt
    assert answer["evaluated"][0]["why"].startswith("the good end against itself")


def test_where_a_timed_gate_cannot_tell_the_ends_apart_it_says_so_at_once(
    project: Project,
) -> None:
    add_gate(project, "speed", TIMED % ("1.05", "0.2"), TIMED_TOML, "kernel")
    done = run("bisect", "--gate", "speed", "--json", cwd=project.folder)
    assert (done.code, done.json["kind"]) == (7, "noise"), done.out
    assert done.json["culprit"] is None
    assert done.json["evaluations"] == 2
    assert "cannot tell the ends apart" in done.json["message"]
