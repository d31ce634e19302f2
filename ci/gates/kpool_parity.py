"""Gate kpool-parity: the pool-parallel prefill write, bit for bit.

The reference is the ordered writer of the *unpacked base* (``--reference``), never a
switch of the tree under test. Compared are cache bytes, scales and tails over the
contract's cases, kpool 4 and 16, rings of one, two and four pools, three scale
formats, and random batches. The base's own prefill path is compared as well: where it
differs is the fault that the set repairs, and is reported, not judged.

    python ci/gates/kpool_parity.py --tree TREE --reference BASE --json
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

import _gate
from _kpool import (
    Batch,
    Writers,
    device,
    differing_bytes,
    written_rows,
)

SCALES = ("power-of-two", "linear", "mx")


def cases(pool: int, small: bool) -> dict[str, dict[str, Any]]:
    """The contract's cases as arguments of :class:`_kpool.Batch`."""
    residues = range(pool) if not small else (1, pool // 2 + 1, pool - 1)
    return {
        "one request": {"requests": [(0, 3 * pool, 1)]},
        "one request, open pool": {"requests": [(0, 2 * pool + 3, 1)]},
        "many requests": {
            "requests": [
                (0, pool + 1, 1),
                (4 * pool, 2 * pool, 2),
                (0, pool - 1, 3),
                (0, pool, 4),
            ]
        },
        "every residue": {
            "requests": [
                (2 * pool + r, pool + 2, i + 1) for i, r in enumerate(residues)
            ]
        },
        "a pool across the chunk boundary": {"requests": [(pool + 2, pool, 1)]},
        "permuted blocks": {
            "requests": [
                (pool + 1, pool, 5),
                (3, 2 * pool - 1, 2),
                (2 * pool - 1, 9, 7),
            ]
        },
        "decodes in front": {
            "requests": [
                (2 * pool - 1, 1, 3),
                (5 * pool + 1, 2, 1),
                (pool + 2, pool, 4),
                (0, pool + 1, 2),
            ],
            "decodes": 2,
        },
        "padding and null blocks": {
            "requests": [(1, pool, 2), (0, pool + 2, 0), (pool - 1, 2, 1)],
            "padding": pool + 3,
        },
        "shorter than a pool": {
            "requests": [
                (pool - 1, 1, 1),
                (2 * pool - 1, 1, 2),
                (pool - 2, 2, 3),
                (1, 1, 4),
                (0, pool - 1, 5),
            ]
        },
    }


def random_case(seed: int, longest: int) -> dict[str, Any]:
    """A batch with random starts, lengths, blocks, decodes and padding."""
    rng = random.Random(seed)
    blocks = list(range(1, rng.randint(2, 24) + 1))
    rng.shuffle(blocks)
    return {
        "requests": [(rng.randint(0, 900), rng.randint(1, longest), b) for b in blocks],
        "decodes": rng.randint(0, min(3, len(blocks) - 1)),
        "padding": rng.randint(0, 40),
        "seed": seed,
    }


def compare(tree: Writers, base: Writers, batch: Batch, scale: str) -> dict[str, Any]:
    """Bytes in which the tree's writer and the base's path differ from ordered."""
    for writers in (tree, base):
        writers.use_mx(scale == "mx")
    round_scale = scale != "linear"
    want, got, plain = batch.caches(), batch.caches(), batch.caches()
    base.ordered(batch, *want, round_scale)
    before = tree.launches()
    tree.parallel(batch, *got, round_scale)
    engaged = tuple(b - a for a, b in zip(before, tree.launches(), strict=True))
    base.plain(batch, *plain, round_scale)
    return {
        "kv": differing_bytes(got[0], want[0]),
        "tail": differing_bytes(got[1], want[1]),
        "launches": engaged,
        "pools": batch.pools,
        "written": written_rows(got[0]),
        "base_path_kv": differing_bytes(plain[0], want[0]),
    }


def combinations(small: bool) -> list[tuple[int, int, str]]:
    """Pool size, pools per ring and scale format; fewer for the interpreter."""
    every = [(p, r, s) for p in (4, 16) for r in (1, 2, 4) for s in SCALES]
    return [c for c in every if not small or c[0] == 4 or c == (16, 2, "power-of-two")]


def collect(args: argparse.Namespace, shard: int) -> dict[str, Any]:
    """Compare everything of one shard of the combinations."""
    where = device()
    small = where == "cpu"
    if small:
        from stackctl_cpu_shim import fix_interpreter_rounding

        fix_interpreter_rounding()
    base, tree = Writers(args.reference, "base"), Writers(args.tree, "tree")
    if not tree.has_parallel:
        raise _gate.Stop("not-tested", "the tree has no kpool_prefill_write")
    samples: list[dict[str, Any]] = []
    for pool, rings, scale in combinations(small)[shard :: args.jobs]:
        batches = dict(cases(pool, small))
        if not small:
            batches |= {f"random {i}": random_case(i, 700) for i in range(args.random)}
            batches["4,080 tokens"] = {"requests": [(0, 4080, 1)]}
            batches["32,771 tokens from 5"] = {"requests": [(5, 32771, 1)]}
        for name, batch in batches.items():
            made = Batch(pool=pool, rings=rings, device=where, **batch)
            result = compare(tree, base, made, scale)
            samples.append(
                {"case": name, "pool": pool, "rings": rings, "scale": scale, **result}
            )
    return {
        "samples": samples,
        "arms": {"reference": base.digests, "tree": tree.digests},
        "device": where,
    }


def body(args: argparse.Namespace, document: dict[str, Any]) -> str:
    """Fill the document; see :func:`_gate.run`."""
    if args.jobs == 1:
        shards = [collect(args, 0)]
    else:  # compiling takes longest, and it is one process per shard
        command = [sys.executable, str(Path(__file__).resolve()), *sys.argv[1:]]
        running = [
            subprocess.Popen(
                [*command, "--shard", str(i)],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for i in range(args.jobs)
        ]
        answers = [p.communicate() for p in running]
        for process, (_, errors) in zip(running, answers, strict=True):
            if process.returncode:
                raise _gate.Stop("invalid", f"a process failed: {errors[-1500:]}")
        shards = [json.loads(out.splitlines()[-1]) for out, _ in answers]
    for shard in shards:
        if "stop" in shard:
            raise _gate.Stop(*shard["stop"])
    samples = [s for shard in shards for s in shard["samples"]]
    document["samples"] = samples
    document["arms"] = shards[0]["arms"]
    if shards[0]["device"] == "cpu":
        document["limitations"].append("Triton's interpreter on a CPU, small shapes")
    wrong = [s for s in samples if s["kv"] or s["tail"]]
    idle = [
        s
        for s in samples
        if tuple(s["launches"]) != (1, 1)
        or s["written"] != s["pools"]
        or not s["pools"]
    ]
    document["base_path_differs_in"] = sorted(
        {s["case"] for s in samples if s["base_path_kv"]}
    )
    document["reasons"].append(
        f"{len(samples) - len(wrong)} of {len(samples)} batches are bit-equal to the "
        f"reference's ordered writer; {sum(s['pools'] for s in samples)} pools"
    )
    document["reasons"].append(
        "the base's own path differs in: " + ", ".join(document["base_path_differs_in"])
    )
    if wrong:
        document["reasons"].append(f"first difference: {wrong[0]}")
        return "rejected"
    if idle:
        names = ", ".join(sorted({s["case"] for s in idle}))
        document["reasons"].append(f"the writer did not do its work in: {names}")
        return "invalid"
    return "qualified"


def main() -> int:
    """Parse the command line and run the gate."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--tree", type=Path, required=True)
    parser.add_argument("--reference", "--base", type=Path, required=True)
    parser.add_argument("--random", type=int, default=12, help="random batches")
    parser.add_argument("--jobs", type=int, default=1, help="processes to spread over")
    parser.add_argument("--shard", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    if args.shard is not None:
        try:
            answer = collect(args, args.shard)
        except _gate.Stop as stop:
            answer = {"stop": [stop.verdict, stop.reason]}
        print(json.dumps(answer))
        return 0
    return _gate.run(
        "kpool-parity", __file__, args.json, lambda document: body(args, document)
    )


if __name__ == "__main__":
    raise SystemExit(main())
