# SPDX-License-Identifier: Apache-2.0
"""One series of a release: composed, checked, and what a proof carries of it.

A release has one part, or several: its own series, and further components, each with a
series and a lock of its own.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from stackctl.cache import Cache
from stackctl.compose.context import Context
from stackctl.compose.lock import make_lock, project_lock
from stackctl.compose.model import Composition
from stackctl.compose.pins import Pins
from stackctl.compose.resolutions import FOLDER as RESOLUTIONS
from stackctl.compose.resolutions import SUFFIX
from stackctl.errors import InputError, StackctlError
from stackctl.fsutil import read_regular
from stackctl.image.transport import Transport
from stackctl.model.ids import CommitId
from stackctl.model.lock import MAX_BYTES as MAX_LOCK
from stackctl.model.lock import Content, difference
from stackctl.model.series import MAX_BYTES as MAX_SERIES
from stackctl.model.series import Series
from stackctl.progress import SILENT, Progress
from stackctl.project import LOCK_FILE, SERIES_FILE
from stackctl.release.authors import authors_by_set
from stackctl.release.changes import Changes, check_changes
from stackctl.release.earlier import Earlier, earlier_releases
from stackctl.release.fragments import FOLDER as CHANGES
from stackctl.release.fragments import load_fragments
from stackctl.release.gates import GateState, gate_states
from stackctl.release.images import ImageState, image_states
from stackctl.release.message import TAGS
from stackctl.release.notes import render_notes
from stackctl.release.proof import Repository
from stackctl.release.statement import (
    NOTES_FILE,
    PROVENANCE_FILE,
    Check,
    patch_paths,
    provenance,
    to_bytes,
)

MAX_FILE: Final = 256 << 20
"""Largest file that a proof carries: bytes."""

_POLICY: Final = {
    "pins": "pins",
    "gate": "gates",
    "gates": "gates",
    "image": "images",
    "images": "images",
    "changes": "changes",
}
"""What of `[policy] release_requires` a check belongs to, by the start of its name."""


@dataclass(frozen=True, slots=True)
class State:
    """What the checks of a part found, for the tag to say.

    Attributes:
        checks: The checks.
        unchecked: Pins that could not be checked, in words.
        gates: The required gates.
        images: The images that were verified.
        changes: The change fragments.
        earlier: The releases before.
    """

    checks: tuple[Check, ...]
    unchecked: tuple[str, ...]
    gates: tuple[GateState, ...]
    images: tuple[ImageState, ...]
    changes: Changes
    earlier: Earlier


class Part:
    """One series of a release.

    Args:
        series: The series.
        cache: Store and downloads.
        repository: Where earlier releases lie; None where there is none.
        tag: The tag that is cut.
        transport: How to talk to registries.
        offline: Never use the network.
        progress: Told what is being done.

    Raises:
        InputError: The lock is missing or differs from what is composed.
    """

    def __init__(
        self,
        series: Series,
        cache: Cache,
        repository: Repository | None,
        tag: str,
        *,
        transport: Transport,
        offline: bool = False,
        progress: Progress = SILENT,
    ) -> None:
        self.series = series
        self.cache = cache
        self.repository = repository
        self.tag = tag
        self.transport = transport
        self.offline = offline
        self.progress = progress
        self.composition = self._composed()
        self.content: Content = self.composition.content()
        self.state = self._checked()

    def _composed(self) -> Composition:
        """Compose by both routes, and insist on the lock."""
        path = self.series.root / LOCK_FILE
        locked = project_lock(self.series.root)
        composition, made = make_lock(
            self.series, self.cache, offline=self.offline, progress=self.progress
        )
        if found := difference(locked.content, made.content):
            raise InputError(
                f"{path} is not what the series composes: {'; '.join(found)}",
                kind="stale-lock",
                hint="run `stackctl lock`, look at what changed, and commit it",
                where={"file": str(path)},
            )
        return composition

    def _checked(self) -> State:
        wanted = self.series.policy.release_requires
        earlier = self._earlier()
        changes = check_changes(
            self.series,
            self.content,
            load_fragments(self.series.root),
            earlier,
            self.series.root,
        )
        unchecked, pin_check = self._pins()
        gates = gate_states(
            self.series,
            changes.sets,
            self.cache,
            offline=self.offline,
            progress=self.progress,
        )
        images: list[ImageState] = []
        if "images" in wanted:
            images = image_states(
                self.series,
                self.content,
                self.cache,
                transport=self.transport,
                folder=self.series.root,
                offline=self.offline,
                progress=self.progress,
            )
        checks = [
            Check("lock", True, "both routes compose what series.lock says"),
            pin_check,
            *_gate_checks(gates),
            *_image_checks(images),
            _change_check(changes),
        ]
        checks = [
            each
            if each.ok or _POLICY.get(each.name.split(":")[0]) in wanted
            else Check(each.name, True, f"not asked for by [policy]; {each.why}")
            for each in checks
        ]
        return State(
            tuple(checks),
            unchecked,
            tuple(gates),
            tuple(images),
            changes,
            earlier,
        )

    def _earlier(self) -> Earlier:
        """Return the releases before a tag, also where later ones are there."""
        tag = self.tag
        found = earlier_releases(self.repository, self.series.name, without=tag)
        if self.repository is None or self.repository.ref(TAGS + tag) is None:
            return found
        try:
            proof = self.repository.read_tag(tag).message.proof
            parents = self.repository.read_proof(proof).parents
        except StackctlError:
            return found  # what is wrong with it is said when it is compared
        return replace(found.before(parents), problems=found.problems)

    def _pins(self) -> tuple[tuple[str, ...], Check]:
        pinned = [each for each in self.series.sets if each.composed and each.pinned]
        if not pinned:
            return (), Check("pins", True, "no set is pinned to a pull request")
        if self.offline:
            names = tuple(f"{e.name} {e.pull}: --offline" for e in pinned)
            why = f"not checked, --offline: {', '.join(e.name for e in pinned)}"
            return names, Check("pins", True, why)
        context = Context(self.series, self.cache, progress=self.progress)
        states = Pins(context).check()
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
            return (), Check("pins", False, "; ".join(bad))
        return (), Check("pins", True, f"{len(counted)} heads have not moved")

    def _files(self) -> dict[str, bytes]:
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
        for each in self.state.changes.fragments:
            files[f"{CHANGES}/{each.id}.toml"] = each.data
            wanted += [path for path in each.files if (root / path).is_file()]
        for path in wanted:
            if path not in files:
                files[path] = read_regular(root / path, MAX_FILE)
        for gate in self.state.gates:
            files.update(gate.files)
        return files

    def files(
        self,
        commit: CommitId,
        shape: str,
        more: Mapping[str, bytes] | None = None,
        *,
        component: bool = False,
    ) -> dict[str, bytes]:
        """Return what a proof carries of this part, by path.

        Args:
            commit: The commit that is tagged, or that the part composes.
            shape: Shape of the commits.
            more: What it carries of further components.
            component: It is a further component itself.
        """
        files = {**(more or {}), **self._files()}
        notes = render_notes(
            self.series,
            self.content,
            self.state.changes,
            authors_by_set(self.cache.store, self.content),
            title=self.tag,
        )
        files[NOTES_FILE] = notes.encode()
        files[PROVENANCE_FILE] = to_bytes(
            provenance(
                self.series,
                self.content,
                files,
                tag=self.tag,
                commit=commit,
                shape=shape,
                component=component,
            )
        )
        return files


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
