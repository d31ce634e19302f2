# SPDX-License-Identifier: Apache-2.0
"""What the tests build with: real repositories, projects, and runs of the program.

Git is run here directly and not through stackctl, so that the tests have a witness that
does not share our code.
"""

import contextlib
import io
import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

ROOT = Path(__file__).resolve().parents[1]

AUTHOR = ("Ada Lövelace", "ada@example.org")

FORMAT = (
    "--no-renames",
    "--binary",
    "--full-index",
    "--zero-commit",
    "--no-signature",
    "--no-stat",
    "-N",
)

HOSTILE_CONFIG = """\
[user]
\tname = Wrong Person
\temail = wrong@example.com
\tsigningKey = nothing
[core]
\tautocrlf = true
\teol = crlf
\tsafecrlf = true
\tquotePath = false
\tabbrev = 5
\tfileMode = false
\tsymlinks = false
\tignoreCase = true
\tprecomposeUnicode = true
\twhitespace = indent-with-non-tab,cr-at-eol
\tcommentChar = a
\thooksPath = {home}/hooks
\tattributesFile = {home}/attributes
\texcludesFile = {home}/excludes
\tfsmonitor = {home}/hooks/trap
\teditor = {home}/hooks/trap
\tpager = {home}/hooks/trap
[apply]
\twhitespace = fix
\tignoreWhitespace = change
[am]
\tkeepcr = false
\tthreeWay = true
[commit]
\tgpgSign = true
\ttemplate = {home}/template
[tag]
\tgpgSign = true
[gpg]
\tprogram = {home}/hooks/trap
[diff]
\tnoprefix = true
\tmnemonicPrefix = true
\tsrcPrefix = x/
\tdstPrefix = y/
\trenames = copies
\talgorithm = histogram
\tcontext = 9
\tinterHunkContext = 5
\tindentHeuristic = false
\tsuppressBlankEmpty = true
\texternal = {home}/hooks/trap
\torderFile = {home}/order
\trelative = true
\tsubmodule = log
\tcolorMoved = zebra
[color]
\tui = always
[format]
\tsignature = hostile
\tattach = hostile
\tsubjectPrefix = HOSTILE
\tnumbered = true
\tsignOff = true
\tcoverLetter = true
\toutputDirectory = {home}/out
\tuseAutoBase = true
[i18n]
\tcommitEncoding = latin1
\tlogOutputEncoding = latin1
[index]
\tversion = 4
[init]
\tdefaultBranch = hostile
\ttemplateDir = {home}/template.d
[merge]
\trenames = false
\tconflictStyle = diff3
[mailinfo]
\tscissors = true
[feature]
\tmanyFiles = true
[gc]
\tauto = 1
[transfer]
\tfsckObjects = true
"""


def git(
    *args: str,
    cwd: Path | None = None,
    stdin: bytes = b"",
    env: Mapping[str, str] | None = None,
    check: bool = True,
) -> bytes:
    """Run plain git, without the configuration of whoever runs the tests."""
    variables = {
        "PATH": os.environ.get("PATH", os.defpath),
        "HOME": os.devnull,
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_AUTHOR_NAME": AUTHOR[0],
        "GIT_AUTHOR_EMAIL": AUTHOR[1],
        "GIT_COMMITTER_NAME": "Somebody Else",
        "GIT_COMMITTER_EMAIL": "else@example.org",
        "GIT_AUTHOR_DATE": "1700000000 +0100",
        "GIT_COMMITTER_DATE": "1700009999 -0500",
        "LC_ALL": "C",
        "TZ": "UTC",
        **(env or {}),
    }
    done = subprocess.run(
        ["git", *args], cwd=cwd, env=variables, input=stdin, capture_output=True
    )
    if check and done.returncode:
        raise AssertionError(f"git {args}: {done.stderr.decode('utf-8', 'replace')}")
    return done.stdout


class Repo:
    """A real repository with a work tree."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.clock = 1_700_000_000
        path.mkdir(parents=True, exist_ok=True)
        if not (path / ".git").exists():
            git("init", "-q", "-b", "main", cwd=path)

    def git(self, *args: str, stdin: bytes = b"", **env: str) -> str:
        return git(*args, cwd=self.path, stdin=stdin, env=env).decode().strip()

    def write(self, files: Mapping[str, bytes | str | None]) -> None:
        """Write files; None deletes, a value starting with `-> ` makes a link."""
        for name, content in files.items():
            path = self.path / name
            if content is None:
                path.unlink()
                continue
            path.parent.mkdir(parents=True, exist_ok=True)
            if isinstance(content, str) and content.startswith("-> "):
                path.unlink(missing_ok=True)
                path.symlink_to(content[3:])
                continue
            data = content.encode() if isinstance(content, str) else content
            path.write_bytes(data)

    def commit(
        self, message: str, files: Mapping[str, bytes | str | None] | None = None
    ) -> str:
        """Write files and commit everything; return the commit's id."""
        self.write(files or {})
        self.clock += 60
        self.git("add", "-A", "-f", ".")
        self.git(
            "commit",
            "-q",
            "--no-verify",
            "--cleanup=verbatim",
            "--allow-empty",
            "-F",
            "-",
            stdin=message.encode(),
            GIT_AUTHOR_DATE=f"{self.clock} +0100",
        )
        return self.head

    @property
    def head(self) -> str:
        return self.git("rev-parse", "HEAD")

    @property
    def tree(self) -> str:
        return self.git("rev-parse", "HEAD^{tree}")

    def patches(self, revisions: str, folder: Path, *options: str) -> list[Path]:
        """Write commits as canonical patches; return the files."""
        folder.mkdir(parents=True, exist_ok=True)
        self.git("format-patch", "-q", *FORMAT, *options, "-o", str(folder), revisions)
        return sorted(folder.glob("*.patch"))


LINES60 = "".join(f"line {n}\n" for n in range(1, 61))

BASE_FILES: dict[str, bytes | str | None] = {
    "README.md": "# Fork\n\nWords.\n",
    "pkg/core.py": LINES60,
    "pkg/other.py": "".join(f"other {n}\n" for n in range(1, 31)),
    "pkg/deep/er/util.py": "def f():\n    return 1\n",
    "data/blob.bin": bytes(range(256)) * 4,
    "no-newline": "one\ntwo",
    "crlf.txt": b"a\r\nb\r\nc\r\n",
    "link": "-> pkg/core.py",
}


@dataclass
class Set:
    """One set of a project under construction."""

    name: str
    commits: list[tuple[str, dict[str, bytes | str | None]]] = field(
        default_factory=list
    )
    requires: tuple[str, ...] = ()
    extra: str = ""


class Project:
    """A project: a base, and sets whose patches were made by real git."""

    def __init__(self, folder: Path, name: str = "demo") -> None:
        self.folder = folder
        self.name = name
        self.repo = Repo(folder.with_name(folder.name + ".repo"))
        self.base_commit = ""
        self.base_tree = ""
        self.base_text = ""
        self.sets: list[str] = []
        self.tips: dict[str, str] = {}
        self.trees: list[str] = []
        folder.mkdir(parents=True, exist_ok=True)

    def base(
        self, files: Mapping[str, bytes | str | None] | None = None, kind: str = "git"
    ) -> "Project":
        """Make the base, pinned as a git commit or as a folder."""
        self.base_commit = self.repo.commit("base\n", files or BASE_FILES)
        self.repo.git("tag", "base")
        self.base_tree = self.repo.tree
        if kind == "git":
            self.base_text = (
                f'git = "{self.repo.path}"\ncommit = "{self.base_commit}"\n'
            )
        else:
            archive = git("archive", "HEAD", cwd=self.repo.path)
            (self.folder / "upstream").mkdir()
            subprocess.run(
                ["tar", "xf", "-"],
                input=archive,
                cwd=self.folder / "upstream",
                check=True,
            )
            self.base_text = 'path = "upstream"\n'
        return self

    def add(
        self,
        name: str,
        *commits: tuple[str, dict[str, bytes | str | None]],
        requires: Sequence[str] = (),
        extra: str = "",
    ) -> "Project":
        """Commit changes and write them as the patches of a new set."""
        before = self.repo.head
        for message, files in commits:
            self.repo.commit(message, files)
            self.trees.append(self.repo.tree)
        self.repo.patches(f"{before}..HEAD", self.folder / "patches" / name)
        self.tips[name] = self.repo.head
        required = ", ".join(f'"{each}"' for each in requires)
        self.sets.append(
            f'[[set]]\nname = "{name}"\ntitle = "Set {name}"\n'
            f'reason = "because of {name}"\nretire = "when upstream has it"\n'
            f'patches = "patches/{name}"\nrequires = [{required}]\n{extra}'
        )
        return self

    def save(self) -> "Project":
        """Write series.toml."""
        text = (
            f'schema = 1\nname = "{self.name}"\n\n[base]\n{self.base_text}'
            f'tree = "{self.base_tree}"\n\n' + "\n".join(self.sets)
        )
        (self.folder / "series.toml").write_text(text)
        return self

    def patch(self, name: str, number: int = 1) -> Path:
        (path,) = (self.folder / "patches" / name).glob(f"{number:04d}-*.patch")
        return path


def three_sets(folder: Path, kind: str = "git") -> Project:
    """A project of three sets; `beta` requires `alpha`, `gamma` stands alone."""
    lines = LINES60.splitlines(keepends=True)

    def core(**changes: str) -> str:
        text = list(lines)
        for key, value in changes.items():
            text[int(key[1:]) - 1] = value
        return "".join(text)

    return (
        Project(folder)
        .base(kind=kind)
        .add(
            "alpha",
            (
                "alpha: change line 10\n\nWhy, in words.\n\nSigned-off-by: Ada <a@b>\n",
                {"pkg/core.py": core(_10="line ten\n")},
            ),
            (
                "alpha: add a file\n",
                {"pkg/new.py": "new\n", "data/blob.bin": b"\0\1\2"},
            ),
        )
        .add(
            "beta",
            (
                "beta: more\n",
                {"pkg/core.py": core(_10="line ten\n", _40="line forty\nand more\n")},
            ),
            requires=["alpha"],
        )
        .add("gamma", ("gamma: readme ünïcode\n", {"README.md": "# Fork\n\nOther.\n"}))
        .save()
    )


@dataclass(frozen=True)
class Result:
    """What a run of the program gave."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> dict:
        return json.loads(self.out)


def until(
    condition: Callable[[], object],
    process: "subprocess.Popen[Any] | None" = None,
    seconds: float = 300,
) -> None:
    """Wait until something is so, on a busy machine also for long.

    Args:
        condition: Says whether it is so.
        process: What has to run meanwhile; what it has done by its end counts.
        seconds: After which it will never be so.
    """
    limit = time.monotonic() + seconds
    while True:
        alive = process is None or process.poll() is None
        if condition():
            return
        assert alive, "the process ended before it was so"
        assert time.monotonic() < limit, f"not so within {seconds:g} s"
        time.sleep(0.02)


def interruptions(file: str | None, action: Callable[[], object]) -> Iterator[bool]:
    """Do something again and again, interrupted at each line of a source file in turn.

    Args:
        file: The source file.
        action: What to do.

    Yields:
        After each time, whether it was interrupted; the last time it was not.
    """
    for number in itertools.count(1):
        passed = 0

        def trace(frame: FrameType, event: str, _: object, at: int = number) -> Any:
            nonlocal passed
            if frame.f_code.co_filename != file:
                return None
            passed += event == "line"
            if event == "line" and passed == at:
                signal.raise_signal(signal.SIGINT)
            return trace

        before, interrupted = sys.gettrace(), False
        sys.settrace(trace)
        try:
            action()
        except KeyboardInterrupt:
            interrupted = True
        finally:
            sys.settrace(before)
        yield interrupted
        if passed < number:
            return


def program_environment(**extra: str) -> dict[str, str]:
    """Return the environment of a run: the caller's, and where the package lies."""
    variables = {
        key: value
        for key, value in os.environ.items()
        if not key.startswith(("GIT_", "COV_"))
    }
    variables["PYTHONPATH"] = str(ROOT)
    variables.update(extra)
    return variables


def program(*args: str | Path) -> list[str]:
    """Return the command line of the program."""
    return [sys.executable, "-m", "stackctl", *map(str, args)]


def run(
    *args: str | Path,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    umask: int = -1,
    timeout: float = 300,
) -> Result:
    """Run the program: in this process, or in its own where its environment matters."""
    if env is None and umask == -1:
        return _run_here(list(map(str, args)), cwd)
    done = subprocess.run(
        program(*args),
        cwd=cwd,
        env=program_environment(**(env or {})),
        capture_output=True,
        umask=umask,
        timeout=timeout,
        stdin=subprocess.DEVNULL,
    )
    return Result(
        done.returncode,
        done.stdout.decode("utf-8", "surrogateescape"),
        done.stderr.decode("utf-8", "replace"),
    )


def _run_here(arguments: list[str], cwd: Path | None) -> Result:
    from stackctl import cli

    streams = [io.TextIOWrapper(io.BytesIO(), "utf-8") for _ in range(2)]
    with (
        contextlib.chdir(cwd or Path.cwd()),
        contextlib.redirect_stdout(streams[0]),
        contextlib.redirect_stderr(streams[1]),
    ):
        code = cli.run(arguments)
    texts = []
    for stream in streams:
        stream.flush()
        data = stream.buffer.getvalue()  # type: ignore[attr-defined]
        texts.append(data.decode("utf-8", "surrogateescape"))
    return Result(int(code), *texts)


def hostile_home(folder: Path) -> Path:
    """Make a home whose git configuration and hooks would spoil every result."""
    home = folder / "hostile-home"
    for name in ("hooks", "template.d/hooks"):
        (home / name).mkdir(parents=True)
    trap = f"#!/bin/sh\ntouch '{folder}/trap-was-run'\nexit 1\n"
    names = (
        "trap",
        "pre-commit",
        "reference-transaction",
        "post-checkout",
        "applypatch-msg",
        "pre-applypatch",
        "commit-msg",
        "post-update",
    )
    for name in names:
        for place in ("hooks", "template.d/hooks"):
            path = home / place / name
            path.write_text(trap)
            path.chmod(0o755)
    (home / "attributes").write_text("* text eol=crlf ident -diff filter=x\n")
    (home / "excludes").write_text("*\n")
    (home / "template").write_text("a template\n")
    (home / "order").write_text("z*\n*\n")
    (home / ".gitconfig").write_text(HOSTILE_CONFIG.format(home=home))
    (home / ".config/git").mkdir(parents=True)
    (home / ".config/git/config").write_text("[diff]\n\tnoprefix = true\n")
    return home


def files_below(folder: Path) -> dict[str, tuple[int, bytes]]:
    """Return mode and content of every file and link below a folder."""
    out = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.is_symlink():
            out[name] = (0o120000, os.fsencode(path.readlink()))
        elif path.is_file():
            out[name] = (path.lstat().st_mode & 0o7777, path.read_bytes())
    return out
