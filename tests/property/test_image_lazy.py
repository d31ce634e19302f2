# SPDX-License-Identifier: Apache-2.0
"""Damaged indexes of lazily read layers: none of them passes in silence."""

import json
import os
from collections.abc import Callable
from typing import Any

from hypothesis import assume, given, settings
from hypothesis import strategies as st
from images import SITE, Demo, Tar, sha256
from lazyimages import FORMATS, TOC_DIGEST, Entries, Lazy

from stackctl.image.errors import AmbiguousImageError
from stackctl.image.layers import Budget, Interest, clean_path, scan_layer
from stackctl.image.lazy import LayerIndex
from stackctl.image.lazytable import Outcome
from stackctl.image.limits import Limits

LIMITS = Limits(layer=1 << 24, image=1 << 30)
EXAMPLES = int(os.environ.get("STACKCTL_PROPERTY_EXAMPLES", "0"))
quick = settings(deadline=None, max_examples=EXAMPLES or 100)


def seed() -> bytes:
    tar = Tar().folder("etc").file("etc/empty").file("etc/hosts", "127.0.0.1\n")
    for name, data in Demo().package().items():
        tar.file(f"{SITE}/{name}", data)
    tar.file("opt/big", b"a" * 90 + bytes(100) + b"b" * 70)
    tar.hardlink("opt/hard", "opt/big").symlink("opt/soft", "big")
    return tar.whiteout("opt/old").done()


SEED = seed()
CHUNK = 90


def compared(layer: Lazy, piece: int = 1 << 20) -> Outcome:
    """Return what comes of a layer's index when it is read in pieces of a size."""
    index = LayerIndex(layer.annotations, LIMITS)
    chunks = [layer.blob[at : at + piece] for at in range(0, len(layer.blob), piece)]
    scan = scan_layer(
        iter(chunks),
        Budget(LIMITS),
        Interest(),
        size_hint=len(layer.blob),
        index=index,
    )
    assert scan.diff_id == sha256(layer.tar)
    return index.compare(scan.entries, scan.compression)


def is_silent(layer: Lazy) -> bool:
    """Say whether nothing at all is noted about a layer's index."""
    try:
        found = compared(layer)
    except AmbiguousImageError:
        return False
    return not (found.differences or found.unchecked or found.times)


def value(entry: dict[str, Any], key: str) -> object:
    """Return a member as it counts, with what its absence means."""
    kind = entry.get("type")
    found = entry.get(key)
    if key == "name":
        return clean_path(str(found or "").encode("utf-8", "replace"))
    if key == "linkName":
        text = str(found or "").encode("utf-8", "replace")
        return clean_path(text) if kind == "hardlink" else text
    if key == "digest" and found == sha256(b""):
        # Of an empty file it may be said or not.
        return 0
    if key == "mode":
        return (found or 0) & 0o7777 if isinstance(found, int) else found
    return found or 0


#: What has a meaning for entries of a type.
MEMBERS = {
    "dir": ("name", "mode"),
    "symlink": ("name", "linkName"),
    "hardlink": ("name", "linkName", "mode", "modtime"),
    "reg": (
        "name",
        "mode",
        "size",
        "modtime",
        "digest",
        "offset",
        "endOffset",
        "innerOffset",
        "chunkSize",
        "chunkOffset",
        "chunkDigest",
        "chunkType",
    ),
    "chunk": ("offset", "innerOffset", "chunkSize", "chunkOffset", "chunkDigest"),
}
#: What need not be said, because something else says it.
SPARE = ("endOffset", "chunkSize", "digest", "chunkDigest")
EMPTY = ("name", "mode", "size", "modtime", "digest")


def same_entry(before: dict[str, Any], after: object) -> bool:
    """Say whether an entry means what another one means."""
    if not isinstance(after, dict) or before["type"] != after.get("type"):
        return False
    keys = MEMBERS[before["type"]]
    if before["type"] == "reg" and not before.get("size"):
        keys = EMPTY
    # Of one chunk it may be said again what is said of the file.
    again = before.get("digest") if not before.get("chunkSize") else None
    return all(
        value(after, key) == value(before, key)
        or (key in SPARE and not value(after, key))
        or (key == "chunkDigest" and again and value(after, key) == again)
        for key in keys
    )


def same(before: bytes, after: bytes) -> bool:
    """Say whether two indexes mean the same, by a reader that takes anything."""
    one = json.loads(before)
    try:
        other = json.loads(after.decode("utf-8", "replace"), strict=False)
    except (ValueError, RecursionError):
        return False
    if not isinstance(other, dict) or other.get("version") != 1:
        return False
    entries = other.get("entries")
    return (
        isinstance(entries, list)
        and len(entries) == len(one["entries"])
        and all(map(same_entry, one["entries"], entries))
    )


def text_of(kind: str) -> bytes:
    found: list[bytes] = []

    def keep(text: bytes) -> bytes:
        found.append(text)
        return text

    FORMATS[kind](SEED, chunk=CHUNK, raw=keep)
    return found[0]


TEXTS = {kind: text_of(kind) for kind in FORMATS}


@st.composite
def damage(draw: st.DrawFn) -> Callable[[bytes], bytes]:
    """Draw what changes a few bytes of a text."""
    at = draw(st.integers(0, 5000))
    kind = draw(st.sampled_from(["set", "cut", "double", "digit", "move"]))
    size = draw(st.integers(1, 80))
    byte = draw(st.sampled_from(b'0123456789abcdef"{}[],:\\/. \xff'))

    def change(text: bytes) -> bytes:
        start = at % len(text)
        data = bytearray(text)
        if kind == "set":
            data[start] = byte
        elif kind == "cut":
            del data[start : start + size]
        elif kind == "double":
            data[start:start] = data[start : start + size]
        elif kind == "digit":
            digits = [i for i, found in enumerate(data) if chr(found).isdigit()]
            place = digits[at % len(digits)]
            data[place] = ord("0") + (data[place] - ord("0") + 1 + size % 9) % 10
        else:
            moved = data[start : start + size]
            del data[start : start + size]
            data[size:size] = moved
        return bytes(data)

    return change


@quick
@given(kind=st.sampled_from(sorted(FORMATS)), change=damage())
def test_damaged_text_is_never_silent(
    kind: str, change: Callable[[bytes], bytes]
) -> None:
    before = TEXTS[kind]
    after = change(before)
    assume(not same(before, after))
    assert not is_silent(FORMATS[kind](SEED, chunk=CHUNK, raw=lambda _: after))


VALUES = st.one_of(
    st.integers(-2, 400),
    st.sampled_from(
        [None, "", "reg", "dir", "chunk", "symlink", "zeros", "opt/big", "../opt/big"]
    ),
    st.sampled_from([sha256(b""), sha256(bytes(90)), sha256(b"127.0.0.1\n")]),
)


@quick
@given(
    kind=st.sampled_from(sorted(FORMATS)),
    edits=st.lists(
        st.tuples(
            st.integers(0, 40), st.sampled_from(("type", *MEMBERS["reg"])), VALUES
        ),
        min_size=1,
        max_size=3,
    ),
    moved=st.one_of(st.none(), st.tuples(st.integers(0, 40), st.integers(0, 40))),
)
def test_changed_entries_are_never_silent(
    kind: str,
    edits: list[tuple[int, str, object]],
    moved: tuple[int, int] | None,
) -> None:
    def edit(entries: Entries) -> None:
        for number, key, found in edits:
            entries[number % len(entries)][key] = found
        if moved is not None:
            # Whatever order they have, chunks stay behind their file.
            entries.insert(
                moved[1] % len(entries), entries.pop(moved[0] % len(entries))
            )

    before = json.loads(TEXTS[kind])["entries"]
    after = json.loads(TEXTS[kind])["entries"]
    edit(after)

    def grouped(entries: Entries) -> list[Entries]:
        groups: list[Entries] = []
        for entry in entries:
            if entry.get("type") == "chunk" and groups:
                groups[-1].append(entry)
            else:
                groups.append([entry])
        return sorted(groups, key=lambda group: str(group[0].get("name")))

    one, other = grouped(before), grouped(after)
    equal = len(one) == len(other) and all(
        len(a) == len(b) and all(map(same_entry, a, b))
        for a, b in zip(one, other, strict=True)
    )
    assume(not equal)
    assert not is_silent(FORMATS[kind](SEED, chunk=CHUNK, edit=edit))


@quick
@given(
    kind=st.sampled_from(sorted(FORMATS)),
    chunk=st.integers(1, 300),
    piece=st.integers(1, 3000),
)
def test_an_index_that_agrees_does_so_however_it_comes(
    kind: str, chunk: int, piece: int
) -> None:
    layer = FORMATS[kind](SEED, chunk=chunk)
    found = compared(layer, piece)
    assert not (found.differences or found.unchecked or found.times)
    assert found.document()["agrees"] is True


def test_the_digest_of_the_index_alone_is_not_enough() -> None:
    """The property is worth something only if the undamaged index is silent."""
    for kind in FORMATS:
        layer = FORMATS[kind](SEED, chunk=CHUNK)
        assert is_silent(layer)
        other = dict(layer.annotations)
        key = min(other) if kind == "chunked" else TOC_DIGEST
        other[key] = sha256(b"")
        assert not is_silent(Lazy(layer.blob, layer.tar, other, layer.suffix))
