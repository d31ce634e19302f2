# SPDX-License-Identifier: Apache-2.0
"""Cutting an integration tag: check everything, then write all of it or nothing."""

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from stackctl.cache import Cache
from stackctl.compose.lock import make_lock
from stackctl.compose.model import Composition
from stackctl.compose.pins import Pins, PinState
from stackctl.compose.publish import publish_together
from stackctl.compose.resolutions import FOLDER as RESOLUTIONS
from stackctl.compose.resolutions import SUFFIX
from stackctl.errors import InputError, StackctlError, UsageError
from stackctl.fsutil import read_regular
from stackctl.git.command import HermeticGit
from stackctl.git.objects import COMMITTER, TAG
from stackctl.git.packs import PackWriter
from stackctl.model.fields import escape
from stackctl.model.ids import CommitId, Sha256
from stackctl.model.lock import FILE_NAME as LOCK_FILE
from stackctl.model.lock import MAX_BYTES as MAX_LOCK
from stackctl.model.lock import Content, composition_id, difference, parse_lock
from stackctl.model.series import FILE_NAME as SERIES_FILE
from stackctl.model.series import MAX_BYTES as MAX_SERIES
from stackctl.model.series import Series
from stackctl.progress import SILENT, Progress
from stackctl.release.authors import authors_by_set
from stackctl.release.changes import Changes, check_changes
from stackctl.release.earlier import Earlier, earlier_releases, repository_or_none
from stackctl.release.fragments import FOLDER as CHANGES
from stackctl.release.fragments import load_fragments
from stackctl.release.gates import GateState, gate_states
from stackctl.release.images import ImageState, image_states
from stackctl.release.message import REF, TAGS, Tag, TagMessage, one_line, tag_body
from stackctl.release.notes import render_notes
from stackctl.release.proof import Repository, write_proof
from stackctl.release.shape import Shape, committed_when, shape_commit
from stackctl.release.signing import sign_tag
from stackctl.release.statement import (
    NOTES_FILE,
    PROVENANCE_FILE,
    SUMMARY_FILE,
    Check,
    digest,
    patch_paths,
    provenance,
    summary,
    to_bytes,
)
from stackctl.scratch import scratch_folder

MAX_FILE: Final = 256 << 20
"""Largest file that a proof carries: bytes."""


@dataclass(frozen=True, slots=True)
class Wish:
    """What somebody wants to cut.

    Attributes:
        tag: Name of the tag.
        shape: Shape of the commits.
        sign: Sign it.
        forced: Why it is cut although something is missing; None to insist.
        offline: Never use the network.
    """

    tag: str
    shape: Shape = "linear"
    sign: bool = False
    forced: str | None = None
    offline: bool = False


@dataclass(frozen=True, slots=True)
class Cut:
    """What became of a wish.

    Attributes:
        tag: Name of the tag.
        commit: The tagged commit.
        composition: What was composed.
        checks: What was checked.
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
            "checks": [each.document() for each in self.checks],
            "written": self.written,
            "exists": self.exists,
            "signed": self.signed,
            "forced": self.forced,
            "proof": self.proof,
            "refs": [REF + self.tag, TAGS + self.tag],
        }


@dataclass(frozen=True, slots=True)
class _State:
    """What the checks found, for the tag to say."""

    checks: tuple[Check, ...]
    pins: tuple[PinState, ...]
    unchecked: tuple[str, ...]
    gates: tuple[GateState, ...]
    images: tuple[ImageState, ...]
    changes: Changes
    earlier: Earlier = field(default_factory=Earlier)


def check_name(tag: str) -> None:
    """Refuse a name that no tag can have.

    Raises:
        UsageError: git does not accept it.
    """
    good = tag and not tag.startswith("-") and tag.isprintable()
    if not good or HermeticGit().call("check-ref-format", TAGS + tag)[0]:
        raise UsageError(
            f"`{escape(tag)}` cannot be the name of a tag",
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
        composition = self._composed(wish.offline)
        content = composition.content()
        state = self._checked(wish, content)
        commit = self._shaped(content, wish.shape)
        done = Cut(wish.tag, commit, composition, state.checks)
        forced = one_line(wish.forced) if wish.forced and done.missing else None
        done = replace(done, forced=forced)
        if self.into is None or (done.missing and forced is None):
            return done
        return self._written(wish, done, state, write)

    def _composed(self, offline: bool) -> Composition:
        """Compose by both routes, and insist on the lock."""
        path = self.series.root / LOCK_FILE
        if not path.exists():
            raise InputError(
                f"{path} does not exist",
                kind="no-lock",
                hint="make it: stackctl lock",
                where={"file": str(path)},
            )
        locked = parse_lock(read_regular(path, MAX_LOCK), file=str(path))
        composition, made = make_lock(
            self.series, self.cache, offline=offline, progress=self.progress
        )
        if found := difference(locked.content, made.content):
            raise InputError(
                f"{path} is not what the series composes: {'; '.join(found)}",
                kind="stale-lock",
                hint="run `stackctl lock`, look at what changed, and commit it",
                where={"file": str(path)},
            )
        return composition

    def _shaped(self, content: Content, shape: Shape) -> CommitId:
        writer = self.cache.store.writer()
        try:
            commit = shape_commit(self.cache.store, self.series, content, shape, writer)
            writer.finish()
        except BaseException:
            writer.abort()
            raise
        return commit

    def _checked(self, wish: Wish, content: Content) -> _State:
        wanted = self.series.policy.release_requires
        earlier = self._earlier(wish.tag)
        changes = check_changes(
            self.series,
            content,
            load_fragments(self.series.root),
            earlier,
            self.series.root,
        )
        pins, unchecked, pin_check = self._pins(wish.offline)
        gates = gate_states(
            self.series,
            changes.sets,
            self.cache,
            offline=wish.offline,
            progress=self.progress,
        )
        images: list[ImageState] = []
        if "images" in wanted:
            images = image_states(
                self.series,
                content.tree,
                self.cache,
                offline=wish.offline,
                progress=self.progress,
            )
        checks = [
            Check("lock", True, "both routes compose what series.lock says"),
            pin_check,
            *_gate_checks(gates),
            *_image_checks(images),
            _change_check(changes),
        ]
        kinds = {"pin": "pins", "gate": "gates", "image": "images", "change": "changes"}
        checks = [
            each
            if each.ok or kinds.get(each.name.split(":")[0].rstrip("s")) in wanted
            else Check(each.name, True, f"not asked for by [policy]; {each.why}")
            for each in checks
        ]
        return _State(
            tuple(checks),
            tuple(pins),
            unchecked,
            tuple(gates),
            tuple(images),
            changes,
            earlier,
        )

    def _earlier(self, tag: str) -> Earlier:
        """Return the releases before a tag, also where later ones are there."""
        found = earlier_releases(self.repository, self.series.name, without=tag)
        if self.repository is None or self.repository.ref(TAGS + tag) is None:
            return found
        try:
            proof = self.repository.read_tag(tag).message.proof
            parents = self.repository.read_proof(proof).parents
        except StackctlError:
            return found  # what is wrong with it is said when it is compared
        return replace(found.before(parents), problems=found.problems)

    def _pins(self, offline: bool) -> tuple[list[PinState], tuple[str, ...], Check]:
        pinned = [each for each in self.series.sets if each.composed and each.pinned]
        if not pinned:
            return [], (), Check("pins", True, "no set is pinned to a pull request")
        if offline:
            names = tuple(f"{e.name} {e.pull}: --offline" for e in pinned)
            why = f"not checked, --offline: {', '.join(e.name for e in pinned)}"
            return [], names, Check("pins", True, why)
        states = Pins(self.series, self.cache, progress=self.progress).check()
        counted = [each for each in states if each.counts]
        bad = [
            f"{each.set}: pins {each.pinned[:12]}, remote has "
            f"{(each.remote or 'no such ref')[:12]}"
            if each.state != "unreachable"
            else f"{each.set}: {each.problem}"
            for each in counted
            if each.bad or each.state == "unreachable"
        ]
        if bad:
            return states, (), Check("pins", False, "; ".join(bad))
        return states, (), Check("pins", True, f"{len(counted)} heads have not moved")

    def _files(self, state: _State) -> dict[str, bytes]:
        """Return what the proof carries, without statements and notes."""
        root = self.series.root
        files = {
            SERIES_FILE: read_regular(root / SERIES_FILE, MAX_SERIES),
            LOCK_FILE: read_regular(root / LOCK_FILE, MAX_LOCK),
        }
        wanted: list[str] = []
        for patch_set in self.series.sets:
            wanted += patch_paths(self.series, patch_set)
        folder = root / RESOLUTIONS
        if folder.is_dir():
            names = sorted(os.listdir(folder))
            wanted += [f"{RESOLUTIONS}/{n}" for n in names if n.endswith(SUFFIX)]
        for each in state.changes.fragments:
            files[f"{CHANGES}/{each.id}.toml"] = each.data
            wanted += [path for path in each.files if (root / path).is_file()]
        for path in wanted:
            if path not in files:
                files[path] = read_regular(root / path, MAX_FILE)
        for gate in state.gates:
            files.update(gate.files)
        return files

    def _written(self, wish: Wish, done: Cut, state: _State, write: bool) -> Cut:
        content = done.composition.content()
        store = self.cache.store
        files = self._files(state)
        notes = render_notes(
            self.series,
            content,
            state.changes,
            authors_by_set(store, content),
            title=wish.tag,
        )
        files[NOTES_FILE] = notes.encode()
        files[PROVENANCE_FILE] = to_bytes(
            provenance(
                self.series,
                content,
                files,
                tag=wish.tag,
                commit=done.commit,
                shape=wish.shape,
            )
        )
        receipts = [each.receipt for each in state.gates if each.ok and each.receipt]
        files[SUMMARY_FILE] = to_bytes(
            summary(
                self.series,
                content,
                files,
                done.checks,
                tag=wish.tag,
                commit=done.commit,
                receipts=sorted(set(receipts)),
                forced=done.forced,
            )
        )
        when = committed_when(store.commit(bytes.fromhex(done.commit)))
        with scratch_folder(store.git_dir / "scratch") as folder:
            writer = PackWriter(folder)
            try:
                proof = write_proof(
                    writer,
                    files,
                    state.earlier.heads(),
                    when,
                    wish.tag,
                )
                message = self._message(wish, done, state, files, proof)
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
            assert index is not None  # there is at least the tag
            pack = index.with_suffix(".pack").read_bytes()
        assert self.into is not None
        # The proof is named first: a tag without it is not seen, not for a moment.
        publish_together(store, self.into, done.commit, pack, refs)
        if known is not None:
            return replace(done, written=True)
        return replace(done, written=True, proof=proof, signed=wish.sign)

    def _tag(self, wish: Wish, commit: CommitId, message: str, when: str) -> bytes:
        if wish.sign:
            # A signature is made by somebody at some time; keys are judged by it.
            now = f"{int(time.time())} +0000"
            return sign_tag(self.cache.store, commit, wish.tag, message, now)
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

    def _message(
        self,
        wish: Wish,
        done: Cut,
        state: _State,
        files: Mapping[str, bytes],
        proof: CommitId,
    ) -> str:
        missing = [f"{e.name}: {e.why}" for e in done.missing]
        return tag_message(
            wish.tag,
            self.series,
            done.composition.content(),
            files,
            shape=wish.shape,
            receipts=[each.line for each in state.gates if each.ok],
            images=[f"{e.ref} {e.digest or 'no digest'}" for e in state.images if e.ok],
            not_checked=state.unchecked,
            missing=missing,
            forced=done.forced,
            proof=proof,
        ).text()


def tag_message(
    tag: str,
    series: Series,
    content: Content,
    files: Mapping[str, bytes],
    *,
    shape: str,
    receipts: Sequence[str],
    images: Sequence[str],
    not_checked: Sequence[str],
    missing: Sequence[str],
    forced: str | None,
    proof: CommitId,
) -> TagMessage:
    """Return what a tag says.

    Args:
        tag: Name of the tag.
        series: The series.
        content: What was composed.
        files: The files of the proof.
        shape: Shape of the commits.
        receipts: A line per receipt.
        images: A line per image.
        not_checked: A line per pin that was not checked.
        missing: A line per requirement that is not met.
        forced: Why it is cut all the same.
        proof: The commit that proves it.
    """
    return TagMessage(
        tag=tag,
        series=series.name,
        composition=composition_id(content),
        tree=content.tree,
        content_sha256=content.content_sha256,
        base=content.base.identity,
        base_tree=content.base.tree,
        shape=shape,
        sets=tuple(set_lines(content)),
        receipts=tuple(map(one_line, receipts)),
        images=tuple(map(one_line, images)),
        components=(),
        not_checked=tuple(map(one_line, not_checked)),
        missing=tuple(map(one_line, missing)),
        forced=forced,
        proof=proof,
        lock=Sha256(digest(files[LOCK_FILE])),
        provenance=Sha256(digest(files[PROVENANCE_FILE])),
        summary=Sha256(digest(files[SUMMARY_FILE])),
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


def _differs(found: Tag, done: Cut, message: str) -> str:
    if found.commit != done.commit:
        return f"it is at {found.commit}, this would be {done.commit}"
    old, new = found.message.text().splitlines(), message.splitlines()
    for line in old:
        if line not in new:
            return f"it says `{escape(line, 200)}`"
    return "it says less than this one would"


def _gate_checks(states: Sequence[GateState]) -> list[Check]:
    if not states:
        return [Check("gates", True, "no composed set requires a gate")]
    return [Check(f"gate:{each.gate}", each.ok, each.why) for each in states]


def _image_checks(states: Sequence[ImageState]) -> list[Check]:
    if not states:
        return [Check("images", True, "the series names no image")]
    return [Check(f"image:{each.ref}", each.ok, each.why) for each in states]


def _change_check(changes: Changes) -> Check:
    if changes.problems:
        why = "; ".join(each.message for each in changes.problems)
        return Check("changes", False, why)
    return Check("changes", True, f"{len(changes.new)} new change fragments")
