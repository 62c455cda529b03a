# SPDX-License-Identifier: Apache-2.0
"""A guest with a real resctrl on a machine without RDT, from the command line.

    python -m tests.kernel.lab build
    python -m tests.kernel.lab run [options] -- COMMAND...

build: makes the kernel if there is none yet (about 10 minutes on 2 cores; kept in ~/.cache/resctrl-mon-hook/kernel).
run: boots it (TCG: no KVM needed), runs COMMAND as root in the current directory with resctrl mounted, passes on what
it prints, and ends with its exit status; one word alone is for bash. 124: it took too long. 125: the guest failed.
The options are the fields of Vm in tests/kernel/vm.py.

The guest sees the host's /, and what it changes there is gone with it. /tmp and /run are its own, but for /tmp/share.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path

from tests.kernel import kernel
from tests.kernel.vm import GuestFailed, GuestTimeout, Vm, run_in_guest


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(
        prog="python -m tests.kernel.lab", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    verbs = top.add_subparsers(dest="verb", required=True)
    verbs.add_parser("build", help="make the kernel, unless it is there")
    run = verbs.add_parser(
        "run", help="run a command in the guest", formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    for knob in fields(Vm):
        flag, default = f"--{knob.name.replace('_', '-')}", knob.default
        if isinstance(default, bool):
            run.add_argument(flag, action=argparse.BooleanOptionalAction, default=default)
        else:
            run.add_argument(flag, type=type(default), default=default, help=" ")
    run.add_argument("--share", type=Path, metavar="DIR", help="the host's directory that is /tmp/share in the guest")
    run.add_argument("--ro", type=Path, action="append", default=[], help="show this path of the host's /tmp or /run")
    run.add_argument("--log", action="store_true", help="print the guest's kernel log on stderr at the end")
    run.add_argument("command", nargs="+", metavar="COMMAND")
    return top


def run_verb(given: argparse.Namespace) -> int:
    vm = Vm(**{knob.name: getattr(given, knob.name) for knob in fields(Vm)})
    command = given.command[0] if len(given.command) == 1 else given.command
    share = given.share and given.share.resolve()
    try:
        return run_in_guest(command, vm, share=share, shown=given.ro, log=sys.stderr if given.log else None)
    except (GuestTimeout, GuestFailed) as error:
        print(f"lab: {error}", file=sys.stderr)
        return 124 if isinstance(error, GuestTimeout) else 125


def main(arguments: Sequence[str] | None = None) -> int:
    given = parser().parse_args(arguments)
    try:
        if given.verb == "run":
            return run_verb(given)
        kernel.ready()
    except kernel.CannotBuild as error:
        print(f"lab: {error}", file=sys.stderr)
        return 125 if given.verb == "run" else 1
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
