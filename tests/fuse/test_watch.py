# SPDX-License-Identifier: Apache-2.0
"""watch, by the shipped file, with real execs on the kernel's own process connector."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.resctrlfs import Mounted
from tests.support import watching
from tests.support.cgroups import Cgroup, container_cgroup
from tests.support.hook import UID, Hook, Outcome, Task, created, end, finish
from tests.support.waiting import wait

pytestmark = pytest.mark.skipif(watching.missing() is not None, reason=str(watching.missing()))
ID = "5f3c" * 16
GROUP = f"oci-{UID}"
ENTER = 'echo $$ >"$0/cgroup.procs" && exec "$@"'
"""What a runtime does for exec: a process enters the container's cgroup,
and becomes the program.
"""
FLOOD = 6000
"""Execs: more than the socket's buffer holds."""


@pytest.fixture
def cgroup() -> Iterator[Cgroup]:
    """The cgroup of a container of the pod."""
    with container_cgroup(UID, ID) as made:
        yield made


@pytest.fixture
def container(hook: Hook, init: Task, cgroup: Cgroup) -> Task:
    """The init of a container that has been created."""
    cgroup.add(init.pid)
    assert hook(created(ID, init.pid, pod_uid=UID)).stderr == ""
    return init


@contextmanager
def exec_into(cgroup: Cgroup, *command: str) -> Iterator[Task]:
    """A process that was brought into the container, and runs there."""
    words = ["sh", "-c", ENTER, str(cgroup.directory), *(command or ("sleep", "infinity"))]
    process = subprocess.Popen(words, stdin=subprocess.DEVNULL)
    try:
        yield process
    finally:
        end(process)


# --- What it does


def test_init_that_a_later_hook_moved_to_another_ctrl_group_is_followed_at_its_exec(
    hook: Hook, cgroup: Cgroup
) -> None:
    """As the hook of a CDI device does, before the runtime lets the init
    become the container's program.
    """
    script = 'read word && exec sh -c "sleep infinity & wait"'
    with (
        watching.watching(hook),
        subprocess.Popen(["sh", "-c", script], stdin=subprocess.PIPE) as init,
    ):
        try:
            assert init.stdin is not None
            cgroup.add(init.pid)
            assert hook(created(ID, init.pid, pod_uid=UID)).stderr == ""
            gold = hook.resctrl_root / "gold"
            gold.mkdir()
            (gold / "tasks").write_text(str(init.pid))
            init.stdin.write(b"go\n")
            init.stdin.close()
            wait(lambda: len(cgroup.pids()) == 2)
            wait(lambda: hook.groups() == {f"gold/{GROUP}"})
            wait(lambda: hook.tasks(f"gold/{GROUP}") == {*cgroup.pids()})
            assert [group["path"] for group in hook.key(UID)["groups"]] == [
                str(gold / "mon_groups" / GROUP)
            ]
        finally:
            for pid in cgroup.pids():
                os.kill(pid, signal.SIGKILL)


def test_exec_is_moved_into_its_containers_group(
    hook: Hook, container: Task, cgroup: Cgroup
) -> None:
    with watching.watching(hook), exec_into(cgroup) as first, exec_into(cgroup) as second:
        wait(lambda: hook.tasks(GROUP) == {container.pid, first.pid, second.pid})


# --- What happens to it


def test_killed_it_leaves_nothing_and_can_be_started_again(
    hook: Hook, container: Task, cgroup: Cgroup
) -> None:
    process = watching.start(hook)
    watching.listen(process)
    wait((hook.run_dir / "watch.json").exists)
    process.kill()
    process.communicate()
    assert (hook.run_dir / "watch.json").exists(), (
        "an alert tells that it was killed, when this gets old"
    )
    with watching.watching(hook), exec_into(cgroup) as brought_in:
        wait(lambda: hook.tasks(GROUP) == {container.pid, brought_in.pid})


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_with_0(hook: Hook, number: signal.Signals) -> None:
    process = watching.start(hook)
    watching.listen(process)
    wait((hook.run_dir / "watch.json").exists)
    process.send_signal(number)
    assert finish(process) == Outcome(0, "", "")
    assert not (hook.run_dir / "watch.json").exists()


def test_after_events_were_lost_it_looks_at_all_containers(
    hook: Hook,
    container: Task,
    cgroup: Cgroup,
    resctrl: Mounted,  # noqa: ARG001  in the guest, where an exec takes long, it would take minutes
) -> None:
    """Stopped, it cannot read, and the socket's buffer runs full."""
    with watching.watching(hook) as process:
        wait((hook.run_dir / "watch.json").exists)  # its first look has begun
        process.send_signal(signal.SIGSTOP)
        for _ in range(FLOOD):
            os.waitpid(os.posix_spawn("/bin/true", ["true"], {}), 0)
        with exec_into(cgroup) as lost:
            wait(lambda: lost.pid in cgroup.pids())
            process.send_signal(signal.SIGCONT)
            while "execs were lost" not in watching.listen(process):
                pass
            wait(lambda: hook.tasks(GROUP) == {container.pid, lost.pid})


# --- Where it cannot begin


@pytest.mark.parametrize(
    ("wrapper", "problem"),
    [
        (["unshare", "--net"], "not the host's network namespace"),
        (["unshare", "--pid", "--fork", "--mount-proc"], "not the host's pid and time namespace"),
        (["unshare", "--user", "--map-root-user"], "only inside a user namespace"),
        (["unshare", "--cgroup"], "private cgroup namespace"),
        (["setpriv", "--bounding-set=-net_admin", "--inh-caps=-net_admin"], "CAP_NET_ADMIN"),
    ],
)
def test_it_says_what_is_wrong_and_exits_with_2(
    hook: Hook, cgroup: Cgroup, wrapper: list[str], problem: str
) -> None:
    script = ["sh", "-c", ENTER, str(cgroup.directory), *wrapper]
    outcome = finish(watching.start(hook, *script))
    assert outcome.status == 2
    assert problem in outcome.stderr
    assert outcome.stderr.count("\n") == 1
