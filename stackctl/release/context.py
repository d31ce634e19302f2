# SPDX-License-Identifier: Apache-2.0
"""A build context for `ci/Containerfile`: what a composition changes of a package.

For those who build with a Containerfile. It says the same as the layer that
`stackctl image overlay` writes, in the words that a shell in the image understands.
"""

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from stackctl.compose.materialise import check_path, new_folder, write_file
from stackctl.errors import InputError
from stackctl.image.expectation import MODE_SYMLINK, ExpectedTree
from stackctl.image.view import show
from stackctl.release.label import Labels
from stackctl.release.overlay import content_time

#: Folder of the context with the files that go into the folder of packages.
FILES: Final = "files"
#: Shell patterns of what goes away, one a line.
REMOVED: Final = "removed"
#: Options for the build tool, one a line.
OPTIONS: Final = "options"
MANIFEST: Final = "composition.json"
#: Names that need no quoting in a shell pattern.
_PLAIN = re.compile(rb"[A-Za-z0-9_./+@,=-]+")


def write_context(
    target: Path,
    paths: Sequence[bytes],
    folders: Sequence[str],
    after: ExpectedTree,
    labels: Labels,
) -> int:
    """Write the context, whole or not at all.

    Args:
        target: A new or empty folder.
        paths: What the composition changes.
        folders: Folders of the tree that are installed as packages.
        after: The composition.
        labels: What the image says of itself.

    Returns:
        Number of files that the image gets.

    Raises:
        UsageError: The folder is not empty.
        InputError: A name is not plain enough for a shell pattern.
    """
    removed: list[bytes] = []
    files = 0
    with new_folder(target) as folder:
        root = os.fsencode(folder)
        (folder / FILES).mkdir()
        (folder / FILES).chmod(0o755)
        for path in paths:
            if not path.startswith(tuple(os.fsencode(f) + b"/" for f in folders)):
                continue
            if not _PLAIN.fullmatch(path):
                raise InputError(
                    f"{show(path)!r} is no name for a shell pattern",
                    kind="odd-name",
                    hint="use stackctl image overlay, which takes any name",
                )
            if path in after.entries:
                mode, oid = after.entries[path]
                data = after.read(oid)
                name = os.fsencode(FILES) + b"/" + path
                check_path(path, mode)
                _make_parents(root, name)
                write_file(root, name, mode, data)
                if mode != MODE_SYMLINK:
                    when = content_time(data)
                    os.utime(root + b"/" + name, (when, when))
                files += 1
            else:
                removed.append(path)
            if path.endswith(b".py"):
                place, slash, name = path.rpartition(b"/")
                stem = name.removesuffix(b".py")
                removed.append(place + slash + b"__pycache__/" + stem + b".*.pyc")
                if path not in after.entries:
                    removed.append(path + b"c")
        lines = b"".join(line + b"\n" for line in removed)
        options = "".join(f"--label={k}={v}\n" for k, v in labels.labels.items())
        for name_, data in (
            (REMOVED, lines),
            (OPTIONS, options.encode()),
            (MANIFEST, labels.manifest),
        ):
            (folder / name_).write_bytes(data)
            (folder / name_).chmod(0o644)
            os.utime(folder / name_, (content_time(data), content_time(data)))
    return files


def _make_parents(root: bytes, name: bytes) -> None:
    parts = name.split(b"/")[:-1]
    for depth in range(1, len(parts) + 1):
        folder = Path(os.fsdecode(root + b"/" + b"/".join(parts[:depth])))
        if not folder.exists():
            folder.mkdir()
            folder.chmod(0o755)
