"""Check a patch set's tests: they fail without it, and pass after each of its patches.

    python ci/patch_checks.py --base DIR --patches patches/parallel-prefill \
        --python VENV/bin/python

For one set (with ``--requires`` the folders of the sets below it, in order):

* **base**: the set's tests, as the last patch leaves them, run against the code
  without the set. At least one has to fail.
* **reverted**: the code of the first patch that changes code is taken back from the
  finished tree. At least one test has to fail.
* **hooks**: the base's own checks of source files that need nothing else pass on every
  file that the set adds or changes.
* **prefix k**: after the first k patches every changed module imports (as far as the
  base imports it here) and the tests that are there pass.

Tests run on the CPU under Triton's interpreter (``ci/cpu``), in the Python given with
``--python``, which needs torch, Triton and pytest (``ci/cpu/README.md``). Exit codes:
0 yes, 1 no, 3 a patch does not apply, 8 not tested.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
PLUGIN = "stackctl_cpu_shim"
HOOKS = ("check_torch_cuda.py", "check_forbidden_imports.py")  # of tools/pre_commit
IMPORTS = """
import importlib, json, sys
import stackctl_cpu_shim
failed = {}
for name in sys.argv[1:]:
    try:
        importlib.import_module(name)
    except Exception as error:
        failed[name] = f"{type(error).__name__}: {error}"[:300]
print("FAILED " + json.dumps(failed))
"""


class Problem(Exception):
    """The check cannot go on; holds the exit code."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


class Tree:
    """A scratch repository with the base, into which patches are applied."""

    def __init__(self, base: Path, work: Path) -> None:
        self.path = work / "tree"
        ignore = shutil.ignore_patterns(".git", "__pycache__")
        shutil.copytree(base, self.path, symlinks=True, ignore=ignore)
        self.git("init", "-q")
        self.git("add", "-A", "-f", ".")
        self.commit("base")

    def git(self, *arguments: str, check: bool = True) -> str:
        """Run git, with nobody's configuration."""
        env = {
            "PATH": os.environ.get("PATH", ""),
            "HOME": "/nonexistent",
            "LC_ALL": "C",
        }
        env |= {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}
        for who in ("AUTHOR", "COMMITTER"):
            env |= {f"GIT_{who}_NAME": "checks", f"GIT_{who}_EMAIL": "checks@localhost"}
        done = subprocess.run(
            ["git", *arguments], cwd=self.path, env=env, capture_output=True, text=True
        )
        if check and done.returncode:
            raise Problem(3, f"git {arguments[0]}: {done.stderr.strip()[-800:]}")
        return done.stdout

    def commit(self, name: str) -> None:
        """Commit what is staged, and tag it."""
        self.git("commit", "-q", "--no-verify", "--allow-empty", "-m", name)
        self.git("tag", name)

    def apply(self, patch: Path, *options: str) -> None:
        """Apply one patch to index and work tree, exactly."""
        self.git("apply", "--index", "--whitespace=nowarn", *options, str(patch))

    def checkout(self, name: str) -> None:
        """Go to a tag, with nothing left over."""
        self.git("checkout", "-q", "-f", name)
        self.git("clean", "-q", "-f", "-d", "-x")

    def changed(self, old: str, new: str, *paths: str) -> list[str]:
        """Files that differ between two tags and exist in the second."""
        options = ("--name-only", "--diff-filter=d", "--no-renames")
        return self.git("diff", *options, old, new, "--", *paths).split()


def environment(tree: Path) -> dict[str, str]:
    """Environment of the tests: the tree, the CPU plugin, nothing of the user's."""
    keep = ("PATH", "LD_LIBRARY_PATH", "TMPDIR")
    env = {k: os.environ[k] for k in keep if k in os.environ}
    return env | {
        "HOME": str(tree.parent),
        "LC_ALL": "C.UTF-8",
        "PYTHONPATH": f"{tree}{os.pathsep}{HERE / 'cpu'}",
        "PYTHONDONTWRITEBYTECODE": "1",
        "OMP_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "",
        "VLLM_TARGET_DEVICE": "cpu",
        "TRITON_INTERPRET": "1",
        "TRITON_CACHE_DIR": str(tree.parent / "triton"),
        "VLLM_CACHE_ROOT": str(tree.parent / "vllm-cache"),
    }


def run_tests(
    python: Path, tree: Path, files: list[str], limit: float
) -> dict[str, Any]:
    """Run test files; counts, and the names of what failed."""
    if not files:
        return {"passed": 0, "failed": 0, "skipped": 0, "failures": []}
    report = tree.parent / "report.xml"
    report.unlink(missing_ok=True)
    command = [str(python), "-m", "pytest", "-q", "-p", PLUGIN]
    command += ["-p", "no:cacheprovider", "--noconftest", "-c", os.devnull]
    command += ["--rootdir", str(tree), f"--junitxml={report}", *files]
    done = subprocess.run(
        command,
        cwd=tree,
        env=environment(tree),
        capture_output=True,
        text=True,
        timeout=limit,
    )
    if not report.exists():
        raise Problem(8, f"pytest did not run: {(done.stderr or done.stdout)[-800:]}")
    counts: dict[str, Any] = {"passed": 0, "failed": 0, "skipped": 0, "failures": []}
    for case in ElementTree.parse(report).iter("testcase"):
        kinds = {child.tag for child in case}
        if kinds & {"failure", "error"}:
            counts["failed"] += 1
            counts["failures"].append(f"{case.get('classname')}::{case.get('name')}")
        elif "skipped" in kinds:
            counts["skipped"] += 1
        else:
            counts["passed"] += 1
    return counts


def failed_imports(python: Path, tree: Path, files: list[str]) -> dict[str, str]:
    """Which of the changed modules do not import."""
    names = [
        f.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        for f in files
        if f.startswith("vllm/") and f.endswith(".py")
    ]
    if not names:
        return {}
    done = subprocess.run(
        [str(python), "-c", IMPORTS, *names],
        cwd=tree.parent,
        env=environment(tree),
        capture_output=True,
        text=True,
    )
    lines = [x for x in done.stdout.splitlines() if x.startswith("FAILED ")]
    if not lines:
        return {"(import)": done.stderr[-500:]}
    found: dict[str, str] = json.loads(lines[-1].removeprefix("FAILED "))
    return found


def hook_complaints(python: Path, tree: Path, files: list[str]) -> str:
    """What the base's checks say against Python files, by their paths in the tree."""
    said = ""
    for hook in HOOKS:
        done = subprocess.run(
            [
                *(str(python), f"tools/pre_commit/{hook}"),
                *(f for f in files if f.endswith(".py")),
            ],
            cwd=tree,
            env=environment(tree),
            capture_output=True,
            text=True,
        )
        if done.returncode:
            said += done.stdout + done.stderr[-500:]
    return said


def is_test(path: str) -> bool:
    """Whether a path is a test file."""
    return path.startswith("tests/") and Path(path).name.startswith("test_")


def check(args: argparse.Namespace, work: Path) -> dict[str, Any]:
    """All checks of one set."""
    patches = sorted(args.patches.glob("[0-9]*.patch"))
    if not patches:
        raise Problem(3, f"{args.patches}: no NNNN-*.patch")
    tree = Tree(args.base, work)
    for folder in args.requires:
        for patch in sorted(folder.glob("[0-9]*.patch")):
            tree.apply(patch)
    tree.commit("ground")
    stages = []
    for number, patch in enumerate(patches, 1):
        tree.apply(patch)
        tree.commit(f"prefix-{number}")
        stages.append(f"prefix-{number}")
    tip = stages[-1]
    tests = [f for f in tree.changed("ground", tip, "tests") if is_test(f)]
    if not tests:
        raise Problem(1, f"{args.patches}: the set brings no tests")
    limit = args.timeout
    answer: dict[str, Any] = {"set": args.patches.name, "tests": tests, "checks": []}

    def record(name: str, ok: bool, why: str, **details: Any) -> None:
        answer["checks"].append({"name": name, "ok": ok, "why": why, **details})
        print(f"{'ok  ' if ok else 'FAIL'} {name}: {why}", file=sys.stderr, flush=True)

    def summary(counts: dict[str, Any]) -> str:
        return ", ".join(f"{counts[k]} {k}" for k in ("passed", "failed", "skipped"))

    tree.checkout("ground")
    tree.git("checkout", "-q", tip, "--", "tests")
    counts = run_tests(args.python, tree.path, tests, limit)
    record("base", counts["failed"] > 0, summary(counts), **counts)

    for number, (stage, patch) in enumerate(zip(stages, patches, strict=True)):
        before = stages[number - 1] if number else "ground"
        code = [f for f in tree.changed(before, stage) if not f.startswith("tests/")]
        if code:
            first_code = patch
            break
    else:
        raise Problem(1, f"{args.patches}: no patch changes code")
    tree.checkout(tip)
    how = f"without the code of {first_code.name}"
    try:
        tree.apply(first_code, "-R", "--exclude=tests/*")
    except Problem:
        # Later patches build on it: its files go back to what they were before it.
        how = f"with the files of {first_code.name} as before it"
        tree.checkout(tip)
        for path in code:
            if tree.git("ls-tree", before, "--", path):
                tree.git("checkout", "-q", before, "--", path)
            else:
                tree.git("rm", "-q", "-f", "--", path)
    counts = run_tests(args.python, tree.path, tests, limit)
    record("reverted", counts["failed"] > 0, f"{how}: {summary(counts)}", **counts)

    tree.checkout(tip)
    complaints = hook_complaints(args.python, tree.path, tree.changed("ground", tip))
    record("hooks", not complaints, complaints or f"{len(HOOKS)} pass")

    everything = tree.changed("ground", tip, "vllm")
    tree.checkout("ground")
    known = failed_imports(args.python, tree.path, everything)
    for number, stage in enumerate([] if args.no_prefixes else stages, 1):
        tree.checkout(stage)
        changed = tree.changed("ground", stage, "vllm")
        broken = failed_imports(args.python, tree.path, changed)
        broken = {k: v for k, v in broken.items() if known.get(k) != v}
        here = [f for f in tests if (tree.path / f).exists()]
        counts = run_tests(args.python, tree.path, here, limit)
        ok = not broken and not counts["failed"] and (counts["passed"] or not here)
        why = summary(counts)
        if broken:
            why += f"; does not import: {broken}"
        record(f"prefix {number}", bool(ok), why, not_imported=broken, **counts)
    answer["ok"] = all(c["ok"] for c in answer["checks"])
    return answer


def main() -> int:
    """Parse the command line and check."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--base", type=Path, required=True, help="the unpacked base")
    parser.add_argument("--patches", type=Path, required=True, help="a set's folder")
    parser.add_argument("--requires", type=Path, action="append", default=[])
    parser.add_argument("--python", type=Path, default=Path(sys.executable))
    parser.add_argument("--timeout", type=float, default=1800, help="s per test run")
    parser.add_argument("--json", action="store_true")
    parser.add_argument(
        "--no-prefixes", action="store_true", help="leave out the single prefixes"
    )
    args = parser.parse_args()
    for name in ("base", "patches", "python"):
        # Not resolve(): a virtual environment's python is a link.
        setattr(args, name, Path(os.path.abspath(getattr(args, name))))
    args.requires = [Path(os.path.abspath(p)) for p in args.requires]
    probe = subprocess.run(
        [str(args.python), "-c", "import torch, triton, pytest"],
        capture_output=True,
        text=True,
    )
    if probe.returncode:
        reason = probe.stderr.strip().splitlines()[-1:]
        print(f"not tested: {args.python}: {''.join(reason)}", file=sys.stderr)
        return 8
    try:
        with tempfile.TemporaryDirectory() as work:
            answer = check(args, Path(work))
    except Problem as problem:
        if args.json:
            print(json.dumps({"error": {"message": str(problem)}}))
        print(problem, file=sys.stderr)
        return problem.code
    if args.json:
        print(json.dumps(answer, indent=1, sort_keys=True))
    return 0 if answer["ok"] else 1


if __name__ == "__main__":
    raise SystemExit(main())
