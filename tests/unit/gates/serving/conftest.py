# SPDX-License-Identifier: Apache-2.0
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from faulty_server import __file__ as FAULTY

from stackctl.gates.serving.plan import Cell, ServingPlan
from stackctl.gates.serving.unit import Target, measure

COMMAND = (sys.executable, FAULTY, "--port", "{port}", "--script")


def server_command(**script: Any) -> tuple[str, ...]:
    """Return a template that starts the faulty server with a script."""
    text = json.dumps(script).replace("{", "{{").replace("}", "}}")
    return (*COMMAND, text)


def cell(**changes: Any) -> Cell:
    """Return a small cell."""
    values = {"concurrency": 3, "context": 64, "output": 24, "requests": 9}
    return Cell(**{**values, **changes})


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., dict[str, Any]]:
    """Measure one unit against the faulty server as a process of its own."""

    def measured(
        script: dict[str, Any] | None = None,
        *,
        cells: tuple[Cell, ...] = (),
        block: int = 0,
        unit: int = 0,
        seed: int = 0,
        folder: str = "unit",
        base_url: str | None = None,
        arm: str = "",
        reference: str = "",
        **plan: Any,
    ) -> dict[str, Any]:
        settings: dict[str, Any] = {
            "cells": cells or (cell(),),
            "server": server_command(**{"gap_s": 0.01, **(script or {})}),
            "sample_milliseconds": 50,
            # Other work on the machine must not decide a test.
            "lag_milliseconds": 60_000,
            "drain_seconds": 60,
            "ready_seconds": 300,
            "warmup": 0,
            "fill_percent": 20,
        }
        return measure(
            ServingPlan(**{**settings, **plan}),
            Target(
                arm=arm,
                reference=reference,
                unit=unit,
                block=block,
                seed=seed,
                folder=tmp_path / folder,
                base_url=base_url,
            ),
        )

    return measured
