# SPDX-License-Identifier: Apache-2.0
"""Of several receipts of a gate one answers it, by an order that is written down."""

from itertools import permutations

import pytest
from gates import document, kernel_evidence

from stackctl.gates.receipt import make
from stackctl.gates.receipt.current import Judged, ordered
from stackctl.gates.receipt.verify import Check, check


def judged(
    ratio: float,
    started: str,
    *,
    changes: tuple[str, ...] | None = (),
    ok: bool = True,
    problems: tuple[str, ...] = (),
    day: str = "2026-11-29",
) -> Judged:
    """A real receipt; `ratio` 0.8 qualifies, 1.0 rejects, 0.92 decides nothing."""
    at = f"{day}T{started}:00Z"
    receipt = make(
        document(kernel_evidence(ratio, 0.02, problems=list(problems)), started=at)
    )
    found = check(receipt)
    reasons = () if ok else ("the verdict does not follow",)
    return Judged(receipt, Check(ok, reasons, found.signature), changes)


QUALIFIED = judged(0.8, "22:05")
NEWER = judged(0.8, "23:05")
REJECTED = judged(1.0, "20:05")
OPEN = judged(0.92, "23:30")
INVALID = judged(0.8, "23:35", problems=("the GPU was busy",))
STALE = judged(1.0, "23:40", changes=("a file changed",))
UNKNOWN = judged(1.0, "23:41", changes=None)
FORGED = judged(1.0, "23:42", ok=False)


def test_the_receipts_are_what_their_names_say() -> None:
    assert QUALIFIED.verdict == NEWER.verdict == "qualified"
    assert REJECTED.verdict == "rejected" and OPEN.verdict == "insufficient-evidence"
    assert INVALID.verdict == "invalid"


@pytest.mark.parametrize(
    ("receipts", "answer"),
    [
        ([QUALIFIED, NEWER], NEWER),
        ([QUALIFIED, NEWER, REJECTED], REJECTED),
        ([QUALIFIED, OPEN], OPEN),
        ([QUALIFIED, INVALID], QUALIFIED),
        ([QUALIFIED, STALE, UNKNOWN, FORGED], QUALIFIED),
    ],
)
def test_which_receipt_answers(receipts: list[Judged], answer: Judged) -> None:
    for each in permutations(receipts):
        assert ordered(each)[0] is answer


def test_a_date_to_come_is_not_the_newest_for_ever() -> None:
    past = judged(0.92, "00:00", day="2001-01-01")
    future = judged(0.8, "00:00", day="9999-12-31")
    for each in permutations([past, future]):
        assert ordered(each)[0] is past
    (note,) = check(future.receipt).notes
    assert "9999-12-31T00:00:00Z, which has not come yet" in note
    assert not check(past.receipt).notes
    # One that rejects stays the answer: its date is no way around it.
    rejected = judged(1.0, "00:00", day="9999-12-31")
    assert ordered([past, rejected])[0] is rejected


def test_what_speaks_against_a_receipt_is_said() -> None:
    assert QUALIFIED.against == ()
    assert STALE.against == ("stale: a file changed",)
    assert FORGED.against == ("not believed: the verdict does not follow",)
    assert "cannot be told" in UNKNOWN.against[0]
    many = judged(0.8, "22:05", changes=tuple("abcde"))
    assert many.against == ("stale: a; b; c; and 2 more",)
