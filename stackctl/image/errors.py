# SPDX-License-Identifier: Apache-2.0
"""Why an image could not be verified, one family per exit code.

Every one of these becomes the `reason` of an `unverifiable` verdict; `kind` is the
stable `reason.code`.
"""

from stackctl.errors import InputError, PinError, RemoteError


class ImageFormatError(InputError):
    """The image is of an unknown format, or breaks the format it claims (exit 3)."""

    default_kind = "image-format"


class AmbiguousImageError(InputError):
    """The common runtimes see different contents in this image (exit 3)."""

    default_kind = "ambiguous-image"


class LimitError(InputError):
    """The image passes a limit that protects the reader (exit 3)."""

    default_kind = "limit"


class DigestError(PinError):
    """Bytes do not hash to the digest that names them (exit 4)."""

    default_kind = "digest-mismatch"


class RegistryError(RemoteError):
    """The registry cannot be reached, or does not answer as one (exit 6)."""

    default_kind = "registry"
