# SPDX-License-Identifier: Apache-2.0
"""Which patch, set or pair broke it: search over prefixes and subsets of a series."""
