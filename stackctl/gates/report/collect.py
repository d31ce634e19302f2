# SPDX-License-Identifier: Apache-2.0
"""What the report shows: the stack, the gates, and the receipts as they are now."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stackctl.errors import InputError, StackctlError
from stackctl.gates.asked import Askers, askers
from stackctl.gates.model import FOLDER, Gate, load_gate
from stackctl.gates.receipt import find
from stackctl.gates.receipt.current import Judged, judge_all
from stackctl.gates.receipt.stale import ProjectState
from stackctl.progress import SILENT, Progress

if TYPE_CHECKING:
    from stackctl.cache import Cache
    from stackctl.model.series import PatchSet, Series


@dataclass(frozen=True, slots=True)
class GateAnswer:
    """A gate and everything that answers it.

    Attributes:
        name: Its name.
        gate: Its declaration, None where the project has none (any more).
        problem: What is wrong with its file.
        required: Sets that require it.
        advisory: Sets for which it is advisory.
        judged: Its receipts, the one that answers it first.
    """

    name: str
    gate: Gate | None
    problem: str
    required: tuple[str, ...]
    advisory: tuple[str, ...]
    judged: tuple[Judged, ...]

    @property
    def current(self) -> Judged | None:
        """The receipt that answers it, None where there is none."""
        return self.judged[0] if self.judged else None

    @property
    def qualified(self) -> bool:
        """Whether a believed, fresh receipt qualifies it."""
        current = self.current
        return current is not None and current.counts and current.verdict == "qualified"

    @property
    def kind(self) -> str:
        """Its kind, as far as anything tells."""
        if self.gate is not None:
            return self.gate.kind
        return self.current.receipt.kind if self.current else ""

    def document(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {
            "gate": self.name,
            "kind": self.kind,
            "required": list(self.required),
            "advisory": list(self.advisory),
            "verdict": self.current.verdict if self.current else None,
            "counts": self.current is not None and self.current.counts,
            "receipts": [
                {
                    "digest": each.receipt.digest,
                    "verdict": each.verdict,
                    "ok": each.check.ok,
                    "reasons": list(each.check.reasons),
                    "signature": each.check.signature.state,
                    "stale": None if each.changes is None else bool(each.changes),
                    "changes": list(each.changes or ()),
                }
                for each in self.judged
            ],
        }


@dataclass(frozen=True, slots=True)
class Report:
    """Everything that a page shows.

    Attributes:
        series: The series.
        base: Identity and tree of the base; empty where it cannot be had.
        composition: Composition id; empty where it does not compose.
        tree: Tree of the composition.
        problem: Why there is no composition.
        patches: Number of patches by set, None where they cannot be counted.
        gates: The gates, in the order in which the sets name them.
        bad: Files that claim to be receipts and are not, with the reason.
        others: Number of files with raw figures.
    """

    series: "Series"
    base: dict[str, str] = field(default_factory=dict)
    composition: str = ""
    tree: str = ""
    problem: str = ""
    patches: dict[str, int | None] = field(default_factory=dict)
    gates: tuple[GateAnswer, ...] = ()
    bad: tuple[tuple[str, str], ...] = ()
    others: int = 0

    def of(self, patch_set: "PatchSet") -> list[GateAnswer]:
        """Return the gates that a set requires."""
        return [gate for gate in self.gates if patch_set.name in gate.required]


def collect(
    series: "Series",
    cache: "Cache",
    *,
    offline: bool = False,
    progress: Progress = SILENT,
) -> Report:
    """Look at a project, judging every receipt.

    Args:
        series: The series.
        cache: Store and facts.
        offline: Never use the network.
        progress: Told what is being done.

    Raises:
        UsageError: A statistics library or a program for signatures is missing.
    """
    root = Path(series.root)
    state = ProjectState(series, cache, offline=offline, progress=progress)
    shelf = find(root)
    judged = judge_all(shelf, series, state, progress)
    base: dict[str, str] = {}
    composition, tree, problem = "", "", ""
    try:
        base = {key: str(value) for key, value in state.base.items()}
        found = state.find("composed")
        composition, tree = found.composition or "", found.tree or ""
    except StackctlError as error:
        problem = _inside(error.message, root)
    return Report(
        series=series,
        base=base,
        composition=composition,
        tree=tree,
        problem=problem,
        patches={item.name: _count(item, root) for item in series.sets},
        gates=tuple(_gates(series, root, judged)),
        bad=tuple(
            (_relative(item.path, root), _inside(item.error.message, root))
            for item in shelf.found
            if item.error is not None
        ),
        others=len(shelf.others),
    )


def _count(patch_set: "PatchSet", root: Path) -> int | None:
    if patch_set.patches is None:
        return len(patch_set.pull.commits) or None if patch_set.pull else None
    try:
        return len(patch_set.patches.paths(root))
    except InputError:
        return None


def _gates(
    series: "Series", root: Path, judged: dict[str, list[Judged]]
) -> list[GateAnswer]:
    asked = askers(series)
    files = {path.stem: path for path in sorted((root / FOLDER).glob("*.toml"))}
    answers = []
    for name in dict.fromkeys([*asked, *files, *judged]):
        gate, problem = None, ""
        sets = asked.get(name, Askers())
        if name in files:
            try:
                gate = load_gate(files[name])
            except InputError as error:
                problem = _inside(error.message, root)
        answers.append(
            GateAnswer(
                name,
                gate,
                problem,
                sets.required,
                sets.advisory,
                tuple(
                    replace(each, unknown=_inside(each.unknown, root))
                    for each in judged.get(name, ())
                ),
            )
        )
    return answers


def _relative(path: Path, root: Path) -> str:
    return str(path.relative_to(root))


def _inside(message: str, root: Path) -> str:
    """Take the folder of this machine out of a message: the page is published."""
    return message.replace(f"{root}/", "").replace(str(root), ".")
