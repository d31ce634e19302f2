"""The process on a node, without Ray: what it refuses, and that it ends with its input.

It is the real process, asked over its pipes as the actor on a node asks it.
"""

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from gating import add_gate, arms, gate_project, processes_of
from support import ROOT, Project, run, until

from stackctl.cache import Cache
from stackctl.gates.arms import folder_tree
from stackctl.gates.cluster import shim
from stackctl.gates.cluster.executor import node_name, unpack_output
from stackctl.gates.cluster.node import pack_output
from stackctl.gates.pack import write_trees
from stackctl.gates.shelf import MOST, Shelf
from stackctl.progress import SILENT


class Process:
    """A node's process."""

    def __init__(self, folder: Path) -> None:
        self.cache = folder / "node-cache"
        self.child = subprocess.Popen(
            [sys.executable, "-s", "-c", shim.START, str(ROOT)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=folder,
        )
        self.number = 0
        hello = {"python": "", "site": None, "parameters": {}, "package": []}
        rest = {"key": "", "gpus": [], "cpus": 2, "cache": str(self.cache)}
        assert self.ask("hello", **hello, **rest) == {}

    def send(self, what: str, **request) -> int:
        assert self.child.stdin is not None
        self.number += 1
        line = json.dumps({"do": what, "id": self.number, **request})
        self.child.stdin.write(line.encode() + b"\n")
        self.child.stdin.flush()
        return self.number

    def ask(self, what: str, **request):
        number = self.send(what, **request)
        assert self.child.stdout is not None
        answer = json.loads(self.child.stdout.readline())
        assert answer.pop("id") == number
        return answer

    def end(self) -> None:
        assert self.child.stdin is not None
        self.child.stdin.close()
        assert self.child.wait(60) == 0
        self.child.stdin = None


@pytest.fixture
def node(tmp_path):
    process = Process(tmp_path)
    yield process
    process.child.kill()
    process.child.communicate()


@pytest.fixture
def project(tmp_path) -> Project:
    return gate_project(tmp_path / "project")


@pytest.fixture
def trees(project) -> dict[str, str]:
    def tree(*args: str) -> str:
        done = run("compose", *args, "--json", cwd=project.folder)
        found: str = done.json["tree"]
        return found

    return {"base": tree("--base-only"), "alpha": tree("--upto", "alpha")}


@pytest.fixture
def archive(tmp_path, trees):
    """An archive of one tree, as it is sent."""

    def make(tree: str) -> Path:
        path = tmp_path / f"{tree}.zip"
        write_trees(Cache.open().store, [tree], path, SILENT)
        return path

    return make


def changed(path: Path, rename=lambda name: name, content=lambda name, data: data):
    """Write an archive again, changed."""
    with zipfile.ZipFile(path) as old:
        files = {name: old.read(name) for name in old.namelist()}
    with zipfile.ZipFile(path, "w") as new:
        for name, data in files.items():
            new.writestr(rename(name), content(name, data))
    return path


def kept(node: Process) -> list[str]:
    folder = node.cache / "trees"
    return sorted(os.listdir(folder)) if folder.is_dir() else []


def test_a_tree_is_taken_by_its_id(node, archive, trees):
    wanted = trees["alpha"]
    assert node.ask("have", kind="tree", digest=wanted) == {"have": False}
    path = archive(wanted)
    assert node.ask("take", kind="tree", digest=wanted, file=str(path)) == {}
    assert node.ask("have", kind="tree", digest=wanted) == {"have": True}
    assert folder_tree(node.cache / "trees" / wanted) == wanted


@pytest.mark.parametrize("how", ["other-tree", "other-bytes", "outside", "rubbish"])
def test_what_is_not_the_tree_is_refused(node, archive, trees, how, tmp_path):
    wanted, other = trees["alpha"], trees["base"]
    if how == "other-tree":
        path = changed(archive(other), lambda name: name.replace(other, wanted))
    elif how == "other-bytes":
        path = changed(
            archive(wanted),
            content=lambda name, data: data + (b"\n" if "blobs/" in name else b""),
        )
    elif how == "outside":
        path = changed(
            archive(wanted),
            content=lambda name, data: (
                data.replace(b" pkg/", b" ../pkg/") if "trees/" in name else data
            ),
        )
    else:
        path = tmp_path / "rubbish"
        path.write_bytes(b"no archive")
    answer = node.ask("take", kind="tree", digest=wanted, file=str(path))
    kinds = {
        "other-tree": "tree-mismatch",
        "other-bytes": "digest",
        "rubbish": "bad-pack",
    }
    if how in kinds:
        assert answer["error"]["kind"] == kinds[how], answer
    assert answer["code"] in (3, 4), answer
    assert kept(node) == [] and not (node.cache / "pkg").exists()
    assert node.ask("have", kind="tree", digest=wanted) == {"have": False}


def test_a_node_that_cannot_write_says_so(node, archive, trees):
    node.cache.mkdir()
    (node.cache / "locks").write_text("in the way")
    path, tree = archive(trees["base"]), trees["base"]
    answer = node.ask("take", kind="tree", digest=tree, file=str(path))
    assert answer["code"] in (3, 6) and "locks" in answer["error"]["message"]
    (node.cache / "locks").unlink()
    (node.cache / "trees").write_text("in the way")
    answer = node.ask("take", kind="tree", digest=tree, file=str(path))
    assert (answer["code"], answer["error"]["kind"]) == (6, "node-failed")


def test_project_files_are_taken_by_their_digest(node, tmp_path):
    files = {"ci/gates/a.toml": b"x", "series.toml": b"y"}
    digest = shim.digest_of(files)
    path = tmp_path / "files.zip"
    path.write_bytes(shim.pack({**files, "series.toml": b"z"}))
    answer = node.ask("take", kind="project", digest=digest, file=str(path))
    assert (answer["code"], answer["error"]["kind"]) == (4, "digest")
    assert node.ask("have", kind="project", digest=digest) == {"have": False}
    path.write_bytes(shim.pack(files))
    assert node.ask("take", kind="project", digest=digest, file=str(path)) == {}
    # A folder that was changed is not there any more.
    assert node.ask("have", kind="project", digest=digest) == {"have": True}
    (folder,) = (p for p in (node.cache / "nodes/projects").iterdir() if p.is_dir())
    (folder / "series.toml").write_bytes(b"changed")
    assert node.ask("have", kind="project", digest=digest) == {"have": False}


@pytest.mark.parametrize("name", ["../x", "/x", "a/../../x", "a//x"])
def test_no_name_leads_out_of_a_folder(tmp_path, name):
    files = {name: b"x"}
    target = tmp_path / "in/here"
    with pytest.raises(ValueError, match="leads out"):
        shim.unpack(shim.pack(files), shim.digest_of(files), str(target))
    assert not target.exists() and os.listdir(tmp_path / "in") == []


def test_what_no_run_uses_goes_away(tmp_path):
    def keep(name: str) -> str:
        files = {name: b"x"}
        digest = shim.digest_of(files)
        shim.keep_folder(lambda: shim.pack(files), digest, str(tmp_path / digest))
        return digest

    def there() -> set[str]:
        return {path.name for path in tmp_path.iterdir() if path.is_dir()}

    old, used = keep("old"), keep("used")
    for name in (old, used):
        os.utime(tmp_path / name, (0, 0))
    keep("used")  # is there, and in use again
    new = keep("new")
    assert there() == {used, new}


SLEEPS = """
import subprocess, time
child = "import time; time.sleep(600)"
subprocess.Popen([sys.executable, "-c", child, {mark!r}], start_new_session=True)
Path({mark!r}).touch()
time.sleep(600)
"""


@pytest.mark.parametrize("how", ["end", "kill"])
def test_units_end_with_the_process(node, project, trees, archive, tmp_path, how):
    mark = tmp_path / "mark"
    script = add_gate(project, "sleeps", SLEEPS.format(mark=str(mark)), arms(on="base"))
    names = [f"ci/gates/{name}" for name in ("sleeps.toml", script.name)]
    files = {name: (project.folder / name).read_bytes() for name in names}
    digest, tree = shim.digest_of(files), trees["base"]
    path = tmp_path / "files.zip"
    path.write_bytes(shim.pack(files))
    node.ask("take", kind="project", digest=digest, file=str(path))
    node.ask("take", kind="tree", digest=tree, file=str(archive(tree)))
    told = node.ask("look", project=digest, gate=names[0])
    assert told["missing"] == [] and told["host"]["cpus"] == os.cpu_count()
    arm = {"tree": tree, "composition": None, "definition": "base", "env": {}}
    assert node.ask("open", arms={"on": arm}, units=1, seed=0, tests=[]) == {}
    node.send("unit", unit=0, block=0, arms=["on"])
    until(mark.exists, node.child)
    assert processes_of(mark)
    if how == "end":
        node.end()
        assert not processes_of(mark)
        assert os.listdir(node.cache / "nodes/runs") == []
    else:
        node.child.kill()
        until(lambda: not processes_of(mark))


def test_output_comes_back_inside_its_folder(tmp_path):
    source = tmp_path / "there"
    (source / "logs").mkdir(parents=True)
    (source / "stdout").write_bytes(b"said\n")
    (source / "logs/raw.json").write_bytes(b"{}")
    (source / "link").symlink_to("/etc/passwd")
    os.mkfifo(source / "pipe")
    assert pack_output(source, tmp_path / "out.zip") == []
    data = (tmp_path / "out.zip").read_bytes()
    target = tmp_path / "here"
    assert unpack_output(data, target) == []
    found = {p.relative_to(target).as_posix() for p in target.rglob("*") if p.is_file()}
    assert found == {"stdout", "logs/raw.json"}


def test_output_that_leads_elsewhere_is_left_out(tmp_path):
    path = tmp_path / "out.zip"
    link = zipfile.ZipInfo("link")
    link.external_attr = 0o120777 << 16
    with zipfile.ZipFile(path, "w") as archive:
        for name in ("../up", "/abs", "a/../../up", "good", "a\\b"):
            archive.writestr(name, b"x")
        archive.writestr(link, b"/etc")
        archive.writestr("link/passwd", b"x")
    target = tmp_path / "deep/here"
    left = unpack_output(path.read_bytes(), target)
    assert {"../up", "/abs", "a/../../up", "link/passwd"} <= set(left)
    assert not (tmp_path / "deep/up").exists() and not (tmp_path / "up").exists()
    assert (target / "good").read_bytes() == b"x"
    assert not (target / "link").is_symlink()


def test_a_node_is_called_by_what_no_machine_is_called():
    from stackctl.gates.receipt.allow import Filter

    name = node_name("239087b61e8a2aa9abcdd134d8ee3e3bf5ee3a76344cefe5d8942049")
    assert Filter().text(name) == name == "node-239087b6"


WITHOUT = """
import sys
sys.modules["ray"] = None
from stackctl.cli import main
sys.exit(main())
"""


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--executor", "ray"), "needs Ray, which is not installed"),
        (("--executor", "ray", "--gpu", "0"), "--gpu is for this machine"),
        (("--executor", "ray", "--ray-label", "fast"), "expected KEY=VALUE"),
        (("--ray-address", "a:1"), "--ray-address is for --executor ray"),
        (("--ray-label", "a=b"), "--ray-label is for --executor ray"),
        (("--executor", "slurm"), "slurm"),
    ],
)
def test_options_that_cannot_be_used(project, options, words):
    add_gate(project, "good", "say(cases(True))")
    command = [sys.executable, "-c", WITHOUT, "gate", "run", "good", "--json", *options]
    done = subprocess.run(
        command,
        cwd=project.folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
    )
    assert done.returncode == 2, done.stderr
    told = json.loads(done.stdout)["error"]
    assert words in told["message"] and b"Traceback" not in done.stderr
    if "not installed" in words:
        assert told["kind"] == "no-ray" and "stackctl[ray]" in told["hint"]


def test_the_trees_of_a_node_are_bounded_and_those_in_use_stay(node, archive, trees):
    folder = node.cache / "trees"
    old = [f"{number:040x}" for number in range(12)]
    for number, name in enumerate(old):
        (folder / name).mkdir(parents=True)
        os.utime(folder / name, (number, number))
    for name in trees.values():
        path = str(archive(name))
        assert node.ask("take", kind="tree", digest=name, file=path) == {}
    assert kept(node) == sorted([*old[2 + len(old) - MOST :], *trees.values()])
    for name in trees.values():
        assert node.ask("have", kind="tree", digest=name) == {"have": True}
        assert name not in Shelf(node.cache, 0).put_away()
    node.end()
    assert Shelf(node.cache, 0).put_away() and kept(node) == []
