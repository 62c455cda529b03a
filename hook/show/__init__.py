# SPDX-License-Identifier: Apache-2.0
"""Reads a snapshot of the node, without a lock,
and shows it to people and to Prometheus as text, JSON and metrics.

This module has what every command prints with: lines, tables and JSON on stdout, which may be a
terminal. A pipe or a file gets a table in full; on a terminal its names are cut where it is too
wide. The head of a column has its unit.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Sequence
from itertools import islice, zip_longest
from typing import Any, NamedTuple

from hook import formats
from hook.errors import HookError, Reason
from hook.words import explain_exception, format_count, name_pod, printable

NOTHING = "-"
"""In a table: there is no name, or no counter."""
_GAP = "  "
_CUT = "..."
# Characters of a name's end, in which replicas differ: the length of Kubernetes' random suffix.
_END = 5
_LEAST_NAME = 12  # a name is never cut to fewer characters
_FIRST_TO_GO = (  # the columns that a narrow terminal does not get, in the order in which they go
    *("KEY", "RUNS", "ALIVE", "LOCAL(B/s)", "CACHE(B)", "AGE", "END", "STATE"),
    *("TRAFFIC(B)", "TRAFFIC(B/s)", "JOBS", "SECONDS"),
)


class Screen(NamedTuple):
    """The device that output goes to."""

    width: int | None = None  # of a terminal, in characters; None is no limit
    height: int | None = None


def is_terminal() -> bool:
    return sys.stdout is not None and sys.stdout.isatty()


def get_screen(*, is_wide: bool = False) -> Screen:
    """Return the terminal on stdout, whose width is no limit if `is_wide`;
    a pipe or a file has no limits.
    """
    if not is_terminal():
        return Screen()
    size = os.get_terminal_size(sys.stdout.fileno())
    return Screen(None if is_wide else size.columns or None, size.lines or None)


def print_answer(answer: dict[str, Any] | list[str]) -> None:
    """Print lines, or an object as one line of JSON."""
    write(
        "".join(line + "\n" for line in answer)
        if isinstance(answer, list)
        else formats.dumps(answer) + "\n"
    )


def write(text: str | Iterable[str], encoding: str = "ascii") -> None:
    """Write text in ASCII, or in another encoding, and flush it:
    the process ends without Python's clean-up.

    Of a text in pieces, a thousand are in memory.
    Raises BrokenPipeError if the reader has ended, else HookError.
    """
    pieces = iter([text] if isinstance(text, str) else text)
    # None: closed by the parent process.
    while sys.stdout is not None and (part := "".join(islice(pieces, 1000))):
        try:
            sys.stdout.buffer.write(part.encode(encoding, "backslashreplace"))
            sys.stdout.buffer.flush()
        except BrokenPipeError:
            raise
        except OSError as error:
            raise HookError(
                Reason.IO, "cannot write to stdout", tried=explain_exception(error)
            ) from None


def print_printable(lines: list[str], *, dry_run: bool = False) -> None:
    """Print lines with texts that other users may have chosen as printable text;
    with `dry_run` as a plan.
    """
    if dry_run:
        done = ["would do:", *("  " + line for line in lines), "nothing was changed (--dry-run)"]
        lines = done if lines else ["nothing to do"]
    print_answer([printable(line) for line in lines])


# --- Tables


class Column(NamedTuple):
    """A column of a table. If it has fewer cells than the others, it is empty below them."""

    head: str
    cells: Sequence[str]
    is_number: bool = False  # it is aligned to the right
    least: int = 0  # its width, at least


def numbers(head: str, cells: Sequence[str], least: int = 0) -> Column:
    """Make a column of numbers, aligned to the right."""
    return Column(head, cells, is_number=True, least=least)


def lay_out(columns: Sequence[Column], screen: Screen) -> list[str]:
    """Lay out a table, its heads first.

    If it is too wide for a terminal, the names in its first column are cut; then other columns go.
    """
    widths = [max(column.least, *map(len, [column.head, *column.cells])) for column in columns]
    if screen.width is not None:
        room = screen.width - sum(widths[1:]) - len(_GAP) * (len(columns) - 1)
        least = min(widths[0], _LEAST_NAME)
        by_head = {column.head: column for column in columns[1:]}
        if room < least and (first := next(filter(by_head.get, _FIRST_TO_GO), None)):
            del by_head[first]
            return lay_out([columns[0], *by_head.values()], screen)
        widths[0] = min(widths[0], max(room, least))
    rows = zip_longest(*([column.head, *column.cells] for column in columns), fillvalue="")
    lines = []
    for name, *others in rows:
        placed = zip(columns, [cut_name(name, widths[0]), *others], widths)
        lines.append(
            _GAP.join(
                f"{cell:{'>' if column.is_number else '<'}{width}}"
                for column, cell, width in placed
            )
        )
    return [line.rstrip() for line in lines]


def cut_name(name: str, width: int) -> str:
    """Shorten a name in its middle to a width of 8 or more characters."""
    return name if len(name) <= width else name[: width - len(_CUT) - _END] + _CUT + name[-_END:]


def list_pod_names(namespace: str | None, pod: str | None) -> list[str]:
    """List the names by which a pod can be found: its own, and `namespace/pod`."""
    return [*filter(None, (pod, name_pod(namespace, pod)))]


def name_first(names: Iterable[str]) -> str:
    """Join the first few of these names, and say how many more there are."""
    return ", ".join(list_first([*names], 5, "and {} more".format))


def name_all(names: Sequence[str], noun: str, what: str = "") -> str:
    """Return the number of these names, what is wrong with them, and the first of them in order."""
    return f"{format_count(len(names), noun)}{what}: {name_first(sorted(names))}"


def list_first(lines: Sequence[str], most: int, tell_more: Callable[[int], str]) -> list[str]:
    """Return the first of these lines, `most` at most,
    and a line that tells how many more there are.
    """
    return [*lines[:most], *([tell_more(len(lines) - most)] if len(lines) > most else [])]


def to_word(text: str | None) -> str:
    """Escape any text to one word of bounded length."""
    return printable(text or "").replace(" ", "\\x20")
