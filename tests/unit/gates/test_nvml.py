"""GPUs read through the driver's library, by the binding that users have.

The library is a small one that answers from variables: the binding, and how it finds
and calls the library, are the real ones. A process of its own, for a library that was
loaded once stays.
"""

import json
import os
import subprocess
import sys

import nvml
import pytest
from support import ROOT

pytest.importorskip("pynvml")
pytestmark = pytest.mark.skipif(nvml.COMPILER is None, reason="no C compiler")

ASK = """
import json
from stackctl.gates import snapshot
found = snapshot.gpus()
states = [snapshot.gpu_state(gpu) for gpu in found]
shown = [dict(gpu.facts) | {"index": gpu.index} for gpu in found]
slow = [snapshot.throttled(state) for state in states]
print(json.dumps({"gpus": shown, "states": states, "slow": slow}))
"""


def ask(folder, **variables):
    env = {
        "PATH": str(folder / "nothing"),  # no nvidia-smi
        "LD_LIBRARY_PATH": str(folder),
        "PYTHONPATH": str(ROOT),
        **variables,
    }
    command = [sys.executable, "-c", ASK]
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("options", [(), ("-DOLD",)], ids=["new", "before-535"])
def test_gpus_and_their_states(tmp_path, options):
    found = ask(nvml.build(tmp_path, *options))
    first, second = found["gpus"]
    assert first == {
        "uuid": "GPU-0a0b0c0d-0000-4000-8000-000000000000",
        "name": "NVIDIA H200",
        "driver": "580.159.04",
        "memory_mib": 143771,
        "sm_max_mhz": 1980,
        "index": 0,
    }
    assert second["index"] == 1
    assert found["states"][0] == {
        "sm_mhz": 1410,
        "memory_mhz": 3201,
        "temperature_c": 41,
        "power_w": 75.5,
        "reasons": 1,
        "utilization": 3,
        "memory_used_mib": 512,
    }
    # What one GPU does not tell is unknown, and a slowdown is seen on every driver.
    assert found["states"][1]["power_w"] is None
    assert found["slow"] == [False, True]


def test_a_gpu_that_is_lost_takes_no_other_along(tmp_path):
    found = ask(nvml.build(tmp_path), STUB_LOST="0")
    assert [gpu["index"] for gpu in found["gpus"]] == [1]


SMI = "#!/bin/sh\necho 'GPU-ee, NVIDIA H100, 570.1, 81559, 1980'\n"


@pytest.mark.parametrize("broken", [True, False], ids=["broken", "absent"])
def test_without_the_library_the_program_is_asked(tmp_path, broken):
    program = tmp_path / "bin/nvidia-smi"
    program.parent.mkdir()
    program.write_text(SMI)
    program.chmod(0o755)
    folder = nvml.build(tmp_path / "lib") if broken else tmp_path / "none"
    path = os.pathsep.join([str(program.parent), "/usr/bin", "/bin"])
    found = ask(folder, PATH=path, STUB_BROKEN="1")
    assert [gpu["name"] for gpu in found["gpus"]] == ["NVIDIA H100"]


def test_both_ways_tell_the_same_things(tmp_path):
    """A receipt reads the same whatever the machine has installed."""
    from stackctl.gates import snapshot

    found = ask(nvml.build(tmp_path))
    by_program = [name for name in snapshot._FIXED if name != "pci"]
    assert [*found["gpus"][0]] == [*by_program, "index"]
    assert [*found["states"][0]] == [*snapshot._STATE]
