# SPDX-License-Identifier: Apache-2.0
"""The content digest of a tree: SHA-256 over every file, beside git's SHA-1."""

from hashlib import sha256

from stackctl.cache import Cache
from stackctl.git.objects import MODE_SUBMODULE
from stackctl.model.ids import Sha256, TreeId


def content_sha256(cache: Cache, tree: TreeId) -> Sha256:
    """Return the SHA-256 of a tree's content.

    It covers `<mode> SP <sha256 hex of bytes> NUL <path bytes> NUL` of every file, in
    the order of the path bytes; a link's bytes are its target, a submodule's its commit
    id in hex.

    Args:
        cache: Holds the tree and remembers digests.
        tree: Hex id of the tree.
    """
    key = bytes.fromhex(tree)
    known = cache.get("content", [key])
    if known:
        return Sha256(known[key].hex())
    store = cache.store
    files = sorted(store.walk(tree))
    digests = cache.get("sha256", {oid for _, _, oid in files})
    fresh: dict[bytes, bytes] = {}
    whole = sha256()
    for path, mode, oid in files:
        digest = digests.get(oid)
        if digest is None:
            if mode == MODE_SUBMODULE:
                digest = sha256(oid.hex().encode()).digest()
            else:
                digest = fresh[oid] = sha256(store.blob(oid)).digest()
            digests[oid] = digest
        whole.update(b"%o %s\0%s\0" % (mode, digest.hex().encode(), path))
    cache.put("sha256", fresh)
    cache.put("content", {key: whole.digest()})
    return Sha256(whole.hexdigest())
