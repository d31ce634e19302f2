# SPDX-License-Identifier: Apache-2.0
"""The token: where it comes from, and how it is kept out of everything else.

It is in memory, in the header of a request, and in a file of mode 0600 in a scratch
folder while git pushes. It is never an argument or a variable of another process, and
every text that leaves this package goes through `Token.hide`.
"""

import os
import shutil
import subprocess
from urllib.parse import quote, urlsplit

from stackctl.errors import UsageError

RIGHTS = (
    "a fine-grained token for the repository needs: Contents read and write, Pull "
    "requests read and write; Checks and Commit statuses read for `pr status`"
)


class Token:
    """A token that does not show itself.

    Args:
        value: The token.
    """

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value = value

    def __repr__(self) -> str:
        return "Token(***)"

    def reveal(self) -> str:
        """Return the token itself, for the one place that sends it."""
        return self._value

    def hide(self, text: str) -> str:
        """Return text without the token in it.

        Args:
            text: What is shown to somebody.
        """
        for form in {self._value, quote(self._value, safe="")}:
            text = text.replace(form, "***")
        return text


def find_token(server: str) -> Token:
    """Return the token from the environment, or from the GitHub CLI.

    Args:
        server: Base URL of the GitHub server, like `https://github.com`.

    Raises:
        UsageError: There is none.
    """
    for name in ("GITHUB_TOKEN", "GH_TOKEN"):
        if value := os.environ.get(name, "").strip():
            return Token(_checked(value, name))
    if value := _from_cli(urlsplit(server).hostname or ""):
        return Token(_checked(value, "gh auth token"))
    raise UsageError(
        "there is no token for GitHub",
        kind="no-token",
        hint=f"set GITHUB_TOKEN, or log in with `gh auth login`; {RIGHTS}",
    )


def _checked(value: str, source: str) -> str:
    if not value.isascii() or not value.isprintable() or " " in value:
        raise UsageError(
            f"what {source} gives is no token",
            kind="bad-token",
            hint="it is one line of letters, digits and underscores",
        )
    return value


def _from_cli(host: str) -> str:
    program = shutil.which("gh")
    if program is None:
        return ""
    try:
        done = subprocess.run(
            [program, "auth", "token", "--hostname", host],
            capture_output=True,
            stdin=subprocess.DEVNULL,
            timeout=20,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    if done.returncode:
        return ""
    return done.stdout.decode("utf-8", "replace").strip()
