# SPDX-License-Identifier: Apache-2.0
"""The consumer's view, <run-dir>/mon_groups/<key>: reads like a mon_group, named by the key alone.

    tasks                           a link to the real one; an empty file once the key is completed
    created_at, completed_at        RFC 3339, UTC
    lingering_since                 RFC 3339, UTC: when the last member left; only while the key lingers
    generation                      changes whenever another file does; removed before all others
    mon_data/<domain>/<event>       a link to the live counter; gone once the key is completed
    mon_data/<domain>/<event>.begin .end .before .known     see models.MonGroup

If a key's containers are in several ctrl_groups, this is its first group. Each further one has `tasks@<ctrl_group>` and
`mon_data/<domain>@<ctrl_group>/...` (nothing after the @ for the root ctrl_group), so that a sum over
`mon_data/mon_PERF_PKG_*` is the use in all.

All of it is derived from the key's state (models.KeyState). When that changes, a new directory is built and renamed.

A reader either opens the directory of a key once, reads all files relative to it, and `generation` last; or it reads
by paths, and compares `generation` before and after. If `generation` is gone or differs, it reads again. Each rule is
enough: a directory is complete when it is renamed into place, it does not change while it has `generation`, and no two
directories of a key have the same one. Kepler reads live counters by their paths and ignores `generation`. It gets the
kernel's own values or none, since the links lead to the kernel's files.
"""

from __future__ import annotations

from hook import system
from hook.validation import MOST_NATURAL, replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from hook.models import KeyState, MonGroup
    from hook.store import RunDir

_PLACE = "mon_groups"
_NAME_CHARACTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.-"  # of domains and events
_BUILDING = "building"  # a view in it is being built or removed, or a hook was killed at that


class View:
    """The views of all keys. Hold the key's lock for each call that changes one."""

    def __init__(self, run: RunDir, resctrl_root: str) -> None:
        self._run = run
        self._dir = run.descriptor
        self._resctrl_root = resctrl_root

    def is_current(self, state: KeyState) -> bool:
        """Whether a key's view was built from this state."""
        shown = system.try_call(system.read_file, f"{_PLACE}/{state.key}/generation", limit=64, dir_fd=self._dir)
        return state.generation == 0 if shown is None else shown == name_generation(state) + "\n"

    def show(self, state: KeyState) -> None:
        """Build a key's view again. A full /run is reported, and stops nothing."""
        try:
            if not self.is_current(state):
                try:
                    self._replace(state)
                except OSError as error:
                    self._run.make_way(f"{_BUILDING}/{state.key}", error, drops_lines=False)
                    self._replace(state)
        except OSError as error:
            # What is half built would take the room of a record.
            system.try_call(system.remove_tree, f"{_BUILDING}/{state.key}", self._dir)
            self._run.complain(f"could not update the published counters of key {state.key}", error)

    def _replace(self, state: KeyState) -> None:
        """Build a key's view and rename it into place. OSError: there is no room.

        Readers see the old content, nothing for an instant, or the new content: rename(2) cannot replace a directory
        that is not empty. Killed in that instant: the key's next hook finds that its view is not current.
        """
        new = f"{_BUILDING}/{state.key}"
        self._build(new, state)
        self.remove(state.key)
        try:
            system.rename(new, f"{_PLACE}/{state.key}", self._dir)
        except FileNotFoundError:  # another program removed `mon_groups`
            self.make_parts()
            system.rename(new, f"{_PLACE}/{state.key}", self._dir)

    def remove(self, key: str) -> None:
        """Remove a key's view: out of the way in one step, then file by file."""
        # First: a reader that has the directory open finds by this that some of its files may be gone.
        self.invalidate(key)
        old = f"{_BUILDING}/{key}.old"
        system.remove_tree(old, self._dir)
        try:
            system.rename(f"{_PLACE}/{key}", old, self._dir)
        except FileNotFoundError:
            return
        system.remove_tree(old, self._dir)

    def invalidate(self, key: str) -> None:
        """Remove `generation`, so that readers discard what they have read of a key.

        Killed after it: the key's next hook, or reconcile, finds that the view is not current.
        """
        try:
            system.unlink(f"{_PLACE}/{key}/generation", self._dir)
        except (NotADirectoryError, IsADirectoryError):
            pass  # it is no view

    def _build(self, top: str, state: KeyState) -> None:
        directories, files, links = _content(state)
        try:
            system.mkdir(top, 0o755, self._dir)
        except (FileNotFoundError, FileExistsError):  # the first view, or a killed hook left a half-built one
            self.make_parts()
            system.remove_tree(top, self._dir)
            system.mkdir(top, 0o755, self._dir)
        for name in directories:
            system.mkdir(f"{top}/{name}", 0o755, self._dir)
        for name, text in files.items():
            system.write_new(f"{top}/{name}", text + "\n" if text else "", self._dir, mode=0o644)
        for name, target in links.items():
            system.symlink(target, f"{top}/{name}", self._dir)

    def make_parts(self) -> None:
        """Make the directories and the link that all views share. _BUILDING is made last: if it exists, all do."""
        try:
            system.symlink(f"{self._resctrl_root}/mon_data", "mon_data", self._dir)
        except FileExistsError:
            pass
        system.ensure_directory(_PLACE, 0o755, self._dir)
        system.ensure_directory(_BUILDING, 0o700, self._dir)


def change(state: KeyState, groups: list[MonGroup], **fields: object) -> KeyState:
    """Return a state with other groups and fields. `generation` rises if the key's view changes."""
    members, since = fields.get("members", state.members), fields.get("lingering_since", state.lingering_since)
    if _list_shown(groups, members, since) != _list_shown(state.groups, state.members, state.lingering_since):
        fields["generation"] = next_generation(state)
    return replace(state, groups=groups, **fields)


def next_generation(state: KeyState) -> int:
    """Return the next `generation`. The largest is followed by 1."""
    return state.generation % MOST_NATURAL + 1


def _list_shown(groups: list[MonGroup], members: object, lingering_since: object) -> list[tuple[object, ...]]:
    """Return the part of a key's state that its view shows. A key without a shown group has no view."""
    left_at = None if members else lingering_since
    return [
        (group.path, group.inode, group.begin, group.end, group.before, group.known, left_at)
        for group in groups
        if group.begin is not None
    ]


def _lingering(state: KeyState) -> dict[str, str]:
    """The file that says since when a key lingers, if it does."""
    if state.members or state.lingering_since is None:
        return {}
    return {"lingering_since": system.format_utc(system.unix_time() - system.boottime() + state.lingering_since)}


def count_files(state: KeyState) -> tuple[int, int]:
    """Count the files with content in a key's view, and its files of all kinds."""
    directories, files, links = _content(state) if state.generation else ([], {}, {})
    return len(files), len(directories) + len(files) + len(links)


def name_generation(state: KeyState) -> str:
    """The text of `generation`. A key that is recovering counts from 1 again, so the time of its creation is in it."""
    return f"{state.created_boottime or 0:.3f}/{state.generation}"


def _content(state: KeyState) -> tuple[list[str], dict[str, str], dict[str, str]]:
    """A key's view: its directories, its files with their texts, and its links with their targets."""
    files = {"created_at": state.created_at, "generation": name_generation(state), **_lingering(state)}
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
