# SPDX-License-Identifier: Apache-2.0
"""Serving gates: one start of one server, measured over its OpenAI-compatible API."""
