# SPDX-License-Identifier: Apache-2.0
"""The command line of the campaign: see the package."""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path

from tests import faults, provision
from tests.faults import failing_syscalls, fuzz, hook_coverage, killed_installs, mutants, rlimits, simulated
from tests.faults.campaign import Campaign, PartRow
from tests.support.tables import as_markdown

PARTS: dict[str, Callable[[Campaign], None]] = {
    "syscalls": failing_syscalls.run,
    "installs": killed_installs.run,
    "limits": rlimits.run,
    "fuzz": fuzz.run,
    "simulate": simulated.run,
    "coverage": hook_coverage.run,
    "mutants": mutants.run,
}


def _part(name: str) -> str:
    if name not in PARTS:
        raise argparse.ArgumentTypeError(f"there is no {name!r}, but {', '.join(PARTS)}")
    return name


def parser() -> argparse.ArgumentParser:
    options = argparse.ArgumentParser(
        prog="python3 build.py faults",
        description=faults.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    options.add_argument("part", nargs="*", type=_part, metavar="PART", help=f"of {', '.join(PARTS)} [all]")
    few = "run no more than this many cases of a kind (inputs), by chance [all]"
    options.add_argument("--most", type=int, default=0, metavar="N", help=few)
    options.add_argument("--seed", type=int, default=1, help="of that choice, and of all that is left to chance [1]")
    options.add_argument("--only", metavar="CASE", help="the case of this name, and no other")
    return options


def table(rows: Sequence[PartRow]) -> list[list[str]]:
    lines = [[it.part, it.what, f"{it.cases:,}", str(it.failures), f"{it.seconds:.0f} s"] for it in rows]
    return [["part", "what", "cases", "failures", "time"], *lines]


def main(arguments: Sequence[str] | None = None) -> int:
    given = parser().parse_args(arguments)
    if absent := provision.missing(provision.FAULTS):
        print(f"faults: {'; '.join(absent)}", file=sys.stderr)
        return 2
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # what is mounted is unmounted
    with (
        tempfile.TemporaryDirectory(prefix="faults-", dir=provision.find_scratch()) as directory,
        closing(Campaign(Path(directory), most=given.most, seed=given.seed, only=given.only)) as run,
    ):
        for part in given.part or PARTS:
            run.part = part
            PARTS[part](run)
    if not run.rows:
        print("faults: no such case", file=sys.stderr)
        return 2
    print(as_markdown(table(run.rows), names=2))
    print(*run.notes, sep="\n")
    return 1 if run.failures else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
