# SPDX-License-Identifier: Apache-2.0
"""What a gate declares before it runs, and what the rule makes of the run.

`Rule` and `Claim` are the tables `[rule]` and `[[claim]]` of a gate's file; their keys
are described here and nowhere else. docs/decision-rule.md explains them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from stackctl.errors import InputError
from stackctl.gates.evidence import SERVED_KINDS, UnitKind
from stackctl.model.fields import (
    INVALID,
    At,
    Choice,
    Flag,
    Integer,
    Many,
    Number,
    Record,
    Report,
    Text,
    key,
    write_record,
)

Verdict = Literal[
    "qualified", "rejected", "insufficient-evidence", "not-tested", "invalid"
]
Statistic = Literal["counts", "all-equal", "paired-log-ratio", "paired-difference"]
Better = Literal["lower", "higher"]

ORDER: Final[tuple[Verdict, ...]] = (
    "invalid",
    "rejected",
    "insufficient-evidence",
    "not-tested",
    "qualified",
)
"""Verdicts from the worst to the best; a gate has that of its worst required claim."""

STATISTICS: Final[Mapping[UnitKind, Statistic]] = {
    "tests": "counts",
    "parity": "all-equal",
    "kernel": "paired-log-ratio",
    "compile": "counts",
    "serving": "paired-log-ratio",
    "accuracy": "paired-difference",
    "image": "all-equal",
}
"""The statistic of each kind of gate."""

RESULTS: Final = (
    "exact",
    "near",
    "fail",
    "truncated",
    "decoy",
    "not-stated",
    "ambiguous",
    "stalled",
    "timed-out",
)
"""Results of an item of an accuracy gate."""

MINIMUM_PAIRS: Final = 6
"""Fewest pairs that a timed rule may decide on; with five, the t quantile of a 99 %
interval is 4.6 and the estimate of the spread is itself off by a third."""

_NAME = Text("a name without line breaks", r"[^\x00-\x1f\x7f]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """How a gate decides, fixed before its first process starts."""

    statistic: Statistic = field(
        metadata=key(
            Choice("counts", "all-equal", "paired-log-ratio", "paired-difference"),
            "What is computed; it follows from the gate's kind and is written out so "
            "that a reader of the file need not know.",
            example='"paired-log-ratio"',
        )
    )
    blocks: bool = field(
        default=False,
        metadata=key(
            Flag(),
            "False: one process holds every arm and is one pair. True: one process "
            "start holds one arm, and a block is the reference arm, the other arms, "
            "and the reference arm again.",
            example="true",
        ),
    )
    pairs: int = field(
        default=9,
        metadata=key(
            Integer(1, 1000),
            "Pairs (processes, or blocks) of the whole run.",
            example="9",
        ),
    )
    minimum_pairs: int = field(
        default=MINIMUM_PAIRS,
        metadata=key(
            Integer(MINIMUM_PAIRS, 1000),
            "Fewest pairs that may decide anything timed.",
            example="6",
        ),
    )
    looks: int = field(
        default=2,
        metadata=key(
            Integer(1, 10),
            "How often the run may be judged, the end included; the error rate is "
            "shared out over the looks by Pocock's rule.",
            example="2",
        ),
    )
    confidence: float = field(
        default=0.95,
        metadata=key(
            Number(0.9, 0.9999),
            "Two-sided confidence of the intervals, all looks together.",
            example="0.95",
        ),
    )
    control_confidence: float = field(
        default=0.99,
        metadata=key(
            Number(0.99, 0.9999),
            "Confidence of the interval of the reference arm against itself, which "
            "must contain zero and be no wider than the margin.",
            example="0.99",
        ),
    )
    control_width: float | None = field(
        default=None,
        metadata=key(
            Number(0.0001, 10.0),
            "Widest control interval (in log-ratio) that still decides, where that is "
            "less than the margin of the claim; needed where the margin is zero.",
            example="0.02",
        ),
    )
    bootstrap_seed: int = field(
        default=0,
        metadata=key(
            Integer(0, 2**32 - 1),
            "Seed of the bootstrap interval that is shown beside the one that decides.",
            example="0",
        ),
    )
    bootstrap_samples: int = field(
        default=10_000,
        metadata=key(
            Integer(1_000, 100_000),
            "Resamples of the bootstrap.",
            example="10000",
        ),
    )
    host_load_limit: float = field(
        default=0.5,
        metadata=key(
            Number(0.0, 100.0),
            "Most load of other programs, as a share of the host's CPUs, before, "
            "after and on average during a unit; above it the run is invalid.",
            example="0.25",
        ),
    )
    load_imbalance_limit: float = field(
        default=0.1,
        metadata=key(
            Number(0.0, 100.0),
            "Largest difference between two arms of that load's mean, as a share of "
            "the CPUs; above it the run decides nothing.",
            example="0.05",
        ),
    )
    gpu_busy_limit: int = field(
        default=10,
        metadata=key(
            Integer(0, 100),
            "Most use of a GPU before a unit starts, in percent; above it the run is "
            "invalid.",
            example="5",
        ),
    )
    gpu_memory_limit: int = field(
        default=2048,
        metadata=key(
            Integer(0, 1 << 24),
            "Most memory of a GPU in use before a unit starts, MiB; above it somebody "
            "else is there and the run is invalid.",
            example="1024",
        ),
    )
    engaged: tuple[str, ...] = field(
        default=(),
        metadata=key(
            Many(_NAME),
            "Arms that must prove by a counter that their feature was on.",
            example='["on"]',
        ),
    )
    captured: tuple[str, ...] = field(
        default=(),
        metadata=key(
            Many(_NAME),
            "Arms that must also prove it by the number of nodes that a CUDA graph "
            "captured.",
            example='["on"]',
        ),
    )
    expected_skips: tuple[str, ...] = field(
        default=(),
        metadata=key(
            Many(Text("a test id, or a pattern with `*`")),
            "Tests that may be skipped; they are counted, and never as passed.",
            example='["tests/kernels/test_x.py::*sm100*"]',
        ),
    )

    def document(self) -> dict[str, Any]:
        """Return the JSON form, with every default written out."""
        return write_record(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """One statement that a gate is to decide."""

    name: str = field(
        metadata=key(_NAME, "What is claimed, in a word or two.", example='"gain"')
    )
    cell: str = field(
        default="",
        metadata=key(
            _NAME,
            "Which samples: a cell of a kernel gate, `cell:metric` of a serving gate, "
            "a case, a kernel, a set of items. Without it, all of them.",
            example='"kpool4/4080"',
        ),
    )
    arm: str = field(
        default="",
        metadata=key(_NAME, "The arm that the claim is about.", example='"on"'),
    )
    against: str = field(
        default="",
        metadata=key(_NAME, "The reference arm.", example='"base"'),
    )
    better: Better = field(
        default="lower",
        metadata=key(
            Choice("lower", "higher"),
            "Which way the figure improves.",
            example='"higher"',
        ),
    )
    margin: float | None = field(
        default=None,
        metadata=key(
            Number(-0.99, 0.99),
            "Relative change to show: 0.08 is a gain of at least 8 %, -0.02 a loss of "
            "at most 2 %. Of an accuracy gate: difference of the shares.",
            example="0.08",
        ),
    )
    ratio: float | None = field(
        default=None,
        metadata=key(
            Number(0.000001, 1_000_000.0),
            "At least this many times as good as the reference, in place of `margin`.",
            example="10.0",
        ),
    )
    bar: float | None = field(
        default=None,
        metadata=key(
            Number(-1e15, 1e15),
            "The figure itself: at most this (at least this where higher is better). "
            "Of a parity gate: largest absolute difference; of a compile gate: most "
            "compiled variants.",
            example="5.0",
        ),
    )
    right: tuple[str, ...] = field(
        default=("exact",),
        metadata=key(
            Many(Choice("exact", "near"), least=1),
            "Results of an accuracy gate that count as right; a truncated, stalled or "
            "timed-out answer never does.",
            example='["exact"]',
        ),
    )
    required: bool = field(
        default=True,
        metadata=key(
            Flag(),
            "Whether the gate's verdict depends on it.",
            example="false",
        ),
    )

    def document(self) -> dict[str, Any]:
        """Return the JSON form, with every default written out."""
        return {k: v for k, v in write_record(self).items() if v != ""}


@dataclass(frozen=True, slots=True, kw_only=True)
class Control:
    """The reference arm against itself.

    Attributes:
        estimate: Relative change, ratio minus one.
        low: Lower end of its interval.
        high: Upper end of its interval.
        width: Width of the interval, as a log-ratio.
        limit: Widest that would decide, as a log-ratio.
        confidence: Confidence of the interval.
    """

    estimate: float
    low: float
    high: float
    width: float
    limit: float
    confidence: float

    def document(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimResult:
    """What became of one claim.

    Attributes:
        name: The claim's name.
        verdict: Its verdict.
        reasons: Why, in words.
        required: Whether the gate's verdict depends on it.
        cell: Its cell, "" for all.
        arm: Its arm.
        against: Its reference arm.
        unit: What the figures are: `change` (ratio minus one), `value` (the figure
            itself), `difference` (of shares), `count`; "" where there are none.
        target: The bar in the same unit.
        estimate: Point estimate.
        low: Lower end of the interval that decides.
        high: Upper end of it.
        boot_low: Lower end of the bootstrap interval shown beside it.
        boot_high: Upper end of it.
        confidence: Confidence of the interval at this look.
        pairs: Pairs (or items) it rests on.
        more_pairs: Pairs (or items) of a new run that would decide with 80 %
            probability if the estimate is the truth; None where none are wanted or
            none would do.
        values: The figure of each pair, in the same unit, for plots.
        control: The reference arm against itself, where that is asked for.
        extra: Further figures that do not decide.
    """

    name: str
    verdict: Verdict
    reasons: tuple[str, ...]
    required: bool = True
    cell: str = ""
    arm: str = ""
    against: str = ""
    unit: str = ""
    target: float | None = None
    estimate: float | None = None
    low: float | None = None
    high: float | None = None
    boot_low: float | None = None
    boot_high: float | None = None
    confidence: float | None = None
    pairs: int = 0
    more_pairs: int | None = None
    values: tuple[float, ...] = ()
    control: Control | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)

    def document(self) -> dict[str, Any]:
        """Return the JSON form."""
        found = {name: getattr(self, name) for name in self.__slots__}
        found["reasons"] = list(self.reasons)
        found["values"] = list(self.values)
        found["control"] = self.control.document() if self.control else None
        found["extra"] = dict(self.extra)
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What the rule makes of a run.

    Attributes:
        verdict: The worst verdict of the required claims.
        reasons: Why, in words a release engineer understands.
        limitations: What the verdict does not say.
        claims: One result per claim, in the declared order.
        look: Number of the look that was taken, from 1; 0 where none was reached.
        looks: Pairs at which the rule looks.
        pairs: Complete pairs found.
    """

    verdict: Verdict
    reasons: tuple[str, ...]
    limitations: tuple[str, ...] = ()
    claims: tuple[ClaimResult, ...] = ()
    look: int = 0
    looks: tuple[int, ...] = ()
    pairs: int = 0

    @property
    def final(self) -> bool:
        """Whether running on, as far as the schedule goes, is no use.

        True after the last look, as soon as the gate cannot qualify any more, and at
        a look at which every claim, advisory ones too, is decided.
        """
        if not self.looks or self.verdict in ("invalid", "rejected", "not-tested"):
            return True
        if self.look == len(self.looks):
            return True
        return self.look > 0 and all(
            claim.verdict != "insufficient-evidence" for claim in self.claims
        )

    def document(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {
            "verdict": self.verdict,
            "reasons": list(self.reasons),
            "limitations": list(self.limitations),
            "claims": [claim.document() for claim in self.claims],
            "look": self.look,
            "looks": list(self.looks),
            "pairs": self.pairs,
        }


def worst(verdicts: Sequence[Verdict]) -> Verdict:
    """Return the worst of some verdicts.

    Args:
        verdicts: At least one.
    """
    return min(verdicts, key=ORDER.index)


def check_rule(values: dict[str, Any], table: Mapping[str, Any], at: At) -> None:
    """Check what the keys of a rule say together."""
    pairs, least = values.get("pairs"), values.get("minimum_pairs", MINIMUM_PAIRS)
    if values.get("statistic") != "paired-log-ratio":
        return
    if "pairs" in table and pairs is None:
        return
    pairs = 9 if pairs is None else pairs
    if pairs < least:
        (at / "pairs").problem(
            f"{at / 'pairs'} is {pairs}, below the {least} that may decide"
        )
    elif pairs - least + 1 < values.get("looks", 2):
        (at / "looks").problem(
            f"{at / 'looks'} is {values.get('looks', 2)}, but between {least} and "
            f"{pairs} pairs there is room for {pairs - least + 1}"
        )


def check_claim(values: dict[str, Any], table: Mapping[str, Any], at: At) -> None:
    """Check what the keys of a claim say together."""
    said = [name for name in ("margin", "ratio", "bar") if name in table]
    if len(said) > 1:
        (at / said[1]).problem(
            f"{at} has `{said[0]}` and `{said[1]}`; expected one of `margin`, "
            "`ratio`, `bar`"
        )
    if values.get("against") and values.get("against") == values.get("arm"):
        (at / "against").problem(f"{at}: `arm` and `against` are the same")


RULE: Final = Record(Rule, check_rule)
"""The table `[rule]` of a gate's file."""

CLAIM: Final = Record(Claim, check_claim)
"""One table `[[claim]]` of a gate's file."""


def problems(kind: UnitKind, rule: Rule, claims: Sequence[Claim]) -> list[str]:
    """Return what a kind of gate, a rule and its claims do not say together.

    Args:
        kind: Kind of the gate.
        rule: Its rule.
        claims: Its claims.

    Returns:
        One sentence per fault; empty for a gate that can decide.
    """
    found = []
    expected = STATISTICS[kind]
    if rule.statistic != expected:
        found.append(f'a gate of kind {kind} has the statistic "{expected}"')
    timed = expected == "paired-log-ratio"
    if kind in SERVED_KINDS and not rule.blocks:
        found.append(f"a gate of kind {kind} needs `blocks = true`")
    if kind not in ("serving", "accuracy", "kernel") and rule.blocks:
        found.append(f"a gate of kind {kind} has no blocks")
    if kind == "accuracy" and (rule.pairs, rule.looks) != (1, 1):
        found.append(
            "an accuracy gate has `pairs = 1` and `looks = 1`: its size is the number "
            "of items"
        )
    if not claims and (timed or kind == "accuracy"):
        found.append(f"a gate of kind {kind} needs at least one [[claim]]")
    if claims and not any(claim.required for claim in claims):
        found.append("no claim is required, so nothing could decide")
    names = [claim.name for claim in claims]
    found += [
        f'two claims are called "{name}"'
        for name in sorted({name for name in names if names.count(name) > 1})
    ]
    for claim in claims:
        found += [f'claim "{claim.name}" {text}' for text in _faults(kind, claim, rule)]
    references = {claim.against for claim in claims if claim.against}
    if rule.blocks and len(references) > 1:
        found.append(
            "blocks have one reference arm, the claims name "
            + ", ".join(sorted(references))
        )
    return found


def _faults(kind: UnitKind, claim: Claim, rule: Rule) -> list[str]:
    found = []
    goal = [n for n in ("margin", "ratio", "bar") if getattr(claim, n) is not None]
    if len(goal) > 1:
        found.append("has more than one of `margin`, `ratio`, `bar`")
    if kind in ("kernel", "serving"):
        if not claim.cell:
            found.append("needs a `cell`")
        if not claim.arm:
            found.append("needs an `arm`")
        if not goal:
            found.append("needs `margin`, `ratio` or `bar`")
        if goal and goal[0] != "bar":
            if not claim.against:
                found.append("needs an arm to compare with (`against`)")
            zero = claim.margin == 0 or claim.ratio == 1
            if zero and rule.control_width is None:
                found.append("has a margin of zero, so the rule needs `control_width`")
    elif kind == "accuracy":
        if goal != ["margin"] or not claim.arm or not claim.against:
            found.append("needs `arm`, `against` and `margin`")
    elif goal and goal[0] != "bar":
        found.append(f"of a gate of kind {kind} has no `{goal[0]}`")
    if claim.against and claim.against == claim.arm:
        found.append("compares an arm with itself")
    return found


def reference(claims: Sequence[Claim]) -> str | None:
    """Return the reference arm that claims name first, None where none does."""
    return next((claim.against for claim in claims if claim.against), None)


def from_document(
    rule: object, claims: object, file: str = "receipt"
) -> tuple[Rule, tuple[Claim, ...]]:
    """Read a rule and its claims from their JSON form, strictly.

    Args:
        rule: What `Rule.document` gave.
        claims: A list of what `Claim.document` gave.
        file: Name for messages.

    Returns:
        The rule and the claims.

    Raises:
        InputError: A key is unknown, missing or has no meaning.
    """
    document = {"rule": rule, "claims": claims}
    report = Report(
        file, document, kind="bad-rule", hint="the file was changed by hand"
    )
    found = RULE.read(rule, report.top / "rule")
    told = Many(CLAIM, unique="name").read(claims, report.top / "claims")
    report.raise_problems()
    if found is INVALID or told is INVALID:  # every INVALID has its problem
        raise InputError(f"{file}: bad rule", kind="bad-rule")
    return found, told
