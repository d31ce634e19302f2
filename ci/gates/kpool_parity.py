"""Gate kpool-parity: the pool-parallel prefill write, bit for bit.

The reference is the ordered writer of the *unpacked base*, never a
switch of the tree under test. Compared are cache bytes, scales and tails over the
contract's cases, kpool 4 and 16, rings of one, two and four pools, three scale
formats, and random batches. The base's own prefill path is compared as well: where it
differs is the fault that the set repairs, and is reported, not judged.

Without a GPU, and with ``TRITON_INTERPRET=1``, small shapes run under Triton's
interpreter: that compares the same code on a CPU, and says nothing of a GPU.
"""

from __future__ import annotations

import random
from typing import Any

import _unit
from _kpool import (
    Batch,
    Writers,
    device,
    differing_bytes,
    written_rows,
)

RANDOM = 12  # random batches of each combination
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
    if small:
        one = [(4, 1, scale) for scale in SCALES]
        return [*one, (4, 2, SCALES[0]), (4, 4, SCALES[1]), (16, 2, SCALES[0])]
    return [(p, r, s) for p in (4, 16) for r in (1, 2, 4) for s in SCALES]


def measure(task: _unit.Task) -> _unit.Answer:
    """Compare this unit's share of the combinations."""
    where = device()
    small = where == "cpu"
    if small:
        from stackctl_cpu_shim import fix_interpreter_rounding

        fix_interpreter_rounding()
    base, tree = Writers(task.trees["base"], "base"), Writers(task.trees["on"], "tree")
    if not tree.has_parallel:
        raise _unit.Stop("not-tested", "the tree has no kpool_prefill_write")
    found: list[dict[str, Any]] = []
    launches = pools = 0
    own_path: dict[str, int] = {}
    for pool, rings, scale in combinations(small)[task.unit :: task.units]:
        batches = dict(cases(pool, small))
        if not small:
            seeds = range(task.seed, task.seed + RANDOM)
            batches |= {f"random {i}": random_case(s, 700) for i, s in enumerate(seeds)}
            batches["4,080 tokens"] = {"requests": [(0, 4080, 1)]}
            batches["32,771 tokens from 5"] = {"requests": [(5, 32771, 1)]}
        for name, batch in batches.items():
            arguments = {"seed": task.seed, **batch}
            made = Batch(pool=pool, rings=rings, device=where, **arguments)
            result = compare(tree, base, made, scale)
            label = f"kpool {pool}, {rings} a ring, {scale}: {name}"
            if not result["pools"] or result["written"] != result["pools"]:
                raise _unit.Stop(
                    "invalid",
                    f"{result['written']} of {result['pools']} pools written: {label}",
                )
            differing = result["kv"] + result["tail"]
            found.append(
                {
                    "id": label,
                    "equal": not differing,
                    "elements": sum(t.nbytes for t in made.caches()),
                    "differing": differing,
                }
            )
            launches += sum(result["launches"])
            pools += result["pools"]
            if result["base_path_kv"]:
                own_path[name] = own_path.get(name, 0) + 1
    return _unit.Answer(
        {"cases": found},
        # A batch is one launch of the pool kernel and one of the tail kernel.
        {"on": {"expected": 2 * len(found), "counted": launches}},
        ["small shapes under the interpreter of Triton on a CPU"] if small else [],
        {"pools": pools, "base_path_differs_in": own_path},
    )


if __name__ == "__main__":
    _unit.run(measure)
