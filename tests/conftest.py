# SPDX-License-Identifier: Apache-2.0
"""Fixtures: every test has its own cache and an environment without surprises."""

import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from github_server import FakeGitHub, github
from hypothesis import HealthCheck, settings
from support import Project, hostile_home, three_sets

from stackctl.cache import Cache
from stackctl.git.store import Store

# How long an example takes says more about other work on the machine than about ours.
settings.register_profile(
    "any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("any machine")

if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    # A shell's background job ignores Ctrl-C, and so would all that the tests start.
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def hermetic(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Path:
    """Keep the tests away from the user's cache, and the user's git from the tests."""
    folder = tmp_path_factory.mktemp("cache", numbered=True)
    monkeypatch.setenv("STACKCTL_CACHE_DIR", str(folder))
    for name in ("GIT_DIR", "GIT_INDEX_FILE", "GIT_WORK_TREE", "GIT_CONFIG_COUNT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.delenv("COLUMNS", raising=False)  # would fold tables
    return folder


@pytest.fixture
def cache(hermetic: Path) -> Cache:
    """The test's own cache."""
    return Cache.open()


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """An empty object store."""
    return Store.create(tmp_path / "store.git")


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """A project of three small sets on a git base."""
    return three_sets(tmp_path / "project")


@pytest.fixture
def make_series(tmp_path: Path) -> Callable[..., Project]:
    """Start projects: `make_series().base().add(set, (message, files)...).save()`."""
    made: list[Project] = []

    def make(name: str = "") -> Project:
        made.append(Project(tmp_path / (name or f"project-{len(made)}")))
        return made[-1]

    return make


@pytest.fixture
def short_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look only for a moment at what else the machine does, where no test judges it."""
    from stackctl.gates import units

    monkeypatch.setattr(units, "SETTLE", 0.01)


@pytest.fixture
def hostile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user whose configuration, locale and time zone would change every patch."""
    home = hostile_home(tmp_path)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(home / ".config"))
    monkeypatch.setenv("LC_ALL", "tr_TR.UTF-8")
    monkeypatch.setenv("LANGUAGE", "tr")
    monkeypatch.setenv("TZ", "Pacific/Chatham")
    monkeypatch.setenv("GIT_CONFIG_COUNT", "1")
    monkeypatch.setenv("GIT_CONFIG_KEY_0", "diff.noprefix")
    monkeypatch.setenv("GIT_CONFIG_VALUE_0", "true")
    monkeypatch.setenv("GIT_AUTHOR_DATE", "1 +0000")
    monkeypatch.setenv("GIT_DIFF_OPTS", "--unified=7")
    monkeypatch.setenv("GIT_EXTERNAL_DIFF", str(home / "hooks/trap"))
    monkeypatch.setenv("GIT_INDEX_FILE", str(home / "index"))
    monkeypatch.setenv("GIT_OBJECT_DIRECTORY", str(home / "objects"))
    return home


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeGitHub]:
    """GitHub on this machine, with the token for it; nothing waits."""
    from stackctl.github import endpoint

    monkeypatch.setattr(endpoint, "WRITE_PAUSE", 0.0)
    monkeypatch.setattr(endpoint, "sleep", lambda seconds: None)
    with github(tmp_path / "github") as found:
        for name, value in found.env.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        monkeypatch.setenv("no_proxy", "127.0.0.1")
        yield found
