# SPDX-License-Identifier: Apache-2.0
"""Modules know what is below them, as docs/architecture.md says."""

import ast
from collections.abc import Iterator

from support import ROOT

LAYERS = (
    ("connection", "errors", "interrupts", "progress"),
    ("fsutil", "project", "scratch"),
    ("model",),
    ("git",),
    ("cache",),
    ("base", "doctor"),
    ("compose",),
    ("image", "published"),
    ("gates", "github"),
    ("bisect", "release"),
    ("cli",),
    ("__main__",),
)
"""From the bottom; those of one layer do not know each other."""

PACKAGE = ROOT / "stackctl"


def imports(text: str) -> Iterator[str]:
    """Yield what a module imports, wherever in it, by full names."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def part(name: str) -> str:
    """Return the first part below the package: `stackctl.git.tree` is of `git`."""
    return name.split(".")[1]


def test_no_module_knows_what_is_above_it() -> None:
    height = {name: n for n, names in enumerate(LAYERS) for name in names}
    seen = set()
    for path in sorted(PACKAGE.rglob("*.py")):
        module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        if module == "stackctl.__init__":
            continue
        here = part(module)
        seen.add(here)
        for name in imports(path.read_text()):
            if not name.startswith("stackctl.") or part(name) not in height:
                continue
            there = part(name)
            below = there == here or height[there] < height[here]
            assert below, f"{module} imports {name}"
    assert seen == set(height)


def test_every_package_is_in_the_document() -> None:
    text = (ROOT / "docs/architecture.md").read_text()
    for name in (name for names in LAYERS for name in names):
        place = PACKAGE / name
        shown = f"stackctl/{name}/" if place.is_dir() else f"{name}.py"
        assert shown in text or name == "__main__", shown
