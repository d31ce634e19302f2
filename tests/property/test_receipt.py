# SPDX-License-Identifier: Apache-2.0
"""Properties of receipts: nothing private comes in, nothing changed goes unnoticed."""

import json
import string
from pathlib import Path
from random import Random
from typing import Any

import jsonschema
import pytest
from gates import document, kernel_evidence
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from stackctl.errors import InputError
from stackctl.gates.receipt import Receipt, make, parse, read, store
from stackctl.gates.receipt.allow import MAX_TEXT, Filter
from stackctl.gates.receipt.model import subjects
from stackctl.gates.receipt.schema import receipt_schema
from stackctl.model.canonical import canonical_json


def examples(count: int) -> Any:
    return settings(
        max_examples=count,
        deadline=None,
        suppress_health_check=[
            HealthCheck.too_slow,
            HealthCheck.function_scoped_fixture,
        ],
    )


BASE62 = string.ascii_letters + string.digits
NAMES = ["adalove", "lovelace", "jdoe42", "Gracehop", "svc-build", "k.johnson"]


def drawn(alphabet: str, least: int, most: int) -> st.SearchStrategy[str]:
    """Random text as generators of secrets make it: not what a shrinker likes."""

    def text(seed: int) -> str:
        draw = Random(seed)
        return "".join(draw.choices(alphabet, k=draw.randint(least, most)))

    return st.integers(0, 2**64).map(text)


@st.composite
def private(draw: st.DrawFn) -> tuple[str, str]:
    """A private text, and the part of it that must not be found anywhere."""
    secret = draw(drawn(BASE62, 24, 64))
    prefix = draw(st.sampled_from(["ghp_", "hf_", "sk-", "glpat-", "xoxb-", "nvapi-"]))
    name = draw(st.sampled_from(NAMES))
    node = draw(drawn(string.ascii_lowercase + string.digits, 7, 12))
    domain = draw(st.sampled_from(["corp.example", "cluster.local", "example.org"]))
    octets = draw(st.lists(st.integers(10, 255), min_size=4, max_size=4))
    address = ".".join(map(str, octets))
    return draw(
        st.sampled_from(
            [
                (secret, secret),
                (prefix + secret, secret),
                (prefix + secret[:12], secret[:12]),
                (f"token={secret[:9]}", secret[:9]),
                (f"password: {secret[:9]}", secret[:9]),
                (f"Bearer {secret[:9]}", secret[:9]),
                (f"/home/{name}/work", name),
                (f"/Users/{name}", name),
                (f"~{name}/x", name),
                (f"open('/scratch/{name}/x.py')", name),
                (f"file:///srv/{name}", name),
                (f"--out=/data/{name}/x", name),
                (f"{node}.{domain}", node),
                (f"http://{node}:8000/v1", node),
                (f"{name}@{node}", node),
                (address, address),
                (f"tcp:{address}:22", address),
            ]
        )
    )


AROUND = st.sampled_from(
    ["{}", "see {}", "{}: no such file", "error ({})", '"{}"', "a, {}, b", "[{}]",
     "x={}", "{}\nmore", "`{}`", "<{}>", "-v {}", "k: {}"]
)  # fmt: skip


def leaves(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Paths of all texts of a document."""
    if isinstance(value, str):
        return [path]
    if not isinstance(value, (dict, list)):
        return []
    items = value.items() if isinstance(value, dict) else enumerate(value)
    return [leaf for key, inner in items for leaf in leaves(inner, (*path, key))]


def put(value: Any, path: tuple[Any, ...], text: str) -> None:
    for key in path[:-1]:
        value = value[key]
    value[path[-1]] = text


def places() -> list[tuple[Any, ...]]:
    """Where a run's own words may stand: all but what the project itself declares."""
    evidence = kernel_evidence(pairs=3)
    free = [
        path
        for path in leaves(evidence)
        if path[0] in {"units", "scope", "problems", "limitations", "missing"}
        # The order of the arms is data of the gate; without it nothing is decided.
        and "order" not in path
    ]
    return [*free, *[("arms", "on", "env", "VLLM_KPOOL_PARALLEL")]]


PLACES = places()


@examples(200)
@given(secret=private(), around=AROUND, place=st.sampled_from(PLACES))
def test_nothing_private_comes_in_by_the_evidence(
    secret: tuple[str, str], around: str, place: tuple[Any, ...]
) -> None:
    text, core = secret
    evidence = kernel_evidence(pairs=3)
    put(evidence, place, around.format(text))
    extra = {around.format(text): [around.format(text)], "id": text}
    evidence["units"][1]["answer"]["extra"] = extra
    evidence["units"][2]["problems"] = [around.format(text)]
    data = make(document(evidence)).data
    assert core.encode() not in data


@examples(100)
@given(secret=private(), around=AROUND)
def test_nothing_private_comes_in_by_command_or_variables(
    secret: tuple[str, str], around: str
) -> None:
    text, core = secret
    told = around.format(text)
    data = make(
        document(
            kernel_evidence(pairs=0),
            argv=["{python}", told, f"--x={told}", "--api-key", core],
            env={"VLLM_X": told, "HOME": told, core: told, "LC_ALL": told},
        )
    ).data
    assert core.encode() not in data


@examples(300)
@given(text=st.text(max_size=300) | st.text(string.printable, max_size=300))
@example("password: a b")
@example("x " * MAX_TEXT)
@example("[removed]: [removed]")
def test_the_filter_lets_through_what_it_let_through(text: str) -> None:
    chosen = Filter(["ada", "blue whale"], ["base"])
    kept = chosen.text(text)
    assert chosen.text(kept) == kept
    assert len(kept) <= max(MAX_TEXT, len(text))
    assert Filter(["ada", "blue whale"], ["base"]).name(chosen.name(text)) == (
        chosen.name(text)
    )


@pytest.fixture(scope="module")
def receipt() -> Receipt:
    return make(document(kernel_evidence(pairs=2)))


@examples(150)
@given(data=st.data())
def test_a_change_of_any_byte_is_found(
    receipt: Receipt, tmp_path: Path, data: st.DataObject
) -> None:
    path = store(receipt, tmp_path)
    at = data.draw(st.integers(0, len(receipt.data) - 1))
    kind = data.draw(st.sampled_from(["replace", "insert", "delete"]))
    byte = data.draw(st.binary(min_size=1, max_size=1))
    old = receipt.data
    new = old[:at] + byte + old[at + (kind == "replace") :]
    if kind == "delete":
        new = old[:at] + old[at + 1 :]
    if new == old:
        return
    path.write_bytes(new)
    with pytest.raises(InputError) as caught:
        read(path)
    assert str(path) in caught.value.message
    assert caught.value.exit_code == 3
    # Under the name that its new bytes ask for, it is another receipt or none; never
    # the same one in another spelling.
    try:
        other = parse(new, file="x")
    except InputError:
        return
    assert canonical_json(other.document()) != canonical_json(receipt.document())


@examples(60)
@given(data=st.data())
def test_what_the_reader_accepts_the_schema_accepts(data: st.DataObject) -> None:
    receipt = make(document(kernel_evidence(pairs=data.draw(st.integers(0, 3)))))
    changed = json.loads(receipt.data)
    paths = leaves(changed)
    path = data.draw(st.sampled_from(paths))
    put(changed, path, data.draw(st.sampled_from(["", "x", "a" * 40, "f" * 64, "\n"])))
    try:
        parse(canonical_json(changed) + b"\n", file="x")
    except InputError:
        return
    jsonschema.Draft202012Validator(receipt_schema()).validate(changed)


def test_subjects_follow_from_what_is_bound(receipt: Receipt) -> None:
    assert subjects(receipt.predicate.bound) == receipt.statement.subject
