# SPDX-License-Identifier: Apache-2.0
"""In-toto statements of a release: SLSA provenance v1 and a verification summary v1.

The provenance follows from the files of the proof alone: whoever recomposes a tag makes
the same bytes and compares. The summary says what was checked when the tag was cut.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from stackctl import __version__
from stackctl.compose.plan import select
from stackctl.compose.resolutions import FOLDER as RESOLUTIONS
from stackctl.model.canonical import canonical_file
from stackctl.model.ids import CommitId
from stackctl.model.lock import Content, composition_id
from stackctl.model.series import GitBase, PatchSet, PypiBase, Series
from stackctl.project import LOCK_FILE, SERIES_FILE
from stackctl.release.fragments import FOLDER as CHANGES
from stackctl.release.message import TAGS
from stackctl.release.proof import COMPONENTS

STATEMENT: Final = "https://in-toto.io/Statement/v1"
PROVENANCE: Final = "https://slsa.dev/provenance/v1"
SUMMARY: Final = "https://slsa.dev/verification_summary/v1"
BUILD_TYPE: Final = "https://stackctl.example/build-types/integration-tag/v1"
BUILDER: Final = "https://stackctl.example/builders/stackctl"

CHECKS: Final = "https://stackctl.example/summary/checks"
FORCED: Final = "https://stackctl.example/summary/forced"
"""Extensions of the summary, whose names must be URIs."""

PROVENANCE_FILE: Final = "statements/provenance.json"
SUMMARY_FILE: Final = "statements/summary.json"
NOTES_FILE: Final = "notes.md"


@dataclass(frozen=True, slots=True)
class Check:
    """One answer about a tag.

    Attributes:
        name: What was asked.
        ok: Whether it holds.
        why: What was found; where it does not hold, what to do.
    """

    name: str
    ok: bool
    why: str

    def document(self) -> dict[str, object]:
        """Return the check for a JSON document."""
        return {"name": self.name, "ok": self.ok, "why": self.why}


def digest(data: bytes) -> str:
    """Return the SHA-256 of bytes, hex."""
    return sha256(data).hexdigest()


def to_bytes(statement: Mapping[str, Any]) -> bytes:
    """Return a statement's file: canonical JSON and one line feed."""
    return canonical_file(statement)


def patch_paths(series: Series, patch_set: PatchSet) -> list[str]:
    """Return the patch files of a set, relative to the project, in order."""
    if patch_set.patches is None or not patch_set.composed or patch_set.pinned:
        return []
    root = series.root
    return [
        Path(path).relative_to(root).as_posix()
        for path in patch_set.patches.paths(root)
    ]


def component_names(files: Mapping[str, bytes]) -> list[str]:
    """Return the names of the further components that a proof carries, sorted.

    Args:
        files: The files of the proof, by path.
    """
    parts = (path.split("/") for path in files)
    return sorted({p[1] for p in parts if p[0] == COMPONENTS and len(p) > 2})


def _subject(name: str, commit: CommitId, content: Content) -> list[dict[str, Any]]:
    return [
        {"name": name, "digest": {"gitCommit": commit}},
        {
            "name": f"tree of {name}",
            "digest": {"gitTree": content.tree},
            "annotations": {"contentSha256": content.content_sha256},
        },
    ]


def _base(series: Series, content: Content) -> dict[str, Any]:
    """Return the base as a dependency, by everything that pins it."""
    base = series.base
    pins: dict[str, str] = {"gitTree": content.base.tree}
    found: dict[str, Any] = {"name": "base", "digest": pins}
    if isinstance(base, PypiBase):
        name, _, version = base.pypi.partition("==")
        plain = name.strip().lower().replace("_", "-").replace(".", "-")
        found["uri"] = f"pkg:pypi/{plain}@{quote(version.strip(), safe='.')}"
    if isinstance(base, GitBase):
        pins["gitCommit"] = base.commit
    elif hasattr(base, "sha256"):
        pins["sha256"] = base.sha256
    found["annotations"] = {"identity": content.base.identity}
    return found


def _dependencies(
    series: Series, content: Content, files: Mapping[str, bytes]
) -> list[dict[str, Any]]:
    def file(path: str) -> dict[str, Any]:
        return {"name": path, "digest": {"sha256": digest(files[path])}}

    found = [_base(series, content), file(SERIES_FILE), file(LOCK_FILE)]
    for patch_set in select(series):
        found += [file(path) for path in patch_paths(series, patch_set)]
        pull = patch_set.pull
        if patch_set.composed and patch_set.pinned and pull and pull.head:
            found.append(
                {
                    "name": f"set {patch_set.name}: {pull}",
                    "digest": {"gitCommit": pull.head},
                    "annotations": {
                        "ref": pull.fetch_ref,
                        "strategy": patch_set.strategy,
                        "commits": list(pull.commits),
                    },
                }
            )
    found += [
        file(path) for path in sorted(files) if path.startswith(RESOLUTIONS + "/")
    ]
    return found


def provenance(
    series: Series,
    content: Content,
    files: Mapping[str, bytes],
    *,
    tag: str,
    commit: CommitId,
    shape: str,
    component: bool = False,
    version: str = __version__,
) -> dict[str, Any]:
    """Return the provenance of a tag as an in-toto statement.

    Args:
        series: The series, with its root where the files of the proof lie.
        content: What was composed.
        files: The files of the proof, by path.
        tag: Name of the tag.
        commit: The tagged commit.
        shape: Shape of the commits.
        component: It is about a further component, whose commits the tag does not have.
        version: Version of stackctl that cut the tag.
    """
    name = f"{series.name} of {TAGS}{tag}" if component else TAGS + tag
    kept = sorted(
        path
        for path in files
        if path == NOTES_FILE or path.startswith((CHANGES + "/", "receipts/"))
    )
    return {
        "_type": STATEMENT,
        "subject": _subject(name, commit, content),
        "predicateType": PROVENANCE,
        "predicate": {
            "buildDefinition": {
                "buildType": BUILD_TYPE,
                "externalParameters": {
                    "tag": tag,
                    "series": series.name,
                    "seriesSha256": digest(files[SERIES_FILE]),
                    "base": content.base.identity,
                    "sets": [each.name for each in select(series) if each.composed],
                    "shape": shape,
                    "components": component_names(files),
                },
                "internalParameters": {"composition": composition_id(content)},
                "resolvedDependencies": _dependencies(series, content, files),
            },
            "runDetails": {
                "builder": {"id": BUILDER, "version": {"stackctl": version}},
                "byproducts": [
                    {"name": path, "digest": {"sha256": digest(files[path])}}
                    for path in kept
                ],
            },
        },
    }


def summary(
    series: Series,
    content: Content,
    files: Mapping[str, bytes],
    checks: Sequence[Check],
    *,
    tag: str,
    commit: CommitId,
    receipts: Sequence[str],
    forced: str | None,
    seconds: int,
    version: str = __version__,
) -> dict[str, Any]:
    """Return what was verified when a tag was cut, as an in-toto statement.

    Args:
        series: The series.
        content: What was composed.
        files: The files of the proof, with the provenance.
        checks: What was checked.
        tag: Name of the tag.
        commit: The tagged commit.
        receipts: Paths of the receipts that counted.
        forced: Why it was cut although something is missing.
        seconds: When it was checked, since 1970.
        version: Version of stackctl that cut the tag.
    """
    resource = f"https://stackctl.example/series/{series.name}/{quote(tag)}"
    passed = all(each.ok for each in checks)
    inputs = [
        {"uri": path, "digest": {"sha256": digest(files[path])}}
        for path in (PROVENANCE_FILE, *receipts)
    ]
    predicate: dict[str, Any] = {
        "verifier": {"id": BUILDER, "version": {"stackctl": version}},
        "timeVerified": _timestamp(seconds),
        "resourceUri": resource,
        "policy": {
            "uri": f"{resource}/{SERIES_FILE}#policy",
            "digest": {"sha256": digest(files[SERIES_FILE])},
        },
        "inputAttestations": inputs,
        "verificationResult": "PASSED" if passed else "FAILED",
        # What SLSA asks of the platform that builds was not looked at.
        "verifiedLevels": ["SLSA_BUILD_LEVEL_0"] if passed else ["FAILED"],
        "slsaVersion": "1.1",
        CHECKS: [each.document() for each in checks],
    }
    if forced:
        predicate[FORCED] = forced
    return {
        "_type": STATEMENT,
        "subject": _subject(TAGS + tag, commit, content),
        "predicateType": SUMMARY,
        "predicate": predicate,
    }


def _timestamp(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def difference(expected: object, found: object, at: str = "") -> str | None:
    """Return where two JSON values differ first, None where they are equal.

    Args:
        expected: What it must be.
        found: What it is.
        at: Keys from the top.
    """
    if isinstance(expected, dict) and isinstance(found, dict):
        for name in [*expected, *(k for k in found if k not in expected)]:
            place = f"{at}.{name}" if at else name
            if name not in found:
                return f"{place} is missing"
            if name not in expected:
                return f"{place} does not belong there"
            if text := difference(expected[name], found[name], place):
                return text
        return None
    if isinstance(expected, list) and isinstance(found, list):
        for n, (one, other) in enumerate(zip(expected, found, strict=False)):
            if text := difference(one, other, f"{at}[{n}]"):
                return text
        if len(expected) != len(found):
            return f"{at} has {len(found)} items, not {len(expected)}"
        return None
    if expected == found and type(expected) is type(found):
        return None
    return f"{at} is {json.dumps(found)[:120]}, expected {json.dumps(expected)[:120]}"
