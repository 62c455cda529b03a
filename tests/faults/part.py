"""What the parts of the fault campaign have in common: options in, a row out, and a command line for one part alone."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple


class Row(NamedTuple):
    """What became of one part. `cases`: how many things were tried; `failures`: lines on each one that is wrong."""

    part: str
    what: str
    cases: int
    failures: list[str]
    seconds: float
    note: str = ""


def main(
    run: Callable[[argparse.Namespace], Row], options: Callable[[argparse.ArgumentParser], None], words: Sequence[str]
) -> int:
    """Run one part as a command, print its row, and return 1 if anything failed."""
    parser = argparse.ArgumentParser()
    options(parser)
    row = run(parser.parse_args(words))
    for failure in row.failures:
        print(f"FAILED {failure}")
    told = f"{row.part}: {row.cases} {row.what}, {len(row.failures)} failed, {row.seconds:.0f} s"
    print(f"{told}; {row.note}" if row.note else told)
    return 1 if row.failures else 0


def cache(name: str) -> Path:
    """A directory outside of the checkout that a part keeps from one run to the next."""
    base = os.environ.get("XDG_CACHE_HOME") or Path(os.environ.get("HOME", "/root"), ".cache")
    made = Path(base, "resctrl-mon-hook", "faults", name)
    made.mkdir(parents=True, exist_ok=True)
    return made
