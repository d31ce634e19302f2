# SPDX-License-Identifier: Apache-2.0
"""The log of a search: every answer is written before it is used.

One JSON document per line: what is asked, then the answers, then the result. A search
that is interrupted, even by `kill -9`, goes on from its log; a log that is finished
gives the same result again without running anything. The kernel has every line at
once; it is not asked to flush them to the disk, for with them it would flush the trees
that were written just before, which takes longer than many a test.
"""

import fcntl
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stackctl.bisect.model import Answer, Evaluation
from stackctl.cache import disk_error
from stackctl.errors import InputError, UsageError
from stackctl.fsutil import read_regular
from stackctl.model.canonical import canonical_file, loads_strict
from stackctl.model.ids import CompositionId, TreeId

SCHEMA = 1
_MAX_LOG = 256 << 20
_BEGIN = b'{"question":{'


class Journal:
    """An append-only log that one process writes.

    Args:
        path: The file; its folder must exist.
        question: What is asked of each tree, in plain JSON.
        fresh: When what is there is put aside: `never`, `finished` (when it has a
            result), or `always`.

    Raises:
        UsageError: Another search writes it, or it is about another question.
        InputError: It is no log, or cannot be written.
    """

    def __init__(
        self, path: Path, question: Mapping[str, object], fresh: str = "never"
    ) -> None:
        self.path = path
        self.evaluations: list[Evaluation] = []
        self.finished = False
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        try:
            self._file = os.open(path, flags, 0o644)
        except OSError as error:
            raise InputError(
                f"{path}: cannot be opened: {error.strerror}",
                kind="cannot-write",
                hint="give --log a file of yours that can be written",
                where={"file": str(path)},
            ) from error
        try:
            self._start(question, fresh)
        except BaseException:
            os.close(self._file)
            raise

    def _start(self, question: Mapping[str, object], fresh: str) -> None:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UsageError(
                f"{self.path}: another search is writing this log",
                kind="search-running",
                hint="wait until it has ended, or give this one a --log of its own",
                where={"file": str(self.path)},
            ) from None
        data = read_regular(self.path, _MAX_LOG)
        # What a killed process began to write has no line end.
        whole = data[: data.rfind(b"\n") + 1]
        head = canonical_file({"schema": SCHEMA, "question": dict(question)})
        self._check_ours(data)
        if whole and fresh != "always":
            self._read(whole, head)
        if not whole or fresh == "always" or (fresh == "finished" and self.finished):
            self.evaluations, self.finished = [], False
            whole = b""
        try:
            os.ftruncate(self._file, len(whole))
            os.lseek(self._file, 0, os.SEEK_END)
            if not whole:
                self._append(head)
        except OSError as error:
            raise disk_error(error, self.path) from error

    def _check_ours(self, data: bytes) -> None:
        """Refuse a file that is not a log, however begun: it would be overwritten."""
        begun = data[: len(_BEGIN)]
        if begun != _BEGIN[: len(begun)]:
            raise InputError(
                f"{self.path}: this file is no search log, and is left as it is",
                kind="bad-log",
                hint="give --log a new file, or the log of an earlier search",
                where={"file": str(self.path), "line": 1},
            )

    def _read(self, data: bytes, head: bytes) -> None:
        lines = data.split(b"\n")[:-1]
        for number, line in enumerate(lines, 1):
            try:
                document = loads_strict(line)
            except InputError:
                raise self._bad_line(number) from None
            try:
                if number == 1:
                    self._check_head(document, line + b"\n", head)
                elif "result" in document:
                    self.finished = True
                else:
                    self.evaluations.append(_evaluation(document))
                    self.finished = False
            except (KeyError, TypeError, AttributeError, ValueError):
                raise self._bad_line(number) from None

    def _bad_line(self, number: int) -> InputError:
        return InputError(
            f"{self.path}:{number}: this is no line of a search log",
            kind="bad-log",
            hint="forget it with --restart",
            where={"file": str(self.path), "line": number},
        )

    def _check_head(self, document: Any, line: bytes, head: bytes) -> None:
        if document["schema"] != SCHEMA:
            raise InputError(
                f"{self.path}: schema {document['schema']} is not known here",
                kind="bad-log",
                hint="use the version of stackctl that wrote it",
                where={"file": str(self.path), "line": 1},
            )
        if line != head:
            asked = document["question"]
            raise UsageError(
                f"{self.path} is the log of another question: {_short(asked)}",
                kind="other-question",
                hint="give this search a --log of its own; a changed script is another "
                "question too",
                where={"file": str(self.path), "line": 1},
            )

    def add(self, evaluation: Evaluation) -> None:
        """Write an answer down."""
        self._write(evaluation.document())

    def finish(self, result: Mapping[str, object]) -> None:
        """Write the result down."""
        if not self.finished:
            self._write({"result": dict(result)})
            self.finished = True

    def _write(self, document: Mapping[str, object]) -> None:
        try:
            self._append(canonical_file(document))
        except OSError as error:
            raise disk_error(error, self.path) from error

    def _append(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[os.write(self._file, view) :]

    def close(self) -> None:
        """Let others write the log."""
        os.close(self._file)


def _short(question: Any) -> str:
    if isinstance(question, dict):
        for name in ("run", "gate"):
            if name in question:
                return f"--{name} {question[name]}"
    return "something else"


def _evaluation(document: Any) -> Evaluation:
    verdict = document["verdict"]
    if verdict not in ("good", "bad", "skip"):
        raise ValueError(verdict)
    answer = Answer(
        verdict,
        document["exit"],
        int(document["ns"]),
        str(document.get("why", "")),
        document.get("output"),
        document.get("receipt"),
        document.get("unsure") is True,
    )
    return Evaluation(
        str(document["name"]),
        TreeId(document["tree"]),
        CompositionId(document["composition"]),
        answer,
        replayed=True,
    )
