# SPDX-License-Identifier: Apache-2.0
"""What a usual start and end import, as seen in each CPython: the modules of the first part of the
bytecode, and cheap ones that are written in C.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager

import pytest

from fetch.interpreters import Interpreter, find, start_command
from pyz import archive
from tests.support.cgroups import Cgroup, cgroup, container_cgroup
from tests.support.hook import UID, Hook, created, end, stopped, task

pytestmark = pytest.mark.form("pyz")  # of the ELF file: test_native.py

EACH = {
    "__main__",
    "context",
    "entry",
    "errors",
    "formats",
    "identity",
    "models",
    "names",
    "resctrl",
    "store",
    "system",
    "validation",
}
COMES = {*EACH, "create", "life"}
GOES = {*EACH, "key", "life_end", "poststop"}
"""Of hook/: a module more costs each container a hundredth of Python's start, or three."""
IN_C = {"_json", "fcntl", "gc", "marshal", "time"}
TELLING = (
    "import sys,posix\n"
    "leave=posix._exit\n"
    "def tell(status):\n"
    "    posix.write(2,' '.join(sys.modules).encode())\n"
    "    leave(status)\n"
    "posix._exit=tell\n"
)
"""At its end an interpreter tells what it has imported."""


def beside(first_cgroup: Cgroup, container: str) -> AbstractContextManager[Cgroup]:
    """The cgroup of another container of the same pod."""
    return cgroup(f"{first_cgroup.path.rpartition('/')[0]}/crio-{container}.scope")


@pytest.mark.parametrize("python", find(), ids=lambda python: ".".join(map(str, python.version)))
def test_a_usual_start_and_end_import_what_is_on_the_list_and_no_more(
    hook: Hook, python: Interpreter
) -> None:
    command = (*start_command(python.path), "-ISc")
    bare = imported([*command, TELLING + "import atexit;tell(0)"])
    runs: list[tuple[set[str], set[str]]] = []
    # Its last container's end lets a pod linger whose cgroup is there, as shipped, or ends it.
    for uid, linger, lingers in (("10" + UID[2:], 600, {"host"}), ("20" + UID[2:], 0, set[str]())):
        start = (*command, TELLING + archive.BOOT)
        node = Hook(hook.resctrl_root, hook.run_dir, python=start, options=[f"--linger={linger}"])
        watched = node.command("hook")
        with (
            task() as first,
            task() as further,
            container_cgroup(uid, "c1") as first_cgroup,
            beside(first_cgroup, "c2") as other,
        ):
            imported(watched, created("c0", first.pid))  # makes the run directory
            first_cgroup.add(first.pid)
            other.add(further.pid)
            for name, init in (("c1", first), ("c2", further)):
                runs.append(
                    (
                        COMES,
                        imported(
                            watched, created(name, init.pid, **{"io.kubernetes.pod.uid": uid})
                        ),
                    )
                )
            for name, init, more in (("c2", further, set[str]()), ("c1", first, lingers)):
                end(init)
                runs.append((GOES | more, imported(watched, stopped(name))))
            assert (node.key(uid) is None) == (linger == 0)
    for names, modules in runs:
        ours = {"hook", *(f"hook.{name}" for name in names)}
        assert {name for name in modules if name.startswith("hook")} == ours
        assert modules - ours - bare <= IN_C


def imported(command: Sequence[str], state: Mapping[str, object] | None = None) -> set[str]:
    """What is imported by the end.

    The state is there when a hook starts: to wait for it takes more of the program.
    """
    read, write = os.pipe()
    os.write(write, json.dumps(state).encode())
    os.close(write)
    with open(read, "rb") as stdin:
        done = subprocess.run(
            command,
            stdin=stdin,
            capture_output=True,
            text=True,
            env={},
            cwd="/",
            check=False,
            timeout=300,
        )
    assert done.returncode == 0
    assert "resctrl-mon-hook: " not in done.stderr
    return set(done.stderr.split())
