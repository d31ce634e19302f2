# SPDX-License-Identifier: Apache-2.0
"""The sdist comes from the indexes pip is configured for, by digest or not at all."""

import gzip
import json
import os
import stat
from hashlib import sha256

import pytest

from stackctl.base import resolve_base
from stackctl.base.pipconf import PipConfig
from stackctl.base.pypi import fetch_distribution, fetch_url, split_pin
from stackctl.base.web import Web
from stackctl.errors import InputError, PinError, RemoteError, StackctlError
from stackctl.model.series import ArchiveBase, PypiBase

PIN = "Some.Project==1.2.0"


@pytest.fixture
def sdist(new_tar):
    tar = new_tar().add("some_project-1.2.0/PKG-INFO", b"Name: x\n")
    tar.add("some_project-1.2.0/code.py", os.urandom(200_000))
    return gzip.compress(tar.bytes(), 1)


@pytest.fixture
def digest(sdist):
    return sha256(sdist).hexdigest()


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch):
    monkeypatch.setattr(Web, "pause", lambda self, attempt: None)


@pytest.fixture
def config(index):
    return PipConfig(indexes=(f"{index.url}/simple",), retries=2, timeout=5)


class Told:
    def __init__(self):
        self.states, self.notes = [], []

    def update(self, phase, done, total):
        self.states.append((phase, done, total))

    def note(self, message):
        self.notes.append(message)


NAME = "some_project-1.2.0.tar.gz"


def listed(index, new_route, sdist, href=None):
    index.routes[f"/files/{NAME}"] = new_route(sdist)
    index.page("some-project", href or f"../../files/{NAME}")


def fetch(cache, config, digest, **options):
    return fetch_distribution(PIN, digest, cache=cache, config=config, **options)


def test_an_html_index_with_relative_urls_and_digests(
    cache, index, config, new_route, sdist, digest
):
    listed(index, new_route, sdist, f"../../files/{NAME}#sha256={digest}")
    told = Told()
    path = fetch(cache, config, digest, progress=told)
    assert path == cache.downloads / digest
    assert path.read_bytes() == sdist
    assert stat.S_IMODE(path.stat().st_mode) == 0o444
    assert told.states[-1] == ("download", len(sdist), len(sdist))
    assert [request for request, _ in index.requests] == [
        "/simple/some-project/",
        f"/files/{NAME}",
    ]
    # A second time it is there.
    fetch(cache, config, digest, offline=True)
    assert len(index.requests) == 2


def test_a_base_element_and_entities(cache, index, config, new_route, sdist, digest):
    index.routes[f"/a&b/{NAME}"] = new_route(sdist)
    index.routes["/simple/some-project/"] = new_route(
        f'<base href="{index.url}/a&amp;b/"><a href="{NAME}">'.encode(), "text/html"
    )
    assert fetch(cache, config, digest).read_bytes() == sdist


@pytest.mark.parametrize(
    "kind", ["application/vnd.pypi.simple.v1+json", "application/json"]
)
def test_a_json_index(cache, index, config, new_route, sdist, digest, kind):
    index.routes[f"/files/{NAME}"] = new_route(sdist)
    page = {
        "meta": {"api-version": "1.1"},
        "files": [
            {"filename": "a", "url": "x.whl", "hashes": {}},
            {
                "filename": NAME,
                "url": f"../../files/{NAME}",
                "hashes": {"sha256": digest.upper(), "md5": "x"},
                "yanked": "broken on Tuesdays",
            },
        ],
    }
    index.routes["/simple/some-project/"] = new_route(json.dumps(page).encode(), kind)
    told = Told()
    assert fetch(cache, config, digest, progress=told).read_bytes() == sdist
    assert any("yanked" in note and "Tuesdays" in note for note in told.notes)
    accept = index.requests[0][1]["accept"]
    assert accept.startswith("application/vnd.pypi.simple.v1+json,")


def test_redirects(cache, index, config, new_route, sdist, digest):
    listed(index, new_route, sdist)
    index.routes[f"/real/{NAME}"] = new_route(sdist)
    index.routes[f"/files/{NAME}"] = new_route(
        status=302, headers={"Location": f"/real/{NAME}?signature=1"}
    )
    page = index.routes.pop("/simple/some-project/")
    index.routes["/deep/er/project/"] = page
    index.routes["/simple/some-project/"] = new_route(
        status=301, headers={"Location": "/deep/er/project/"}
    )
    # Relative links count from where the page was found in the end.
    index.routes[f"/deep/files/{NAME}"] = index.routes.pop(f"/files/{NAME}")
    assert fetch(cache, config, digest).read_bytes() == sdist


def test_a_redirect_to_this_machines_files_is_refused(
    cache, index, config, new_route, sdist, digest, tmp_path
):
    (tmp_path / NAME).write_bytes(sdist)
    listed(index, new_route, sdist)
    index.routes[f"/files/{NAME}"] = new_route(
        status=302, headers={"Location": (tmp_path / NAME).as_uri()}
    )
    with pytest.raises(RemoteError):
        fetch(cache, config, digest)
    # And a link to them counts for nothing.
    index.page("some-project", (tmp_path / NAME).as_uri() + f"#sha256={digest}")
    with pytest.raises(PinError, match="no sdist found"):
        fetch(cache, config, digest)


def test_the_second_index_has_it_and_the_first_is_down(
    cache, index, new_route, sdist, digest
):
    listed(index, new_route, sdist)
    config = PipConfig(
        indexes=("http://127.0.0.1:9/simple", f"{index.url}/simple"), retries=0
    )
    assert fetch(cache, config, digest).read_bytes() == sdist


def test_the_listed_file_is_gone_but_another_index_has_it(
    cache, index, new_route, sdist, digest
):
    listed(index, new_route, sdist)
    index.page("some-project", f"../../gone/{NAME}#sha256={digest}")
    index.routes["/second/some-project/"] = new_route(
        f'<a href="/files/{NAME}">'.encode(), "text/html"
    )
    config = PipConfig(indexes=(f"{index.url}/simple", f"{index.url}/second"))
    assert fetch(cache, config, digest).read_bytes() == sdist


# --- credentials ---------------------------------------------------------------------


def test_credentials_of_the_index_url_go_to_its_files_only(
    cache, index, new_route, sdist, digest
):
    index.credentials = ("user", "p@ss")
    listed(index, new_route, sdist, f"{index.url}/files/{NAME}")
    url = index.url.replace("//", "//user:p%40ss@")
    config = PipConfig(indexes=(f"{url}/simple",), retries=0)
    told = Told()
    assert fetch(cache, config, digest, progress=told).read_bytes() == sdist
    assert "p@ss" not in "".join(told.notes)
    assert "p%40ss" not in "".join(told.notes)


def test_credentials_do_not_follow_to_another_origin(
    cache, index, other_index, new_route, sdist, digest
):
    other = other_index
    other.routes[f"/files/{NAME}"] = new_route(sdist)
    index.credentials = ("user", "secret")
    index.page("some-project", f"{other.url}/files/{NAME}#sha256={digest}")
    url = index.url.replace("//", "//user:secret@")
    config = PipConfig(indexes=(f"{url}/simple",), retries=0)
    fetch(cache, config, digest)
    assert "authorization" not in other.requests[0][1]
    # Nor by a redirect.
    (cache.downloads / digest).unlink()
    index.page("some-project", f"/files/{NAME}#sha256={digest}")
    index.routes[f"/files/{NAME}"] = new_route(
        status=302, headers={"Location": f"{other.url}/files/{NAME}"}
    )
    fetch(cache, config, digest)
    assert "authorization" not in other.requests[1][1]


def test_netrc(cache, index, config, new_route, sdist, digest, tmp_path):
    index.credentials = ("user", "secret")
    listed(index, new_route, sdist)
    netrc = tmp_path / "home" / ".netrc"
    netrc.write_text("machine 127.0.0.1 login user password secret\n")
    netrc.chmod(0o600)
    assert fetch(cache, config, digest).read_bytes() == sdist


def texts(error: BaseException) -> str:
    """Return everything of an error that anybody could print."""
    import traceback

    return "".join(traceback.format_exception(error)) + (
        json.dumps(error.document()) if isinstance(error, StackctlError) else ""
    )


def test_no_message_tells_credentials(cache, index, new_route, sdist, digest):
    index.credentials = ("user", "right")
    for url in (
        index.url.replace("//", "//user:secret@"),
        "http://user:secret@127.0.0.1:9",
        "https://user:secret@127.0.0.1:9",
        "http://user:secret@host.invalid",
    ):
        for config in (
            PipConfig(indexes=(f"{url}/simple?token=secret",), retries=0),
            PipConfig(indexes=(), find_links=(f"{url}/x",), retries=0),
        ):
            with pytest.raises(RemoteError) as caught:
                fetch(cache, config, digest)
            assert "secret" not in texts(caught.value)
        with pytest.raises(RemoteError) as caught:
            fetch_url(
                f"{url}/x?sig=secret",
                digest,
                cache=cache,
                config=PipConfig(retries=0),
            )
        assert "secret" not in texts(caught.value)
    with pytest.raises(RemoteError) as caught:
        fetch(
            cache,
            PipConfig(
                indexes=("http://h.invalid",),
                proxy="http://u:secret@127.0.0.1:9",
                retries=0,
            ),
            digest,
        )
    assert "secret" not in texts(caught.value)


# --- what must not happen ------------------------------------------------------------


def nothing_kept(cache):
    return not cache.downloads.exists() or list(cache.downloads.iterdir()) == []


def test_another_file_under_the_name(cache, index, config, new_route, sdist, digest):
    listed(index, new_route, sdist + b"evil")
    with pytest.raises(PinError) as caught:
        fetch(cache, config, digest)
    assert caught.value.kind == "wrong-digest"
    assert digest in caught.value.message
    assert sha256(sdist + b"evil").hexdigest() in caught.value.message
    assert nothing_kept(cache)


def test_another_digest_in_the_index(cache, index, config, new_route, sdist, digest):
    listed(index, new_route, sdist, f"/files/{NAME}#sha256={'1' * 64}")
    with pytest.raises(PinError, match="1" * 64):
        fetch(cache, config, digest)
    assert [request for request, _ in index.requests] == ["/simple/some-project/"]


def test_the_index_lies_about_the_digest(
    cache, index, config, new_route, sdist, digest
):
    listed(index, new_route, b"evil", f"/files/{NAME}#sha256={digest}")
    with pytest.raises(PinError):
        fetch(cache, config, digest)
    assert nothing_kept(cache)


@pytest.mark.parametrize(
    "name",
    [
        "some_project-1.2.0-py3-none-any.whl",
        "some_project-1.2.1.tar.gz",
        "other-1.2.0.tar.gz",
        "some_project-1.2.0.exe",
    ],
)
def test_the_digest_of_something_else(
    cache, index, config, new_route, sdist, digest, name
):
    index.routes[f"/files/{name}"] = new_route(sdist)
    index.page("some-project", f"/files/{name}#sha256={digest}")
    with pytest.raises(PinError) as caught:
        fetch(cache, config, digest)
    assert caught.value.kind == "wrong-file"
    assert name in caught.value.message


@pytest.mark.parametrize(
    "name",
    [
        "Some.Project-1.2.tar.gz",
        "some-project-1.2.0.tar.gz",
        "some_project-1.2.0.zip",
        "SOME_PROJECT-v1.2.0.tar.bz2",
    ],
)
def test_spellings_of_name_and_version(
    cache, index, config, new_route, sdist, digest, name
):
    index.routes[f"/files/{name}"] = new_route(sdist)
    index.page("some-project", f"/files/{name}")
    assert fetch(cache, config, digest).read_bytes() == sdist


def test_not_found_says_what_was_asked_and_what_there_is(cache, index, new_route):
    index.page("some-project", "some_project-1.1.tar.gz", "some_project-1.3.tar.gz")
    url = index.url.replace("//", "//user:secret@")
    config = PipConfig(indexes=(f"{url}/simple", f"{index.url}/none"))
    with pytest.raises(PinError) as caught:
        fetch(cache, config, "1" * 64)
    message = caught.value.message
    assert caught.value.kind == "not-found"
    for part in (
        f"{index.url}/simple",
        f"{index.url}/none",
        "some_project-1.1.tar.gz",
        "some_project-1.3.tar.gz",
        "some-project==1.2.0",
    ):
        assert part in message
    assert "secret" not in message


def test_no_index_at_all(cache):
    with pytest.raises(PinError, match="no-index"):
        fetch(cache, PipConfig(indexes=()), "1" * 64)


def test_an_index_that_fails_is_told_apart_from_one_without_it(
    cache, index, config, new_route
):
    index.routes["/simple/some-project/"] = new_route(status=500)
    with pytest.raises(RemoteError, match="500"):
        fetch(cache, config, "1" * 64)
    assert len(index.requests) == 3
    index.routes["/simple/some-project/"] = new_route(b"{", "application/json")
    with pytest.raises(RemoteError, match="no package index page"):
        fetch(cache, config, "1" * 64)
    index.routes["/simple/some-project/"] = new_route(b"GIF", "image/gif")
    with pytest.raises(RemoteError, match="image/gif"):
        fetch(cache, config, "1" * 64)


def test_offline(cache, config, digest):
    with pytest.raises(RemoteError) as caught:
        fetch(cache, config, digest, offline=True)
    assert caught.value.kind == "offline"
    with pytest.raises(RemoteError) as caught:
        fetch_url("https://h.invalid/x", digest, cache=cache, offline=True)
    assert caught.value.kind == "offline"


@pytest.mark.parametrize("pin", ["x", "x>=1", "x==1.*", "x[a]==1", "x==1; y", "-==1"])
def test_pins_of_more_than_one_version(pin):
    with pytest.raises(InputError):
        split_pin(pin)


# --- unreliable servers --------------------------------------------------------------


def test_busy_servers_are_asked_again(cache, index, config, new_route, sdist, digest):
    listed(index, new_route, sdist)
    index.routes["/simple/some-project/"].failures = [503, 429]
    index.routes[f"/files/{NAME}"].failures = [502, 500]
    assert fetch(cache, config, digest).read_bytes() == sdist


@pytest.mark.parametrize("ranges", [True, False])
def test_a_broken_download_goes_on_where_it_stopped(
    cache, index, config, new_route, sdist, digest, ranges
):
    listed(index, new_route, sdist)
    route = index.routes[f"/files/{NAME}"]
    route.break_after, route.ranges = [100_000, 50_000], ranges
    assert fetch(cache, config, digest).read_bytes() == sdist
    sent = [headers.get("range") for _, headers in index.requests[1:]]
    assert sent[0] is None
    assert sent[1] is not None
    assert len(sent) == 3


def test_a_download_of_an_earlier_run_goes_on(
    cache, index, config, new_route, sdist, digest
):
    listed(index, new_route, sdist)
    route = index.routes[f"/files/{NAME}"]
    route.break_after = [1000, 1000, 1000]
    with pytest.raises(RemoteError, match="broke"):
        fetch(cache, config, digest)
    assert not (cache.downloads / digest).exists()
    part = next(cache.downloads.iterdir())
    begun = part.stat().st_size
    assert begun > 0
    assert fetch(cache, config, digest).read_bytes() == sdist
    assert index.requests[-1][1]["range"] == f"bytes={begun}-"
    assert [path.name for path in cache.downloads.iterdir()] == [digest]


@pytest.mark.parametrize("size", [10, 10**6])
def test_what_an_earlier_run_left_may_be_anything(
    cache, index, config, new_route, sdist, digest, size
):
    listed(index, new_route, sdist)
    cache.downloads.mkdir()
    (cache.downloads / f"{digest}.part").write_bytes(b"x" * size)
    assert fetch(cache, config, digest).read_bytes() == sdist


def test_a_damaged_cache_entry_is_fetched_again(
    cache, index, config, new_route, sdist, digest
):
    listed(index, new_route, sdist)
    cache.downloads.mkdir()
    (cache.downloads / digest).write_bytes(b"damaged")
    assert fetch(cache, config, digest).read_bytes() == sdist


def test_a_full_disk(cache, index, config, new_route, sdist, digest, monkeypatch):
    import errno

    listed(index, new_route, sdist)

    def full(*args):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("pathlib.Path.replace", full)
    with pytest.raises(InputError, match="No space left"):
        fetch(cache, config, digest)
    assert nothing_kept(cache)


# --- this machine's own --------------------------------------------------------------


@pytest.mark.parametrize("form", ["folder", "relative", "page", "file url", "page url"])
def test_find_links(
    cache, index, new_route, sdist, digest, tmp_path, form, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "links").mkdir()
    (tmp_path / "links" / NAME).write_bytes(sdist)
    (tmp_path / "links" / "some_project-1.2.0-py3-none-any.whl").write_bytes(b"")
    (tmp_path / "page.html").write_text(f'<a href="links/{NAME}">')
    index.routes["/page"] = new_route(f'<a href="f/{NAME}">'.encode(), "text/html")
    index.routes[f"/f/{NAME}"] = new_route(sdist)
    link = {
        "folder": str(tmp_path / "links"),
        "relative": "links",
        "page": str(tmp_path / "page.html"),
        "file url": (tmp_path / "links").as_uri(),
        "page url": f"{index.url}/page",
    }[form]
    config = PipConfig(indexes=(), find_links=("/does/not/exist", link))
    offline = form != "page url"
    assert fetch(cache, config, digest, offline=offline).read_bytes() == sdist


def test_find_links_with_another_file_under_the_name(cache, sdist, digest, tmp_path):
    (tmp_path / NAME).write_bytes(sdist + b"x")
    config = PipConfig(indexes=(), find_links=(str(tmp_path),))
    with pytest.raises(PinError) as caught:
        fetch(cache, config, digest)
    assert caught.value.kind == "wrong-digest"


def test_a_file_index(cache, sdist, digest, tmp_path):
    project = tmp_path / "simple" / "some-project"
    project.mkdir(parents=True)
    (project / NAME).write_bytes(sdist)
    (project / "index.html").write_text(f'<a href="{NAME}#sha256={digest}">{NAME}</a>')
    config = PipConfig(indexes=((tmp_path / "simple").as_uri(),))
    assert fetch(cache, config, digest, offline=True).read_bytes() == sdist
    # The page's word is not enough.
    (project / NAME).write_bytes(b"evil")
    with pytest.raises(PinError):
        fetch(cache, config, digest)


def test_wheels_for_those_who_ask_for_wheels(cache, tmp_path):
    name = "some_project-1.2.0-py3-none-any.whl"
    (tmp_path / name).write_bytes(b"wheel")
    digest = sha256(b"wheel").hexdigest()
    config = PipConfig(indexes=(), find_links=(str(tmp_path),))
    found = fetch(cache, config, digest, wheel=True)
    assert found.name == name
    with pytest.raises(PinError):
        fetch(cache, config, digest)


# --- the whole way -------------------------------------------------------------------


def test_a_pypi_base(cache, index, new_route, sdist, digest, tmp_path, monkeypatch):
    listed(index, new_route, sdist)
    monkeypatch.setenv("PIP_INDEX_URL", f"{index.url}/simple/")
    base = PypiBase(pypi=PIN, sha256=digest)
    options = {"project": tmp_path, "cache": cache}
    found = resolve_base(base, expected_tree=None, **options)
    assert found.identity == f"some-project==1.2.0@sha256:{digest}"
    asked = len(index.requests)
    again = resolve_base(base, expected_tree=found.tree, offline=True, **options)
    assert again == found
    assert len(index.requests) == asked
    with pytest.raises(PinError) as caught:
        resolve_base(base, expected_tree="1" * 40, **options)
    assert f"expected {'1' * 40}, got {found.tree}" in caught.value.message
    # Losing the objects costs time only.
    cache.clean(downloads=False)
    from stackctl.cache import Cache

    fresh = Cache.open(cache.folder)
    assert (
        resolve_base(
            base, project=tmp_path, cache=fresh, offline=True, expected_tree=found.tree
        )
        == found
    )


def test_an_archive_base(cache, index, new_route, sdist, digest, tmp_path):
    index.routes["/x"] = new_route(sdist)
    (tmp_path / "local.tgz").write_bytes(sdist)
    trees = set()
    for place in (
        f"{index.url}/x",
        "local.tgz",
        str(tmp_path / "local.tgz"),
        (tmp_path / "local.tgz").as_uri(),
    ):
        cache.clean()
        found = resolve_base(
            ArchiveBase(archive=place, sha256=digest, strip=1),
            project=tmp_path,
            cache=cache,
            expected_tree=None,
        )
        assert (found.kind, found.identity) == ("archive", f"sha256:{digest}")
        trees.add((found.tree, found.commit))
    assert len(trees) == 1
    found = resolve_base(
        ArchiveBase(archive="local.tgz", sha256=digest, strip=0),
        project=tmp_path,
        cache=cache,
        expected_tree=None,
    )
    assert found.identity == f"sha256:{digest};strip=0"
    assert (found.tree, found.commit) not in trees


def test_a_cached_base_starts_nothing_and_loads_little(cache, sdist, digest, tmp_path):
    import subprocess
    import sys

    (tmp_path / "local.tgz").write_bytes(sdist)
    base = ArchiveBase(archive="local.tgz", sha256=digest, strip=1)
    resolve_base(base, project=tmp_path, cache=cache, expected_tree=None)
    (tmp_path / "local.tgz").unlink()
    code = (
        "import os, subprocess, sys\n"
        "from pathlib import Path\n"
        "from stackctl.base import resolve_base\n"
        "from stackctl.cache import Cache\n"
        "from stackctl.model.series import ArchiveBase, PypiBase\n"
        "def no(*a, **k): raise SystemExit('a process was started')\n"
        "subprocess.Popen.__init__ = no\n"
        f"cache = Cache.open(Path({str(cache.folder)!r}))\n"
        f"base = ArchiveBase(archive='local.tgz', sha256='{digest}', strip=1)\n"
        f"resolve_base(base, project=Path('/'), cache=cache, expected_tree=None)\n"
        "heavy = {'requests', 'git', 'packaging', 'tarfile', 'zstandard'}\n"
        "sys.exit(str(heavy & set(sys.modules)) if heavy & set(sys.modules) else 0)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
