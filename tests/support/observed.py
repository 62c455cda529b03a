# SPDX-License-Identifier: Apache-2.0
"""What can be said at any moment of a machine with resctrl (the model) and our hook,
whatever runs its containers.
"""

from __future__ import annotations

from pathlib import Path

from tests.resctrlfs import Event, Mounted, Seen
from tests.support.hook import is_completed

PARTS = ("groups", "locks", "members", "unmonitored")
RUNC_INIT = "runc:[2:INIT]"
HOOKS_DIR = "/usr/share/containers/oci/hooks.d"


def with_hooks_file(path: Path) -> list[str]:
    """What a command is started by that is to find this file alone in hooks.d.

    Only that command sees it there.
    """
    script = (
        f'mount -t tmpfs none /usr/share/containers; mkdir -p {HOOKS_DIR}; cp "$0" {HOOKS_DIR}; '
        'exec "$@"'
    )
    return ["unshare", "--mount", "sh", "-ec", script, str(path)]


class Observed:
    """Its hook is to be called with `directories`."""

    def __init__(self, directory: Path, resctrl: Mounted) -> None:
        self.resctrl = resctrl
        self.run_dir = directory / "run"
        self.directories = [f"--resctrl-root={resctrl.root}", f"--run-dir={self.run_dir}"]

    def groups(self) -> dict[str, list[int]]:
        """The mon_groups of the root ctrl_group by name, with their tasks."""
        return self.resctrl.mon_groups()

    def rmid(self, group: str) -> int:
        rmid: int = self.resctrl.groups()[f"/mon_groups/{group}"]["rmid"]
        return rmid

    def history(self, group: str) -> list[str]:
        """What was done to a group, in order: "mkdir", "tasks", "rmdir"."""
        below = f"/mon_groups/{group}"
        return [
            event.op for event in self.resctrl.events() if event.path in (below, f"{below}/tasks")
        ]

    def moves(self, of: Seen | None = None) -> list[tuple[Event, Seen]]:
        """Every pid that was written into a tasks file, or every move of this process,
        with what it was then.
        """
        moves = [
            (event, process)
            for event in self.resctrl.events()
            if event.op == "tasks"
            for process in event.pids
        ]
        return [
            move
            for move in moves
            if of is None or (move[1].pid, move[1].starttime) == (of.pid, of.starttime)
        ]

    def assert_placed_before_exec(
        self, now: Seen, group: str, command: list[str], comm: str = RUNC_INIT
    ) -> None:
        """The process was put into the group once, as the runtime's init,
        and is the container's command by now.
        """
        moves = self.moves(now)
        assert [(event.path, event.result) for event, _ in moves] == [
            (f"/mon_groups/{group}/tasks", "ok")
        ]
        assert_runtime_init(moves[0][1], comm)
        assert now.cmdline == command
        assert now.pid in self.groups()[group]

    def left(self) -> dict[str, list[str]]:
        """Our files by directory of the run directory, but for what is kept of completed keys."""
        return {
            part: sorted(
                path.name for path in (self.run_dir / part).iterdir() if not is_completed(path)
            )
            for part in PARTS
        }

    def assert_clean(self) -> None:
        """No group and no file of ours is left, and nothing failed on the way."""
        assert self.groups() == {}
        assert self.left() == {part: [] for part in PARTS}
        assert {event.result for event in self.resctrl.events()} <= {"ok", "EEXIST"}


def assert_runtime_init(process: Seen, comm: str = RUNC_INIT) -> None:
    """It was the runtime's own process, stopped before it becomes the container's command.

    The exe says nothing but what it is not:
    the runtimes run from copies of themselves that no path leads to.
    """
    assert process.comm == comm
    assert process.cmdline[0].endswith(comm.partition(":")[0])
    assert process.exe is not None
    assert "busybox" not in process.exe
