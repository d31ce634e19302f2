# SPDX-License-Identifier: Apache-2.0
"""One unit of an accuracy gate: all prompts, asked of one arm once."""

import asyncio
import hashlib
import json
from collections.abc import Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Final

from stackctl.errors import InputError
from stackctl.fsutil import write_atomic
from stackctl.gates.accuracy.items import Item, digest, make_items
from stackctl.gates.accuracy.plan import AccuracyPlan
from stackctl.gates.accuracy.score import broken, score
from stackctl.gates.serving.client import (
    Answer,
    Limits,
    Request,
    ask,
    connect,
    need_http,
    served_model,
)
from stackctl.gates.serving.engagement import Watch
from stackctl.gates.serving.server import Server, ready
from stackctl.gates.serving.unit import (
    Target,
    open_server,
    root_of,
    stop,
    unanswered,
    watch,
    with_engagement,
)
from stackctl.progress import SILENT, Progress

if TYPE_CHECKING:
    import httpx

AGAIN: Final = ("connect", "http-429", "http-502", "http-503", "http-504")
"""Problems after which an item may be asked again: no model has seen it."""


def prompts(plan: AccuracyPlan) -> dict[str, list[Item]]:
    """Make the prompts of a gate.

    Returns:
        The items by set.

    Raises:
        InputError: A set has another digest than the gate says.
    """
    made = {}
    for wanted in plan.sets:
        items = make_items(
            wanted.kind,
            seed=plan.seed,
            items=wanted.items,
            characters=round(wanted.tokens * plan.characters_per_token),
            near=wanted.near,
        )
        if wanted.sha256 is not None and (found := digest(items)) != wanted.sha256:
            raise InputError(
                f"the prompts of the set {wanted.kind} have the digest {found}, the "
                f"gate says {wanted.sha256}",
                kind="changed-prompts",
                hint="a changed size, seed or generator needs the new digest in the "
                "gate, and makes receipts stale",
            )
        made[wanted.kind] = items
    return made


def measure(
    plan: AccuracyPlan, target: Target, progress: Progress = SILENT
) -> dict[str, Any]:
    """Ask one arm all prompts and score its answers.

    Args:
        plan: The gate's plan.
        target: Where the answers come from.
        progress: Told how many are done.

    Returns:
        The unit's answer: one result per item, or why there are none.

    Raises:
        UsageError: A package, option or placeholder is missing.
        InputError: The prompts are not those that the gate names.
    """
    need_http()
    sets = prompts(plan)
    target.folder.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        base_url, server = open_server(stack, plan.server, target)
        watched = watch(plan, target, base_url)
        try:
            answer = asyncio.run(
                _measure(plan, target, base_url, server, sets, watched, progress)
            )
        except InputError as error:
            # A server that does not come up says nothing about its answers.
            return unanswered(error, server, progress)
    return with_engagement(answer, watched, target, server)


async def _measure(
    plan: AccuracyPlan,
    target: Target,
    base_url: str,
    server: Server | None,
    sets: dict[str, list[Item]],
    watched: Watch,
    progress: Progress,
) -> dict[str, Any]:
    limits = Limits(
        first_token_s=plan.first_token_seconds,
        stall_s=plan.stall_seconds,
        total_s=plan.request_seconds,
    )
    items = [item for made in sets.values() for item in made]
    async with connect(base_url, limits) as client:
        await ready(
            client, root_of(base_url) + plan.ready_path, plan.ready_seconds, server
        )
        model = target.served_model or await served_model(client, limits)
        await watched.begin(client)
        answers = await _ask_all(client, server, plan, model, items, limits, progress)
        await watched.end(client)
    digests = {name: digest(made) for name, made in sets.items()}
    bad = [
        f"{item.id}: {reason}"
        for item, (answer, _) in zip(items, answers, strict=True)
        if (reason := broken(answer)) is not None
    ]
    keep = [
        json.dumps(
            {
                "id": item.id,
                "content": answer.content,
                "reasoning": answer.reasoning,
                "finish": answer.finish,
                "usage": answer.usage,
                "problems": [problem.document() for problem in answer.problems],
            },
            sort_keys=True,
        )
        for item, (answer, _) in zip(items, answers, strict=True)
    ]
    data = "".join(line + "\n" for line in keep).encode()
    write_atomic(target.folder / "answers.jsonl", data)
    if bad:
        ended = server and server.ended("while it was asked")
        missing = f"nobody answered {len(bad)} of {len(items)} items: {bad[0]}"
        return stop("invalid", ended or missing)
    results = [
        _result(item, answer, plan.max_tokens)
        for item, (answer, _) in zip(items, answers, strict=True)
    ]
    again = sum(tries for _, tries in answers)
    return {
        "schema": 1,
        "inputs": hashlib.sha256(
            json.dumps(digests, sort_keys=True).encode()
        ).hexdigest(),
        "samples": {"items": results},
        "notes": [f"{again} items were asked again"] if again else [],
        "extra": {
            "prompts": {name: {"sha256": found} for name, found in digests.items()},
            "counts": _counts(results),
            "answers": {"sha256": hashlib.sha256(data).hexdigest()},
        },
    }


async def _ask_all(
    client: "httpx.AsyncClient",
    server: Server | None,
    plan: AccuracyPlan,
    model: str,
    items: Sequence[Item],
    limits: Limits,
    progress: Progress,
) -> list[tuple[Answer, int]]:
    """Return each item's answer, and how often it was asked again."""
    slots = asyncio.Semaphore(plan.concurrency)
    done = 0

    async def one(item: Item) -> tuple[Answer, int]:
        nonlocal done
        request = Request(
            api=plan.api,
            model=model,
            prompt=item.prompt,
            max_tokens=plan.max_tokens,
            body={"temperature": plan.temperature, **plan.body},
            # What the answer counts is its text; a wrong usage is a serving gate's.
            check_usage=False,
        )
        async with slots:
            for tries in range(plan.retries + 1):
                answer = await ask(client, request, limits)
                codes = [problem.code for problem in answer.problems]
                if not any(code in AGAIN for code in codes) or answer.chunk_ns:
                    break
                if server is not None and server.exited is not None:
                    break  # nobody will answer any more
                if tries < plan.retries:
                    await asyncio.sleep(min(2.0**tries, 30.0))
            done += 1
            progress.update("item", done - 1, len(items))
        return answer, tries

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(one(item)) for item in items]
    return [task.result() for task in tasks]


def _result(item: Item, answer: Answer, most: int) -> dict[str, Any]:
    found = score(item, answer, most)
    text = json.dumps([answer.content, answer.reasoning, answer.finish])
    return {
        "id": item.id,
        "set": item.set,
        "result": found.result,
        "detail": found.detail,
        "tokens": answer.completion_tokens,
        "digest": hashlib.sha256(text.encode()).hexdigest(),
    }


def _counts(results: Sequence[dict[str, Any]]) -> dict[str, dict[str, int]]:
    """Return how often each result came, by set."""
    counts: dict[str, dict[str, int]] = {}
    for result in results:
        found = counts.setdefault(result["set"], {})
        found[result["result"]] = found.get(result["result"], 0) + 1
    return counts
