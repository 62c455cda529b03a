# SPDX-License-Identifier: Apache-2.0
"""A guest with a real resctrl on a machine without RDT, from the command line.

    python -m tests.kernel.lab build [--again]
    python -m tests.kernel.lab run [options] -- COMMAND...

build: makes the kernel if there is none yet (about 10 minutes on 2 cores; kept in ~/.cache/resctrl-mon-hook/kernel).
run: boots it (TCG: no KVM needed), runs COMMAND as root in the current directory with resctrl mounted, passes on what
it prints, and ends with its exit status; one word alone is for bash. 124: it took too long. 125: the guest failed.

The guest sees the host's /, and what it changes there is gone with it. /tmp and /run are its own, but for /tmp/share.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path

from tests.kernel import kernel
from tests.kernel.kernel import CannotBuild
from tests.kernel.vm import GuestFailed, GuestTimeout, Vm, run_in_guest


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(
        prog="python -m tests.kernel.lab", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    verbs = top.add_subparsers(dest="verb", required=True)
    build = verbs.add_parser("build", help="make the kernel, unless it is there")
    build.add_argument("--again", action="store_true", help="even if it is there")
    run = verbs.add_parser("run", help="run a command in the guest")
    add = run.add_argument
    add("--rmids", type=int, help="the highest RMID: how many groups, mon and ctrl, there can be [31]")
    add("--closids", type=int, help="CLOSIDs; 0: monitoring only [8]")
    add("--timeout", type=float, metavar="S", help="give up after so many seconds [1800]")
    add("--no-mount", dest="mount", action="store_false", default=None, help="do not mount resctrl")
    add("--mopts", dest="mount_options", metavar="O", help="mount options for resctrl: cdp, mba_MBps, debug")
    add("--systemd", action="store_true", help="the host's systemd is PID 1")
    add("--append", metavar="WORDS", help="more kernel command line: 'rdt=!energy,!perf', 'fakerdt.decay_ms=0'")
    add("--sockets", type=int, metavar="N", help="packages, each an L3 domain [2]")
    add("--smp", type=int, metavar="N", help="CPUs [2]")
    add("--mem", dest="memory", type=int, metavar="MIB", help="memory [1024]")
    add("--accel", choices=["tcg", "kvm"], help="[tcg]")
    add("--share", type=Path, metavar="DIR", help="the host's directory that is /tmp/share in the guest, read-write")
    add(
        "--ro", type=Path, metavar="PATH", action="append", default=[], help="show this path of the host's /tmp or /run"
    )
    add("--log", action="store_true", help="print the guest's kernel log on stderr at the end")
    add("command", nargs="+", metavar="COMMAND")
    return top


def run_verb(said: argparse.Namespace) -> int:
    knobs = {field.name: getattr(said, field.name) for field in fields(Vm)}
    vm = Vm(**{name: value for name, value in knobs.items() if value is not None})
    command = said.command[0] if len(said.command) == 1 else said.command
    try:
        share = said.share and said.share.resolve()
        return run_in_guest(command, vm, share=share, shown=said.ro, log=sys.stderr if said.log else None)
    except GuestTimeout as error:
        print(f"lab: {error}", file=sys.stderr)
        return 124
    except (GuestFailed, CannotBuild) as error:
        print(f"lab: {error}", file=sys.stderr)
        return 125


def build_verb(said: argparse.Namespace) -> int:
    try:
        kernel.build(again=True) if said.again else kernel.ready()
    except CannotBuild as error:
        print(f"lab: {error}", file=sys.stderr)
        return 1
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    said = parser().parse_args(arguments)
    return run_verb(said) if said.verb == "run" else build_verb(said)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
