# SPDX-License-Identifier: Apache-2.0
"""Platforms: which of an index's images is meant."""

import platform as host
from typing import NamedTuple

from stackctl.errors import UsageError

_MACHINES = {
    "x86_64": "amd64",
    "x86-64": "amd64",
    "aarch64": "arm64",
    "armv7l": "arm",
    "armv6l": "arm",
    "i386": "386",
    "i686": "386",
}
#: What an architecture means when it names no variant.
_DEFAULT_VARIANT = {"arm64": "v8", "arm": "v7", "amd64": "v1"}


class Platform(NamedTuple):
    """An operating system, an architecture and perhaps a variant."""

    os: str
    architecture: str
    variant: str = ""

    def __str__(self) -> str:
        text = f"{self.os}/{self.architecture}"
        return f"{text}/{self.variant}" if self.variant else text

    @property
    def known(self) -> bool:
        """Whether this is a platform at all; attestations have `unknown/unknown`."""
        return bool(self.os and self.architecture) and self.os != "unknown"

    def normal(self) -> "Platform":
        """Return the platform with its variant spelled out.

        As containerd reads it: whatever the case, and Linux where no system is named.
        """
        architecture = self.architecture.lower()
        architecture = _MACHINES.get(architecture, architecture)
        variant = self.variant.lower() or _DEFAULT_VARIANT.get(architecture, "")
        if variant.isascii() and variant.isdigit():
            variant = f"v{variant}"
        return Platform(self.os.lower() or "linux", architecture, variant)

    def same(self, other: "Platform") -> bool:
        """Whether both name the same platform."""
        return self.normal() == other.normal()


def parse_platform(text: str) -> Platform:
    """Return the platform that `OS/ARCH[/VARIANT]` names.

    Raises:
        UsageError: It has another form.
    """
    parts = text.split("/")
    if not 2 <= len(parts) <= 3 or not all(parts):
        raise UsageError(
            f"{text!r} is no platform",
            hint="expected OS/ARCH or OS/ARCH/VARIANT, such as linux/amd64",
        )
    return Platform(*parts)


def this_platform() -> Platform:
    """Return the platform of this machine, as a container runtime names it."""
    machine = host.machine().lower()
    return Platform("linux", _MACHINES.get(machine, machine))
