"""What the L2 gates share: the trees, loading the module under test, driver calls.

The gates run on a machine that has torch and Triton but need not have vLLM: the
module under test is one file, and `load_prefetch` imports it from a tree without
running the package's ``__init__`` files. The tree's own ``envs.py`` and ``logger.py``
are used; only ``vllm.triton_utils``, which re-exports Triton, is replaced.
"""

from __future__ import annotations

import ctypes
import importlib
import sys
import types
from pathlib import Path
from typing import Any

import _unit

MODULE = "vllm/models/glm5next/nvidia/l2_prefetch.py"


def check_arms(task: _unit.Task) -> None:
    """Check that every arm but the base has the module, and the base has not.

    Raises:
        _unit.Stop: One is not what it is called.
    """
    for name, tree in task.trees.items():
        has = (tree / MODULE).is_file()
        if has and name == "base":
            raise _unit.Stop("not-tested", f"the base has {MODULE}: no base of this")
        if not has and name != "base":
            text = f"the arm {name} has no {MODULE}; compose the set prefetch"
            raise _unit.Stop("not-tested", text)


def load_prefetch(tree: Path) -> Any:
    """Import the prefetch module of a tree.

    Args:
        tree: The composed tree.

    Returns:
        The module ``vllm.models.glm5next.nvidia.l2_prefetch``.
    """
    name = MODULE.removesuffix(".py").replace("/", ".")
    if "vllm" not in sys.modules:
        import triton
        import triton.language as tl

        parts = name.split(".")[:-1]
        for depth in range(1, len(parts) + 1):
            package = types.ModuleType(".".join(parts[:depth]))
            package.__path__ = [str(tree.joinpath(*parts[:depth]))]
            sys.modules[package.__name__] = package
        triton_utils: Any = types.ModuleType("vllm.triton_utils")
        triton_utils.triton, triton_utils.tl = triton, tl
        triton_utils.HAS_TRITON = True
        sys.modules[triton_utils.__name__] = triton_utils
    module = importlib.import_module(name)
    found = Path(str(module.__file__)).resolve()
    if found != (tree / MODULE).resolve():
        raise _unit.Stop("invalid", "the module under test is not the arm's")
    return module


class Cuda:
    """Driver calls of the gates, beside the module under test.

    Attributes:
        l2_bytes: Size of the L2 cache.
        max_persisting: What can be set aside.
        default_persisting: The limit that the driver started with.
    """

    def __init__(self) -> None:
        self._cuda = ctypes.CDLL("libcuda.so.1")
        self.l2_bytes = self._attribute(38)
        self.max_persisting = self._attribute(108)
        self.default_persisting = self.persisting()

    def _attribute(self, number: int) -> int:
        value = ctypes.c_int()
        code = self._cuda.cuDeviceGetAttribute(ctypes.byref(value), number, 0)
        if code:
            raise RuntimeError(f"cuDeviceGetAttribute({number}) returned {code}")
        return value.value

    def persisting(self) -> int:
        """Bytes set aside in the current context."""
        value = ctypes.c_size_t()
        code = self._cuda.cuCtxGetLimit(ctypes.byref(value), 6)
        if code:
            raise RuntimeError(f"cuCtxGetLimit returned {code}")
        return value.value

    def set_persisting(self, nbytes: int) -> None:
        """Set bytes aside and let go of lines that persist."""
        code = self._cuda.cuCtxSetLimit(6, ctypes.c_size_t(nbytes))
        code = code or self._cuda.cuCtxResetPersistingL2Cache()
        if code:
            raise RuntimeError(f"cuCtxSetLimit({nbytes}) returned {code}")

    def graph_nodes(self, graph: int) -> int:
        """Nodes of a captured graph."""
        count = ctypes.c_size_t()
        code = self._cuda.cuGraphGetNodes(
            ctypes.c_void_p(graph), None, ctypes.byref(count)
        )
        if code:
            raise RuntimeError(f"cuGraphGetNodes returned {code}")
        return count.value


def no_gpu() -> str | None:
    """Why the gate cannot run here, or None."""
    try:
        import torch
        import triton  # noqa: F401
    except ImportError as error:
        return f"{error.name} is not installed"
    if not torch.cuda.is_available():
        return "no CUDA device"
    if torch.cuda.get_device_capability() < (9, 0):
        return "compute capability below 9.0"
    return None
