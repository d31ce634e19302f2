"""The recipe that carries vLLM to a GPU machine (`ci/gpu`), without a GPU."""

import lzma
import struct
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

GPU = Path(__file__).parents[2] / "ci" / "gpu"


@pytest.fixture
def prune(monkeypatch):
    monkeypatch.syspath_prepend(str(GPU))
    import prune_fatbin

    yield prune_fatbin.prune
    sys.modules.pop("prune_fatbin", None)


def _entry(kind: int, arch: int, payload: bytes) -> bytes:
    header = bytearray(64)
    struct.pack_into("<HHIQ", header, 0, kind, 0, 64, len(payload))
    struct.pack_into("<I", header, 28, arch)
    return bytes(header) + payload


def _container(*entries: bytes) -> bytes:
    body = b"".join(entries)
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(body)) + body


def test_only_the_wanted_architecture_keeps_its_code(prune, tmp_path):
    source, target = tmp_path / "a.so", tmp_path / "b.so"
    both = _container(_entry(2, 80, b"a" * 40), _entry(2, 90, b"b" * 24))
    ptx_only = _container(_entry(1, 80, b"p" * 16), _entry(2, 80, b"c" * 8))
    stray = struct.pack("<I", 0xBA55ED50) + b"not a container"
    source.write_bytes(b"ELF" + both + stray + ptx_only + b"end")
    assert prune(source, target, 90) == (24 + 16, 40 + 8)
    out = target.read_bytes()
    assert len(out) == len(source.read_bytes())
    assert b"b" * 24 in out and b"p" * 16 in out
    assert b"a" * 40 not in out and b"c" * 8 not in out
    assert stray in out and out.endswith(b"end")
    assert prune(source, target, None) == (0, 40 + 24 + 16 + 8)


def test_setup_puts_every_piece_where_vllm_looks(tmp_path):
    part = tmp_path / "p1"
    part.mkdir()
    tree = tmp_path / "tree" / "vllm"
    tree.mkdir(parents=True)
    (tree / "__init__.py").write_text("x = 1\n")
    tar = tmp_path / "x.tar"
    with tarfile.open(tar, "w") as archive:
        archive.add(tree, "vllm")
    (part / "vllm_py.tar.xz").write_bytes(lzma.compress(tar.read_bytes()))
    libraries = {
        "_C_stable_libtorch.abi3.so": "vllm/_C_stable_libtorch.abi3.so",
        "_vllm_fa3_C.abi3.so": "vllm/vllm_flash_attn/_vllm_fa3_C.abi3.so",
        "deepgemm_C_extension.abi3.so": (
            "vllm/third_party/deep_gemm/_C_extension.abi3.so"
        ),
    }
    for name in libraries:
        (part / f"{name}.xz").write_bytes(lzma.compress(name.encode()))
    site = tmp_path / "site"
    command = [sys.executable, str(GPU / "setup_device.py"), str(part)]
    subprocess.run([*command, "--site", str(site)], check=True, capture_output=True)
    assert (site / "vllm/__init__.py").read_text() == "x = 1\n"
    for name, place in libraries.items():
        assert (site / place).read_bytes() == name.encode()


def test_parts_are_made_of_the_pinned_wheel_only(tmp_path):
    wheel = tmp_path / "vllm.whl"
    wheel.write_bytes(b"something else")
    done = subprocess.run(
        [sys.executable, str(GPU / "make_parts.py"), str(wheel), str(tmp_path / "out")],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 4
    assert "sha256" in done.stderr and "expected 4b6bdec4" in done.stderr
    assert not (tmp_path / "out").exists()
