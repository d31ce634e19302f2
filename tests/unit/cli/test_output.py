# SPDX-License-Identifier: Apache-2.0
"""What reaches the terminal, a pipe or a script."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from support import Project, program, program_environment, run

from stackctl import cli
from stackctl.cli import output
from stackctl.errors import ConflictError, ExitCode, StackctlError


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain ünï", "plain ünï"),
        ("\x1b[31mred\x1b[0m", "\\x1b[31mred\\x1b[0m"),
        ("a\rb\x07\x9b", "a\\rb\\x07\\x9b"),
        ("two\nlines\tand tab", "two\nlines\tand tab"),
        ("\u202eright to left", "\\u202eright to left"),
    ],
)
def test_control_characters_cannot_drive_a_terminal(text: str, shown: str) -> None:
    assert output.printable(text) == shown


def test_tables_are_aligned_and_have_no_trailing_blanks() -> None:
    lines = output.table(["a", "long header"], [["x", "y"], ["longer", ""]])
    assert lines == ["a       long header", "x       y", "longer"]


WIDE = (
    ["gate", "verdict", "why"],
    [
        ["first", "qualified", "twelve cases were compared and all were equal " * 2],
        ["second", "rejected", ""],
    ],
)


def test_a_table_that_fits_or_goes_to_a_file_keeps_one_line_a_row() -> None:
    assert output.table(*WIDE, width=200) == output.table(*WIDE)
    assert len(output.table(*WIDE)) == 3


def test_text_is_wrapped_in_its_column_on_a_narrow_terminal() -> None:
    lines = output.table(*WIDE, width=60)
    assert max(map(len, lines)) <= 60
    assert lines[1].startswith("first   qualified  twelve cases")
    assert lines[2].startswith(" " * 19) and lines[2][19] != " "
    assert lines[-1] == "second  rejected"
    assert " ".join(" ".join(lines).split()) == " ".join(
        " ".join(output.table(*WIDE)).split()
    )


def test_columns_that_do_not_fit_go_below_and_lose_nothing() -> None:
    header = ["gate", "for", "digest", "why"]
    rows = [["g" * 20, "f" * 30, "d" * 64, "a reason " * 9], ["h", "", "", "short"]]
    lines = output.table(header, rows, width=80)
    assert max(map(len, lines)) <= 80
    assert lines[0] == "gate                  for"
    assert lines[1].startswith("    digest")
    wide = output.table(header, rows)
    assert " ".join(lines).split() == " ".join(wide).split()


def test_a_table_without_text_is_folded_too() -> None:
    rows = [["a" * 60, "b" * 12, "applied"]]
    lines = output.table(["patch", "tree", "state"], rows, width=80)
    assert [line.split() for line in lines] == [
        ["patch", "tree"],
        ["state"],
        ["a" * 60, "b" * 12],
        ["applied"],
    ]
    # Where hardly anything fits, lines are left to the terminal.
    assert len(output.table(["patch", "tree", "state"], rows, width=20)) == 2


@pytest.mark.parametrize(
    ("named", "wide"),
    [("80", 80), ("0", None), ("", None), ("wide", None), ("-3", None), ("٨٠", None)],
)
def test_a_pipe_is_as_wide_as_columns_says(
    named: str, wide: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", named)
    assert output.columns() == wide
    monkeypatch.delenv("COLUMNS")
    assert output.columns() is None


def test_names_are_cut_and_sentences_wrapped_only_where_room_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    text = "one two three " * 5 + "end"
    assert output.fitting("0001-" + "x" * 60, 16) == "0001-" + "x" * 60
    assert output.labelled("why  ", text) == ["why  " + text]
    monkeypatch.setenv("COLUMNS", "60")
    cut = output.fitting("0001-" + "x" * 60, 16)
    assert len(cut) == 44 and cut.startswith("0001-x") and cut.endswith("x...")
    assert output.fitting("0001-short", 16) == "0001-short"
    lines = output.labelled("why  ", text)
    assert len(lines) == 2 and max(map(len, lines)) <= 60
    assert lines[1].startswith("     ") and " ".join(lines).split()[1:] == text.split()


@pytest.mark.parametrize("as_json", [False, True])
def test_an_error_is_a_message_or_a_document(
    as_json: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    error = ConflictError("no", hint="do", where={"file": "f", "line": 3})
    assert output.print_error(error, as_json) == ExitCode.CONFLICT
    out, err = capsys.readouterr()
    if as_json:
        assert json.loads(out) == {"error": {
            "kind": "conflict", "message": "no", "hint": "do",
            "where": {"file": "f", "line": 3},
        }}  # fmt: skip
        assert err == ""
    else:
        assert out == ""
        assert err == "error: f:3: no\nhint: do\n"


def test_the_place_is_not_said_twice(capsys: pytest.CaptureFixture[str]) -> None:
    output.print_error(StackctlError("f:3: bad", where={"file": "f", "line": 3}), False)
    assert capsys.readouterr().err == "error: f:3: bad\n"


def test_a_fault_of_ours_is_said_to_be_one(
    capsys: pytest.CaptureFixture[str],
) -> None:
    try:
        raise KeyError("x")
    except KeyError as error:
        for verbose in (False, True):
            assert output.print_error(error, False, verbose) == ExitCode.INTERNAL
            err = capsys.readouterr().err
            assert "KeyError" in err
            assert "-vv" in err
            assert ("Traceback" in err) is verbose
            assert "is a fault of stackctl" in err


@pytest.mark.parametrize(
    ("number", "kind"), [(28, "disk-full"), (27, "disk-full"), (13, "not-permitted"),
                         (24, "not-permitted"), (30, "not-permitted")],
)  # fmt: skip
def test_what_the_machine_refuses_is_no_fault_of_ours(
    number: int, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    error = OSError(number, "the reason", "/the/file")
    assert output.print_error(error, True) == ExitCode.BAD_INPUT
    document = json.loads(capsys.readouterr().out)["error"]
    assert document["kind"] == kind
    assert "/the/file: the reason" in document["message"]
    assert document["hint"]


def test_a_path_that_is_no_text_is_still_json(
    capfdbinary: pytest.CaptureFixture[bytes],
) -> None:
    output.print_json({"path": "caf\udce9", "name": "ü"})
    out = capfdbinary.readouterr().out
    assert json.loads(out.decode("utf-8")) == {"path": "caf\udce9", "name": "ü"}


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> Callable[[BaseException], None]:
    def install(error: BaseException) -> None:
        def fail(_: object) -> int:
            raise error

        monkeypatch.setattr("stackctl.cli.program.invoke", fail)

    return install


def test_interruption_is_130(
    failing: Callable[[BaseException], None], capsys: pytest.CaptureFixture[str]
) -> None:
    failing(KeyboardInterrupt())
    assert cli.run(["show"]) == ExitCode.INTERRUPTED
    assert "interrupted" in capsys.readouterr().err
    assert cli.run(["show", "--json"]) == ExitCode.INTERRUPTED
    assert json.loads(capsys.readouterr().out)["error"]["kind"] == "interrupted"


def test_an_interruption_after_the_answer_adds_no_second_document(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(document: object) -> None:
        output.print_json(document)
        raise KeyboardInterrupt

    monkeypatch.setattr("stackctl.cli.command.print_json", interrupted)
    assert cli.run(["doctor", "--json"]) == ExitCode.INTERRUPTED
    assert "error" not in json.loads(capsys.readouterr().out)


def test_an_unexpected_error_is_70(
    failing: Callable[[BaseException], None], capsys: pytest.CaptureFixture[str]
) -> None:
    failing(ValueError("oops"))
    assert cli.run(["show", "--json"]) == ExitCode.INTERNAL
    assert json.loads(capsys.readouterr().out)["error"]["kind"] == "internal"


# -- real streams ----------------------------------------------------------------------


def spawn(project: Path, *args: str, **settings: object) -> subprocess.Popen[bytes]:
    settings = {"stderr": subprocess.PIPE, **settings}
    return subprocess.Popen(program(*args), cwd=project, **settings)  # type: ignore


def test_a_reader_that_goes_away_is_no_error(project: Project) -> None:
    for as_json in ((), ("--json",)):
        process = spawn(project.folder, "diff", *as_json, stdout=subprocess.PIPE,
                        env=program_environment())  # fmt: skip
        assert process.stdout is not None
        process.stdout.close()
        assert process.stderr is not None
        err = process.stderr.read()
        process.stderr.close()
        assert (process.wait(), err) == (0, b"")


def test_a_full_device_is_noticed(project: Project) -> None:
    for as_json in ((), ("--json",)):
        with Path("/dev/full").open("wb") as full:
            process = spawn(project.folder, "show", *as_json, stdout=full,
                            env=program_environment())  # fmt: skip
            _, err = process.communicate()
        assert process.returncode == ExitCode.BAD_INPUT
        assert b"standard output cannot be written" in err
        assert b"Traceback" not in err
        assert b"Exception ignored" not in err


@pytest.mark.parametrize("more", [(), ("--json",)])
@pytest.mark.parametrize("both", [False, True])
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_the_exit_code_does_not_depend_on_room_for_words(
    project: Project, more: tuple[str, ...], both: bool, unbuffered: str
) -> None:
    environment = {**program_environment(), "PYTHONUNBUFFERED": unbuffered}
    with Path("/dev/full").open("wb") as full:
        process = spawn(project.folder, "show", "nobody", *more, stderr=full,
                        stdout=full if both else subprocess.PIPE,
                        env=environment)  # fmt: skip
        out, _ = process.communicate()
    assert process.returncode == ExitCode.USAGE
    assert bool(out) == (bool(more) and not both)


def test_a_working_folder_that_is_gone_is_said(tmp_path: Path) -> None:
    done = subprocess.run(
        ["sh", "-c", 'rmdir "$PWD"; exec "$@"', "sh", *program("compose")],
        cwd=tmp_path, env=program_environment(), capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == ExitCode.USAGE
    assert "is gone" in done.stderr and "Traceback" not in done.stderr


def test_closed_streams_are_no_crash(project: Project) -> None:
    for redirection in (">&-", "2>&-", ">&- 2>&-"):
        done = subprocess.run(
            ["sh", "-c", f'exec "$@" {redirection}', "sh", *program("show")],
            cwd=project.folder, env=program_environment(), capture_output=True,
        )  # fmt: skip
        assert done.returncode == 0
        assert b"Traceback" not in done.stderr


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_any_encoding_of_the_terminal_will_do(project: Project, encoding: str) -> None:
    environment = {"PYTHONIOENCODING": encoding, "LC_ALL": "C"}
    shown = run("show", "gamma", cwd=project.folder, env=environment)
    assert shown.code == 0
    assert "gamma: readme" in shown.out
    document = run("show", "gamma", "--json", cwd=project.folder, env=environment)
    assert "ünïcode" in document.json["files"][0]["subject"]


def test_no_colour_and_no_progress_where_nobody_looks(project: Project) -> None:
    for environment in (
        {"TERM": "xterm"},
        {"NO_COLOR": "1"},
        {"FORCE_COLOR": "1", "NO_COLOR": "1"},
    ):
        for command in (["compose"], ["compose", "--json"], ["show"], ["--help"]):
            done = run(*command, cwd=project.folder, env=environment)
            assert "\x1b" not in done.out + done.err
            assert "\r" not in done.out + done.err
            assert done.err == ""


def test_python_dash_m_is_the_program() -> None:
    done = run("--version", env={})
    assert done.code == 0
    assert done.out.startswith("stackctl ")
    assert sys.executable in program("x")
