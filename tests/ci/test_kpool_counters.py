"""What the kpool speed gate reads from hardware counters, and what it makes of them."""

import sys
from pathlib import Path

import pytest

GATES = Path(__file__).parents[2] / "ci" / "gates"


@pytest.fixture
def gate(monkeypatch):
    monkeypatch.syspath_prepend(str(GATES))
    import kpool_speed

    yield kpool_speed
    for name in ("kpool_speed", "_unit"):
        sys.modules.pop(name, None)


def test_the_raw_page_is_read_by_its_names(gate):
    text = (
        "==PROF== Connected\n"
        '"ID","Kernel Name","dram__bytes_read.sum","launch__waves_per_multiprocessor",'
        '"profiler__pass","smsp__issue_active.avg.pct_of_peak_sustained_active"\n'
        '"","","byte","","","%"\n'
        '"0","_kpool_prefill_pool_kernel","17,286,144","0.48","3","34.3"\n'
        '"1","_kpool_prefill_pool_kernel","n/a","0.48","3","34.3"\n'
    )
    first, second = gate.raw_rows(text)
    assert first == {
        "dram__bytes_read.sum": "17286144 byte",
        "launch__waves_per_multiprocessor": "0.48",
        "smsp__issue_active.avg.pct_of_peak_sustained_active": "34.3 %",
    }
    assert "dram__bytes_read.sum" not in second
    assert gate.raw_rows("==ERROR== no counters") == []


def _stalls(**ratios):
    return {
        f"smsp__average_warps_issue_stalled_{name}_per_issue_active.ratio": f"{v} inst"
        for name, v in ratios.items()
    }


def test_a_busy_unit_is_the_limit(gate):
    rows = [
        {
            "shape": "kpool4/32768",
            "smsp__issue_active.avg.pct_of_peak_sustained_active": "65.57 %",
            "dram__throughput.avg.pct_of_peak_sustained_elapsed": "28 %",
            "launch__waves_per_multiprocessor": "1.9",
        }
    ]
    assert gate.named_limits(rows) == {"kpool4/32768": "issue slots at 66 % of peak"}


def test_few_programs_are_limited_by_latency_and_it_is_said_which(gate):
    row = {
        "shape": "kpool16/32768",
        "smsp__issue_active.avg.pct_of_peak_sustained_active": "34 %",
        "launch__waves_per_multiprocessor": "0.48",
    }
    row |= _stalls(long_scoreboard=6.0, short_scoreboard=2.0, wait=1.5, selected=0.5)
    assert gate.named_limits([row]) == {
        "kpool16/32768": "latency: programs fill 0.48 of the device, warps are in "
        "long_scoreboard 60 %, short_scoreboard 20 %, wait 15 %"
    }


def test_registers_that_leave_few_warps_are_a_limit(gate):
    row = {
        "shape": "kpool16/32768",
        "launch__waves_per_multiprocessor": "1.29",
        "sm__maximum_warps_per_active_cycle_pct": "18.75 %",
    }
    row |= _stalls(long_scoreboard=3.0, wait=1.0)
    assert gate.named_limits([row]) == {
        "kpool16/32768": "latency: registers let 19 % of the warps be resident, warps "
        "are in long_scoreboard 75 %, wait 25 %"
    }


@pytest.mark.parametrize("waves", ["1.0", "2.5"])
def test_a_full_device_with_no_busy_unit_has_no_named_limit(gate, waves):
    row = {
        "shape": "kpool16/32768",
        "smsp__issue_active.avg.pct_of_peak_sustained_active": "34 %",
        "launch__waves_per_multiprocessor": waves,
        "sm__maximum_warps_per_active_cycle_pct": "50 %",
    }
    assert gate.named_limits([row | _stalls(long_scoreboard=6.0)]) == {}


@pytest.mark.parametrize("rows", ["no counters: TimeoutExpired", [], None])
def test_without_counters_no_limit_is_named(gate, rows):
    assert gate.named_limits(rows) == {}
