"""Gate kpool-compile: one compile variant, whatever the scheduler does.

In a process with a fresh Triton cache, mixed batches are written with 0, 1, 16 and 7
leading decode tokens and with batch sizes of every alignment. The number of variants
of each kernel, in the process and on disk, has to stay 1 throughout. The base's
kernels are counted beside it and not judged.

    python ci/gates/kpool_compile.py --tree TREE --base BASE --json
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

import _gate

OFFSETS = (0, 1, 16, 7)
LENGTHS = (37, 64, 1, 4080, 2, 16, 4081)
KERNELS = ("_kpool_prefill_pool_kernel", "_kpool_prefill_tail_kernel")
BASE_KERNELS = ("_kpool_softmax_rotate_write_cache_kernel", "_kpool_tail_seed_kernel")


def variants(kernel: Any) -> int:
    """Compiled variants of a kernel in this process, over all devices."""
    return sum(len(entry[0]) for entry in kernel.device_caches.values())


def count(tree: Path, base: Path) -> dict[str, Any]:
    """One process with a fresh cache: variants after each batch."""
    from _kpool import Batch, Writers

    writers, reference = Writers(tree, "tree"), Writers(base, "base")
    if not writers.has_parallel:
        raise _gate.Stop("not-tested", "the tree has no kpool_prefill_write")
    seen: dict[str, list[int]] = {name: [] for name in KERNELS + BASE_KERNELS}
    batches = [(offset, 61 + offset) for offset in OFFSETS]
    batches += [(3, length) for length in LENGTHS]
    for decodes, length in batches:
        requests = [(8, 1, i + 2) for i in range(decodes)] + [(3, length, 1)]
        batch = Batch(requests, pool=4, decodes=decodes)
        writers.parallel(batch, *batch.caches())
        reference.plain(batch, *batch.caches())
        for module, names in ((writers, KERNELS), (reference, BASE_KERNELS)):
            for name in names:
                seen[name].append(variants(getattr(module.ops, name)))
    cache = Path(os.environ["TRITON_CACHE_DIR"])
    on_disk = {name: len(list(cache.glob(f"*/{name}.json"))) for name in KERNELS}
    return {"batches": batches, "variants": seen, "on_disk": on_disk}


def body(args: argparse.Namespace, document: dict[str, Any]) -> str:
    """Start the process, judge what it saw."""
    try:
        import torch
    except ImportError as error:
        raise _gate.Stop("not-tested", f"no torch: {error}") from error
    if not torch.cuda.is_available():
        raise _gate.Stop("not-tested", "no GPU")
    command = [sys.executable, str(Path(__file__).resolve()), "--worker"]
    command += ["--tree", str(args.tree), "--base", str(args.base)]
    with tempfile.TemporaryDirectory() as cache:
        env = {**os.environ, "TRITON_CACHE_DIR": cache}
        done = subprocess.run(
            command, env=env, capture_output=True, text=True, timeout=300
        )
    if done.returncode:
        raise _gate.Stop("invalid", f"the process failed: {done.stderr[-1500:]}")
    answer = json.loads(done.stdout.splitlines()[-1])
    if "stop" in answer:
        raise _gate.Stop(*answer["stop"])
    document["samples"] = answer
    verdict = "qualified"
    for name in KERNELS:
        seen, on_disk = answer["variants"][name], answer["on_disk"][name]
        document["reasons"].append(
            f"{name}: {', '.join(map(str, seen[: len(OFFSETS)]))} over the offsets "
            f"{', '.join(map(str, OFFSETS))}, {max(seen)} over all batches, "
            f"{on_disk} on disk"
        )
        if set(seen) != {1} or on_disk != 1:
            verdict = "rejected"
    return verdict


def main() -> int:
    """Parse the command line and run the gate, or its process."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--tree", type=Path, required=True)
    parser.add_argument("--base", type=Path, required=True)
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    if args.worker:
        try:
            answer = count(args.tree, args.base)
        except _gate.Stop as stop:
            answer = {"stop": [stop.verdict, stop.reason]}
        print(json.dumps(answer))
        return 0
    return _gate.run(
        "kpool-compile", __file__, args.json, lambda document: body(args, document)
    )


if __name__ == "__main__":
    raise SystemExit(main())
