"""The recipe that carries vLLM to a GPU machine (`ci/gpu`), without a GPU."""

import json
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


FAKE_MODEL = """
import argparse, importlib, json, random
parser = argparse.ArgumentParser()
parser.add_argument("--out")
parser.add_argument("--counter", action="append", default=[])
args, _ = parser.parse_known_args()
import vllm
counters = {c: getattr(vllm, c.partition(":")[2], None) for c in args.counter}
sure = {"tokens": [1, vllm.ANSWER], "logprobs": [[]]}
unsure = {"tokens": [random.random()], "logprobs": [[]]}
answer = {"answers": [sure, unsure], "repeats": [True, False], "counters": counters}
json.dump(answer, open(args.out, "w"))
"""


@pytest.fixture
def arms(tmp_path):
    """model_arms.py beside a model that answers at once; overlays of a tiny site."""
    for name in ("gpu", "gates"):
        (tmp_path / "ci" / name).mkdir(parents=True)
    for name in ("gpu/model_arms.py", "gates/_gate.py", "gates/_unit.py"):
        (tmp_path / "ci" / name).write_text((GPU.parent / name).read_text())
    (tmp_path / "ci/gpu/tiny_glm.py").write_text(FAKE_MODEL)
    overlays = {
        "site": "ANSWER = 2\n",
        "same": "ANSWER = 2\nLAUNCHES = 3\n",
        "idle": "ANSWER = 2\nLAUNCHES = 0\n",
        "other": "ANSWER = 3\nLAUNCHES = 3\n",
        "broken": "raise ValueError('no')\n",
    }
    for name, text in overlays.items():
        (tmp_path / name / "vllm").mkdir(parents=True)
        (tmp_path / name / "vllm/__init__.py").write_text(text)

    def run(name: str) -> tuple[int, dict]:
        done = subprocess.run(
            [
                *(sys.executable, "ci/gpu/model_arms.py", "--site", "site"),
                *("--arm", "base", "--arm", f"set={name}"),
                *("--expect", "set:vllm:LAUNCHES"),
                *("--config", "eager:--eager", "--json"),
            ],
            cwd=tmp_path,
            capture_output=True,
            text=True,
        )
        return done.returncode, json.loads(done.stdout)["configs"]["eager"]

    return run


@pytest.mark.parametrize(
    ("overlay", "code", "verdict"),
    [
        ("same", 0, "qualified"),
        ("idle", 8, "not-tested"),
        ("other", 1, "rejected"),
        ("broken", 9, "invalid"),
    ],
)
def test_arms_are_compared_where_the_base_repeats_itself(arms, overlay, code, verdict):
    found, answer = arms(overlay)
    assert (found, answer["arms"]["set"]["verdict"]) == (code, verdict)
    assert answer["prompts_compared"] == [0]
    assert answer["prompts_not_repeated_by_the_reference"] == [1]
    if overlay == "other":
        assert answer["arms"]["set"]["difference"] == "prompt 0, step 1, tokens"
