# SPDX-License-Identifier: Apache-2.0
"""The answer about an image, and its JSON document."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from stackctl.image.roots import PACKAGE, Policy

if TYPE_CHECKING:
    from stackctl.image.compare import Comparison, Finding
    from stackctl.image.source import Image
    from stackctl.image.view import View
    from stackctl.image.warn import Warn

MATCH = "match"
MISMATCH = "mismatch"
UNVERIFIABLE = "unverifiable"


@dataclass(slots=True)
class Report:
    """The answer.

    Attributes:
        verdict: `match`, `mismatch` or `unverifiable`.
        reason: Why, with a stable `code`.
        exit_code: What the command exits with.
        expected: Label of the tree that was compared with.
        comparisons: The outcome for every root.
        warnings: What to know beside the verdict.
        explains: Which composition the image is, if not the expected one.
        image: What was read.
        diffs: Unified diffs by path.
        ns: Time it took, in nanoseconds.
        view: The tree that was compared, for who goes on with it.
        source: The image that it was read from, if it was one.
        policy: What may stand beside the tracked files.
    """

    verdict: str
    reason: dict[str, object]
    exit_code: int
    expected: str = ""
    comparisons: list["Comparison"] = field(default_factory=list)
    warnings: list["Warn"] = field(default_factory=list)
    explains: list[dict[str, object]] = field(default_factory=list)
    image: dict[str, object] = field(
        default_factory=lambda: {"digest": None, "platform": None, "layers": []}
    )
    diffs: dict[str, str] = field(default_factory=dict)
    ns: int = 0
    view: "View | None" = None
    source: "Image | None" = None
    policy: Policy = field(default_factory=Policy)

    def document(self) -> dict[str, object]:
        """Return the report as the JSON document of the command contract."""
        document: dict[str, object] = {
            "verdict": self.verdict,
            "reason": self.reason,
            "expected": self.expected,
            "roots": [_root_document(c) for c in self.comparisons],
            "details": [
                _finding_document(finding)
                for comparison in self.comparisons
                for finding in comparison.findings
                if finding.status != "ignored" or finding.expected is not None
            ],
            "warnings": [warning.document() for warning in self.warnings],
            "explains": self.explains,
            "image": self.image,
            "ns": self.ns,
        }
        if self.diffs:
            document["diffs"] = self.diffs
        return document


def _root_document(comparison: "Comparison") -> dict[str, object]:
    from stackctl.image.compare import untracked_summary
    from stackctl.image.view import show

    counts = comparison.counts
    return {
        "tree_path": comparison.root.tree,
        "image_path": comparison.root.path,
        "real_path": "/" + show(comparison.real_path),
        "kind": comparison.root.kind,
        "expected_tree": comparison.expected_tree,
        "installed_tree": comparison.installed_tree,
        "modes": "assumed" if comparison.root.kind == PACKAGE else "checked",
        "files": {
            name: counts[name]
            for name in ("matched", "missing", "modified", "extra", "ignored")
        },
        "untracked": untracked_summary(comparison.findings),
    }


def _finding_document(finding: "Finding") -> dict[str, object]:
    from stackctl.image.view import show

    document: dict[str, object] = {
        "path": show(finding.path),
        "image_path": show(finding.image_path),
        "status": finding.status,
    }
    for name, value in (("expected", finding.expected), ("actual", finding.actual)):
        if value is not None:
            document[name] = {"mode": f"{value[0]:06o}", "blob": value[1].hex()}
    if finding.kind:
        document["class"] = finding.kind
    if finding.why:
        document["why"] = finding.why
    return document
