# SPDX-License-Identifier: Apache-2.0
import pytest

from stackctl.gates.serving.metrics import Scrape, parse, rate

PAGE = """\
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 3.0
vllm:num_requests_running{engine="1",model_name="m"} 2.0
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{engine="0",model_name="m"} 1.0
# TYPE vllm:request_success_total counter
vllm:request_success_total{finished_reason="stop",model_name="m"} 4.0
vllm:request_success_total{finished_reason="length",model_name="m"} 5.0
# TYPE vllm:request_success_created gauge
vllm:request_success_created{finished_reason="stop",model_name="m"} 1.79e+09
# TYPE vllm:iteration_tokens_total histogram
vllm:iteration_tokens_total_bucket{le="1.0",model_name="m"} 7.0
vllm:iteration_tokens_total_bucket{le="+Inf",model_name="m"} 9.0
vllm:iteration_tokens_total_count{model_name="m"} 9.0
vllm:iteration_tokens_total_sum{model_name="m"} 41.0
"""


def test_a_page_of_vllm() -> None:
    found = parse(PAGE, "vllm")
    assert found == {"running": 5.0, "waiting": 1.0, "finished": 9.0, "steps": 9.0}
    assert Scrape(2, 1, found).busy == 6.0


def test_other_servers_have_other_names() -> None:
    assert parse(PAGE, "llama.cpp") == {}
    page = "# TYPE llamacpp:n_decode_total counter\nllamacpp:n_decode_total 12\n"
    assert parse(page, "llama.cpp") == {"steps": 12.0}


@pytest.mark.parametrize("page", ["<html>", 'a{b="c 1', "vllm:num_requests_running x"])
def test_no_metrics_page(page: str) -> None:
    with pytest.raises(ValueError):
        parse(page, "vllm")


def test_rates() -> None:
    first = Scrape(1_000_000_000, 0, {"steps": 10.0})
    last = Scrape(3_000_000_000, 0, {"steps": 70.0})
    assert rate(first, last, "steps") == 30.0
    assert rate(first, last, "drafts") is None
    assert rate(last, first, "steps") is None  # a restarted server counts from zero
