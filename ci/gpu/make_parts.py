"""Pack vLLM for a GPU machine that has torch and Triton but no vLLM and no network.

Run it where there is a network and no GPU is needed:

    python ci/gpu/make_parts.py vllm-0.33.0-cp38-abi3-manylinux_2_28_x86_64.whl parts/

It writes ``parts/p1`` (vLLM, its extensions for one architecture, the Python packages
that such a machine lacks) and ``parts/p2`` (tilelang and z3, which ``mhc=true`` wants,
and FlashAttention 3, which prefill batches of 257 to 2,048 tokens and MTP want). Both
are checked against ``--limit-mb``. ``setup_device.py`` unpacks them over there.

The wheel's extensions use torch's stable ABI, so they load beside torch 2.11.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

from prune_fatbin import prune  # noqa: E402

WHEEL_SHA256 = "4b6bdec4ab269990bf70d45a3c1e94c3760a27064513760193b26d6f0da883aa"
EXTENSIONS = (
    "_C_stable_libtorch",
    "_moe_C_stable_libtorch",
    "_flashkda_C",
    "_flashmla_C",
    "_flashmla_extension_C",
)
UNUSED = (  # nothing of GLM-5.3 on SM90 loads these
    "_qutlass_C.abi3.so",
    "_deepselect_C.abi3.so",
    "vllm-rs",
    "third_party/fmha_sm100",
)
P2_PACKAGES = ("tilelang==0.1.12", "z3-solver==4.15.4.0")
PLATFORMS = [
    f"manylinux_2_{n}_x86_64" for n in (39, 38, 35, 34, 31, 28, 27, 24, 17, 12, 5)
]
PLATFORMS += ["manylinux2014_x86_64", "manylinux1_x86_64", "linux_x86_64", "any"]


def sha256(path: Path) -> str:
    """SHA-256 of a file, in hexadecimal."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def compress(source: Path, target: Path) -> None:
    """xz a file (level 6, two threads: the output does not depend on the machine)."""
    with target.open("wb") as out:
        subprocess.run(["xz", "-6", "-T2", "-c", str(source)], stdout=out, check=True)


def pack(folder: Path, target: Path, scratch: Path) -> None:
    """Write ``folder`` as a tar.xz with sorted names and no times or owners."""
    tar = scratch / "pack.tar"
    with tarfile.open(tar, "w") as archive:
        for path in sorted(folder.rglob("*")):
            if "__pycache__" in path.parts or path.is_dir():
                continue
            info = archive.gettarinfo(path, str(path.relative_to(folder)))
            info.mtime = info.uid = info.gid = 0
            info.uname = info.gname = ""
            if info.isfile():
                with path.open("rb") as file:
                    archive.addfile(info, file)
            else:
                archive.addfile(info)
    compress(tar, target)
    tar.unlink()


def install(target: Path, arguments: list[str], python: str) -> None:
    """pip-install wheels for the GPU machine's Python into a folder."""
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps"]
    command += ["--no-compile", "--only-binary=:all:", "--implementation", "cp"]
    command += ["--python-version", python, "--target", str(target)]
    for platform in PLATFORMS:
        command += ["--platform", platform]
    env = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    subprocess.run(command + arguments, check=True, env=env)


def strip(path: Path) -> None:
    """Drop symbols and debug information of a library."""
    subprocess.run(["strip", "--strip-unneeded", str(path)], check=True)


def build(wheel: Path, out: Path, arch: int, python: str, work: Path) -> None:
    """Build both parts under ``out``; see the module's docstring."""
    tree, libraries = work / "tree", work / "libraries"
    p1, p2 = out / "p1", out / "p2"
    for folder in (tree, libraries, p1, p2):
        folder.mkdir(parents=True)
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tree)
    vllm = tree / "vllm"
    for name in EXTENSIONS:
        source = vllm / f"{name}.abi3.so"
        prune(source, libraries / source.name, arch)
        source.unlink()
    deep_gemm = vllm / "third_party/deep_gemm/_C_extension.abi3.so"
    shutil.move(deep_gemm, libraries / "deepgemm_C_extension.abi3.so")
    # The package refuses to import without FlashAttention 2 or 3: p1 has a stub of 2.
    fa2 = vllm / "vllm_flash_attn/_vllm_fa2_C.abi3.so"
    prune(fa2, libraries / fa2.name, None)
    fa3 = vllm / "vllm_flash_attn/_vllm_fa3_C.abi3.so"
    strip(fa3)
    compress(fa3, p2 / f"{fa3.name}.xz")
    for path in (vllm / "vllm_flash_attn").glob("*.so"):
        path.unlink()
    for name in UNUSED:
        path = vllm / name
        if path.is_dir():
            shutil.rmtree(path)
        elif path.exists():
            path.unlink()
    for path in sorted(libraries.iterdir()):
        strip(path)
        compress(path, p1 / f"{path.name}.xz")
    pack(tree, p1 / "vllm_py.tar.xz", work)
    install(work / "extra", ["-r", str(HERE / "requirements-device.txt")], python)
    pack(work / "extra", p1 / "extra.tar.xz", work)
    install(work / "mhc", list(P2_PACKAGES), python)
    shutil.rmtree(work / "mhc/tilelang/3rdparty/composable_kernel", ignore_errors=True)
    pack(work / "mhc", p2 / "tilelang.tar.xz", work)


def main() -> int:
    """Parse the command line, build, check the sizes."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("wheel", type=Path)
    parser.add_argument("out", type=Path, help="a folder that does not exist yet")
    parser.add_argument("--arch", type=int, default=90)
    parser.add_argument("--python", default="3.12", help="of the GPU machine")
    parser.add_argument("--sha256", default=WHEEL_SHA256)
    parser.add_argument("--limit-mb", type=float, default=60)
    args = parser.parse_args()
    if (found := sha256(args.wheel)) != args.sha256:
        print(f"{args.wheel}: sha256 {found}, expected {args.sha256}", file=sys.stderr)
        return 4
    if args.out.exists():
        print(f"{args.out} exists; name a new folder", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as work:
        build(args.wheel, args.out, args.arch, args.python, Path(work))
    status = 0
    for part in ("p1", "p2"):
        size = sum(f.stat().st_size for f in (args.out / part).iterdir()) / 1e6
        print(f"{part}: {size:.1f} MB")
        if size > args.limit_mb:
            print(f"{part} is above {args.limit_mb} MB", file=sys.stderr)
            status = 1
    return status


if __name__ == "__main__":
    raise SystemExit(main())
