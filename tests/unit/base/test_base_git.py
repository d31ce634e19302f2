# SPDX-License-Identifier: Apache-2.0
"""A commit as a base: fetched alone, completed on demand, by id or by its refs."""

import multiprocessing
import subprocess
from pathlib import Path

import pytest

from stackctl.base import resolve_base
from stackctl.base.git import fetch_commit
from stackctl.cache import Cache
from stackctl.errors import InputError, PinError, RemoteError
from stackctl.model.series import GitBase


@pytest.fixture
def upstream(tmp_path, real_git):
    """Return a repository with three commits, a side branch and an annotated tag."""
    folder = tmp_path / "upstream"
    folder.mkdir()
    real_git(folder, "init", "-q", "-b", "main")
    for number in range(3):
        (folder / "file").write_text(f"{number}\n" * 50)
        (folder / f"only-{number}").write_text(f"{number}\n")
        real_git(folder, "add", "-A")
        real_git(folder, "commit", "-qm", f"c{number}")
    real_git(folder, "tag", "-am", "v1", "v1", "HEAD~1")
    real_git(folder, "branch", "side", "HEAD~2")
    return folder


def commit_of(real_git, folder, name):
    return real_git(folder, "rev-parse", name)


def count(real_git, cache):
    out = real_git(cache.store.git_dir, "count-objects", "-v")
    return int(next(x for x in out.splitlines() if x.startswith("in-pack")).split()[1])


def refs_of(real_git, cache):
    return real_git(cache.store.git_dir, "for-each-ref")


@pytest.mark.parametrize("form", ["path", "relative", "file url"])
def test_one_commit_and_nothing_else(cache, upstream, real_git, form):
    commit = commit_of(real_git, upstream, "main~1")
    tree = commit_of(real_git, upstream, "main~1^{tree}")
    url = {
        "path": str(upstream),
        "relative": "upstream",
        "file url": upstream.as_uri(),
    }[form]
    found = resolve_base(
        GitBase(git=url, commit=commit),
        project=upstream.parent,
        cache=cache,
        expected_tree=tree,
    )
    assert (found.kind, found.identity) == ("git", f"commit:{commit}")
    assert (found.commit, found.tree) == (commit, tree)
    # One commit, one tree, three blobs.
    assert count(real_git, cache) == 5
    assert refs_of(real_git, cache) == ""
    assert real_git(cache.store.git_dir, "log", "--format=%s", commit) == "c1"
    assert "upstream" not in (cache.store.git_dir / "config").read_text()


def test_history_is_completed_later(cache, upstream, real_git):
    commit = commit_of(real_git, upstream, "main")
    options = {"cache": cache, "project": upstream}
    fetch_commit(str(upstream), commit, **options)
    assert real_git(cache.store.git_dir, "rev-list", "--count", commit) == "1"
    fetch_commit(str(upstream), commit, history=True, **options)
    assert real_git(cache.store.git_dir, "rev-list", "--count", commit) == "3"
    # And fetching another commit alone does not cut it again.
    fetch_commit(str(upstream), commit_of(real_git, upstream, "main~1"), **options)
    assert real_git(cache.store.git_dir, "rev-list", "--count", commit) == "3"
    real_git(cache.store.git_dir, "fsck", "--strict")


def test_two_repositories_in_one_shallow_store(cache, upstream, tmp_path, real_git):
    other = tmp_path / "other"
    real_git(tmp_path, "clone", "-q", str(upstream), "other")
    for number in range(2):
        (other / "more").write_text(f"{number}\n")
        real_git(other, "add", "-A")
        real_git(other, "commit", "-qm", f"o{number}")
    options = {"cache": cache, "project": upstream}
    first = commit_of(real_git, upstream, "main~1")
    second = commit_of(real_git, other, "HEAD")
    fetch_commit(str(upstream), first, **options)
    fetch_commit(str(other), second, **options)
    fetch_commit(str(other), second, history=True, **options)
    fetch_commit(str(upstream), first, history=True, **options)
    assert real_git(cache.store.git_dir, "rev-list", "--count", second) == "5"
    assert real_git(cache.store.git_dir, "rev-list", "--count", first) == "2"


def test_a_commit_that_is_there_needs_no_repository(cache, upstream, real_git):
    commit = commit_of(real_git, upstream, "main")
    options = {"cache": cache, "project": upstream}
    fetch_commit(str(upstream), commit, history=True, **options)
    # A fresh cache object, and facts lost: the store alone has to do.
    for path in cache.folder.glob("facts*"):
        path.unlink()
    fresh = Cache.open(cache.folder)
    found = resolve_base(
        GitBase(git="https://unreachable.invalid/x", commit=commit),
        project=upstream,
        cache=fresh,
        offline=True,
        expected_tree=None,
    )
    assert found.commit == commit


def test_offline(cache, upstream, real_git):
    commit = commit_of(real_git, upstream, "main")
    base = GitBase(git="https://user:secret@unreachable.invalid/x", commit=commit)
    with pytest.raises(RemoteError) as caught:
        resolve_base(
            base, project=upstream, cache=cache, offline=True, expected_tree=None
        )
    assert caught.value.kind == "offline"
    assert "secret" not in caught.value.message
    # What lies on this machine needs no network.
    resolve_base(
        GitBase(git=str(upstream), commit=commit),
        project=upstream,
        cache=cache,
        offline=True,
        expected_tree=None,
    )


def test_missing_commit_names_the_command(cache, upstream, real_git):
    with pytest.raises(PinError) as caught:
        fetch_commit(str(upstream), "1" * 40, cache=cache, project=upstream)
    assert caught.value.kind == "missing-commit"
    assert "1" * 40 in caught.value.message
    command = caught.value.hint.partition(": ")[2]
    commit = commit_of(real_git, upstream, "main")
    command = command.replace("URL", str(upstream)).replace("1" * 40, commit)
    subprocess.run(command.split(), check=True, capture_output=True)
    fetch_commit("https://unreachable.invalid/x", commit, cache=cache, project=upstream)


@pytest.mark.parametrize("name", ["v1", "main^{tree}", "main:file"])
def test_only_commits_count(cache, upstream, real_git, name):
    oid = commit_of(real_git, upstream, name)
    with pytest.raises(PinError) as caught:
        fetch_commit(str(upstream), oid, cache=cache, project=upstream)
    assert caught.value.kind == "not-a-commit"


def test_no_such_repository(cache, tmp_path):
    for url in ("missing", "-oProxyCommand=x", "ext::sh -c touch% evil", "x:y"):
        with pytest.raises(RemoteError) as caught:
            fetch_commit(url, "1" * 40, cache=cache, project=tmp_path)
        assert caught.value.kind == "unreachable"
    assert not (tmp_path / "evil").exists()


@pytest.fixture
def dumb_server(upstream, real_git, index, new_route):
    """Serve the repository by dumb HTTP, which knows refs and no ids."""
    real_git(upstream, "repack", "-adq")
    real_git(upstream, "update-server-info")
    top = upstream / ".git"
    for path in top.rglob("*"):
        if path.is_file():
            name = path.relative_to(top).as_posix()
            index.routes[f"/r/{name}"] = new_route(path.read_bytes(), "text/plain")
    return f"{index.url}/r"


@pytest.mark.parametrize("history", [False, True])
@pytest.mark.parametrize("name", ["main", "main~1", "side", "v1^{commit}"])
def test_a_server_of_plain_files(cache, upstream, real_git, dumb_server, name, history):
    commit = commit_of(real_git, upstream, name)
    fetch_commit(dumb_server, commit, cache=cache, project=upstream, history=history)
    assert commit in cache.store
    assert refs_of(real_git, cache) == ""
    with pytest.raises(PinError) as caught:
        fetch_commit(dumb_server, "1" * 40, cache=cache, project=upstream)
    assert caught.value.kind == "missing-commit"


@pytest.mark.parametrize("ref", [None, "refs/heads/main", "refs/heads/gone"])
@pytest.mark.parametrize(
    ("name", "objects"), [("main", 6), ("side", 4), ("v1^{commit}", 6), ("main~1", 0)]
)
def test_a_server_that_refuses_ids(
    cache, upstream, real_git, tmp_path, monkeypatch, name, objects, ref
):
    # Version 0 of git's protocol, as old servers speak it, gives tips of refs only. The
    # user's configuration chooses it, and counts for remote repositories alone.
    monkeypatch.setattr("stackctl.base.git.repository", lambda git, _: (git, False))
    (tmp_path / "home" / ".gitconfig").write_text("[protocol]\n\tversion = 0\n")
    (upstream / "only-0").write_text("another tip\n")
    real_git(upstream, "commit", "-qam", "c3")
    commit = commit_of(real_git, upstream, name)
    fetch_commit(str(upstream), commit, cache=cache, project=upstream, ref=ref)
    assert commit in cache.store
    assert refs_of(real_git, cache) == ""
    if objects:
        assert count(real_git, cache) == objects
    with pytest.raises(PinError):
        fetch_commit(str(upstream), "1" * 40, cache=cache, project=upstream)


def test_the_users_configuration_does_not_touch_local_fetches(
    cache, upstream, real_git, tmp_path
):
    (tmp_path / "home" / ".gitconfig").write_text("[broken\n")
    head = (upstream / ".git/refs/heads/main").read_text().strip()
    fetch_commit(str(upstream), head, cache=cache, project=upstream)
    assert head in cache.store


def test_a_commit_below_no_ref(cache, upstream, real_git):
    """An unadvertised commit comes by id, as pull requests' heads do."""
    (upstream / "file").write_text("pull\n")
    real_git(upstream, "commit", "-qam", "pull")
    commit = commit_of(real_git, upstream, "main")
    real_git(upstream, "reset", "-q", "--hard", "HEAD~1")
    fetch_commit(str(upstream), commit, cache=cache, project=upstream)
    assert commit in cache.store


def test_the_remains_of_a_killed_fetch_do_not_block(cache, upstream, real_git):
    commit = commit_of(real_git, upstream, "main")
    (cache.store.git_dir / "shallow.lock").write_bytes(b"")
    pack = cache.store.git_dir / "objects" / "pack"
    (pack / "tmp_pack_abc").write_bytes(b"PACK")
    fetch_commit(str(upstream), commit, cache=cache, project=upstream)
    assert commit in cache.store
    assert not list(pack.glob("tmp_*"))


def _work(folder: Path, url: str, commit: str, history: bool) -> None:
    fetch_commit(url, commit, cache=Cache.open(folder), project=folder, history=history)


def test_many_at_once(cache, upstream, real_git):
    commits = real_git(upstream, "rev-list", "main").split()
    context = multiprocessing.get_context("spawn")
    jobs = [
        context.Process(
            target=_work, args=(cache.folder, str(upstream), commit, history)
        )
        for commit in commits
        for history in (False, True)
    ]
    for job in jobs:
        job.start()
    for job in jobs:
        job.join()
    assert [job.exitcode for job in jobs] == [0] * len(jobs)
    assert real_git(cache.store.git_dir, "rev-list", "--count", commits[0]) == "3"


def test_a_commit_whose_tree_leads_out_is_refused(tmp_path, upstream, real_git):
    blob = real_git(upstream, "rev-parse", "HEAD:file")
    raw = b"100644 ../../x\0" + bytes.fromhex(blob)
    made = subprocess.run(
        ["git", "hash-object", "-t", "tree", "-w", "--literally", "--stdin"],
        cwd=upstream,
        input=raw,
        capture_output=True,
        check=True,
    )
    tree = made.stdout.decode().strip()
    commit = real_git(upstream, "commit-tree", "-m", "hostile", tree)
    cache = Cache(tmp_path / "cache")
    for _ in range(2):
        with pytest.raises(InputError) as caught:
            fetch_commit(str(upstream), commit, cache=cache, project=tmp_path)
        assert caught.value.kind == "tree-refused"
        assert caught.value.where["commit"] == commit
