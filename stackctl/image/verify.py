# SPDX-License-Identifier: Apache-2.0
"""The verdict: does this image contain exactly the expected tree?

`match` is only said when every byte was read and hashed, every digest held, nothing in
the image means different things to different runtimes where it matters, every tracked
file is there, and nothing stands beside them that no rule judges. Anything that keeps
the question from being answered is `unverifiable`, with the reason.
"""

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import MAGIC_NUMBER
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from stackctl.errors import (
    ExitCode,
    InputError,
    PinError,
    RemoteError,
    StackctlError,
    UsageError,
)
from stackctl.image.blobs import CHUNK, WIDE, Pump
from stackctl.image.errors import DigestError
from stackctl.image.layers import (
    Budget,
    Interest,
    LayerEntry,
    LayerScan,
    scan_layer,
)
from stackctl.image.layout import DirLayout, OciLayout
from stackctl.image.limits import Limits
from stackctl.image.platform import Platform
from stackctl.image.reference import Reference, parse_reference, parse_registry
from stackctl.image.report import UNVERIFIABLE, Report
from stackctl.image.roots import PACKAGE, Pinned, Policy, Root
from stackctl.image.source import Image, Layer, Resolver
from stackctl.image.transport import Transport
from stackctl.progress import SILENT, Progress

if TYPE_CHECKING:
    from stackctl.image.attribute import Candidates
    from stackctl.image.contents import Contents
    from stackctl.image.expectation import ExpectedTree
    from stackctl.image.folder import Folder
    from stackctl.image.lazytable import Outcome
    from stackctl.image.rules import Allow
    from stackctl.image.view import Applier, View
    from stackctl.image.warn import Warn
    from stackctl.image.wheel import Wheel

#: Bytes above which a file is hashed only if something compares it.
_LAZY_ABOVE = 8 << 20


class PinnedWheel(NamedTuple):
    """A wheel that judges untracked files.

    Attributes:
        path: The file.
        sha256: What it must hash to; empty takes it as it is.
    """

    path: Path
    sha256: str = ""


class Request(NamedTuple):
    """What to verify, and how.

    Attributes:
        reference: The image, as a user names it.
        expected: The trees of which it must contain one, or a function that gives them
            and is called while the layers are read.
        roots: Where the tree must be; for wheels and environments found if empty.
        allow: Untracked files that may be there.
        unpackaged: Globs of tracked files that need not be installed.
        wheel: The pinned wheel.
        platform: Which image of an index.
        strict: Turn what can run beside the tracked files into a mismatch.
        diff: Paths to show the difference of.
        limits: Bounds of the reader.
        transport: How to talk to registries.
        jobs: Layers read at a time; 0 takes what the cores allow.
        environ: The process environment, for credentials and sockets.
        offline: Never use the network.
        folder: Where a relative path in `reference` is looked for; None for the
            working folder.
    """

    reference: str
    expected: "Sequence[ExpectedTree] | Callable[[], Sequence[ExpectedTree]]"
    roots: tuple[Root, ...] = ()
    allow: "tuple[Allow, ...]" = ()
    unpackaged: tuple[str, ...] = ()
    wheel: PinnedWheel | None = None
    platform: Platform | None = None
    strict: bool = False
    diff: tuple[str, ...] = ()
    limits: Limits = Limits()
    transport: Transport = Transport()
    jobs: int = 0
    environ: Mapping[str, str] = os.environ
    offline: bool = False
    folder: Path | None = None


@dataclass(slots=True)
class _Loaded:
    view: "View"
    contents: "Contents"
    image: dict[str, object]
    config: dict[str, object] | None = None
    roots: tuple[Root, ...] = ()
    warnings: "list[Warn]" = field(default_factory=list)


def verify(
    request: Request,
    candidates: "Candidates | None" = None,
    progress: Progress = SILENT,
) -> Report:
    """Verify an image.

    Args:
        request: What to verify.
        candidates: Trees to explain a mismatch with.
        progress: Told how far the reading is.

    Returns:
        The verdict. What keeps the image from being read is a verdict too.

    Raises:
        UsageError: The request itself has no meaning.
        StackctlError: Whatever the function of `request.expected` raises.
    """
    started = time.perf_counter_ns()
    reference = parse_reference(request.reference, request.folder)
    _check_request(request, reference)
    report = Report(UNVERIFIABLE, {}, ExitCode.BAD_INPUT)
    try:
        _Verifier(request, reference, candidates, progress, report).run()
    except UsageError:
        raise
    except _NoExpectationError as error:
        raise error.cause from None
    except (InputError, PinError, RemoteError) as error:
        report.verdict = UNVERIFIABLE
        report.exit_code = error.exit_code
        report.reason = {
            "code": error.kind,
            "message": error.message,
            "hint": error.hint,
            "where": error.where,
        }
    except OSError as error:
        report.reason = {
            "code": "unreadable",
            "message": f"{error.filename or request.reference}: {error.strerror}",
            "hint": "run as a user who may read every file of the image",
            "where": {},
        }
    report.ns = time.perf_counter_ns() - started
    return report


def _check_request(request: Request, reference: Reference) -> None:
    if not request.roots and reference.transport not in ("wheel", "env"):
        raise UsageError(
            "no root is named: where in the image must the tree be?",
            kind="no-roots",
            hint="--root vllm=/…/site-packages/vllm for a package, --root .=/opt/vllm "
            "for a checkout, or [[image]] in series.toml",
        )
    if request.offline and reference.transport == "docker":
        raise UsageError(
            "a registry cannot be read with --offline",
            hint="copy the image first: skopeo copy docker://… oci:DIR",
        )


def _check_expected(trees: "Sequence[ExpectedTree]", roots: Sequence[Root]) -> None:
    if not trees:
        raise UsageError("there is no tree to compare with")
    for expected in trees:
        for root in roots:
            if not expected.subtree(root.tree):
                raise UsageError(
                    f"the expected tree {expected.label} has no folder {root.tree!r}",
                    kind="no-such-folder",
                    hint="the part before = in --root is a folder of the tree",
                    where={"root": f"{root.tree}={root.path}"},
                )


class _NoExpectationError(Exception):
    """There is nothing to compare with; says nothing about the image."""

    def __init__(self, cause: StackctlError) -> None:
        super().__init__(str(cause))
        self.cause = cause


class _Verifier:
    def __init__(
        self,
        request: Request,
        reference: Reference,
        candidates: "Candidates | None",
        progress: Progress,
        report: Report,
    ) -> None:
        self._request = request
        self._reference = reference
        self._candidates = candidates
        self._progress = progress
        self._report = report
        self._budget = Budget(request.limits)
        self._sha256 = any(rule.sha256 for rule in request.allow)
        self._wheel: Wheel | None = None
        self._trees: Sequence[ExpectedTree] | None = None
        self._judges: Mapping[bytes, Pinned] | None = None

    def run(self) -> None:
        """Fill the report."""
        try:
            self._run()
        except (StackctlError, OSError):
            # Whoever asks about a tree that does not exist hears of that first.
            self._expected()
            raise

    def _run(self) -> None:
        report = self._report
        loaded = self._load()
        pinned = self._pinned()
        report.image = loaded.image
        report.view = loaded.view
        report.warnings += loaded.warnings
        policy = Policy(self._request.allow, self._request.unpackaged, pinned)
        report.policy = policy
        from stackctl.image.judge import Judge

        Judge(
            self._request,
            self._expected(),
            loaded.view,
            loaded.contents,
            report,
            config=loaded.config,
            wheel=self._wheel,
            candidates=self._candidates,
        ).run(self._request.roots or loaded.roots, policy)

    def _expected(self) -> "Sequence[ExpectedTree]":
        """Return the expected trees, made when they are first asked for."""
        if self._trees is None:
            given = self._request.expected
            try:
                trees = given() if callable(given) else given
                _check_expected(trees, self._request.roots)
            except StackctlError as error:
                raise _NoExpectationError(error) from None
            self._trees = trees
        return self._trees

    def _pinned(self) -> Mapping[bytes, Pinned] | None:
        wheel = self._request.wheel
        if wheel is None or self._judges is not None:
            return self._judges
        from stackctl.image.wheel import Wheel

        self._wheel = Wheel(wheel.path, self._request.limits, wheel.sha256)
        self._judges = self._wheel.pinned()
        return self._judges

    def _load(self) -> _Loaded:
        transport, location = self._reference.transport, self._reference.location
        limits = self._request.limits
        if transport == "rootfs":
            from stackctl.image.folder import Folder

            return self._load_folder(
                Folder(Path(location), limits), self._request.roots
            )
        if transport == "env":
            return self._load_environment(Path(location))
        if transport == "wheel":
            return self._load_wheel(Path(location))
        return self._load_image(self._image())

    def _load_folder(self, folder: "Folder", roots: Sequence[Root]) -> _Loaded:
        from stackctl.image.contents import FolderContents

        view = folder.view()
        resolved = [
            view.lookup(root.path.encode("utf-8", "surrogateescape")).path
            for root in roots
        ]
        folder.hash_files(view, resolved, sha256=self._sha256)
        image: dict[str, object] = {"digest": None, "platform": None, "layers": []}
        return _Loaded(view, FolderContents(folder), image, roots=tuple(roots))

    def _load_environment(self, python: Path) -> _Loaded:
        from stackctl.image.environment import environment_roots, find_environment
        from stackctl.image.folder import Folder

        environment = find_environment(python)
        roots = list(self._request.roots) or environment_roots(
            environment, self._expected()[0]
        )
        prefix = os.fsencode(environment.prefix).strip(b"/")
        loaded = self._load_folder(
            Folder(environment.prefix, self._request.limits, prefix), roots
        )
        for root in roots:
            # Links are followed inside of the environment only.
            path = root.path.encode("utf-8", "surrogateescape")
            if loaded.view.lookup(path).node is None and Path(root.path).exists():
                raise InputError(
                    f"{root.path} is {os.path.realpath(root.path)}, outside of the "
                    f"environment {environment.prefix}, which alone is read",
                    kind="root-outside",
                    hint="verify what it leads to: with rootfs: and --root, or with "
                    "env: and the environment that it belongs to",
                    where={"root": f"{root.tree}={root.path}"},
                )
        return loaded

    def _load_wheel(self, path: Path) -> _Loaded:
        from stackctl.image import entrypoints
        from stackctl.image.contents import MemoryContents
        from stackctl.image.environment import package_names
        from stackctl.image.startup import wheel_warnings
        from stackctl.image.wheel import Wheel

        limits = self._request.limits
        wheel = Wheel(path, limits)
        view = wheel.view(sha256=self._sha256)
        roots = self._request.roots or tuple(
            Root(name, f"/{name}", PACKAGE)
            for name in package_names(self._expected()[0])
            if view.lookup(os.fsencode(name)).node is not None
        )
        if not roots:
            raise InputError(
                f"{path} holds none of the packages of the expected tree",
                kind="not-installed",
                hint="name the place with --root TREE=PATH",
                where={"file": str(path)},
            )
        names = {os.fsencode(r.tree.split("/")[0]) for r in roots if r.kind == PACKAGE}
        wanted: dict[str, set[entrypoints.Target]] = {}
        for tree in self._expected():
            for name, targets in entrypoints.tree_commands(tree).items():
                wanted.setdefault(name, set()).update(targets)
        warnings = list(
            wheel_warnings(
                wheel.outside,
                names,
                self._request.allow,
                wanted,
                wheel.entry_points(),
            )
        )
        image: dict[str, object] = {"digest": None, "platform": None, "layers": []}
        contents = MemoryContents(wheel.read, limits)
        return _Loaded(view, contents, image, roots=roots, warnings=warnings)

    def _interest(self) -> Interest:
        roots = tuple(
            root.path.strip("/").encode("utf-8", "surrogateescape") + b"/"
            for root in self._request.roots
        )
        # With a wheel or a digest in a rule, big files are compared after all.
        lazy = None if self._sha256 or self._request.wheel else _LAZY_ABOVE
        # The source of bytecode that a rule allows is read to judge it.
        names = frozenset(
            os.fsencode(rule.path).rpartition(b"/")[2]
            for rule in self._request.allow
            if rule.path.endswith(".py")
        )
        return Interest(
            magic=MAGIC_NUMBER,
            roots=roots,
            sha256=self._sha256,
            lazy_above=lazy,
            names=names,
        )

    def _image(self) -> Image:
        request, reference = self._request, self._reference
        limits, platform = request.limits, request.platform
        location, tag = reference.location, reference.tag
        path = Path(location)
        # Each is imported where it is needed: the HTTP client alone takes longer than a
        # small image.
        if reference.transport == "oci":
            layout = OciLayout(path, limits)
            return Resolver(layout, limits, platform).resolve(layout.roots(tag))
        if reference.transport == "dir":
            folder = DirLayout(path, limits)
            return Resolver(folder, limits, platform).resolve(folder.roots())
        if reference.transport == "docker":
            from stackctl.image.registry import Registry

            registry = Registry(
                parse_registry(location), request.transport, limits, request.environ
            )
            return Resolver(registry, limits, platform).resolve(registry.roots())
        from stackctl.image.archive import (
            StreamArchive,
            load_docker_archive,
            load_oci_archive,
            open_archive,
        )

        if reference.transport == "docker-daemon":
            from stackctl.image.daemon import saved_image

            saved = StreamArchive(
                lambda: saved_image(location, request.environ),
                self._budget,
                self._interest(),
            )
            return load_docker_archive(saved, "", limits, platform, location)
        archive = open_archive(path, self._budget, self._interest())
        if reference.transport == "oci-archive":
            return load_oci_archive(archive, tag, limits, platform, location)
        return load_docker_archive(archive, tag, limits, platform, location)

    def _load_image(self, image: Image) -> _Loaded:
        self._report.source = image
        layers: list[dict[str, object]] = []
        self._report.image = {
            "digest": image.digest,
            "platform": str(image.platform),
            "layers": layers,
        }
        if image.within is not None:
            self._report.image["index"] = image.within
            self._report.image["platform_by"] = (
                "request" if self._request.platform is not None else "machine"
            )
        building = _Building()
        indexes: list[tuple[int, Outcome]] = []
        scans = Pump(iter(self._scans(image.layers, building)))
        try:
            # What the layers are compared with is got ready while they are read, and so
            # are the modules that do it.
            from stackctl.image import rules
            from stackctl.image.contents import LayerContents
            from stackctl.image.warn import Warn

            warnings = [Warn(code, text, strict=False) for code, text in image.notes]
            rules.known_wheel_file(b"")
            self._expected()
            self._pinned()
            for number, (layer, (scan, refusal)) in enumerate(
                zip(image.layers, scans, strict=True)
            ):
                self._progress.update("layers", number + 1, len(image.layers))
                self._check_scan(number, layer, scan)
                if refusal is not None:
                    raise refusal
                about: dict[str, object] = {
                    "digest": layer.digest,
                    "diff_id": layer.diff_id,
                    "size": layer.size,
                    "uncompressed_size": scan.size,
                    "compression": scan.compression,
                }
                layers.append(about)
                outcome: Outcome | None = None
                if scan.index is not None:
                    outcome = scan.index.compare(scan.entries, scan.compression)
                    indexes.append((number, outcome))
                    about["index"] = outcome.document()
                if unread := _unread_index(number, layer, scan, outcome):
                    warnings.append(unread)
                for code in scan.notes:
                    warnings.append(
                        Warn(
                            code,
                            f"layer {number} has data after the end of its archive, "
                            "which runtimes pass over",
                            strict=False,
                        )
                    )
        except BaseException as error:
            self._budget.cancel()
            # Whoever presses Ctrl-C does not wait for a registry's next byte.
            if isinstance(error, Exception):
                scans.stop()
            raise
        scans.stop()
        contents = LayerContents(image.layers, self._request.limits)
        view = building.view()
        for number, outcome in indexes:
            from stackctl.image import lazy

            lazy.settle(view, number, outcome)
        return _Loaded(
            view,
            contents,
            self._report.image,
            image.config,
            warnings=warnings,
        )

    def _scans(
        self, layers: Sequence[Layer], building: "_Building"
    ) -> Iterator[tuple[LayerScan, StackctlError | None]]:
        """Yield the scan of every layer in order, and why it cannot be applied.

        Repeated layers are read once.
        """
        interest = self._interest()
        fresh = list({_layer_key(layer): layer for layer in layers}.values())
        jobs = self._request.jobs or max(1, min(4, (os.cpu_count() or 1) // 2))
        # Where layers are read one after the other, each is applied as it is read.
        each = building.add if jobs == 1 or len(fresh) < 2 else None

        def scan(layer: Layer) -> LayerScan:
            if layer.scan is not None:
                return layer.scan()
            index = None
            if layer.lazy:
                from stackctl.image.lazy import LayerIndex

                index = LayerIndex(dict(layer.lazy), self._request.limits)
            return scan_layer(
                layer.open(),
                self._budget,
                interest,
                size_hint=layer.size,
                step=CHUNK if each is None else WIDE,
                each=each,
                index=index,
            )

        if each is not None:
            yield from _in_order(layers, map(scan, fresh), building, reading=True)
            return
        from concurrent.futures import ThreadPoolExecutor

        with ThreadPoolExecutor(jobs) as pool:
            try:
                results = pool.map(scan, fresh)
                yield from _in_order(layers, results, building, reading=False)
            finally:
                pool.shutdown(cancel_futures=True)

    def _check_scan(self, number: int, layer: Layer, scan: LayerScan) -> None:
        if scan.diff_id != layer.diff_id:
            raise DigestError(
                f"layer {number} unpacks to {scan.diff_id}, the config says "
                f"{layer.diff_id}",
                kind="diff-id-mismatch",
                hint="the config and the layers do not belong together; podman and "
                "buildah do not notice",
                where={
                    "layer": number,
                    "digest": layer.digest,
                    "expected": layer.diff_id,
                    "actual": scan.diff_id,
                },
            )


def _layer_key(layer: Layer) -> tuple[object, ...]:
    # What a layer is stated to be does not make it another's equal: without a digest
    # only its place does, and a wrong size must not hide behind a right one.
    return layer.digest, layer.diff_id, layer.size, layer.member, layer.lazy


def _unread_index(
    number: int, layer: Layer, scan: LayerScan, outcome: "Outcome | None"
) -> "Warn | None":
    """Return the warning about an index that was not compared, or not all of it."""
    strict = True
    if outcome is not None:
        unchecked = outcome.unchecked
    elif layer.lazy:
        unchecked = ["an archive that is read in one pass tells too late that there is"]
    elif scan.entries and scan.entries[-1].name == b"stargz.index.json":
        unchecked = ["no annotation names it, so that runtimes pass over it by default"]
        strict = False
    else:
        return None
    if not unchecked:
        return None
    from stackctl.image.warn import Warn

    return Warn(
        "lazy-index",
        f"layer {number} has an index that lazy runtimes read instead of its tar, and "
        f"not all of it is compared: {'; '.join(unchecked)}",
        strict=strict,
        extra={"layer": layer.digest},
    )


class _Building:
    """The view of an image, made by the thread that reads its layers.

    What no runtime can apply is kept until the digests of its layer are known to hold.
    """

    def __init__(self) -> None:
        self._applier: Applier | None = None
        self._begun = 0
        self.refusal: StackctlError | None = None

    def _made(self) -> "Applier":
        if self._applier is None:
            # Imported here, when the first entry was read, and not before the reading.
            from stackctl.image.view import Applier, View

            self._applier = Applier(View())
        return self._applier

    def begin(self) -> None:
        """Begin with the next layer."""
        self._begun += 1

    def add(self, entry: LayerEntry) -> None:
        """Apply an entry of the layer."""
        if self.refusal is not None:
            return
        applier = self._made()
        while self._begun:
            applier.begin()
            self._begun -= 1
        try:
            applier.add(entry)
        except StackctlError as error:
            self.refusal = error

    def view(self) -> "View":
        """Return what was made."""
        return self._made().view


def _in_order(
    layers: Sequence[Layer],
    results: Iterable[LayerScan],
    building: _Building,
    *,
    reading: bool,
) -> Iterator[tuple[LayerScan, StackctlError | None]]:
    """Yield the scan of every layer, and apply it.

    Args:
        layers: The image's layers, lowest first.
        results: Scans of the layers without repetition, in order.
        building: Takes the entries.
        reading: Whether making a scan applies what is read.
    """
    last = {_layer_key(layer): number for number, layer in enumerate(layers)}
    done: dict[tuple[object, ...], LayerScan] = {}
    pending = iter(results)
    for number, layer in enumerate(layers):
        building.begin()
        key = _layer_key(layer)
        applied = key not in done and reading and layer.scan is None
        if key not in done:
            done[key] = next(pending)
        if not applied:
            for entry in done[key].entries:
                building.add(entry)
        yield done[key], building.refusal
        if last[key] == number:
            del done[key]
