# SPDX-License-Identifier: Apache-2.0
"""The resctrl file system: its groups. What its errnos mean: `explain`.

Source: Documentation/filesystems/resctrl.rst of the kernel and fs/resctrl/rdtgroup.c.
"""

from __future__ import annotations

from hook.base import procfs, system

_NO_CTRL_GROUPS = ("info", "mon_data", "mon_groups")


class Resctrl:
    """One mounted (or missing) resctrl file system."""

    def __init__(self, root: str) -> None:
        self.root = root

    def exists(self) -> bool:
        """Whether there is a resctrl directory at all; a kernel without it, or a CPU without RDT, has none."""
        try:
            system.inode(self.root)
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    def is_mounted(self) -> bool:
        """Whether groups can be made: `mon_groups` is a directory, and nothing else counts."""
        return system.is_directory(self.root + "/mon_groups")

    def path(self, ctrl_group: str, name: str) -> str:
        """The full path of a mon_group; `ctrl_group` is `/` for the root one."""
        above = self.root if ctrl_group == "/" else f"{self.root}/{ctrl_group}"
        return f"{above}/mon_groups/{name}"

    def make(self, path: str) -> bool:
        """Make a mon_group, which takes an RMID; whether it was this call that made it.

        No parent is ever made: on a machine that cannot monitor, `mkdir -p` would make a ctrl_group `mon_groups`.
        Raises GroupGone, InLimbo, and HookError `no_rmids`, `denied`, `io`.
        """
        try:
            system.mkdir(path, 0o755)
        except FileExistsError:
            return False
        except OSError as error:
            from hook.base import explain

            raise explain.make_error(self, path, error) from error
        return True

    def put(self, path: str, pid: int) -> None:
        """Move the thread `pid` into a mon_group; what it forks from then on is in it as well.

        Raises GroupGone, WrongCtrlGroup, and HookError `task_gone`, `denied`, `io`.
        """
        try:
            system.write_once(path + "/tasks", str(pid))
        except OSError as error:
            from hook.base import explain

            raise explain.put_error(self, path, pid, error) from error

    def inode(self, path: str) -> int | None:
        """The number of a mon_group's directory, which no other one gets while it is there; None: it is not there."""
        try:
            return system.inode(path)
        except OSError:
            return None

    def counters(self, path: str) -> dict[str, str]:
        """The counters of a mon_group: `<domain>/<event>` to the text that the kernel gives.

        The directories are as big as the hardware has domains and events. A directory within a domain is part of its
        sums (sub-NUMA clusters); AMD's `mbm_L3_assignments` is a setting. Raises GroupGone; what else cannot be read
        is `Error`, as the kernel itself would say.
        """
        top = path + "/mon_data"
        found: dict[str, str] = {}
        try:
            for domain in system.list_directory(top):
                for event in system.list_directory(f"{top}/{domain}"):
                    if event != "mbm_L3_assignments":
                        try:
                            found[f"{domain}/{event}"] = system.read_counter(f"{top}/{domain}/{event}")
                        except IsADirectoryError:
                            pass
                        except OSError as error:
                            from hook.base import explain

                            if explain.is_gone(error):
                                raise
                            found[f"{domain}/{event}"] = "Error"
        except OSError as error:
            from hook.base import explain

            raise explain.counters_error(self, path, error) from error
        return found

    def remove(self, path: str) -> bool:
        """Remove a mon_group; its tasks fall back to the ctrl_group. Whether there was one.

        Raises HookError `denied`, `io`. ENOENT and ENODEV are normal: other tools reset resctrl, and a runtime removes
        its ctrl_group with our group in it before it calls poststop.
        """
        try:
            system.rmdir(path)
        except OSError as error:
            from hook.base import explain

            if explain.is_gone(error):
                return False
            raise explain.remove_error(self, path, error) from error
        return True

    def tasks(self, path: str) -> set[int] | None:
        """The threads in a mon_group; None if it is not there, or cannot be read."""
        try:
            return {int(task) for task in system.read_file(path + "/tasks", limit=1 << 24).split() if task.isdigit()}
        except OSError:
            return None

    def expel(self, path: str, tid: int) -> None:
        """Move a thread out of a mon_group, back to the ctrl_group above it. Raises as `put`."""
        self.put(path.rpartition("/mon_groups/")[0], tid)

    def has_live_task(self, path: str) -> bool:
        """Whether `tasks` lists a task that is not known to be dead; True where that cannot be found out.

        For instance in a pid namespace of its own, where `tasks` leaves out all tasks of other ones.
        """
        try:
            tasks = system.read_file(path + "/tasks", limit=1 << 24).split()
        except OSError as error:
            from hook.base import explain

            return not explain.is_gone(error)
        lives = any(not task.isdigit() or procfs.is_dead(int(task)) is not True for task in tasks)
        return lives or not procfs.in_host_pid_namespace()


# --- All groups. What they cost grows with the node: not for a start that succeeds.


def list_ctrl_groups(root: str) -> dict[str, list[str]]:
    """The paths of all ctrl_groups, each with the paths of its mon_groups.

    Empty: nothing is mounted, or nothing can be monitored.
    """
    directories = [name for name in _list(root) if name not in _NO_CTRL_GROUPS]
    paths = [root, *(f"{root}/{name}" for name in directories)]
    return {
        path: [f"{path}/mon_groups/{name}" for name in _list(path + "/mon_groups")]
        for path in paths
        if system.is_directory(path + "/mon_groups")
    }


def list_mon_groups(root: str) -> list[str]:
    """The paths of all mon_groups, in whatever ctrl_group."""
    return [path for paths in list_ctrl_groups(root).values() for path in paths]


def read_rmid_limit(root: str) -> int | None:
    """The smallest of info/*/num_rmids: there is one for each kind of counter, and a group takes an RMID of all."""
    limits = []
    for name in _list(root + "/info"):
        try:
            limits.append(int(system.read_file(f"{root}/info/{name}/num_rmids", 64)))
        except (OSError, ValueError):
            pass
    return min(limits, default=None)


def _list(directory: str) -> list[str]:
    """What is in a directory; nothing where there is none, or it cannot be read."""
    try:
        return system.list_directory(directory)
    except OSError:
        return []
