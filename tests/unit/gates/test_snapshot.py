"""What the machine tells of itself; programs answer as the real ones do."""

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from support import until

from stackctl.gates import snapshot
from stackctl.gates.here import Here, is_model
from stackctl.gates.model import load_gate

SMI = """#!{python}
import sys
fields = sys.argv[1].partition("=")[2].split(",")
rows = [
    {{"uuid": "GPU-aa", "name": "NVIDIA H200", "driver_version": "570.1",
      "memory.total": "143771", "clocks.max.sm": "1980", "clocks.sm": "1410",
      "clocks.mem": "3201", "temperature.gpu": "41", "power.draw": "[N/A]",
      "clocks_event_reasons.active": "0x0000000000000020",
      "utilization.gpu": "3", "memory.used": "512"}},
    {{"uuid": "GPU-bb", "name": "NVIDIA H200", "driver_version": "570.1",
      "memory.total": "143771", "clocks.max.sm": "1980", "clocks.sm": "345",
      "clocks.mem": "3201", "temperature.gpu": "30", "power.draw": "75.50",
      "clocks_event_reasons.active": "0x0000000000000001",
      "utilization.gpu": "0", "memory.used": "0"}},
]
for row in rows:
    print(", ".join(row[field] for field in fields))
"""


@pytest.fixture
def two_gpus(tmp_path, monkeypatch):
    """A machine whose nvidia-smi shows two GPUs, and that has no NVML."""
    program = tmp_path / "bin/nvidia-smi"
    program.parent.mkdir()
    program.write_text(SMI.format(python=sys.executable))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr(snapshot, "_nvml", lambda: None)


def test_gpus_and_their_states(two_gpus):
    first, second = snapshot.gpus()
    assert (first.uuid, first.memory_mib, second.index) == ("GPU-aa", 143771, 1)
    hot, cold = map(snapshot.gpu_state, (first, second))
    assert hot == {
        "sm_mhz": 1410.0,
        "memory_mhz": 3201.0,
        "temperature_c": 41.0,
        "power_w": None,
        "reasons": 0x20,
        "utilization": 3.0,
        "memory_used_mib": 512.0,
    }
    assert snapshot.throttled(hot) and not snapshot.throttled(cold)
    assert cold["power_w"] == 75.5


def test_no_driver_is_no_gpu(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(snapshot, "_nvml", lambda: None)
    assert snapshot.gpus() == []
    gpu = snapshot.Gpu(0, "GPU-x", "x", "1", 1)
    assert set(snapshot.gpu_state(gpu).values()) == {None}


GATE = """
schema = 1
kind = "parity"
title = "t"
script = "a.py"
[needs]
gpus = {gpus}
gpu_memory_mib = {memory}
"""


@pytest.mark.parametrize(
    ("gpus", "memory", "chosen", "words"),
    [
        (1, 0, "", []),
        (2, 100_000, "", []),
        (3, 0, "", ["3 GPUs needed, 2 here"]),
        (1, 200_000, "", ["1 GPU with 200,000 MiB needed, 0 here"]),
        (1, 0, "1", []),
        (1, 0, "GPU-cc", ["no NVIDIA GPU `GPU-cc`"]),
    ],
)
def test_what_a_gate_needs(two_gpus, tmp_path, gpus, memory, chosen, words):
    path = tmp_path / "gate.toml"
    path.write_text(GATE.format(gpus=gpus, memory=memory))
    here = Here(gpu=chosen)
    assert here.missing(load_gate(path)) == words
    if chosen == "1":
        assert here.gpus[0].uuid == "GPU-bb"


@pytest.mark.parametrize(
    ("models", "words"),
    [
        ('["H200"]', []),
        ('["A100", "h200"]', []),
        ('["NVIDIA H200"]', []),
        ('["H20"]', ["1 GPU (H20) needed, 0 here"]),
        ('["A100", "H100"]', ["1 GPU (A100 or H100) needed, 0 here"]),
    ],
)
def test_the_model_that_a_gate_needs(two_gpus, tmp_path, models, words):
    path = tmp_path / "gate.toml"
    path.write_text(GATE.format(gpus=1, memory=0) + f"gpu_models = {models}\n")
    assert Here().missing(load_gate(path)) == words


def test_a_label_is_that_of_a_model():
    assert is_model("A100-80G", ["A100"]) and is_model("A100-80G", ["a100 80g"])
    assert not is_model("A100-40G", ["A100-80G"]) and not is_model("", ["A100"])
    assert is_model("anything", [])


def test_a_python_tells_its_packages(tmp_path):
    found = snapshot.probe_python(sys.executable)
    assert found.version == ".".join(map(str, sys.version_info[:3]))
    assert not found.problem and "pytest" in found.packages
    assert snapshot.package_problems(["pytest>=8"], found.packages) == []
    (old,) = snapshot.package_problems(["pytest<1"], found.packages)
    assert "needed is pytest<1" in old
    wanted = ["no-such>=1", "pytest>=8", "nor-this"]
    assert snapshot.package_problems(wanted, found.packages) == [
        "not installed: no-such>=1, nor-this"
    ]


@pytest.mark.parametrize("text", ["exit 3", "echo no json", "echo 1"])
def test_a_program_that_is_no_python_is_told(tmp_path, text):
    program = tmp_path / "python"
    program.write_text(f"#!/bin/sh\n{text}\n")
    program.chmod(0o755)
    assert str(program) in snapshot.probe_python(str(program)).problem
    assert "No such file" in snapshot.probe_python(str(tmp_path / "none")).problem


LOCKED = """
import sys, time
from pathlib import Path
from stackctl.gates.snapshot import gpu_lock
folder = Path(sys.argv[1])
with gpu_lock("GPU-aa", lambda: None, folder):
    (folder / "held").touch()
    while not (folder / "go").exists():
        time.sleep(0.02)
"""


def test_a_gpu_belongs_to_one_run_at_a_time(tmp_path):
    other = subprocess.Popen([sys.executable, "-c", LOCKED, str(tmp_path)])
    try:
        until((tmp_path / "held").exists, other)
        waited: list[int] = []

        def waiting() -> None:
            waited.append(1)
            (tmp_path / "go").touch()

        with snapshot.gpu_lock("GPU-aa", waiting, tmp_path):
            assert waited == [1] and other.wait(300) == 0
        # Another GPU is another lock; and nobody's file is needed to be writable.
        lock = tmp_path / "stackctl-gpu-GPU-aa.lock"
        lock.chmod(0o444)
        done = threading.Event()
        with snapshot.gpu_lock("GPU-aa", done.set, tmp_path):
            pass
        assert not done.is_set()
    finally:
        other.kill()
        other.wait()


def test_a_link_in_place_of_the_lock_is_not_followed(tmp_path: Path):
    (tmp_path / "stackctl-gpu-GPU-aa.lock").symlink_to(tmp_path / "victim")
    with (
        pytest.raises(OSError, match="Too many levels"),
        snapshot.gpu_lock("GPU-aa", lambda: None, tmp_path),
    ):
        pass
    assert not (tmp_path / "victim").exists()


def test_the_host_has_no_name():
    import platform

    found = snapshot.host()
    assert found["cpus"] == os.cpu_count()
    assert platform.node() not in map(str, found.values())
    busy = snapshot.cpu_busy()
    assert busy is not None and busy[0] > 0 and busy[1] >= 1
