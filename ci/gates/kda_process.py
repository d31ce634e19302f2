"""The process that runs the KDA layers of two trees, as the KDA gates start it.

Nothing here imports torch or vLLM: ``kda_arms.py`` measures, in a process of its own
whose ``vllm`` is the tree under test.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import _unit

HERE = Path(__file__).resolve().parent
KDA = "vllm/models/glm5next/common/kda.py"
SWITCH = "VLLM_GLM53_KDA_GATE_SIDE_STREAM"


def turns(arms: Sequence[str], blocks: int) -> list[str]:
    """The visits of a cell: the arms backwards and forth, a number of times over.

    What stands first and last is the arm that forks, so that all visits of the others
    between two forks are neighbours: see kda_overlap_speed.py.

    Args:
        arms: The base, what does not fork, what does.
        blocks: How often each arm is visited twice.
    """
    return [*reversed(arms), *arms] * blocks


def run(
    task: _unit.Task, what: str, *arguments: str, seconds: float = 300
) -> dict[str, Any]:
    """Run ``kda_arms.py`` over the trees of the arms `base` and `on`.

    Args:
        task: The unit's task.
        what: ``speed`` or ``parity``.
        *arguments: Further arguments of ``kda_arms.py``.
        seconds: Its limit.

    Returns:
        The JSON object that it printed last.

    Raises:
        _unit.Stop: It cannot run here, or it failed.
    """
    site, base = task.sites["on"], task.trees["base"] / KDA
    if not list((site / "vllm").glob("*.so")):
        raise _unit.Stop("not-tested", "no vLLM with compiled extensions (--site)")
    for name, path in (("on", task.trees["on"] / KDA), ("base", base)):
        if not path.is_file():
            raise _unit.Stop("not-tested", f"the arm {name} has no {KDA}")
    command = [sys.executable, str(HERE / "kda_arms.py"), what, "--base-kda", str(base)]
    try:
        done = subprocess.run(
            [*command, *arguments],
            env=environment(site),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise _unit.Stop(
            "invalid", f"the layers took more than {seconds:.0f} s"
        ) from None
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode or not lines:
        sys.stderr.write(done.stderr)
        tail = "\n".join(done.stderr.splitlines()[-25:])
        raise _unit.Stop("invalid", f"the layers ended with {done.returncode}:\n{tail}")
    answer: dict[str, Any] = json.loads(lines[-1])
    if "cannot" in answer:
        raise _unit.Stop("not-tested", answer["cannot"])
    return answer


def environment(site: Path) -> dict[str, str]:
    """The environment of the measuring process: the tree in front, no switch set."""
    made = {k: v for k, v in os.environ.items() if k != SWITCH}
    rest = made.get("PYTHONPATH", "")
    made["PYTHONPATH"] = os.pathsep.join(
        part for part in (str(site), str(HERE), rest) if part
    )
    made |= {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
    made["VLLM_LOGGING_LEVEL"] = "ERROR"
    # What a cache elsewhere is for: a unit's processes compile the sources once.
    if "PYTHONPYCACHEPREFIX" not in made:
        made["PYTHONDONTWRITEBYTECODE"] = "1"
    return made
