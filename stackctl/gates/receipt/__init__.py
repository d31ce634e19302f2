# SPDX-License-Identifier: Apache-2.0
"""Receipts: a gate's answer, bound to what was measured, to be checked again."""

from stackctl.gates.receipt.model import Receipt, parse
from stackctl.gates.receipt.store import find, make, read, safe_evidence, store, write

__all__ = [
    "Receipt",
    "find",
    "make",
    "parse",
    "read",
    "safe_evidence",
    "store",
    "write",
]
