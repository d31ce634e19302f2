# SPDX-License-Identifier: Apache-2.0
"""Gates on a real Ray cluster: several raylets, some of which are killed.

The tests share one cluster and stand in the order in which it loses nodes, so they run
in one process. Its GPUs are those of a driver's library that answers from variables
(`nvml.py`); everything else is real.
"""

import json
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path

import nvml
import pytest
from clusters import RayCluster, ray_cluster
from gating import add_gate, arms, gate_project, processes_of, read_json
from support import ROOT, Project, program, program_environment, run

pytestmark = [
    pytest.mark.tools,
    pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed"),
]

LIMIT = 240.0
"""Seconds after which a test gives up; none of them is about time."""


def add_node(cluster: RayCluster, name: str, model: str, library: Path) -> None:
    cluster.add(
        name,
        cpus=2,
        gpus=1,
        labels={"gpu": model, "name": name},
        env={
            "LD_LIBRARY_PATH": str(library),
            "STUB_NAME": f"NVIDIA {model}",
            "STUB_UUID": f"{sum(name.encode()):08x}",
            "STUB_GPUS": "1",
        },
    )


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return nvml.build(tmp_path_factory.mktemp("nvml"))


@pytest.fixture(scope="module")
def cluster(
    tmp_path_factory: pytest.TempPathFactory, library: Path
) -> Iterator[RayCluster]:
    with ray_cluster(tmp_path_factory.mktemp("cluster"), cpus=0) as found:
        add_node(found, "a", "H200", library)
        add_node(found, "b", "H100", library)
        yield found


@pytest.fixture
def two_nodes(cluster: RayCluster, library: Path) -> RayCluster:
    """The cluster with two nodes that can run units, new ones for those that died."""
    while len(cluster.ids) < 3:
        add_node(cluster, f"n{time.monotonic_ns() % 10**6}", "H100", library)
    return cluster


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return gate_project(tmp_path / "project")


def on(cluster: RayCluster, *args: str) -> list[str]:
    return [*args, "--executor", "ray", "--ray-address", cluster.address, "--json"]


def gate(project: Project, cluster: RayCluster, *args: str):
    return run(*on(cluster, "gate", "run", *args), cwd=project.folder, env={})


CASE = """
say({"schema": 1, "samples": {"cases": [
    {"id": unit, "equal": True, "elements": 1, "differing": 0}]}})
"""


def require(project: Project, *names: str, advisory: Sequence[str] = ()) -> None:
    """Have a set of the series ask for gates."""
    text = (project.folder / "series.toml").read_text()
    old = 'patches = "patches/alpha"\n'
    lists = f"required = {json.dumps(names)}, advisory = {json.dumps(advisory)}"
    table = f"gates = {{ {lists} }}\n"
    (project.folder / "series.toml").write_text(text.replace(old, old + table))


TEXTS = """
texts = {n: (Path(a["tree"]) / "pkg/core.py").read_text() for n, a in arms.items()}
print("the unit's output")
Path("kept.txt").write_text("left behind")
say(cases("line ten" not in texts["base"], "line ten" in texts["on"]))
"""
TWO = arms(base="base", on="upto:alpha")


def test_what_a_run_needs_is_sent_once_to_each_node(project, cluster):
    add_gate(project, "texts", TEXTS, TWO)
    add_gate(project, "others", TEXTS, TWO)
    sent = []
    for names, label in (
        (["texts", "others"], "a"),
        (["texts"], "a"),
        (["texts"], "b"),
    ):
        done = gate(project, cluster, *names, "--ray-label", f"name={label}")
        assert done.code == 0, done.json
        first, *_ = found = done.json if len(names) > 1 else [done.json]
        assert [each["nodes"] for each in found] == [[cluster.known(label)]] * len(
            names
        )
        sent.append(first["shipped"])
    kinds = [[item["kind"] for item in each] for each in sent]
    # A second gate with the same trees: its own files alone.
    everything = ["code", "project", "tree", "tree"]
    assert kinds == [[*everything, "project"], [], everything]
    every = [(item["node"], item["digest"]) for each in sent for item in each]
    assert len(set(every)) == len(every)
    trees = {item["digest"] for item in sent[0] if item["kind"] == "tree"}
    for node in ("a", "b"):
        there = {path.name for path in (cluster.cache(node) / "trees").iterdir()}
        assert there == trees
    # The output of units came back, the receipt verifies and names no machine.
    unit = project.folder / done.json["output"] / "units/0000"
    assert (unit / "stdout").read_text().startswith("the unit's output")
    assert (unit / "kept.txt").read_text() == "left behind"
    receipt = project.folder / done.json["receipt"]
    assert run("receipt", "verify", receipt, cwd=project.folder).code == 0
    text = receipt.read_text()
    evidence = read_json(receipt)["predicate"]
    assert evidence["scope"]["host"]["nodes"] == [cluster.known("b")]
    assert evidence["units"][0]["host"]["node"] == cluster.known("b")
    address = cluster.address.rpartition(":")[0]
    for private in (address, socket.gethostname(), str(cluster.folder)):
        assert private not in text
    # Nothing of a run stays on a node but what it may need again.
    assert not list((cluster.cache("b") / "nodes/runs").iterdir())


def test_a_tree_that_was_changed_on_a_node_is_sent_again(project, cluster):
    add_gate(project, "texts", TEXTS, TWO)
    trees = sorted((cluster.cache("a") / "trees").iterdir())
    assert len(trees) == 2  # of the test above: the same project makes the same trees
    (trees[0] / "pkg/core.py").write_text("line ten, always\n")
    done = gate(project, cluster, "texts", "--ray-label", "name=a")
    assert (done.code, done.json["verdict"]) == (0, "qualified"), done.json
    again = [item["digest"] for item in done.json["shipped"] if item["kind"] == "tree"]
    assert again == [trees[0].name]


GPU = """
say(cases(os.environ["CUDA_VISIBLE_DEVICES"].startswith("GPU-"), True))
"""


def test_gpus_and_labels_decide_where_a_run_goes(project, cluster):
    wanted = '[needs]\ngpus = 1\ngpu_models = ["H100"]\n'
    add_gate(project, "small", GPU, wanted)
    add_gate(project, "large", GPU, "[needs]\ngpus = 2\n")
    # No label says so: a node that has another model when it is asked is left.
    done = gate(project, cluster, "small")
    assert (done.code, done.json["nodes"]) == (0, [cluster.known("b")]), done.json
    held = read_json(project.folder / done.json["receipt"])["predicate"]
    (gpu,) = held["scope"]["hardware"]["gpus"]
    assert gpu["name"] == "NVIDIA H100"
    assert gpu["uuid"] == held["units"][0]["gpus"][0]["uuid"]
    done = gate(project, cluster, "small", "large", "--ray-label", "gpu=B200")
    small, large = done.json
    assert (done.code, small["verdict"], small["receipt"]) == (8, "not-tested", None)
    assert "1 GPU (H100) and the label gpu=B200 (3 are alive)" in small["reasons"][0]
    assert "2 GPUs and the label" in large["reasons"][0]


def test_a_package_that_no_node_has_is_not_tested(project, cluster):
    add_gate(project, "odd", TEXTS, '[needs]\npackages = ["no-such-thing>=1"]\n' + TWO)
    done = gate(project, cluster, "odd")
    assert done.code == 8 and "no-such-thing" in done.json["reasons"][0]


def test_a_series_is_qualified_on_the_cluster(project, cluster):
    several = 'unit = os.environ["STACKCTL_GATE_UNIT"]' + CASE
    add_gate(project, "good", several, "units = 3\nparallel = 2\n")
    add_gate(project, "bad", "say(cases(False))")
    add_gate(project, "absent", "say(cases(True))", "[needs]\ngpus = 9\n")
    require(project, "good", "bad", advisory=["absent"])
    done = run(*on(cluster, "qualify"), cwd=project.folder, env={})
    assert (done.code, done.json["verdict"]) == (1, "rejected"), done.json
    found = {row["gate"]: (row["verdict"], row["nodes"]) for row in done.json["gates"]}
    assert found["absent"] == ("not-tested", [])
    assert found["good"][0] == "qualified"
    units = {row["gate"]: row["units"] for row in done.json["gates"]}
    assert units == {"good": 3, "bad": 1, "absent": 0}
    assert {item["kind"] for item in done.json["shipped"]} >= {"project"}
    assert {node for _, nodes in found.values() for node in nodes} <= {
        cluster.known(name) for name in cluster.ids
    }


OTHER = """
import sys
import stackctl.gates.pack as pack
write = pack.write_trees
def other(store, trees, path, progress):
    # The files of one tree under the name of another.
    import zipfile
    known = ["%(base)s", "%(alpha)s"]
    known.remove(trees[0])
    write(store, known, path, progress)
    with zipfile.ZipFile(path) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in files.items():
            archive.writestr(name.replace(known[0], trees[0]), data)
pack.write_trees = other
from stackctl.cli import main
sys.exit(main())
"""


def test_a_node_refuses_a_tree_that_is_not_the_one(project, cluster, tmp_path):
    add_gate(project, "texts", TEXTS, TWO)
    shutil.rmtree(cluster.cache("a") / "trees")
    ids = {
        name: run("compose", *args, "--json", cwd=project.folder).json["tree"]
        for name, args in (("base", ["--base-only"]), ("alpha", ["--upto", "alpha"]))
    }
    asked = on(cluster, "gate", "run", "texts", "--ray-label", "name=a")
    done = subprocess.run(
        [sys.executable, "-c", OTHER % ids, *asked],
        cwd=project.folder,
        env=program_environment(),
        capture_output=True,
    )
    told = json.loads(done.stdout)["error"]
    assert (done.returncode, told["kind"]) == (4, "tree-mismatch"), done.stderr
    assert told["where"]["node"] == cluster.known("a")
    assert list((cluster.cache("a") / "trees").iterdir()) == []
    assert not (project.folder / "receipts").exists()


# -- what cannot be used ---------------------------------------------------------------

AS = """
import sys, ray
ray.__version__ = "1.0.0"
from stackctl.cli import main
sys.exit(main())
"""


def test_a_cluster_of_another_version_is_refused(project, cluster):
    add_gate(project, "texts", TEXTS, TWO)
    done = subprocess.run(
        [sys.executable, "-c", AS, *on(cluster, "gate", "run", "texts")],
        cwd=project.folder,
        env=program_environment(),
        capture_output=True,
    )
    told = json.loads(done.stdout)["error"]
    assert (done.returncode, told["kind"]) == (6, "ray-version")
    assert "1.0.0" in told["message"] and b"Traceback" not in done.stderr


def test_an_address_that_does_not_answer(project):
    add_gate(project, "texts", TEXTS, TWO)
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # bound, and nobody listens
        address = f"127.0.0.1:{closed.getsockname()[1]}"
        done = run(
            *("gate", "run", "texts", "--executor", "ray", "--json"),
            *("--ray-address", address),
            cwd=project.folder,
            env={},
        )
    assert (done.code, done.json["error"]["kind"]) == (6, "no-cluster")
    assert address in done.json["error"]["message"]


# -- interruptions ---------------------------------------------------------------------

WAITS = """
import subprocess, time
unit = os.environ["STACKCTL_GATE_UNIT"]
folder = Path({folder!r})
node = Path(arms["on"]["tree"]).parts[-3]
(folder / "ran").open("a").write(unit + " " + node + "\\n")
if unit == {at!r} and not (folder / "go").exists():
    # A child in a session of its own: it must not be left either.
    child = "import time, sys; time.sleep(600)"
    subprocess.Popen([sys.executable, "-c", child, str(folder)], start_new_session=True)
    (folder / "ready").write_text(node)
    while True:
        time.sleep(0.05)
"""


@pytest.fixture
def state(tmp_path: Path) -> Path:
    folder = tmp_path / "state"
    folder.mkdir()
    return folder


def waits(state: Path, at: int, rest: str = CASE) -> str:
    return WAITS.format(folder=str(state), at=str(at)) + rest


def start(project: Project, cluster: RayCluster, *args: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        program(*on(cluster, *args)),
        cwd=project.folder,
        env=program_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def until(condition, child: subprocess.Popen[bytes] | None = None) -> None:
    limit = time.monotonic() + LIMIT
    while not condition():
        assert time.monotonic() < limit, "waited too long"
        if child is not None and child.poll() is not None:
            raise AssertionError(child.communicate())
        time.sleep(0.05)


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL], ids=["ctrl-c", "kill"])
def test_an_interrupted_run_leaves_no_process_and_goes_on(project, cluster, state, how):
    # The one with all threads of a qualification, the other in the main thread.
    asked = ["qualify"] if how == signal.SIGINT else ["gate", "run", "waits"]
    add_gate(project, "waits", waits(state, 1), "units = 2\n" + TWO)
    require(project, "waits")
    child = start(project, cluster, *asked)
    until((state / "ready").exists, child)
    assert len(processes_of(state)) == 1
    child.send_signal(how)
    _out, errors = child.communicate(timeout=LIMIT)
    if how == signal.SIGINT:
        assert child.returncode == 130, errors
        assert b"Traceback" not in errors
        assert not processes_of(state)  # gone before the program was
    until(lambda: not processes_of(state))
    assert not (project.folder / "receipts").exists()
    if how == signal.SIGKILL:
        return
    (state / "go").touch()
    done = run(*on(cluster, *asked), cwd=project.folder, env={})
    (row,) = done.json["gates"]
    assert (done.code, row["resumed_units"]) == (0, 1), done.json
    units = [line.split()[0] for line in (state / "ran").read_text().splitlines()]
    assert units == ["0", "1", "1"]


def name_of(state: Path) -> str:
    return (state / "ready").read_text()


def qualified_without_its_node(cluster, state, child):
    """Kill the node that runs a waiting unit; return its name and the verdict."""
    until((state / "ready").exists, child)
    victim = name_of(state)
    lost = cluster.known(victim)
    (state / "go").touch()
    cluster.kill(victim)
    del cluster.ids[victim]
    out, errors = child.communicate(timeout=LIMIT)
    done = json.loads(out)
    assert (child.returncode, done["verdict"]) == (0, "qualified"), (done, errors)
    return lost, done


def test_a_unit_of_a_killed_node_runs_again_on_another(project, two_nodes, state):
    cluster = two_nodes
    add_gate(project, "waits", waits(state, 1), "units = 3\n" + TWO)
    child = start(project, cluster, "gate", "run", "waits")
    lost, done = qualified_without_its_node(cluster, state, child)
    assert done["lost_nodes"] == [lost]
    (other,) = [cluster.known(name) for name in cluster.ids if name != "head"]
    held = read_json(project.folder / done["receipt"])["predicate"]
    # What was answered before counts; what was not has no sample of the dead node.
    where = [unit["host"]["node"] for unit in held["units"]]
    assert where == [lost, other, other]
    ran = [line.split() for line in (state / "ran").read_text().splitlines()]
    assert [unit for unit, _ in ran] == ["0", "1", "1", "2"]
    until(lambda: not processes_of(state))


KERNEL = """
import random
draw = random.Random(unit)
say({"schema": 1, "samples": {"cells": {"c": {
    "order": ["base", "on", "on", "base"],
    "values": {arm: [m * draw.gauss(100, 0.5) for _ in range(2)]
               for arm, m in (("base", 1), ("on", 0.5))}}}}})
"""
TIMED = """
[rule]
statistic = "paired-log-ratio"
pairs = 6
looks = 1
host_load_limit = 100
load_imbalance_limit = 100
[[claim]]
name = "gain"
cell = "c"
arm = "on"
against = "base"
margin = 0.08
"""


def test_all_pairs_of_a_schedule_are_of_one_node(project, two_nodes, state):
    cluster = two_nodes
    add_gate(project, "speed", waits(state, 1, KERNEL), TWO + TIMED, kind="kernel")
    child = start(project, cluster, "gate", "run", "speed")
    lost, done = qualified_without_its_node(cluster, state, child)
    (other,) = [cluster.known(name) for name in cluster.ids if name != "head"]
    assert (done["lost_nodes"], done["nodes"]) == ([lost], [other])
    held = read_json(project.folder / done["receipt"])["predicate"]
    assert [unit["host"]["node"] for unit in held["units"]] == [other] * 6
    # The finished pair of the dead node is in no figure, and the reader is told.
    assert "with 1 finished units was thrown away" in " ".join(held["limitations"])


def test_a_lost_node_without_another_is_reported(project, cluster, state):
    (name,) = [name for name in cluster.ids if name != "head"]
    add_gate(project, "waits", waits(state, 1), "units = 2\n" + TWO)
    child = start(project, cluster, "gate", "run", "waits")
    until((state / "ready").exists, child)
    lost = cluster.known(name)
    cluster.kill(name)
    out, _ = child.communicate(timeout=LIMIT)
    told = json.loads(out)["error"]
    assert (child.returncode, told["kind"]) == (6, "node-lost"), told
    assert told["where"]["nodes"] == [lost]
    assert not (project.folder / "receipts").exists()
    # What the node had answered is kept; what it had not has left nothing.
    kept = sorted((project.folder / ".stackctl/gates/waits/000001/units").iterdir())
    assert [path.name for path in kept if path.suffix == ".json"] == ["0000.json"]
    assert str(ROOT) not in told["message"]
