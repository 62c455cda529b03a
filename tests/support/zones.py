# SPDX-License-Identifier: Apache-2.0
"""The days of all time zones that begin in an odd way:
clocks skip their midnight, or show it twice.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from datetime import datetime, time, timedelta, timezone
from functools import cache
from pathlib import Path
from typing import NamedTuple
from zoneinfo import ZoneInfo

_YEARS = range(1990, 2031)
_DAY, _SECOND = timedelta(days=1), timedelta(seconds=1)
CODE = """\
import os, sys, time
from hook.show import history
for line in sys.stdin:
    os.environ["TZ"], day, former = line.split()
    time.tzset()
    print(history.parse_time("--since", day, 0.0), history.parse_time("--until", former, 0.0))
"""
"""Reads lines of `list_days`; prints when each day begins, and when the day before it ends."""


class OddDay(NamedTuple):
    """A day in a zone, which is named by its file."""

    zone: Path
    day: str
    former: str  # the day before it
    begin: str  # its first moment, in UTC as in lines


@cache
def list_days() -> list[OddDay]:
    """List the odd days of all zones of the package tzdata, once for zones that are the same."""
    spec = importlib.util.find_spec("tzdata.zoneinfo")
    assert spec is not None
    assert spec.submodule_search_locations is not None
    (top,) = spec.submodule_search_locations
    names = Path(top).with_name("zones").read_text("ascii").split()
    zones = {Path(top, name).read_bytes(): Path(top, name) for name in names}
    return [day for path in sorted(zones.values()) for day in _list_days(path)]


def _list_days(path: Path) -> Iterator[OddDay]:
    with path.open("rb") as file:
        zone = ZoneInfo.from_file(file)
    early = datetime(_YEARS[0], 1, 1, tzinfo=timezone.utc)
    while early.year in _YEARS:
        late = early + 10 * _DAY
        if (before := _offset(zone, early)) != (after := _offset(zone, late)):
            first, last = early, late
            while last - first > _SECOND:
                middle = first + (last - first) // 2
                first, last = (middle, last) if _offset(zone, middle) == before else (first, middle)
            change = last.replace(tzinfo=None, microsecond=0)
            begin, end = sorted((change + before, change + after))
            midnight = datetime.combine(begin, time()) + _DAY * (begin.time() != time())
            while midnight < end:  # clocks skip it, and go on at the change; or they show it twice
                moment = change if after > before else midnight - before
                day, former = midnight.date(), (midnight - _DAY).date()
                yield OddDay(path, str(day), str(former), f"{moment.isoformat()}Z")
                midnight += _DAY
        early = late


def _offset(zone: ZoneInfo, moment: datetime) -> timedelta:
    return moment.astimezone(zone).utcoffset() or timedelta()


def find_wrong(answer: str) -> dict[OddDay, str]:
    """Return the days for which the output of CODE has another begin,
    or another end of the day before.
    """
    days, lines = list_days(), answer.splitlines()
    assert len(lines) == len(days)
    return {day: line for day, line in zip(days, lines) if line != f"{day.begin} {day.begin}"}


def make_input() -> str:
    """Make the input of CODE."""
    return "".join(f"{day.zone} {day.day} {day.former}\n" for day in list_days())
