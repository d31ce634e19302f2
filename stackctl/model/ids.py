# SPDX-License-Identifier: Apache-2.0
"""Distinct types for the identities that must never be mixed up.

Git ids are 40 lower-case hex digits (SHA-1 object format), digests 64 (SHA-256).
"""

import re
from typing import NewType

CommitId = NewType("CommitId", str)
TreeId = NewType("TreeId", str)
BlobId = NewType("BlobId", str)
Sha256 = NewType("Sha256", str)
CompositionId = NewType("CompositionId", str)

GIT_ID = re.compile(r"[0-9a-f]{40}\Z")
SHA256 = re.compile(r"[0-9a-f]{64}\Z")
EMPTY_TREE = TreeId("4b825dc642cb6eb9a060e54bf8d69288fbee4904")
EMPTY_BLOB = BlobId("e69de29bb2d1d6434b8b29ae775ad8c2e48c5391")
