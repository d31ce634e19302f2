# SPDX-License-Identifier: Apache-2.0
"""Accuracy gates: answers to generated prompts, scored exactly."""
