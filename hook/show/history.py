# SPDX-License-Identifier: Apache-2.0
"""Reads the file of `--history` and its rotated ones, for `history`:
what each key used that has ended.

A crash can tear a line, and a disk can damage one; gzip can be cut short. What cannot
be read is counted and named, and nothing else is lost. The file is root's, but the
names in it are texts of tenants.
"""

from __future__ import annotations

import csv
import errno
import os
import re
import resource
import zlib
from collections import Counter
from collections.abc import (
    Callable,
    Container,
    Generator,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
    Set,
)
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from datetime import datetime, time, timedelta
from difflib import get_close_matches
from functools import lru_cache, partial
from heapq import merge
from itertools import chain
from operator import add, itemgetter
from types import SimpleNamespace
from typing import Any, NamedTuple, TypeVar

from hook import formats
from hook.counters import MILLION
from hook.node import files
from hook.node.lines import BUFFER, Job, list_histories, parse, read_lines, split_line, unpacked
from hook.show import Column, Screen, list_pod_names, numbers, to_word
from hook.show.lists import LIST_HEADS, format_command, format_total, lay_out_uses, rank_use
from hook.show.snapshot import EVENTS, Total, Uses, to_number
from hook.words import format_count, name_pod, printable, short_id

_LEAST_BUFFER, _BUFFERS = 8 << 10, 64 << 20  # bytes: of a file, and of all
_OTHER_FILES = 64  # that a process has open
_BITS = 40
"""A job's number has that of its history above these bits."""
_AGE = re.compile(r"(\d{1,9})([smhdw])")
_DATE = re.compile(r"\d{4}-\d\d-\d\d(T\d\d:\d\d(:\d\d)?(Z|[+-]\d\d:\d\d)?)?")
_FORMS = (
    "an age (90s, 15m, 12h, 7d, 2w), a date (2026-11-24, 2026-11-24T18:30), today, yesterday or "
    '"last night"'
)
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}
_FORMULA = (*"=+-@", *"\uff1d\uff0b\uff0d\uff20")
"""How a formula begins, and the wide forms of these, which some spreadsheets take for them."""
_MOST_NAMES = 10_000
BY = ("name", "pod", "namespace", "node", "day")
"""What --by adds up by, besides labels: one of such a name is only a filter."""
_USUAL = [name for name, event in EVENTS.items() if not event.gauge]
_T = TypeVar("_T")


class _File(NamedTuple):
    """A file of the history.

    It is open while its jobs are read, so it stays the same if rotation renames it.
    """

    name: str
    descriptor: int | None = None
    why: str = ""  # it is not open
    buffer: int = BUFFER


@dataclass
class Jobs:
    """The selected jobs in some histories, by their names (none: all) and the time of their end.

    `places` are files, with their rotated ones, directories, and patterns of these.

    They ended at or after `since`, and before `until`: times in UTC as in lines,
    and empty ones are no limits. They have all of these `labels`.

    `with` opens the files, each once. A number that a job has is that of its history,
    and its place in that.

    Of the lines of a node with one ID one counts: that which was written last or, if one does not
    say when, that which is the last. A crash came between them, or something that sent them twice.
    One pass over the files counts all jobs, and finds such IDs; only if there is one, another finds
    the line that counts, and the first pass is made again. For each line a hash is in memory.
    """

    places: Sequence[str]
    names: Sequence[str] = ()
    since: str = ""
    until: str = ""
    labels: Set[tuple[str, str]] = frozenset()
    # The number of unreadable lines of a file.
    skipped: dict[str, int] = field(default_factory=dict)
    # A line for each file that was not read, or not to its end.
    problems: list[str] = field(default_factory=list)
    # The names that a job has, also one that ended at another time.
    known: set[str] = field(default_factory=set)
    # The names of the labels that a job has, as above.
    known_labels: set[str] = field(default_factory=set)
    is_empty: bool = True  # no file has a job
    _histories: Sequence[Sequence[_File]] = ()
    _opened: ExitStack = field(default_factory=ExitStack)
    # by the node and the ID of several lines, the number of the one that counts
    _repeated: dict[tuple[str, str], int] = field(default_factory=dict)

    def __enter__(self) -> Jobs:
        """Open the files; all again if rotation has renamed one before all were open.

        Raises Unreadable if there is no file, or if a directory is unreadable.
        """
        while True:
            listed = self._list_files()
            number = sum(map(len, listed))
            name = os.path.basename if len(listed) == 1 else str
            _allow_to_open(number)
            with ExitStack() as opened:
                buffer = max(_LEAST_BUFFER, min(BUFFER, _BUFFERS // number))
                found = [
                    [_open(path, name(path), buffer, opened) for path in history]
                    for history in listed
                ]
                if self._list_files() == listed:
                    self._histories = found
                    self._opened = opened.pop_all()
                    return self

    def __exit__(self, *_: object) -> None:
        self._opened.close()

    @property
    def absent(self) -> list[str]:
        """The names that no job has."""
        return [name for name in self.names if name not in self.known]

    def explain_absent(self, by: str | None) -> str:
        """Return one line on the names, and on the labels of filters and sums,
        that no job has, and what was meant.
        """
        parts = [f"matches {', '.join(self._ask(self.absent))[:300]}"] if self.absent else []
        wanted = {name: list[str]() for name, _ in self.labels}
        if by is not None and by not in BY:
            wanted[by] = [*BY]
        for name, others in wanted.items():
            if name not in self.known_labels and not self.is_empty:
                parts.append(
                    "has a label "
                    f"{name!r}{_ask(get_close_matches(name, [*others, *self.known_labels], 1))}"
                )
        return f"no job in {', '.join(self.places)} {' or '.join(parts)}" if parts else ""

    def _ask(self, absent: Sequence[str]) -> list[str]:
        """Return names that no job has, and ask whether one was meant that has it as
        a part, or looks like it.
        """
        words = {
            name: re.compile(rf"(?<![A-Za-z0-9]){re.escape(name)}(?![A-Za-z0-9])")
            for name in absent
            if name
        }
        best = dict.fromkeys(absent, (False, 0.0, ""))
        others = dict[str, None]()
        for _, job in self._read_all():
            texts = [
                name_job(job),
                job["pod"],
                *(container["name"] for container in job["containers"]),
            ]
            for text in filter(None, texts):
                for name, word in words.items():
                    if name in text:
                        best[name] = max(best[name], (bool(word.search(text)), 1 / len(text), text))
                if len(others) < _MOST_NAMES:
                    others[text] = None
        likely = {
            name: [text] if text else get_close_matches(name, others, 1)
            for name, (*_, text) in best.items()
        }
        return [f"{name!r}{_ask(likely[name])}" for name in absent]

    def collect(self, make: Callable[[Iterator[tuple[int, Job]]], _T]) -> _T:
        """Return what `make` makes of the jobs, in the order of the files.

        It is called once for each pass.
        """
        while True:
            former = len(self._repeated)
            made = make(self._read())
            if len(self._repeated) == former:
                return made
            self._choose()

    def look_up(self, order: Sequence[int]) -> Iterator[Job]:
        """Yield the jobs with these numbers in this order,
        in which those of each history come one after another.
        """
        wanted: list[dict[int, int]] = [{} for _ in self._histories]
        for place, number in enumerate(order):
            wanted[number >> _BITS][number] = place
        streams = map(self._look_up, range(len(wanted)), wanted)
        return map(itemgetter(1), merge(*streams, key=itemgetter(0)))

    def _look_up(self, history: int, places: Mapping[int, int]) -> Iterator[tuple[int, Job]]:
        """Yield the jobs of a history in the order of their places, almost that of the files:
        so few have to wait.
        """
        order = iter(places.values())
        following = next(order, None)
        waiting: dict[int, Job] = {}
        for number, job in self._find(history, places):
            waiting[places[number]] = job
            while following in waiting:
                yield following, waiting.pop(following)
                following = next(order, None)
            if following is None:
                return
        yield from ((place, waiting[place]) for place in sorted(waiting))

    def explain(self) -> str:
        """Return one line on what was skipped, which is empty if nothing was."""
        parts = list(self.problems)
        if count := sum(self.skipped.values()):
            parts.insert(
                0, f"{format_count(count, 'torn or unknown line')} in {', '.join(self.skipped)}"
            )
        return printable(f"skipped: {'; '.join(parts)}") if parts else ""

    def _list_files(self) -> list[dict[str, int]]:
        """List the files of each history, the oldest first, with the inode of each."""
        listed = list_histories(self.places)
        for path in listed:
            if not listed[path]:
                why = "no *.jsonl is in it" if os.path.isdir(path) else "there is no such file"
                raise files.Unreadable(path, why, errno.ENOENT)
        return [
            {path: status.st_ino for path, status in history.items()} for history in listed.values()
        ]

    def _read(self) -> Iterator[tuple[int, Job]]:
        """Read all files; yield the selected jobs:
        of those with several lines the one that counts.
        """
        hashes = set[int]()
        for number, job in self._read_all():
            self.is_empty = False
            if job["labels"]:
                self.known_labels.update(job["labels"])
            is_named = True
            if self.names:
                matching = {*list_names_of(job)}.intersection(self.names)
                self.known |= matching
                is_named = bool(matching)
            run = job["node"], job["id"]
            if hash(run) in hashes:
                self._repeated.setdefault(run, number)
            hashes.add(hash(run))
            end = job["end"]
            is_in_time = self.since <= end and (not self.until or end < self.until)
            if (
                is_named
                and is_in_time
                and self.labels <= job["labels"].items()
                and self._repeated.get(run, number) == number
            ):
                yield number, job

    def _choose(self) -> None:
        """Find the line that counts of each job that has several."""
        written: dict[tuple[str, str], str] = {}
        for number, job in self._read_all():
            run = job["node"], job["id"]
            if run in self._repeated and not ("" < job["written"] < written.get(run, "")):
                self._repeated[run], written[run] = number, job["written"]

    def _read_all(self) -> Iterator[tuple[int, Job]]:
        """Read all files, and note what was skipped; yield their jobs.

        One that is damaged loses its rest.
        """
        self.skipped.clear()
        self.problems.clear()
        for history, files_of in enumerate(self._histories):
            number = history << _BITS
            for file in files_of:
                number = yield from self._read_file(file, number)

    def _read_file(self, file: _File, number: int) -> Generator[tuple[int, Job], None, int]:
        """Yield the jobs of a file with their numbers, which begin behind `number`;
        return the last number.
        """
        why, torn, has_job = file.why, 0, False
        try:
            for parts in _read_parts(file):
                is_torn = False
                for part in parts:
                    number += 1
                    if job := parse(part):
                        has_job = True
                        yield number, job
                    else:
                        is_torn = True
                torn += is_torn
        except files.Unreadable as error:
            why = error.why
        except (OSError, EOFError, zlib.error) as error:
            why = f"not read to its end: {error}"
        if torn and not has_job:
            torn, why = 0, why or "none of its lines can be read"
        if torn:
            self.skipped[file.name] = torn
        if why:
            self.problems.append(f"{file.name}: {why}")
        return number

    def _find(self, history: int, wanted: Container[int]) -> Iterator[tuple[int, Job]]:
        """Yield the jobs of a history with these numbers, in the order of its files."""
        number = history << _BITS
        for file in self._histories[history]:
            with suppress(OSError, EOFError, zlib.error):
                for part in chain.from_iterable(_read_parts(file)):
                    number += 1
                    if number in wanted and (job := parse(part)):
                        yield number, job


def parse_time(option: str, text: str | None, now: float) -> str:
    """Parse the time of an option to one in UTC, as in lines, which is empty if it is not given.

    Raises ValueError.

    A time without a zone is local. A day or a night begins with the time that is returned;
    for --until it ends then.
    """
    if text is None:
        return ""
    if age := _AGE.fullmatch(text):
        return formats.format_utc(max(0.0, now - int(age[1]) * _SECONDS[age[2]]))
    today = datetime.combine(datetime.fromtimestamp(now).date(), time())  # noqa: DTZ006  no zone is local
    day = timedelta(days=1)
    words = {
        "today": (today, today + day),
        "yesterday": (today - day, today),
        "last night": (today - timedelta(hours=6), today + timedelta(hours=8)),
    }
    with suppress(ValueError, OverflowError):  # there is no such day
        if text in words:
            return _to_utc(words[text][option == "--until"])
        if _DATE.fullmatch(text):
            begin = datetime.fromisoformat(text.replace("Z", "+00:00"))
            return _to_utc(begin + day if option == "--until" and "T" not in text else begin)
    raise ValueError(f"{option}: {text[:80]!r} is no time; use {_FORMS}")


def _to_utc(moment: datetime) -> str:
    """Convert a time to UTC, as in lines; one that clocks skip is the moment of the change,
    one shown twice the first.

    Only then the two folds differ. Before Python 3.12 astimezone() converts a time that
    is skipped to a wrong one.
    """
    late, early = (int(moment.replace(fold=fold).timestamp()) for fold in (0, 1))
    while late - early > 1:  # between them is the change
        middle = (late + early) // 2
        if datetime.fromtimestamp(middle) >= moment:  # noqa: DTZ006
            late = middle
        else:
            early = middle
    return formats.format_utc(late)


def to_local(moment: str) -> str:
    """Convert a time of a line to local time with its zone.

    One that is impossible stays as it is.
    """
    with suppress(ValueError, OverflowError):
        local = datetime.fromisoformat(moment.replace("Z", "+00:00")).astimezone()
        return local.isoformat(timespec="seconds").replace("+00:00", "Z")
    return moment


# --- Lines


def _ask(names: Sequence[str]) -> str:
    return "".join(f" (did you mean {name}?)" for name in names)


def _allow_to_open(number: int) -> None:
    """Allow this process to have so many files open, as far as its hard limit goes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < number + _OTHER_FILES:
        most = number + _OTHER_FILES
        most = most if hard == resource.RLIM_INFINITY else min(hard, most)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def _open(path: str, name: str, buffer: int, opened: ExitStack) -> _File:
    """Open a file of the history, until `opened` closes it."""
    try:
        return _File(name, opened.enter_context(files.opened(path)), buffer=buffer)
    except files.Unreadable as error:
        return _File(name, why=error.why)


def _read_parts(file: _File) -> Iterator[list[bytes]]:
    """Read a file, which may be one of gzip; yield the parts of each line.

    Raises Unreadable if it is no file of the history, and else OSError, EOFError or zlib.error.
    """
    if file.descriptor is None:
        return
    with unpacked(file.name, file.descriptor, file.buffer) as (content, _):
        yield from map(split_line, read_lines(content))


# --- A job


def find_ended(path: str, name: str) -> str:
    """Return when the last job with a name ended, and the command that shows it;
    empty if there is none.
    """
    end = ""
    with suppress(OSError), Jobs([path], [name]) as jobs:
        end = jobs.collect(lambda selected: max((job["end"] for _, job in selected), default=""))
    return f"it ended {to_local(end)}: {format_command(path, name)}" if end else ""


def list_names_of(job: Job) -> Iterator[str]:
    """List all names by which a job can be found;
    an ID also by its first 12 digits, as tables show it.
    """
    yield name_job(job)
    yield from list_pod_names(job["namespace"], job["pod"])
    yield from filter(None, (container["name"] for container in job["containers"]))
    for name in (job["key"], *(container["id"] for container in job["containers"])):
        yield from (name, short_id(name))


def name_job(job: Job) -> str:
    """Name a job: `namespace/pod`, or a container's name, with its pod if it has one;
    else the beginning of its key.
    """
    pod, kind = name_pod(job["namespace"], job["pod"]), job["kind"]
    names = [container["name"] for container in job["containers"] if container["name"]]
    is_container = len(names) == 1 and kind != "pod" and not (kind == "sandbox" and pod)
    return (
        "/".join(filter(None, (pod, names[0] if is_container else "")))
        or ",".join(names)
        or short_id(job["key"])
    )


# --- Rows: jobs, or their sums


class Row:
    """A row of the table, of JSON and of CSV: a job, or the sum of all with a name."""

    def __init__(self, name: str, job: Job | None = None) -> None:
        self.name = name
        self.job = job  # None: it is a sum
        self.jobs = 0  # the number of jobs that it adds up
        self.begin = ""  # of the job, or of the last one; it may be empty
        self.labels = set[str]()  # the columns of those that its jobs have
        # By event: the fields of a Total, except for the last one.
        self.parts: dict[str, list[int]] = {}
        self.seconds = [0, 0, 0]  # in the same way
        self.unmonitored = Counter[str]()  # how many of its jobs were not metered, by reason
        if job:
            self.add(job)

    @property
    def use(self) -> Uses:
        """The use by event."""
        return {event: Total(*part) for event, part in self.parts.items()}

    def add(self, job: Job) -> None:
        """Add the use of a job."""
        parts = self.parts
        for event, value in job["use"].items():
            part = parts.get(event) or parts.setdefault(event, [0, 0, 0])
            part[0] += round(value * MILLION)
            part[1] += 1
        for event in {*job["unknown"]}:
            parts.setdefault(event, [0, 0, 0])[2] += 1
        seconds = job["seconds"]
        if seconds is None:
            self.seconds[2] += 1
        else:
            self.seconds[0] += round(seconds * MILLION)
            self.seconds[1] += 1
        if job["labels"]:
            self.labels.update(map("label_{}".format, job["labels"]))
        self.begin = max(self.begin, job["begin"] or "")
        self.jobs += 1
        if job["reason"] is not None:
            self.unmonitored[job["reason"]] += 1

    def add_sum(self, other: Row) -> None:
        """Add the use of all jobs of another row."""
        for event, part in other.parts.items():
            self.parts[event] = [*map(add, self.parts.get(event, (0, 0, 0)), part)]
        self.seconds = [*map(add, self.seconds, other.seconds)]
        self.labels |= other.labels
        self.jobs += other.jobs
        self.unmonitored += other.unmonitored


@dataclass(frozen=True)
class Rows:
    """The rows that are shown, which can be read once; the total of all that are selected,
    and how many these are.
    """

    by: str | None  # by what the rows are sums; None: they are jobs
    shown: Iterable[Row]
    total: Row
    count: int


def make_rows(
    jobs: Jobs, by: str | None = None, sort: str | None = None, limit: int | None = None
) -> Rows:
    """Make a row for each job, or for each name, pod, namespace, day, or value of a label.

    If they are not sorted, the limit leaves the last ones: the jobs that ended last. Sums and
    places are kept, jobs are not: the rows look them up in their files.
    """

    def rank(row: Row) -> Any:  # noqa: ANN401  what sorts depends on `sort`
        return row.begin if sort == "start" else rank_use(row.use, sort) if sort else None

    def choose(places: Mapping[_T, tuple[str, str, Any]]) -> list[_T]:
        order = sorted(places, key=lambda place: places[place][:2])
        if sort is not None:
            order.sort(key=lambda place: places[place][2], reverse=sort == "start")
        elif limit is not None:
            order = order[-limit:]
        return order[:limit]

    if by is None:
        total, places = jobs.collect(partial(_place_jobs, lambda job: sort and rank(Row("", job))))
        return Rows(
            by,
            (Row(name_job(job), job) for job in jobs.look_up(choose(places))),
            total,
            len(places),
        )
    sums, total = jobs.collect(partial(_add_up, _make_namer(by))), Row("total")
    for row in sums.values():
        total.add_sum(row)
    chosen = choose({name: (name, "", rank(row)) for name, row in sums.items()})
    return Rows(by, map(sums.__getitem__, chosen), total, len(sums))


def _place_jobs(
    rank: Callable[[Job], Any], jobs: Iterator[tuple[int, Job]]
) -> tuple[Row, dict[int, tuple[str, str, Any]]]:
    """Return the total of jobs, and by its number what each is sorted by."""
    total, places = Row("total"), dict[int, tuple[str, str, Any]]()
    for number, job in jobs:
        total.add(job)
        places[number] = job["end"], job["id"], rank(job)
    return total, places


def _add_up(name_sum: Callable[[Job], str], jobs: Iterator[tuple[int, Job]]) -> dict[str, Row]:
    sums = dict[str, Row]()
    for _, job in jobs:
        name = name_sum(job)
        (sums.get(name) or sums.setdefault(name, Row(name))).add(job)
    return sums


def _make_namer(by: str) -> Callable[[Job], str]:
    """Make what names the sum of a job.

    A day is that of its end in local time; a label's name has its value.
    """
    to_day = lru_cache(maxsize=1000)(lambda minute: to_local(f"{minute}:00Z")[:10])
    namers: dict[str, Callable[[Job], str]] = {
        # In no zone a day begins within five minutes of UTC.
        "day": lambda job: to_day(job["end"][:15] + ("0" if job["end"][15] < "5" else "5")),
        "name": name_job,
        "pod": lambda job: name_pod(job["namespace"], job["pod"]),
        "namespace": lambda job: job["namespace"] or "",
        "node": lambda job: job["node"],
    }
    return namers.get(by, lambda job: job["labels"].get(by, ""))


def format_rows(jobs: Jobs, rows: Rows, screen: Screen) -> list[str]:
    """Format a table of jobs or sums, and their total."""
    names, seconds, uses = list[str](), list[str](), list[Uses]()
    counts, ends, runs = list[str](), list[str](), list[int]()
    for row in chain(rows.shown, [rows.total] if rows.count > 1 else []):
        use = row.use
        names.append(to_word(row.name) or "-")
        seconds.append(format_total(Total(*row.seconds), lambda value: f"{value / MILLION:.1f}"))
        uses.append({event: use[event] for event in LIST_HEADS if event in use})
        counts.append(str(row.jobs))
        if row.job:
            ends.append(to_local(row.job["end"]))
            runs.append(row.job["runs"])
    number = len(names) - (rows.count > 1)
    columns = [
        Column((rows.by or "name").upper(), names),
        numbers("JOBS", counts) if rows.by else Column("END", ends),
        numbers("SECONDS", seconds),
        *([numbers("RUNS", [*map(str, runs)])] if any(count != 1 for count in runs) else []),
    ]
    notes = [f"{number} of {rows.count} shown"] if number < rows.count else []
    if missing := rows.total.unmonitored:
        notes.append(f"not metered, and in no sum: {_count_reasons(missing, ', ')}")
    limits = {"at or after": jobs.since, "before": jobs.until}
    if times := [f"{word} {to_local(moment)}" for word, moment in limits.items() if moment]:
        notes.append(f"ended {' and '.join(times)}")
    notes += filter(None, [jobs.explain()])
    return [*lay_out_uses(columns, uses, LIST_HEADS, screen), *([""] if notes else []), *notes]


def rows_to_json(jobs: Jobs, rows: Rows) -> Iterator[str]:
    """Make the object of `history --json`, row by row."""
    name, by = ("jobs", {}) if rows.by is None else ("sums", {"by": rows.by})
    times = {"since": jobs.since or None, "until": jobs.until or None, "labels": dict(jobs.labels)}
    skipped = {"skipped": sum(jobs.skipped.values()), "problems": jobs.problems}
    total = row_to_json(rows.total) if rows.count else None
    answer = formats.dumps(
        {"files": [*jobs.places], **times, **skipped, **by, name: [], "total": total}
    )
    before, begin, after = answer.partition(f'"{name}": [')  # no text has these quotes
    yield before + begin
    for number, row in enumerate(rows.shown):
        yield (", " if number else "") + formats.dumps(
            {**({"name": row.name or None} if by else {}), **row_to_json(row)}
        )
    yield f"{after}\n"


def row_to_json(row: Row) -> dict[str, Any]:
    """Make the object of a row: of a job the fields of its line, and its name."""
    totals = row.use
    use = {event: to_number(total.value) for event, total in totals.items() if total.counted}
    if row.job:
        return {"name": row.name, **row.job, "use": use}
    unknown = sorted(event for event, total in totals.items() if total.unknown)
    seconds, unmonitored = (
        to_number(Total(*row.seconds).value),
        dict(sorted(row.unmonitored.items())),
    )
    return {
        "jobs": row.jobs,
        "seconds": seconds,
        "use": use,
        "unknown": unknown,
        "unmonitored": unmonitored,
    }


def _count_reasons(unmonitored: Mapping[str, int], between: str) -> str:
    """Say how many jobs were not metered for each reason."""
    return between.join(
        f"{number} {to_word(reason)}" for reason, number in sorted(unmonitored.items())
    )


def format_csv(rows: Rows) -> Iterator[str]:
    """Format `history --csv`: the head, and a line for each job or sum,
    with a column for each event of all jobs.
    """
    counted = rows.total.parts.keys()
    events = [*(event for event in _USUAL if event in counted), *sorted(counted - {*_USUAL})]
    head = f"label_{rows.by}" if rows.by and rows.by not in BY else rows.by or "name"
    if rows.by is None:
        first = [
            "name",
            "kind",
            "key",
            "namespace",
            "pod",
            "containers",
            "begin",
            "end",
            "seconds",
            "runs",
        ]
        columns = [
            *first,
            *sorted(rows.total.labels),
            *events,
            "unknown",
            "reason",
            "late_cpu_seconds",
            "node",
            "id",
        ]
    else:
        columns = [head, "jobs", "seconds", *events, "unknown", "unmonitored"]
    # Returns what `write` returns.
    write_row = csv.writer(SimpleNamespace(write=str), lineterminator="\n").writerow
    yield write_row(map(_to_cell, columns))
    for row in rows.shown:
        fields = {head: row.name, **row_to_json(row)}
        containers = " ".join(
            container["name"] or container["id"] for container in fields.get("containers", ())
        )
        labels = {f"label_{name}": text for name, text in fields.get("labels", {}).items()}
        cells = {
            **fields,
            **fields["use"],
            **labels,
            "containers": containers,
            "unknown": " ".join(fields["unknown"]),
        }
        cells["unmonitored"] = _count_reasons(row.unmonitored, " ")
        yield write_row(_to_cell(cells.get(name)) for name in columns)


def _to_cell(value: str | float | None) -> str | float | None:
    """Quote a text that a spreadsheet would take for a formula, since tenants choose names."""
    if not isinstance(value, str):
        return value
    safe = printable(value, is_ascii=False)
    return f"'{safe}" if safe.lstrip().startswith(_FORMULA) else safe
