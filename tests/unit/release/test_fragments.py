# SPDX-License-Identifier: Apache-2.0
"""Change fragments: read strictly, with every problem named."""

import tomllib
from pathlib import Path

import jsonschema
import pytest
from support import run

from stackctl.errors import InputError
from stackctl.release.fragments import load_fragments, parse_fragment
from stackctl.release.schema import fragment_schema, reference, schema_text

ROOT = Path(__file__).parents[3]
EVIDENCE = 'evidence = ["README.md", "https://example.org/thread"]'
GOOD = f"""\
schema = 1
category = "fixed"
summary = "It works."
models = ["all"]
compatibility = "compatible"
sets = ["alpha"]
{EVIDENCE}
"""


def test_a_fragment_is_read() -> None:
    found = parse_fragment(GOOD.encode(), "changes/a.b-2.toml")
    assert (found.id, found.category, found.sets) == ("a.b-2", "fixed", ("alpha",))
    assert found.files == ("README.md",)


@pytest.mark.parametrize(
    ("old", "new", "line", "expected"),
    [
        ('"fixed"', '"fixd"', 2, "did you mean `fixed`"),
        ("summary", "sumary", 3, "did you mean `summary`"),
        ('"It works."', '"It works"', 3, "ends with a full stop"),
        ('"It works."', '"It works. So it does."', 3, "one sentence, not several"),
        ('"It works."', f'"{"x" * 240}."', 3, "at most 240"),
        ('models = ["all"]', "models = []", 4, "at least 1"),
        ('"compatible"', '"opt-in"', 5, "needs the key `action`"),
        ('sets = ["alpha"]\n', "", None, "names its `sets`"),
        ('["alpha"]', '["alpha", "alpha"]', 6, "already there"),
        ('category = "fixed"', 'category = "base"', 6, "a new base is under every set"),
        ('"README.md"', '"../README.md"', 7, "inside the project"),
        ('"https://example.org/thread"', '"https://x y"', 7, "an https URL"),
        ('"https://example.org/thread"', '"https://u:p@x/"', 7, "without a user"),
        ('"https://example.org/thread"', '"https://x/`y"', 7, "an https URL"),
        (
            'evidence = ["README.md", "https://example.org/thread"]',
            "",
            None,
            "unproved",
        ),
        ("schema = 1", "schema = 2", None, "newer stackctl"),
        ("schema = 1", 'schema = 1\ncorrects = "a"', 2, "cannot correct itself"),
    ],
)
def test_what_is_wrong_is_named(
    old: str, new: str, line: int | None, expected: str
) -> None:
    assert old in GOOD
    with pytest.raises(InputError) as caught:
        parse_fragment(GOOD.replace(old, new).encode(), "changes/a.toml")
    text = f"{caught.value.message} {caught.value.hint}"
    assert expected in text
    assert "changes/a.toml" in text
    if line is not None:
        assert f"changes/a.toml:{line}:" in text


def test_the_problems_of_all_files_are_told_at_once(tmp_path: Path) -> None:
    folder = tmp_path / "changes"
    folder.mkdir()
    (folder / "README.md").write_text("words\n")
    (folder / ".hidden").write_text("x")
    (folder / "b.toml").write_text(GOOD)
    (folder / "a.toml").write_text(GOOD)
    assert [each.id for each in load_fragments(tmp_path)] == ["a", "b"]
    (folder / "a.toml").write_text("schema = ")
    (folder / "C.toml").write_text(GOOD)
    (folder / "d.tml").write_text(GOOD)
    with pytest.raises(InputError) as caught:
        load_fragments(tmp_path)
    for name in ("a.toml:1:", "C.toml", "d.tml"):
        assert name in caught.value.message
    assert "b.toml" not in caught.value.message


def test_no_folder_is_no_fragment(tmp_path: Path) -> None:
    assert load_fragments(tmp_path) == ()
    (tmp_path / "changes").write_text("")
    with pytest.raises(InputError, match="expected a folder"):
        load_fragments(tmp_path)


def test_the_committed_schema_and_reference_are_current() -> None:
    committed = (ROOT / "docs" / "changes.schema.json").read_text("utf-8")
    assert committed == schema_text(), (
        "run: python -m stackctl.release.schema > docs/changes.schema.json"
    )
    assert reference() in (ROOT / "docs" / "release.md").read_text("utf-8"), (
        "put the output of `python -m stackctl.release.schema --reference` between the "
        "marks of docs/release.md"
    )


def test_the_schema_knows_the_fragments_of_the_project_and_the_example() -> None:
    validator = jsonschema.Draft202012Validator(fragment_schema())
    paths = sorted((ROOT / "changes").glob("*.toml"))
    assert paths
    for path in paths:
        validator.validate(tomllib.loads(path.read_text("utf-8")))
    page = (ROOT / "docs" / "release.md").read_text("utf-8")
    example = page.split("```toml\n")[1].split("```")[0]
    parse_fragment(example.encode(), "changes/example.toml")
    validator.validate(tomllib.loads(example))
    for wrong in ("sumary = 1", "category = 'x'"):
        with pytest.raises(jsonschema.ValidationError):
            validator.validate({**tomllib.loads(GOOD), **tomllib.loads(wrong)})


def test_every_set_of_this_project_is_told() -> None:
    found = run("changes", "check", "-C", ROOT, "--json")
    assert found.code == 0, found.out
    told = {name for each in found.json["fragments"] for name in each["sets"]}
    assert told == set(found.json["sets"])
