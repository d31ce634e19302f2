"""Load the kpool writers of a tree, and make batches for them.

One file of the tree is executed, with small stand-ins for the four modules that it
imports, so a gate needs torch and Triton but no installed vLLM, and two trees can be
loaded into one process. What the stand-ins say: MX scales are off until
:meth:`Writers.use_mx`, and the platform is what torch finds.
"""

from __future__ import annotations

import ast
import importlib.util
import os
import sys
import tempfile
import types
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from _unit import Stop

HEAD_DIM = 128
PAGE_SIZE = 64
OPS = "vllm/models/glm5next/nvidia/ops/kpool_compress.py"
INDEXER = "vllm/models/glm5next/nvidia/sparse_indexer.py"
COMMON = "vllm/v1/attention/ops/common.py"


def device() -> str:
    """``cuda``, or ``cpu`` under Triton's interpreter; else not tested."""
    if torch.cuda.is_available():
        return "cuda"
    if os.environ.get("TRITON_INTERPRET") == "1":
        return "cpu"
    raise Stop("not-tested", "no GPU, and TRITON_INTERPRET=1 is not set")


def _source_of(path: Path, name: str) -> str:
    """Source of one top-level function of a file, decorators included."""
    text = path.read_text()
    for node in ast.parse(text).body:
        if isinstance(node, ast.FunctionDef) and node.name == name:
            first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
            return "\n".join(text.splitlines()[first - 1 : node.end_lineno]) + "\n"
    raise Stop("invalid", f"{path} defines no {name}")


def _execute(path: Path, name: str) -> types.ModuleType:
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


class _Platform:
    @staticmethod
    def is_cuda() -> bool:
        return torch.cuda.is_available()

    @staticmethod
    def has_device_capability(capability: int) -> bool:
        major, minor = torch.cuda.get_device_capability()
        return major * 10 + minor >= capability


class Writers:
    """The kpool writers of one tree: ``ordered``, ``plain`` and ``parallel``."""

    def __init__(self, tree: Path, label: str) -> None:
        import triton
        import triton.language as tl

        for relative in (OPS, INDEXER, COMMON):
            if not (tree / relative).is_file():
                raise Stop("invalid", f"{label}: {relative} is missing in the tree")
        self._scratch = tempfile.TemporaryDirectory()
        # Triton reads a kernel's source from its file.
        helper = Path(self._scratch.name) / f"pack_{label}.py"
        helper.write_text(
            "import triton\nimport triton.language as tl\n\n\n"
            + _source_of(tree / COMMON, "pack_ue8m0_x4")
        )
        pack = _execute(helper, f"kpool_pack_{label}")
        stand_ins = {
            "vllm.triton_utils": {"tl": tl, "triton": triton},
            "vllm.utils.deep_gemm": {"mqa_logits_use_mx_scales": lambda: False},
            "vllm.v1.attention.ops.common": {"pack_ue8m0_x4": pack.pack_ue8m0_x4},
            "vllm.platforms": {"current_platform": _Platform},
        }
        packages = ["vllm", "vllm.utils", "vllm.v1", "vllm.v1.attention"]
        packages.append("vllm.v1.attention.ops")
        saved = {n: sys.modules.get(n) for n in [*packages, *stand_ins]}
        for name in packages:
            sys.modules[name] = types.ModuleType(name)
        for name, contents in stand_ins.items():
            sys.modules[name] = types.ModuleType(name)
            sys.modules[name].__dict__.update(contents)
        try:
            self.ops = _execute(tree / OPS, f"kpool_compress_{label}")
        finally:
            for name, module in saved.items():
                if module is None:
                    del sys.modules[name]
                else:
                    sys.modules[name] = module
        scope: dict[str, Any] = {"torch": torch, "kpool_ops": self.ops}
        exec(_source_of(tree / INDEXER, "_kpool_compress_insert"), scope)
        self._insert = scope["_kpool_compress_insert"]
        self.has_parallel = hasattr(self.ops, "kpool_prefill_write")

    def use_mx(self, on: bool) -> None:
        """Write scales as four packed UE8M0 bytes, as on SM100."""
        self.ops.mqa_logits_use_mx_scales = lambda: on

    def ordered(
        self, batch: Batch, kv: Any, tail: Any, round_scale: bool = True
    ) -> None:
        """Walk every prefill request with the ordered writer, all in one launch."""
        view = batch.padded()
        self.ops.kpool_decode_update_and_maybe_write_cache_batched(
            kv,
            tail,
            view["tail_slots"],
            view["key"],
            view["score"],
            batch.ape,
            view["slots"],
            view["positions"],
            batch.pool,
            round_scale=round_scale,
        )

    def plain(self, batch: Batch, kv: Any, tail: Any, round_scale: bool = True) -> None:
        """The gathering write and the tail seeding, as the indexer calls them."""
        rows = slice(batch.first_token, None)
        self._insert(
            batch.key[rows],
            batch.score[rows],
            batch.ape,
            kv,
            batch.slots[rows],
            batch.pool,
            HEAD_DIM,
            round_scale,
        )
        self.ops.kpool_seed_tail_cache(
            tail,
            batch.key[rows],
            batch.score[rows],
            batch.tail_slots[rows],
            batch.pool,
        )

    def parallel(
        self, batch: Batch, kv: Any, tail: Any, round_scale: bool = True
    ) -> None:
        """The pool-parallel writer of the set, tail included."""
        self.ops.kpool_prefill_write(
            kv,
            tail,
            batch.key,
            batch.score,
            batch.ape,
            batch.slots,
            batch.tail_slots,
            batch.first_token,
            batch.pool,
            round_scale=round_scale,
        )

    def launches(self) -> tuple[int, int]:
        """How often the pool and the tail kernel were launched."""
        ops = self.ops
        return ops.num_prefill_pool_launches, ops.num_prefill_tail_launches


@dataclass
class Batch:
    """One step: decode rows, prefill requests, padding rows.

    Args:
        requests: ``(start, length, block)`` of each request; block 0 is the null
            block of dummy requests.
        pool: Tokens per pool.
        rings: Pools per tail ring.
        decodes: How many leading requests are decodes.
        padding: Padding rows at the end.
        seed: Of keys, gates and earlier tails.
    """

    requests: list[tuple[int, int, int]]
    pool: int
    rings: int = 1
    decodes: int = 0
    padding: int = 0
    seed: int = 0
    device: str = "cuda"
    key: torch.Tensor = field(init=False)
    score: torch.Tensor = field(init=False)
    _padded: dict[str, torch.Tensor] | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        pool, ring = self.pool, self.pool * self.rings
        positions, slots, tails = [], [], []
        pages: dict[tuple[int, int], int] = {}
        for start, length, block in self.requests:
            for pos in range(start, start + length):
                positions.append(pos)
                tails.append(block * ring + pos % ring if block else -1)
                slot = -1
                if pos % pool == pool - 1 and block:
                    page, row = divmod(pos // pool, PAGE_SIZE)
                    page = pages.setdefault((block, page), len(pages) + 1)
                    slot = page * PAGE_SIZE + row
                slots.append(slot)
        for column, value in ((positions, 0), (slots, -1), (tails, -1)):
            column += [value] * self.padding
        self.first_token = sum(length for _, length, _ in self.requests[: self.decodes])
        self.num_tokens = len(positions)
        self.pools = sum(s >= 0 for s in slots[self.first_token :])
        self.num_pages = len(pages) + 1
        self.num_blocks = 1 + max(block for _, _, block in self.requests)
        gen = torch.Generator().manual_seed(self.seed)
        shape = (self.num_tokens, HEAD_DIM)
        self.key = torch.randn(shape, generator=gen).to(self.device, torch.bfloat16)
        self.score = torch.randn(shape, generator=gen).to(self.device, torch.bfloat16)
        self.ape = torch.randn(pool, HEAD_DIM, generator=gen).to(self.device)
        self.positions = torch.tensor(positions).to(self.device)
        self.slots = torch.tensor(slots).to(self.device)
        self.tail_slots = torch.tensor(tails).to(self.device)

    def caches(self) -> tuple[torch.Tensor, torch.Tensor]:
        """A patterned K cache; rings with the earlier tokens, NaN elsewhere."""
        shape = (self.num_pages, PAGE_SIZE, HEAD_DIM + 4)
        kv = torch.full(shape, 0xA5, dtype=torch.uint8, device=self.device)
        ring = self.pool * self.rings
        tail = torch.full((self.num_blocks, 2, ring, HEAD_DIM), torch.nan)
        gen = torch.Generator().manual_seed(self.seed + 1)
        for start, _, block in self.requests:
            for pos in range(start - start % self.pool, start):
                tail[block, :, pos % ring] = torch.randn(2, HEAD_DIM, generator=gen)
        return kv, tail.to(self.device, torch.bfloat16)

    def padded(self) -> dict[str, torch.Tensor]:
        """The prefill requests as ``[requests, longest, ...]``, short ones padded."""
        if self._padded is not None:
            return self._padded
        lengths = [length for _, length, _ in self.requests[self.decodes :]]
        columns = {
            "key": (self.key, 0),
            "score": (self.score, 0),
            "slots": (self.slots, -1),
            "tail_slots": (self.tail_slots, -1),
            "positions": (self.positions, -1),
        }
        self._padded = {}
        for name, (flat, fill) in columns.items():
            shape = (len(lengths), max(lengths), *flat.shape[1:])
            out = torch.full(shape, fill, dtype=flat.dtype, device=self.device)
            row = self.first_token
            for i, length in enumerate(lengths):
                out[i, :length] = flat[row : row + length]
                row += length
            self._padded[name] = out
        return self._padded


def differing_bytes(a: torch.Tensor, b: torch.Tensor) -> int:
    """Number of bytes in which two tensors differ (NaNs compare by their bits)."""
    return int((a.view(torch.uint8) != b.view(torch.uint8)).sum())


def written_rows(kv: torch.Tensor) -> int:
    """Rows of a K cache that no longer hold the pattern."""
    rows = kv.flatten(1)[:, : PAGE_SIZE * HEAD_DIM].reshape(-1, HEAD_DIM)
    return int((rows != 0xA5).any(dim=1).sum())
