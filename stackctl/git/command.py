# SPDX-License-Identifier: Apache-2.0
"""The one way a git process is started: GitPython's command layer, hermetic.

GitPython passes the caller's environment on and can only add to it, so the command is
started through `env -i` with an explicit list. Nothing of the user's configuration,
attributes, hooks, locale or time zone can then change an object, a tree or a patch.
"""

import errno
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stackctl.errors import PinError, StackctlError, UsageError

if TYPE_CHECKING:
    from git.cmd import Git

MINIMUM_GIT = (2, 39)

_ENVIRONMENT = {
    "GIT_ADVICE": "0",
    "GIT_ATTR_NOSYSTEM": "1",
    # Bare repositories read attributes from HEAD since git 2.43; this is its off-
    # switch.
    "GIT_ATTR_SOURCE": "4b825dc642cb6eb9a060e54bf8d69288fbee4904",
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_SYSTEM": os.devnull,
    # What is missing is said, and not asked for by a program that a repository names.
    "GIT_NO_LAZY_FETCH": "1",
    "GIT_NO_REPLACE_OBJECTS": "1",
    "GIT_OPTIONAL_LOCKS": "0",
    "GIT_PAGER": "cat",
    "GIT_TERMINAL_PROMPT": "0",
    "HOME": os.devnull,
    "LANGUAGE": "C",
    "LC_ALL": "C",
    "TZ": "UTC",
    "XDG_CONFIG_HOME": os.devnull,
}

_OPTIONS = (
    "core.attributesFile=" + os.devnull,
    "core.autocrlf=false",
    "core.fsmonitor=false",
    "core.hooksPath=" + os.devnull,
    "core.quotePath=true",
    "gc.auto=0",
    "maintenance.auto=false",
    "merge.renames=true",
    "protocol.ext.allow=never",
)

_NETWORK_VARIABLES = (
    "ALL_PROXY",
    "GIT_ASKPASS",
    "GIT_SSH",
    "GIT_SSH_COMMAND",
    "GIT_SSL_CAINFO",
    "GIT_SSL_CAPATH",
    "HTTPS_PROXY",
    "HTTP_PROXY",
    "NO_PROXY",
    "SSH_ASKPASS",
    "SSH_AUTH_SOCK",
    "SSL_CERT_DIR",
    "SSL_CERT_FILE",
    "all_proxy",
    "http_proxy",
    "https_proxy",
    "no_proxy",
)


class GitCommandError(StackctlError):
    """A git process ended with a failure that the caller did not expect.

    Args:
        arguments: The arguments after `git`.
        status: Its exit status.
        stdout: What it wrote to standard output.
        stderr: What it wrote to standard error.
    """

    default_kind = "git-failed"

    def __init__(
        self, arguments: tuple[str, ...], status: int, stdout: bytes, stderr: bytes
    ) -> None:
        self.arguments = arguments
        self.status = status
        self.stdout = stdout
        self.stderr = stderr
        text = stderr.decode("utf-8", "replace").strip()
        shown = " ".join(arguments[:3])
        super().__init__(f"git {shown} failed ({status}): {text}")


class DamagedObjectError(PinError):
    """A git process ended because an object or a pack is damaged or missing.

    It is no `GitCommandError`: who takes a failure for an answer of git's, such as that
    a patch does not apply, must not take this one.

    Args:
        arguments: The arguments after `git`.
        status: Its exit status.
        stderr: What it wrote to standard error.
        git_dir: The repository that git worked on.
    """

    default_kind = "bad-object"

    def __init__(
        self,
        arguments: tuple[str, ...],
        status: int,
        stderr: bytes,
        git_dir: Path | None = None,
    ) -> None:
        lines = stderr.decode("utf-8", "replace").strip().splitlines()
        # git says the same about a pack each time that it looks into it.
        text = "\n".join(dict.fromkeys(lines))
        shown = " ".join(arguments[:3])
        super().__init__(
            f"git {shown} failed ({status}): {text}",
            hint="if the cache is the damaged one, run `stackctl cache clean` and "
            "compose again; otherwise `git fsck` that repository",
            where={"file": str(git_dir)} if git_dir else None,
        )


FETCH = (
    "fetch",
    "--quiet",
    "--no-tags",
    "--no-write-fetch-head",
    "--no-auto-maintenance",
    "--no-recurse-submodules",
)
"""A fetch that brings objects and leaves nothing else behind."""

DAMAGED = re.compile(
    rb"is corrupt|non-monotonic index|data stream error|wrong index v\d file size"
    rb"|does not match index|index file .* is too small|too short to be a packfile"
    rb"|unable to (?:read|parse|unpack) (?:tree|commit|object|blob|[0-9a-f]{40})"
    rb"|bad (?:tree )?object [0-9a-f]{40}|[Cc]ould not read [0-9a-f]{40}"
    rb"|bad shallow line|upload-pack: not our ref"
)


def disk_problem(status: int, stderr: bytes) -> OSError | None:
    """Return the error of a git process that could not write, None for others.

    Args:
        status: Its exit status.
        stderr: What it wrote to standard error.
    """
    if status == -signal.SIGXFSZ:
        return OSError(errno.EFBIG, os.strerror(errno.EFBIG))
    for number in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS):
        # git runs in the C locale, so its words are those of `strerror`.
        if os.strerror(number).encode() in stderr:
            return OSError(number, os.strerror(number))
    return None


@cache
def _programs() -> tuple[str, str]:
    git = shutil.which("git")
    env = shutil.which("env")
    if git is None or env is None:
        raise UsageError(
            "git was not found on PATH",
            kind="no-git",
            hint="install git 2.39 or later",
        )
    # A relative entry of PATH means our working folder, not the child's.
    return os.path.abspath(env), os.path.abspath(git)


@cache
def _load_gitpython() -> "type[Git]":
    # GitPython runs `git version` when it is imported and complains on standard output
    # where that fails; the check is ours (`git_version`).
    # It also hands our whole environment to it, tokens and all.
    names = ("GIT_PYTHON_REFRESH", "GITHUB_TOKEN", "GH_TOKEN")
    before = {name: os.environ.pop(name, None) for name in names}
    os.environ["GIT_PYTHON_REFRESH"] = "quiet"
    try:
        from git.cmd import Git
    except ImportError as error:  # its own question for the version went wrong
        raise _bad_git(_programs()[1], str(error)) from error
    finally:
        os.environ.pop("GIT_PYTHON_REFRESH", None)
        os.environ.update({k: v for k, v in before.items() if v is not None})
    return Git


class HermeticGit:
    """Runs git commands on one repository (or on none) in a closed environment.

    Args:
        git_dir: The repository; None for commands that need none.
        work_tree: Work tree for the few commands that have one.
        env: Further variables, such as `GIT_INDEX_FILE`.
        network: Let the variables for proxies, certificates and ssh through, and the
            user's own configuration, which names credential helpers. Only for fetch,
            push and ls-remote: they move objects by id and can change none.
    """

    def __init__(
        self,
        git_dir: Path | None = None,
        *,
        work_tree: Path | None = None,
        env: Mapping[str, str] | None = None,
        network: bool = False,
    ) -> None:
        self._git_dir = git_dir
        self._work_tree = work_tree
        self._env = dict(env or {})
        self._network = network

    def with_env(self, **variables: str) -> "HermeticGit":
        """Return the same with further variables."""
        return HermeticGit(
            self._git_dir,
            work_tree=self._work_tree,
            env={**self._env, **variables},
            network=self._network,
        )

    def _command(
        self, args: tuple[str, ...], env: Mapping[str, str] | None
    ) -> list[str]:
        env_program, git_program = _programs()
        variables = dict(_ENVIRONMENT)
        variables["PATH"] = os.environ.get("PATH", os.defpath)
        if self._network:
            for name in ("GIT_CONFIG_GLOBAL", "GIT_CONFIG_NOSYSTEM"):
                del variables[name]
            for name in ("GIT_CONFIG_SYSTEM", "XDG_CONFIG_HOME"):
                del variables[name]
            variables["HOME"] = os.environ.get("HOME", os.devnull)
            for name in ("XDG_CONFIG_HOME", *_NETWORK_VARIABLES):
                if name in os.environ:
                    variables[name] = os.environ[name]
        if self._git_dir is not None:
            variables["GIT_DIR"] = str(self._git_dir)
        if self._work_tree is not None:
            variables["GIT_WORK_TREE"] = str(self._work_tree)
        variables.update(self._env)
        variables.update(env or {})
        command = [env_program, "-i"]
        command += [f"{name}={value}" for name, value in sorted(variables.items())]
        command.append(git_program)
        for option in _OPTIONS:
            command += ["-c", option]
        return [*command, *args]

    def start(
        self,
        *args: str,
        stdin: Any = subprocess.PIPE,
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
    ) -> "subprocess.Popen[bytes]":
        """Start a git process and return it with open pipes.

        Args:
            *args: Arguments after `git`.
            stdin: What standard input is; a pipe by default.
            cwd: Working folder.
            env: Further variables.

        Raises:
            UsageError: git is missing, does not work, or is older than 2.39.
        """
        git_version()
        return self._start(args, stdin, cwd, env)

    def _start(
        self,
        args: tuple[str, ...],
        stdin: Any = subprocess.PIPE,
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
    ) -> "subprocess.Popen[bytes]":
        git = _load_gitpython()(str(cwd) if cwd else "/")
        wrapped = git.execute(
            self._command(args, env), istream=stdin, as_process=True, shell=False
        )
        process: subprocess.Popen[bytes] = wrapped.proc  # type: ignore[assignment]
        # AutoInterrupt ends its process when it is collected; ours is ended by its
        # user.
        wrapped.proc = None
        return process

    def call(
        self,
        *args: str,
        stdin: bytes = b"",
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
    ) -> tuple[int, bytes, bytes]:
        """Run git and return exit status, standard output and standard error."""
        process = self.start(*args, cwd=cwd, env=env)
        try:
            out, err = process.communicate(stdin)
        except BaseException:
            process.kill()
            process.wait()
            raise
        return process.returncode, out, err

    def run(
        self,
        *args: str,
        stdin: bytes = b"",
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
    ) -> bytes:
        """Run git and return its standard output.

        Raises:
            GitCommandError: The exit status is not 0.
            DamagedObjectError: It is not, because of what lies in the repository.
            OSError: The disk is full.
        """
        status, out, err = self.call(*args, stdin=stdin, cwd=cwd, env=env)
        if status:
            raise self.failure(args, status, out, err)
        return out

    def failure(
        self, args: tuple[str, ...], status: int, out: bytes, err: bytes
    ) -> Exception:
        """Return the error for a git process that failed.

        Args:
            args: The arguments after `git`.
            status: Its exit status.
            out: What it wrote to standard output.
            err: What it wrote to standard error.
        """
        problem = disk_problem(status, err)
        if problem is not None:
            return problem
        if DAMAGED.search(err):
            return DamagedObjectError(args, status, err, self._git_dir)
        return GitCommandError(args, status, out, err)

    def text(
        self, *args: str, stdin: bytes = b"", env: Mapping[str, str] | None = None
    ) -> str:
        """Run git and return its output as text without the last line feed."""
        return self.run(*args, stdin=stdin, env=env).decode("utf-8").rstrip("\n")


def git_version() -> tuple[int, ...]:
    """Return the version of the git program, like (2, 39, 5).

    Raises:
        UsageError: git is missing, does not work, or is older than 2.39.
    """
    return _version_of(_programs()[1])


@cache
def _version_of(program: str) -> tuple[int, ...]:
    out, err = HermeticGit()._start(("version",)).communicate()
    match = re.match(rb"git version (\d{1,9}(?:\.\d{1,9})+)", out)
    if match is None:
        raise _bad_git(program, (err or out)[:200].decode("utf-8", "replace"))
    version = tuple(map(int, match[1].split(b".")))
    if version[:2] < MINIMUM_GIT:
        raise UsageError(
            f"git {'.'.join(map(str, version))} is too old",
            kind="old-git",
            hint="install git 2.39 or later",
            where={"file": program},
        )
    return version


def _bad_git(program: str, said: str) -> UsageError:
    return UsageError(
        f"{program} does not tell its version: {' '.join(said.split()) or 'nothing'}",
        kind="bad-git",
        hint="put a git that works first on PATH; 2.39 or later is needed",
        where={"file": program},
    )
