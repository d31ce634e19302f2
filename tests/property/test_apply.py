# SPDX-License-Identifier: Apache-2.0
"""Random sequences of patches: the composer against `git am` and `git apply`.

Every batch is one random history of many folders. Its patches are written by git with
some set of options, some of them are dropped, repeated or swapped, so that what remains
meets files that moved on. Then, patch by patch: where git takes a patch we take it,
with the same tree and (under the committer rule) the same commit; where git refuses we
refuse.

`STACKCTL_PROPERTY_EXAMPLES=N` runs N batches in place of the default number.
"""

import os
import random
import re
import subprocess
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pytest
from history import make_history
from support import git, hostile_home

from stackctl.compose.author import canonical_patches
from stackctl.compose.compose import commit_of_patch
from stackctl.errors import StackctlError
from stackctl.git.apply import Workspace
from stackctl.git.command import HermeticGit
from stackctl.git.patchtext.canonical import FORMAT_PATCH_OPTIONS
from stackctl.git.patchtext.mail import read_patches
from stackctl.git.patchtext.model import Patch
from stackctl.git.store import Store
from stackctl.model.ids import CommitId, TreeId

BATCHES = int(os.environ.get("STACKCTL_PROPERTY_EXAMPLES", "0")) or 16
FOLDERS = 50
COMMITS = 120

STYLES = {
    "canonical": (),
    "renames": ("-M20%",),
    "copies": ("-C", "--find-copies-harder"),
    "short ids": ("--no-full-index",),
    "one line of context": ("-U1",),
    "no context": ("-U0",),
    "much context": ("-U9", "--inter-hunk-context=4"),
    "histogram": ("--diff-algorithm=histogram",),
    "irreversible delete": ("-D",),
    "break": ("-B", "-M"),
}


@dataclass
class Offered:
    """One patch that was offered to the composer."""

    patch: Patch
    before: TreeId
    after: TreeId | None
    error: str = ""


def _mails(text: bytes) -> list[bytes]:
    starts = [m.start() for m in re.finditer(rb"(?m)^From 0{40} Mon Sep 17 ", text)]
    return [text[a:b] for a, b in zip(starts, [*starts[1:], len(text)], strict=True)]


def _rearranged(rng: random.Random, mails: list[bytes]) -> list[bytes]:
    out: list[bytes] = []
    for mail in mails:
        chance = rng.random()
        if chance < 0.07:
            continue
        out.append(mail)
        if chance > 0.97:
            out.append(mail)
        if chance > 0.90 and len(out) > 1:
            out[-1], out[-2] = out[-2], out[-1]
    return out


def _import(history: Path, store: Store, revision: str) -> None:
    objects = git("--git-dir", str(history), "rev-list", "--objects", revision)
    ids = b"".join(line[:40] + b"\n" for line in objects.splitlines())
    pack = git("--git-dir", str(history), "pack-objects", "--stdout", "-q", stdin=ids)
    store.git.run("index-pack", "--stdin", "--strict", stdin=pack)


def _compose(
    store: Store, base: str, mails: list[bytes]
) -> tuple[list[Offered], list[str], Counter[str]]:
    """Apply what can be applied; return every offer and the commits."""
    tree = TreeId(store.commit_tree(base))
    commit = CommitId(base)
    workspace = Workspace(store, tree)
    offers: list[Offered] = []
    commits: list[str] = []
    for number, mail in enumerate(mails):
        (patch,) = read_patches(mail, name=f"{number:04d}.patch", git=store.git)
        before = tree
        try:
            workspace.apply(patch)
        except StackctlError as error:
            offers.append(Offered(patch, before, None, error.message))
            # Whatever was refused left no trace.
            assert workspace.write_tree() == before, patch.raw
            continue
        tree = workspace.write_tree()
        commit = workspace.add_commit(commit_of_patch(patch, tree, commit))
        commits.append(commit)
        offers.append(Offered(patch, before, tree))
    workspace.publish()
    how = Counter(native=workspace.native, git=workspace.fallback)
    how["refused"] = sum(1 for offer in offers if offer.after is None)
    return offers, commits, how


def _git_am(folder: Path, history: Path, base: str, mails: list[bytes]) -> list[str]:
    """Apply mails with `git am`, committer by our rule; return the commits."""
    work = folder / "work"
    git("init", "-q", str(work))
    (work / ".git/objects/info/alternates").write_text(f"{history / 'objects'}\n")
    # The base's attributes would change line endings in the work tree.
    (work / ".git/info").mkdir(exist_ok=True)
    (work / ".git/info/attributes").write_text("* -text -ident !eol !filter\n")
    git("checkout", "-q", "--detach", base, cwd=work)
    env = {
        "GIT_COMMITTER_NAME": "stackctl",
        "GIT_COMMITTER_EMAIL": "stackctl@localhost",
    }
    settings = ("-c", "gc.auto=0", "-c", "core.fsync=none", "-c", "index.threads=1")
    git(
        *settings,
        "am",
        "-q",
        "--keep-cr",
        "--keep-non-patch",
        "--committer-date-is-author-date",
        "--whitespace=nowarn",
        cwd=work,
        stdin=b"".join(mails),
        env=env,
    )
    return git("rev-list", "--reverse", f"{base}..HEAD", cwd=work).decode().split()


def _git_refuses(store: Store, offer: Offered, index: Path) -> bool:
    git = store.git.with_env(GIT_INDEX_FILE=str(index))
    git.run("read-tree", offer.before)
    status, _, _ = git.call(
        "apply", "--cached", "--whitespace=nowarn", "-", stdin=offer.patch.raw
    )
    return status != 0


def _check_batch(seed: str, folder: Path) -> Counter[str]:
    rng = random.Random(seed)
    style = rng.choice(sorted(STYLES))
    history = make_history(
        rng, folder / "history.git", FOLDERS, COMMITS, attributes=rng.random() < 0.3
    )
    text = HermeticGit(history.repo).run(
        "format-patch",
        *FORMAT_PATCH_OPTIONS,
        *STYLES[style],
        "--stdout",
        f"{history.base}..{history.tip}",
    )
    mails = _mails(text)
    assert len(mails) == COMMITS
    if rng.random() < 0.8:
        mails = _rearranged(rng, mails)
    store = Store.create(folder / "store.git")
    _import(history.repo, store, history.base)
    offers, commits, how = _compose(store, history.base, mails)
    how[style] += 1

    accepted = [offer for offer in offers if offer.after is not None]
    expected = _git_am(
        folder, history.repo, history.base, [offer.patch.raw for offer in accepted]
    )
    for offer, ours, theirs in zip(accepted, commits, expected, strict=True):
        assert ours == theirs, (
            f"{style}: {offer.patch.name} gives {ours}, git am {theirs}\n"
            f"{git('cat-file', '-p', ours, cwd=folder / 'store.git')!r}\n"
            f"{git('cat-file', '-p', theirs, cwd=folder / 'work')!r}\n"
            f"{offer.patch.raw.decode('utf-8', 'backslashreplace')}"
        )
    for offer in offers:
        if offer.after is None:
            assert _git_refuses(store, offer, folder / "index"), (
                f"{style}: we refuse {offer.patch.name}, git does not: {offer.error}\n"
                f"tree {offer.before}\n"
                f"{offer.patch.raw.decode('utf-8', 'backslashreplace')}"
            )
            assert offer.patch.name in offer.error
    for pack in (folder / "store.git/objects/pack").glob("*.pack"):
        git(
            "index-pack",
            "--strict",
            "-o",
            str(folder / "check.idx"),
            str(pack),
            cwd=folder / "store.git",
        )
        (folder / "check.idx").unlink()
    git("--git-dir", str(folder / "store.git"), "fsck", "--strict", "--no-dangling")
    return how


@pytest.mark.parametrize("part", range(4))
def test_patches_apply_like_git(part: int, tmp_path: Path) -> None:
    total: Counter[str] = Counter()
    for number in range(part, BATCHES, 4):
        folder = tmp_path / str(number)
        folder.mkdir()
        total += _check_batch(f"plain {number}", folder)
        subprocess.run(["rm", "-rf", str(folder)], check=True)
    print(dict(total))
    # The test is worth something only where each way was taken.
    assert min(total["native"], total["git"], total["refused"]) > 0


def test_patches_apply_like_git_for_a_hostile_user(
    tmp_path: Path, hostile: Path
) -> None:
    old = os.umask(0o077)
    try:
        for number in range(max(BATCHES // 20, 1)):
            folder = tmp_path / str(number)
            folder.mkdir()
            _check_batch(f"hostile {number}", folder)
    finally:
        os.umask(old)
    assert not (tmp_path / "trap-was-run").exists()


def test_export_import_export_gives_the_same_bytes(tmp_path: Path) -> None:
    for number in range(max(BATCHES // 20, 1)):
        folder = tmp_path / str(number)
        rng = random.Random(f"export {number}")
        history = make_history(rng, folder / "history.git", 10, 40)
        store = Store.create(folder / "store.git")
        _import(history.repo, store, history.base)
        commits = (
            git(
                "--git-dir",
                str(history.repo),
                "rev-list",
                "--reverse",
                f"{history.base}..{history.tip}",
            )
            .decode()
            .split()
        )
        first, _ = canonical_patches(HermeticGit(history.repo), commits)
        offers, made, _ = _compose(store, history.base, [p.data for p in first])
        assert [offer.error for offer in offers if offer.after is None] == []
        second, _ = canonical_patches(store.git, made)
        assert [(p.name, p.data) for p in second] == [(p.name, p.data) for p in first]
        # The commits differ from the author's in the committer only.
        for theirs, ours in zip(commits, made, strict=True):
            form = ("--no-patch", "--format=%T%n%an%n%ae%n%ad%n%B", "--date=raw")
            assert git("--git-dir", str(store.git_dir), "show", *form, ours) == git(
                "--git-dir", str(history.repo), "show", *form, theirs
            )


def test_the_hostile_user_would_spoil_plain_git(tmp_path: Path) -> None:
    """The configuration above is not a decoration: git without our care fails."""
    home = hostile_home(tmp_path)
    history = make_history(random.Random(1), tmp_path / "h.git", 3, 10)
    arguments = ("format-patch", "--stdout", f"{history.base}..{history.tip}")
    spoilt = subprocess.run(
        ["git", "--git-dir", str(history.repo), *arguments],
        env={"HOME": str(home), "PATH": os.environ["PATH"]},
        capture_output=True,
    )
    clean = git("--git-dir", str(history.repo), *arguments)
    assert spoilt.stdout != clean
