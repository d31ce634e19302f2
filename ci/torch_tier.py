# SPDX-License-Identifier: Apache-2.0
"""The torch tier: the sets' own tests on a CPU, in the composed tree and without it.

    python ci/torch_tier.py [--work DIR] [--prefixes]

Composes the sets in every order that is allowed (`ci/set_orders.py`), runs every test
file that they add (with two processes) in the composed tree, and then lets
`ci/patch_checks.py` show for each set that its tests fail on the base and with its
first code patch taken back. `--prefixes` also checks the tree after every single patch,
which takes several times as long (ci/nightly runs it so). Beside
them `ci/bisect_kpool.py` breaks a patch on purpose and lets `stackctl bisect` find it.
"""

import argparse
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from stackctl.cache import Cache
from stackctl.compose.compare import make_composer
from stackctl.compose.materialise import materialise
from stackctl.compose.plan import Selection
from stackctl.model.series import load_series

ROOT = Path(__file__).resolve().parents[1]


def main() -> int:
    """Run the tier and return its exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", type=Path, default=ROOT / "build/ci")
    parser.add_argument("--prefixes", action="store_true")
    options = parser.parse_args()
    series = load_series(ROOT / "series.toml")
    cache = Cache.open()
    composer = make_composer(series, cache)
    composition = composer.compose()
    trees = {}
    for name, tree in (("base", composer.base.tree), ("tree", composition.tree)):
        trees[name] = options.work / f"{name}-{tree[:12]}"
        if not trees[name].exists():
            materialise(cache.store, tree, trees[name])
    known = {path for path, _, _ in cache.store.walk(composer.base.tree)}
    added = sorted(
        path.decode()
        for path, _, _ in cache.store.walk(composition.tree)
        if path not in known and path.startswith(b"tests/")
    )
    tests = [path for path in added if Path(path).name.startswith("test_")]
    if not tests:
        print("the series adds no tests")
        return 1
    failed = subprocess.run([sys.executable, str(ROOT / "ci/set_orders.py")]).returncode
    started = time.monotonic()
    tree = trees["tree"].resolve()
    status = subprocess.run(
        [
            sys.executable, "-m", "pytest", "-q", "-n", "2", "-p", "stackctl_cpu_shim",
            "-p", "no:cacheprovider", "--noconftest", "-c", os.devnull,
            "--rootdir", str(tree), *tests,
        ],
        cwd=tree,
        env={
            **os.environ,
            "PYTHONPATH": f"{tree}{os.pathsep}{ROOT / 'ci/cpu'}",
            "CUDA_VISIBLE_DEVICES": "",
            "VLLM_TARGET_DEVICE": "cpu",
            "TRITON_INTERPRET": "1",
            "PYTHONDONTWRITEBYTECODE": "1",
        },
    ).returncode  # fmt: skip
    took = time.monotonic() - started
    print(f"composed tree: exit {status}, {took:.0f} s", flush=True)
    failed |= status != 0
    jobs = [Job("bisect of a broken patch", [str(ROOT / "ci/bisect_kpool.py")])]
    for patch_set in series.sets:
        if not patch_set.composed or patch_set.patches is None:
            continue
        needed = composer.compose(Selection(only=(patch_set.name,)))
        below = dict.fromkeys(
            step.set for step in needed.steps if step.set != patch_set.name
        )
        command = [
            str(ROOT / "ci/patch_checks.py"),
            "--base", str(trees["base"]),
            "--patches", str(ROOT / str(patch_set.patches.folder)),
        ]  # fmt: skip
        for name in below:
            source = next(s for s in series.sets if s.name == name).patches
            assert source is not None
            command += ["--requires", str(ROOT / str(source.folder))]
        if not options.prefixes:
            command.append("--no-prefixes")
        jobs.append(Job(patch_set.name, command))
    # They run their tests in one process each, so two are at work at a time: first what
    # takes longest, which are the later sets and what needs them.
    with ThreadPoolExecutor(2) as pool:
        for done in [pool.submit(job.run) for job in (jobs[0], *jobs[:0:-1])]:
            failed |= done.result() != 0
    return int(failed)


class Job(NamedTuple):
    """A program that is run while another one is.

    Attributes:
        name: What it is called when it has ended.
        command: The script and its arguments.
    """

    name: str
    command: list[str]

    def run(self) -> int:
        """Run it, then print in one piece what it said; return its exit code."""
        started = time.monotonic()
        done = subprocess.run(
            [sys.executable, *self.command],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        took = time.monotonic() - started
        print(
            f"{done.stdout}{self.name}: exit {done.returncode}, {took:.0f} s",
            flush=True,
        )
        return done.returncode


if __name__ == "__main__":
    sys.exit(main())
