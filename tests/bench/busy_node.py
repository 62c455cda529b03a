# SPDX-License-Identifier: Apache-2.0
"""A node with many members and many more processes, on the model of resctrl.

A member is a `sleep` in a cgroup of its own, and in the group of its own pod, which the hook's own code has put it
into. The processes are this machine's: whatever else runs here looks at them, too.
"""

from __future__ import annotations

import json
import os
import signal
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from hook.create import create_runtime
from hook.entry import Context
from hook.identity import Container
from hook.models import Options
from hook.resctrl import Resctrl
from hook.store import RunDir
from tests.bench.common import CannotMeasure
from tests.bench.plain_node import TMPFS, uid_of
from tests.resctrlfs import Mounted, mounted
from tests.resctrlfs.model import Knobs
from tests.support.cgroups import Cgroup, cgroup
from tests.support.hook import Hook

SLEEP = ("/bin/sleep", "3600")
LOOK_MS = 3_600_000  # nothing is forked here that matters, and the model looks again for a pid that it does not know
RUNC = """\
#!/bin/sh
exec cat "$2/$4/answer"
"""


@dataclass
class Member:
    """A container and its pod."""

    name: str
    pod: str
    pid: int
    cgroup: Cgroup
    bundle: str = "/"

    def state(self, status: str = "created") -> dict[str, object]:
        """What CRI-O's runtime says of it."""
        annotations = {"io.container.manager": "cri-o", "io.kubernetes.pod.uid": self.pod}
        return {
            "ociVersion": "1.0.2",
            "id": self.name,
            "pid": self.pid,
            "status": status,
            "bundle": self.bundle,
            "annotations": annotations,
        }


@dataclass
class BusyNode:
    """`members` are on record, `others` are containers that no hook has seen."""

    resctrl: Mounted
    run_dir: Path
    members: Sequence[Member]
    others: Sequence[Member]

    @property
    def hook(self) -> Hook:
        return Hook(self.resctrl.root, self.run_dir, options=())

    def record(self) -> None:
        """Do the createRuntime of each member."""
        options = Options(resctrl_root=str(self.resctrl.root), run_dir=str(self.run_dir))
        context = Context(Resctrl(options.resctrl_root), RunDir(options.run_dir), options)
        for it in self.members:
            annotations = it.state()["annotations"]
            assert isinstance(annotations, Mapping)
            create_runtime(context, Container(it.name, it.pid, "/", dict(annotations)))
        self.check()

    def wipe(self) -> None:
        """Remove all groups, as `pqos -R` or a remount does."""
        for path in (self.resctrl.root / "mon_groups").iterdir():
            path.rmdir()

    def check(self) -> None:
        """Raise CannotMeasure unless each member's init is in its group."""
        groups = self.resctrl.mon_groups()
        lost = [it for it in self.members if groups.get(f"oci-{it.pod}") != [it.pid]]
        if lost:
            raise CannotMeasure(f"{len(lost)} of {len(self.members)} members are not in their groups")

    def write_runtime(self, top: Path) -> None:
        """Make a runc, below /usr of a scratch machine, that knows the states of `others`."""
        program, root = top / "usr/local/sbin/runc", top / "run/runc"
        for directory in (program.parent, root):
            directory.mkdir(parents=True)
        program.write_text(RUNC)
        program.chmod(0o755)
        for it in self.others:
            (root / it.name).mkdir()
            (root / it.name / "state.json").touch()
            it.bundle = f"/run/runc/{it.name}"  # as it is seen there
            (root / it.name / "config.json").write_text(json.dumps({"linux": {"cgroupsPath": it.cgroup.path}}))
            (root / it.name / "answer").write_text(json.dumps(it.state("running")))


@contextmanager
def busy_node(members: int, processes: int, others: int = 0) -> Iterator[BusyNode]:
    """A node with that many members among that many processes, `others` of which are containers without a hook."""
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="scale-", dir=TMPFS)))
        top = stack.enter_context(cgroup(f"/scale-{os.getpid()}"))
        pids = stack.enter_context(_spawned(processes))
        containers = [_container(number, pid, top) for number, pid in enumerate(pids[: members + others])]
        limit = members + others + 100
        knobs = Knobs(rmids=limit, aet_rmids=limit, look_ms=LOOK_MS, decay_ms=0, perf=False)  # 10 counters a group
        resctrl = stack.enter_context(mounted(directory, **vars(knobs)))
        node = BusyNode(resctrl, directory / "run", containers[:members], containers[members:])
        node.record()
        yield node


@contextmanager
def _spawned(count: int) -> Iterator[list[int]]:
    """So many processes that do nothing."""
    pids: list[int] = []
    try:
        while len(pids) < count:
            pids.append(os.posix_spawn(SLEEP[0], SLEEP, {}))
        yield pids
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        for pid in pids:
            os.waitpid(pid, 0)


def _container(number: int, pid: int, top: Cgroup) -> Member:
    name, pod = f"{number:064x}", uid_of(number)
    own = Cgroup(f"{top.path}/kubepods-pod{pod.replace('-', '_')}.slice/crio-{name}.scope")
    own.add(pid)
    return Member(name, pod, pid, own)
