"""How long a model's forwards take on the device (for model_speed.py)."""

from __future__ import annotations

import gc
from typing import Any


class DeviceClock:
    """Device time of a model's forwards, apart from what the host does around them.

    An eager forward is timed by hooks of the model, a recorded one at its replay: an
    event before, an event behind, on the stream that runs it.

    Raises:
        RuntimeError: The process does not hold one model.
    """

    def __init__(self) -> None:
        import torch

        self._spans: dict[str, list[tuple[Any, Any]]] = {"eager": [], "replayed": []}
        gc.unfreeze()  # what vLLM froze when it started is not listed
        kind = "Glm5NextForCausalLM"
        models = [thing for thing in gc.get_objects() if type(thing).__name__ == kind]
        gc.freeze()
        if len(models) != 1:
            raise RuntimeError(f"{len(models)} models of {kind} in this process")
        begun: list[Any] = []
        models[0].register_forward_pre_hook(lambda *_: begun.append(self._start(30)))
        models[0].register_forward_hook(
            lambda *_: self._spans["eager"].append((begun.pop(), self._mark()))
        )
        replay = torch.cuda.CUDAGraph.replay

        def timed(graph: Any) -> None:
            begin = self._start(0.3)
            replay(graph)
            self._spans["replayed"].append((begin, self._mark()))

        torch.cuda.CUDAGraph.replay = timed

    def _start(self, ms: float) -> Any:
        """Mark a beginning behind which the host has had time to launch everything.

        The device first spins for some milliseconds, at 2 GHz: without, a launch that
        comes late is measured too.
        """
        import torch

        torch.cuda._sleep(int(ms * 2e6))
        return self._mark()

    def _mark(self) -> Any:
        import torch

        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def take(self) -> dict[str, list[float]]:
        """Milliseconds of every forward since the last call, by how it ran."""
        import torch

        torch.cuda.synchronize()
        found = {
            how: [begin.elapsed_time(end) for begin, end in spans]
            for how, spans in self._spans.items()
        }
        for spans in self._spans.values():
            spans.clear()
        return found
