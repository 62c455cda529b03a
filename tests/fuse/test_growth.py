# SPDX-License-Identifier: Apache-2.0
"""Pods gain containers while reconcile runs in a loop: no init leaves the group that a hook put it into."""

from __future__ import annotations

import json
import os
import subprocess
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from threading import Event
from typing import TYPE_CHECKING, Any

from tests.support.cgroups import cgroup
from tests.support.hook import Hook, created, finish, task

if TYPE_CHECKING:
    from tests.resctrlfs import Mounted

PODS = 8
CONTAINERS = 15
LOOPS = 2


def uid_of(pod: int) -> str:
    return f"{pod:08d}-4084-4186-9c0e-93cf8c32e2ce"


def grow(hook: Hook, pod: int, living: ExitStack) -> dict[int, str]:
    """Start containers one after another, each in its own cgroup. Return the stderr of each hook by init."""
    uid, found = uid_of(pod), {}
    for number in range(CONTAINERS):
        name = f"{pod * 1000 + number:064x}"
        top = f"/growth-{os.getpid()}-pod{uid.replace('-', '_')}.slice"
        own = living.enter_context(cgroup(f"{top}/crio-{name}.scope"))
        init = living.enter_context(task())
        own.add(init.pid)
        found[init.pid] = finish(hook.start(created(name, init.pid, pod_uid=uid))).stderr
    return found


def reconcile(hook: Hook, over: Event) -> list[Any]:
    """Run reconcile until all containers are there, and once more. Return its actions."""
    done: list[Any] = []
    is_last = False
    while not is_last:
        is_last = over.is_set()
        command = [*replace(hook, options=()).command("reconcile"), "--json"]
        pipe = subprocess.PIPE
        ended = finish(subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, env={}))
        assert (ended.status, ended.stderr) == (0, "")
        done += json.loads(ended.stdout)["actions"]
    return done


def test_no_init_leaves_its_group_while_pods_gain_containers(hook: Hook, resctrl: Mounted) -> None:
    """An init that a hook records and moves between two reads of reconcile is no stranger."""
    over = Event()
    with ExitStack() as living, ThreadPoolExecutor(PODS + LOOPS) as threads:
        loops = [threads.submit(reconcile, hook, over) for _ in range(LOOPS)]
        stacks = [living.enter_context(ExitStack()) for _ in range(PODS)]
        pods = [threads.submit(grow, hook, number, stacks[number]) for number in range(PODS)]
        try:
            inits = [pod.result() for pod in pods]
        finally:
            over.set()
        done = [action for loop in loops for action in loop.result()]
        assert {said for pod in inits for said in pod.values()} == {""}
        at = {pid: f"/mon_groups/oci-{uid_of(number)}/tasks" for number, pod in enumerate(inits) for pid in pod}
        writes = [(seen.pid, it.path) for it in resctrl.events() if it.op == "tasks" for seen in it.pids]
        assert not [(pid, path) for pid, path in writes if path != at[pid]]
        assert [action for action in done if action["action"] not in ("adopt", "remake")] == []
        for number, pod in enumerate(inits):
            assert hook.tasks(f"oci-{uid_of(number)}") == set(pod)
