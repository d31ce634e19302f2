# SPDX-License-Identifier: Apache-2.0
"""Resolution files: every content survives, and the key does not depend on order."""

from hypothesis import given
from hypothesis import strategies as st

from stackctl.compose.resolutions import (
    Resolution,
    conflict_key,
    parse_resolution,
)
from stackctl.git.merge import Conflict
from stackctl.git.objects import BLOB, MODE_EXEC, MODE_FILE, MODE_LINK, Entry, object_id

modes = st.sampled_from((MODE_FILE, MODE_EXEC, MODE_LINK))
entries = st.builds(Entry, modes, st.binary(min_size=20, max_size=20))
maybe = st.none() | entries
bodies = st.binary(max_size=200) | st.text(max_size=200).map(
    lambda text: text.encode("utf-8", "replace")
)


@given(path=st.text(min_size=1), base=maybe, ours=entries, theirs=maybe, body=bodies,
       mode=modes, removed=st.booleans())  # fmt: skip
def test_round_trip(
    path: str,
    base: Entry | None,
    ours: Entry,
    theirs: Entry | None,
    body: bytes,
    mode: int,
    removed: bool,
) -> None:
    conflict = Conflict(path.encode("utf-8", "replace"), base, ours, theirs)
    entry = None if removed else Entry(mode, object_id(BLOB, body))
    resolution = Resolution(conflict, entry, b"" if removed else body)
    data = resolution.to_bytes()
    read = parse_resolution(data, "file")
    assert (read.entry, read.data) == (resolution.entry, resolution.data)
    assert conflict_key(read.conflict) == conflict_key(conflict)
    turned = Conflict(conflict.path, base, theirs, ours)
    assert conflict_key(turned) == conflict_key(conflict)
    name = Resolution(turned, entry, body).file_name
    assert name == resolution.file_name and "/" not in name and len(name) < 100
