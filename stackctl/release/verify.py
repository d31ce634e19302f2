# SPDX-License-Identifier: Apache-2.0
"""Verifying an integration tag: composed again from its proof and the pinned base.

Nothing of the tagged commits is used but to compare. Every part is judged on its own,
so that an answer says which of them disagree.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import Any, Final

from stackctl.cache import Cache
from stackctl.compose.lock import make_lock
from stackctl.compose.model import Composition
from stackctl.errors import (
    InputError,
    InternalError,
    RemoteError,
    StackctlError,
)
from stackctl.git.objects import COMMITTER
from stackctl.image.transport import Transport
from stackctl.model.canonical import canonical_file, loads_strict
from stackctl.model.fields import escape
from stackctl.model.ids import CommitId
from stackctl.model.lock import Content, Lock, difference, parse_lock
from stackctl.model.series import ArchiveBase, PathBase, Series, load_series
from stackctl.progress import SILENT, Progress
from stackctl.project import LOCK_FILE, SERIES_FILE
from stackctl.release.authors import authors_by_set
from stackctl.release.changes import Changes, check_changes, composed_sets
from stackctl.release.cut import check_name, component_line, set_lines
from stackctl.release.earlier import ancestry
from stackctl.release.fragments import load_fragments
from stackctl.release.gates import GateState, gate_states
from stackctl.release.images import image_states
from stackctl.release.message import REF, TAGS, Tag, TagMessage
from stackctl.release.notes import render_notes
from stackctl.release.proof import COMPONENTS, Proof, Repository
from stackctl.release.shape import SHAPES, shape_commit
from stackctl.release.signing import Signature, check_signature
from stackctl.release.statement import (
    CHECKS,
    NOTES_FILE,
    PROVENANCE_FILE,
    SUMMARY_FILE,
    Check,
    component_names,
    digest,
    provenance,
    summary,
)
from stackctl.release.statement import difference as json_difference
from stackctl.scratch import scratch_folder

_VERSION: Final = re.compile(r"[0-9A-Za-z.+-]{1,80}")
_FOUND_FILES: Final = 3
"""Files that a message names; the rest is counted."""


@dataclass(frozen=True, slots=True)
class Demands:
    """What a verification asks beside what the tag says.

    Attributes:
        signed: The tag has a signature by a key that this user trusts.
        complete: Nothing was missing when it was cut.
        images: Verify the images again.
        allowed_signers: File of the ssh keys that may sign.
        base: Where a base lies that has no address: a folder or an archive.
        policy: A series whose policy counts instead of the one that the proof carries.
        offline: Never use the network.
        transport: How to talk to the registries of the images.
    """

    signed: bool = False
    complete: bool = False
    images: bool = False
    allowed_signers: Path | None = None
    base: Path | None = None
    policy: Path | None = None
    offline: bool = False
    transport: Transport = field(default_factory=Transport)


@dataclass(frozen=True, slots=True)
class Verified:
    """The answer.

    Attributes:
        tag: Name of the tag.
        message: What it says, None where it says nothing.
        commit: What it points to.
        signature: What became of its signature.
        composition: What was composed again, None where it could not be.
        checks: What was checked.
    """

    tag: str
    message: TagMessage | None
    commit: CommitId | None
    signature: Signature | None
    composition: Composition | None
    checks: tuple[Check, ...]

    @property
    def good(self) -> bool:
        """Whether everything holds."""
        return all(each.ok for each in self.checks)

    def document(self) -> dict[str, object]:
        """Return the answer for a JSON document."""
        made = self.composition
        said = self.message
        return {
            "tag": self.tag,
            "ok": self.good,
            "commit": self.commit,
            "tree": made.tree if made else None,
            "composition": made.composition if made else None,
            "checks": [each.document() for each in self.checks],
            "signature": self.signature.state if self.signature else None,
            "proof": said.proof if said else None,
            "forced": said.forced if said else None,
            "missing": list(said.missing) if said else [],
            "not_checked": list(said.not_checked) if said else [],
        }


class _Checks:
    """Collects checks; one that cannot be made is one that does not hold."""

    def __init__(self) -> None:
        self.found: list[Check] = []
        self.scratch = ""
        """A folder of this run, whose name says nothing to anybody."""

    def add(self, name: str, problems: Sequence[str], why: str) -> bool:
        """Add a check: what is wrong, or else why it holds."""
        ok = not problems
        shown = "; ".join(problems[:_FOUND_FILES])
        if len(problems) > _FOUND_FILES:
            shown += f"; and {len(problems) - _FOUND_FILES} more"
        self.found.append(Check(name, ok, why if ok else shown))
        return ok

    def attempt(self, name: str, make: Callable[[], tuple[list[str], str]]) -> bool:
        """Add a check that may fail to be made."""
        try:
            problems, why = make()
        except RemoteError:
            raise  # not an answer: it can be asked again with the network
        except StackctlError as error:
            problems, why = [error.message], ""
        if self.scratch:
            problems = [each.replace(self.scratch, "") for each in problems]
        return self.add(name, problems, why)


class Verifier:
    """Verifies the integration tags of one repository.

    Args:
        repository: Where tag and proof lie.
        cache: Store and downloads; the composition is made there.
        progress: Told what is being done.
    """

    def __init__(
        self, repository: Path, cache: Cache, progress: Progress = SILENT
    ) -> None:
        self.repository = Repository(repository)
        self.cache = cache
        self.progress = progress

    def verify(self, name: str, demands: Demands | None = None) -> Verified:
        """Verify a tag.

        Args:
            name: Name of the tag.
            demands: What is asked beside what the tag says.

        Raises:
            PinError: There is no such tag.
            RemoteError: The base or a pinned head is neither cached nor reachable.
        """
        demands = demands or Demands()
        check_name(name)
        checks = _Checks()
        if self.repository.ref(TAGS + name) is None:
            self.repository.read_tag(name)  # raises, and says how to get it
        try:
            tag = self.repository.read_tag(name)
        except StackctlError as error:
            checks.add("tag", [error.message], "")
            return Verified(name, None, None, None, None, tuple(checks.found))
        checks.add("tag", [], f"annotated, says what it is, points to {tag.commit}")
        signature = self._signature(tag, demands, checks)
        proof = self._proof(name, tag, checks)
        composition = None
        if proof is not None:
            with scratch_folder(self.cache.store.git_dir / "scratch") as folder:
                _lay_out(proof, folder)
                checks.scratch = f"{folder}/"
                run = _Run(self, tag, proof, folder, demands, checks)
                composition = run.all()
                checks.attempt("components", lambda: _components(tag.message, proof))
                for component in component_names(proof.files):
                    _Component(
                        self,
                        tag,
                        proof.part(component),
                        folder / COMPONENTS / component,
                        demands,
                        checks,
                        component,
                    ).all()
        _forced(tag.message, demands, checks)
        return Verified(
            name,
            tag.message,
            tag.commit,
            signature,
            composition,
            tuple(checks.found),
        )

    def _signature(self, tag: Tag, demands: Demands, checks: _Checks) -> Signature:
        found = check_signature(
            self.cache.store, tag.payload + tag.signature, demands.allowed_signers
        )
        problems = [] if found.holds else [found.why]
        named = tag.tagger.rpartition(">")[0] + ">"
        if found.state == "unsigned" and named != COMMITTER.decode():
            # Whose name stands there, only a signature says.
            problems = [
                f"the tag is unsigned and names {escape(named)}: its signature was "
                "taken off, or `stackctl tag cut` did not make it"
            ]
        if demands.signed and found.state != "good":
            problems = [f"--signed asks for a trusted signature: {found.why}"]
        checks.add("signature", problems, found.why)
        return found

    def _proof(self, name: str, tag: Tag, checks: _Checks) -> Proof | None:
        """Read the proof that the tag names, wherever the ref is."""
        at = self.repository.ref(REF + name)
        wanted = tag.message.proof
        problems = []
        if at is None:
            problems = [
                f"there is no {REF}{name}; fetch it: "
                f"git fetch ORIGIN {REF}{name}:{REF}{name}"
            ]
        elif at != wanted:
            problems = [f"{REF}{name} is at {at}, the tag names {wanted}"]
        checks.add("ref", problems, f"{REF}{name} is at the commit that the tag names")
        try:
            proof = self.repository.read_proof(wanted)
        except StackctlError as error:
            checks.add("proof", [error.message], "")
            return None
        needed = (SERIES_FILE, LOCK_FILE, PROVENANCE_FILE, SUMMARY_FILE, NOTES_FILE)
        missing = [f"{path} is missing" for path in needed if path not in proof.files]
        checks.add("proof", missing, f"{len(proof.files)} files can be read")
        return None if missing else proof


def _forced(message: TagMessage, demands: Demands, checks: _Checks) -> None:
    """Say what was missing when the tag was cut."""
    if not message.missing:
        said = [f"not checked: {each}" for each in message.not_checked]
        checks.add("complete", [], "; ".join(["nothing was missing", *said]))
        return
    what = "; ".join(message.missing)
    why = f"cut with a reason ({message.forced}) although missing: {what}"
    bad = demands.complete or not message.forced
    checks.add("complete", [why] if bad else [], why)


def _components(message: TagMessage, proof: Proof) -> tuple[list[str], str]:
    """The further components: those that the tag names, and no others."""
    names = component_names(proof.files)
    for name in names:
        files = proof.part(name).files
        for path in (SERIES_FILE, LOCK_FILE, PROVENANCE_FILE, NOTES_FILE):
            if path not in files:
                return [f"{COMPONENTS}/{name}/{path} is missing"], ""
    wanted = tuple(component_line(name, proof.files) for name in names)
    problems = [f"the proof has {each}" for each in wanted
                if each not in message.components]  # fmt: skip
    problems += [f"the tag names {each}" for each in message.components
                 if each not in wanted]  # fmt: skip
    return problems, f"{len(names)} further components" if names else "there are none"


def _lay_out(proof: Proof, folder: Path) -> None:
    """Write the files of a proof below an empty folder of ours."""
    for path, data in proof.files.items():
        target = folder / path
        # Exclusive: names that a file system folds into one must not pass for one.
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            with target.open("xb") as file:
                file.write(data)
        except (FileExistsError, NotADirectoryError):
            raise InputError(
                f"the proof has two files that are {path} here", kind="bad-proof"
            ) from None


class _Run:
    """The checks that need the files of the proof."""

    prefix = ""
    """What the names of checks, receipts and missing requirements start with."""

    component = False

    def __init__(
        self,
        verifier: Verifier,
        tag: Tag,
        proof: Proof,
        folder: Path,
        demands: Demands,
        checks: _Checks,
    ) -> None:
        self.verifier = verifier
        self.cache = verifier.cache
        self.repository = verifier.repository
        self.tag = tag
        self.said = tag.message
        self.proof = proof
        self.files: Mapping[str, bytes] = proof.files
        self.folder = folder
        self.demands = demands
        self.checks = checks
        self.series: Series | None = None
        self.lock: Lock | None = None
        self.composition: Composition | None = None

    @property
    def content(self) -> Content:
        """What was composed, or what the lock says where it could not be."""
        if self.composition is not None:
            return self.composition.content()
        if self.lock is None:
            raise InputError("nothing was composed", kind="not-composed")
        return self.lock.content

    def all(self) -> Composition | None:
        """Make every check that can be made; return what was composed."""
        add = self._add
        add("digests", self._digests)
        add("lock", self._lock)
        add("series", self._series)
        if self.series is None:
            return None
        add("compose", self._compose)
        add("message", self._message)
        add("tree", self._tree)
        if self.composition is not None:
            add("commit", self._commit)
        add("statement", self._statement)
        add("receipts", self._receipts)
        add("summary", self._summary)
        if self.composition is not None:
            add("changes", self._changes)
            if self.demands.images:
                add("images", self._images)
        return self.composition

    def _add(self, name: str, make: Callable[[], tuple[list[str], str]]) -> None:
        self.checks.attempt(self.prefix + name, make)

    def _mine(self, lines: Sequence[str]) -> list[str]:
        """Return the lines of a message that are about this part, without its name."""
        if self.prefix:
            start = self.prefix
            return [x.removeprefix(start) for x in lines if x.startswith(start)]
        # The name of a series and a slash: no gate, pin or check has one before.
        return [x for x in lines if "/" not in re.split("[: ]", x, maxsplit=1)[0]]

    def _digests(self) -> tuple[list[str], str]:
        """The files that the tag names by digest."""
        problems = []
        for path, wanted in (
            (LOCK_FILE, self.said.lock),
            (PROVENANCE_FILE, self.said.provenance),
            (SUMMARY_FILE, self.said.summary),
        ):
            found = digest(self.files[path])
            if found != wanted:
                problems.append(
                    f"{path} has SHA-256 {found[:12]}, the tag says {wanted[:12]}"
                )
        return problems, "lock and statements have the digests that the tag names"

    def _lock(self) -> tuple[list[str], str]:
        lock = parse_lock(self.files[LOCK_FILE], file=LOCK_FILE)
        self.lock = lock
        problems = [] if lock.canonical else [f"{LOCK_FILE} is not canonical"]
        content = lock.content
        for name, found, wanted in (
            ("composition", lock.composition, self.said.composition),
            ("tree", content.tree, self.said.tree),
            ("content digest", content.content_sha256, self.said.content_sha256),
            ("base", content.base.identity, self.said.base),
            ("base tree", content.base.tree, self.said.base_tree),
        ):
            if found != wanted:
                problems.append(
                    f"{LOCK_FILE} has the {name} {found}, the tag says {wanted}"
                )
        return problems, "series.lock and the tag name the same composition"

    def _series(self) -> tuple[list[str], str]:
        series = load_series(self.folder / SERIES_FILE)
        problems = []
        if series.name != self.said.series:
            problems = [f"the series is {series.name}, the tag says {self.said.series}"]
        self.series = self._with_base(self._with_policy(series))
        return problems, f"series.toml of {series.name} can be read"

    def _with_policy(self, series: Series) -> Series:
        """Take the policy of who verifies: a proof asks of itself what it likes."""
        if self.demands.policy is None:
            return series
        return replace(series, policy=load_series(self.demands.policy).policy)

    def _with_base(self, series: Series) -> Series:
        """Take a base without an address from where the user says it lies."""
        place = self.demands.base
        base = series.base
        if isinstance(base, PathBase):
            path = str(place.absolute()) if place else _inside(base.path)
            return replace(series, base=replace(base, path=path))
        if isinstance(base, ArchiveBase):
            path = str(place.absolute()) if place else _inside(base.archive)
            return replace(series, base=replace(base, archive=path))
        return series

    def _compose(self) -> tuple[list[str], str]:
        assert self.series is not None
        try:
            composition, made = make_lock(
                self.series,
                self.cache,
                offline=self.demands.offline,
                progress=self.verifier.progress,
            )
        except InternalError as error:
            if error.kind != "routes-disagree":
                raise
            return [error.message], ""
        except InputError as error:
            hint = " (name it with --base)" if self._needs_base() else ""
            return [error.message + hint], ""
        self.composition = composition
        if self.lock is None:
            return ["there is no lock to compare with"], ""
        problems = list(difference(self.lock.content, made.content))
        return problems, "both routes compose what series.lock says"

    def _needs_base(self) -> bool:
        base = self.series.base if self.series else None
        return self.demands.base is None and isinstance(base, (PathBase, ArchiveBase))

    def _message(self) -> tuple[list[str], str]:
        """What the tag says of the composition, beyond the lock."""
        problems = []
        made = self.composition
        if made is not None:
            wanted = tuple(set_lines(made.content()))
            if self.said.sets != wanted:
                differ = [s for s in self.said.sets if s not in wanted]
                differ += [s for s in wanted if s not in self.said.sets]
                problems.append(f"the tag's sets are others: {'; '.join(differ[:2])}")
            for name, found, said in (
                ("composition", made.composition, self.said.composition),
                ("tree", made.tree, self.said.tree),
                ("content digest", made.content_sha256, self.said.content_sha256),
                ("base", made.base.identity, self.said.base),
                ("base tree", made.base.tree, self.said.base_tree),
            ):
                if found != said:
                    problems.append(f"the tag says {name} {said}, composed is {found}")
        if bool(self.said.missing) != bool(self.said.forced):
            problems.append("the tag says that something is missing, and no reason")
        return problems, "the tag says what was composed"

    def _tree(self) -> tuple[list[str], str]:
        tagged = self.repository.store.commit_tree(self.tag.commit)
        problems = []
        if tagged != self.said.tree:
            problems = [f"the tagged commit has tree {tagged}, the tag says another"]
        made = self.composition
        if made is not None and tagged != made.tree:
            problems = [f"the tagged commit has tree {tagged}, composed is {made.tree}"]
        return problems, f"the tagged commit has the tree {tagged}"

    def _commit(self) -> tuple[list[str], str]:
        """The tagged commits: made again from the composition, in the same shape."""
        assert self.composition is not None and self.series is not None
        shape = next(each for each in SHAPES if each == self.said.shape)
        writer = self.cache.store.writer()
        try:
            wanted = shape_commit(
                self.cache.store,
                self.series,
                self.composition.content(),
                shape,
                writer,
            )
        finally:
            writer.abort()
        problems = []
        if wanted != self.tag.commit:
            problems = [f"the tag is on {self.tag.commit}, composed is {wanted}"]
        return problems, f"the tagged commits are those of the composition ({shape})"

    def _statement(self) -> tuple[list[str], str]:
        assert self.series is not None
        found = _statement(self.files[PROVENANCE_FILE], PROVENANCE_FILE)
        wanted = provenance(
            self.series,
            self.content,
            self.files,
            tag=self.said.tag,
            commit=self.content.commit if self.component else self.tag.commit,
            shape="linear" if self.component else self.said.shape,
            component=self.component,
            version=_version(found, "runDetails", "builder"),
        )
        text = json_difference(wanted, found)
        return [f"{PROVENANCE_FILE}: {text}"] if text else [], (
            "the provenance is the one of these files"
        )

    def _gates(self) -> list[GateState]:
        assert self.series is not None
        return gate_states(
            self.series,
            composed_sets(self.content.steps),
            self.cache,
            offline=self.demands.offline,
            released=True,
            progress=self.verifier.progress,
        )

    def _receipts(self) -> tuple[list[str], str]:
        assert self.series is not None
        if "gates" not in self.series.policy.release_requires:
            return [], "the series' policy asks for no receipts"
        problems = []
        receipts = self._mine(self.said.receipts)
        named = {line.split(" ", 1)[0]: line for line in receipts}
        forced = [each.split(":")[1].strip() for each in self._mine(self.said.missing)
                  if each.startswith("gate:")]  # fmt: skip
        for state in self._gates():
            if state.gate in forced:
                if state.gate in named:
                    problems.append(f"{state.gate} is named and called missing")
            elif not state.ok:
                problems.append(f"{state.gate}: {state.why}")
            elif named.get(state.gate) != state.line:
                said = named.get(state.gate, "nothing")
                problems.append(f"{state.gate}: the tag says {said}, not {state.line}")
            named.pop(state.gate, None)
        problems += [f"{gate} is named, and no set requires it" for gate in named]
        held = (
            "1 receipt holds"
            if len(receipts) == 1
            else f"{len(receipts)} receipts hold"
        )
        lost = "1 gate was" if len(forced) == 1 else f"{len(forced)} gates were"
        return problems, f"{held} again" + (f", {lost} missing" if forced else "")

    def _summary(self) -> tuple[list[str], str]:
        """The summary: what it is about, and that it says what the tag says."""
        assert self.series is not None
        found = _statement(self.files[SUMMARY_FILE], SUMMARY_FILE)
        predicate = _table(found.get("predicate"))
        listed = predicate.get(CHECKS)
        rows = [_table(each) for each in listed] if isinstance(listed, list) else []
        checks = [
            Check(str(row.get("name")), row.get("ok") is True, str(row.get("why")))
            for row in rows
        ]
        inputs = predicate.get("inputAttestations")
        paths = (
            [_table(i).get("uri") for i in inputs] if isinstance(inputs, list) else []
        )
        receipts = [str(path) for path in paths[1:] if path in self.files]
        wanted = summary(
            self.series,
            self.content,
            self.files,
            checks,
            tag=self.said.tag,
            commit=self.tag.commit,
            receipts=receipts,
            forced=self.said.forced,
            seconds=self.tag.seconds,
            version=_version(found, "verifier"),
        )
        problems = []
        if text := json_difference(wanted, found):
            problems.append(f"{SUMMARY_FILE}: {text}")
        failed = [each.name for each in checks if not each.ok]
        missing = [each.partition(": ")[0] for each in self.said.missing]
        if not checks or failed != missing:
            problems.append(
                f"{SUMMARY_FILE} says that {', '.join(failed) or 'nothing'} was "
                f"missing, the tag says {', '.join(missing) or 'nothing'}"
            )
        result = "FAILED" if failed else "PASSED"
        return problems, f"the summary agrees with the tag ({result})"

    def _changes(self) -> tuple[list[str], str]:
        assert self.series is not None
        content = self.content
        before = ancestry(self.repository, self.proof.parents, self.series.name)
        problems: list[str] = []
        changes = check_changes(
            self.series, content, load_fragments(self.folder), before, self.folder
        )
        missing = self._mine(self.said.missing)
        forced = any(each.startswith("changes:") for each in missing)
        if not forced and "changes" in self.series.policy.release_requires:
            problems += [each.message for each in changes.problems]
        if not problems:
            problems += self._notes(changes)
        count = len(changes.carried)
        return (
            problems,
            f"{count} change fragments, complete; the notes follow from them",
        )

    def _notes(self, changes: Changes) -> list[str]:
        assert self.series is not None
        content = self.content
        authors = authors_by_set(self.cache.store, content)
        wanted = render_notes(
            self.series, content, changes, authors, title=self.said.tag
        )
        if wanted.encode() == self.files[NOTES_FILE]:
            return []
        return [f"{NOTES_FILE} is not what the change fragments say"]

    def _images(self) -> tuple[list[str], str]:
        assert self.series is not None
        states = image_states(
            self.series,
            self.content,
            self.cache,
            transport=self.demands.transport,
            offline=self.demands.offline,
            progress=self.verifier.progress,
        )
        bad = [f"{each.ref}: {each.why}" for each in states if not each.ok]
        return bad, f"{len(states)} images contain the composition"


def _inside(address: str) -> str:
    """Return an address that leads to no file outside of the proof.

    Who wrote the tag has no say in what is read of the machine that verifies it.
    """
    if address.startswith(("http://", "https://")):
        return address
    return PurePosixPath(address.removeprefix("file://")).name or "base"


class _Component(_Run):
    """The checks of a further component, whose commits the tag does not have."""

    component = True

    def __init__(
        self,
        verifier: Verifier,
        tag: Tag,
        proof: Proof,
        folder: Path,
        demands: Demands,
        checks: _Checks,
        name: str,
    ) -> None:
        super().__init__(verifier, tag, proof, folder, demands, checks)
        self.name = name
        self.prefix = f"{name}/"

    def all(self) -> Composition | None:
        """Make every check that can be made; return what was composed."""
        self._add("series", self._series)
        if self.series is None:
            return None
        self._add("lock", self._own_lock)
        self._add("compose", self._compose)
        self._add("statement", self._statement)
        self._add("receipts", self._receipts)
        if self.composition is not None:
            self._add("changes", self._changes)
            if self.demands.images:
                self._add("images", self._images)
        return self.composition

    def _series(self) -> tuple[list[str], str]:
        series = load_series(self.folder / SERIES_FILE)
        self.series = self._with_policy(series)
        problems = []
        if series.name != self.name:
            problems = [f"the series is {series.name}, its folder says {self.name}"]
        return problems, f"series.toml of {series.name} can be read"

    def _own_lock(self) -> tuple[list[str], str]:
        # That tag and lock agree is checked for all components together.
        self.lock = parse_lock(self.files[LOCK_FILE], file=LOCK_FILE)
        problems = [] if self.lock.canonical else [f"{LOCK_FILE} is not canonical"]
        return problems, "series.lock can be read"


def _table(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _statement(data: bytes, file: str) -> dict[str, Any]:
    """Read a statement; anything but our own spelling is refused."""
    found = loads_strict(data, file=file)
    if not isinstance(found, dict) or canonical_file(found) != data:
        raise InputError(f"{file} is not a canonical JSON object", kind="bad-statement")
    return found


def _version(statement: dict[str, Any], *path: str) -> str:
    """Return the version of stackctl that a statement names."""
    at = _table(statement.get("predicate"))
    for name in (*path, "version"):
        at = _table(at.get(name))
    version = at.get("stackctl")
    good = isinstance(version, str) and _VERSION.fullmatch(version)
    return str(version) if good else "?"
