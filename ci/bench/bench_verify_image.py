# SPDX-License-Identifier: Apache-2.0
"""How fast `verify-image` reads a large layer, against other ways in the same run.

Ratios count, not seconds: every way is timed in turn, several times, on one machine.

    python ci/bench/bench_verify_image.py [--wheel FILE] [--runs 3] [--json OUT]

Ways:
    ours            stackctl verify-image, every digest and diff_id checked
    floor           inflate in one thread, the same digests in another, nothing else
    umoci + git     umoci unpack, then git hash-object of all files (gzip)
    podman + git    podman pull, then git hash-object of all files (zstd)
    layers          stackctl verify-image on 1, 30, 60 and 120 layers

The layer has 5,800 files and about 800 MB, as an installed vLLM 0.33.0 has, of random and
repeated bytes unless `--wheel` names the real one.
"""

import argparse
import hashlib
import json
import os
import queue
import random
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

import zstandard

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))

from images import (
    OCI_LAYER,
    Built,
    Tar,
    build_image,
    header,
    sha256,
    write_layout,
)

from stackctl.image import inflate

ROOT = "opt/venv/lib/python3.12/site-packages"
#: Sizes of the big files of the wheel, in bytes.
BIG = (92_632_616, 45_654_776, 60_786_328, 29_455_296, 307_960_648, 172_594_888)
SMALL = 5_790
TRACKED = 3_649
STEP = 1 << 20


def synthetic(name: str, size: int) -> Iterator[bytes]:
    """Yield bytes that compress to about a third, as the wheel does."""
    source = random.Random(name)
    while size > 0:
        part = source.randbytes(1 << 14) + bytes(1 << 14) + b"vllm kernel " * 2731
        part = part[: min(size, 1 << 16)]
        size -= len(part)
        yield part


def members(wheel: Path | None) -> Iterator[tuple[str, int, Iterator[bytes]]]:
    """Yield name, size and content of every file of the layer."""
    if wheel is not None:
        with zipfile.ZipFile(wheel) as archive:
            for info in archive.infolist():
                with archive.open(info) as stream:
                    chunks = iter(lambda s=stream: s.read(STEP), b"")
                    yield info.filename, info.file_size, chunks
        return
    for number, size in enumerate(BIG):
        yield f"vllm/_big{number}.abi3.so", size, synthetic(str(number), size)
    for number in range(SMALL):
        folder = "models" if number < TRACKED else "third_party/deep_gemm"
        name = f"vllm/{folder}/{number // 100}/file{number}.py"
        size = 2_000 + (number * 7919) % 42_000
        yield name, size, synthetic(name, size)


def write_tar(stream: Callable[[bytes], object], wheel: Path | None, tree: Path) -> int:
    """Write the layer and the expected folder; return the layer's size."""
    total = 0
    for name, size, chunks in members(wheel):
        block = header(f"{ROOT}/{name}".encode()[:100], b"0", size)
        if len(f"{ROOT}/{name}") > 100:
            block = Tar().pax((b"path", f"{ROOT}/{name}".encode())).data + block
        stream(block)
        total += len(block) + size + -size % 512
        tracked = wheel is None and "/models/" in name
        copy = tree / name if tracked else None
        if copy is not None:
            copy.parent.mkdir(parents=True, exist_ok=True)
        out = copy.open("wb") if copy is not None else None
        for chunk in chunks:
            stream(chunk)
            if out is not None:
                out.write(chunk)
        if out is not None:
            out.close()
        stream(bytes(-size % 512))
    stream(bytes(1024))
    return total + 1024


class Writer:
    """Compresses and hashes a layer on its way to disk."""

    def __init__(self, path: Path, kind: str) -> None:
        self.path = path
        self.kind = kind
        self.plain = hashlib.sha256()
        self.stored = hashlib.sha256()
        self._out: IO[bytes] = path.open("wb")
        self._compress = (
            zlib.compressobj(6, zlib.DEFLATED, 31)
            if kind == "gzip"
            else zstandard.ZstdCompressor(level=3).compressobj()
        )

    def __call__(self, data: bytes) -> None:
        self.plain.update(data)
        self._store(self._compress.compress(data))

    def _store(self, data: bytes) -> None:
        self.stored.update(data)
        self._out.write(data)

    def layout(self, folder: Path) -> Path:
        """Finish, and return an OCI layout with this layer."""
        self._store(self._compress.flush())
        self._out.close()
        image = build_image([b""])
        config = json.loads(image.blobs[image.config])
        config["rootfs"]["diff_ids"] = ["sha256:" + self.plain.hexdigest()]
        config_bytes = json.dumps(config).encode()
        manifest = json.loads(image.blobs[image.manifest])
        manifest["config"].update(digest=sha256(config_bytes), size=len(config_bytes))
        manifest["layers"] = [
            {
                "mediaType": f"{OCI_LAYER}+{self.kind}",
                "digest": "sha256:" + self.stored.hexdigest(),
                "size": self.path.stat().st_size,
            }
        ]
        raw = json.dumps(manifest).encode()
        blobs = {sha256(config_bytes): config_bytes, sha256(raw): raw}
        write_layout(folder, Built(blobs, sha256(raw), sha256(config_bytes), [], []))
        shutil.move(self.path, folder / "blobs/sha256" / self.stored.hexdigest())
        return folder


def timed(command: list[str], **settings: object) -> tuple[float, float]:
    """Return seconds and peak MB of a command."""
    before = time.perf_counter()
    process = subprocess.Popen(
        command,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        **settings,  # type: ignore[call-overload]
    )
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{command[0]} failed with {process.returncode}")
    return time.perf_counter() - before, usage.ru_maxrss / 1024


def ours(layout: Path, tree: Path, folder: str = "vllm") -> tuple[float, float]:
    return timed(
        [
            sys.executable, "-m", "stackctl", "verify-image", f"oci:{layout}",
            "--expect", str(tree), "--root", f"{folder}=/{ROOT}/{folder}",
            "--allow", "vllm/*.so", "--allow", "vllm/third_party/**", "--json",
        ]
    )  # fmt: skip


def floor(layout: Path, kind: str) -> float:
    """Inflate in one thread and compute the digests in another."""
    blob = max((layout / "blobs/sha256").iterdir(), key=lambda p: p.stat().st_size)
    todo: queue.Queue[tuple[int, bytes] | None] = queue.Queue(maxsize=8)
    hashes = (hashlib.sha256(), hashlib.sha256(), hashlib.sha1())

    def digest() -> None:
        while (item := todo.get()) is not None:
            which, data = item
            for number in (0,) if which == 0 else (1, 2):
                hashes[number].update(data)

    before = time.perf_counter()
    thread = threading.Thread(target=digest)
    thread.start()
    with blob.open("rb") as stream:
        if kind == "gzip":
            member = inflate.decompressor(inflate.GZIP)
            while data := stream.read(STEP):
                todo.put((0, data))
                while data:
                    todo.put((1, member.decompress(data, STEP)))
                    data = member.unconsumed_tail
        else:

            class Source:
                def read(self, size: int) -> bytes:
                    data = stream.read(size)
                    todo.put((0, data))
                    return data

            reader = zstandard.ZstdDecompressor().stream_reader(
                Source(),
                read_size=STEP,  # type: ignore[arg-type]
            )
            while data := reader.read(STEP):
                todo.put((1, data))
    todo.put(None)
    thread.join()
    return time.perf_counter() - before


def hash_all(root: Path) -> float:
    """Hash all files with git, as a check by hand would."""
    before = time.perf_counter()
    names = "\n".join(
        str(path)
        for path in root.rglob("*")
        if path.is_file() and not path.is_symlink()
    )
    subprocess.run(
        ["git", "hash-object", "--no-filters", "--stdin-paths"],
        input=names.encode(),
        stdout=subprocess.DEVNULL,
        check=True,
    )
    return time.perf_counter() - before


def umoci(layout: Path, work: Path) -> float:
    bundle = work / "bundle"
    shutil.rmtree(bundle, ignore_errors=True)
    seconds, _ = timed(["umoci", "unpack", "--image", f"{layout}:latest", str(bundle)])
    seconds += hash_all(bundle / "rootfs")
    shutil.rmtree(bundle)
    return seconds


def podman(layout: Path, work: Path) -> float:
    base = [
        "podman", "--root", str(work / "p"), "--runroot", str(work / "r"),
        "--storage-driver", "vfs",
    ]  # fmt: skip
    seconds, _ = timed([*base, "pull", "-q", f"oci:{layout}:latest"])
    image = subprocess.run(
        [*base, "images", "-q"], capture_output=True, text=True, check=True
    ).stdout.split()[0]
    where = subprocess.run(
        [*base, "image", "mount", image], capture_output=True, text=True, check=True
    ).stdout.strip()
    seconds += hash_all(Path(where))
    timed([*base, "image", "unmount", "-f", image])
    timed([*base, "rmi", "-f", image])
    return seconds


def layered(work: Path, count: int) -> Path:
    """Return a layout with many layers of equal size."""
    layers = []
    for number in range(count):
        tar = Tar()
        parts = [tar.data]
        for file in range(40):
            data = random.Random(number * 1000 + file).randbytes(8_000) * 4
            parts.append(header(f"data/{number}/{file}".encode(), b"0", len(data)))
            parts.append(data + bytes(-len(data) % 512))
        layers.append(b"".join(parts) + bytes(1024))
    layers.append(Tar().file(f"{ROOT}/vllm/x.py", "x").done())
    return write_layout(work / f"layers{count}", build_image(layers))


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--wheel", type=Path)
    options.add_argument("--expect", type=Path, help="tree of the real wheel")
    options.add_argument("--runs", type=int, default=3)
    options.add_argument("--json", type=Path)
    options.add_argument("--skip-tools", action="store_true")
    arguments = options.parse_args()
    with tempfile.TemporaryDirectory() as name:
        result = measure(arguments, Path(name))
    text = json.dumps(result, indent=2)
    print(text)
    if arguments.json:
        arguments.json.write_text(text + "\n")
    bars = result["bars"]
    sys.exit(0 if all(bars.values()) else 1)


def measure(arguments: argparse.Namespace, work: Path) -> dict[str, dict[str, object]]:
    times: dict[str, list[float]] = {}
    peaks: dict[str, float] = {}
    tree = arguments.expect or work / "tree"
    layouts = {}
    for kind in ("gzip", "zstd"):
        writer = Writer(work / "blob", kind)
        size = write_tar(writer, arguments.wheel, tree)
        layouts[kind] = writer.layout(work / kind)
    for _ in range(arguments.runs):
        for kind, layout in layouts.items():
            seconds, peak = ours(layout, tree)
            times.setdefault(f"ours {kind}", []).append(seconds)
            peaks[kind] = max(peaks.get(kind, 0), peak)
            times.setdefault(f"floor {kind}", []).append(floor(layout, kind))
        if not arguments.skip_tools:
            if shutil.which("umoci"):
                times.setdefault("umoci + git", []).append(umoci(layouts["gzip"], work))
            if shutil.which("podman") and not os.geteuid():
                times.setdefault("podman + git", []).append(
                    podman(layouts["zstd"], work)
                )
    small = work / "small"
    (small / "vllm").mkdir(parents=True)
    (small / "vllm" / "x.py").write_text("x")
    counts = (1, 30, 60, 120)
    for count in counts:
        layout = layered(work, count)
        times[f"layers {count}"] = [
            ours(layout, small)[0] for _ in range(max(3, arguments.runs))
        ]
    middle = {name: statistics.median(values) for name, values in times.items()}
    ratios: dict[str, object] = {
        "gzip over floor": middle["ours gzip"] / middle["floor gzip"],
        "zstd over floor": middle["ours zstd"] / middle["floor zstd"],
    }
    bars: dict[str, object] = {
        "gzip within 1.3 of floor": middle["ours gzip"] <= 1.3 * middle["floor gzip"],
        "zstd within 1.3 of floor": middle["ours zstd"] <= 1.3 * middle["floor zstd"],
        "under 150 MB": max(peaks.values()) < 150,
    }
    for other, kind in (("umoci + git", "gzip"), ("podman + git", "zstd")):
        if other in middle:
            ratio = middle[other] / middle[f"ours {kind}"]
            ratios[f"{other} over ours"] = ratio
            bars[f"7 times faster than {other}"] = ratio >= 7
    first = min(times["layers 30"])
    per = [(min(times[f"layers {c}"]) - first) / (c - 30) for c in (60, 120)]
    ratios["seconds per layer, 30 to 60 and to 120"] = per
    bars["linear in layers"] = per[1] <= 1.5 * max(per[0], 1e-3)
    return {
        "layer": {"bytes": size, "cores": os.cpu_count() or 1},
        "seconds": {
            name: [round(v, 3) for v in sorted(t)] for name, t in times.items()
        },
        "peak_mb": {name: round(value, 1) for name, value in peaks.items()},
        "ratios": ratios,
        "bars": bars,
    }


if __name__ == "__main__":
    # Children count for themselves; our own peak is no part of the result.
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    main()
