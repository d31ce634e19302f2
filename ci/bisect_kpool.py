# SPDX-License-Identifier: Apache-2.0
"""Break a kpool patch of the real series on purpose, and let bisect find it.

    python ci/bisect_kpool.py [--work DIR] [--python PROGRAM]

Copies the project, turns the condition around by which the first patch of
`parallel-prefill` leaves out masked programs, and bisects the series with
`ci/cpu/check_kpool.py`, which compares the write kernel under Triton's interpreter with
plain torch. Bisect over prefixes has to name that patch, and bisect over subsets, which
takes over what the log says, that set. Needs torch and Triton (ci/cpu/README.md); part
of the torch tier.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SET, PATCH, GOOD = "parallel-prefill", "0001", "persist-l2"
RIGHT = "+        if not RETURN_COMPRESSED and not do_write:\n"
WRONG = "+        if not RETURN_COMPRESSED and do_write:\n"


def break_patch(project: Path) -> None:
    """Turn the condition around in the copied project."""
    (path,) = (project / "patches" / SET).glob(f"{PATCH}-*.patch")
    text = path.read_text()
    if text.count(RIGHT) != 1:
        raise SystemExit(f"{path.name} has no line to break; adapt ci/bisect_kpool.py")
    path.write_text(text.replace(RIGHT, WRONG))
    # The ids of the file are no longer those that the patches were made with.
    for each in (project / "patches" / SET).glob("*.patch"):
        text = each.read_text()
        text = re.sub(
            r"^index [0-9a-f]{40}\.\.[0-9a-f]{40}( \d+)?\n", "", text, flags=re.M
        )
        each.write_text(text)


def bisect(project: Path, python: str, *options: str) -> dict:
    """Bisect, show what is said meanwhile, and return the answer."""
    check = ROOT / "ci/cpu/check_kpool.py"
    # The tree first, the shim beside it; bytecode is not worth writing once.
    command = (
        f'PYTHONDONTWRITEBYTECODE=1 PYTHONPATH="$PWD:{ROOT / "ci/cpu"}" '
        f"{python} {check}"
    )
    started = time.monotonic()
    done = subprocess.run(
        [
            sys.executable, "-m", "stackctl", "bisect", "-C", str(project), "--json",
            "--run", command, "--good", GOOD, "--log", str(project / "log"), *options,
        ],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    answer = json.loads(done.stdout)
    took = time.monotonic() - started
    print(f"exit {done.returncode}, {took:.0f} s: {answer.get('message', answer)}")
    return answer


def main() -> int:
    """Run both searches and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", type=Path)
    parser.add_argument("--python", default=sys.executable, help="has torch and Triton")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.work) as folder:
        project = Path(folder) / "project"
        project.mkdir()
        shutil.copy(ROOT / "series.toml", project)
        shutil.copytree(ROOT / "patches", project / "patches")
        break_patch(project)
        prefix = bisect(project, options.python)
        patch = (prefix.get("culprit") or {}).get("patch") or ""
        right = patch.startswith(PATCH) and prefix["culprit"]["set"] == SET
        subsets = bisect(project, options.python, "--subsets")
        named = [each["set"] for each in subsets.get("culprits", ())]
        within = (subsets.get("within") or {}).get("patch") or ""
        right &= named == [SET] and within.startswith(PATCH)
    print("found" if right else "NOT FOUND")
    return int(not right)


if __name__ == "__main__":
    sys.exit(main())
