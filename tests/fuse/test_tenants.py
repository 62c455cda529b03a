# SPDX-License-Identifier: Apache-2.0
"""Commands beside processes that containers' authors made, as tests.support.tenants has them:
nothing is different.

Neither what a command prints and changes, nor its exit status, nor what it costs: the
kernel ends it at the limits. What it is compared with is the same beside an ordinary
process in the place of the tenant's.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from fetch import provision
from tests.fuse import test_watch
from tests.fuse.test_doctor import InstalledNode, containerd
from tests.resctrlfs import mounted
from tests.support import machine, watching
from tests.support.cgroups import container_cgroup, mount_point
from tests.support.hook import UID, Hook, Outcome, Task, created, end, stopped, task
from tests.support.tenants import KINDS, MEMORY, POD, Tenant, limited, running
from tests.support.waiting import wait

ROOT = Path(__file__).resolve().parents[2]
LIMITED = limited(MEMORY)
ORDINARY = Tenant(("sleep",))
VOLATILE = re.compile(r"\d{4}-\d\d-\d\dT[\d:]+Z|\d+(\.\d+)? (seconds|minutes)")
COMMANDS = ("reconcile", "reconcile --adopt", "doctor", "metrics")


@dataclass(frozen=True)
class Ended:
    """What came of a command: all that has to be the same."""

    status: int
    stdout: Any
    stderr: str
    changed: object


class NodeWithTenants:
    """A machine with an installation and containerd, and a key whose container has died:
    there is something to do.
    """

    def __init__(self, directory: Path, stack: ExitStack) -> None:
        self.directory = directory
        self.resctrl = stack.enter_context(mounted(directory))
        self.node = InstalledNode(directory, self.resctrl)
        containerd(self.node)
        # There is a runtime, and it knows none of this machine's containers.
        self.node.path("/run/runc").mkdir()
        self._expected: dict[str, Ended] = {}

    def expect(self, command: str) -> Ended:
        """The same beside an ordinary container."""
        if command not in self._expected:
            with running(ORDINARY, self.directory / "ordinary"):
                self._expected[command] = self.run(command)
            assert self._expected[command].status in (0, 1)
            assert self._expected[command].stderr == ""
        return self._expected[command]

    def run(self, command: str) -> Ended:
        shutil.rmtree(self.node.run_dir, ignore_errors=True)
        for group in (self.resctrl.root / "mon_groups").iterdir():
            group.rmdir()
        words = command.split()
        if words[0] == "reconcile":
            with task() as process:
                assert self.node.hook(created("dead", process.pid)).stderr == ""
        ended: Ended = getattr(self, f"_{words[0]}", self._run)(words)
        return ended

    def _run(self, words: list[str]) -> Ended:
        node = self.node.machine
        done = node.run(*words, *self.node.options, before=LIMITED, timeout=None)
        changed = node.written(), self.resctrl.mon_groups(), self._list_records()
        return Ended(done.returncode, VOLATILE.sub("TIME", done.stdout), done.stderr, changed)

    def _doctor(self, words: list[str]) -> Ended:
        ended = self._run([*words, "--json"])
        return replace(ended, stdout=json.loads(ended.stdout)["findings"] if ended.stdout else [])

    def _metrics(self, words: list[str]) -> Ended:
        ended = self._run(words)
        return replace(ended, stdout=ended.stdout.splitlines())

    def _list_records(self) -> set[str]:
        return {str(path.relative_to(self.node.run_dir)) for path in self.node.run_dir.rglob("*")}


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeWithTenants]:
    if reason := machine.missing_with_model() or "; ".join(provision.missing(("gcc", "libc6-dev"))):
        pytest.skip(reason)
    with ExitStack() as stack:
        yield NodeWithTenants(tmp_path_factory.mktemp("scene"), stack)


def assert_same(outcome: Ended, expected: Ended) -> None:
    assert (outcome.status, outcome.stderr) == (expected.status, expected.stderr)
    if isinstance(outcome.stdout, list):
        new = [line for line in outcome.stdout if line not in expected.stdout]
        gone = [line for line in expected.stdout if line not in outcome.stdout]
        assert (new, gone) == ([], [])
    else:
        assert outcome.stdout == expected.stdout
    assert outcome.changed == expected.changed


# --- Each kind by itself, and all of them at once


@pytest.fixture(
    scope="module", params=[*([name] for name in KINDS), list(KINDS)], ids=[*KINDS, "all"]
)
def tenants(
    scene: NodeWithTenants, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[None]:
    """A process of each of these kinds."""
    for command in COMMANDS:
        scene.expect(command)
    directory = tmp_path_factory.mktemp("tenants")
    with ExitStack() as stack:
        for number, name in enumerate(request.param):
            stack.enter_context(running(KINDS[name], directory / str(number)))
        yield


crowd = pytest.mark.parametrize("tenants", [list(KINDS)], indirect=True, ids=["all"])


@pytest.mark.parametrize("command", ["reconcile --adopt", "doctor"])
@pytest.mark.usefixtures("tenants")
def test_a_tenants_process_changes_nothing(scene: NodeWithTenants, command: str) -> None:
    assert_same(scene.run(command), scene.expect(command))


@crowd
@pytest.mark.parametrize("command", ["reconcile", "metrics"])
@pytest.mark.usefixtures("tenants")
def test_a_process_of_each_kind_at_once_changes_nothing(
    scene: NodeWithTenants, command: str
) -> None:
    assert_same(scene.run(command), scene.expect(command))


@crowd
@pytest.mark.usefixtures("tenants")
def test_a_container_comes_and_goes_beside_a_process_of_each_kind(hook: Hook, init: Task) -> None:
    limited = replace(hook, wrapper=LIMITED)
    assert limited(created("c1", init.pid, pod_uid=UID)) == Outcome(0, "", "")
    assert hook.tasks(f"oci-{UID}") == {init.pid}
    end(init)
    assert limited(stopped("c1")) == Outcome(0, "", "")
    hook.assert_clean()


@pytest.mark.skipif(watching.missing() is not None, reason=str(watching.missing()))
@crowd
@pytest.mark.usefixtures("tenants")
def test_watch_moves_exec_beside_a_process_of_each_kind(hook: Hook, init: Task) -> None:
    with container_cgroup(UID, test_watch.ID) as cgroup:
        cgroup.add(init.pid)
        assert hook(created(test_watch.ID, init.pid, pod_uid=UID)).stderr == ""
        with (
            watching.watching(replace(hook, wrapper=LIMITED[3:])),
            test_watch.exec_into(cgroup) as brought_in,
        ):
            wait(lambda: hook.tasks(f"oci-{UID}") == {init.pid, brought_in.pid})


# --- The tenants themselves


def test_tenants_are_what_they_are_to_be_and_leave_nothing(tmp_path: Path) -> None:
    """Otherwise all of the above would hold of ordinary processes."""
    if reason := machine.missing() or "; ".join(provision.missing(("gcc", "libc6-dev"))):
        pytest.skip(reason)
    with ExitStack() as stack:
        places = {name: tmp_path / str(number) for number, name in enumerate(KINDS)}
        tenants = {
            name: stack.enter_context(running(KINDS[name], place)) for name, place in places.items()
        }
        pids = {name: Path("/proc", str(tenant.pid)) for name, tenant in tenants.items()}
        cgroups = {
            line for proc in pids.values() for line in (proc / "cgroup").read_text().splitlines()
        }
        for name, proc in pids.items():
            assert_shown(proc, KINDS[name])
        config = (
            pids["containerd whose configuration is a FIFO"] / "root/etc/containerd/config.toml"
        )
        assert config.is_fifo()
        zero = pids["containerd whose configuration is a device"] / "root/dev/zero"
        assert zero.is_char_device()
    assert [proc for proc in pids.values() if proc.exists()] == []
    assert list(tmp_path.iterdir()) == []
    left = [
        line for line in cgroups if line.startswith("0::/") and (mount_point() / line[4:]).exists()
    ]
    assert set(left) <= {"0::/"}


def assert_shown(proc: Path, kind: Tenant) -> None:
    """What the kernel shows of a tenant's process to all others."""
    assert (proc / "comm").read_text() == kind.name[:15] + "\n"
    assert os.path.basename(os.readlink(proc / "exe")) == kind.name
    for file, texts in (("cmdline", kind.words), ("environ", kind.environment)):
        assert (proc / file).read_bytes() == "".join(f"{text}\0" for text in texts).encode()
    for namespace in ("pid", "mnt"):
        assert os.readlink(proc / "ns" / namespace) != os.readlink(f"/proc/self/ns/{namespace}")
    mark = "/libpod-" if kind.is_podmans else f"pod{POD.replace('-', '_')}.slice/cri-containerd-"
    assert mark in (proc / "cgroup").read_text()
