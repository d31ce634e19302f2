# SPDX-License-Identifier: Apache-2.0
"""What changed since a receipt was written: a stale receipt is about something else.

Only what a receipt is bound to counts: the arms' trees and switches, the gate's files,
the rule and the claims, the model's revision. The scope (hardware, host, versions) does
not; nor does a composition id, which another commit message changes and no file.
"""

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import stackctl
from stackctl.errors import InputError, StackctlError, UsageError
from stackctl.fsutil import read_regular
from stackctl.gates.arms import ComposedTrees, Found
from stackctl.gates.bound import IMAGES, images_sha256
from stackctl.gates.evidence import EXTERNAL
from stackctl.gates.model import Gate
from stackctl.gates.receipt.allow import REMOVED, Filter
from stackctl.gates.receipt.model import BoundFile, Receipt
from stackctl.gates.receipt.words import shown
from stackctl.gates.rule.model import reference
from stackctl.gates.rule.words import counted, listed
from stackctl.gates.serving.engagement import looked_for
from stackctl.model.canonical import canonical_json
from stackctl.progress import SILENT, Progress

if TYPE_CHECKING:
    from stackctl.cache import Cache
    from stackctl.model.series import Series

MAX_FILE: Final = 256 * 1024 * 1024
"""Largest bound file that is read."""

_GENERATED: Final = "generated:"

SAME: Final = "the reference names it"
"""In the place of a digest: the image cannot be another one."""


class ProjectState:
    """What a project is now, looked at once for all receipts.

    Args:
        series: The series.
        cache: Store and facts of its compositions.
        offline: Never use the network.
        progress: Told what is being done.
        model: Identity of the model in use (`name`, `revision`, `sha256`), where the
            user names it.
    """

    def __init__(
        self,
        series: "Series",
        cache: "Cache",
        *,
        offline: bool = False,
        progress: Progress = SILENT,
        model: Mapping[str, Any] | None = None,
    ) -> None:
        self.project: Path = series.root
        self.model = model
        self._trees = ComposedTrees(series, cache, offline, progress)
        self._sets = frozenset(item.name for item in series.sets)
        self._digests: dict[str, str | None] = {}
        self._gates: dict[str, Gate | None] = {}
        self._series_images = series.images
        self._images: dict[str, list[tuple[str, str | None]]] = {}
        self._bound: dict[str, Mapping[str, tuple[str, str]]] = {}
        self._failed: dict[str, StackctlError] = {}

    @property
    def base(self) -> Mapping[str, Any]:
        """Identity, tree and commit of the base."""
        return self._trees.base

    def find(self, definition: str) -> Found:
        """Return tree and composition that an arm's definition means now.

        Raises:
            StackctlError: It does not compose; asked again, it is not tried again.
        """
        if definition in self._failed:
            raise self._failed[definition]
        try:
            return self._trees.find(definition)
        except StackctlError as error:
            self._failed[definition] = error
            raise

    def tree(self, definition: str) -> str | None:
        """Return the tree that an arm's definition means now.

        Args:
            definition: `base`, `composed`, `only:SET`, ...

        Returns:
            The tree's id; None where the series has no such arm any more.

        Raises:
            StackctlError: The series does not compose.
        """
        word, _, names = definition.partition(":")
        if word in {"only", "without", "upto"} and not self._sets >= {
            *names.split(",")
        }:
            return None
        try:
            return self.find(definition).tree
        except UsageError as error:
            if error.kind == "unknown-arm":
                return None
            raise

    def sha256(self, file: BoundFile) -> str | None:
        """Return the digest that a bound file has now, None where it is gone."""
        if file.path not in self._digests:
            self._digests[file.path] = self._read(file.path)
        return self._digests[file.path]

    def _read(self, name: str) -> str | None:
        if name == IMAGES:
            try:
                return images_sha256(self.project)
            except InputError:
                return None
        # The program's own files are those that would run now.
        own = name.startswith("stackctl/")
        root = Path(stackctl.__file__).parents[1] if own else self.project
        try:
            data = read_regular(root / name, MAX_FILE)
        except InputError:
            return None
        return hashlib.sha256(data).hexdigest()

    def gate(self, name: str) -> Gate | None:
        """Return a gate as the project declares it now, None where it does not."""
        if name not in self._gates:
            from stackctl.gates.model import FOLDER, load_gate

            file = self.project / FOLDER / f"{name}.toml"
            self._gates[name] = load_gate(file) if file.is_file() else None
        return self._gates[name]

    def images(self, gate: Gate) -> list[tuple[str, str | None]]:
        """Return the images that a gate verifies, each with its digest now.

        Args:
            gate: A gate of kind image.

        Returns:
            The references in their order, with `SAME` where they name a digest
            themselves, and None where the digest cannot be told.
        """
        if gate.name not in self._images:
            from stackctl.image.identity import digest_now, names_content

            self._images[gate.name] = [
                (
                    ref,
                    SAME
                    if names_content(ref)
                    else digest_now(
                        ref.replace("{project}", str(self.project)),
                        self.project,
                        platform,
                    ),
                )
                for ref, platform in self.named_images(gate)
            ]
        return self._images[gate.name]

    def named_images(self, gate: Gate) -> list[tuple[str, str | None]]:
        """Return the images that a gate verifies, each with its platform.

        Args:
            gate: A gate of kind image.
        """
        spec = gate.image
        if spec is not None and spec.ref is not None:
            return [(spec.ref, _platform(spec.options))]
        return [(image.ref, image.platform) for image in self._series_images]

    def bound(self, gate: Gate) -> Mapping[str, tuple[str, str]]:
        """Return role and digest, by path, of what a run of a gate would bind now.

        Raises:
            InputError: A file that the gate names is missing.
        """
        if gate.name not in self._bound:
            from stackctl.gates.bound import bound_files

            self._bound[gate.name] = bound_files(self.project, gate)
        return self._bound[gate.name]


def stale(receipt: Receipt, state: ProjectState) -> list[str]:
    """Say what changed since a receipt was written.

    Args:
        receipt: The receipt.
        state: What the project is now.

    Returns:
        One sentence for each change; empty for a receipt that is about what is now.

    Raises:
        StackctlError: The series, or a gate's file, cannot be read or composed.
    """
    return [
        *_arms(receipt, state),
        *_files(receipt, state),
        *_declared(receipt, state),
        *_images(receipt, state),
        *_model(receipt, state),
    ]


def _arms(receipt: Receipt, state: ProjectState) -> list[str]:
    said = _base(receipt, state)
    for name, arm in sorted(receipt.arms.items()):
        called = f"arm {name} ({arm.definition})"
        if arm.definition == EXTERNAL:
            if arm.tree is not None:
                said.append(f"{called}: the receipt names a tree, and it has none")
            continue
        now = state.tree(arm.definition)
        if arm.tree is None:
            said.append(f"{called}: the receipt names no tree")
        elif now is None:
            said.append(f"{called}: the series has no such set any more")
        elif now != arm.tree:
            said.append(f"{called}: the tree was {arm.tree[:12]}, is {now[:12]} now")
    return said


def _base(receipt: Receipt, state: ProjectState) -> list[str]:
    if all(arm.definition == EXTERNAL for arm in receipt.arms.values()):
        return []  # servers that somebody else runs stand on no base of ours
    base, now = receipt.predicate.bound.base, state.base["tree"]
    if base is None:
        return ["base: the receipt names none"]
    if base.tree == now:
        return []
    return [f"base: the tree was {base.tree[:12]}, is {now[:12]} now"]


def _files(receipt: Receipt, state: ProjectState) -> list[str]:
    said = []
    for file in receipt.predicate.bound.files:
        if file.path.startswith(_GENERATED) and file.path != IMAGES:
            continue  # they follow from the gate's file and from code, which are here
        now = state.sha256(file)
        if now is None:
            said.append(f"{file.path} ({file.role}): is gone")
        elif now != file.sha256:
            said.append(f"{file.path} ({file.role}): changed")
    return said + _unbound(receipt, state, bool(said))


def _unbound(receipt: Receipt, state: ProjectState, told: bool) -> list[str]:
    """Say which files would decide the answer now and are none of the receipt's."""
    gate = state.gate(receipt.gate)
    if gate is None:
        return []
    known = {file.path for file in receipt.predicate.bound.files}
    try:
        now = state.bound(gate)
    except InputError as error:
        return [] if told else [error.message]
    return [
        f"{path} ({role}): the receipt does not bind it"
        for path, (role, _) in now.items()
        if path not in known
    ]


def _images(receipt: Receipt, state: ProjectState) -> list[str]:
    """Say which images may be others by now: a tag moves, and a folder is written."""
    gate = state.gate(receipt.gate)
    if gate is None or gate.kind != "image":
        return []
    asked = state.images(gate)
    for unit in receipt.predicate.units:
        had = _verified(unit.answer)
        if len(had) != len(asked):
            return [
                f"images: unit {unit.unit} verified {len(had)}, the gate has "
                f"{len(asked)}"
            ]
        for (ref, now), was in zip(asked, had, strict=True):
            if now is SAME:
                continue
            if now is None or was is None:
                return [
                    f"image {ref}: whether it is still the same cannot be told; name "
                    "it by a digest, or run the gate again"
                ]
            if now != was:
                return [f"image {ref}: was {shown(was)}, is {shown(now)} now"]
    return []


def _verified(answer: Mapping[str, Any] | None) -> list[str | None]:
    """Return the digests of the images that a unit verified, in their order."""
    samples = (answer or {}).get("samples")
    if not isinstance(samples, Mapping):
        return []
    several = samples.get("images")
    found = []
    for document in several if isinstance(several, list) else [samples]:
        image = document.get("image") if isinstance(document, Mapping) else None
        digest = image.get("digest") if isinstance(image, Mapping) else None
        found.append(digest if isinstance(digest, str) else None)
    return found


def _declared(receipt: Receipt, state: ProjectState) -> list[str]:
    gate = state.gate(receipt.gate)
    if gate is None:
        return [f"gate {receipt.gate}: the project has none of that name any more"]
    bound = receipt.predicate.bound
    said = _asked(receipt, gate)
    if receipt.kind != gate.kind:
        said.append(f"kind: was {receipt.kind}, is {gate.kind} now")
    said += _amount(receipt, gate)
    said += _changes("rule", bound.rule, gate.rule.document())
    before = {str(claim.get("name")): claim for claim in bound.claims}
    now = {claim.name: claim.document() for claim in gate.claims}
    for name in sorted({*before, *now}):
        if name not in now:
            said.append(f"claim {name}: is gone")
        elif name not in before:
            said.append(f"claim {name}: is new")
        else:
            said += _changes(f"claim {name}", before[name], now[name])
    return said


def _asked(receipt: Receipt, gate: Gate) -> list[str]:
    """Say where a receipt is about other arms than the gate's own.

    `gate run --arm` asks the gate's question of other trees: an answer, but not to it.
    """
    said = []
    for name in sorted({*receipt.arms, *gate.arms}):
        if name not in gate.arms:
            said.append(f"arm {name}: the gate has none of that name")
            continue
        if name not in receipt.arms:
            said.append(f"arm {name}: was not measured")
            continue
        arm, spec = receipt.arms[name], gate.arms[name]
        if arm.definition != spec.tree:
            said.append(f"arm {name}: was {arm.definition}, the gate has {spec.tree}")
        now = Filter().switches(spec.env)
        # A value that did not get in cannot be compared; the gate's file is.
        before = {
            key: now[key] if value == REMOVED and key in now else value
            for key, value in arm.env.items()
        }
        said += _changes(f"switches of arm {name}", before, now)
    return said


def _amount(receipt: Receipt, gate: Gate) -> list[str]:
    """Say where a receipt holds less than a run of the gate gives.

    The rule sees to the units of timed gates; what else a run must hold is in no part
    of a receipt but the digest of the gate's file.
    """
    predicate, said = receipt.predicate, []
    planned = len(predicate.run.schedule.slots)
    if not gate.timed and not gate.rule.blocks and planned != gate.units:
        said.append(
            f"schedule: had {counted(planned, 'unit')}, the gate has {gate.units}"
        )
    if any(len(unit.gpus) < gate.needs.gpus for unit in predicate.units):
        asked = counted(gate.needs.gpus, "GPU")
        said.append(f"GPUs: the gate needs {asked}, and a unit had fewer")
    if gate.accuracy is not None:
        for wanted in gate.accuracy.sets:
            for unit in predicate.units:
                had = _items(unit.answer, wanted.kind)
                if had is not None and had != wanted.items:
                    said.append(
                        f"items: unit {unit.unit} answered {had} of the set "
                        f"{wanted.kind}, the gate has {wanted.items}"
                    )
    said += _features(receipt, gate)
    return said + [
        f"limitation: the gate says {shown(text)}, the receipt does not"
        for text in gate.limitations
        if not any(_says(kept, text) for kept in predicate.limitations)
    ]


def _features(receipt: Receipt, gate: Gate) -> list[str]:
    """Say where units looked for other features of a server than the gate names.

    The rule sees to what a receipt says of features; which ones there are, and how they
    show themselves, is in no part of it but the digest of the gate's file.
    """
    plan = gate.serving or gate.accuracy
    if plan is None:
        return []
    head = reference(gate.claims)
    said: dict[str, str] = {}
    slots = {slot.unit: slot for slot in receipt.predicate.run.schedule.slots}
    for unit in receipt.evidence().units:
        arms = slots[unit.unit].arms if unit.unit in slots else ()
        if not unit.samples or len(arms) != 1:
            continue
        arm = arms[0]
        wanted = [
            (sign.feature, "metric" if sign.log is None else "log")
            for sign in looked_for(plan.engagement, arm, head)
        ]
        had = _looked_for(unit.engagement.get(arm))
        if len(had) == len(wanted) and all(
            by == way and _says(kept, name)
            for (kept, by), (name, way) in zip(had, wanted, strict=True)
        ):
            continue
        said.setdefault(
            arm,
            f"features: unit {unit.unit} of the arm {arm} looked for {_listed(had)}, "
            f"the gate has {_listed(wanted)}",
        )
    return list(said.values())


def _looked_for(found: object) -> list[tuple[str, str]]:
    """Return name and way of the features that a unit looked for."""
    features = found.get("features") if isinstance(found, Mapping) else None
    return [
        (str(item.get("feature")), str(item.get("by")))
        for item in (features if isinstance(features, list) else ())
        if isinstance(item, Mapping)
    ]


def _listed(features: Sequence[tuple[str, str]]) -> str:
    names = [f"{name} ({by})" for name, by in features]
    return listed(names) if names else "none"


def _says(kept: str, text: str) -> bool:
    """Whether a sentence of a receipt is this one; any word of it may be taken out."""
    words = Filter().text(text).split()
    had = kept.split()
    return len(had) == len(words) and all(
        REMOVED in was or was == now for was, now in zip(had, words, strict=True)
    )


def _items(answer: Mapping[str, Any] | None, kind: str) -> int | None:
    """Return how many items of a set a unit answered; None where it did not measure."""
    samples = (answer or {}).get("samples")
    items = samples.get("items") if isinstance(samples, Mapping) else None
    if not isinstance(items, list):
        return None
    kinds = [item.get("set") for item in items if isinstance(item, Mapping)]
    return kinds.count(kind)


def _changes(what: str, before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    return [
        f"{what}: `{key}` was {shown(before.get(key))}, is {shown(now.get(key))} now"
        for key in sorted({*before, *now})
        if canonical_json(before.get(key)) != canonical_json(now.get(key))
    ]


def _model(receipt: Receipt, state: ProjectState) -> list[str]:
    model, now = receipt.predicate.bound.model, state.model
    if model is None or now is None:
        return []
    return [
        f"model: `{key}` was {shown(was)}, is {shown(now[key])} now"
        for key in ("name", "revision", "sha256")
        if (was := getattr(model, key)) is not None
        and now.get(key) is not None
        and was != now[key]
    ]


def _platform(options: Sequence[str]) -> str | None:
    """Return the platform that options of `verify-image` name, None where none does."""
    for number, option in enumerate(options):
        if option == "--platform":
            return next(iter(options[number + 1 :]), None)
        if option.startswith("--platform="):
            return option.partition("=")[2]
    return None
