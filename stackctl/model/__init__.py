# SPDX-License-Identifier: Apache-2.0
"""What stackctl reads and writes: ids, series, lock. Frozen, strict, versioned."""
