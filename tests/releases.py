# SPDX-License-Identifier: Apache-2.0
"""Projects that can be released, and tags that somebody tampered with."""

import re
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path

from support import git, run, three_sets

TAG = "v1.0+demo.1"
DIGESTS = {
    "series.lock": "Lock-SHA256",
    "statements/provenance.json": "Provenance-SHA256",
    "statements/summary.json": "Summary-SHA256",
}


def fragment(project: Path, name: str, *sets: str, **keys: str) -> Path:
    """Write a change fragment."""
    values = {
        "category": "changed",
        "summary": f"The change {name} is there.",
        "compatibility": "compatible",
        "unproved": "A test.",
        **keys,
    }
    listed = ", ".join(f'"{each}"' for each in sets)
    text = "schema = 1\n" + "".join(f'{k} = "{v}"\n' for k, v in values.items())
    text += f'models = ["all"]\nsets = [{listed}]\n'
    folder = project / "changes"
    folder.mkdir(exist_ok=True)
    path = folder / f"{name}.toml"
    path.write_text(text.replace("sets = []\n", ""))
    return path


def releasable(folder: Path, kind: str = "git") -> Path:
    """Make a project of three sets that lacks nothing for a release."""
    project = three_sets(folder, kind).folder
    for name in ("alpha", "beta", "gamma"):
        fragment(project, name, name)
    assert run("lock", "-C", project).code == 0
    return project


def bare(folder: Path) -> Path:
    """Make an empty bare repository."""
    git("init", "-q", "--bare", "-b", "main", str(folder))
    return folder


def refs(repo: Path) -> dict[str, str]:
    """Return all refs of a repository."""
    text = git("for-each-ref", "--format=%(refname) %(objectname)", cwd=repo).decode()
    return dict(line.split() for line in text.splitlines())


def cut(
    project: Path, into: Path, *options: str, code: int = 0, tag: str = TAG
) -> dict:
    """Cut a tag and return the answer."""
    done = run("tag", "cut", tag, "-C", project, "--into", into, "--json", *options)
    assert done.code == code, done.out + done.err
    return done.json


def verify(repo: Path, *options: str | Path, code: int = 0, tag: str = TAG) -> dict:
    """Verify a tag and return the answer."""
    done = run("tag", "verify", tag, "--repo", repo, "--json", *options)
    assert done.code == code, done.out + done.err
    return done.json


def wrong(answer: dict) -> dict[str, str]:
    """Return the checks that do not hold, with why."""
    return {e["name"]: e["why"] for e in answer["checks"] if not e["ok"]}


def tag_body(repo: Path, tag: str = TAG) -> bytes:
    """Return the content of a tag object."""
    return git("cat-file", "tag", tag, cwd=repo)


def set_tag(repo: Path, body: bytes, tag: str = TAG) -> None:
    """Put a tag object in the place of a tag."""
    oid = git(
        *("hash-object", "-t", "tag", "-w", "--stdin", "--literally"),
        cwd=repo,
        stdin=body,
    )
    git("update-ref", f"refs/tags/{tag}", oid.decode().strip(), cwd=repo)


def set_proof(
    repo: Path, files: Mapping[str, bytes | None], tag: str = TAG, mode: str = "100644"
) -> str:
    """Change files of a proof as somebody would who may write the repository."""
    ref = f"refs/stackctl/{tag}"
    index = {"GIT_INDEX_FILE": str(repo / "forged-index")}
    git("read-tree", ref, cwd=repo, env=index)
    for path, data in files.items():
        if data is None:
            line = f"0 {'0' * 40}\t{path}\n".encode()
            git("update-index", "--index-info", cwd=repo, stdin=line, env=index)
            continue
        oid = git("hash-object", "-w", "--stdin", cwd=repo, stdin=data).decode().strip()
        info = f"{mode},{oid},{path}"
        git("update-index", "--add", "--cacheinfo", info, cwd=repo, env=index)
    tree = git("write-tree", cwd=repo, env=index).decode().strip()
    made = git("commit-tree", tree, "-m", f"Proof of {tag}", cwd=repo).decode().strip()
    git("update-ref", ref, made, cwd=repo)
    return made


def forge(repo: Path, files: Mapping[str, bytes | None], **options: str) -> None:
    """Change files of a proof, and make the tag name the new proof and digests."""
    made = set_proof(repo, files, **options)
    body = tag_body(repo)
    body = re.sub(rb"(?m)^Proof: .*$", b"Proof: " + made.encode(), body)
    for path, name in DIGESTS.items():
        if data := files.get(path):
            line = f"{name}: {sha256(data).hexdigest()}".encode()
            body = re.sub(rb"(?m)^%s: .*$" % name.encode(), line, body)
    set_tag(repo, body)


def proof_file(repo: Path, path: str, tag: str = TAG) -> bytes:
    """Return the bytes of a file of a proof."""
    return git("cat-file", "blob", f"refs/stackctl/{tag}:{path}", cwd=repo)
