# SPDX-License-Identifier: Apache-2.0
"""The composed commits in a repository of the user's, for plain `git bisect`."""

import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from stackctl.bisect.search import between, prepare
from stackctl.bisect.stack import Place
from stackctl.cache import Cache
from stackctl.compose.publish import publish_commit
from stackctl.model.series import Series
from stackctl.progress import SILENT, Progress


@dataclass(frozen=True, slots=True)
class Exported:
    """What was written.

    Attributes:
        repository: The repository.
        good: The good end.
        bad: The bad end.
        refs: Names of the refs of the two.
        patches: Number of patches between.
        merges: Whether some of the commits are merges.
    """

    repository: Path
    good: Place
    bad: Place
    refs: tuple[str, str]
    patches: int
    merges: bool

    @property
    def commands(self) -> tuple[str, ...]:
        """What to type to bisect with git."""
        git = f"git -C {shlex.quote(str(self.repository))} bisect"
        # The history of a merged pull request is no part of the series.
        option = "--first-parent " if self.merges else ""
        return (
            f"{git} start {option}{self.refs[1]} {self.refs[0]}",
            f"{git} run CMD",
        )

    def document(self) -> dict[str, object]:
        """Return it for a JSON document."""
        return {
            "repository": str(self.repository),
            "good": {**self.good.document(), "ref": self.refs[0]},
            "bad": {**self.bad.document(), "ref": self.refs[1]},
            "patches": self.patches,
            "commands": list(self.commands),
        }

    def text(self) -> Iterator[str]:
        """Return the lines for a person."""
        width = max(map(len, self.refs))
        for ref, place in zip(self.refs, (self.good, self.bad), strict=True):
            yield f"{ref:<{width}}  {place.commit}  {place.name}"
        yield f"{self.patches} patches; next:"
        yield from (f"  {line}" for line in self.commands)


def export_commits(
    series: Series,
    cache: Cache,
    repository: Path,
    prefix: str,
    good: str,
    bad: str,
    *,
    offline: bool = False,
    progress: Progress = SILENT,
) -> Exported:
    """Write the composed commits between two places into a repository.

    Args:
        series: The series.
        cache: Store and facts.
        repository: Work tree or git directory of the repository.
        prefix: Full name of the refs, without the last part.
        good: Name of the good end.
        bad: Name of the bad end.
        offline: Never use the network.
        progress: Told what is being done.

    Raises:
        UsageError: An end is unknown, or the refs have no valid names.
        InputError: The repository cannot be written.
    """
    ground = prepare(series, cache, offline, progress)
    row = between(ground, good, bad)
    low, high = row[0], row[-1]
    steps = ground.composition.steps[low.steps : high.steps]
    refs = (f"{prefix}/good", f"{prefix}/bad")
    # The bad end first: it brings the objects of both, and a ref without the other
    # would be half of an answer.
    publish_commit(cache.store, high.commit, repository, refs[1])
    publish_commit(cache.store, low.commit, repository, refs[0])
    return Exported(
        repository,
        low,
        high,
        refs,
        sum(bool(step.commit) for step in steps),
        any(step.strategy == "merge" for step in steps),
    )
