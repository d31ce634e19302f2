# SPDX-License-Identifier: Apache-2.0
"""Releases: change fragments, integration tags and what proves them."""
