# SPDX-License-Identifier: Apache-2.0
"""Measures cells: a closed loop of so many requests at a time over one server."""

import asyncio
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from stackctl.gates.serving.client import Answer, Limits, Problem, Request, ask
from stackctl.gates.serving.metrics import Metrics, Scrape, rate
from stackctl.gates.serving.plan import Cell, ServingPlan
from stackctl.gates.serving.prompts import text_prompt, token_prompt

if TYPE_CHECKING:
    import httpx

SLACK_NS: Final = 1_000_000_000
"""How long a server may take to count a request out after its last event."""

PROBES: Final = 5
"""Short requests of one probe; the median time to the first token counts."""


class BusyError(Exception):
    """The server works for somebody else, or does not come to rest."""


@dataclass(slots=True)
class Load:
    """What is at work at a moment, and has been.

    Attributes:
        changes: (monotonic ns, requests sent and open, requests past their first token)
            after every change.
    """

    open: int = 0
    active: int = 0
    changes: list[tuple[int, int, int]] = field(default_factory=list)

    def change(self, opened: int, active: int) -> None:
        """Take note of requests that came or went."""
        self.open += opened
        self.active += active
        self.changes.append((time.monotonic_ns(), self.open, self.active))

    def most_open(self, start: int, end: int) -> int:
        """Return the most requests that were open at once in a time."""
        most = 0
        for n, (at, opened, _) in enumerate(self.changes):
            later = n + 1 < len(self.changes)
            until = self.changes[n + 1][0] if later else end
            if at <= end and until >= start:
                most = max(most, opened)
        return most

    def mean_active(self, start: int, end: int) -> float:
        """Return the average number of requests past their first token in a time."""
        total = 0
        for n, (at, _, active) in enumerate(self.changes):
            later = n + 1 < len(self.changes)
            until = self.changes[n + 1][0] if later else end
            total += active * max(min(until, end) - max(at, start), 0)
        return total / (end - start) if end > start else 0.0

    def first_active(self, count: int) -> int | None:
        """Return when `count` requests were past their first token at once."""
        return next((at for at, _, active in self.changes if active >= count), None)


@dataclass(slots=True)
class Measured:
    """A cell's samples and what is kept beside them.

    Attributes:
        samples: What the decision reads, as JSON.
        raw: One entry per request, with all times.
    """

    samples: dict[str, Any]
    raw: list[dict[str, Any]]


class Bench:
    """Measures the cells of one start of one arm.

    Args:
        client: Connections to the server.
        plan: The gate's plan.
        model: Served name.
        metrics: The server's metrics, None where it has none.
        key: What tells this start's prompts from others: seed and block.
    """

    def __init__(
        self,
        client: "httpx.AsyncClient",
        plan: ServingPlan,
        model: str,
        metrics: Metrics | None,
        key: Sequence[str | int],
    ) -> None:
        self._client = client
        self._plan = plan
        self._model = model
        self._metrics = metrics
        self._key = tuple(key)
        self._fastest_probe: float | None = None
        self._limits = Limits(
            first_token_s=plan.first_token_seconds,
            stall_s=plan.stall_seconds,
            total_s=plan.request_seconds,
        )

    def request(
        self, cell: Cell, *key: str | int, output: int | None = None
    ) -> Request:
        """Return a request of a cell with a fresh prompt."""
        plan = self._plan
        whole = (*self._key, cell.name, *key)
        prompt: str | list[int]
        if plan.prompt == "token-ids":
            assert plan.vocabulary is not None  # the plan was checked
            prompt = token_prompt(whole, cell.context, plan.vocabulary)
        else:
            characters = max(round(cell.context * plan.characters_per_token), 1)
            prompt = text_prompt(whole, characters)
        body: dict[str, Any] = {"temperature": plan.temperature}
        if plan.exact_length:
            body["ignore_eos"] = True
        return Request(
            api=plan.api,
            model=self._model,
            prompt=prompt,
            max_tokens=cell.output if output is None else output,
            body=body | plan.body,
            count=plan.count,
            exact_length=plan.exact_length,
            check_loops=plan.loops == "refuse",
        )

    async def rest(self) -> None:
        """Wait until the server is empty.

        Raises:
            BusyError: It does not come to rest: somebody else uses it.
        """
        if self._metrics is None:
            await self._probe()
            return
        loop = asyncio.get_running_loop()
        end = loop.time() + self._plan.drain_seconds
        while True:
            scrape = await self._metrics.scrape()
            if scrape is None:
                raise BusyError("the server's metrics cannot be read")
            if scrape.busy == 0:
                return
            if loop.time() >= end:
                raise BusyError(
                    f"the server still works on {scrape.busy:g} requests that are not "
                    f"ours after {self._plan.drain_seconds} s"
                )
            await asyncio.sleep(min(self._plan.sample_milliseconds / 1000, 1.0))

    async def _probe(self) -> None:
        """Judge by its speed whether a server without metrics is idle."""
        # Some servers send no text with the last token, so one token would not do.
        probe = Cell(concurrency=1, context=16, output=8, requests=1)
        times = []
        for n in range(PROBES):
            # The clock makes it a prompt that no probe had before.
            request = self.request(probe, "probe", n, time.monotonic_ns())
            answer = await ask(self._client, request, self._limits)
            if answer.ttft_ns is None:
                raise BusyError("a probe of the server got no answer")
            times.append(answer.ttft_ns / 1e9)
        found = statistics.median(times)
        fastest = min(times)
        if self._fastest_probe is not None:
            fastest = min(fastest, self._fastest_probe)
        self._fastest_probe = fastest
        # Below 50 ms, a probe is as much about this machine as about the server.
        if found > max(fastest * self._plan.probe_factor, 0.05):
            raise BusyError(
                f"a probe took {found:.3f} s, {found / fastest:.1f} times the fastest: "
                "something else is using the server"
            )

    async def measure(self, cell: Cell) -> Measured:
        """Warm up, drain, and measure a cell.

        Raises:
            BusyError: The server is used by somebody else.
        """
        warm = [
            self.request(cell, "warm-up", n)
            for n in range(self._plan.warmup * cell.concurrency)
        ]
        if warm:
            await self._loop(warm, cell, Load(), None)
        # All prompts before the first is sent: making them takes this process's time.
        count = cell.most if cell.requests else min(cell.most, 64 * cell.concurrency)
        requests = [self.request(cell, n) for n in range(count)]
        await self.rest()
        load = Load()
        watch = _Watch(self._metrics, self._plan.sample_milliseconds, load)
        lags: list[int] = []
        async with asyncio.TaskGroup() as group:
            beside = [group.create_task(_lag(lags)), group.create_task(watch.run())]
            try:
                answers, full_until = await self._loop(requests, cell, load, watch)
            finally:
                for task in beside:
                    task.cancel()
        await watch.end()
        problems = []
        try:
            last = await self._after()
        except BusyError as error:
            last = None
            problems.append(Problem("not-drained", str(error)))
        report = _Report(
            self._plan, cell, answers, load, watch, full_until, last, problems
        )
        return report.build(_percentile(lags, 0.99))

    async def _after(self) -> Scrape | None:
        """Return the metrics of the drained server."""
        if self._metrics is None:
            await self._probe()
            return None
        await self.rest()
        return await self._metrics.scrape()

    async def _loop(
        self,
        requests: Sequence[Request],
        cell: Cell,
        load: Load,
        watch: "_Watch | None",
    ) -> tuple[list[Answer], int]:
        """Keep `concurrency` requests open until none is left to send.

        Returns:
            The answers in the order of the requests, and until when the loop was full.
        """
        answers: dict[int, Answer] = {}
        queue = iter(enumerate(requests))
        full_until = 0
        timed = watch is not None and cell.seconds is not None
        end = time.monotonic_ns() + (cell.seconds or 0) * 1_000_000_000

        async def worker() -> None:
            nonlocal full_until
            while not (timed and time.monotonic_ns() >= end):
                index, request = next(queue, (None, None))
                if index is None or request is None:
                    break
                answers[index] = await self._one(request, load, watch, cell)
            # The first worker without work ends the time in which the loop is full.
            if not full_until:
                full_until = time.monotonic_ns()
                if watch is not None:
                    await watch.look()

        async with asyncio.TaskGroup() as group:
            for _ in range(cell.concurrency):
                group.create_task(worker())
        return [answers[index] for index in sorted(answers)], full_until

    async def _one(
        self, request: Request, load: Load, watch: "_Watch | None", cell: Cell
    ) -> Answer:
        started = False

        def on_token() -> None:
            nonlocal started
            if started:
                return
            started = True
            load.change(0, 1)
            if watch is not None and load.active == cell.concurrency:
                watch.full()

        load.change(1, 0)
        try:
            return await ask(self._client, request, self._limits, on_token=on_token)
        finally:
            load.change(-1, -1 if started else 0)


async def _lag(found: list[int]) -> None:
    """Record how late this process's own event loop is, until cancelled."""
    while True:
        before = time.monotonic_ns()
        await asyncio.sleep(0.05)
        found.append(time.monotonic_ns() - before - 50_000_000)


def _percentile(values: Sequence[int], share: float) -> int | None:
    ordered = sorted(values)
    return (
        ordered[min(int(share * len(ordered)), len(ordered) - 1)] if ordered else None
    )


class _Watch:
    """Looks at the server's metrics while a cell is measured."""

    def __init__(self, metrics: Metrics | None, milliseconds: int, load: Load) -> None:
        self.scrapes: list[tuple[Scrape, int]] = []
        self._metrics = metrics
        self._pause = milliseconds / 1000
        self._load = load
        self._full: asyncio.Task[None] | None = None

    def full(self) -> None:
        """Look as soon as the cell is full: here its rates begin."""
        if self._full is None and self._metrics is not None:
            self._full = asyncio.create_task(self.look())

    async def look(self) -> None:
        """Look once, and record the most that we had open meanwhile."""
        if self._metrics is None:
            return
        start = time.monotonic_ns() - SLACK_NS
        scrape = await self._metrics.scrape()
        if scrape is not None:
            self.scrapes.append((scrape, self._load.most_open(start, scrape.at_ns)))

    async def end(self) -> None:
        """Wait for a look that is still under way."""
        if self._full is not None:
            await self._full

    async def run(self) -> None:
        """Look again and again, until cancelled."""
        while True:
            await self.look()
            await asyncio.sleep(self._pause)


@dataclass(slots=True)
class _Report:
    """Turns what was seen of a cell into its samples."""

    plan: ServingPlan
    cell: Cell
    answers: list[Answer]
    load: Load
    watch: _Watch
    full_until: int
    last: Scrape | None
    problems: list[Problem] = field(default_factory=list)

    def build(self, lag: int | None) -> Measured:
        """Return the samples and the raw data."""
        good = [answer for answer in self.answers if not answer.problems]
        full_from = self.load.first_active(self.cell.concurrency)
        scrapes = [scrape for scrape, _ in self.watch.scrapes]
        inside = [
            scrape
            for scrape in scrapes
            if full_from is not None
            and full_from <= scrape.asked_ns
            and scrape.asked_ns <= self.full_until + SLACK_NS
        ]
        self._errors()
        fill = self._filled(full_from, inside)
        self._foreign()
        self._prompts(good)
        if lag is not None and lag > self.plan.lag_milliseconds * 1_000_000:
            self._problem(
                "client-saturated",
                f"this process was up to {lag / 1e6:.0f} ms late itself",
            )
        span = (self.full_until - full_from) / 1e9 if full_from is not None else 0.0
        tokens = self._tokens_between(good, full_from, self.full_until)
        rates = {
            name: rate(inside[0], inside[-1], name) if len(inside) > 1 else None
            for name in ("steps", "drafts")
        }
        samples = {
            "requests": len(self.answers),
            "tokens_per_s": tokens / span if span > 0 else None,
            "steps_per_s": rates["steps"],
            "drafts_per_s": rates["drafts"],
            "ttft_ns": [answer.ttft_ns for answer in good],
            "itl_ns": [itl for a in good if (itl := _itl(a)) is not None],
            "prompt_tokens": sum(answer.prompt_tokens or 0 for answer in good),
            "completion_tokens": sum(answer.completion_tokens or 0 for answer in good),
            "cached_tokens": sum(answer.cached_tokens for answer in good),
            "full_ns": round(span * 1e9),
            "fill": fill,
            "client_lag_ns": lag,
            "underfilled": any(p.code == "underfilled" for p in self.problems),
            "errors": [p.document() for a in self.answers for p in a.problems],
            "problems": [problem.document() for problem in self.problems],
        }
        return Measured(samples, self._raw())

    def _problem(self, code: str, text: str) -> None:
        self.problems.append(Problem(code, text))

    def _errors(self) -> None:
        bad = [answer for answer in self.answers if answer.problems]
        codes: dict[str, list[str]] = {}
        for answer in bad:
            for problem in answer.problems:
                codes.setdefault(problem.code, []).append(problem.text)
        for code, texts in sorted(codes.items()):
            self._problem(
                code, f"{len(texts)} of {len(self.answers)} requests: {texts[0]}"
            )
        if not self.answers:
            self._problem("empty", "no request was sent")

    def _filled(self, full_from: int | None, inside: Sequence[Scrape]) -> float | None:
        """Return the average share of the concurrency at work; judge it."""
        wanted = self.cell.concurrency
        if full_from is None or full_from >= self.full_until:
            most = max((active for _, _, active in self.load.changes), default=0)
            self._problem(
                "underfilled",
                f"at most {most} of {wanted} requests were answered at a time"
                if most < wanted
                else f"all {wanted} requests were answered at a time only for a moment",
            )
            return None
        running = [s.values["running"] for s in inside[:-1] or inside]
        # The first requests' prefill is over; the server's own count knows best.
        mean = (
            statistics.fmean(running)
            if running
            else self.load.mean_active(full_from, self.full_until)
        )
        if mean < wanted * self.plan.fill_percent / 100:
            self._problem(
                "underfilled",
                f"on average {mean:.1f} of {wanted} requests were at work; at least "
                f"{self.plan.fill_percent} % are needed",
            )
        return mean / wanted

    def _foreign(self) -> None:
        """Judge whether somebody else used the server meanwhile."""
        scrapes = self.watch.scrapes
        if self.plan.metrics == "none":
            return
        if any(problem.code == "not-drained" for problem in self.problems):
            return
        if not scrapes or self.last is None:
            self._problem("no-metrics", "the server's metrics could not be read")
            return
        over = max(scrape.busy - own for scrape, own in scrapes)
        if over > 0:
            self._problem(
                "foreign-requests",
                f"the server had {over:g} requests more than we had sent",
            )
        first = scrapes[0][0].values
        finished = self.last.values.get("finished", 0) - first.get("finished", 0)
        if finished > len(self.answers):
            self._problem(
                "foreign-requests",
                f"the server finished {finished:g} requests, {len(self.answers)} of "
                "them ours",
            )
        if any(answer.problems for answer in self.answers):
            return  # the server counts tokens that we did not wait for
        for name in ("generation_tokens", "prompt_tokens"):
            usage = {
                "generation_tokens": [a.completion_tokens for a in self.answers],
                "prompt_tokens": [a.prompt_tokens for a in self.answers],
            }[name]
            if name not in first or name not in self.last.values:
                continue
            grown = self.last.values[name] - first[name]
            ours = sum(count or 0 for count in usage)
            # Cached prompt tokens are counted differently by different servers.
            if grown > ours if name == "prompt_tokens" else grown != ours:
                self._problem(
                    "usage-wrong",
                    f"the server's counter of {name.replace('_', ' ')} grew by "
                    f"{grown:g}, its answers count {ours}",
                )

    def _prompts(self, good: Sequence[Answer]) -> None:
        if not good:
            return
        counts = [answer.prompt_tokens or 0 for answer in good]
        wanted = self.cell.context
        off = max(abs(count - wanted) for count in counts)
        if off * 100 > wanted * self.plan.context_percent:
            self._problem(
                "context-off",
                f"prompts had {min(counts)} to {max(counts)} tokens, not {wanted}; set "
                "`characters_per_token`",
            )
        cached = sum(answer.cached_tokens for answer in good)
        scrapes = [scrape for scrape, _ in self.watch.scrapes]
        if scrapes and self.last is not None:
            first = scrapes[0].values
            hits = self.last.values.get("prefix_hits", 0) - first.get("prefix_hits", 0)
            cached = max(cached, round(hits))
        if cached * 100 > sum(counts) * self.plan.cached_percent:
            self._problem(
                "prefix-cached",
                f"{cached} of {sum(counts)} prompt tokens came from the prefix cache",
            )

    def _tokens_between(
        self, good: Sequence[Answer], start: int | None, end: int
    ) -> float:
        """Return the tokens that were streamed in a time."""
        if start is None:
            return 0.0
        total = 0.0
        for answer in good:
            inside = sum(start < at <= end for at in answer.chunk_ns)
            # With speculation, one chunk holds several tokens.
            total += inside * (answer.completion_tokens or 0) / len(answer.chunk_ns)
        return total

    def _raw(self) -> list[dict[str, Any]]:
        return [
            {
                "request": n,
                "sent_ns": answer.sent_ns - self.answers[0].sent_ns,
                "end_ns": answer.end_ns - answer.sent_ns,
                "chunk_ns": [at - answer.sent_ns for at in answer.chunk_ns],
                "finish": answer.finish,
                "usage": {
                    "prompt_tokens": answer.prompt_tokens,
                    "completion_tokens": answer.completion_tokens,
                    "cached_tokens": answer.cached_tokens,
                },
                "counted": answer.counted,
                "problems": [problem.document() for problem in answer.problems],
            }
            for n, answer in enumerate(self.answers)
        ]


def _itl(answer: Answer) -> int | None:
    """Return the mean nanoseconds between an answer's tokens, None for one token."""
    tokens = answer.completion_tokens or 0
    if tokens < 2 or len(answer.chunk_ns) < 2:
        return None
    return round((answer.chunk_ns[-1] - answer.chunk_ns[0]) / (tokens - 1))
