"""Pytest plugin: run the base's Triton code and model wiring without a GPU.

Use it with ``pytest -p stackctl_cpu_shim`` and the tree under test first on
``PYTHONPATH`` (``ci/cpu/README.md`` has the whole command). It does four things,
each of which is needed on its own:

1. sets the environment that keeps Triton switched on without a driver,
2. defines the two torchvision operators that its Python half registers against,
3. replaces the float conversion of Triton's interpreter, which rounds wrongly,
4. offers fixtures that the base's own ``conftest.py`` would offer.

With ``STACKCTL_CUDA_AS_CPU=1`` it also sends ``device="cuda"`` to the CPU, so that
the base's own GPU tests of Triton kernels run under the interpreter.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

# Before torch and vllm are imported. An unset CUDA_VISIBLE_DEVICES makes the base
# find no driver and replace Triton by a placeholder, silently.
for _name, _value in {
    "CUDA_VISIBLE_DEVICES": "",
    "VLLM_TARGET_DEVICE": "cpu",
    "TRITON_INTERPRET": "1",
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
}.items():
    os.environ.setdefault(_name, _value)

import numpy as np  # noqa: E402
import pytest  # noqa: E402
import torch  # noqa: E402


def define_torchvision_ops() -> None:
    """Define the operators that torchvision registers fake kernels for.

    Its C library is built against one torch build and does not load beside a CPU
    one; the Python half, all that the base imports, only needs the names.
    """
    schema = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
    for operator in ("nms", "qnms"):
        try:
            torch.library.define(f"torchvision::{operator}", schema)
        except RuntimeError:  # the real library is loaded
            continue


def fix_interpreter_rounding() -> None:
    """Make the interpreter's float narrowing round to nearest, ties to even.

    Triton 3.8's interpreter truncates to bfloat16 and rounds half up to fp8, losing
    the carry into the exponent; hardware rounds to nearest even and saturates fp8.
    Conversions between the types below go through torch's casts, which do the same;
    everything else (and an explicit round towards zero) keeps the original code.
    """
    import triton.language as tl
    from triton.runtime import interpreter

    original = interpreter._convert_float
    if getattr(original, "_stackctl_fixed", False):
        return
    torch_type = {
        tl.float32: torch.float32,
        tl.float16: torch.float16,
        tl.bfloat16: torch.bfloat16,
        tl.float8e4nv: torch.float8_e4m3fn,
        tl.float8e5: torch.float8_e5m2,
    }
    towards_zero = interpreter._ir.ROUNDING_MODE.RTZ

    def convert(value: Any, source: Any, target: Any, rounding: Any) -> Any:
        if source not in torch_type or target not in torch_type:
            return original(value, source, target, rounding)
        if rounding == towards_zero:
            return original(value, source, target, rounding)
        # The interpreter keeps bf16 and fp8 values as unsigned integers.
        bits = np.frombuffer(
            value.tobytes(), dtype=np.dtype(f"u{source.primitive_bitwidth // 8}")
        ).copy()
        wide = torch.from_numpy(bits).view(torch_type[source]).float()
        if target in (tl.float8e4nv, tl.float8e5):
            limit = torch.finfo(torch_type[target]).max
            wide = wide.clamp(-limit, limit)  # cvt.satfinite; NaN stays NaN
        narrow = wide.to(torch_type[target])
        unsigned = {1: torch.uint8, 2: torch.uint16, 4: torch.uint32}
        out = narrow.view(unsigned[target.primitive_bitwidth // 8]).numpy()
        return out.reshape(value.shape)

    convert._stackctl_fixed = True  # type: ignore[attr-defined]
    interpreter._convert_float = convert


define_torchvision_ops()
if os.environ["TRITON_INTERPRET"] == "1":
    fix_interpreter_rounding()


@pytest.fixture
def default_vllm_config() -> Iterator[Any]:
    """Run the test under a default ``VllmConfig``, as the base's conftest does."""
    from vllm.config import VllmConfig, set_current_vllm_config

    with set_current_vllm_config(VllmConfig()) as config:
        yield config


@pytest.fixture
def single_rank(tmp_path: Any) -> Iterator[None]:
    """Set up a one-rank gloo world and the base's parallel groups of size one."""
    from vllm.config import VllmConfig, set_current_vllm_config
    from vllm.distributed import (
        cleanup_dist_env_and_memory,
        init_distributed_environment,
        initialize_model_parallel,
    )

    with set_current_vllm_config(VllmConfig()):
        init_distributed_environment(1, 0, f"file://{tmp_path}/store", 0, "gloo")
        initialize_model_parallel(1, 1)
        yield
        cleanup_dist_env_and_memory()


if os.environ.get("STACKCTL_CUDA_AS_CPU") == "1":
    from torch.overrides import TorchFunctionMode

    def _on_cpu(value: Any) -> Any:
        if isinstance(value, (str, torch.device)) and str(value).startswith("cuda"):
            return torch.device("cpu")
        return value

    class _CudaAsCpu(TorchFunctionMode):
        """Send every ``cuda`` device argument of a torch function to the CPU."""

        def __torch_function__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            named = {k: _on_cpu(v) for k, v in (kwargs or {}).items()}
            return func(*(_on_cpu(a) for a in args), **named)

    @pytest.fixture(autouse=True)
    def _cuda_as_cpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        generator = torch.Generator
        monkeypatch.setattr(torch, "Generator", lambda device="cpu": generator())
        monkeypatch.setattr(torch.cuda, "synchronize", lambda *_: None)
        monkeypatch.setattr(torch.accelerator, "synchronize", lambda *_: None)
        monkeypatch.setattr(torch.accelerator, "empty_cache", lambda: None)
        with _CudaAsCpu():
            yield
