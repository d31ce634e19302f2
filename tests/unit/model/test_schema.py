# SPDX-License-Identifier: Apache-2.0
"""The committed JSON schema and reference are those that the code describes."""

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from stackctl.errors import InputError
from stackctl.model.fields import keys_of
from stackctl.model.schema import reference, schema_text, series_schema
from stackctl.model.series import Series, parse_series

PROJECT = Path(__file__).parents[3]
GOLDEN = PROJECT / "tests" / "golden" / "series-errors"
BEGIN, END = "<!-- reference: begin -->\n", "<!-- reference: end -->\n"


def validator() -> Any:
    return jsonschema.Draft202012Validator(series_schema())


def test_the_committed_schema_is_current() -> None:
    committed = (PROJECT / "docs" / "series.schema.json").read_text("utf-8")
    assert committed == schema_text(), (
        "run: python -m stackctl.model.schema > docs/series.schema.json"
    )


def test_the_module_prints_the_schema() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "stackctl.model.schema"],
        cwd=PROJECT,
        capture_output=True,
        check=True,
    )
    assert done.stdout.decode() == schema_text()


def test_the_reference_is_current() -> None:
    text = (PROJECT / "docs" / "series.md").read_text("utf-8")
    shown = text[text.index(BEGIN) + len(BEGIN) : text.index(END)]
    assert shown.strip() == reference().strip(), (
        "put the output of `python -m stackctl.model.schema --reference` between the "
        "marks of docs/series.md"
    )


def test_the_examples_of_the_document_are_right() -> None:
    text = (PROJECT / "docs" / "series.md").read_text("utf-8")
    examples = [
        block
        for block in re.findall(r"```toml\n(.*?)```", text, re.DOTALL)
        if "schema = 1" in block
    ]
    assert examples
    for example in examples:
        parse_series(example, file="docs/series.md")
        validator().validate(tomllib.loads(example))


def test_every_example_of_a_key_is_a_toml_value() -> None:
    def records(cls: type) -> set[type]:
        inner = {inner for item in keys_of(cls) for inner in item.kind.records()}
        return inner.union(*(records(item) for item in inner))

    for cls in {Series} | records(Series):
        for item in keys_of(cls):
            assert item.doc.endswith("."), item
            if item.example:
                tomllib.loads(f"x = {item.example}")


def test_the_schema_is_a_schema() -> None:
    jsonschema.Draft202012Validator.check_schema(series_schema())


# Files whose faults are all between sets, where a schema cannot look.
ONLY_THE_READER = {"requires"}


TOML = [
    path
    for path in sorted(GOLDEN.glob("*.toml"))
    if "not TOML" not in path.with_suffix(".txt").read_text("utf-8")
]


@pytest.mark.parametrize("path", TOML, ids=lambda path: path.stem)
def test_the_schema_finds_what_a_schema_can_find(path: Path) -> None:
    document = tomllib.loads(path.read_text("utf-8"))
    with pytest.raises(InputError):
        parse_series(path.read_text("utf-8"), file="series.toml")
    if path.stem not in ONLY_THE_READER:
        assert not validator().is_valid(document)


@pytest.mark.skipif(shutil.which("taplo") is None, reason="taplo is not installed")
def test_an_editor_finds_the_schema(tmp_path: Path) -> None:
    (tmp_path / "s.json").write_text(schema_text())
    good = '#:schema ./s.json\nschema = 1\nname = "s"\n[base]\npath = "b"\n'
    for text, code in ((good, 0), (good + "[[set]]\nnam = 1\n", 1)):
        (tmp_path / "series.toml").write_text(text)
        done = subprocess.run(
            ["taplo", "check", "series.toml"],
            cwd=tmp_path,
            capture_output=True,
            check=False,
        )
        assert done.returncode == code
