# SPDX-License-Identifier: Apache-2.0
"""How figures of a decision are written for people."""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from stackctl.model.canonical import canonical_json
from stackctl.model.fields import escape, show

if TYPE_CHECKING:
    from stackctl.gates.receipt.model import Receipt, Scope

SYMBOLS: Final = {
    "qualified": "✔",
    "rejected": "✖",
    "insufficient-evidence": "?",
    "not-tested": "–",  # noqa: RUF001 - a dash, not a minus
    "invalid": "!",
}
"""A sign beside each verdict, so that colour is not all there is."""


LARGEST: Final = 1e100
"""Nobody measures more, and sums and differences of less are finite."""


def figure(value: object, unit: str) -> str:
    """Return a claim's figure in its unit.

    Args:
        value: The figure; what is no number is shown as none.
        unit: `change` (ratio minus one), `times`, `difference` (of shares), `value`,
            `count`.
    """
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        return "-"
    if unit == "change":
        return f"{100 * value:+.3g} %"
    if unit == "difference":
        return f"{100 * value:+.3g} points"
    if unit == "times":
        return f"{value:.4g} times"
    whole = float(value).is_integer() and abs(value) < 1e15
    return f"{value:,.0f}" if whole else f"{value:.6g}"


def asked(claim: Mapping[str, Any], better: str) -> str:
    """Return what a claim asks for: the figure, and on which side of it.

    Args:
        claim: The judged claim.
        better: Which figures are better, as the claim declares: `lower` or `higher`.
    """
    target = claim.get("target")
    if not isinstance(target, (int, float)) or isinstance(target, bool):
        return "-"
    unit = str(claim.get("unit", ""))
    # So many times as good: more is better, whatever the figures are.
    side = "least" if better == "higher" or unit == "times" else "most"
    return f"at {side} {figure(target, unit)}"


def sides(claims: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """Return by name of a claim which figures are better, as they were declared."""
    return {str(each.get("name")): str(each.get("better", "lower")) for each in claims}


def when(started: str | None) -> str:
    """Return when a run started, to the minute (UTC)."""
    return started[:16].replace("T", " ") if started else "not recorded"


def shown(value: object) -> str:
    """Return a JSON value as a sentence names it: lists and tables with their content.

    Args:
        value: The value.
    """
    if isinstance(value, (list, tuple, Mapping)):
        return escape(canonical_json(value).decode(), 120)
    return show(value).removeprefix("the number ")


def real(value: object) -> bool:
    """Whether a JSON value is a number."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def claims_of(decision: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the claims of a decision that are tables; nobody checked the others.

    Args:
        decision: The decision of a receipt, which anybody may have written.
    """
    found = decision.get("claims")
    kept = found if isinstance(found, list) else []
    return [claim for claim in kept if isinstance(claim, dict)]


def figures_of(claim: Mapping[str, Any]) -> list[float]:
    """Return the figures of a claim's pairs, as far as they can be measurements.

    Args:
        claim: The claim.
    """
    found = claim.get("values")
    kept = found if isinstance(found, list) else []
    return [float(value) for value in kept if real(value) and abs(value) <= LARGEST]


def interval(claim: dict[str, Any]) -> str:
    """Return the interval that decided a claim."""
    ends = [claim.get("low"), claim.get("high")]
    if not all(map(real, ends)):
        return "-"
    unit = str(claim.get("unit", ""))
    low, high = sorted(float(end) for end in ends if end is not None)
    return f"{figure(low, unit)} to {figure(high, unit)}"


def hardware(scope: "Scope") -> str:
    """Return in short what a run was measured on: its GPUs, else its CPUs.

    Args:
        scope: The scope of its receipt.
    """
    found = scope.hardware.get("gpus")
    gpus = found if isinstance(found, list) else []
    names = [str(gpu.get("name") or "GPU") for gpu in gpus if isinstance(gpu, dict)]
    if names:
        return ", ".join(
            name if count == 1 else f"{count} x {name}"
            for name, count in sorted(Counter(names).items())
        )
    cpu, cpus = scope.host.get("cpu"), scope.host.get("cpus")
    if not cpu:
        return "unknown hardware"
    return f"{cpu}, {cpus} CPUs" if cpus else str(cpu)


def engagement(receipt: "Receipt") -> list[tuple[str, str, list[str]]]:
    """Return what units saw of the features of their arms.

    Args:
        receipt: The receipt.

    Returns:
        Arm, what was looked for, and what each unit saw of it.
    """
    seen: dict[tuple[str, str], list[str]] = {}
    for unit in receipt.evidence().units:
        for arm, found in sorted(unit.engagement.items()):
            table = found if isinstance(found, Mapping) else {}
            features = table.get("features")
            if not isinstance(features, list):
                counted = f"{table.get('counted')} of {table.get('expected')}"
                nodes = table.get("captured_nodes")
                if nodes is not None:
                    counted += f" ({nodes} graph nodes)"
                seen.setdefault((arm, "counter"), []).append(counted)
                continue
            for item in features:
                feature = item if isinstance(item, Mapping) else {}
                figure_ = feature.get("seen")
                what = f"{feature.get('feature')} ({feature.get('by')})"
                seen.setdefault((arm, what), []).append(
                    "not known" if figure_ is None else str(figure_)
                )
    return [(arm, what, figures) for (arm, what), figures in seen.items()]
