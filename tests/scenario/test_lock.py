# SPDX-License-Identifier: Apache-2.0
"""The lock: written where two routes agree, the same bytes everywhere."""

import json
from hashlib import sha256
from pathlib import Path

import pytest
from support import Project, run, three_sets

from stackctl import cli
from stackctl.git.apply import Workspace
from stackctl.git.objects import MODE_EXEC, MODE_FILE
from stackctl.git.patchtext.model import Patch
from stackctl.model.canonical import canonical_json


def test_the_lock_says_what_was_composed(project: Project) -> None:
    done = run("lock", "--json", cwd=project.folder)
    assert done.code == 0, done.out
    data = (project.folder / "series.lock").read_bytes()
    assert data.endswith(b"}\n")
    document = json.loads(data)
    assert canonical_json(document) + b"\n" == data
    content = document["content"]
    assert content["tree"] == project.trees[-1]
    assert [step["tree"] for step in content["steps"]] == project.trees
    identity = sha256(canonical_json(content)).hexdigest()
    assert identity == done.json["composition"]
    text = data.decode()
    assert str(project.folder.parent) not in text
    assert "ns" not in document["made_by"]


def test_writing_again_changes_nothing(project: Project) -> None:
    lock = project.folder / "series.lock"
    run("lock", cwd=project.folder)
    first, when = lock.read_bytes(), lock.stat().st_mtime_ns
    done = run("lock", "--json", cwd=project.folder)
    assert done.json["locked"]["written"] is False
    assert (lock.read_bytes(), lock.stat().st_mtime_ns) == (first, when)
    # A lock of other tools with the same content stays as it is, too.
    document = json.loads(first)
    document["made_by"]["git"] = "9.9.9"
    other = canonical_json(document) + b"\n"
    lock.write_bytes(other)
    assert run("lock", cwd=project.folder).code == 0
    assert lock.read_bytes() == other
    assert run("compose", "--locked", cwd=project.folder).code == 0


def test_two_clones_of_different_users_lock_the_same_bytes(tmp_path: Path) -> None:
    locks, documents = [], []
    for number, name in enumerate(("a", "b with space é")):
        place = tmp_path / name
        place.mkdir()
        # The same history is made again, at another place.
        project = three_sets(place / "project", "path")
        environment = {
            "STACKCTL_CACHE_DIR": str(place / "cache"),
            "USER": name,
            "TZ": ("UTC", "Asia/Kathmandu")[number],
            "HOME": str(place),
            "SOURCE_DATE_EPOCH": str(number),
            "LC_ALL": ("C", "C.UTF-8")[number],
        }
        done = run("lock", "--json", cwd=project.folder, env=environment)
        assert done.code == 0, done.out
        document = done.json
        document.pop("ns")
        documents.append(document)
        locks.append((project.folder / "series.lock").read_bytes())
    assert locks[0] == locks[1]
    assert documents[0] == documents[1]


def _faulty_mode(self: Workspace) -> None:
    found = self.editor.get(b"no-newline")
    assert found is not None
    self.editor.put(b"no-newline", MODE_EXEC, found.oid)


def _faulty_content(self: Workspace) -> None:
    found = self.editor.get(b"README.md")
    assert found is not None
    self.editor.put(b"no-newline", MODE_FILE, found.oid)


@pytest.mark.parametrize("fault", [_faulty_mode, _faulty_content])
def test_a_fault_in_the_fast_path_is_refused_and_nothing_is_written(
    project: Project,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    fault: object,
) -> None:
    apply = Workspace.apply

    def broken(self: Workspace, patch: Patch) -> bool:
        result = apply(self, patch)
        if b"beta" in patch.message:
            fault(self)  # type: ignore[operator]
        return result

    monkeypatch.setattr(Workspace, "apply", broken)
    lock = project.folder / "series.lock"
    for old in (None, b"an old lock\n"):
        if old is not None:
            lock.write_bytes(old)
        code = cli.run(["lock", "--json", "-C", str(project.folder)])
        document = json.loads(capsys.readouterr().out)
        assert code == 70
        assert document["error"]["kind"] == "routes-disagree"
        assert document["error"]["where"]["set"] == "beta"
        assert document["error"]["where"]["patch"] == "0001-beta-more.patch"
        assert (lock.read_bytes() if lock.exists() else None) == old
    monkeypatch.undo()


def test_a_wrong_remembered_step_does_not_reach_the_lock(
    project: Project,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    hermetic: Path,
) -> None:
    """The second route does not look at the cache that the first one trusts."""
    apply = Workspace.apply

    def broken(self: Workspace, patch: Patch) -> bool:
        result = apply(self, patch)
        _faulty_mode(self)
        return result

    with monkeypatch.context() as patched:
        patched.setattr(Workspace, "apply", broken)
        cli.run(["compose", "-C", str(project.folder)])
    monkeypatch.setenv("STACKCTL_CACHE_DIR", str(hermetic))
    capsys.readouterr()
    assert cli.run(["lock", "-C", str(project.folder)]) == 70
    assert not (project.folder / "series.lock").exists()
    assert cli.run(["cache", "clean"]) == 0
    assert cli.run(["lock", "-C", str(project.folder)]) == 0


def test_a_difference_is_named(project: Project) -> None:
    run("lock", cwd=project.folder)
    patch = project.patch("beta")
    patch.write_text(patch.read_text().replace("beta: more", "beta: reworded"))
    before = (project.folder / "series.lock").read_bytes()
    done = run("compose", "--locked", "--json", cwd=project.folder)
    assert done.code == 1
    assert done.json["locked"]["equal"] is False
    assert "beta" in done.json["locked"]["difference"]
    assert (project.folder / "series.lock").read_bytes() == before
    # Nothing is written where the answer is no.
    out = project.folder.parent / "out"
    assert run("compose", "--locked", "--out", out, cwd=project.folder).code == 1
    assert not out.exists()


@pytest.mark.parametrize("data", [b"", b"{}", b"{\n", b"[]\n", b"\xff", b"\0" * 100])
def test_a_damaged_lock_is_an_error_and_can_be_made_again(
    project: Project, data: bytes
) -> None:
    run("compose", cwd=project.folder)
    lock = project.folder / "series.lock"
    lock.write_bytes(data)
    done = run("compose", "--locked", "--json", cwd=project.folder)
    assert done.code == 3
    assert done.json["error"]["where"]["file"] == str(lock)
    assert run("lock", cwd=project.folder).code == 0
    assert run("compose", "--locked", cwd=project.folder).code == 0


MAIL = """\
From nobody Mon Sep 17 00:00:00 2001
From: =?UTF-8?q?J=C3=BCrgen?= <j@example.org>
Date: Tue, 2 Jan 2024 10:00:00 +0100
Subject: [PATCH v2 1/1] encoded
MIME-Version: 1.0
Content-Type: text/plain; charset=UTF-8
Content-Transfer-Encoding: {encoding}

"""

DIFF = """\
---
diff --git a/README.md b/README.md
--- a/README.md
+++ b/README.md
@@ -1,3 +1,3 @@
 # Fork

-Words.
+Words = wörds, a line that is so long that a mail program has to break it somewhere.
"""


@pytest.mark.parametrize("encoding", ["quoted-printable", "base64", "8bit"])
def test_encoded_mails_lock_by_both_routes(tmp_path: Path, encoding: str) -> None:
    import base64
    import quopri

    project = Project(tmp_path / "p").base()
    project.add("a", ("one\n", {"pkg/other.py": "x\n"})).save()
    body = DIFF.replace("\n\n-", "\n \n-").encode()
    encoded = {
        "quoted-printable": quopri.encodestring(body),
        "base64": base64.encodebytes(body),
        "8bit": body,
    }[encoding]
    path = project.folder / "patches/a/0002-encoded.patch"
    path.write_bytes(MAIL.format(encoding=encoding).encode() + encoded)
    done = run("lock", "--json", cwd=project.folder)
    assert done.code == 0, done.out
    run("compose", "--out", tmp_path / "out", cwd=project.folder)
    assert "wörds, a line" in (tmp_path / "out/README.md").read_text()
