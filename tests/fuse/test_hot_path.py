"""What a usual start has loaded: the functions that run, as hook/hot_path.txt lists them, and nothing else."""

from __future__ import annotations

import json
import os
import subprocess
from functools import partial
from typing import TYPE_CHECKING

import build
from tests.support import hot_path
from tests.support.hook import UID, Hook, created, end, stopped, task
from tests.support.interpreters import find

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from tests.resctrlfs import Mounted

WATCHED = (
    "import sys,posix\n"
    "leave=posix._exit\n"
    "def told(status):\n"
    "    posix.write(2,b'%d'%f.tell())\n"
    "    leave(status)\n"
    "posix._exit=told\n"
)
"""What a start does, and tells at its end where in the file it read last."""


def test_the_list_is_what_a_usual_start_and_end_run(resctrl: Mounted, tmp_path: Path) -> None:
    found = hot_path.functions(tmp_path / "traced", resctrl.root)
    assert found == build.hot_path(), "run: python -m tests.support.hot_path > hook/hot_path.txt"


def test_a_usual_start_and_end_read_no_part_that_they_do_not_need(hook: Hook, resctrl: Mounted) -> None:
    """Another read would cost each container what the modules are cut into parts for."""
    for number, python in enumerate(find()):
        uid = f"{number:08d}{UID[8:]}"  # one that was not there before
        command = (str(python.path), "-ISc", WATCHED + build.BOOT)
        watched = partial(_place, Hook(resctrl.root, hook.run_dir, python=command))
        with task() as one, task() as other:
            watched(created("c0", one.pid))  # makes the run directory
            rest = watched({})
            first, further = (
                watched(created("c1", one.pid, pod_uid=uid)),
                watched(created("c2", other.pid, pod_uid=uid)),
            )
            end(other)
            early = watched(stopped("c2"))
            end(one)
            last = watched(stopped("c1"))
            watched(stopped("c0"))
        assert further < early < first == last < rest, "the parts' order in the file"


def _place(hook: Hook, state: Mapping[str, object]) -> int:
    """Where a hook read last. Its state is there when it starts: to wait for it takes more of the program."""
    read, write = os.pipe()
    os.write(write, json.dumps(state).encode())
    os.close(write)
    with open(read, "rb") as stdin:
        done = subprocess.run(
            hook.command("hook"), stdin=stdin, capture_output=True, text=True, env={}, cwd="/", check=False, timeout=300
        )
    return int(done.stderr.rpartition("\n")[2])
