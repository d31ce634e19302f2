# SPDX-License-Identifier: Apache-2.0
"""Integration tags: cut whole or not at all, and verified from their proof alone."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from hashlib import sha256
from pathlib import Path

import pytest
from pulls import Upstream, lines
from releases import (
    TAG,
    bare,
    cut,
    forge,
    fragment,
    proof_file,
    refs,
    releasable,
    set_proof,
    set_tag,
    tag_body,
    verify,
    wrong,
)  # fmt: skip
from support import ROOT, git, program_environment, run

from stackctl.model.canonical import canonical_json

BOTH = {f"refs/tags/{TAG}", f"refs/stackctl/{TAG}"}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    return releasable(tmp_path / "project")


@pytest.fixture
def into(tmp_path: Path) -> Path:
    return bare(tmp_path / "fork.git")


def test_a_tag_says_what_it_is_and_is_verified_on_another_machine(
    project: Path, into: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = cut(project, into)
    assert done["written"] and not done["signed"]
    assert refs(into).keys() == BOTH
    locked = json.loads((project / "series.lock").read_bytes())["content"]
    assert (
        git("rev-parse", f"{TAG}^{{commit}}", cwd=into).decode().strip()
        == (locked["commit"])
    )
    text = tag_body(into).decode()
    for value in (done["composition"], locked["tree"], "alpha: 2 applied", "Base: "):
        assert value in text
    assert git("fsck", "--strict", cwd=into, check=True) is not None
    # The other machine: a clone of both refs, an empty cache, no project.
    clone = tmp_path / "elsewhere"
    git("init", "-q", str(clone))
    git("fetch", "-q", str(into), *(f"{ref}:{ref}" for ref in BOTH), cwd=clone)
    monkeypatch.setenv("STACKCTL_CACHE_DIR", str(tmp_path / "other-cache"))
    monkeypatch.chdir(tmp_path)
    upstream = project.with_name("project.repo")
    gone = upstream.rename(tmp_path / "gone")
    assert run("tag", "verify", TAG, "--repo", clone, "--offline").code == 6
    gone.rename(upstream)
    found = verify(clone)
    assert found["ok"] and found["tree"] == locked["tree"]
    assert found["composition"] == done["composition"]
    assert {"name", "ok", "why"} == set().union(*(e.keys() for e in found["checks"]))
    upstream.rename(gone)
    assert verify(clone, "--offline")["ok"]


def test_a_second_cut_changes_nothing_and_two_machines_make_the_same(
    project: Path,
    into: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    hostile: Path,
) -> None:
    monkeypatch.setattr("stackctl.release.cut.time.time", lambda: 1_800_000_000.5)
    cut(project, into)
    before = refs(into)
    assert b"> 1800000000 +0000" in tag_body(into)
    monkeypatch.setattr("stackctl.release.cut.time.time", lambda: 1_900_000_000.5)
    again = cut(project, into)
    assert again["exists"] and not again["written"]
    assert refs(into) == before
    other = bare(tmp_path / "other.git")
    monkeypatch.setattr("stackctl.release.cut.time.time", lambda: 1_800_000_000.9)
    monkeypatch.setenv("STACKCTL_CACHE_DIR", str(tmp_path / "other-cache"))
    monkeypatch.setenv("TZ", "UTC")
    monkeypatch.setenv("HOME", str(tmp_path))
    cut(project, other)
    assert refs(other) == before


def test_a_tag_never_moves(project: Path, into: Path) -> None:
    cut(project, into)
    before = refs(into)
    fragment(project, "more", "alpha")
    error = cut(project, into, code=2)["error"]
    assert error["kind"] == "tag-exists" and "Proof" in error["message"]
    assert refs(into) == before
    # A tag of somebody else's is not touched either.
    git("tag", "-f", "other", f"{TAG}^{{commit}}", cwd=into)
    error = cut(project, into, code=2, tag="other")["error"]
    assert error["kind"] == "tag-exists"


def test_a_lost_ref_of_the_proof_is_put_back(project: Path, into: Path) -> None:
    cut(project, into)
    before = refs(into)
    git("update-ref", "-d", f"refs/stackctl/{TAG}", cwd=into)
    assert cut(project, into)["written"]
    assert refs(into) == before


@pytest.mark.parametrize("dry", [True, False])
def test_nothing_is_written_where_something_is_missing(
    project: Path, into: Path, dry: bool
) -> None:
    (project / "changes/beta.toml").unlink()
    series = project / "series.toml"
    text = series.read_text()
    text = text.replace('name = "gamma"', 'name = "gamma"\ngates.required = ["g"]')
    series.write_text(text)
    options = ["--dry-run"] if dry else []
    found = cut(project, into, *options, code=1)
    assert wrong(found).keys() == {"gate:g", "changes"}
    assert not found["written"] and refs(into) == {}
    assert git("count-objects", cwd=into).startswith(b"0 objects")
    forced = cut(project, into, "--force-missing", "no\nGPU  today", *options)
    assert forced["written"] is not dry
    if dry:
        assert refs(into) == {}
        return
    text = tag_body(into).decode()
    assert "\nForced: no GPU today\n" in text
    assert text.count("\nMissing: ") == 2
    found = verify(into)
    assert found["forced"] == "no GPU today" and len(found["missing"]) == 2
    assert wrong(verify(into, "--complete", code=1)).keys() == {"complete"}
    summary = json.loads(proof_file(into, "statements/summary.json"))
    assert summary["predicate"]["verificationResult"] == "FAILED"
    assert summary["predicate"]["verifiedLevels"] == ["FAILED"]


def test_the_policy_says_what_is_asked_for(project: Path, into: Path) -> None:
    (project / "changes/beta.toml").unlink()
    series = project / "series.toml"
    series.write_text(
        series.read_text() + '\n[policy]\nrelease_requires = ["gates", "pins"]\n'
    )
    found = cut(project, into)
    (why,) = (e["why"] for e in found["checks"] if e["name"] == "changes")
    assert why.startswith("not asked for") and "`beta`" in why
    assert verify(into)["ok"]


def test_a_stale_lock_is_refused(project: Path, into: Path) -> None:
    series = project / "series.toml"
    head, *sets = series.read_text().split("[[set]]")
    series.write_text("[[set]]".join([head, *sets[:-1]]))
    error = cut(project, into, "--force-missing", "anyway", code=3)["error"]
    assert error["kind"] == "stale-lock" and "gamma" in error["message"]
    assert refs(into) == {}


@pytest.mark.parametrize(
    "name",
    ["", "-x", "a b", "a..b", "x.lock", "a\nb", "@{", "@", "HEAD", "refs/tags/v1",
     "`id`", "v1;id", "$(id)", "a'b", 'a"b', "%s", "e\u0301", "x" * 250, "\u202ev1"],
)  # fmt: skip
def test_bad_names_are_refused(project: Path, into: Path, name: str) -> None:
    done = run("tag", "cut", "-C", project, "--into", into, "--json", "--", name)
    assert (done.code, done.json["error"]["kind"]) == (2, "bad-tag-name")


@pytest.mark.parametrize("name", ["v1", "v0.33.0+glm53.1", "team/v1", "стек", "é_1"])
def test_good_names_are_taken(project: Path, into: Path, name: str) -> None:
    cut(project, into, tag=name)
    assert verify(into, tag=name)["ok"]


@pytest.mark.parametrize(
    ("name", "word"),
    [("V1", "in case only"), ("v1/x", "a folder"), ("v2", "a folder")],
)
def test_names_that_cannot_be_side_by_side_are_refused(
    project: Path, into: Path, name: str, word: str
) -> None:
    cut(project, into, tag="v1")
    cut(project, into, tag="v2/a")
    before = refs(into)
    error = cut(project, into, tag=name, code=2)["error"]
    assert error["kind"] == "tag-exists" and word in error["message"]
    assert refs(into) == before


def test_a_repository_with_other_object_ids_is_named(
    project: Path, tmp_path: Path
) -> None:
    other = tmp_path / "sha256"
    git("init", "-q", "--bare", "--object-format=sha256", str(other))
    error = cut(project, other, code=3)["error"]
    assert error["kind"] == "object-format" and "sha256" in error["message"]
    assert verify(other, code=3)["error"]["kind"] == "object-format"


@pytest.mark.parametrize(
    ("config", "why"),
    [
        ("[[[bad\n", "bad config line 1 in file "),
        ("[core]\nrepositoryformatversion = 99\n", "Expected git repo version <= 1"),
    ],
)
def test_a_repository_that_git_cannot_use_is_not_called_none(
    into: Path, config: str, why: str
) -> None:
    (into / "config").write_text(config)
    done = run("tag", "verify", TAG, "--repo", into, "--json")
    assert (done.code, done.json["error"]["kind"]) == (3, "bad-repository")
    assert why in done.json["error"]["message"]


def test_usage(project: Path, into: Path, tmp_path: Path) -> None:
    assert run("tag", "cut", TAG, "-C", project).code == 2
    for options in (["--shape", "star"], ["--force-missing", " "]):
        assert run("tag", "cut", TAG, "-C", project, "--into", into, *options).code == 2
    assert run("tag", "cut", TAG, "-C", project, "--into", tmp_path).code == 3
    done = run("tag", "verify", TAG, "--repo", into, "--json")
    assert (done.code, done.json["error"]["kind"]) == (4, "no-tag")
    assert f"refs/stackctl/{TAG}" in done.json["error"]["hint"]


def test_statements_have_the_shape_that_others_read(project: Path, into: Path) -> None:
    done = cut(project, into)
    made = json.loads(proof_file(into, "statements/provenance.json"))
    assert made["_type"] == "https://in-toto.io/Statement/v1"
    assert made["predicateType"] == "https://slsa.dev/provenance/v1"
    assert made["subject"][0] == {
        "name": f"refs/tags/{TAG}",
        "digest": {"gitCommit": done["commit"]},
    }
    assert made["subject"][1]["digest"] == {"gitTree": done["tree"]}
    definition = made["predicate"]["buildDefinition"]
    assert definition["externalParameters"]["sets"] == ["alpha", "beta", "gamma"]
    names = {each["name"] for each in definition["resolvedDependencies"]}
    patches = sorted(project.glob("patches/*/*.patch"))
    assert {str(p.relative_to(project)) for p in patches} < names
    for each in definition["resolvedDependencies"]:
        if (project / each["name"]).is_file():
            data = (project / each["name"]).read_bytes()
            assert each["digest"]["sha256"] == sha256(data).hexdigest()
    assert made["predicate"]["runDetails"]["builder"]["id"].startswith("https://")
    summary = json.loads(proof_file(into, "statements/summary.json"))
    assert summary["predicateType"] == "https://slsa.dev/verification_summary/v1"
    predicate = summary["predicate"]
    assert predicate["verificationResult"] == "PASSED"
    assert predicate["verifiedLevels"] == ["SLSA_BUILD_LEVEL_0"]
    assert re.fullmatch(r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\dZ", predicate["timeVerified"])
    assert predicate["policy"]["uri"].startswith("https://")
    assert predicate["inputAttestations"][0]["uri"] == "statements/provenance.json"
    for text in (proof_file(into, "statements/provenance.json"), tag_body(into)):
        assert str(project).encode() not in text


def test_notes_and_message_are_those_of_the_golden_files(
    made: Path, cut_tag: Path
) -> None:
    golden = ROOT / "tests/golden/release"
    notes = proof_file(cut_tag, "notes.md").decode()
    assert notes == (golden / "notes.md").read_text()
    # What depends on where the test ran, and when.
    text = tag_body(cut_tag).decode().partition("\n\n")[2]
    text = re.sub(r"(?m)^(Proof|[A-Z][a-z]+-SHA256): .*$", r"\1: ...", text)
    assert text == (golden / "message.txt").read_text()


# --- shapes -------------------------------------------------------------------------


def test_merges_keep_the_history_of_each_set(project: Path, into: Path) -> None:
    linear = cut(project, into)
    done = cut(project, into, "--shape", "merges", tag="merged")
    assert done["tree"] == linear["tree"] and done["commit"] != linear["commit"]

    def log(*options: str) -> list[str]:
        text = git("log", "--format=%s", *options, "merged^{commit}", cwd=into)
        return text.decode().splitlines()

    first = log("--first-parent")
    assert [line.split(":")[0] for line in first] == [
        "Merge set gamma", "Merge set beta", "Merge set alpha", "base",
    ]  # fmt: skip
    plain = git("log", "--format=%s", f"{TAG}^{{commit}}", cwd=into).decode()
    kept = [line for line in log() if not line.startswith("Merge")]
    assert sorted(kept) == sorted(plain.splitlines())
    side = git("log", "--format=%s", "merged^{commit}~2^2", "--not",
               "merged^{commit}~2^1", cwd=into).decode()  # fmt: skip
    assert side.splitlines() == ["alpha: add a file", "alpha: change line 10"]
    for number, name in ((2, "alpha"), (1, "beta"), (0, "gamma")):
        tree = git("rev-parse", f"merged^{{commit}}~{number}^{{tree}}", cwd=into)
        assert f"tree {tree.decode().strip()}" in next(
            line
            for line in tag_body(into, "merged").decode().splitlines()
            if line.startswith(f"Set: {name}")
        )
    assert verify(into, tag="merged")["ok"]


def pinned(tmp_path: Path) -> tuple[Upstream, Path]:
    upstream = Upstream.make(tmp_path / "upstream")
    upstream.pull(1, {"new": "x\n"}, {"a.py": lines(_3="three")})
    upstream.pull(2, {"other": "x\n"})
    project = upstream.series(tmp_path / "p", upstream.set(1), upstream.set(2))
    for number in (1, 2):
        fragment(project, f"pull-{number}", f"pull-{number}")
    assert run("lock", "-C", project).code == 0
    return upstream, project


def test_pinned_heads_keep_their_commits_in_both_shapes(tmp_path: Path) -> None:
    upstream, project = pinned(tmp_path)
    into = bare(tmp_path / "fork.git")
    git("fetch", "-q", str(upstream.repo.path), "main:refs/heads/main", cwd=into)
    for shape in ("linear", "merges"):
        done = cut(project, into, "--shape", shape, tag=shape)
        for head in upstream.heads.values():
            git("merge-base", "--is-ancestor", head, done["commit"], cwd=into)
        assert verify(into, tag=shape)["ok"]
    # A set that is a merge of its head is no further merge.
    assert len({git("rev-parse", f"{t}^{{commit}}", cwd=into) for t in (
        "linear", "merges")}) == 1  # fmt: skip


def test_a_moved_head_stops_the_release_and_offline_says_what_was_not_checked(
    tmp_path: Path,
) -> None:
    upstream, project = pinned(tmp_path)
    into = bare(tmp_path / "fork.git")
    git("fetch", "-q", str(upstream.repo.path), "main:refs/heads/main", cwd=into)
    upstream.pull(1, {"new": "y\n"})
    found = cut(project, into, code=1)
    assert wrong(found).keys() == {"pins"} and refs(into).keys() == {"refs/heads/main"}
    assert upstream.heads[1][:12] in wrong(found)["pins"]
    cut(project, into, "--offline")
    text = tag_body(into).decode()
    assert text.count("\nNot-Checked: pull-") == 2
    found = verify(into, "--offline")
    assert found["ok"] and len(found["not_checked"]) == 2


# --- images -------------------------------------------------------------------------


def with_image(project: Path, root: Path, named: str) -> None:
    """Compose into a root file system, and name it as an image of the series."""
    (root / "opt").mkdir(parents=True)
    run("compose", "-C", project, "--out", root / "opt/fork")
    series = project / "series.toml"
    series.write_text(
        series.read_text()
        + f'\n[[image]]\nref = "rootfs:{named}"\n'
        + 'roots = [{ tree = ".", path = "/opt/fork", kind = "checkout" }]\n'
    )


def test_every_image_of_the_series_must_hold_the_composition(
    project: Path, into: Path, tmp_path: Path
) -> None:
    root = tmp_path / "root"
    with_image(project, root, str(root))
    other = root / "opt/fork/README.md"
    good = other.read_bytes()
    other.write_bytes(b"changed\n")
    found = cut(project, into, code=1)
    assert wrong(found).keys() == {f"image:rootfs:{root}"}
    assert "mismatch" in next(iter(wrong(found).values()))
    other.write_bytes(good)
    cut(project, into)
    assert f"Image: rootfs:{root}" in tag_body(into).decode()
    assert verify(into, "--images")["ok"]
    other.write_bytes(b"changed\n")
    assert verify(into)["ok"]
    assert wrong(verify(into, "--images", code=1)).keys() == {"images"}


def test_the_images_of_a_series_lie_beside_it(
    project: Path, into: Path, tmp_path: Path
) -> None:
    root = project / "root"
    with_image(project, root, "root")
    # Wherever one stands, and whatever lies there under the same name.
    (tmp_path / "elsewhere/root").mkdir(parents=True)
    for folder in (project, tmp_path / "elsewhere"):
        options = ("-C", project, "--into", into, "--dry-run")
        done = run("tag", "cut", TAG, *options, cwd=folder)
        assert done.code == 0, done.out
        assert run("verify-image", "-C", project, cwd=folder).code == 0
    (root / "opt/fork/README.md").write_bytes(b"changed\n")
    cut(project, into, code=1)
    assert run("verify-image", "-C", project, cwd=tmp_path).code == 1


# --- tampering ----------------------------------------------------------------------


def edit(data: bytes, old: bytes, new: bytes) -> bytes:
    assert old in data
    return data.replace(old, new)


def edited_json(data: bytes, *path: str | int, value: object) -> bytes:
    document = json.loads(data)
    at = document
    for name in path[:-1]:
        at = at[name]
    at[path[-1]] = value
    return canonical_json(document) + b"\n"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tag that was cut once, and the cache of it: the tests take copies."""
    folder = tmp_path_factory.mktemp("made")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("STACKCTL_CACHE_DIR", str(folder / "cache"))
        cut(releasable(folder / "project"), bare(folder / "fork.git"))
    return folder


@pytest.fixture
def cut_tag(made: Path, into: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("STACKCTL_CACHE_DIR", str(made / "cache"))
    shutil.copytree(made / "fork.git", into, dirs_exist_ok=True)
    return into


@pytest.mark.parametrize(
    ("line", "value", "named"),
    [
        ("Composition", "0" * 64, {"lock", "message"}),
        ("Tree", "0" * 40, {"lock", "message", "tree"}),
        ("Content-SHA256", "0" * 64, {"lock", "message"}),
        ("Base", "commit:0", {"tag"}),
        ("Base-Tree", "0" * 40, {"lock", "message"}),
        ("Shape", "merges", {"commit", "statement"}),
        ("Set", "alpha: 3 applied, tree 0", {"message"}),
        ("Lock-SHA256", "0" * 64, {"digests"}),
        ("Provenance-SHA256", "0" * 64, {"digests"}),
        ("Summary-SHA256", "0" * 64, {"digests"}),
        ("Proof", "0" * 40, {"ref", "proof"}),
        ("Composition", "zz", {"tag"}),
        ("Colour", "red", {"tag"}),
    ],
)
def test_a_changed_message_is_named(
    cut_tag: Path, line: str, value: str, named: set[str]
) -> None:
    body = tag_body(cut_tag)
    changed, count = re.subn(
        rf"(?m)^{line}: .*$".encode(), f"{line}: {value}".encode(), body, count=1
    )
    if not count:
        changed = body + f"{line}: {value}\n".encode()
    set_tag(cut_tag, changed)
    assert wrong(verify(cut_tag, code=1)).keys() == named


def test_a_signature_that_was_taken_off_is_noticed(cut_tag: Path) -> None:
    """What is left looks like an unsigned tag, but for the name of who signed it."""
    body = tag_body(cut_tag)
    person = b"tagger Ada <ada@example.org> "
    set_tag(cut_tag, body.replace(b"tagger stackctl <stackctl@localhost> ", person))
    found = wrong(verify(cut_tag, code=1))
    assert found.keys() == {"signature"} and "was taken off" in found["signature"]


def test_claims_of_a_message_that_nothing_bears_out_are_named(cut_tag: Path) -> None:
    body = tag_body(cut_tag)
    digest = "0" * 64
    set_tag(
        cut_tag, edit(body, b"Proof: ", f"Receipt: g qualified {digest} x\nProof: "
                      .encode())
    )  # fmt: skip
    assert wrong(verify(cut_tag, code=1)).keys() == {"receipts"}
    set_tag(cut_tag, edit(body, b"Proof: ", b"Missing: gate:g: no\nProof: "))
    found = wrong(verify(cut_tag, code=1))
    assert found.keys() >= {"message", "summary", "complete"}


def test_a_tag_on_another_commit_is_named(cut_tag: Path) -> None:
    body = tag_body(cut_tag)
    commit = re.match(rb"object ([0-9a-f]+)", body)[1].decode()
    tree = git("rev-parse", f"{commit}^{{tree}}", cwd=cut_tag).decode().strip()
    # The same tree under another commit, and another tree.
    same = git("commit-tree", tree, "-m", "x", cwd=cut_tag).strip()
    set_tag(cut_tag, edit(body, commit.encode(), same))
    assert wrong(verify(cut_tag, code=1)).keys() == {"commit", "statement", "summary"}
    parent = git("rev-parse", f"{commit}^", cwd=cut_tag).strip()
    set_tag(cut_tag, edit(body, commit.encode(), parent))
    assert "tree" in wrong(verify(cut_tag, code=1))


@pytest.mark.parametrize("tidy", [False, True], ids=["plainly", "tag-rewritten"])
@pytest.mark.parametrize(
    ("path", "old", "new", "named"),
    [
        ("patches/gamma/*", b"Other.", b"Evil!.", {"compose", "statement"}),
        ("patches/gamma/*", b"Subject: ", b"Subject: x ", {"compose", "statement"}),
        ("series.toml", b'title = "Set beta"', b'title = "x"', {"statement"}),
        ("series.lock", b"applied", b"recorded", {"compose", "statement"}),
        ("changes/alpha.toml", b"is there", b"is gone", {"statement", "changes"}),
        ("notes.md", b"is there", b"is gone", {"statement", "changes"}),
        ("statements/provenance.json", b"linear", b"merges", {"statement"}),
        ("statements/summary.json", b"PASSED", b"FAILED", {"summary"}),
    ],
)
def test_a_changed_file_of_the_proof_is_named(
    cut_tag: Path, path: str, old: bytes, new: bytes, named: set[str], tidy: bool
) -> None:
    (name,) = (
        line
        for line in git("ls-tree", "-r", "--name-only", f"refs/stackctl/{TAG}",
                        cwd=cut_tag).decode().splitlines()
        if Path(line).match(path)
    )  # fmt: skip
    files = {name: edit(proof_file(cut_tag, name), old, new)}
    if tidy:
        # Whoever may write the tag makes it fit; the composition does not follow.
        forge(cut_tag, files)
        assert wrong(verify(cut_tag, code=1)).keys() >= named
    else:
        set_proof(cut_tag, files)
        assert wrong(verify(cut_tag, code=1)).keys() == {"ref"}


def test_a_lock_that_fits_no_composition_is_named(cut_tag: Path) -> None:
    data = edited_json(
        proof_file(cut_tag, "series.lock"), "content", "content_sha256", value="0" * 64
    )
    forge(cut_tag, {"series.lock": data})
    assert wrong(verify(cut_tag, code=1)).keys() >= {"lock", "compose"}


@pytest.mark.parametrize(
    "name", ["series.toml", "series.lock", "statements/summary.json", "notes.md"]
)
def test_a_missing_file_of_the_proof_is_named(cut_tag: Path, name: str) -> None:
    forge(cut_tag, {name: None})
    found = wrong(verify(cut_tag, code=1))
    assert found.keys() == {"proof"} and name in found["proof"]


@pytest.mark.parametrize("mode", ["120000", "100755"])
def test_a_proof_holds_plain_files_only(
    cut_tag: Path, mode: str, tmp_path: Path
) -> None:
    target = tmp_path / "outside"
    forge(cut_tag, {"patches/alpha/x": str(target).encode()}, mode=mode)
    found = wrong(verify(cut_tag, code=1))
    assert found.keys() == {"proof"} and "no plain file" in found["proof"]
    assert not target.exists()


def test_a_moved_or_missing_ref_is_named(cut_tag: Path) -> None:
    commit = git("rev-parse", f"{TAG}^{{commit}}", cwd=cut_tag).decode().strip()
    git("update-ref", f"refs/stackctl/{TAG}", commit, cwd=cut_tag)
    found = wrong(verify(cut_tag, code=1))
    assert found.keys() == {"ref"} and commit in found["ref"]
    git("update-ref", "-d", f"refs/stackctl/{TAG}", cwd=cut_tag)
    assert wrong(verify(cut_tag, code=1)).keys() == {"ref"}


def test_a_light_tag_and_a_tag_of_another_name_are_named(cut_tag: Path) -> None:
    body = tag_body(cut_tag)
    set_tag(cut_tag, edit(body, f"tag {TAG}".encode(), b"tag v9"))
    assert wrong(verify(cut_tag, code=1)).keys() == {"tag"}
    git("tag", "-f", TAG, f"{TAG}^{{commit}}", cwd=cut_tag)
    assert wrong(verify(cut_tag, code=1)).keys() == {"tag"}


# --- components ---------------------------------------------------------------------


def test_a_release_of_several_components(
    project: Path, into: Path, tmp_path: Path
) -> None:
    (tmp_path / "other").mkdir()
    other = releasable(tmp_path / "other/project")
    lock = other / "series.lock"
    same = cut(project, into, "--component", str(lock), code=2)["error"]
    assert "called demo" in same["message"]
    series = other / "series.toml"
    series.write_text(
        series.read_text().replace('name = "demo"', 'name = "kernels"')
        .replace('name = "beta"', 'name = "beta"\ngates.required = ["g"]')
    )  # fmt: skip
    found = cut(project, into, "--component", str(lock), code=1)
    assert wrong(found).keys() == {"kernels/gate:g"}
    options = ("--component", str(lock), "--force-missing", "later")
    done = cut(project, into, *options)
    assert [each["name"] for each in done["components"]] == ["kernels"]
    assert cut(project, into, *options)["exists"]
    text = tag_body(into).decode()
    composition = done["components"][0]["composition"]
    assert f"\nComponent: kernels: composition {composition}, tree " in text
    found = verify(into)
    assert found["tag"] == TAG
    assert {"kernels/compose", "kernels/statement"} <= {
        each["name"] for each in found["checks"]
    }
    kept = tag_body(into), git("rev-parse", f"refs/stackctl/{TAG}", cwd=into)

    def again() -> None:
        set_tag(into, kept[0])
        git("update-ref", f"refs/stackctl/{TAG}", kept[1].decode().strip(), cwd=into)

    at = "components/kernels/"
    (name,) = (p.relative_to(other) for p in other.glob("patches/gamma/*"))
    patch = edit(proof_file(into, f"{at}{name}"), b"Other.", b"Evil!.")
    for path, data, named in (
        (f"{at}{name}", patch, {"kernels/compose", "kernels/statement"}),
        (f"{at}series.lock", edit(proof_file(into, f"{at}series.lock"), b"git", b"Git"),
         {"components", "kernels/statement"}),
        (f"{at}notes.md", b"none\n", {"kernels/statement", "kernels/changes"}),
        (f"{at}series.toml", None, {"components"}),
        ("components/more/x", b"", {"components", "more/series"}),
    ):  # fmt: skip
        forge(into, {path: data})
        assert wrong(verify(into, code=1)).keys() >= named
        again()
    set_tag(into, re.sub(rb"Component: .*\n", b"", kept[0]))
    assert wrong(verify(into, code=1)).keys() == {"components"}
    # What the component's fragments said is kept, too.
    again()
    fragment(other, "alpha", "alpha", summary="Edited.")
    found = cut(project, into, "--component", str(lock), tag="v2", code=1)
    assert "alpha.toml is not what release" in wrong(found)["kernels/changes"]
    error = cut(project, into, "--component", str(series), code=2)["error"]
    assert error["kind"] == "bad-component"


# --- a base without an address ------------------------------------------------------


def test_a_base_by_path_is_named_by_the_verifier(
    tmp_path: Path, into: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = releasable(tmp_path / "project", "path")
    cut(project, into)
    monkeypatch.setenv("STACKCTL_CACHE_DIR", str(tmp_path / "other-cache"))
    found = wrong(verify(into, code=1))
    assert "--base" in found["compose"]
    assert verify(into, "--base", project / "upstream")["ok"]
    (project / "upstream/README.md").write_text("other\n")
    found = wrong(verify(into, "--base", project / "upstream", code=1))
    assert "tree" in found["compose"]


@pytest.mark.parametrize("kind", ["path", "archive"])
def test_a_tag_does_not_choose_what_is_read_where_it_is_verified(
    cut_tag: Path, tmp_path: Path, kind: str
) -> None:
    secret = tmp_path / "secret"
    secret.mkdir()
    (secret / "file").write_text("x")
    base = {
        "path": f'path = "{secret}"\n',
        "archive": f'archive = "{secret}/file"\nsha256 = "{"0" * 64}"\n',
    }[kind]
    text = proof_file(cut_tag, "series.toml").decode()
    text, count = re.subn(r'git = ".*"\ncommit = ".*"\n', base, text, count=1)
    assert count == 1
    forge(cut_tag, {"series.toml": text.encode()})
    found = wrong(verify(cut_tag, code=1))["compose"]
    assert "name it with --base" in found and "No such file" in found


# --- killed -------------------------------------------------------------------------

KILLED = """\
import os, signal, sys
from stackctl.release import cut
from stackctl.compose import publish
from stackctl.git.command import HermeticGit
from stackctl import cli
point = sys.argv[1]
run, bring = HermeticGit.run, publish.bring_commit
def die():
    os.kill(os.getpid(), signal.SIGKILL)
def dying(self, *args, **values):
    if args[0] == point:
        die()
    if args[-1:] == ("--stdin",) and args[0] == "update-ref" and point == "half":
        text = values["stdin"].replace(b"commit\\n", b"")
        self.run_(*args, stdin=text)
        die()
    found = run(self, *args, **values)
    if f"after {args[0]}" == point:
        die()
    return found
HermeticGit.run = dying
HermeticGit.run_ = run
sys.exit(cli.run(sys.argv[2:]))
"""


@pytest.mark.parametrize(
    "point", ["fetch", "after fetch", "index-pack", "after index-pack", "update-ref",
              "half", "after update-ref"],
)  # fmt: skip
def test_killed_at_any_point_it_leaves_no_tag_without_its_proof(
    project: Path, into: Path, point: str, tmp_path: Path
) -> None:
    # Fetch and index-pack have options before them.
    script = KILLED.replace("args[0]", "next(a for a in args if a[0] != '-' "
                            "and '=' not in a)")  # fmt: skip
    file = tmp_path / "killed.py"
    file.write_text(script)
    done = subprocess.run(
        [sys.executable, file, point, "tag", "cut", TAG, "-C", project,
         "--into", into],
        env=program_environment(),
        capture_output=True,
    )  # fmt: skip
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()
    whole = point == "after update-ref"
    assert refs(into).keys() == (BOTH if whole else set())
    cut(project, into)
    assert refs(into).keys() == BOTH
    assert verify(into)["ok"]
    assert not list(into.rglob("*.lock"))
    scratch = Path(os.environ["STACKCTL_CACHE_DIR"]).rglob("scratch-*")
    assert not list(scratch)
