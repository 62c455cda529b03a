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
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from hook import system
from hook.counters import EVENTS, MILLION
from hook.node import files
from hook.node.files import Unreadable
from hook.node.models import Job
from hook.report import format_count, name_pod, printable, short_id
from hook.show.lists import LEAST_NAME, LIST_HEADS, format_total, lay_out_uses
from hook.show.snapshot import Uses, make_total, sum_uses, to_number, to_word
from hook.show.terminal import Column, Screen, list_pod_names, numbers

LINE = 256 << 10
"""Bytes of a line, at most: four times as many as a hook writes."""
_BEGIN = b'{"version"'
"""How a line begins. No text in one has these bytes: JSON escapes the quotes."""
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ")
_AGE = re.compile(r"(\d{1,9})([smhdw])")
_DATE = re.compile(r"\d{4}-\d\d-\d\d(T\d\d:\d\d(:\d\d)?Z?)?")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}
# What logrotate puts behind a name: .1, or with dateext -20261124; and what compresses a file.
_ROTATED = re.compile(r"([.-]\d[\d.-]*(\.[a-z]\w*)?)?")
_MOST_ROUNDS = 3  # of looking for files that logrotate has moved since
_ALL = ""
"""In place of an event: the job itself, whose seconds add up like a counter."""
_FORMULA = ("=", "+", "-", "@")
_USUAL = [name for name, event in EVENTS.items() if not event.gauge]


@dataclass
class Jobs:
    """The jobs that were read and selected, by their names (none: all) and the time of their end."""

    names: Sequence[str] = ()
    since: str = ""
    lines: dict[str, tuple[str, bytes]] = field(default_factory=dict)  # by the ID of a job: its end, its line
    skipped: dict[str, int] = field(default_factory=dict)  # the number of unreadable lines of a file
    problems: list[str] = field(default_factory=list)  # a line for each file that could not be read to its end
    events: set[str] = field(default_factory=set)
    found: set[str] = field(default_factory=set)  # the names that a job has, also one that ended before `since`

    @property
    def absent(self) -> list[str]:
        """The names that no job has."""
        return [name for name in self.names if name not in self.found]

    def list_jobs(self) -> Iterator[Job]:
        """List the selected jobs in the order of their ends."""
        return (Job.model_validate(system.loads(line.decode())) for _end, line in sorted(self.lines.values()))

    def add(self, job: Job, line: bytes) -> None:
        """Count a job, if it is selected. Of two lines with an ID the later one counts: a crash came between them."""
        matching = {*_list_names_of(job)}.intersection(self.names)
        self.found |= matching
        if (matching or not self.names) and job.end >= max(self.since, self.lines.get(job.id, ("",))[0]):
            self.lines[job.id] = (job.end, line)
            self.events |= job.use.keys()

    def explain(self) -> str:
        """Return one line on what was skipped, which is empty if nothing was."""
        parts = list(self.problems)
        if count := sum(self.skipped.values()):
            parts.insert(0, f"{format_count(count, 'torn or unknown line')} in {', '.join(self.skipped)}")
        return printable(f"skipped: {'; '.join(parts)}") if parts else ""


def parse_since(text: str, now: float) -> str:
    """Parse an age or a date to a time as RFC 3339. Raises ValueError."""
    if age := _AGE.fullmatch(text):
        return system.format_utc(max(0.0, now - int(age[1]) * _SECONDS[age[2]]))
    if _DATE.fullmatch(text):
        with suppress(ValueError):  # there is no such day
            return datetime.fromisoformat(text.rstrip("Z")).isoformat(timespec="seconds") + "Z"
    raise ValueError(f"{text[:80]!r} is neither an age (90s, 15m, 12h, 7d, 2w) nor a date (2026-11-24)")


# --- Reading


def read(path: str, names: Sequence[str], since: str) -> Jobs:
    """Read a file and its rotated ones. Raises Unreadable if there is none of them, or if the directory is unreadable.

    logrotate may rename them in between: then what is new under one of the names is read, too. What is read twice
    counts once, by its ID.
    """
    found = Jobs(names, since)
    seen: set[tuple[int, int]] = set()
    there: dict[str, tuple[int, int]] = {}
    for number in range(_MOST_ROUNDS):
        former, there = there, _list_files(path)
        if not (there or number):
            raise Unreadable(path, "there is no such file", errno.ENOENT)
        if there == former:
            break
        for file in sorted(there, key=lambda file: there[file][1]):  # a file's last line decides, see Jobs.add
            if there[file] not in seen:
                seen.add(there[file])
                _read_file(file, found)
    return found


def _list_files(path: str) -> dict[str, tuple[int, int]]:
    """List the files with this name and those that logrotate gives, with their inodes and the times of their ends."""
    directory, name = os.path.split(path)
    names = [other for other in files.list_names(directory or ".") if other.startswith(name)]
    paths = [os.path.join(directory, other) for other in names if _ROTATED.fullmatch(other[len(name) :])]
    found = ((path, system.try_call(os.stat, path)) for path in paths)
    return {path: (status.st_ino, status.st_mtime_ns) for path, status in found if status is not None}


def _read_file(path: str, found: Jobs) -> None:
    """Add the jobs of a file. A file that is damaged loses what is behind the damage."""
    name = os.path.basename(path)
    try:
        with files.opened(path) as descriptor, os.fdopen(descriptor, "rb", closefd=False) as stream:
            for line in read_lines(gzip.GzipFile(fileobj=stream) if path.endswith(".gz") else stream):
                jobs = [*parse_line(line)]
                for job, text in jobs:
                    if job is not None:
                        found.add(job, text)
                if any(job is None for job, _text in jobs):
                    found.skipped[name] = found.skipped.get(name, 0) + 1
    except Unreadable as error:
        found.problems.append(f"{name}: {error.why}")
    except (OSError, EOFError, zlib.error) as error:
        found.problems.append(f"{name}: not read to its end: {error}")


def read_lines(stream: io.BufferedIOBase) -> Iterator[bytes]:
    """Read the lines that are not blank; of one that is much longer than LINE, its end."""
    rest = b""
    while piece := stream.readline(LINE):
        rest = (rest + piece)[-2 * LINE :]
        if piece.endswith(b"\n"):
            yield from filter(bytes.strip, [rest])
            rest = b""
    yield from filter(bytes.strip, [rest])


def parse_line(line: bytes) -> Iterator[tuple[Job | None, bytes]]:
    """Parse the jobs in a line, each with its own text; None is a part that is no job.

    A torn line may be glued to a whole one.
    """
    job = _parse(line)
    if job is not None:
        yield job, line
        return
    before, *parts = line.split(_BEGIN)
    if before.strip() or not parts:
        yield None, before
    for part in parts:
        text = (_BEGIN + part).strip(b"\0 \t\r\n")
        yield _parse(text), text


def _parse(text: bytes) -> Job | None:
    try:
        job = Job.model_validate(system.loads(text.decode()))
    except ValueError:
        return None
    return job if _TIME.fullmatch(job.end) else None


# --- A job


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


def sum_jobs(jobs: Iterable[Job], by: str | None) -> dict[str, Uses]:
    """Add up jobs by name, pod, namespace or day; None adds up all of them, under the empty name."""
    found: dict[str, Uses] = {}
    for job in jobs:
        pod, namespace = name_pod(job.namespace, job.pod), job.namespace or ""
        group = {"name": name_job(job), "pod": pod, "namespace": namespace, "day": job.end[:10]}[by] if by else ""
        found[group] = sum_uses([found.get(group, {}), count_job(job)])
    return found


def _count_jobs(use: Uses) -> int:
    return use[_ALL].counted + use[_ALL].unknown


# --- The screens


def format_jobs(found: Jobs, screen: Screen) -> list[str]:
    """Format a line for each job, and their total."""
    rows, ends, runs = list[tuple[str, Uses]](), list[str](), list[int]()
    for job in found.list_jobs():
        shown = {event: total for event, total in count_job(job).items() if event in LIST_HEADS or event == _ALL}
        rows.append((name_job(job), shown))
        ends.append(job.end)
        runs.append(job.runs)
    more = [numbers("RUNS", [*map(str, runs)])] if {*runs} - {1} else []
    return [*_format_rows("NAME", _add_total(rows), [Column("END", ends)], more, screen), *_format_end(found)]


def format_sums(found: Jobs, by: str, screen: Screen) -> list[str]:
    """Format a line for each name, pod, namespace or day, and the total."""
    rows = _add_total(sorted(sum_jobs(found.list_jobs(), by).items()))
    jobs = numbers("JOBS", [str(_count_jobs(use)) for _, use in rows])
    return [*_format_rows(by.upper(), rows, [jobs], [], screen), *_format_end(found)]


def _add_total(rows: list[tuple[str, Uses]]) -> list[tuple[str, Uses]]:
    return [*rows, ("total", sum_uses(use for _, use in rows))] if len(rows) > 1 else rows


def _format_rows(
    head: str, rows: list[tuple[str, Uses]], columns: list[Column], more: list[Column], screen: Screen
) -> list[str]:
    """Lay out a table of names and use, with `columns` before and `more` behind the seconds."""
    names, uses = [to_word(name) or "-" for name, _ in rows], [use for _, use in rows]
    seconds = [format_total(use[_ALL], lambda value: f"{value / MILLION:.1f}") for use in uses]
    columns = [Column(head, names, least=LEAST_NAME), *columns, numbers("SECONDS", seconds), *more]
    return lay_out_uses(columns, uses, LIST_HEADS, screen)


def _format_end(found: Jobs) -> list[str]:
    return ["", text] if (text := found.explain()) else []


# --- JSON and CSV


def jobs_to_json(path: str, found: Jobs, by: str | None) -> dict[str, Any]:
    """Make the object of `history --json`."""
    jobs = [*found.list_jobs()]
    lines: dict[str, Any] = {"jobs": [*map(_job_to_json, jobs)]}
    if by is not None:
        sums = sorted(sum_jobs(jobs, by).items())
        lines = {"by": by, "sums": [{"name": name or None, **_sum_to_json(use)} for name, use in sums]}
    skipped = {"skipped": sum(found.skipped.values()), "problems": found.problems}
    return {"file": path, **skipped, **lines, "total": next(map(_sum_to_json, sum_jobs(jobs, None).values()), None)}


def _job_to_json(job: Job) -> dict[str, Any]:
    use = {event: to_number(round(value * MILLION)) for event, value in job.use.items()}
    return {"name": name_job(job), **job.model_dump(), "use": use}


def _sum_to_json(use: Uses) -> dict[str, Any]:
    known = {event: to_number(total.value) for event, total in use.items() if event != _ALL and total.counted}
    unknown = sorted(event for event, total in use.items() if event != _ALL and total.unknown)
    return {"jobs": _count_jobs(use), "seconds": to_number(use[_ALL].value), "use": known, "unknown": unknown}


def format_csv(found: Jobs, by: str | None) -> str:
    """Format `history --csv`: the head, and a line for each job or sum, with a column for each event of the jobs."""
    events = [*(event for event in _USUAL if event in found.events), *sorted(found.events - {*_USUAL})]
    rows: Iterable[dict[str, Any]]
    if by is None:
        rows, last = map(_job_to_json, found.list_jobs()), ["unknown", "late_cpu_seconds", "id"]
        first = ["name", "kind", "key", "namespace", "pod", "containers", "begin", "end", "seconds", "runs"]
    else:
        sums = sorted(sum_jobs(found.list_jobs(), by).items())
        rows = ({by: name, **_sum_to_json(use)} for name, use in sums)
        first, last = [by, "jobs", "seconds"], ["unknown"]
    text = io.StringIO()
    table = csv.DictWriter(text, [*map(_to_cell, [*first, *events, *last])], extrasaction="ignore", lineterminator="\n")
    table.writeheader()
    for row in rows:
        containers = " ".join(container["name"] or container["id"] for container in row.get("containers", ()))
        cells = {**row, **row["use"], "containers": containers, "unknown": " ".join(row["unknown"])}
        table.writerow({_to_cell(name): _to_cell(cell) for name, cell in cells.items() if not isinstance(cell, dict)})
    return text.getvalue()


def _to_cell(value: str | float | None) -> str:
    """Format a number as a spreadsheet reads it; empty is unknown.

    A text that would be a formula gets a quote, since tenants choose names.
    """
    if not isinstance(value, str):
        return "" if value is None else str(to_number(round(value * MILLION)))
    safe = printable(value)
    return f"'{safe}" if safe.lstrip().startswith(_FORMULA) else safe
