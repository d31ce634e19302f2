# SPDX-License-Identifier: Apache-2.0
"""One root of an image against one folder of the expected tree."""

import os
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from stackctl.image.expectation import (
    MODE_EXECUTABLE,
    MODE_FILE,
    MODE_GITLINK,
    MODE_SYMLINK,
    ExpectedTree,
    tree_id,
)
from stackctl.image.roots import PACKAGE, Policy, Root
from stackctl.image.rules import (
    ELF,
    bytecode,
    classify,
    covered,
    glob,
    is_loadable,
    known_wheel_file,
)
from stackctl.image.view import Node, View

_ALLOWED = "allowed by"


@dataclass(slots=True)
class Finding:
    """A file that is not simply as expected.

    Not frozen: an image has thousands, and a frozen one takes three times as long.

    Attributes:
        path: Path in the expected tree, such as `vllm/envs.py`.
        image_path: Path in the image.
        status: `missing`, `modified`, `type`, `mode` or `extra`; `ignored` for what a
            rule allows, and `unverified` for what nothing judges.
        expected: Git mode and id of the tracked file, if it is one.
        actual: Git mode and id of what is there, if anything.
        kind: Class of an untracked file.
        why: What the answer follows from.
        node: What is there.
    """

    path: bytes
    image_path: bytes
    status: str
    expected: tuple[int, bytes] | None = None
    actual: tuple[int, bytes] | None = None
    kind: str = ""
    why: str = ""
    node: Node | None = None

    @property
    def allowed(self) -> bool:
        """Whether a rule allows an untracked file."""
        return self.status == "ignored" and self.why.startswith(_ALLOWED)


@dataclass(slots=True)
class Comparison:
    """The outcome for one root.

    Attributes:
        root: The root.
        real_path: Where the root is, symlinks resolved.
        expected_tree: Id of the expected folder.
        installed_tree: Id rebuilt from what is there, over the tracked paths.
        tracked: Tracked nodes that match, by path relative to the root.
        nodes: Everything that is there, by path relative to the root.
        findings: What is not simply as expected.
        counts: Files by status.
        bytecode: Bytecode files in their proper place.
    """

    root: Root
    real_path: bytes
    expected_tree: str
    installed_tree: str = ""
    tracked: dict[bytes, Node] = field(default_factory=dict)
    nodes: dict[bytes, Node] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    bytecode: dict[bytes, Node] = field(default_factory=dict)

    @property
    def equal(self) -> bool:
        """Whether the root holds exactly what is expected."""
        bad = ("missing", "modified", "extra")
        return self.installed_tree == self.expected_tree and not any(
            self.counts[name] for name in bad
        )

    def of(self, *statuses: str) -> list[Finding]:
        """Return the findings of some statuses."""
        return [f for f in self.findings if f.status in statuses]


def compare_root(
    view: View, root: Root, expected: ExpectedTree, policy: Policy
) -> Comparison:
    """Compare one root with its folder of the expected tree.

    Args:
        view: The image.
        root: Which folder, and where it should be.
        expected: The expected tree.
        policy: What may differ.

    Returns:
        Every difference, and the tree id of what is there.
    """
    wanted = expected.subtree(root.tree)
    found = view.lookup(root.path.encode("utf-8", "surrogateescape"))
    result = Comparison(root, found.path, expected.subtree_id(root.tree).hex())
    if found.node is not None and found.node.kind == "d":
        result.nodes = {
            path: node for path, node in view.walk(found.node) if node.kind != "d"
        }
    _Judge(result, policy, expected).run(wanted)
    return result


class _Judge:
    def __init__(
        self, result: Comparison, policy: Policy, expected: ExpectedTree
    ) -> None:
        self._result = result
        self._expected = expected
        self._removed: frozenset[bytes] | None = None
        self._policy = policy
        self._package = result.root.kind == PACKAGE
        self._allow = [(rule, glob(rule.path).fullmatch) for rule in policy.allow]
        self._base = b"/" + result.real_path + (b"/" if result.real_path else b"")
        tree = result.root.tree.strip("/")
        self._prefix = b"" if tree in ("", ".") else os.fsencode(tree) + b"/"

    def run(self, wanted: Mapping[bytes, tuple[int, bytes]]) -> None:
        nodes = self._result.nodes
        rebuilt: dict[bytes, tuple[int, bytes]] = {}
        result = self._result
        matched = 0
        for path, entry in wanted.items():
            mode, oid = entry
            node = nodes.get(path)
            if (
                node is not None
                and node.oid == oid
                and node.kind == "f"
                and mode in (MODE_FILE, MODE_EXECUTABLE)
                and (self._package or _git_mode(node) == mode)
            ):
                # Nearly all of them.
                result.tracked[path] = node
                rebuilt[path] = entry
                matched += 1
                continue
            actual = self._tracked(path, mode, oid, node)
            if actual is not None:
                rebuilt[path] = actual
        result.counts["matched"] += matched
        for path, node in nodes.items():
            if path not in wanted:
                self._untracked(path, node)
        # The same modes and ids under the same paths are the same tree.
        result.installed_tree = (
            result.expected_tree if rebuilt == wanted else tree_id(rebuilt).hex()
        )
        result.findings.sort(key=lambda f: (f.path, f.status))

    def _add(
        self,
        path: bytes,
        status: str,
        count: str,
        *,
        expected: tuple[int, bytes] | None = None,
        node: Node | None = None,
        kind: str = "",
        why: str = "",
    ) -> None:
        actual = None
        if node is not None and node.oid is not None:
            actual = (_git_mode(node), node.oid)
        self._result.counts[count] += 1
        self._result.findings.append(
            Finding(
                self._prefix + path,
                self._base + path,
                status,
                expected,
                actual,
                kind,
                why,
                node,
            )
        )

    def _tracked(
        self, path: bytes, mode: int, oid: bytes, node: Node | None
    ) -> tuple[int, bytes] | None:
        expected = (mode, oid)
        if mode == MODE_GITLINK:
            self._add(path, "ignored", "ignored", why="submodule, not compared")
            return expected
        if node is None:
            rule = self._package and covered(
                self._prefix + path, self._policy.unpackaged
            )
            if rule:
                self._add(
                    path,
                    "ignored",
                    "ignored",
                    expected=expected,
                    why=f"not packaged, by the rule {rule!r}",
                )
                return expected
            self._add(path, "missing", "missing", expected=expected)
            return None
        is_link = mode == MODE_SYMLINK
        if node.kind != ("l" if is_link else "f"):
            self._add(
                path,
                "type",
                "modified",
                expected=expected,
                node=node,
                why=f"expected a {'symlink' if is_link else 'file'}, found a "
                f"{ {'f': 'file', 'l': 'symlink'}.get(node.kind, 'special file') }",
            )
        elif node.oid != oid:
            self._add(path, "modified", "modified", expected=expected, node=node)
        elif not self._package and _git_mode(node) != mode:
            self._add(
                path,
                "mode",
                "modified",
                expected=expected,
                node=node,
                why=f"expected mode {mode:o}, found {_git_mode(node):o}",
            )
        else:
            self._result.counts["matched"] += 1
            self._result.tracked[path] = node
            return expected
        if node.oid is None:
            return None
        actual = _git_mode(node)
        if self._package and node.kind == "f" and not is_link:
            actual = mode
        return actual, node.oid

    def _untracked(self, path: bytes, node: Node) -> None:
        name = self._prefix + path
        kind = classify(name, node.head)
        status, why = self._judge(path, name, node, kind)
        self._add(
            path,
            status,
            "extra" if status == "extra" else "ignored",
            node=node,
            kind=kind,
            why=why,
        )
        if status != "extra" and kind == "bytecode":
            self._result.bytecode[path] = node

    def _judge(
        self, path: bytes, name: bytes, node: Node, kind: str
    ) -> tuple[str, str]:
        differs = ""
        for rule, fits in self._allow:
            if not fits(name) and not fits(self._base + path):
                continue
            if not rule.sha256:
                return "ignored", f"{_ALLOWED} {rule.path!r}"
            if node.kind == "f" and node.sha256 == bytes.fromhex(rule.sha256):
                return "ignored", f"{_ALLOWED} {rule.path!r} and its sha256"
            differs = differs or rule.path
        if differs:
            return "extra", f"differs from the sha256 that {differs!r} allows"
        if not self._package and (path == b".git" or path.startswith(b".git/")):
            return "ignored", "git's own data"
        if node.kind != "f":
            what = "a symlink" if node.kind == "l" else "a special file"
            return "extra", f"{what} that nothing tracks"
        # What was built in a checkout is for `allow`: an installer puts nothing there.
        wheel = self._policy.wheel if self._package else None
        if wheel is not None and name in wheel:
            if wheel[name].oid == node.oid:
                if self._was_removed(name):
                    return "extra", "the base's and the pinned wheel's, but removed"
                return "ignored", "equal to the pinned wheel's"
            return "extra", "differs from the pinned wheel's"
        if bytecode(path) is not None:
            return "ignored", "bytecode, judged by itself"
        if wheel is not None:
            return "extra", "neither tracked nor in the pinned wheel"
        if not self._package:
            return "extra", "not tracked"
        if known_wheel_file(name):
            return "unverified", "a known wheel has a file here; no wheel is pinned"
        if is_loadable(name) or node.head.startswith(ELF):
            return "extra", "can be run, and no known wheel has a file here"
        return "unverified", "no wheel is pinned"

    def _was_removed(self, name: bytes) -> bool:
        """Whether the base tracks a file that the expected tree does not."""
        if known_wheel_file(name) not in ("", "generated"):
            # Of these is all but everything that a wheel has and a tree has not.
            return False
        if self._removed is None:
            self._removed = self._expected.removed()
        return name in self._removed


def _git_mode(node: Node) -> int:
    if node.kind == "l":
        return MODE_SYMLINK
    return MODE_EXECUTABLE if node.mode & 0o100 else MODE_FILE


def untracked_summary(findings: Iterable[Finding]) -> dict[str, dict[str, int]]:
    """Return the untracked files by class and judgement."""
    counts = Counter([(f.kind, f.status) for f in findings if f.kind])
    summary: dict[str, dict[str, int]] = {}
    for (kind, status), number in sorted(counts.items()):
        summary.setdefault(kind, {})[status] = number
    return summary
