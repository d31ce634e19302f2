# SPDX-License-Identifier: Apache-2.0
"""From evidence to a verdict, by a rule that was declared before the run.

*model* holds what is declared (`Rule`, `Claim`) and what comes out (`Decision`);
*schedule* and *looks* fix the order of the process starts and when they may be judged;
*conditions* says whether evidence may be used; *intervals*, *timed*, *counts* and
*accuracy* are the statistics; *decide* puts them together; *simulate* measures how
often the rule errs. Nothing here runs a gate, reads a clock or touches a file.
"""
