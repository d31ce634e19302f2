"""Unpack the parts that ``make_parts.py`` packed into a site folder, in parallel.

    python3 ci/gpu/setup_device.py parts/p1 parts/p2 --site /tmp/site
    export PYTHONPATH=/tmp/site

Standard library only: the machine may have nothing else. The parts are our own
archives; from Python 3.11.4 on, members that would leave the site folder are refused
all the same.
"""

from __future__ import annotations

import argparse
import lzma
import shutil
import tarfile
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path


def place(name: str) -> str:
    """Where a compressed library belongs, relative to the site folder."""
    if name.startswith("deepgemm"):
        return "vllm/third_party/deep_gemm/_C_extension.abi3.so"
    folder = "vllm/vllm_flash_attn" if name.startswith("_vllm_fa") else "vllm"
    return f"{folder}/{name}"


def unpack(archive: Path, site: Path) -> str:
    """Unpack one ``.tar.xz`` or one compressed library; returns a line to print."""
    start = time.monotonic()
    with lzma.open(archive) as stream:
        if archive.name.endswith(".tar.xz"):
            with tarfile.open(fileobj=stream, mode="r|") as members:
                # What make_parts.py packed; Python before 3.11.4 has no filters.
                filters = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
                members.extractall(site, **filters)
        else:
            target = site / place(archive.name.removesuffix(".xz"))
            target.parent.mkdir(parents=True, exist_ok=True)
            with target.open("wb") as out:
                shutil.copyfileobj(stream, out, 1 << 22)
    return f"{archive.name}: {time.monotonic() - start:.1f} s"


def main() -> int:
    """Parse the command line and unpack."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("parts", type=Path, nargs="+")
    parser.add_argument(
        "--site", type=Path, default=Path(tempfile.gettempdir()) / "site"
    )
    args = parser.parse_args()
    args.site.mkdir(parents=True, exist_ok=True)
    archives = [f for part in args.parts for f in sorted(part.glob("*.xz"))]
    if not archives:
        parser.error(f"no *.xz in {', '.join(map(str, args.parts))}")
    # Large ones first; a stub in p1 must not overwrite what p2 brings: names differ.
    archives.sort(key=lambda f: -f.stat().st_size)
    with ProcessPoolExecutor(8) as pool:
        for line in pool.map(unpack, archives, [args.site] * len(archives)):
            print(line)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
