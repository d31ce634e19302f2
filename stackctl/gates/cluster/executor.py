# SPDX-License-Identifier: Apache-2.0
"""Finds a node of a Ray cluster for each run, sends what it lacks, takes answers.

A run has one actor on one node, which holds the CPUs and GPUs of the run until it ends:
Ray chooses the node, by resources and labels, among those that can have it. A gate that
measures time takes all CPUs of its node, so that Ray places nothing beside it.
"""

import contextlib
import io
import os
import socket
import threading
import time
import zipfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path, PurePosixPath
from tempfile import gettempdir
from typing import TYPE_CHECKING, Any, Final, Protocol

from stackctl.compose.materialise import TreeSource
from stackctl.errors import (
    ExitCode,
    InputError,
    InternalError,
    PinError,
    RemoteError,
    StackctlError,
    UsageError,
)
from stackctl.gates.arms import Trees
from stackctl.gates.cluster import shim
from stackctl.gates.cluster.node import MAX_OUTPUT, node_failed
from stackctl.gates.evidence import SERVED_KINDS, Arm, Slot, Unit, unit_from_document
from stackctl.gates.here import Here, is_model, wanted_gpus
from stackctl.gates.hosts import (
    TICK,
    Executor,
    Host,
    HostLostError,
    Task,
    unit_folder,
)
from stackctl.gates.kinds.served import KEY_VARIABLE
from stackctl.gates.model import Gate
from stackctl.gates.process import Stopped
from stackctl.gates.snapshot import Gpu, Python
from stackctl.progress import SILENT, Progress
from stackctl.scratch import scratch_folder

if TYPE_CHECKING:
    from stackctl.gates.run import Engine

NODE_LABEL: Final = "ray.io/node-id"
"""Label by which Ray knows a node."""

MODEL_LABEL: Final = "ray.io/accelerator-type"
"""Label with the model of a node's GPUs, which Ray sets itself."""

PATIENCE: Final = 5.0
"""Seconds until an address that does not answer is given up."""

SAID: Final = 3.0
"""Seconds of waiting for a free node after which it is said."""

_FAMILIES: Final[Mapping[int, type[StackctlError]]] = {
    ExitCode.USAGE: UsageError,
    ExitCode.BAD_INPUT: InputError,
    ExitCode.PIN: PinError,
    ExitCode.REMOTE: RemoteError,
}


class StoredTrees(Trees, Protocol):
    """Trees that can be read file by file."""

    @property
    def store(self) -> TreeSource:
        """What holds them."""


@dataclass(frozen=True, slots=True)
class Node:
    """A node of the cluster.

    Attributes:
        id: Ray's id of it.
        cpus: CPUs that it has for Ray.
        gpus: GPUs that it has for Ray.
        labels: Its labels.
    """

    id: str
    cpus: float
    gpus: float
    labels: Mapping[str, str]

    @property
    def name(self) -> str:
        """Its anonymous name; the id is drawn by Ray and tells of no machine."""
        return node_name(self.id)


def node_name(node: str) -> str:
    """Return the name of a node in receipts."""
    return f"node-{node[:8]}"


@dataclass(frozen=True)
class FoundHere(Here):
    """What a node said of itself.

    Attributes:
        told: Its answer to `look`.
    """

    told: Mapping[str, Any] = field(default_factory=dict)

    @cached_property
    def interpreter(self) -> Python:
        """The Python that runs the units there."""
        return Python(**self.told["python"])

    @cached_property
    def gpus(self) -> Sequence[Gpu]:
        """The GPUs that are the run's."""
        return [Gpu(**gpu) for gpu in self.told["gpus"]]

    def missing(self, gate: Gate) -> list[str]:
        """Return why the gate cannot run there."""
        return list(self.told["missing"])


class _Parcels:
    """What is sent to nodes, put into Ray's store when the first one lacks it."""

    def __init__(
        self, engine: "Engine", store: TreeSource, ray: Any, progress: Progress
    ) -> None:
        self._engine = engine
        self._store = store
        self._ray = ray
        self._progress = progress
        self._lock = engine.lock  # the store is the composer's too
        self._references: dict[str, Any] = {}
        self._code: tuple[str, Any] | None = None

    def code(self) -> tuple[str, Any]:
        """Return digest and reference of stackctl's own code."""
        with self._lock:
            if self._code is None:
                top = Path(__file__).resolve().parents[2]
                found = shim.read_folder(str(top))
                files = {f"stackctl/{name}": data for name, data in found.items()}
                put = self._ray.put(shim.pack(files))
                self._code = (shim.digest_of(files), put)
            return self._code

    def project(self, gate: Gate) -> tuple[str, Any]:
        """Return digest and reference of what a gate needs of its project."""
        from stackctl.gates.pack import project_files

        files = project_files(self._engine, [gate])
        digest = shim.digest_of(files)
        with self._lock:
            if digest not in self._references:
                self._references[digest] = self._ray.put(shim.pack(files))
            return digest, self._references[digest]

    def tree(self, tree: str) -> Any:
        """Return a reference of a tree's archive."""
        from stackctl.gates.pack import write_trees

        with self._lock:
            if tree not in self._references:
                with scratch_folder(Path(gettempdir()), "stackctl-tree-") as folder:
                    path = folder / "tree.zip"
                    write_trees(self._store, [tree], path, self._progress)
                    self._references[tree] = self._ray.put(path.read_bytes())
            return self._references[tree]


class RayExecutor:
    """Runs gates on the nodes of a Ray cluster.

    Gates that verify images run on this machine: they need what the project has here.

    Args:
        engine: The engine whose gates run; the executor takes the place of its own.
        trees: Its trees.
        python: Program of the Python that runs the units there; None for the node's.
        address: Address of the cluster; None for `RAY_ADDRESS`, else a cluster that
            runs on this machine.
        labels: Labels that a node must have.
        progress: Told what is being done.

    Raises:
        UsageError: Ray is not installed.
        RemoteError: The cluster does not answer, or has another version of Ray or
            Python.
    """

    alone = False

    def __init__(
        self,
        engine: "Engine",
        trees: StoredTrees,
        python: str | None = None,
        address: str | None = None,
        labels: Mapping[str, str] | None = None,
        progress: Progress = SILENT,
    ) -> None:
        self._local: Executor = engine.executor
        self._here = engine.here
        self._trees = trees
        self._python = python
        self._labels = dict(labels or {})
        self._progress = progress
        self._exit = contextlib.ExitStack()
        # Ray prints what its daemons say, also where it is asked not to.
        self._exit.enter_context(contextlib.redirect_stdout(_Nowhere()))
        try:
            self._ray = connect(address)
        except BaseException:
            self._exit.close()
            raise
        self._exit.callback(self._ray.shutdown)
        self._actor = _actor_class(self._ray)
        self.parcels = _Parcels(engine, trees.store, self._ray, progress)
        self.shipped: list[dict[str, Any]] = []

    def close(self) -> None:
        """Leave the cluster."""
        self._local.close()
        self._exit.close()

    # -- which nodes -------------------------------------------------------------------

    def nodes(self) -> list[Node]:
        """Return the living nodes, in the order of their ids."""
        found = []
        for item in self._ray.nodes():
            if item["Alive"]:
                has = item["Resources"]
                labels = dict(item.get("Labels") or {})
                cpus, gpus = has.get("CPU", 0), has.get("GPU", 0)
                found.append(Node(item["NodeID"], cpus, gpus, labels))
        return sorted(found, key=lambda node: node.id)

    def _able(self, gate: Gate, avoid: Collection[str]) -> list[Node]:
        labels = self._labels.items()
        return [
            node
            for node in self.nodes()
            if node.cpus >= 1
            and node.gpus >= gate.needs.gpus
            and all(node.labels.get(name) == value for name, value in labels)
            # A node that does not say what its GPUs are is asked itself.
            and is_model(
                node.labels.get(MODEL_LABEL) or "",
                gate.needs.gpu_models if node.labels.get(MODEL_LABEL) else (),
            )
            and node.name not in avoid
        ]

    def missing(self, gate: Gate, avoid: Collection[str] = ()) -> list[str]:
        """Return why no node can have a gate; empty where one can."""
        if _stays(gate):
            return self._local.missing(gate)
        reasons = [
            f"`--{name}` is not given"
            for name in gate.needs.parameters
            if name not in self._here.named
        ]
        if not reasons and not self._able(gate, avoid):
            wanted = ["a CPU"]
            if gate.needs.gpus:
                wanted = [wanted_gpus(gate)]
            wanted += [f"the label {k}={v}" for k, v in sorted(self._labels.items())]
            rest = f", {len(avoid)} of them left out" if avoid else ""
            reasons.append(
                f"no node of the Ray cluster has {' and '.join(wanted)} "
                f"({len(self.nodes())} are alive{rest})"
            )
        return reasons

    def _options(
        self, gate: Gate, able: Sequence[Node], prefer: Mapping[str, Any] | None
    ) -> tuple[list[Node], dict[str, Any]]:
        """Return the nodes that Ray may choose among, and what the run holds there."""
        cpus: float = max(1, gate.parallel)
        if gate.timed:
            # All CPUs of a node: of nodes that have as many, for Ray takes one number.
            sizes = [node.cpus for node in able]
            cpus = max(sizes, key=lambda size: (sizes.count(size), size))
            able = [node for node in able if node.cpus == cpus]
        else:
            cpus = min(cpus, min(node.cpus for node in able))
        before = (prefer or {}).get("node")
        chosen = [node for node in able if node.name == before] or list(able)
        ids = ",".join(node.id for node in chosen)
        return chosen, {
            "num_cpus": cpus,
            "num_gpus": gate.needs.gpus,
            "label_selector": {**self._labels, NODE_LABEL: f"in({ids})"},
            # Units, and beside them a question or the word to stop.
            "max_concurrency": gate.parallel + 4,
            "max_restarts": 0,
            "max_task_retries": 0,
        }

    # -- a run -------------------------------------------------------------------------

    @contextlib.contextmanager
    def host(
        self,
        gate: Gate,
        stop: threading.Event,
        avoid: Collection[str] = (),
        prefer: Mapping[str, Any] | None = None,
    ) -> Iterator[Host]:
        """Hold a node, and there the CPUs and GPUs that the gate needs."""
        if _stays(gate):
            with self._local.host(gate, stop, avoid, prefer) as local:
                yield local
            return
        able = self._able(gate, avoid)
        if not able:
            raise HostLostError("the last node", "it went away before the run started")
        chosen, options = self._options(gate, able, prefer)
        actor = self._actor.options(**options).remote()
        calls = _Calls(self._ray, actor, stop)
        try:
            calls.node = self._wait_for_node(gate, calls, chosen, avoid)
            calls.cpus = int(options["num_cpus"])
            yield RayHost(self, calls, gate)
        finally:
            calls.close()

    def _wait_for_node(
        self,
        gate: Gate,
        calls: "_Calls",
        chosen: Sequence[Node],
        avoid: Collection[str],
    ) -> str:
        """Wait until Ray has placed the run; return the node's name."""
        reference = calls.call("where")
        begun = looked = time.monotonic()
        told = False
        while not calls.ready(reference):
            now = time.monotonic()
            if now - begun > SAID and not told:
                self._progress.note(f"{gate.name}: waits for a free node")
                told = True
            if now - looked > 1:
                looked = now
                alive = {node.id for node in self._able(gate, avoid)}
                if not alive & {node.id for node in chosen}:
                    raise HostLostError(
                        chosen[0].name, "it went away before the run started"
                    )
        calls.node = chosen[0].name
        return node_name(calls.get(reference))

    def ship(self, calls: "_Calls", gate: Gate, arms: Mapping[str, Arm]) -> None:
        """Send a node the trees that it lacks, each once."""
        for tree in dict.fromkeys(arm.tree for arm in arms.values()):
            if tree is None:
                continue
            request = {"kind": "tree", "digest": tree}
            if not calls.ask({**request, "do": "have"})["have"]:
                reference = self.parcels.tree(tree)
                self.sent(calls, "tree", tree, calls.give(request, reference))

    def sent(self, calls: "_Calls", kind: str, digest: str, count: int) -> None:
        """Take note of what was sent."""
        if count:
            self.shipped.append(
                {"node": calls.node, "kind": kind, "digest": digest, "bytes": count}
            )

    def hello(self, gate: Gate) -> dict[str, Any]:
        """Return what a node's process is told first.

        Args:
            gate: The gate that is to run there.
        """
        here = self._here
        package: list[str] = []
        if here.site is not None:
            package = sorted(map(os.fsdecode, self._trees.base_package()))
        return {
            "do": "hello",
            "python": self._python or "",
            "site": None if here.site is None else str(here.site),
            "parameters": dict(here.parameters),
            "package": package,
            "key": os.environ.get(KEY_VARIABLE, "")
            if gate.kind in SERVED_KINDS
            else "",
        }

    def prepare(self, arms: Mapping[str, Arm]) -> None:
        """Nothing is written here: the trees go to the nodes."""

    def identity(self, gate: Gate) -> dict[str, Any]:
        """Return what was named and the nodes that there are."""
        if _stays(gate):
            return self._local.identity(gate)
        return {
            "python": self._python,
            "named": self._here.named,
            "labels": self._labels,
            "nodes": [node.name for node in self.nodes()],
        }


class _Nowhere(io.TextIOBase):
    """What is written here is gone."""

    def write(self, text: str, /) -> int:
        return len(text)


def _stays(gate: Gate) -> bool:
    return gate.kind == "image"


class _Calls:
    """Calls to the actor of one run, which can be stopped and can lose their node."""

    def __init__(self, ray: Any, actor: Any, stop: threading.Event) -> None:
        self._ray = ray
        self._actor = actor
        self._stop = stop
        self._lost = False
        self.node = ""
        self.cpus = 1

    def call(self, method: str, *arguments: Any) -> Any:
        """Start a call; return its reference."""
        return getattr(self._actor, method).remote(*arguments)

    def ready(self, reference: Any) -> bool:
        """Wait a moment for a call; tell whether it is done.

        Raises:
            Stopped: The run was stopped.
        """
        done, _ = self._ray.wait([reference], timeout=TICK)
        if not done and self._stop.is_set():
            raise Stopped
        return bool(done)

    def get(self, reference: Any) -> Any:
        """Return what a call returns.

        Raises:
            Stopped: The run was stopped.
            HostLostError: The node, or its worker, went away.
        """
        errors = self._ray.exceptions
        while not self.ready(reference):
            pass
        try:
            return self._ray.get(reference)
        except errors.RayActorError as error:
            self._lost = True
            raise HostLostError(self.node, _seen(error)) from None
        except errors.RayTaskError as error:
            text = f"{self.node}: {_last_line(error)}"
            cause = getattr(error, "cause", None) or error
            if isinstance(cause, OSError):
                raise node_failed(text) from None
            if isinstance(cause, ValueError):  # what arrived is not what was sent
                raise PinError(text, kind="digest") from None
            raise InternalError(text) from None
        except errors.RayError as error:
            self._lost = True
            raise HostLostError(self.node, _seen(error)) from None

    def ask(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Ask the node's process."""
        return self.checked(self.get(self.call("ask", dict(request))))

    def give(self, request: Mapping[str, Any], reference: Any) -> int:
        """Have the node take something; return how many bytes were sent."""
        count, answer = self.get(self.call("give", dict(request), [reference]))
        self.checked(answer)
        return int(count)

    def checked(self, answer: dict[str, Any]) -> dict[str, Any]:
        """Return an answer that is none of an error.

        Raises:
            StackctlError: What the node's process raised.
            HostLostError: That process went away.
            Stopped: It was stopped.
        """
        if "gone" in answer:
            if self._stop.is_set():
                raise Stopped
            raise HostLostError(self.node, f"its process ended: {answer['gone']}")
        if answer.get("stopped"):
            raise Stopped
        if "error" in answer:
            told = answer["error"]
            family = _FAMILIES.get(answer["code"], InternalError)
            where = {**told["where"], "node": self.node}
            message = f"{self.node}: {told['message']}"
            raise family(message, kind=told["kind"], hint=told["hint"], where=where)
        return answer

    def close(self) -> None:
        """End what the run has on its node, and give the node back."""
        try:
            if not self._lost and self.node:
                with contextlib.suppress(self._ray.exceptions.RayError):
                    done = [self.call("stop")]
                    self._ray.wait(done, timeout=shim.END_SECONDS + 10)
        finally:
            with contextlib.suppress(self._ray.exceptions.RayError):
                self._ray.kill(self._actor)


class RayHost:
    """A node of the cluster, for one run.

    Args:
        executor: What found it.
        calls: Calls to its actor.
        gate: The gate.
    """

    def __init__(self, executor: RayExecutor, calls: _Calls, gate: Gate) -> None:
        self.node: str | None = calls.node
        self._executor = executor
        self._calls = calls
        self._task: Task | None = None
        self._folder = Path()
        digest, code = executor.parcels.code()
        hello = {**executor.hello(gate), "cpus": calls.cpus}
        count, answer = calls.get(calls.call("start", digest, [code], hello))
        calls.checked(answer)
        executor.sent(calls, "code", digest, count)
        digest, files = executor.parcels.project(gate)
        count = calls.give({"kind": "project", "digest": digest}, files)
        executor.sent(calls, "project", digest, count)
        path = f"ci/gates/{gate.path.name}"
        self._told = calls.ask({"do": "look", "project": digest, "gate": path})
        self.here: Here = FoundHere(
            self._told["python"]["path"],
            executor._here.site,
            executor._here.parameters,
            told=self._told,
        )
        self.gpus: Sequence[Gpu] = self.here.gpus

    def describe(self) -> dict[str, Any]:
        """Return what kind of machine it is."""
        return dict(self._told["host"])

    def site_digest(self) -> str | None:
        """Return the digest of what the site adds to every arm; None without one."""
        found: str | None = self._told["site"]
        return found

    def model(self) -> dict[str, Any] | None:
        """Return what the model is, without saying where."""
        found: dict[str, Any] | None = self._told["model"]
        return found

    def open(self, task: Task, folder: Path) -> None:
        """Send the trees that the node lacks, and have the arms made of them."""
        self._task = task
        self._folder = folder
        self._executor.ship(self._calls, task.gate, task.arms)
        self._calls.ask(
            {
                "do": "open",
                "arms": {name: arm.document() for name, arm in task.arms.items()},
                "units": task.units,
                "seed": task.seed,
                "tests": list(task.tests),
            }
        )

    def unit(self, slot: Slot, stop: threading.Event) -> Unit:
        """Run one unit there; its output comes back into the run's folder."""
        reference = self._calls.call("unit", slot.document())
        answer, output = self._calls.get(reference)
        self._calls.checked(answer)
        unit = unit_from_document(answer["unit"], f"a unit of {self.node}")
        left = unpack_output(output, unit_folder(self._folder, slot.unit))
        if left := [*answer["left"], *left]:
            note = f"{self.node} keeps output that is too large: {', '.join(left)}"
            self._executor._progress.note(note)
        return replace(unit, host={**unit.host, "node": self.node})

    def changed(self) -> list[str]:
        """Return the arms whose tree is not what it was; those are thrown away."""
        return list(self._calls.ask({"do": "changed"})["arms"])


def unpack_output(data: bytes, folder: Path) -> list[str]:
    """Write the output of a unit, inside a folder that is made anew.

    Args:
        data: The archive that came back.
        folder: The folder.

    Returns:
        Names that were left out: they lead elsewhere, or there is too much.
    """
    import shutil

    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    left = []
    room = MAX_OUTPUT
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        for info in archive.infolist():
            parts = PurePosixPath(info.filename).parts
            odd = not parts or ".." in parts or "\\" in info.filename
            if odd or parts[0].startswith("/") or info.file_size > room:
                left.append(info.filename)
                continue
            room -= info.file_size
            path = folder.joinpath(*parts)
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                with path.open("xb") as file:
                    file.write(archive.read(info))
            except (OSError, ValueError, zipfile.BadZipFile):
                left.append(info.filename)
    return left


# -- the cluster -----------------------------------------------------------------------


def connect(address: str | None) -> Any:
    """Join a Ray cluster as a driver.

    Args:
        address: Its address; None for `RAY_ADDRESS`, else one on this machine.

    Returns:
        The module `ray`.

    Raises:
        UsageError: Ray is not installed.
        RemoteError: The address does not answer, or the versions differ.
    """
    try:
        import ray
        import ray.cloudpickle
        import ray.exceptions
    except ImportError as error:
        raise UsageError(
            f"--executor ray needs Ray, which is not installed ({error})",
            kind="no-ray",
            hint="pip install 'stackctl[ray]', the version that the cluster has",
        ) from None
    wanted = address or os.environ.get("RAY_ADDRESS") or "auto"
    _must_answer(wanted)
    try:
        ray.init(
            address=wanted,
            log_to_driver=False,
            configure_logging=False,
            namespace="stackctl",
        )
    except ConnectionError as error:
        raise _no_cluster(wanted, _last_line(error)) from None
    except (RuntimeError, ValueError, OSError, ray.exceptions.RayError) as error:
        text = " ".join(str(error).split())
        if "ersion mismatch" in text or "version" in text.lower():
            raise RemoteError(
                f"the Ray cluster at {wanted} has another version: {text[:400]}",
                kind="ray-version",
                hint="run stackctl with the Ray and the Python that the cluster has",
                where={"address": wanted},
            ) from None
        raise _no_cluster(wanted, text[:400]) from None
    return ray


def _must_answer(address: str) -> None:
    """Refuse an address where nobody listens: Ray itself asks for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdecimal():
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), PATIENCE).close()
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise _no_cluster(address, reason) from None


def _no_cluster(address: str, why: str) -> RemoteError:
    named = "on this machine" if address == "auto" else f"at {address}"
    return RemoteError(
        f"no Ray cluster answers {named}: {why}",
        kind="no-cluster",
        hint="name it with --ray-address or RAY_ADDRESS: HOST:PORT on a machine of the "
        "cluster, ray://HOST:10001 elsewhere; `ray status` there says whether it runs",
        where={"address": address},
    )


def _actor_class(ray: Any) -> Any:
    # By value: the nodes need no stackctl, and have another one at most.
    ray.cloudpickle.register_pickle_by_value(shim)
    return ray.remote(shim.Shim)


def _seen(error: Exception) -> str:
    """Return what Ray says of a lost actor, without addresses."""
    text = type(error).__name__
    words = {
        "ActorDiedError": "its worker or node died",
        "ActorUnavailableError": "it cannot be reached",
        "ActorUnschedulableError": "it cannot take the run",
        "NodeDiedError": "the node died",
        "ObjectLostError": "an answer was lost",
        "OutOfMemoryError": "it ran out of memory",
        "WorkerCrashedError": "its worker crashed",
    }
    return words.get(text, text)


def _last_line(error: Exception) -> str:
    return "".join(str(error).strip().splitlines()[-1:])
