# SPDX-License-Identifier: Apache-2.0
"""What is installed, what can run here, what is missing and how to get it."""

import importlib.metadata
import importlib.util
import os
import platform
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from stackctl.cache import Cache
from stackctl.errors import StackctlError

State = Literal["ok", "missing", "bad"]


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was looked at.

    Attributes:
        name: What it is.
        state: `ok`, `missing` or `bad`.
        found: Version or finding.
        needed_for: Commands that need it; `compose` means everything does.
        how: How to get it or mend it.
    """

    name: str
    state: State
    found: str
    needed_for: str
    how: str


def _package(name: str, needed_for: str, how: str) -> Check:
    try:
        version = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return Check(name, "missing", "", needed_for, how)
    return Check(name, "ok", version, needed_for, how)


def _git() -> Check:
    from stackctl.git.command import git_version

    how = "install git 2.39 or later"
    try:
        version = ".".join(map(str, git_version()))
    except StackctlError as error:
        return Check("git", "bad", error.message, "compose", how)
    return Check("git", "ok", version, "compose", how)


def _cache(cache: Cache) -> Check:
    how = "set STACKCTL_CACHE_DIR to a folder with 500 MB free"
    try:
        free = shutil.disk_usage(cache.folder).free
    except OSError as error:
        return Check("cache", "bad", str(error), "compose", how)
    found = f"{cache.folder}, {free / 1e9:.0f} GB free"
    enough = free > 500_000_000 and os.access(cache.folder, os.W_OK)
    return Check("cache", "ok" if enough else "bad", found, "compose", how)


def _gpu() -> Check:
    how = "run the GPU gates on a machine with an NVIDIA GPU"
    driver = Path("/proc/driver/nvidia/version")
    try:
        text = driver.read_text().splitlines()[0]
    except (OSError, IndexError):
        return Check("gpu", "missing", "no NVIDIA driver", "GPU gates", how)
    return Check("gpu", "ok", text.partition(":")[2].strip(), "GPU gates", how)


def examine(cache: Cache) -> list[Check]:
    """Look at everything that commands need.

    Args:
        cache: The cache in use.
    """
    extra = "in stackctl's source folder: pip install '.[vllm]'"
    judge = "pip install 'stackctl[gates]'"
    checks = [
        Check("python", "ok", platform.python_version(), "compose", ""),
        _git(),
        _cache(cache),
    ]
    for name in ("GitPython", "typer", "rich", "requests", "packaging"):
        checks.append(_package(name, "compose", "pip install --upgrade stackctl"))
    checks.append(_package("PyGithub", "pr", "pip install --upgrade stackctl"))
    for name in ("numpy", "scipy", "statsmodels"):
        checks.append(_package(name, "verdicts of gates", judge))
    for name in ("torch", "triton", "vllm"):
        checks.append(_package(name, "gates of the sets", extra))
    checks.append(_package("ray", "--executor ray", "pip install 'stackctl[ray]'"))
    bundles = "pip install 'stackctl[sigstore]'"
    checks.append(_package("sigstore", "receipt sign --sigstore, verify", bundles))
    driver = "pip install 'stackctl[gpu]'; without it, nvidia-smi is asked"
    checks.append(_package("nvidia-ml-py", "GPU gates", driver))
    checks.append(_gpu())
    return checks
