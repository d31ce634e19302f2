# SPDX-License-Identifier: Apache-2.0
"""The application: all commands under one program, imported cheaply.

Command modules import nothing heavy at their top, so that `stackctl --help` and shell
completion stay quick.
"""

from typing import Annotated, Any

import typer

from stackctl import __version__
from stackctl.cli import (
    bisect,
    cache,
    changes,
    compose,
    diff,
    doctor,
    export,
    gate,
    image,
    import_manifest,
    lock,
    pins,
    pr,
    qualify,
    range_diff,
    receipt,
    refresh,
    replay,
    resolve,
    show,
    status,
    tag,
    verify_image,
)
from stackctl.cli.command import DirectoryOption
from stackctl.cli.output import usage_error
from stackctl.errors import ExitCode

app = typer.Typer(
    name="stackctl",
    help="Compose, verify and qualify a vLLM fork kept as an ordered series of patch "
    "sets.",
    epilog="Example: stackctl compose --json",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"stackctl {__version__}")
        raise typer.Exit


@app.callback()
def _program(
    directory: DirectoryOption = None,
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            is_eager=True,
            callback=_print_version,
            help="Show the version and exit.",
        ),
    ] = False,
) -> None:
    pass


for module in (
    compose,
    lock,
    show,
    status,
    diff,
    range_diff,
    export,
    refresh,
    pins,
    resolve,
    replay,
    import_manifest,
    pr,
    doctor,
    cache,
    verify_image,
    image,
    gate,
    qualify,
    receipt,
    changes,
    bisect,
    tag,
):
    module.register(app)


def invoke(arguments: list[str]) -> int:
    """Parse arguments and run the command.

    Args:
        arguments: The arguments after the program's name.

    Returns:
        The exit code.
    """
    program = typer.main.get_command(app)
    # Typer brings click or its own copy of it, by version; its public names lead to it.
    parse_error: Any = typer.BadParameter.__base__
    try:
        result = program.main(arguments, prog_name="stackctl", standalone_mode=False)
    except parse_error as error:
        if type(error).__name__ == "NoArgsIsHelpError":  # its message is the help
            typer.echo(error.format_message(), err=True)
            return ExitCode.USAGE
        context = error.ctx
        hint = f"see `{context.command_path} --help`" if context else None
        raise usage_error(error.format_message(), hint) from None
    except typer.Abort:
        raise KeyboardInterrupt from None
    except typer.Exit as error:
        result = error.exit_code
    # Newer versions of Typer turn Ctrl-C into this exit code, without a word.
    if result == ExitCode.INTERRUPTED:
        raise KeyboardInterrupt
    return result if isinstance(result, int) else 0
