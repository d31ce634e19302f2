# SPDX-License-Identifier: Apache-2.0
"""Making `series.lock`, and holding a composition against it."""

import platform
from dataclasses import replace
from os.path import lexists
from pathlib import Path

from stackctl import __version__
from stackctl.cache import Cache
from stackctl.compose.compose import Options, compose_series
from stackctl.compose.model import Composition
from stackctl.compose.plan import select
from stackctl.compose.sources import set_sources
from stackctl.errors import InputError
from stackctl.git.command import git_version
from stackctl.model.lock import Lock, MadeBy, difference, read_lock, write_lock
from stackctl.model.series import Series
from stackctl.progress import SILENT, Progress
from stackctl.project import LOCK_FILE


def project_lock(project: Path) -> Lock:
    """Read the lock of a project.

    Args:
        project: The project folder.

    Raises:
        InputError: There is no lock, or it is bad.
    """
    path = project / LOCK_FILE
    if not lexists(path):
        raise InputError(
            f"{path} does not exist",
            kind="no-lock",
            hint="make it: stackctl lock",
            where={"file": str(path)},
        )
    return read_lock(path)


def compare_with_lock(project: Path, composition: Composition) -> str | None:
    """Return where a composition differs from the project's lock, None where equal.

    Args:
        project: The project folder.
        composition: What was composed.

    Raises:
        InputError: There is no lock, or it is bad.
    """
    found = difference(project_lock(project).content, composition.content())
    return "; ".join(found) or None


def make_lock(
    series: Series, cache: Cache, *, offline: bool = False, progress: Progress = SILENT
) -> tuple[Composition, Lock]:
    """Compose a series by both routes and return the lock.

    Args:
        series: The series.
        cache: Store and facts.
        offline: Never use the network.
        progress: Told what is being done.

    Raises:
        RoutesDisagreeError: Our composition is not the one git makes.
    """
    # Costly to import, and `--locked` needs only the comparison above.
    from stackctl.compose.resolutions import Resolutions
    from stackctl.compose.routes import check_routes

    composition = compose_series(
        series, cache, options=Options(offline=offline), progress=progress
    )
    sources = [
        source
        for patch_set in select(series)
        for source in set_sources(series, patch_set)
    ]
    check_routes(cache.store, composition, sources, Resolutions(series.root), progress)
    made_by = MadeBy(
        tool=f"stackctl {__version__}",
        git=".".join(map(str, git_version())),
        python=platform.python_version(),
        resolutions=composition.resolutions,
    )
    return composition, Lock(content=composition.content(), made_by=made_by)


def with_options(lock: Lock, **options: object) -> Lock:
    """Return a lock that notes how it was made, which its id does not depend on.

    Args:
        lock: The lock.
        options: What to note under `made_by.options`.
    """
    return replace(lock, made_by=replace(lock.made_by, options=options))


def save_lock(project: Path, lock: Lock) -> bool:
    """Write the project's lock.

    A lock with the same content and options is left as it is, whatever tools made it:
    the file must not change from machine to machine.

    Args:
        project: The project folder.
        lock: The new lock.

    Returns:
        Whether the file changed.
    """
    path = project / LOCK_FILE
    if path.is_file():
        try:
            old = read_lock(path)
        except InputError:
            old = None
        if (
            old is not None
            and old.canonical
            and old.content == lock.content
            and old.made_by.options == lock.made_by.options
        ):
            return False
    return write_lock(path, lock)
