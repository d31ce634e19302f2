# SPDX-License-Identifier: Apache-2.0
"""`series.toml`: what is read, and that every fault names line, key and remedy."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from stackctl.errors import InputError, UsageError
from stackctl.model.series import (
    Allow,
    ArchiveBase,
    Exclude,
    ExcludedPull,
    GitBase,
    PatchSource,
    PathBase,
    PathWheel,
    Policy,
    Pull,
    PypiBase,
    PypiWheel,
    Root,
    SetGates,
    load_series,
    parse_series,
)

ID = "0123456789abcdef0123456789abcdef01234567"
OTHER = "76543210fedcba9876543210fedcba9876543210"
DIGEST = "f4c33c25" * 8

FULL = f"""\
#:schema docs/series.schema.json
schema = 1
name = "glm53-flash"

[base]                                # exactly one of the four forms
pypi = "vllm==0.33.0"
sha256 = "{DIGEST}"
tree = "{ID}"

[[set]]
name = "parallel-prefill"
title = "Parallel prefill of pooled keys"
reason = "Long prompts wait."
retire = "When upstream replaces the kernel."
patches = "patches/parallel-prefill/"
requires = []
draft = false
pull = {{ repo = "owner/name", number = 505 }}
reviewers = ["octocat", "org/team"]
labels = ["performance: prefill"]
gates = {{ required = ["kpool-parity"], advisory = ["kpool-speed"] }}

[[set]]
name = "pinned"
requires = ["parallel-prefill"]
pull = {{ repo = "owner/name", number = 619, head = "{ID}" }}
strategy = "merge"
disposition = "included"

[[set]]
name = "picked"
pull = {{ repo = "owner/name", number = 620, head = "{ID}", commits = ["{OTHER}"] }}
strategy = "cherry-pick"

[[set]]
name = "gone"
pull = {{ repo = "owner/name", number = 621, head = "{ID}" }}
disposition = "superseded"
why = "Upstream has it."

[[set]]
name = "listed"
patches = ["patches/b.patch", "./patches/a.patch"]

[[exclude]]
pull = {{ repo = "owner/name", number = 289, head = "{OTHER}" }}
kind = "superseded"
why = "Replaced by 505."

[[image]]
ref = "docker://registry.example.org/vllm@sha256:{DIGEST}"
platform = "linux/amd64"
roots = [{{ tree = "vllm", path = "/opt/site-packages/vllm", kind = "package" }},
         {{ tree = ".", path = "/opt/vllm", kind = "checkout" }}]
wheel = {{ pypi = "vllm==0.33.0", sha256 = "{DIGEST}" }}
allow = [{{ path = "vllm/_version.py", sha256 = "{DIGEST}" }}]
unpackaged = ["vllm/**/README.md"]

[policy]
receipt_signers = ["ssh-ed25519 AAAA"]
release_requires = ["gates", "pins"]
"""

HEAD = f"""\
schema = 1
name = "s"
[base]
path = "/base"
tree = "{ID}"
"""


def test_every_key_of_the_format_is_read() -> None:
    series = parse_series(FULL, file="project/series.toml")
    assert series.root == Path("project")
    assert (series.schema, series.name) == (1, "glm53-flash")
    assert series.base == PypiBase(pypi="vllm==0.33.0", sha256=DIGEST, tree=ID)
    first, pinned, picked, gone, listed = series.sets
    assert first.name == "parallel-prefill"
    assert first.title == "Parallel prefill of pooled keys"
    assert first.reason == "Long prompts wait."
    assert first.retire == "When upstream replaces the kernel."
    assert first.patches == PatchSource(folder="patches/parallel-prefill")
    assert first.requires == ()
    assert first.pull == Pull(repo="owner/name", number=505)
    assert first.pull.fetch_url == "https://github.com/owner/name"
    assert first.pull.fetch_ref == "refs/pull/505/head"
    assert first.reviewers == ("octocat", "org/team")
    assert first.labels == ("performance: prefill",)
    assert first.gates == SetGates(
        required=("kpool-parity",), advisory=("kpool-speed",)
    )
    assert (first.strategy, first.pinned, first.composed) == ("apply", False, True)
    assert pinned.requires == ("parallel-prefill",)
    assert (pinned.strategy, pinned.pinned, pinned.composed) == ("merge", True, True)
    assert pinned.pull is not None
    assert pinned.pull.head == ID
    assert picked.strategy == "cherry-pick"
    assert picked.pull is not None
    assert picked.pull.commits == (OTHER,)
    assert (gone.disposition, gone.why) == ("superseded", "Upstream has it.")
    assert not gone.composed
    assert listed.patches == PatchSource(files=("patches/b.patch", "patches/a.patch"))
    assert series.excludes == (
        Exclude(
            pull=ExcludedPull(repo="owner/name", number=289, head=OTHER),
            kind="superseded",
            why="Replaced by 505.",
        ),
    )
    (image,) = series.images
    assert image.ref.startswith("docker://registry.example.org/vllm@sha256:")
    assert image.platform == "linux/amd64"
    assert image.roots == (
        Root(tree="vllm", path="/opt/site-packages/vllm", kind="package"),
        Root(tree=".", path="/opt/vllm", kind="checkout"),
    )
    assert image.wheel == PypiWheel(pypi="vllm==0.33.0", sha256=DIGEST)
    assert image.allow == (Allow(path="vllm/_version.py", sha256=DIGEST),)
    assert image.unpackaged == ("vllm/**/README.md",)
    assert series.policy == Policy(
        receipt_signers=("ssh-ed25519 AAAA",), release_requires=("gates", "pins")
    )


def test_what_may_be_left_out() -> None:
    series = parse_series(HEAD, file="series.toml")
    assert series.sets == series.excludes == series.images == ()
    assert series.policy.receipt_signers == ()
    assert series.policy.release_requires == ("gates", "images", "changes", "pins")


@pytest.mark.parametrize(
    ("text", "base"),
    [
        (
            f'git = "https://example.org/v.git"\ncommit = "{ID}"',
            GitBase(git="https://example.org/v.git", commit=ID),
        ),
        (
            f'git = "git@example.org:v"\ncommit = "{ID}"\nref = "refs/heads/main"',
            GitBase(git="git@example.org:v", commit=ID, ref="refs/heads/main"),
        ),
        (
            f'archive = "a.tar.gz"\nsha256 = "{DIGEST}"\nstrip = 1',
            ArchiveBase(archive="a.tar.gz", sha256=DIGEST, strip=1),
        ),
        (
            f'archive = "https://user@example.org/a.zip"\nsha256 = "{DIGEST}"',
            ArchiveBase(
                archive="https://user@example.org/a.zip", sha256=DIGEST, strip=0
            ),
        ),
        (f'path = "../base"\ntree = "{ID}"', PathBase(path="../base", tree=ID)),
    ],
)
def test_forms_of_the_base(text: str, base: object) -> None:
    series = parse_series(f'schema=1\nname="s"\n[base]\n{text}\n', file="series.toml")
    assert series.base == base


def test_wheel_of_a_path() -> None:
    text = FULL.replace('wheel = { pypi = "vllm==0.33.0"', 'wheel = { path = "w.whl"')
    (image,) = parse_series(text, file="series.toml").images
    assert image.wheel == PathWheel(path="w.whl", sha256=DIGEST)


def test_patches_beside_a_recorded_head_are_applied() -> None:
    text = f"""{HEAD}
[[set]]
name = "a"
patches = "p"
pull = {{ repo = "o/n", number = 1, head = "{ID}" }}
"""
    (item,) = parse_series(text, file="series.toml").sets
    assert item.strategy == "apply"
    assert not item.pinned


def test_find_names_the_nearest() -> None:
    series = parse_series(FULL, file="series.toml")
    assert series.find("gone").name == "gone"
    with pytest.raises(UsageError, match="did you mean `parallel-prefill`"):
        series.find("paralel-prefill")


def test_all_problems_are_told_together() -> None:
    text = FULL.replace('labels = ["performance: prefill"]', 'lables = ["x"]').replace(
        'strategy = "merge"', "strategy = 1"
    )
    with pytest.raises(InputError) as caught:
        parse_series(text, file="series.toml")
    assert caught.value.message.splitlines() == [
        "2 problems in series.toml:",
        "series.toml:20: unknown key `lables` in [[set]] #1 (parallel-prefill); "
        "did you mean `labels`?",
        "series.toml:27: `strategy` in [[set]] #2 (pinned) must be one of "
        '"merge", "cherry-pick", "apply"; found the number 1',
    ]
    assert caught.value.where == {
        "file": "series.toml",
        "line": 20,
        "key": "set[0].lables",
        "set": "parallel-prefill",
    }
    assert caught.value.exit_code == 3


def test_a_flood_of_problems_is_cut() -> None:
    text = HEAD + "".join(f"odd{n} = 1\n" for n in range(100_000))
    with pytest.raises(InputError) as caught:
        parse_series(text, file="series.toml")
    lines = caught.value.message.splitlines()
    assert lines[0] == "at least 500 problems in series.toml:"
    assert lines[-1] == "... and 450 more"
    assert len(lines) == 52


def test_control_characters_do_not_reach_the_terminal() -> None:
    text = HEAD + '"\\u001b[2J\\u202e" = 1\n'
    with pytest.raises(InputError) as caught:
        parse_series(text, file="series.toml")
    assert "`\\u001b[2J\\u202e`" in caught.value.message
    assert str(caught.value.where["key"]).isprintable()


def test_files_that_are_no_text(tmp_path: Path) -> None:
    path = tmp_path / "series.toml"
    with pytest.raises(InputError, match="no such file"):
        load_series(path)
    path.write_bytes(b"\xef\xbb\xbf" + FULL.encode())
    with pytest.raises(InputError, match=r"series\.toml:1: starts with a byte order"):
        load_series(path)
    path.write_bytes(FULL.encode("utf-16"))
    with pytest.raises(InputError, match="byte order mark"):
        load_series(path)
    path.write_bytes(b'schema = 1\nname = "\xe9"\n')
    with pytest.raises(InputError, match=r"series\.toml:2: not UTF-8: byte 0xe9"):
        load_series(path)
    path.write_bytes(b"#" * (4 * 1024 * 1024 + 1))
    with pytest.raises(InputError, match="at most 4,194,304 are accepted"):
        load_series(path)
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(InputError, match="expected a regular file, found a FIFO"):
        load_series(path)
    path.unlink()
    path.mkdir()
    with pytest.raises(InputError, match="found a folder"):
        load_series(path)


def test_carriage_returns_do_not_shift_lines(tmp_path: Path) -> None:
    path = tmp_path / "series.toml"
    path.write_bytes(FULL.replace("draft = false", "draft = 0").encode())
    with pytest.raises(InputError) as unix:
        load_series(path)
    path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))
    with pytest.raises(InputError) as dos:
        load_series(path)
    assert unix.value.message == dos.value.message
    assert unix.value.where["line"] == 17


@pytest.mark.parametrize(
    "text",
    [
        "a = " + "[" * 100_000,
        "a = " + "{ b = " * 100_000,
        ".".join("a" * 200_000) + " = 1",
        '"a"' + '."a"' * 100_000 + " = 1",
        "[" + ".".join("a" * 200_000) + "]",
        "a = " + "9" * 100_000,
        '"' + "a" * 1_000_000,
        "a = '''" + "'" * 2 + "b" * 1_000_000,
        "a" * 1_000_000,
        "a = 1979-13-45",
    ],
)
def test_hostile_text_is_refused_quickly(text: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_series(text, file="series.toml")
    assert len(caught.value.message) < 500


def test_order_of_a_folder_is_by_number(tmp_path: Path) -> None:
    folder = tmp_path / "patches"
    folder.mkdir()
    for name in ["10000-z.patch", "9999-a.patch", "0002-b.patch", "README.md"]:
        (folder / name).touch()
    source = PatchSource(folder="patches")
    assert [path.name for path in source.paths(tmp_path)] == [
        "0002-b.patch",
        "9999-a.patch",
        "10000-z.patch",
    ]


@pytest.mark.parametrize(
    "name",
    ["fix.patch", "1-fix.patch", "x0001-a.patch", "0003-a.diff", "0003-a.PATCH",
     "0003-a.patch.txt", "0003-a\nb.patch", "0003-\udcff.patch"],
)  # fmt: skip
def test_a_patch_that_would_be_left_out_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "p").mkdir()
    (tmp_path / "p" / name).touch()
    with pytest.raises(InputError, match=r"named like `0001-subject\.patch`"):
        PatchSource(folder="p").paths(tmp_path)


@pytest.mark.parametrize(
    "name", ["0003-a.patch~", "0003-a.patch.orig", ".0003-a.patch.swp", "README.md"]
)
def test_what_editors_leave_beside_patches_is_no_patch(
    tmp_path: Path, name: str
) -> None:
    (tmp_path / "p").mkdir()
    (tmp_path / "p" / "0001-a.patch").touch()
    (tmp_path / "p" / name).touch()
    (path,) = PatchSource(folder="p").paths(tmp_path)
    assert path.name == "0001-a.patch"


def test_a_number_used_twice_is_refused(tmp_path: Path) -> None:
    (tmp_path / "p").mkdir()
    (tmp_path / "p" / "0001-b.patch").touch()
    (tmp_path / "p" / "0001-a.patch").touch()
    with pytest.raises(InputError, match=r"twice: 0001-a\.patch and 0001-b\.patch"):
        PatchSource(folder="p").paths(tmp_path)


def test_named_files_keep_their_order(tmp_path: Path) -> None:
    (tmp_path / "b.patch").touch()
    (tmp_path / "a.diff").touch()
    source = PatchSource(files=("b.patch", "a.diff"))
    assert source.paths(tmp_path) == (tmp_path / "b.patch", tmp_path / "a.diff")
    with pytest.raises(InputError, match="no such patch file"):
        PatchSource(files=("c.patch",)).paths(tmp_path)
    with pytest.raises(InputError, match="no such folder of patches"):
        PatchSource(folder="none").paths(tmp_path)


def test_links_out_of_the_project_are_refused(tmp_path: Path) -> None:
    project = tmp_path / "project"
    (project / "p").mkdir(parents=True)
    (tmp_path / "secret").touch()
    (project / "p" / "0001-a.patch").symlink_to(tmp_path / "secret")
    with pytest.raises(InputError, match="link out of the project"):
        PatchSource(folder="p").paths(project)
    with pytest.raises(InputError, match="link out of the project"):
        PatchSource(files=("p/0001-a.patch",)).paths(project)
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "0001-a.patch").touch()
    (project / "q").symlink_to(tmp_path / "outside")
    with pytest.raises(InputError, match="link out of the project"):
        PatchSource(folder="q").paths(project)


def test_import_takes_no_heavy_module() -> None:
    program = (
        "import sys, stackctl.model.series, stackctl.model.lock\n"
        "heavy = {'tomlkit', 'git', 'rich', 'typer', 'jsonschema', 'difflib'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


def test_a_long_chain_of_requirements_is_read_quickly() -> None:
    sets = [f'[[set]]\nname = "s{n}"\npatches = "p"\n' for n in range(5000)]
    for n in range(1, 5000):
        sets[n] += f'requires = ["s{n - 1}"]\n'
    assert len(parse_series(HEAD + "".join(sets), file="series.toml").sets) == 5000
    sets[0] += 'requires = ["s4999"]\n'
    with pytest.raises(InputError, match="in a circle") as caught:
        parse_series(HEAD + "".join(sets), file="series.toml")
    assert len(caught.value.message) < 1000
