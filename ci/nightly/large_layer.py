# SPDX-License-Identifier: Apache-2.0
"""A layer of 10 GB, served by a process that makes it as it goes: memory stays flat.

    python ci/nightly/large_layer.py [--gigabytes 10] [--compression zstd]

Prints seconds and the peak memory of `stackctl verify-image`; exit code 1 over 150 MB.
The layer is served by a registry on loopback, so that no disk has to hold it.
"""

import argparse
import hashlib
import json
import os
import random
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import zstandard

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))

from images import OCI_LAYER, Tar, build_image, header, sha256

PEAK_MB = 150.0
FILE = 1 << 30


def plain(gigabytes: int) -> Iterator[bytes]:
    """Yield the layer uncompressed: big files of pages that repeat, and one tracked."""
    page = random.Random(1).randbytes(1 << 19) + bytes(1 << 19)
    for number in range(gigabytes):
        yield header(f"data/{number}".encode(), b"0", FILE)
        for part in range(FILE // len(page)):
            # Every page differs, so that no window makes the layer vanish.
            mark = (number * 4096 + part).to_bytes(8, "little")
            yield mark + page[8:]
    yield Tar().file("opt/demo/x.py", "x = 1\n").done()


def stored(gigabytes: int, compression: str) -> Iterator[bytes]:
    """Yield the layer as a registry stores it."""
    pack = (
        zlib.compressobj(1, zlib.DEFLATED, 31)
        if compression == "gzip"
        else zstandard.ZstdCompressor(level=1).compressobj()
    )
    for chunk in plain(gigabytes):
        if data := pack.compress(chunk):
            yield data
    yield pack.flush()


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--gigabytes", type=int, default=10)
    options.add_argument("--compression", choices=("gzip", "zstd"), default="zstd")
    arguments = options.parse_args()
    size = arguments.gigabytes, arguments.compression
    diff_id, digest, total = hashlib.sha256(), hashlib.sha256(), 0
    for chunk in plain(arguments.gigabytes):
        diff_id.update(chunk)
    for chunk in stored(*size):
        digest.update(chunk)
        total += len(chunk)
    layer = "sha256:" + digest.hexdigest()

    def edit(manifest: dict[str, object]) -> None:
        manifest["layers"] = [
            {
                "mediaType": f"{OCI_LAYER}+{arguments.compression}",
                "digest": layer,
                "size": total,
            }
        ]

    image = build_image(
        [b""], diff_ids=["sha256:" + diff_id.hexdigest()], edit_manifest=edit
    )

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None:
            pass

        def do_GET(self) -> None:
            name = self.path.rpartition("/")[2]
            name = image.manifest if name == "latest" else name
            self.send_response(200)
            if name == layer:
                self.send_header("Content-Length", str(total))
                self.end_headers()
                for chunk in stored(*size):
                    self.wfile.write(chunk)
                return
            body = image.blobs[name]
            assert sha256(body) == name
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    Thread(target=server.serve_forever, daemon=True).start()
    with tempfile.TemporaryDirectory() as name:
        (Path(name) / "x.py").write_text("x = 1\n")
        before = time.perf_counter()
        process = subprocess.Popen(
            [
                sys.executable, "-m", "stackctl", "verify-image",
                f"docker://127.0.0.1:{server.server_address[1]}/team/demo",
                "--plain-http", "--expect", name, "--root", ".=/opt/demo", "--json",
            ],
            stdout=subprocess.PIPE,
        )  # fmt: skip
        assert process.stdout is not None
        verdict = json.load(process.stdout)["verdict"]
        _, _, usage = os.wait4(process.pid, 0)
        process.returncode = 0
    peak = usage.ru_maxrss / 1024
    result = {
        "gigabytes": arguments.gigabytes,
        "stored_bytes": total,
        "verdict": verdict,
        "seconds": round(time.perf_counter() - before, 1),
        "peak_mb": round(peak, 1),
    }
    print(json.dumps(result, indent=2))
    return int(verdict != "match" or peak > PEAK_MB)


if __name__ == "__main__":
    sys.exit(main())
