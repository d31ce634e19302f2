# SPDX-License-Identifier: Apache-2.0
"""The kpool prefill write of the tree in the working folder, against plain torch.

    PYTHONPATH=TREE:ci/cpu python ci/cpu/check_kpool.py

Exit 0: the rows that may be written hold the pooled, rotated and quantised keys, and no
other row was touched. Exit 1: they do not. Runs on the base as well: it calls only what
the base has. `ci/bisect_kpool.py` bisects with it.
"""

import sys

import stackctl_cpu_shim  # first: it sets the environment
import torch

stackctl_cpu_shim.define_torchvision_ops()

from vllm.models.glm5next.nvidia.ops import kpool_compress as ops  # noqa: E402
from vllm.triton_utils import HAS_TRITON  # noqa: E402

DIM, PAGE, PAGES, UNTOUCHED = 128, 64, 2, 0xA5


def hadamard(x: torch.Tensor) -> torch.Tensor:
    """Rotate rows by the normalised Hadamard matrix of order 128."""
    matrix = torch.ones(1, 1)
    while matrix.shape[0] < DIM:
        matrix = torch.cat(
            [torch.cat([matrix, matrix], 1), torch.cat([matrix, -matrix], 1)]
        )
    return x @ matrix / DIM**0.5


def main() -> int:
    """Compare and return the exit code."""
    if not HAS_TRITON:
        print("Triton is switched off")
        return 125
    for pool in (4, 16):
        gen = torch.Generator().manual_seed(pool)
        mask = torch.tensor([True, False, True, True, False, False, True])
        rows = len(mask)
        k = torch.randn(rows, pool, DIM, generator=gen).to(torch.bfloat16)
        score = torch.randn(rows, pool, DIM, generator=gen).to(torch.bfloat16)
        ape = torch.randn(pool, DIM, generator=gen)
        loc = torch.randperm(PAGE * PAGES, generator=gen)[:rows]
        cache = torch.full((PAGES, PAGE, DIM + 4), UNTOUCHED, dtype=torch.uint8)
        ops.kpool_compress_and_write_cache(
            cache, k, score, ape, loc, pool, write_mask=mask
        )
        weights = torch.softmax(score.float() + ape, dim=1)
        want = hadamard((weights * k.float()).sum(dim=1))
        flat = cache.reshape(PAGES, -1)
        values = flat[:, : PAGE * DIM].reshape(-1, DIM)
        scales = flat[:, PAGE * DIM :].reshape(-1, 4)
        for row in range(rows):
            place = int(loc[row])
            got = values[place]
            if not mask[row]:
                assert bool((got == UNTOUCHED).all()), f"row {row} was written"
                continue
            scale = scales[place].clone().view(torch.float32)
            shown = got.clone().view(torch.float8_e4m3fn).float() * scale
            # Three bits of mantissa, and two roundings to bfloat16 before.
            error = (shown - want[row]).abs().max() / want[row].abs().max()
            assert float(error) < 0.1, f"row {row} of pool {pool}: off by {error:.3f}"
    print("the written rows are right")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except AssertionError as problem:
        print(problem)
        sys.exit(1)
