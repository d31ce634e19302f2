# SPDX-License-Identifier: Apache-2.0
"""Writing the report into a folder that can be published as it is."""

from pathlib import Path
from typing import Final

from stackctl.errors import InputError, UsageError
from stackctl.fsutil import read_regular, write_atomic
from stackctl.gates.receipt.model import FOLDER
from stackctl.gates.receipt.signature import MAX_BYTES, signature_files
from stackctl.gates.report.collect import Report
from stackctl.gates.report.page import GENERATOR, link, page

PAGE: Final = "index.html"
_MARK: Final = f'<meta name="generator" content="{GENERATOR}">'.encode()


def write_report(report: Report, out: Path) -> Path:
    """Write the page and, beside it, the receipts that it links to.

    Written again, everything is the same. What else lies in the folder is left alone.

    Args:
        report: What is shown.
        out: The folder; it is made where it is missing.

    Returns:
        The page.

    Raises:
        UsageError: There is an `index.html` that is not ours.
        InputError: The folder cannot be written.
    """
    target = out / PAGE
    _refuse_other(target)
    data = page(report).encode("utf-8")
    for gate in report.gates:
        for judged in gate.judged:
            receipt = judged.receipt
            _put(out / link(receipt), receipt.data)
            assert receipt.path is not None  # it was found below receipts/
            for file in signature_files(receipt.path):
                place = out / FOLDER / receipt.gate / file.name
                _put(place, read_regular(file, MAX_BYTES))
    _put(target, data)
    return target


def _refuse_other(target: Path) -> None:
    if not target.exists() and not target.is_symlink():
        return
    try:
        ours = _MARK in read_regular(target, 256 * 1024 * 1024)
    except InputError:
        ours = False
    if not ours:
        raise UsageError(
            f"{target} is there already and is not a page of `{GENERATOR}`",
            kind="not-ours",
            hint="name another folder with --out",
            where={"file": str(target)},
        )


def _put(path: Path, data: bytes) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(
            f"{path.parent}: cannot be made: {error.strerror}",
            kind="not-writable",
            where={"file": str(path.parent)},
        ) from None
    write_atomic(path, data)
