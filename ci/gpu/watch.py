"""What a model does that an optimisation has to show in its counters (for tiny_glm.py).

Counted around the base's own code, which every arm has, so that the base's process says
how often an arm with a feature on has to engage on the same work:

* ``prefill-writes``: batches whose prefill rows the base's writer wrote; the
  pool-parallel writer is launched once for each instead;
* ``full-kda-calls``: KDA layers that ran while a FULL graph recorded; each forks;
* ``decode-layer-calls``: decoder layers that ran for at most 256 tokens, and not while
  a graph recorded that an eager break may end; each opens the prefetch's three windows;
* ``graph-nodes``: nodes of all graphs that were recorded, where the driver says them.
"""

from __future__ import annotations

import ctypes
import functools
import inspect
from collections.abc import Callable
from typing import Any

DECODE_TOKENS = 256  # the prefetch's own limit of a decode step

counts = dict.fromkeys(
    ("prefill-writes", "full-kda-calls", "decode-layer-calls", "graph-nodes"), 0
)


def _around(owner: Any, name: str, before: Callable[..., None]) -> None:
    """Call a function before another, with the same arguments."""
    wrapped = getattr(owner, name)

    @functools.wraps(wrapped)
    def both(*args: Any, **kwargs: Any) -> Any:
        before(*args, **kwargs)
        return wrapped(*args, **kwargs)

    setattr(owner, name, both)


def breaks() -> bool:
    """Whether a graph records that an eager break may end."""
    from vllm.compilation.breakable_cudagraph import BreakableCUDAGraphCapture

    return bool(BreakableCUDAGraphCapture.is_active()) and runtime_mode() != "FULL"


def runtime_mode() -> str:
    """Name of the forward's CUDA graph mode."""
    from vllm.forward_context import get_forward_context, is_forward_context_available

    if not is_forward_context_available():
        return "NONE"
    return str(get_forward_context().cudagraph_runtime_mode.name)


def records_full() -> bool:
    """Whether a FULL graph records, which no eager break can end.

    A runner may record one with the mode NONE: only PIECEWISE tells the two apart.
    """
    import torch
    from vllm.compilation.breakable_cudagraph import BreakableCUDAGraphCapture

    return (
        torch.cuda.is_current_stream_capturing()
        and not BreakableCUDAGraphCapture.is_active()
        and runtime_mode() != "PIECEWISE"
    )


def nodes_being_recorded() -> int:
    """Nodes of the graph that the current stream records; 0 where nobody says."""
    import torch

    try:
        cuda = ctypes.CDLL("libcuda.so.1")
        status, number, graph = ctypes.c_int(), ctypes.c_uint64(), ctypes.c_void_p()
        failed = cuda.cuStreamGetCaptureInfo_v2(
            ctypes.c_void_p(torch.cuda.current_stream().cuda_stream),
            *map(ctypes.byref, (status, number, graph)),
            None,
            None,
        )
        size = ctypes.c_size_t()
        failed = failed or cuda.cuGraphGetNodes(graph, None, ctypes.byref(size))
    except (OSError, AttributeError):
        return 0
    return 0 if failed else size.value


def install() -> None:
    """Count from now on; call before the engine starts, for it records graphs then."""
    import torch
    from vllm.models.glm5next.common import kda, model
    from vllm.models.glm5next.nvidia import sparse_indexer

    signature = inspect.signature(model.Glm5NextDecoderLayer.forward)

    def count(name: str, much: int = 1) -> None:
        counts[name] += much

    def kda_layer(*args: Any, **kwargs: Any) -> None:
        if records_full():
            count("full-kda-calls")

    def layer(*args: Any, **kwargs: Any) -> None:
        positions = signature.bind(*args, **kwargs).arguments["positions"]
        if positions.shape[0] <= DECODE_TOKENS and not breaks():
            count("decode-layer-calls")

    _around(kda.Glm5NextLinearAttention, "forward", kda_layer)
    _around(model.Glm5NextDecoderLayer, "forward", layer)
    _around(
        sparse_indexer,
        "_kpool_compress_insert",
        lambda *args, **kwargs: count("prefill-writes"),
    )
    _around(
        torch.cuda.CUDAGraph,
        "capture_end",
        lambda graph: count("graph-nodes", nodes_being_recorded()),
    )
