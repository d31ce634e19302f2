# SPDX-License-Identifier: Apache-2.0
"""Properties of the model: positions, canonical JSON, series, schema, edits, lock."""

import copy
import dataclasses
import json
import math
import tomllib
from pathlib import Path
from random import Random
from typing import Any

import jsonschema
from hypothesis import HealthCheck, assume, example, given, note, settings
from hypothesis import strategies as st

from stackctl.errors import InputError
from stackctl.model.canonical import canonical_json, loads_strict, number_text
from stackctl.model.edit import add_set, render_series, set_values, toml_value
from stackctl.model.lock import (
    Content,
    Lock,
    LockedBase,
    MadeBy,
    Step,
    composition_id,
    difference,
    parse_lock,
)
from stackctl.model.positions import Positions
from stackctl.model.schema import series_schema
from stackctl.model.series import (
    Allow,
    ArchiveBase,
    Exclude,
    ExcludedPull,
    GitBase,
    Image,
    PatchSet,
    PatchSource,
    PathBase,
    PathWheel,
    Policy,
    Pull,
    PypiBase,
    PypiWheel,
    Root,
    Series,
    SetGates,
    parse_series,
)


def examples(count: int) -> Any:
    """Settings for a machine that may be busy: no deadline per example."""
    return settings(
        max_examples=count,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
    )


VALIDATOR = jsonschema.Draft202012Validator(series_schema())

# --- TOML text in all of its spellings ------------------------------------------------

WORDS = ["a", "set", "name", "x-y", "0", "true"]
ODD = ["a.b", "]", "[[set]]", "# no", "é", "😀", "a b", '"', "'", "\\", "\t", "= 1"]
LINES = [
    "",
    "# [[set]]",
    "a = 1",
    "[x]",
    "}",
    "]]",
    ",",
    '"',
    "''",
    '""',
    "é😀",
    "\\\\",
]


def spellings(key: str) -> list[str]:
    """Return ways to write a key."""
    found = [json.dumps(key), json.dumps(key, ensure_ascii=False)]
    if key.isascii() and key.replace("-", "").replace("_", "").isalnum():
        found.append(key)
    if "'" not in key and key.isprintable():
        found.append(f"'{key}'")
    return found


SCALARS = ["1", "-7", "0xff", "1_000", "3.5", "-1e-7", "inf", "nan", "true", "false"]
SCALARS += ["1979-05-27", "07:32:00", "1979-05-27 07:32:00.5", "1979-05-27T07:32:00Z"]


class Writer:
    """Writes TOML; keys are unique by a number, everything else is chosen freely.

    A seeded generator makes thousands of texts in the time in which Hypothesis draws
    dozens of this size; a failure is printed whole.
    """

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.number = 0

    def blank(self) -> str:
        return self.random.choice(["", "", " ", "\t"])

    def key(self) -> str:
        parts = []
        for _ in range(self.random.choice([1, 1, 1, 2, 3])):
            self.number += 1
            name = f"{self.random.choice(WORDS + ODD)}{self.number}"
            parts.append(self.random.choice(spellings(name)))
        return f"{self.blank()}.{self.blank()}".join(parts)

    def string(self) -> str:
        choice = self.random.choice
        lines = self.random.choices(LINES, k=self.random.randint(0, 4))
        form = choice(["basic", "literal", "long", "long literal"])
        if form == "basic":
            return json.dumps("\n".join(lines), ensure_ascii=choice([True, False]))
        if form == "literal":
            return "'" + " ".join(lines).replace("'", "") + "'"
        if form == "long":
            body = "\n".join(lines).replace('"""', '""')
            tail = choice(["", '"', '""', "\\\n   ", '\\"""'])
            return '"""' + body.rstrip('"') + tail + '"""'
        body = "\n".join(lines).rstrip("'")
        return "'''" + body + choice(["", "'", "''"]) + "'''"

    def between(self) -> str:
        return self.random.choice(
            ["", " ", "\n", '\n  # ] } = "\n', " # x\n\t", "\n\n"]
        )

    def value(self, depth: int = 0) -> str:
        form = self.random.choice(["scalar", "string", "string", "array", "table"])
        if form == "string":
            return self.string()
        if form == "scalar" or depth > 2:
            return self.random.choice(SCALARS)
        count = self.random.randint(0, 3)
        if form == "array":
            items = [
                self.between() + self.value(depth + 1) + self.between()
                for _ in range(count)
            ]
            comma = self.random.choice(["", ","]) if items else ""
            return "[" + ",".join(items) + comma + self.between() + "]"
        return "{" + ",".join(self.pair(depth + 1) for _ in range(count)) + "}"

    def pair(self, depth: int = 0) -> str:
        return (
            f"{self.blank()}{self.key()}{self.blank()}={self.blank()}"
            f"{self.value(depth)}{self.blank()}"
        )

    def body(self) -> list[str]:
        lines = []
        for _ in range(self.random.randint(0, 3)):
            lines.append(self.pair() + self.random.choice(["", " # [x] = '''", "\t#"]))
            if self.random.random() < 0.3:
                lines.append(self.random.choice(["", "# a = [", "  "]))
        return lines

    def text(self) -> str:
        lines = self.body()
        known: list[str] = []
        for _ in range(self.random.randint(0, 5)):
            form = self.random.choice(["again", "child", "children", "array", "table"])
            name = self.random.choice(known) if known else ""
            if form == "table":
                lines.append(f"[{self.blank()}{self.key()}{self.blank()}] # ]]")
            elif form == "array" or not known:
                known.append(self.key())
                lines.append(f"[[{known[-1]}]]")
            elif form == "again":
                lines.append(f"{self.blank()}[[{self.blank()}{name}{self.blank()}]]")
            elif form == "child":
                lines.append(f"[{name}.{self.key()}]")
            else:
                known.append(f"{name}{self.blank()}.{self.key()}")
                lines.append(f"[[{known[-1]}]] # again")
            lines += self.body()
        text = "\n".join(lines) + self.random.choice(["", "\n"])
        return text.replace("\n", self.random.choice(["\n", "\n", "\r\n"]))


SEEDS = st.integers(0, 2**32)


def toml_text(seed: int) -> tuple[str, dict[str, Any]]:
    """Return a text and what `tomllib` reads in it."""
    text = Writer(seed).text()
    note(text)
    try:
        return text, tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        # A child of a table that another header has closed, or the like.
        assume(False)
        raise


def leaves(value: Any, path: tuple[str | int, ...] = ()) -> Any:
    """Yield the path and value of all that is no table and no list with items."""
    if isinstance(value, dict) and (value or not path):
        for key, item in value.items():
            yield from leaves(item, (*path, key))
    elif isinstance(value, list) and value:
        for n, item in enumerate(value):
            yield from leaves(item, (*path, n))
    else:
        yield path, value


@examples(400)
@given(SEEDS)
def test_every_leaf_has_the_line_of_its_key(seed: int) -> None:
    text, document = toml_text(seed)
    found = Positions(text)
    lines = text.split("\n")
    known = found.known()
    for path, _ in leaves(document):
        assert path in known
        line = lines[found.line(path) - 1]
        if isinstance(path[-1], str):
            assert any(name in line for name in spellings(path[-1]))


@examples(400)
@given(SEEDS)
def test_every_span_is_exactly_its_value(seed: int) -> None:
    text, document = toml_text(seed)
    for path, pair in Positions(text).pairs.items():
        value = document
        for step in path:
            value = value[step]  # type: ignore[index]
        alone = tomllib.loads(f"x = {text[pair.value : pair.end]}\n")["x"]
        assert repr(alone) == repr(value)


@examples(300)
@given(SEEDS)
def test_an_edit_changes_one_place_only(seed: int) -> None:
    text, document = toml_text(seed)
    random = Random(seed)
    found = Positions(text)
    tables = [section.path for section in found.sections]
    tables += [path for path in found.inline if _tables_only(document, path)]
    table = random.choice(tables)
    holder: Any = document
    for step in table:
        holder = holder[step]
    known = [
        key for key, value in holder.items() if not isinstance(value, (dict, list))
    ]
    key = random.choice([*known, "fresh key", "fresh"])
    value = random.choice(["text\n\"'", 7, True, ["a", "b"], {"k": "v"}])
    new = set_values(text, {(*table, key): value}, file="f")
    wanted = copy.deepcopy(document)
    holder = wanted
    for step in table:
        holder = holder[step]
    holder[key] = value
    assert _equal(tomllib.loads(new), wanted)
    assert set_values(new, {(*table, key): value}, file="f") == new
    # What was there is still there, around one place.
    start = _common(text, new)
    end = _common(text[start:][::-1], new[start:][::-1])
    assert text[:start] + new[start : len(new) - end] + text[len(text) - end :] == new
    if key not in known:
        assert start + end >= len(text) - 1  # an empty inline table loses a blank


def _tables_only(document: Any, path: tuple[str | int, ...]) -> bool:
    """Whether no list is on the way: items of value lists are not edited."""
    for step in path:
        if isinstance(document, list):
            return False
        document = document[step]
    return isinstance(document, dict)


def _common(one: str, other: str) -> int:
    count = 0
    for a, b in zip(one, other, strict=False):
        if a != b:
            break
        count += 1
    return count


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(_equal(one[k], other[k]) for k in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(_equal, one, other))
    return repr(one) == repr(other)


FRAGMENTS = st.sampled_from(
    ["[", "]", "[[", "]]", "{", "}", "=", ".", ",", '"', "'", '"""', "'''", "\\", "\n"]
) | st.sampled_from(["#", " ", "a", "1", "set", "base", "\r\n", "é", "\x00", "\ud800"])


@examples(500)
@given(st.one_of(st.text(), st.lists(FRAGMENTS).map("".join)))
@example("[[set]]\n[set.pull]\n[[set]]")
@example("a.b = 1\n[a]")
def test_any_text_is_read_or_refused(text: str) -> None:
    Positions(text).line(("set", 0, "name"))
    try:
        parse_series(text, file="series.toml")
    except InputError as error:
        assert error.where["file"] == "series.toml"


# --- canonical JSON -------------------------------------------------------------------

JSON = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(2**53), 2**53),
        st.floats(allow_nan=False, allow_infinity=False),
        st.text(st.characters(exclude_categories=["Cs"])),
    ),
    lambda inner: st.one_of(
        st.lists(inner),
        st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), inner),
    ),
    max_leaves=20,
)


@examples(200)
@given(JSON)
@example(2.0**53 + 2)
@example(2.611046734303445e16)
def test_canonical_json_says_the_same_and_is_stable(value: Any) -> None:
    data = canonical_json(value)
    again = loads_strict(data)
    assert _floats(again) == _floats(value)
    assert canonical_json(again) == data


def _floats(value: Any) -> Any:
    """Numbers as RFC 8785 sees them: doubles."""
    if isinstance(value, dict):
        return {key: _floats(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_floats(item) for item in value]
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return float(value) if is_number else value


@examples(100)
@given(st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), st.none()))
def test_order_of_insertion_does_not_count(value: dict[str, Any]) -> None:
    turned = dict(reversed(value.items()))
    assert canonical_json(turned) == canonical_json(value)
    keys = list(loads_strict(canonical_json(value)))
    assert keys == sorted(keys, key=lambda key: key.encode("utf-16-be"))


@examples(1000)
@given(st.floats(allow_nan=False, allow_infinity=False))
@example(5e-324)
@example(1e21)
@example(1e-6)
@example(1e-7)
@example(123456789012345680000.0)
def test_numbers_read_back_exactly(number: float) -> None:
    text = number_text(number)
    assert float(text) == number
    digits = text.lstrip("-").partition("e")[0].replace(".", "").strip("0")
    assert len(digits) <= 17
    size = abs(number)
    assert ("e" in text) == (size != 0 and not 1e-6 <= size < 1e21)
    assert math.copysign(1, float(text)) == math.copysign(1, number) or number == 0


@given(st.binary())
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    try:
        loads_strict(data)
    except InputError:
        pass
    else:
        json.loads(data.decode("utf-8"))


# --- series ---------------------------------------------------------------------------

NAMES = st.text("ab0-", min_size=1, max_size=6)
IDS = st.sampled_from([digit * 40 for digit in "0123456789abcdef"])
DIGESTS = st.sampled_from([digit * 64 for digit in "0123456789abcdef"])
LINE = st.text(
    st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=20
).filter(lambda text: text.strip() != "")
PARTS = st.sampled_from(["a", "b c", "é", "**", "x.patch", "...", "-", "~", "$(x)"])
INSIDE = st.lists(PARTS, min_size=1, max_size=3).map("/".join)
REPOS = st.sampled_from(["o/n", "O.x/n_1", "a-b/.github"])
TREES = st.none() | IDS
BASES = st.one_of(
    st.builds(PypiBase, pypi=st.just("vllm==0.33.0"), sha256=DIGESTS, tree=TREES),
    st.builds(
        GitBase,
        git=st.sampled_from(["https://example.org/v.git", "../v", "git@host:v"]),
        commit=IDS,
        ref=st.none() | st.just("refs/heads/main"),
        tree=TREES,
    ),
    st.builds(
        ArchiveBase,
        archive=st.sampled_from(["a.zip", "https://example.org/a.tar.gz"]),
        sha256=DIGESTS,
        strip=st.integers(0, 16),
        tree=TREES,
    ),
    st.builds(PathBase, path=st.sampled_from(["/base", "../b ase"]), tree=TREES),
)


def tuples(
    items: st.SearchStrategy[Any], least: int = 0
) -> st.SearchStrategy[tuple[Any, ...]]:
    return st.lists(items, unique=True, min_size=least, max_size=3).map(tuple)


@st.composite
def gates(draw: st.DrawFn) -> SetGates:
    names = draw(st.lists(NAMES, unique=True, max_size=4))
    cut = draw(st.integers(0, len(names)))
    return SetGates(required=tuple(names[:cut]), advisory=tuple(names[cut:]))


@st.composite
def patch_sets(draw: st.DrawFn, name: str, earlier: tuple[str, ...]) -> PatchSet:
    source = draw(st.sampled_from(["folder", "files", "merge", "cherry-pick", "draft"]))
    pull = None
    if source in {"merge", "cherry-pick"} or draw(st.booleans()):
        pull = Pull(
            repo=draw(REPOS),
            number=draw(st.integers(1, 2**31 - 1)),
            head=draw(IDS) if source in {"merge", "cherry-pick"} else None,
            commits=draw(tuples(IDS, 1)) if source == "cherry-pick" else (),
            url=draw(st.none() | st.just("https://example.org/fork.git")),
            ref=draw(st.none() | st.just("refs/heads/topic")),
        )
    patches = None
    if source == "folder":
        patches = PatchSource(folder=draw(INSIDE))
    elif source == "files":
        patches = PatchSource(files=draw(tuples(INSIDE, 1)))
    included = draw(st.booleans())
    return PatchSet(
        name=name,
        title=draw(st.just("") | LINE),
        reason=draw(st.just("") | LINE.map(lambda text: f"{text}\n\t{text}")),
        retire=draw(st.just("") | LINE),
        patches=patches,
        requires=draw(tuples(st.sampled_from(earlier))) if earlier else (),
        draft=source == "draft" or draw(st.booleans()),
        pull=pull,
        strategy=source if source in {"merge", "cherry-pick"} else "apply",  # type: ignore[arg-type]
        disposition="included" if included else "superseded",
        why="" if included else draw(LINE),
        reviewers=draw(tuples(st.sampled_from(["octocat", "org/team", "a_b"]))),
        labels=draw(tuples(LINE)),
        gates=draw(gates()),
    )


IMAGES = st.builds(
    Image,
    ref=st.sampled_from(["oci:build", "docker://h/n@sha256:00", "rootfs:/"]),
    platform=st.none() | st.just("linux/arm64/v8"),
    roots=st.lists(
        st.builds(
            Root,
            tree=st.just(".") | INSIDE,
            path=INSIDE.map(lambda path: f"/{path}"),
            kind=st.sampled_from(["package", "checkout"]),
        ),
        min_size=1,
        max_size=3,
        unique_by=lambda root: root.path,
    ).map(tuple),
    wheel=st.none()
    | st.builds(PypiWheel, pypi=st.just("vllm==0.33.0"), sha256=DIGESTS)
    | st.builds(PathWheel, path=INSIDE, sha256=DIGESTS),
    allow=st.lists(
        st.builds(Allow, path=INSIDE, sha256=DIGESTS),
        max_size=2,
        unique_by=lambda allow: allow.path,
    ).map(tuple),
    unpackaged=tuples(INSIDE),
)


@st.composite
def all_series(draw: st.DrawFn) -> Series:
    names = draw(st.lists(NAMES, unique=True, max_size=4))
    return Series(
        root=Path(),
        file="series.toml",
        schema=1,
        name=draw(NAMES),
        base=draw(BASES),
        sets=tuple(
            draw(patch_sets(name, tuple(names[:n]))) for n, name in enumerate(names)
        ),
        excludes=tuple(
            # The repository is one that no generated set can name.
            Exclude(
                pull=ExcludedPull(repo="long-owner/x", number=n + 1, head=draw(IDS)),
                kind=draw(st.sampled_from(["alternative", "superseded"])),
                why=draw(LINE),
            )
            for n in range(draw(st.integers(0, 2)))
        ),
        images=tuple(draw(st.lists(IMAGES, max_size=2))),
        policy=Policy(
            receipt_signers=draw(tuples(LINE)),
            release_requires=draw(
                tuples(st.sampled_from(["gates", "images", "changes", "pins"]))
            ),
        ),
    )


@examples(100)
@given(all_series())
def test_a_series_survives_its_text_and_the_schema_accepts_it(series: Series) -> None:
    text = render_series(series)
    assert parse_series(text, file="series.toml") == series
    VALIDATOR.validate(tomllib.loads(text))


@examples(100)
@given(all_series(), st.data())
def test_a_set_is_added_where_it_is_wanted(series: Series, data: st.DataObject) -> None:
    names = [item.name for item in series.sets]
    name = data.draw(NAMES.filter(lambda name: name not in names))
    after = data.draw(st.none() | st.sampled_from(names)) if names else None
    place = len(names) if after is None else names.index(after) + 1
    item = data.draw(patch_sets(name, tuple(names[:place])))
    text = render_series(series)
    new = add_set(text, item, file="series.toml", after=after)
    sets = (*series.sets[:place], item, *series.sets[place:])
    wanted = dataclasses.replace(series, sets=sets)
    assert parse_series(new, file="series.toml") == wanted
    lines = iter(new.splitlines())
    assert all(line in lines for line in text.splitlines())  # in this order


JUNK = st.sampled_from(
    ["", " ", "x", "..", "/", "a/../b", "/a", "a-b", "A", "a/b", 0, 1, -1, 17, 2**40]
) | st.sampled_from(
    [True, False, 1.5, [], [1], ["x"], ["x", "x"], {}, {"name": "x"}, [{}], "f" * 40]
)
KEYS = sorted(
    {name for item in series_schema()["$defs"].values() for name in item["properties"]}
)


@examples(150)
@given(all_series(), st.data())
def test_what_the_reader_accepts_the_schema_accepts(
    series: Series, data: st.DataObject
) -> None:
    document = tomllib.loads(render_series(series))
    for _ in range(data.draw(st.integers(1, 3))):
        holders = [document, *_holders(document)]
        holder = data.draw(st.sampled_from(holders))
        if isinstance(holder, dict):
            key = data.draw(st.sampled_from([*holder, *KEYS]))
            if key in holder and data.draw(st.booleans()):
                del holder[key]
            else:
                holder[key] = copy.deepcopy(data.draw(JUNK))
        elif holder and data.draw(st.booleans()):
            holder.append(copy.deepcopy(data.draw(st.sampled_from(holder))))
        else:
            holder.append(copy.deepcopy(data.draw(JUNK)))
    text = "\n".join(
        f"{json.dumps(key)} = {_toml(value)}" for key, value in document.items()
    )
    assert _equal(tomllib.loads(text), document)
    try:
        parse_series(text, file="series.toml")
    except InputError as error:
        assert error.where["file"] == "series.toml"
        assert error.where["line"] in range(1, text.count("\n") + 2)
    else:
        VALIDATOR.validate(document)


def _holders(value: Any) -> list[Any]:
    found: list[Any] = []
    items = value.values() if isinstance(value, dict) else value
    for item in items:
        if isinstance(item, (dict, list)):
            found += [item, *_holders(item)]
    return found


def _toml(value: Any) -> str:
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, dict):
        pairs = (f"{json.dumps(key)} = {_toml(item)}" for key, item in value.items())
        return "{" + ", ".join(pairs) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_toml, value)) + "]"
    return toml_value(value)


# --- lock -----------------------------------------------------------------------------


@st.composite
def steps(draw: st.DrawFn) -> Step:
    pinned = draw(st.booleans())
    return Step(
        set=draw(NAMES),
        patch=None if pinned else draw(INSIDE),
        sha256=None if pinned else draw(DIGESTS),
        head=draw(IDS) if pinned else None,
        strategy="merge" if pinned else "apply",
        disposition="merged" if pinned else "applied",
        patch_id=draw(st.none() | IDS),
        tree=draw(IDS),
        commit=draw(IDS),
    )


@st.composite
def contents(draw: st.DrawFn) -> Content:
    base = LockedBase(
        kind=draw(st.sampled_from(["pypi", "git", "archive", "path"])),
        identity=draw(LINE),
        tree=draw(IDS),
        commit=draw(IDS),
    )
    chain = tuple(draw(st.lists(steps(), max_size=4)))
    last = chain[-1] if chain else base
    return Content(
        schema=1,
        base=base,
        steps=chain,
        tree=last.tree,
        commit=last.commit,
        content_sha256=draw(DIGESTS),
    )


MADE_BY = st.builds(
    MadeBy,
    tool=LINE,
    git=LINE,
    python=LINE,
    options=st.dictionaries(LINE, st.booleans() | LINE, max_size=2),
    resolutions=tuples(INSIDE),
)


@examples(100)
@given(contents(), MADE_BY, MADE_BY)
def test_a_lock_survives_its_bytes(content: Content, one: MadeBy, two: MadeBy) -> None:
    lock = Lock(content=content, made_by=one)
    data = lock.to_bytes()
    read = parse_lock(data, file="series.lock")
    assert read == lock
    assert read.canonical
    assert read.composition == Lock(content=content, made_by=two).composition
    assert data.endswith(b"}\n")
    assert data.count(b"\n") == 1


@examples(100)
@given(contents(), contents(), st.data())
def test_difference_and_id_agree(
    one: Content, other: Content, data: st.DataObject
) -> None:
    if data.draw(st.booleans()):  # a near relative
        chain = list(one.steps)
        if chain:
            n = data.draw(st.integers(0, len(chain) - 1))
            change = data.draw(st.sampled_from(["drop", "twice", "patch_id", "commit"]))
            if change == "drop":
                del chain[n]
            elif change == "twice":
                chain.insert(n, chain[n])
            else:
                chain[n] = dataclasses.replace(chain[n], **{change: data.draw(IDS)})
        other = dataclasses.replace(one, steps=tuple(chain))
    same = composition_id(one) == composition_id(other)
    assert (difference(one, other) == ()) == same
    assert all(said.isprintable() for said in difference(one, other))
    assert difference(one, one) == ()
