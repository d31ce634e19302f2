# SPDX-License-Identifier: Apache-2.0
"""`stackctl verify-image`: does an image contain exactly the composed tree?"""

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from stackctl.cli.command import Session, command, exclusive
from stackctl.cli.output import Outcome, table
from stackctl.errors import UsageError

if TYPE_CHECKING:
    from stackctl.image.compare import Root
    from stackctl.image.expectation import ExpectedTree
    from stackctl.image.verify import Report

EXAMPLE = (
    "Examples: stackctl verify-image docker://registry.example.org/vllm:r3 "
    "--root vllm=/opt/venv/lib/python3.12/site-packages/vllm; "
    "stackctl verify-image env:/opt/venv/bin/python; "
    "stackctl verify-image oci:build/image --root .=/opt/vllm --strict --json"
)

_SHOWN = 12


def parse_root(text: str) -> "Root":
    """Return the root that `TREE=PATH` names."""
    from stackctl.image.compare import CHECKOUT, PACKAGE, Root

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
        yield f"  image {digest}, {report.image['platform']}, {count} layers"
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
        yield from table(
            ["warning", "", "about"],
            [
                [w.code, w.message, ", ".join(w.paths[:2]) + (" …" * (w.count > 2))]
                for w in report.warnings
            ],
        )
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
        allow: Annotated[
            list[str] | None,
            typer.Option(metavar="GLOB", help="Untracked files that may be there."),
        ] = None,
        wheel: Annotated[
            Path | None,
            typer.Option(metavar="FILE", help="Wheel that judges untracked files."),
        ] = None,
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
        plain_http: Annotated[
            bool, typer.Option("--plain-http", help="The registry has no TLS.")
        ] = False,
        ca_file: Annotated[
            Path | None, typer.Option(help="Certificates to trust for the registry.")
        ] = None,
        auth_host: Annotated[
            str | None,
            typer.Option(
                help="Another host that may be sent the registry's "
                "credentials for a token."
            ),
        ] = None,
        max_layer_size: Annotated[
            int | None, typer.Option(metavar="BYTES", help="Largest layer, unpacked.")
        ] = None,
        max_image_size: Annotated[
            int | None, typer.Option(metavar="BYTES", help="Largest image, unpacked.")
        ] = None,
        max_ratio: Annotated[
            int | None, typer.Option(help="Largest expansion of a layer.")
        ] = None,
        max_entries: Annotated[
            int | None, typer.Option(help="Most files of an image.")
        ] = None,
    ) -> Outcome:
        """Verify that an image contains exactly the composed tree, and nothing else."""
        from stackctl.image.limits import Limits
        from stackctl.image.platform import parse_platform
        from stackctl.image.registry import Transport
        from stackctl.image.rules import Allow
        from stackctl.image.verify import PinnedWheel, Request, verify

        exclusive(lock=lock, tree=tree, expect=expect)
        if (tree is None) != (repo is None):
            raise UsageError("--tree and --repo go together")
        if ref is None:
            raise UsageError("which image?", hint="name it, as in oci:DIR")
        defaults = Limits()
        limits = Limits(
            layer=max_layer_size or defaults.layer,
            image=max_image_size or defaults.image,
            ratio=max_ratio or defaults.ratio,
            entries=max_entries or defaults.entries,
        )
        request = Request(
            reference=ref,
            expected=[_expected(tree, repo, expect)],
            roots=tuple(parse_root(text) for text in root or ()),
            allow=tuple(Allow(text) for text in allow or ()),
            wheel=PinnedWheel(wheel) if wheel is not None else None,
            platform=parse_platform(platform) if platform else None,
            strict=strict,
            diff=tuple(diff or ()),
            limits=limits,
            transport=Transport(
                plain_http=plain_http,
                ca_file=str(ca_file) if ca_file else None,
                auth_host=auth_host,
            ),
            offline=session.offline,
        )
        report = verify(request, None, session.progress)
        return Outcome(
            report.document(), lambda: report_lines(report, ref), report.exit_code
        )


def _expected(
    tree: str | None, repo: Path | None, expect: Path | None
) -> "ExpectedTree":
    from stackctl.image.expectation import folder_tree, stored_tree

    if expect is not None:
        return folder_tree(expect)
    if tree is not None and repo is not None:
        return stored_tree(tree, repo)
    raise UsageError(
        "what is expected?", hint="--expect DIR, or --tree ID --repo GITDIR"
    )
