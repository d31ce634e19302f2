# SPDX-License-Identifier: Apache-2.0
"""A series with the means to compose it, handed on as one thing."""

from dataclasses import dataclass

from stackctl.cache import Cache
from stackctl.model.ids import CommitId
from stackctl.model.series import Series
from stackctl.progress import SILENT, Progress


@dataclass(frozen=True, slots=True)
class Context:
    """A series with the means to compose it.

    Attributes:
        series: The series.
        cache: Its store takes what is fetched and made.
        offline: Never use the network.
        progress: Told what is being done.
    """

    series: Series
    cache: Cache
    offline: bool = False
    progress: Progress = SILENT

    def bring(self, url: str, commit: CommitId, ref: str | None) -> None:
        """Bring a commit with its history into the store.

        Args:
            url: Where it is; a relative path counts from the project.
            commit: The commit.
            ref: A ref that contains it, where one is known.

        Raises:
            PinError: The repository does not have it.
            RemoteError: The repository cannot be reached.
        """
        from stackctl.base.git import fetch_commit  # costly to import

        fetch_commit(
            url,
            commit,
            cache=self.cache,
            project=self.series.root,
            history=True,
            ref=ref,
            offline=self.offline,
            progress=self.progress,
        )
