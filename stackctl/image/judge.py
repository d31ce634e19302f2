# SPDX-License-Identifier: Apache-2.0
"""Judging what was read: the roots against the tree, doubts, warnings, the verdict.

Apart from `stackctl.image.verify`, so that the layers are being read while this is
imported, with all that it needs.
"""

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from stackctl.errors import ExitCode, StackctlError, UsageError
from stackctl.image import entrypoints
from stackctl.image.compare import Comparison, compare_root, untracked_summary
from stackctl.image.compiled import bytecode_warnings, stated_version
from stackctl.image.contents import Contents
from stackctl.image.errors import AmbiguousImageError
from stackctl.image.expectation import ExpectedTree
from stackctl.image.report import MATCH, MISMATCH, Report
from stackctl.image.roots import CHECKOUT, Policy, Root
from stackctl.image.rules import bytecode
from stackctl.image.source import LABEL_PREFIX
from stackctl.image.startup import (
    Startup,
    is_startup_name,
    shadow_warnings,
    startup_paths,
)
from stackctl.image.verify import Request
from stackctl.image.view import Doubt, Node, View, show
from stackctl.image.warn import Warn

if TYPE_CHECKING:
    from stackctl.image.attribute import Candidates
    from stackctl.image.nearest import Absence
    from stackctl.image.wheel import Wheel

#: Bytes of a source of the image up to which it is compiled to judge its bytecode.
_SOURCE_LIMIT = 1 << 20
#: Bytes of a file up to which a diff is shown.
_DIFF_LIMIT = 4 << 20


class Judge:
    """Compares what was read with the expected trees and fills the report.

    Args:
        request: What to verify, and how.
        trees: The trees of which the image must contain one.
        view: What the image holds.
        contents: Gives the bytes of its files.
        report: Filled with the answer.
        config: The image's config, if it has one.
        wheel: The pinned wheel.
        candidates: Trees to explain a mismatch with.
    """

    def __init__(
        self,
        request: Request,
        trees: Sequence[ExpectedTree],
        view: View,
        contents: Contents,
        report: Report,
        *,
        config: dict[str, object] | None = None,
        wheel: "Wheel | None" = None,
        candidates: "Candidates | None" = None,
    ) -> None:
        self._request = request
        self._trees = trees
        self._view = view
        self._contents = contents
        self._report = report
        self._config = config
        self._wheel = wheel
        self._candidates = candidates

    def run(self, roots: Sequence[Root], policy: Policy) -> None:
        """Compare the roots and say the verdict.

        Raises:
            AmbiguousImageError: Runtimes disagree about what is compared.
            UsageError: A difference is asked for of a file that does not exist.
        """
        report = self._report
        expected, comparisons = self._compare(roots, policy)
        left_out = _not_hashed(comparisons)
        if left_out:
            self._contents.hash(left_out)
            expected, comparisons = self._compare(roots, policy)
        report.expected = expected.label
        report.comparisons = comparisons
        self._refuse_doubts(comparisons)
        report.warnings += self._warnings(expected, comparisons)
        absent = self._absent(expected, comparisons)
        self._decide(comparisons, absent)
        if report.verdict == MISMATCH and not absent:
            report.explains = self._explain(comparisons)
        for path in self._request.diff:
            report.diffs[path] = self._diff(path, comparisons, expected)

    def _compare(
        self, roots: Sequence[Root], policy: Policy
    ) -> tuple[ExpectedTree, list[Comparison]]:
        """Compare with every expected tree and return the one that fits best."""
        best: tuple[int, ExpectedTree, list[Comparison]] | None = None
        for expected in self._trees:
            comparisons = [
                compare_root(self._view, root, expected, policy) for root in roots
            ]
            differing = sum(
                c.counts["missing"] + c.counts["modified"] + c.counts["extra"]
                for c in comparisons
            )
            if best is None or differing < best[0]:
                best = (differing, expected, comparisons)
        assert best is not None
        return best[1], best[2]

    def _refuse_doubts(self, comparisons: Sequence[Comparison]) -> None:
        relevance = _Relevance(self._view, comparisons)
        others: list[Doubt] = []
        for doubt in self._view.doubts:
            path = relevance.of(doubt)
            if path is None:
                others.append(doubt)
                continue
            (_, some), (_, others_words) = doubt.families
            raise AmbiguousImageError(
                f"layer {doubt.layer}: runtimes disagree about /{show(path)}: {some} "
                f"{doubt.merging}; {others_words} {doubt.unpacking}",
                kind=f"ambiguous-{doubt.code}",
                hint="build the layer again so that it means the same to all of them",
                where={
                    "layer": doubt.layer,
                    "path": "/" + show(path),
                    "sees": _who_sees_what(doubt),
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
                    extra={
                        "causes": sorted({d.code for d in others}),
                        "sees": {
                            d.code: _who_sees_what(d)
                            for d in sorted(others, key=lambda d: d.code)
                        },
                    },
                )
            )

    def _warnings(
        self, expected: ExpectedTree, comparisons: list[Comparison]
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
            for path in self._view.duplicates
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
            self._contents,
            self._source_of(comparisons),
            lambda root: stated_version(self._view, root, self._contents, self._config),
        )
        warnings += shadow_warnings(comparisons)
        startup = Startup(
            self._view,
            comparisons,
            self._contents,
            self._config,
            self._request.allow,
            self._commands(expected),
        )
        warnings += startup.warnings()
        stated = _stated_tree(self._config)
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

    def _commands(self, expected: ExpectedTree) -> entrypoints.Commands:
        """Return what the package's commands lead to, by the tree and the wheel."""
        commands = entrypoints.tree_commands(expected)
        files = self._wheel.entry_points().values() if self._wheel is not None else ()
        for name, targets in entrypoints.commands_of(files).items():
            commands.setdefault(name, set()).update(targets)
        return commands

    def _source_of(self, comparisons: Sequence[Comparison]) -> "_Sources":
        names: dict[bytes, bytes] = {}
        allowed: list[tuple[bytes, Node]] = []
        for comparison in comparisons:
            # A rule judges the source, so its bytecode is compared with what is there.
            compiled = {p.source for p in map(bytecode, comparison.bytecode) if p}
            start = len(comparison.real_path) + 2 if comparison.real_path else 1
            for finding in comparison.of("ignored"):
                if finding.why.startswith("equal to the pinned"):
                    names[finding.image_path.lstrip(b"/")] = finding.path
                elif (
                    finding.allowed
                    and finding.node is not None
                    and finding.node.kind == "f"
                    and finding.node.size <= _SOURCE_LIMIT
                    and finding.image_path[start:] in compiled
                ):
                    path = finding.image_path.lstrip(b"/")
                    allowed.append((path, finding.node))
        return _Sources(self._wheel, names, dict(self._contents.fetch(allowed)))

    def _absent(
        self, expected: ExpectedTree, comparisons: Sequence[Comparison]
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

            what = absence(
                self._view, comparison, expected.subtree(comparison.root.tree)
            )
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

    def _explain(self, comparisons: Sequence[Comparison]) -> list[dict[str, object]]:
        if self._candidates is None or all(c.equal for c in comparisons):
            return []
        from stackctl.image.attribute import explain

        try:
            return explain(comparisons, self._candidates)
        except (StackctlError, OSError) as error:
            # What the series cannot tell now does not change what the image holds.
            self._report.warnings.append(
                Warn(
                    "not-explained",
                    f"which patches the mismatch comes from is not known: {error}",
                    strict=False,
                )
            )
            return []

    def _diff(
        self,
        path: str,
        comparisons: Sequence[Comparison],
        expected: ExpectedTree,
    ) -> str:
        wanted = path.encode("utf-8", "surrogateescape")
        for comparison in comparisons:
            tree = comparison.root.tree.strip("/")
            prefix = b"" if tree in ("", ".") else os.fsencode(tree) + b"/"
            root = b"/" + comparison.real_path + b"/"
            literal = os.fsencode(comparison.root.path.rstrip("/")) + b"/"
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
                    after = dict(self._contents.fetch([(place, node)])).get(place, b"")
                return unified_diff(before, after, show(prefix + inner))
        raise UsageError(
            f"--diff {path}: there is no such file in the tree or under a root",
            kind="no-such-file",
            hint="give its path in the tree, such as vllm/envs.py",
        )


def _who_sees_what(doubt: Doubt) -> dict[str, str]:
    """Return what each family of readers makes of a doubt, by the family's name."""
    (one, _), (other, _) = doubt.families
    return {one: doubt.merging, other: doubt.unpacking}


class _Sources:
    """Gives the judged source of an untracked file by its path in the image."""

    def __init__(
        self,
        wheel: "Wheel | None",
        names: Mapping[bytes, bytes],
        allowed: Mapping[bytes, bytes],
    ) -> None:
        self._wheel = wheel
        self._names = names
        self._allowed = allowed

    def __call__(self, path: bytes) -> bytes | None:
        if path in self._allowed:
            return self._allowed[path]
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
                # A linked file that is still there has all its names.
                if path in self._checkout_links or (
                    doubt.code != "hardlink-mode" and _inside(path, self._checkouts)
                ):
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
