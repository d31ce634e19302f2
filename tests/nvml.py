# SPDX-License-Identifier: Apache-2.0
"""A driver's library that answers as NVML does, compiled for the machine at hand."""

import shutil
import subprocess
from pathlib import Path

SOURCE = Path(__file__).with_name("nvml_stub.c")
COMPILER = shutil.which("cc") or shutil.which("gcc")


def build(folder: Path, *options: str) -> Path:
    """Compile the library; returns the folder to name in LD_LIBRARY_PATH."""
    assert COMPILER is not None
    folder.mkdir(parents=True, exist_ok=True)
    library = folder / "libnvidia-ml.so.1"
    command = [COMPILER, "-shared", "-fPIC", "-w", *options, "-o", library, SOURCE]
    subprocess.run(command, check=True)
    return folder
