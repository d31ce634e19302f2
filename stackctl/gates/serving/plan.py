# SPDX-License-Identifier: Apache-2.0
"""The `[serving]` table of a gate: which server, which cells, which limits."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from stackctl.gates.serving.metrics import NAMES
from stackctl.model.fields import (
    NAME,
    At,
    Choice,
    Flag,
    FreeTable,
    Integer,
    Many,
    Names,
    Number,
    Record,
    Text,
    Value,
    key,
)

DAY: Final = 86_400

PLACEHOLDERS: Final = ("tree", "python", "model", "port", "project")
"""What a server command may name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One load: so many requests at a time, of such a context.

    Attributes:
        concurrency: Requests that are open at any time.
        context: Tokens of a prompt.
        output: Tokens of an answer.
        requests: Requests that are sent; None where time decides.
        seconds: Seconds in which requests are sent; None where their number decides.
    """

    concurrency: int = field(
        metadata=key(
            Integer(1, 4096), "Requests that are open at any time.", example="8"
        )
    )
    context: int = field(
        metadata=key(Integer(1, 2_000_000), "Tokens of a prompt.", example="4096")
    )
    output: int = field(
        metadata=key(Integer(1, 1_000_000), "Tokens of an answer.", example="256")
    )
    requests: int | None = field(
        default=None,
        metadata=key(
            Integer(1, 100_000),
            "Requests that are sent, at least `concurrency`.",
            example="32",
        ),
    )
    seconds: int | None = field(
        default=None,
        metadata=key(
            Integer(1, 3600),
            "Seconds in which requests are sent, in place of `requests`.",
            example="30",
        ),
    )

    @property
    def name(self) -> str:
        """Name of the cell in samples and claims, like `c8/ctx4096`."""
        return f"c{self.concurrency}/ctx{self.context}"

    @property
    def most(self) -> int:
        """Most requests that the cell may send."""
        # With time, more prompts than a fast server can take in it.
        return self.requests or 4096


def _check_cell(values: dict[str, Any], table: Mapping[str, Any], at: At) -> None:
    if ("requests" in table) == ("seconds" in table):
        at.problem(f"{at} needs exactly one of `requests`, `seconds`")
    requests, concurrency = values.get("requests"), values.get("concurrency")
    if requests and concurrency and requests < concurrency:
        (at / "requests").problem(
            f"`requests` in {at} is {requests}, less than the concurrency "
            f"{concurrency}: the cell could never be full"
        )


SHORTEST: Final = 8
"""Fewest characters of a line, beside `*`, by which a feature is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sign:
    """What an arm's server shows once a feature is at work; each field says how.

    In the reference arm the same is looked for, and must not be there.
    """

    arm: str = field(
        metadata=key(
            NAME,
            "The arm that has the feature; `[rule] engaged` names it too.",
            example='"on"',
        )
    )
    feature: str = field(
        metadata=key(
            NAME,
            "What is shown to be on: the name of a set, or of a switch.",
            example='"kda-overlap"',
        )
    )
    log: str | None = field(
        default=None,
        metadata=key(
            Text("a text of one line", r"[^\x00-\x1f\x7f]+"),
            "A part of a line that a server which the gate started writes; `*` stands "
            "for anything within the line. One such line is enough.",
            example='"prefetch on *: * layers"',
        ),
    )
    metric: str | None = field(
        default=None,
        metadata=key(
            Text("a name of a Prometheus metric", r"[A-Za-z_:][A-Za-z0-9_:]*"),
            "In place of `log`: a metric of the server, by the exact name of its "
            "samples, that must grow between the first request and the last.",
            example='"vllm:spec_decode_num_drafts_total"',
        ),
    )
    labels: Mapping[str, str] = field(
        default_factory=dict,
        metadata=key(
            Names(Value(), Text("a name of a label", r"[A-Za-z_][A-Za-z0-9_]*")),
            "Labels that the metric's samples must have; those that have them are "
            "added up.",
            example='{ engine = "0" }',
        ),
    )


def _check_sign(values: dict[str, Any], table: Mapping[str, Any], at: At) -> None:
    if ("log" in table) == ("metric" in table):
        at.problem(f"{at} needs exactly one of `log`, `metric`")
    if "labels" in table and "metric" not in table:
        (at / "labels").problem(f"`labels` in {at} goes with `metric`")
    log = values.get("log")
    if log is not None and len(log.replace("*", "")) < SHORTEST:
        (at / "log").problem(
            f"{at / 'log'} has fewer than {SHORTEST} characters beside `*`: too many "
            "lines have them"
        )


def _limit(seconds: int, doc: str) -> Any:
    return field(
        default=seconds, metadata=key(Integer(1, DAY), doc, example=str(seconds))
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerPlan:
    """What serving and accuracy gates say alike: the server, and how it is asked.

    The attributes are keys of the table; each field says what it is for.
    """

    server: tuple[str, ...] = field(
        default=(),
        metadata=key(
            Many(Text("an argument"), unique=None),
            "Command that starts an arm's server, with `{tree}`, `{python}`, "
            "`{model}`, `{project}` and `{port}`; without it, `--base-url` names a "
            "running one.",
            example='["{python}", "-m", "vllm.entrypoints.openai.api_server", '
            '"--model", "{model}", "--port", "{port}"]',
        ),
    )
    api: str = field(
        default="completions",
        metadata=key(
            Choice("completions", "chat"), "Which endpoint is asked.", example='"chat"'
        ),
    )
    ready_path: str = field(
        default="/v1/models",
        metadata=key(
            Text("a path that starts with `/`", r"/[^\s?#]*"),
            "What answers 200 once the server is ready.",
            example='"/health"',
        ),
    )
    ready_seconds: int = _limit(900, "Seconds until a started server must be ready.")
    first_token_seconds: int = _limit(300, "Seconds until an answer's first token.")
    stall_seconds: int = _limit(60, "Seconds without a token that are a stall.")
    request_seconds: int = _limit(900, "Seconds of a whole request.")
    characters_per_token: float = field(
        default=4.0,
        metadata=key(
            Number(0.1, 100),
            "Characters of a text prompt per token of context.",
            example="3.2",
        ),
    )
    temperature: float = field(
        default=0.0,
        metadata=key(Number(0, 10), "Sampling temperature.", example="1.0"),
    )
    seed: int = field(
        default=0,
        metadata=key(Integer(0, 2**31), "Seed of the prompts.", example="0"),
    )
    body: dict[str, Any] = field(
        default_factory=dict,
        metadata=key(
            FreeTable(), "Further keys of every request.", example="{ top_k = 1 }"
        ),
    )
    metrics_path: str = field(
        default="/metrics",
        metadata=key(
            Text("a path that starts with `/`", r"/[^\s?#]*"),
            "Where the metrics are, from the server's root.",
            example='"/metrics"',
        ),
    )
    engagement: tuple[Sign, ...] = field(
        default=(),
        metadata=key(
            Many(Record(Sign, _check_sign)),
            "What shows that the features of an arm were at work.",
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingPlan(ServerPlan):
    """How a serving gate measures one start of one arm.

    The attributes are the keys of the `[serving]` table; each field says what it is
    for.
    """

    cells: tuple[Cell, ...] = field(
        metadata=key(
            Many(Record(Cell, _check_cell), least=1),
            "The loads, measured one after the other.",
            name="cell",
        )
    )
    prompt: str = field(
        default="text",
        metadata=key(
            Choice("text", "token-ids"),
            "Prompts as text, or as token ids of exact length (completions only).",
            example='"token-ids"',
        ),
    )
    vocabulary: int | None = field(
        default=None,
        metadata=key(
            Integer(64, 10_000_000),
            "Size of the vocabulary, for prompts of token ids.",
            example="151552",
        ),
    )
    context_percent: int = field(
        default=20,
        metadata=key(
            Integer(1, 1000),
            "How far the prompt's tokens, as the server counts them, may be off.",
            example="20",
        ),
    )
    metrics: str = field(
        default="vllm",
        metadata=key(
            Choice(*NAMES, "none"),
            "Whose names the server's Prometheus metrics have.",
            example='"none"',
        ),
    )
    drain_seconds: int = _limit(120, "Seconds until an idle server must be empty.")
    sample_milliseconds: int = field(
        default=500,
        metadata=key(
            Integer(20, 60_000),
            "Milliseconds between two looks at the metrics.",
            example="500",
        ),
    )
    warmup: int = field(
        default=1,
        metadata=key(
            Integer(0, 100),
            "Rounds of `concurrency` requests before a cell is measured.",
            example="2",
        ),
    )
    exact_length: bool = field(
        default=True,
        metadata=key(
            Flag(),
            "Whether every answer must have exactly `output` tokens (sends "
            "`ignore_eos`).",
            example="true",
        ),
    )
    count: str = field(
        default="bounds",
        metadata=key(
            Choice("bounds", "chunks", "logprobs", "token-ids"),
            "How streamed tokens are counted to check the usage: a chunk holds at "
            "least one, exactly one, or lists them.",
            example='"token-ids"',
        ),
    )
    loops: str = field(
        default="refuse",
        metadata=key(
            Choice("refuse", "allow"),
            "What a looping answer means: speculation is faster in a loop.",
            example='"refuse"',
        ),
    )
    fill_percent: int = field(
        default=90,
        metadata=key(
            Integer(1, 100),
            "Share of the concurrency that must be at work on average.",
            example="90",
        ),
    )
    cached_percent: int = field(
        default=2,
        metadata=key(
            Integer(0, 100),
            "Largest share of prompt tokens that may come from the prefix cache.",
            example="2",
        ),
    )
    probe_factor: int = field(
        default=3,
        metadata=key(
            Integer(2, 1000),
            "Without metrics: how much slower than the fastest a probe of the idle "
            "server may be.",
            example="3",
        ),
    )
    lag_milliseconds: int = field(
        default=50,
        metadata=key(
            Integer(1, 60_000),
            "How late the measuring process itself may be (99th percentile).",
            example="50",
        ),
    )


_RESERVED = (
    "model", "prompt", "messages", "max_tokens", "stream", "stream_options", "n"
)  # fmt: skip

METRICS: Final = ("tokens_per_s", "steps_per_s", "drafts_per_s", "ttft_ns", "itl_ns")
"""Figures of a cell that a claim may be about."""


def cell_metrics(plan: ServingPlan) -> list[str]:
    """Return what claims of a gate may name: `cell:metric`."""
    return [f"{cell.name}:{metric}" for cell in plan.cells for metric in METRICS]


def check_plan(values: dict[str, Any], table: Mapping[str, Any], at: At) -> None:
    """Check the rules between the keys of `[serving]`."""
    if values.get("prompt") == "token-ids":
        if values.get("vocabulary") is None and "vocabulary" not in table:
            (at / "prompt").problem(f"{at}: prompts of token ids need `vocabulary`")
        if values.get("api") == "chat":
            (at / "prompt").problem(f"{at}: the chat endpoint takes no token ids")
    check_server(values, at)
    names = [cell.name for cell in values.get("cells", ())]
    for n, name in enumerate(names):
        if name in names[:n]:
            (at / "cell" / n).problem(f"two cells of {at} are {name}")


def check_server(values: dict[str, Any], at: At) -> None:
    """Check a server's command template and the keys of every request."""
    from string import Formatter

    for n, argument in enumerate(values.get("server", ())):
        place = at / "server" / n
        try:
            parts = list(Formatter().parse(argument))
        except ValueError as error:
            place.problem(f"{place}: {error}; a brace itself is written twice")
            continue
        for _, name, spec, conversion in parts:
            if name is not None and (name not in PLACEHOLDERS or spec or conversion):
                known = ", ".join(f"{{{item}}}" for item in PLACEHOLDERS)
                place.problem(
                    f"{place}: unknown placeholder {{{name}}}; known: {known}"
                )
    if values.get("server") and not any("{port}" in a for a in values["server"]):
        (at / "server").problem(f"`server` in {at} does not use {{port}}")
    for name in values.get("body", {}):
        if name in _RESERVED:
            (at / "body" / name).problem(f"`body` in {at} may not set `{name}`")


SERVING = Record(ServingPlan, check_plan)
"""The `[serving]` table."""
