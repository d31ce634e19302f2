# SPDX-License-Identifier: Apache-2.0
"""Patch text: mail headers, diffs, binary hunks, and the canonical form."""
