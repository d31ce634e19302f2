# SPDX-License-Identifier: Apache-2.0
"""Random picks and merges in memory against git's commands in a work tree.

The histories hold every kind of change: renames, modes, links, binary files, files that
become folders, attributes. Commits are taken in random order; what conflicts is left
out, and all the rest must give git's tree, step by step.
"""

import random
from pathlib import Path

import pytest
from history import make_history
from support import git

from stackctl.cache import Cache
from stackctl.compose.compare import make_composer
from stackctl.compose.compose import Composer
from stackctl.compose.pinned import MergeConflictError
from stackctl.compose.resolutions import Resolutions
from stackctl.compose.routes import trees_by_git
from stackctl.compose.sources import PinnedPull, pinned_pull
from stackctl.git.merge import MergeCrashError
from stackctl.model.ids import CommitId
from stackctl.model.series import PatchSet, Pull, load_series


def series_on(folder: Path, repo: Path, base: str) -> Path:
    folder.mkdir()
    (folder / "series.toml").write_text(
        f'schema = 1\nname = "random"\n\n[base]\ngit = "{repo}"\ncommit = "{base}"\n'
    )
    return folder / "series.toml"


def pull(repo: Path, number: int, head: str, *commits: str) -> PinnedPull:
    return pinned_pull(
        PatchSet(
            name=f"n{number}",
            strategy="cherry-pick" if commits else "merge",
            pull=Pull(
                repo="o/r",
                number=number,
                head=CommitId(head),
                commits=tuple(map(CommitId, commits)),
                url=str(repo),
                ref="refs/heads/main",
            ),
        )
    )


@pytest.mark.parametrize("seed", range(3))
def test_random_picks(seed: int, tmp_path: Path, cache: Cache) -> None:
    rng = random.Random(seed)
    repo = tmp_path / "repo.git"
    history = make_history(rng, repo, folders=4, commits=30, attributes=seed == 2)
    line = git("--git-dir", str(repo), "rev-list", "--reverse", "main").decode().split()
    series = load_series(series_on(tmp_path / "p", repo, history.base))
    composer = make_composer(series, cache)
    commits = line[1:]
    rng.shuffle(commits)
    check(
        composer, cache, [pull(repo, n, history.tip, c) for n, c in enumerate(commits)]
    )


@pytest.mark.parametrize("seed", range(3))
def test_random_merges(seed: int, tmp_path: Path, cache: Cache) -> None:
    """Branches of picked commits that are merged into one another, criss-cross."""
    rng = random.Random(100 + seed)
    repo = tmp_path / "repo.git"
    history = make_history(rng, repo, folders=4, commits=24, attributes=seed == 2)
    work = tmp_path / "work"
    git("clone", "-q", "-n", str(repo), str(work))
    (work / ".git/info").mkdir(exist_ok=True)  # some builds of git have no templates
    (work / ".git/info/attributes").write_text(
        "* -text -ident !eol !filter !working-tree-encoding\n"
    )
    line = git("rev-list", "--reverse", history.tip, cwd=work).decode().split()[1:]
    tips = [history.base]
    for _ in range(10):
        git("checkout", "-q", "-f", "--detach", rng.choice(tips), cwd=work)
        git("clean", "-q", "-d", "-f", "-x", cwd=work)
        for commit in rng.sample(line, 3):
            attempt(work, "cherry-pick", "--allow-empty", commit)
        if rng.random() < 0.5:
            attempt(work, "merge", "-q", "--no-ff", "--no-edit", rng.choice(tips))
        tips.append(git("rev-parse", "HEAD", cwd=work).decode().strip())
    for number, tip in enumerate(tips):
        git("push", "-q", str(repo), f"{tip}:refs/heads/tip-{number}", cwd=work)
    series = load_series(series_on(tmp_path / "p", repo, history.base))
    rng.shuffle(tips)
    pulls = [pull(repo, number, tip) for number, tip in enumerate(tips)]
    check(make_composer(series, cache), cache, pulls)


def attempt(work: Path, *command: str) -> None:
    """Run a command that may conflict, and undo it where it does."""
    git(*command, cwd=work, check=False)
    (work / ".git/index.lock").unlink(missing_ok=True)  # of a git that crashed
    for undo in ("cherry-pick", "merge"):
        git(undo, "--abort", cwd=work, check=False)
    git("reset", "-q", "--hard", cwd=work)
    git("clean", "-q", "-d", "-f", "-x", cwd=work)


def check(composer: Composer, cache: Cache, pulls: list[PinnedPull]) -> None:
    base = composer.base
    tree, commit = base.tree, base.commit
    taken, trees = [], []
    for source in pulls:
        try:
            ((*_, step),) = composer.make([source], tree, commit)
        except MergeConflictError as error:
            assert error.conflicts
            continue
        except MergeCrashError:
            continue  # a fault of this git, met in a work tree as well
        assert step.commit is not None
        tree, commit = step.tree, step.commit
        taken.append(source)
        trees.append(tree)
    assert len(taken) >= 3
    made = trees_by_git(
        cache.store, (base.tree, base.commit), taken, Resolutions(Path("/nowhere"))
    )
    assert made == trees
    # In one go they are the same as one by one.
    again = composer.make(taken, base.tree, base.commit)
    assert [steps[-1].tree for steps in again] == trees
    assert again[-1][-1].commit == commit
    cache.store.git.run("fsck", "--strict", "--no-dangling", commit)
