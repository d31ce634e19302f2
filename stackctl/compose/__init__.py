# SPDX-License-Identifier: Apache-2.0
"""From a base and a series to one tree and its chain of commits."""
