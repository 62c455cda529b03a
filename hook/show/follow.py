# SPDX-License-Identifier: Apache-2.0
"""Prints what ends as it ends, for `history --follow`: the lines that come to some histories,
over their rotations.

A file is known by its head (lines.hash_head), whatever rotation makes of its name and of its form.
So a rest that was written just before a rotation is found in the renamed file, or in the compressed
one, and no line is printed twice. What follows the last line feed of a file is half a line, and
waits for its rest.

All that this needs is imported at once: an upgrade replaces the file that later imports would read.
"""

from __future__ import annotations

import errno
import os
import select
import signal
import sys
import zlib
from collections.abc import Callable, Iterator, Sequence, Set
from contextlib import suppress
from itertools import islice

from hook import formats, report, show, system
from hook.counters import MILLION
from hook.node import files, lines
from hook.show import Column, numbers, to_word
from hook.show.history import Row, list_names_of, name_job, row_to_json, to_local
from hook.show.lists import LIST_HEADS, format_sum, format_total
from hook.show.snapshot import Total
from hook.words import format_count

_PERIOD = 0.5  # seconds between two looks
# The offset of a compressed file that was there at the start: nothing comes to it.
_ALL = sys.maxsize
_MOST_AT_ONCE = 500  # jobs that are printed together
_NAME_WIDTH, _SECONDS_WIDTH, _RUNS_WIDTH, _USE_WIDTH = 40, 9, 4, 10
"""What columns have at least, since later rows may need it."""


class Follower:
    """What comes to the histories in some places: files,
    directories and patterns (lines.list_histories).

    It begins at the end of the files that are there,
    or with `since` with the jobs that ended then or later.
    """

    def __init__(
        self,
        places: Sequence[str],
        names: Sequence[str] = (),
        since: str = "",
        labels: Set[tuple[str, str]] = frozenset(),
    ) -> None:
        """Raises Unreadable if a directory cannot be read. What does not exist may come."""
        self._places = places
        self._names = frozenset(names)
        self._labels = labels
        # Until all that was there has been read: later lines may be about earlier ends.
        self._since = since
        self._offsets: dict[tuple[str, str], int] = {}  # by a file's history and head
        # Of what has been read, by device and inode.
        self._stamps: dict[tuple[int, int], tuple[int, int]] = {}
        self._said = set[str]()
        for history, listed in lines.list_histories(places).items():
            if not listed:
                self._say(f"waiting for {history}: there is no such file yet")
        self._is_at_end = not since
        if self._is_at_end:
            for _ in self.read():
                pass
            self._is_at_end = False

    def read(self) -> Iterator[lines.Job]:
        """Yield the selected jobs whose lines have come. What cannot be read is said once."""
        for place in self._places:
            try:
                histories = lines.list_histories([place])
            except files.Unreadable as error:
                self._say(str(error))
                continue
            for history, listed in histories.items():
                for path, status in listed.items():
                    if self._stamps.get(_identify(status)) != _stamp(status):
                        yield from filter(self._is_selected, self._read_file(history, path))
        self._since = ""

    def _is_selected(self, job: lines.Job) -> bool:
        is_named = not self._names or not self._names.isdisjoint(list_names_of(job))
        return is_named and self._since <= job["end"] and self._labels <= job["labels"].items()

    def _read_file(self, history: str, path: str) -> Iterator[lines.Job]:
        """Yield the jobs behind those that have been read."""
        torn = 0
        status: os.stat_result | None = None
        try:
            with lines.opened(path) as (stream, descriptor, is_packed):
                status = os.fstat(descriptor)
                head = lines.hash_head(stream, is_packed=is_packed)
                if head is None:
                    return
                directory, name = os.path.split(history)
                file = os.path.join(os.path.realpath(directory), name), head
                end = _ALL if is_packed else _find_end(descriptor)
                if self._is_at_end:
                    self._offsets[file] = end
                    return
                self._offsets[file] = min(self._offsets.get(file, 0), end)  # it may have been cut
                for jobs in self._read_lines(stream, file, is_packed=is_packed):
                    torn += None in jobs
                    yield from filter(None, jobs)
                self._stamps[_identify(status)] = _stamp(status)
        except (OSError, EOFError, zlib.error) as error:
            # Else it was renamed, and is read later.
            if not isinstance(error, OSError) or error.errno != errno.ENOENT:
                why = (
                    error.why
                    if isinstance(error, files.Unreadable)
                    else f"not read to its end: {error}"
                )
                self._say(f"{path}: {why}")
                if status is not None:
                    self._stamps[_identify(status)] = _stamp(status)
        if torn:
            report.write_line(
                f"skipped: {format_count(torn, 'torn or unknown line')} in {path}", to_syslog=False
            )

    def _read_lines(
        self, stream: lines.Stream, file: tuple[str, str], *, is_packed: bool
    ) -> Iterator[list[lines.Job | None]]:
        """Yield the parts of each whole line behind those that have been read."""
        if self._offsets[file] == _ALL:
            return
        stream.seek(self._offsets[file])
        for line in lines.read_lines(stream):
            if not lines.is_complete(line, is_packed=is_packed):
                return
            self._offsets[file] = stream.tell()
            yield [*map(lines.parse, lines.split_line(line))]

    def _say(self, problem: str) -> None:
        if problem not in self._said:
            self._said.add(problem)
            report.write_line(problem, to_syslog=False)


def _find_end(descriptor: int) -> int:
    """Return the place behind the last line feed of a file,
    or its size if nothing near its end is one.
    """
    size = os.fstat(descriptor).st_size
    begin = max(0, size - lines.LINE)
    last = os.pread(descriptor, size - begin, begin).rfind(b"\n")
    return begin + last + 1 if last >= 0 or begin == 0 else size


def _identify(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino


def _stamp(status: os.stat_result) -> tuple[int, int]:
    """Return what differs after each append."""
    return status.st_size, status.st_mtime_ns


class Table:
    """The rows of jobs.

    Their head comes again with each screen of a terminal, and when it has changed.
    """

    def __init__(self) -> None:
        self._head = ""
        self._number = 0  # of the lines on this screen

    def format(self, jobs: Sequence[lines.Job], screen: show.Screen) -> list[str]:
        """Format rows. No jobs are a head."""
        rows = [Row(name_job(job), job) for job in jobs]
        uses = [row.use for row in rows]
        end = len(to_local(formats.format_utc(system.unix_time())))
        seconds = [
            format_total(Total(*row.seconds), lambda value: f"{value / MILLION:.1f}")
            for row in rows
        ]
        columns = [
            Column("NAME", [to_word(row.name) or show.NOTHING for row in rows], least=_NAME_WIDTH),
            Column("END", [to_local(job["end"]) for job in jobs], least=end),
            numbers("SECONDS", seconds, _SECONDS_WIDTH),
            numbers("RUNS", [str(job["runs"]) for job in jobs], _RUNS_WIDTH),
        ]
        for event, head in LIST_HEADS.items():
            columns.append(
                numbers(head, [format_sum(use.get(event), event) for use in uses], _USE_WIDTH)
            )
        head, *texts = show.lay_out(columns, screen)
        answer = []
        for text in texts or [""]:
            if head != self._head or (
                screen.height is not None and self._number >= screen.height - 1
            ):
                answer.append(head)
                self._head, self._number = head, 1
            if text:
                answer.append(text)
                self._number += 1
        return answer


def follow(make_follower: Callable[[], Follower], *, is_json: bool) -> None:
    """Print what comes until the reader of stdout has ended, or until SIGTERM or SIGINT."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.default_int_handler)
    table = Table()
    with suppress(KeyboardInterrupt):
        follower = make_follower()
        if not is_json:
            show.print_answer(table.format([], show.get_screen()))
        while True:
            came = follower.read()
            while jobs := [*islice(came, _MOST_AT_ONCE)]:
                if is_json:
                    show.print_answer(
                        [formats.dumps(row_to_json(Row(name_job(job), job))) for job in jobs]
                    )
                else:
                    show.print_answer(table.format(jobs, show.get_screen()))
            if not _wait():
                return


def _wait() -> bool:
    """Wait for the next look; return whether stdout has a reader."""
    if sys.stdout is None:
        return False
    poll = select.poll()
    poll.register(sys.stdout, 0)
    return not poll.poll(_PERIOD * 1000)
