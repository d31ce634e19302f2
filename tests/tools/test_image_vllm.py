# SPDX-License-Identifier: Apache-2.0
"""The official vLLM 0.33.0 wheel against the tree of its sdist.

Needs STACKCTL_TEST_VLLM_WHEEL, and STACKCTL_TEST_VLLM_TREE: the unpacked sdist.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from stackctl.image.expectation import ExpectedTree, folder_tree
from stackctl.image.verify import PinnedWheel, Report, Request, verify

pytestmark = pytest.mark.tools
SHA256 = "4b6bdec4ab269990bf70d45a3c1e94c3760a27064513760193b26d6f0da883aa"


@pytest.fixture(scope="module")
def wheel() -> Path:
    if not os.environ.get("STACKCTL_TEST_VLLM_WHEEL"):
        pytest.skip("STACKCTL_TEST_VLLM_WHEEL is not set")
    return Path(os.environ["STACKCTL_TEST_VLLM_WHEEL"])


@pytest.fixture(scope="module")
def expected() -> ExpectedTree:
    if not os.environ.get("STACKCTL_TEST_VLLM_TREE"):
        pytest.skip("STACKCTL_TEST_VLLM_TREE is not set")
    return folder_tree(Path(os.environ["STACKCTL_TEST_VLLM_TREE"]))


def check(report: Report) -> None:
    assert report.verdict == "match", report.reason
    (root,) = report.comparisons
    assert root.counts["matched"] == 3649
    assert sum(1 for f in root.findings if f.kind != "bytecode") == 2147


def test_wheel(wheel: Path, expected: ExpectedTree) -> None:
    alone = verify(Request(f"wheel:{wheel}", [expected]))
    check(alone)
    assert {w.code for w in alone.warnings} == {"untracked-unverified"}
    classes = alone.document()["roots"][0]["untracked"]  # type: ignore[index]
    assert classes == {
        "compiled": {"unverified": 14},
        "vendored": {"unverified": 2133},
    }
    pinned = verify(
        Request(f"wheel:{wheel}", [expected], wheel=PinnedWheel(wheel, SHA256))
    )
    check(pinned)
    assert pinned.warnings == []


@pytest.mark.parametrize("compiled", [False, True])
def test_environment(
    wheel: Path, expected: ExpectedTree, tmp_path: Path, compiled: bool
) -> None:
    subprocess.run([sys.executable, "-m", "venv", str(tmp_path / "venv")], check=True)
    python = tmp_path / "venv" / "bin" / "python"
    option = "--compile" if compiled else "--no-compile"
    subprocess.run(
        [str(python), "-m", "pip", "install", "-q", "--no-deps", option, str(wheel)],
        check=True,
    )
    report = verify(
        Request(f"env:{python}", [expected], wheel=PinnedWheel(wheel, SHA256))
    )
    check(report)
    assert {w.code for w in report.warnings} <= {"pth-file"}
    (root,) = report.comparisons
    assert len(root.bytecode) == (3231 if compiled else 0)
