# SPDX-License-Identifier: Apache-2.0
"""Adds up the history: by namespace, and by labels of jobs.
reconcile keeps the result in `sums.json` beside it.

That file says what all lines up to a place in each file of the history add up to. So a reader adds
the lines behind these places, and a kill costs nothing. A file is known by its head
(lines.hash_head), whatever rotation has made of its name and its inode. Of two lines with one ID
the later one counts, also if the sums have the first one already: what may still be replaced is
kept beside them (`SummedLine`).
"""

from __future__ import annotations

import errno
import os
import re
import zlib
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import NamedTuple

from hook import counters, formats, system
from hook.models import Options
from hook.node import files, lines, paths
from hook.node.lines import Job
from hook.node.models import Sum, SummedFile, SummedLine, Sums
from hook.validation import MOST_NATURAL

NAME = "sums.json"
OTHER = "other"
"""The value of a label for all values that have no room."""
OTHERS = "(other)"
"""No name of a namespace: it is for all namespaces that have no room."""
RUNS = ""
"""In place of an event: the runs of which a part is unknown."""
MOST_LABELS = 2
MOST_RECENT = 1000
"""The last lines, of which each may be replaced, whether or not its run is on record."""
MOST_VALUES = 1000
"""Values of a label."""
_MOST_NAMESPACES = 10_000
_LIMIT = 256 << 20  # bytes of the sums: while they are made again they have the IDs of lines
# That are known: more than rotation leaves, since one may be missed while it is renamed.
_MOST_FILES = 64
# Of an event in a line, in base units; more is damage, and the sums would have no room for it.
_MOST_USE = 10**18
_ROUNDS = 5  # looks at the files, which rotation may rename
_MANY = 500  # lines between two looks at the clock
_ID = re.compile(rb'\{"version": ?1, ?"id": ?"([^"\\]{1,100})"')


class Shrunk(Exception):
    """A file has less than what was added up of it."""


def locate(history: str) -> str:
    """Return the path of the sums of a history."""
    return os.path.join(os.path.dirname(history), NAME)


def find_history(options: Options) -> str:
    """Return the history of a node: that of its hooks, or else that of its jobs.

    It is empty if there is none.
    """
    if options.history or options.run_dir != Options().run_dir:
        return options.history
    return paths.HISTORY


def read(history: str) -> Sums | None:
    """Read the sums; return None if there are none.

    Raises Unreadable, and ValueError if they are damaged.
    """
    try:
        return Sums.model_validate(files.read_json(locate(history), _LIMIT))
    except files.Unreadable as error:
        if error.is_missing:
            return None
        if error.errno == errno.EINVAL:
            raise ValueError(error.why) from None
        raise


def write(history: str, sums: Sums) -> None:
    """Replace the sums: after a kill or a crash they are the old or the new ones.

    Raises OSError.
    """
    path = locate(history)
    with files.replace_file(path, os.path.join(os.path.dirname(path), f".{NAME}.tmp")) as temporary:
        files.write_durably(
            temporary, formats.dumps(sums).encode("utf-8", "backslashreplace"), 0o600
        )


@dataclass
class Account:
    """What the runs of a namespace, or with a value of a label, add up to; use is in millionths."""

    use: dict[str, int] = field(default_factory=dict)
    unknown_runs: int = 0
    since: dict[str, float] = field(default_factory=dict)

    def add(self, line: SummedLine, sign: int = 1) -> None:
        """Add a line; a negative `sign` takes it off."""
        for event, text in line.use.items():
            self.use[event] = self.use.get(event, 0) + sign * (counters.parse_number(text) or 0)
        self.unknown_runs += sign * line.is_unknown

    def know(self, events: Iterable[str], since: float) -> None:
        """Note since when these events are known,
        and that runs are counted of which a part is unknown.
        """
        for event in (RUNS, *events):
            self.since.setdefault(event, since)


_Stamp = tuple[int, int, int]
_NOT_READ = (0, 0, 0)


@dataclass
class _File:
    """A file of the history: see SummedFile."""

    head: str
    offset: int = 0
    stamp: _Stamp = _NOT_READ


class Reading(NamedTuple):
    """How the files are read."""

    at: float = 0.0
    """The Unix time."""
    deadline: float = float("inf")
    """When it ends early (system.monotonic)."""
    keeps: Callable[[Job], bool] | None = None
    """Says which lines a later one may replace; None: any."""
    old_before: str = ""
    """A time in UTC, as in lines: no series begins at 0 for what had ended before."""
    is_durable: bool = False
    """Whether the disk has the lines afterwards."""


class Ledger:
    """The sums of a history as they are read further.

    Call it for what is added up from now on in these `labels`.
    """

    def __init__(self, history: str, sums: Sums, labels: Collection[str] | None = None) -> None:
        self.history = history
        self.labels = {
            name: {
                value: _open_account(total) for value, total in sums.labels.get(name, {}).items()
            }
            for name in (sums.labels if labels is None else labels)
        }
        self.namespaces = {name: _open_account(total) for name, total in sums.namespaces.items()}
        self.recent = dict(sums.recent)
        self.saved, self.saved_at, self.boot = dict(sums.saved), sums.saved_at, sums.boot
        self.is_whole = sums.is_whole
        self.repeated = {*sums.repeated}
        # The runs in `recent` that are there only until there are many later ones.
        self._loose = deque[str]()
        self.problems: list[str] = []  # a line for each file that was not read, or not to its end
        self._files = {
            file.head: _File(file.head, file.offset, (file.inode, file.size, file.changed))
            for file in sums.files
        }

    def close(self) -> Sums:
        """Return the sums as they are now."""
        return Sums(
            files=[_close_file(file) for file in [*self._files.values()][-_MOST_FILES:]],
            is_whole=self.is_whole,
            repeated=[] if self.is_whole else sorted(self.repeated),
            namespaces={name: _close_account(account) for name, account in self.namespaces.items()},
            labels={
                name: {value: _close_account(account) for value, account in values.items()}
                for name, values in self.labels.items()
            },
            recent=self.recent,
            saved=self.saved,
            saved_at=self.saved_at,
            boot=self.boot,
        )

    def list_accounts(self) -> Iterator[Account]:
        """List all accounts."""
        yield from self.namespaces.values()
        yield from chain.from_iterable(values.values() for values in self.labels.values())

    # --- Lines

    def describe(self, job: Job, at: float = 0.0) -> SummedLine:
        """Describe what a line adds."""
        known = {event: value for event, value in job["use"].items() if value <= _MOST_USE}
        return SummedLine(
            key=job["key"],
            container=job["containers"][0]["id"]
            if job["reason"] is not None and job["containers"]
            else None,
            namespace=job["namespace"] or "",
            labels={name: value for name, value in job["labels"].items() if name in self.labels},
            use={
                event: counters.format_number(round(value * counters.MILLION))
                for event, value in known.items()
            },
            is_unknown=bool(job["unknown"]) or len(known) < len(job["use"]),
            written=job.get("written"),
            at=at,
        )

    def get_accounts(self, namespace: str | None, labels: Mapping[str, str]) -> list[Account]:
        """Return the accounts of what has this namespace and these labels;
        they are made if they are missing.
        """
        accounts = [_open(self.namespaces, namespace or "", OTHERS, _MOST_NAMESPACES)]
        for name, values in self.labels.items():
            if name in labels:
                accounts.append(_open(values, labels[name], OTHER, MOST_VALUES))
        return accounts

    def _replace(self, job: Job, how: Reading) -> None:
        """Add a line, in place of an earlier one with its ID."""
        line, former = self.describe(job, how.at), self.recent.get(job["id"])
        if former is not None:
            if (line.written or "") < (former.written or "") and line.written:
                return
            for account in self.get_accounts(former.namespace, former.labels):
                account.add(former, -1)
        for account in self.get_accounts(line.namespace, line.labels):
            account.add(line)
            if job["end"] < how.old_before:
                account.know(line.use, 0.0)
        self.saved.pop(job["id"], None)
        self.recent.pop(job["id"], None)  # the last one is at the end
        self.recent[job["id"]] = line

    def _forget_later(self, run: str) -> None:
        """Forget what was added for a line once there are so many later ones."""
        self._loose.append(run)
        if len(self._loose) > MOST_RECENT and (oldest := self._loose.popleft()) not in self._loose:
            self.recent.pop(oldest, None)

    # --- Files

    def read(self, how: Reading | None = None) -> None:
        """Add the lines behind those that are added; `is_whole` says whether that is all of them.

        Raises Shrunk, and Unreadable for the directory.
        """
        how = how or Reading()
        self.is_whole = False
        for _ in range(_ROUNDS):
            listed = lines.list_files(self.history)
            for path, status in listed.items():
                if not self._is_read(status) and not self._read_file(path, status, how):
                    return
            # Rotation may have renamed a file before it was opened.
            if _list_inodes(lines.list_files(self.history)) == _list_inodes(listed):
                break
        self.is_whole = True

    def _read_file(self, path: str, status: os.stat_result, how: Reading) -> bool:
        """Read a file, of this status, from where it was left;
        return whether there was time to read it to its end.
        """
        file = None
        try:
            with lines.opened(path) as (stream, descriptor, is_packed):
                status = os.fstat(descriptor)
                file = self._find_file(lines.hash_head(stream, is_packed=is_packed))
                if file is None:
                    return True
                if status.st_size < file.offset and not is_packed:
                    raise Shrunk(os.path.basename(path))
                file.stamp = _NOT_READ
                if not self._read_lines(stream, file, how):
                    return False
                if how.is_durable:
                    os.fsync(descriptor)
                file.stamp = _stamp(status)
        except (OSError, EOFError, zlib.error) as error:
            # Else it was renamed, and is read later.
            if not isinstance(error, OSError) or error.errno != errno.ENOENT:
                self.problems.append(f"{os.path.basename(path)}: not read to its end: {error}")
                name = f"inode {status.st_ino}"
                file = file or self._files.setdefault(name, _File(name))
                # So that it is read again, and this said again, when it has changed.
                file.stamp = _stamp(status)
        return True

    def _read_lines(self, stream: lines.Stream, file: _File, how: Reading) -> bool:
        stream.seek(file.offset)
        for number, line in enumerate(lines.read_lines(stream), 1):
            if not line.endswith(b"\n"):  # it is torn, or still being written
                break
            for job in filter(None, map(lines.parse, lines.split_line(line))):
                self._replace(job, how)
                if how.keeps is not None and not how.keeps(job):
                    self._forget_later(job["id"])
            file.offset = stream.tell()
            if number % _MANY == 0 and system.monotonic() >= how.deadline:
                return False
        return True

    def _find_file(self, head: str | None) -> _File | None:
        """Find the file with this head, which is the last one then; None if no line is whole."""
        if head is None:
            return None
        file = self._files[head] = self._files.pop(head, _File(head))
        return file

    def _is_read(self, status: os.stat_result) -> bool:
        """Whether a file with this status has been read to its end."""
        return status.st_size == 0 or any(
            file.stamp == _stamp(status) for file in self._files.values()
        )


def find_repeated(history: str) -> set[str]:
    """Find the IDs that several lines of the files have, without parsing them.

    Raises Unreadable for the directory.
    """
    known, repeated = set[bytes](), set[bytes]()
    for path in lines.list_files(history):
        try:
            with lines.opened(path) as (stream, _, _):
                for line in lines.read_lines(stream):
                    for match in _ID.finditer(line):
                        (repeated if match[1] in known else known).add(match[1])
        except (OSError, EOFError, zlib.error):  # `read` says so
            continue
    return {name.decode("utf-8", "replace") for name in repeated}


def _list_inodes(listed: dict[str, os.stat_result]) -> dict[str, int]:
    return {path: status.st_ino for path, status in listed.items()}


def _stamp(status: os.stat_result) -> _Stamp:
    """Return what differs after each append."""
    return status.st_ino & MOST_NATURAL, status.st_size, status.st_mtime_ns


def _close_file(file: _File) -> SummedFile:
    inode, size, changed = file.stamp
    return SummedFile(head=file.head, offset=file.offset, inode=inode, size=size, changed=changed)


def _open(accounts: dict[str, Account], name: str, rest: str, most: int) -> Account:
    """Return the account of this name; of one that has no room that of the `rest`."""
    if name not in accounts and len(accounts) >= most:
        name = rest
    return accounts.setdefault(name, Account())


def _open_account(total: Sum) -> Account:
    use = {event: counters.parse_number(text) or 0 for event, text in total.use.items()}
    return Account(use, total.unknown_runs, dict(total.since))


def _close_account(account: Account) -> Sum:
    use = {event: counters.format_number(value) for event, value in account.use.items()}
    return Sum(use=use, unknown_runs=account.unknown_runs, since=account.since)
