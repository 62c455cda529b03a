# SPDX-License-Identifier: Apache-2.0
"""The command line of the simulator: see the package."""

from __future__ import annotations

import argparse
import functools
import importlib
import sys
from collections.abc import Sequence
from contextlib import nullcontext

from tests import simulator


def main(arguments: Sequence[str]) -> int:
    given = _parse(arguments)
    load_compiled_models()
    if given.mutant is not None:
        importlib.import_module("tests.simulator.mutants").apply(given.mutant)
    status: int = importlib.import_module("tests.simulator.explore").explore(given)
    return status


def load_compiled_models() -> None:
    """Give the program its compiled models, as in the .pyz,
    before anything else of it is imported.
    """
    # Before Python 3.12 a cached_property is computed under a lock:
    # one who has it would never get the baton again.
    vars(functools)["RLock"] = nullcontext
    models = "models"
    for package in ("hook", "hook.node"):
        compiled = sys.modules[f"{package}.{models}"] = importlib.import_module(
            f"{package}.{models}_compiled"
        )
        setattr(sys.modules[package], models, compiled)


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python3 -m tests.simulator",
        description=simulator.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--scenario", help="this one instead of all (tests/simulator/scenarios.py)")
    parser.add_argument(
        "--seed", type=int, default=1, help="of the first random schedule of each scenario [1]"
    )
    parser.add_argument(
        "--random", type=int, default=0, metavar="N", help="N random schedules of each scenario"
    )
    every = "each schedule with one preemption, one kill or one errno, or every N-th of them"
    parser.add_argument(
        "--preempt", type=int, nargs="?", const=1, default=0, metavar="N", help=every
    )
    parser.add_argument(
        "--plan", help="one schedule, as a failure prints it, with all its system calls"
    )
    parser.add_argument(
        "--most", type=int, default=5, metavar="N", help="end after so many problems [5]"
    )
    parser.add_argument("--mutant", help="break the program first (tests/simulator/mutants.py)")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
