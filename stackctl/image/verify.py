# SPDX-License-Identifier: Apache-2.0
"""The verdict: does this image contain exactly the expected tree?

`match` is only said when every byte was read and hashed, every digest held, nothing in
the image means different things to different runtimes where it matters, every tracked
file is there, and nothing stands beside them that no rule judges. Anything that keeps
the question from being answered is `unverifiable`, with the reason.
"""

import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from stackctl.errors import (
    ExitCode,
    InputError,
    PinError,
    RemoteError,
    StackctlError,
    UsageError,
)
from stackctl.image import bytecode as pyc
from stackctl.image.blobs import Pump
from stackctl.image.compare import (
    CHECKOUT,
    PACKAGE,
    Comparison,
    Finding,
    Pinned,
    Policy,
    Root,
    compare_root,
    untracked_summary,
)
from stackctl.image.contents import (
    Contents,
    FolderContents,
    LayerContents,
    MemoryContents,
)
from stackctl.image.errors import AmbiguousImageError, DigestError
from stackctl.image.expectation import ExpectedTree
from stackctl.image.layers import Budget, Interest, LayerScan, scan_layer
from stackctl.image.layout import DirLayout, OciLayout
from stackctl.image.limits import Limits
from stackctl.image.platform import Platform
from stackctl.image.reference import Reference, parse_reference, parse_registry
from stackctl.image.rules import Allow
from stackctl.image.source import LABEL_PREFIX, Image, Layer, Resolver
from stackctl.image.startup import (
    Startup,
    Warn,
    bytecode_warnings,
    is_startup_name,
    shadow_warnings,
    startup_paths,
    stated_version,
)
from stackctl.image.transport import Transport
from stackctl.image.view import Applier, Doubt, Node, View, show
from stackctl.progress import SILENT, Progress

if TYPE_CHECKING:
    from stackctl.image.attribute import Candidates
    from stackctl.image.folder import Folder
    from stackctl.image.nearest import Absence
    from stackctl.image.wheel import Wheel

MATCH = "match"
MISMATCH = "mismatch"
UNVERIFIABLE = "unverifiable"

#: Bytes of a file up to which a diff is shown.
_DIFF_LIMIT = 4 << 20
#: Bytes above which a file is hashed only if something compares it.
_LAZY_ABOVE = 8 << 20


@dataclass(frozen=True, slots=True)
class PinnedWheel:
    """A wheel that judges untracked files.

    Attributes:
        path: The file.
        sha256: What it must hash to; empty takes it as it is.
    """

    path: Path
    sha256: str = ""


@dataclass(frozen=True, slots=True)
class Request:
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
    """

    reference: str
    expected: Sequence[ExpectedTree] | Callable[[], Sequence[ExpectedTree]]
    roots: tuple[Root, ...] = ()
    allow: tuple[Allow, ...] = ()
    unpackaged: tuple[str, ...] = ()
    wheel: PinnedWheel | None = None
    platform: Platform | None = None
    strict: bool = False
    diff: tuple[str, ...] = ()
    limits: Limits = field(default_factory=Limits)
    transport: Transport = field(default_factory=Transport)
    jobs: int = 0
    environ: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    offline: bool = False


@dataclass(slots=True)
class Report:
    """The answer.

    Attributes:
        verdict: `match`, `mismatch` or `unverifiable`.
        reason: Why, with a stable `code`.
        exit_code: What the command exits with.
        expected: Label of the tree that was compared with.
        comparisons: The outcome for every root.
        warnings: What to know beside the verdict.
        explains: Which composition the image is, if not the expected one.
        image: What was read.
        diffs: Unified diffs by path.
        ns: Time it took, in nanoseconds.
        view: The tree that was compared, for who goes on with it.
        source: The image that it was read from, if it was one.
        policy: What may stand beside the tracked files.
    """

    verdict: str
    reason: dict[str, object]
    exit_code: int
    expected: str = ""
    comparisons: list[Comparison] = field(default_factory=list)
    warnings: list[Warn] = field(default_factory=list)
    explains: list[dict[str, object]] = field(default_factory=list)
    image: dict[str, object] = field(default_factory=dict)
    diffs: dict[str, str] = field(default_factory=dict)
    ns: int = 0
    view: View | None = None
    source: Image | None = None
    policy: Policy = field(default_factory=Policy)

    def document(self) -> dict[str, object]:
        """Return the report as the JSON document of the command contract."""
        document: dict[str, object] = {
            "verdict": self.verdict,
            "reason": self.reason,
            "expected": self.expected,
            "roots": [_root_document(c) for c in self.comparisons],
            "details": [
                _finding_document(finding)
                for comparison in self.comparisons
                for finding in comparison.findings
                if finding.status != "ignored" or finding.expected is not None
            ],
            "warnings": [warning.document() for warning in self.warnings],
            "explains": self.explains,
            "image": self.image,
            "ns": self.ns,
        }
        if self.diffs:
            document["diffs"] = self.diffs
        return document


def _root_document(comparison: Comparison) -> dict[str, object]:
    counts = comparison.counts
    return {
        "tree_path": comparison.root.tree,
        "image_path": comparison.root.path,
        "real_path": "/" + show(comparison.real_path),
        "kind": comparison.root.kind,
        "expected_tree": comparison.expected_tree,
        "installed_tree": comparison.installed_tree,
        "modes": "assumed" if comparison.root.kind == PACKAGE else "checked",
        "files": {
            name: counts[name]
            for name in ("matched", "missing", "modified", "extra", "ignored")
        },
        "untracked": untracked_summary(comparison.findings),
    }


def _finding_document(finding: Finding) -> dict[str, object]:
    document: dict[str, object] = {
        "path": show(finding.path),
        "image_path": show(finding.image_path),
        "status": finding.status,
    }
    for name, value in (("expected", finding.expected), ("actual", finding.actual)):
        if value is not None:
            document[name] = {"mode": f"{value[0]:06o}", "blob": value[1].hex()}
    if finding.kind:
        document["class"] = finding.kind
    if finding.why:
        document["why"] = finding.why
    return document


@dataclass(slots=True)
class _Loaded:
    view: View
    contents: Contents
    image: dict[str, object]
    config: dict[str, object] | None = None
    roots: tuple[Root, ...] = ()
    warnings: list[Warn] = field(default_factory=list)


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
    reference = parse_reference(request.reference)
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


def _check_expected(trees: Sequence[ExpectedTree], roots: Sequence[Root]) -> None:
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
        roots = self._request.roots or loaded.roots
        policy = Policy(self._request.allow, self._request.unpackaged, pinned)
        report.policy = policy
        expected, comparisons = self._compare(loaded.view, roots, policy)
        left_out = _not_hashed(comparisons)
        if left_out:
            loaded.contents.hash(left_out)
            expected, comparisons = self._compare(loaded.view, roots, policy)
        report.expected = expected.label
        report.comparisons = comparisons
        self._refuse_doubts(loaded.view, comparisons)
        report.warnings += self._warnings(loaded, expected, comparisons)
        absent = self._absent(loaded.view, expected, comparisons)
        self._decide(comparisons, absent)
        if report.verdict == MISMATCH and not absent:
            report.explains = self._explain(comparisons, expected)
        for path in self._request.diff:
            report.diffs[path] = self._diff(path, loaded, comparisons, expected)

    def _expected(self) -> Sequence[ExpectedTree]:
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
        return self._load_folder(
            Folder(environment.prefix, self._request.limits, prefix), roots
        )

    def _load_wheel(self, path: Path) -> _Loaded:
        from stackctl.image.environment import package_names
        from stackctl.image.wheel import Wheel

        wheel = Wheel(path, self._request.limits)
        view = wheel.view(sha256=self._sha256)
        roots = self._request.roots or tuple(
            Root(name, f"/{name}", PACKAGE)
            for name in package_names(self._expected()[0])
            if view.lookup(name.encode()).node is not None
        )
        if not roots:
            raise InputError(
                f"{path} holds none of the packages of the expected tree",
                kind="not-installed",
                hint="name the place with --root TREE=PATH",
                where={"file": str(path)},
            )
        image: dict[str, object] = {"digest": None, "platform": None, "layers": []}
        return _Loaded(view, MemoryContents(wheel.read), image, roots=roots)

    def _interest(self) -> Interest:
        roots = tuple(
            root.path.strip("/").encode("utf-8", "surrogateescape") + b"/"
            for root in self._request.roots
        )
        # With a wheel or a digest in a rule, big files are compared after all.
        lazy = None if self._sha256 or self._request.wheel else _LAZY_ABOVE
        return Interest(
            magic=pyc.MAGIC, roots=roots, sha256=self._sha256, lazy_above=lazy
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
            ArchiveLayout,
            StreamArchive,
            load_docker_archive,
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
            inside = ArchiveLayout(archive, limits, location)
            return Resolver(inside, limits, platform).resolve(inside.roots(tag))
        return load_docker_archive(archive, tag, limits, platform, location)

    def _load_image(self, image: Image) -> _Loaded:
        view = View()
        applier = Applier(view)
        self._report.source = image
        warnings = [Warn(code, text, strict=False) for code, text in image.notes]
        layers: list[dict[str, object]] = []
        self._report.image = {
            "digest": image.digest,
            "platform": str(image.platform),
            "layers": layers,
        }
        scans = Pump(iter(self._scans(image.layers)))
        try:
            # What the layers are compared with is got ready while they are read.
            self._expected()
            self._pinned()
            for number, (layer, scan) in enumerate(
                zip(image.layers, scans, strict=True)
            ):
                self._progress.update("layers", number + 1, len(image.layers))
                self._check_scan(number, layer, scan)
                applier.apply(scan.entries)
                layers.append(
                    {
                        "digest": layer.digest,
                        "diff_id": layer.diff_id,
                        "size": layer.size,
                        "uncompressed_size": scan.size,
                        "compression": scan.compression,
                    }
                )
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
        return _Loaded(
            view, contents, self._report.image, image.config, warnings=warnings
        )

    def _scans(self, layers: Sequence[Layer]) -> Iterable[LayerScan]:
        """Yield the scan of every layer in order; repeated layers are read once."""
        interest = self._interest()
        done: dict[tuple[str | None, str], LayerScan] = {}

        def scan(layer: Layer) -> LayerScan:
            if layer.scan is not None:
                return layer.scan()
            return scan_layer(
                layer.open(), self._budget, interest, size_hint=layer.size
            )

        last = {_layer_key(layer): n for n, layer in enumerate(layers)}
        fresh = list({_layer_key(layer): layer for layer in layers}.values())
        jobs = self._request.jobs or max(1, min(4, (os.cpu_count() or 1) // 2))
        if jobs == 1 or len(fresh) < 2:
            results = map(scan, fresh)
            yield from _in_order(layers, fresh, results, done, last)
            return
        from concurrent.futures import ThreadPoolExecutor

        with ThreadPoolExecutor(jobs) as pool:
            try:
                yield from _in_order(layers, fresh, pool.map(scan, fresh), done, last)
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

    def _compare(
        self, view: View, roots: Sequence[Root], policy: Policy
    ) -> tuple[ExpectedTree, list[Comparison]]:
        """Compare with every expected tree and return the one that fits best."""
        best: tuple[int, ExpectedTree, list[Comparison]] | None = None
        for expected in self._expected():
            comparisons = [compare_root(view, root, expected, policy) for root in roots]
            differing = sum(
                c.counts["missing"] + c.counts["modified"] + c.counts["extra"]
                for c in comparisons
            )
            if best is None or differing < best[0]:
                best = (differing, expected, comparisons)
        assert best is not None
        return best[1], best[2]

    def _refuse_doubts(self, view: View, comparisons: Sequence[Comparison]) -> None:
        relevance = _Relevance(view, comparisons)
        others: list[Doubt] = []
        for doubt in view.doubts:
            path = relevance.of(doubt)
            if path is None:
                others.append(doubt)
                continue
            raise AmbiguousImageError(
                f"layer {doubt.layer}: runtimes disagree about /{show(path)}: with "
                "an overlay driver (containerd, Docker, podman, buildah) "
                f"{doubt.merging}; where layers are applied to one folder (umoci, "
                f"vfs) {doubt.unpacking}",
                kind=f"ambiguous-{doubt.code}",
                hint="build the layer again so that it means the same to all of them",
                where={
                    "layer": doubt.layer,
                    "path": "/" + show(path),
                    "sees": {"overlay": doubt.merging, "one-folder": doubt.unpacking},
                },
            )
        if others:
            self._report.warnings.append(
                Warn(
                    "ambiguous-outside-root",
                    "runtimes disagree about files outside the roots",
                    tuple("/" + show(d.paths[0]) for d in others[:20]),
                    len(others),
                    strict=False,
                    extra={"causes": sorted({d.code for d in others})},
                )
            )

    def _warnings(
        self, loaded: _Loaded, expected: ExpectedTree, comparisons: list[Comparison]
    ) -> list[Warn]:
        warnings: list[Warn] = []
        for comparison in comparisons:
            unverified = comparison.of("unverified")
            if unverified:
                warnings.append(
                    Warn(
                        "untracked-unverified",
                        f"{len(unverified)} untracked files under "
                        f"{comparison.root.path} are judged by nothing: pin the wheel "
                        "they come from",
                        count=len(unverified),
                        extra={
                            "root": comparison.root.path,
                            "classes": {
                                kind: counts["unverified"]
                                for kind, counts in untracked_summary(
                                    unverified
                                ).items()
                            },
                        },
                    )
                )
            if any(f.why == "git's own data" for f in comparison.findings):
                warnings.append(
                    Warn(
                        "git-data",
                        "the checkout has a .git, which is not compared",
                        (comparison.root.path + "/.git",),
                        strict=False,
                    )
                )
            if any(f.why.startswith("submodule") for f in comparison.findings):
                warnings.append(
                    Warn("submodule-unverified", "submodules are not compared")
                )
        roots = [c.real_path for c in comparisons]
        duplicates = [
            path
            for path in loaded.view.duplicates
            if any(path == r or path.startswith(r + b"/") or not r for r in roots)
        ]
        if duplicates:
            warnings.append(
                Warn(
                    "duplicate-entry",
                    "a layer has these more than once; the last one counts",
                    tuple("/" + show(p) for p in duplicates[:20]),
                    len(duplicates),
                    strict=False,
                )
            )
        warnings += bytecode_warnings(
            comparisons,
            expected,
            loaded.contents,
            self._source_of(loaded, comparisons),
            lambda root: stated_version(
                loaded.view, root, loaded.contents, loaded.config
            ),
        )
        warnings += shadow_warnings(comparisons)
        startup = Startup(
            loaded.view,
            comparisons,
            loaded.contents,
            loaded.config,
            self._request.allow,
        )
        warnings += startup.warnings()
        stated = _stated_tree(loaded.config)
        if stated and stated != expected.subtree_id(".").hex():
            warnings.append(
                Warn(
                    "label-differs",
                    f"the image's label names the tree {stated[:40]}, which "
                    "is another than what it was compared with",
                    extra={"label": f"{LABEL_PREFIX}tree", "value": stated[:200]},
                )
            )
        return warnings

    def _source_of(
        self, loaded: _Loaded, comparisons: Sequence[Comparison]
    ) -> "_Sources":
        names: dict[bytes, bytes] = {}
        for comparison in comparisons:
            for finding in comparison.of("ignored"):
                if finding.why.startswith("equal to the pinned"):
                    names[finding.image_path.lstrip(b"/")] = finding.path
        return _Sources(self._wheel, names)

    def _absent(
        self, view: View, expected: ExpectedTree, comparisons: Sequence[Comparison]
    ) -> "list[tuple[Comparison, Absence]]":
        """Return the roots of which nothing is there, each without its findings.

        Each of the tree's files is missing there; the count says so, and a list of all
        of them would hide the cause.
        """
        found: list[tuple[Comparison, Absence]] = []
        for comparison in comparisons:
            if comparison.equal or comparison.counts["matched"]:
                continue
            from stackctl.image.nearest import absence

            what = absence(view, comparison, expected.subtree(comparison.root.tree))
            if what is not None:
                comparison.findings = [
                    f for f in comparison.findings if f.status != "missing"
                ]
                found.append((comparison, what))
        return found

    def _decide(
        self,
        comparisons: Sequence[Comparison],
        absent: "Sequence[tuple[Comparison, Absence]]" = (),
    ) -> None:
        report = self._report
        different = [c for c in comparisons if not c.equal]
        strict = sorted({w.code for w in report.warnings if w.strict})
        if different:
            report.verdict, report.exit_code = MISMATCH, ExitCode.NO
            totals = {
                name: sum(c.counts[name] for c in comparisons)
                for name in ("missing", "modified", "extra")
            }
            if absent:
                report.reason = {
                    "code": "root-missing",
                    "message": "; ".join(what.message for _, what in absent),
                    "hint": "; ".join(what.hint for _, what in absent),
                    "roots": [c.root.path for c in different],
                    "absent": [
                        {"root": c.root.path, **what.document()} for c, what in absent
                    ],
                    **totals,
                }
                return
            report.reason = {
                "code": "files-differ",
                "message": ", ".join(
                    f"{number} {name}" for name, number in totals.items() if number
                )
                or "the rebuilt tree has another id",
                "roots": [c.root.path for c in different],
                **totals,
            }
        elif self._request.strict and strict:
            report.verdict, report.exit_code = MISMATCH, ExitCode.NO
            report.reason = {
                "code": "strict-warnings",
                "message": "every tracked file matches, but --strict allows none of: "
                + ", ".join(strict),
                "warnings": strict,
            }
        else:
            report.verdict, report.exit_code = MATCH, ExitCode.OK
            report.reason = {
                "code": "equal",
                "message": "every root holds exactly the expected tree",
            }

    def _explain(
        self, comparisons: Sequence[Comparison], expected: ExpectedTree
    ) -> list[dict[str, object]]:
        if self._candidates is None or all(c.equal for c in comparisons):
            return []
        from stackctl.image.attribute import explain

        return explain(comparisons, self._candidates)

    def _diff(
        self,
        path: str,
        loaded: _Loaded,
        comparisons: Sequence[Comparison],
        expected: ExpectedTree,
    ) -> str:
        wanted = path.encode("utf-8", "surrogateescape")
        for comparison in comparisons:
            tree = comparison.root.tree.strip("/")
            prefix = b"" if tree in ("", ".") else tree.encode() + b"/"
            root = b"/" + comparison.real_path + b"/"
            literal = comparison.root.path.rstrip("/").encode() + b"/"
            for start in (prefix, root, literal):
                if not wanted.startswith(start):
                    continue
                inner = wanted[len(start) :]
                node = comparison.nodes.get(inner)
                tracked = expected.entries.get(prefix + inner)
                if node is None and tracked is None:
                    continue
                before = expected.read(tracked[1]) if tracked else b""
                after = b""
                if node is not None:
                    if node.size > _DIFF_LIMIT:
                        return f"{path}: {node.size} bytes are too many for a diff\n"
                    place = root.lstrip(b"/") + inner
                    after = dict(loaded.contents.fetch([(place, node)])).get(place, b"")
                return unified_diff(before, after, show(prefix + inner))
        raise UsageError(
            f"--diff {path}: there is no such file in the tree or under a root",
            kind="no-such-file",
            hint="give its path in the tree, such as vllm/envs.py",
        )


class _Sources:
    """Gives the judged source of an untracked file by its path in the image."""

    def __init__(self, wheel: "Wheel | None", names: Mapping[bytes, bytes]) -> None:
        self._wheel = wheel
        self._names = names

    def __call__(self, path: bytes) -> bytes | None:
        name = self._names.get(path)
        if name is None or self._wheel is None:
            return None
        return self._wheel.read(name)


def _stated_tree(config: dict[str, object] | None) -> str:
    """Return the tree that an image's label names, or nothing."""
    run = config.get("config") if config else None
    labels = run.get("Labels") if isinstance(run, dict) else None
    value = labels.get(f"{LABEL_PREFIX}tree") if isinstance(labels, dict) else None
    return value if isinstance(value, str) else ""


def _not_hashed(comparisons: Sequence[Comparison]) -> list[Node]:
    """Return the files that something compares and the first pass did not hash."""
    return [
        finding.node
        for comparison in comparisons
        for finding in comparison.findings
        if finding.node is not None
        and finding.node.kind == "f"
        and finding.node.oid is None
        and finding.status in ("modified", "extra")
    ]


def _layer_key(layer: Layer) -> tuple[str | None, str]:
    return layer.digest, layer.diff_id


def _in_order(
    layers: Sequence[Layer],
    fresh: Sequence[Layer],
    results: Iterable[LayerScan],
    done: dict[tuple[str | None, str], LayerScan],
    last: Mapping[tuple[str | None, str], int],
) -> Iterable[LayerScan]:
    pending = iter(zip(fresh, results, strict=True))
    for number, layer in enumerate(layers):
        key = _layer_key(layer)
        while key not in done:
            other, scan = next(pending)
            done[_layer_key(other)] = scan
        yield done[key]
        if last[key] == number:
            del done[key]


class _Relevance:
    """Decides whether a doubt concerns what was compared, or how Python starts."""

    def __init__(self, view: View, comparisons: Sequence[Comparison]) -> None:
        self._roots = [c.real_path for c in comparisons]
        self._checkouts = [c.real_path for c in comparisons if c.root.kind == CHECKOUT]
        self._exact: set[bytes] = set()
        for comparison in comparisons:
            self._exact.update(
                view.lookup(
                    comparison.root.path.encode("utf-8", "surrogateescape")
                ).visited
            )
        exact, self._folders = startup_paths(view, [c.root for c in comparisons])
        self._exact |= exact
        self._links: set[bytes] = set()
        self._checkout_links: set[bytes] = set()
        for comparison in comparisons:
            for node in comparison.nodes.values():
                if node.names:
                    self._links.update(node.names)
                    if comparison.root.kind == CHECKOUT:
                        self._checkout_links.update(node.names)
        self._above = _ancestors(self._exact | self._links | self._folders)

    def of(self, doubt: Doubt) -> bytes | None:
        """Return the path that makes a doubt count, or None."""
        for path in doubt.paths:
            if doubt.modes_only:
                if path in self._checkout_links or _inside(path, self._checkouts):
                    return path
            elif self._counts(path):
                return path
        return None

    def _counts(self, path: bytes) -> bool:
        return (
            not path
            or _inside(path, self._roots)
            or path in self._above
            or path in self._exact
            or path in self._links
            or path.rpartition(b"/")[0] in self._folders
            or is_startup_name(path)
        )


def _ancestors(paths: Iterable[bytes]) -> set[bytes]:
    found: set[bytes] = set()
    for path in paths:
        while path and path not in found:
            found.add(path)
            path = path.rpartition(b"/")[0]
    return found


def _inside(path: bytes, folders: Iterable[bytes]) -> bool:
    return any(
        not folder or path == folder or path.startswith(folder + b"/")
        for folder in folders
    )


def unified_diff(before: bytes, after: bytes, path: str) -> str:
    """Return the difference of two texts, or a sentence if one is binary."""
    import difflib

    if before == after:
        return ""
    try:
        old, new = before.decode("utf-8"), after.decode("utf-8")
    except UnicodeDecodeError:
        return f"binary files differ: {len(before)} and {len(after)} bytes\n"
    lines: list[str] = []
    for line in difflib.unified_diff(
        old.splitlines(keepends=True),
        new.splitlines(keepends=True),
        f"expected/{path}",
        f"image/{path}",
    ):
        lines.append(line)
        if not line.endswith("\n"):
            lines.append("\n\\ No newline at end of file\n")
    return "".join(lines)
