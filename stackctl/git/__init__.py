# SPDX-License-Identifier: Apache-2.0
"""Hermetic git: commands, objects, patch text, application, trees."""
