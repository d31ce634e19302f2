# SPDX-License-Identifier: Apache-2.0
"""The process of one unit of an accuracy gate.

    python -m stackctl.gates.accuracy --gate ci/gates/NAME.toml --base-url URL

The last line on standard output, and the file that STACKCTL_GATE_OUT names, is the
unit's answer.
"""

import sys

from stackctl.gates.serving.process import main

if __name__ == "__main__":
    sys.exit(main("accuracy"))
