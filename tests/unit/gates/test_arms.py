"""Arms as folders: git is the witness of their ids, and sites are laid under them."""

import os
from pathlib import Path

import pytest
from support import git, three_sets

from stackctl.cache import Cache
from stackctl.errors import InputError, UsageError
from stackctl.gates.arms import (
    ComposedTrees,
    folder_tree,
    lay_over,
    selection_of,
    site_digest,
)
from stackctl.model.series import load_series


@pytest.fixture
def trees(tmp_path: Path) -> ComposedTrees:
    project = three_sets(tmp_path / "project")
    series = load_series(project.folder / "series.toml")
    return ComposedTrees(series, Cache(tmp_path / "cache"))


def witness(folder: Path, scratch: Path) -> str:
    git("init", "-q", str(scratch))
    work = ("--git-dir", str(scratch / ".git"), "--work-tree", str(folder))
    git(*work, "add", "-A", "-f", cwd=folder)
    return git(*work, "write-tree").decode().strip()


def test_a_folder_has_the_id_that_git_gives_it(tmp_path):
    folder = tmp_path / "folder"
    (folder / "a.b").mkdir(parents=True)
    (folder / "a").mkdir()
    (folder / "empty").mkdir()
    (folder / "a/x").write_text("x\n")
    (folder / "a.b/x").write_bytes(b"\0\r\n")
    (folder / "a0").write_text("")
    (folder / "run").write_text("#!/bin/sh\n")
    (folder / "run").chmod(0o755)
    (folder / "link").symlink_to("../outside")
    (folder / "ünï").write_text("names")
    assert folder_tree(folder) == witness(folder, tmp_path / "git")


def test_what_git_cannot_hold_is_refused(tmp_path):
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(InputError, match="neither"):
        folder_tree(tmp_path)


@pytest.mark.parametrize(
    "definition",
    [
        "base",
        "composed",
        "only:gamma",
        "without:gamma",
        "upto:alpha",
        "only:alpha,gamma",
    ],
)
def test_an_arm_is_written_once_and_is_its_tree(trees, tmp_path, definition):
    found = trees.find(definition)
    folder = trees.folder(found.tree)
    assert folder.name == found.tree
    assert witness(folder, tmp_path / "git") == found.tree
    assert (found.composition is None) == (definition == "base")
    before = (folder / "README.md").stat().st_ino
    assert trees.folder(found.tree) == folder
    assert (folder / "README.md").stat().st_ino == before


def test_a_changed_folder_is_written_again(trees, tmp_path):
    tree = trees.find("composed").tree
    folder = trees.folder(tree)
    for change in ("content", "mode", "extra", "gone"):
        path = folder / "pkg/core.py"
        if change == "content":
            path.write_text("other")
        elif change == "mode":
            path.chmod(0o755)
        elif change == "extra":
            (folder / "pkg/more.py").write_text("x")
        else:
            path.unlink()
        fresh = ComposedTrees(trees._series, trees._cache)
        assert folder_tree(fresh.folder(tree)) == tree


def test_sets_without_what_they_require_are_refused(trees):
    with pytest.raises(UsageError, match="requires"):
        trees.find("without:alpha")
    with pytest.raises(UsageError, match="no set"):
        trees.find("only:alpa")
    with pytest.raises(UsageError, match="is no arm"):
        selection_of("only:")


def test_a_site_lies_under_the_arms_files(tmp_path):
    site, files = tmp_path / "site", tmp_path / "files"
    for path, text in {
        "vllm/__init__.py": "site",
        "vllm/gone.py": "deleted by the arm",
        "vllm/_C.abi3.so": "compiled",
        "vllm/sub/_version.py": "generated",
        "vllm/__pycache__/x.pyc": "stale",
        "torch/__init__.py": "torch",
        "single.py": "module",
    }.items():
        (site / path).parent.mkdir(parents=True, exist_ok=True)
        (site / path).write_text(text)
    for path, text in {
        "vllm/__init__.py": "arm",
        "vllm/sub/new.py": "new",
        "tests/test_x.py": "test",
    }.items():
        (files / path).parent.mkdir(parents=True, exist_ok=True)
        (files / path).write_text(text)
    tracked = frozenset({b"vllm/__init__.py", b"vllm/gone.py"})
    target = tmp_path / "arm"
    lay_over(site, files, tracked, target)
    found = {
        str(path.relative_to(target)): path.read_text()
        for path in target.rglob("*")
        if path.is_file()
    }
    assert {name: text for name, text in found.items() if name[:4] == "vllm"} == {
        "vllm/__init__.py": "arm",
        "vllm/_C.abi3.so": "compiled",
        "vllm/sub/_version.py": "generated",
        "vllm/sub/new.py": "new",
    }
    assert (target / "torch/__init__.py").read_text() == "torch"
    assert (target / "single.py").read_text() == "module"
    # What a unit writes there reaches neither the site nor the tree.
    (target / "vllm/__init__.py").write_text("spoiled")
    assert (files / "vllm/__init__.py").read_text() == "arm"

    digest = site_digest(site, tracked)
    (site / "vllm/__init__.py").write_text("not used")
    (site / "vllm/__pycache__/x.pyc").write_text("not used")
    assert site_digest(site, tracked) == digest
    (site / "vllm/_C.abi3.so").write_text("compiled otherwise")
    assert site_digest(site, tracked) != digest


def test_a_folder_without_the_package_is_no_site(tmp_path):
    with pytest.raises(UsageError, match="holds no folder `vllm`"):
        lay_over(tmp_path, tmp_path, frozenset(), tmp_path / "arm")


def test_a_tree_without_the_package_leaves_what_only_the_site_has(tmp_path):
    site, files = tmp_path / "site", tmp_path / "files"
    (site / "vllm").mkdir(parents=True)
    files.mkdir()
    (site / "vllm/gone.py").write_text("of the base")
    (site / "vllm/_C.abi3.so").write_text("compiled")
    lay_over(site, files, frozenset({b"vllm/gone.py"}), tmp_path / "arm")
    assert [path.name for path in (tmp_path / "arm/vllm").iterdir()] == ["_C.abi3.so"]
