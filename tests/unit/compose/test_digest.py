# SPDX-License-Identifier: Apache-2.0
"""The content digest against its definition, computed from a checkout."""

from hashlib import sha256
from pathlib import Path

from support import Repo, files_below

from stackctl.cache import Cache
from stackctl.compose.digest import content_sha256


def test_the_digest_is_the_one_that_the_contract_defines(
    tmp_path: Path, cache: Cache
) -> None:
    repo = Repo(tmp_path / "r")
    repo.write({"b/x": "1", "b.y": "2", "b-z": "3", "é": b"\0", "l": "-> b/x", "e": ""})
    (repo.path / "e").chmod(0o755)
    repo.commit("x")
    alternates = cache.store.git_dir / "objects/info/alternates"
    alternates.write_text(f"{repo.path / '.git/objects'}\n")
    whole = sha256()
    for name, (mode, data) in sorted(
        (name.encode(), entry)
        for name, entry in files_below(repo.path).items()
        if not name.startswith(".git/")
    ):
        kind = {0o755: 0o100755, 0o644: 0o100644}.get(mode, mode)
        digest = sha256(data).hexdigest().encode()
        whole.update(b"%o %s\0%s\0" % (kind, digest, name))
    for _ in range(2):  # the second time from the facts
        assert content_sha256(cache, repo.tree) == whole.hexdigest()  # type: ignore[arg-type]
