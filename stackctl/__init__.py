# SPDX-License-Identifier: Apache-2.0
"""Compose, verify and qualify a vLLM fork kept as an ordered series of patch sets."""

__version__ = "0.1.0"
