# SPDX-License-Identifier: Apache-2.0
"""pip's configuration is read as pip reads it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from stackctl.base.pipconf import PYPI, PipConfig, config_files, load, redact
from stackctl.errors import InputError


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


@pytest.fixture
def places(tmp_path):
    """Return variables and files of a machine that has every configuration file."""
    environment = {
        "HOME": str(tmp_path / "user"),
        "XDG_CONFIG_DIRS": f"{tmp_path}/xdg1:{tmp_path}/xdg2",
        "PIP_CONFIG_FILE": str(tmp_path / "missing.conf"),
    }
    files = {
        "xdg1": tmp_path / "xdg1/pip/pip.conf",
        "xdg2": tmp_path / "xdg2/pip/pip.conf",
        "legacy": tmp_path / "user/.pip/pip.conf",
        "user": tmp_path / "user/.config/pip/pip.conf",
        "site": tmp_path / "prefix/pip.conf",
    }
    return environment, files, tmp_path / "prefix"


def test_nothing_configured_is_pypi():
    assert load({"PIP_CONFIG_FILE": os.devnull}) == PipConfig(indexes=(PYPI,))


def test_later_files_win_and_lists_are_replaced(places):
    environment, files, prefix = places
    order = list(files)
    for number, name in enumerate(order):
        write(
            files[name],
            f"[global]\nindex-url = https://{name}.example/simple/\n"
            f"extra-index-url = https://extra-{name}.example/a\n"
            f"  https://extra-{name}.example/b\n",
        )
        found = load(environment, prefix)
        assert found.indexes == (
            f"https://{name}.example/simple",
            f"https://extra-{name}.example/a",
            f"https://extra-{name}.example/b",
        )
        used = [path for path in found.files if path in files.values()]
        assert used == [files[n] for n in order[: number + 1]]


def test_an_explicit_file_replaces_the_users_own(places, tmp_path):
    environment, files, prefix = places
    write(files["user"], "[global]\ntimeout = 3\nretries = 9\n")
    write(files["site"], "[global]\ntimeout = 4\n")
    assert (load(environment, prefix).timeout, load(environment, prefix).retries) == (
        4,
        9,
    )
    write(tmp_path / "missing.conf", "[global]\ntimeout = 5\n")
    found = load(environment, prefix)
    assert (found.timeout, found.retries) == (5, 5)
    environment["PIP_CONFIG_FILE"] = os.devnull
    assert load(environment, prefix) == PipConfig()


def test_sections_and_variables(places):
    environment, files, prefix = places
    write(
        files["user"],
        "[global]\nindex_url = https://global.example\nfind-links = /g\n"
        "trusted-host = a.example b.example:8080\ncert = ~/ca.pem\n"
        "[install]\nindex-url = https://install.example\n"
        "[download]\nfind-links = /d1 /d2\n[list]\nindex-url = https://list.example\n",
    )
    found = load(environment, prefix)
    assert found.indexes == ("https://install.example",)
    assert found.find_links == ("/d1", "/d2")
    assert found.trusted_hosts == ("a.example", "b.example:8080")
    assert found.cert == str(Path("~/ca.pem").expanduser())
    environment |= {
        "PIP_INDEX_URL": "https://env.example/simple",
        "PIP_EXTRA_INDEX_URL": "https://x.example https://y.example",
        "PIP_FIND_LINKS": "/e",
        "PIP_CERT": "/c.pem",
        "PIP_CLIENT_CERT": "/k.pem",
        "PIP_TRUSTED_HOST": "t.example",
        "PIP_DEFAULT_TIMEOUT": "180",
        "PIP_RETRIES": "2",
        "PIP_PROXY": "http://proxy.example:3128",
    }
    assert load(environment, prefix) == PipConfig(
        indexes=(
            "https://env.example/simple",
            "https://x.example",
            "https://y.example",
        ),
        find_links=("/e",),
        cert="/c.pem",
        client_cert="/k.pem",
        trusted_hosts=("t.example",),
        proxy="http://proxy.example:3128",
        timeout=180,
        retries=2,
    )
    # An empty variable is no variable.
    environment["PIP_INDEX_URL"] = ""
    assert load(environment, prefix).indexes[0] == "https://install.example"


@pytest.mark.parametrize("value", ["1", "yes", "true", "ON"])
def test_no_index(value):
    found = load({"PIP_CONFIG_FILE": os.devnull, "PIP_NO_INDEX": value})
    assert found.indexes == ()
    found = load({"PIP_CONFIG_FILE": os.devnull, "PIP_NO_INDEX": "0"})
    assert found.indexes == (PYPI,)


@pytest.mark.parametrize(
    "text",
    [
        "index-url = https://u:secret@x\n",
        "[global\nindex-url = https://u:secret@x\n",
        "[global]\nindex-url = https://u:secret@x\n[global]\n",
        "[global]\nno-index = https://u:secret@x\n".replace("https://u:secret@x", "??"),
        "[global]\ntimeout = soon\n",
    ],
)
def test_malformed_files_are_named_and_not_quoted(places, text):
    environment, files, prefix = places
    write(files["site"], text)
    with pytest.raises(InputError) as caught:
        load(environment, prefix)
    assert "secret" not in caught.value.message
    assert caught.value.kind == "pip-config"


def test_the_files_are_those_of_the_pip_that_is_installed(tmp_path, monkeypatch):
    pytest.importorskip("pip")
    monkeypatch.delenv("PIP_CONFIG_FILE")
    monkeypatch.setenv("XDG_CONFIG_DIRS", f"{tmp_path}/a:{tmp_path}/b")
    done = subprocess.run(
        [sys.executable, "-m", "pip", "config", "debug"],
        capture_output=True,
        text=True,
        check=True,
    )
    told = [
        line.strip().partition(", exists:")[0]
        for line in done.stdout.splitlines()
        if ", exists:" in line
    ]
    # It prints them by the name of their kind, not in the order in which they count.
    found = config_files(os.environ, Path(sys.prefix))
    assert sorted(map(str, found)) == sorted(told)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("https://user:pass@host/simple", "https://host/simple"),
        ("https://token@host:8443/x?sig=secret#y", "https://host:8443/x"),
        ("https://u:p%40q@host/a@b", "https://host/a@b"),
        ("https://a@b@host/", "https://host/"),
        ("file:///srv/x", "file:///srv/x"),
        ("/srv/x", "/srv/x"),
        ("git@host:x/y", "git@host:x/y"),
    ],
)
def test_redact(url, shown):
    assert redact(url) == shown
