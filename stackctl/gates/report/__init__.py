# SPDX-License-Identifier: Apache-2.0
"""The report: one page that shows a stack, its gates and what they answered."""
