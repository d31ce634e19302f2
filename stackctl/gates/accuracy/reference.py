# SPDX-License-Identifier: Apache-2.0
"""Writes the reference tables of `docs/serving-and-accuracy.md`.

python -m stackctl.gates.accuracy.reference
"""

import sys

from stackctl.gates.accuracy.plan import AccuracyPlan, PromptSet
from stackctl.gates.serving.plan import Cell, ServingPlan, Sign
from stackctl.model.schema import key_table

HEADING = "## Keys\n\n"
"""Where the tables begin; they go to the end of the page."""


def reference() -> str:
    """Return the reference tables as Markdown."""
    return "\n".join(
        (
            key_table("`[serving]`", ServingPlan),
            key_table("`[[serving.cell]]`", Cell),
            key_table("`[[serving.engagement]]`, `[[accuracy.engagement]]`", Sign),
            key_table("`[accuracy]`", AccuracyPlan),
            key_table("`[[accuracy.set]]`", PromptSet),
        )
    )


if __name__ == "__main__":
    sys.stdout.write(reference())
