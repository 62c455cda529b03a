# SPDX-License-Identifier: Apache-2.0
"""The consumer's view, <run-dir>/mon_groups/<key>: reads like a mon_group, named by the key alone.

    tasks                           a link to the real one; an empty file once the key is completed
    created_at, completed_at        RFC 3339, UTC
    lingering_since                 RFC 3339, UTC: when the last member left; only while the key lingers
    mon_data/<domain>/<event>       a link to the live counter; gone once the key is completed
    mon_data/<domain>/<event>.begin .end .before .known     see models.MonGroup

If a key's containers are in several ctrl_groups, this is its first group. Each further one has `tasks@<ctrl_group>` and
`mon_data/<domain>@<ctrl_group>/...` (nothing after the @ for the root ctrl_group), so that a sum over
`mon_data/mon_PERF_PKG_*` is the use in all.

A service beside the hook makes all of it from the keys' records, and keeps it so. It asks nothing of the hook, and can
be killed at each moment: it begins by making each view again. When a record changes, a new directory is built and
renamed into place, and never changed. So a reader has one rule: if a file that it has listed is gone, it reads the key
again. Kepler reads live counters by their paths. It gets the kernel's own values or none, since the links lead to the
kernel's files.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress

from hook import names, report, system
from hook.errors import HookError, Reason, as_hook_error
from hook.models import KeyState, Options
from hook.node import records
from hook.node.models import ViewRecord
from hook.store import RunDir
from hook.words import explain

PERIOD = 0.25
"""Seconds between two looks at the records."""
ALIVE_PERIOD = 10.0
"""Seconds between two writes of view.json."""
_RETRY = 5.0  # seconds after a view that could not be made, such as in a full file system
PLACE = "mon_groups"
_NAME_CHARACTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.-"  # of domains and events
_BUILDING = "building"  # a view in it is being built or removed, or the service was killed at that
_LOCK = "view.lock"

Version = tuple[int, int]
"""The inode and the time of a record, which differ for each commit."""


class View:
    """The views of all keys in a run directory."""

    def __init__(self, run: RunDir, resctrl_root: str) -> None:
        """Take over the views. Raises HookError `usage` while another process keeps them, and OSError."""
        self._dir = run.descriptor
        self._run = run
        self._resctrl_root = resctrl_root
        self._lock = system.open_lock(_LOCK, self._dir)
        if not system.try_flock(self._lock):
            system.close(self._lock)
            raise HookError(Reason.USAGE, "another process keeps the view")
        # By key, the record that its view was made from. It is empty at first, so that each view is made again.
        self._shown: dict[str, Version] = {}
        self._seen: tuple[int | None, int | None] = None, None
        system.remove_tree(_BUILDING, self._dir)

    def close(self) -> None:
        """Give the views back."""
        system.close(self._lock)
        system.close(self._dir)

    def is_there(self) -> bool:
        """Whether the run directory is still the one at its path."""
        with suppress(OSError):
            return os.path.samestat(os.stat(self._run.path, follow_symlinks=False), os.fstat(self._dir))
        return False

    def update(self) -> list[HookError]:
        """Make the views of the records that have changed; returns why some could not be made.

        Nothing is read while the records' directory has not changed, and no other program has changed that of the
        views.
        """
        now = records.read_version(self._run), system.try_call(_read_time, PLACE, self._dir)
        if None not in now and now == self._seen:
            return []
        self._make_parts()
        problems = []
        present = self._list_records()
        views = {*self._run.list_part(PLACE)}
        for key in [*views - present.keys(), *self._shown.keys() - present.keys()]:
            self._remove(key)
        for key, version in present.items():
            if self._shown.get(key) == version and (key in views or not self._is_due(key)):
                continue
            try:
                self._show(key, version)
            except OSError as error:
                system.try_call(system.remove_tree, f"{_BUILDING}/{key}", self._dir)
                problems.append(as_hook_error(f"could not make the view of key {key}", error))
        self._seen = (now[0], system.try_call(_read_time, PLACE, self._dir)) if not problems else (None, None)
        return problems

    def _is_due(self, key: str) -> bool:
        state = self._run.glance(KeyState, key)
        return state is not None and _has_view(state)

    def _list_records(self) -> dict[str, Version]:
        """List the keys with a record. Its time is read before the record, so that no commit is missed."""
        versions = {}
        for name in self._run.list_part("groups"):
            key = name[: -len(".json")]
            if name.endswith(".json") and names.is_container_id(key):
                status = system.try_call(os.stat, f"groups/{name}", dir_fd=self._dir, follow_symlinks=False)
                if status is not None:
                    versions[key] = status.st_ino, status.st_mtime_ns
        return versions

    def _show(self, key: str, version: Version) -> None:
        """Make the view of a key anew, or remove it if its record has none to show. Raises OSError."""
        state = self._run.glance(KeyState, key)
        if state is None or not _has_view(state):
            self._remove(key)
        else:
            new = f"{_BUILDING}/{key}"
            self._build(new, state)
            # Readers see the old content, nothing for an instant, or the new content: rename(2) cannot replace a
            # directory that is not empty. Killed in that instant: the next start makes it again.
            self._remove(key)
            system.rename(new, f"{PLACE}/{key}", self._dir)
        self._shown[key] = version

    def _remove(self, key: str) -> None:
        """Remove a key's view: out of the way in one step, then file by file."""
        self._shown.pop(key, None)
        old = f"{_BUILDING}/{key}.old"
        system.remove_tree(old, self._dir)
        with suppress(FileNotFoundError):
            system.rename(f"{PLACE}/{key}", old, self._dir)
            system.remove_tree(old, self._dir)

    def _build(self, top: str, state: KeyState) -> None:
        directories, files, links = _content(state)
        system.remove_tree(top, self._dir)
        system.mkdir(top, 0o755, self._dir)
        for name in directories:
            system.mkdir(f"{top}/{name}", 0o755, self._dir)
        for name, text in files.items():
            system.write_new(f"{top}/{name}", text + "\n" if text else "", self._dir, mode=0o644)
        for name, target in links.items():
            system.symlink(target, f"{top}/{name}", self._dir)

    def _make_parts(self) -> None:
        """Make the directories and the link that all views share."""
        with suppress(FileExistsError):
            system.symlink(f"{self._resctrl_root}/mon_data", "mon_data", self._dir)
        system.ensure_directory(PLACE, 0o755, self._dir)
        system.ensure_directory(_BUILDING, 0o700, self._dir)

    def note_alive(self) -> None:
        """Note that the service keeps the views, for doctor and the readiness probe."""
        system.try_call(self._run.write, ViewRecord, "view", ViewRecord(alive_at=time.time()))


def make_once(options: Options) -> list[HookError]:
    """Make the views of all keys once; returns why some could not be made. Raises HookError, OSError."""
    view = View(RunDir(options.run_dir), options.resctrl_root)
    try:
        return view.update()
    finally:
        view.close()


def keep(options: Options, is_over: Callable[[], bool] = lambda: False) -> None:
    """Keep the views of all keys until SIGTERM or SIGINT, also over a removal of the run directory.

    Raises HookError, OSError: it could not begin.
    """
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    view = View(RunDir(options.run_dir), options.resctrl_root)
    said = set[str]()
    alive = retry = -ALIVE_PERIOD
    try:
        while not is_over():
            now = time.monotonic()
            if not view.is_there():
                view.close()
                view = View(RunDir(options.run_dir), options.resctrl_root)
            if now >= retry:
                problems = {str(explain(problem)) for problem in view.update()}
                retry = now + _RETRY if problems else now
                for problem in sorted(problems - said):
                    report.write_line(problem)
                said = problems
            if now >= alive + ALIVE_PERIOD:
                view.note_alive()
                alive = now
            time.sleep(PERIOD)
    except KeyboardInterrupt:
        pass
    finally:
        view.close()


def _read_time(path: str, dir_fd: int) -> int:
    return os.stat(path, dir_fd=dir_fd, follow_symlinks=False).st_mtime_ns


def _has_view(state: KeyState) -> bool:
    """Whether a key has counters to show."""
    return any(group.begin is not None for group in state.groups)


def _lingering(state: KeyState) -> dict[str, str]:
    """The file that says since when a key lingers, if it does."""
    if state.members or state.lingering_since is None:
        return {}
    return {"lingering_since": system.format_utc(system.unix_time() - system.boottime() + state.lingering_since)}


def _content(state: KeyState) -> tuple[list[str], dict[str, str], dict[str, str]]:
    """A key's view: its directories, its files with their texts, and its links with their targets."""
    files = {"created_at": state.created_at, **_lingering(state)}
    links: dict[str, str] = {}
    if state.completed_at is not None:
        files.update(completed_at=state.completed_at, tasks="")
    directories = ["mon_data"]
    shown = [group for group in state.groups if group.begin is not None]
    for group in shown:
        begin = group.begin or {}
        before = {counter: text.partition(" ")[0] for counter, text in group.before.items()}  # of counters.EARLIER
        texts = ((".before", before), (".known", group.known), (".begin", begin), (".end", group.end or {}))
        of_group = "" if group is shown[0] else "@" + group.ctrl_group.strip("/")
        if group.end is None:
            links["tasks" + of_group] = group.path + "/tasks"
        for counter in {**begin, **group.before}:
            domain, _, event = counter.partition("/")
            if (domain + event).strip(_NAME_CHARACTERS) or domain[:1] in ("", ".") or event[:1] in ("", "."):
                continue  # no hook wrote that record: it could lead out of the view
            directory = f"mon_data/{domain}{of_group}"
            if directory not in directories:
                directories.append(directory)
            place = f"{directory}/{event}"
            for kind, values in texts:
                if counter in values:
                    files[place + kind] = values[counter]
            if group.end is None and counter in begin:
                links[place] = f"{group.path}/mon_data/{counter}"
    return directories, files, links
