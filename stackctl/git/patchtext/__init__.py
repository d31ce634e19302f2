# SPDX-License-Identifier: Apache-2.0
"""Patch text: mail headers, diffs, binary hunks, and the canonical form."""

FORMAT_PATCH = (
    "format-patch",
    "--quiet",
    "--no-renames",
    "--binary",
    "--full-index",
    "--zero-commit",
    "--no-signature",
    "--no-stat",
    "-N",
    "--diff-algorithm=myers",
    "--unified=3",
    "--no-ext-diff",
    "--no-textconv",
    "--src-prefix=a/",
    "--dst-prefix=b/",
    "--no-cover-letter",
    "--no-attach",
    "--no-thread",
    "--no-base",
    "--no-notes",
    "--indent-heuristic",
    "--inter-hunk-context=0",
    "--submodule=short",
    "--ignore-submodules=none",
    "--no-relative",
    "--no-function-context",
    "--no-color",
)
"""Every option that changes the text, pinned: the canonical form of a patch."""
