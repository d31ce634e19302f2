# SPDX-License-Identifier: Apache-2.0
"""Errors that a user can act on, one family per documented exit code.

Every error says what is wrong, where (file, line, key, set, patch, ...) and what to do
next. The command line turns an error into a message or a JSON document and exits with
`exit_code`; the library itself never prints and never exits.
"""

from collections.abc import Mapping
from enum import IntEnum
from typing import ClassVar


class ExitCode(IntEnum):
    """Exit codes of the command contract."""

    OK = 0
    NO = 1
    USAGE = 2
    BAD_INPUT = 3
    PIN = 4
    CONFLICT = 5
    REMOTE = 6
    INSUFFICIENT = 7
    NOT_TESTED = 8
    INVALID = 9
    INTERNAL = 70
    INTERRUPTED = 130


class StackctlError(Exception):
    """An error with a kind, a hint and a place.

    Args:
        message: One or more sentences: what was found and what was expected.
        kind: Stable identifier of the error, for scripts; defaults to the family's.
        hint: What to do next.
        where: Place of the fault: `file`, `line`, `key`, `set`, `patch`, ...
    """

    exit_code: ClassVar[ExitCode] = ExitCode.INTERNAL
    default_kind: ClassVar[str] = "internal"

    def __init__(
        self,
        message: str,
        *,
        kind: str | None = None,
        hint: str | None = None,
        where: Mapping[str, object] | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.kind = kind or self.default_kind
        self.hint = hint
        self.where: dict[str, object] = dict(where or {})

    def document(self) -> dict[str, object]:
        """Return the error as the JSON document of the command contract."""
        return {
            "error": {
                "kind": self.kind,
                "message": self.message,
                "hint": self.hint,
                "where": self.where,
            }
        }


class UsageError(StackctlError):
    """The command line asks for something that has no meaning (exit 2)."""

    exit_code = ExitCode.USAGE
    default_kind = "usage"


class InputError(StackctlError):
    """A file is bad or ambiguous: series, lock, patch, archive, limit (exit 3)."""

    exit_code = ExitCode.BAD_INPUT
    default_kind = "bad-input"


class PinError(StackctlError):
    """A pin or digest does not hold, or a pinned object is missing (exit 4)."""

    exit_code = ExitCode.PIN
    default_kind = "pin"


class ConflictError(StackctlError):
    """A patch does not apply or a merge conflicts (exit 5)."""

    exit_code = ExitCode.CONFLICT
    default_kind = "conflict"


class RemoteError(StackctlError):
    """A remote, an index or the network failed (exit 6)."""

    exit_code = ExitCode.REMOTE
    default_kind = "remote"


class InternalError(StackctlError):
    """A fault of stackctl itself (exit 70)."""
