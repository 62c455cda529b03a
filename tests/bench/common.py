# SPDX-License-Identifier: Apache-2.0
"""What the benchmarks share: their command line, their report, their errors, and programs in C."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Protocol

from tests.support.tables import as_markdown, as_text


class CannotMeasure(Exception):
    """Something went wrong; the message says what."""


class NotReady(CannotMeasure):
    """Something is missing here, and cannot be installed."""


def parser(name: str, about: str | None) -> argparse.ArgumentParser:
    """The command line of a benchmark, with the forms that each can print its figures in."""
    options = argparse.ArgumentParser(
        prog=f"python3 build.py bench {name}",
        description=about,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    form = options.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print everything as JSON")
    form.add_argument("--markdown", action="store_true", help="print nothing but tables, as Markdown")
    return options


class Printed(Protocol):
    """A table, or a result that is shown as one."""

    def lines(self) -> list[list[str]]: ...

    def missed(self) -> list[str]: ...

    def as_json(self) -> object: ...

    def notes(self) -> str:
        """What to know beside it, for people."""


def report(name: str, measure: Callable[[], Iterable[Printed]], given: argparse.Namespace) -> int:
    """Measure, and print each table in the form that was asked for as soon as it is there; returns the exit status."""
    form = as_markdown if given.markdown else as_text
    measured: list[Printed] = []
    try:
        for table in measure():
            measured.append(table)
            if not given.json:
                print(f"{form(table.lines())}\n", flush=True)
                if table.notes() and not given.markdown:
                    print(table.notes(), flush=True)
    except CannotMeasure as error:
        print(f"{name}: {error}", file=sys.stderr)
        return 1
    if given.json:
        print(json.dumps([table.as_json() for table in measured], indent=2))
    missed = [line for table in measured for line in table.missed()]
    for line in missed:
        print(f"{name}: {line}", file=sys.stderr)
    return 1 if missed else 0


def compile_static(source: Path, target: Path) -> None:
    """A program that needs nothing where it runs."""
    command = ["gcc", "-static", "-O1", "-Wall", "-Wextra", "-o", str(target), str(source)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0 or done.stderr:
        raise CannotMeasure(f"gcc: {done.stderr.strip()}")
