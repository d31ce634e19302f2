# SPDX-License-Identifier: Apache-2.0
"""The command: documents, exit codes, and what a person reads."""

import json
from pathlib import Path

import pytest
from images import (
    PACKAGE_ROOT,
    SITE,
    Demo,
    Tar,
    build_image,
    sha256,
    tree_layer,
    write_layout,
)

from stackctl.cli import run as stackctl

KEYS = {"verdict", "reason", "roots", "details", "warnings", "explains", "image", "ns"}


@pytest.fixture
def expected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    return str(Demo().write(tmp_path / "expected"))


def image(folder: Path, *layers: Tar) -> str:
    tars = [tree_layer(Demo().package(), SITE), *(layer.done() for layer in layers)]
    return f"oci:{write_layout(folder / 'image', build_image(tars))}"


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = stackctl(["verify-image", *arguments])
    captured = capsys.readouterr()
    return int(code), captured.out, captured.err


def test_match(
    tmp_path: Path, expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    common = ["--expect", expected, "--root", f"demo={PACKAGE_ROOT}"]
    code, out, err = run(capsys, image(tmp_path), *common, "--json")
    document = json.loads(out)
    assert (code, err) == (0, "")
    assert set(document) >= KEYS
    assert document["verdict"] == "match"
    (root,) = document["roots"]
    assert (root["tree_path"], root["image_path"]) == ("demo", PACKAGE_ROOT)
    assert (root["kind"], root["modes"]) == ("package", "assumed")
    assert root["expected_tree"] == root["installed_tree"]
    assert root["files"] == {
        "matched": 4,
        "missing": 0,
        "modified": 0,
        "extra": 0,
        "ignored": 0,
    }
    code, out, _ = run(capsys, image(tmp_path), *common)
    assert code == 0 and out.startswith("match: oci:")


def test_mismatch_and_strict(
    tmp_path: Path, expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    common = ["--expect", expected, "--root", f"demo={PACKAGE_ROOT}"]
    bad = image(tmp_path, Tar().file(f"{SITE}/demo/core.py", "VALUE = 2\n"))
    code, out, _ = run(capsys, bad, *common, "--diff", "demo/core.py")
    assert code == 1 and "+VALUE = 2" in out and "demo/core.py" in out
    pth = image(tmp_path, Tar().file(f"{SITE}/x.pth", "import os\n"))
    assert run(capsys, pth, *common)[0] == 0
    assert run(capsys, pth, *common, "--strict")[0] == 1
    quiet = [*common, "--strict", "--allow", f"/{SITE}/x.pth"]
    assert run(capsys, pth, *quiet)[0] == 0


def test_unverifiable(
    tmp_path: Path, expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    common = ["--expect", expected, "--root", f"demo={PACKAGE_ROOT}", "--json"]
    code, out, _ = run(capsys, f"oci:{tmp_path}", *common)
    assert (code, json.loads(out)["verdict"]) == (3, "unverifiable")
    wrong = build_image([Tar().done()], diff_ids=[sha256(b"x")])
    layout = write_layout(tmp_path / "wrong", wrong)
    code, out, _ = run(capsys, f"oci:{layout}", *common)
    assert (code, json.loads(out)["reason"]["code"]) == (4, "diff-id-mismatch")
    code, out, _ = run(capsys, "docker://127.0.0.1:9/x", *common, "--plain-http")
    assert (code, json.loads(out)["verdict"]) == (6, "unverifiable")


@pytest.mark.parametrize(
    "arguments",
    [
        ["ftp:x", "--root", "demo=/x"],
        ["oci:x"],
        ["oci:x", "--root", "demo"],
        ["oci:x", "--root", "nope=/x"],
        ["oci:x", "--root", "demo=/x", "--platform", "amd64"],
        ["oci:x", "--root", "demo=/x", "--tree", "0" * 40],
        ["docker://x/y", "--root", "demo=/x", "--offline"],
        ["oci:x", "--root", "demo=/x", "--max-layer-size", "0"],
        ["oci:x", "--root", "demo=/x", "--max-image-size", "-1"],
        ["oci:x", "--root", "demo=/x", "--max-ratio", "0"],
        ["oci:x", "--root", "demo=/x", "--max-entries", "0"],
    ],
)
def test_usage(
    expected: str, capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    code, out, _ = run(capsys, *arguments, "--expect", expected, "--json")
    assert code == 2
    assert json.loads(out)["error"]["message"]


EXTRA = b"x = 1\n"
SERIES = f"""schema = 1
name = "demo"

[base]
path = "base"
tree = "{"0" * 40}"
"""


def listed(ref: str) -> str:
    return (
        f'{SERIES}\n[[image]]\nref = "{ref}"\n'
        f'roots = [{{ tree = "demo", path = "{PACKAGE_ROOT}", kind = "package" }}]\n'
        f'allow = [{{ path = "demo/extra.py", sha256 = "{sha256(EXTRA)[7:]}" }}]\n'
    )


@pytest.mark.parametrize("spelt", ["", "escaped", "other"])
def test_series_that_lists_an_image_counts(
    tmp_path: Path, expected: str, capsys: pytest.CaptureFixture[str], spelt: str
) -> None:
    ref = image(tmp_path, Tar().file(f"{SITE}/demo/extra.py", EXTRA))
    written = {"escaped": ref.replace("oci", "o\\u0063i"), "other": "oci:other"}
    (tmp_path / "series.toml").write_text(listed(written.get(spelt, ref)))
    roots = ["--root", f"demo={PACKAGE_ROOT}"] if spelt == "other" else []
    code, out, _ = run(capsys, ref, "--expect", expected, "--json", *roots)
    document = json.loads(out)
    assert "error" not in document, out
    assert (document["verdict"] == "match") == (code == 0) == (spelt != "other")


@pytest.mark.parametrize("spoken_of", [False, True])
@pytest.mark.parametrize("holds", ["the tree", "a change", "no tar"])
def test_bad_series_counts_where_it_speaks_of_the_image(
    tmp_path: Path,
    expected: str,
    capsys: pytest.CaptureFixture[str],
    holds: str,
    spoken_of: bool,
) -> None:
    demo = Demo()
    if holds == "a change":
        demo.files["demo/core.py"] = b"VALUE = 0\n"
    package = tree_layer(demo.package(), SITE)
    layer = b"no tar" * 100 if holds == "no tar" else package
    ref = f"oci:{write_layout(tmp_path / 'image', build_image([layer]))}"
    said = f"# {ref}\n" if spoken_of else ""
    (tmp_path / "series.toml").write_text(f"{SERIES}{said}nonsense = 1\n")
    options = ["--expect", expected, "--root", f"demo={PACKAGE_ROOT}", "--json"]
    code, out, _ = run(capsys, ref, *options)
    document = json.loads(out)
    if spoken_of:
        error = json.dumps(document["error"])
        assert code == 3 and "series.toml" in error and "nonsense" in error
        return
    assert code == {"the tree": 0, "a change": 1, "no tar": 3}[holds]
    told = [w["message"] for w in document["warnings"] if w["code"] == "not-explained"]
    assert len(told) == (holds == "a change")
    assert all("series.toml" in message for message in told)
