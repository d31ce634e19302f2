# SPDX-License-Identifier: Apache-2.0
"""What an integration tag says: a message that people and programs read.

The last paragraph has lines of `Key: value`, in a fixed order. Everything that proves
the tag is named there by digest, so that a signature on the tag covers all of it.
"""

import re
from dataclasses import dataclass
from typing import Final

from stackctl.errors import InputError
from stackctl.model.fields import escape, show
from stackctl.model.ids import CommitId, CompositionId, Sha256, TreeId

MAX_BYTES: Final = 1 << 20
"""Largest tag object that is read: bytes. A set takes a line of some 100 bytes."""

REF: Final = "refs/stackctl/"
"""Where the commit with the proof of a tag lies."""

TAGS: Final = "refs/tags/"

_SIGNATURES = (b"-----BEGIN PGP SIGNATURE-----", b"-----BEGIN SSH SIGNATURE-----",
               b"-----BEGIN SIGNED MESSAGE-----")  # fmt: skip
_GIT = "[0-9a-f]{40}"
_SHA = "[0-9a-f]{64}"
_LINE = r"[^\x00-\x1f\x7f]+"
_KEYS: Final = (
    ("Composition", _SHA, "one"),
    ("Tree", _GIT, "one"),
    ("Content-SHA256", _SHA, "one"),
    ("Base", _LINE, "one"),
    ("Base-Tree", _GIT, "one"),
    ("Shape", "linear|merges", "one"),
    ("Set", _LINE, "any"),
    ("Receipt", _LINE, "any"),
    ("Image", _LINE, "any"),
    ("Component", _LINE, "any"),
    ("Not-Checked", _LINE, "any"),
    ("Missing", _LINE, "any"),
    ("Forced", _LINE, "maybe"),
    ("Proof", _GIT, "one"),
    ("Lock-SHA256", _SHA, "one"),
    ("Provenance-SHA256", _SHA, "one"),
    ("Summary-SHA256", _SHA, "one"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TagMessage:
    """The message of an integration tag.

    Attributes:
        tag: Name of the tag.
        series: Name of the series.
        composition: The composition's id.
        tree: The tagged tree.
        content_sha256: Its content digest.
        base: Identity of the base.
        base_tree: Tree of the base.
        shape: Shape of the commits.
        sets: A line per composed set.
        receipts: A line per receipt that counted.
        images: A line per image that was verified.
        components: A line per further component.
        not_checked: A line per pin that could not be checked.
        missing: A line per requirement that is not met; only with a reason.
        forced: The reason for cutting all the same, None where nothing is missing.
        proof: The commit that holds what proves the tag.
        lock: SHA-256 of `series.lock`.
        provenance: SHA-256 of the provenance statement.
        summary: SHA-256 of the verification summary.
    """

    tag: str
    series: str
    composition: CompositionId
    tree: TreeId
    content_sha256: Sha256
    base: str
    base_tree: TreeId
    shape: str
    sets: tuple[str, ...]
    receipts: tuple[str, ...]
    images: tuple[str, ...]
    components: tuple[str, ...]
    not_checked: tuple[str, ...]
    missing: tuple[str, ...]
    forced: str | None
    proof: CommitId
    lock: Sha256
    provenance: Sha256
    summary: Sha256

    def text(self) -> str:
        """Return the message, with a final line feed."""
        values = {
            "Composition": (self.composition,),
            "Tree": (self.tree,),
            "Content-SHA256": (self.content_sha256,),
            "Base": (self.base,),
            "Base-Tree": (self.base_tree,),
            "Shape": (self.shape,),
            "Set": self.sets,
            "Receipt": self.receipts,
            "Image": self.images,
            "Component": self.components,
            "Not-Checked": self.not_checked,
            "Missing": self.missing,
            "Forced": (self.forced,) if self.forced else (),
            "Proof": (self.proof,),
            "Lock-SHA256": (self.lock,),
            "Provenance-SHA256": (self.provenance,),
            "Summary-SHA256": (self.summary,),
        }
        lines = [
            f"{self.tag}: {self.series} on {self.base.partition('@')[0]}",
            "",
            f"What proves this tag is in {REF}{self.tag}; `stackctl tag verify` "
            "composes",
            "the tree again from there and compares.",
            "",
        ]
        for name, _, _ in _KEYS:
            lines += [f"{name}: {value}" for value in values[name]]
        return "\n".join(lines) + "\n"


def one_line(text: str) -> str:
    """Return text as one line of a message, without control characters."""
    return escape(" ".join(text.split()), 1000)


def split_signature(body: bytes) -> tuple[bytes, bytes]:
    """Return what of a tag is signed, and the signature (empty where there is none).

    Args:
        body: Content of a tag object.
    """
    for mark in _SIGNATURES:
        at = body.find(b"\n" + mark)
        if at >= 0:
            return body[: at + 1], body[at + 1 :]
    return body, b""


def tag_body(commit: CommitId, tag: str, tagger: bytes, message: str) -> bytes:
    """Return the content of an annotated tag, without a signature.

    Args:
        commit: The tagged commit.
        tag: Name of the tag.
        tagger: `Name <email> seconds zone`.
        message: The message.
    """
    head = f"object {commit}\ntype commit\ntag {tag}\n".encode()
    return head + b"tagger " + tagger + b"\n\n" + message.encode()


_BODY = re.compile(
    rb"object ([0-9a-f]{40})\ntype ([a-z]+)\ntag ([^\n]+)\ntagger ([^\n]+)\n\n(.*)",
    re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class Tag:
    """An annotated tag as it was read.

    Attributes:
        commit: What it points to.
        tagger: `Name <email> seconds zone`.
        message: Its message.
        signature: Its signature, empty where it has none.
        payload: What is signed.
    """

    commit: CommitId
    tagger: str
    message: TagMessage
    signature: bytes
    payload: bytes

    @property
    def seconds(self) -> int:
        """When it was made, in seconds since 1970; 0 where it does not say."""
        match = re.search(r"> ([0-9]{1,11}) [+-][0-9]{4}$", self.tagger)
        return int(match[1]) if match else 0


def parse_tag(body: bytes, tag: str) -> Tag:
    """Read the content of an integration tag.

    Args:
        body: Content of the tag object.
        tag: Name that the tag must have.

    Raises:
        InputError: It is no integration tag, or says something that cannot be read.
    """

    def bad(why: str) -> InputError:
        return InputError(
            f"tag {tag}: {why}",
            kind="bad-tag",
            hint="integration tags are made by `stackctl tag cut`",
            where={"tag": tag},
        )

    if len(body) > MAX_BYTES:
        raise bad(f"{len(body):,} bytes; at most {MAX_BYTES:,} are accepted")
    payload, signature = split_signature(body)
    match = _BODY.fullmatch(payload)
    if match is None or match[2] != b"commit":
        raise bad("is no annotated tag of a commit")
    try:
        named, tagger, text = (match[n].decode("utf-8") for n in (3, 4, 5))
    except UnicodeDecodeError:
        raise bad("is not UTF-8") from None
    if named != tag:
        raise bad(f"the tag object is called {show(named)}")
    subject, _, rest = text.partition("\n")
    paragraphs = rest.rstrip("\n").split("\n\n")
    values: dict[str, list[str]] = {name: [] for name, _, _ in _KEYS}
    rules = {name: rule for name, rule, _ in _KEYS}
    for line in paragraphs[-1].split("\n"):
        name, colon, value = line.partition(": ")
        if not colon or name not in rules:
            raise bad(f"its message has a line that is not known: {show(line)}")
        if re.fullmatch(rules[name], value) is None:
            raise bad(f"`{name}` of its message cannot be {show(value)}")
        values[name].append(value)
    for name, _, count in _KEYS:
        if count != "any" and len(values[name]) > 1:
            raise bad(f"its message has `{name}` twice")
        if count == "one" and not values[name]:
            raise bad(f"its message has no `{name}`")
    series = re.fullmatch(r".*: ([a-z0-9-]+) on .+", subject)
    message = TagMessage(
        tag=tag,
        series=series[1] if series else "",
        composition=CompositionId(values["Composition"][0]),
        tree=TreeId(values["Tree"][0]),
        content_sha256=Sha256(values["Content-SHA256"][0]),
        base=values["Base"][0],
        base_tree=TreeId(values["Base-Tree"][0]),
        shape=values["Shape"][0],
        sets=tuple(values["Set"]),
        receipts=tuple(values["Receipt"]),
        images=tuple(values["Image"]),
        components=tuple(values["Component"]),
        not_checked=tuple(values["Not-Checked"]),
        missing=tuple(values["Missing"]),
        forced=values["Forced"][0] if values["Forced"] else None,
        proof=CommitId(values["Proof"][0]),
        lock=Sha256(values["Lock-SHA256"][0]),
        provenance=Sha256(values["Provenance-SHA256"][0]),
        summary=Sha256(values["Summary-SHA256"][0]),
    )
    if message.text() != text:
        raise bad("its message is not in the form that `stackctl tag cut` writes")
    return Tag(CommitId(match[1].decode()), tagger, message, signature, payload)
