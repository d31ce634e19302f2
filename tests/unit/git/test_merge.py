# SPDX-License-Identifier: Apache-2.0
"""Merging in memory: trees with replaced paths, ancestry, and the merge's failures."""

import random
from pathlib import Path

import pytest
from pulls import Upstream, lines
from support import git

from stackctl.errors import PinError
from stackctl.git.merge import History, MergeSpace, read_commit
from stackctl.git.objects import BLOB, MODE_EXEC, MODE_FILE, Entry
from stackctl.model.ids import CommitId, TreeId


@pytest.fixture
def upstream(tmp_path: Path) -> Upstream:
    return Upstream.make(tmp_path / "upstream")


@pytest.fixture
def space(upstream: Upstream, tmp_path: Path) -> MergeSpace:
    return MergeSpace(tmp_path / "space", [upstream.repo.path / ".git"])


def test_replaced_paths_are_those_of_an_index(
    upstream: Upstream, space: MergeSpace, tmp_path: Path
) -> None:
    """Random replacements against `git update-index` and `git write-tree`."""
    rng = random.Random(7)
    names = [
        "a.py",
        "docs/read.md",
        "docs/new",
        "x/y/z",
        "x/y/w",
        "b.py",
        "docs.a",
        "x-",
    ]
    tree = TreeId(upstream.repo.tree)
    upstream.repo.git("read-tree", tree)
    for number in range(60):
        entries: dict[bytes, Entry | None] = {}
        for name in rng.sample(names, rng.randint(1, 3)):
            if rng.random() < 0.4:
                entries[name.encode()] = None
                upstream.repo.git("update-index", "--force-remove", "--", name)
                continue
            mode = rng.choice((MODE_FILE, MODE_EXEC))
            oid = space.write(BLOB, b"%d" % number)
            entries[name.encode()] = Entry(mode, oid)
            upstream.repo.git("hash-object", "-w", "--stdin", stdin=b"%d" % number)
            info = f"{mode:o},{oid.hex()},{name}"
            upstream.repo.git("update-index", "--add", "--cacheinfo", info)
        tree = space.replace_paths(tree, entries)
        assert tree == upstream.repo.git("write-tree")
        for path, entry in entries.items():
            assert space.entry(tree, path) == entry


def test_history_agrees_with_merge_base(upstream: Upstream, space: MergeSpace) -> None:
    """A random graph with merges; every pair against `git merge-base`."""
    rng = random.Random(11)
    commits = [upstream.base]
    tree = upstream.repo.tree
    for number in range(40):
        parents = rng.sample(commits, min(len(commits), rng.choice((1, 1, 2, 3))))
        args = [word for parent in parents for word in ("-p", parent)]
        commits.append(upstream.repo.git("commit-tree", *args, "-m", str(number), tree))
    for _ in range(6):
        some = rng.sample(commits, 6)
        history = History(space.git, some)
        for one in some:
            for other in some:
                status = git(
                    "rev-list", "--count", f"{other}", f"^{one}",
                    cwd=upstream.repo.path,
                ).strip()  # fmt: skip
                assert history.contains(one, other) == (status == b"0")


def test_batch_tells_which_pair_failed(upstream: Upstream, space: MergeSpace) -> None:
    one = upstream.pull(1, {"a.py": lines(_10="ten")})
    two = upstream.pull(2, {"a.py": lines(_30="x")})
    upstream.repo.git("checkout", "-q", "--orphan", "alone")
    alone = upstream.repo.commit("alone\n", {"q": "q\n"})
    pairs = [(one, two), (one, alone), (two, one), ("5" * 40, one), (one, "6" * 40)]
    results = space.merge([(CommitId(a), CommitId(b)) for a, b in pairs])
    failed = [isinstance(each, PinError) for each in results]
    assert failed == [False, True, False, True, True]
    assert [each.kind for each in results if isinstance(each, PinError)] == [
        "unrelated-histories", "missing-object", "missing-object",
    ]  # fmt: skip
    wanted = upstream.tree_of_merges(one, two)
    assert results[0].tree == results[2].tree == wanted  # type: ignore[union-attr]


def test_nothing_is_written_into_the_source(upstream: Upstream, tmp_path: Path) -> None:
    one = upstream.pull(1, {"a.py": lines(_10="ten")})
    two = upstream.pull(2, {"a.py": lines(_30="x")})
    before = sorted(path for path in upstream.repo.path.rglob("*"))
    space = MergeSpace(tmp_path / "other", [upstream.repo.path / ".git"])
    (result,) = space.merge([(CommitId(one), CommitId(two))])
    assert space.store.tree(bytes.fromhex(result.tree))  # type: ignore[union-attr]
    assert sorted(path for path in upstream.repo.path.rglob("*")) == before


def test_commit_with_signature_and_odd_header_is_read(upstream: Upstream) -> None:
    raw = (
        b"tree " + b"1" * 40 + b"\nparent " + b"2" * 40 + b"\n"
        b"author A <a@b> 5 +0100\ncommitter C D <c@d> 6 -0330\n"
        b"gpgsig -----BEGIN\n author X <x@y> 9 +0000\n -----END\n"
        b"\nmessage\n\nparent x\n"
    )
    facts = read_commit(raw)
    assert facts.parents == ("2" * 40,)
    assert facts.author == b"A <a@b> 5 +0100" and facts.committed == b"6 -0330"
    assert facts.authored == b"5 +0100" and facts.message == b"message\n\nparent x\n"
