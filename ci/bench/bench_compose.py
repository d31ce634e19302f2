# SPDX-License-Identifier: Apache-2.0
"""Composing against the tools a user would otherwise pick, as ratios in one run.

    python ci/bench/bench_compose.py [--counts 4,40,400] [--rounds 5] [--json FILE]

For each number of synthetic stacked patches on the real base, in alternating rounds:
`git am` of the same mbox in a work tree (checkout not counted), one `git apply
--cached` + `write-tree` per patch, and this project as a library call in a warm
process, with an empty step cache each time: full chain of trees and commits, and tree
only. The trees and (but for the committer) the commits must equal git's, or the
benchmark fails. The whole command line is timed beside them.
"""

import argparse
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
from hashlib import sha256
from pathlib import Path

from synthetic import make_stack

from stackctl.base import resolve_base
from stackctl.cache import Cache
from stackctl.compose.compose import Composer, Options
from stackctl.compose.materialise import materialise
from stackctl.compose.sources import PatchFile
from stackctl.git.command import HermeticGit
from stackctl.model.ids import Sha256
from stackctl.model.series import load_series

ROOT = Path(__file__).resolve().parents[2]


def cpu_seconds() -> float:
    """Return user and system time of this process and its ended children: seconds."""
    own = resource.getrusage(resource.RUSAGE_SELF)
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime


def timed(action: Callable[[], object]) -> tuple[float, float, object]:
    """Return wall and CPU milliseconds of a call, and its result."""
    wall, cpu = time.perf_counter(), cpu_seconds()
    result = action()
    return (
        (time.perf_counter() - wall) * 1e3,
        (cpu_seconds() - cpu) * 1e3,
        result,
    )


class Case:
    """One stack of patches and the ways to compose it."""

    def __init__(self, count: int, work: Path, cache: Cache) -> None:
        self.series = load_series(ROOT / "series.toml")
        self.cache = cache
        self.base = resolve_base(
            self.series.base,
            project=ROOT,
            cache=cache,
            expected_tree=self.series.base.tree,
        )
        self.folder = work / f"stack-{count}"
        paths = make_stack(
            cache.store, self.base.commit, self.base.tree, count, self.folder
        )
        self.files = []
        for path in paths:
            data = path.read_bytes()
            digest = Sha256(sha256(data).hexdigest())
            self.files.append(PatchFile("bench", path.name, path, data, digest))
        self.work = work
        self.worktree = work / f"am-{count}"
        self.mbox = work / f"stack-{count}.mbox"
        self.mbox.write_bytes(b"".join(file.data for file in self.files))

    def ours(self, commits: bool) -> tuple[str, str | None, int]:
        composer = Composer(
            self.series,
            self.cache,
            self.base,
            Options(commits=commits, patch_ids=False),
        )
        made = composer.make(self.files, self.base.tree, self.base.commit)
        last = made[-1][-1]
        fell_back = sum(step.how == "git" for steps in made for step in steps)
        return last.tree, last.commit, fell_back

    def prepare_am(self) -> None:
        """Make a work tree of the base; not counted."""
        if not (self.worktree / ".git").exists():
            materialise(self.cache.store, self.base.tree, self.worktree)
            git_dir = self.worktree / ".git"
            HermeticGit().run("init", "-q", str(self.worktree))
            alternates = git_dir / "objects/info/alternates"
            alternates.write_text(f"{self.cache.store.git_dir / 'objects'}\n")
        git = HermeticGit(self.worktree / ".git", work_tree=self.worktree)
        git.run("reset", "-q", "--hard", self.base.commit)
        git.run("status", "--short")

    def git_am(self) -> str:
        git = HermeticGit(self.worktree / ".git", work_tree=self.worktree)
        git.run(
            "-c", "user.name=stackctl", "-c", "user.email=stackctl@localhost",
            "am", "-q", "-b", "--committer-date-is-author-date", str(self.mbox),
            cwd=self.worktree,
        )  # fmt: skip
        return git.text("rev-parse", "HEAD^{tree}")

    def git_am_commit(self) -> str:
        return HermeticGit(self.worktree / ".git").text("rev-parse", "HEAD")

    def git_apply(self) -> str:
        """One `git apply --cached` and `write-tree` per patch."""
        index = self.work / "index"
        index.unlink(missing_ok=True)
        git = self.cache.store.git.with_env(GIT_INDEX_FILE=str(index))
        git.run("read-tree", self.base.tree)
        tree = ""
        for file in self.files:
            git.run("apply", "--cached", "--whitespace=nowarn", str(file.path))
            tree = git.text("write-tree")
        return tree

    def command_line(self, *arguments: str) -> subprocess.CompletedProcess[bytes]:
        project = self.work / f"project-{len(self.files)}"
        if not project.exists():
            project.mkdir()
            patches = project / "patches"
            shutil.copytree(self.folder, patches)
            text = (ROOT / "series.toml").read_text().partition("[[set]]")[0]
            text += '[[set]]\nname = "bench"\npatches = "patches"\n'
            (project / "series.toml").write_text(text)
        command = [sys.executable, "-m", "stackctl", "compose", "-q", "-C"]
        environment = {**os.environ, "STACKCTL_CACHE_DIR": str(self.cache.folder)}
        return subprocess.run(
            [*command, str(project), *arguments],
            check=True,
            capture_output=True,
            env=environment,
        )

    def forget(self) -> None:
        """Forget remembered steps, so that the command line composes anew."""
        self.cache._guarded(
            lambda db: db.execute("DELETE FROM sealed_facts WHERE kind='step'")
        )


def measure(case: Case, rounds: int, slow: bool) -> dict[str, object]:
    """Measure all ways in alternating rounds."""
    ways: dict[str, list[tuple[float, float]]] = {}
    trees: dict[str, set[str]] = {}
    fell_back = 0
    case.ours(True)

    def note(name: str, action: Callable[[], object]) -> object:
        wall, cpu, result = timed(action)
        ways.setdefault(name, []).append((wall, cpu))
        return result

    for number in range(rounds):
        tree, commit, fell_back = note("chain", lambda: case.ours(True))  # type: ignore[misc]
        trees.setdefault("chain", set()).add(tree)
        only, _, _ = note("tree", lambda: case.ours(False))  # type: ignore[misc]
        trees.setdefault("tree", set()).add(only)
        case.prepare_am()
        by_am = note("git am", case.git_am)
        trees.setdefault("git am", set()).add(str(by_am))
        if commit != case.git_am_commit():
            raise SystemExit("the commits differ from those of git am")
        if not slow or number == 0:
            by_apply = note("git apply --cached", case.git_apply)
            trees.setdefault("git apply --cached", set()).add(str(by_apply))
        case.forget()
        note("command line", case.command_line)
        note("command line, again", case.command_line)
    if len(set.union(*trees.values())) != 1:
        raise SystemExit(f"the trees differ: {trees}")
    medians = {
        name: [statistics.median(column) for column in zip(*rows, strict=True)]
        for name, rows in ways.items()
    }
    am = medians["git am"]
    return {
        "patches": len(case.files),
        "tree": next(iter(trees["chain"])),
        "fell_back_to_git": fell_back,
        "rounds": rounds,
        "median_ms": {
            name: {"wall": round(wall, 1), "cpu": round(cpu, 1)}
            for name, (wall, cpu) in medians.items()
        },
        "samples_ms": {
            name: [[round(wall, 1), round(cpu, 1)] for wall, cpu in rows]
            for name, rows in ways.items()
        },
        "git_am_over": {
            name: {
                "wall": round(am[0] / medians[name][0], 1),
                "cpu": round(am[1] / medians[name][1], 1),
            }
            for name in ("chain", "tree", "command line")
        },
    }


def main() -> None:
    """Run the benchmark and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--counts", default="4,40,400")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    results = []
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        cache = Cache.open()
        for count in map(int, options.counts.split(",")):
            case = Case(count, Path(folder), cache)
            result = measure(case, options.rounds, slow=count > 100)
            results.append(result)
            print(f"{count} patches, fell back to git: {result['fell_back_to_git']}")
            for name, row in result["median_ms"].items():  # type: ignore[attr-defined]
                print(
                    f"  {name:<22} {row['wall']:9.0f} ms wall {row['cpu']:9.0f} ms CPU"
                )
            for name, row in result["git_am_over"].items():  # type: ignore[attr-defined]
                wall, cpu = row["wall"], row["cpu"]
                print(f"  git am / {name:<13} {wall:9.1f} wall {cpu:9.1f} CPU")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"peak memory of this process: {peak:.0f} MB")
    if options.json:
        document = {"results": results, "peak_mb": round(peak)}
        options.json.write_text(json.dumps(document, indent=2) + "\n")


if __name__ == "__main__":
    main()
