# SPDX-License-Identifier: Apache-2.0
"""Nodes to measure on.

PlainNode, for wall time: plain directories in the shape of resctrl, and a run directory, both on tmpfs. The model
behind FUSE would be most of the time: a first createRuntime takes 10 ms here, 50 ms there. But on tmpfs a directory is
not full as soon as it is made, as a mon_group is, nor does rmdir(2) remove one that is. So a key's group exists before
its first container comes, empty, and in the mount namespace of a helper a full directory is mounted over it. The hook
goes by /proc/PID/root of the helper, and finds the group full; and since it is a mount point in another namespace only,
its rmdir(2) removes it, mount and all. Two things differ: mkdir(2) fails with EEXIST, which the hook takes like a
success (0.07 of an exit floor more), and rmdir(2) takes some 70 us.

MeasuredNode, for instructions: on the model of resctrl, where mkdir(2) and rmdir(2) do as the kernel does. What the
model runs is not the hook's, and is not counted.

What the kernel takes to make, fill and remove a group and to ask the hardware is in no figure that is measured here. It
is the same for everybody who does so.
"""

from __future__ import annotations

import itertools
import json
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from hook.models import KeyState, Member, MonGroup
from hook.resctrl import Resctrl
from pyz import archive
from tests.bench.common import CannotMeasure
from tests.resctrlfs import mounted
from tests.resctrlfs.counters import ENERGY_EVENTS, Counters
from tests.resctrlfs.model import Knobs
from tests.support.cgroups import place_in_pod
from tests.support.hook import STATES, UID, Hook, task

TMPFS = "/dev/shm"
MACHINE = Knobs(l3_domains=4, packages=6, perf=False, decay_ms=0)
COUNTERS = 24  # of such a machine
# One directory stands for the groups of all keys: as a file its `tasks` would show each the tasks of the others.
HELPER = """\
mount --bind /dev/null "$1/tasks"
while read -r group; do mkdir "$group" && mount --rbind "$1" "$group" && echo mounted; done
"""
CREATED = (STATES / "crio-1.36.3-runc-1.1.5-createRuntime.json").read_text(encoding="utf-8")
STOPPED = (STATES / "crio-1.36.3-runc-1.1.5-poststop.json").read_text(encoding="utf-8")


def created(container: str, pid: int, key: str) -> str:
    """What CRI-O and runc say at createRuntime, of this container of this pod, whose init is moved to its cgroup."""
    place_in_pod(pid, key, container)
    return json.dumps({**_state(CREATED, container, key), "pid": pid})


def stopped(container: str, key: str) -> str:
    """The same at poststop."""
    return json.dumps(_state(STOPPED, container, key))


def _state(recorded: str, container: str, key: str) -> dict[str, object]:
    state = json.loads(recorded)
    for former, name in ((state["id"], container), (state["annotations"]["io.kubernetes.pod.uid"], key)):
        recorded = recorded.replace(former, name)
    found: dict[str, object] = json.loads(recorded)
    return found


class MeasuredNode:
    """`root` is what a hook takes for /sys/fs/resctrl; it has no group yet, and the run directory is not made.

    `groups`: where its mon_groups are for us.
    """

    def __init__(self, root: Path, groups: Path, run_dir: Path) -> None:
        self.root = root
        self.run_dir = run_dir
        self._groups = groups
        self._numbers = itertools.count(1)
        self._standing: set[str] = set()

    def new_key(self) -> str:
        """A pod's UID."""
        return uid_of(next(self._numbers))

    def new_container(self) -> str:
        return _container(next(self._numbers))

    def hook(self, python: Sequence[str] = ()) -> Hook:
        """The shipped file on this node with its default options; `python`: what is to start it, as its first line."""
        start = (*python, "-ISc", archive.BOOT) if python else ()
        return Hook(self.root, self.run_dir, python=start, options=())

    def populate(self, pid: int, groups: int = 1) -> None:
        """Have that many groups that stay, with their records.

        The first is a hook's work, for the container `pid`. The others are copies of what that left, but for what
        consumers see of it, which is an empty directory; empty are their groups, too: nobody is to look at them.
        """
        key, container = self.new_key(), self.new_container()
        outcome = self.hook()(created(container, pid, key).encode())
        if self.members([key]) != {container}:
            raise CannotMeasure(f"the hook does not work: {outcome.stderr.strip() or self.hook().failures()}")
        self._standing = {key, container}
        files = {path: path.read_text() for path in self.run_dir.glob("*/*") if path.is_file()}
        own = {path: text for path, text in files.items() if path.stem in self._standing}
        for number in itertools.islice(self._numbers, groups - 1):
            names = {key: uid_of(number), container: _container(number)}
            for path, text in own.items():
                path.with_name(_renamed(path.name, names)).write_text(_renamed(text, names))
            (self.run_dir / "mon_groups" / names[key]).mkdir()
            self._group(names[key]).mkdir()
            self._standing |= set(names.values())

    def members(self, keys: Iterable[str]) -> set[str]:
        """The containers that are on record as members of these keys."""
        states = [self.hook().key(key) for key in keys]
        return {container for state in states if state for container in state["members"]}

    def left(self) -> set[str]:
        """The groups and files that are there besides those which stay, and besides what is kept of completed keys."""
        groups = {path.name for path in self._groups.iterdir()} - {self._group(name).name for name in self._standing}
        files = {name for name in self.hook().leftovers() if Path(name).stem not in self._standing}
        return groups | files

    def _group(self, key: str) -> Path:
        return self._groups / f"oci-{key}"


def make_full_node(directory: Path, keys: int) -> Hook:
    """A node with that many keys, each a pod of one container, whose groups are plain directories, and all full."""
    root, run_dir = directory / "resctrl", directory / "run"
    _fill(root)
    (run_dir / "groups").mkdir(parents=True)
    begin = Resctrl(str(root)).counters(str(root))
    for number in range(keys):
        key, container = uid_of(number), _container(number)
        group = root / "mon_groups" / f"oci-{key}"
        _fill(group)
        state = KeyState(
            key=key,
            kind="pod",
            pod_namespace="default",
            pod_name=f"pod-{number}",
            created_at="2026-01-02T03:04:05Z",
            groups=[MonGroup(path=str(group), ctrl_group="/", begin=dict.fromkeys(begin, "1"))],
            members={container: Member(pid=1, starttime=1, group=str(group), name="app")},
        )
        (run_dir / "groups" / f"{key}.json").write_text(state.model_dump_json(), encoding="utf-8")
    return Hook(root, run_dir, options=())


class PlainNode(MeasuredNode):
    """A node on tmpfs."""

    def __init__(self, directory: Path) -> None:
        """`directory` is on tmpfs, and the node's own."""
        groups = directory / "resctrl" / "mon_groups"
        groups.mkdir(parents=True)
        _fill(directory / "full")
        command = ["unshare", "--mount", "--propagation=private", "sh", "-c", HELPER, "sh", str(directory / "full")]
        self._helper = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        super().__init__(Path(f"/proc/{self._helper.pid}/root{groups.parent}"), groups, directory / "run")

    def close(self) -> None:
        """End the helper, and with it its mounts."""
        with suppress(OSError):
            self._helper.communicate()

    def new_key(self) -> str:
        """A pod's UID, whose group is there from now on."""
        key = super().new_key()
        assert self._helper.stdin is not None
        assert self._helper.stdout is not None
        try:
            print(self._group(key), file=self._helper.stdin, flush=True)
            answer = self._helper.stdout.readline()
        except OSError as error:
            raise CannotMeasure(f"the helper that mounts: {error}") from error
        if answer != "mounted\n":
            raise CannotMeasure(f"{self._group(key)} could not be mounted")
        return key


def _fill(group: Path) -> None:
    """What the kernel puts into a group."""
    domains = Counters(MACHINE.l3_domains, MACHINE.packages, MACHINE.perf).domains
    assert sum(map(len, domains.values())) == COUNTERS
    for domain, events in domains.items():
        (group / "mon_data" / domain).mkdir(parents=True)
        for event in events:
            text = "12345.678901\n" if event in ENERGY_EVENTS else "12345678901\n"
            (group / "mon_data" / domain / event).write_text(text)
    (group / "tasks").touch()


def uid_of(number: int) -> str:
    return f"{number:08d}{UID[8:]}"


def _container(number: int) -> str:
    return f"{number:064x}"


def _renamed(text: str, names: dict[str, str]) -> str:
    for former, name in names.items():
        text = text.replace(former, name)
    return text


@contextmanager
def plain_node(groups: int = 1) -> Iterator[PlainNode]:
    """A node with that many groups."""
    with tempfile.TemporaryDirectory(prefix="rmh-", dir=TMPFS) as directory, task() as init:
        node = PlainNode(Path(directory))
        try:
            node.populate(init.pid, groups)
            yield node
        finally:
            node.close()


@contextmanager
def model_node(machine: Knobs = MACHINE) -> Iterator[MeasuredNode]:
    """A node on the model of resctrl."""
    with tempfile.TemporaryDirectory(dir=TMPFS) as name, mounted(Path(name), **vars(machine)) as resctrl:
        node = MeasuredNode(resctrl.root, resctrl.root / "mon_groups", Path(name) / "run")
        with task() as init:
            node.populate(init.pid)
            yield node
