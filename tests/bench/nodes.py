# SPDX-License-Identifier: Apache-2.0
"""Nodes to measure on.

PlainNode, for wall time, has directories in the shape of resctrl on tmpfs: behind FUSE a first
createRuntime takes five times as long. A mon_group is full as soon as it is made, and rmdir(2)
removes it; so a key's group exists before its first container starts, empty, and in the mount
namespace of a helper a full directory is mounted over it. The hook goes by /proc/PID/root of the
helper; its mkdir(2) fails with EEXIST (0.07 of an exit floor more), and its rmdir(2) removes the
group, mount and all (some 70 us).

MeasuredNode, for instructions and for reconcile, is on the model of resctrl.
"""

from __future__ import annotations

import itertools
import json
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.bench.common import CannotMeasure
from tests.resctrlfs import mounted
from tests.resctrlfs.hardware import ENERGY_EVENTS, Counters
from tests.resctrlfs.model import Knobs
from tests.support.cgroups import place_in_pod
from tests.support.hook import STATES, UID, Hook, task

TMPFS = "/dev/shm"
MACHINE = Knobs(l3_domains=4, packages=6, perf=False, decay_ms=0)
COUNTERS = 24  # of such a machine
# One directory stands for the groups of all keys:
# as a file its `tasks` would show each the tasks of the others.
HELPER = """\
mount --bind /dev/null "$1/tasks"
while read -r group; do mkdir "$group" && mount --rbind "$1" "$group" && echo mounted; done
"""
CREATED = (STATES / "crio-1.36.3-runc-1.1.5-createRuntime.json").read_text(encoding="utf-8")
STOPPED = (STATES / "crio-1.36.3-runc-1.1.5-poststop.json").read_text(encoding="utf-8")


def created(container: str, pid: int, key: str) -> str:
    """The state that CRI-O and runc give at createRuntime.

    The container's init is moved to a cgroup of its pod.
    """
    place_in_pod(pid, key, container)
    return json.dumps({**_state(CREATED, container, key), "pid": pid})


def stopped(container: str, key: str) -> str:
    """The state at poststop."""
    return json.dumps(_state(STOPPED, container, key))


def _state(recorded: str, container: str, key: str) -> dict[str, object]:
    state = json.loads(recorded)
    names = {state["id"]: container, state["annotations"]["io.kubernetes.pod.uid"]: key}
    record: dict[str, object] = json.loads(_renamed(recorded, names))
    return record


def uid_of(number: int) -> str:
    return f"{number:08d}{UID[8:]}"


def _container(number: int) -> str:
    return f"{number:064x}"


def _renamed(text: str, names: dict[str, str]) -> str:
    for former, name in names.items():
        text = text.replace(former, name)
    return text


class MeasuredNode:
    """A node without groups, whose run directory does not exist yet."""

    def __init__(self, root: Path, groups: Path, run_dir: Path) -> None:
        self.root = root  # what a hook takes for /sys/fs/resctrl
        self.run_dir = run_dir
        self.groups = groups  # where its mon_groups are for us
        self._numbers = itertools.count(1)

    def new_key(self) -> str:
        """Return the UID of a pod."""
        return uid_of(next(self._numbers))

    def new_container(self) -> str:
        return _container(next(self._numbers))

    def hook(self, start: Sequence[str] = (), program: Path | None = None) -> Hook:
        """The shipped file on this node with its default options;
        `start` comes before it on the command line.
        """
        return Hook(self.root, self.run_dir, python=start, options=(), program=program)

    def populate(self, pid: int, groups: int = 1) -> None:
        """Make so many groups that stay, with their records.

        The first is a hook's work, for the container `pid`.
        The others are copies of what that left.
        """
        key, container = self.new_key(), self.new_container()
        outcome = self.hook()(created(container, pid, key).encode())
        if self.members([key]) != {container}:
            raise CannotMeasure(
                f"the hook does not work: {outcome.stderr.strip() or self.hook().failures()}"
            )
        files = [
            path
            for path in self.run_dir.glob("*/*")
            if path.is_file() and path.stem in (key, container)
        ]
        for number in itertools.islice(self._numbers, groups - 1):
            names = {key: uid_of(number), container: _container(number)}
            for path in files:
                path.with_name(_renamed(path.name, names)).write_text(
                    _renamed(path.read_text(), names)
                )
            fill_group(self._group(names[key]))

    def members(self, keys: Iterable[str]) -> set[str]:
        """The containers that are on record as members of these keys."""
        states = [self.hook().key(key) for key in keys]
        return {container for state in states if state for container in state["members"]}

    def _group(self, key: str) -> Path:
        return self.groups / f"oci-{key}"


class PlainNode(MeasuredNode):
    """A node on tmpfs."""

    def __init__(self, directory: Path) -> None:
        """`directory` is on tmpfs, and the node's own."""
        groups = directory / "resctrl" / "mon_groups"
        groups.mkdir(parents=True)
        fill_group(directory / "full")
        command = [
            "unshare",
            "--mount",
            "--propagation=private",
            "sh",
            "-c",
            HELPER,
            "sh",
            str(directory / "full"),
        ]
        self._helper = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        super().__init__(
            Path(f"/proc/{self._helper.pid}/root{groups.parent}"), groups, directory / "run"
        )

    def close(self) -> None:
        """End the helper, and with it its mounts."""
        with suppress(OSError):
            self._helper.communicate()

    def new_key(self) -> str:
        """Return the UID of a pod, whose group exists from now on."""
        key = super().new_key()
        assert self._helper.stdin is not None
        assert self._helper.stdout is not None
        print(self._group(key), file=self._helper.stdin, flush=True)
        if self._helper.stdout.readline() != "mounted\n":
            raise CannotMeasure(f"{self._group(key)} could not be mounted")
        return key


def fill_group(group: Path) -> None:
    """Make what the kernel puts into a group."""
    domains = Counters(MACHINE.l3_domains, MACHINE.packages, MACHINE.perf).domains
    assert sum(map(len, domains.values())) == COUNTERS
    for domain, events in domains.items():
        (group / "mon_data" / domain).mkdir(parents=True)
        for event in events:
            text = "12345.678901\n" if event in ENERGY_EVENTS else "12345678901\n"
            (group / "mon_data" / domain / event).write_text(text)
    (group / "tasks").touch()


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
    """A node on the model of resctrl, with one group."""
    with (
        tempfile.TemporaryDirectory(dir=TMPFS) as name,
        mounted(Path(name), **vars(machine)) as resctrl,
    ):
        node = MeasuredNode(resctrl.root, resctrl.root / "mon_groups", Path(name) / "run")
        with task() as init:
            node.populate(init.pid)
            yield node
