"""What the parts of the fault campaign have in common: options in, a row out, and a command line for one part alone."""

from __future__ import annotations

import argparse
import importlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
ALONE = ("unshare", "--mount", "--pid", "--fork", "--mount-proc", "--kill-child")
"""A command behind this sees no process but its own, and none of those outlives it."""


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


def elsewhere(name: str, given: argparse.Namespace, *python: str) -> Row:
    """Run a part in a process of its own, by another Python or behind another command."""
    with tempfile.NamedTemporaryFile() as result:
        words = [f"tests.faults.{name}", json.dumps(vars(given)), result.name]
        subprocess.run([*python, "-c", "from tests.faults import part; part.told()", *words], cwd=ROOT, check=True)
        return Row(*json.loads(result.read()))


def told() -> None:
    """What that process does: run the part, and put its row into a file."""
    module, given, result = sys.argv[1:]
    row = importlib.import_module(module).run(argparse.Namespace(**json.loads(given)))
    Path(result).write_text(json.dumps(row), encoding="utf-8")


def cache(name: str) -> Path:
    """A directory outside of the checkout that a part keeps from one run to the next."""
    base = os.environ.get("XDG_CACHE_HOME") or Path(os.environ.get("HOME", "/root"), ".cache")
    made = Path(base, "resctrl-mon-hook", "faults", name)
    made.mkdir(parents=True, exist_ok=True)
    return made
