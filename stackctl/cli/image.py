# SPDX-License-Identifier: Apache-2.0
"""`stackctl image`: the labels of a release image, and the image itself."""

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from stackctl.cli.command import Session, command
from stackctl.cli.image_options import (
    AllowOption,
    AuthHostOption,
    CaFileOption,
    PlainHttpOption,
    WheelOption,
    transport,
)
from stackctl.cli.output import Outcome
from stackctl.cli.selection import (
    OnlyOption,
    UptoOption,
    WithoutOption,
    split_names,
)
from stackctl.errors import PinError, UsageError

if TYPE_CHECKING:
    from stackctl.compose.model import Composition
    from stackctl.image.expectation import ExpectedTree
    from stackctl.image.roots import Root
    from stackctl.model.series import Image
    from stackctl.release.overlay import Overlay

LABEL_EXAMPLE = (
    "Examples: stackctl image label; stackctl image label --json; "
    "stackctl image label --context build/context"
)
OVERLAY_EXAMPLE = (
    "Examples: stackctl image overlay docker://registry.example.org/vllm@sha256:… "
    "--out oci:build/image:r3; "
    "stackctl image overlay oci:base --out oci:build/image "
    "--root vllm=/usr/local/lib/python3.12/dist-packages/vllm"
)

FolderOption = Annotated[
    list[str] | None,
    typer.Option(
        "--package",
        metavar="FOLDER",
        help="Folder of the tree that is installed as a package; by default those of "
        "[[image]], or vllm.",
    ),
]


def _composed(
    session: Session,
    upto: str | None,
    only: list[str] | None,
    without: list[str] | None,
) -> "Composition":
    """Compose; the whole series must be what the lock says."""
    from stackctl.compose.compose import Options, compose_series
    from stackctl.compose.lock import compare_with_lock
    from stackctl.compose.plan import Selection

    selection = Selection(
        upto=upto, only=split_names(only), without=split_names(without)
    )
    composition = compose_series(
        session.series,
        session.cache,
        selection,
        Options(offline=session.offline),
        session.progress,
    )
    if selection == Selection():
        differs = compare_with_lock(session.project, composition)
        if differs:
            raise PinError(
                f"series.lock is not what the series composes: {differs}",
                kind="stale-lock",
                hint="run stackctl lock first",
            )
    return composition


def _trees(
    session: Session, composition: "Composition"
) -> "tuple[ExpectedTree, ExpectedTree]":
    from stackctl.image.expectation import from_store

    store = session.cache.store
    return (
        from_store(store, composition.base.tree, "the base"),
        from_store(store, composition.tree, f"composition {composition.composition}"),
    )


def _paths(
    session: Session,
    before: "ExpectedTree",
    after: "ExpectedTree",
    folders: list[str],
) -> list[bytes]:
    from stackctl.image.series import SeriesCandidates
    from stackctl.release.overlay import check_python_only

    known = SeriesCandidates(session.context)
    return check_python_only(before.entries, after.entries, folders, known.touching)


def _folders(session: Session, given: list[str] | None) -> list[str]:
    if given:
        return [folder.strip("/") for folder in given]
    known = {
        root.tree.strip("/")
        for image in session.series.images
        for root in image.roots
        if root.kind == "package"
    }
    return sorted(known) or ["vllm"]


def overlay_text(overlay: "Overlay", out: str) -> Iterable[str]:
    """Return an overlay as lines for a person."""
    layer = overlay.layer
    yield f"image           {overlay.digest}"
    yield f"layer           {overlay.layer_digest} ({overlay.size} bytes)"
    yield (
        f"files           {len(layer.changed)} changed, {len(layer.added)} added, "
        f"{len(layer.deleted)} deleted"
    )
    yield f"bytecode        {len(layer.bytecode)} files whited out"
    yield f"written         {out}"
    for comparison in overlay.roots:
        yield (
            f"verified        {comparison.root.path} holds "
            f"{comparison.installed_tree[:12]} of the composition"
        )


def register(app: typer.Typer) -> None:
    """Add the commands to the application."""
    group = typer.Typer(
        name="image",
        help="Labels of release images, and images without a daemon.",
        epilog="Example: stackctl image label",
        no_args_is_help=True,
        rich_markup_mode=None,
    )

    @group.callback()
    def _group() -> None:
        pass

    @command(group, "label", epilog=LABEL_EXAMPLE)
    def label(
        session: Session,
        upto: UptoOption = None,
        only: OnlyOption = None,
        without: WithoutOption = None,
        folder: Annotated[
            Path | None,
            typer.Option(
                "--context",
                metavar="DIR",
                help="Write the build context for ci/Containerfile.",
            ),
        ] = None,
        package: FolderOption = None,
    ) -> Outcome:
        """Print the labels and the file that an image of the composition should carry.

        Exits 3 where --context is asked for and a set changes what needs a build.
        """
        from stackctl.release.label import MANIFEST_PATH, image_labels

        composition = _composed(session, upto, only, without)
        labels = image_labels(session.series.name, composition.content())
        document: dict[str, object] = {
            "composition": composition.composition,
            "tree": composition.tree,
            "labels": labels.labels,
            "annotations": labels.labels,
            "manifest": {"path": MANIFEST_PATH, "content": labels.manifest.decode()},
        }
        lines = [f"{name}={value}" for name, value in labels.labels.items()]
        if folder is not None:
            from stackctl.release.context import write_context

            before, after = _trees(session, composition)
            folders = _folders(session, package)
            paths = _paths(session, before, after, folders)
            count = write_context(folder, paths, folders, after, labels)
            document["context"] = {"folder": str(folder), "files": count}
        return Outcome(document, lambda: lines)

    @command(group, "overlay", epilog=OVERLAY_EXAMPLE)
    def overlay(
        session: Session,
        base: Annotated[
            str,
            typer.Argument(
                metavar="BASE",
                help="oci:DIR[:TAG], oci-archive:FILE[:TAG], dir:DIR or "
                "docker://HOST/REPO[:TAG|@DIGEST]: an image with the base installed.",
            ),
        ],
        out: Annotated[
            str,
            typer.Option(metavar="oci:DIR[:TAG]", help="A new or empty folder."),
        ],
        root: Annotated[
            list[str] | None,
            typer.Option(
                metavar="TREE=PATH",
                help="Where the base is in the image; by default as [[image]] says.",
            ),
        ] = None,
        package: FolderOption = None,
        upto: UptoOption = None,
        only: OnlyOption = None,
        without: WithoutOption = None,
        wheel: WheelOption = None,
        allow: AllowOption = None,
        platform: Annotated[
            str | None,
            typer.Option(metavar="OS/ARCH", help="Which of an index's images."),
        ] = None,
        plain_http: PlainHttpOption = False,
        ca_file: CaFileOption = None,
        auth_host: AuthHostOption = None,
    ) -> Outcome:
        """Write an image of the composition: a base image and one layer over it.

        Only for sets that change what an installation reads as it is: Python files and
        data. Exits 3 where a set changes what needs a build, 4 where the base image
        does not hold the base.
        """
        from stackctl.image.platform import parse_platform
        from stackctl.image.reference import parse_reference
        from stackctl.image.roots import PACKAGE
        from stackctl.image.rules import Allow
        from stackctl.image.series import pinned_wheel
        from stackctl.image.verify import PinnedWheel, Request, verify
        from stackctl.release.label import image_labels
        from stackctl.release.overlay import TRANSPORTS, make_overlay

        if parse_reference(base).transport not in TRANSPORTS:
            raise UsageError(
                f"{base}: an overlay needs a base of "
                + ", ".join(f"{name}:" for name in TRANSPORTS),
                hint="copy it first: skopeo copy SOURCE oci:DIR",
            )
        target, tag = _target(out)
        image = _image_of(session, base)
        roots = _roots(root, image)
        folders = [r.tree.strip("/") for r in roots if r.kind == PACKAGE]
        folders = folders or _folders(session, package)
        composition = _composed(session, upto, only, without)
        before, after = _trees(session, composition)
        _paths(session, before, after, folders)
        rules = tuple(Allow(text) for text in allow or ())
        judge = PinnedWheel(wheel) if wheel is not None else None
        if image is not None:
            rules += tuple(Allow(rule.path, rule.sha256) for rule in image.allow)
            if judge is None and image.wheel is not None:
                judge = pinned_wheel(
                    image.wheel,
                    session.project,
                    session.cache,
                    offline=session.offline,
                    progress=session.progress,
                )
        where = platform or (image.platform if image is not None else None)
        request = Request(
            base,
            [before],
            roots,
            allow=rules,
            unpackaged=image.unpackaged if image is not None else (),
            wheel=judge,
            platform=parse_platform(where) if where else None,
            transport=transport(plain_http, ca_file, auth_host),
            offline=session.offline,
        )
        report = verify(request, progress=session.progress)
        labels = image_labels(session.series.name, composition.content())
        made = make_overlay(report, before, after, labels, target, tag=tag, name=base)
        layer = made.layer
        document = {
            "out": out,
            "digest": made.digest,
            "base": report.image["digest"],
            "composition": composition.composition,
            "tree": composition.tree,
            "layer": {"digest": made.layer_digest, "size": made.size},
            "changed": _shown(layer.changed),
            "added": _shown(layer.added),
            "deleted": _shown(layer.deleted),
            "bytecode": _shown(layer.bytecode),
            "labels": labels.labels,
            "roots": [
                {"image_path": c.root.path, "installed_tree": c.installed_tree}
                for c in made.roots
            ],
        }
        return Outcome(document, lambda: overlay_text(made, out))

    app.add_typer(group)


def _shown(places: list[bytes]) -> list[str]:
    from stackctl.image.view import show

    return ["/" + show(place) for place in sorted(places)]


def _target(out: str) -> tuple[Path, str]:
    kind, colon, rest = out.partition(":")
    if not colon or kind != "oci" or not rest:
        raise UsageError(
            f"--out {out}: expected oci:DIR or oci:DIR:TAG",
            hint="skopeo copies an OCI layout to anywhere else",
        )
    folder, colon, tag = rest.rpartition(":")
    if not colon or "/" in tag:
        folder, tag = rest, "latest"
    return Path(folder), tag


def _image_of(session: Session, base: str) -> "Image | None":
    """Return the entry of series.toml that says how images look here."""
    images = session.series.images
    named = [image for image in images if image.ref == base]
    if named:
        return named[0]
    return images[0] if len(images) == 1 else None


def _roots(given: list[str] | None, image: "Image | None") -> "tuple[Root, ...]":
    from stackctl.cli.verify_image import parse_root
    from stackctl.image.roots import PACKAGE, Root

    if given:
        roots = tuple(parse_root(text) for text in given)
    elif image is not None:
        roots = tuple(Root(r.tree, r.path, r.kind) for r in image.roots)
    else:
        return ()
    if not any(root.kind == PACKAGE for root in roots):
        raise UsageError(
            "an overlay is for an installed package, and none of the roots is one",
            kind="no-roots",
            hint="--root vllm=/…/site-packages/vllm, or [[image]] in series.toml",
        )
    return roots
