# SPDX-License-Identifier: Apache-2.0
"""Finding the project: the folder that holds a series.toml."""

from os.path import lexists
from pathlib import Path

from stackctl.errors import UsageError

SERIES_FILE = "series.toml"
LOCK_FILE = "series.lock"


def find_project(directory: Path | None = None) -> Path:
    """Return the project folder.

    Args:
        directory: The folder as a user named it; by default the nearest parent of the
            working folder that has a series.toml.

    Returns:
        An absolute path. What is named like the file may be anything, also a folder:
        whoever reads it says so.

    Raises:
        UsageError: There is no series.toml.
    """
    if directory is not None:
        folder = directory.expanduser().absolute()
        if lexists(folder / SERIES_FILE):
            return folder
        raise UsageError(
            f"{directory / SERIES_FILE} does not exist",
            kind="no-project",
            hint="name the folder that holds it with -C",
            where={"file": str(directory / SERIES_FILE)},
        )
    start = Path.cwd()
    for folder in (start, *start.parents):
        if lexists(folder / SERIES_FILE):
            return folder
    raise UsageError(
        f"no {SERIES_FILE} here or in a folder above",
        kind="no-project",
        hint="go to the project's folder, or name it with -C",
    )
