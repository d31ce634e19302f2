# SPDX-License-Identifier: Apache-2.0
"""Independent runtimes as oracles: what each of them makes of an image."""

import hashlib
import json
import os
import shutil
import socket
import stat
import subprocess
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

#: Kind, permission bits, and content digest or link target by path.
Tree = dict[bytes, tuple[str, int, bytes]]


class Refused(Exception):
    """A runtime does not take the image."""


def run(*command: str, timeout: int = 120, **settings: object) -> str:
    result = subprocess.run(
        command,
        capture_output=True,
        timeout=timeout,
        check=False,
        **settings,  # type: ignore[call-overload]
    )
    if result.returncode:
        raise Refused(result.stderr.decode("utf-8", "replace")[-600:])
    return result.stdout.decode("utf-8", "replace")


def read_tree(root: Path) -> Tree:
    tree: Tree = {}
    stack = [b""]
    while stack:
        folder = stack.pop()
        for item in os.scandir(os.fsencode(root) + b"/" + folder):
            path = folder + b"/" + item.name if folder else item.name
            try:
                info = item.stat(follow_symlinks=False)
            except FileNotFoundError:
                # An overlay lists whiteouts of its lowest layer and has no such file.
                continue
            mode = stat.S_IMODE(info.st_mode)
            full = Path(os.fsdecode(item.path))
            if stat.S_ISDIR(info.st_mode):
                tree[path] = ("d", mode, b"")
                stack.append(path)
            elif stat.S_ISLNK(info.st_mode):
                # As it is: a Path would lose "./" and a slash at the end.
                tree[path] = ("l", 0, os.readlink(item.path))  # noqa: PTH115
            elif stat.S_ISREG(info.st_mode):
                digest = hashlib.sha256(full.read_bytes()).hexdigest().encode()
                tree[path] = ("f", mode, digest)
            else:
                tree[path] = ("o", mode, b"")
    return tree


def umoci(layout: Path, work: Path) -> Tree:
    bundle = work / "umoci"
    shutil.rmtree(bundle, ignore_errors=True)
    run("umoci", "unpack", "--image", f"{layout}:latest", str(bundle))
    try:
        return read_tree(bundle / "rootfs")
    finally:
        shutil.rmtree(bundle, ignore_errors=True)


class Podman:
    """Podman with one storage driver."""

    def __init__(self, work: Path, driver: str) -> None:
        # Podman takes no longer path for its run folder than 50 characters.
        runroot = tempfile.mkdtemp(prefix="pod")
        self._base = [
            "podman", "--root", str(work / f"podman-{driver}"),
            "--runroot", runroot,
            "--storage-driver", driver,
        ]  # fmt: skip
        self.name = f"podman-{driver}"

    def __call__(self, layout: Path) -> Tree:
        out = run(*self._base, "pull", "-q", f"oci:{layout}:latest")
        image = out.strip().splitlines()[-1]
        try:
            where = run(*self._base, "image", "mount", image).strip()
            tree = read_tree(Path(where))
        finally:
            run(*self._base, "image", "unmount", "-f", image)
            run(*self._base, "rmi", "-f", image)
        return tree


def _chain(diff_ids: Iterable[str]) -> str:
    """Return the name of what some layers give."""
    chain = ""
    for diff_id in diff_ids:
        both = f"{chain} {diff_id}".encode()
        chain = f"sha256:{hashlib.sha256(both).hexdigest()}" if chain else diff_id
    return chain


def _top_snapshot(layout: Path) -> tuple[str, str]:
    """Return the digest of a layout's only manifest, and the name of its layers."""

    def read(digest: str) -> dict[str, Any]:
        path = layout / "blobs" / digest.replace(":", "/")
        document: dict[str, Any] = json.loads(path.read_bytes())
        return document

    (entry,) = json.loads((layout / "index.json").read_bytes())["manifests"]
    config = read(read(entry["digest"])["config"]["digest"])
    return entry["digest"], _chain(config["rootfs"]["diff_ids"])


class Containerd:
    """A containerd of our own on a socket of our own."""

    def __init__(self, work: Path, program: str = "containerd") -> None:
        self._work = work
        self._socket = work / "c.sock"
        config = work / "containerd.toml"
        config.write_text(
            f'version = 2\nroot = "{work}/c-root"\nstate = "{work}/c-state"\n'
            'disabled_plugins = ["io.containerd.grpc.v1.cri"]\n'
            f'[grpc]\naddress = "{self._socket}"\n'
        )
        folder = Path(program).parent
        self._ctr = str(folder / "ctr") if folder.name else "ctr"
        with (work / "containerd.log").open("wb") as log:
            self._process = subprocess.Popen(
                [program, "-c", str(config)], stdout=log, stderr=log
            )
        for _ in range(100):
            if self._socket.exists():
                break
            time.sleep(0.1)

    def run(self, *command: str) -> str:
        return run(self._ctr, "-a", str(self._socket), *command)

    def __call__(self, layout: Path, snapshotter: str) -> Tree:
        archive = self._work / "c.tar"
        run("tar", "-cf", str(archive), "-C", str(layout), ".")
        name = "test.invalid/image:latest"
        try:
            self.run(
                "images",
                "import",
                "--no-unpack",
                "--index-name",
                name,
                "--all-platforms",
                str(archive),
            )
            # `ctr images mount` takes a snapshotter and does not use it.
            snapshots = ("snapshots", "--snapshotter", snapshotter)
            manifest, top = _top_snapshot(layout)
            self.run(*snapshots, "unpack", "--snapshotter", snapshotter, manifest)
            mount = self._work / "c-mount"
            mount.mkdir(exist_ok=True)
            # Not `view`, which would be collected as garbage.
            self.run(*snapshots, "prepare", "seen", top)
            try:
                command = self.run(*snapshots, "mounts", str(mount), "seen")
                run("sh", "-c", command)
                try:
                    return read_tree(mount)
                finally:
                    run("umount", str(mount))
            finally:
                self.run(*snapshots, "rm", "seen")
        finally:
            names = self.run("images", "ls", "-q").split()
            if names:
                self.run("images", "rm", "--sync", *names)

    def close(self) -> None:
        self._process.terminate()
        self._process.wait(10)


class Docker:
    """A dockerd of our own: no network, no firewall rules, nobody else's socket."""

    def __init__(self, work: Path, program: str = "dockerd") -> None:
        self._work = work
        # The path of a unix socket is short.
        self._short = Path(tempfile.mkdtemp(prefix="dk"))
        self.socket = self._short / "d.sock"
        beside = Path(program).parents[1] / "bin" / "docker"
        self._client = str(beside) if beside.exists() else "docker"
        config = self._short / "daemon.json"
        config.write_text("{}")
        with (self._short / "log").open("wb") as log:
            self._process = subprocess.Popen(
                [
                    program, "--config-file", str(config), "-H", f"unix://{self.socket}",
                    "--data-root", str(self._short / "data"), "--exec-root",
                    str(self._short / "exec"), "-p", str(self._short / "pid"),
                    "--iptables=false", "--ip6tables=false", "--bridge=none",
                    "--storage-driver", "vfs",
                ],
                stdout=log,
                stderr=log,
            )  # fmt: skip
        for _ in range(200):
            try:
                self.run("version")
                return
            except Refused:
                if self._process.poll() is not None:
                    break
                time.sleep(0.1)
        text = (self._short / "log").read_text(errors="replace")
        self.close()
        raise Refused(f"dockerd does not start: {text[-600:]}")

    def run(self, *command: str) -> str:
        # The classic builder is in the daemon; the newer one is a plug-in.
        environ = {**os.environ, "DOCKER_BUILDKIT": "0"}
        environ.pop("DOCKER_CONTEXT", None)
        return run(self._client, "-H", f"unix://{self.socket}", *command, env=environ)

    def __call__(self, layout: Path) -> Tree:
        archive = self._work / "docker.tar"
        archive.unlink(missing_ok=True)
        name = "test.invalid/image:latest"
        run("skopeo", "copy", "-q", f"oci:{layout}:latest",
            f"docker-archive:{archive}:{name}")  # fmt: skip
        self.run("load", "-q", "-i", str(archive))
        try:
            stated = self.run("image", "inspect", "-f", "{{json .RootFS.Layers}}", name)
            chain = _chain(json.loads(stated))
            data = self._short / "data"
            facts = data / "image/vfs/layerdb" / chain.replace(":", "/")
            return read_tree(data / "vfs/dir" / (facts / "cache-id").read_text())
        finally:
            self.run("image", "rm", "-f", name)

    def close(self) -> None:
        self._process.terminate()
        self._process.wait(30)
        shutil.rmtree(self._short, ignore_errors=True)


def find_dockerd() -> str | None:
    """Return where a dockerd is, if there is one."""
    return os.environ.get("STACKCTL_TEST_DOCKERD") or shutil.which("dockerd")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def running_registry(folder: Path, auth: str = "") -> Iterator[str]:
    """Run Debian's registry on loopback, perhaps with an `auth` section."""
    port = free_port()
    config = folder / "registry.yml"
    config.write_text(
        "version: 0.1\n"
        f"storage:\n  filesystem:\n    rootdirectory: {folder}/store\n"
        f"http:\n  addr: 127.0.0.1:{port}\n" + (f"auth:\n{auth}" if auth else "")
    )
    process = subprocess.Popen(
        ["docker-registry", "serve", str(config)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        for _ in range(100):
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                break
            except OSError:
                time.sleep(0.1)
        yield f"127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(10)
