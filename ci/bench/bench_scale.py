# SPDX-License-Identifier: Apache-2.0
"""What a series costs when the tree, or the series, is much larger than today.

    python ci/bench/bench_scale.py [--rounds 5] [--large]

The same 400 synthetic patches are composed (trees and commits) on the real base, on a
tree of ten copies of it side by side, and on one whose every folder has ten times the
entries. `--large` adds 10,000 patches on a tree of 59 copies (502,798 files).
"""

import argparse
import resource
import statistics
import tempfile
from pathlib import Path

from bench_compose import Case, timed

from stackctl.cache import Cache
from stackctl.compose.compose import Composer, Options
from stackctl.git.objects import MODE_TREE, TREE, Entry, encode_tree, iterate_tree
from stackctl.git.packs import PackWriter
from stackctl.git.store import Store
from stackctl.model.ids import TreeId


def copies(store: Store, tree: str, count: int) -> TreeId:
    """Return a tree with `count` - 1 copies of a tree in folders beside its content."""
    raw = store.tree(bytes.fromhex(tree))
    entries = {name: Entry(mode, oid) for name, mode, oid, _ in iterate_tree(raw)}
    for number in range(1, count):
        entries[b"copy-%03d" % number] = Entry(MODE_TREE, bytes.fromhex(tree))
    writer = store.writer()
    made = writer.add(TREE, encode_tree(entries))
    writer.finish()
    store.refresh()
    return TreeId(made.hex())


def widen(store: Store, oid: bytes, factor: int, writer: PackWriter) -> bytes:
    """Return a tree whose every folder has `factor` times the entries."""
    entries = {}
    for name, mode, child, _ in iterate_tree(store.tree(oid)):
        entries[name] = Entry(
            mode, widen(store, child, factor, writer) if mode == MODE_TREE else child
        )
        for number in range(1, factor):
            entries[b"%s.%d" % (name, number)] = Entry(mode, child)
    return writer.add(TREE, encode_tree(entries))


def main() -> None:
    """Run the benchmark and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--large", action="store_true")
    options = parser.parse_args()
    cache = Cache.open()
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        case = Case(400, Path(folder), cache)
        base = case.base
        writer = cache.store.writer()
        wide = widen(cache.store, bytes.fromhex(base.tree), 10, writer)
        writer.finish()
        cache.store.refresh()
        trees = {
            "base": base.tree,
            "ten copies beside": copies(cache.store, base.tree, 10),
            "folders ten times as wide": TreeId(wide.hex()),
        }
        composer = Composer(case.series, cache, base, Options(patch_ids=False))
        samples: dict[str, list[tuple[float, float]]] = {name: [] for name in trees}
        for _ in range(options.rounds + 1):
            for name, tree in trees.items():
                wall, cpu, _ = timed(
                    lambda tree=tree: composer.make(case.files, tree, base.commit)
                )
                samples[name].append((wall, cpu))
        reference = statistics.median(cpu for _, cpu in samples["base"][1:])
        for name, rows in samples.items():
            wall = statistics.median(wall for wall, _ in rows[1:])
            cpu = statistics.median(cpu for _, cpu in rows[1:])
            print(
                f"400 patches, {name:<26} {wall:7.0f} ms wall {cpu:7.0f} ms CPU "
                f"{cpu / reference:5.2f} times the base"
            )
        if options.large:
            case = Case(10_000, Path(folder), cache)
            tree = copies(cache.store, base.tree, 59)
            files = sum(1 for _ in cache.store.walk(base.tree)) * 59
            wall, cpu, made = timed(
                lambda: composer.make(case.files, tree, base.commit)
            )
            last = made[-1][-1]  # type: ignore[index]
            print(
                f"10,000 patches, {files:,} files: {wall / 1e3:.1f} s wall, "
                f"{cpu / 1e3:.1f} s CPU, tree {last.tree}"
            )
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"peak memory of this process: {peak:.0f} MB")


if __name__ == "__main__":
    main()
