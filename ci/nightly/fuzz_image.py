# SPDX-License-Identifier: Apache-2.0
"""Mutate images, archives, wheels and bytecode for a while; nothing may go wrong.

    python ci/nightly/fuzz_image.py --seconds 3600 [--seed 1]

Every input gets an answer or a refusal with a code. A traceback, a case over ten
seconds, a file written or a peak over 300 MB ends the run with exit code 1.
"""

import argparse
import json
import random
import resource
import sys
import tempfile
import time
import zipfile
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))

from images import (
    COMPRESS,
    PACKAGE_ROOT,
    SITE,
    Demo,
    build_image,
    docker_archive,
    tree_layer,
    write_files,
    write_layout,
)
from layered import CASES
from lazyimages import FORMATS

from stackctl.errors import StackctlError
from stackctl.image import bytecode, documents
from stackctl.image.expectation import ExpectedTree, folder_tree
from stackctl.image.layers import Budget, Interest, scan_layer
from stackctl.image.lazy import LayerIndex, settle
from stackctl.image.limits import Limits
from stackctl.image.roots import PACKAGE, Root
from stackctl.image.verify import Request, verify
from stackctl.image.view import Applier, View

LIMITS = Limits(layer=1 << 24, image=1 << 26, entries=5000)
SLOWEST_SECONDS = 10.0
PEAK_MB = 300.0


class Fuzzer:
    """Draws, mutates and runs."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.random = random.Random(seed)
        self.folder = folder
        self.outcomes: Counter[str] = Counter()
        self.expected: ExpectedTree = folder_tree(Demo().write(folder / "expected"))
        self.root = Root("demo", PACKAGE_ROOT, PACKAGE)
        self.tars = [tar for case in CASES.values() for tar in case.tars()]
        image = build_image([tree_layer(Demo().package(), SITE), self.tars[0]])
        self.image = image
        self.archives = [
            docker_archive(image, s) for s in ("docker24", "skopeo", "docker25")
        ]
        wheel = folder / "seed.whl"
        with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as out:
            for name, data in Demo().package().items():
                out.writestr(name, data)
        self.wheel = wheel.read_bytes()
        import marshal

        code = compile("def f(a, *b):\n    return {1, 2.5, 'x'}, f\n", "x", "exec")
        self.pyc = bytecode.MAGIC + bytes(12) + marshal.dumps(code)

    def mutate(self, data: bytes) -> bytes:
        out = bytearray(data)
        for _ in range(self.random.randint(1, 8)):
            if not out:
                break
            at = self.random.randrange(len(out))
            kind = self.random.randrange(6)
            if kind == 0:
                out[at] = self.random.randrange(256)
            elif kind == 1:
                del out[at : at + self.random.randint(1, 700)]
            elif kind == 2:
                out[at:at] = out[at : at + self.random.randint(1, 1500)]
            elif kind == 3:
                out[at : at + 8] = self.random.randbytes(8)
            elif kind == 4:
                other = self.random.choice(self.tars)
                start = self.random.randrange(len(other))
                out[at:at] = other[start : start + 512]
            # A header whose checksum holds gets past the first gate.
            start = at - at % 512
            block = out[start : start + 512]
            if len(block) == 512 and self.random.random() < 0.7:
                block[148:156] = b" " * 8
                out[start + 148 : start + 156] = b"%06o\0 " % sum(block)
        return bytes(out)

    def case(self) -> str:
        kind = self.random.choice(
            ("layers", "layers", "layers", "blob", "json", "manifest", "archive",
             "wheel", "pyc", "index", "index")
        )  # fmt: skip
        try:
            getattr(self, f"_{kind}")()
        except StackctlError as error:
            return f"{kind}: {error.kind}"
        return f"{kind}: taken"

    def _layers(self) -> None:
        view = View()
        applier = Applier(view)
        budget = Budget(LIMITS)
        interest = Interest(magic=bytecode.MAGIC, roots=(b"d/",))
        for _ in range(self.random.randint(1, 3)):
            data = self.mutate(self.random.choice(self.tars))
            applier.apply(scan_layer([data], budget, interest, size_hint=0).entries)
        for path, _ in view.walk(view.root):
            if path.startswith(b"/") or b".." in path.split(b"/"):
                raise AssertionError(path)

    def _blob(self) -> None:
        pack = COMPRESS[self.random.choice(list(COMPRESS))]
        data = self.mutate(pack(self.random.choice(self.tars)))
        scan_layer([data], Budget(LIMITS), Interest(), size_hint=None)

    def _index(self) -> None:
        """Mutate the index of a lazily read layer, or the layer beside its index."""
        make = self.random.choice(list(FORMATS.values()))
        tar = tree_layer(Demo().package(), SITE)
        layer = make(tar, chunk=self.random.randint(5, 50), raw=self.mutate)
        blob = layer.blob
        if self.random.random() < 0.3:
            layer, blob = make(tar), self.mutate(layer.blob)
        index = LayerIndex(layer.annotations, LIMITS)
        scan = scan_layer([blob], Budget(LIMITS), Interest(), index=index)
        view = View()
        Applier(view).apply(scan.entries)
        settle(view, 0, index.compare(scan.entries, scan.compression))

    def _json(self) -> None:
        raw = self.random.choice(
            [self.image.blobs[self.image.manifest], self.image.blobs[self.image.config]]
        )
        documents.parse(self.mutate(raw), "a document", ("layers",))

    def _verify(self, reference: str, **more: object) -> None:
        request = Request(
            reference,
            [self.expected],
            limits=LIMITS,
            environ={},
            **more,  # type: ignore[arg-type]
        )
        report = verify(request)
        json.dumps(report.document())
        self.outcomes[f"verdict {report.verdict}"] += 1

    def _manifest(self) -> None:
        name = self.random.choice([self.image.manifest, self.image.config])
        data = self.mutate(self.image.blobs[name])
        layout = self.folder / "layout"
        write_layout(layout, self.image)
        write_files(layout, {"blobs/" + name.replace(":", "/"): data})
        if self.random.random() < 0.5:
            index = (layout / "index.json").read_bytes()
            (layout / "index.json").write_bytes(self.mutate(index))
        self._verify(f"oci:{layout}", roots=(self.root,))

    def _archive(self) -> None:
        path = self.folder / "archive.tar"
        data = self.mutate(self.random.choice(self.archives))
        pack = COMPRESS[self.random.choice(list(COMPRESS))]
        path.write_bytes(pack(data))
        kind = self.random.choice(["docker-archive", "oci-archive"])
        self._verify(f"{kind}:{path}", roots=(self.root,))

    def _wheel(self) -> None:
        path = self.folder / "mutated.whl"
        path.write_bytes(self.mutate(self.wheel))
        self._verify(f"wheel:{path}")

    def _pyc(self) -> None:
        data = self.mutate(self.pyc)
        bytecode.read_header(data[:16])
        bytecode.compare_code(data, b"x = 1\n", "x", 0)


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--seconds", type=float, default=60)
    options.add_argument("--seed", type=int, default=1)
    arguments = options.parse_args()
    with tempfile.TemporaryDirectory() as name:
        fuzzer = Fuzzer(Path(name), arguments.seed)
        end = time.monotonic() + arguments.seconds
        count = 0
        slowest = 0.0
        while time.monotonic() < end:
            state = fuzzer.random.getstate()
            before = time.process_time()
            try:
                fuzzer.outcomes[fuzzer.case()] += 1
            except Exception:
                print(f"case {count} of seed {arguments.seed}: {hash(state)}")
                raise
            slowest = max(slowest, time.process_time() - before)
            count += 1
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    result = {
        "cases": count,
        "slowest_seconds": round(slowest, 2),
        "peak_mb": round(peak),
        "outcomes": dict(fuzzer.outcomes.most_common()),
    }
    print(json.dumps(result, indent=2))
    return int(slowest > SLOWEST_SECONDS or peak > PEAK_MB)


if __name__ == "__main__":
    sys.exit(main())
