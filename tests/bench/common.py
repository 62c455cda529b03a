"""What the benchmarks share: their errors, programs in C, tables."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
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


def as_text(lines: Sequence[Sequence[str]]) -> str:
    """A table in columns; the first line is its head."""
    widths = [max(map(len, column)) for column in zip(*lines)]
    padded = (zip(line, widths) for line in lines)
    return "\n".join("  ".join(cell.ljust(width) for cell, width in line).rstrip() for line in padded)


def as_markdown(lines: Sequence[Sequence[str]], names: int = 1) -> str:
    """The same for a README; the first `names` columns hold no figures."""
    head, *body = ("| " + " | ".join(line) + " |" for line in lines)
    rule = "|" + "|".join("---" if index < names else "---:" for index in range(len(lines[0]))) + "|"
    return "\n".join([head, rule, *body])
