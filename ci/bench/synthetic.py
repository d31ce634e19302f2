# SPDX-License-Identifier: Apache-2.0
"""Synthetic stacks: N patches of 1-3 files each on a real base, made by git itself."""

import random
import subprocess
from pathlib import Path

from stackctl.git.command import HermeticGit
from stackctl.git.objects import MODE_EXEC, MODE_FILE
from stackctl.git.patchtext.canonical import FORMAT_PATCH_OPTIONS
from stackctl.git.store import Store, create_bare


def text_files(
    store: Store, tree: str, least: int = 40
) -> list[tuple[bytes, int, bytes]]:
    """Return path, mode and raw id of the text files with enough lines."""
    out = []
    for path, mode, oid in store.walk(tree):
        if mode not in (MODE_FILE, MODE_EXEC) or not path.endswith(
            (b".py", b".cu", b".md")
        ):
            continue
        data = store.blob(oid)
        if data.count(b"\n") >= least and b"\r" not in data and b"\0" not in data:
            out.append((path, mode, oid))
    return out


def edit(data: bytes, rng: random.Random, number: int) -> bytes:
    """Change, insert and delete a few lines at one to three places."""
    lines = data.split(b"\n")
    for place in range(rng.randint(1, 3)):
        at = rng.randrange(5, max(len(lines) - 5, 6))
        kind = rng.randrange(3)
        new = b"# synthetic change %d.%d %d" % (number, place, rng.getrandbits(32))
        if kind == 0:
            lines[at] = new
        elif kind == 1:
            lines[at:at] = [new] * rng.randint(1, 6)
        else:
            del lines[at : at + rng.randint(1, 3)]
            lines.insert(at, new)
    return b"\n".join(lines)


def make_stack(
    store: Store, base_commit: str, tree: str, count: int, folder: Path, seed: int = 7
) -> list[Path]:
    """Write `count` stacked canonical patches into a folder and return their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    present = sorted(folder.glob("*.patch"))
    if len(present) == count:
        return present
    scratch = folder.parent / f"{folder.name}.git"
    create_bare(scratch)
    (scratch / "objects/info/alternates").write_text(f"{store.git_dir / 'objects'}\n")
    rng = random.Random(seed)
    files = text_files(store, tree)
    contents: dict[bytes, bytes] = {}
    stream = [b"reset refs/heads/stack\nfrom %s\n\n" % base_commit.encode()]
    for number in range(1, count + 1):
        message = b"Synthetic change %d\n\nOne of %d.\n" % (number, count)
        when = 1_700_000_000 + number * 60
        stream.append(
            b"commit refs/heads/stack\n"
            b"author Bench <bench@example.org> %d +0000\n"
            b"committer Bench <bench@example.org> %d +0000\n"
            b"data %d\n%s" % (when, when, len(message), message)
        )
        for path, mode, oid in rng.sample(files, rng.randint(1, 3)):
            data = edit(contents.get(path) or store.blob(oid), rng, number)
            contents[path] = data
            stream.append(b"M %o inline %s\ndata %d\n" % (mode, path, len(data)))
            stream.append(data + b"\n")
        stream.append(b"\n")
    git = HermeticGit(scratch)
    git.run("fast-import", "--quiet", "--force", stdin=b"".join(stream))
    git.run(
        "format-patch",
        "-q",
        *FORMAT_PATCH_OPTIONS,
        "-o",
        str(folder),
        f"{base_commit}..refs/heads/stack",
    )
    return sorted(folder.glob("*.patch"))


def run(command: list[str], **settings: object) -> None:
    """Run a command that must succeed, without its output."""
    subprocess.run(command, check=True, capture_output=True, **settings)  # type: ignore[call-overload]
