# SPDX-License-Identifier: Apache-2.0
"""The `[accuracy]` table of a gate: which prompts, how they are asked."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from stackctl.gates.serving.plan import ServerPlan, check_server
from stackctl.model.fields import At, Choice, Integer, Many, Record, Text, key


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptSet:
    """Prompts made from the gate's seed; each field says what it is for."""

    kind: str = field(
        metadata=key(
            Choice("packet", "ledger"),
            "A packet with one right answer and a decoy, or a ledger with errors to "
            "count. Also the name of the set in claims.",
            example='"packet"',
        )
    )
    items: int = field(
        metadata=key(Integer(1, 10_000), "How many prompts.", example="120")
    )
    tokens: int = field(
        metadata=key(
            Integer(500, 1_000_000),
            "Length of a prompt, in tokens of `characters_per_token` characters.",
            example="32000",
        )
    )
    near: int = field(
        default=1,
        metadata=key(
            Integer(0, 100),
            "How far off a count of a ledger may be to be called near (still wrong).",
            example="1",
        ),
    )
    sha256: str | None = field(
        default=None,
        metadata=key(
            Text("a SHA-256 (64 hexadecimal digits)", r"[0-9a-f]{64}"),
            "Digest that the made prompts must have.",
            example='"…"',
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class AccuracyPlan(ServerPlan):
    """How an accuracy gate asks one arm.

    The attributes are the keys of the `[accuracy]` table; each field says what it is
    for.
    """

    sets: tuple[PromptSet, ...] = field(
        metadata=key(
            Many(Record(PromptSet), least=1, unique="kind"),
            "The prompt sets.",
            name="set",
        )
    )
    api: str = field(
        default="chat",
        metadata=key(
            Choice("chat", "completions"), "Which endpoint is asked.", example='"chat"'
        ),
    )
    max_tokens: int = field(
        default=8192,
        metadata=key(
            Integer(1, 1_000_000),
            "Most tokens of an answer, reasoning included; what needs more is "
            "truncated, and wrong.",
            example="8192",
        ),
    )
    concurrency: int = field(
        default=4,
        metadata=key(
            Integer(1, 1024), "Requests that are open at a time.", example="4"
        ),
    )
    retries: int = field(
        default=2,
        metadata=key(
            Integer(0, 10),
            "How often an item is asked again where nobody answered (connection, HTTP "
            "429, 502, 503, 504). An answer is never asked for again.",
            example="2",
        ),
    )


def _check(values: dict[str, Any], table: Mapping[str, Any], at: At) -> None:
    check_server(values, at)


ACCURACY = Record(AccuracyPlan, _check)
"""The `[accuracy]` table."""
