# SPDX-License-Identifier: Apache-2.0
"""How often a flaky command makes bisect accuse an innocent patch, by simulation.

The search is the real one; only the command is replaced by a coin with known rates.
For each pair of rates (bad runs of good trees, bad runs of bad trees) and each size of
the stack, many culprits are planted at random. A *false accusation* is a named patch
that is not the planted one. For comparison, `git bisect` believes every answer.

    python ci/bench/bisect_noise.py [--runs 2000] [--confidence 0.95] [--json FILE]
"""

import argparse
import json
import math
import random
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from stackctl.bisect.noise import NoisySearch, Repeated  # noqa: E402
from stackctl.bisect.prefix import PrefixSearch  # noqa: E402
from stackctl.bisect.subsets import SubsetSearch  # noqa: E402

RATES = [
    (0.0, 1.0), (0.0, 0.9), (0.0, 0.5), (0.0, 0.3), (0.02, 0.98), (0.05, 0.95),
    (0.1, 0.9), (0.05, 0.5), (0.1, 0.6), (0.2, 0.8), (0.3, 0.7), (0.1, 0.3),
    (0.05, 0.05), (0.3, 0.3), (0.5, 0.5),
]  # fmt: skip


def one(rng, last, low, high, confidence, repeats, skips=0.0):
    """Play one noisy search; return (answer, culprit, runs)."""
    culprit = rng.randint(1, last)
    skipped = {p for p in range(1, last) if rng.random() < skips}
    search = NoisySearch(last, confidence, repeats)
    runs = 0
    while not search.done:
        (place,) = search.wants(1, [])
        runs += 1
        if place in skipped:
            search.tell(place, "skip")
            continue
        rate = high if place >= culprit else low
        search.tell(place, "bad" if rng.random() < rate else "good")
    return search.finding(), culprit, runs


def believing(rng, last, low, high):
    """Play the search that believes every answer; return (named, culprit)."""
    culprit = rng.randint(1, last)
    search = PrefixSearch(last)
    while not search.done:
        (place,) = search.wants(1, [])
        rate = high if place >= culprit else low
        search.tell(place, "bad" if rng.random() < rate else "good")
    return search.finding().culprit, culprit


def pair(rng, count, low, high, confidence, repeats):
    """Play a search over subsets with a planted pair; return (named, planted, runs)."""
    names = [f"s{n}" for n in range(count)]
    planted = frozenset(rng.sample(names, rng.randint(1, 2)))
    inner = SubsetSearch(names, {})
    search = Repeated(inner, frozenset(), inner.whole, confidence, 4 * count, repeats)
    runs = 0
    while not search.done:
        key = search.wants(1, [])[0]
        runs += 1
        rate = high if planted <= key else low
        search.tell(key, "bad" if rng.random() < rate else "good")
    if search.ends.problem() is not None:
        return None, planted, runs
    found = inner.finding()
    named = found.bad if found.code == 0 else None
    return named, planted, runs


def upper(hits, runs, z=2.326):
    """Return the upper 99 % bound (Wilson) of a rate."""
    share = hits / runs
    centre = share + z * z / (2 * runs)
    spread = z * math.sqrt(share * (1 - share) / runs + z * z / (4 * runs * runs))
    return (centre + spread) / (1 + z * z / runs)


def simulate(last, low, high, confidence, repeats, runs, seed):
    """Return the figures of one pair of rates."""
    rng = random.Random(f"{seed}/{last}/{low}/{high}")
    false = right = noise = nothing = 0
    total = 0
    for _ in range(runs):
        finding, culprit, count = one(rng, last, low, high, confidence, repeats)
        total += count
        if finding.culprit is not None:
            right += finding.culprit == culprit
            false += finding.culprit != culprit
        elif finding.kind == "noise":
            noise += 1
        else:
            nothing += 1
    wrong = sum(
        named is not None and named != culprit
        for named, culprit in (believing(rng, last, low, high) for _ in range(runs))
    )
    return {
        "patches": last,
        "rate_good": low,
        "rate_bad": high,
        "runs": runs,
        "right": right / runs,
        "false": false / runs,
        "false_upper_99": upper(false, runs),
        "noise": noise / runs,
        "no_answer": nothing / runs,
        "mean_evaluations": total / runs,
        "believing_false": wrong / runs,
    }


def main():
    """Run the simulation and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=2000)
    parser.add_argument("--patches", default="16,64")
    parser.add_argument("--confidence", type=float, default=0.95)
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rows = []
    print(
        "| patches | bad runs of good / bad trees | right | accused falsely "
        "(99 % bound) | noise or no answer | runs, mean | believing every answer |"
    )
    print("|---|---|---|---|---|---|---|")
    for last in map(int, options.patches.split(",")):
        for low, high in RATES:
            row = simulate(
                last, low, high, options.confidence, options.repeats, options.runs,
                options.seed,
            )  # fmt: skip
            rows.append(row)
            rest = row["noise"] + row["no_answer"]
            print(
                f"| {last} | {low:g} / {high:g} | {100 * row['right']:.1f} % "
                f"| {100 * row['false']:.2f} % ({100 * row['false_upper_99']:.2f} %) "
                f"| {100 * rest:.1f} % | {row['mean_evaluations']:.0f} "
                f"| {100 * row['believing_false']:.1f} % |",
                flush=True,
            )
    subsets = []
    for low, high in ((0.0, 1.0), (0.05, 0.95), (0.1, 0.8), (0.2, 0.8)):
        rng = random.Random(f"{options.seed}/subsets/{low}/{high}")
        games = max(options.runs // 4, 1)
        played = [
            pair(rng, 6, low, high, options.confidence, options.repeats)
            for _ in range(games)
        ]
        false = sum(
            named is not None and named != planted for named, planted, _ in played
        )
        none = sum(named is None for named, _, _ in played)
        subsets.append({
            "sets": 6, "rate_good": low, "rate_bad": high, "runs": games,
            "false": false / games, "no_answer": none / games,
            "mean_evaluations": sum(count for _, _, count in played) / games,
        })  # fmt: skip
        print(
            f"6 sets, {low:g} / {high:g}: falsely {100 * false / games:.2f} %, "
            f"no answer {100 * none / games:.1f} %, "
            f"{subsets[-1]['mean_evaluations']:.0f} runs"
        )
    if options.json:
        document = {"prefixes": rows, "subsets": subsets}
        options.json.write_text(json.dumps(document, indent=2) + "\n")


if __name__ == "__main__":
    main()
