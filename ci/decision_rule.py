"""Measure how often the decision rule errs, and write what docs/ shows of it.

    python ci/decision_rule.py            # draw and tabulate docs/decision-rule.json
    python ci/decision_rule.py --measure  # simulate anew first (about two minutes)
    python ci/decision_rule.py --check    # exit 1 if docs/ is not what this writes

The simulation is seeded, so the same versions of Python and numpy measure the same
figures; the tables and the drawing follow from the figures alone, byte for byte.
"""

import argparse
import json
import platform
import sys
from pathlib import Path
from typing import Any

from stackctl.gates.rule.accuracy import fewest_items
from stackctl.gates.rule.simulate import (
    CASES,
    CHANGED,
    ITEMS,
    NOISES,
    RUNS,
    STRESS,
    Case,
    Rates,
    simulate,
    simulate_accuracy,
)

DOCS = Path(__file__).resolve().parents[1] / "docs"
FIGURES = DOCS / "decision-rule.json"
DRAWING = DOCS / "decision-rule.svg"
PAGE = DOCS / "decision-rule.md"
CURVE_RUNS = 4_000
STEPS = [n / 8 for n in range(-4, 9)]
"""True figure beyond the bar, in units of a case's stated shift."""
CURVES = ("gaussian", "heavy tails", "warm-up", "bursts")
COLOURS = ("#1f5fa8", "#b35900", "#2e7d32", "#8e24aa")


def rates(found: Rates) -> dict[str, Any]:
    """What is published of a rate."""
    names = ("qualified", "rejected", "insufficient-evidence", "invalid")
    return {
        "runs": found.runs,
        "counts": {name: found.counts.get(name, 0) for name in names},
        "early": found.early,
        "upper": round(found.upper("qualified"), 6),
        "lower": round(found.lower("qualified"), 6),
    }


def measure() -> dict[str, Any]:
    """Run the whole simulation."""
    import numpy
    import scipy

    def cells(case: Case, noises: Any) -> list[dict[str, Any]]:
        return [
            {
                "noise": noise.name,
                "at_margin": rates(simulate(case, noise, 0.0, RUNS, seed=1)),
                "at_shift": rates(simulate(case, noise, case.shift, RUNS, seed=2)),
            }
            for noise in noises
        ]

    by_name = {noise.name: noise for noise in NOISES}
    drawn = [CASES[0], CASES[1], CASES[3], CASES[4]]
    return {
        "versions": {
            "python": ".".join(platform.python_version_tuple()[:2]),
            "numpy": numpy.__version__,
            "scipy": scipy.__version__,
        },
        "cases": [
            {
                "name": case.name,
                "bar": case.bar,
                "sigma": case.sigma,
                "between": case.between,
                "shift": case.shift,
                "source": case.source,
                "noises": cells(case, NOISES),
                "stress": cells(case, STRESS),
            }
            for case in CASES
        ],
        "changed": [
            {
                "name": CASES[number].name,
                "bar": CASES[number].bar,
                "noise": noise.name,
                "plain": rates(
                    simulate(CASES[number], noise, 0.0, RUNS, seed=1, plain=True)
                ),
                "ours": rates(simulate(CASES[number], noise, 0.0, RUNS, seed=1)),
            }
            for number, noise in CHANGED
        ],
        "accuracy": [
            {
                "margin": item.margin,
                "discordant": item.discordant,
                "items": item.items,
                "fewest": fewest_items(abs(item.margin), 0.95),
                "at_margin": rates(
                    simulate_accuracy(
                        item.items, item.discordant, item.margin, item.margin, seed=1
                    )
                ),
                "at_equal": rates(
                    simulate_accuracy(
                        item.items, item.discordant, 0.0, item.margin, seed=2
                    )
                ),
            }
            for item in ITEMS
        ],
        "curves": [
            {
                "name": f"{case.name}: {case.bar}",
                "shift": case.shift,
                "steps": STEPS,
                "noises": [
                    {
                        "noise": name,
                        "qualified": [
                            simulate(
                                case, by_name[name], step * case.shift, CURVE_RUNS, 3
                            ).counts.get("qualified", 0)
                            for step in STEPS
                        ],
                    }
                    for name in CURVES
                ],
                "runs": CURVE_RUNS,
            }
            for case in drawn
        ],
    }


def share(found: dict[str, Any], verdict: str = "qualified") -> str:
    """A rate in percent."""
    return f"{100 * found['counts'][verdict] / found['runs']:.1f}"


def table(figures: dict[str, Any], part: str) -> list[str]:
    """One row per gate and noise model."""
    lines = [
        "| gate | bar | noise | qualified at the bar, % | upper 99 % bound | invalid "
        "at the bar, % | qualified at the shift, % | lower 99 % bound |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for case in figures["cases"]:
        for row in case[part]:
            bar, shift = row["at_margin"], row["at_shift"]
            lines.append(
                f"| {case['name']} | {case['bar']} | {row['noise']} | {share(bar)} | "
                f"{100 * bar['upper']:.1f} | {share(bar, 'invalid')} | {share(shift)} "
                f"| {100 * shift['lower']:.1f} |"
            )
    return lines


def tables(figures: dict[str, Any]) -> dict[str, str]:
    """The parts of the page that are made here."""
    models = ["| model | visits are |", "|---|---|"]
    models += [f"| {noise.name} | {noise.words} |" for noise in (*NOISES, *STRESS)]
    levels = [
        "| gate | bar | a visit, % | between processes, % | stated shift, % | measured "
        "|",
        "|---|---|---|---|---|---|",
    ]
    levels += [
        f"| {case['name']} | {case['bar']} | {100 * case['sigma']:.2g} | "
        f"{100 * case['between']:.2g} | {100 * abs(case['shift']):.2g} | "
        f"{case['source']} |"
        for case in figures["cases"]
    ]
    accuracy = [
        "| margin, points | answers that differ, % | items | fewest that can decide | "
        "qualified at the margin, % | upper 99 % bound | qualified if equal, % |",
        "|---|---|---|---|---|---|---|",
    ]
    accuracy += [
        f"| {100 * abs(row['margin']):g} | {100 * row['discordant']:g} | "
        f"{row['items']} | {row['fewest']} | {share(row['at_margin'])} | "
        f"{100 * row['at_margin']['upper']:.1f} | {share(row['at_equal'])} |"
        for row in figures["accuracy"]
    ]
    changed = [
        "| gate | bar | noise | plain rule: qualified at the bar, % | as it is, % |",
        "|---|---|---|---|---|",
    ]
    changed += [
        f"| {row['name']} | {row['bar']} | {row['noise']} | {share(row['plain'])} | "
        f"{share(row['ours'])} |"
        for row in figures["changed"]
    ]
    versions = ", ".join(f"{k} {v}" for k, v in figures["versions"].items())
    return {
        "models": "\n".join(models),
        "levels": "\n".join(levels),
        "rates": "\n".join(table(figures, "noises")),
        "stress": "\n".join(table(figures, "stress")),
        "accuracy": "\n".join(accuracy),
        "changed": "\n".join(changed),
        "versions": f"Measured with {versions}; {RUNS:,} runs a figure.",
    }


def page(text: str, figures: dict[str, Any]) -> str:
    """The page with its made parts put in."""
    for name, part in tables(figures).items():
        begin, end = f"<!-- {name}: made -->\n", f"\n<!-- {name}: end -->"
        before, found, rest = text.partition(begin)
        _, ending, after = rest.partition(end)
        if not (found and ending):
            raise SystemExit(f"{PAGE.name} has no place for {name}")
        text = before + begin + part + end + after
    return text


def drawing(figures: dict[str, Any]) -> str:
    """Share of qualified runs over the truth, as SVG."""
    wide, high, left, top, gap = 330, 230, 52, 58, 86
    curves = figures["curves"]
    width, height = left + 2 * wide + gap + 36, top + 2 * (high + gap) - 20
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="12">',
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
        '<text x="12" y="20" font-size="14">How often a run is called qualified, by '
        "how far the truth lies beyond the bar</text>",
    ]
    for n, (name, colour) in enumerate(zip(CURVES, COLOURS, strict=True)):
        x = 12 + 130 * n
        out.append(
            f'<path d="M{x} 36h22" stroke="{colour}" stroke-width="2.5"/>'
            f'<text x="{x + 28}" y="40">{name}</text>'
        )
    for n, curve in enumerate(curves):
        x0 = left + (n % 2) * (wide + gap)
        y0 = top + (n // 2) * (high + gap) + 14
        out += panel(curve, x0, y0, wide, high)
    return "\n".join([*out, "</svg>"]) + "\n"


def panel(curve: dict[str, Any], x0: int, y0: int, wide: int, high: int) -> list[str]:
    """One gate's curves with axes."""
    steps = curve["steps"]
    span = steps[-1] - steps[0]

    def x(step: float) -> float:
        return x0 + wide * (step - steps[0]) / span

    def y(rate: float) -> float:
        return y0 + high * (1 - rate)

    out = [
        f'<text x="{x0}" y="{y0 - 8}" font-weight="bold">{curve["name"]}</text>',
        f'<rect x="{x0}" y="{y0}" width="{wide}" height="{high}" fill="none" '
        'stroke="#666666"/>',
    ]
    for rate in (0.0, 0.25, 0.5, 0.75, 1.0):
        out.append(
            f'<path d="M{x0} {y(rate):.1f}h{wide}" stroke="#dddddd"/>'
            f'<text x="{x0 - 8}" y="{y(rate) + 4:.1f}" text-anchor="end">'
            f"{100 * rate:.0f} %</text>"
        )
    for step in (-0.5, 0, 0.5, 1):
        beyond = 100 * abs(curve["shift"]) * step
        out.append(
            f'<text x="{x(step):.1f}" y="{y0 + high + 17}" text-anchor="middle">'
            f"{beyond:{'+' if beyond else ''}.2g} %</text>"
        )
    out += [
        f'<text x="{x0 + wide / 2:.1f}" y="{y0 + high + 34}" text-anchor="middle">'
        "truth beyond the bar (at the bar: 0)</text>",
        f'<path d="M{x(0):.1f} {y0}v{high}" stroke="#333333" stroke-dasharray="4 3"/>',
        f'<path d="M{x0} {y(0.05):.1f}h{wide}" stroke="#c62828" '
        'stroke-dasharray="2 3"/>',
        f'<text x="{x0 + 4}" y="{y(0.05) - 4:.1f}" fill="#c62828">5 %</text>',
    ]
    for found, colour in zip(curve["noises"], COLOURS, strict=True):
        points = " ".join(
            f"{x(step):.1f},{y(count / curve['runs']):.1f}"
            for step, count in zip(steps, found["qualified"], strict=True)
        )
        out.append(
            f'<polyline points="{points}" fill="none" stroke="{colour}" '
            'stroke-width="2"/>'
        )
    return out


def main() -> int:
    """Parse the command line; write or compare."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--measure", action="store_true")
    parser.add_argument("--check", action="store_true")
    args = parser.parse_args()
    if args.measure:
        figures = measure()
    else:
        figures = json.loads(FIGURES.read_text(encoding="utf-8"))
    made = {
        FIGURES: json.dumps(figures, indent=1) + "\n",
        DRAWING: drawing(figures),
        PAGE: page(PAGE.read_text(encoding="utf-8"), figures),
    }
    stale = [
        path.name
        for path, text in made.items()
        if not path.exists() or path.read_text(encoding="utf-8") != text
    ]
    if args.check:
        print("as written" if not stale else f"differ: {', '.join(stale)}")
        return int(bool(stale))
    for path, text in made.items():
        path.write_bytes(text.encode("utf-8"))
    print(f"changed: {', '.join(stale)}" if stale else "nothing changed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
