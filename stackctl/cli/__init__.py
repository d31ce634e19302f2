# SPDX-License-Identifier: Apache-2.0
"""The command line: parses, calls the library, prints. One file per command."""

import sys
from collections.abc import Callable, Sequence
from typing import NoReturn

from stackctl.errors import ExitCode
from stackctl.interrupts import Hold


def run(arguments: Sequence[str], loaded: Callable[[], None] | None = None) -> int:
    """Run one command.

    Args:
        arguments: The arguments after the program's name.
        loaded: Called once the command is imported, before anything is done.

    Returns:
        The exit code.
    """
    as_json = "--json" in arguments
    try:
        from stackctl.cli import output, program

        output.begin()
        if loaded is not None:
            loaded()
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

    hold = Hold()

    def loaded() -> None:
        # What is there now stays to the end.
        gc.freeze()
        gc.enable()
        hold.release()

    try:
        # Python would look for cycles again and again among the parts of modules that
        # are being made; without it a start takes a tenth less time.
        gc.disable()
        # SIGTERM unwinds like Ctrl-C, so that scratch folders are removed.
        signal.signal(signal.SIGTERM, stop)
        # Python loses an exception that a handler raises in the midst of an import.
        hold.take()
        code = run(sys.argv[1:], loaded)
        # All is done and said; what is left is Python's, and not to be interrupted.
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
        # Python looks for cycles among everything that is left before it ends; that
        # takes a twentieth of a large image's time and finds nothing anybody needs.
        gc.freeze()
        # `python -m` ends by the signal, whatever is asked of it, where Ctrl-C once
        # passed through an exec, as dataclasses have; the next one makes it forget.
        exec("")  # noqa: S102
        sys.exit(code)
    except KeyboardInterrupt:  # a second one, while the first was dealt with
        sys.exit(ExitCode.INTERRUPTED)
