# SPDX-License-Identifier: Apache-2.0
"""`stackctl verify-image`: does an image contain exactly the composed tree?"""

import gc
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from stackctl.cli.command import Session, command, exclusive
from stackctl.cli.image_options import (
    AllowOption,
    AuthHostOption,
    CaFileOption,
    PlainHttpOption,
    WheelOption,
    transport,
)
from stackctl.cli.output import Outcome, table
from stackctl.errors import StackctlError, UsageError

if TYPE_CHECKING:
    from stackctl.image.attribute import Candidate, Candidates, Touch
    from stackctl.image.expectation import ExpectedTree
    from stackctl.image.limits import Limits
    from stackctl.image.report import Report
    from stackctl.image.roots import Root
    from stackctl.image.series import SeriesCandidates
    from stackctl.image.transport import Transport
    from stackctl.image.verify import Request
    from stackctl.model.series import Image, Series

EXAMPLE = (
    "Examples: stackctl verify-image docker://registry.example.org/vllm:r3 "
    "--root vllm=/opt/venv/lib/python3.12/site-packages/vllm; "
    "stackctl verify-image env:/opt/venv/bin/python; "
    "stackctl verify-image oci:build/image --root .=/opt/vllm --strict --json"
)

_SHOWN = 12
_PATHS = 3
#: Seconds after which a thread that runs Python lets another go on. A thread that
#: hashed a piece of a layer, in a few milliseconds, else waits as long for the next.
_SWITCH = 0.0005
#: Bytes of a series up to which an image is looked for in it as text.
_SERIES_BYTES = 1 << 20


def parse_root(text: str) -> "Root":
    """Return the root that `TREE=PATH` names."""
    from stackctl.image.roots import CHECKOUT, PACKAGE, Root

    tree, equals, path = text.partition("=")
    tree = tree.rstrip("/") or tree
    if not equals or not tree or not path:
        raise UsageError(
            f"--root {text}: expected TREE=PATH",
            hint="--root vllm=/…/site-packages/vllm, or --root .=/opt/vllm",
        )
    return Root(tree, path, CHECKOUT if tree == "." else PACKAGE)


def report_lines(report: "Report", reference: str) -> Iterable[str]:
    """Return a report as lines for a person."""
    yield f"{report.verdict}: {reference}"
    yield f"  {report.reason['message']}"
    if report.reason.get("hint"):
        yield f"  hint: {report.reason['hint']}"
    digest = report.image.get("digest")
    if digest:
        layers = report.image.get("layers")
        count = len(layers) if isinstance(layers, list) else 0
        noun = "layer" if count == 1 else "layers"
        yield f"  image {digest}, {report.image['platform']}, {count} {noun}"
    if index := report.image.get("index"):
        asked = report.image["platform_by"] == "request"
        why = (
            "as asked for" if asked else "as this machine is; --platform names another"
        )
        yield f"  of the index {index}, {why}"
    if report.comparisons:
        yield ""
        names = ("matched", "missing", "modified", "extra", "ignored")
        yield from table(
            ["tree", "in the image", "kind", *names, "tree id"],
            [
                [
                    c.root.tree,
                    c.root.path,
                    c.root.kind,
                    *[str(c.counts[name]) for name in names],
                    c.installed_tree[:12]
                    + (" =" if c.installed_tree == c.expected_tree else " differs"),
                ]
                for c in report.comparisons
            ],
        )
    rules = Counter(
        finding.why
        for comparison in report.comparisons
        for finding in comparison.of("ignored")
        if finding.expected is not None
    )
    if rules:
        yield ""
        for why, number in sorted(rules.items()):
            yield f"{number} tracked {'file is' if number == 1 else 'files are'} {why}"
    bad = [
        finding
        for comparison in report.comparisons
        for finding in comparison.of("missing", "modified", "type", "mode", "extra")
    ]
    if bad:
        yield ""
        yield from table(
            ["file", "is", "why"],
            [
                [f.path.decode("utf-8", "backslashreplace"), f.status, f.why]
                for f in bad[:_SHOWN]
            ],
        )
        if len(bad) > _SHOWN:
            yield f"… and {len(bad) - _SHOWN} more; --json lists all"
    if report.warnings:
        yield ""
        for warning in report.warnings:
            yield f"warning: {warning.code}: {warning.message}"
            for path in warning.paths[:_PATHS]:
                yield f"  {path}"
            if warning.paths and warning.count > _PATHS:
                yield f"  … and {warning.count - _PATHS} more"
    if report.explains:
        yield ""
        for item in report.explains[:_SHOWN]:
            if item["about"] == "image":
                yield f"the image {item['text']}"
            else:
                yield f"{item['path']}: {item['label']}"
    for text in report.diffs.values():
        yield ""
        yield from text.splitlines()
    yield ""
    yield f"time  {report.ns / 1e9:.2f} s"


def register(app: typer.Typer) -> None:
    """Add the command to the application."""

    @command(app, "verify-image", epilog=EXAMPLE)
    def verify_image(
        session: Session,
        ref: Annotated[
            str | None,
            typer.Argument(
                help="oci:DIR[:TAG], oci-archive:FILE[:TAG], "
                "docker-archive:FILE[:REF], dir:DIR, docker://HOST/REPO[:TAG|@DIGEST], "
                "docker-daemon:REF, "
                "rootfs:PATH, wheel:FILE or env:PYTHON. Without it, the images that "
                "series.toml lists.",
            ),
        ] = None,
        lock: Annotated[
            list[Path] | None,
            typer.Option(
                metavar="FILE", help="Expect what a lock composed; any of several."
            ),
        ] = None,
        tree: Annotated[
            str | None, typer.Option(metavar="ID", help="Expect a git tree.")
        ] = None,
        repo: Annotated[
            Path | None, typer.Option(metavar="GITDIR", help="Where --tree is.")
        ] = None,
        expect: Annotated[
            Path | None, typer.Option(metavar="DIR", help="Expect a folder's content.")
        ] = None,
        root: Annotated[
            list[str] | None,
            typer.Option(
                metavar="TREE=PATH",
                help="Where the tree, or a folder of it, must be in the image.",
            ),
        ] = None,
        allow: AllowOption = None,
        wheel: WheelOption = None,
        platform: Annotated[
            str | None,
            typer.Option(
                metavar="OS/ARCH",
                help="Which of an index's images; by default this machine's.",
            ),
        ] = None,
        strict: Annotated[
            bool,
            typer.Option(
                "--strict",
                help="Anything that can run beside the tracked files is a mismatch.",
            ),
        ] = False,
        diff: Annotated[
            list[str] | None,
            typer.Option(metavar="PATH", help="Show how a file differs."),
        ] = None,
        plain_http: PlainHttpOption = False,
        ca_file: CaFileOption = None,
        auth_host: AuthHostOption = None,
        max_layer_size: Annotated[
            int | None,
            typer.Option(
                min=1,
                metavar="BYTES",
                help="Largest layer, unpacked; by default 128 GiB.",
            ),
        ] = None,
        max_image_size: Annotated[
            int | None,
            typer.Option(
                min=1,
                metavar="BYTES",
                help="Largest image, unpacked; by default 512 GiB.",
            ),
        ] = None,
        max_ratio: Annotated[
            int | None,
            typer.Option(
                min=1, metavar="N", help="Largest expansion of a layer; by default 200."
            ),
        ] = None,
        max_entries: Annotated[
            int | None,
            typer.Option(
                min=1, metavar="N", help="Most files of an image; by default 4,000,000."
            ),
        ] = None,
    ) -> Outcome:
        """Verify that an image contains exactly the composed tree, and nothing else.

        Exits 0 on a match, 1 on a mismatch, 3 where the image means different things
        to different runtimes or cannot be read, 4 where a digest does not hold, 6
        where a registry or daemon cannot be asked.
        """
        exclusive(lock=lock, tree=tree, expect=expect)
        if (tree is None) != (repo is None):
            raise UsageError("--tree and --repo go together")
        options = _Options(
            tuple(root or ()),
            tuple(allow or ()),
            wheel,
            platform,
            strict,
            tuple(diff or ()),
            _limits(max_layer_size, max_image_size, max_ratio, max_entries),
            transport(plain_http, ca_file, auth_host),
        )
        expected = partial(_expected, session, lock or [], tree, repo, expect)
        candidates: _Candidates | None = _Candidates(session, lock or [])
        images: list[Image] = []
        named = tree is not None or expect is not None
        # Where all is named and the series has no word about the image, it is read only
        # to explain a mismatch.
        if ref is None or not named or _may_list(session, ref):
            project = _project(session, needed=ref is None)
            if project is None:
                candidates = None
            else:
                images = list(project.images)
        if ref is not None:
            image = next((i for i in images if i.ref == ref), None)
            # The project's only image is what is meant, unless another tree is named.
            if image is None and len(images) == 1 and not named:
                image = images[0]
            return _outcome(
                _verify(session, ref, image, expected, options, candidates), ref
            )
        if not images:
            raise UsageError(
                "which image?",
                hint="name it, as in oci:DIR, or list it as [[image]] in series.toml",
            )
        outcomes = [
            _outcome(
                _verify(
                    session,
                    i.ref,
                    i,
                    expected,
                    options,
                    candidates,
                    folder=session.project,
                ),
                i.ref,
            )
            for i in images
        ]
        if len(outcomes) == 1:
            return outcomes[0]
        return Outcome(
            [outcome.document for outcome in outcomes],
            lambda: (line for outcome in outcomes for line in (*outcome.text(), "")),
            max(outcome.code for outcome in outcomes),
        )


class _Options(NamedTuple):
    roots: tuple[str, ...]
    allow: tuple[str, ...]
    wheel: Path | None
    platform: str | None
    strict: bool
    diff: tuple[str, ...]
    limits: "Limits"
    transport: "Transport"


def _limits(
    layer: int | None, image: int | None, ratio: int | None, entries: int | None
) -> "Limits":
    from stackctl.image.limits import Limits

    defaults = Limits()
    return Limits(
        layer=layer or defaults.layer,
        image=image or defaults.image,
        ratio=ratio or defaults.ratio,
        entries=entries or defaults.entries,
    )


def _project(session: Session, *, needed: bool) -> "Series | None":
    """Return the project's series, or None outside of a project."""
    try:
        return session.series
    except UsageError:
        if needed or session.directory is not None:
            raise
        return None


def _may_list(session: Session, ref: str) -> bool:
    """Say whether the series may speak of an image, without reading all of it.

    To read it takes a thirtieth of a large image's time, so it is looked for as text.
    """
    from stackctl.fsutil import read_regular
    from stackctl.project import SERIES_FILE

    try:
        data = read_regular(session.project / SERIES_FILE, _SERIES_BYTES)
    except StackctlError:
        return True
    # A backslash may spell any character of a string.
    return b"\\" in data or ref.encode("utf-8", "surrogateescape") in data


def _expected(
    session: Session,
    locks: list[Path],
    tree: str | None,
    repo: Path | None,
    expect: Path | None,
) -> "list[ExpectedTree]":
    from stackctl.image.expectation import folder_tree, stored_tree

    if expect is not None:
        return [folder_tree(expect)]
    if tree is not None and repo is not None:
        return [stored_tree(tree, repo)]
    from stackctl.image.series import locked_tree
    from stackctl.project import LOCK_FILE

    return [
        locked_tree(
            path, session.cache, offline=session.offline, progress=session.progress
        )
        for path in locks or [session.project / LOCK_FILE]
    ]


class _Candidates:
    """The series' trees, made only when something differs."""

    def __init__(self, session: Session, locks: list[Path]) -> None:
        self._session = session
        self._locks = locks
        self._made: SeriesCandidates | None = None

    def _known(self) -> "SeriesCandidates":
        if self._made is None:
            from stackctl.image.series import SeriesCandidates
            from stackctl.model.lock import read_lock

            session = self._session
            self._made = SeriesCandidates(
                session.context,
                [(path, read_lock(path)) for path in self._locks],
            )
        return self._made

    def trees(self) -> "Iterable[Candidate]":
        return self._known().trees()

    def touching(self, path: bytes) -> "Sequence[Touch]":
        return self._known().touching(path)


def _verify(
    session: Session,
    ref: str,
    image: "Image | None",
    expected: "Callable[[], list[ExpectedTree]]",
    options: _Options,
    candidates: "Candidates | None",
    *,
    folder: Path | None = None,
) -> "Report":
    # A large image is a million records without a cycle: to look for cycles among them
    # finds nothing and takes a tenth of the time.
    collecting = gc.isenabled()
    gc.disable()
    interval = sys.getswitchinterval()
    sys.setswitchinterval(_SWITCH)
    try:
        from stackctl.image.verify import verify

        request = _request(session, ref, image, expected, options, folder)
        return verify(request, candidates, session.progress)
    finally:
        sys.setswitchinterval(interval)
        if collecting:
            gc.enable()


def _request(
    session: Session,
    ref: str,
    image: "Image | None",
    expected: "Callable[[], list[ExpectedTree]]",
    options: _Options,
    folder: Path | None,
) -> "Request":
    from stackctl.image.platform import parse_platform
    from stackctl.image.roots import Root
    from stackctl.image.rules import Allow
    from stackctl.image.verify import PinnedWheel, Request

    roots = tuple(parse_root(text) for text in options.roots)
    allow = tuple(Allow(text) for text in options.allow)
    wheel = PinnedWheel(options.wheel) if options.wheel is not None else None
    platform = options.platform
    unpackaged: tuple[str, ...] = ()
    if image is not None:
        # An environment or a wheel has its roots where it has them.
        if not roots and ref.partition(":")[0] not in ("env", "wheel"):
            roots = tuple(Root(r.tree, r.path, r.kind) for r in image.roots)
        allow += tuple(Allow(rule.path, rule.sha256) for rule in image.allow)
        unpackaged = image.unpackaged
        platform = platform or image.platform
        if wheel is None and image.wheel is not None:
            from stackctl.image.series import pinned_wheel

            wheel = pinned_wheel(
                image.wheel,
                session.project,
                session.cache,
                offline=session.offline,
                progress=session.progress,
            )
    return Request(
        reference=ref,
        expected=expected,
        roots=roots,
        allow=allow,
        unpackaged=unpackaged,
        wheel=wheel,
        platform=parse_platform(platform) if platform else None,
        strict=options.strict,
        diff=options.diff,
        limits=options.limits,
        transport=options.transport,
        offline=session.offline,
        folder=folder,
    )


def _outcome(report: "Report", ref: str) -> Outcome:
    return Outcome(
        report.document(), lambda: report_lines(report, ref), report.exit_code
    )
