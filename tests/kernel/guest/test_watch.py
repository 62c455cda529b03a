# SPDX-License-Identifier: Apache-2.0
"""watch beside what runc and crun bring in by exec, and what it leaves because the kernel shows where it is."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support import watching
from tests.support.cgroups import mount_point
from tests.support.containers import CRUN, Lab, RuncContainer
from tests.support.hook import DEADLINE, Hook, end
from tests.support.waiting import wait

BOTH = pytest.mark.parametrize("runtime", [("runc",), CRUN], ids=["runc", "crun"])
ENTER = 'for group; do echo $$ >"$group/tasks"; done; echo $$ >"$0/cgroup.procs"; exec sleep infinity'
"""A process enters groups, then a cgroup, and becomes another program there.

The groups come first: watch may bring in whatever is in the cgroup and in no group yet.
"""


def cgroup_of(container: RuncContainer) -> Path:
    """The cgroup of its init in the hierarchy of version 2."""
    text = Path(f"/proc/{container.init().pid}/cgroup").read_text()
    return mount_point() / next(line[4:] for line in text.splitlines() if line.startswith("0::/"))


def pids_in(own: Path) -> set[int]:
    return set(map(int, (own / "cgroup.procs").read_text().split()))


def brought_in(own: Path, *groups: Path) -> subprocess.Popen[bytes]:
    """A process in these groups, then in the cgroup of a container."""
    words = ["sh", "-c", ENTER, str(own), *map(str, groups)]
    return subprocess.Popen(words, stdin=subprocess.DEVNULL)


@BOTH
def test_what_exec_of_a_runtime_brings_in_is_in_the_group_and_so_is_what_it_forks(
    hook: Hook, lab: Lab, runtime: Sequence[str]
) -> None:
    container = lab.runc("c1", runtime=runtime)
    own = cgroup_of(container)
    with watching.watching(hook):
        gates = [lab.gates / "one", lab.gates / "two"]  # one each: a second reader may come too late
        for gate in gates:
            os.mkfifo(gate)
        command = [*container.command, "exec", "c1", "/bin/sh", "-c", "(cat /gates/one) & (cat /gates/two) & wait"]
        with subprocess.Popen(command, stdin=subprocess.DEVNULL) as process:
            wait(lambda: len(pids_in(own)) == 4)
            wait(lambda: hook.tasks("oci-c1") == pids_in(own))
            for gate in gates:
                gate.open("wb").close()
            process.wait(DEADLINE)
        container.end()
    hook.assert_clean()


def test_what_is_in_another_ctrl_group_or_in_a_group_of_others_stays_there(hook: Hook, lab: Lab, root: Path) -> None:
    (root / "gold").mkdir()
    (root / "mon_groups/theirs").mkdir()
    container = lab.runc("c1")
    own = cgroup_of(container)
    with ExitStack() as stack:
        stack.enter_context(watching.watching(hook))
        processes = [brought_in(own, *groups) for groups in ([root / "gold"], [root / "mon_groups/theirs"], [])]
        for process in processes:
            stack.callback(end, process)
        gold, theirs, moved = (process.pid for process in processes)
        wait(lambda: hook.tasks("oci-c1") >= {container.init().pid, moved})
        wait(lambda: Path(f"/proc/{gold}/comm").read_text() == Path(f"/proc/{theirs}/comm").read_text() == "sleep\n")
        assert hook.tasks("oci-c1") == {container.init().pid, moved}
        assert (root / "mon_groups/theirs/tasks").read_text() == f"{theirs}\n"
        assert str(gold) in (root / "gold/tasks").read_text().split()
    container.end()
