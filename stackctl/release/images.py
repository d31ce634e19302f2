# SPDX-License-Identifier: Apache-2.0
"""Do the images of a series contain the composition?"""

from dataclasses import dataclass
from pathlib import Path

from stackctl.cache import Cache
from stackctl.errors import StackctlError
from stackctl.image.expectation import ExpectedTree, from_store
from stackctl.image.platform import parse_platform
from stackctl.image.roots import Root
from stackctl.image.rules import Allow
from stackctl.image.series import pinned_wheel
from stackctl.image.transport import Transport
from stackctl.image.verify import Request, verify
from stackctl.model.lock import Content
from stackctl.model.series import Image, Series
from stackctl.progress import SILENT, Progress


@dataclass(frozen=True, slots=True)
class ImageState:
    """One image of the series against the composition.

    Attributes:
        ref: The image.
        digest: Digest of what was read, empty where there is none.
        ok: Whether it contains exactly the composition.
        why: What was found.
    """

    ref: str
    digest: str
    ok: bool
    why: str


def image_states(
    series: Series,
    content: Content,
    cache: Cache,
    *,
    transport: Transport,
    folder: Path | None = None,
    offline: bool = False,
    progress: Progress = SILENT,
) -> list[ImageState]:
    """Verify every image that a series names.

    Args:
        series: The series.
        content: What was composed; its trees are in the cache's store.
        cache: Store and downloads.
        transport: How to talk to registries.
        folder: Where images at relative paths are; None for the working folder.
        offline: Never use the network.
        progress: Told what is being done.
    """
    if not series.images:
        return []
    expected = from_store(
        cache.store, content.tree, "the composition", content.base.tree
    )
    return [
        _state(series, image, expected, cache, transport, folder, offline, progress)
        for image in series.images
    ]


def _state(
    series: Series,
    image: Image,
    expected: ExpectedTree,
    cache: Cache,
    transport: Transport,
    folder: Path | None,
    offline: bool,
    progress: Progress,
) -> ImageState:
    try:
        wheel = None
        if image.wheel is not None:
            wheel = pinned_wheel(
                image.wheel, series.root, cache, offline=offline, progress=progress
            )
        found = verify(
            Request(
                reference=image.ref,
                expected=[expected],
                roots=tuple(Root(r.tree, r.path, r.kind) for r in image.roots),
                allow=tuple(Allow(rule.path, rule.sha256) for rule in image.allow),
                unpackaged=image.unpackaged,
                wheel=wheel,
                platform=parse_platform(image.platform) if image.platform else None,
                transport=transport,
                offline=offline,
                folder=folder,
            ),
            None,
            progress,
        )
    except StackctlError as error:
        return ImageState(image.ref, "", False, error.message)
    name = str(found.image.get("digest") or "")
    return ImageState(
        image.ref,
        name,
        found.verdict == "match",
        f"{found.verdict}: {found.reason['message']}",
    )
