# SPDX-License-Identifier: Apache-2.0
"""The command line: parses, calls the library, prints. One file per command."""

import sys
from collections.abc import Sequence
from typing import NoReturn

from stackctl.errors import ExitCode


def run(arguments: Sequence[str]) -> int:
    """Run one command.

    Args:
        arguments: The arguments after the program's name.

    Returns:
        The exit code.
    """
    as_json = "--json" in arguments
    try:
        from stackctl.cli import program

        return program.invoke(list(arguments))
    except KeyboardInterrupt:
        from stackctl.cli.output import print_interrupted

        print_interrupted(as_json)
        return ExitCode.INTERRUPTED
    except BrokenPipeError:
        # The reader of our output went away, as `head` does; nobody is left to tell.
        sys.stdout = None
        return ExitCode.OK
    except Exception as error:
        from stackctl.cli.output import print_error

        return print_error(error, as_json, verbose="-vv" in arguments)


def main() -> NoReturn:
    """Entry point of the `stackctl` program."""
    import gc
    import signal

    def stop(_number: int, _frame: object) -> None:
        raise KeyboardInterrupt

    try:
        # SIGTERM unwinds like Ctrl-C, so that scratch folders are removed.
        signal.signal(signal.SIGTERM, stop)
        code = run(sys.argv[1:])
        # Python looks for cycles among everything that is left before it ends; that
        # takes a twentieth of a large image's time and finds nothing anybody needs.
        gc.freeze()
        sys.exit(code)
    except KeyboardInterrupt:  # a second one, while the first was dealt with
        sys.exit(ExitCode.INTERRUPTED)
