# SPDX-License-Identifier: Apache-2.0
"""Holds a server's processes, and ends all of them when its starter is gone.

    python -m stackctl.gates.serving.keeper GRACE COMMAND...

Standard input is a pipe from the starter. When it closes, for whatever reason (also
`kill -9` of the starter), the command's process group gets SIGTERM, and SIGKILL after
GRACE seconds. Exits as the command did.
"""

import os
import select
import signal
import subprocess
import sys
import time


def main(arguments: list[str]) -> int:
    """Run a command until it ends or standard input closes.

    Args:
        arguments: The grace period in seconds, and the command.

    Returns:
        The command's exit code, 127 where it could not be started.
    """
    grace, command = float(arguments[0]), arguments[1:]
    # A group of its own: Ctrl-C of the terminal must not reach the server before the
    # starter has taken note.
    # The keeper's own packages are not the server's: `env PYTHONPATH=... command` says
    # what the server is to import.
    env = {
        name: value
        for name, value in os.environ.items()
        if name != "PYTHONPATH" and not name.startswith("STACKCTL_")
    }
    try:
        server = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, start_new_session=True, env=env
        )
    except OSError as error:
        os.write(2, f"{command[0]}: {error.strerror}\n".encode())
        return 127
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    while server.poll() is None:
        ready, _, _ = select.select([0], [], [], 0.1)
        if ready and not os.read(0, 4096):
            break
    code = _end(server, grace)
    return code if code >= 0 else 128 - code


def _end(server: "subprocess.Popen[bytes]", grace: float) -> int:
    """End the group, the children of a server that is gone included."""
    _signal(server.pid, signal.SIGTERM)
    limit = time.monotonic() + grace
    while time.monotonic() < limit:
        server.poll()  # a zombie would keep the group in being
        if not _signal(server.pid, 0):
            break
        time.sleep(0.05)
    _signal(server.pid, signal.SIGKILL)
    return server.wait()


def _signal(group: int, number: int) -> bool:
    """Send a signal to a group; False where there is none any more."""
    try:
        os.killpg(group, number)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass  # what is left belongs to somebody else
    return True


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
