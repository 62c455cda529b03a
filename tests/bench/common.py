# SPDX-License-Identifier: Apache-2.0
"""What the benchmarks share: their errors, and programs in C."""

from __future__ import annotations

import argparse
import subprocess
from pathlib import Path


class CannotMeasure(Exception):
    """Something went wrong; the message says what."""


class NotReady(CannotMeasure):
    """Something is missing here, and cannot be installed."""


def parser(name: str, about: str | None) -> argparse.ArgumentParser:
    """The command line of a benchmark, with the forms that each can print its figures in."""
    told = argparse.ArgumentParser(
        prog=f"python3 build.py bench {name}",
        description=about,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    form = told.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print everything as JSON")
    form.add_argument("--markdown", action="store_true", help="print nothing but tables, as Markdown")
    return told


def compile_static(source: Path, target: Path) -> None:
    """A program that needs nothing where it runs."""
    command = ["gcc", "-static", "-O1", "-Wall", "-Wextra", "-o", str(target), str(source)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0 or done.stderr:
        raise CannotMeasure(f"gcc: {done.stderr.strip()}")
