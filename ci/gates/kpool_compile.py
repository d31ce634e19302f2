"""Gate kpool-compile: one compile variant, whatever the scheduler does.

With a fresh Triton cache, mixed batches are written with 0, 1, 16 and 7 leading decode
tokens and with batch sizes of every alignment. The number of variants of each kernel,
in the process and on disk, has to stay 1 throughout. The base's kernels are counted
beside it and not judged.
"""

from __future__ import annotations

import os
from typing import Any

import _unit

OFFSETS = (0, 1, 16, 7)
LENGTHS = (37, 64, 1, 4080, 2, 16, 4081)
KERNELS = ("_kpool_prefill_pool_kernel", "_kpool_prefill_tail_kernel")
BASE_KERNELS = ("_kpool_softmax_rotate_write_cache_kernel", "_kpool_tail_seed_kernel")


def variants(kernel: Any) -> int:
    """Compiled variants of a kernel in this process, over all devices."""
    return sum(len(entry[0]) for entry in kernel.device_caches.values())


def measure(task: _unit.Task) -> _unit.Answer:
    """Variants after each batch."""
    # Its own, for what is counted there has to be this process's work.
    cache = task.scratch / "triton"
    os.environ["TRITON_CACHE_DIR"] = str(cache)
    from _kpool import Batch, Writers

    writers = Writers(task.trees["on"], "tree")
    reference = Writers(task.trees["base"], "base")
    if not writers.has_parallel:
        raise _unit.Stop("not-tested", "the tree has no kpool_prefill_write")
    seen: dict[str, list[int]] = {name: [] for name in KERNELS + BASE_KERNELS}
    batches = [(offset, 61 + offset) for offset in OFFSETS]
    batches += [(3, length) for length in LENGTHS]
    for decodes, length in batches:
        requests = [(8, 1, i + 2) for i in range(decodes)] + [(3, length, 1)]
        batch = Batch(requests, pool=4, decodes=decodes, seed=task.seed)
        writers.parallel(batch, *batch.caches())
        reference.plain(batch, *batch.caches())
        for module, names in ((writers, KERNELS), (reference, BASE_KERNELS)):
            for name in names:
                seen[name].append(variants(getattr(module.ops, name)))
    counts = {name: seen[name] for name in KERNELS}
    for name in KERNELS:
        counts[f"{name} on disk"] = [len(list(cache.glob(f"*/{name}.json")))]
    launches = sum(writers.launches())
    return _unit.Answer(
        {"variants": counts},
        {"on": {"expected": len(KERNELS) * len(batches), "counted": launches}},
        extra={
            "batches": [{"decodes": d, "tokens": length} for d, length in batches],
            "base": {name: seen[name] for name in BASE_KERNELS},
        },
    )


if __name__ == "__main__":
    _unit.run(measure)
