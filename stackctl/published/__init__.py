# SPDX-License-Identifier: Apache-2.0
"""Integration manifests and locks as other teams publish them: read, replay, import."""
