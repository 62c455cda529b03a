# SPDX-License-Identifier: Apache-2.0
"""Run a command in a guest with a real resctrl, on a machine without RDT.

    python3 -m tests.kernel.lab [options] -- COMMAND...

The kernel is built if there is none yet (about 10 minutes on 2 cores). The command runs as root in the current
directory; one word alone is for bash. The exit status is the command's; 124: it took too long; 125: the guest failed.
The options are the fields of Vm in tests/kernel/vm.py.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import fields

from tests.kernel.kernel import CannotBuild
from tests.kernel.vm import GuestFailed, GuestTimeout, Vm, run_in_guest


def parser() -> argparse.ArgumentParser:
    options = argparse.ArgumentParser(
        prog="python3 -m tests.kernel.lab", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for knob in fields(Vm):
        flag, default = f"--{knob.name.replace('_', '-')}", knob.default
        if isinstance(default, bool):
            options.add_argument(flag, action=argparse.BooleanOptionalAction, default=default)
        else:
            options.add_argument(flag, type=type(default), default=default, help=f"[{default}]")
    options.add_argument("command", nargs="+", metavar="COMMAND")
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    given = parser().parse_args(arguments)
    vm = Vm(**{knob.name: getattr(given, knob.name) for knob in fields(Vm)})
    try:
        return run_in_guest(given.command[0] if len(given.command) == 1 else given.command, vm)
    except (CannotBuild, GuestFailed, GuestTimeout) as error:
        print(f"lab: {error}", file=sys.stderr)
        return 124 if isinstance(error, GuestTimeout) else 125


if __name__ == "__main__":
    sys.exit(main())
