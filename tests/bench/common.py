"""What the benchmarks share: their errors, and programs in C."""

from __future__ import annotations

import subprocess
from pathlib import Path


class CannotMeasure(Exception):
    """Something went wrong; the message says what."""


class NotReady(CannotMeasure):
    """Something is missing here, and cannot be installed."""


def compile_static(source: Path, target: Path) -> None:
    """A program that needs nothing where it runs."""
    command = ["gcc", "-static", "-O1", "-Wall", "-Wextra", "-o", str(target), str(source)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0 or done.stderr:
        raise CannotMeasure(f"gcc: {done.stderr.strip()}")
