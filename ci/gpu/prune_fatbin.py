"""Blank the GPU code of a shared library that one GPU architecture does not need.

A CUDA library carries fat-binary containers: a 16-byte header (magic, version,
header size, payload size) followed by entries, each a header of its own (kind: 1 PTX,
2 machine code; its header size; payload size; the architecture at byte 28) and a
payload. Payloads for other architectures are overwritten with zeros. Nothing moves,
so the library loads as before, and zeros compress away: vLLM's 1.2 GB of extensions
become less than 60 MB to carry to a machine with one kind of GPU.
"""

from __future__ import annotations

import mmap
import shutil
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_MAGIC = struct.pack("<I", 0xBA55ED50)
_CONTAINER = struct.Struct("<IHHQ")
_ENTRY = struct.Struct("<HHIQ")
_ARCH_AT = 28
_PTX, _MACHINE_CODE = 1, 2


@dataclass(frozen=True)
class Payload:
    """One code image: where it lies in the file and what it is for."""

    kind: int
    arch: int
    offset: int
    size: int


def containers(data: mmap.mmap) -> Iterator[list[Payload]]:
    """Yield the payloads of each fat-binary container in ``data``."""
    at = data.find(_MAGIC)
    while at >= 0:
        end = at + 4
        if at + _CONTAINER.size <= len(data):
            _, version, header, size = _CONTAINER.unpack_from(data, at)
            whole = at + header + size
            known = version == 1 and header == _CONTAINER.size
            if known and whole <= len(data):
                end = whole
                yield list(_payloads(data, at + header, end))
        at = data.find(_MAGIC, end)


def _payloads(data: mmap.mmap, at: int, end: int) -> Iterator[Payload]:
    while at + _ARCH_AT + 4 <= end:
        kind, _, header, size = _ENTRY.unpack_from(data, at)
        (arch,) = struct.unpack_from("<I", data, at + _ARCH_AT)
        if header < _ARCH_AT + 4 or at + header + size > end:
            return
        yield Payload(kind, arch, at + header, size)
        at += header + size


def prune(source: Path, target: Path, arch: int | None) -> tuple[int, int]:
    """Copy a library, keeping only the code of one architecture.

    A container without machine code for ``arch`` keeps its PTX, which the driver can
    still compile.

    Args:
        source: The library.
        target: Where the copy goes.
        arch: 90 for SM90; None blanks everything (a stub that loads).

    Returns:
        Bytes of GPU code kept and blanked.
    """
    shutil.copyfile(source, target)
    kept = blanked = 0
    with target.open("r+b") as file, mmap.mmap(file.fileno(), 0) as data:
        for payloads in containers(data):
            native = any(p.kind == _MACHINE_CODE and p.arch == arch for p in payloads)
            for p in payloads:
                if arch is not None and (
                    (p.kind == _MACHINE_CODE and p.arch == arch)
                    or (p.kind == _PTX and not native)
                ):
                    kept += p.size
                else:
                    blanked += p.size
                    data[p.offset : p.offset + p.size] = bytes(p.size)
    return kept, blanked
