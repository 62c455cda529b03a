# SPDX-License-Identifier: Apache-2.0
"""Reads the file of `--history` and its rotated ones, for `history`: what each key used that has ended.

A crash can tear a line, and a disk can damage one; gzip can be cut short. What cannot be read is counted and named, and
nothing else is lost. The file is root's, but the names in it are texts of tenants.
"""

from __future__ import annotations

import csv
import errno
import gzip
import io
import json
import os
import re
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, time, timedelta
from difflib import get_close_matches
from itertools import chain
from operator import add
from types import SimpleNamespace
from typing import Any, TypeVar

from hook import system
from hook.counters import MILLION
from hook.node import files
from hook.node.models import Job
from hook.show import Column, Screen, list_pod_names, numbers, to_word
from hook.show.lists import LIST_HEADS, format_command, format_total, lay_out_uses, rank_use
from hook.show.snapshot import EVENTS, Total, Uses, make_total, to_number
from hook.words import format_count, name_pod, printable, short_id

LINE = 256 << 10
"""Bytes of a line, at most: four times as many as a hook writes."""
_BEGIN = re.compile(rb'(\{"version": ?\d)')
"""How a line begins. Nothing in one has these bytes: JSON escapes the quotes of texts, and the value of a label that is
called `version` is a text."""
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ")
_AGE = re.compile(r"(\d{1,9})([smhdw])")
_DATE = re.compile(r"\d{4}-\d\d-\d\d(T\d\d:\d\d(:\d\d)?(Z|[+-]\d\d:\d\d)?)?")
_FORMS = 'an age (90s, 15m, 12h, 7d, 2w), a date (2026-11-24, 2026-11-24T18:30), today, yesterday or "last night"'
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}
_NUMBER = r"[._-]\d[\dT._:-]*"
"""What logrotate puts into a name: .1, or with dateext -20261124."""
_KIND = r"(\.[A-Za-z]\w*)?"  # what compresses a file
_OTHER_NAME = "not a name that logrotate gives; add a number to have the file read, as in history.jsonl.13"
_COMPRESSED = {b"\xfd7zXZ": "xz", b"\x28\xb5\x2f\xfd": "zstd", b"BZh": "bzip2", b"\x04\x22\x4d\x18": "lz4"}
"""How the files of programs begin that the standard library of some Python cannot read."""
_FORMULA = (*"=+-@", *"\uff1d\uff0b\uff0d\uff20")
"""How a formula begins, and the wide forms of these, which some spreadsheets take for them."""
_MOST_NAMES = 10_000
_ALL = ""
"""In place of an event: the job itself, whose seconds add up like a counter."""
BY = ("name", "pod", "namespace", "day")
"""What --by adds up by, besides labels: one of such a name is only a filter."""
_USUAL = [name for name, event in EVENTS.items() if not event.gauge]
_T = TypeVar("_T")


@dataclass
class Jobs:
    """The selected jobs in a file and in its rotated ones, by their names (none: all) and the time of their end.

    They ended at or after `since`, and before `until`: times in UTC as in lines, and empty ones are no limits. They
    have all of these `labels`.

    Of the lines with one ID the last one counts: a crash came between them. Only at its end a pass over the files has
    found which lines have a later one, and what logrotate has moved. So there is another pass if it has found any. The
    memory that this takes is 150 bytes for each selected job.
    """

    path: str
    names: Sequence[str] = ()
    since: str = ""
    until: str = ""
    labels: Set[tuple[str, str]] = frozenset()
    skipped: dict[str, int] = field(default_factory=dict)  # the number of unreadable lines of a file
    problems: list[str] = field(default_factory=list)  # a line for each file that was not read, or not to its end
    known: set[str] = field(default_factory=set)  # the names that a job has, also one that ended at another time
    known_labels: set[str] = field(default_factory=set)  # the names of the labels that a job has, as above
    is_empty: bool = True  # no file has a job
    _replaced: dict[str, int] = field(default_factory=dict)  # by ID: how many selected lines have a later one

    @property
    def absent(self) -> list[str]:
        """The names that no job has."""
        return [name for name in self.names if name not in self.known]

    def explain_absent(self, by: str | None) -> str:
        """Return one line on the names, and on the labels of filters and sums, that no job has, and what was meant."""
        parts = [f"matches {', '.join(map(self._ask, self.absent))[:300]}"] if self.absent else []
        wanted = {name: list[str]() for name, _ in self.labels}
        if by is not None and by not in BY:
            wanted[by] = [*BY]
        for name, others in wanted.items():
            if name not in self.known_labels and not self.is_empty:
                parts.append(f"has a label {name!r}{_ask(get_close_matches(name, [*others, *self.known_labels], 1))}")
        return f"no job in {self.path} {' or '.join(parts)}" if parts else ""

    def _ask(self, wanted: str) -> str:
        """Return a name that no job has, and ask whether one was meant that has it as a part, or looks like it."""
        word = re.compile(rf"(?<![A-Za-z0-9]){re.escape(wanted)}(?![A-Za-z0-9])")

        def choose(jobs: Iterator[Job]) -> list[str]:
            best, others = (False, 0.0, ""), dict[str, None]()
            for job in jobs:
                texts = [name_job(job), job.pod or "", *(container.name or "" for container in job.containers)]
                for name in filter(None, texts):
                    if wanted and wanted in name:
                        best = max(best, (bool(word.search(name)), 1 / len(name), name))
                    elif len(others) < _MOST_NAMES:
                        others[name] = None
            return [best[2]] if best[2] else get_close_matches(wanted, others, 1)

        return f"{wanted!r}{_ask(Jobs(self.path).collect(choose))}"

    def collect(self, make: Callable[[Iterator[Job]], _T]) -> _T:
        """Return what `make` makes of the jobs, in the order of the files. It is called once for each pass.

        Raises Unreadable if there is no file, or if the directory is unreadable.
        """
        while True:
            before = self._list_files(), self._replaced
            made = make(self._read())
            if (self._list_files(), self._replaced) == before:
                return made

    def stream(self, order: Sequence[str]) -> Iterator[Job]:
        """Yield the jobs with these IDs in this order, which is almost that of the files: so few of them have to wait.

        If logrotate moves a file before it is read, another pass reads it.
        """
        places = {job: place for place, job in enumerate(order)}
        waiting: dict[int, Job] = {}
        following = 0
        for _ in range(5):
            for job in self._read():
                place = places.get(job.id, -1)
                if place >= following:
                    waiting[place] = job
                while following in waiting:
                    yield waiting.pop(following)
                    following += 1
            if following == len(order):
                return
        yield from (waiting[place] for place in sorted(waiting))

    def explain(self) -> str:
        """Return one line on what was skipped, which is empty if nothing was."""
        parts = list(self.problems)
        if count := sum(self.skipped.values()):
            parts.insert(0, f"{format_count(count, 'torn or unknown line')} in {', '.join(self.skipped)}")
        return printable(f"skipped: {'; '.join(parts)}") if parts else ""

    def _list_files(self) -> dict[str, tuple[int, bool]]:
        """List the files of the history and those with a name that begins so: the inode, and whether to read it."""
        directory, name = os.path.split(self.path)
        stem, extension = map(re.escape, os.path.splitext(name))
        heads = f"{stem}{extension}", f"{stem}{_NUMBER}{extension}"
        pattern = re.compile(f"({heads[0]}({_NUMBER}{_KIND})?|{heads[1]}{_KIND})|({'|'.join(heads)})[^A-Za-z0-9].*")
        matches = filter(None, map(pattern.fullmatch, files.list_names(directory or ".")))
        rotated = {os.path.join(directory, match[0]): match[1] is not None for match in matches}
        statuses = {path: system.try_call(os.stat, path) for path in rotated}
        listed = {path: (status.st_ino, rotated[path]) for path, status in statuses.items() if status is not None}
        if not listed:
            raise files.Unreadable(self.path, "there is no such file", errno.ENOENT)
        return listed

    def _read(self) -> Iterator[Job]:
        """Read all files; yield the selected jobs without the lines of which the last pass has found a later one."""
        self.skipped.clear()
        self.problems.clear()
        former, self._replaced = self._replaced, {}
        lines: dict[str, int] = {}
        listed = self._list_files()
        for path in sorted(listed, key=lambda path: (path == self.path, _find_first_end(path), path)):
            if not listed[path][1]:
                self.problems.append(f"{os.path.basename(path)}: {_OTHER_NAME}")
                continue
            for job in self._read_file(path):
                matching = {*_list_names_of(job)}.intersection(self.names) if self.names else set()
                self.known |= matching
                self.known_labels.update(job.labels)
                self.is_empty = False
                count = lines.get(job.id, 0)
                if count:
                    self._replaced[job.id] = count
                is_named = (matching or not self.names) and self.labels <= job.labels.items()
                if is_named and self.since <= job.end and (not self.until or job.end < self.until):
                    lines[job.id] = count + 1
                    if count >= former.get(job.id, 0):
                        yield job

    def _read_file(self, path: str) -> Iterator[Job]:
        """Yield the jobs of a file. One that is damaged loses what is behind the damage."""
        name, why, torn, has_job = os.path.basename(path), "", 0, False
        try:
            for job in _read_parts(path):
                if job:
                    has_job = True
                    yield job
                else:
                    torn += 1
        except files.Unreadable as error:
            why = error.why
        except (OSError, EOFError, zlib.error) as error:
            why = f"not read to its end: {error}"
        if torn and not has_job:
            torn, why = 0, why or "none of its lines can be read"
        if torn:
            self.skipped[name] = torn
        if why:
            self.problems.append(f"{name}: {why}")


def parse_time(option: str, text: str | None, now: float) -> str:
    """Parse the time of an option to one in UTC, as in lines, which is empty if it is not given. Raises ValueError.

    A time without a zone is local. A day or a night begins with the time that is returned; for --until it ends then.
    """
    if text is None:
        return ""
    if age := _AGE.fullmatch(text):
        return system.format_utc(max(0.0, now - int(age[1]) * _SECONDS[age[2]]))
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
    """Convert a time to UTC, as in lines; one that clocks skip is the moment of the change, one shown twice the first.

    Only then the two folds differ. Before Python 3.12 astimezone() converts a time that is skipped to a wrong one.
    """
    late, early = (int(moment.replace(fold=fold).timestamp()) for fold in (0, 1))
    while late - early > 1:  # between them is the change
        middle = (late + early) // 2
        late, early = (middle, early) if datetime.fromtimestamp(middle) >= moment else (late, middle)  # noqa: DTZ006
    return system.format_utc(late)


def to_local(moment: str) -> str:
    """Convert a time of a line to local time with its zone. One that is impossible stays as it is."""
    with suppress(ValueError, OverflowError):
        local = datetime.fromisoformat(moment.replace("Z", "+00:00")).astimezone()
        return local.isoformat(timespec="seconds").replace("+00:00", "Z")
    return moment


# --- Lines


def _ask(names: Sequence[str]) -> str:
    return "".join(f" (did you mean {name}?)" for name in names)


def _find_first_end(path: str) -> str:
    """Return when the first job in a file ended; empty if no job in it can be read."""
    with suppress(OSError, EOFError, zlib.error):
        return next((job.end for job in _read_parts(path) if job), "")
    return ""


def _read_parts(path: str) -> Iterator[Job | None]:
    """Read a file, which may be one of gzip; yield its jobs, and None for each line of which a part is no job.

    Raises Unreadable if it is no file of the history, and else OSError, EOFError or zlib.error.
    """
    with files.opened(path) as descriptor, os.fdopen(descriptor, "rb", closefd=False) as stream:
        head = stream.read(6)
        stream.seek(0)
        for magic, program in _COMPRESSED.items():
            if head.startswith(magic):
                raise files.Unreadable(path, f"compressed by {program}; only gzip can be read")
        if not head and path.endswith(".gz"):
            raise files.Unreadable(path, "empty, and no file of gzip")
        for line in read_lines(gzip.GzipFile(fileobj=stream) if head.startswith(b"\x1f\x8b") else stream):
            yield from parse_line(line)


def read_lines(stream: io.BufferedIOBase) -> Iterator[bytes]:
    """Read lines; of one that is much longer than LINE, its end."""
    rest = b""
    while piece := stream.readline(LINE):
        rest = (rest + piece)[-2 * LINE :]
        if piece.endswith(b"\n"):
            yield rest
            rest = b""
    yield rest


def parse_line(line: bytes) -> list[Job | None]:
    """Parse the jobs in a line; None is for all parts that are no job. A torn line may be glued to a whole one."""
    before, *parts = _BEGIN.split(line)
    jobs = [_parse((begin + rest).strip(b"\0 \t\r\n")) for begin, rest in zip(parts[::2], parts[1::2])]
    return [*filter(None, jobs), *([None] if before.strip() or None in jobs else [])]


def _parse(text: bytes) -> Job | None:
    try:
        job = Job.model_validate(json.loads(text.decode()))
    except (ValueError, RecursionError):
        return None
    return job if _TIME.fullmatch(job.end) else None


# --- A job


def find_ended(path: str, name: str) -> str:
    """Return when the last job with a name ended, and the command that shows it; empty if there is none."""
    end = system.try_call(Jobs(path, [name]).collect, lambda jobs: max((job.end for job in jobs), default=""))
    return f"it ended {to_local(end)}: {format_command(path, name)}" if end else ""


def _list_names_of(job: Job) -> Iterator[str]:
    """List all names by which a job can be found; an ID also by its first 12 digits, as tables show it."""
    yield name_job(job)
    yield from list_pod_names(job.namespace, job.pod)
    yield from filter(None, (container.name for container in job.containers))
    for name in (job.key, *(container.id for container in job.containers)):
        yield from (name, short_id(name))


def name_job(job: Job) -> str:
    """Name a job: `namespace/pod`, or a container's name, with its pod if it has one; else the beginning of its key."""
    pod = name_pod(job.namespace, job.pod)
    names = [container.name for container in job.containers if container.name]
    is_container = len(names) == 1 and job.kind != "pod" and not (job.kind == "sandbox" and pod)
    return "/".join(filter(None, (pod, names[0] if is_container else ""))) or ",".join(names) or short_id(job.key)


# --- Rows: jobs, or their sums


class Row:
    """A row of the table, of JSON and of CSV: a job, or the sum of all with a name."""

    def __init__(self, name: str, job: Job | None = None) -> None:
        self.name = name
        self.job = job  # None: it is a sum
        self.jobs = 0  # the number of jobs that it adds up
        self.begin = ""  # of the job, or of the last one; it may be empty
        self.labels = set[str]()  # the columns of those that its jobs have
        self.use: Uses = {}  # by event, with the seconds under _ALL
        self.unmonitored = Counter[str]()  # how many of its jobs were not metered, by reason
        if job:
            self.add(job)

    def add(self, job: Job) -> None:
        """Add the use of a job."""
        for event, value in {**dict.fromkeys(job.unknown), **job.use, _ALL: job.seconds}.items():
            known = None if value is None else round(value * MILLION)
            part = make_total(known, in_part=event in job.unknown)
            self.use[event] = Total(*map(add, self.use.get(event, Total()), part))
        self.labels.update(map("label_{}".format, job.labels))
        self.begin = max(self.begin, job.begin or "")
        self.jobs += 1
        if job.reason is not None:
            self.unmonitored[job.reason] += 1


@dataclass(frozen=True)
class Rows:
    """The rows that are shown, which can be read once; the total of all that are selected, and how many these are."""

    by: str | None  # by what the rows are sums; None: they are jobs
    shown: Iterable[Row]
    total: Row
    count: int


def make_rows(jobs: Jobs, by: str | None = None, sort: str | None = None, limit: int | None = None) -> Rows:
    """Make a row for each job, or for each name, pod, namespace, day, or value of a label.

    If they are not sorted, the limit leaves the last ones: the jobs that ended last. Sums and places are kept, jobs are
    not: their files are read again for the rows.
    """

    def rank(row: Row) -> Any:  # noqa: ANN401  what sorts depends on `sort`
        return sort and (row.begin if sort == "start" else rank_use(row.use, sort))

    def add_up(selected: Iterator[Job]) -> tuple[Row, dict[str, Row], dict[str, tuple[str, Any]]]:
        total, sums, places = Row("total"), dict[str, Row](), dict[str, tuple[str, Any]]()
        for job in selected:
            total.add(job)
            if by is None:
                places[job.id] = job.end, sort and rank(Row("", job))
            else:
                name = _name_sum(job, by)
                (sums.get(name) or sums.setdefault(name, Row(name))).add(job)
        return total, sums, places or {name: (name, rank(row)) for name, row in sums.items()}

    total, sums, places = jobs.collect(add_up)
    order = sorted(places, key=lambda name: (places[name][0], name))
    if sort is not None:
        order.sort(key=lambda name: places[name][1], reverse=sort == "start")
    elif limit is not None:
        order = order[-limit:]
    order = order[:limit]
    shown = (Row(name_job(job), job) for job in jobs.stream(order)) if by is None else map(sums.__getitem__, order)
    return Rows(by, shown, total, len(places))


def _name_sum(job: Job, by: str) -> str:
    """Name the sum that a job belongs to; else its label has this name. The day is that of its end, in local time."""
    if by == "day":
        return to_local(job.end)[:10]
    names = {"name": name_job(job), "pod": name_pod(job.namespace, job.pod), "namespace": job.namespace or ""}
    return names.get(by, job.labels.get(by, ""))


def format_rows(jobs: Jobs, rows: Rows, screen: Screen) -> list[str]:
    """Format a table of jobs or sums, and their total."""
    names, seconds, uses = list[str](), list[str](), list[Uses]()
    counts, ends, runs = list[str](), list[str](), list[int]()
    for row in chain(rows.shown, [rows.total] if rows.count > 1 else []):
        use = row.use
        names.append(to_word(row.name) or "-")
        seconds.append(format_total(use[_ALL], lambda value: f"{value / MILLION:.1f}"))
        uses.append({event: use[event] for event in LIST_HEADS if event in use})
        counts.append(str(row.jobs))
        if row.job:
            ends.append(to_local(row.job.end))
            runs.append(row.job.runs)
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
    total = _to_json(rows.total) if rows.count else None
    answer = system.dumps({"file": jobs.path, **times, **skipped, **by, name: [], "total": total})
    before, begin, after = answer.partition(f'"{name}": [')  # no text has these quotes
    yield before + begin
    for number, row in enumerate(rows.shown):
        yield (", " if number else "") + system.dumps({**({"name": row.name or None} if by else {}), **_to_json(row)})
    yield f"{after}\n"


def _to_json(row: Row) -> dict[str, Any]:
    totals = {event: total for event, total in row.use.items() if event != _ALL}
    use = {event: to_number(total.value) for event, total in totals.items() if total.counted}
    if row.job:
        return {"name": row.name, **row.job.model_dump(), "use": use}
    unknown = sorted(event for event, total in totals.items() if total.unknown)
    seconds, unmonitored = to_number(row.use[_ALL].value), dict(sorted(row.unmonitored.items()))
    return {"jobs": row.jobs, "seconds": seconds, "use": use, "unknown": unknown, "unmonitored": unmonitored}


def _count_reasons(unmonitored: Mapping[str, int], between: str) -> str:
    """Say how many jobs were not metered for each reason."""
    return between.join(f"{number} {to_word(reason)}" for reason, number in sorted(unmonitored.items()))


def format_csv(rows: Rows) -> Iterator[str]:
    """Format `history --csv`: the head, and a line for each job or sum, with a column for each event of all jobs."""
    counted = {event for event in rows.total.use if event != _ALL}
    events = [*(event for event in _USUAL if event in counted), *sorted(counted - {*_USUAL})]
    head = f"label_{rows.by}" if rows.by and rows.by not in BY else rows.by or "name"
    if rows.by is None:
        first = ["name", "kind", "key", "namespace", "pod", "containers", "begin", "end", "seconds", "runs"]
        columns = [*first, *sorted(rows.total.labels), *events, "unknown", "reason", "late_cpu_seconds", "id"]
    else:
        columns = [head, "jobs", "seconds", *events, "unknown", "unmonitored"]
    write_row = csv.writer(SimpleNamespace(write=str), lineterminator="\n").writerow  # returns what `write` returns
    yield write_row(map(_to_cell, columns))
    for row in rows.shown:
        fields = {head: row.name, **_to_json(row)}
        containers = " ".join(container["name"] or container["id"] for container in fields.get("containers", ()))
        labels = {f"label_{name}": text for name, text in fields.get("labels", {}).items()}
        cells = {**fields, **fields["use"], **labels, "containers": containers, "unknown": " ".join(fields["unknown"])}
        cells["unmonitored"] = _count_reasons(row.unmonitored, " ")
        yield write_row(_to_cell(cells.get(name)) for name in columns)


def _to_cell(value: str | float | None) -> str | float | None:
    """Quote a text that a spreadsheet would take for a formula, since tenants choose names."""
    if not isinstance(value, str):
        return value
    safe = printable(value, is_ascii=False)
    return f"'{safe}" if safe.lstrip().startswith(_FORMULA) else safe
