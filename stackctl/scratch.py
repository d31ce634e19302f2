# SPDX-License-Identifier: Apache-2.0
"""Scratch folders that leave nothing behind, even after `kill -9`.

A folder is held under a lock while it is used. The next run over the same parent
removes the folders whose lock nobody holds.
"""

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from stackctl.interrupts import Hold


def remove_dead(parent: Path, prefix: str) -> int:
    """Remove the scratch folders that no living process holds.

    Args:
        parent: Folder they lie in.
        prefix: Start of their names.

    Returns:
        How many were removed.
    """
    removed = 0
    try:
        names = [name for name in os.listdir(parent) if name.startswith(prefix)]
    except FileNotFoundError:
        return 0
    for name in names:
        try:
            held = os.open(parent / name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        except OSError:
            continue
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(parent / name, ignore_errors=True)
            removed += 1
        except OSError:
            pass
        finally:
            os.close(held)
    return removed


@contextmanager
def scratch_folder(parent: Path, prefix: str = "scratch-") -> Iterator[Path]:
    """Make a scratch folder and remove it at the end.

    Args:
        parent: Folder to make it in; created where it is missing.
        prefix: Start of its name.

    Yields:
        The folder. It may be renamed away, and is not removed then.
    """
    parent.mkdir(parents=True, exist_ok=True)
    remove_dead(parent, prefix)
    hold = Hold()
    folder, held = None, -1
    try:
        try:
            hold.take()
            folder, held = _make(parent, prefix)
            hold.release()
            yield folder
        finally:
            hold.take()
    finally:
        # Also where Ctrl-C came just before it was held back.
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)
            os.close(held)
        hold.release()


def _make(parent: Path, prefix: str) -> tuple[Path, int]:
    """Return a new folder and the descriptor that holds its lock."""
    while True:
        folder = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
        try:
            held = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        except FileNotFoundError:
            continue
        fcntl.flock(held, fcntl.LOCK_EX)
        # Between creation and lock, another process may have taken it for dead.
        if folder.exists():
            return folder, held
        os.close(held)
