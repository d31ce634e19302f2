# SPDX-License-Identifier: Apache-2.0
"""From a descriptor to an image: manifests, indexes, configs, all by digest.

A *store* hands out blobs by digest as they come from a folder, an archive or a
registry. This module reads them, checks them, and decides which of an index's images is
meant.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple, Protocol

from stackctl.image import documents
from stackctl.image.blobs import check_digest, read_small, verified
from stackctl.image.errors import (
    AmbiguousImageError,
    DigestError,
    ImageFormatError,
    LimitError,
    RegistryError,
)
from stackctl.image.layers import LayerScan
from stackctl.image.limits import Limits
from stackctl.image.platform import Platform, this_platform

OCI_INDEX = "application/vnd.oci.image.index.v1+json"
OCI_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
OCI_CONFIG = "application/vnd.oci.image.config.v1+json"
DOCKER_LIST = "application/vnd.docker.distribution.manifest.list.v2+json"
DOCKER_MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
DOCKER_CONFIG = "application/vnd.docker.container.image.v1+json"
_OLD_TYPES = (
    "application/vnd.docker.distribution.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.v1+prettyjws",
)
_TAR_TYPE = re.compile(r"[./]tar(?:[.+]|$)")
#: Keys, in lower case, by which a document may be an image or an index.
_IMAGE_KEYS = frozenset(("config", "layers", "manifests", "fslayers"))
INDEX_TYPES = (OCI_INDEX, DOCKER_LIST)
MANIFEST_TYPES = (OCI_MANIFEST, DOCKER_MANIFEST)
CONFIG_TYPES = (OCI_CONFIG, DOCKER_CONFIG)
REF_NAME = "org.opencontainers.image.ref.name"
#: Start of the labels by which an image says which composition it holds.
LABEL_PREFIX = "example.stackctl."
#: How annotations begin of layers that some runtimes read by an index, not by the tar.
_LAZY = (
    "io.github.containers.zstd-chunked.",
    "io.containers.zstd-chunked.",
    "containerd.io/snapshot/",
)
_KNOWN_KEYS = (
    "annotations",
    "architecture",
    "artifactType",
    "config",
    "diff_ids",
    "digest",
    "layers",
    "manifests",
    "mediaType",
    "os",
    "platform",
    "rootfs",
    "schemaVersion",
    "size",
    "urls",
    "variant",
)
_CONFIG_KEYS = (
    "architecture",
    "config",
    "diff_ids",
    "os",
    "rootfs",
    "variant",
    "Cmd",
    "Entrypoint",
    "Env",
    "Healthcheck",
    "User",
    "Volumes",
    "WorkingDir",
)


class Descriptor(NamedTuple):
    """A reference to a blob.

    Attributes:
        digest: What it hashes to.
        size: Its length in bytes, None where the reference states none.
        media_type: What it is said to be; may be empty.
        platform: For which platform it is, if stated.
        annotations: Free text.
    """

    digest: str
    size: int | None = None
    media_type: str = ""
    platform: Platform | None = None
    annotations: Mapping[str, object] = MappingProxyType({})


class BlobStore(Protocol):
    """Where blobs come from. The bytes it yields are not trusted."""

    def manifest(self, descriptor: Descriptor) -> Iterator[bytes]:
        """Yield the bytes of a manifest or index."""

    def blob(self, descriptor: Descriptor) -> Iterator[bytes]:
        """Yield the bytes of a config or layer."""


class Layer(NamedTuple):
    """A layer that can be read.

    Attributes:
        digest: Digest of the blob as stored; None where the format has none.
        diff_id: What its uncompressed bytes must hash to.
        size: Stored size in bytes, if known.
        media_type: What it is said to be; empty where the format does not say.
        open: Yields the stored bytes, checked against `digest` at their end.
        scan: The result of a pass that was made already, where the source can only be
            read from its beginning.
        member: Where it is in an archive that names its layers as it likes.
        lazy: Annotations that speak of an index for lazy runtimes, sorted.
    """

    digest: str | None
    diff_id: str
    size: int | None
    media_type: str
    open: Callable[[], Iterator[bytes]]
    scan: Callable[[], LayerScan] | None = None
    member: bytes = b""
    lazy: tuple[tuple[str, str], ...] = ()


class Image(NamedTuple):
    """An image whose manifest and config are read and checked.

    Attributes:
        digest: Digest of the manifest, or of the config where there is no manifest.
        platform: What it runs on, by its config.
        config: The image config document.
        layers: Lowest first.
        notes: Codes and texts of oddities that are no fault.
        within: Digest of the index that was named and of which this is one image.
    """

    digest: str
    platform: Platform
    config: documents.Object
    layers: tuple[Layer, ...]
    notes: tuple[tuple[str, str], ...] = ()
    within: str | None = None


def _descriptor(value: object, what: str) -> Descriptor:
    item = documents.as_object(value, what)
    stated = item.get("platform")
    platform = None
    if stated is not None:
        names = documents.as_object(stated, f"{what}.platform")
        platform = Platform(
            documents.as_text(names.get("os"), f"{what}.platform.os"),
            documents.as_text(names.get("architecture"), f"{what}.platform"),
            documents.as_text(names.get("variant"), f"{what}.platform.variant"),
        )
    return Descriptor(
        digest=check_digest(item.get("digest"), what),
        size=documents.as_size(item.get("size"), f"{what}.size"),
        media_type=documents.as_text(item.get("mediaType"), f"{what}.mediaType"),
        platform=platform,
        annotations=documents.as_object(
            item.get("annotations") or {}, f"{what}.annotations"
        ),
    )


def index_entries(data: bytes, what: str) -> list[Descriptor]:
    """Return the entries of an index document such as a layout's `index.json`."""
    document = documents.as_object(documents.parse(data, what, _KNOWN_KEYS), what)
    if "layers" in document or "config" in document:
        raise _two_meanings(what)
    return [
        _descriptor(item, f"{what} manifests[{number}]")
        for number, item in enumerate(
            documents.as_list(document.get("manifests"), f"{what} manifests")
        )
    ]


def _two_meanings(what: str) -> AmbiguousImageError:
    return AmbiguousImageError(
        f"{what} is both a manifest and an index: some runtimes take one, some the "
        "other",
        kind="ambiguous-manifest",
        hint="no image tool writes this; get the image from another place",
    )


@dataclass(slots=True)
class _Candidate:
    descriptor: Descriptor
    data: bytes
    platform: Platform | None


class Resolver:
    """Finds the one image that a descriptor and a platform name.

    Args:
        store: Where blobs come from.
        limits: Bounds of documents.
        platform: The platform asked for; None takes this machine's where there is a
            choice, and whatever there is where there is none.
    """

    def __init__(
        self, store: BlobStore, limits: Limits, platform: Platform | None
    ) -> None:
        self._store = store
        self._limits = limits
        self._platform = platform
        self._read = 0
        self._passed: list[Platform] = []

    def configs(self, roots: list[Descriptor], platform: Platform) -> set[str]:
        """Return the config digests of all images for a platform that are there."""
        candidates: dict[str, _Candidate] = {}
        for root in roots:
            self._collect(root, candidates, depth=0, every=True)
        found = set()
        for candidate in candidates.values():
            config, digest = self._config(candidate)
            if (candidate.platform or config_platform(config)).same(platform):
                found.add(digest)
        return found

    def resolve(self, roots: list[Descriptor]) -> Image:
        """Return the image.

        Args:
            roots: One or several descriptors to choose from.

        Raises:
            ImageFormatError: There is none for the platform.
            AmbiguousImageError: There are several.
            DigestError: A document does not hash to its digest.
        """
        candidates: dict[str, _Candidate] = {}
        if len(roots) == 1:
            # Named directly, so there is no choice to make by platform.
            roots = [roots[0]._replace(platform=None)]
        for root in roots:
            self._collect(root, candidates, depth=0, named=len(roots) == 1)
        image = self._image(self._choose(list(candidates.values())))
        if len(roots) == 1 and roots[0].digest != image.digest:
            return image._replace(within=roots[0].digest)
        return image

    def _fetch(self, descriptor: Descriptor) -> bytes:
        self._read += 1
        if self._read > 200:
            raise LimitError(
                "the image has more than 200 manifests",
                kind="limit-manifest",
                hint="name one of them by its digest",
            )
        what = f"manifest {descriptor.digest}"
        chunks = verified(
            self._store.manifest(descriptor),
            descriptor.digest,
            descriptor.size,
            what,
        )
        return read_small(chunks, self._limits.manifest, what)

    def _collect(
        self,
        descriptor: Descriptor,
        found: dict[str, _Candidate],
        depth: int,
        *,
        every: bool = False,
        named: bool = False,
    ) -> None:
        if depth > self._limits.nesting:
            raise LimitError(
                f"indexes nest deeper than {self._limits.nesting} levels",
                kind="limit-nesting",
                hint="name the image itself by its digest",
            )
        if _is_attestation(descriptor) or descriptor.digest in found:
            return
        what = f"manifest {descriptor.digest}"
        if self._is_other(descriptor, every=every, named=named):
            return
        try:
            data = self._fetch(descriptor)
        except DigestError as exc:
            # Docker saves one image of an index and leaves the others out.
            if every and exc.kind == "missing-blob":
                return
            raise
        document = documents.as_object(documents.parse(data, what, _KNOWN_KEYS), what)
        stated = documents.as_text(document.get("mediaType"), f"{what} mediaType")
        is_index = "manifests" in document
        if is_index and ("layers" in document or "config" in document):
            raise _two_meanings(what)
        for kind in (stated, descriptor.media_type):
            if (kind in INDEX_TYPES and not is_index) or (
                kind in MANIFEST_TYPES and is_index
            ):
                raise _two_meanings(what)
        if is_index:
            wanted = self._platform or this_platform()
            for entry in index_entries(data, what):
                target = entry.platform
                if not every and target and target.known and not target.same(wanted):
                    self._passed.append(target)
                else:
                    self._collect(entry, found, depth + 1, every=every)
            return
        if document.get("schemaVersion") == 1 or "fsLayers" in document:
            raise ImageFormatError(
                f"{what} is of Docker's schema 1, which has no config to check",
                kind="schema1",
                hint="push the image again with a current tool",
            )
        if "config" not in document and stated not in MANIFEST_TYPES:
            raise ImageFormatError(
                f"{what} is no container image but {stated or 'another document'!r}",
                kind="not-an-image",
                hint="name an image",
            )
        config = _descriptor(document.get("config"), f"{what} config")
        if config.media_type not in (*CONFIG_TYPES, ""):
            if depth == 0 or (not every and self._may_run(descriptor, config)):
                raise ImageFormatError(
                    f"{what} is no container image but {config.media_type!r}",
                    kind="not-an-image",
                    hint="name an image",
                )
            return
        found[descriptor.digest] = _Candidate(descriptor, data, descriptor.platform)

    def _is_other(self, descriptor: Descriptor, *, every: bool, named: bool) -> bool:
        """Say whether an entry of an index is something beside its images.

        An index may list artifacts of any kind, which no runtime takes for an image.
        One that has a platform could be taken, and so could an image that is stated to
        be something else.
        """
        kind = descriptor.media_type
        if named or kind in (*INDEX_TYPES, *MANIFEST_TYPES, *_OLD_TYPES, ""):
            return False
        if descriptor.platform is not None and not every:
            return False
        if (descriptor.size or 0) > self._limits.manifest:
            return True
        what = f"manifest {descriptor.digest}"
        try:
            document = documents.parse(self._fetch(descriptor), what)
        except DigestError as exc:
            if exc.kind == "missing-blob":
                return True
            raise
        except (ImageFormatError, RegistryError):
            return True
        return not isinstance(document, dict) or not (
            {documents.fold(key) for key in document} & _IMAGE_KEYS
        )

    def _may_run(self, descriptor: Descriptor, config: Descriptor) -> bool:
        """Say whether a runtime that does not ask for a config's type takes an entry.

        containerd goes by the platform alone, that of the entry or else the config's.
        """
        if descriptor.platform is not None:
            return True
        name = f"config {config.digest}"
        chunks = verified(self._store.blob(config), config.digest, config.size, name)
        try:
            data = read_small(chunks, self._limits.config, name)
            stated = config_platform(parse_config(data, name))
        except (DigestError, ImageFormatError):
            return False
        wanted = self._platform or this_platform()
        return bool(stated.architecture) and stated.same(wanted)

    def _choose(self, candidates: list[_Candidate]) -> _Candidate:
        if not candidates and self._passed:
            raise _no_platform(self._platform or this_platform(), self._passed)
        if not candidates:
            raise ImageFormatError(
                "there is no image in it",
                kind="no-image",
                hint="name an image that was pushed or saved completely",
            )
        if len(candidates) == 1:
            only = candidates[0]
            if self._platform is None and only.platform is None:
                return only
            actual = only.platform or self._config_platform(only)
            wanted = self._platform or (this_platform() if only.platform else actual)
            if actual.same(wanted) or (self._platform is None and not only.platform):
                return only
            raise _no_platform(wanted, [actual])
        for candidate in candidates:
            candidate.platform = candidate.platform or self._config_platform(candidate)
        wanted = self._platform or this_platform()
        fitting = [c for c in candidates if c.platform and c.platform.same(wanted)]
        if not fitting:
            raise _no_platform(wanted, [c.platform for c in candidates if c.platform])
        if len(fitting) > 1:
            raise AmbiguousImageError(
                f"there are {len(fitting)} images for {wanted}: a runtime takes "
                "whichever comes first or last",
                kind="ambiguous-platform",
                hint="name one of them by its digest",
                where={"digests": [c.descriptor.digest for c in fitting]},
            )
        return fitting[0]

    def _config(self, candidate: _Candidate) -> tuple[documents.Object, str]:
        what = f"manifest {candidate.descriptor.digest}"
        document = documents.as_object(
            documents.parse(candidate.data, what, _KNOWN_KEYS), what
        )
        descriptor = _descriptor(document.get("config"), f"{what} config")
        name = f"config {descriptor.digest}"
        chunks = verified(
            self._store.blob(descriptor),
            descriptor.digest,
            descriptor.size,
            name,
        )
        data = read_small(chunks, self._limits.config, name)
        return parse_config(data, name), descriptor.digest

    def _config_platform(self, candidate: _Candidate) -> Platform:
        return config_platform(self._config(candidate)[0])

    def _image(self, candidate: _Candidate) -> Image:
        what = f"manifest {candidate.descriptor.digest}"
        document = documents.as_object(
            documents.parse(candidate.data, what, _KNOWN_KEYS), what
        )
        descriptors = [
            _descriptor(item, f"{what} layers[{number}]")
            for number, item in enumerate(
                documents.as_list(document.get("layers"), f"{what} layers")
            )
        ]
        config, _ = self._config(candidate)
        platform = config_platform(config)
        notes = []
        stated = candidate.descriptor.platform
        if stated and stated.known and not stated.same(platform):
            notes.append(
                ("platform-differs", f"the index says {stated}, the config {platform}")
            )
        diff_ids = config_diff_ids(config, len(descriptors), self._limits)
        layers = []
        for descriptor, diff_id in zip(descriptors, diff_ids, strict=True):
            layers.append(self._layer(descriptor, diff_id))
        return Image(
            candidate.descriptor.digest, platform, config, tuple(layers), tuple(notes)
        )

    def _layer(self, descriptor: Descriptor, diff_id: str) -> Layer:
        kind = descriptor.media_type
        if not _TAR_TYPE.search(kind) or "encrypted" in kind:
            raise ImageFormatError(
                f"layer {descriptor.digest} is {kind!r}, not a tar",
                kind="layer-media-type",
                hint="expected a tar, plain or compressed with gzip or zstd",
            )
        store = self._store
        finished = getattr(store, "finished_scan", None)
        scan = finished(descriptor) if finished is not None else None

        def open_layer() -> Iterator[bytes]:
            return verified(
                store.blob(descriptor),
                descriptor.digest,
                descriptor.size,
                f"layer {descriptor.digest}",
            )

        lazy = tuple(
            (key, documents.as_text(value, f"layer {descriptor.digest} {key}"))
            for key, value in sorted(descriptor.annotations.items())
            if key.startswith(_LAZY)
        )
        return Layer(
            descriptor.digest,
            diff_id,
            descriptor.size,
            kind,
            open_layer,
            scan,
            lazy=lazy,
        )


def _is_attestation(descriptor: Descriptor) -> bool:
    # Not by their annotation, which runtimes do not look at.
    return descriptor.platform is not None and (
        descriptor.platform.os.lower() == "unknown"
    )


def _no_platform(wanted: Platform, there: list[Platform]) -> ImageFormatError:
    names = ", ".join(sorted({str(p) for p in there})) or "none"
    return ImageFormatError(
        f"there is no image for {wanted}, only for {names}",
        kind="no-platform",
        hint="choose one with --platform",
        where={"platform": str(wanted)},
    )


def parse_config(data: bytes, what: str) -> documents.Object:
    """Return an image config document."""
    config = documents.as_object(documents.parse(data, what, _CONFIG_KEYS), what)
    # Go refuses a document with a member of another type.
    run: documents.Object = {}
    if config.get("config") is not None:
        run = documents.as_object(config["config"], f"{what} config")
    for name in ("Labels", "Volumes"):
        if run.get(name) is not None:
            documents.as_object(run[name], f"{what} {name}")
    return config


def config_platform(config: documents.Object) -> Platform:
    """Return the platform that a config states."""
    return Platform(
        documents.as_text(config.get("os"), "config os"),
        documents.as_text(config.get("architecture"), "config architecture"),
        documents.as_text(config.get("variant"), "config variant"),
    )


def config_diff_ids(config: documents.Object, layers: int, limits: Limits) -> list[str]:
    """Return the diff_ids of a config, one for each of the image's layers.

    Raises:
        ImageFormatError: Their number is not that of the layers, or one of them is of
            another algorithm than runtimes compute.
    """
    rootfs = documents.as_object(config.get("rootfs"), "config rootfs")
    ids = [
        check_digest(item, f"config diff_ids[{number}]")
        for number, item in enumerate(
            documents.as_list(rootfs.get("diff_ids"), "config diff_ids")
        )
    ]
    for number, item in enumerate(ids):
        if not item.startswith("sha256:"):
            raise ImageFormatError(
                f"config diff_ids[{number}] is {item[:80]!r}; runtimes compute SHA-256",
                kind="bad-digest",
                hint="the image was built wrongly: build it again",
                where={"digest": item},
            )
    if len(ids) != layers:
        raise ImageFormatError(
            f"the manifest has {layers} layers and the config {len(ids)} diff_ids",
            kind="layer-count",
            hint="the image was built wrongly: build it again",
        )
    if layers > limits.layers:
        raise LimitError(
            f"the image has {layers} layers, over the limit of {limits.layers}",
            kind="limit-layers",
            hint="no runtime mounts that many",
        )
    return ids
