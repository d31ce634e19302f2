# SPDX-License-Identifier: Apache-2.0
"""Trying a tree by a gate: its verdict says good or bad, by the evidence rules.

The candidate takes the place of every composed arm, the good end that of the base: a
timed gate so pairs each candidate with the good end, in the same processes, and what is
asked is whether the candidate is worse. The folder of the candidate is the worker's.
"""

import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from stackctl.bisect.command import CancelledError, Control
from stackctl.bisect.model import Answer, Probe
from stackctl.bisect.stack import Place
from stackctl.errors import ExitCode, StackctlError
from stackctl.gates.arms import ComposedTrees, Found, files_below
from stackctl.gates.evidence import CANDIDATE, EXTERNAL, SERVED_KINDS
from stackctl.gates.here import Here
from stackctl.gates.model import ArmSpec, Gate
from stackctl.gates.process import Stopped
from stackctl.gates.rule.model import Claim
from stackctl.gates.run import Engine, Outcome, write_receipt
from stackctl.model.ids import TreeId

ATTEMPTS: Final = 3
"""How often a run that may not be used (`invalid`) is made before it is skipped."""

LOSS: Final = 0.02
"""Loss that is bad where the gate declares no gain to lose: share of the figure."""

MOST: Final = 0.5
"""Largest loss that still counts as none, for gates that claim many times as much."""


class NotTestedError(StackctlError):
    """The gate cannot run here (exit 8)."""

    exit_code = ExitCode.NOT_TESTED
    default_kind = "not-tested"


class _CandidateTrees:
    """The trees of a gate's arms while bisecting.

    Args:
        good: The good end, which stands in for the base.
        identity: Name of the good end, for receipts.
        probe: The candidate.
        folder: The folder that holds it.
        base: Folder that holds the good end.
        tests: Test files of the set that the gate names.
        package: Paths that the base tracks below the package's folder.
    """

    def __init__(
        self,
        good: Place,
        identity: str,
        probe: Probe,
        folder: Path,
        base: Path,
        tests: tuple[str, ...],
        package: frozenset[bytes],
    ) -> None:
        self._good = good
        self._identity = identity
        self._probe = probe
        self._candidate = folder
        self._base = base
        self._tests = tests
        self._package = package

    @property
    def base(self) -> Mapping[str, Any]:
        """The good end as the base of this comparison."""
        good = self._good
        return {"identity": self._identity, "tree": good.tree, "commit": good.commit}

    def find(self, definition: str) -> Found:
        """Return the candidate, or the good end for the base."""
        if definition == EXTERNAL:
            return Found(None)
        if definition == "base":
            return Found(self._good.tree)
        return Found(self._probe.tree, self._probe.composition)

    def folder(self, tree: str) -> Path:
        """Return the folder of the candidate or of the good end."""
        return self._candidate if tree == self._probe.tree else self._base

    def forget(self, tree: str) -> None:
        """Leave the folder alone: the worker makes it right for the next tree."""

    def tests_of(self, name: str) -> tuple[str, ...]:
        """Return the test files of the set that the gate names."""
        return self._tests

    def base_package(self) -> frozenset[bytes]:
        """Return the paths below the package's folder that the base tracks."""
        return self._package

    def paths(self, tree: str) -> frozenset[bytes]:
        """Return the paths of what lies in the folder of a tree."""
        return frozenset(files_below(os.fsencode(self.folder(tree))))


def no_worse(claim: Claim) -> Claim:
    """Return the claim that a candidate is no worse than the good end.

    A gate that claims a gain is asked whether at least half of it is still there; one
    that allows a loss is asked as it is.

    Args:
        claim: The gate's own claim.
    """
    if not claim.against or (claim.margin is None and claim.ratio is None):
        return claim
    if claim.ratio is not None:
        gain = 1 - 1 / claim.ratio if claim.ratio > 1 else 0.0
        return replace(claim, ratio=None, margin=-(min(gain / 2, MOST) or LOSS))
    assert claim.margin is not None
    if claim.margin < 0:
        return claim
    return replace(claim, margin=-(min(claim.margin / 2, MOST) or LOSS))


class GateEvaluator:
    """Runs a gate on candidates.

    Args:
        gate: The gate.
        good: The good end.
        trees: Composes the arms' trees; asked only while this object is made.
        here: What the user named and what this machine has.
        project: Project folder.
        state: Folder for runs and receipts.

    Raises:
        NotTestedError: The gate cannot run here.
    """

    def __init__(
        self,
        gate: Gate,
        good: Place,
        trees: ComposedTrees,
        here: Here,
        project: Path,
        state: Path,
    ) -> None:
        missing = here.missing(gate)
        if missing:
            raise NotTestedError(
                f"the gate {gate.name} cannot run here: {'; '.join(missing)}",
                hint="`stackctl gate list` says which gates can",
                where={"gate": gate.name},
            )
        self._gate = gate
        if gate.timed:
            self._gate = replace(gate, claims=tuple(map(no_worse, gate.claims)))
        self._good = good
        self._here = here
        self._project = project
        self._state = state
        # Everything that needs the composer is asked here, in one thread.
        self._name = f"{trees.base['identity']} up to {good.name}"
        self._base = trees.folder(good.tree)
        self._trees = trees  # as long as it lives, that folder stays in the cache
        self._tests: tuple[str, ...] = ()
        if gate.tests is not None and gate.tests.of is not None:
            self._tests = trees.tests_of(gate.tests.of)
        self._package: frozenset[bytes] = frozenset()
        if here.site is not None:
            self._package = trees.base_package()
        self._compares = any(spec.tree == "base" for spec in gate.arms.values())

    @property
    def timed(self) -> bool:
        """Whether the gate measures time, which bears nobody beside it."""
        return self._gate.timed

    @property
    def identity(self) -> Mapping[str, object]:
        """The gate with its claims, and the good end where it is the reference."""
        return {
            "gate": self._gate.name,
            "sha256": self._gate.sha256,
            "claims": [claim.document() for claim in self._gate.claims],
            "against": self._good.tree if self._compares else None,
            "site": self._here.site is not None,
        }

    def evaluate(
        self, folder: Path, probe: Probe, control: Control, output: Path, worker: int
    ) -> Answer:
        """Run the gate on a candidate, again where a run may not be used."""
        total = 0
        for attempt in range(1, ATTEMPTS + 1):
            outcome, receipt = self._once(folder, probe, control, worker)
            total += outcome.ns
            if outcome.verdict != "invalid" or attempt == ATTEMPTS:
                break
        lines = [f"{outcome.gate}: {outcome.verdict}", *outcome.reasons]
        lines += [*outcome.problems, *(f"limitation: {t}" for t in outcome.limitations)]
        output.write_text("\n".join(lines) + "\n")
        why = f"{outcome.verdict}: " + "; ".join(outcome.reasons[:3])
        shown = None if receipt is None else str(receipt)
        if self._same_tree(probe, outcome):
            why = "the good end against itself: it can be measured"
            return Answer("good", None, total, why, str(output), shown)
        verdict = {"qualified": "good", "rejected": "bad"}.get(str(outcome.verdict))
        if verdict is not None:
            return Answer(verdict, None, total, why, str(output), shown)  # type: ignore[arg-type]
        unsure = outcome.verdict in ("insufficient-evidence", "invalid")
        return Answer("skip", None, total, why, str(output), shown, unsure)

    def _same_tree(self, probe: Probe, outcome: Outcome) -> bool:
        """Whether a gate compared the good end with itself.

        No rule calls a tree better or worse than itself, however long it is measured.
        """
        return (
            (self._gate.timed or self._gate.kind == "accuracy")
            and self._compares
            and probe.tree == self._good.tree
            and outcome.verdict == "insufficient-evidence"
        )

    def _once(
        self, folder: Path, probe: Probe, control: Control, worker: int
    ) -> tuple[Outcome, Path | None]:
        trees = _CandidateTrees(
            self._good,
            self._name,
            probe,
            folder,
            self._base,
            self._tests,
            self._package,
        )
        tried = f"tree:{TreeId(probe.tree)}"
        if self._gate.kind in SERVED_KINDS:
            # It may lack any feature, and the good end may have it: what is asked is
            # whether it is worse, not whether one was on.
            tried = CANDIDATE
        specs = {
            name: spec
            if spec.tree in ("base", EXTERNAL)
            else ArmSpec(tree=tried, env=spec.env)
            for name, spec in self._gate.arms.items()
        }
        runs = self._state / "runs" / str(worker)
        with Engine(self._project, trees, self._here, runs) as engine:
            with control.calling(engine.stop.set):
                try:
                    outcome = engine.run(self._gate, specs, keep=False)
                except Stopped:
                    raise CancelledError from None
            receipt = None
            if outcome.decision is not None and outcome.evidence is not None:
                receipt = self._receipt(outcome)
        return outcome, receipt

    def _receipt(self, outcome: Outcome) -> Path | None:
        """Write the receipt beside the log: the project's own are for its series."""
        assert outcome.folder is not None
        assert outcome.evidence is not None and outcome.decision is not None
        saved = json.loads((outcome.folder / "evidence.json").read_bytes())
        (self._state / "receipts").mkdir(parents=True, exist_ok=True)
        return write_receipt(
            self._gate, outcome.evidence, outcome.decision, saved, self._state
        )

    def forget_runs(self) -> None:
        """Remove what interrupted runs left."""
        shutil.rmtree(self._state / "runs", ignore_errors=True)
