# SPDX-License-Identifier: Apache-2.0
"""Exit codes and documents that scripts rely on."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from support import Project

from stackctl import cli
from stackctl.cli import app


def _names(group: Any, before: str = "", groups: bool = True) -> Iterator[str]:
    for name, each in sorted(group.commands.items()):
        inner = hasattr(each, "commands")
        if groups or not inner:
            yield before + name
        if inner:
            yield from _names(each, f"{before}{name} ", groups)


PROGRAM = typer.main.get_command(app.app)
COMMANDS = tuple(_names(PROGRAM))

Call = Callable[..., tuple[int, Any]]


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> Call:
    """Run a command in this process; return exit code and JSON document."""

    def run(*args: str | Path) -> tuple[int, Any]:
        code = cli.run([*map(str, args), "--json"])
        out, err = capsys.readouterr()
        assert err == ""
        return code, json.loads(out)

    return run


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_with_an_example(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run([*command.split(), "--help"]) == 0
    out, err = capsys.readouterr()
    assert "Example" in out
    assert f"stackctl {command}" in out
    assert err == ""


def test_examples_are_whole_lines_to_copy(capsys: pytest.CaptureFixture[str]) -> None:
    cli.run(["range-diff", "--help"])
    example = "git worktree add /tmp/old v1 && stackctl range-diff /tmp/old:kda-overlap"
    assert example in capsys.readouterr().out
    cli.run(["compose", "--help"])
    lines = [line.strip() for line in capsys.readouterr().out.splitlines()]
    assert "stackctl compose --only kda-overlap --out tree" in lines


@pytest.mark.parametrize("command", tuple(_names(PROGRAM, groups=False)))
def test_every_command_has_the_common_options(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    cli.run([*command.split(), "--help"])
    out = capsys.readouterr().out
    for option in ("--directory", "--json", "--offline", "--verbose", "--quiet"):
        assert option in out


@pytest.mark.parametrize(
    "arguments",
    [
        ["nonsense"], ["compose", "--nonsense"], ["compose", "extra"],
        ["compose", "--upto"], ["export", "alpha"], ["range-diff", "alpha"],
        ["compose", "--upto", "alpha", "--only", "beta"], ["compose", "--into", "x"],
        ["compose", "--no-commits", "--locked"], ["compose", "--upto", ""],
        ["compose", "--only", ""], ["compose", "--without", ","],
        ["compose", "--upto", "nothing"], ["show", "nothing"], ["diff", "nothing"],
        ["compose", "--locked", "--upto", "alpha"], ["range-diff", "x", "y"],
    ],
)  # fmt: skip
def test_what_has_no_meaning_is_2(
    arguments: list[str], project: Project, call: Call
) -> None:
    arguments = [arguments[0], "-C", str(project.folder), *arguments[1:]]
    code, document = call(*arguments)
    assert code == 2
    assert document["error"].keys() == {"kind", "message", "hint", "where"}
    assert document["error"]["message"]


def test_no_arguments_print_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    code = cli.run([])
    out, err = capsys.readouterr()
    assert err.startswith("Usage")
    assert (out, code) == ("", 2)


def test_no_project_is_2(call: Call, tmp_path: Path) -> None:
    code, document = call("compose", "-C", tmp_path)
    assert (code, document["error"]["kind"]) == (2, "no-project")


def test_the_project_is_found_from_below_and_by_name(
    project: Project, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    below = project.folder / "patches" / "alpha"
    monkeypatch.chdir(below)
    assert call("show")[0] == 0
    monkeypatch.chdir(project.folder.parent)
    assert call("show")[0] == 2
    assert call("show", "-C", project.folder.name)[1]["name"] == "demo"
    # The nearest one, not a parent of it, where a folder is named.
    assert call("show", "-C", below)[0] == 2
    # As with git, also before the command; the one after it counts more.
    assert call("-C", project.folder.name, "show")[1]["name"] == "demo"
    assert call("-C", below, "show", "-C", project.folder.name)[0] == 0
    assert call("-C", below, "show")[0] == 2


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("show", ""), ["alpha", "beta", "gamma"]),
        (("show", "b"), ["beta"]),
        (("compose", "--upto", "g"), ["gamma"]),
        (("-C", "{project}", "diff", "a"), ["alpha"]),
        (("diff", "-C", "nowhere", "a"), []),
    ],
)
def test_names_of_sets_are_completed(
    project: Project,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    words: tuple[str, ...],
    expected: list[str],
) -> None:
    words = tuple(each.format(project=project.folder) for each in words)
    monkeypatch.chdir("/" if "-C" in words else project.folder)
    monkeypatch.setenv("_STACKCTL_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", " ".join(("stackctl", *words)))
    monkeypatch.setenv("COMP_CWORD", str(len(words)))
    with pytest.raises(SystemExit):
        app.app(prog_name="stackctl")
    assert capfd.readouterr().out.split() == expected


def test_a_bad_series_is_3_with_file_line_and_key(project: Project, call: Call) -> None:
    series = project.folder / "series.toml"
    series.write_text(series.read_text().replace("requires", "requirez", 1))
    code, document = call("compose", "-C", project.folder)
    assert code == 3
    assert document["error"]["where"]["file"] == str(series)
    assert document["error"]["where"]["line"]
    assert "requires" in json.dumps(document)


def test_a_missing_or_unreadable_patch_is_3(project: Project, call: Call) -> None:
    patch = project.patch("alpha", 2)
    patch.write_text("no patch at all\n")
    code, document = call("compose", "-C", project.folder)
    assert code == 3
    assert document["error"]["where"]["set"] == "alpha"
    assert document["error"]["where"]["file"] == str(patch)
    for path in (project.folder / "patches/alpha").iterdir():
        path.unlink()
    code, document = call("compose", "-C", project.folder)
    assert (code, document["error"]["kind"]) == (3, "no-patches")


def test_a_wrong_base_tree_is_4(project: Project, call: Call) -> None:
    series = project.folder / "series.toml"
    series.write_text(series.read_text().replace(project.base_tree, "0" * 40))
    code, document = call("compose", "-C", project.folder)
    assert (code, document["error"]["kind"]) == (4, "wrong-tree")
    assert project.base_tree in document["error"]["message"]


def test_a_missing_base_commit_is_4(project: Project, call: Call) -> None:
    series = project.folder / "series.toml"
    series.write_text(series.read_text().replace(project.base_commit, "1" * 40))
    assert call("compose", "-C", project.folder)[0] == 4


def test_a_conflict_is_5(project: Project, call: Call) -> None:
    patch = project.patch("beta")
    patch.write_text(patch.read_text().replace(" line 39\n", " line 3x\n"))
    code, document = call("compose", "-C", project.folder)
    assert code == 5
    where = document["error"]["where"]
    assert where["set"] == "beta"
    assert where["patch"] == patch.name
    assert where["path"] == "pkg/core.py"
    assert where["hunk"] == 1
    assert where["file"] == str(patch)


def test_a_lock_that_differs_is_1_and_one_that_is_missing_is_3(
    project: Project, call: Call
) -> None:
    folder = ("-C", project.folder)
    assert call("compose", "--locked", *folder)[0] == 3
    assert call("lock", *folder)[0] == 0
    for command in (("compose", "--locked"), ("lock", "--check"), ("status",)):
        assert call(*command, *folder)[0] == 0
    patch = project.patch("gamma")
    patch.write_bytes(patch.read_bytes().replace(b"Other", b"Third"))
    text = patch.read_text()
    start = text.index("index ")
    patch.write_text(text.replace(text[start : text.index("\n", start)] + "\n", ""))
    for command in (("compose", "--locked"), ("lock", "--check"), ("status",)):
        code, document = call(*command, *folder)
        assert code == 1
        assert "gamma" in json.dumps(document)
        assert "error" not in document


def test_status_says_how_to_record_a_change(
    project: Project, call: Call, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = ("-C", project.folder)
    assert call("lock", *folder)[0] == 0
    patch = project.patch("gamma")
    patch.write_bytes(patch.read_bytes().replace(b"Other", b"Third"))
    assert cli.run(["status", "-C", str(project.folder)]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert "stackctl lock" in lines[-1]
    differences = [line for line in lines if line.startswith("series.lock: ")]
    assert len(differences) > 1
    assert all("in the lock, but" in line for line in differences)


def test_an_unknown_set_is_answered_with_the_names(
    project: Project, call: Call
) -> None:
    document = call("show", "zzz", "-C", project.folder)[1]
    assert document["error"]["hint"] == "the sets are: alpha, beta, gamma"


def test_the_compose_document(project: Project, call: Call) -> None:
    code, document = call("compose", "-C", project.folder)
    assert code == 0
    assert {
        "composition", "base", "steps", "tree", "commit", "content_sha256", "ns",
    } <= document.keys()  # fmt: skip
    assert document["base"].keys() >= {"identity", "tree", "commit"}
    assert isinstance(document["ns"], int)
    for step, tree in zip(document["steps"], project.trees, strict=True):
        assert step.keys() >= {
            "set", "patch", "tree", "commit", "patch_id", "disposition",
        }  # fmt: skip
        assert step["tree"] == tree
        assert step["disposition"] == "applied"
    assert document["tree"] == project.trees[-1]
    assert len(document["composition"]) == 64


def test_without_commits_only_what_was_made_is_told(
    project: Project, call: Call
) -> None:
    code, document = call("compose", "--no-commits", "-C", project.folder)
    assert code == 0
    assert document["tree"] == project.trees[-1]
    assert document["commit"] is None
    assert document["composition"] is None
    trees = [step["tree"] for step in document["steps"]]
    assert trees == [None, None, None, project.trees[-1]]


def test_doctor_and_cache(call: Call) -> None:
    code, document = call("doctor")
    assert code == 0
    assert document["ok"] is True
    assert {"git", "python", "cache"} <= {check["name"] for check in document["checks"]}
    assert call("cache", "info")[0] == 0
    assert call("cache", "clean")[1]["freed"] >= 0


def test_show_works_with_sets_that_are_not_patches(
    project: Project, call: Call
) -> None:
    series = project.folder / "series.toml"
    with series.open("a") as file:
        file.write(
            '\n[[set]]\nname = "pinned"\ntitle = "t"\nreason = "r"\nretire = "e"\n'
            'strategy = "merge"\n'
            f'pull = {{ repo = "o/n", number = 3, head = "{"1" * 40}" }}\n'
            '\n[[set]]\nname = "planned"\ntitle = "t"\nreason = "r"\nretire = "e"\n'
            "draft = true\n"
        )
    code, document = call("show", "-C", project.folder)
    assert code == 0
    assert [each["patches"] for each in document["sets"]] == [2, 1, 1, 0, 0]
    assert call("show", "pinned", "-C", project.folder)[0] == 0
    assert call("show", "planned", "-C", project.folder)[1]["state"] == "draft"
