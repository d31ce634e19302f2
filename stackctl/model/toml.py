# SPDX-License-Identifier: Apache-2.0
"""TOML files: decoded, parsed, and held to the versions of their format."""

import re
import tomllib
from typing import TYPE_CHECKING, Any, Final

from stackctl.errors import InputError
from stackctl.model.fields import Report, escape, refuse_newer

if TYPE_CHECKING:
    from stackctl.model.positions import Positions

MAX_CHARACTERS: Final = 4 * 1024 * 1024
"""Longest text that is parsed."""

MAX_KEY_PARTS: Final = 32
"""Most parts of a dotted key; the format has 3. `tomllib` is quadratic in it."""

_DOTTED = re.compile(
    r"(?<![\w-])(?:(?:\"[^\"\n]*+\"|'[^'\n]*+'|[\w-]++)[ \t]*+\.[ \t]*+)"
    rf"{{{MAX_KEY_PARTS}}}"
)


def decode(data: bytes, file: str) -> str:
    """Return the text of a TOML file.

    Args:
        data: Bytes of the file.
        file: Its name, for messages.

    Raises:
        InputError: Not UTF-8, or a byte order mark (which TOML does not know).
    """
    if data.startswith((b"\xef\xbb\xbf", b"\xff\xfe", b"\xfe\xff")):
        raise InputError(
            f"{file}:1: starts with a byte order mark; expected plain UTF-8",
            kind="bad-encoding",
            hint="save the file as UTF-8 without BOM",
            where={"file": file, "line": 1},
        )
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise InputError(
            f"{file}:{line}: not UTF-8: byte 0x{data[error.start]:02x} "
            f"at offset {error.start}",
            kind="bad-encoding",
            hint="save the file as UTF-8",
            where={"file": file, "line": line},
        ) from None


def toml_report(text: str, file: str, *, schema: int, kind: str, hint: str) -> Report:
    """Parse a TOML file and return where the problems of its document go.

    Args:
        text: The file's text.
        file: Its name, for messages.
        schema: Newest version of its format that is read.
        kind: Kind of the error for its problems.
        hint: What to do about them.

    Returns:
        The report, with the document.

    Raises:
        InputError: A syntax error, or a newer version.
    """
    document = parse_toml(text, file)

    def positions() -> "Positions":
        from stackctl.model.positions import Positions  # only for messages

        return Positions(text)

    refuse_newer(
        document.get("schema"),
        schema,
        file,
        line=lambda: positions().line(("schema",)),
    )
    return Report(file, document, kind=kind, hint=hint, toml=True, positions=positions)


def parse_toml(text: str, file: str) -> dict[str, Any]:
    """Parse TOML text.

    Raises:
        InputError: A syntax error, with line and column.
    """
    if len(text) > MAX_CHARACTERS:
        raise InputError(
            f"{file}: {len(text):,} characters; at most {MAX_CHARACTERS:,} are "
            "accepted",
            kind="file-too-large",
            where={"file": file},
        )
    if match := _DOTTED.search(text):
        line = text.count("\n", 0, match.start()) + 1
        raise InputError(
            f"{file}:{line}: a key of more than {MAX_KEY_PARTS} parts",
            kind="bad-toml",
            where={"file": file, "line": line},
        )
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise _syntax_error(str(error), text, file) from None
    except RecursionError:
        raise InputError(
            f"{file}: nested too deeply",
            kind="bad-toml",
            hint="no key of ours holds more than a few lists in each other",
            where={"file": file},
        ) from None
    except ValueError as error:  # a number beyond Python's limit of digits
        raise InputError(
            f"{file}: not TOML: {error}",
            kind="bad-toml",
            hint="no number of ours has that many digits",
            where={"file": file},
        ) from None


def _syntax_error(message: str, text: str, file: str) -> InputError:
    match = re.search(
        r" \((?:at line (\d+), column (\d+)|at end of document)\)$", message
    )
    reason = message[: match.start()] if match else message
    if match and match[1]:
        line, column = int(match[1]), int(match[2])
    else:
        line = text.count("\n") + 1
        column = len(text) - (text.rfind("\n") + 1) + 1
    return InputError(
        f"{file}:{line}:{column}: not TOML: {escape(reason)}",
        kind="bad-toml",
        hint="the file is TOML 1.0 (toml.io)",
        where={"file": file, "line": line, "column": column},
    )
