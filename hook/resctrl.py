# SPDX-License-Identifier: Apache-2.0
"""Makes, fills, reads and removes groups of the resctrl file system. `words` says what its errnos mean.

Source: Documentation/filesystems/resctrl.rst of the kernel and fs/resctrl/rdtgroup.c.
"""

from __future__ import annotations

from hook import system
from hook.errors import WRONG_CTRL_GROUP, HookError, Reason

TYPE_CHECKING = False
if TYPE_CHECKING:
    from hook.models import MonGroup

    Directory = tuple[int | None, int | None]

_REFUSALS = {
    ("mkdir", system.ENOSPC): (Reason.NO_RMIDS, "no RMIDs"),
    ("mkdir", system.EBUSY): (Reason.RMIDS_IN_LIMBO, "limbo"),  # none is free yet; some were given back a moment ago
    ("write", system.ESRCH): (Reason.TASK_GONE, "no process"),
    ("write", system.EINVAL): (Reason.NO_CTRL_GROUP, WRONG_CTRL_GROUP),
}
"""By operation and errno: the reason and the kind."""
_DENIED = (system.EACCES, system.EPERM, system.EROFS)
_NO_CTRL_GROUPS = ("info", "mon_data", "mon_groups")


class Resctrl:
    """The resctrl file system at `root`, which may be missing or unmounted."""

    def __init__(self, root: str) -> None:
        self.root = root

    def exists(self, path: str | None = None) -> bool:
        """Whether a mon_group exists. Raises OSError if that cannot be found out.

        Without a path this is about resctrl's own directory, which a kernel without resctrl, or a CPU without RDT, does
        not have.
        """
        try:
            system.inode(path or self.root)
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    def is_gone(self, path: str) -> bool:
        """Whether a mon_group is known not to exist."""
        return system.try_call(self.exists, path) is False

    def is_mounted(self) -> bool:
        """Whether mon_groups can be made, which is so if `mon_groups` is a directory."""
        return system.is_directory(self.root + "/mon_groups")

    def path(self, ctrl_group: str, name: str) -> str:
        """The full path of a mon_group; `ctrl_group` is `/` for the root one."""
        above = self.root if ctrl_group == "/" else f"{self.root}/{ctrl_group}"
        return f"{above}/mon_groups/{name}"

    def make(self, path: str) -> bool:
        """Make a mon_group, which takes an RMID; returns False if it exists already.

        Makes no parent: on a machine that cannot monitor, `mkdir -p` would make a ctrl_group called `mon_groups`.
        Raises HookError of a kind in GONE, `no_rmids`, `rmids_in_limbo`, `denied`, `io`.
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
        """Move a process that started at `born`, and no other one that has its number by now; None: do not compare.

        Another one that takes the number at the very move is moved back. Raises what `put` does, and OSError.
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

        The inode alone is not enough: each mount numbers them from 1 (fs/kernfs/dir.c, __kernfs_new_node), and has the
        device number of the former one. The root of a mount changes when it is mounted, and not again. A mount after
        its time was read makes the pair one of no directory, so that the next look takes the group for a new one.
        """
        return system.try_call(system.change_time, self.root), system.try_call(system.inode, path)

    def counters(self, path: str) -> dict[str, str]:
        """Read the counters of a mon_group: `<domain>/<event>` to the kernel's text.

        The number of files is that of the hardware's domains times events. Skipped: a directory within a domain, whose
        counts are in the domain's own (sub-NUMA clusters), and AMD's setting `mbm_L3_assignments`. A counter that
        cannot be read is `Error`, the kernel's own word. Raises HookError.
        """
        top = path + "/mon_data"
        texts: dict[str, str] = {}
        try:
            for domain in system.list_directory(top):
                for event in system.list_directory(f"{top}/{domain}"):
                    if event != "mbm_L3_assignments":
                        try:
                            texts[f"{domain}/{event}"] = system.read_counter(f"{top}/{domain}/{event}")
                        except IsADirectoryError:
                            pass
                        except OSError as error:
                            if system.is_gone(error):
                                raise
                            texts[f"{domain}/{event}"] = "Error"
        except OSError as error:
            raise self._refusal("read", path, error) from error
        return texts

    def remove(self, path: str) -> bool:
        """Remove a mon_group; its tasks fall back to the ctrl_group. Returns False if there was none.

        Raises HookError `denied`, `io`. ENOENT and ENODEV are normal: other tools reset resctrl, and a runtime removes
        its ctrl_group with our group in it before it calls poststop.
        """
        try:
            system.rmdir(path)
        except OSError as error:
            if system.is_gone(error):
                return False
            raise self._refusal("rmdir", path, error) from error
        return True

    def _refusal(self, operation: str, path: str, error: OSError, pid: int | None = None) -> HookError:
        """Make the error of an operation on a group that the kernel refused, with the facts of this moment.

        `info/last_cmd_status` is about the last command of any process on the machine, so nothing is decided by it.
        """
        status = (system.try_call(system.read_file, self.root + "/info/last_cmd_status") or "").strip()
        facts = {"operation": operation, "path": path, "error": error, "kernel": "" if status == "ok" else status}
        number = error.errno or 0
        other = (Reason.DENIED if number in _DENIED else Reason.IO, "refused")
        reason, kind = _REFUSALS.get((operation, number), other)
        if system.is_gone(error):
            reason, kind = Reason.IO, "group gone"
            if not self.is_mounted():
                reason, kind = Reason.NOT_MOUNTED, "unmounted"
            elif not system.is_directory(path.rpartition("/")[0]):
                reason, kind = Reason.NO_CTRL_GROUP, "no ctrl_group"
        return HookError(reason, kind, pid=pid, **facts)

    def tasks(self, path: str) -> set[int] | None:
        """Return the threads in a mon_group, or None if it does not exist. Raises OSError if they cannot be read."""
        try:
            text = system.read_file(path + "/tasks", limit=1 << 24)
        except OSError as error:
            if system.is_gone(error):
                return None
            raise
        return {int(task) for task in text.split() if task.isdigit()}

    def expel(self, path: str, tid: int) -> None:
        """Move a thread out of a mon_group, back to the ctrl_group above it. Raises what `put` does."""
        self.put(path.rpartition("/mon_groups/")[0], tid)

    def has_live_task(self, path: str) -> bool:
        """Whether `tasks` lists a task that is not known to be dead; True if that cannot be found out.

        It cannot in a pid namespace other than the host's, where `tasks` lacks the tasks of all others.
        """
        try:
            tasks = system.read_file(path + "/tasks", limit=1 << 24).split()
        except FileNotFoundError:
            return False
        except OSError as error:
            return not system.is_gone(error)
        lives = any(not task.isdigit() or system.is_dead(int(task)) is not True for task in tasks)
        return lives or not system.in_host_namespaces()


def is_about(group: MonGroup, directory: Directory) -> bool:
    """Whether what is on record of a group is about this directory. An old record does not know its mount."""
    mounted, inode = directory
    return group.inode == inode and group.mounted in (None, mounted)


def _is_other(pid: int, born: int | None) -> bool:
    """Whether a process with this number is known to have started at another time."""
    return born is not None and (fields := system.stat_fields(pid)) is not None and int(fields[19]) != born


# --- All groups. The cost grows with the node, so a createRuntime that succeeds at once never gets here.


def list_ctrl_groups(root: str) -> dict[str, list[str]]:
    """The paths of all ctrl_groups, each with the paths of its mon_groups; empty if resctrl is not mounted.

    Raises OSError if one cannot be read: a key whose record is rebuilt would lose the groups in it.
    """
    paths = [root, *(f"{root}/{name}" for name in _list(root) or () if name not in _NO_CTRL_GROUPS)]
    listed = ((path, _list(path + "/mon_groups")) for path in paths)
    return {path: [f"{path}/mon_groups/{name}" for name in names] for path, names in listed if names is not None}


def list_mon_groups(root: str) -> list[str]:
    """The paths of the mon_groups of all ctrl_groups. Raises OSError."""
    return [path for paths in list_ctrl_groups(root).values() for path in paths]


def _list(directory: str) -> list[str] | None:
    """The names in a directory; None if it is none, or is gone."""
    try:
        return system.list_directory(directory)
    except NotADirectoryError:
        return None
    except OSError as error:
        if not system.is_gone(error):
            raise
        return None
