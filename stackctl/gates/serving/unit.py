# SPDX-License-Identifier: Apache-2.0
"""One unit of a serving gate: one start of one arm's server, all its cells."""

import asyncio
import hashlib
import json
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from stackctl.errors import InputError, UsageError
from stackctl.fsutil import write_atomic
from stackctl.gates.serving.cells import Bench, BusyError
from stackctl.gates.serving.client import (
    Limits,
    check_base_url,
    connect,
    need_http,
    served_model,
)
from stackctl.gates.serving.engagement import Watch, looked_for
from stackctl.gates.serving.metrics import Metrics
from stackctl.gates.serving.plan import ServerPlan, ServingPlan
from stackctl.gates.serving.server import Server, ready, started
from stackctl.progress import SILENT, Progress


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Where a unit's answers come from.

    Attributes:
        base_url: Address of a running server up to and with `/v1`; None to start one.
        served_model: Its name for the model; None to ask the server.
        values: Values of the placeholders of the server command.
        arm: Name of the arm.
        reference: Name of the arm that others are compared with; empty for none.
        unit: Number of the unit in the schedule.
        block: Block of the schedule: arms of one block get the same prompts.
        seed: Seed of the schedule: another one in every run, unless the user names it.
        folder: Where the server's output and the raw samples go.
    """

    base_url: str | None = None
    served_model: str | None = None
    values: Mapping[str, str | None] = field(default_factory=dict)
    arm: str = ""
    reference: str = ""
    unit: int = 0
    block: int = 0
    seed: int = 0
    folder: Path = field(default_factory=Path)


def root_of(base_url: str) -> str:
    """Return the server's root for a base URL, where its metrics are."""
    parts = urlsplit(base_url)
    return f"{parts.scheme}://{parts.netloc}"


def stop(verdict: str, reason: str) -> dict[str, Any]:
    """Return the answer of a unit that could not or may not measure."""
    return {"schema": 1, "stop": {"verdict": verdict, "reason": reason}}


def unanswered(
    error: InputError, server: Server | None, progress: Progress
) -> dict[str, Any]:
    """Return the answer of a unit whose server did not come up, or went away.

    Args:
        error: What was noticed first.
        server: The server where it was started: that it ended says more.
        progress: Told what to do.
    """
    ended = None
    if error.kind != "server-ended" and server is not None:
        ended = server.ended("while it was asked")
    if ended is None and error.hint:
        progress.note(error.hint)
    return stop("invalid", ended or error.message)


def watch(plan: ServerPlan, target: Target, base_url: str) -> Watch:
    """Return what looks for the signs of an arm's features.

    Args:
        plan: The gate's plan.
        target: The unit: its arm, and which one is the reference.
        base_url: Address of the server.
    """
    signs = looked_for(plan.engagement, target.arm, target.reference or None)
    url = root_of(base_url) + plan.metrics_path
    return Watch(signs, target.arm == target.reference, url)


def with_engagement(
    answer: dict[str, Any], watched: Watch, target: Target, server: Server | None
) -> dict[str, Any]:
    """Return an answer with what the server showed of its features.

    Args:
        answer: The unit's answer; one without samples stays as it is.
        watched: What looked for it.
        target: The unit.
        server: The server, which has ended; None where the gate did not start it.
    """
    if "samples" not in answer:
        return answer
    found = watched.told(target.arm, None if server is None else server.log)
    return {**answer, "engagement": found} if found else answer


def open_server(
    stack: ExitStack, server: tuple[str, ...], target: Target
) -> tuple[str, Server | None]:
    """Return the base URL of the server to ask, and the server if it was started.

    Args:
        stack: Ends the server.
        server: Command template, empty where none is to be started.
        target: What the caller gave.

    Raises:
        UsageError: Neither a command nor a URL, or a bad one.
    """
    if target.base_url is not None:
        return check_base_url(target.base_url), None
    if not server:
        raise UsageError(
            "the gate starts no server itself",
            hint="name a running one with --base-url, or give the gate a `server` "
            "command",
        )
    process = stack.enter_context(started(server, target.values, target.folder))
    return f"http://127.0.0.1:{process.port}/v1", process


def measure(
    plan: ServingPlan, target: Target, progress: Progress = SILENT
) -> dict[str, Any]:
    """Measure one start of one arm.

    Args:
        plan: The gate's plan.
        target: Where the answers come from.
        progress: Told which cell is measured.

    Returns:
        The unit's answer: samples per cell, or why there are none.

    Raises:
        UsageError: A package, option or placeholder is missing.
    """
    need_http()
    target.folder.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        base_url, server = open_server(stack, plan.server, target)
        watched = watch(plan, target, base_url)
        try:
            answer = asyncio.run(
                _measure(plan, target, base_url, server, watched, progress)
            )
        except BusyError as error:
            ended = server and server.ended("before a cell")
            return stop("invalid", ended or f"busy server: {error}")
        except InputError as error:
            # A server that does not come up says nothing about its speed.
            return unanswered(error, server, progress)
    return with_engagement(answer, watched, target, server)


async def _measure(
    plan: ServingPlan,
    target: Target,
    base_url: str,
    server: Server | None,
    watched: Watch,
    progress: Progress,
) -> dict[str, Any]:
    limits = Limits(first_token_s=plan.first_token_seconds)
    root = root_of(base_url)
    # A server that was not started for this unit may still hold the prompts of other
    # units, and of earlier runs, in its prefix cache.
    again = () if server is not None else ("run", target.seed, target.unit)
    key = (plan.seed, "block", target.block, *again)
    cells: dict[str, Any] = {}
    raw: dict[str, str] = {}
    async with connect(base_url, limits) as client:
        await ready(client, root + plan.ready_path, plan.ready_seconds, server)
        model = target.served_model or await served_model(client, limits)
        metrics = None
        if plan.metrics != "none":
            metrics = Metrics(client, root + plan.metrics_path, plan.metrics)
            if await metrics.scrape() is None:
                return stop(
                    "invalid",
                    f"the server has no {plan.metrics} metrics; set `metrics`",
                )
        await watched.begin(client)
        for n, cell in enumerate(plan.cells):
            progress.update(f"cell {cell.name}", n, len(plan.cells))
            bench = Bench(client, plan, model, metrics, key)
            await bench.rest()
            measured = await bench.measure(cell)
            cells[cell.name] = measured.samples
            raw[cell.name] = keep(target.folder, cell.name, measured.raw)
            faults = measured.samples["errors"] or measured.samples["problems"]
            ended = None
            if server is not None and (faults or server.exited is not None):
                ended = server.ended(f"during cell {cell.name}")
            if ended is not None:
                return stop("invalid", ended)
        await watched.end(client)
    return {
        "schema": 1,
        "samples": {"cells": cells},
        "notes": notes(cells),
        "extra": {
            "raw": {name: {"sha256": found} for name, found in raw.items()},
            "prompts": "fresh" if again else "same",
        },
    }


def notes(cells: Mapping[str, Any]) -> list[str]:
    """Return what a person should know about a unit's cells, one line a problem."""
    return [
        f"{name}: {problem['code']}: {problem['text']}"
        for name, cell in cells.items()
        for problem in cell["problems"]
    ]


def keep(folder: Path, name: str, raw: list[dict[str, Any]]) -> str:
    """Write a cell's raw samples and return their SHA-256.

    Args:
        folder: Where to.
        name: The cell.
        raw: One entry per request.
    """
    lines = [json.dumps(entry, sort_keys=True, separators=(",", ":")) for entry in raw]
    data = "".join(line + "\n" for line in lines).encode()
    write_atomic(folder / f"raw-{name.replace('/', '-')}.jsonl", data)
    return hashlib.sha256(data).hexdigest()
