# SPDX-License-Identifier: Apache-2.0
"""Our process on a node: keeps what was sent by digest, and runs the units of one run.

It reads one request a line from standard input and answers each with one line, in any
order; when its input closes, it ends what still runs and removes what it made. Nothing
that arrives is believed: trees are checked by their git id, everything else by its
digest. Units run as they would on this machine without a cluster.
"""

import contextlib
import json
import os
import sys
import threading
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from stackctl.cache import Cache
from stackctl.compose.materialise import materialise
from stackctl.errors import InternalError, PinError, RemoteError, StackctlError
from stackctl.fsutil import remove_folder
from stackctl.gates.arms import Found, folder_tree, holds
from stackctl.gates.cluster.shim import keep_folder
from stackctl.gates.evidence import Arm, Slot
from stackctl.gates.here import Here, default_python
from stackctl.gates.hosts import LocalHost, Room, Sites, Task, hold_gpus, unit_folder
from stackctl.gates.kinds.served import KEY_VARIABLE
from stackctl.gates.model import Gate, load_gate
from stackctl.gates.pack import PackedStore
from stackctl.gates.process import Stopped
from stackctl.gates.shelf import Shelf
from stackctl.gates.snapshot import Gpu, gpus
from stackctl.model.ids import TreeId
from stackctl.progress import SILENT
from stackctl.scratch import scratch_folder

MAX_OUTPUT: Final = 256 << 20
"""Most bytes of a unit's output that are sent back; larger files are left behind."""


@dataclass(frozen=True)
class NodeHere(Here):
    """What the user named, and of this node what belongs to the run.

    Attributes:
        assigned: Numbers or UUIDs of the GPUs that Ray gave to the run.
    """

    assigned: tuple[str, ...] = ()

    @cached_property
    def gpus(self) -> Sequence[Gpu]:
        """The GPUs that are the run's."""
        if not self.assigned:
            return ()
        return [g for g in gpus() if {g.uuid, str(g.index)} & set(self.assigned)]


class NodeTrees:
    """Trees that were sent to this node.

    Args:
        cache: Where they are kept: where this node would keep its own.
        package: Paths that the base tracks below the package's folder.
    """

    base: Mapping[str, Any] = {}

    def __init__(self, cache: Cache, package: frozenset[bytes]) -> None:
        self._cache = cache
        self._package = package
        self._known: set[str] = set()
        self._shelf = Shelf(cache.folder)

    def _target(self, tree: str) -> Path:
        return self._shelf.hold(TreeId(tree))

    def have(self, tree: str) -> bool:
        """Whether the tree is here, whole; a folder that is not it is removed."""
        if tree in self._known:
            return True
        target = self._target(tree)
        with self._cache.lock(f"tree-{tree}"):
            if os.path.lexists(target) and not holds(target, tree):
                remove_folder(target)
            if target.exists():
                self._known.add(tree)
        return tree in self._known

    def take(self, tree: str, archive: Path) -> None:
        """Write a tree that arrived, and check that it is the one.

        Raises:
            PinError: It is another one.
        """
        target = self._target(tree)
        with self._cache.lock(f"tree-{tree}"):
            if target.exists():
                remove_folder(target)
            target.parent.mkdir(parents=True, exist_ok=True)
            materialise(PackedStore(archive), TreeId(tree), target, SILENT)
            found = folder_tree(target)
            if found != tree:
                remove_folder(target)
                raise PinError(
                    f"the tree {tree} was sent and is {found} where it arrived",
                    kind="tree-mismatch",
                    hint="the node's file system may change names or modes; set "
                    "STACKCTL_CACHE_DIR there to another one",
                )
            self._known.add(tree)
        self._shelf.put_away()

    def folder(self, tree: str) -> Path:
        """Return a folder with exactly the files of a tree.

        Raises:
            PinError: It was not sent, or is not what it was any more.
        """
        if not self.have(tree):
            raise PinError(f"the tree {tree} is not on this node", kind="no-tree")
        return self._target(tree)

    def forget(self, tree: str) -> None:
        """Throw away the folder of a tree, which is no longer what it was."""
        self._known.discard(tree)
        with self._cache.lock(f"tree-{tree}"):
            if self._target(tree).exists():
                remove_folder(self._target(tree))

    def base_package(self) -> frozenset[bytes]:
        """Return the paths below the package's folder that the base tracks."""
        return self._package

    def find(self, definition: str) -> Found:
        """Not asked here: definitions are for who composes."""
        raise NotImplementedError

    def tests_of(self, name: str) -> tuple[str, ...]:
        """Not asked here either."""
        raise NotImplementedError

    def paths(self, tree: str) -> frozenset[bytes]:
        """Not asked here either."""
        raise NotImplementedError


class Node:
    """One run on this node."""

    def __init__(self) -> None:
        self.stop = threading.Event()
        self._exit = contextlib.ExitStack()
        self._lock = threading.Lock()
        self._cache = Cache(Path())
        self._hello: dict[str, Any] = {}
        self._trees = NodeTrees(self._cache, frozenset())
        self._project = Path()
        self._gate: Gate | None = None
        self._host: LocalHost | None = None
        self._run = Path()

    def close(self) -> None:
        """Give everything back."""
        self._exit.close()

    def hello(self, request: dict[str, Any]) -> dict[str, Any]:
        """Take note of what the user named."""
        self._hello = request
        self._cache = Cache(Path(request["cache"]))
        package = frozenset(map(os.fsencode, request["package"]))
        self._trees = NodeTrees(self._cache, package)
        if request["key"]:
            os.environ[KEY_VARIABLE] = request["key"]
        return {}

    def _project_folder(self, digest: str) -> Path:
        return self._cache.folder / "nodes" / "projects" / digest

    def have(self, request: dict[str, Any]) -> dict[str, Any]:
        """Tell whether something is here."""
        if request["kind"] == "tree":
            return {"have": self._trees.have(request["digest"])}
        folder = self._project_folder(request["digest"])
        return {"have": folder.is_dir() and self._kept(request, None)}

    def take(self, request: dict[str, Any]) -> dict[str, Any]:
        """Take something in."""
        path = Path(request["file"])
        if request["kind"] == "tree":
            self._trees.take(request["digest"], path)
        else:
            self._kept(request, path)
        return {}

    def _kept(self, request: dict[str, Any], path: Path | None) -> bool:
        """Keep the project's files; without a path, only see whether they are there."""

        def read() -> bytes:
            if path is None:
                raise FileNotFoundError
            return path.read_bytes()

        digest = request["digest"]
        try:
            keep_folder(read, digest, str(self._project_folder(digest)))
        except FileNotFoundError:
            return False
        except ValueError as error:
            raise PinError(
                f"the project's files were sent: {error}", kind="digest"
            ) from None
        return True

    def look(self, request: dict[str, Any]) -> dict[str, Any]:
        """Tell what this node is, and what the gate lacks here."""
        named = self._hello
        self._project = self._project_folder(request["project"])
        self._gate = load_gate(self._project / request["gate"])
        here = NodeHere(
            named["python"] or default_python(),
            None if named["site"] is None else Path(named["site"]),
            named["parameters"],
            assigned=tuple(named["gpus"]) if self._gate.needs.gpus else (),
        )
        missing = here.missing(self._gate)
        if here.site is not None and not here.site.is_dir():
            missing.append(f"there is no folder {here.site}")
        top = self._cache.folder / "nodes" / "runs"
        self._run = self._exit.enter_context(scratch_folder(top, "run-"))
        sites = Sites(self._trees, here.site, top)
        self._exit.callback(sites.close)
        room = Room(named["cpus"])
        self._host = LocalHost(self._project, here, sites, room, here.gpus)
        found: dict[str, Any] = {
            "missing": missing,
            "host": self._host.describe(),
            "python": asdict(here.interpreter),
            "gpus": [asdict(gpu) for gpu in here.gpus],
        }
        if not missing:
            found |= {"site": self._host.site_digest(), "model": self._host.model()}
        return found

    def open(self, request: dict[str, Any]) -> dict[str, Any]:
        """Hold the GPUs and make the arms' folders."""
        assert self._host is not None and self._gate is not None
        arms = {name: Arm(**arm) for name, arm in request["arms"].items()}
        held = hold_gpus(self._gate, self._host.gpus)
        self._host.gpus = self._exit.enter_context(held)
        tests = tuple(request["tests"])
        units, seed = request["units"], request["seed"]
        self._host.open(Task(self._gate, arms, units, seed, tests), self._run)
        return {}

    def unit(self, request: dict[str, Any]) -> dict[str, Any]:
        """Run one unit."""
        assert self._host is not None
        slot = Slot(request["unit"], request["block"], tuple(request["arms"]))
        try:
            unit = self._host.unit(slot, self.stop)
        except Stopped:
            return {"stopped": True}
        output = self._run / f"output-{slot.unit:04d}.zip"
        left = pack_output(unit_folder(self._run, slot.unit), output)
        return {"unit": unit.document(), "output": str(output), "left": left}

    def changed(self, request: dict[str, Any]) -> dict[str, Any]:
        """Tell which arms' trees were changed."""
        assert self._host is not None
        return {"arms": self._host.changed()}


def pack_output(folder: Path, target: Path) -> list[str]:
    """Write the files of a unit's folder into an archive.

    Links and what is no file stay behind, and so does what would make it too large.

    Args:
        folder: The folder.
        target: The archive.

    Returns:
        Names of files that were too large.
    """
    left = []
    room = MAX_OUTPUT
    with zipfile.ZipFile(target, "x", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for path in sorted(folder.rglob("*")):
            if path.is_symlink() or not path.is_file():
                continue
            # Bytes that are no text cannot be a name there.
            name = os.fsencode(path.relative_to(folder)).decode("utf-8", "replace")
            size = path.stat().st_size
            if size > room:
                left.append(name)
                continue
            room -= size
            # Not its times: a unit may set them to what the format cannot hold.
            info = zipfile.ZipInfo(name)
            info.compress_type = zipfile.ZIP_DEFLATED
            with path.open("rb") as source, archive.open(info, "w") as file:
                for part in iter(lambda: source.read(1 << 20), b""):
                    file.write(part)
    return left


def node_failed(why: str) -> RemoteError:
    """Return the error of a node that cannot keep or read files.

    Args:
        why: What was seen.
    """
    return RemoteError(
        why,
        kind="node-failed",
        hint="look at the disk of that node; STACKCTL_CACHE_DIR of `ray start` there "
        "says where things are kept",
    )


def _answer(action: Callable[[dict[str, Any]], dict[str, Any]], request: Any) -> Any:
    try:
        return action(request)
    except StackctlError as error:
        return error.document() | {"code": int(error.exit_code)}
    except OSError as error:
        failed = node_failed(str(error))
        return failed.document() | {"code": int(failed.exit_code)}
    except Exception as error:
        bug = InternalError(f"{type(error).__name__}: {error}")
        return bug.document() | {"code": int(bug.exit_code)}


def main() -> None:
    """Serve requests until the input closes."""
    # Whatever prints must not come between the answers.
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    node = Node()
    lock = threading.Lock()
    threads = []

    def serve(request: dict[str, Any]) -> None:
        name = request.pop("do")
        number = request.pop("id")
        answer = {**_answer(getattr(node, name), request), "id": number}
        with lock, contextlib.suppress(BrokenPipeError):
            answers.write(json.dumps(answer).encode() + b"\n")
            answers.flush()

    for line in sys.stdin.buffer:
        thread = threading.Thread(target=serve, args=(json.loads(line),), daemon=True)
        thread.start()
        threads.append(thread)
    node.stop.set()
    for thread in threads:
        thread.join(15)
    node.close()


if __name__ == "__main__":
    main()
