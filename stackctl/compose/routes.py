# SPDX-License-Identifier: Apache-2.0
"""The second route: the same series composed by git alone, from the original bytes.

Nothing of our patch reader, tree editor or cache takes part: git reads each patch file
into an index of the whole tree and writes the tree. A lock is written only where both
routes agree after every file.
"""

import re
from collections.abc import Sequence
from pathlib import Path

from stackctl.compose.model import Composition
from stackctl.compose.sources import PatchFile
from stackctl.errors import InternalError
from stackctl.git.command import GitCommandError, HermeticGit
from stackctl.git.store import Store, create_bare
from stackctl.model.ids import TreeId
from stackctl.progress import SILENT, Progress
from stackctl.scratch import scratch_folder

_ENCODED = re.compile(
    rb"^content-transfer-encoding:[ \t]*(?:base64|quoted-printable)",
    re.IGNORECASE | re.MULTILINE,
)


class RoutesDisagreeError(InternalError):
    """Our composition differs from the one real git makes."""

    default_kind = "routes-disagree"


def trees_by_git(
    store: Store,
    base: TreeId,
    files: Sequence[PatchFile],
    progress: Progress = SILENT,
) -> list[TreeId]:
    """Apply patch files with `git apply --cached` and return the tree after each.

    Args:
        store: Holds the base tree.
        base: Hex id of the base tree.
        files: Patch files in order.
        progress: Told the number of files done.
    """
    with scratch_folder(store.git_dir / "scratch") as folder:
        scratch = folder / "scratch.git"
        create_bare(scratch)
        alternates = scratch / "objects" / "info" / "alternates"
        alternates.write_text(f"{(store.git_dir / 'objects').resolve()}\n")
        git = Store(scratch).git.with_env(GIT_INDEX_FILE=str(folder / "index"))
        git.run("read-tree", base)
        trees = []
        for number, file in enumerate(files):
            progress.update("check with git", number, len(files))
            try:
                for text in _diffs(git, file.data, folder / "mail"):
                    git.run(
                        "apply",
                        "--cached",
                        "--whitespace=nowarn",
                        "--allow-empty",
                        "-",
                        stdin=text,
                    )
            except GitCommandError as error:
                raise RoutesDisagreeError(
                    f"{file.name} of set `{file.set}` was composed here, but git "
                    f"refuses it: {error.stderr.decode('utf-8', 'replace').strip()}",
                    hint="please report this with the patch",
                    where={"set": file.set, "patch": file.name},
                ) from error
            trees.append(TreeId(git.text("write-tree")))
        progress.update("check with git", len(files), len(files))
        return trees


def _diffs(git: HermeticGit, data: bytes, folder: Path) -> list[bytes]:
    """Return what `git apply` is given: the file, or the texts of encoded mails."""
    if _ENCODED.search(data) is None:
        return [data]
    folder.mkdir(exist_ok=True)
    mails = folder / "mails"
    mails.mkdir()
    git.run("mailsplit", "-b", "--keep-cr", f"-o{mails}", stdin=data)
    out = []
    for mail in sorted(mails.iterdir()):
        patch = folder / "patch"
        git.run(
            "mailinfo",
            "-b",
            "-u",
            "--no-scissors",
            "--quoted-cr=nowarn",
            str(folder / "message"),
            str(patch),
            stdin=mail.read_bytes(),
        )
        out.append(patch.read_bytes())
        mail.unlink()
    mails.rmdir()
    return out


def check_routes(
    store: Store,
    composition: Composition,
    files: Sequence[PatchFile],
    progress: Progress = SILENT,
) -> None:
    """Compare a composition with git's, file by file.

    Args:
        store: Holds the base tree.
        composition: What was composed here, with a tree for every step.
        files: The patch files it was composed from, in order.
        progress: Told the number of files done.

    Raises:
        RoutesDisagreeError: The trees differ, or git refuses a file.
    """
    names = {(file.set, file.name) for file in files}
    expected: dict[tuple[str, str], TreeId] = {}
    for step in composition.steps:
        if step.patch is None:
            continue
        key = (step.set, step.patch)
        if key not in names:
            # The n-th patch of a file with several is called `name#n`.
            key = (step.set, step.patch.rpartition("#")[0])
        expected[key] = step.tree
    trees = trees_by_git(store, composition.base.tree, files, progress)
    for file, tree in zip(files, trees, strict=True):
        ours = expected.get((file.set, file.name))
        if ours != tree:
            raise RoutesDisagreeError(
                f"after {file.name} of set `{file.set}` we have tree {ours}, git has "
                f"{tree}",
                hint="please report this with the patch; no lock was written",
                where={"set": file.set, "patch": file.name},
            )
