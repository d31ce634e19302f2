"""Verdicts about times and rates."""

import pytest
from rules import GAIN, KERNEL, LOSS, SERVING, kernel, serving

from stackctl.gates.rule.decide import decide


@pytest.mark.parametrize(
    ("ratio", "verdict"),
    [
        (0.90, "qualified"),
        (0.92, "insufficient-evidence"),
        (0.93, "rejected"),
        (1.00, "rejected"),
    ],
)
def test_a_gain_needs_the_whole_interval_beyond_the_margin(ratio, verdict):
    assert decide(KERNEL, [GAIN], kernel(ratio)).verdict == verdict


@pytest.mark.parametrize(
    ("ratio", "verdict"),
    [(1.0, "qualified"), (0.98, "insufficient-evidence"), (0.97, "rejected")],
)
def test_a_loss_within_the_margin_qualifies(ratio, verdict):
    assert decide(SERVING, [LOSS], serving(ratio)).verdict == verdict
