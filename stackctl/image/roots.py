# SPDX-License-Identifier: Apache-2.0
"""Where in an image the tree must be, and what may stand there beside it."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from stackctl.image.rules import Allow

PACKAGE = "package"
CHECKOUT = "checkout"


class Root(NamedTuple):
    """A place in the image that holds a part of the expected tree.

    Attributes:
        tree: Folder of the expected tree; `.` is the whole.
        path: Absolute path in the image.
        kind: `package` or `checkout`.
    """

    tree: str
    path: str
    kind: str


class Pinned(NamedTuple):
    """A file of the pinned wheel.

    Attributes:
        oid: Git blob id of its content.
        size: Bytes.
    """

    oid: bytes
    size: int


class Policy(NamedTuple):
    """What may differ.

    Attributes:
        allow: Untracked files that may be there.
        unpackaged: Globs of tracked files that need not be in a package.
        wheel: Files of the pinned wheel by path, or None without one.
    """

    allow: tuple["Allow", ...] = ()
    unpackaged: tuple[str, ...] = ()
    wheel: Mapping[bytes, Pinned] | None = None
