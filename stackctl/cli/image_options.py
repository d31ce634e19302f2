# SPDX-License-Identifier: Apache-2.0
"""The options of commands that read an image: registry, and what may lie beside."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from stackctl.image.transport import Transport

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
AuthHostOption = Annotated[
    str | None,
    typer.Option(
        metavar="HOST",
        help="Another host that may be sent the registry's credentials for a token.",
    ),
]


def transport(
    plain_http: bool, ca_file: Path | None, auth_host: str | None = None
) -> "Transport":
    """Return how to talk to registries, from the options above."""
    from stackctl.image.transport import Transport

    return Transport(
        plain_http=plain_http,
        ca_file=str(ca_file) if ca_file else None,
        auth_host=auth_host,
    )
