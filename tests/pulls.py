# SPDX-License-Identifier: Apache-2.0
"""Upstream repositories with pull requests, and series that pin them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from support import LINES60, Repo, run

Files = Mapping[str, bytes | str | None]


def answer(command: str, project: Path, *options: str, code: int = 0) -> dict:
    """Return the JSON document of a command about a project."""
    result = run(command, *options, "-C", project, "--json")
    assert result.code == code, result.out + result.err
    return result.json


def lines(**changes: str) -> str:
    """Return sixty lines with some of them changed: `lines(_10="ten")`."""
    text = LINES60.splitlines(keepends=True)
    for key, value in changes.items():
        text[int(key[1:]) - 1] = value + "\n"
    return "".join(text)


FILES: Files = {
    "a.py": lines(),
    "b.py": lines(),
    "data.bin": bytes(range(256)) * 4,
    "run.sh": "#!/bin/sh\necho\n",
    "docs/read.md": "# Read\n\nme\n",
}


@dataclass
class Upstream:
    """A repository with a base on `main`, and pull requests as GitHub keeps them."""

    repo: Repo
    base: str = ""
    heads: dict[int, str] = field(default_factory=dict)

    @classmethod
    def make(cls, folder: Path, files: Files | None = None) -> "Upstream":
        repo = Repo(folder)
        made = cls(repo)
        made.base = repo.commit("base\n", files or FILES)
        return made

    def on(self, start: str) -> None:
        """Stand on a commit."""
        self.repo.git("checkout", "-q", "--detach", start)

    def pull(self, number: int, *changes: Files, onto: str = "") -> str:
        """Open or push a pull request with one commit per change; return its head."""
        self.on(onto or self.base)
        for count, files in enumerate(changes, 1):
            self.repo.commit(f"Pull {number}, part {count}\n", files)
        return self.point(number)

    def point(self, number: int, commit: str = "HEAD") -> str:
        """Make a commit the head of a pull request."""
        self.repo.git("update-ref", f"refs/pull/{number}/head", commit)
        self.heads[number] = self.repo.git("rev-parse", commit)
        return self.heads[number]

    def merge(self, *heads: str, message: str = "merge\n") -> str:
        """Merge commits with real git; return the merge commit."""
        self.repo.git("merge", "-q", "--no-ff", "-m", message, *heads)
        return self.repo.head

    def tree_of_merges(self, *heads: str, start: str = "") -> str:
        """Merge heads one after the other with real git; return the tree."""
        self.on(start or self.base)
        for head in heads:
            self.merge(head)
        return self.repo.tree

    def series(self, folder: Path, *sets: str, base: str = "") -> Path:
        """Write a series on the base; return the project folder."""
        folder.mkdir(parents=True, exist_ok=True)
        base = base or self.base
        tree = self.repo.git("rev-parse", f"{base}^{{tree}}")
        text = (
            f'schema = 1\nname = "pinned"\n\n[base]\ngit = "{self.repo.path}"\n'
            f'commit = "{base}"\nref = "refs/heads/main"\ntree = "{tree}"\n\n'
            + "\n".join(sets)
        )
        (folder / "series.toml").write_text(text)
        return folder

    def set(
        self,
        number: int,
        name: str = "",
        commits: tuple[str, ...] = (),
        extra: str = "",
    ) -> str:
        """Return the text of a set that pins a pull request's head."""
        listed = ""
        if commits:
            listed = ", commits = [" + ", ".join(f'"{each}"' for each in commits) + "]"
        strategy = 'strategy = "cherry-pick"\n' if commits else ""
        return (
            f'[[set]]\nname = "{name or f"pull-{number}"}"\n{strategy}'
            f'pull = {{ repo = "o/r", number = {number}, head = "{self.heads[number]}"'
            f'{listed}, url = "{self.repo.path}" }}\n{extra}'
        )
