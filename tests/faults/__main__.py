# SPDX-License-Identifier: Apache-2.0
"""The command line of the campaign: see the package."""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Callable, Sequence

from fetch import provision
from tests import faults
from tests.faults import commands, hook_coverage, mutants, processes, simulated, sums
from tests.faults.campaign import Campaign
from tests.support.tables import as_markdown

PARTS: dict[str, Callable[[Campaign], None]] = {
    "syscalls": processes.fail_calls,
    "limits": processes.limit,
    "run": commands.run,
    "sums": sums.run,
    "simulate": simulated.run,
    "coverage": hook_coverage.run,
    "mutants": mutants.run,
}


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    options = argparse.ArgumentParser(
        prog="python3 build.py faults",
        description=faults.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    options.add_argument("part", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)} [all]")
    few = "run no more than this many cases of a kind, by chance [all]"
    options.add_argument("--most", type=int, default=0, metavar="N", help=few)
    options.add_argument(
        "--seed", type=int, default=1, help="of that choice, and of all that is left to chance [1]"
    )
    options.add_argument("--only", metavar="CASE", help="the case of this name, and no other")
    given = options.parse_args(arguments)
    if unknown := [name for name in given.part if name not in PARTS]:
        options.error(f"there is no {unknown[0]!r}, but {', '.join(PARTS)}")
    return given


def main(arguments: Sequence[str] | None = None) -> int:
    given = parse(arguments)
    if absent := provision.missing(provision.FAULTS):
        print(f"faults: {'; '.join(absent)}", file=sys.stderr)
        return 2
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # what is mounted is unmounted
    campaign = Campaign(most=given.most, seed=given.seed, only=given.only)
    for part in given.part or PARTS:
        campaign.part = part
        PARTS[part](campaign)
    if not campaign.rows:
        print("faults: no such case", file=sys.stderr)
        return 2
    print(as_markdown([["part", "what", "cases", "failures", "time"], *campaign.rows], names=2))
    print(*campaign.notes, sep="\n")
    return 1 if campaign.failures else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
