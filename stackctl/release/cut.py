# SPDX-License-Identifier: Apache-2.0
"""Cutting an integration tag: check everything, then write all of it or nothing."""

import re
import time
import unicodedata
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from stackctl.cache import Cache
from stackctl.compose.model import Composition
from stackctl.compose.publish import publish_together
from stackctl.errors import StackctlError, UsageError
from stackctl.git.command import HermeticGit
from stackctl.git.objects import COMMITTER, TAG
from stackctl.git.packs import PackWriter
from stackctl.image.transport import Transport
from stackctl.model.fields import escape
from stackctl.model.ids import CommitId, Sha256
from stackctl.model.lock import Content, composition_id, parse_lock
from stackctl.model.series import Series, load_series
from stackctl.progress import SILENT, Progress
from stackctl.project import LOCK_FILE, SERIES_FILE
from stackctl.release.earlier import repository_or_none
from stackctl.release.message import REF, TAGS, Tag, TagMessage, one_line, tag_body
from stackctl.release.part import Part
from stackctl.release.proof import COMPONENTS, Repository, write_proof
from stackctl.release.shape import Shape, shape_commit
from stackctl.release.signing import sign_tag
from stackctl.release.statement import (
    PROVENANCE_FILE,
    SUMMARY_FILE,
    Check,
    digest,
    summary,
    to_bytes,
)
from stackctl.scratch import scratch_folder


@dataclass(frozen=True, slots=True)
class Wish:
    """What somebody wants to cut.

    Attributes:
        tag: Name of the tag.
        shape: Shape of the commits.
        sign: Sign it.
        forced: Why it is cut although something is missing; None to insist.
        offline: Never use the network.
        components: Locks of further components, each with its series beside it.
        transport: How to talk to the registries of the images.
    """

    tag: str
    shape: Shape = "linear"
    sign: bool = False
    forced: str | None = None
    offline: bool = False
    components: tuple[Path, ...] = ()
    transport: Transport = field(default_factory=Transport)


@dataclass(frozen=True, slots=True)
class Cut:
    """What became of a wish.

    Attributes:
        tag: Name of the tag.
        commit: The tagged commit.
        composition: What was composed.
        checks: What was checked.
        components: Names and compositions of the further components.
        written: Whether the tag is there now and was not before.
        exists: Whether it was there already, exactly like this.
        proof: The commit that proves it; None where nothing is written.
        signed: Whether it is signed.
        forced: Why it was cut although something is missing.
    """

    tag: str
    commit: CommitId
    composition: Composition
    checks: tuple[Check, ...]
    components: Mapping[str, Composition] = field(default_factory=dict)
    written: bool = False
    exists: bool = False
    proof: CommitId | None = None
    signed: bool = False
    forced: str | None = None

    @property
    def missing(self) -> tuple[Check, ...]:
        """What does not hold."""
        return tuple(each for each in self.checks if not each.ok)

    @property
    def good(self) -> bool:
        """Whether the tag is there, or could be."""
        return not self.missing or self.written or self.exists

    def document(self) -> dict[str, object]:
        """Return the answer for a JSON document."""
        return {
            "tag": self.tag,
            "commit": self.commit,
            "tree": self.composition.tree,
            "composition": self.composition.composition,
            "components": [
                {"name": name, "tree": c.tree, "composition": c.composition}
                for name, c in self.components.items()
            ],
            "checks": [each.document() for each in self.checks],
            "written": self.written,
            "exists": self.exists,
            "signed": self.signed,
            "forced": self.forced,
            "proof": self.proof,
            "refs": [REF + self.tag, TAGS + self.tag],
        }


_NAME: Final = re.compile(r"\w[\w.+/-]*")
"""Names of tags: commands are shown with them, and nobody wants to quote one."""

_LONGEST: Final = 200
"""Most bytes of a part of a name."""


def check_name(tag: str) -> None:
    """Refuse a name that no release should have.

    Raises:
        UsageError: git does not accept it, or a shell or a person could take it for
            something else.
    """
    good = (
        _NAME.fullmatch(tag)
        and unicodedata.is_normalized("NFC", tag)
        and tag != "HEAD"
        and not tag.startswith("refs/")
        # What git makes of it is a file, a lock beside it has a longer name.
        and all(len(part.encode()) <= _LONGEST for part in tag.split("/"))
    )
    if not good or HermeticGit().call("check-ref-format", TAGS + tag)[0]:
        raise UsageError(
            f"`{escape(tag)}` cannot be the name of a tag; expected letters, digits "
            "and `.`, `_`, `+`, `-`, `/` between them, as git takes them",
            kind="bad-tag-name",
            hint="name it after base and series, like v0.33.0+glm53.1",
        )


class Cutter:
    """Cuts integration tags of one project.

    Args:
        series: The series.
        cache: Store and downloads.
        into: The repository that gets the tag; None only to look what is missing.
        progress: Told what is being done.
    """

    def __init__(
        self,
        series: Series,
        cache: Cache,
        into: Path | None,
        progress: Progress = SILENT,
    ) -> None:
        self.series = series
        self.cache = cache
        self.into = into
        self.progress = progress
        self.repository = Repository(into) if into else repository_or_none(series.root)

    def cut(self, wish: Wish, *, write: bool = True) -> Cut:
        """Check everything that a release asks for, and write the tag.

        Args:
            wish: What to cut.
            write: Write it; otherwise only say what would be missing.

        Returns:
            What became of it. Where something is missing and no reason is given,
            nothing is written.

        Raises:
            UsageError: The name is bad, the tag is there and differs, or signing fails.
            InputError: The lock is missing or differs from what is composed.
        """
        check_name(wish.tag)
        part = self._part(self.series, wish)
        others = self._components(wish)
        commit = self._shaped(part, wish.shape)
        done = Cut(
            wish.tag,
            commit,
            part.composition,
            (
                *part.state.checks,
                *(
                    Check(f"{name}/{each.name}", each.ok, each.why)
                    for name, other in others.items()
                    for each in other.state.checks
                ),
            ),
            {name: other.composition for name, other in others.items()},
        )
        forced = one_line(wish.forced) if wish.forced and done.missing else None
        done = replace(done, forced=forced)
        if self.into is None or (done.missing and forced is None):
            return done
        return self._written(wish, done, part, others, write)

    def _part(self, series: Series, wish: Wish) -> Part:
        return Part(
            series,
            self.cache,
            self.repository,
            wish.tag,
            transport=wish.transport,
            offline=wish.offline,
            progress=self.progress,
        )

    def _components(self, wish: Wish) -> dict[str, Part]:
        """Compose and check the further components, by the names of their series."""
        found: dict[str, Part] = {}
        for lock in wish.components:
            if lock.name != LOCK_FILE:
                raise UsageError(
                    f"{lock}: a component is named by its {LOCK_FILE}",
                    kind="bad-component",
                )
            series = load_series(lock.parent / SERIES_FILE)
            if series.name in (self.series.name, *found):
                raise UsageError(
                    f"two components of the release are called {series.name}",
                    kind="bad-component",
                    hint="every component is a series with a name of its own",
                )
            found[series.name] = self._part(series, wish)
        return found

    def _shaped(self, part: Part, shape: Shape) -> CommitId:
        store = self.cache.store
        writer = store.writer()
        try:
            commit = shape_commit(store, self.series, part.content, shape, writer)
            writer.finish()
        except BaseException:
            writer.abort()
            raise
        return commit

    def _seconds(self, tag: str) -> int:
        """Return the time of the cut: now, or that of the tag which is there already.

        Everything else of a cut follows from its inputs, so that doing it again makes
        the same bytes and can be told from another one.
        """
        if self.repository is not None and self.repository.ref(TAGS + tag):
            with suppress(StackctlError):  # what is wrong with it is said later
                return self.repository.read_tag(tag).seconds
        return int(time.time())

    def _files(
        self,
        wish: Wish,
        done: Cut,
        part: Part,
        others: Mapping[str, Part],
        seconds: int,
    ) -> dict[str, bytes]:
        """Return what the proof carries, by path."""
        more: dict[str, bytes] = {}
        for name, other in others.items():
            own = other.files(other.content.commit, "linear", component=True)
            more |= {f"{COMPONENTS}/{name}/{path}": own[path] for path in own}
        files = part.files(done.commit, wish.shape, more)
        receipts = [g.receipt for g in part.state.gates if g.ok and g.receipt]
        files[SUMMARY_FILE] = to_bytes(
            summary(
                self.series,
                part.content,
                files,
                done.checks,
                tag=wish.tag,
                commit=done.commit,
                receipts=sorted(set(receipts)),
                forced=done.forced,
                seconds=seconds,
            )
        )
        return files

    def _written(
        self,
        wish: Wish,
        done: Cut,
        part: Part,
        others: Mapping[str, Part],
        write: bool,
    ) -> Cut:
        store = self.cache.store
        seconds = self._seconds(wish.tag)
        when = f"{seconds} +0000"
        files = self._files(wish, done, part, others, seconds)
        with scratch_folder(store.git_dir / "scratch") as folder:
            writer = PackWriter(folder)
            try:
                parents = part.state.earlier.heads()
                proof = write_proof(writer, files, parents, when, wish.tag)
                message = _message(wish, done, part, others, files, proof)
                known = self._known(wish, done, message)
                there = self.repository and self.repository.ref(REF + wish.tag)
                if known is not None:
                    signed = bool(known.signature)
                    done = replace(done, exists=True, proof=proof, signed=signed)
                if not write or (known is not None and there == proof):
                    writer.abort()
                    return done
                refs = {REF + wish.tag: str(proof)}
                if known is None:
                    body = self._tag(wish, done.commit, message, when)
                    refs[TAGS + wish.tag] = writer.add(TAG, body).hex()
                index = writer.finish()
            except BaseException:
                writer.abort()
                raise
            assert index is not None  # there is at least the proof
            pack = index.with_suffix(".pack").read_bytes()
        assert self.into is not None
        # The proof is named first: a tag without it is not seen, not for a moment.
        publish_together(store, self.into, done.commit, pack, refs)
        if known is not None:
            return replace(done, written=True)
        return replace(done, written=True, proof=proof, signed=wish.sign)

    def _tag(self, wish: Wish, commit: CommitId, message: str, when: str) -> bytes:
        if wish.sign:
            return sign_tag(self.cache.store, commit, wish.tag, message, when)
        tagger = COMMITTER + b" " + when.encode()
        return tag_body(commit, wish.tag, tagger, message)

    def _known(self, wish: Wish, done: Cut, message: str) -> Tag | None:
        """Return the tag where it is there already, exactly like this.

        Raises:
            UsageError: It is there and says something else. Tags are never moved.
        """
        assert self.repository is not None
        at = self.repository.ref(TAGS + wish.tag)
        if at is None:
            self._refuse_near(wish.tag)
            return None

        def taken(why: str) -> UsageError:
            return UsageError(
                f"{self.into} has a tag {wish.tag} already: {why}",
                kind="tag-exists",
                hint="a tag is never moved: choose another name",
                where={"tag": wish.tag},
            )

        try:
            found = self.repository.read_tag(wish.tag)
        except StackctlError as error:
            raise taken(error.message) from None
        if (found.commit, found.message.text()) != (done.commit, message):
            raise taken(_differs(found, done, message))
        if wish.sign and not found.signature:
            raise taken("it is not signed")
        if self.repository.ref(REF + wish.tag) not in (None, found.message.proof):
            raise taken(f"{REF}{wish.tag} is not where the tag says")
        return found

    def _refuse_near(self, tag: str) -> None:
        """Refuse a name beside which another tag cannot be on every machine."""
        assert self.repository is not None
        for other in self.repository.tags():
            why = _clash(tag, other)
            if why:
                raise UsageError(
                    f"{self.into} has a tag {other}, {why}",
                    kind="tag-exists",
                    hint="choose another name",
                    where={"tag": tag},
                )


def _message(
    wish: Wish,
    done: Cut,
    part: Part,
    others: Mapping[str, Part],
    files: Mapping[str, bytes],
    proof: CommitId,
) -> str:
    """Return what the tag says."""
    parts = {"": part, **{f"{name}/": other for name, other in others.items()}}
    receipts, images, not_checked = [], [], []
    for prefix, each in parts.items():
        receipts += [prefix + g.line for g in each.state.gates if g.ok and g.receipt]
        images += [
            f"{prefix}{i.ref} {i.digest or 'no digest'}"
            for i in each.state.images
            if i.ok
        ]
        not_checked += [prefix + text for text in each.state.unchecked]
    content = part.content
    return TagMessage(
        tag=wish.tag,
        series=part.series.name,
        composition=composition_id(content),
        tree=content.tree,
        content_sha256=content.content_sha256,
        base=content.base.identity,
        base_tree=content.base.tree,
        shape=wish.shape,
        sets=tuple(set_lines(content)),
        receipts=tuple(map(one_line, receipts)),
        images=tuple(map(one_line, images)),
        components=tuple(component_line(name, files) for name in sorted(others)),
        not_checked=tuple(map(one_line, not_checked)),
        missing=tuple(one_line(f"{e.name}: {e.why}") for e in done.missing),
        forced=done.forced,
        proof=proof,
        lock=Sha256(digest(files[LOCK_FILE])),
        provenance=Sha256(digest(files[PROVENANCE_FILE])),
        summary=Sha256(digest(files[SUMMARY_FILE])),
    ).text()


def component_line(name: str, files: Mapping[str, bytes]) -> str:
    """Return what a tag says of a further component.

    Args:
        name: Name of its series.
        files: The files of the proof, by path.
    """
    at = f"{COMPONENTS}/{name}/"
    lock = parse_lock(files[at + LOCK_FILE], file=at + LOCK_FILE)
    return (
        f"{name}: composition {lock.composition}, tree {lock.content.tree}, "
        f"lock {digest(files[at + LOCK_FILE])}, "
        f"provenance {digest(files[at + PROVENANCE_FILE])}"
    )


def set_lines(content: Content) -> list[str]:
    """Return a line per set of a composition: what became of it, and its tree."""
    lines: dict[str, str] = {}
    counts: dict[str, dict[str, int]] = {}
    for step in content.steps:
        count = counts.setdefault(step.set, {})
        count[step.disposition] = count.get(step.disposition, 0) + 1
        text = ", ".join(f"{n} {what}" for what, n in count.items())
        lines[step.set] = f"{step.set}: {text}, tree {step.tree}"
    return list(lines.values())


def _clash(tag: str, other: str) -> str:
    """Say why two names cannot be beside each other, or nothing."""
    if other.startswith(tag + "/") or tag.startswith(other + "/"):
        return f"and git can have no {tag} beside it: one would be a folder"
    one, two = (unicodedata.normalize("NFC", each).casefold() for each in (tag, other))
    if one == two and tag != other:
        return (
            f"from which {tag} differs in case only: some file systems take them for "
            "the same"
        )
    return ""


def _differs(found: Tag, done: Cut, message: str) -> str:
    if found.commit != done.commit:
        return f"it is at {found.commit}, this would be {done.commit}"
    old, new = found.message.text().splitlines(), message.splitlines()
    for line in old:
        if line not in new:
            return f"it says `{escape(line, 200)}`"
    return "it says less than this one would"
