# SPDX-License-Identifier: Apache-2.0
"""Projects with receipts of every kind, and reading the pages made of them."""

from collections.abc import Mapping
from hashlib import sha256
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from gates import document, kernel_evidence
from support import Project, git, run, three_sets

GATE = """\
schema = 1
kind = "kernel"
title = "Is {name} faster?"
about = "Small shapes only."
script = "ci/gates/fast.py"
limitations = ["one H200; no other card was measured"]
[arms.base]
tree = "base"
[arms.on]
tree = "composed"
env = {{ VLLM_KPOOL_PARALLEL = "1" }}
[rule]
statistic = "paired-log-ratio"
[[claim]]
name = "gain"
cell = "kpool4/4080"
arm = "on"
against = "base"
margin = 0.08
"""


def judged_project(folder: Path, hostile: str = "") -> Project:
    """Three sets; gates that are qualified, rejected, undecided, stale, unanswered.

    Args:
        folder: Where.
        hostile: A text that is put wherever a person or a script has a say.
    """
    project = three_sets(folder)
    series = project.folder / "series.toml"
    text = series.read_text()
    gates = {
        "alpha": 'gates = { required = ["fast"], advisory = ["slow", "wide"] }\n',
        "beta": 'gates = { required = ["fast", "old"], advisory = ["gone"] }\n',
        "gamma": 'gates = { required = ["never"] }\n',
    }
    for name, line in gates.items():
        text = text.replace(
            f'patches = "patches/{name}"\n', f'patches = "patches/{name}"\n{line}'
        )
    if hostile:
        quoted = hostile.replace("\\", "\\\\").replace('"', '\\"')
        text = text.replace('title = "Set alpha"', f'title = "Set {quoted}"')
        text = text.replace('"because of alpha"', f'"because of {quoted}"')
    series.write_text(text)
    folder = project.folder / "ci" / "gates"
    folder.mkdir(parents=True)
    (folder / "fast.py").write_text("# asks\n")
    for name in ("fast", "slow", "wide", "old", "never"):
        (folder / f"{name}.toml").write_text(GATE.format(name=name))
    composed = run("compose", "--json", cwd=project.folder).json
    answer(project, composed, "fast", 0.8, 0.01, counters=True)
    answer(project, composed, "slow", 1.0, 0.01)
    answer(project, composed, "wide", 0.92, 0.02)
    answer(project, {**composed, "tree": "9" * 40}, "old", 0.8, 0.01)
    answer(project, composed, "extra", 0.8, 0.01, started=None)
    return project


def answer(
    project: Project,
    composed: Mapping[str, Any],
    name: str,
    ratio: float,
    noise: float,
    counters: bool = False,
    **changes: Any,
) -> Path:
    """Write the receipt of a run of a gate; its units may have counted forks."""
    from stackctl.gates.receipt import write

    evidence = kernel_evidence(ratio, noise, gate=name)
    evidence["arms"]["base"]["tree"] = composed["base"]["tree"]
    evidence["arms"]["on"] |= {
        "tree": composed["tree"],
        "composition": composed["composition"],
    }
    for number, unit in enumerate(evidence["units"] if counters else ()):
        forks = 1_000_000_000 + number
        counter = {"expected": forks, "counted": forks, "captured_nodes": 7}
        unit["answer"]["engagement"] = {"on": counter}
    files = [("gate", f"ci/gates/{name}.toml"), ("script", "ci/gates/fast.py")]
    evidence["inputs"] = {
        "base": {key: composed["base"][key] for key in ("identity", "tree", "commit")},
        "files": [
            {
                "role": role,
                "path": path,
                "sha256": sha256((project.folder / path).read_bytes()).hexdigest(),
            }
            for role, path in files
            if (project.folder / path).exists()
        ],
        "image": None,
        "model": None,
    }
    return write(document(evidence, set=None, **changes), project.folder)


VOID = {"meta", "link", "br"}


class Page(HTMLParser):
    """A page, read strictly: every element is closed, ids are unique."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.ids: list[str] = []
        self.lines: list[str] = []
        self._skip = 0
        self.feed(html)
        self.close()
        assert self.open == []
        assert len(self.ids) == len(set(self.ids))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        assert len(found) == len(attrs), tag
        self.tags.append((tag, found))
        if found.get("id"):
            self.ids.append(str(found["id"]))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open and self.open[-1] == tag, (self.open[-3:], tag)
        self.open.pop()

    def handle_data(self, data: str) -> None:
        if "style" not in self.open and data.strip():
            depth = sum(name.startswith("h") for name in self.open[2:])
            self.lines.append("  " * depth + " ".join(data.split()))

    @property
    def text(self) -> str:
        """What is to be read, a line for each piece."""
        return "\n".join(self.lines) + "\n"

    def attribute(self, name: str) -> list[str]:
        """Values of an attribute, of all elements."""
        return [str(attrs[name]) for _, attrs in self.tags if attrs.get(name)]


__all__ = ["GATE", "Page", "answer", "git", "judged_project"]
