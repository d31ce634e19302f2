# SPDX-License-Identifier: Apache-2.0
"""What an archive or folder may cost at most. Real bases stay far below.

The vLLM 0.33.0 sdist: 47 MB packed, 153 MB unpacked (3.3 times), 8,522 files, the
largest 7.3 MB. Linux 6.6: 139 MB packed with xz, 1.4 GB unpacked, 82,000 files.
"""

from dataclasses import dataclass

KIB = 1 << 10
MIB = 1 << 20
GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds on a base.

    Attributes:
        archive_bytes: Size of the packed archive.
        total_bytes: Size of everything unpacked, padding and headers included.
        file_bytes: Size of one file; its packed form is held in memory once.
        entries: Number of entries, folders included.
        ratio: Unpacked over packed size, once `ratio_from` bytes came out. Source text
            packs 3 to 10 times; only made-up input packs more than 250 times.
        ratio_from: Unpacked bytes before the ratio counts: small archives of small
            repetitive files may pack very well.
        header_bytes: Size of one extended header (long name, PAX records).
    """

    archive_bytes: int = 4 * GIB
    total_bytes: int = 8 * GIB
    file_bytes: int = 256 * MIB
    entries: int = 1_000_000
    ratio: int = 250
    ratio_from: int = 64 * MIB
    header_bytes: int = MIB


LIMITS = Limits()
