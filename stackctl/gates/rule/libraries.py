# SPDX-License-Identifier: Apache-2.0
"""The statistics libraries, loaded when a gate is judged and not before."""

from importlib import import_module
from typing import Any

from stackctl.errors import UsageError


def library(name: str) -> Any:
    """Return a module of numpy, scipy or statsmodels.

    Args:
        name: Full name of the module.

    Raises:
        UsageError: It is not installed.
    """
    try:
        return import_module(name)
    except ImportError as error:
        package = name.partition(".")[0]
        raise UsageError(
            f"{package} is needed to judge a gate, and cannot be imported: {error}",
            kind="package-missing",
            hint="pip install 'stackctl[gates]'",
            where={"package": package},
        ) from None
