# SPDX-License-Identifier: Apache-2.0
"""Messages of integration tags: what is written is read, and nothing else is."""

import re

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stackctl.errors import InputError
from stackctl.model.ids import CommitId, CompositionId, Sha256, TreeId
from stackctl.release.message import TagMessage, one_line, parse_tag, tag_body

unhurried = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
git_ids = st.text("0123456789abcdef", min_size=40, max_size=40)
digests = st.text("0123456789abcdef", min_size=64, max_size=64)
lines = (
    st.text(st.characters(blacklist_categories=["Cs"]), max_size=60)
    .map(one_line)
    .filter(bool)
)
some = st.lists(lines, max_size=3).map(tuple)
names = st.from_regex(r"[a-z0-9-]{1,12}", fullmatch=True)
tags = st.from_regex(r"v[0-9]\.[0-9]\+[a-z0-9]{1,8}", fullmatch=True)


@st.composite
def messages(draw: st.DrawFn) -> TagMessage:
    missing = draw(some)
    return TagMessage(
        tag=draw(tags),
        series=draw(names),
        composition=CompositionId(draw(digests)),
        tree=TreeId(draw(git_ids)),
        content_sha256=Sha256(draw(digests)),
        base=draw(lines.filter(lambda text: not text.startswith("@"))),
        base_tree=TreeId(draw(git_ids)),
        shape=draw(st.sampled_from(["linear", "merges"])),
        sets=draw(some),
        receipts=draw(some),
        images=draw(some),
        components=draw(some),
        not_checked=draw(some),
        missing=missing,
        forced=draw(lines) if missing else None,
        proof=CommitId(draw(git_ids)),
        lock=Sha256(draw(digests)),
        provenance=Sha256(draw(digests)),
        summary=Sha256(draw(digests)),
    )


def body(message: TagMessage) -> bytes:
    tagger = b"stackctl <stackctl@localhost> 1800000000 +0000"
    return tag_body(CommitId("a" * 40), message.tag, tagger, message.text())


@unhurried
@given(messages())
def test_what_is_written_is_read(message: TagMessage) -> None:
    found = parse_tag(body(message), message.tag)
    assert found.message == message
    assert (found.commit, found.seconds) == ("a" * 40, 1_800_000_000)
    assert found.signature == b"" and found.payload == body(message)


@unhurried
@given(messages(), st.data())
def test_a_change_is_refused_or_read_as_another_message(
    message: TagMessage, data: st.DataObject
) -> None:
    whole = body(message)
    at = data.draw(st.integers(0, len(whole) - 1))
    byte = data.draw(st.integers(0, 255).filter(lambda n: n != whole[at]))
    changed = whole[:at] + bytes([byte]) + whole[at + 1 :]
    try:
        found = parse_tag(changed, message.tag)
    except InputError:
        return
    # Nothing of a tag may be said in bytes that no reader sees.
    rest = re.sub(rb"\Aobject .*\n", b"", found.payload)
    assert (
        found.message != message
        or found.commit != "a" * 40
        or b"tagger stackctl <stackctl@localhost> 1800000000 +0000" not in rest
    )


@unhurried
@given(messages())
def test_a_signature_is_split_off_the_bytes_that_it_signs(message: TagMessage) -> None:
    signature = b"-----BEGIN SSH SIGNATURE-----\nAAAA\n-----END SSH SIGNATURE-----\n"
    found = parse_tag(body(message) + signature, message.tag)
    assert (found.payload, found.signature) == (body(message), signature)
