# SPDX-License-Identifier: Apache-2.0
"""What a server says about itself: its Prometheus metrics, by their own parser."""

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from stackctl.gates.serving.page import fetch_page

if TYPE_CHECKING:
    import httpx

NAMES: Final[dict[str, dict[str, tuple[str, ...]]]] = {
    "vllm": {
        "running": ("vllm:num_requests_running",),
        "waiting": ("vllm:num_requests_waiting",),
        # A histogram that is fed once for every step of the engine.
        "steps": ("vllm:iteration_tokens_total_count",),
        # One draft is one verifier step of one request.
        "drafts": ("vllm:spec_decode_num_drafts_total",),
        "finished": ("vllm:request_success_total",),
        "prompt_tokens": ("vllm:prompt_tokens_total",),
        "generation_tokens": ("vllm:generation_tokens_total",),
        "prefix_queries": ("vllm:prefix_cache_queries_total",),
        "prefix_hits": ("vllm:prefix_cache_hits_total",),
        "preemptions": ("vllm:num_preemptions_total",),
    },
    "sglang": {
        "running": ("sglang:num_running_reqs",),
        "waiting": ("sglang:num_queue_reqs",),
        "prompt_tokens": ("sglang:prompt_tokens_total",),
        "generation_tokens": ("sglang:generation_tokens_total",),
        "finished": ("sglang:num_requests_total",),
    },
    "llama.cpp": {
        "running": ("llamacpp:requests_processing",),
        "waiting": ("llamacpp:requests_deferred",),
        "steps": ("llamacpp:n_decode_total",),
        "prompt_tokens": ("llamacpp:prompt_tokens_total",),
        "generation_tokens": ("llamacpp:tokens_predicted_total",),
    },
}
"""Samples of each server by our name; several samples of one name are added up."""


@dataclass(frozen=True, slots=True)
class Scrape:
    """The metrics at one moment.

    Attributes:
        at_ns: Monotonic clock when the server had answered.
        asked_ns: Monotonic clock when it was asked.
        values: By our names; a name is missing where the server has no such metric.
    """

    at_ns: int
    asked_ns: int
    values: dict[str, float]

    @property
    def busy(self) -> float:
        """Requests that the server works on or holds back."""
        return self.values.get("running", 0.0) + self.values.get("waiting", 0.0)


def samples(text: str) -> Iterator[tuple[str, Mapping[str, str], float]]:
    """Yield name, labels and value of every sample of a metrics page.

    Args:
        text: In Prometheus' text format.

    Raises:
        ValueError: Not a metrics page.
    """
    from prometheus_client.parser import text_string_to_metric_families

    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            yield sample.name, sample.labels, sample.value


def parse(text: str, server: str) -> dict[str, float]:
    """Read a metrics page.

    Args:
        text: In Prometheus' text format.
        server: A key of `NAMES`.

    Returns:
        The values by our names.

    Raises:
        ValueError: Not a metrics page.
    """
    names = {name: ours for ours, all_ in NAMES[server].items() for name in all_}
    values: dict[str, float] = {}
    for name, _, value in samples(text):
        if (ours := names.get(name)) is not None:
            values[ours] = values.get(ours, 0.0) + value
    return values


async def fetch(client: "httpx.AsyncClient", url: str) -> str | None:
    """Return a metrics page, None where it cannot be had.

    Args:
        client: Connections to the server.
        url: Whole address of the page.
    """
    import httpx

    try:
        page = await fetch_page(client, url)
    except httpx.HTTPError:
        return None
    if page.status != 200 or page.data is None:
        return None
    return page.data.decode("utf-8", "replace")


class Metrics:
    """Reads a server's metrics.

    Args:
        client: Connections to it.
        url: Whole address of the metrics page.
        server: A key of `NAMES`.
    """

    def __init__(self, client: "httpx.AsyncClient", url: str, server: str) -> None:
        self._client = client
        self._url = url
        self._server = server

    async def scrape(self) -> Scrape | None:
        """Return the metrics now, None where they cannot be had."""
        asked = time.monotonic_ns()
        page = await fetch(self._client, self._url)
        if page is None:
            return None
        try:
            values = parse(page, self._server)
        except ValueError:
            return None
        if "running" not in values:
            return None
        return Scrape(time.monotonic_ns(), asked, values)


def rate(first: Scrape, last: Scrape, name: str) -> float | None:
    """Return how fast a counter grew, per second; None where there is none.

    A counter that fell belongs to a server that was restarted: None.
    """
    if name not in first.values or name not in last.values:
        return None
    grown = last.values[name] - first.values[name]
    span = last.at_ns - first.at_ns
    return grown / (span / 1e9) if grown >= 0 and span > 0 else None
