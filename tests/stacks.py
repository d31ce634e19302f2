# SPDX-License-Identifier: Apache-2.0
"""A series, and its stack of pull requests on a GitHub of this machine."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from github_server import FakeGitHub, Pull
from support import LINES60, Project, Result, run

Files = dict[str, bytes | str | None]


def core(**changes: str) -> str:
    """Return the lines of `pkg/core.py` with some changed: `core(_10="ten")`."""
    lines = LINES60.splitlines(keepends=True)
    for key, value in changes.items():
        lines[int(key[1:]) - 1] = value + "\n"
    return "".join(lines)


ALPHA: tuple[str, Files] = ("alpha: ten\n", {"pkg/core.py": core(_10="ten")})
BETA: tuple[str, Files] = (
    "beta: forty\n", {"pkg/core.py": core(_10="ten", _40="forty")}
)  # fmt: skip
GAMMA: tuple[str, Files] = ("gamma: words\n", {"README.md": "# Fork\n\nOther.\n"})


class Team:
    """An author's project and the GitHub that it is reviewed on.

    Args:
        project: The project; its base is a git commit, or a folder.
        github: The server.
        config: Further lines of `[github]`.
    """

    def __init__(
        self, project: Project, github: FakeGitHub, config: str = 'base = "main"\n'
    ) -> None:
        self.project = project
        self.github = github
        self.config = config
        if not github.heads():
            commit = project.base_commit
            if "base" not in config:
                # A repository that has nothing to do with the base.
                other = Project(project.folder.with_name("elsewhere")).base(
                    {"other": "x\n"}
                )
                commit = other.base_commit
                other.repo.git(
                    "push", "-q", str(github.git_dir), f"{commit}:refs/heads/main"
                )
            else:
                github.seed(project.repo, commit)
        github.settle()
        self.save()

    def save(self) -> None:
        """Write series.toml with the repository in it."""
        self.project.save()
        file = self.project.folder / "series.toml"
        text = file.read_text()
        file.write_text(f'{text}\n[github]\nrepo = "{self.github.repo}"\n{self.config}')

    @property
    def text(self) -> str:
        return (self.project.folder / "series.toml").read_text()

    @text.setter
    def text(self, value: str) -> None:
        (self.project.folder / "series.toml").write_text(value)

    def patch(self, name: str, *commits: tuple[str, Mapping[str, Any]]) -> None:
        """Replace the patches of a set by commits on what lies below it."""
        folder = self.project.folder / "patches" / name
        names = list(self.project.tips)
        at = names.index(name)
        below = self.project.tips[names[at - 1]] if at else self.project.base_commit
        self.project.repo.git("checkout", "-q", "--detach", below)
        for old in folder.glob("*.patch"):
            old.unlink()
        for message, files in commits:
            self.project.repo.commit(message, files)
        self.project.repo.patches(f"{below}..HEAD", folder)
        self.project.tips[name] = self.project.repo.head
        for later in names[at + 1 :]:
            below = self.project.repo.head
            files = sorted((self.project.folder / "patches" / later).glob("*.patch"))
            self.project.repo.git("am", "-q", "-3", *map(str, files))
            for old in files:
                old.unlink()
            self.project.repo.patches(
                f"{below}..HEAD", self.project.folder / "patches" / later
            )
            self.project.tips[later] = self.project.repo.head

    def run(self, *arguments: str) -> Result:
        return run("pr", *arguments, "-C", self.project.folder)

    def call(self, *arguments: str, code: int = 0) -> Any:
        """Run a command and return its document."""
        done = run("pr", *arguments, "-C", self.project.folder, "--json")
        assert done.code == code, f"{done.code}: {done.out}{done.err}"
        return done.json

    def of(self, name: str) -> Pull:
        """Return the newest pull request of a set."""
        found = [
            each
            for each in self.github.pulls.values()
            if each.head.split("/")[-1].split(".")[0] == name
        ]
        return found[-1]

    def branch(self, name: str) -> str:
        return self.github.heads()[f"stack/{self.project.name}/{name}"]


def words(document: Any) -> list[str]:
    """Return a plan in plain words."""
    return [each["words"] for each in document["plan"]]


def three(folder: Path, kind: str = "git") -> Project:
    """A project of three sets, each on the one before."""
    return (
        Project(folder)
        .base(kind=kind)
        .add("alpha", ALPHA, extra='labels = ["fast"]\nreviewers = ["bob"]\n')
        .add("beta", BETA, requires=["alpha"])
        .add("gamma", GAMMA, extra='reviewers = ["ada", "o/core"]\n')
        .save()
    )
