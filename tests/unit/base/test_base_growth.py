# SPDX-License-Identifier: Apache-2.0
"""Importing nearly the same folder again adds nearly nothing to the store."""

import random

from stackctl.base.path import import_path


def stored(cache):
    return sum(p.stat().st_size for p in cache.store.git_dir.rglob("*.pack"))


def test_what_is_known_is_not_stored_again(cache, tmp_path):
    folder = tmp_path / "tree"
    folder.mkdir()
    rng = random.Random(1)
    for number in range(40):
        (folder / f"file-{number}").write_bytes(rng.randbytes(20_000))
    import_path(folder, cache=cache)
    before = stored(cache)
    (folder / "file-7").write_bytes(b"edited\n")
    tree, commit = import_path(folder, cache=cache)
    assert stored(cache) - before < 10_000
    assert len(list(cache.store.walk(tree))) == 40
    assert cache.store.commit_tree(commit) == tree
