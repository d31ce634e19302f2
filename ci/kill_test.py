# SPDX-License-Identifier: Apache-2.0
"""Kill stackctl at random points, again and again, and look at what is left.

Each round starts `compose --out` or `lock` with an empty or a half-filled cache, kills
the whole process group with SIGKILL after a random time, and checks three things: what
stands under a final name is whole (never a part); the same command, run again, gives
the reference result; and after that nothing is left over, in the cache, in the project,
beside the target, or in the folder for temporary files.

Usage: python ci/kill_test.py [--rounds N] [--seed N] [--keep DIR]
"""

import argparse
import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from support import Project, git  # noqa: E402

REMAINS = ("tmp_", "scratch-", "stackctl-mail-")


class Bench:
    """A project, its reference result, and one cache that lives through the rounds."""

    def __init__(self, folder: Path, patches: int) -> None:
        self.folder = folder
        self.cache = folder / "cache"
        self.temporary = folder / "tmp"
        self.temporary.mkdir(parents=True)
        self.out = folder / "out"
        self.project = self._project(patches)
        self.lock = self.project.folder / "series.lock"
        self.environment = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "STACKCTL_CACHE_DIR": str(self.cache),
            "TMPDIR": str(self.temporary),
        }
        started = time.monotonic()
        self.reference = self.run("compose", "--out", self.out)
        self.seconds = time.monotonic() - started
        self.run("lock")
        self.lock_bytes = self.lock.read_bytes()
        self.files = self.listing()
        self.forget()

    def _project(self, patches: int) -> Project:
        project = Project(self.folder / "project")
        text = [f"line {n}\n" for n in range(400)]
        files: dict[str, bytes | str | None] = {"f.txt": "".join(text)}
        files |= {f"d{n % 7}/file{n}": f"{n}\n" * 50 for n in range(150)}
        project.base(files)
        commits: list[tuple[str, dict[str, bytes | str | None]]] = []
        rng = random.Random(1)
        for number in range(patches):
            text[rng.randrange(400)] = f"changed {number}\n"
            change: dict[str, bytes | str | None] = {"f.txt": "".join(text)}
            change[f"new/{number}"] = rng.randbytes(2000)
            commits.append((f"patch {number}\n", change))
        project.add("only", *commits)
        # Some patches without full ids, and a mail in another form: git does those.
        for number in range(1, patches, 5):
            path = project.patch("only", number)
            data = path.read_bytes()
            index = data.index(b"index ")
            end = data.index(b"\n", index)
            path.write_bytes(data[:index] + data[end + 1 :])
        path = project.patch("only", 2)
        path.write_bytes(b"X-Other: mail\n" + path.read_bytes().split(b"\n", 1)[1])
        return project.save()

    def command(self, *args: str | Path) -> list[str]:
        return [sys.executable, "-m", "stackctl", *map(str, args), "--json"]

    def run(self, *args: str | Path) -> dict[str, object]:
        """Run to the end; return the document without what differs from run to run."""
        done = subprocess.run(
            self.command(*args),
            cwd=self.project.folder,
            env=self.environment,
            capture_output=True,
            text=True,
        )
        if done.returncode:
            raise SystemExit(f"{args}: exit {done.returncode}\n{done.stdout}")
        document = json.loads(done.stdout)
        document.pop("ns")
        document.pop("locked", None)
        for step in document["steps"]:
            step.pop("how")
        return document

    def kill(self, seconds: float, *args: str | Path) -> int:
        """Run, and kill the whole group after a time; return the exit status."""
        process = subprocess.Popen(
            self.command(*args),
            cwd=self.project.folder,
            env=self.environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        time.sleep(seconds)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        return process.wait()

    def listing(self) -> dict[str, bytes]:
        """Return the files of the materialised tree."""
        return {
            path.relative_to(self.out).as_posix(): path.read_bytes()
            for path in self.out.rglob("*")
            if path.is_file()
        }

    def forget(self) -> None:
        """Start from nothing."""
        for path in (self.cache, self.out):
            shutil.rmtree(path, ignore_errors=True)
        self.lock.unlink(missing_ok=True)

    def leftovers(self) -> list[str]:
        """Return every file or folder that only a running command may have."""
        found = []
        places = (self.cache, self.project.folder, self.temporary)
        for place in places:
            for path in place.rglob("*"):
                name = path.name
                if name.startswith(REMAINS) or "stackctl-tmp" in name:
                    found.append(str(path))
                if name.endswith(".lock") and name != "series.lock":
                    found.append(str(path))
        found += [str(path) for path in self.folder.glob(".out.*")]
        return found


def play(bench: Bench, rng: random.Random, fresh: bool, command: str) -> str:
    """Play one round; return what happened, or raise SystemExit."""
    if fresh:
        bench.forget()
    shutil.rmtree(bench.out, ignore_errors=True)
    bench.lock.unlink(missing_ok=True)
    arguments = ("compose", "--out", bench.out) if command == "compose" else ("lock",)
    # Start-up is the same every time; most kills should fall behind it.
    seconds = bench.seconds * rng.uniform(0.1, 1.0)
    status = bench.kill(seconds, *arguments)
    if bench.out.exists() and bench.listing() != bench.files:
        raise SystemExit("the target folder holds a part of the tree")
    if bench.lock.exists() and bench.lock.read_bytes() != bench.lock_bytes:
        raise SystemExit("series.lock is not whole")
    shutil.rmtree(bench.out, ignore_errors=True)
    document = bench.run(*arguments)
    if command == "compose":
        document.pop("out")
        if bench.listing() != bench.files:
            raise SystemExit("the tree differs after a kill")
    elif bench.lock.read_bytes() != bench.lock_bytes:
        raise SystemExit("the lock differs after a kill")
    expected = {key: bench.reference[key] for key in document}
    if document != expected:
        raise SystemExit("the composition differs after a kill")
    left = bench.leftovers()
    if left:
        raise SystemExit("left over after the next run:\n  " + "\n  ".join(left))
    store = str(bench.cache / "store.git")
    git("--git-dir", store, "fsck", "--strict", "--no-dangling", "--no-progress")
    return "killed" if status == -signal.SIGKILL else "was done before"


def main() -> int:
    """Play the rounds."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--patches", type=int, default=60)
    parser.add_argument("--keep", type=Path, help="work here and keep it")
    options = parser.parse_args()
    folder = options.keep or Path(tempfile.mkdtemp(prefix="kill-test-"))
    print(f"seed {options.seed}, {options.rounds} rounds in {folder}")
    rng = random.Random(options.seed)
    bench = Bench(folder, options.patches)
    counts: dict[str, int] = {}
    try:
        for number in range(options.rounds):
            command = rng.choice(("compose", "lock"))
            result = play(bench, rng, rng.random() < 0.6, command)
            counts[result] = counts.get(result, 0) + 1
            print(f"round {number + 1}: {command} {result}", flush=True)
    finally:
        if options.keep is None and sys.exc_info()[0] is None:
            shutil.rmtree(folder)
    print(f"no damage, nothing left over: {counts}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
