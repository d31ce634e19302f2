# SPDX-License-Identifier: Apache-2.0
"""Inflates a layer in one thread and hashes it in another, and nothing else.

What `bench_verify_image.py` compares with: a program of its own, as `stackctl` is one,
so that both pay for starting Python. The digests are those that must be checked:
SHA-256 of the layer as stored and as unpacked.

    python ci/bench/floor.py BLOB gzip|zstd
"""

import hashlib
import queue
import sys
import threading

STEP = 1 << 20


def main() -> None:
    path, kind = sys.argv[1:]
    # As in stackctl.image.layers: glibc then keeps the memory of the chunks, and the
    # kernel need not zero it again and again. Gzip takes an eighth less time by it.
    bytes(16 * STEP)
    todo: queue.Queue[tuple[int, bytes] | None] = queue.Queue(maxsize=8)
    hashes = (hashlib.sha256(), hashlib.sha256())

    def digest() -> None:
        while (item := todo.get()) is not None:
            which, data = item
            hashes[which].update(data)

    thread = threading.Thread(target=digest)
    thread.start()
    with open(path, "rb", buffering=0) as stream:
        if kind == "gzip":
            from isal import isal_zlib

            member = isal_zlib.decompressobj(31)
            while data := stream.read(STEP):
                todo.put((0, data))
                while data:
                    todo.put((1, member.decompress(data, STEP)))
                    data = member.unconsumed_tail
        else:
            import zstandard

            class Source:
                def read(self, size: int) -> bytes:
                    data = stream.read(size)
                    todo.put((0, data))
                    return data

            reader = zstandard.ZstdDecompressor().stream_reader(
                Source(), read_size=STEP
            )
            while data := reader.read(STEP):
                todo.put((1, data))
    todo.put(None)
    thread.join()
    print(*(digest.hexdigest() for digest in hashes))


if __name__ == "__main__":
    main()
