# SPDX-License-Identifier: Apache-2.0
"""Importing the cached sdist against `tar xf` + `git add` + `git write-tree`.

    python ci/bench/bench_base.py [--rounds 3]

Both start from the archive on disk and end with the same tree; ours also computes a
SHA-256 per file. Rounds alternate. Then the whole program: a second `compose` with
nothing changed, and `--help`.
"""

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from bench_compose import ROOT, timed

from stackctl.base import resolve_base
from stackctl.cache import Cache
from stackctl.model.series import load_series


def main() -> None:
    """Run the benchmark and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    rounds = parser.parse_args().rounds
    series = load_series(ROOT / "series.toml")
    digest = series.base.sha256  # type: ignore[union-attr]
    archive = Cache.open().downloads / digest
    if not archive.exists():
        raise SystemExit("run `stackctl compose` first: the archive is not cached")
    rows: dict[str, list[tuple[float, float]]] = {}
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        work = Path(folder)

        def ours() -> str:
            cache = Cache(work / "cache")
            cache.downloads.mkdir(parents=True)
            shutil.copy(archive, cache.downloads / digest)
            return resolve_base(
                series.base,
                project=ROOT,
                cache=cache,
                offline=True,
                expected_tree=series.base.tree,
            ).tree

        def plain() -> str:
            script = (
                f"mkdir {work}/t && cd {work}/t && "
                f"tar xf {archive} --strip-components=1 && git init -q . && "
                "git config core.autocrlf false && git add -Af . && git write-tree"
            )
            done = subprocess.run(
                ["sh", "-c", script], check=True, capture_output=True, text=True
            )
            return done.stdout.strip()

        trees = set()
        for _ in range(rounds):
            for name, action in (("stackctl", ours), ("tar + git", plain)):
                wall, cpu, tree = timed(action)
                rows.setdefault(name, []).append((wall, cpu))
                trees.add(tree)
                shutil.rmtree(work / ("cache" if name == "stackctl" else "t"))
        if len(trees) != 1:
            raise SystemExit(f"the trees differ: {trees}")
    environment = {k: v for k, v in os.environ.items() if "DONTWRITE" not in k}
    for name, arguments in (
        ("compose, nothing changed", ["compose", "-C", str(ROOT)]),
        ("--help", ["--help"]),
    ):
        command = [sys.executable, "-m", "stackctl", *arguments]
        for number in range(rounds + 1):
            wall, cpu, _ = timed(
                lambda command=command: subprocess.run(
                    command, check=True, capture_output=True, env=environment
                )
            )
            if number:
                rows.setdefault(name, []).append((wall, cpu))
    for name, samples in rows.items():
        wall, cpu = (statistics.median(c) for c in zip(*samples, strict=True))
        print(f"{name:<26} {wall:8.0f} ms wall {cpu:8.0f} ms CPU")


if __name__ == "__main__":
    main()
