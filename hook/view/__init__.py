# SPDX-License-Identifier: Apache-2.0
"""The consumer's view, <run-dir>/mon_groups/<key>: reads like a mon_group, named by the key alone.

    tasks                           a link to the real one; an empty file once the key is completed
    created_at, completed_at        RFC 3339, UTC lingering_since                 RFC 3339, UTC:
    when the last member left; only while the key lingers mon_data/<domain>/<event>       a link to
    the live counter; gone once the key is completed mon_data/<domain>/<event>.begin .end .before
    .known     see models.MonGroup

If a key's containers are in several ctrl_groups, this is its first group. Each further one has
`tasks@<ctrl_group>` and `mon_data/<domain>@<ctrl_group>/...` (nothing after the @ for the root
ctrl_group), so that a sum over `mon_data/mon_PERF_PKG_*` is the use in all.

A service beside the hooks makes all of it from the keys' records, and keeps it so. It takes no lock
that a hook takes, and leaves nothing that its next start does not put right: that makes each view
again. A view is built beside, renamed into place, and never changed. So a reader has one rule: if a
file that it has listed is gone, it reads the key again. Kepler reads live counters by their paths.
It gets the kernel's own values or none, since the links lead to the kernel's files.
"""

from __future__ import annotations

import errno
import os
import signal
from contextlib import suppress
from typing import NamedTuple

# A module that only failures need is imported at once, too:
# an upgrade replaces the file that later imports would read.
from hook import damage, formats, rare, report, store, system
from hook.errors import HookError, Reason
from hook.models import KeyState, MonGroup, Options
from hook.node import records
from hook.node.models import ViewRecord
from hook.rare import as_hook_error
from hook.store import RunDir
from hook.words import explain, format_count

__all__ = ["damage", "keep", "make_once", "say_first"]
_PERIOD = 0.25  # seconds between two looks whether a record has changed
_LONGEST = 60.0  # seconds between two looks at each record, and between two writes of view.json
_RETRY = 5.0  # the same after a view that could not be made, as in a full file system
_MOST_SAID = 5
_ROOM = 1 / 8  # the share of the file system that is left to the records
_PLACE = "mon_groups"
_BUILDING = "building"
_NEW, _OLD = f"{_BUILDING}/new", f"{_BUILDING}/old"  # a view on its way in, and one on its way out
# Of domains and events.
_NAME_CHARACTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.-"

Content = tuple[list[str], dict[str, str], dict[str, str]]
"""The directories of a view, its files with their texts, and its links with their targets."""


class Shown(NamedTuple):
    """What the view of a key was made of."""

    # its record
    version: records.Version
    # a hash of what the view has; None if the record has nothing to show
    content: int | None


class View:
    """The views of all keys in a run directory."""

    def __init__(self, options: Options) -> None:
        """Take over the views.

        Raises HookError, `usage` while another process keeps them, and OSError.
        """
        self._run = RunDir(options.run_dir)
        self._dir = self._run.descriptor
        self._resctrl_root = options.resctrl_root
        # It is empty at first, so that each view is made again.
        self._shown: dict[str, Shown] = {}
        self._seen: tuple[int, int] | None = None
        self._due = float("-inf")
        # The lock is on the directory itself, which no hook locks.
        if not system.try_flock(self._dir):
            self.close()
            hint = "nothing is left to do: it shows each change at once"
            raise HookError(Reason.USAGE, "another process keeps the view", hint=hint)

    def close(self) -> None:
        """Give the views back."""
        system.close(self._dir)

    def is_there(self) -> bool:
        """Whether the run directory is still the one at its path."""
        return system.try_call(rare.same_file, self._dir, self._run.path, self._dir) is True

    def update(self) -> list[HookError] | None:
        """Make the views of the records that have changed; return why some could not be made.

        The result is None if nothing has changed, as two times of directories show: that of the
        records', and that of the views', which another program may change. Once a minute this looks
        at all records in any case. Raises HookError, OSError.
        """
        now, version = system.monotonic(), self._read_version()
        if version is not None and version == self._seen and now < self._due:
            return None
        self._make_parts()
        versions = records.list_versions(self._run)
        views = {*store.list_part(self._run, _PLACE)}
        self._shown = {key: shown for key, shown in self._shown.items() if key in versions}
        outdated = [
            key
            for key in sorted(versions.keys() | views)
            if not self._is_current(key, versions, views)
        ]
        problems = []
        for key in outdated:
            try:
                self._show(key, versions.get(key), is_there=key in views)
            except OSError as error:
                problems.append(as_hook_error(f"could not make the view of key {key}", error))
        self._clear()
        # After a change the next look reads the times again,
        # so that no change during this one is missed.
        self._seen = version if len(problems) == len(outdated) else None
        if problems:
            self._due = now + _RETRY
        elif now >= self._due:
            self._run.write(ViewRecord, "view", ViewRecord(alive_at=system.unix_time()))
            self._due = now + _LONGEST
        return problems

    def _is_current(self, key: str, versions: dict[str, records.Version], views: set[str]) -> bool:
        shown = self._shown.get(key)
        return (
            shown is not None
            and shown.version == versions[key]
            and (shown.content is not None) == (key in views)
        )

    def _read_version(self) -> tuple[int, int] | None:
        of_records, of_views = (
            records.read_version(self._run),
            records.read_version(self._run, _PLACE),
        )
        return (of_records, of_views) if of_records is not None and of_views is not None else None

    def _make_parts(self) -> None:
        """Make the directories and the link that all views share."""
        with suppress(FileExistsError):
            rare.symlink(f"{self._resctrl_root}/mon_data", "mon_data", self._dir)
        rare.ensure_directory(_PLACE, 0o755, self._dir)
        rare.ensure_directory(_BUILDING, 0o700, self._dir)

    def _show(self, key: str, version: records.Version | None, *, is_there: bool) -> None:
        """Replace a key's view by one of its record, or remove it if there is nothing to show.

        Raises OSError.

        If the new view cannot be made, the old one is removed all the same:
        readers would take it for right.
        """
        former = self._shown.pop(key, None)
        content = self._read_content(key) if version is not None else None
        hashed = None if content is None else hash(str(content))
        if former is None or former.content != hashed or is_there != (content is not None):
            self._clear()
            self._replace(key, content)
        if version is not None:
            self._shown[key] = Shown(version, hashed)

    def _read_content(self, key: str) -> Content | None:
        try:
            state = self._run.read(KeyState, key)
        except ValueError:  # reconcile sets it aside
            return None
        return _list_content(state) if state is not None and state.key == key else None

    def _replace(self, key: str, content: Content | None) -> None:
        place = f"{_PLACE}/{key}"
        try:
            if content is not None:
                self._build(content)
        finally:
            # rename(2) cannot replace a directory that is not empty, so there is no view between
            # these two. Killed in between: the next start makes it.
            with suppress(FileNotFoundError):
                system.rename(place, _OLD, self._dir)
        if content is not None:
            system.rename(_NEW, place, self._dir)

    def _clear(self) -> None:
        rare.remove_tree(_NEW, self._dir)
        rare.remove_tree(_OLD, self._dir)

    def _build(self, content: Content) -> None:
        if records.find_free_share(self._run) < _ROOM:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), self._run.path)
        directories, files, links = content
        for name in directories:
            system.mkdir(f"{_NEW}{name}", 0o755, self._dir)
        for name, text in files.items():
            system.write_new(f"{_NEW}/{name}", text + "\n" if text else "", self._dir, mode=0o644)
        for name, target in links.items():
            rare.symlink(target, f"{_NEW}/{name}", self._dir)


def make_once(options: Options) -> list[HookError]:
    """Make the views of all keys once; return why some could not be made.

    Raises HookError, OSError.
    """
    view = View(options)
    try:
        return view.update() or []
    finally:
        view.close()


def keep(options: Options) -> None:
    """Keep the views of all keys until SIGTERM or SIGINT, also over a removal of the run directory.

    Raises HookError, OSError if it cannot begin.
    """
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    view = View(options)
    _say(f"keeping {options.run_dir}/{_PLACE}")
    said = set[str]()
    with suppress(KeyboardInterrupt):
        while True:
            problems: list[HookError] | None
            try:
                if not view.is_there():
                    former, view = view, View(options)
                    former.close()
                problems = view.update()
            except (HookError, OSError) as error:
                problems = [as_hook_error("could not read or write a file", error)]
            if problems is not None:
                lines = {str(explain(problem)) for problem in problems}
                say_first([line for line in sorted(lines) if line not in said])
                said = lines
            system.sleep(_PERIOD)


def say_first(lines: list[str]) -> None:
    """Write the first of these lines, and how many more there are:
    in a full file system one for each key.
    """
    for line in lines[:_MOST_SAID]:
        _say(line)
    if len(lines) > _MOST_SAID:
        _say(format_count(len(lines) - _MOST_SAID, "further problem"))


def _say(text: str) -> None:
    """Write a line to stderr; systemd writes it to the journal, and limits the rate."""
    report.write_line(f"view: {text}", to_syslog=False)


def _list_content(state: KeyState) -> Content | None:
    """Return what the view of a key has; None if no counter of its groups was read,
    so that it has none.
    """
    shown = [group for group in state.groups if group.begin is not None]
    if not shown:
        return None
    files = {"created_at": state.created_at}
    if state.lingering_since is not None and not state.members:
        since = system.unix_time() - system.boottime() + state.lingering_since
        files["lingering_since"] = formats.format_utc(since)
    if state.completed_at is not None:
        files.update(completed_at=state.completed_at, tasks="")
    content: Content = (["", "/mon_data"], files, {})
    for group in shown:
        suffix = "" if group is shown[0] else "@" + group.ctrl_group.strip("/")
        _add_group(content, group, suffix, is_live=state.completed_at is None and group.end is None)
    return content


def _add_group(content: Content, group: MonGroup, suffix: str, *, is_live: bool) -> None:
    directories, files, links = content
    begin = group.begin or {}
    # Of counters.EARLIER.
    before = {counter: text.partition(" ")[0] for counter, text in group.before.items()}
    texts = (
        (".before", before),
        (".known", group.known),
        (".begin", begin),
        (".end", group.end or {}),
    )
    if is_live:
        links["tasks" + suffix] = group.path + "/tasks"
    for counter in {**begin, **group.before}:
        domain, _, event = counter.partition("/")
        if (
            (domain + event).strip(_NAME_CHARACTERS)
            or domain[:1] in ("", ".")
            or event[:1] in ("", ".")
        ):
            continue  # no hook wrote that record: it could lead out of the view
        directory = f"/mon_data/{domain}{suffix}"
        if directory not in directories:
            directories.append(directory)
        place = f"{directory[1:]}/{event}"
        files.update((place + kind, values[counter]) for kind, values in texts if counter in values)
        if is_live and counter in begin:
            links[place] = f"{group.path}/mon_data/{counter}"
