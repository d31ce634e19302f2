# SPDX-License-Identifier: Apache-2.0
"""Replaying published locks that real git made in a work tree."""

import hashlib
import json
import shutil
from pathlib import Path

import pytest
from pulls import Upstream, lines
from support import git, run


@pytest.fixture
def upstream(tmp_path: Path) -> Upstream:
    return Upstream.make(tmp_path / "upstream")


class Publisher:
    """Publishes locks as the teams do: merge, diff, digest, all in a work tree."""

    def __init__(self, upstream: Upstream, folder: Path) -> None:
        self.upstream = upstream
        self.folder = folder
        folder.mkdir()

    def pulls(self, *numbers: int, disposition: str = "merged") -> list[dict]:
        return [
            {
                "number": number,
                "head": self.upstream.heads[number],
                "ref": f"refs/pull/{number}/head",
                "title": f"Pull {number}",
                "disposition": disposition,
            }
            for number in numbers
        ]

    def diff(self, *options: str, base: str = "", result: str = "HEAD") -> bytes:
        repo = self.upstream.repo
        return git(
            "diff", *(options or ("--binary", "--full-index")),
            f"{base or self.upstream.base}..{result}", cwd=repo.path,
        )  # fmt: skip

    def lock(self, name: str, pulls: list[dict], **changes: object) -> Path:
        """Write the lock of what is checked out."""
        repo = self.upstream.repo
        patch = changes.pop("patch", None)
        data = self.diff() if patch is None else patch
        assert isinstance(data, bytes)
        document = {
            "schema_version": 1,
            "name": name,
            "base": {
                "repository": str(repo.path),
                "ref": "refs/heads/main",
                "commit": self.upstream.base,
            },
            "composition_strategy": "merge",
            "pull_requests": pulls,
            "source_patches": [],
            "result": {
                "tree": repo.tree,
                "patch": f"{name}.patch",
                "patch_sha256": hashlib.sha256(data).hexdigest(),
            },
            **changes,
        }
        path = self.folder / f"{name}.lock.json"
        path.write_text(json.dumps(document))
        return path

    def merged(self, name: str, *numbers: int, **changes: object) -> Path:
        self.upstream.tree_of_merges(*(self.upstream.heads[n] for n in numbers))
        return self.lock(name, self.pulls(*numbers), **changes)


@pytest.fixture
def publisher(upstream: Upstream, tmp_path: Path) -> Publisher:
    return Publisher(upstream, tmp_path / "locks")


def replay(publisher: Publisher, *locks: Path, code: int = 0, repo: Path | None = None):
    result = run("replay", *locks, "--repo", repo or publisher.upstream.repo.path,
                 "--json")  # fmt: skip
    assert result.code == code, result.out + result.err
    return result.json


def test_many_locks_in_one_call(publisher: Publisher) -> None:
    upstream = publisher.upstream
    upstream.pull(1, {"a.py": lines(_10="ten"), "data.bin": b"\0\1new"})
    upstream.pull(2, {"b.py": None, "moved/b.py": lines(_5="five")})
    upstream.pull(3, {"no-newline": "x"}, onto=upstream.heads[1])
    upstream.on(upstream.base)
    (upstream.repo.path / "run.sh").chmod(0o755)
    upstream.repo.commit("executable\n")
    upstream.point(4)
    locks = [
        publisher.merged("one", 1),
        publisher.merged("two", 1, 2),
        publisher.merged("three", 2, 1, 3, 4),
        publisher.merged("four", 3, 1),
    ]
    documents = replay(publisher, *locks)
    for document in documents:
        assert document["equal"] and document["patch_equal"]
        assert document["patch_applies"]
        assert document["tree"] == document["expected_tree"]
    assert [len(each["steps"]) for each in documents] == [1, 2, 4, 2]
    single = replay(publisher, locks[1])
    assert isinstance(single, dict) and single["equal"]
    assert upstream.repo.git("status", "--porcelain") == ""


def test_composition_equal_to_the_base_has_an_empty_patch(publisher: Publisher) -> None:
    upstream = publisher.upstream
    upstream.pull(1, {"a.py": lines(_10="ten")})
    upstream.repo.git("checkout", "-q", "main")
    # The same change under another id: the merge changes nothing.
    upstream.base = upstream.repo.commit("again\n", {"a.py": lines(_10="ten")})
    document = replay(publisher, publisher.merged("same", 1))
    assert document["equal"] and document["patch_equal"] and document["patch_applies"]
    assert document["patch_sha256"] == hashlib.sha256(b"").hexdigest()
    assert document["steps"][0]["disposition"] == "merged"
    # By ancestry.
    upstream.on(upstream.base)
    upstream.point(2)
    path = publisher.lock("in", publisher.pulls(2, disposition="already_in_base"))
    document = replay(publisher, path)
    assert document["equal"]
    assert document["steps"][0]["disposition"] == "already-in-base"


def test_wrong_tree_names_step_and_paths(publisher: Publisher) -> None:
    upstream = publisher.upstream
    upstream.pull(1, {"a.py": lines(_10="ten")})
    upstream.pull(2, {"b.py": lines(_10="ten")})
    upstream.pull(3, {"docs/read.md": "other\n"})
    # Published was what an earlier head of 2 gave.
    heads = dict(upstream.heads)
    upstream.tree_of_merges(heads[1], heads[2], heads[3])
    tree = upstream.repo.tree
    patch = publisher.diff()
    upstream.pull(2, {"b.py": lines(_10="TEN")})
    path = publisher.lock(
        "wrong",
        publisher.pulls(1, 2, 3),
        result={
            "tree": tree,
            "patch": "integration.patch",
            "patch_sha256": hashlib.sha256(patch).hexdigest(),
        },
    )
    document = replay(publisher, path, code=1)
    assert not document["equal"] and document["patch_equal"] is False
    difference = document["difference"]
    assert difference["step"] == 2 and difference["count"] == 1
    (found,) = difference["paths"]
    assert found["path"] == "b.py" and found["expected"] != found["found"]
    text = run("replay", path, "--repo", upstream.repo.path).out
    assert "b.py" in text and "pull request #2" in text
    # Without the tree's objects, the published patch beside the lock tells the same.
    mirror = publisher.folder / "mirror.git"
    git("init", "-q", "--bare", str(mirror))
    for ref in (upstream.base, *upstream.heads.values()):
        git("--git-dir", str(mirror), "fetch", "-q", str(upstream.repo.path), ref)
    document = replay(publisher, path, code=1, repo=mirror)
    assert document["difference"]["paths"] is None and document["notes"]
    (path.parent / "integration.patch").write_bytes(patch)
    document = replay(publisher, path, code=1, repo=mirror)
    assert document["difference"]["published_tree_from"] == "patch"
    assert document["difference"]["paths"][0]["path"] == "b.py"


def test_published_tree_that_leaves_a_pull_out(publisher: Publisher) -> None:
    upstream = publisher.upstream
    upstream.pull(1, {"a.py": lines(_10="ten")})
    upstream.pull(2, {"b.py": lines(_10="ten")})
    upstream.tree_of_merges(upstream.heads[1])
    path = publisher.lock("short", publisher.pulls(1, 2))
    document = replay(publisher, path, code=1)
    assert document["difference"]["equal_after"] == 1
    assert document["difference"]["step"] == 2


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--binary",), "without --full-index"),
        (("--binary", "--full-index", "--no-prefix"), "noprefix"),
        (("--binary", "--full-index", "--inter-hunk-context=1"), "interHunk"),
        (("--full-index",), "without --binary"),
    ],
)
def test_known_ways_of_making_the_patch_are_tried_and_named(
    publisher: Publisher, options: tuple[str, ...], words: str
) -> None:
    upstream = publisher.upstream
    upstream.pull(1, {"a.py": lines(_10="ten", _18="x"), "data.bin": b"\0other"})
    upstream.tree_of_merges(upstream.heads[1])
    patch = publisher.diff(*options)
    assert patch != publisher.diff()
    document = replay(publisher, publisher.lock("v", publisher.pulls(1), patch=patch))
    assert document["patch_equal"] and words in document["patch_variant"]


def test_foreign_patch_digest_is_not_equal(publisher: Publisher) -> None:
    publisher.upstream.pull(1, {"a.py": lines(_10="ten")})
    publisher.upstream.tree_of_merges(publisher.upstream.heads[1])
    path = publisher.lock("foreign", publisher.pulls(1), patch=b"something else\n")
    document = replay(publisher, path, code=1)
    assert document["equal"] and document["patch_equal"] is False
    assert document["patch_variant"] is None and document["patch_applies"]


def test_pinned_branch_and_its_claims(publisher: Publisher) -> None:
    upstream = publisher.upstream
    one = upstream.pull(1, {"a.py": lines(_10="ten")})
    two = upstream.pull(2, {"b.py": lines(_10="ten")})
    upstream.pull(3, {"docs/read.md": "never taken\n"})
    upstream.tree_of_merges(one)
    upstream.repo.git("cherry-pick", two)
    composition = upstream.repo.head
    pinned = {
        "composition_strategy": "pinned_branch",
        "composition": {"ref": "refs/heads/integration", "commit": composition},
    }
    pulls = publisher.pulls(1, 2, 3, disposition="recorded_in_composition")
    document = replay(publisher, publisher.lock("pinned", pulls, **pinned))
    assert document["equal"] and document["patch_equal"]
    claims = {each["number"]: each["claim"] for each in document["steps"][1:]}
    assert claims == {1: "ancestry", 2: "patch-id", 3: "neither"}
    assert any("#3" in note for note in document["notes"])
    # A composition that does not stand on the base.
    upstream.repo.git("checkout", "-q", "--orphan", "alone")
    pinned["composition"]["commit"] = upstream.repo.commit("alone\n")
    path = publisher.lock("alone", [], **pinned)
    error = replay(publisher, path, code=4)["error"]
    assert error["kind"] == "base-not-an-ancestor"


def test_source_patches_are_applied_last(publisher: Publisher) -> None:
    upstream = publisher.upstream
    one = upstream.pull(1, {"a.py": lines(_10="ten")})
    upstream.tree_of_merges(one)
    upstream.repo.commit("source patch\n", {"a.py": lines(_10="ten", _50="fifty")})
    data = publisher.diff(base="HEAD^")
    (publisher.folder / "patches").mkdir()
    (publisher.folder / "patches/fix.patch").write_bytes(data)
    patches = [
        {
            "path": "patches/fix.patch",
            "sha256": hashlib.sha256(data).hexdigest(),
            "title": "Fix",
        }
    ]
    path = publisher.lock("patched", publisher.pulls(1), source_patches=patches)
    document = replay(publisher, path)
    assert document["equal"] and document["patch_equal"]
    assert document["steps"][1]["disposition"] == "applied"
    (publisher.folder / "patches/fix.patch").write_bytes(data + b"x")
    assert replay(publisher, path, code=4)["error"]["kind"] == "wrong-digest"
    (publisher.folder / "patches/fix.patch").unlink()
    assert replay(publisher, path, code=4)["error"]["kind"] == "missing-patch"


def test_cherry_picked_lock(publisher: Publisher) -> None:
    upstream = publisher.upstream
    head = upstream.pull(1, {"a.py": lines(_10="ten")}, {"b.py": lines(_3="three")})
    first = upstream.repo.git("rev-parse", f"{head}^")
    upstream.repo.git("checkout", "-q", "main")
    upstream.base = upstream.repo.commit("on\n", {"a.py": lines(_50="fifty")})
    upstream.repo.git("cherry-pick", first, head)
    pulls = publisher.pulls(1, disposition="cherry_picked")
    path = publisher.lock("picked", pulls, composition_strategy="cherry_pick")
    assert replay(publisher, path)["equal"]
    pulls[0]["commits"] = [first, head]
    path = publisher.lock("listed", pulls, composition_strategy="cherry_pick")
    assert replay(publisher, path)["equal"]


def test_source_lock_names_the_step_for_certain(publisher: Publisher) -> None:
    upstream = publisher.upstream
    one = upstream.pull(1, {"a.py": lines(_10="ten")})
    two = upstream.pull(2, {"b.py": lines(_10="ten")})
    upstream.on(upstream.base)
    merges = [upstream.merge(one), upstream.merge(two)]
    document = {
        "name": "later-form",
        "source": {"commit": merges[1], "tree": upstream.repo.tree},
        "upstream_base": upstream.base,
        "pull_requests": [
            {"number": 1, "head": one, "merge_commit": merges[0]},
            {"number": 2, "head": two, "merge_commit": merges[1]},
        ],
    }
    path = publisher.folder / "source.lock.json"
    path.write_text(json.dumps(document))
    found = replay(publisher, path)
    assert found["equal"] and found["patch_equal"] is None
    # Somebody amended the first merge.
    upstream.on(upstream.base)
    first = upstream.merge(one)
    upstream.repo.write({"docs/read.md": "slipped in\n"})
    upstream.repo.git("add", ".")
    upstream.repo.git("commit", "-q", "--amend", "--no-edit")
    first = upstream.repo.head
    second = upstream.merge(two)
    document["source"] = {"commit": second, "tree": upstream.repo.tree}
    document["pull_requests"][0]["merge_commit"] = first
    document["pull_requests"][1]["merge_commit"] = second
    path.write_text(json.dumps(document))
    difference = replay(publisher, path, code=1)["difference"]
    assert difference["step"] == 1 and difference["certain"]
    assert difference["paths"][0]["path"] == "docs/read.md"


def test_conflict_is_an_answer(publisher: Publisher) -> None:
    upstream = publisher.upstream
    upstream.pull(1, {"a.py": lines(_10="one")})
    upstream.pull(2, {"a.py": lines(_10="two")})
    upstream.pull(3, {"b.py": lines(_10="x")})
    good = publisher.merged("good", 1, 3)
    bad = publisher.lock("bad", publisher.pulls(1, 2))
    documents = replay(publisher, bad, good, code=5)
    assert not documents[0]["equal"] and documents[1]["equal"]
    assert documents[0]["steps"][1]["conflicts"][0]["path"] == "a.py"


def test_missing_objects_are_named(publisher: Publisher, tmp_path: Path) -> None:
    upstream = publisher.upstream
    upstream.pull(1, {"a.py": lines(_10="one")})
    path = publisher.merged("one", 1)
    document = json.loads(path.read_text())
    document["pull_requests"][0]["head"] = "1" * 40
    path.write_text(json.dumps(document))
    error = replay(publisher, path, code=4)["error"]
    assert error["kind"] == "missing-object" and "fetch" in error["hint"]
    assert "refs/pull/1/head" in error["hint"]
    # One bad lock does not take the others' answer away.
    good = publisher.merged("good", 1)
    documents = replay(publisher, path, good, code=4)
    assert documents[0]["error"]["kind"] == "missing-object" and documents[1]["equal"]


def test_shallow_and_partial_mirrors(publisher: Publisher, tmp_path: Path) -> None:
    upstream = publisher.upstream
    upstream.repo.git("checkout", "-q", "main")
    upstream.base = upstream.repo.commit("more\n", {"b.py": lines(_9="nine")})
    upstream.pull(1, {"a.py": lines(_10="one")})
    upstream.repo.git("checkout", "-q", "main")
    upstream.base = upstream.repo.commit("more\n", {"a.py": lines(_50="fifty")})
    path = publisher.merged("one", 1)
    url = f"file://{upstream.repo.path}"
    git("config", "uploadpack.allowFilter", "true", cwd=upstream.repo.path)
    git("config", "uploadpack.allowAnySHA1InWant", "true", cwd=upstream.repo.path)
    shallow = tmp_path / "shallow.git"
    git("init", "-q", "--bare", str(shallow))
    git("--git-dir", str(shallow), "fetch", "-q", "--depth=1", url, upstream.base,
        upstream.heads[1])  # fmt: skip
    error = replay(publisher, path, code=4, repo=shallow)["error"]
    assert error["kind"] == "unrelated-histories" and "shallow" in error["hint"]
    partial = tmp_path / "partial.git"
    git("clone", "-q", "--mirror", "--filter=blob:none", url, str(partial))
    error = replay(publisher, path, code=4, repo=partial)["error"]
    assert error["kind"] == "missing-object", error
    assert error["where"]["objects"]
    git("--git-dir", str(partial), "fetch", "-q", "--refetch", "--no-filter", "origin")
    assert replay(publisher, path, repo=partial)["equal"]


def test_hostile_configuration_changes_nothing(
    publisher: Publisher, hostile: Path, tmp_path: Path
) -> None:
    upstream = publisher.upstream
    upstream.pull(1, {"a.py": None, "moved.py": lines(_7="x"), "crlf": b"a\r\nb\r\n"})
    path = publisher.merged("one", 1)
    document = replay(publisher, path)
    assert document["equal"] and document["patch_equal"]
    assert not (tmp_path / "trap-was-run").exists()


def test_attributes_of_the_result_shape_the_patch(publisher: Publisher) -> None:
    upstream = publisher.upstream
    upstream.on(upstream.base)
    attributes = "*.py diff=python\n*.md -diff\n"
    upstream.pull(1, {".gitattributes": attributes}, {"docs/read.md": "# Other\n"},
                  {"a.py": "def f():\n" + "    x = 1\n" * 30})  # fmt: skip
    path = publisher.merged("one", 1)
    document = replay(publisher, path)
    assert document["equal"] and document["patch_equal"]


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ({"base": {"commit": "x", "repository": "r"}}, "base.commit"),
        ({"base": []}, "base"),
        ({"result": {}}, "result.tree"),
        ({"pull_requests": [{"number": 0}]}, "pull_requests[0]"),
        ({"pull_requests": {}}, "pull_requests"),
        ({"composition_strategy": "octopus"}, "composition_strategy"),
        ({"composition_strategy": "pinned_branch"}, "composition"),
        ({"source_patches": [{"path": "/etc/passwd", "sha256": "0" * 64}]}, "path"),
        ({"schema_version": 2}, "schema_version"),
    ],
)
def test_bad_locks_name_the_key(publisher: Publisher, change: dict, key: str) -> None:
    publisher.upstream.pull(1, {"a.py": lines(_10="one")})
    path = publisher.lock("bad", publisher.pulls(1), **change)
    error = replay(publisher, path, code=3)["error"]
    assert error["where"]["file"] == str(path)
    assert key in error["where"]["key"]


def test_imported_lock_composes_to_the_published_tree(
    publisher: Publisher, tmp_path: Path
) -> None:
    upstream = publisher.upstream
    upstream.pull(1, {"a.py": lines(_10="ten")})
    upstream.pull(2, {"b.py": lines(_10="ten")})
    path = publisher.merged("Release R1", 1, 2)
    out = tmp_path / "imported"
    result = run("import-manifest", path, "--out", out, "--json")
    assert result.code == 0, result.out
    assert result.json["name"] == "release-r1"
    made = run("lock", "-C", out, "--json")
    assert made.code == 0, made.out
    assert made.json["tree"] == json.loads(path.read_text())["result"]["tree"]
    assert run("import-manifest", path, "--out", out, "--json").code == 3
    shown = run("import-manifest", path, "--json").json["series"]
    assert shown == (out / "series.toml").read_text()
    shutil.rmtree(out)


def test_imported_manifest(publisher: Publisher, tmp_path: Path) -> None:
    upstream = publisher.upstream
    upstream.pull(1, {"a.py": lines(_10="ten")})
    upstream.pull(2, {"b.py": lines(_10="ten")})
    upstream.repo.git("update-ref", "refs/heads/main", upstream.base)
    upstream.tree_of_merges(upstream.heads[1])
    upstream.repo.commit("patch\n", {"docs/read.md": "# Other\n"})
    data = publisher.diff(base="HEAD^")
    (publisher.folder / "fix.patch").write_bytes(data)
    manifest = {
        "schema_version": 1,
        "name": "fork",
        "repository": str(upstream.repo.path),
        "base_ref": "refs/heads/main",
        "pull_requests": [
            {"number": 1, "head": upstream.heads[1], "title": 'Say "ten"'}
        ],
        "source_patches": [
            {"path": "fix.patch", "sha256": hashlib.sha256(data).hexdigest(),
             "title": "Fix"}
        ],
        "reviewed_exclusions": [
            {"number": 2, "head": upstream.heads[2], "disposition": "out_of_scope",
             "reason": "Not ours."}
        ],
    }  # fmt: skip
    path = publisher.folder / "manifest.json"
    path.write_text(json.dumps(manifest))
    error = run("import-manifest", path, "--offline", "--json")
    assert error.code == 2 and error.json["error"]["kind"] == "no-base"
    out = tmp_path / "out"
    result = run("import-manifest", path, "--out", out, "--json")
    assert result.code == 0, result.out
    assert result.json["sets"] == ["pull-1", "source-patches"]
    assert result.json["excludes"] == 1
    text = (out / "series.toml").read_text()
    assert 'kind = "out-of-scope"' in text and upstream.base in text
    assert (out / result.json["patches"][0]).read_bytes() == data
    assert replay(publisher, path, code=3)["error"]["kind"] == "not-a-lock"
