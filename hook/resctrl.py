# SPDX-License-Identifier: Apache-2.0
"""Makes, fills, reads and removes groups of the resctrl file system.

`inventory` says what its errnos mean.

Source: Documentation/filesystems/resctrl.rst of the kernel and fs/resctrl/rdtgroup.c.
"""

from __future__ import annotations

from hook import system
from hook.errors import HookError, Reason

TYPE_CHECKING = False
if TYPE_CHECKING:
    from hook.models import MonGroup

    Directory = tuple[int | None, int | None]


LEVEL = "llc_occupancy"
"""The event that is a level: what is in the cache now. All others that we know are sums."""


class Resctrl:
    """The resctrl file system at `root`, which may be missing or unmounted."""

    def __init__(self, root: str) -> None:
        self.root = root

    def exists(self, path: str) -> bool:
        """Whether a group exists, or another directory of resctrl.

        Raises OSError if that cannot be found out.

        A kernel without resctrl, or a CPU without RDT, does not have its own directory, `root`.
        """
        return system.find_directory(path)

    def is_gone(self, path: str) -> bool:
        """Whether a directory of resctrl is known not to exist."""
        return system.try_call(self.exists, path) is False

    def is_mounted(self) -> bool:
        """Whether mon_groups can be made, as far as that can be found out."""
        return system.try_call(self.exists, self.root + "/mon_groups") is True

    def has(self, group: MonGroup) -> bool:
        """Whether the directory that is on record of a mon_group is there,
        and not another one in its place.
        """
        return is_about(group, self.identify(group.path))

    def path(self, ctrl_group: str, name: str) -> str:
        """The full path of a mon_group; `ctrl_group` is `/` for the root one."""
        above = self.root if ctrl_group == "/" else f"{self.root}/{ctrl_group}"
        return f"{above}/mon_groups/{name}"

    def make(self, path: str) -> bool:
        """Make a mon_group, which takes an RMID; returns False if it exists already.

        Makes no parent: on a machine that cannot monitor, `mkdir -p` would make a ctrl_group
        called `mon_groups`. Raises HookError of a kind in GONE, `no_rmids`,
        `rmids_in_limbo`, `denied`, `io`.
        """
        try:
            system.mkdir(path, 0o755)
        except FileExistsError:
            return False
        except OSError as error:
            raise self._refusal("mkdir", path, error) from error
        return True

    def put(self, path: str, pid: int) -> None:
        """Move the thread `pid` into a mon_group; its later children inherit that.

        Raises HookError of a kind in GONE, WRONG_CTRL_GROUP, `task_gone`, `denied`, `io`.
        """
        try:
            system.write_once(path + "/tasks", str(pid))
        except OSError as error:
            raise self._refusal("write", path, error, pid) from error

    def put_process(self, path: str, pid: int, born: int | None) -> None:
        """Move a process that started at `born`, and no other one that has its number by now;
        None: do not compare.

        Another one that takes the number at the very move is moved back.
        Raises what `put` does, and OSError.
        """
        if not _is_other(pid, born):
            self.put(path, pid)
            if not _is_other(pid, born):
                return
            if pid in (self.tasks(path) or ()):  # its own hook may have moved it on by now
                self.expel(path, pid)
        raise HookError(Reason.TASK_GONE, "no process", pid=pid)

    def identify(self, path: str) -> Directory:
        """Identify the directory of a mon_group: when its file system was mounted, and its inode.

        The inode alone is not enough: each mount numbers them from 1 (fs/kernfs/dir.c,
        __kernfs_new_node), and has the device number of the former one. The root of a mount changes
        when it is mounted, and not again. A mount after its time was read makes the pair one of no
        directory, so that the next look takes the group for a new one.
        """
        return system.try_call(system.change_time, self.root), system.try_call(system.inode, path)

    def counters(self, path: str, *, is_quick: bool = False) -> dict[str, str]:
        """Read the counters of a mon_group: `<domain>/<event>` to the kernel's text.

        The number of files is that of the hardware's domains times events. Skipped: a directory
        within a domain, whose counts are in the domain's own (sub-NUMA clusters), and AMD's setting
        `mbm_L3_assignments`. A counter that cannot be read is `Error`, the kernel's own word.
        Raises HookError.

        If it `is_quick`, this lists the first domain of each resource alone: the kernel gives all
        domains of a resource the same events, and shows no domain before it has them all
        (fs/resctrl/rdtgroup.c, mon_add_all_files and mkdir_mondata_subdir). It does not read LEVEL,
        of which no difference means anything: that is `Unavailable`.
        """
        top = path + "/mon_data"
        texts: dict[str, str] = {}
        known: dict[str, list[str]] = {}
        try:
            for domain in system.list_kernel_directory(top):
                resource = domain.rstrip("0123456789") if is_quick else domain
                try:
                    read = _read_domain(f"{top}/{domain}", known.get(resource), is_quick=is_quick)
                except OSError:
                    if resource not in known:
                        raise
                    # This domain has other events than the first; or the group is gone,
                    # and with it the list.
                    read = _read_domain(f"{top}/{domain}", None, is_quick=is_quick)
                known[resource] = [*read]
                texts.update({f"{domain}/{event}": text for event, text in read.items()})
        except OSError as error:
            raise self._refusal("read", path, error) from error
        return texts

    def remove(self, path: str) -> bool:
        """Remove a mon_group; its tasks fall back to the ctrl_group.

        Returns False if there was none.

        Raises HookError `denied`, `io`. ENOENT and ENODEV are normal: other tools reset resctrl,
        and a runtime removes its ctrl_group with our group in it before it calls poststop.
        """
        try:
            system.rmdir(path)
        except OSError as error:
            if system.is_gone(error):
                return False
            raise self._refusal("rmdir", path, error) from error
        return True

    def _refusal(
        self, operation: str, path: str, error: OSError, pid: int | None = None
    ) -> HookError:
        from hook import inventory

        return inventory.explain_refusal(self, operation, path, error, pid)

    def tasks(self, path: str) -> set[int] | None:
        """Return the threads in a mon_group, or None if it does not exist.

        Raises OSError if they cannot be read.
        """
        try:
            text = system.read_file(path + "/tasks", limit=1 << 24)
        except OSError as error:
            if system.is_gone(error):
                return None
            raise
        return {int(task) for task in text.split() if task.isdigit()}

    def expel(self, path: str, tid: int) -> None:
        """Move a thread out of a mon_group, back to the ctrl_group above it.

        Raises what `put` does.
        """
        self.put(path.rpartition("/mon_groups/")[0], tid)

    def has_live_task(self, path: str) -> bool:
        """Whether `tasks` lists a task that is not known to be dead;
        True if that cannot be found out.

        It cannot in a pid namespace other than the host's,
        where `tasks` lacks the tasks of all others.
        """
        try:
            tasks = self.tasks(path)
        except OSError:
            return True
        if tasks is None:
            return False
        if any(system.is_dead(task) is not True for task in tasks):
            return True
        from hook import host

        return not host.in_host_namespaces()


def _read_domain(path: str, events: list[str] | None, *, is_quick: bool) -> dict[str, str]:
    """Read these events of a domain of a group; if there are none, all that it lists."""
    texts = {}
    for event in events or system.list_kernel_directory(path):
        if is_quick and event == LEVEL:
            texts[event] = "Unavailable"
        elif event != "mbm_L3_assignments":
            try:
                texts[event] = system.read_counter(f"{path}/{event}")
            except IsADirectoryError:
                pass
            except OSError as error:
                if system.is_gone(error):
                    raise
                texts[event] = "Error"
    return texts


def is_about(group: MonGroup, directory: Directory) -> bool:
    """Whether what is on record of a group is about this directory.

    An old record does not know its mount.
    """
    mounted, inode = directory
    return group.inode == inode and group.mounted in (None, mounted)


def _is_other(pid: int, born: int | None) -> bool:
    """Whether a process with this number is known to have started at another time."""
    return (
        born is not None
        and (fields := system.stat_fields(pid)) is not None
        and int(fields[19]) != born
    )
