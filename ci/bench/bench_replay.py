# SPDX-License-Identifier: Apache-2.0
"""Replaying published locks against the way of a work tree, as ratios in one run.

    python ci/bench/bench_replay.py LOCK... --repo MIRROR [--rounds 3] [--json FILE]

The work-tree way is what a publishing script does for each lock: init, fetch the base
and the heads, check out, merge, diff, reset, apply the diff, write the tree. Against it
stand one call of `stackctl replay` for all locks, with the patch (its digest and its
re-application), and with trees only; start of the interpreter and all. The rounds
alternate. Trees and digests of all ways must be the published ones, or the benchmark
fails.
"""

import argparse
import hashlib
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

ENVIRONMENT = {
    "PATH": os.environ.get("PATH", os.defpath),
    "HOME": os.devnull,
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_AUTHOR_NAME": "bench",
    "GIT_AUTHOR_EMAIL": "bench@localhost",
    "GIT_COMMITTER_NAME": "bench",
    "GIT_COMMITTER_EMAIL": "bench@localhost",
    "LC_ALL": "C",
    "TZ": "UTC",
}

BARS = {"tree, patch and re-application": 4.0, "tree only": 8.0}


def cpu_seconds() -> float:
    """Return user and system time of the ended children: seconds."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return children.ru_utime + children.ru_stime


def timed(action: Callable[[], object]) -> tuple[float, float]:
    """Return wall and CPU milliseconds of a call."""
    wall, cpu = time.perf_counter(), cpu_seconds()
    action()
    return (time.perf_counter() - wall) * 1e3, (cpu_seconds() - cpu) * 1e3


def work_tree_way(lock: dict, mirror: Path, *, share: bool) -> None:
    """Do what a publishing script does, and check what it publishes."""
    folder = Path(tempfile.mkdtemp(prefix="bench-replay-"))

    def git(*args: str, stdin: bytes = b"") -> bytes:
        return subprocess.run(
            ["git", *args], cwd=folder, env=ENVIRONMENT, input=stdin, check=True,
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        ).stdout  # fmt: skip

    try:
        base = lock["base"]["commit"]
        heads = [pull["head"] for pull in lock["pull_requests"]]
        git("init", "-q")
        if share:
            alternates = folder / ".git" / "objects" / "info" / "alternates"
            alternates.write_text(f"{mirror / 'objects'}\n")
        else:
            git("fetch", "-q", "--no-tags", str(mirror), base, *heads)
        git("checkout", "-q", "--detach", base)
        for head in heads:
            git("merge", "-q", "--no-ff", "--no-edit", head)
        result = git("rev-parse", "HEAD^{tree}").decode().strip()
        patch = git("diff", "--binary", "--full-index", f"{base}..HEAD")
        git("reset", "-q", "--hard", base)
        git("apply", "--index", "-", stdin=patch)
        again = git("write-tree").decode().strip()
        assert result == again == lock["result"]["tree"]
        digest = hashlib.sha256(patch).hexdigest()
        assert digest == lock["result"]["patch_sha256"]
    finally:
        shutil.rmtree(folder)


def replay(locks: list[Path], mirror: Path, *options: str) -> None:
    """Run the program and check its answer."""
    done = subprocess.run(
        [sys.executable, "-m", "stackctl", "replay", *map(str, locks),
         "--repo", str(mirror), "--json", "-q", *options],
        env={**os.environ, "PYTHONPATH": str(ROOT)}, check=True, capture_output=True,
    )  # fmt: skip
    answer = json.loads(done.stdout)
    for each in answer if isinstance(answer, list) else [answer]:
        assert each["equal"], each
        assert options or (each["patch_equal"] and each["patch_applies"]), each


def main() -> None:
    """Run the benchmark and print its table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("locks", nargs="+", type=Path)
    parser.add_argument("--repo", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    parser.add_argument(
        "--share",
        action="store_true",
        help="the work-tree way borrows the mirror's objects instead of fetching them "
        "(a partial mirror cannot be fetched from); quicker than it really is",
    )
    options = parser.parse_args()
    documents = [json.loads(path.read_text()) for path in options.locks]
    mirror = options.repo.absolute()

    def all_by_work_tree() -> None:
        for document in documents:
            work_tree_way(document, mirror, share=options.share)

    ways: dict[str, Callable[[], None]] = {
        "work tree": all_by_work_tree,
        "tree, patch and re-application": lambda: replay(options.locks, mirror),
        "tree only": lambda: replay(options.locks, mirror, "--no-patch"),
    }
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
    for _ in range(options.rounds):
        for name, way in ways.items():
            times[name].append(timed(way))
    print(f"{len(documents)} locks, medians of {options.rounds} rounds, ms")
    out = {}
    failed = False
    reference = times["work tree"]
    for name, each in times.items():
        wall, cpu = (statistics.median(column) for column in zip(*each, strict=True))
        # Of the same round: what else runs on the machine is then in both.
        ratio = statistics.median(
            base[0] / own[0] for base, own in zip(reference, each, strict=True)
        )
        bar = BARS.get(name)
        failed |= bar is not None and ratio < bar
        verdict = "" if bar is None else f"  (at least {bar:g} times)"
        print(f"{name:32} {wall:9.0f} wall {cpu:9.0f} cpu {ratio:7.1f} times{verdict}")
        out[name] = {"wall_ms": wall, "cpu_ms": cpu, "times_as_fast": ratio, "bar": bar}
    if options.json:
        options.json.write_text(json.dumps(out, indent=2) + "\n")
    sys.exit(failed)


if __name__ == "__main__":
    main()
