# SPDX-License-Identifier: Apache-2.0
"""A release image without a daemon: what it holds, that it is the same everywhere."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from images import Tar, build_image, write_layout
from overlaid import BASE, PACKAGES, Shop, demo, installed
from support import Project, Result, files_below, run


@pytest.fixture
def shop(make_series: Callable[..., Project], tmp_path: Path) -> Shop:
    return Shop(demo(make_series), tmp_path)


def test_the_image_holds_the_composition(shop: Shop) -> None:
    done = shop.overlay("out:r1")
    assert done.code == 0, done.out
    document = done.json
    assert document["changed"] == [f"/{PACKAGES}/pkg/core.py"]
    assert document["added"] == [
        f"/{PACKAGES}/pkg/new/fresh.py",
        f"/{PACKAGES}/pkg/turns/inside.json",
    ]
    assert len(document["deleted"]) == 4
    verified = shop.verify("out:r1", "--strict")
    assert verified.code == 0, verified.out
    assert verified.json["image"]["digest"] == document["digest"]
    assert verified.json["roots"][0]["files"]["matched"] == 6
    base = shop.verify("base")
    assert (base.code, base.json["verdict"]) == (1, "mismatch")
    assert base.json["explains"][0]["label"] == "the base"


def test_the_layer_has_what_it_should_and_no_more(shop: Shop) -> None:
    document = shop.overlay("out").json
    layer = shop.layer("out", document["layer"]["digest"])
    files = {name for name, (kind, _) in layer.items() if kind != "5"}
    pkg = f"{PACKAGES}/pkg"
    assert files == {
        f"{pkg}/core.py",
        f"{pkg}/new/fresh.py",
        f"{pkg}/turns/inside.json",
        f"{pkg}/.wh.gone.py",
        f"{pkg}/.wh.old",
        f"{pkg}/__pycache__/.wh.core.cpython-311.pyc",
        f"{pkg}/__pycache__/.wh.core.cpython-311.opt-1.pyc",
        f"{pkg}/__pycache__/.wh.gone.cpython-311.pyc",
        f"{pkg}/__pycache__/.wh.gone.cpython-311.opt-1.pyc",
        "usr/share/stackctl/composition.json",
    }
    # Folders that are there keep their mode.
    assert layer["opt"] == ("5", 0o750)
    assert layer[f"{pkg}/new"] == ("5", 0o755)


def test_bytecode_of_a_changed_file_is_gone(shop: Shop) -> None:
    """The old bytecode would run in place of a source of equal size and time."""
    shop.overlay("out")
    verified = shop.verify("out")
    assert verified.json["warnings"] == []
    assert "bytecode" in verified.json["roots"][0]["untracked"]


def test_the_same_bytes_everywhere(shop: Shop, tmp_path: Path) -> None:
    shop.overlay("one")
    arguments = [
        "image", "overlay", shop.base, "--out", f"oci:{tmp_path / 'two'}", *shop.root,
        "-C", str(shop.project.folder),
    ]  # fmt: skip
    done = run(
        *arguments, cwd=tmp_path, umask=0o077,
        env={"TZ": "Pacific/Chatham", "LC_ALL": "C", "PYTHONHASHSEED": "77",
             "STACKCTL_CACHE_DIR": str(tmp_path / "other-cache")},
    )  # fmt: skip
    assert done.code == 0, done.err
    one, two = files_below(tmp_path / "one"), files_below(tmp_path / "two")
    assert {name: data for name, (_, data) in one.items()} == {
        name: data for name, (_, data) in two.items()
    }


def test_labels_and_the_file_say_which_composition(shop: Shop) -> None:
    document = shop.overlay("out").json
    label = run("image", "label", "--json", cwd=shop.project.folder).json
    blobs = shop.folder / "out/blobs/sha256"
    manifest = json.loads((blobs / document["digest"][7:]).read_bytes())
    config = json.loads((blobs / manifest["config"]["digest"][7:]).read_bytes())
    labels = config["config"]["Labels"]
    assert labels["a"] == "b"
    assert label["labels"].items() <= labels.items()
    assert label["annotations"].items() <= manifest["annotations"].items()
    base = shop.verify("base").json["image"]["digest"]
    assert labels["org.opencontainers.image.base.digest"] == base
    assert config["config"]["Env"] == ["PATH=/bin"]
    assert len(config["history"]) == 3
    assert label["manifest"]["path"] == "/usr/share/stackctl/composition.json"
    content = json.loads(label["manifest"]["content"])
    assert content["composition"] == document["composition"]
    layer = (blobs / document["layer"]["digest"][7:]).read_bytes()
    assert label["manifest"]["content"].encode() in layer
    lines = run("image", "label", cwd=shop.project.folder).out.splitlines()
    assert dict(line.split("=", 1) for line in lines) == label["labels"]


def test_time_is_another_where_content_is(shop: Shop) -> None:
    """Bytecode kept in a volume is bound to a source by its time and size alone."""
    from stackctl.release.overlay import content_time

    assert content_time(b"VALUE = 1\n") != content_time(b"VALUE = 2\n")
    assert 10**9 <= content_time(b"") < 1_600_000_000


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("csrc/kernel.cu", "// other\n"),
        ("pkg/ops/fast.cu", "// new\n"),
        ("setup.py", "setup(1)\n"),
        ("requirements/cuda.txt", "torch\n"),
        ("requirements.txt", "torch\n"),
        ("CMakeLists.txt", "x\n"),
        ("other/__init__.py", ""),
    ],
)
def test_sets_that_need_a_build_are_refused(
    make_series: Callable[..., Project], tmp_path: Path, path: str, text: str
) -> None:
    project = demo(make_series)
    project.add("built", ("built: change\n", {path: text, "pkg/kept.py": "K = 2\n"}))
    shop = Shop(project, tmp_path)
    done = shop.overlay("out")
    assert done.code == 3
    error = done.json["error"]
    assert (error["kind"], error["where"]["files"][0]["path"]) == ("needs-build", path)
    assert "built/0001-" in error["message"]
    assert not (tmp_path / "out").exists()
    context = run(
        "image", "label", "--context", tmp_path / "context", "--package", "pkg",
        cwd=project.folder,
    )  # fmt: skip
    assert context.code == 3
    assert not (tmp_path / "context").exists()
    # Without the set it is Python only.
    assert shop.overlay("out", "--without", "built").code == 0


def test_a_base_that_is_not_the_base_is_refused(shop: Shop) -> None:
    for number, changes in enumerate(
        ({"pkg/kept.py": "KEPT = 2\n"}, {"pkg/evil.py": "evil\n"})
    ):
        image = installed({**BASE, **changes})
        layout = write_layout(shop.folder / f"bad{number}", image)
        done = shop.overlay("out", base=f"oci:{layout}")
        assert (done.code, done.json["error"]["kind"]) == (4, "base-image")
    tampered = installed(BASE)
    layout = write_layout(shop.folder / "tampered", tampered)
    (layout / "blobs/sha256" / tampered.layers[0][7:]).write_bytes(b"x")
    done = shop.overlay("out", base=f"oci:{layout}")
    assert (done.code, done.json["error"]["where"]["code"]) == (4, "size-mismatch")
    assert not (shop.folder / "out").exists()


def test_no_root_is_guessed_as_by_verify_image(shop: Shop) -> None:
    done = run(
        "image", "overlay", shop.base, "--out", f"oci:{shop.folder / 'out'}",
        "--package", "pkg", "--allow", "pkg/*.so", "--json",
        cwd=shop.project.folder,
    )  # fmt: skip
    verified = run("verify-image", shop.base, "--json", cwd=shop.project.folder)
    assert (done.code, done.json["error"]["kind"]) == (2, "no-roots")
    for key in ("kind", "message", "hint"):
        assert done.json["error"][key] == verified.json["error"][key]
    assert not (shop.folder / "out").exists()


def over(shop: Shop, layer: Tar, out: str, *arguments: str) -> Result:
    """Lay the composition over an image with one layer more."""
    image = build_image([*installed(BASE).tars, layer.done()])
    layout = write_layout(shop.folder / f"{out}-base", image)
    return shop.overlay(out, *arguments, base=f"oci:{layout}")


def shares() -> Tar:
    return Tar().folder("usr").folder("usr/share").folder("usr/share/stackctl")


MANIFEST = "usr/share/stackctl/composition.json"


@pytest.mark.parametrize("target", ["/etc/passwd", "composition.json", "/nowhere"])
def test_a_link_in_the_place_of_the_manifest_is_replaced(
    shop: Shop, target: str
) -> None:
    layer = shares().folder("etc").file("etc/passwd", "root").symlink(MANIFEST, target)
    done = over(shop, layer, "out")
    assert done.code == 0, done.out
    files = shop.layer("out", done.json["layer"]["digest"])
    assert files[MANIFEST][0] == "0"
    assert not any(name.startswith(("etc", "nowhere")) for name in files)
    assert shop.verify("out").code == 0


def test_the_manifest_goes_where_linked_folders_lead(shop: Shop) -> None:
    layer = Tar().folder("usr").symlink("usr/share", "/srv/share")
    done = over(shop, layer, "out")
    assert done.code == 0, done.out
    files = shop.layer("out", done.json["layer"]["digest"])
    assert "srv/share/stackctl/composition.json" in files


@pytest.mark.parametrize(
    ("layer", "word"),
    [
        (Tar().symlink("usr", "usr"), "/usr is no folder"),
        (Tar().device("usr", 1, 3), "/usr is no folder"),
        (Tar().folder("usr").file("usr/share", "x"), "/usr/share is no folder"),
        (shares().folder(MANIFEST), "a folder of that name"),
        (
            Tar().folder("usr").symlink("usr/share", f"/{PACKAGES}/pkg/deep"),
            "inside the package",
        ),
    ],
)
def test_a_base_without_a_place_for_the_manifest_is_refused(
    shop: Shop, layer: Tar, word: str
) -> None:
    done = over(shop, layer, "out")
    assert (done.code, done.json["error"]["kind"]) == (3, "base-image")
    assert word in done.json["error"]["message"]
    assert not (shop.folder / "out").exists()


def test_bytecode_behind_a_link_is_cut_off(shop: Shop) -> None:
    """Python would take old bytecode from wherever `__pycache__` leads to."""
    cache = f"{PACKAGES}/pkg/__pycache__"
    tar = Tar().raw(installed(BASE, with_bytecode=False).tars[-1].rstrip(b"\0"))
    tar.data += bytes(-len(tar.data) % 512)
    tar.folder("var").folder("var/c").file("var/c/core.cpython-311.pyc", "old")
    image = build_image([tar.symlink(cache, "/var/c").done()])
    layout = write_layout(shop.folder / "linked", image)
    allow = ("--allow", "pkg/__pycache__")
    done = shop.overlay("out", *allow, base=f"oci:{layout}")
    assert done.code == 0, done.out
    files = shop.layer("out", done.json["layer"]["digest"])
    assert f"{PACKAGES}/pkg/.wh.__pycache__" in files
    assert shop.verify("out").code == 0


def test_a_composition_is_no_base(shop: Shop) -> None:
    """An overlay goes over the base, not over an overlay."""
    assert shop.overlay("one").code == 0
    done = shop.overlay("two", base=f"oci:{shop.folder / 'one'}")
    assert done.code == 4


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("rootfs:/", "--out", "oci:new"), 2),
        (("docker-archive:x.tar", "--out", "oci:new"), 2),
        (("oci:nowhere", "--out", "docker://host/x"), 2),
        (("oci:nowhere", "--out", "oci:new"), 3),
    ],
)
def test_usage(shop: Shop, arguments: tuple[str, ...], code: int) -> None:
    done = run("image", "overlay", *arguments, *shop.root, "--json",
               cwd=shop.project.folder)  # fmt: skip
    assert done.code == code
    assert done.json["error"]["message"]


def test_a_folder_that_is_not_empty(shop: Shop) -> None:
    (shop.folder / "out").mkdir()
    (shop.folder / "out" / "mine").write_text("x")
    done = shop.overlay("out")
    assert (done.code, done.json["error"]["kind"]) == (2, "out-exists")
    assert [p.name for p in (shop.folder / "out").iterdir()] == ["mine"]


def test_a_stale_lock(shop: Shop) -> None:
    text = (shop.project.folder / "series.toml").read_text()
    (shop.project.folder / "series.toml").write_text(text.rpartition("[[set]]")[0])
    for command in (["image", "label", "--json"],):
        done = run(*command, cwd=shop.project.folder)
        assert (done.code, done.json["error"]["kind"]) == (4, "stale-lock")
    done = shop.overlay("out")
    assert (done.code, done.json["error"]["kind"]) == (4, "stale-lock")


def test_the_context_for_a_containerfile(shop: Shop) -> None:
    target = shop.folder / "context"
    done = run("image", "label", "--context", target, "--package", "pkg", "--json",
               cwd=shop.project.folder)  # fmt: skip
    assert done.code == 0, done.out
    assert done.json["context"]["files"] == 3
    names = {
        str(path.relative_to(target)) for path in target.rglob("*") if path.is_file()
    }
    assert names == {
        "composition.json",
        "options",
        "removed",
        "files/pkg/core.py",
        "files/pkg/new/fresh.py",
        "files/pkg/turns/inside.json",
    }
    removed = (target / "removed").read_text().splitlines()
    assert "pkg/__pycache__/core.*.pyc" in removed
    assert "pkg/gone.py" in removed
    options = (target / "options").read_text().splitlines()
    assert all(line.startswith("--label=example.stackctl.") for line in options)
