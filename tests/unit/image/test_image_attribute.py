# SPDX-License-Identifier: Apache-2.0
"""Which composition an image is."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from images import PACKAGE_ROOT, SITE, Demo, build_image, tree_layer, write_layout

from stackctl.image.attribute import Candidate, Touch
from stackctl.image.expectation import MODE_FILE, folder_tree
from stackctl.image.layers import blob_id
from stackctl.image.report import Report
from stackctl.image.roots import PACKAGE, Root
from stackctl.image.verify import Request, verify


class Known:
    """Three states of the demo tree: base, after one patch, and a set left out."""

    def __init__(self, whole: dict[str, bytes]) -> None:
        base = whole | {"demo/core.py": b"VALUE = 0\n", "demo/sub/deep.py": b"old"}
        self.states = {
            "the base": base,
            "after fast/0001": base | {"demo/core.py": whole["demo/core.py"]},
            "the series without slow": whole | {"demo/sub/deep.py": b"old"},
        }

    def trees(self) -> Iterable[Candidate]:
        for label, files in self.states.items():
            entries = {
                name.encode(): (MODE_FILE, blob_id(data))
                for name, data in files.items()
            }
            yield Candidate("base" if "base" in label else "subset", label, entries)

    def touching(self, path: bytes) -> Sequence[Touch]:
        return [Touch("fast", "0001")] if path == b"demo/core.py" else []


def report(folder: Path, changes: dict[str, bytes]) -> Report:
    demo = Demo()
    expected = folder_tree(demo.write(folder / "expected"))
    files = {**demo.package(), **changes}
    layout = write_layout(folder / "image", build_image([tree_layer(files, SITE)]))
    request = Request(
        f"oci:{layout}", [expected], (Root("demo", PACKAGE_ROOT, PACKAGE),)
    )
    return verify(request, Known(demo.files))


def test_image_of_another_state(tmp_path: Path) -> None:
    explains = report(
        tmp_path, {"demo/core.py": b"VALUE = 0\n", "demo/sub/deep.py": b"old"}
    ).explains
    assert explains[0]["text"] == "equals the base"
    assert explains[1]["path"] == "demo/core.py"
    assert explains[1]["touched_by"] == [{"set": "fast", "patch": "0001"}]
    assert explains[1]["state"] == "base"


def test_image_without_a_set(tmp_path: Path) -> None:
    explains = report(tmp_path, {"demo/sub/deep.py": b"old"}).explains
    assert explains[0]["relation"] == "equals"
    # A patch of one set and the series without the other have the same files here.
    assert explains[0]["label"] == "after fast/0001"
    assert explains[0]["also"] == ["the series without slow"]


def test_image_of_no_state(tmp_path: Path) -> None:
    explains = report(
        tmp_path, {"demo/sub/deep.py": b"old", "demo/core.py": b"mine"}
    ).explains
    assert (explains[0]["relation"], explains[0]["differing"]) == ("nearest", 1)
    states = {item["path"]: item["state"] for item in explains[1:]}
    assert states == {"demo/core.py": "unknown", "demo/sub/deep.py": "base"}


def test_matching_image_needs_no_explanation(tmp_path: Path) -> None:
    assert report(tmp_path, {}).explains == []
