# SPDX-License-Identifier: Apache-2.0
"""The protocol of units: what an answer must look like, kind by kind."""

from collections.abc import Callable, Mapping
from typing import Any, Final

from stackctl.errors import InputError
from stackctl.gates.evidence import UnitKind
from stackctl.gates.kinds import BadAnswer
from stackctl.gates.receipt.allow import MAX_DEPTH
from stackctl.model.canonical import MAX_INTEGER, canonical_json
from stackctl.model.fields import escape, nearest

SCHEMA: Final = 1
"""Version of the protocol."""

STOPS: Final = ("not-tested", "invalid", "rejected")
"""Verdicts with which a unit may refuse to measure; it never says that it is good."""

OUTCOMES: Final = ("passed", "failed", "error", "skipped", "xfailed")
"""Outcomes of a test."""

_KEYS: Final = ("schema", "samples", "engagement", "stop", "inputs", "notes", "extra")


def _table(value: object, place: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise BadAnswer(f"its `{place}` must be an object")
    return value


def _list(value: object, place: str) -> list[Any]:
    if not isinstance(value, list):
        raise BadAnswer(f"its `{place}` must be a list")
    return value


def _whole(value: object, place: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise BadAnswer(f"its `{place}` must be an integer that is not negative")
    return value


def _number(value: object, place: str) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise BadAnswer(f"its `{place}` must be a number")
    return value


def _text(value: object, place: str) -> str:
    if not isinstance(value, str) or not value:
        raise BadAnswer(f"its `{place}` must be a text")
    return value


def _unique(ids: list[str], place: str) -> None:
    seen: set[str] = set()
    for name in ids:
        if name in seen:
            raise BadAnswer(f"its `{place}` has {escape(name)} twice")
        seen.add(name)


def _only(table: Mapping[str, Any], place: str, name: str) -> Any:
    if set(table) != {name}:
        raise BadAnswer(f"its `{place}` must hold `{name}` and nothing else")
    return table[name]


def _tests(samples: dict[str, Any]) -> None:
    items = _list(_only(samples, "samples", "tests"), "samples.tests")
    for n, item in enumerate(items):
        place = f"samples.tests[{n}]"
        test = _table(item, place)
        _text(test.get("id"), f"{place}.id")
        _whole(test.get("ns"), f"{place}.ns")
        if test.get("outcome") not in OUTCOMES:
            expected = ", ".join(OUTCOMES)
            raise BadAnswer(f"its `{place}.outcome` must be one of {expected}")


def _parity(samples: dict[str, Any]) -> None:
    items = _list(_only(samples, "samples", "cases"), "samples.cases")
    for n, item in enumerate(items):
        place = f"samples.cases[{n}]"
        case = _table(item, place)
        _text(case.get("id"), f"{place}.id")
        if not isinstance(case.get("equal"), bool):
            raise BadAnswer(f"its `{place}.equal` must be true or false")
        _whole(case.get("elements"), f"{place}.elements")
        _whole(case.get("differing"), f"{place}.differing")
        if "max_abs" in case and case["max_abs"] is not None:
            _number(case["max_abs"], f"{place}.max_abs")
    _unique([case["id"] for case in items], "samples.cases")


def _kernel(samples: dict[str, Any]) -> None:
    cells = _table(_only(samples, "samples", "cells"), "samples.cells")
    for name, content in cells.items():
        place = f"samples.cells.{name}"
        cell = _table(content, place)
        order = _list(cell.get("order"), f"{place}.order")
        values = _table(cell.get("values"), f"{place}.values")
        for arm in order:
            _text(arm, f"{place}.order")
            if arm not in values:
                raise BadAnswer(f"its `{place}.order` names {escape(arm)}, no value")
        for arm, numbers in values.items():
            for number in _list(numbers, f"{place}.values.{arm}"):
                _number(number, f"{place}.values.{arm}")


def _compile(samples: dict[str, Any]) -> None:
    found = _table(_only(samples, "samples", "variants"), "samples.variants")
    for name, counts in found.items():
        for count in _list(counts, f"samples.variants.{name}"):
            _whole(count, f"samples.variants.{name}")


def _serving(samples: dict[str, Any]) -> None:
    for name, cell in _table(samples.get("cells"), "samples.cells").items():
        _table(cell, f"samples.cells.{name}")


def _accuracy(samples: dict[str, Any]) -> None:
    items = _list(samples.get("items"), "samples.items")
    for n, item in enumerate(items):
        place = f"samples.items[{n}]"
        _text(_table(item, place).get("id"), f"{place}.id")
        _text(item.get("result"), f"{place}.result")


def _image(samples: dict[str, Any]) -> None:
    _text(samples.get("verdict"), "samples.verdict")


_CHECKS: Final[Mapping[UnitKind, Callable[[dict[str, Any]], None]]] = {
    "tests": _tests,
    "parity": _parity,
    "kernel": _kernel,
    "compile": _compile,
    "serving": _serving,
    "accuracy": _accuracy,
    "image": _image,
}


def check(kind: UnitKind, document: object) -> dict[str, Any]:
    """Check an answer against the protocol.

    Args:
        kind: Kind of the gate.
        document: The parsed answer.

    Returns:
        The same.

    Raises:
        BadAnswer: It breaks the protocol; the message names the place.
    """
    if not isinstance(document, dict):
        raise BadAnswer("its answer is no object")
    for name in document:
        if name not in _KEYS:
            raise BadAnswer(
                f"its answer has an unknown key `{escape(name)}`{nearest(name, _KEYS)}"
            )
    if document.get("schema") != SCHEMA or document["schema"] is True:
        raise BadAnswer(f"its `schema` must be {SCHEMA}")
    if ("samples" in document) == ("stop" in document):
        raise BadAnswer("its answer must have either `samples` or `stop`")
    if "stop" in document:
        stop = _table(document["stop"], "stop")
        if stop.get("verdict") not in STOPS:
            raise BadAnswer(f"its `stop.verdict` must be one of {', '.join(STOPS)}")
        _text(stop.get("reason"), "stop.reason")
    else:
        _CHECKS[kind](_table(document["samples"], "samples"))
    for arm, item in _table(document.get("engagement", {}), "engagement").items():
        engaged = _table(item, f"engagement.{arm}")
        for name in ("expected", "counted"):
            _whole(engaged.get(name), f"engagement.{arm}.{name}")
        if engaged.get("captured_nodes") is not None:
            _whole(engaged["captured_nodes"], f"engagement.{arm}.captured_nodes")
        features = _list(engaged.get("features", []), f"engagement.{arm}.features")
        for n, item in enumerate(features):
            place = f"engagement.{arm}.features[{n}]"
            feature = _table(item, place)
            _text(feature.get("feature"), f"{place}.feature")
            if feature.get("seen") is not None:
                _number(feature["seen"], f"{place}.seen")
    if "inputs" in document:
        _text(document["inputs"], "inputs")
    for note in _list(document.get("notes", []), "notes"):
        _text(note, "notes")
    _table(document.get("extra", {}), "extra")
    for name, value in document.items():
        _can_be_kept(value, name)
    return document


def _can_be_kept(value: object, place: str, depth: int = 0) -> None:
    """Refuse what a receipt cannot hold, while it is still the unit's fault."""
    if depth > MAX_DEPTH:
        raise BadAnswer(f"its `{place}` is nested more than {MAX_DEPTH} levels deep")
    if isinstance(value, dict):
        for item in value.values():
            _can_be_kept(item, place, depth + 1)
    elif isinstance(value, list):
        for item in value:
            _can_be_kept(item, place, depth + 1)
    elif isinstance(value, int) and abs(value) > MAX_INTEGER:
        try:
            canonical_json(value)
        except InputError:
            raise BadAnswer(
                f"its `{place}` holds an integer beyond 2**53, which JSON does not keep"
            ) from None
