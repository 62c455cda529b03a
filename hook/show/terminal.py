# SPDX-License-Identifier: Apache-2.0
"""Prints the output of commands: lines, tables or JSON on stdout, which may be a terminal.

A pipe or a file gets a whole table; a terminal that is too narrow for it gets shortened names. The head of a column has
its unit.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import zip_longest
from textwrap import TextWrapper
from typing import Any

from hook import system
from hook.report import name_pod, printable

_MOST_NAMED = 5  # in one line
_GAP = "  "
_CUT = "..."
_END = 5  # characters of a name's end, in which replicas differ: the length of Kubernetes' random suffix


@dataclass(frozen=True)
class Screen:
    """The device that output goes to."""

    width: int | None = None  # of a terminal, in characters; None is no limit
    height: int | None = None


def is_terminal() -> bool:
    return sys.stdout is not None and sys.stdout.isatty()


def get_screen(*, is_wide: bool = False) -> Screen:
    """Return the terminal on stdout, whose width is no limit if `is_wide`; a pipe or a file has no limits."""
    if is_terminal():
        with suppress(OSError):
            size = os.get_terminal_size(sys.stdout.fileno())
            return Screen(None if is_wide else size.columns or None, size.lines or None)
    return Screen()


def print_answer(answer: dict[str, Any] | list[str]) -> None:
    """Print lines, or an object as one line of JSON."""
    write("".join(line + "\n" for line in answer) if isinstance(answer, list) else system.dumps(answer) + "\n")


def write(text: str) -> None:
    """Write text in ASCII, and flush it, because the process ends without Python's clean-up."""
    if sys.stdout is not None:  # None: closed by the parent process
        sys.stdout.write(text.encode("ascii", "backslashreplace").decode())
        sys.stdout.flush()


def print_printable(lines: list[str], *, dry_run: bool = False) -> None:
    """Print lines with texts that other users may have chosen as printable text; with `dry_run` as a plan."""
    if dry_run:
        done = ["would do:", *("  " + line for line in lines), "nothing was changed (--dry-run)"]
        lines = done if lines else ["nothing to do"]
    print_answer([printable(line) for line in lines])


# --- Tables


@dataclass(frozen=True)
class Column:
    """A column of a table. If it has fewer cells than the others, it is empty below them."""

    head: str
    cells: Sequence[str]
    short: Sequence[str] | None = None  # its cells on a terminal that is too narrow for all columns
    is_number: bool = False  # it is aligned to the right
    is_extra: bool = False  # such a terminal does not show it
    least: int = 0  # the number of characters to which its cells may be cut there; 0 is not at all

    @property
    def width(self) -> int:
        return max(map(len, [self.head, *self.cells]))


def numbers(head: str, cells: Sequence[str]) -> Column:
    """Make a column of numbers, aligned to the right."""
    return Column(head, cells, is_number=True)


def lay_out(columns: Sequence[Column], screen: Screen = Screen()) -> list[str]:
    """Lay out a table, its heads first."""
    if screen.width is not None and _sum_widths(columns) > screen.width:
        columns = [replace(column, cells=column.short or column.cells) for column in columns if not column.is_extra]
        too_wide = _sum_widths(columns) - screen.width
        columns = [_narrow(column, too_wide) if column.least and too_wide > 0 else column for column in columns]
    layouts = [f"{{:{'>' if column.is_number else '<'}{column.width}}}" for column in columns]
    rows = zip_longest(*([column.head, *column.cells] for column in columns), fillvalue="")
    return [_GAP.join(layouts).format(*row).rstrip() for row in rows]


def _sum_widths(columns: Sequence[Column]) -> int:
    return sum(column.width for column in columns) + len(_GAP) * (len(columns) - 1)


def _narrow(column: Column, too_wide: int) -> Column:
    """Cut the cells of a column by as many characters as it may lose."""
    width = max(column.least, column.width - too_wide)
    return replace(column, head=column.head[:width], cells=[cut_name(cell, width) for cell in column.cells])


def cut_name(name: str, width: int) -> str:
    """Shorten a name in its middle to a width of 8 or more characters."""
    return name if len(name) <= width else name[: width - len(_CUT) - _END] + _CUT + name[-_END:]


def wrap_lines(lines: Iterable[str], screen: Screen) -> list[str]:
    """Wrap lines that are too long for a terminal; what continues a line has an indent."""
    if screen.width is None:
        return [*lines]
    wrapper = TextWrapper(screen.width, subsequent_indent=_GAP, break_long_words=False, break_on_hyphens=False)
    return [part for line in lines for part in wrapper.wrap(line)]


def list_pod_names(namespace: str | None, pod: str | None) -> list[str]:
    """List the names by which a pod can be found: its own, and `namespace/pod`."""
    return [*filter(None, (pod, name_pod(namespace, pod)))]


def name_first(names: Iterable[str]) -> str:
    """Join the first few of these names, and say how many more there are."""
    found = list(names)
    more = [f"and {len(found) - _MOST_NAMED} more"] if len(found) > _MOST_NAMED else []
    return ", ".join([*found[:_MOST_NAMED], *more])
