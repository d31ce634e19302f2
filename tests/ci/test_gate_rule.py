"""The decision rule that the gate scripts share (`ci/gates/_gate.py`)."""

import json
import math
import sys
from pathlib import Path

import pytest

GATES = Path(__file__).parents[2] / "ci" / "gates"


@pytest.fixture
def gate(monkeypatch):
    monkeypatch.syspath_prepend(str(GATES))
    import _gate

    yield _gate
    sys.modules.pop("_gate", None)


def test_interval_is_student_t_at_99_percent(gate):
    # t(0.995, 8) = 3.355; standard deviation of 1..9 is 2.7386.
    found = gate.interval([float(i) for i in range(1, 10)])
    assert found["mean"] == 5
    assert found["high"] - 5 == pytest.approx(3.355 * 2.738613 / 3, rel=1e-5)
    assert found["low"] < found["boot_low"] < 5 < found["boot_high"] < found["high"]
    assert gate.interval([float(i) for i in range(1, 10)]) == found


@pytest.mark.parametrize(
    ("low", "high", "at_least", "verdict"),
    [
        (301, 320, True, "qualified"),
        (300, 300, True, "qualified"),
        (290, 310, True, "insufficient-evidence"),
        (280, 299, True, "rejected"),
        (280, 299, False, "qualified"),
        (290, 310, False, "insufficient-evidence"),
        (301, 320, False, "rejected"),
        (math.nan, math.nan, True, "insufficient-evidence"),
    ],
)
def test_the_whole_interval_has_to_be_on_one_side(gate, low, high, at_least, verdict):
    assert gate.judge(low, high, 300, at_least) == verdict


def test_worst_follows_the_documented_order(gate):
    order = ["invalid", "rejected", "insufficient-evidence", "not-tested", "qualified"]
    for i, verdict in enumerate(order):
        assert gate.worst(order[i:]) == verdict


@pytest.mark.parametrize(
    ("verdict", "code"),
    [
        ("qualified", 0),
        ("rejected", 1),
        ("insufficient-evidence", 7),
        ("not-tested", 8),
        ("invalid", 9),
    ],
)
def test_exit_codes_and_document(gate, capsys, verdict, code):
    def body(document):
        raise gate.Stop(verdict, "because")

    script = str(GATES / "kpool_speed.py")
    assert gate.run("a-gate", script, True, body) == code
    document = json.loads(capsys.readouterr().out)
    assert document["verdict"] == verdict
    assert document["reasons"] == ["because"]
    assert set(document["scripts"]) == {
        "_gate.py",
        "_kpool.py",
        "_unit.py",
        "kpool_speed.py",
    }


def test_throttling_is_seen(gate):
    thermal = {"clocks_event_reasons.active": "0x0000000000000020"}
    assert gate.throttled(thermal)
    assert not gate.throttled({"clocks_event_reasons.active": "0x0000000000000001"})
    assert not gate.throttled({})
