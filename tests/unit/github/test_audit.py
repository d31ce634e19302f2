# SPDX-License-Identifier: Apache-2.0
"""The audit of open pull requests, from saved listings in GitHub's own forms."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs

import pytest
from support import run

HEADS = {number: f"{number:x}" * 40 for number in (1, 2, 3, 4, 5)}

SERIES = f"""\
schema = 1
name = "fork"

[base]
git = "https://github.com/o/r.git"
commit = "{"b" * 40}"
ref = "refs/heads/main"

[[set]]
name = "merged"
pull = {{ repo = "o/r", number = 1, head = "{HEADS[1]}" }}

[[set]]
name = "patched"
draft = true
pull = {{ repo = "O/R", number = 2 }}

[[exclude]]
pull = {{ repo = "o/r", number = 3, head = "{HEADS[3]}" }}
kind = "experimental"
why = "Not measured yet."
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "series.toml").write_text(SERIES)
    return tmp_path


def rest(number: int, head: str = "", base: str = "main") -> dict:
    """A pull request as GitHub's API lists it (the keys that are read)."""
    return {
        "number": number,
        "state": "open",
        "title": f"Pull {number}",
        "draft": False,
        "head": {"sha": head or HEADS[number], "ref": "topic"},
        "base": {"ref": base, "repo": {"full_name": "o/r"}},
    }


def audit(folder: Path, listing: object, *options: str, code: int) -> dict:
    path = folder / "pulls.json"
    path.write_text(json.dumps(listing))
    result = run("pr", "audit", "-C", folder, "--pulls-json", path, "--json", *options)
    assert result.code == code, result.out + result.err
    return result.json


def test_covered_pulls_pass(folder: Path) -> None:
    found = audit(folder, [rest(1), rest(2), rest(3)], code=0)
    assert found["ok"] and found["errors"] == [] and found["closed"] == []
    assert [each["status"] for each in found["pulls"]] == ["set", "set", "excluded"]
    assert found["pulls"][2]["why"] == "Not measured yet."


def test_uncovered_and_moved_pulls_are_errors(folder: Path) -> None:
    found = audit(folder, [rest(4), rest(3, "a" * 40), rest(1, "c" * 40)], code=1)
    assert found["errors"] == [1, 3, 4]
    status = {each["number"]: each["status"] for each in found["pulls"]}
    assert status == {1: "moved", 3: "moved", 4: "uncovered"}
    assert f"pins {HEADS[1]}, remote has {'c' * 40}" in found["pulls"][0]["why"]
    assert found["closed"] == ["set patched"]


def test_pulls_for_other_branches_do_not_count(folder: Path) -> None:
    listing = [rest(1), rest(2), rest(3), rest(5, base="release")]
    assert len(audit(folder, listing, code=0)["pulls"]) == 3
    found = audit(folder, listing, "--base", "release", code=1)
    assert found["errors"] == [5]


def test_pages_and_the_form_of_gh(folder: Path) -> None:
    pages = [[rest(1)], [rest(2)], [rest(3)]]
    assert len(audit(folder, pages, code=0)["pulls"]) == 3
    listed = [
        {"number": n, "title": "t", "headRefOid": HEADS[n], "baseRefName": "main",
         "state": "OPEN"}
        for n in (1, 2, 3)
    ]  # fmt: skip
    closed = {"number": 4, "title": "t", "headRefOid": HEADS[4], "state": "CLOSED"}
    assert len(audit(folder, [*listed, closed], code=0)["pulls"]) == 3


@pytest.mark.parametrize(
    "listing", ["x", [1], [{"number": "1"}], [{"number": 1, "head": {"sha": "short"}}]]
)
def test_bad_listings_are_refused(folder: Path, listing: object) -> None:
    assert audit(folder, listing, code=3)["error"]["kind"] == "bad-listing"


def test_offline_needs_a_listing(folder: Path) -> None:
    result = run("pr", "audit", "-C", folder, "--offline", "--json")
    assert result.code == 6


def test_live_listing_of_two_pages(folder: Path) -> None:
    """PyGithub against a server that answers as GitHub's API does."""

    class Api(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            url = f"http://{self.headers['Host']}{self.path.partition('?')[0]}"
            query = parse_qs(self.path.partition("?")[2])
            asked.append((self.path, self.headers.get("Authorization")))
            body: object = {"full_name": "o/r", "url": url}
            link = None
            if self.path.partition("?")[0].endswith("/pulls"):
                assert query["state"] == ["open"] and query["base"] == ["main"]
                second = query.get("page") == ["2"]
                body = [rest(3), rest(4)] if second else [rest(1), rest(2)]
                if not second:
                    link = f'<{url}?state=open&base=main&page=2>; rel="next"'
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            if link:
                self.send_header("Link", link)
            self.end_headers()
            self.wfile.write(json.dumps(body).encode())

        def log_message(self, format: str, *args: object) -> None:
            pass

    asked: list[tuple[str, str | None]] = []
    server = ThreadingHTTPServer(("127.0.0.1", 0), Api)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        result = run(
            "pr", "audit", "-C", folder, "--json",
            env={
                "GITHUB_API_URL": f"http://127.0.0.1:{server.server_port}",
                "GITHUB_TOKEN": "secret-token",
                "NO_PROXY": "127.0.0.1",
            },
        )  # fmt: skip
    finally:
        server.shutdown()
        server.server_close()
    assert result.code == 1, result.out + result.err
    assert result.json["errors"] == [4]
    assert len(result.json["pulls"]) == 4
    assert "secret-token" not in result.out + result.err
    assert asked and all("secret-token" in (token or "") for _, token in asked)


def test_unreachable_github_is_a_remote_error(folder: Path) -> None:
    result = run(
        "pr", "audit", "-C", folder, "--json",
        env={"GITHUB_API_URL": "http://127.0.0.1:9", "NO_PROXY": "127.0.0.1"},
    )  # fmt: skip
    assert result.code == 6, result.out
    assert "--pulls-json" in result.json["error"]["hint"]
