# SPDX-License-Identifier: Apache-2.0
"""Fetching pinned heads, and heads that move."""

import shutil
from pathlib import Path

import pytest
from pulls import Upstream, answer, lines
from support import git, run


@pytest.fixture
def upstream(tmp_path: Path) -> Upstream:
    return Upstream.make(tmp_path / "upstream")


def test_check_shows_all_moved_heads_at_once(
    upstream: Upstream, tmp_path: Path
) -> None:
    for number in (1, 2, 3):
        upstream.pull(number, {f"new-{number}": "x\n"})
    project = upstream.series(
        tmp_path / "p", *(upstream.set(number) for number in (1, 2, 3))
    )
    assert answer("pins", project)["moved"] == []
    old = dict(upstream.heads)
    upstream.pull(1, {"new-1": "y\n"})
    upstream.pull(2, {"new-2": "y\n"}, onto=old[2])
    upstream.repo.git("update-ref", "-d", "refs/pull/3/head")
    found = answer("pins", project, "--check", code=4)
    assert found["moved"] == ["pull-1", "pull-2"] and found["gone"] == ["pull-3"]
    text = run("pins", "-C", project).out
    assert f"pins {old[1]}, remote has {upstream.heads[1]}" in text
    # Never followed: what is pinned is composed, and only that.
    made = answer("compose", project, "--only", "pull-2")
    assert made["steps"][0]["head"] == old[2]


def test_missing_head_that_moved(
    upstream: Upstream, tmp_path: Path, hermetic: Path
) -> None:
    old = upstream.pull(1, {"new": "x\n"})
    project = upstream.series(tmp_path / "p", upstream.set(1))
    new = upstream.pull(1, {"new": "y\n"})
    upstream.on(upstream.base)
    upstream.repo.git("reflog", "expire", "--expire=now", "--all")
    upstream.repo.git("gc", "-q", "--prune=now")
    error = answer("compose", project, code=4)["error"]
    assert error["kind"] == "moved-head"
    assert f"pins {old}, remote has {new}" in error["message"]
    assert "pins --update pull-1" in error["hint"]
    answer("pins", project, "--update", "pull-1")
    assert answer("compose", project)["steps"][0]["head"] == new


def test_update_shows_range_diff_and_keeps_comments(
    upstream: Upstream, tmp_path: Path
) -> None:
    old = upstream.pull(1, {"a.py": lines(_10="ten")}, {"b.py": lines(_3="x")})
    project = upstream.series(
        tmp_path / "p", "# carried for a year\n" + upstream.set(1, extra="# below\n")
    )
    before = (project / "series.toml").read_text()
    same = answer("pins", project, "--update", "pull-1")
    assert not same["written"] and same["old"] == same["new"]
    new = upstream.pull(1, {"a.py": lines(_10="ten")}, {"b.py": lines(_3="y")})
    shown = answer("pins", project, "--update", "pull-1", "--dry-run")
    assert not shown["written"] and (project / "series.toml").read_text() == before
    done = answer("pins", project, "--update", "pull-1")
    assert done["written"] and (done["old"], done["new"]) == (old, new)
    assert "1:" in done["range_diff"] and "+x" in done["range_diff"]
    assert (project / "series.toml").read_text() == before.replace(old, new)


def test_update_of_picked_commits(upstream: Upstream, tmp_path: Path) -> None:
    old = upstream.pull(1, {"a.py": lines(_10="ten")}, {"b.py": lines(_3="x")})
    first = upstream.repo.git("rev-parse", f"{old}^")
    project = upstream.series(tmp_path / "p", upstream.set(1, commits=(first, old)))
    upstream.pull(1, {"a.py": lines(_10="TEN")}, {"b.py": lines(_3="x")})
    answer("pins", project, "--update", "pull-1")
    made = answer("compose", project)
    assert made["steps"][1]["head"] == upstream.heads[1]
    new = upstream.heads[1]
    # Of some commits, which ones is not ours to say.
    project = upstream.series(tmp_path / "q", upstream.set(1, commits=(new,)))
    last = upstream.pull(1, {"a.py": lines(_10="10")}, {"b.py": lines(_3="x")})
    error = answer("pins", project, "--update", "pull-1", code=2)["error"]
    assert error["kind"] == "ambiguous-commits"
    answer("pins", project, "--update", "pull-1", "--commits", last)
    assert answer("compose", project)["steps"][0]["head"] == last


def test_swallowed_upstream_commits_are_refused(
    upstream: Upstream, tmp_path: Path
) -> None:
    upstream.pull(1, {"a.py": lines(_10="ten")})
    project = upstream.series(tmp_path / "p", upstream.set(1))
    upstream.repo.git("checkout", "-q", "main")
    ahead = upstream.repo.commit("upstream\n", {"b.py": lines(_9="nine")})
    upstream.pull(1, {"a.py": lines(_10="ten")}, onto=ahead)
    error = answer("pins", project, "--update", "pull-1", code=4)["error"]
    assert error["kind"] == "swallowed-upstream"
    assert error["where"]["commits"] == [ahead]
    swallowing = upstream.series(tmp_path / "q", upstream.set(1))
    found = answer("pins", swallowing, code=4)
    assert found["pins"][0]["swallows"] == [ahead]
    # Composing refuses as well, and writes nothing.
    for command in (("compose", "--out", str(tmp_path / "out")), ("lock",)):
        error = answer(command[0], swallowing, *command[1:], code=4)["error"]
        assert error["kind"] == "swallowed-upstream"
        assert error["where"]["set"] == "pull-1"
        assert ahead in error["hint"]
    assert not (tmp_path / "out").exists()
    assert not (swallowing / "series.lock").exists()
    # Off the network it says that it did not look.
    made = answer("compose", swallowing, "--offline")
    assert made["unchecked_pins"] == ["pull-1"]
    # A lock that was written so does not make it good.
    assert answer("lock", swallowing, "--offline")["unchecked_pins"] == ["pull-1"]
    for command in ("compose", "lock"):
        error = answer(command, swallowing, code=4)["error"]
        assert error["kind"] == "swallowed-upstream"
    answer("lock", swallowing, "--offline")
    upstream.repo.git("update-ref", "refs/heads/main", upstream.base)
    assert answer("lock", swallowing)["unchecked_pins"] == []
    assert b"unchecked_pins" not in (swallowing / "series.lock").read_bytes()
    # A pull request that upstream has merged since swallows nothing.
    merged = Upstream.make(tmp_path / "other")
    head = merged.pull(1, {"a.py": lines(_10="ten")})
    merged.repo.git("checkout", "-q", "main")
    merged.merge(head)
    project = merged.series(tmp_path / "r", merged.set(1))
    assert answer("pins", project)["pins"][0]["swallows"] == []


def test_a_locked_head_is_not_looked_at_again(
    upstream: Upstream, tmp_path: Path, hermetic: Path
) -> None:
    # Upstream later takes the first commit of a locked head as it is.
    head = upstream.pull(1, {"a.py": lines(_10="ten")}, {"b.py": lines(_3="x")})
    project = upstream.series(tmp_path / "p", upstream.set(1))
    locked = answer("lock", project)
    assert locked["unchecked_pins"] == []
    upstream.repo.git("update-ref", "refs/heads/main", f"{head}^")
    shutil.rmtree(hermetic)
    assert answer("compose", project, "--locked")["tree"] == locked["tree"]
    # A series that pins it anew is told.
    other = upstream.series(tmp_path / "q", upstream.set(1))
    assert answer("compose", other, code=4)["error"]["kind"] == "swallowed-upstream"


def test_offline_and_unreachable(upstream: Upstream, tmp_path: Path) -> None:
    upstream.pull(1, {"new": "x\n"})
    project = upstream.series(tmp_path / "p", upstream.set(1))
    answer("pins", project, "--offline", code=6)
    answer("compose", project)
    shutil.move(upstream.repo.path, tmp_path / "gone")
    found = answer("pins", project, code=6)
    assert found["pins"][0]["state"] == "unreachable"
    # What was fetched once stays.
    answer("compose", project, "--offline")


def test_shallow_source_is_an_error_and_no_wrong_tree(
    upstream: Upstream, tmp_path: Path
) -> None:
    upstream.on(upstream.base)
    upstream.repo.git("checkout", "-q", "main")
    upstream.repo.commit("more\n", {"b.py": lines(_9="nine")})
    upstream.base = upstream.repo.head
    head = upstream.pull(1, {"a.py": lines(_10="ten")})
    url = f"file://{upstream.repo.path}"
    shallow = tmp_path / "shallow"
    git("clone", "-q", "--bare", "--depth=1", url, str(shallow))
    git("--git-dir", str(shallow), "fetch", "-q", "--depth=1", url,
        "refs/pull/1/head:refs/pull/1/head")  # fmt: skip
    whole = answer("compose", upstream.series(tmp_path / "w", upstream.set(1)))
    project = upstream.series(tmp_path / "p", upstream.set(1))
    text = (project / "series.toml").read_text()
    text = text.replace(str(upstream.repo.path), f"file://{shallow}")
    (project / "series.toml").write_text(text)
    result = run(
        "compose", "-C", project, "--json",
        env={"STACKCTL_CACHE_DIR": str(tmp_path / "other-cache")},
    )  # fmt: skip
    assert result.code == 4, result.out
    assert result.json["error"]["hint"]
    assert whole["steps"][0]["head"] == head
