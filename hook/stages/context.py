"""What a hook works on: one node's kernel, records and options, and the steps that its stages share."""

from __future__ import annotations

from hook.base import names, procfs
from hook.base.errors import HookError, refused
from hook.state import consumer_view, transitions

TYPE_CHECKING = False
if TYPE_CHECKING:
    from hook.base.models import KeyState, MonGroup, Options
    from hook.base.resctrl import Resctrl
    from hook.state.rundir import LockedKey, RunDir


class Node:
    """The kernel's groups, our records, and the administrator's options. `freed` counts the RMIDs given back.

    `longest_linger`: for how many seconds a key may linger at most, whatever it was told to; None: for as long as that.
    """

    def __init__(self, resctrl: Resctrl, run: RunDir, options: Options, *, longest_linger: int | None = None) -> None:
        self.resctrl = resctrl
        self.run = run
        self.options = options
        self.longest_linger = longest_linger
        self.freed = 0
        self._view = consumer_view.View(run, resctrl.root)

    def begin(self, locked: LockedKey, path: str, *, made: bool, empty: bool) -> None:
        """Read and commit the counters of a group that nobody is in yet, and show them to consumers.

        What is on record of another directory, or from before this one was `made` (numbers of directories come again
        when resctrl is mounted anew), is of an incarnation that vanished; `empty`: without anybody in it.
        """
        state = locked.state
        if state is None:
            return
        groups = list(state.groups)
        place = [group.path for group in groups].index(path)
        inode = self.resctrl.inode(path)
        if groups[place].inode != inode or made:
            groups[place] = transitions.remade(groups[place], inode, empty=empty)
        if groups[place].begin is None and self.options.snapshot_ttl:
            begin = self.resctrl.counters(path)
            late = state.recovering or (not made and self.resctrl.has_live_task(path))
            groups[place] = transitions.begun(groups[place], inode, begin, late=late)
        if groups[place].last is not None:
            groups[place] = transitions.left(groups[place], None)
        try:
            if groups != state.groups:
                locked.commit(transitions.changed(state, groups=groups))
        except OSError as error:  # the container is monitored all the same
            self.run.complaints.append(refused(f"what key {state.key} begins with is lost", error))
        # After the commit: killed in between, the next hook of this key finds the view older than the state.
        self.show(locked.state or state)

    def invalidate(self, key: str, group: MonGroup) -> None:
        """Before a group takes the place of a recorded one: let no reader set its counters against that begin."""
        if group.begin is not None and self.resctrl.inode(group.path) != group.inode:
            try:
                self._view.invalidate(key)
            except OSError as error:
                self.run.complaints.append(refused(f"what key {key} used cannot be hidden", error))

    def with_late(self, group: MonGroup) -> MonGroup:
        """A group that lives, with the counters that came after its begin: those of CPUs that were offline, say."""
        if group.begin is None or group.end is not None or self.resctrl.inode(group.path) != group.inode:
            return group
        try:
            return transitions.with_late(group, self.resctrl.counters(group.path))
        except HookError:  # it was removed meanwhile
            return group

    def remove(self, path: str) -> None:
        """Remove a mon_group, and note that its RMID comes back. HookError as from resctrl."""
        if self.resctrl.remove(path):
            self.freed += 1
            self.run.note_freed()

    def orphans(self) -> list[str]:
        """The groups with our prefix that are on record of no key. Grows with the node, as mon_groups does."""
        # The groups before the records: createRuntime records a group before it makes it.
        keys = {path: self.key_of(path) for path in self.resctrl.mon_groups()}
        lone = [path for path, key in keys.items() if key is not None and not is_recorded(path, self.run.glance(key))]
        taken = self._recorded_paths() if lone else set()
        return [path for path in lone if path not in taken]

    def _recorded_paths(self) -> set[str]:
        """The groups of all keys that are not over, whatever prefix they were made with."""
        states = [self.run.glance(key) for key in self.run.recorded()]
        return {it.path for state in states if state and state.completed_at is None for it in state.groups}

    def key_of(self, path: str) -> str | None:
        """The key that a group is of, by its name; None if it has not our prefix, or no key behind that.

        Its name alone: one with a prefix that ours is the beginning of is on record of another key.
        """
        name, prefix = path.rpartition("/")[2], self.options.group_prefix
        try:
            return names.container_id(name[len(prefix) :]) if name.startswith(prefix) else None
        except ValueError:
            return None

    def make_parts(self) -> None:
        """Make what is missing of the run directory, consumers' part included. OSError."""
        self.run.make_parts()
        self._view.make_parts()

    def show(self, state: KeyState) -> None:
        """Bring what consumers see of a key up to date. A full /run is said, and costs nobody more than that."""
        try:
            if not self._view.is_current(state):
                self._view.show(state)
        except OSError as error:
            self.run.complaints.append(refused(f"what key {state.key} used cannot be shown", error))

    def keeps_snapshot(self, over: list[MonGroup], vain: frozenset[str]) -> bool:
        """Whether what these groups of a key counted is to outlive them."""
        counted = any(group.before or (group.begin and group.path not in vain) for group in over)
        return counted and self.options.snapshot_ttl > 0

    def is_shown(self, state: KeyState) -> bool:
        """Whether consumers see a key as its state says."""
        return self._view.is_current(state)

    def shown(self) -> list[str]:
        """The keys that consumers see."""
        return self._view.shown()

    def may_move(self, tid: int, path: str) -> bool:
        """Whether a thread can be moved into a group: it is in that one's ctrl_group, and in no mon_group of others.

        Where the kernel does not say where it is, to try is the only way to find out.
        """
        groups = procfs.resctrl_groups(tid)
        if groups is None:
            return True
        ctrl_group, mon_group = groups
        ours = not mon_group or mon_group.startswith(self.options.group_prefix)
        return ours and self._is_of(path, ctrl_group)

    def is_in_parent_of(self, path: str, tid: int) -> bool:
        """Whether a thread is in the ctrl_group that a group belongs to, as far as the kernel says."""
        groups = procfs.resctrl_groups(tid)
        return groups is None or self._is_of(path, groups[0])

    def _is_of(self, path: str, ctrl_group: str) -> bool:
        return self.resctrl.path(ctrl_group, "").rstrip("/") == path.rpartition("/")[0]

    def tidy(self, key: str, state: KeyState | None) -> None:
        """Remove what hooks that were killed left of a key, under its lock."""
        self.run.tidy(key)
        self._view.tidy(key)
        if state is None or not state.generation:
            self._view.remove(key)

    def forget(self, locked: LockedKey) -> None:
        """Leave no trace of a key, whose groups are gone."""
        if locked.state is not None and locked.state.generation:
            self._view.remove(locked.state.key)
        locked.clear()


def is_recorded(path: str, state: KeyState | None) -> bool:
    """Whether a group is on record of its key, or may have been."""
    if state is None or state.completed_at is not None:
        return False
    return state.recovering or path in [group.path for group in state.groups]
