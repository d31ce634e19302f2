# SPDX-License-Identifier: Apache-2.0
"""Pull requests on GitHub: what there is, and what the series says about it."""
