# SPDX-License-Identifier: Apache-2.0
"""The lock: bytes, id, strict reading, and differences in plain words."""

import dataclasses
import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from stackctl.errors import InputError
from stackctl.model.canonical import canonical_json
from stackctl.model.lock import (
    Content,
    Lock,
    composition_id,
    difference,
    parse_lock,
    read_lock,
    write_lock,
)


def hexed(digit: str, length: int = 40) -> str:
    return digit * length


def document() -> dict[str, Any]:
    """A lock with a patch, a merge and an excluded set."""
    return {
        "content": {
            "schema": 1,
            "base": {
                "kind": "pypi",
                "identity": "vllm==0.33.0 sha256:" + hexed("a", 64),
                "tree": hexed("1"),
                "commit": hexed("2"),
            },
            "steps": [
                {
                    "set": "prefetch",
                    "patch": "patches/prefetch/0001-first.patch",
                    "sha256": hexed("b", 64),
                    "strategy": "apply",
                    "disposition": "applied",
                    "patch_id": hexed("3"),
                    "tree": hexed("4"),
                    "commit": hexed("5"),
                },
                {
                    "set": "pinned",
                    "patch": None,
                    "head": hexed("6"),
                    "strategy": "merge",
                    "disposition": "merged",
                    "patch_id": None,
                    "tree": hexed("7"),
                    "commit": hexed("8"),
                },
                {
                    "set": "old",
                    "patch": None,
                    "strategy": "apply",
                    "disposition": "excluded",
                    "patch_id": None,
                    "tree": hexed("7"),
                    "commit": hexed("8"),
                },
            ],
            "tree": hexed("7"),
            "commit": hexed("8"),
            "content_sha256": hexed("c", 64),
        },
        "made_by": {
            "tool": "stackctl 0.1.0",
            "git": "2.39.5",
            "python": "3.11.2",
            "options": {"route": "both"},
            "resolutions": ["patches/resolutions/a.json"],
        },
    }


def data(changed: dict[str, Any]) -> bytes:
    return canonical_json(changed) + b"\n"


def lock(changed: dict[str, Any] | None = None) -> Lock:
    return parse_lock(data(changed or document()), file="series.lock")


def test_bytes_survive_reading_and_writing() -> None:
    read = lock()
    assert read.canonical
    assert read.to_bytes() == data(document())
    assert json.loads(read.to_bytes()) == document()


def test_the_id_is_the_digest_of_the_content_alone() -> None:
    read = lock()
    expected = hashlib.sha256(canonical_json(document()["content"])).hexdigest()
    assert read.composition == composition_id(read.content) == expected
    other = document()
    other["made_by"]["git"] = "2.50.0"
    assert lock(other).composition == expected
    other["content"]["content_sha256"] = hexed("d", 64)
    assert lock(other).composition != expected


def test_another_spelling_is_read_and_told() -> None:
    pretty = json.dumps(document(), indent=1).encode()
    read = parse_lock(pretty, file="series.lock")
    assert not read.canonical
    assert read == lock()
    assert read.to_bytes() == data(document())


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("content", "tree"), "x", "`tree` in `content` must be a full git id"),
        (("content", "tree"), hexed("9"), "but step 3 ends with 7777"),
        (("content", "commit"), hexed("9"), "but step 3 ends with 8888"),
        (("content", "steps", 0, "sha"), "x", "unknown key `sha` in `steps` #1 in"),
        (("content", "steps", 0, "head"), hexed("9"), "has both `sha256` and `head`"),
        (("content", "steps", 0, "patch"), "../x", "`patch` in `steps` #1"),
        (("content", "steps", 0, "patch"), None, "a patch, but no `patch`"),
        (("content", "steps", 1, "strategy"), "rebase", 'one of "apply", "merge"'),
        (("content", "base", "kind"), "pypy", "did you mean `pypi`"),
        (("content", "schema"), True, "`schema` in `content` must be the number 1"),
        (("made_by", "options"), [], "`options` in `made_by` must be a table"),
        (("made_by", "host"), "x", "unknown key `host` in `made_by`"),
        (("extra",), 1, "unknown key `extra`; "),
        (("content",), None, "`content` must be a table; found null"),
    ],
)
def test_faults_are_named_with_their_key(
    path: tuple[str | int, ...], value: object, message: str
) -> None:
    changed: Any = document()
    table = changed
    for step in path[:-1]:
        table = table[step]
    table[path[-1]] = value
    with pytest.raises(InputError) as caught:
        lock(changed)
    assert message in caught.value.message
    assert caught.value.message.startswith(("series.lock: ", "2 problems"))
    assert caught.value.where["file"] == "series.lock"
    assert str(caught.value.where["key"]).startswith(str(path[0]))
    assert caught.value.exit_code == 3


def test_a_missing_key_is_named() -> None:
    changed = document()
    del changed["content"]["steps"][1]["head"]
    del changed["made_by"]["git"]
    with pytest.raises(InputError) as caught:
        lock(changed)
    assert caught.value.message.splitlines() == [
        "2 problems in series.lock:",
        "series.lock: `steps` #2 in `content` needs `sha256` (of a patch) or `head` "
        "(of a pinned commit)",
        "series.lock: `made_by` needs the key `git`: a text of one line",
    ]
    assert caught.value.where == {"file": "series.lock", "key": "content.steps[1]"}


def test_a_newer_format_is_not_a_list_of_unknown_keys() -> None:
    changed = document()
    changed["content"]["schema"] = 2
    changed["content"]["novelty"] = 1
    with pytest.raises(InputError) as caught:
        lock(changed)
    assert caught.value.kind == "schema-too-new"
    assert "schema = 2" in caught.value.message


@pytest.mark.parametrize("text", [b"[]", b"null", b'{"a":1,"a":2}', b"\xff", b""])
def test_what_is_no_lock_is_refused(text: bytes) -> None:
    with pytest.raises(InputError):
        parse_lock(text, file="series.lock")


def test_file_is_written_once(tmp_path: Path) -> None:
    path = tmp_path / "series.lock"
    assert write_lock(path, lock())
    before = path.stat()
    assert not write_lock(path, lock())
    assert path.stat().st_mtime_ns == before.st_mtime_ns
    assert path.stat().st_ino == before.st_ino
    assert read_lock(path) == lock()
    assert [p.name for p in tmp_path.iterdir()] == ["series.lock"]
    path.write_bytes(b"x" * 10_000)
    assert write_lock(path, lock())
    assert read_lock(path).canonical


def content(**changes: Any) -> Content:
    return dataclasses.replace(lock().content, **changes)


def with_step(n: int, **changes: Any) -> Content:
    steps = list(lock().content.steps)
    steps[n] = dataclasses.replace(steps[n], **changes)
    return content(steps=tuple(steps))


FIRST = "patches/prefetch/0001-first.patch"


@pytest.mark.parametrize(
    ("composed", "said"),
    [
        (content(), []),
        (
            with_step(0, sha256=hexed("d", 64), tree=hexed("e")),
            [
                f"step 1 ({FIRST}): sha256 is {hexed('b', 64)} in the lock, "
                f"but {hexed('d', 64)} now",
                f"step 1 ({FIRST}): tree is {hexed('4')} in the lock, "
                f"but {hexed('e')} now",
            ],
        ),
        (
            with_step(1, head=hexed("e")),
            [
                f"step 2 (pinned (merge {hexed('6')})): head is {hexed('6')} "
                f"in the lock, but {hexed('e')} now"
            ],
        ),
        (
            content(steps=lock().content.steps[:1]),
            [
                f"the lock goes on with step 2 (pinned (merge {hexed('6')})); "
                "the composition ends after 1"
            ],
        ),
        (
            content(steps=lock().content.steps[1:]),
            [
                f"step 1 is {FIRST} in the lock, but pinned (merge {hexed('6')}) now; "
                f"{FIRST} is gone"
            ],
        ),
        (
            content(steps=lock().content.steps[::-1]),
            [f"step 1 is {FIRST} in the lock, but old (apply of nothing) now"],
        ),
        (
            content(tree=hexed("9")),
            [
                f"the result: tree is {hexed('7')} in the lock, but {hexed('9')} now",
            ],
        ),
        (
            content(base=dataclasses.replace(content().base, identity="other")),
            [
                "the base: identity is vllm==0.33.0 sha256:"
                f"{hexed('a', 64)} in the lock, but other now"
            ],
        ),
    ],
)
def test_difference_names_the_first_step_that_differs(
    composed: Content, said: list[str]
) -> None:
    assert list(difference(lock().content, composed)) == said


def test_difference_says_what_is_new() -> None:
    longer = content()
    shorter = content(steps=longer.steps[:2])
    assert difference(shorter, longer) == (
        "step 3 (old (apply of nothing)) is not in the lock, which ends after 2",
    )


def test_any_change_of_content_is_a_difference() -> None:
    assert difference(content(), content(content_sha256=hexed("e", 64)))
