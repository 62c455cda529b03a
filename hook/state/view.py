# SPDX-License-Identifier: Apache-2.0
"""The consumer's view: <run-dir>/mon_groups/<key>, which reads like a mon_group of that name, whatever the real one is.

    tasks                           a link to the real one; an empty file once the key is completed
    created_at, completed_at        RFC 3339, UTC
    generation                      changes with all the rest; the first file to go
    mon_data/<domain>/<event>       a link to the live counter; gone once the key is completed
    mon_data/<domain>/<event>.begin .end .before .known     see models.MonGroup

A key with containers in several ctrl_groups shows its first group so, and of each further one `tasks@<ctrl_group>` and
`mon_data/<domain>@<ctrl_group>/...` (nothing after the @ for the root ctrl_group): a sum over
`mon_data/mon_PERF_PKG_*` has the use of all.

All of it is derived from the key's state (models.KeyState), and made again, beside its place, whenever that changes.

A reader opens the directory of a key once, reads everything below that descriptor, and `generation` last. Or it reads
by paths, and finds the same `generation` before and after. Otherwise it reads again. Either rule is enough: a directory
is whole when it gets its place, it does not change while `generation` is in it, and no two of a key have the same one.
Kepler reads live counters by their paths and ignores `generation`. It gets the kernel's own values or none, since links
lead to the kernel's files wherever their directory is.
"""

from __future__ import annotations

from hook.base import system

TYPE_CHECKING = False
if TYPE_CHECKING:
    from hook.base.models import KeyState, MonGroup
    from hook.state.store import RunDir

_PLACE = "mon_groups"
_NAME_CHARACTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.-"  # of domains and events
_BUILDING = "building"  # what lies there is of a hook that works at it, or was killed at it


class View:
    """The views of all keys. Everything here is done under the key's lock."""

    def __init__(self, run: RunDir, resctrl_root: str) -> None:
        self._run = run
        self._dir = run.descriptor
        self._resctrl_root = resctrl_root

    def is_current(self, state: KeyState) -> bool:
        """Whether what is shown of a key is what its state says."""
        try:
            shown = system.read_file(f"{_PLACE}/{state.key}/generation", limit=64, dir_fd=self._dir)
        except OSError:
            return state.generation == 0
        return shown == _generation(state) + "\n"

    def show(self, state: KeyState) -> None:
        """Bring what consumers see of a key up to date. A full /run is reported, and costs no more than that."""
        try:
            if not self.is_current(state):
                self._replace(state)
        except OSError as error:
            self._run.complain(f"could not update the published counters of key {state.key}", error)

    def _replace(self, state: KeyState) -> None:
        """Show a key as its state says. OSError if there is no room.

        Readers see the old content, nothing for an instant, or the new content: a directory cannot take the place of
        another one in one step. Killed in that instant, the key's next hook finds that its view is not current.
        """
        new = f"{_BUILDING}/{state.key}"
        self._build(new, state)
        self.remove(state.key)
        try:
            system.rename(new, f"{_PLACE}/{state.key}", self._dir)
        except FileNotFoundError:  # another program cleared the place away
            self.make_parts()
            system.rename(new, f"{_PLACE}/{state.key}", self._dir)

    def remove(self, key: str) -> None:
        """Show nothing of a key: first in one step, then file by file."""
        # First: a reader that has the directory open learns by this that it may have read half of it.
        self.invalidate(key)
        old = f"{_BUILDING}/{key}.old"
        system.remove_tree(old, self._dir)
        try:
            system.rename(f"{_PLACE}/{key}", old, self._dir)
        except FileNotFoundError:
            return
        system.remove_tree(old, self._dir)

    def invalidate(self, key: str) -> None:
        """Let readers know that what they read of a key is not to be relied on: `generation` goes.

        Killed after it, the entry lacks it until the key's next hook, or reconcile, finds that the view is not current.
        """
        try:
            system.unlink(f"{_PLACE}/{key}/generation", self._dir)
        except (NotADirectoryError, IsADirectoryError):
            pass  # no view of ours

    def shown(self) -> list[str]:
        """The keys that something is shown of. Grows with the node: not for the hook path."""
        try:
            return system.list_directory(_PLACE, self._dir)
        except FileNotFoundError:
            return []

    def tidy(self, key: str) -> None:
        """Remove what hooks that were killed left half made, or half removed, of a key's view."""
        system.remove_tree(f"{_BUILDING}/{key}", self._dir)
        system.remove_tree(f"{_BUILDING}/{key}.old", self._dir)

    def _build(self, top: str, state: KeyState) -> None:
        directories, files, links = _content(state)
        try:
            system.mkdir(top, 0o755, self._dir)
        except FileNotFoundError:
            self.make_parts()
            system.mkdir(top, 0o755, self._dir)
        except FileExistsError:
            system.remove_tree(top, self._dir)
            system.mkdir(top, 0o755, self._dir)
        for name in directories:
            system.mkdir(f"{top}/{name}", 0o755, self._dir)
        for name, text in files.items():
            system.write_new(f"{top}/{name}", text + "\n" if text else "", self._dir, mode=0o644)
        for name, target in links.items():
            system.symlink(target, f"{top}/{name}", self._dir)

    def make_parts(self) -> None:
        """Make what all views need. _BUILDING comes last: where it is, a maker that was killed has left nothing out."""
        try:
            system.symlink(f"{self._resctrl_root}/mon_data", "mon_data", self._dir)
        except FileExistsError:
            pass
        for part, mode in ((_PLACE, 0o755), (_BUILDING, 0o700)):
            try:
                system.mkdir(part, mode, self._dir)
            except FileExistsError:
                pass


def _generation(state: KeyState) -> str:
    """Which state this is: a key that is recovering counts from the beginning again, but was made at another time."""
    return f"{state.created_boottime or 0:.3f}/{state.generation}"


def _content(state: KeyState) -> tuple[list[str], dict[str, str], dict[str, str]]:
    """The directories, the files with their texts and the links with their targets of a key's view."""
    files = {"created_at": state.created_at, "generation": _generation(state)}
    links: dict[str, str] = {}
    if state.completed_at is not None:
        files.update(completed_at=state.completed_at, tasks="")
    directories = ["mon_data"]
    first = True
    for group in state.groups:
        if group.begin is None:
            continue
        of_group = "" if first else "@" + group.ctrl_group.strip("/")
        first = False
        if group.end is None:
            links["tasks" + of_group] = group.path + "/tasks"
        for counter in {**group.begin, **group.before}:
            domain, _, event = counter.partition("/")
            if (domain + event).strip(_NAME_CHARACTERS) or domain[:1] in ("", ".") or event[:1] in ("", "."):
                continue  # no record of ours: it could lead out of the view
            place = f"mon_data/{domain}{of_group}"
            if place not in directories:
                directories.append(place)
            _counter(group, counter, f"{place}/{event}", files, links)
    return directories, files, links


def _counter(group: MonGroup, counter: str, place: str, files: dict[str, str], links: dict[str, str]) -> None:
    begin = group.begin or {}
    if counter in group.before:
        files[place + ".before"] = group.before[counter]
    if counter in group.known:
        files[place + ".known"] = group.known[counter]
    if counter in begin:
        files[place + ".begin"] = begin[counter]
        if group.end is None:
            links[place] = f"{group.path}/mon_data/{counter}"
    if group.end is not None and counter in group.end:
        files[place + ".end"] = group.end[counter]
