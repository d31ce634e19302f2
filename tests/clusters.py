# SPDX-License-Identifier: Apache-2.0
"""A real Ray cluster on this machine: one raylet a node, each with its own cache.

It lives in a process of its own, which obeys lines on its standard input, so that the
tests' process never joins a cluster itself.
"""

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from support import ROOT

STORE = 80 << 20
"""Size of a node's object store, bytes: the smallest that Ray takes is near it."""


class RayCluster:
    """A running cluster.

    Args:
        folder: Folder for the nodes' caches.
        head: What the head node has; see `add`.
        python: Python with Ray.
    """

    def __init__(self, folder: Path, python: str = sys.executable, **head: Any) -> None:
        self.folder = folder
        self.ids: dict[str, str] = {}
        env = {
            name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ
        }
        # No telemetry, and no look at what the machine is in some cloud.
        env |= {"RAY_USAGE_STATS_ENABLED": "0", "LC_ALL": "C.UTF-8"}
        # A dead node is noticed by its closed connection; this is for its actors.
        env |= {"RAY_health_check_period_ms": "500"}
        # On a busy machine everything starts later than Ray expects.
        env |= {"RAY_raylet_start_wait_time_s": "240"}
        env |= {"RAY_worker_register_timeout_seconds": "240"}
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / "cluster.log").open("wb") as log:
            self._process = subprocess.Popen(
                [python, str(Path(__file__).resolve())],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=env,
                cwd=folder,
                start_new_session=True,
            )
        self.address = str(self.add("head", **head)["address"])

    def _ask(self, **request: Any) -> dict[str, Any]:
        process = self._process
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(json.dumps(request).encode() + b"\n")
        process.stdin.flush()
        line = process.stdout.readline()
        assert line, (self.folder / "cluster.log").read_text("utf-8", "replace")[-3000:]
        found: dict[str, Any] = json.loads(line)
        return found

    def cache(self, name: str) -> Path:
        """Where a node keeps what was sent to it."""
        return self.folder / "caches" / name

    def add(
        self,
        name: str,
        *,
        cpus: int = 2,
        gpus: int = 0,
        labels: Mapping[str, str] | None = None,
        env: Mapping[str, str] | None = None,
    ) -> dict[str, Any]:
        """Start a node; returns what it is."""
        variables = {**(env or {}), "STACKCTL_CACHE_DIR": str(self.cache(name))}
        options = {
            "num_cpus": cpus,
            "num_gpus": gpus,
            "labels": dict(labels or {}),
            "env_vars": variables,
            "object_store_memory": STORE,
        }
        found = self._ask(do="add", name=name, options=options)
        self.ids[name] = found["node"]
        return found

    def known(self, name: str) -> str:
        """Name of a node in receipts."""
        return f"node-{self.ids[name][:8]}"

    def kill(self, name: str) -> None:
        """Kill a node's raylet, as a machine that loses power."""
        self._ask(do="kill", name=name)

    def close(self) -> None:
        """End the cluster."""
        try:
            self._process.communicate(timeout=60)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate()


@contextlib.contextmanager
def ray_cluster(folder: Path, **head: Any) -> Iterator[RayCluster]:
    """A cluster that is gone at the end."""
    cluster = RayCluster(folder, **head)
    try:
        yield cluster
    finally:
        cluster.close()


def _serve() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=False)
    nodes: dict[str, Any] = {}
    for line in sys.stdin:
        request = json.loads(line)
        name = request["name"]
        if request["do"] == "add":
            options = request["options"]
            if not nodes:
                options["include_dashboard"] = False
            nodes[name] = cluster.add_node(wait=True, **options)
            told = {"node": nodes[name].node_id, "address": cluster.address}
        else:
            cluster.remove_node(nodes.pop(name), allow_graceful=False)
            told = {}
        answers.write(json.dumps(told) + "\n")
        answers.flush()
    cluster.shutdown()


if __name__ == "__main__":
    sys.path[:] = [p for p in sys.path if Path(p or ".").resolve() != ROOT / "tests"]
    _serve()
