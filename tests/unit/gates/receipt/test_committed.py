# SPDX-License-Identifier: Apache-2.0
"""The receipts of this project hold; whether they are fresh, `receipt stale` says."""

from pathlib import Path

import pytest

from stackctl.gates.receipt import find, read
from stackctl.gates.receipt.verify import check
from stackctl.model.series import load_series

PROJECT = Path(__file__).resolve().parents[4]
FOUND = find(PROJECT).found


def test_there_are_some_and_all_can_be_read() -> None:
    assert FOUND and [each.path for each in FOUND if each.error] == []


@pytest.mark.parametrize("path", [each.path for each in FOUND], ids=lambda p: p.stem)
def test_a_committed_receipt_is_believed(path: Path) -> None:
    receipt = read(path)
    policy = load_series(PROJECT / "series.toml").policy
    assert check(receipt, policy.receipt_signers, PROJECT).reasons == ()
    assert path.parent.name == receipt.gate
