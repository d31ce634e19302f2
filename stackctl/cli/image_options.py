# SPDX-License-Identifier: Apache-2.0
"""The options of commands that read an image: registry, and what may lie beside."""

from pathlib import Path
from typing import Annotated

import typer

AllowOption = Annotated[
    list[str] | None,
    typer.Option(metavar="GLOB", help="Untracked files that may be there."),
]
WheelOption = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Wheel that judges untracked files."),
]
PlainHttpOption = Annotated[
    bool, typer.Option("--plain-http", help="The registry has no TLS.")
]
CaFileOption = Annotated[
    Path | None, typer.Option(help="Certificates to trust for the registry.")
]
