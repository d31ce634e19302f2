# SPDX-License-Identifier: Apache-2.0
"""A reviewer with a red test and a stack finds the patch that broke it."""

import fcntl
import math
import os
import re
import signal
import struct
import subprocess
import termios
from pathlib import Path

import pytest
from support import (
    Project,
    Repo,
    files_below,
    git,
    program,
    program_environment,
    run,
    until,
)

Changes = dict[str, bytes | str | None]


def many(folder: Path, count: int = 20, size: int = 3) -> Project:
    """A stack of `count` patches, `size` to a set, each adding `marks/N`."""
    project = Project(folder).base({"README.md": "base\n", "marks/0": "", "run": "x\n"})
    for first in range(1, count + 1, size):
        commits: list[tuple[str, Changes]] = [
            (f"patch {n}\n\nWhy {n}.\n", {f"marks/{n}": f"{n}\n"})
            for n in range(first, min(first + size, count + 1))
        ]
        extra = ""
        if first == 1:
            extra = 'pull = { repo = "owner/name", number = 77 }\n'
        project.add(f"s{(first - 1) // size + 1}", *commits, extra=extra)
    return project.save()


def tried(folder: Path) -> list[str]:
    """The trees that a command noted, in order."""
    path = folder / "tried"
    return path.read_text().split() if path.exists() else []


def alive(pid: str) -> bool:
    """Whether a process runs; one that nobody waited for yet does not."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


def noting(folder: Path, test: str) -> str:
    return f'echo "$STACKCTL_TREE" >> {folder}/tried; {test}'


def test_the_culprit_is_named_with_all_a_reviewer_needs(tmp_path: Path) -> None:
    project = many(tmp_path / "p")
    command = noting(tmp_path, "test ! -e marks/2")
    done = run("bisect", "--run", command, "--json", cwd=project.folder)
    assert done.code == 0, done.err
    answer = done.json
    culprit = answer["culprit"]
    assert (answer["kind"], culprit["set"]) == ("patch", "s1")
    assert culprit["patch"] == "0002-patch-2.patch"
    assert culprit["author"] == "Ada Lövelace <ada@example.org>"
    assert culprit["date"] == "2023-11-14T23:16:20+01:00"
    assert culprit["subject"] == "patch 2"
    assert culprit["pull"] == {
        "repo": "owner/name", "number": 77, "url": "https://github.com/owner/name/pull/77"
    }  # fmt: skip
    assert "+++ b/marks/2" in culprit["diff"]
    assert "marks/3" not in culprit["diff"]
    assert (answer["good"]["name"], answer["good"]["exit"]) == ("s1:1", 0)
    assert (answer["bad"]["name"], answer["bad"]["exit"]) == ("s1:2", 1)
    assert answer["bad"]["tree"] == project.trees[1]
    assert answer["evaluations"] <= math.ceil(math.log2(20)) + 2
    trees = tried(tmp_path)
    assert len(trees) == len(set(trees)) == answer["evaluations"]
    assert trees[:2] == [project.base_tree, project.trees[-1]]
    # The line that reproduces it does.
    (line,) = answer["reproduce"]
    assert line.startswith("stackctl bisect --good s1:1 --bad s1:2 --run ")
    shell = line.replace("stackctl", " ".join(program()), 1)
    again = subprocess.run(
        [*("/bin/sh", "-c", shell), "sh"], cwd=project.folder,
        env=program_environment(), capture_output=True, text=True,
    )  # fmt: skip
    assert again.returncode == 0, again.stderr
    assert "s1/0002-patch-2.patch" in again.stdout
    assert len(tried(tmp_path)) == len(trees) + 2


@pytest.mark.parametrize("culprit", [1, 7, 13, 19, 20])
@pytest.mark.parametrize("workers", [1, 3])
def test_every_place_is_found(tmp_path: Path, culprit: int, workers: int) -> None:
    project = many(tmp_path / "p")
    done = run(
        "bisect", "--run", f"test ! -e marks/{culprit}", "-j", str(workers), "--json",
        cwd=project.folder,
    )  # fmt: skip
    assert done.json["culprit"]["subject"] == f"patch {culprit}"
    assert done.json["culprit"]["number"] == (culprit - 1) % 3 + 1


def test_the_tree_is_the_working_folder_and_is_told(tmp_path: Path) -> None:
    project = many(tmp_path / "p", 4, 2)
    command = (
        f'{{ git init -q x && git --git-dir x/.git --work-tree . add -A -f . ":!x" && '
        'git --git-dir x/.git write-tree; echo "$STACKCTL_TREE $STACKCTL_COMPOSITION '
        f'$STACKCTL_PLACE $STACKCTL_SETS"; pwd; }} >> {tmp_path}/seen; '
        'test "$PWD" = "$STACKCTL_FOLDER" || exit 1; test ! -e marks/4'
    )
    done = run("bisect", "--run", command, "--json", cwd=project.folder)
    assert done.json["culprit"]["subject"] == "patch 4"
    lines = (tmp_path / "seen").read_text().splitlines()
    folders = set()
    for real, told, folder in zip(lines[::3], lines[1::3], lines[2::3], strict=True):
        tree, composition, place, *sets = told.split()
        assert tree == real, "the folder holds the tree and nothing else"
        folders.add(folder)
        if place in ("base", "s1:2", "s2:2"):
            option = {"base": "--base-only", "s1:2": "--upto=s1", "s2:2": "--upto=s2"}
            same = run("compose", option[place], "--json", cwd=project.folder)
            assert same.json["composition"] == composition
        assert (
            sets
            == {"b": [], "1": ["s1"], "2": ["s1", "s2"]}[
                place[:2][-1] if place != "base" else "b"
            ]
        )
    assert len(folders) == 1, "one worker has one folder"
    assert not Path(folders.pop()).exists(), "and it is removed at the end"


def test_what_the_command_leaves_does_not_reach_the_next_tree(tmp_path: Path) -> None:
    project = many(tmp_path / "p")
    command = (
        "test ! -e left && test ! -e marks/cache.pyc && test $(cat run) = x || exit 1; "
        "touch left marks/cache.pyc; echo y > run; rm -r marks/0; "
        "test $(ls marks | wc -l) -lt 16"
    )
    done = run("bisect", "--run", command, "--json", cwd=project.folder)
    assert done.code == 0, done.err
    # 0 and cache.pyc aside, fifteen marks are the fifteenth patch and one more.
    assert done.json["culprit"]["subject"] == "patch 15"


def test_a_daemon_of_one_run_does_not_accuse_a_later_patch(tmp_path: Path) -> None:
    project = many(tmp_path / "p")
    daemon = (
        "i=0; while test $i -lt 2000; do mkdir -p marks; touch marks/7 up; "
        "sleep 0.01; i=$((i + 1)); done"
    )
    command = (
        'bad=0; test ! -e marks/7 || bad=1; if test "$STACKCTL_PLACE" = s7:2; then '
        f"setsid sh -c '{daemon}' & until test -e up; do sleep 0.01; done; fi; "
        "exit $bad"
    )
    done = run("bisect", "--run", command, "--json", cwd=project.folder)
    assert done.json["culprit"]["subject"] == "patch 7"


def test_one_culprit_within_ends_that_the_user_names(tmp_path: Path) -> None:
    project = many(tmp_path / "p")
    commits = run("compose", "--json", cwd=project.folder).json["steps"]
    command = "test ! -e marks/11"
    for good, bad, code in (
        ("s3", "full", 0), ("s4:1", "s4:2", 0),
        ("s3/0003", "s4/0002-patch-11.patch", 0),
        (commits[8]["commit"][:12], commits[12]["commit"], 0), ("base", "s3", 1),
        ("s4", "full", 9), ("s5", "s2", 2), ("s2", "s2", 2), ("nope", "full", 2),
        ("s1:4", "full", 2), ("s1/9", "full", 2),
    ):  # fmt: skip
        done = run(
            "bisect", "--run", command, "--good", good, "--bad", bad, "--json",
            cwd=project.folder,
        )  # fmt: skip
        assert done.code == code, (good, bad, done.out)
        if code == 0:
            assert done.json["culprit"]["subject"] == "patch 11"
        elif code != 2:
            assert done.json["culprit"] is None
            assert done.json["kind"] == "unresolved"


def test_skips_are_jumped_over_and_named_where_they_hide_the_culprit(
    tmp_path: Path,
) -> None:
    project = many(tmp_path / "p")
    # Patch 8 breaks the build, patch 12 mends it.
    broken = "n=$(ls marks | wc -l); [ $n -gt 8 ] && [ $n -lt 13 ] && exit 125; "
    done = run(
        "bisect", "--run", broken + "test ! -e marks/16", "--json", cwd=project.folder
    )
    assert done.json["culprit"]["subject"] == "patch 16"
    hidden = run(
        "bisect", "--run", broken + "test ! -e marks/10", "--json", cwd=project.folder
    )
    assert (hidden.code, hidden.json["kind"]) == (7, "unresolved")
    assert hidden.json["culprit"] is None
    assert [each.split("-")[2] for each in hidden.json["suspects"]] == [
        "8.patch", "9.patch", "10.patch", "11.patch", "12.patch"
    ]  # fmt: skip
    assert (hidden.json["good"]["verdict"], hidden.json["bad"]["verdict"]) == (
        "good", "bad",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("command", "code", "kind"),
    [
        ("exit 126", 2, "cannot-run"),
        ("no-such-program-here", 2, "cannot-run"),
        ("exit 128", 9, "run-aborted"),
        ("exit 255", 9, "run-aborted"),
        ("kill -9 $$", 9, "run-aborted"),
        ("kill -INT $$", 9, "run-aborted"),
        ("", 2, "usage"),
    ],
)
def test_a_command_that_cannot_run_or_stops_the_search_is_an_error(
    tmp_path: Path, command: str, code: int, kind: str
) -> None:
    project = many(tmp_path / "p", 4, 2)
    done = run("bisect", "--run", command, "--json", cwd=project.folder)
    assert (done.code, done.json["error"]["kind"]) == (code, kind)


def test_127_after_the_good_end_is_bad(tmp_path: Path) -> None:
    """As in git: only at the good end does it tell of the command itself."""
    project = many(tmp_path / "p")
    command = "test ! -e marks/9 || no-such-program-here"
    done = run("bisect", "--run", command, "--json", cwd=project.folder)
    assert done.json["culprit"]["subject"] == "patch 9"
    assert done.json["bad"]["exit"] == 127


@pytest.mark.parametrize("status", [1, 2, 124, 126, 127])
def test_the_good_end_being_bad_is_9_and_nothing_bad_is_1(
    tmp_path: Path, status: int
) -> None:
    project = many(tmp_path / "p", 4, 2)
    done = run("bisect", "--run", "exit 0", "--json", cwd=project.folder)
    assert (done.code, done.json["reason"]) == (1, "nothing-is-bad")
    assert done.json["evaluations"] == 2
    if status < 126:
        done = run("bisect", "--run", f"exit {status}", "--json", cwd=project.folder)
        assert (done.code, done.json["reason"]) == (9, "good-end-is-bad")
        assert done.json["evaluations"] == 1
    done = run("bisect", "--run", "exit 125", "--json", cwd=project.folder)
    assert (done.code, done.json["reason"]) == (8, "good-end-skipped")


def test_the_first_stop_loses_nothing_and_the_search_goes_on(tmp_path: Path) -> None:
    project = many(tmp_path / "p")
    flag = tmp_path / "stop"
    command = noting(
        tmp_path, f"test -e {flag} && [ -e marks/9 ] && exit 200; test ! -e marks/9"
    )
    run("bisect", "--run", "true", cwd=project.folder)
    flag.touch()
    stopped = run("bisect", "--run", command, "--json", cwd=project.folder)
    assert stopped.code == 9
    assert "error" in stopped.json
    before = tried(tmp_path)
    flag.unlink()
    done = run("bisect", "--run", command, "--json", cwd=project.folder)
    assert done.json["culprit"]["subject"] == "patch 9"
    after = tried(tmp_path)[len(before) :]
    assert not set(after) & set(before[:-1]), "what had an answer is not run again"
    assert done.json["work"]["replayed"] == len(before) - 1


def test_kill_9_loses_no_answer(tmp_path: Path) -> None:
    project = many(tmp_path / "p")
    command = noting(
        tmp_path, f"[ -e {tmp_path}/slow ] && [ -e marks/9 ] && [ ! -e marks/18 ] && "
        f"touch {tmp_path}/reached && sleep 600; test ! -e marks/9"
    )  # fmt: skip
    (tmp_path / "slow").touch()
    words = program("bisect", "--run", command, "--json")
    process = subprocess.Popen(
        words, cwd=project.folder, env=program_environment(), start_new_session=True,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    until((tmp_path / "reached").exists, process)
    process.send_signal(signal.SIGKILL)
    process.wait()
    before = tried(tmp_path)
    assert len(before) >= 3
    (tmp_path / "slow").unlink()
    done = run("bisect", "--run", command, "--json", cwd=project.folder)
    assert done.json["culprit"]["subject"] == "patch 9"
    after = tried(tmp_path)[len(before) :]
    assert not set(after) & set(before[:-1])
    assert len(before) - 1 + len(after) == done.json["evaluations"]
    cache = Path(os.environ["STACKCTL_CACHE_DIR"])
    assert not list((cache / "bisect/work").iterdir()), "no work folder stays"
    # A search that has its answer is asked anew, not remembered for ever.
    run("bisect", "--run", command, "--json", cwd=project.folder)
    assert len(tried(tmp_path)) == len(before) + len(after) + done.json["evaluations"]


def test_ctrl_c_ends_the_command_and_all_it_started(tmp_path: Path) -> None:
    project = many(tmp_path / "p", 4, 2)
    command = f"sleep 300 & echo $! > {tmp_path}/pid; touch {tmp_path}/up; wait"
    process = subprocess.Popen(
        program("bisect", "--run", command), cwd=project.folder,
        env=program_environment(), start_new_session=True, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    until((tmp_path / "up").exists, process)
    os.kill(process.pid, signal.SIGTERM)
    assert process.wait(300) == 130
    pid = (tmp_path / "pid").read_text().strip()
    until(lambda: not alive(pid))


def test_a_log_is_replayed_without_running_anything(tmp_path: Path) -> None:
    project = many(tmp_path / "p")
    command = noting(tmp_path, "test ! -e marks/5")
    words = ("bisect", "--run", command, "--log", tmp_path / "log", "--json")
    first = run(*words, cwd=project.folder)
    count = len(tried(tmp_path))
    again = run(*words, cwd=project.folder)
    assert len(tried(tmp_path)) == count, "nothing ran"
    assert again.json["culprit"] == first.json["culprit"]
    assert again.json["work"]["replayed"] == again.json["evaluations"] == count
    log = (tmp_path / "log").read_bytes()
    # What a killed process half wrote does not count.
    lines = log.splitlines(keepends=True)
    (tmp_path / "log").write_bytes(b"".join(lines[:3]) + lines[3][:20])
    cut = run(*words, cwd=project.folder)
    assert cut.json["culprit"] == first.json["culprit"]
    assert len(tried(tmp_path)) == 2 * count - 2
    # Another question does not take its answers.
    other = run(
        "bisect", "--run", "true", "--log", tmp_path / "log", "--json",
        cwd=project.folder,
    )  # fmt: skip
    assert (other.code, other.json["error"]["kind"]) == (2, "other-question")
    (tmp_path / "log").write_bytes(b"not a log\n")
    bad = run(*words, cwd=project.folder)
    assert (bad.code, bad.json["error"]["where"]["line"]) == (3, 1)
    assert (tmp_path / "log").read_bytes() == b"not a log\n"
    (tmp_path / "log").write_bytes(log.splitlines(keepends=True)[0] + b"spoilt\n")
    bad = run(*words, cwd=project.folder)
    assert (bad.code, bad.json["error"]["kind"]) == (3, "bad-log")
    where = bad.json["error"]["where"]
    assert where == {"file": str(tmp_path / "log"), "line": 2}
    anew = run(*words, "--restart", cwd=project.folder)
    assert anew.json["culprit"] == first.json["culprit"]


@pytest.mark.parametrize("restart", [[], ["--restart"]])
@pytest.mark.parametrize("text", ["a diary", "a diary\nof two lines\n"])
def test_a_file_that_is_no_log_is_never_overwritten(
    tmp_path: Path, text: str, restart: list[str]
) -> None:
    project = many(tmp_path / "p", 4, 2)
    path = tmp_path / "diary"
    path.write_text(text)
    done = run(
        "bisect", "--run", "true", "--log", path, *restart, cwd=project.folder
    )  # fmt: skip
    assert done.code == 3
    assert "no search log" in done.err
    assert path.read_text() == text


@pytest.mark.parametrize("before", ["", "/bin/sh -e ", "timeout 60 /bin/sh "])
def test_a_changed_script_is_another_question(tmp_path: Path, before: str) -> None:
    project = many(tmp_path / "p", 6, 3)
    script = tmp_path / "check.sh"
    script.write_text("#!/bin/sh\ntest ! -e marks/2\n")
    script.chmod(0o755)
    command = f"{before}{script}"
    words = ("bisect", "--run", command, "--log", tmp_path / "log", "--json")
    assert run(*words, cwd=project.folder).json["culprit"]["subject"] == "patch 2"
    script.write_text("#!/bin/sh\ntest ! -e marks/3\n")
    assert run(*words, cwd=project.folder).json["error"]["kind"] == "other-question"


def test_a_run_that_takes_too_long_is_bad(tmp_path: Path) -> None:
    # Few trees are bad, so that the limit can be one that no good one reaches.
    project = many(tmp_path / "p", 3, 2)
    done = run(
        "bisect", "--run", "test ! -e marks/3 || sleep 600", "--timeout", "5", "--json",
        cwd=project.folder,
    )  # fmt: skip
    assert done.json["culprit"]["subject"] == "patch 3"
    assert done.json["bad"]["why"] == "ran longer than 5 s"
    assert "--timeout 5" in done.json["reproduce"][0]


def test_keep_leaves_both_trees(tmp_path: Path) -> None:
    project = many(tmp_path / "p", 6, 3)
    words = ("bisect", "--run", "test ! -e marks/4", "--keep", "--json")
    done = run(*words, cwd=project.folder)
    without, with_it = (Path(each["path"]) for each in done.json["kept"])
    assert without.name == f"bisect-without-{project.trees[2][:12]}"
    for place, name in ((2, without), (3, with_it)):
        out = tmp_path / f"out-{place}"
        target = Repo(tmp_path / f"r{place}")
        git("fetch", "-q", str(project.repo.path), "main", cwd=target.path)
        archive = git("archive", project.trees[place], cwd=target.path)
        out.mkdir()
        subprocess.run(["tar", "xf", "-"], input=archive, cwd=out, check=True)
        here = {k: v[1] for k, v in files_below(project.folder / name).items()}
        assert here == {k: v[1] for k, v in files_below(out).items()}
    # A folder that somebody works in is left alone.
    (project.folder / with_it / "mine").write_text("keep")
    again = run(*words, cwd=project.folder)
    assert [each["existed"] for each in again.json["kept"]] == [True, True]
    assert (project.folder / with_it / "mine").read_text() == "keep"


def test_a_person_reads_what_is_tried_and_what_it_was(tmp_path: Path) -> None:
    project = many(tmp_path / "p", 8, 4)
    done = run("bisect", "--run", "test ! -e marks/6", cwd=project.folder)
    lines = done.err.splitlines()
    assert lines[0] == "bisect: checking both ends"
    assert any(line.startswith("bisect: base: good (exit 0, ") for line in lines)
    assert "bisect: 8 candidates left, about 3 more steps" in lines
    assert "\x1b" not in done.err
    assert done.out.splitlines()[0] == "the first bad patch: s2/0002-patch-6.patch"
    assert "+++ b/marks/6" in done.out
    assert (
        run("bisect", "--run", "test ! -e marks/6", "-q", cwd=project.folder).err == ""
    )


def test_one_of_run_and_gate_is_needed(tmp_path: Path) -> None:
    project = many(tmp_path / "p", 2, 1)
    assert run("bisect", "--json", cwd=project.folder).code == 2
    both = ("bisect", "--run", "true", "--gate", "x", "--json")
    assert run(*both, cwd=project.folder).code == 2


def flaky(low: int, high: int, mark: str, folder: Path) -> str:
    """A command that is bad in `low` of 20 runs, or in `high` once `mark` is there.

    Which runs are bad depends on a count that every run raises, spread by a constant.
    """
    return (
        f"n=$(cat {folder}/n 2>/dev/null || echo 0); echo $((n + 1)) > {folder}/n; "
        f"r=$(( n * 7 % 20 )); if [ -e marks/{mark} ]; then [ $r -ge {high} ]; "
        f"else [ $r -ge {low} ]; fi"
    )


def test_a_flaky_command_is_repeated_until_the_answer_is_sure(tmp_path: Path) -> None:
    project = many(tmp_path / "p")
    command = flaky(2, 17, "12", tmp_path)
    words = ("bisect", "--run", command, "--confidence", "0.95", "--json")
    done = run(*words, cwd=project.folder)
    assert done.code == 0, done.out
    answer = done.json
    assert answer["culprit"]["subject"] == "patch 12"
    assert answer["confidence"] >= 0.95
    assert answer["evaluations"] > 15
    assert answer["good"]["runs"] >= 1 and answer["bad"]["runs"] >= 1
    assert "--confidence 0.95 --repeats 20" in answer["reproduce"][0]
    assert "rates of bad runs" in answer["notes"][0]


@pytest.mark.parametrize("options", [(), ("--subsets",)])
def test_ends_that_overlap_are_noise_and_nobody_is_blamed(
    tmp_path: Path, options: tuple[str, ...]
) -> None:
    project = many(tmp_path / "p", 6, 3)
    command = flaky(6, 6, "4", tmp_path)
    done = run(
        "bisect", "--run", command, "--confidence", "0.95", "--repeats", "10", "--json",
        *options, cwd=project.folder,
    )  # fmt: skip
    assert (done.code, done.json["kind"]) == (7, "noise")
    assert done.json["culprit"] is None
    assert done.json["evaluations"] == 20
    assert "no patch can be blamed" in done.json["message"]


def test_an_interrupted_noisy_search_goes_on(tmp_path: Path) -> None:
    project = many(tmp_path / "p")
    command = noting(
        tmp_path, f"test -e {tmp_path}/stop && [ $(wc -l < {tmp_path}/tried) -eq 14 ] "
        "&& exit 200; test ! -e marks/7"
    )  # fmt: skip
    words = ("bisect", "--run", command, "--confidence", "0.99", "--json")
    (tmp_path / "stop").touch()
    assert run(*words, cwd=project.folder).code == 9
    assert len(tried(tmp_path)) == 14
    (tmp_path / "stop").unlink()
    done = run(*words, cwd=project.folder)
    assert done.json["culprit"]["subject"] == "patch 7"
    assert done.json["work"]["replayed"] == 13
    assert len(tried(tmp_path)) == done.json["evaluations"] + 1


def test_a_flaky_command_over_subsets(tmp_path: Path) -> None:
    project = many(tmp_path / "p", 5, 1)
    command = (
        f"n=$(cat {tmp_path}/n 2>/dev/null || echo 0); echo $((n + 1)) > {tmp_path}/n; "
        "r=$(( n * 7 % 20 )); if [ -e marks/2 ] && [ -e marks/4 ]; then [ $r -ge 18 ]; "
        "else [ $r -ge 1 ]; fi"
    )
    done = run(
        "bisect", "--run", command, "--subsets", "--confidence", "0.9", "--json",
        cwd=project.folder,
    )  # fmt: skip
    assert done.json["kind"] == "interaction", done.out
    assert [each["set"] for each in done.json["culprits"]] == ["s2", "s4"]
    assert done.json["confidence"] == 0.9


def test_export_lets_plain_git_find_the_same_patch(tmp_path: Path) -> None:
    project = many(tmp_path / "p")
    target = Repo(tmp_path / "target")
    target.commit("unrelated\n", {"x": "y"})
    before = target.git("for-each-ref", "refs/heads")
    done = run("bisect", "export", "--into", target.path, "--json", cwd=project.folder)
    assert done.code == 0, done.err
    start, bisect_run = done.json["commands"]
    assert start == (
        f"git -C {target.path} bisect start refs/stackctl/bad refs/stackctl/good"
    )
    assert done.json["patches"] == 20
    assert target.git("for-each-ref", "refs/heads") == before
    assert target.git("status", "--porcelain") == ""
    target.git(*start.split()[3:])
    out = target.git("bisect", "run", "sh", "-c", "test ! -e marks/13")
    ours = run("bisect", "--run", "test ! -e marks/13", "--json", cwd=project.folder)
    assert f"{ours.json['culprit']['commit']} is the first bad commit" in out
    assert bisect_run.endswith("bisect run CMD")
    target.git("bisect", "reset")
    again = run("bisect", "export", "--into", target.path, "--json", cwd=project.folder)
    assert again.json == done.json
    nowhere = run("bisect", "export", "--into", tmp_path, "--json", cwd=project.folder)
    assert nowhere.code == 3


def test_options_before_a_command_of_the_group_are_refused(tmp_path: Path) -> None:
    project = many(tmp_path / "p", 2, 1)
    done = run("bisect", "--good", "s1", "export", "--into", "x", cwd=project.folder)
    assert done.code == 2
    assert "write it after `export`" in done.err


def test_on_a_terminal_the_view_is_live(tmp_path: Path) -> None:
    project = many(tmp_path / "p", 6, 3)
    # Every run waits until it was seen in a picture.
    seen_it = f"test -e {tmp_path}/seen-$STACKCTL_PLACE"
    command = f"until {seen_it}; do sleep 0.05; done; test ! -e marks/5"
    ours, theirs = os.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 100, 0, 0))
    process = subprocess.Popen(
        program("bisect", "--run", command, "-j", "2"),
        cwd=project.folder, env=program_environment(TERM="xterm-256color"),
        stdout=subprocess.DEVNULL, stderr=theirs, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    os.close(theirs)
    seen = b""
    while True:
        try:
            part = os.read(ours, 65536)
        except OSError:  # the other side is closed
            break
        if not part:
            break
        seen += part
        text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", seen.decode(errors="ignore"))
        for name in re.findall(r"trying +(\S+), \d+ s", text):
            (tmp_path / f"seen-{name}").touch()
    os.close(ours)
    assert process.wait() == 0
    # What is being tried, by each worker; what is known; how many are left.
    assert re.search(r"trying +base, \d+ s", text)
    assert re.search(r"trying +s2:3, \d+ s", text)
    assert re.search(r"known +\d good +\d bad +\d skip", text)
    assert "6 candidates left, about 3 more steps" in text
    assert re.search(r"base: good \(exit 0, \d+\.\d s\)", text)
    # Nothing of it stays: the answer stands alone.
    assert "\x1b[2K" in seen.decode()
