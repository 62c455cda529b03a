# SPDX-License-Identifier: Apache-2.0
"""Starts the program: the core for a container runtime, the tools for people, timers and services.

The .pyz and `python3 -m hook` in the source tree start here. A start imports the core,
and of the tools nothing.
"""

from __future__ import annotations

import sys

from hook import entry, system

_ROOM = 4 << 20  # bytes of memory


def start() -> None:
    """Run the program; does not return.

    The first line of the .pyz makes Python run `-c` code, so sys.argv[1] is the file's path, and
    the command line follows. That code also makes each end but `leave` exit with 0: a hook that
    fails must not fail the container.
    """
    system.leave(dispatch(sys.argv[2:]))


def dispatch(arguments: list[str]) -> int:
    """Run the command line; returns the exit status."""
    system.ensure_standard_descriptors()
    system.set_umask()
    # A runtime started us.
    if arguments and arguments[0] in entry.STAGES and "--help" not in arguments:
        return entry.run_stage(arguments[0], arguments[1:])
    if arguments[:1] == ["run"]:
        import atexit

        # Given back before the last lines of the .pyz execute the command:
        # they need some if all is used.
        atexit.register(bytearray(_ROOM).clear)
    began = system.monotonic()  # imports take long on a busy machine
    from hook.cli import command_line

    return command_line.main(arguments, began)


if __name__ == "__main__":
    sys.argv[:0] = ["-c"]
    start()
