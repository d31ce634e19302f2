# SPDX-License-Identifier: Apache-2.0
"""Time to the culprit against `git bisect run`, on the same stack with the same test.

    python ci/bench/bench_bisect.py [--patches 64] [--seconds 2] [--rounds 3]
                                    [--workers 1,2] [--json FILE]

A stack of synthetic patches on the real base, one marker line of one patch looked for
by a test that takes a fixed time. In alternating rounds, with the culprit at several
places: the whole `stackctl bisect` command with each number of workers, and `git bisect
run` in a work tree of the same commits. git's first checkout is not counted, nor is the
first materialisation of ours, which is reported apart; git does not try the ends, ours
does, which costs two more runs. Both must name the same commit, or the benchmark fails.
"""

import argparse
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

from synthetic import make_stack

from stackctl.base import resolve_base
from stackctl.cache import Cache
from stackctl.git.command import HermeticGit
from stackctl.model.series import load_series

ROOT = Path(__file__).resolve().parents[2]


class Case:
    """One stack, as a project of ours and as a repository of git's."""

    def __init__(self, count: int, work: Path, cache: Cache) -> None:
        self.cache = cache
        series = load_series(ROOT / "series.toml")
        base = resolve_base(
            series.base,
            project=ROOT,
            cache=cache,
            expected_tree=series.base.tree,
        )
        self.work = work
        self.project = work / "project"
        self.project.mkdir()
        paths = make_stack(
            cache.store, base.commit, base.tree, count, work / f"stack-{count}"
        )
        head = (ROOT / "series.toml").read_text().partition("[[set]]")[0]
        sets = []
        for first in range(0, count, 8):
            name = f"set-{first // 8 + 1}"
            folder = self.project / "patches" / name
            folder.mkdir(parents=True)
            for path in paths[first : first + 8]:
                shutil.copy(path, folder / path.name)
            sets.append(f'[[set]]\nname = "{name}"\npatches = "patches/{name}"\n')
        (self.project / "series.toml").write_text(head + "\n".join(sets))
        self.environment = {
            **os.environ,
            "STACKCTL_CACHE_DIR": str(cache.folder),
            "PYTHONPATH": str(ROOT),
        }
        self.paths = paths
        composed = json.loads(self.stackctl("compose", "--json"))
        self.commits = [step["commit"] for step in composed["steps"]]
        self.trees = [step["tree"] for step in composed["steps"]]
        self.repository = work / "repository"
        HermeticGit().run("init", "-q", str(self.repository))
        exported = json.loads(
            self.stackctl("bisect", "export", "--json", "--into", str(self.repository))
        )
        self.refs = (exported["bad"]["ref"], exported["good"]["ref"])

    def stackctl(self, *arguments: str) -> bytes:
        """Run the command line and return its standard output."""
        command = [sys.executable, "-m", "stackctl", *arguments]
        return subprocess.run(
            command, cwd=self.project, env=self.environment, check=True,
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        ).stdout  # fmt: skip

    def marker(self, number: int) -> tuple[str, str] | None:
        """Return file and text that come with a patch and stay; None for no such."""
        text = self.paths[number - 1].read_text()
        for part in text.split("\ndiff --git ")[1:]:
            path = re.search(r"^\+\+\+ b/(.+)$", part, re.M)
            line = re.search(rf"^\+(# synthetic change {number}\.\d+ \d+)$", part, re.M)
            if path is None or line is None:
                continue
            found = [self._has(tree, path[1], line[1]) for tree in self.trees]
            if found == [n >= number for n in range(1, len(self.trees) + 1)]:
                return path[1], line[1]
        return None

    def _has(self, tree: str, path: str, line: str) -> bool:
        data = self.cache.store.git.run("cat-file", "blob", f"{tree}:{path}")
        return line.encode() in data

    def ours(self, command: str, workers: int) -> dict[str, float | str]:
        """Find the culprit with the whole command line."""
        started = time.perf_counter()
        answer = json.loads(
            self.stackctl(
                "bisect", "--run", command, "--workers", str(workers), "--json", "-q"
            )
        )
        wall = time.perf_counter() - started
        work = answer["work"]
        # Further workers write their first trees while the first one runs already;
        # what that costs is counted.
        apart = work["waited_ns"] / 1e9
        changing = work["switch_ns"] / 1e9
        return {
            "commit": answer["culprit"]["commit"],
            "seconds": wall,
            "first": work["first_ns"] / 1e9,
            "apart": apart,
            "without_first": wall - apart,
            "runs": answer["evaluations"],
            "changing": changing,
            "share": changing / workers / (wall - apart),
        }

    def git(self, command: str) -> dict[str, float | str]:
        """Find the culprit with `git bisect run`, after a checkout of the bad end."""
        git = ["git", "-C", str(self.repository), "-c", "advice.detachedHead=false"]
        quiet = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "check": True}
        subprocess.run([*git, "checkout", "-qf", self.refs[0]], **quiet)
        subprocess.run([*git, "status", "--short"], **quiet)
        started = time.perf_counter()
        subprocess.run([*git, "bisect", "start", *self.refs], **quiet)
        script = ["sh", "-c", command]
        done = subprocess.run([*git, "bisect", "run", *script], **quiet)
        wall = time.perf_counter() - started
        subprocess.run([*git, "bisect", "reset", "-q"], stderr=subprocess.DEVNULL)
        found = re.search(rb"([0-9a-f]{40}) is the first bad commit", done.stdout)
        assert found is not None, done.stdout
        return {
            "commit": found[1].decode(),
            "seconds": wall,
            "runs": done.stdout.count(b"running "),
        }


def main() -> None:
    """Run the benchmark and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--patches", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--workers", default="1,2")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    counts = [int(each) for each in options.workers.split(",")]
    rows: dict[str, list[dict[str, float | str]]] = {}
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        case = Case(options.patches, Path(folder), Cache.open())
        # Evenly spread places, so that no way is lucky with all of them.
        places = [
            options.patches * (2 * n + 1) // (2 * options.rounds)
            for n in range(options.rounds)
        ]
        for wanted in places:
            number = next(
                n
                for n in [
                    *range(max(wanted, 1), options.patches + 1),
                    *range(wanted, 0, -1),
                ]
                if case.marker(n)
            )
            marker = case.marker(number)
            assert marker is not None
            path, line = marker
            command = f"sleep {options.seconds}; ! grep -qxF '{line}' '{path}'"
            expected = case.commits[number - 1]
            print(f"culprit: patch {number} of {options.patches}", flush=True)
            ways = {"git bisect run": partial(case.git, command)}
            for count in counts:
                name = f"stackctl, {count} worker{'s' if count > 1 else ''}"
                ways[name] = partial(case.ours, command, count)
            for name, way in ways.items():
                row = way()
                if row["commit"] != expected:
                    raise SystemExit(f"{name} names {row['commit']}, not {expected}")
                rows.setdefault(name, []).append(row)
                shown = ", ".join(
                    f"{key} {value:.3f}"
                    for key, value in row.items()
                    if isinstance(value, float)
                )
                print(f"  {name:<20} {row['runs']:>3} runs, {shown}", flush=True)
    print(
        "\n| way | time to the culprit, s | without the first materialisation, s "
        "| runs | changing trees, share |\n|---|---|---|---|---|"
    )
    medians = {}
    for name, found in rows.items():

        def median(key: str, found: list[dict[str, float | str]] = found) -> float:
            return statistics.median(float(row.get(key, 0)) for row in found)

        plain = median("without_first") or median("seconds")
        medians[name] = plain
        share = f"{100 * median('share'):.2f} %" if "share" in found[0] else ""
        print(
            f"| {name} | {median('seconds'):.2f} | {plain:.2f} "
            f"| {median('runs'):.0f} | {share} |"
        )
    for name, value in medians.items():
        if name != "git bisect run":
            print(f"git bisect run / {name}: {medians['git bisect run'] / value:.2f}")
    if options.json:
        options.json.write_text(json.dumps(rows, indent=2) + "\n")


if __name__ == "__main__":
    main()
