# SPDX-License-Identifier: Apache-2.0
"""Every kind of input, damaged in every way: one clear error, each file named once."""

import json
import re
import shutil
import subprocess
import zipfile
from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path

import pytest
from gates import kernel_evidence
from images import build_image, docker_archive, tree_layer, write_layout
from releases import fragment
from reports import judged_project
from support import git, run

from stackctl.fsutil import remove_folder

SITE = "usr/lib/python3.11/site-packages"
ROOT = ["--root", f".={SITE}"]
SHA = "1" * 40


def cut(share: float) -> Callable[[Path], object]:
    def damage(path: Path) -> None:
        data = path.read_bytes()
        path.write_bytes(data[: int(len(data) * share)])

    return damage


def become_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def become_loop(path: Path) -> None:
    path.unlink()
    path.symlink_to(path)


def mistype(path: Path) -> None:
    data = path.read_bytes()
    for word, wrong in ((b"core", b"gone"), (b"title", b"titel"), (b"sha", b"shy")):
        data = data.replace(word, wrong)
    path.write_bytes(data)


DAMAGES: dict[str, Callable[[Path], object]] = {
    "missing": Path.unlink,
    "empty": cut(0),
    "cut at 15 %": cut(0.15),
    "cut at 60 %": cut(0.6),
    "cut at 95 %": cut(0.95),
    "binary": lambda path: path.write_bytes(bytes(range(256)) * 4),
    "not UTF-8": lambda path: path.write_bytes(b"\xff" + path.read_bytes()),
    "a folder": become_folder,
    "a link to itself": become_loop,
    "a JSON list": lambda path: path.write_text("[1]\n"),
    "another JSON object": lambda path: path.write_text('{"schema": 99}\n'),
    "other TOML": lambda path: path.write_text("schema = 1\nnonsense = 2\n"),
    "mistyped": mistype,
}

NO_CONTENT = ("missing", "a folder", "a link to itself")
"""What says all by itself, without a hint."""

INPUTS = {
    "series.toml": ("compose", "status", "gate list"),
    "series.lock": ("compose --locked", "lock --check"),
    "patches/alpha/0001-alpha-change-line-10.patch": (
        "compose", "lock", "show alpha", "status",
    ),
    "ci/gates/fast.toml": ("gate list", "gate run fast", "qualify --dry-run"),
    "changes/one.toml": ("changes check", "changes render"),
    "receipt.json": ("receipt show receipt.json", "receipt verify receipt.json"),
    "evidence.json": ("gate decide evidence.json",),
    "pulls.json": ("pr audit --pulls-json pulls.json",),
    "published.json": (
        "replay published.json --repo mirror", "import-manifest published.json",
    ),
    "search.log": ("bisect --run true --log search.log",),
    "pack/manifest.json": ("gate run fast --from pack",),
    "pack/project/ci/gates/fast.py": ("gate run fast --from pack",),
    "image.tar": (
        "verify-image docker-archive:image.tar", "verify-image oci-archive:image.tar",
    ),
    "demo.whl": ("verify-image wheel:demo.whl",),
    "layout/index.json": ("verify-image oci:layout",),
    "packed/base.tar.gz": ("compose -C packed",),
}  # fmt: skip


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project with one good file of every kind."""
    folder = tmp_path_factory.mktemp("inputs") / "project"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("STACKCTL_CACHE_DIR", str(folder.with_name("cache")))
        judged_project(folder)
        assert run("lock", "-C", folder).code == 0
        assert run(*INPUTS["search.log"][0].split(), cwd=folder).code == 1
        assert run("gate", "pack", "fast", "--out", "pack", cwd=folder).code == 0
    with (folder / "series.toml").open("a") as file:
        file.write('\n[github]\nrepo = "o/n"\nbase = "main"\n')
    fragment(folder, "one", "alpha")
    shutil.copy(next(folder.glob("receipts/fast/*.json")), folder / "receipt.json")
    evidence = kernel_evidence(0.8, 0.01, gate="fast")
    (folder / "evidence.json").write_text(json.dumps(evidence))
    (folder / "pulls.json").write_text(json.dumps([{"number": 1, "head": SHA}]))
    git("init", "-q", str(folder / "mirror"))
    published = {"schema_version": 1, "base_ref": "v1", "base": {"sha": SHA}}
    (folder / "published.json").write_text(json.dumps(published))
    image = build_image([tree_layer({"demo/core.py": b"core\n"}, SITE)])
    (folder / "image.tar").write_bytes(docker_archive(image, "docker25"))
    write_layout(folder / "layout", image)
    with zipfile.ZipFile(folder / "demo.whl", "w") as wheel:
        wheel.writestr("demo/core.py", "core\n" * 100)
    packed = folder / "packed"
    packed.mkdir()
    pack = ("tar", "czf", packed / "base.tar.gz", "-C", folder, "patches")
    subprocess.run(pack, check=True)
    digest = sha256((packed / "base.tar.gz").read_bytes()).hexdigest()
    (packed / "series.toml").write_text(
        'schema = 1\nname = "packed"\n\n[base]\narchive = "base.tar.gz"\n'
        f'sha256 = "{digest}"\ntree = "{SHA}"\n'
    )
    return folder


def repeated(text: str) -> set[str]:
    """Return the names of files that stand twice in one line of a text."""
    found = set()
    for line in text.splitlines():
        paths = (word.strip("`'\"(),;:.") for word in line.split())
        names = [re.sub(r"(#\d+)?(:\d+)*$", "", path).split("/")[-1] for path in paths]
        files = [name for name in names if re.search(r"\w\.[a-z]\w*$", name)]
        found |= {name for name in files if files.count(name) > 1}
    return found


def test_what_repeated_names_are() -> None:
    assert repeated("error: /a/x.patch:3: set `y`: x.patch#2:3: bad") == {"x.patch"}
    assert repeated("error: /a/x.patch:3: set `y`: bad\nhint: see x.patch") == set()
    assert repeated("a/x.toml names y.toml, 1.5 and 1.5 MB") == set()


def answers(project: Path, scratch: Path, path: str) -> Iterator[tuple[str, int, str]]:
    folder = scratch / "project"
    shutil.copytree(project, folder, symlinks=True)
    for name, damage in DAMAGES.items():
        damage(folder / path)
        for command in INPUTS[path]:
            root = ROOT if command.startswith("verify-image") else []
            done = run(*command.split(), *root, cwd=folder)
            yield f"{name}: {command}", done.code, done.out + done.err
        remove_folder(folder / path)
        shutil.copy2(project / path, folder / path)


@pytest.mark.parametrize("path", INPUTS)
def test_damaged_input_is_told_once_and_without_a_traceback(
    inputs: Path, tmp_path: Path, path: str
) -> None:
    refused = 0
    for what, code, text in answers(inputs, tmp_path, path):
        kind = what.partition(":")[0]
        assert code in (0, 1, 2, 3, 4, 5, 8, 9), (what, text)
        assert "Traceback" not in text, (what, text)
        assert repeated(text) == set(), (what, text)
        refused += code in (2, 3, 4, 5)
        if "error: " in text and kind not in NO_CONTENT:
            assert "hint: " in text, (what, text)
        if path in ("series.toml", "series.lock"):
            assert ("found a folder" in text) == (kind == "a folder"), (what, text)
            assert ("symbolic links" in text) == (kind == "a link to itself"), text
    assert refused > len(DAMAGES) / 2
