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
import os
import re
import zlib
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, time, timedelta, timezone
from typing import Any

from hook import system
from hook.counters import MILLION
from hook.node import files
from hook.node.files import Unreadable
from hook.node.models import Job
from hook.report import format_count, name_pod, printable, short_id
from hook.show import Column, Screen, list_pod_names, numbers
from hook.show.lists import LIST_HEADS, format_command, format_ratio, format_total, lay_out_uses, rank_use
from hook.show.snapshot import EVENTS, Uses, make_total, sum_uses, to_number, to_word

LINE = 256 << 10
"""Bytes of a line, at most: four times as many as a hook writes."""
_BEGIN = b'{"version"'
"""How a line begins. No text in one has these bytes: JSON escapes the quotes."""
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ")
_AGE = re.compile(r"(\d{1,9})([smhdw])")
_DATE = re.compile(r"\d{4}-\d\d-\d\d(T\d\d:\d\d(:\d\d)?(Z|[+-]\d\d:\d\d)?)?")
_FORMS = 'an age (90s, 15m, 12h, 7d, 2w), a date (2026-11-24, 2026-11-24T18:30), today, yesterday or "last night"'
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}
# What logrotate puts behind a name: .1, or with dateext -20261124; and what compresses a file.
_ROTATED = re.compile(r"([.-]\d[\d.-]*(\.[a-z]\w*)?)?")
_ROUNDS = 2  # of reading: the second one finds what logrotate moved during the first one
_ALL = ""
"""In place of an event: the job itself, whose seconds add up like a counter."""
_FORMULA = ("=", "+", "-", "@")
_KWH = 3_600_000 * MILLION
_USUAL = [name for name, event in EVENTS.items() if not event.gauge]


@dataclass
class Jobs:
    """The jobs that were read and selected, by their names (none: all) and the time of their end.

    They ended at or after `since`, and before `until`: times in UTC as in lines, and empty ones are no limits.
    """

    names: Sequence[str] = ()
    since: str = ""
    until: str = ""
    by_id: dict[str, Job] = field(default_factory=dict)
    skipped: dict[str, int] = field(default_factory=dict)  # the number of unreadable lines of a file
    problems: list[str] = field(default_factory=list)  # a line for each file that could not be read to its end
    found: set[str] = field(default_factory=set)  # the names that a job has, also one that ended at another time

    @property
    def absent(self) -> list[str]:
        """The names that no job has."""
        return [name for name in self.names if name not in self.found]

    def list_jobs(self) -> list[Job]:
        """List the selected jobs in the order of their ends. Only now each has its last line, and so its end."""
        jobs = (job for job in self.by_id.values() if not self.until or job.end < self.until)
        return sorted(jobs, key=lambda job: (job.end, job.id))

    def add(self, job: Job) -> None:
        """Add a job, if it is selected. Of two lines with an ID the later one counts: a crash came between them."""
        matching = {*_list_names_of(job)}.intersection(self.names)
        self.found |= matching
        former = self.by_id.get(job.id)
        if (matching or not self.names) and job.end >= (former.end if former else self.since):
            self.by_id[job.id] = job

    def explain(self) -> str:
        """Return one line on what was skipped, which is empty if nothing was."""
        parts = list(self.problems)
        if count := sum(self.skipped.values()):
            parts.insert(0, f"{format_count(count, 'torn or unknown line')} in {', '.join(self.skipped)}")
        return printable(f"skipped: {'; '.join(parts)}") if parts else ""


def parse_time(text: str, now: float, *, is_end: bool) -> str:
    """Parse a time to one in UTC, as in lines. A time without a zone is local. Raises ValueError.

    A day or a night begins with the time that is returned, or ends with it if `is_end`.
    """
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
            return _to_utc(words[text][is_end])
        if _DATE.fullmatch(text):
            begin = datetime.fromisoformat(text.replace("Z", "+00:00"))
            return _to_utc(begin + day if is_end and "T" not in text else begin)
    raise ValueError(f"{text[:80]!r} is no time; use {_FORMS}")


def _to_utc(moment: datetime) -> str:
    return moment.astimezone(timezone.utc).replace(tzinfo=None).isoformat(timespec="seconds") + "Z"


def to_local(moment: str) -> str:
    """Convert a time of a line to local time with its zone. One that is impossible stays as it is."""
    with suppress(ValueError, OverflowError):
        local = datetime.fromisoformat(moment.replace("Z", "+00:00")).astimezone()
        return local.isoformat(timespec="seconds").replace("+00:00", "Z")
    return moment


# --- Reading


def read(path: str, names: Sequence[str], since: str = "", until: str = "") -> Jobs:
    """Read a file and its rotated ones. Raises Unreadable if there is none of them, or if the directory is unreadable.

    logrotate may rename them in between: so they are listed again, and what is new is read, too. What is read twice
    counts once, by its ID.
    """
    found = Jobs(names, since, until)
    seen: set[tuple[int, int]] = set()
    for _ in range(_ROUNDS):
        for modified, inode, file in sorted(_list_files(path)):  # a file's last line decides, see Jobs.add
            if (modified, inode) not in seen:
                seen.add((modified, inode))
                _read_file(file, found)
    if not seen:
        raise Unreadable(path, "there is no such file", errno.ENOENT)
    return found


def _list_files(path: str) -> list[tuple[int, int, str]]:
    """List the files with this name and those that logrotate gives: when each was last written, its inode, its path."""
    directory, name = os.path.split(path)
    names = [other for other in files.list_names(directory or ".") if other.startswith(name)]
    paths = [os.path.join(directory, other) for other in names if _ROTATED.fullmatch(other[len(name) :])]
    found = ((path, system.try_call(os.stat, path)) for path in paths)
    return [(status.st_mtime_ns, status.st_ino, path) for path, status in found if status is not None]


def _read_file(path: str, found: Jobs) -> None:
    """Add the jobs of a file. A file that is damaged loses what is behind the damage."""
    name = os.path.basename(path)
    try:
        with files.opened(path) as descriptor, os.fdopen(descriptor, "rb", closefd=False) as stream:
            for line in read_lines(gzip.GzipFile(fileobj=stream) if path.endswith(".gz") else stream):
                jobs = parse_line(line)
                for job in filter(None, jobs):
                    found.add(job)
                if None in jobs:
                    found.skipped[name] = found.skipped.get(name, 0) + 1
    except Unreadable as error:
        found.problems.append(f"{name}: {error.why}")
    except (OSError, EOFError, zlib.error) as error:
        found.problems.append(f"{name}: not read to its end: {error}")


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
    """Parse the jobs in a line; None is a part that is no job. A torn line may be glued to a whole one."""
    before, *parts = line.split(_BEGIN)
    torn = [None] if before.strip() else []
    return [*torn, *(_parse((_BEGIN + part).strip(b"\0 \t\r\n")) for part in parts)]


def _parse(text: bytes) -> Job | None:
    try:
        job = Job.model_validate(system.loads(text.decode()))
    except ValueError:
        return None
    return job if _TIME.fullmatch(job.end) else None


# --- A job


def find_ended(path: str, name: str) -> str:
    """Return when the last job with a name ended, and the command that shows it; empty if there is none."""
    try:
        jobs = read(path, [name]).list_jobs()
    except Unreadable:
        return ""
    return f"it ended {to_local(jobs[-1].end)}: {format_command(path, name)}" if jobs else ""


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


def count_job(job: Job) -> Uses:
    """Return the use of a job by event, and its seconds."""
    values = {**dict.fromkeys([*job.use, *job.unknown]), **job.use, _ALL: job.seconds}
    return {
        event: make_total(None if value is None else round(value * MILLION), in_part=event in job.unknown)
        for event, value in values.items()
    }


# --- Rows: jobs, or their sums


@dataclass(frozen=True)
class Row:
    """A row of the table, of JSON and of CSV: a job, or the sum of all with a name."""

    name: str
    use: Uses  # with the seconds under _ALL
    begin: str  # the begin of the job, or of the last one; it may be empty
    job: Job | None = None  # None: it is a sum

    @property
    def jobs(self) -> int:
        """The number of jobs that it adds up."""
        return self.use[_ALL].counted + self.use[_ALL].unknown


@dataclass(frozen=True)
class Rows:
    """The rows that are shown, the total of all that are selected, and how many these are."""

    by: str | None  # by what the rows are sums; None: they are jobs
    shown: list[Row]
    total: Row | None
    count: int


def make_rows(jobs: Sequence[Job], by: str | None = None, sort: str | None = None, limit: int | None = None) -> Rows:
    """Make a row for each job, or for each name, pod, namespace or day.

    If they are not sorted, the limit leaves the last ones: the jobs that ended last.
    """
    rows = [Row(name_job(job), count_job(job), job.begin or "", job) for job in jobs]
    total = _add_up("total", rows) if rows else None
    if by is not None:
        sums: dict[str, list[Row]] = {}
        for job, row in zip(jobs, rows):
            sums.setdefault(_name_sum(job, by), []).append(row)
        rows = [_add_up(name, parts) for name, parts in sorted(sums.items())]
    count = len(rows)
    if sort == "start":
        rows.sort(key=lambda row: row.begin, reverse=True)
    elif sort is not None:
        rows.sort(key=lambda row: rank_use(row.use, sort))
    elif limit is not None:
        rows = rows[-limit:]
    return Rows(by, rows[:limit], total, count)


def _add_up(name: str, rows: Sequence[Row]) -> Row:
    return Row(name, sum_uses(row.use for row in rows), max(row.begin for row in rows))


def _name_sum(job: Job, by: str) -> str:
    """Name the sum that a job belongs to. The day is that of its end, in local time."""
    if by == "day":
        return to_local(job.end)[:10]
    return {"name": name_job(job), "pod": name_pod(job.namespace, job.pod), "namespace": job.namespace or ""}[by]


def format_rows(found: Jobs, rows: Rows, screen: Screen) -> list[str]:
    """Format a table of jobs or sums, their total, and of two rows the ratio of the second to the first."""
    jobs = [row.job for row in rows.shown if row.job]
    table = [*rows.shown, *([rows.total] if rows.total and rows.count > 1 else [])]
    names = [to_word(row.name) or "-" for row in table]
    seconds = [format_total(row.use[_ALL], lambda value: f"{value / MILLION:.1f}") for row in table]
    ratio = dict[str, str]()
    if len(rows.shown) == 2:
        first, second = (row.use for row in rows.shown)
        ratio = {event: format_ratio(first.get(event), second.get(event)) for event in (_ALL, *LIST_HEADS)}
        names.append("ratio")
        seconds.append(ratio[_ALL])
    columns = [
        Column((rows.by or "name").upper(), names),
        numbers("JOBS", [str(row.jobs) for row in table])
        if rows.by
        else Column("END", [to_local(job.end) for job in jobs]),
        numbers("SECONDS", seconds),
        *([numbers("RUNS", [str(job.runs) for job in jobs])] if any(job.runs != 1 for job in jobs) else []),
    ]
    notes = [f"{len(rows.shown)} of {rows.count} shown"] if len(rows.shown) < rows.count else []
    limits = {"at or after": found.since, "before": found.until}
    if times := [f"{word} {to_local(moment)}" for word, moment in limits.items() if moment]:
        notes.append(f"ended {' and '.join(times)}")
    notes += filter(None, [found.explain()])
    uses = [row.use for row in table]
    return [*lay_out_uses(columns, uses, LIST_HEADS, screen, ratio), *([""] if notes else []), *notes]


def rows_to_json(path: str, found: Jobs, rows: Rows) -> dict[str, Any]:
    """Make the object of `history --json`."""
    lines: dict[str, Any] = {"jobs": [*map(_to_json, rows.shown)]}
    if rows.by is not None:
        lines = {"by": rows.by, "sums": [{"name": row.name or None, **_to_json(row)} for row in rows.shown]}
    times = {"since": found.since or None, "until": found.until or None}
    skipped = {"skipped": sum(found.skipped.values()), "problems": found.problems}
    return {"file": path, **times, **skipped, **lines, "total": rows.total and _to_json(rows.total)}


def _to_json(row: Row) -> dict[str, Any]:
    totals = {event: total for event, total in row.use.items() if event != _ALL}
    use = {event: to_number(total.value) for event, total in totals.items() if total.counted}
    if row.job:
        return {"name": row.name, **row.job.model_dump(), "use": use}
    unknown = sorted(event for event, total in totals.items() if total.unknown)
    return {"jobs": row.jobs, "seconds": to_number(row.use[_ALL].value), "use": use, "unknown": unknown}


def format_csv(rows: Rows) -> str:
    """Format `history --csv`: the head, and a line for each job or sum, with a column for each event of the jobs."""
    shown = {event for row in rows.shown for event in row.use if event != _ALL}
    events = [*(event for event in _USUAL if event in shown), *sorted(shown - {*_USUAL})]
    if "core_energy" in shown:
        events.append("core_energy_kwh")
    if rows.by is None:
        first = ["name", "kind", "key", "namespace", "pod", "containers", "begin", "end", "seconds", "runs"]
        columns = [*first, *events, "unknown", "late_cpu_seconds", "id"]
    else:
        columns = [rows.by, "jobs", "seconds", *events, "unknown"]
    text = io.StringIO()
    table = csv.DictWriter(text, columns, extrasaction="ignore", lineterminator="\n")
    table.writerow({name: _to_cell(name) for name in columns})
    for row in rows.shown:
        fields = {rows.by or "name": row.name, **_to_json(row)}
        containers = " ".join(container["name"] or container["id"] for container in fields.get("containers", ()))
        cells = {**fields, **fields["use"], "containers": containers, "unknown": " ".join(fields["unknown"])}
        if "core_energy" in fields["use"]:
            cells["core_energy_kwh"] = f"{row.use['core_energy'].known / _KWH:.9f}"
        table.writerow({name: _to_cell(cells.get(name)) for name in columns})
    return text.getvalue()


def _to_cell(value: str | float | None) -> str | float | None:
    """Quote a text that a spreadsheet would take for a formula, since tenants choose names."""
    if not isinstance(value, str):
        return value
    safe = printable(value)
    return f"'{safe}" if safe.lstrip().startswith(_FORMULA) else safe
