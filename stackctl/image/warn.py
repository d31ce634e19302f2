# SPDX-License-Identifier: Apache-2.0
"""Something to know beside the verdict, and what users need not hear of."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from stackctl.image.rules import Allow
from stackctl.image.view import show

#: Paths of a warning that are shown.
MANY = 20


@dataclass(frozen=True, slots=True)
class Warn:
    """Something to know beside the verdict.

    Attributes:
        code: Stable identifier.
        message: One sentence.
        paths: Paths in the image that it is about; at most a few.
        count: How many there are in all.
        strict: Whether `--strict` makes it a mismatch.
        extra: Further members of its JSON.
    """

    code: str
    message: str
    paths: tuple[str, ...] = ()
    count: int = 1
    strict: bool = True
    extra: Mapping[str, object] | None = None

    def document(self) -> dict[str, object]:
        """Return the warning as JSON."""
        result: dict[str, object] = {"code": self.code, "message": self.message}
        if self.paths:
            result["paths"] = list(self.paths)
        if self.count != 1:
            result["count"] = self.count
        result["strict"] = self.strict
        result.update(self.extra or {})
        return result


def about(
    code: str, message: str, paths: Iterable[bytes], *, strict: bool = True
) -> Iterator[Warn]:
    """Yield the warning about some paths of an image, if there are any."""
    shown = sorted({b"/" + path.lstrip(b"/") for path in paths})
    if shown:
        yield Warn(
            code, message, tuple(map(show, shown[:MANY])), len(shown), strict=strict
        )


def not_allowed(paths: Iterable[bytes], allow: Sequence[Allow]) -> list[bytes]:
    """Return the paths of an image of which no rule says that nobody need hear."""
    return [
        path
        for path in paths
        if not any(not rule.sha256 and rule.covers(b"/" + path) for rule in allow)
    ]
