# SPDX-License-Identifier: Apache-2.0
"""Releasing by `[[image]]`: what series.toml says is what the command does."""

import io
import json
import shutil
import threading
import zipfile
from collections.abc import Callable, Iterator
from functools import partial
from hashlib import sha256
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from images import SITE, Tar, build_image, tree_layer, write_layout
from support import Project, Result, run

WHEEL = "demo-1.0-cp38-abi3-linux_x86_64.whl"
COMPILED = {"pkg/_C.abi3.so": b"\x7fELF compiled", "pkg/third_party/x.py": b"x = 1\n"}
VERSION = b"version = '1.0'\n"


class QuietHandler(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A package index on loopback, as a folder."""
    folder = tmp_path / "index"
    (folder / "simple" / "demo").mkdir(parents=True)
    handler = partial(QuietHandler, directory=str(folder))
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_INDEX_URL", f"http://127.0.0.1:{server.server_port}/simple")
    for name in ("PIP_EXTRA_INDEX_URL", "PIP_FIND_LINKS", "PIP_NO_INDEX"):
        monkeypatch.delenv(name, raising=False)
    yield folder
    server.shutdown()
    server.server_close()
    thread.join()


def tree_files(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not path.is_symlink()
    }


def wheel_of(files: dict[str, bytes]) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            archive.writestr(name, data)
        archive.writestr("demo-1.0.dist-info/RECORD", "")
    return out.getvalue()


class Release:
    """A project, its composed tree, and the images of it."""

    def __init__(
        self, project: Project, folder: Path, index: Path, **removed: bytes
    ) -> None:
        self.project = project
        assert run("lock", cwd=project.folder).code == 0
        done = run("compose", "--out", folder / "tree", cwd=project.folder)
        assert done.code == 0, done.err
        self.tree = tree_files(folder / "tree")
        self.package = {n: d for n, d in self.tree.items() if n.startswith("pkg/")}
        base = {n: d for n, d in self.package.items() if n != "pkg/new.py"}
        gone = {f"pkg/{name}.py": data for name, data in removed.items()}
        wheel = wheel_of({**base, **COMPILED, **gone})
        (index / WHEEL).write_bytes(wheel)
        page = f'<a href="../../{WHEEL}">{WHEEL}</a>'
        (index / "simple" / "demo" / "index.html").write_text(page)
        self.wheel = sha256(wheel).hexdigest()

    def image(self, name: str, package: dict[str, bytes]) -> None:
        layers = [
            tree_layer(dict(package), SITE),
            tree_layer(dict(self.tree), "opt/x"),
            Tar().symlink("opt/x/link", "pkg/core.py").done(),
        ]
        write_layout(self.project.folder / "images" / name, build_image(layers))

    def list_image(self, name: str) -> None:
        rule = sha256(VERSION).hexdigest()
        with (self.project.folder / "series.toml").open("a") as file:
            file.write(
                f'\n[[image]]\nref = "oci:images/{name}"\nplatform = "linux/amd64"\n'
                f'roots = [{{ tree = "pkg", path = "/{SITE}/pkg", kind = "package" }},'
                ' { tree = ".", path = "/opt/x", kind = "checkout" }]\n'
                f'wheel = {{ pypi = "demo==1.0", sha256 = "{self.wheel}" }}\n'
                f'allow = [{{ path = "pkg/_version.py", sha256 = "{rule}" }}]\n'
                'unpackaged = ["pkg/deep/**"]\n'
            )

    def verify(self, *arguments: str | Path) -> Result:
        return run("verify-image", "--json", *arguments, cwd=self.project.folder)


@pytest.fixture
def release(project: Project, tmp_path: Path, index: Path) -> Release:
    return Release(project, tmp_path, index)


def installed(release: Release, **changes: bytes) -> dict[str, bytes]:
    files = {**release.package, **COMPILED, "pkg/_version.py": VERSION}
    del files["pkg/deep/er/util.py"]
    for name, data in changes.items():
        files[f"pkg/{name}"] = data
    return files


def test_the_image_of_the_series(release: Release, index: Path) -> None:
    release.image("r1", installed(release))
    release.list_image("r1")
    done = release.verify()
    assert done.code == 0, done.out
    document = done.json
    package, checkout = document["roots"]
    assert (package["kind"], package["modes"]) == ("package", "assumed")
    assert package["untracked"] == {
        "compiled": {"ignored": 1},
        "generated": {"ignored": 1},
        "vendored": {"ignored": 1},
    }
    assert (checkout["kind"], checkout["modes"]) == ("checkout", "checked")
    assert document["warnings"] == []
    (rule,) = [d for d in document["details"] if d["path"] == "pkg/deep/er/util.py"]
    assert rule["why"] == "not packaged, by the rule 'pkg/deep/**'"
    assert document["image"]["platform"] == "linux/amd64"
    # The wheel is cached by its digest: the index is not needed again.
    (index / WHEEL).unlink()
    assert release.verify("--offline").code == 0
    # Named, and not only listed, it is verified in the same way.
    assert release.verify("oci:images/r1").json["roots"] == document["roots"]


@pytest.mark.parametrize(
    "changes",
    [
        {"_C.abi3.so": b"\x7fELF swapped!"},
        {"third_party/x.py": b"x = 2\n"},
        {"third_party/y.py": b""},
        {"_version.py": b"version = '2.0'\n"},
    ],
)
def test_untracked_files_are_judged(
    release: Release, changes: dict[str, bytes]
) -> None:
    release.image("r1", installed(release, **changes))
    release.list_image("r1")
    done = release.verify()
    assert done.code == 1
    (detail,) = [d for d in done.json["details"] if d["status"] == "extra"]
    assert detail["path"] == "pkg/" + next(iter(changes))


def test_file_of_the_base_that_the_series_removed(
    project: Project, tmp_path: Path, index: Path
) -> None:
    """It is the wheel's, and yet no part of the composition."""
    old = (project.repo.path / "pkg/other.py").read_bytes()
    project.add("trim", ("trim: remove a file\n", {"pkg/other.py": None})).save()
    release = Release(project, tmp_path, index, other=old)
    release.image("r1", installed(release))
    release.list_image("r1")
    assert release.verify().code == 0
    release.image("r1", {**installed(release), "pkg/other.py": old})
    done = release.verify()
    assert (done.code, done.json["reason"]["extra"]) == (1, 1)
    (detail,) = [d for d in done.json["details"] if d["status"] == "extra"]
    assert (detail["path"], detail["why"]) == (
        "pkg/other.py",
        "the base's and the pinned wheel's, but removed",
    )


def test_another_wheel_of_that_version(release: Release, index: Path) -> None:
    (index / WHEEL).write_bytes(wheel_of({"pkg/evil.py": b""}))
    release.image("r1", installed(release))
    release.list_image("r1")
    done = release.verify()
    assert done.code == 4
    assert release.wheel in done.json["error"]["message"]


def test_all_images_are_verified_and_the_worst_decides(release: Release) -> None:
    release.image("r1", installed(release))
    release.image("r2", installed(release, **{"core.py": b"other\n"}))
    for name in ("r1", "r2", "r3"):
        release.list_image(name)
    done = release.verify()
    verdicts = [document["verdict"] for document in done.json]
    assert verdicts == ["match", "mismatch", "unverifiable"]
    assert done.code == 3


def test_several_locks(release: Release, tmp_path: Path) -> None:
    """A rolling release: the image may be of this lock or of the one before."""
    folder = release.project.folder
    before = Path(shutil.copytree(folder, tmp_path / "before"))
    old = json.loads((before / "series.lock").read_text())["content"]

    text = (folder / "series.toml").read_text()
    head, _, last = text.rpartition("[[set]]")
    (folder / "series.toml").write_text(head)
    assert run("lock", cwd=folder).code == 0
    new = json.loads((folder / "series.lock").read_text())["content"]
    assert (new["tree"] != old["tree"]) and "gamma" in last

    release.image("old", installed(release))
    root = ("--root", ".=/opt/x")
    locks = ("--lock", "series.lock", "--lock", before / "series.lock")
    assert release.verify("oci:images/old", *root).code == 1
    done = release.verify("oci:images/old", *root, *locks)
    assert done.code == 0, done.out
    composition = run("compose", "--json", cwd=before).json["composition"]
    assert done.json["expected"] == f"composition {composition}"

    # Of neither: the nearest is what is compared, and the locks explain it.
    release.tree["README.md"] = b"# neither\n"
    release.image("neither", installed(release))
    done = release.verify("oci:images/neither", *root, *locks)
    assert done.code == 1
    assert [d["path"] for d in done.json["details"]] == ["README.md"]
    about = {item["about"] for item in done.json["explains"]}
    assert about == {"image", "file"}


def test_a_bad_lock_is_an_error_and_no_verdict(release: Release) -> None:
    release.image("r1", installed(release))
    (release.project.folder / "bad.lock").write_text("{")
    arguments = ("oci:images/r1", "--root", ".=/opt/x", "--lock", "bad.lock")
    done = release.verify(*arguments)
    assert done.code == 3
    assert set(done.json) == {"error"}


def test_a_root_elsewhere_is_said_in_one_sentence(release: Release) -> None:
    release.image("r1", installed(release))
    done = run(
        "verify-image", "oci:images/r1", "--root", "pkg=/usr/lib/python3/pkg",
        cwd=release.project.folder,
    )  # fmt: skip
    assert done.code == 1
    assert "the image has no /usr/lib/python3/pkg; it has /usr/lib" in done.out
    assert f"hint: --root pkg=/{SITE}/pkg" in done.out
    assert "pkg/core.py" not in done.out


def test_a_layer_that_lies_is_told_before_anything_else(release: Release) -> None:
    wrong = build_image([Tar().file("x", "y").done()], diff_ids=["sha256:" + "0" * 64])
    write_layout(release.project.folder / "images" / "r1", wrong)
    done = release.verify("oci:images/r1", "--root", ".=/opt/x")
    assert (done.code, done.json["reason"]["code"]) == (4, "diff-id-mismatch")


def test_a_tree_of_a_repository(release: Release) -> None:
    release.image("r1", installed(release))
    repo = release.project.repo
    place = ("--root", ".=/opt/x", "--repo", repo.path)
    for named in (repo.tree, repo.head):
        done = release.verify("oci:images/r1", *place, "--tree", named)
        assert done.code == 0, done.out
    base = repo.git("rev-parse", "base^{tree}").strip()
    done = release.verify("oci:images/r1", *place, "--tree", base)
    assert (done.code, done.json["verdict"]) == (1, "mismatch")
    done = release.verify("oci:images/r1", *place, "--tree", "0" * 40)
    assert (done.code, set(done.json)) == (4, {"error"})


@pytest.mark.parametrize(
    ("left_out", "label"),
    [
        ("ad", "the series without a and d"),
        ("bc", "the series without b and c"),
        ("abd", "only c"),
        ("cd", "the series up to b/0001-b.patch"),
        ("b", "the series without b"),
    ],
)
def test_image_of_any_subset_is_named(
    make_series: Callable[..., Project], tmp_path: Path, left_out: str, label: str
) -> None:
    project = make_series()
    project.base({"pkg/__init__.py": "", **{f"pkg/{n}.py": "x = 0\n" for n in "abcd"}})
    for name in "abcd":
        project.add(name, (f"{name}\n", {f"pkg/{name}.py": "x = 1\n"}))
    project.save()
    assert run("lock", cwd=project.folder).code == 0
    names = [part for name in left_out for part in ("--without", name)]
    tree = tmp_path / "tree"
    assert run("compose", *names, "--out", tree, cwd=project.folder).code == 0
    arguments = ("verify-image", f"rootfs:{tree}", "--root", ".=/", "--json")
    document = run(*arguments, cwd=project.folder).json
    first = document["explains"][0]
    assert (first["relation"], first["label"]) == ("equals", label)
