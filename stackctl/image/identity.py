# SPDX-License-Identifier: Apache-2.0
"""Which image a reference names now, without reading its layers."""

from pathlib import Path

from stackctl.errors import StackctlError
from stackctl.image.layout import DirLayout, OciLayout
from stackctl.image.limits import Limits
from stackctl.image.platform import parse_platform
from stackctl.image.reference import parse_reference, parse_registry
from stackctl.image.source import Resolver


def names_content(text: str) -> bool:
    """Return whether a reference says by a digest which image it means, always.

    Args:
        text: The reference, as a user names it.
    """
    try:
        reference = parse_reference(text)
        if reference.transport == "docker":
            return bool(parse_registry(reference.location).digest)
    except StackctlError:
        pass  # whoever uses it hears of it
    return False


def digest_now(text: str, folder: Path, platform: str | None) -> str | None:
    """Return the digest of the image that lies at a reference now.

    Args:
        text: The reference, as a user names it.
        folder: Where its path is looked for, if that is relative.
        platform: Which image of an index, like `linux/amd64`; None for this machine's.

    Returns:
        The digest as `verify-image` tells it. None where there is no image, or where
        one would have to be fetched or read whole to tell.
    """
    limits = Limits()
    try:
        reference = parse_reference(text, folder)
        path = Path(reference.location)
        wanted = parse_platform(platform) if platform else None
        if reference.transport == "oci":
            layout = OciLayout(path, limits)
            roots = layout.roots(reference.tag)
            return Resolver(layout, limits, wanted).resolve(roots).digest
        if reference.transport == "dir":
            single = DirLayout(path, limits)
            return Resolver(single, limits, wanted).resolve(single.roots()).digest
    except (StackctlError, OSError):
        pass  # there is none, or a bad one: whoever verifies it hears of it
    return None
