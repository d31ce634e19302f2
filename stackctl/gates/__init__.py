# SPDX-License-Identifier: Apache-2.0
"""Gates: one question about composed trees, asked the same way every time."""
