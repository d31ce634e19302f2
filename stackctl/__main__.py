# SPDX-License-Identifier: Apache-2.0
"""`python -m stackctl` is the same as `stackctl`."""

from stackctl.cli import main

if __name__ == "__main__":
    main()
