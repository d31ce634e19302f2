# SPDX-License-Identifier: Apache-2.0
"""What an image says of the composition in it: OCI labels and a file.

Both are claims, for people and for tools that look an image up; what is really in an
image only `stackctl verify-image` says.
"""

from dataclasses import dataclass
from typing import Final

from stackctl.image.source import LABEL_PREFIX
from stackctl.model.canonical import canonical_file
from stackctl.model.lock import Content, composition_id

#: Where an image keeps the file.
MANIFEST_PATH: Final = "/usr/share/stackctl/composition.json"
#: Version of the file.
MANIFEST_SCHEMA: Final = 1


@dataclass(frozen=True, slots=True)
class Labels:
    """What an image should carry.

    Attributes:
        labels: Labels of the config; the annotations of the manifest are the same.
        manifest: Bytes of the file at `MANIFEST_PATH`.
    """

    labels: dict[str, str]
    manifest: bytes


def set_names(content: Content) -> list[str]:
    """Return the sets of a composition, in order."""
    return list(dict.fromkeys(step.set for step in content.steps))


def image_labels(series: str, content: Content) -> Labels:
    """Return the labels and the file for a composition.

    Args:
        series: Name of the series.
        content: What was composed.
    """
    composition = composition_id(content)
    values = {
        "series": series,
        "composition": composition,
        "tree": content.tree,
        "content-sha256": content.content_sha256,
        "base": content.base.identity,
        "base-tree": content.base.tree,
        "sets": ",".join(set_names(content)),
    }
    document = {
        "schema": MANIFEST_SCHEMA,
        "series": series,
        "composition": composition,
        "tree": content.tree,
        "commit": content.commit,
        "content_sha256": content.content_sha256,
        "base": {
            "kind": content.base.kind,
            "identity": content.base.identity,
            "tree": content.base.tree,
        },
        "sets": set_names(content),
    }
    return Labels(
        {LABEL_PREFIX + name: value for name, value in values.items()},
        canonical_file(document),
    )
