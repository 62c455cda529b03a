# SPDX-License-Identifier: Apache-2.0
"""That the harness leaves nothing behind, even where nobody tidied up before."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.podman.conftest import StartNode


def test_nothing_is_left_of_running_containers(start_node: StartNode) -> None:
    lab = start_node().lab
    lab.run("web")
    lab.runc("plain")
    pids = lab.cgroups.pids()
    assert lab.init("web").pid in pids
    lab.close()
    assert [pid for pid in pids if runs(pid)] == []
    assert not lab.base.exists()
    assert str(lab.base) not in Path("/proc/self/mounts").read_text()
    assert not list(Path("/sys/fs/cgroup").glob(f"**{lab.cgroups.path}"))
    lab.close()


def runs(pid: int) -> bool:
    """A zombie does not: when the machine's first process reaps conmon is that one's business."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False
