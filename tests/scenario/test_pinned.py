# SPDX-License-Identifier: Apache-2.0
"""Sets from pinned pull requests, judged by real git in a work tree."""

import json
import re
from pathlib import Path

import pytest
from pulls import FILES, Upstream, lines
from support import Result, git, run

STORE = "store.git"


def compose(project: Path, *options: str, code: int = 0) -> dict:
    result = run("compose", "-C", project, "--json", *options)
    assert result.code == code, result.err + result.out
    return result.json


def locked(project: Path) -> dict:
    """Lock, which holds the composition against real merges in a work tree."""
    result = run("lock", "-C", project, "--json")
    assert result.code == 0, result.err + result.out
    return result.json


def compose_of(project: Path, *options: str) -> Result:
    return run("compose", "-C", project, "--json", *options)


def commit_of(cache: Path, oid: str) -> str:
    store = str(cache / STORE)
    return git("--git-dir", store, "cat-file", "commit", oid).decode()


@pytest.fixture
def upstream(tmp_path: Path) -> Upstream:
    return Upstream.make(tmp_path / "upstream")


def test_merged_head_is_second_parent_and_carries_fixed_identity(
    upstream: Upstream, tmp_path: Path, hermetic: Path
) -> None:
    head = upstream.pull(7, {"a.py": lines(_10="ten")}, {"a.py": lines(_10="X")})
    upstream.on(upstream.base)
    upstream.repo.commit("upstream goes on\n", {"b.py": lines(_5="five")})
    newer = upstream.repo.head
    project = upstream.series(tmp_path / "p", upstream.set(7), base=newer)
    made = locked(project)
    assert made["tree"] == upstream.tree_of_merges(head, start=newer)
    (step,) = made["steps"]
    assert step["disposition"] == "merged" and step["head"] == head
    assert re.fullmatch("[0-9a-f]{40}", step["patch_id"])
    text = commit_of(hermetic, made["commit"])
    when = upstream.repo.git("show", "-s", "--format=%ct %cd", "--date=format:%z", head)
    assert text.splitlines()[1:5] == [
        f"parent {newer}",
        f"parent {head}",
        f"author stackctl <stackctl@localhost> {when}",
        f"committer stackctl <stackctl@localhost> {when}",
    ]


def test_patches_and_pulls_in_one_series(upstream: Upstream, tmp_path: Path) -> None:
    one = upstream.pull(1, {"a.py": lines(_10="ten")})
    two = upstream.pull(2, {"b.py": lines(_10="ten")})
    upstream.on(upstream.base)
    upstream.repo.commit("patch\n\nWhy.\n", {"a.py": lines(_40="forty")})
    patched = upstream.repo.head
    folder = tmp_path / "p"
    upstream.repo.patches(f"{upstream.base}..HEAD", folder / "patches" / "own")
    own = '[[set]]\nname = "own"\npatches = "patches/own"\n'
    project = upstream.series(folder, upstream.set(1), own, upstream.set(2))
    made = locked(project)
    assert made["tree"] == upstream.tree_of_merges(one, patched, two)
    again = compose(project)
    assert [step["how"] for step in again["steps"]] == ["cached"] * 3
    assert again["composition"] == made["composition"]
    only = compose(project, "--only", "pull-2")
    assert only["tree"] == upstream.tree_of_merges(two)
    tree_only = compose(project, "--no-commits")
    assert tree_only["tree"] == made["tree"] and tree_only["commit"] is None


def test_cherry_pick_keeps_author_and_adds_trailer(
    upstream: Upstream, tmp_path: Path, hermetic: Path
) -> None:
    upstream.pull(3, {"a.py": lines(_10="ten")}, {"b.py": lines(_20="twenty")})
    head = upstream.heads[3]
    first = upstream.repo.git("rev-parse", f"{head}^")
    upstream.on(upstream.base)
    newer = upstream.repo.commit("on\n", {"a.py": lines(_50="fifty")})
    project = upstream.series(
        tmp_path / "p", upstream.set(3, commits=(first, head)), base=newer
    )
    made = locked(project)
    assert [step["disposition"] for step in made["steps"]] == ["cherry-picked"] * 2
    upstream.on(newer)
    upstream.repo.git("cherry-pick", "-x", first, head)
    assert made["tree"] == upstream.repo.tree
    text = commit_of(hermetic, made["commit"])
    wanted = upstream.repo.git("cat-file", "commit", head).splitlines()
    assert text.splitlines()[2] == wanted[2]  # author and author date
    assert text.endswith(f"Pull 3, part 2\n\n(cherry picked from commit {head})\n")
    real = upstream.repo.git("show", "-s", "--format=%B", "HEAD")
    assert text.partition("\n\n")[2].strip() == real.strip()


def test_already_merged_heads(upstream: Upstream, tmp_path: Path) -> None:
    one = upstream.pull(1, {"a.py": lines(_10="ten")})
    # 2 contains 1; it comes first, so 1 is nothing new then.
    two = upstream.pull(2, {"b.py": lines(_10="ten")}, onto=one)
    upstream.on(upstream.base)
    merged = upstream.merge(one)
    project = upstream.series(
        tmp_path / "p", upstream.set(2), upstream.set(1), base=upstream.base
    )
    made = locked(project)
    assert [step["disposition"] for step in made["steps"]] == ["merged", "merged"]
    assert made["steps"][0]["commit"] == made["steps"][1]["commit"]
    assert made["steps"][1]["patch_id"] is None
    project = upstream.series(
        tmp_path / "q", upstream.set(1), upstream.set(2), base=merged
    )
    made = locked(project)
    assert [step["disposition"] for step in made["steps"]] == [
        "already-in-base",
        "merged",
    ]
    assert made["steps"][0]["commit"] == merged
    assert made["tree"] == upstream.tree_of_merges(two, start=merged)


def test_duplicated_commits_across_pulls(upstream: Upstream, tmp_path: Path) -> None:
    upstream.pull(1, {"a.py": lines(_10="ten")})
    two = upstream.pull(2, {"a.py": lines(_10="ten")}, {"b.py": lines(_3="x")})
    first = upstream.repo.git("rev-parse", f"{two}^")
    one = upstream.heads[1]
    project = upstream.series(tmp_path / "p", upstream.set(1), upstream.set(2))
    assert locked(project)["tree"] == upstream.tree_of_merges(one, two)
    # Picked, the duplicate is an empty change, and no commit.
    project = upstream.series(
        tmp_path / "q", upstream.set(1), upstream.set(2, commits=(first, two))
    )
    steps = locked(project)["steps"]
    assert [step["disposition"] for step in steps] == [
        "merged", "already-in-base", "cherry-picked",
    ]  # fmt: skip
    assert steps[1]["commit"] == steps[0]["commit"] and steps[1]["patch_id"] is None


def test_criss_cross_has_two_merge_bases(upstream: Upstream, tmp_path: Path) -> None:
    one = upstream.pull(1, {"a.py": lines(_10="ten")})
    two = upstream.pull(2, {"a.py": lines(_30="thirty")})
    upstream.on(one)
    left = upstream.merge(two)
    left = upstream.repo.commit("left\n", {"a.py": lines(_10="ten", _30="L")})
    upstream.on(two)
    right = upstream.merge(one)
    right = upstream.repo.commit("right\n", {"b.py": lines(_1="R")})
    assert len(upstream.repo.git("merge-base", "--all", left, right).split()) == 2
    upstream.point(3, right)
    project = upstream.series(tmp_path / "p", upstream.set(3), base=left)
    assert locked(project)["tree"] == upstream.tree_of_merges(right, start=left)


def test_octopus_in_history(upstream: Upstream, tmp_path: Path) -> None:
    heads = [
        upstream.pull(number, {f"new-{number}.py": f"{number}\n"})
        for number in (1, 2, 3)
    ]
    upstream.on(upstream.base)
    upstream.repo.git("merge", "-q", "--no-ff", "-m", "octopus", *heads)
    octopus = upstream.point(9)
    project = upstream.series(tmp_path / "p", upstream.set(9), upstream.set(2))
    made = locked(project)
    assert made["tree"] == upstream.tree_of_merges(octopus)
    assert made["steps"][1]["commit"] == made["steps"][0]["commit"]


def test_rename_on_one_side(upstream: Upstream, tmp_path: Path) -> None:
    upstream.pull(1, {"a.py": None, "moved/a.py": lines()})
    upstream.pull(2, {"a.py": lines(_10="ten")})
    one, two = upstream.heads[1], upstream.heads[2]
    project = upstream.series(tmp_path / "p", upstream.set(1), upstream.set(2))
    made = locked(project)
    assert made["tree"] == upstream.tree_of_merges(one, two)
    out = tmp_path / "out"
    result = run("compose", "-C", project, "--out", out)
    assert (out / "moved/a.py").read_text() == lines(_10="ten"), result.err
    assert not (out / "a.py").exists()


def test_attributes_of_first_parent_decide(upstream: Upstream, tmp_path: Path) -> None:
    upstream.on(upstream.base)
    files = {"notes/.gitattributes": "*.txt merge=union\n", "notes/n.txt": "a\nb\n"}
    base = upstream.repo.commit("notes\n", files)
    one = upstream.pull(1, {"notes/n.txt": "a\none\nb\n"}, onto=base)
    two = upstream.pull(2, {"notes/n.txt": "a\ntwo\nb\n"}, onto=base)
    project = upstream.series(
        tmp_path / "p", upstream.set(1), upstream.set(2), base=base
    )
    made = locked(project)
    assert made["tree"] == upstream.tree_of_merges(one, two, start=base)


def test_foreign_merge_driver_is_refused_where_it_is_needed(
    upstream: Upstream, tmp_path: Path
) -> None:
    upstream.on(upstream.base)
    files = {".gitattributes": "a.py merge=ours-only\n"}
    base = upstream.repo.commit("driver\n", files)
    upstream.pull(1, {"a.py": lines(_10="ten")}, onto=base)
    upstream.pull(2, {"a.py": lines(_30="thirty")}, onto=base)
    upstream.pull(3, {"b.py": lines(_30="thirty")}, onto=base)
    project = upstream.series(
        tmp_path / "p", upstream.set(1), upstream.set(3), base=base
    )
    compose_of(project)
    project = upstream.series(
        tmp_path / "q", upstream.set(1), upstream.set(2), base=base
    )
    result = compose_of(project)
    assert result.code == 3, result.out
    assert result.json["error"]["kind"] == "merge-driver"
    assert "ours-only" in result.json["error"]["message"]


def conflicting(upstream: Upstream, tmp_path: Path, one: dict, two: dict) -> Path:
    upstream.pull(1, one)
    upstream.pull(2, two)
    return upstream.series(tmp_path / "p", upstream.set(1), upstream.set(2))


CONFLICTS = {
    "content": ({"a.py": lines(_10="one")}, {"a.py": lines(_10="two")}),
    "binary": ({"data.bin": b"\0one"}, {"data.bin": b"\0two"}),
    "modify-delete": ({"a.py": lines(_10="one")}, {"a.py": None}),
    "add-add": ({"new": "one\n"}, {"new": "two\n"}),
    "link": ({"a.py": "-> b.py"}, {"a.py": lines(_10="two")}),
}


@pytest.mark.parametrize("kind", CONFLICTS)
def test_conflicts_name_set_commit_paths_and_blobs(
    kind: str, upstream: Upstream, tmp_path: Path
) -> None:
    project = conflicting(upstream, tmp_path, *CONFLICTS[kind])
    result = compose_of(project)
    assert result.code == 5, result.out
    where = result.json["error"]["where"]
    assert where["set"] == "pull-2" and where["commit"] == upstream.heads[2]
    assert where["paths"]
    for each in where["conflicts"]:
        for side, ref in (("base", upstream.base), ("ours", upstream.heads[1]),
                          ("theirs", upstream.heads[2])):  # fmt: skip
            # Of two types at one name git moves one aside, to `name~COMMIT`.
            listed = upstream.repo.git("ls-tree", ref, "--", each["path"].split("~")[0])
            entry = each[side]
            if not listed:
                assert entry is None
            elif entry is not None:
                assert listed.split()[:3:2] == [entry["mode"], entry["blob"]]


def test_mode_conflict_is_what_git_makes_of_it(
    upstream: Upstream, tmp_path: Path
) -> None:
    upstream.on(upstream.base)
    (upstream.repo.path / "run.sh").chmod(0o755)
    upstream.repo.commit("executable\n")
    one = upstream.point(1)
    two = upstream.pull(2, {"run.sh": "#!/bin/sh\necho two\n"})
    project = upstream.series(tmp_path / "p", upstream.set(1), upstream.set(2))
    assert locked(project)["tree"] == upstream.tree_of_merges(one, two)


def test_submodules_merge_and_conflict(upstream: Upstream, tmp_path: Path) -> None:
    def pointer(number: int, digit: str, onto: str = "") -> str:
        upstream.on(onto or upstream.base)
        upstream.repo.git(
            "update-index", "--add", "--cacheinfo", f"160000,{digit * 40},sub"
        )
        upstream.repo.git("commit", "-q", "-m", f"sub at {digit}")
        commit = upstream.repo.head
        upstream.repo.git("update-index", "--force-remove", "sub")
        return upstream.point(number, commit)

    base = pointer(8, "1")
    one = pointer(1, "2", onto=base)
    upstream.repo.git("read-tree", "-u", "--reset", base)
    upstream.repo.git("checkout", "-q", "--detach", base)
    upstream.repo.write({"b.py": lines(_3="x")})
    upstream.repo.git("add", "b.py")
    upstream.repo.git("commit", "-q", "-m", "other")
    upstream.point(2)
    project = upstream.series(
        tmp_path / "p", upstream.set(1), upstream.set(2), base=base
    )
    made = locked(project)
    listed = git(
        "--git-dir", str(upstream.repo.path / ".git"), "ls-tree", one, "sub"
    ).decode()
    assert "2" * 40 in listed and made["steps"][1]["disposition"] == "merged"
    pointer(3, "3", onto=base)
    project = upstream.series(
        tmp_path / "q", upstream.set(1), upstream.set(3), base=base
    )
    result = compose_of(project)
    assert result.code == 5
    (conflict,) = result.json["error"]["where"]["conflicts"]
    assert conflict["ours"] == {"mode": "160000", "blob": "2" * 40}
    assert conflict["theirs"] == {"mode": "160000", "blob": "3" * 40}


def test_superseded_and_excluded_sets_are_recorded(
    upstream: Upstream, tmp_path: Path
) -> None:
    upstream.pull(1, {"a.py": lines(_10="ten")})
    upstream.pull(2, {"b.py": lines(_10="ten")})
    project = upstream.series(
        tmp_path / "p",
        upstream.set(1, extra='disposition = "superseded"\nwhy = "upstream has it"\n'),
        upstream.set(2, extra='disposition = "excluded"\nwhy = "not needed"\n'),
    )
    made = compose(project)
    assert [step["disposition"] for step in made["steps"]] == ["superseded", "excluded"]
    assert made["tree"] == upstream.repo.git("rev-parse", f"{upstream.base}^{{tree}}")


def test_refusals(upstream: Upstream, tmp_path: Path) -> None:
    head = upstream.pull(1, {"a.py": lines(_10="ten")})
    stranger = upstream.pull(2, {"b.py": lines(_10="ten")})
    # A commit that is not part of the pull request.
    project = upstream.series(tmp_path / "p", upstream.set(1, commits=(stranger,)))
    # It is in the store only where another set brought it.
    result = compose_of(project)
    assert result.code == 4, result.out
    # A history of its own.
    upstream.repo.git("checkout", "-q", "--orphan", "alone")
    upstream.repo.commit("alone\n", {"x": "x\n"})
    upstream.point(3)
    project = upstream.series(tmp_path / "q", upstream.set(3))
    result = compose_of(project)
    assert result.code == 4, result.out
    assert result.json["error"]["kind"] == "unrelated-histories"
    # A head that nobody has.
    upstream.heads[4] = "4" * 40
    project = upstream.series(tmp_path / "r", upstream.set(4))
    result = compose_of(project)
    assert result.code == 4, result.out
    assert "fetch" in result.json["error"]["hint"]
    # A base without history.
    folder = tmp_path / "s"
    (folder / "tree").mkdir(parents=True)
    (folder / "tree" / "a.py").write_text(lines())
    project = upstream.series(folder, upstream.set(1))
    text = (folder / "series.toml").read_text()
    text = re.sub(
        r"\[base\].*?\n\n", '[base]\npath = "tree"\n\n', text, flags=re.DOTALL
    )
    (folder / "series.toml").write_text(text)
    result = compose_of(project)
    assert result.code == 3, result.out
    assert result.json["error"]["kind"] == "base-without-history"
    assert head


def test_hostile_configuration_changes_nothing(
    upstream: Upstream, tmp_path: Path, hostile: Path
) -> None:
    one = upstream.pull(1, {"a.py": None, "moved.py": lines()})
    two = upstream.pull(2, {"a.py": lines(_10="ten")})
    project = upstream.series(tmp_path / "p", upstream.set(1), upstream.set(2))
    made = compose(project)
    assert made["tree"] == upstream.tree_of_merges(one, two)
    assert not (tmp_path / "trap-was-run").exists()
    assert json.dumps(made)
    assert FILES


def test_line_end_attributes_convert_nothing(
    upstream: Upstream, tmp_path: Path
) -> None:
    upstream.on(upstream.base)
    text = lines().replace("\n", "\r\n")
    files = {
        ".gitattributes": "*.txt text eol=crlf\n*.md ident\n",
        "crlf.txt": text,
        "id.md": "$Id$\n",
    }
    upstream.repo.git("config", "core.autocrlf", "false")
    # As blobs, not through git's own conversion.
    upstream.repo.write({"crlf.txt": text, "id.md": "$Id$\n"})
    upstream.repo.git("add", "-A")
    upstream.repo.write(files)
    upstream.repo.git("add", ".gitattributes")
    upstream.repo.git("commit", "-q", "-m", "attributes")
    base = upstream.repo.head

    def edit(number: int, line: int) -> None:
        blob = upstream.repo.git(
            "hash-object", "-w", "--no-filters", "--stdin",
            stdin=text.replace(f"line {line}\r", f"line {line} of {number}\r").encode(),
        )  # fmt: skip
        upstream.repo.git("read-tree", base)
        upstream.repo.git("update-index", "--cacheinfo", f"100644,{blob},crlf.txt")
        tree = upstream.repo.git("write-tree")
        commit = upstream.repo.git("commit-tree", "-p", base, "-m", "edit", tree)
        upstream.point(number, commit)

    edit(1, 10)
    edit(2, 40)
    project = upstream.series(
        tmp_path / "p", upstream.set(1), upstream.set(2), base=base
    )
    made = locked(project)
    out = tmp_path / "out"
    assert run("compose", "-C", project, "--out", out).code == 0
    wanted = text.replace("line 10\r", "line 10 of 1\r")
    wanted = wanted.replace("line 40\r", "line 40 of 2\r")
    assert (out / "crlf.txt").read_bytes() == wanted.encode()
    assert len(made["steps"]) == 2


def test_locks_of_several_components(upstream: Upstream, tmp_path: Path) -> None:
    upstream.pull(1, {"a.py": lines(_10="ten")})
    upstream.pull(2, {"b.py": lines(_10="ten")})
    one = upstream.series(tmp_path / "one", upstream.set(1))
    two = upstream.series(tmp_path / "two", upstream.set(2))
    ids = [locked(project)["composition"] for project in (one, two)]
    locks = ["--lock", str(one / "series.lock"), "--lock", str(two / "series.lock")]
    result = run("compose", *locks, "--json")
    assert result.code == 0, result.out
    assert [each["composition"] for each in result.json] == ids
    upstream.series(two, upstream.set(1))
    result = run("compose", *locks, "--json")
    assert result.code == 1
    assert [each["locked"]["equal"] for each in result.json] == [True, False]
    assert run("compose", *locks, "--locked", "--no-commits").code == 2


def test_commands_for_patches_refuse_pinned_sets(
    upstream: Upstream, tmp_path: Path
) -> None:
    upstream.pull(1, {"a.py": lines(_10="ten")})
    project = upstream.series(tmp_path / "p", upstream.set(1))
    out = tmp_path / "out"
    assert run("compose", "-C", project, "--out", out).code == 0
    (out / "a.py").write_text(lines(_20="x"))
    for args in (
        ("refresh", "pull-1", "--from", str(out)),
        ("export", "pull-1", "--from", str(upstream.repo.path),
         f"{upstream.base}..{upstream.heads[1]}"),
    ):  # fmt: skip
        result = run(*args, "-C", project, "--json")
        assert result.code in (2, 3), (args, result.code, result.out + result.err)
        assert "pull-1" in result.json["error"]["message"]
    text = run("diff", "pull-1", "-C", project).out
    assert "+ten" in text
    assert run("status", "-C", project, "--json").code == 1
